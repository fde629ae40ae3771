//! What a view is made of in all.

use serde::Serialize;

use super::sums::Sums;
use crate::squares::Squares;

/// What a view is made of in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Weight of everything in the view, in the unit of its metric. Shares are of this.
    pub weight: u64,
    /// Samples of everything in the view.
    pub samples: u64,
    /// Sum of the squared weights of its samples, see [`Sums`].
    #[serde(skip)]
    pub squares: Squares,
    /// What of the weight no sample stands for, see [`Sums`].
    #[serde(skip)]
    pub unsampled: u64,
    /// Weight of the whole profile: more than `weight` where the selection leaves threads or stacks out.
    pub whole_weight: u64,
    /// Samples of the whole profile.
    pub whole_samples: u64,
}

impl Total {
    /// Everything in the view.
    #[must_use]
    pub const fn sums(&self) -> Sums {
        Sums { weight: self.weight, samples: self.samples, squares: self.squares, unsampled: self.unsampled }
    }

    /// The total of a view that shows everything.
    #[must_use]
    pub fn from_sums(all: Sums) -> Total {
        let Sums { weight, samples, squares, unsampled } = all;
        Total { weight, samples, squares, unsampled, whole_weight: weight, whole_samples: samples }
    }
}
