//! Names of generated code, from the files that runtimes write.
//!
//! [`PerfMap`]: lines of text without times; [`JitDump`]: records with times and moves. Both take bytes as they arrive
//! and fill a [`CodeMap`]; the caller chooses the files. [`parse`] converts bytes and the previous state to [`Parsed`],
//! so that another process can run it; [`PerfMap::apply`] and [`JitDump::apply`] check and use the result.

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
