//! At which rates samples were taken.

use serde::Serialize;

/// Rates that are told apart. A session has a few: those of a budget are 23, each halved four times at most.
pub const MAX_RATES: usize = 64;

/// The rates of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SamplingRates {
    /// Sampling rates in order, with durations. Empty if it was [`SessionInfo::rate_hz`](crate::SessionInfo::rate_hz)
    /// throughout.
    pub rates: Vec<RateSpan>,
    /// Times that the rate changed.
    pub changes: u64,
    /// The rate at the end; 0 where `rates` is empty.
    pub last_hz: u32,
    /// The budget of overhead, in millionths of the target's CPU time; 0 for none.
    pub budget_ppm: u64,
    /// What a sample costs the target, nanoseconds, as measured before the session; 0 if it was not.
    pub target_cost_ns: u64,
    /// What a sample costs the profiler, nanoseconds, as measured last; 0 if it was not.
    pub own_cost_ns: u64,
}

/// How long samples were taken at a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RateSpan {
    /// Samples per second of CPU time.
    pub rate_hz: u32,
    /// Nanoseconds of the session.
    pub duration_ns: u64,
}

impl SamplingRates {
    /// Counts time at a rate. Beyond [`MAX_RATES`] it is counted for the nearest rate that there is.
    pub fn spend(&mut self, rate_hz: u32, duration_ns: u64) {
        self.last_hz = rate_hz;
        let known = self.rates.iter().position(|span| span.rate_hz == rate_hz);
        if known.is_none() && self.rates.len() < MAX_RATES {
            self.rates.push(RateSpan { rate_hz, duration_ns });
            return;
        }
        let span = match known {
            Some(at) => self.rates.get_mut(at),
            None => self.rates.iter_mut().min_by_key(|span| span.rate_hz.abs_diff(rate_hz)),
        };
        if let Some(span) = span {
            span.duration_ns = span.duration_ns.saturating_add(duration_ns);
        }
    }

    /// What there was after an earlier point of the same session. Of rates that were not used since, nothing is left.
    #[must_use]
    pub fn since(&self, earlier: &SamplingRates) -> SamplingRates {
        let before = |span: &RateSpan| {
            let same = earlier.rates.iter().find(|other| other.rate_hz == span.rate_hz);
            same.map_or(0, |other| other.duration_ns)
        };
        let later = |span: &RateSpan| RateSpan { duration_ns: span.duration_ns.saturating_sub(before(span)), ..*span };
        let rates = self.rates.iter().map(later).filter(|span| span.duration_ns > 0).collect();
        SamplingRates { rates, changes: self.changes.saturating_sub(earlier.changes), ..self.clone() }
    }

    /// Adds another session's. Of budgets, costs and last rates the larger stay.
    pub fn merge(&mut self, other: &SamplingRates) {
        let SamplingRates { rates, changes, last_hz, budget_ppm, target_cost_ns, own_cost_ns } = other;
        let last_hz = self.last_hz.max(*last_hz);
        rates.iter().for_each(|span| self.spend(span.rate_hz, span.duration_ns));
        self.last_hz = last_hz;
        // In the same order whichever comes first.
        self.rates.sort_unstable_by_key(|span| std::cmp::Reverse(span.rate_hz));
        self.changes = self.changes.saturating_add(*changes);
        self.budget_ppm = self.budget_ppm.max(*budget_ppm);
        self.target_cost_ns = self.target_cost_ns.max(*target_cost_ns);
        self.own_cost_ns = self.own_cost_ns.max(*own_cost_ns);
    }

    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers =
            vec![self.changes, self.budget_ppm, self.target_cost_ns, self.own_cost_ns, self.last_hz.into()];
        numbers.extend(self.rates.iter().flat_map(|span| [u64::from(span.rate_hz), span.duration_ns]));
        while numbers.last() == Some(&0) {
            numbers.pop();
        }
        numbers
    }

    pub(crate) fn from_numbers(numbers: &[u64]) -> SamplingRates {
        let number = |at: usize| numbers.get(at).copied().unwrap_or(0);
        let mut pace = SamplingRates {
            changes: number(0),
            budget_ppm: number(1),
            target_cost_ns: number(2),
            own_cost_ns: number(3),
            last_hz: 0,
            rates: Vec::new(),
        };
        for pair in numbers.get(5..).unwrap_or_default().chunks(2) {
            if let (Some(&rate), duration) = (pair.first(), pair.get(1).copied().unwrap_or(0))
                && let Ok(rate_hz) = u32::try_from(rate)
            {
                pace.spend(rate_hz, duration);
            }
        }
        pace.last_hz = u32::try_from(number(4)).unwrap_or(u32::MAX);
        pace
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rates: &[(u32, u64)]) -> SamplingRates {
        let mut pace = SamplingRates { changes: rates.len() as u64, ..SamplingRates::default() };
        rates.iter().for_each(|&(rate, ns)| pace.spend(rate, ns));
        pace
    }

    #[test]
    fn time_is_kept_by_rate() {
        let spans =
            |pace: &SamplingRates| pace.rates.iter().map(|span| (span.rate_hz, span.duration_ns)).collect::<Vec<_>>();
        let later = pace(&[(999, 5), (499, 7), (999, 2)]);
        assert_eq!(spans(&later), [(999, 7), (499, 7)]);
        let since = later.since(&pace(&[(999, 7), (499, 3)]));
        assert_eq!((spans(&since), since.changes), (vec![(499, 4)], 1));
        let (mut a, mut b) = (pace(&[(499, 1), (999, 2)]), pace(&[(249, 3), (999, 4)]));
        let first = a.clone();
        a.merge(&b);
        b.merge(&first);
        assert_eq!((&a, spans(&a)), (&b, vec![(999, 6), (499, 1), (249, 3)]));
    }

    #[test]
    fn rates_are_bounded() {
        let mut pace = SamplingRates::default();
        (0..1_000).for_each(|rate| pace.spend(rate, 1));
        assert_eq!(pace.rates.len(), MAX_RATES);
        assert_eq!(pace.rates.iter().map(|span| span.duration_ns).sum::<u64>(), 1_000);
    }

    #[test]
    fn numbers_are_read_back() {
        let whole = SamplingRates {
            budget_ppm: 10_000,
            target_cost_ns: 16_000,
            own_cost_ns: 8_000,
            ..pace(&[(999, 5), (499, 0)])
        };
        for pace in [SamplingRates::default(), pace(&[(999, 5)]), pace(&[(999, 5), (499, 7)]), whole] {
            assert_eq!(SamplingRates::from_numbers(&pace.numbers()), pace);
        }
        assert!(SamplingRates::default().numbers().is_empty());
        let odd = SamplingRates::from_numbers(&[1, 2, 3, 4, 5, u64::MAX, 5, 6]);
        assert_eq!((odd.rates.len(), odd.rates[0].rate_hz), (1, 6));
    }
}
