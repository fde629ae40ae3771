//! Samples the call stacks of running programs through perf events, and turns them into profiles.
//!
//! ```text
//! perf rings -> sorter -> Record -> tracker + unwinder -> batch builder               (sampling thread, `sampler`)
//!            -> batches  -> resolver -> contexts -> profile -> Update                (aggregating thread, `aggregator`)
//! ```
//!
//! The caller starts a [`Session`] on a new program ([`Session::record`]) or on running ones ([`Session::attach`]) and
//! reads its [`SessionEvent`]s until [`SessionEvent::Finished`]. The target is never stopped. Each thread owns its
//! state; the two talk by bounded channels, and where one is full, samples are dropped and counted, nothing else.
//!
//! A [`dump`] is something else: it takes the stacks of all threads of a process once, and stops each for a moment.
//!
//! `unsafe` stands in six modules, each time because the kernel's interface needs it: `perf::event` and `sched_priority`
//! (system calls), `perf::ring_buffer` (shared memory), `perf::closer` (clone), `child` (fork, wait4) and `dump::ptrace`.

pub mod aggregator;
mod arch;
mod backoff;
pub mod batch;
mod batch_builder;
pub mod budget;
pub mod child;
mod clock;
mod crash;
pub mod dump;
mod error;
mod give_back;
pub mod import;
mod jit;
mod options;
pub mod pace;
pub mod perf;
pub mod process;
pub mod procfs;
mod rate_history;
pub mod resolve;
pub mod sampler;
pub mod sched_priority;
mod session;
mod session_event;
pub mod stack_delta;
pub mod system;
pub mod tracker;
pub mod unwind;
mod unwinding;
pub mod usage;
pub mod watchdog;

pub use budget::Budget;
/// An ELF file as it is read for profiles: for whoever asks whether one is what was profiled.
pub use ccsd_symbolizer::{Door, ElfFile, FileRoot, ForUser};
pub use error::{Error, Result};
pub use options::Options;
pub use pace::Overhead;
pub use perf::choice::{EventChoice, Scope, check_rate};
pub use session::{Session, check_target, without_arguments};
pub use session_event::SessionEvent;
