//! Names of code that a program generates at run time, as its runtime writes them to a file.
//!
//! Two formats are in use: [`PerfMap`], lines of text without times, and [`JitDump`], records with times and moves. Both
//! parsers take bytes as they come and fill a [`CodeMap`]; which file is read when is the caller's business.

mod code_map;
mod dump;
mod perf_map;

pub use code_map::{CodeMap, Found};
pub use dump::JitDump;
pub use perf_map::PerfMap;
