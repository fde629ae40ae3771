//! Sums of squared weights, from which a confidence interval gets its effective sample size, (sum w)^2 / sum w^2.
//!
//! Where n samples weigh the same, the sum of squares is (sum w)^2 / n. It *follows* from what is charged anyway then, and
//! is neither kept nor written.

use crate::limits::MAX_METRICS;

/// A sum of squared weights. The square of one weight always fits; sums saturate.
pub type Squares = u128;

/// The sum of squares of `samples` weights that add up to `weight`, if they are equal. It is never more than the true one.
/// Where there is no sample ([not sampled]) it is 0: chance has no part in such a weight.
#[must_use]
pub const fn equal_squares(samples: u64, weight: u64) -> Squares {
    let square = weight as u128 * weight as u128;
    if samples == 0 {
        0
    } else if samples == 1 {
        square
    } else if square >> 64 == 0 {
        // Division of 128 bits is slow.
        (square as u64 / samples) as u128
    } else {
        square / samples as u128
    }
}

/// Of how many of a profile's metrics squares are kept: of all but those that exist in memory only, one for each column of
/// time.
#[must_use]
pub const fn squared_metrics(metrics: usize) -> usize {
    if metrics < MAX_METRICS { metrics } else { MAX_METRICS }
}
