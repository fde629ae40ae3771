//! Confidence intervals hold the true share as often as they say: 95 times in 100, whatever weights samples have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use ccsd_profile::view::{Share, Sums, Total};
use common::Random;

/// Profiles of each case. A measured coverage of 94% means a true one of at least 93.4%, but for 1 case in 300.
const TRIALS: u32 = 10_000;

fn assert_covered(what: std::fmt::Arguments<'_>, held: f64) {
    assert!(held >= 0.94, "{what}: {:.2}% of the intervals hold the true share", held * 100.0);
}

/// The part of `TRIALS` profiles whose interval holds `truth`. `draw` passes each sample's weight and whether it is the
/// function's.
fn coverage(seed: u64, truth: f64, mut draw: impl FnMut(&mut Random, &mut dyn FnMut(u64, bool))) -> f64 {
    let mut random = Random::new(seed);
    let mut held = 0;
    for _ in 0..TRIALS {
        let (mut part, mut all) = (Sums::default(), Sums::default());
        draw(&mut random, &mut |weight, inside| {
            let one = Sums::equal(weight, 1);
            all.add(one);
            if inside {
                part.add(one);
            }
        });
        let total = Total::from_sums(all);
        let share = Share::of(part, &total);
        held += u32::from(share.low <= truth && truth <= share.high);
    }
    f64::from(held) / f64::from(TRIALS)
}

#[test]
fn intervals_of_equal_weights() {
    for (n, p) in [(500, 0.005), (2_000, 0.005), (200, 0.05), (1_000, 0.05), (100, 0.5), (1_000, 0.5), (300, 0.95)] {
        let held = coverage(1, p, |random, sample| (0..n).for_each(|_| sample(1_001_001, random.chance(p))));
        assert_covered(format_args!("{n} samples, {p}"), held);
    }
}

/// A tick's sample weighs the CPU time since the last one: for a bursty thread mostly a period or two, sometimes 4 to
/// 40.
#[test]
fn intervals_of_a_bursty_thread_by_tick() {
    for n in [300, 1_000] {
        // Part of the samples that are heavy; part of the heavy, and of the light, that are the function's.
        for (heavy, of_heavy, of_light) in [
            (0.05, 0.9, 0.05),
            (0.05, 0.2, 0.2),
            (0.05, 0.02, 0.6),
            (0.05, 0.05, 0.05),
            (0.1, 0.5, 0.01),
            (0.03, 0.0, 0.3),
        ] {
            let weights = (heavy * 22.0, (1.0 - heavy) * 1.5);
            let truth = (weights.0 * of_heavy + weights.1 * of_light) / (weights.0 + weights.1);
            let held = coverage(2, truth, |random, sample| {
                for _ in 0..n {
                    if random.chance(heavy) {
                        sample(1_000 * (4 + random.below(37)), random.chance(of_heavy));
                    } else {
                        sample(1_000 + random.below(1_001), random.chance(of_light));
                    }
                }
            });
            assert_covered(format_args!("{n} samples, heavy {heavy}: {of_heavy}, light: {of_light}"), held);
        }
    }
}

/// Equal times at 1,000 Hz, 500 Hz, and on to 62 Hz.
#[test]
fn intervals_of_a_rate_that_halves_four_times() {
    // Samples at the first rate; shares at the first four rates, and at the last.
    for (n, p, last) in [(160, 0.05, 0.05), (1_600, 0.005, 0.005), (800, 0.3, 0.3), (800, 0.95, 0.95), (800, 0.1, 0.5)]
    {
        let truth = (4.0 * p + last) / 5.0;
        let held = coverage(3, truth, |random, sample| {
            for halved in 0..5 {
                let p = if halved == 4 { last } else { p };
                (0..n >> halved).for_each(|_| sample(1_000 << halved, random.chance(p)));
            }
        });
        assert_covered(format_args!("{n} samples, {p}, at last {last}"), held);
    }
}
