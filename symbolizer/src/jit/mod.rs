//! Names of generated code, from the files that runtimes write.
//!
//! Two formats exist: [`PerfMap`], lines of text without times, and [`JitDump`], records with times and moves. Both
//! parsers take bytes as they arrive and fill a [`CodeMap`]; the caller chooses the files.
//!
//! Parsing is separate from applying: [`parse`] converts bytes and the previous state to [`Parsed`] and keeps nothing,
//! so that another process can run it. [`PerfMap::apply`] and [`JitDump::apply`] then check and use the result.

mod code_map;
mod dump;
mod parsed;
mod perf_map;

pub use code_map::{CodeAtTime, CodeMap};
pub use dump::JitDump;
pub use parsed::{JitParser, Parsed};
pub use perf_map::PerfMap;

/// Parses the next bytes of a file.
#[must_use]
pub fn parse(parser: JitParser, bytes: &[u8]) -> Parsed {
    match parser {
        JitParser::PerfMap { skipping } => perf_map::parse(skipping, bytes),
        JitParser::DumpBegins | JitParser::DumpRecords { .. } | JitParser::DumpOver => dump::parse(parser, bytes),
    }
}
