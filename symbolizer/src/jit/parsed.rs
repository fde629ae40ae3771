//! What a parser makes of a piece of a file.

use serde::{Deserialize, Serialize};

/// What is known of a file from what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Parser {
    /// A perf map.
    PerfMap {
        /// Within a line that is too long, of which the beginning has been used.
        skipping: bool,
    },
    /// A jitdump of which nothing has been read.
    DumpBegins,
    /// A jitdump after its header.
    DumpRecords {
        /// Whether the times are `CLOCK_MONOTONIC`.
        timed: bool,
    },
    /// It is no jitdump, or has ended.
    DumpOver,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parsed {
    /// What is known for the next piece.
    pub parser: Parser,
    /// Bytes that were used. Those after come again with what follows them. It may be more than there were: code itself is
    /// passed over.
    pub used: u64,
    /// In order.
    pub(super) entries: Vec<JitEntry>,
    /// Lines or records that made no sense.
    pub(super) bad: u64,
    /// The latest time of a record, nanoseconds; see [`super::JitDump::latest`].
    pub(super) latest: u64,
}

/// Something that a file says. Addresses and sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JitEntry {
    /// Code is there. Of a perf map without index, and from time 0.
    Code { start: u64, size: u64, from: u64, index: Option<u64>, name: String },
    /// Code has moved.
    Moved { old: u64, new: u64, size: u64, from: u64, index: u64 },
}

impl Parsed {
    pub(super) fn new(parser: Parser) -> Parsed {
        Parsed { parser, used: 0, entries: Vec::new(), bad: 0, latest: 0 }
    }
}
