//! What an entry of the table of processes takes.

use super::live::{LiveProcess, LiveThread};
use super::mappings::Mapping;

/// Maximum bytes of a live thread in both of ccsd's threads, with name and indexes, without stacks; and for each ring's
/// counter value.
pub(super) const THREAD_BYTES: usize = 1024;
pub(super) const RING_BYTES: usize = size_of::<Option<u64>>();
/// The same of a process without its mappings, and of a mapping, of which a list has up to twice the room that it needs.
pub(super) const PROCESS_BYTES: usize = 1024;
pub(super) const MAPPING_BYTES: usize = 2 * size_of::<Mapping>();

// An index of hashes has up to 16 places for 7 entries.
const _: () = assert!(size_of::<(u32, LiveThread)>() * 16 / 7 <= THREAD_BYTES * 3 / 4);
const _: () = assert!(size_of::<(u32, LiveProcess)>() * 16 / 7 <= PROCESS_BYTES);
