//! Samples the call stacks of running programs through perf events, and turns them into profiles.
//!
//! ```text
//! perf rings -> sorter -> Record -> tracker + unwinder -> batch builder               (sampling thread, `sampler`)
//! -> batches  -> resolver -> contexts -> profile -> Update                (aggregating thread, `aggregator`)
//! ```
//!
//! The caller starts a [`Session`] on a new program ([`Session::record`]) or on running ones ([`Session::attach`]) and
//! reads its [`SessionEvent`]s until [`SessionEvent::Finished`]. The target is never stopped. Each thread owns its
//! state; the two talk by bounded channels, and where one is full, samples are dropped and counted.
//!
//! A [`dump`] takes the stacks of all threads of a process once, and stops blocked ones for a moment.
//!
//! `unsafe` stands in six modules, for the kernel's interface: `perf::event` and `sched_priority` (system calls),
//! `perf::ring_buffer` (shared memory), `perf::closer` (clone), `child` (fork, wait4) and `dump::ptrace`.

mod aggregator;
#[cfg(test)]
mod allocations_tests;
mod arch;
mod backoff;
mod batch;
mod batch_builder;
mod budget;
pub mod child;
mod clock;
mod crash;
mod deadline;
pub mod dump;
mod error;
mod function_names;
mod host;
pub mod import;
mod jit;
mod machine_time;
pub mod naming;
mod options;
pub mod other_process;
mod pace;
mod perf;
mod pids;
mod process;
pub mod procfs;
mod rate_history;
mod resolve;
mod sampler;
mod sched_priority;
mod session;
mod session_event;
mod stack_delta;
pub mod system;
mod time_budget;
mod tracker;
mod unmet_code;
mod unwind;
mod unwinding;
pub mod usage;
mod users;
mod watchdog;

pub use budget::Budget;
/// An ELF file as profiles read it, to check whether a file is the profiled one.
pub use ccsd_symbolizer::debuginfod;
pub use ccsd_symbolizer::{Authors, Door, ElfFile, FileIdentity, FileRoot, ForUser, ImageError, source_files};
pub use deadline::Deadline;
pub use error::{Error, Result};
pub use host::container_names::ContainerNames;
pub use host::membership::cgroup_path;
pub use host::selection::{ProcessSelection, cgroup_exists, path_in_hierarchy};
pub use options::Options;
pub use pace::{HALVINGS, Overhead, halved};
pub use perf::attr::{Event, EventSpec, MAX_STACK_BYTES};
pub use perf::choice::{ChosenEvent, EventChoice, Scope, check_rate, choose, may_observe_machine};
pub use perf::files::FileShare;
pub use perf::layout::EventLayout;
pub use perf::layout_choice::{files_per_target, room as event_file_room};
pub use perf::set::EventSet;
pub use process::filter::{Executed, ProcessFilter, ProgramFile};
pub use process::owner::{Denied, Owner, events_end_with_rights};
pub use sampler::LeftOutPids;
pub use sched_priority::{become_favoured, become_unfavoured};
pub use session::{Session, check_target, without_arguments};
pub use session_event::SessionEvent;

/// What benchmarks and fuzzing take alone. Not for other crates: it changes with the code.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::aggregator::Aggregator;
    pub use crate::arch::user_regs::UserRegs;
    pub use crate::batch::{Batch, BatchItem};
    pub use crate::perf::layout_choice::LayoutChoice;
    pub use crate::perf::record::{Record, Sample, SampleLayout, parse};
    pub use crate::perf::ring_buffer::Bytes;
    pub use crate::perf::rings::ring_pages;
    pub use crate::process::images::{ImageIndex, Images};
    pub use crate::process::mappings::{Mapping, Mappings};
    pub use crate::process::{ProcessKey, ProcessTable, ThreadKey};
    pub use crate::resolve::Resolver;
    pub use crate::unwind::go::goroutines::GoroutineTable;
    pub use crate::unwind::shadow::ShadowStack;
    pub use crate::unwind::{Frame, StackRoot, StackUnwinder, UnwindTarget};
}
