//! The result of parsing a piece of a file.

use serde::{Deserialize, Serialize};

/// The parser's state between pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JitParser {
    /// A perf map.
    PerfMap {
        /// Whether the next bytes continue a line that is too long, whose start was used.
        skipping: bool,
    },
    /// A jitdump before its header.
    DumpBegins,
    /// A jitdump after its header.
    DumpRecords {
        /// Whether the times are `CLOCK_MONOTONIC`.
        timed: bool,
    },
    /// Not a jitdump, or ended.
    DumpOver,
}

/// The result of parsing a piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parsed {
    /// The state for the next piece.
    pub parser: JitParser,
    /// Bytes used, possibly more than given (code is skipped); the rest must be given again.
    pub used: u64,
    pub(super) entries: Vec<JitEntry>,
    pub(super) bad: u64,
    pub(super) latest: u64,
}

/// An entry of a file. Addresses and sizes in bytes, times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum JitEntry {
    /// New code. In a perf map without index, and from time 0.
    Code {
        start: u64,
        size: u64,
        from: u64,
        index: Option<u64>,
        name: String,
    },
    Moved {
        old: u64,
        new: u64,
        size: u64,
        from: u64,
        index: u64,
    },
}

impl Parsed {
    pub(super) fn new(parser: JitParser) -> Parsed {
        Parsed { parser, used: 0, entries: Vec::new(), bad: 0, latest: 0 }
    }
}
