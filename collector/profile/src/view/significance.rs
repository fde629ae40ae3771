//! Whether chance explains that two shares differ.
//!
//! One test, for every number of runs, samples and functions, whose words are in [`WORDS`]:
//!
//! - Chance in sampling: Fisher's exact test on effective numbers of samples, two-sided (twice the smaller tail). It is exact
//!   for equal weights, whatever the ratio of the numbers of samples is; effective counts are rounded towards each other.
//! - Weights instead of shares: the same test on the shares of one total, that of the longer side. Totals of a fixed period
//!   are the CPU time itself, not Poisson numbers: chance decides how a total is divided, and at most one sample of each thread.
//!   (A weight's share in a larger total varies more than that in its own, so that the test is on the safe side.)
//! - Chance between runs, where a side has several: Welch's test of the shares of the runs, with the variance of sampling as
//!   a lower bound. The larger of both p values counts.
//! - Many functions: Benjamini and Hochberg's procedure at [`LEVEL`], among those that are seen often enough to be able to
//!   differ at that level at all (which is known from both sides' sum alone).

use super::interval::{design_effect, heaviness};
use super::special::{ln_choose, student};
use super::sums::{Sums, sum};

/// Expected part of false ones among changes called significant.
pub const LEVEL: f64 = 0.05;

/// The test in words, for documents.
pub const WORDS: &str = "of the changes called significant at most 5% on average are due to chance: in sampling, and, where a side has \
     several runs, in how its runs differ (Fisher's exact test on effective samples, Welch's t test between runs, \
     Benjamini and Hochberg's procedure over all rows)";

/// Effective samples that count: with so many, differences of a few hundredths of a percent are beyond chance.
const MOST: f64 = 1e7;

#[derive(Clone, Debug, Default)]
pub(super) struct SideTotals {
    pub(super) runs: Vec<Sums>,
    pub(super) all: Sums,
    pub(super) threads: usize,
}

impl SideTotals {
    pub(super) fn add(&mut self, run: Sums, threads: usize) {
        self.runs.push(run);
        self.all.add(run);
        self.threads += threads;
    }

    /// Weight of a run and of one more sample for each thread, on average.
    fn run_mean(&self) -> f64 {
        let unit = self.all.squares as f64 / self.all.weight.max(1) as f64;
        (self.all.weight as f64 + unit * self.threads as f64) / self.runs.len().max(1) as f64
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tested {
    /// How often chance alone makes as large a difference, at most.
    pub(super) p: f64,
    /// The least `p` that so many samples of both sides together can give.
    pub(super) least: f64,
}

const UNKNOWN: Tested = Tested { p: 1.0, least: 1.0 };

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Basis {
    Share,
    /// Weights of a run, each side's divided by this.
    Weight([f64; 2]),
}

pub(super) fn test(totals: [&SideTotals; 2], parts: [&[Sums]; 2], basis: Basis) -> Tested {
    let sums = parts.map(sum);
    if totals.iter().any(|it| it.all.weight == 0 || it.all.samples == 0) {
        return UNKNOWN;
    }
    // What a share of a run is a share of.
    let base = |side: usize, run: &Sums| match basis {
        Basis::Share => run.weight as f64,
        Basis::Weight(lengths) => {
            (totals[0].run_mean() / lengths[0]).max(totals[1].run_mean() / lengths[1]) * lengths[side]
        }
    };
    let n = effective_samples(totals, sums);
    let side = |side: usize| {
        let all: f64 = totals[side].runs.iter().map(|run| base(side, run)).sum();
        let share = sums[side].weight as f64 / all;
        let n = n[side] * all / totals[side].all.weight as f64;
        let shares = totals[side].runs.iter().zip(parts[side]);
        let runs = shares.map(|(run, part)| (part.weight as f64 / base(side, run).max(1.0), base(side, run) / all));
        ShareOfRuns { share: share.min(1.0), n, runs: runs.collect() }
    };
    let sides = [side(0), side(1)];
    let exact = fisher(&sides);
    let p = exact.p.max(between_runs(&sides));
    Tested { p, ..exact }
}

struct ShareOfRuns {
    share: f64,
    n: f64,
    /// Of each run, its share and the run's part of the side.
    runs: Vec<(f64, f64)>,
}

/// Number of samples of equal weight that tell as much about a share that is the same on both sides.
fn effective_samples(totals: [&SideTotals; 2], parts: [Sums; 2]) -> [f64; 2] {
    let scaled = |sums: [Sums; 2]| [sums[0].scaled(totals[0].all), sums[1].scaled(totals[1].all)];
    let rests = [0, 1].map(|side: usize| Sums {
        weight: totals[side].all.weight.saturating_sub(parts[side].weight),
        samples: 0,
        squares: totals[side].all.squares.saturating_sub(parts[side].squares),
        unsampled: 0,
    });
    let (part, rest) = (scaled(parts), scaled(rests));
    // A side that knows little of how heavy samples are learns from the other.
    let of_both = |it: [(f64, f64); 2]| heaviness((it[0].0 + it[1].0, it[0].1 + it[1].1), 1.0);
    let (part_of_both, rest_of_both) = (of_both(part), of_both(rest));
    let all = totals.map(|it| it.all.effective_samples());
    let p = ((part[0].0 + part[1].0) / (all[0] + all[1])).clamp(0.0, 1.0);
    [0, 1].map(|side: usize| {
        let effect = design_effect(heaviness(part[side], part_of_both), heaviness(rest[side], rest_of_both), p);
        all[side] / effect
    })
}

fn fisher(sides: &[ShareOfRuns; 2]) -> Tested {
    // What is a whole number but for rounding is one.
    let whole = |x: f64| if (x - x.round()).abs() < 1e-6 * x.max(1.0) { x.round() } else { x };
    let n = [0, 1].map(|side: usize| whole(sides[side].n).floor().min(MOST));
    if n[0] < 1.0 || n[1] < 1.0 {
        return UNKNOWN;
    }
    let more = usize::from(sides[1].share > sides[0].share);
    let mut counts = [0, 1].map(|side: usize| whole(sides[side].share * n[side]));
    counts[more] = counts[more].floor();
    counts[1 - more] = counts[1 - more].ceil();
    if counts[more] * n[1 - more] <= counts[1 - more] * n[more] {
        return Tested { p: 1.0, ..tails(counts[more], n[more], counts[1 - more], n[1 - more]) };
    }
    tails(counts[more], n[more], counts[1 - more], n[1 - more])
}

/// Twice the chance that at least `a` of all `a + b` are among `n` of `n + m`, and of the rarest division of as many.
fn tails(a: f64, n: f64, b: f64, m: f64) -> Tested {
    let k = a + b;
    let all = ln_choose(n + m, k);
    let chance = |a: f64| (ln_choose(n, a) + ln_choose(m, k - a) - all).exp();
    let (lowest, highest) = ((k - m).max(0.0), k.min(n));
    let least = 2.0 * chance(lowest).min(chance(highest));
    let mut term = chance(a);
    let (mut tail, mut at) = (term, a);
    while at < highest && tail < 0.5 && term > tail * 1e-12 {
        term *= (k - at) * (n - at) / ((at + 1.0) * (m - k + at + 1.0));
        tail += term;
        at += 1.0;
    }
    Tested { p: (2.0 * tail).min(1.0), least: least.min(1.0) }
}

/// Welch's test of the shares of runs; 0 where no side has several.
fn between_runs(sides: &[ShareOfRuns; 2]) -> f64 {
    let several = |side: usize| sides[side].runs.len() > 1;
    if !several(0) && !several(1) {
        return 0.0;
    }
    let p = (sides[0].share * sides[0].n + sides[1].share * sides[1].n) / (sides[0].n + sides[1].n);
    let sampling = |side: usize| p * (1.0 - p) / sides[side].n;
    // Of a mean of shares weighed by the runs' totals.
    let measured = |side: usize| {
        let it = &sides[side];
        let runs = it.runs.len() as f64;
        let squares = it.runs.iter().map(|(share, part)| (part * (share - it.share)).powi(2));
        squares.sum::<f64>() * runs / (runs - 1.0)
    };
    let freedom = |side: usize| sides[side].runs.len() as f64 - 1.0;
    let (variances, freedom) = match (several(0), several(1)) {
        (true, true) => {
            let v = [0, 1].map(|side| measured(side).max(sampling(side)));
            let welch = (v[0] + v[1]).powi(2) / (v[0].powi(2) / freedom(0) + v[1].powi(2) / freedom(1));
            (v, welch)
        }
        // One run is as uncertain as each of the other side.
        (first, _) => {
            let many = usize::from(!first);
            let of_many = measured(many).max(sampling(many));
            let of_one = (of_many * sides[many].runs.len() as f64).max(sampling(1 - many));
            ([of_many, of_one], freedom(many))
        }
    };
    let variance = variances[0] + variances[1];
    let difference = (sides[0].share - sides[1].share).abs();
    if difference == 0.0 || variance <= 0.0 {
        return if difference == 0.0 { 1.0 } else { 0.0 };
    }
    student(difference / variance.sqrt(), freedom)
}

/// Which of all tested differences are significant (Benjamini and Hochberg).
pub(super) fn significant(tested: &[Tested]) -> Vec<bool> {
    let mut possible: Vec<f64> = tested.iter().filter(|it| it.least <= LEVEL).map(|it| it.p).collect();
    possible.sort_by(f64::total_cmp);
    let of_one = LEVEL / possible.len().max(1) as f64;
    let reached = (1u32..).zip(&possible).filter(|(rank, p)| **p <= f64::from(*rank) * of_one);
    let bound = reached.last().map(|(_, p)| *p);
    tested.iter().map(|it| it.least <= LEVEL && bound.is_some_and(|bound| it.p <= bound)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) {
        assert!((a - b).abs() <= 1e-4 * b, "{a} is not {b}");
    }

    #[test]
    fn fisher_s_tail() {
        // The lady tasting tea: 3 of 4 and 1 of 4: (16 + 1) / 70 on one side; at best 1 / 70.
        let tested = tails(3.0, 4.0, 1.0, 4.0);
        close(tested.p, 2.0 * 17.0 / 70.0);
        close(tested.least, 2.0 / 70.0);
        // 8 of 10 and 1 of 11: the ways to have 8 or 9 of 9 among the 10.
        close(tails(8.0, 10.0, 1.0, 11.0).p, 2.0 * (45.0 * 11.0 + 10.0) / 293_930.0);
    }

    #[test]
    fn the_level_holds_over_many_functions() {
        let tested = |p: f64| Tested { p, least: 0.0 };
        // The example of Benjamini and Hochberg's paper (1995): of 15 the first 4.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262, 0.5719, 0.6528,
            0.7590, 1.0000,
        ];
        let found = significant(&p.map(tested));
        assert_eq!(found.iter().filter(|it| **it).count(), 4);
        assert!(found.iter().take(4).all(|it| *it));
        // What can never be significant does not make it harder for others.
        let rare = Tested { p: 1.0, least: 0.3 };
        assert_eq!(significant(&[tested(0.04), rare, rare]), [true, false, false]);
        assert!(significant(&[]).is_empty());
    }
}
