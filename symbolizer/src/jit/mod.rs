//! Names of code that a program generates at run time, as its runtime writes them to a file.
//!
//! Two formats are in use: [`PerfMap`], lines of text without times, and [`JitDump`], records with times and moves. Both
//! parsers take bytes as they come and fill a [`CodeMap`]; which file is read when is the caller's business.

//!
//! Parsing is apart from what becomes of it: [`parse`] makes [`Parsed`] of bytes and of what it knew before, and holds nothing
//! itself, so that another process can do it. [`PerfMap::apply`] and [`JitDump::apply`] take that for what it is worth.

mod code_map;
mod dump;
mod parsed;
mod perf_map;

pub use code_map::{CodeMap, Found};
pub use dump::JitDump;
pub use parsed::{Parsed, Parser};
pub use perf_map::PerfMap;

/// Parses the next bytes of a file.
#[must_use]
pub fn parse(parser: Parser, bytes: &[u8]) -> Parsed {
    match parser {
        Parser::PerfMap { skipping } => perf_map::parse(skipping, bytes),
        Parser::DumpBegins | Parser::DumpRecords { .. } | Parser::DumpOver => dump::parse(parser, bytes),
    }
}
