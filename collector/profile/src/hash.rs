//! Hashes small integer keys with one multiplication, well mixed at both ends as hashbrown needs (the bucket comes from
//! the low bits and a tag from the high ones).

use std::hash::{BuildHasher, RandomState};

/// Odd constants without structure: the fractional parts of the golden ratio and of the square root of 3.
const PHI: u64 = 0x9E37_79B9_7F4A_7C15;
const SQRT3: u64 = 0xBB67_AE85_84CA_A73B;

/// A random seed, so that no file can make all ids fall into one bucket.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0u64)
}

/// Mixes one 64-bit key: both halves of a full product, folded together.
#[inline]
pub(crate) fn mix(seed: u64, key: u64) -> u64 {
    let product = u128::from(key ^ seed) * u128::from(PHI);
    (product as u64) ^ ((product >> 64) as u64)
}

#[inline]
pub(crate) fn mix2(seed: u64, a: u32, b: u32) -> u64 {
    mix(seed, (u64::from(a) << 32) | u64::from(b))
}

#[inline]
pub(crate) fn mix4(seed: u64, a: u32, b: u32, c: u32, d: u32) -> u64 {
    mix(mix2(seed, a, b) ^ SQRT3, (u64::from(c) << 32) | u64::from(d))
}

#[inline]
pub(crate) fn mix3(seed: u64, a: u32, b: u32, c: u32) -> u64 {
    mix(mix2(seed, a, b) ^ SQRT3, u64::from(c))
}
