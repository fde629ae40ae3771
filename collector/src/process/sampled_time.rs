//! What the samples of a process stand for, against its CPU clock.
//!
//! Where CPUs are sampled, one clock ticks for all that runs on each. What runs in step with it is seen too seldom or too often,
//! and what runs beside it pays or gains. The kernel counts the CPU time of each process exactly.

/// How far apart they are in standard deviations of a count of samples that come by chance. Samples of a regular clock vary less.
const DEVIATIONS: f64 = 6.0;
/// Nanoseconds of difference that need no reason, and for each CPU: samples are read some time before the clock.
const SLACK_NS: f64 = 100e6;
const CPU_SLACK_NS: f64 = 6e6;
/// The least difference that is noted, as a part of the time used.
const LEAST_PART: f64 = 0.25;

/// CPU time of a process after which it is compared anew, nanoseconds: what fitted for long would hide what does not.
const WINDOW_NS: u64 = 10_000_000_000;

/// Time after which the same process is noted again, nanoseconds.
pub const NOTED_AGAIN_NS: u64 = 3_600_000_000_000;

/// The time that the samples of a process stand for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledTime {
    /// Nanoseconds of all samples.
    sampled_ns: u64,
    /// When the present comparison began.
    first: Option<Start>,
    /// Until when nothing more is noted of it.
    silent_until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Start {
    clock_ns: u64,
    sampled_ns: u64,
    lost: u64,
    changes: u64,
}

/// What a comparison needs to know of the session's samples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sampling {
    /// What a sample stands for, nanoseconds.
    pub period_ns: u64,
    pub cpus: usize,
    /// The part of the samples that all CPUs should have given which were delivered: of a virtual machine whose host is busy some are
    /// not.
    pub delivered: f64,
    /// Samples of any process that were lost, since sampling began.
    pub lost: u64,
    /// Grows with each change of what is sampled: then comparisons begin anew.
    pub changes: u64,
}

/// What a process has used by its CPU clock and by its samples, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contradiction {
    pub used_ns: u64,
    pub sampled_ns: u64,
}

impl SampledTime {
    #[inline]
    pub fn add(&mut self, ns: u64) {
        self.sampled_ns = self.sampled_ns.saturating_add(ns);
    }

    /// Begins the comparison anew: samples of the process were not kept until now.
    pub fn begin_anew(&mut self) {
        self.first = None;
    }

    /// Compares it with what its CPU clock shows, nanoseconds. Returns a contradiction once an hour, of what came since the last one.
    pub fn compare(&mut self, now: u64, clock_ns: u64, sampling: Sampling) -> Option<Contradiction> {
        if now < self.silent_until {
            return None;
        }
        let Sampling { period_ns, cpus, delivered, lost, changes } = sampling;
        let start = Start { clock_ns, sampled_ns: self.sampled_ns, lost, changes };
        let Some(first) = self.first.filter(|first| first.clock_ns <= clock_ns && first.changes == changes) else {
            self.first = Some(start);
            return None;
        };
        let sampled_ns = self.sampled_ns.saturating_sub(first.sampled_ns);
        let found = Contradiction { used_ns: clock_ns - first.clock_ns, sampled_ns };
        let (used, sampled) = (found.used_ns as f64, found.sampled_ns as f64);
        // All that runs may lack samples, but one process should not lack more of them than others do.
        let (least, most) = (used * delivered.min(1.0), used * delivered.max(1.0));
        // All that was lost may have been its.
        let lost_ns = lost.saturating_sub(first.lost).saturating_mul(period_ns);
        let slack = SLACK_NS + CPU_SLACK_NS * cpus as f64 + lost_ns as f64;
        let tolerated = |due: f64| slack + (DEVIATIONS * (due * period_ns as f64).sqrt()).max(LEAST_PART * used);
        let contradicts = sampled + tolerated(least) < least || sampled > most + tolerated(most);
        if contradicts {
            (self.first, self.silent_until) = (None, now.saturating_add(NOTED_AGAIN_NS));
        } else if found.used_ns >= WINDOW_NS {
            self.first = Some(start);
        }
        contradicts.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sampling(delivered: f64) -> Sampling {
        Sampling { period_ns: 10 * MS, cpus: 2, delivered, lost: 0, changes: 0 }
    }

    /// Whether `sampled_ms` of `used_ms` are a contradiction at a period of 10 ms.
    fn contradicts(used_ms: u64, sampled_ms: u64, delivered: f64) -> bool {
        let mut time = SampledTime::default();
        // What was before the first look does not count.
        time.add(777 * MS);
        assert_eq!(time.compare(1, 5_000 * MS, sampling(delivered)), None);
        time.add(sampled_ms * MS);
        let found = time.compare(2, (5_000 + used_ms) * MS, sampling(delivered));
        assert!(found.is_none_or(|it| it == Contradiction { used_ns: used_ms * MS, sampled_ns: sampled_ms * MS }));
        found.is_some()
    }

    #[test]
    fn what_fitted_for_long_hides_nothing() {
        let mut time = SampledTime::default();
        assert_eq!(time.compare(1, 0, sampling(1.0)), None);
        for hour in 1..100 {
            time.add(3_600_000 * MS);
            assert_eq!(time.compare(1, hour * 3_600_000 * MS, sampling(1.0)), None);
        }
        assert!(time.compare(1, (99 * 3_600_000 + 2_000) * MS, sampling(1.0)).is_some());
    }

    #[test]
    fn each_hour_has_its_own() {
        let mut time = SampledTime::default();
        let mut compare = |now, clock_ms: u64| time.compare(now, clock_ms * MS, sampling(1.0));
        assert_eq!(compare(1, 0), None);
        assert!(compare(2, 3_000).is_some());
        assert_eq!((compare(3, 9_000), compare(2 + NOTED_AGAIN_NS, 9_000)), (None, None));
        let again = Contradiction { used_ns: 2_000 * MS, sampled_ns: 0 };
        assert_eq!(compare(3 + NOTED_AGAIN_NS, 11_000), Some(again));
    }

    #[test]
    fn what_chance_may_explain_is_not_told() {
        for (used, sampled) in [(0, 0), (100, 0), (300, 0), (1_000, 350), (1_000, 1_650), (10_000, 7_600), (0, 90)] {
            assert!(!contradicts(used, sampled, 1.0), "{sampled} of {used} ms");
        }
        for (used, sampled) in [(3_400, 300), (1_800, 3_000), (1_000, 200), (10_000, 7_300), (0, 500)] {
            assert!(contradicts(used, sampled, 1.0), "{sampled} of {used} ms");
        }
    }

    #[test]
    fn samples_that_all_lack_are_no_contradiction() {
        assert!(contradicts(10_000, 5_000, 1.0) && !contradicts(10_000, 5_000, 0.5));
        assert!(contradicts(10_000, 1_000, 0.5) && contradicts(10_000, 14_000, 0.5));
        // More than were expected came.
        assert!(contradicts(10_000, 20_000, 1.0) && !contradicts(10_000, 20_000, 2.0));
    }

    #[test]
    fn what_was_lost_or_not_sampled_is_no_contradiction() {
        let begun = |used_ms: u64, after: Sampling| {
            let mut time = SampledTime::default();
            assert_eq!(time.compare(1, 0, sampling(1.0)), None);
            time.compare(1, used_ms * MS, after).is_some()
        };
        assert!(begun(9_000, sampling(1.0)) && begun(9_000, Sampling { lost: 100, ..sampling(1.0) }));
        assert!(!begun(9_000, Sampling { lost: 900, ..sampling(1.0) }));
        assert!(!begun(9_000, Sampling { changes: 1, ..sampling(1.0) }));
        assert!(!begun(1_200, Sampling { cpus: 256, ..sampling(1.0) }));
    }

    #[test]
    fn a_clock_that_went_back_is_another_process_s() {
        let mut time = SampledTime::default();
        assert_eq!(time.compare(1, 9_000 * MS, sampling(1.0)), None);
        assert_eq!(time.compare(2, 100 * MS, sampling(1.0)), None);
        assert_eq!(time.compare(3, 150 * MS, sampling(1.0)), None);
        assert!(time.compare(4, 2_100 * MS, sampling(1.0)).is_some());
    }
}
