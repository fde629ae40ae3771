//! How the events of a session are spread over threads and CPUs, so that descriptors stay bounded.
//!
//! An inherited event must be bound to a CPU to write into a ring, so following threads takes events for every thread
//! *and* CPU that there are at the beginning (threads that start later inherit theirs and cost no descriptor). Where that
//! would be too many, the layouts with fewer come in; which one it was is said in the session's notes.

/// How the events are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLayout {
    /// On every thread and CPU an event that samples, one that tells of mappings, forks and names, and the TSC where it
    /// is read. Nothing but the target is sampled, and under load nothing but samples can be lost.
    Threads,
    /// On every thread and CPU one event that samples and tells of mappings: a full ring may lose either. (Processes are
    /// looked at anew where it did.)
    Compact,
    /// On every CPU events for all that runs there; ccsd drops what is not the target's before it is unwound. Needs the
    /// right to observe the whole machine. A thread costs one counting event, so that the expected samples are known.
    Cpus,
}
