//! TSC cycles, to a precision that a file can afford.
//!
//! The differences from sample to sample are mostly noise, of 16 bits. So cycles are rounded down to multiples of a
//! part of the period, and the rest is added to the thread's next sample: sums stay exact.

/// Parts of a period on a machine of one cycle a nanosecond, the slowest: others have more.
const PARTS: u64 = 16;

/// What samples' cycles are multiples of.
pub(super) const fn unit(period_ns: u64) -> u64 {
    let part = period_ns / PARTS;
    if part == 0 { 1 } else { 1 << part.ilog2() }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CycleRest(u64);

impl CycleRest {
    /// The cycles of a sample after which the thread has run for `gained` of them since the last one.
    pub(super) fn round(&mut self, gained: u64, unit: u64) -> u64 {
        let all = self.0.saturating_add(gained);
        self.0 = all % unit;
        all - self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_right_to_less_than_a_unit() {
        let unit = unit(1_001_001);
        assert_eq!(unit, 32_768);
        let (mut rest, mut sum, mut rounded) = (CycleRest::default(), 0, 0);
        for sample in 0..1_000u64 {
            let gained = 2_600_000 + sample * 7_919 % 40_000;
            let weight = rest.round(gained, unit);
            assert!(weight.is_multiple_of(unit) && weight.abs_diff(gained) < 2 * unit);
            (sum, rounded) = (sum + gained, rounded + weight);
            assert!(sum - rounded < unit);
        }
        assert_eq!(CycleRest::default().round(5, super::unit(3)), 5);
    }
}
