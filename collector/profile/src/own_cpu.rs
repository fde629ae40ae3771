//! The profiler's own CPU time, by what it was spent for.

use crate::causes::{ByCause, causes};

causes! {
    /// What the profiler spent CPU time for.
    Phase, zeros in JSON: true;
    /// From the beginning of `main` until sampling begins.
    Start => "start", "start-up",
    /// Names of kernel functions: reading the kernel's list, or the file that keeps it.
    KernelNames => "kernel_names", "kernel names",
    /// Opening images, and reading their unwind tables, symbols and debug information.
    Images => "images", "images and names",
    /// Reading the kernel's records, and unwinding.
    Sampling => "sampling", "reading samples and unwinding",
    /// Contexts, charges and updates.
    Aggregating => "aggregating", "aggregating",
    /// Everything else while the session runs: writing the file, the line of progress.
    Rest => "rest", "writing and the rest",
}

impl Phase {
    /// Whether a session pays it once, or once for each image and function: a longer session does not pay it again.
    #[must_use]
    pub const fn is_once(self) -> bool {
        matches!(self, Phase::Start | Phase::KernelNames | Phase::Images)
    }
}

/// CPU time of the profiler, nanoseconds by phase. Their sum is [`OwnCost::cpu_ns`](crate::OwnCost::cpu_ns).
pub type OwnCpu = ByCause<Phase, { Phase::COUNT }>;

impl OwnCpu {
    /// Splits `total` by phase: each of `parts` takes at most its number, in this order, and [`Phase::Rest`] what is left.
    #[must_use]
    pub fn split(total: u64, parts: &[(Phase, u64)]) -> OwnCpu {
        OwnCpu::split_with(total, parts, Phase::Rest)
    }

    /// Of the phases that a session pays once; see [`Phase::is_once`].
    #[must_use]
    pub fn once(&self) -> u64 {
        self.sum(true)
    }

    /// Of the phases that go on as long as the session does.
    #[must_use]
    pub fn lasting(&self) -> u64 {
        self.sum(false)
    }

    fn sum(&self, once: bool) -> u64 {
        self.iter().filter(|(phase, _)| phase.is_once() == once).fold(0, |sum, (_, ns)| sum.saturating_add(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_add_up_to_the_whole() {
        let parts = [(Phase::Start, 5), (Phase::Sampling, 20), (Phase::Images, 7)];
        let own = OwnCpu::split(40, &parts);
        assert_eq!(own.numbers(), &[5, 0, 7, 20, 0, 8]);
        assert_eq!((own.once(), own.lasting()), (12, 28));
        // Clocks are read one after the other: the parts may be more than the whole.
        assert_eq!(OwnCpu::split(22, &parts).numbers(), &[5, 0, 0, 17, 0, 0]);
    }
}
