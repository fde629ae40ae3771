//! The session engine: runs a collection, writes its profile as it grows, and says how it is going.
//!
//! The command line runs it inside its own process. Nothing here prints.

pub mod config;
mod engine;
mod output;
pub mod store;
pub mod watch;

pub use engine::{Collection, Outcome, Request, Status, Stop, Target};
pub use output::{OutputError, OutputFile};
