//! How a session's events are spread over threads and CPUs, so that descriptors stay bounded.
//!
//! An inherited event must be bound to a CPU to write into a ring, so following threads takes an event for every
//! initial
//! thread *and* CPU. Where that is too many, a layout with fewer is used, and a note says so.

/// How the events are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLayout {
    /// On every thread and CPU a sampling event, a tracking event, and the TSC if read. Only the target is sampled, and
    /// only samples can be lost.
    Threads,
    /// On every thread and CPU one event for samples and mappings: a full ring may lose either. (Processes are then
    /// read anew.)
    Compact,
    /// On every CPU events for all that runs; ccsd drops other programs' samples before unwinding. Needs the right to
    /// observe the machine. Each thread has one counting event for the expected samples.
    Cpus,
}
