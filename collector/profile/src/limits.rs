//! How large things may get, with the reason for each number.

/// Entries of a history beyond which a stack is charged to `[elided]`. A history has at most three entries for each
/// distinct function on the stack, mostly little more than one, and deep stacks hold a few hundred functions. The limit
/// keeps a hostile file of n contexts from costing n x n steps to show.
pub const MAX_HISTORY_ENTRIES: usize = 2048;

/// Call sites of a route beyond which it is cut. Stacks have some 200 different ones at most; the limit keeps a hostile file
/// of n routes from costing n x n steps to show.
pub(crate) const MAX_ROUTE_SITES: usize = 2048;

/// Metrics that one session can carry: cycles, two clocks, faults, allocation and a few more. A charge costs 16 bytes
/// of memory for each of them, and 32 more where its samples differ in weight.
pub const MAX_METRICS: usize = 16;

/// Longest string kept, in bytes; longer ones are cut. Mangled C++ names of several kilobytes are real, 64 KiB are not.
pub const MAX_STRING_BYTES: usize = 64 * 1024;

/// Names of source files in one stream. The kernel has some 60,000.
pub(crate) const MAX_FILES: usize = 1 << 20;

/// Places of charges in one generation of contexts: twice as many as [`ProfileLimits::reading`] has room for charges, so none of
/// ours is refused. A place takes a few bits of a hostile file, and 12 bytes of memory.
pub(crate) const MAX_PLACES: usize = 1 << 25;

/// Notes of one profile, and bytes of one: each is a line about a fallback, of which there are dozens. What is noted beyond
/// them is left out, and the last one says so.
pub(crate) const MAX_NOTES: usize = 256;
pub(crate) const MAX_NOTE_BYTES: usize = 4096;

/// Longest record that is written or read, in bytes. Updates are cut before (at 65,536 definitions, 4 MiB of names, about a
/// million numbers in charges, of at most 10 bytes each), so none of ours is refused. A reader of a hostile stream
/// allocates as data arrives, never from a length found in it, and in all a few times this.
pub const MAX_RECORD_BYTES: usize = 32 * 1024 * 1024;

/// Smallest budget of a context table, in bytes: a quarter of it is kept for functions below `[elided]`, and what an
/// `[elided]` below every context takes; contexts come in blocks of 6 KiB.
pub const MIN_CONTEXT_BYTES: usize = 64 * 1024;

/// Budgets of one profile. What does not fit is charged to a coarser place and counted, never dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileLimits {
    /// Bytes of the context table, everything counted. At least [`MIN_CONTEXT_BYTES`]. A full table charges new paths
    /// to `[elided]` below the callers that it knows.
    pub context_bytes: usize,
    /// Bytes of the charges (thread x context x line x route). When full, a new combination is charged to `[elided]`
    /// below its outer callers, in its thread.
    pub charge_bytes: usize,
    /// Bytes of the routes, the call sites of stacks. When full, the call sites further in are not known.
    pub route_bytes: usize,
    /// Bytes of all names. What comes later goes by its address, or to `[elided]` and `[other]`.
    pub string_bytes: usize,
    /// Images; more share the image `[other]`.
    pub images: usize,
    /// Cost centres; more are charged as `[elided]`.
    pub cost_centres: usize,
    /// Source lines; more count as unknown.
    pub lines: usize,
    /// Processes; more share the process `[other]`.
    pub processes: usize,
    /// Threads; more share the thread `[other]`.
    pub threads: usize,
}

impl Default for ProfileLimits {
    /// For collecting. 64 MiB of contexts are about 1.5 million, and `cc1 -O2`, a program rich in contexts, made
    /// 33,730 in 25 seconds. The names of the functions of a large C++ program that are ever sampled take a few
    /// megabytes, 128 MiB are those of a million functions. The other counts are ten times and more what the largest known programs need.
    fn default() -> Self {
        Self {
            context_bytes: 64 << 20,
            charge_bytes: 64 << 20,
            route_bytes: 32 << 20,
            string_bytes: 128 << 20,
            images: 1 << 14,
            cost_centres: 1 << 20,
            lines: 1 << 20,
            processes: 1 << 16,
            threads: 1 << 18,
        }
    }
}

impl ProfileLimits {
    /// For reading and merging: room for several full sessions, and still a bound on what a hostile file can take.
    #[must_use]
    pub fn reading() -> Self {
        Self {
            context_bytes: 1 << 30,
            charge_bytes: 1 << 30,
            route_bytes: 1 << 30,
            string_bytes: 1 << 30,
            images: 1 << 18,
            cost_centres: 1 << 24,
            lines: 1 << 24,
            processes: 1 << 20,
            threads: 1 << 22,
        }
    }
}
