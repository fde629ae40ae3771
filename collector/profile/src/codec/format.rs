//! The frame of the format: magic, types of records, flags, the checksum.

/// First bytes of every profile: no ASCII or UTF-8, and spoilt by every transfer that is not binary (as in PNG).
pub const MAGIC: [u8; 8] = *b"\x89ccsd\r\n\x1a";

/// The version that is written, and the newest one that is read.
///
/// - Version 1 has no namings ([`Update::namings`](crate::Update::namings)).
/// - Version 2 has no sums of squares, and does not say which functions are local.
pub const VERSION: u32 = 3;

/// Above this number of intervals, the shortest neighbours are merged: eight and a half minutes at one a second.
pub const MAX_INTERVALS: usize = 512;

pub(super) const HEADER_BYTES: usize = MAGIC.len() + size_of::<u32>();

pub(super) const TYPE_SESSION: u8 = 1;
pub(super) const TYPE_UPDATE: u8 = 2;
pub(super) const TYPE_END: u8 = 3;
/// Types from here on are skipped when unknown.
pub(super) const TYPE_OPTIONAL: u8 = 128;
pub(super) const TYPE_CRASH: u8 = 128;
/// The outer part of an earlier stack, which belongs to the crash before it.
pub(super) const TYPE_EARLIER_STACK: u8 = 129;
/// What the processes of the update that follows belong to.
pub(super) const TYPE_MEMBERSHIP: u8 = 130;

/// What the containers of the membership record before it are called.
pub(super) const TYPE_CONTAINER_NAMES: u8 = 131;

pub(super) mod flag {
    pub const LINKAGE_NAME: u8 = 1;
    pub const DISPLAY_NAME: u8 = 1 << 1;
    pub const START: u8 = 1 << 2;
    pub const FILE: u8 = 1 << 3;
    pub const LOCAL: u8 = 1 << 4;
    /// Fields of a later version follow the line, preceded by their length; readers skip them. Unnamed flags have no
    /// fields.
    pub const MORE: u8 = 1 << 7;
    /// All that this version knows the meaning of.
    pub const KNOWN: u8 = LINKAGE_NAME | DISPLAY_NAME | START | FILE | LOCAL;
}

pub(super) fn checksum(record: u64, header: &[u8], kind: u8, length: &[u8], payload: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(header);
    crc.update(&(record as u32).to_le_bytes());
    crc.update(&[kind]);
    crc.update(length);
    crc.update(payload);
    crc.finalize()
}
