//! The time budget of slow unwinding: frames left with all registers, and new addresses.
//!
//! The sampling thread has priority over the programs it samples, so what a program can make slow must end.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::time_budget::{Owner, SampleTimeBudget};

/// The part of the time that it may take, one in so many. (Without optimisation all is many times as slow.)
const SHARE_OF_TIME: u32 = if cfg!(debug_assertions) { 1 } else { 4 };
/// Nanoseconds that it may take at once, after a pause, and for one stack. A ring of samples holds some 64 ms.
const MAX_NS_AT_ONCE: i64 = if cfg!(debug_assertions) { 2_000_000_000 } else { 25_000_000 };
/// What a stack may take where there is less for its owner, but some: others have so much less.
const LEAST_OF_STACK: i64 = MAX_NS_AT_ONCE / 8;
/// Steps between two looks at the clock, a system call. A step takes 0.1 to some 10 us.
const STEPS: u32 = 32;
/// One in so many short stacks is measured and counts for all: nearly every stack has a step or two, which take no
/// longer than two looks at the clock.
const SHORT_MEASURED: i64 = 8;

/// CPU time of this thread for slow steps, of which each owner of processes leaves some for the others.
#[derive(Debug)]
pub struct Allowance {
    budget: SampleTimeBudget,
    time: u64,
    owner: Owner,
    /// What there was for the owner when the stack was begun, nanoseconds, once that has been asked.
    left: Option<i64>,
    /// CPU time when it was last looked at, for this stack.
    mark: Option<i64>,
    steps: u32,
    /// What counts of the time since then, times over.
    weight: i64,
    until_measured: i64,
    /// Nanoseconds taken for this stack, and what these count for.
    taken: i64,
    owed: i64,
    refused: bool,
    refusals: u64,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance {
            budget: SampleTimeBudget::new(Duration::from_nanos(MAX_NS_AT_ONCE.unsigned_abs()), SHARE_OF_TIME),
            time: 0,
            owner: None,
            left: None,
            mark: None,
            steps: 0,
            weight: 1,
            until_measured: 0,
            taken: 0,
            owed: 0,
            refused: false,
            refusals: 0,
        }
    }
}

impl Allowance {
    /// Begins with a sample of a process of `owner`, taken at `time` (nanoseconds).
    pub fn begin(&mut self, time: u64, owner: Owner) {
        (self.time, self.owner, self.left) = (time, owner, None);
        (self.mark, self.steps, self.taken, self.owed, self.refused) = (None, 0, 0, 0, false);
    }

    /// Starts to count, if that has not been done for this stack.
    pub fn start(&mut self) {
        if self.mark.is_none() {
            (self.mark, self.weight) = (Some(cpu_ns()), 1);
        } else if self.weight > 1 {
            // What comes now is measured in every stack.
            self.look(cpu_ns());
        }
    }

    /// Before a step that may take a millisecond: code is followed for the first time. Whether it may be taken.
    #[cold]
    pub fn long_step(&mut self) -> bool {
        let more = self.has_time();
        self.refuse_unless(more)
    }

    /// The same where the stack can be followed without that step.
    #[cold]
    pub fn has_time(&mut self) -> bool {
        match self.mark {
            None => self.start(),
            Some(_) => self.look(cpu_ns()),
        }
        self.has_more()
    }

    #[inline]
    pub fn step(&mut self) -> bool {
        self.steps += 1;
        if self.steps == 1 && self.mark.is_none() {
            self.until_measured -= 1;
            if self.until_measured < 0 {
                (self.mark, self.weight) = (Some(cpu_ns()), SHORT_MEASURED);
                self.until_measured = SHORT_MEASURED - 1;
            }
        }
        if self.steps.is_multiple_of(STEPS) {
            self.look(cpu_ns());
            let more = self.has_more();
            return self.refuse_unless(more);
        }
        !self.refused
    }

    #[inline]
    pub fn end(&mut self) {
        if self.mark.is_some() {
            self.look(cpu_ns());
            self.left();
            self.budget.overdraw(self.owner, Duration::from_nanos(self.owed.unsigned_abs()));
        }
    }

    /// Leaves nothing, of a time before that of any sample.
    #[cfg(test)]
    pub fn exhaust(&mut self) {
        self.budget.overdraw(None, Duration::from_nanos(2 * MAX_NS_AT_ONCE.unsigned_abs()));
    }

    /// Stacks that were cut.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    fn has_more(&mut self) -> bool {
        let left = self.left();
        left > 0 && self.taken < left.max(LEAST_OF_STACK)
    }

    fn refuse_unless(&mut self, more: bool) -> bool {
        self.refusals += u64::from(!more && !self.refused);
        self.refused |= !more;
        !self.refused
    }

    fn left(&mut self) -> i64 {
        let left = || i64::try_from(self.budget.left(self.owner, self.time).as_nanos()).unwrap_or(i64::MAX);
        *self.left.get_or_insert_with(left)
    }

    #[cold]
    fn look(&mut self, now: i64) {
        let taken = self.mark.map_or(0, |mark| now.saturating_sub(mark)).max(0);
        self.owed = self.owed.saturating_add(taken.saturating_mul(self.weight));
        self.weight = 1;
        self.taken = self.taken.saturating_add(taken);
        self.mark = Some(now);
    }
}

fn cpu_ns() -> i64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map_or(0, |time| time.tv_sec().saturating_mul(1_000_000_000).saturating_add(time.tv_nsec()))
}

#[cfg(test)]
mod tests {
    use ccsd_worker::Principal;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Steps for a stack that takes `ns` of CPU time; whether it was whole.
    fn stack_of(allowance: &mut Allowance, owner: Owner, time: u64, ns: i64) -> bool {
        allowance.begin(time, owner);
        let pieces = ns / 1_000_000;
        let whole = (0..pieces).all(|_| {
            allowance.start();
            allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
            (0..STEPS).all(|_| allowance.step())
        });
        allowance.end();
        whole
    }

    fn stack(allowance: &mut Allowance, time: u64, ns: i64) -> bool {
        stack_of(allowance, None, time, ns)
    }

    fn spent_ms(allowance: &Allowance) -> i64 {
        allowance.budget.total().as_millis() as i64
    }

    #[test]
    fn one_stack_takes_no_more_than_all_at_once() {
        let mut allowance = Allowance::default();
        assert!(stack(&mut allowance, 100 * SECOND, MAX_NS_AT_ONCE / 2));
        assert!(!stack(&mut allowance, 200 * SECOND, 2 * MAX_NS_AT_ONCE));
        assert_eq!(allowance.refusals(), 1);
    }

    #[test]
    fn an_overdraft_is_waited_for() {
        let mut allowance = Allowance::default();
        let most = MAX_NS_AT_ONCE / 4 * 3;
        assert!(stack(&mut allowance, 100 * SECOND, most));
        // One more takes what is left.
        assert!(!stack(&mut allowance, 100 * SECOND, most) && !stack(&mut allowance, 100 * SECOND, most));
        // A short one is still followed, but no new code.
        allowance.begin(100 * SECOND, None);
        assert!((1..STEPS).all(|_| allowance.step()));
        assert!(!allowance.step() && !allowance.step());
        allowance.begin(100 * SECOND, None);
        assert!(allowance.step() && !allowance.has_time() && allowance.step());
        assert!(!allowance.long_step() && !allowance.step());
        assert_eq!(allowance.refusals(), 4);
        let wait = MAX_NS_AT_ONCE as u64 * u64::from(SHARE_OF_TIME);
        assert!(stack(&mut allowance, 100 * SECOND + 2 * wait, most));
    }

    #[test]
    fn what_one_user_takes_leaves_some_for_others() {
        let [one, other] = [1, 2].map(|number| Some(Principal::User(number)));
        let mut allowance = Allowance::default();
        // Each time the last one is longer than what is left.
        let each = MAX_NS_AT_ONCE / 5 * 2;
        let whole = |allowance: &mut Allowance, owner, time| stack_of(allowance, owner, time, each);
        assert_eq!((0..100).filter(|_| whole(&mut allowance, one, SECOND)).count(), 2);
        assert!(whole(&mut allowance, other, SECOND));
        // One that takes what it gets, in the course of time, too.
        let wait = each as u64 * u64::from(SHARE_OF_TIME) * 4;
        for round in 1..50 {
            let now = SECOND + round * wait;
            while whole(&mut allowance, one, now) {}
            assert!(whole(&mut allowance, other, now), "{round}");
        }
    }

    #[test]
    fn one_in_so_many_short_stacks_counts_for_all() {
        let mut allowance = Allowance::default();
        let measured = |allowance: &mut Allowance, steps| {
            allowance.begin(100 * SECOND, None);
            assert!((0..steps).all(|_| allowance.step()));
            allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
            allowance.end();
            allowance.mark.is_some()
        };
        for round in 1..=2 {
            let count = (0..SHORT_MEASURED).filter(|_| measured(&mut allowance, 2)).count();
            assert_eq!(count, 1);
            let spent = spent_ms(&allowance);
            assert!((SHORT_MEASURED * round..SHORT_MEASURED * round + 4).contains(&spent), "{spent}");
        }
        // Without steps none is; with many each is, and counts once.
        assert!(!(0..100).any(|_| measured(&mut allowance, 0)));
        allowance.until_measured = 5;
        let before = spent_ms(&allowance);
        assert!(measured(&mut allowance, STEPS));
        assert_eq!(spent_ms(&allowance) - before, 1);
        assert_eq!(allowance.until_measured, 4);
        // What is slow in other ways is measured in each, so it counts once in one that is, too.
        allowance.until_measured = 0;
        let before = spent_ms(&allowance);
        allowance.begin(100 * SECOND, None);
        assert!(allowance.step());
        allowance.start();
        allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
        allowance.end();
        assert_eq!(spent_ms(&allowance) - before, 1);
    }

    #[test]
    fn the_share_is_kept() {
        let mut allowance = Allowance::default();
        let spent: i64 = (0..1000u64)
            .map(|i| {
                let each = MAX_NS_AT_ONCE / 20;
                if stack(&mut allowance, 100 * SECOND + i * each as u64, each) { each } else { each.min(1_000_000) }
            })
            .sum();
        let passed = 1000 * (MAX_NS_AT_ONCE / 20) / i64::from(SHARE_OF_TIME);
        assert!(spent <= passed * 3 / 2 + 2 * MAX_NS_AT_ONCE, "{spent} of {passed}");
        assert!(spent >= passed / 2, "{spent} of {passed}");
    }
}
