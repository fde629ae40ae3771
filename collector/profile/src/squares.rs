//! Sums of squared weights, for the effective sample size of a confidence interval, (sum w)^2 / sum w^2.
//!
//! Where n samples weigh the same it *follows*: (sum w)^2 / n, and is neither kept nor written.

use crate::limits::MAX_METRICS;

/// A sum of squared weights. The square of one weight always fits; sums saturate.
pub type Squares = u128;

/// The least sum of squares: that of `samples` equal weights. 0 without samples ([not sampled]).
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

/// Metrics with squares: all but the in-memory ones for columns of time.
#[must_use]
pub const fn squared_metrics(metrics: usize) -> usize {
    if metrics < MAX_METRICS { metrics } else { MAX_METRICS }
}
