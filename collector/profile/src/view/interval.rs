//! How sure a share is.

use serde::Serialize;

use super::sums::Sums;
use super::total::Total;

/// 97.5% quantile of the normal distribution: a two-sided interval of 95%.
const Z: f64 = 1.959_963_984_540_054;

/// Samples of average weight that a few samples are taken with, where it is estimated how unequal their weights are.
const PRIOR: f64 = 4.0;

/// Average weight of samples, by weight, as a multiple of that of all samples; `prior` is what it is taken for without any.
pub(super) fn heaviness((weight, squares): (f64, f64), prior: f64) -> f64 {
    (squares + PRIOR * prior) / (weight + PRIOR)
}

/// By how much the variance of a share exceeds that of a binomial proportion of [`Sums::effective_samples`] samples, at
/// least 1: where samples of the part weigh less than others, a heavy one may just not have been met.
///
/// The share is a ratio of two sums, p = sum(w x) / sum(w), whose variance is sum(w^2 (x - p)^2) / sum(w)^2 =
/// (S_part (1 - p)^2 + S_rest p^2) / W^2, with S for sums of squares. Divided by p (1 - p) that is (h_part (1 - p) + h_rest
/// p) / W, where h = S / W is the average weight of samples.
pub(super) fn design_effect(part: f64, rest: f64, p: f64) -> f64 {
    (part * (1.0 - p) + rest * p).max(1.0)
}

/// A part of a total, with its 95% confidence interval, all as fractions.
///
/// Of all intervals that are computed so, about 95% hold the true share: what infinitely many samples of the same run
/// would show. It speaks of chance in sampling alone, neither of lost samples nor of how runs of a program differ.
///
/// The interval is Wilson's score interval for a proportion: unlike the usual p +- z sqrt(p (1 - p) / n) it stays within
/// 0 and 1 and is right for few samples and for shares near 0 and 1, of which a profile is full. Its p is the share by
/// weight, its n the effective number of samples: the number of samples of equal weight whose share has the same variance.
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
    /// The share of a part in its total.
    #[must_use]
    pub fn of(part: Sums, total: &Total) -> Self {
        let all = total.sums();
        let p = if all.weight == 0 { 0.0 } else { (part.weight as f64 / all.weight as f64).min(1.0) };
        let is_unsampled = part.samples == 0 && part.unsampled > 0 && part.unsampled >= part.weight;
        if is_unsampled && all.weight > 0 {
            // Known, and not by samples.
            return Self { fraction: p, low: p, high: p };
        }
        if all.weight == 0 || all.samples == 0 {
            return Self { fraction: p, low: 0.0, high: if all.samples == 0 { 1.0 } else { 0.0 } };
        }
        if all.unsampled > 0 {
            // Of what is sampled the share is uncertain; the rest is known.
            let sampled = all.sampled();
            let of = Self::of(part.sampled(), &Total::from_sums(sampled));
            let (whole, known) = (all.weight as f64, part.unsampled.min(part.weight) as f64);
            let end = |of: f64| (known + of * sampled.weight as f64) / whole;
            return Self { fraction: p, low: end(of.low).clamp(0.0, p), high: end(of.high).clamp(p, 1.0) };
        }
        let rest = Sums {
            weight: all.weight.saturating_sub(part.weight),
            samples: all.samples.saturating_sub(part.samples),
            squares: all.squares.saturating_sub(part.squares),
            unsampled: 0,
        };
        let effect = design_effect(heaviness(part.scaled(all), 1.0), heaviness(rest.scaled(all), 1.0), p);
        let n = (all.effective_samples() / effect).max(1e-6);
        let z = quantile(n, all.samples as f64);
        let z2 = z * z;
        let centre = p + z2 / (2.0 * n);
        let spread = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
        let scale = 1.0 + z2 / n;
        // At 0 and 1 the ends are exact but for rounding.
        let low = if part.weight == 0 { 0.0 } else { ((centre - spread) / scale).clamp(0.0, p) };
        let high = if part.weight >= all.weight { 1.0 } else { ((centre + spread) / scale).clamp(p, 1.0) };
        Self { fraction: p, low, high }
    }

    /// The share of a weight of whose samples nothing more is known: as if they were like all others.
    #[must_use]
    pub fn from_weight(weight: u64, total: &Total) -> Self {
        let squares = total.squares as f64 * (weight as f64 / total.weight.max(1) as f64);
        Self::of(Sums { weight, squares: squares as u128, ..Sums::default() }, total)
    }
}

/// Half width in standard deviations: normal, or Student's t (first terms of its expansion) where the variance is
/// estimated from few heavy samples.
fn quantile(effective: f64, samples: f64) -> f64 {
    let inverse = 2.0 * (1.0 - effective / samples).max(0.0) / effective;
    let second = 5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z;
    Z + (Z.powi(3) + Z) / 4.0 * inverse + second / 96.0 * inverse * inverse
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(sums: Sums) -> Total {
        Total::from_sums(sums)
    }

    fn share(part: (u64, u64), of: (u64, u64)) -> Share {
        Share::of(Sums::equal(part.0, part.1), &total(Sums::equal(of.0, of.1)))
    }

    #[test]
    fn known_values() {
        // Wilson's interval for 8 of 10: 0.4902 to 0.9433; for 0 of 20: 0 to 0.1611.
        let some = share((8, 8), (10, 10));
        assert!((some.low - 0.4902).abs() < 1e-4 && (some.high - 0.9433).abs() < 1e-4, "{some:?}");
        let none = share((0, 0), (20, 20));
        assert!(none.low.abs() < f64::EPSILON && (none.high - 0.1611).abs() < 1e-4, "{none:?}");
    }

    #[test]
    fn weights_do_not_matter_where_they_are_equal() {
        let (a, b) = (share((8, 8), (10, 10)), share((8_000, 8), (10_000, 10)));
        assert!((a.low - b.low).abs() < 1e-12 && (a.high - b.high).abs() < 1e-12, "{a:?} {b:?}");
        let c = Share::from_weight(8_000, &total(Sums::equal(10_000, 10)));
        assert!((a.low - c.low).abs() < 1e-3 && (a.high - c.high).abs() < 1e-3, "{a:?} {c:?}");
    }

    #[test]
    fn nothing_is_known_without_samples() {
        assert_eq!(share((0, 0), (0, 0)), Share { fraction: 0.0, low: 0.0, high: 1.0 });
    }

    #[test]
    fn unequal_weights_count_for_fewer_samples() {
        // One sample of 100 and 100 of 1: 200^2 / 10,100.
        let mut sums = Sums::equal(100, 1);
        sums.add(Sums::equal(100, 100));
        assert!((sums.effective_samples() - 3.96).abs() < 0.01);
        assert_eq!(Sums::equal(70, 7).effective_samples(), 7.0);
        assert_eq!(Sums::default().effective_samples(), 0.0);
        // The interval of what the one sample was charged to is nearly everything.
        let heavy = Share::of(Sums::equal(100, 1), &total(sums));
        assert!(heavy.low < 0.2 && heavy.high > 0.8, "{heavy:?}");
    }

    #[test]
    fn time_without_samples_is_certain() {
        // Half of it is not sampled, and a half of the other half is the function's.
        let unseen = Sums { weight: 100, unsampled: 100, ..Sums::default() };
        let mut all = Sums::equal(100, 10);
        all.add(unseen);
        let known = Share::of(unseen, &total(all));
        assert_eq!(known, Share { fraction: 0.5, low: 0.5, high: 0.5 });
        let (part, alone) = (Share::of(Sums::equal(50, 5), &total(all)), share((50, 5), (100, 10)));
        assert!((part.fraction - 0.25).abs() < 1e-12, "{part:?}");
        assert!((part.low - alone.low / 2.0).abs() < 1e-12 && (part.high - alone.high / 2.0).abs() < 1e-12, "{part:?}");
    }

    #[test]
    fn numbers_that_contradict_each_other_give_an_interval() {
        for unsampled in [0, 3, u64::MAX] {
            let all = total(Sums { weight: 5, samples: 1, squares: u128::MAX, unsampled });
            for part in [Sums::default(), Sums { weight: u64::MAX, samples: 9, squares: 0, unsampled }, all.sums()] {
                let share = Share::of(part, &all);
                assert!(share.low <= share.fraction && share.fraction <= share.high, "{share:?}");
            }
        }
    }
}
