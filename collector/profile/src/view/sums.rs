//! What is charged in one place of a view.

use serde::Serialize;

use crate::squares::{Squares, equal_squares};

/// What is charged in one place of a view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// Sum of the weights of all samples.
    pub weight: u64,
    /// Number of samples.
    pub samples: u64,
    /// Sum of the squared weights of all samples: it tells how unequal weights are.
    #[serde(skip)]
    pub squares: Squares,
    /// Part of the weight that no sample stands for. Chance has no part in it.
    #[serde(skip)]
    pub unsampled: u64,
}

impl Sums {
    /// Sums of samples that all have the same weight.
    #[must_use]
    pub const fn equal(weight: u64, samples: u64) -> Self {
        Self { weight, samples, squares: equal_squares(samples, weight), unsampled: 0 }
    }

    /// Adds others.
    pub fn add(&mut self, other: Self) {
        self.weight = self.weight.saturating_add(other.weight);
        self.samples = self.samples.saturating_add(other.samples);
        self.squares = self.squares.saturating_add(other.squares);
        self.unsampled = self.unsampled.saturating_add(other.unsampled);
    }

    /// Number of samples of equal weight that say as much about the whole: (sum w)^2 / sum w^2, never more than there are.
    #[must_use]
    pub fn effective_samples(self) -> f64 {
        if self.squares == 0 {
            return 0.0;
        }
        let weight = self.weight as f64;
        // At least one, whatever a damaged file says.
        (weight * weight / self.squares as f64).min(self.samples as f64).max(1.0)
    }

    pub(super) const fn sampled(self) -> Self {
        Self { weight: self.weight.saturating_sub(self.unsampled), unsampled: 0, ..self }
    }

    /// Weight and squares in units of the average sample of `total`, where both are the number of samples if weights are equal.
    pub(super) fn scaled(self, total: Self) -> (f64, f64) {
        if total.weight == 0 || total.squares == 0 {
            return (0.0, 0.0);
        }
        let unit = total.squares as f64 / total.weight as f64;
        (self.weight as f64 / unit, self.squares as f64 / (unit * unit))
    }
}

pub(super) fn sum(runs: &[Sums]) -> Sums {
    let mut sum = Sums::default();
    runs.iter().for_each(|run| sum.add(*run));
    sum
}
