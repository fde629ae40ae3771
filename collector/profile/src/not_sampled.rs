//! CPU time that no sample stands for (I13).

use crate::causes::{ByCause, causes};

causes! {
    /// Why CPU time is in no sample.
    Unseen, zeros in JSON: true;
    /// Samples that the kernel or ccsd dropped, at what one sample stands for.
    Lost => "lost", "of lost and dropped samples",
    /// Samples that throttling kept from being taken.
    Throttled => "throttled", "of throttled samples",
    /// Threads that ended before their first sample; at most one period for each.
    Ended => "ended", "of threads that ended before their first sample",
    /// Time that the events did not count: they are off while the kernel switches threads, and in programs that they may not
    /// follow because these have got other rights.
    Switching => "switching", "while events were off (the kernel switching threads, or a program that they may not follow)",
    /// System time of the target that is in no sample of the kernel. Timers do not fire while interrupts are off.
    Kernel => "kernel", "in the kernel, where interrupts were off",
    /// Everything else: timers that came late, threads that ended or left a CPU between two samples.
    Unknown => "unknown", "for no known cause",
}

/// CPU time that no sample stands for, nanoseconds by cause. Their sum is charged to the cost centre `[not sampled]`.
pub type NotSampled = ByCause<Unseen, { Unseen::COUNT }>;

impl NotSampled {
    /// Splits `total` by cause: each of `parts` explains at most its number, in this order, and [`Unseen::Unknown`] the
    /// rest.
    #[must_use]
    pub fn split(total: u64, parts: &[(Unseen, u64)]) -> NotSampled {
        NotSampled::split_with(total, parts, Unseen::Unknown)
    }
}
