//! The session engine, and the service that shares it.
//!
//! The command line runs a [`Collection`] in its own process, or has a daemon run it ([`client`], [`remote`]). The
//! daemon ([`service`]) keeps a table of [`sessions`], each with its own thread, and serves readers over the
//! [`protocol`]; [`authority`] decides what a user may do. Nothing here prints.

pub mod authority;
pub mod client;
pub mod config;
pub mod destination;
mod dumps;
mod engine;
mod heap;
pub mod last_good;
pub mod ledger;
mod lock_file;
pub mod metrics;
mod output;
pub mod protocol;
pub mod remote;
pub mod service;
pub mod sessions;
pub mod store;
pub mod supervisor;
mod trusted_path;
pub mod upkeep;
mod users;
pub mod watch;

pub use engine::{
    CollectRequest, CollectTarget, Collection, CollectorChoice, Outcome, PrepareError, Progress, Status, StopRequest,
};
pub use output::{OutputError, OutputFile};
