//! What the samples of a process stand for, against its CPU clock.
//!
//! Where CPUs are sampled, one clock ticks for all that runs on each. What runs in step with it is seen too seldom or too often,
//! and what runs beside it pays or gains. The kernel counts the CPU time of each process exactly.

/// How far apart they are in standard deviations of a count of samples that come by chance. Samples of a regular clock vary less.
const DEVIATIONS: f64 = 6.0;
/// Nanoseconds of difference that need no reason: samples are read some time before the clock, and weigh a period each.
const SLACK_NS: f64 = 100e6;
/// The least difference that is told, as a part of the time used.
const LEAST_PART: f64 = 0.25;

/// CPU time of a process after which it is compared anew, nanoseconds: what fitted for long would hide what does not.
const WINDOW_NS: u64 = 10_000_000_000;

/// Time after which the same process is told of again, nanoseconds.
pub const TOLD_AGAIN_NS: u64 = 3_600_000_000_000;

/// The time that the samples of a process stand for.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledTime {
    /// Nanoseconds of all samples.
    sampled_ns: u64,
    /// Its CPU clock and `sampled_ns` when the present comparison began.
    first: Option<(u64, u64)>,
    /// Until when nothing more is told of it.
    told_until: u64,
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

    /// Compares it with what its CPU clock shows, nanoseconds, where a sample stands for `period_ns` and `delivered` of the samples
    /// that all CPUs should have given were delivered. Returns a contradiction once an hour, of what came since the last one.
    pub fn compare(&mut self, now: u64, clock_ns: u64, period_ns: u64, delivered: f64) -> Option<Contradiction> {
        if now < self.told_until {
            return None;
        }
        let Some((clock, sampled)) = self.first.filter(|first| first.0 <= clock_ns) else {
            self.first = Some((clock_ns, self.sampled_ns));
            return None;
        };
        let found = Contradiction { used_ns: clock_ns - clock, sampled_ns: self.sampled_ns.saturating_sub(sampled) };
        let (used, sampled) = (found.used_ns as f64, found.sampled_ns as f64);
        // All that runs may lack samples, but one process should not lack more of them than others do.
        let (least, most) = (used * delivered.min(1.0), used * delivered.max(1.0));
        let tolerated = |due: f64| SLACK_NS + (DEVIATIONS * (due * period_ns as f64).sqrt()).max(LEAST_PART * used);
        let contradicts = sampled + tolerated(least) < least || sampled > most + tolerated(most);
        if contradicts {
            (self.first, self.told_until) = (None, now.saturating_add(TOLD_AGAIN_NS));
        } else if found.used_ns >= WINDOW_NS {
            self.first = Some((clock_ns, self.sampled_ns));
        }
        contradicts.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Whether `sampled_ms` of `used_ms` are a contradiction at a period of 10 ms.
    fn contradicts(used_ms: u64, sampled_ms: u64, delivered: f64) -> bool {
        let mut time = SampledTime::default();
        // What was before the first look does not count.
        time.add(777 * MS);
        assert_eq!(time.compare(1, 5_000 * MS, 10 * MS, delivered), None);
        time.add(sampled_ms * MS);
        let found = time.compare(2, (5_000 + used_ms) * MS, 10 * MS, delivered);
        assert!(found.is_none_or(|it| it == Contradiction { used_ns: used_ms * MS, sampled_ns: sampled_ms * MS }));
        found.is_some()
    }

    #[test]
    fn what_fitted_for_long_hides_nothing() {
        let mut time = SampledTime::default();
        assert_eq!(time.compare(1, 0, 10 * MS, 1.0), None);
        for hour in 1..100 {
            time.add(3_600_000 * MS);
            assert_eq!(time.compare(1, hour * 3_600_000 * MS, 10 * MS, 1.0), None);
        }
        assert!(time.compare(1, (99 * 3_600_000 + 2_000) * MS, 10 * MS, 1.0).is_some());
    }

    #[test]
    fn each_hour_has_its_own() {
        let mut time = SampledTime::default();
        let mut compare = |now, clock_ms: u64| time.compare(now, clock_ms * MS, 10 * MS, 1.0);
        assert_eq!(compare(1, 0), None);
        assert!(compare(2, 3_000).is_some());
        assert_eq!((compare(3, 9_000), compare(2 + TOLD_AGAIN_NS, 9_000)), (None, None));
        let again = Contradiction { used_ns: 2_000 * MS, sampled_ns: 0 };
        assert_eq!(compare(3 + TOLD_AGAIN_NS, 11_000), Some(again));
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
    fn a_clock_that_went_back_is_another_process_s() {
        let mut time = SampledTime::default();
        assert_eq!(time.compare(1, 9_000 * MS, MS, 1.0), None);
        assert_eq!(time.compare(2, 100 * MS, MS, 1.0), None);
        assert_eq!(time.compare(3, 150 * MS, MS, 1.0), None);
        assert!(time.compare(4, 2_100 * MS, MS, 1.0).is_some());
    }
}
