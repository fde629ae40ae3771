//! How sure a share is.

use serde::Serialize;

/// 97.5% quantile of the normal distribution: a two-sided interval of 95%.
pub(super) const Z: f64 = 1.959_963_984_540_054;

/// A part of a total, with its 95% confidence interval, all as fractions.
///
/// The interval is Wilson's score interval for a proportion: unlike the usual p +- z sqrt(p (1 - p) / n) it stays within
/// 0 and 1 and is right for few samples and for shares near 0 and 1, of which a profile is full. Its n is the number of
/// samples in the view, its p the share by weight; where all samples weigh the same (every fixed-period event) that
/// is the share of samples. It speaks of chance in sampling only, not of samples lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Share {
    /// Part / total, 0 if the total is 0.
    pub fraction: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl Share {
    /// The share `part` of `total`, known from `samples` samples.
    #[must_use]
    pub fn of(part: u64, total: u64, samples: u64) -> Self {
        if total == 0 || samples == 0 {
            return Self { fraction: 0.0, low: 0.0, high: if samples == 0 { 1.0 } else { 0.0 } };
        }
        let p = (part as f64 / total as f64).min(1.0);
        let n = samples as f64;
        let z2 = Z * Z;
        let centre = p + z2 / (2.0 * n);
        let spread = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z2 / n;
        // At 0 and 1 the ends are exact but for rounding.
        let low = if part == 0 { 0.0 } else { ((centre - spread) / scale).clamp(0.0, p) };
        let high = if part >= total { 1.0 } else { ((centre + spread) / scale).clamp(p, 1.0) };
        Self { fraction: p, low, high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // Wilson's interval for 8 of 10: 0.4902 to 0.9433; for 0 of 20: 0 to 0.1611.
        let share = Share::of(8, 10, 10);
        assert!((share.low - 0.4902).abs() < 1e-4 && (share.high - 0.9433).abs() < 1e-4, "{share:?}");
        let none = Share::of(0, 20, 20);
        assert!(none.low.abs() < f64::EPSILON && (none.high - 0.1611).abs() < 1e-4, "{none:?}");
    }

    #[test]
    fn weights_do_not_matter_where_they_are_equal() {
        assert_eq!(Share::of(8, 10, 10), Share::of(8_000, 10_000, 10));
    }

    #[test]
    fn nothing_is_known_without_samples() {
        assert_eq!(Share::of(0, 0, 0), Share { fraction: 0.0, low: 0.0, high: 1.0 });
    }
}
