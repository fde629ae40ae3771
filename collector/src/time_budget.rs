//! A budget of time for work that users can make long, of which each leaves some for the others.

use std::time::{Duration, Instant};

use ccsd_worker::Principal;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The part of a session's time by which a budget grows again, if nothing else is said.
const PART: u32 = 16;
/// Less than this is no time to work in.
pub const LEAST: Duration = Duration::from_micros(100);

/// Users are unknown where a process has ended before it could be looked at; these share a budget.
pub type Owner = Option<Principal>;

/// What an owner has spent.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    /// Within what there was for the owner: others have so much less.
    shared: Duration,
    /// Beyond it, as a question that takes long: the owner alone has less.
    beyond: Duration,
}

/// A budget of time that grows back.
#[derive(Debug)]
pub struct TimeBudget {
    most: Duration,
    part: u32,
    /// Whether several owners share it: each gets half of what the others leave, root and the daemon's own user half of all.
    is_shared: bool,
    spent: HashMap<Owner, Spent, FxBuildHasher>,
    /// What all have spent within it.
    total: Duration,
    /// Up to when it has grown. Without a beginning nothing waits, and it does not grow.
    since: Option<Instant>,
}

impl TimeBudget {
    pub fn new(most: Duration, is_shared: bool) -> TimeBudget {
        TimeBudget { most, part: PART, is_shared, spent: HashMap::default(), total: Duration::ZERO, since: None }
    }

    /// Grows again by one in so many parts of the time.
    pub fn growing_by(self, part: u32) -> TimeBudget {
        TimeBudget { part, ..self }
    }

    pub fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    pub fn has_begun(&self) -> bool {
        self.since.is_some()
    }

    #[cfg(test)]
    pub fn total(&self) -> Duration {
        self.total
    }

    pub fn grow(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let grown = now.saturating_duration_since(since) / self.part;
        if grown < LEAST {
            return;
        }
        self.since = Some(now);
        let left = self.total.saturating_sub(grown);
        let part = if left.is_zero() { 0.0 } else { left.div_duration_f64(self.total) };
        self.total = left;
        self.spent.retain(|_, spent| {
            spent.shared = spent.shared.mul_f64(part);
            spent.beyond = spent.beyond.saturating_sub(grown);
            !(spent.shared.is_zero() && spent.beyond.is_zero())
        });
    }

    /// What is left for an owner, if there is so much more.
    pub fn left(&self, owner: Owner, more: Duration) -> Duration {
        let Spent { shared, beyond } = self.spent.get(&owner).copied().unwrap_or_default();
        let by_others = match owner {
            // However many users work together.
            Some(Principal::Own) if self.is_shared => Duration::ZERO,
            _ => self.total.saturating_sub(shared),
        };
        let for_all = (self.most + more).saturating_sub(by_others);
        (if self.is_shared { for_all / 2 } else { for_all }).saturating_sub(shared).saturating_sub(beyond)
    }

    /// Charges time to the total, also beyond the owner's share.
    pub fn overdraw(&mut self, owner: Owner, time: Duration) {
        self.spent.entry(owner).or_default().shared += time;
        self.total += time;
    }

    pub fn spend(&mut self, owner: Owner, time: Duration, more: Duration) {
        let shared = time.min(self.left(owner, more));
        let spent = self.spent.entry(owner).or_default();
        spent.shared += shared;
        spent.beyond += time - shared;
        self.total += shared;
    }
}

/// A budget that several owners share, for work on samples: it grows by the samples' clock.
#[derive(Debug)]
pub struct SampleTimeBudget {
    budget: TimeBudget,
    /// Time 0 of that clock.
    origin: Instant,
}

impl SampleTimeBudget {
    /// `most` is what one owner has at once, while there is no other.
    pub fn new(most: Duration, part: u32) -> SampleTimeBudget {
        SampleTimeBudget { budget: TimeBudget::new(2 * most, true).growing_by(part), origin: Instant::now() }
    }

    /// What is left for an owner at a time, nanoseconds.
    pub fn left(&mut self, owner: Owner, time: u64) -> Duration {
        let now = self.origin + Duration::from_nanos(time);
        if !self.budget.has_begun() {
            self.budget.begin(now);
        }
        self.budget.grow(now);
        self.budget.left(owner, Duration::ZERO)
    }

    pub fn spend(&mut self, owner: Owner, time: Duration) {
        self.budget.spend(owner, time, Duration::ZERO);
    }

    pub fn overdraw(&mut self, owner: Owner, time: Duration) {
        self.budget.overdraw(owner, time);
    }

    #[cfg(test)]
    pub fn total(&self) -> Duration {
        self.budget.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_grow_back_in_time() {
        const MOST: Duration = Duration::from_secs(2);
        let user = |number| Some(Principal::User(number));
        let (mut budget, began) = (TimeBudget::new(MOST, true), Instant::now());
        budget.begin(began);
        for number in [2, 3] {
            budget.spend(user(number), MOST, Duration::ZERO);
        }
        // One has taken a half, the other a quarter; what both took beyond that is not missing to a third.
        let left = |budget: &TimeBudget, number| budget.left(user(number), Duration::ZERO);
        let about = |time: Duration, expected: Duration| time.abs_diff(expected) < Duration::from_millis(5);
        assert!(about(left(&budget, 4), MOST / 8), "{budget:?}");
        budget.grow(began + MOST * PART * 3 / 8);
        // Half of that is left to pay, by each in proportion; and an eighth of the rest by the one.
        assert!(about(budget.total, MOST * 3 / 8), "{budget:?}");
        let spent = budget.spent[&user(2)];
        assert!(about(spent.shared, MOST / 4) && about(spent.beyond, MOST / 8), "{spent:?}");
        // Root has its half whatever users take together, and they have the less for it.
        for _ in 0..100 {
            (0..100).for_each(|number| budget.spend(user(number), MOST, Duration::ZERO));
        }
        assert!(about(budget.total, MOST) && left(&budget, 100).is_zero());
        let own = Some(Principal::Own);
        budget.spend(own, MOST, Duration::ZERO);
        assert_eq!((budget.spent[&own].shared, budget.spent[&own].beyond), (MOST / 2, MOST / 2));
        // Not ever more.
        budget.grow(began + 1000 * MOST * PART);
        assert_eq!(left(&budget, 2), MOST / 2);
        assert!(budget.spent.is_empty());
    }
}
