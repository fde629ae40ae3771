//! Notes of a session whose beginnings say how much they matter to a reader.

/// The kernel is not sampled, though it was wanted.
pub const USER_ONLY: &str = "user code only";
/// Rings, and with them the copied part of each stack, are smaller than usual.
pub const SMALL_RINGS: &str = "the locked-memory allowance gives";
/// CPUs are sampled instead of threads.
pub const PER_CPU: &str = "sampled per CPU instead of per thread";
/// Where CPUs are sampled: the kernel sampled the processes of these control groups alone.
pub const BY_GROUP: &str = "only what ran in control groups was sampled";
/// All that ran was sampled, or a part of it; how busy the machine was.
pub const MACHINE: &str = "this machine";
/// The samples of a process do not fit the CPU time that the kernel counted.
pub const IN_STEP: &str = "samples contradict CPU clocks";
/// One event per thread and CPU gives both the samples and the records of mappings, so they share a ring.
pub const COMPACT: &str = "one event per thread and CPU";
/// Sampled by the scheduler's tick.
pub const BY_TICK: &str = "sampled by the scheduler's tick";
/// The kernel's functions have no names.
pub const NAMELESS_KERNEL: &str = "kernel functions have no names";
/// A daemon collected it, among others.
pub const BY_DAEMON: &str = "collected by a daemon";
/// The kernel ended the events of programs that got other rights when they were executed.
pub const OTHER_RIGHTS: &str = "the kernel switched events off";
/// Signals that kill a process are not seen.
pub const NO_CRASH_STACKS: &str = "no stacks of fatal signals";
/// A recording of another profiler ends early, or a part of it cannot be read.
pub const CUT_RECORDING: &str = "the recording is cut short";

/// Whether a note says that something else is measured than usual, so that a reader must see it beside the numbers.
#[must_use]
pub fn changes_what_is_measured(note: &str) -> bool {
    [USER_ONLY, SMALL_RINGS, PER_CPU, MACHINE, COMPACT, BY_TICK, IN_STEP, NAMELESS_KERNEL, OTHER_RIGHTS]
        .iter()
        .any(|start| note.starts_with(start))
}

/// Whether a note matters only where a process has died.
#[must_use]
pub fn is_of_crashes(note: &str) -> bool {
    note.starts_with(NO_CRASH_STACKS)
}
