//! At which rates a session has sampled, for its accounting and in words.

use ccsd_profile::SamplingRates;

use crate::pace::{Overhead, RateChange, SampleCost};

/// Changes that are told each; a session that goes on for days has many.
const TOLD: u64 = 8;

pub struct RateHistory {
    past: SamplingRates,
    rate_hz: u32,
    /// Since when it is this one, nanoseconds from the beginning.
    since_ns: u64,
}

impl RateHistory {
    pub fn new(rate_hz: u32, budget: Option<Overhead>) -> RateHistory {
        let past =
            SamplingRates { budget_ppm: budget.map_or(0, |budget| budget.as_ppm().into()), ..SamplingRates::default() };
        RateHistory { past, rate_hz, since_ns: 0 }
    }

    /// Another rate, `at` nanoseconds from the beginning. Returns what to say of it.
    pub fn change(&mut self, at: u64, change: &RateChange) -> Option<String> {
        let before = std::mem::replace(&mut self.rate_hz, change.rate_hz);
        self.past.spend(before, at.saturating_sub(self.since_ns));
        self.since_ns = at;
        self.past.changes += 1;
        let (seconds, rate, why) = (at as f64 / 1e9, change.rate_hz, &change.why);
        match self.past.changes {
            ..=TOLD => Some(format!("{rate} Hz instead of {before} Hz from {seconds:.1} s on: {why}")),
            changes if changes == TOLD + 1 => {
                Some("the rate changed more often; further changes are not listed".to_owned())
            }
            _ => None,
        }
    }

    /// The longest time between two samples so far, nanoseconds.
    pub fn longest_period_ns(&self) -> u64 {
        let slowest = self.past.rates.iter().map(|span| span.rate_hz).chain([self.rate_hz]).min().unwrap_or(1);
        1_000_000_000 / u64::from(slowest.max(1))
    }

    /// All of them after `duration_ns`; nothing where there is one and no budget.
    pub fn pace(&self, duration_ns: u64, cost: Option<SampleCost>) -> SamplingRates {
        let mut pace = self.past.clone();
        if pace.changes > 0 || pace.budget_ppm > 0 {
            pace.spend(self.rate_hz, duration_ns.saturating_sub(self.since_ns));
        }
        let SampleCost { target_ns, own_ns } = cost.unwrap_or_default();
        (pace.target_cost_ns, pace.own_cost_ns) = (target_ns, own_ns);
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rate_has_its_time() {
        let mut rates = RateHistory::new(999, None);
        assert_eq!(rates.pace(5_000_000_000, None), SamplingRates::default());
        let slower = RateChange { rate_hz: 499, why: "a reason".to_owned() };
        let note = rates.change(2_000_000_000, &slower);
        assert_eq!(note.as_deref(), Some("499 Hz instead of 999 Hz from 2.0 s on: a reason"));
        let pace = rates.pace(5_000_000_000, None);
        let spans: Vec<(u32, u64)> = pace.rates.iter().map(|span| (span.rate_hz, span.duration_ns)).collect();
        assert_eq!((spans, pace.changes), (vec![(999, 2_000_000_000), (499, 3_000_000_000)], 1));
    }

    #[test]
    fn a_budget_is_told_with_its_costs() {
        let rates = RateHistory::new(313, Some(Overhead::percent(1.0).unwrap()));
        let pace = rates.pace(1_000, Some(SampleCost { target_ns: 16_000, own_ns: 8_000 }));
        assert_eq!((pace.budget_ppm, pace.target_cost_ns, pace.own_cost_ns), (10_000, 16_000, 8_000));
        assert_eq!((pace.rates.len(), pace.changes), (1, 0));
    }

    #[test]
    fn many_changes_are_told_once() {
        let mut rates = RateHistory::new(999, None);
        let notes =
            (0..20).filter_map(|i| rates.change(i, &RateChange { rate_hz: 9, why: String::new() })).count() as u64;
        assert_eq!((notes, rates.pace(20, None).changes), (TOLD + 1, 20));
    }
}
