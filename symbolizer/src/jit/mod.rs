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
pub use parsed::{Parsed, Parser, parse};
pub use perf_map::PerfMap;
