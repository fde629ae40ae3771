//! Bounds that chance all but never breaks.

use std::fmt;

/// Width of every bound, in standard deviations: 5.7e-7 of a normal distribution lie beyond. Generous, as a timer by
/// CPU time is more regular than independent draws.
pub const SIGMAS: f64 = 5.0;

/// Wilson's score interval for `part` of `total` samples, `z` standard deviations to each side.
#[must_use]
pub fn wilson(part: u64, total: u64, z: f64) -> (f64, f64) {
    if total == 0 {
        return (0.0, 1.0);
    }
    let (p, n) = (part as f64 / total as f64, total as f64);
    let centre = p + z * z / (2.0 * n);
    let spread = z * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    (((centre - spread) / scale).max(0.0), ((centre + spread) / scale).min(1.0))
}

/// Asserts that `part` of `total` is a true share of `expected`, but for chance and `allowance` of the share: equal
/// work does not take exactly equal time on a busy machine.
pub fn assert_share(what: impl fmt::Display, part: u64, total: u64, expected: f64, allowance: f64) {
    let (low, high) = wilson(part, total, SIGMAS);
    let (least, most) = (low / (1.0 + allowance), high * (1.0 + allowance));
    assert!(
        least <= expected && expected <= most,
        "{what}: {part} of {total} samples are {:.4}, which allows for {least:.4} to {most:.4}; expected is {expected:.4}",
        part as f64 / total as f64
    );
}

/// Asserts that `samples` came of `cpu_ns` at `rate_hz`, but for chance and `allowance`. Each of `timers` may have kept
/// the rest of a period.
pub fn assert_samples(what: impl fmt::Display, samples: u64, cpu_ns: u64, rate_hz: f64, timers: u64, allowance: f64) {
    let expected = cpu_ns as f64 / 1e9 * rate_hz;
    let bound = SIGMAS * expected.sqrt() + timers as f64 + expected * allowance;
    assert!(
        (samples as f64 - expected).abs() <= bound,
        "{what}: {samples} samples, expected are {expected:.1} +- {bound:.1}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_intervals() {
        let (low, high) = wilson(8, 10, 1.959_964);
        assert!((low - 0.4902).abs() < 1e-4 && (high - 0.9433).abs() < 1e-4);
        assert_eq!(wilson(0, 0, SIGMAS), (0.0, 1.0));
    }

    #[test]
    #[should_panic(expected = "half")]
    fn a_share_that_is_wrong() {
        assert_share("half", 600, 1_000, 0.5, 0.02);
    }

    #[test]
    #[should_panic(expected = "cpu")]
    fn samples_that_are_missing() {
        assert_samples("cpu", 800, 1_000_000_000, 1_000.0, 2, 0.02);
    }
}
