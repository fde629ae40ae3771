//! The time budget of slow unwinding: frames left with all registers, and new addresses.
//!
//! The sampling thread has priority over the programs it samples, so what a program can make slow must end.

use nix::time::{ClockId, clock_gettime};

/// The part of the time that it may take, one in so many. (Without optimisation all is many times as slow.)
const SHARE_OF_TIME: i64 = if cfg!(debug_assertions) { 1 } else { 4 };
/// Nanoseconds that it may take at once, after a pause, and for one stack.
const MAX_NS_AT_ONCE: i64 = if cfg!(debug_assertions) { 2_000_000_000 } else { 50_000_000 };
/// Steps between two looks at the clock, a system call. A step takes 0.1 to some 10 us; more for the beginning of a
/// function without tables, once for each address.
const STEPS: u32 = 32;
/// One in so many short stacks is measured and counts for all: nearly every stack has a step or two, which take no
/// longer than two looks at the clock.
const SHORT_MEASURED: i64 = 8;

/// CPU time of this thread for slow steps. A stack may overdraw it, and later ones then have none: some are whole
/// rather than all cut.
#[derive(Debug, Default)]
pub struct Allowance {
    /// Nanoseconds left, as of `at`.
    left: i64,
    at: u64,
    /// Whether there was any when the stack was begun.
    open: bool,
    /// CPU time when it was last looked at, for this stack.
    mark: Option<i64>,
    steps: u32,
    /// What counts of the time since then, times over.
    weight: i64,
    until_measured: i64,
    /// Nanoseconds taken for this stack.
    taken: i64,
    refused: bool,
    refusals: u64,
}

impl Allowance {
    /// Begins with a sample, taken at `time` (nanoseconds).
    pub fn begin(&mut self, time: u64) {
        let gained = i64::try_from(time.saturating_sub(self.at)).unwrap_or(i64::MAX) / SHARE_OF_TIME;
        if gained > 0 {
            self.left = self.left.saturating_add(gained).min(MAX_NS_AT_ONCE);
            self.at = time;
        }
        self.open = self.left > 0;
        (self.mark, self.steps, self.taken, self.refused) = (None, 0, 0, false);
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
            let more = self.open && self.taken < MAX_NS_AT_ONCE;
            self.refusals += u64::from(!more && !self.refused);
            self.refused |= !more;
        }
        !self.refused
    }

    #[inline]
    pub fn end(&mut self) {
        if self.mark.is_some() {
            self.look(cpu_ns());
        }
    }

    /// Stacks that were cut.
    pub fn refusals(&self) -> u64 {
        self.refusals
    }

    #[cold]
    fn look(&mut self, now: i64) {
        let taken = self.mark.map_or(0, |mark| now.saturating_sub(mark)).max(0);
        self.left = self.left.saturating_sub(taken.saturating_mul(self.weight));
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
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Steps for a stack that takes `ns` of CPU time; whether it was whole.
    fn stack(allowance: &mut Allowance, time: u64, ns: i64) -> bool {
        allowance.begin(time);
        let pieces = ns / 1_000_000;
        let whole = (0..pieces).all(|_| {
            allowance.start();
            allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
            (0..STEPS).all(|_| allowance.step())
        });
        allowance.end();
        whole
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
        assert!(stack(&mut allowance, 100 * SECOND, most));
        assert!(!stack(&mut allowance, 100 * SECOND, most));
        // A short one is still followed.
        allowance.begin(100 * SECOND);
        assert!((1..STEPS).all(|_| allowance.step()));
        assert!(!allowance.step() && !allowance.step());
        assert_eq!(allowance.refusals(), 2);
        let wait = (MAX_NS_AT_ONCE * SHARE_OF_TIME) as u64;
        assert!(stack(&mut allowance, 100 * SECOND + 2 * wait, most));
    }

    #[test]
    fn one_in_so_many_short_stacks_counts_for_all() {
        let mut allowance = Allowance::default();
        allowance.begin(100 * SECOND);
        assert_eq!(allowance.left, MAX_NS_AT_ONCE);
        let measured = |allowance: &mut Allowance, steps| {
            allowance.begin(100 * SECOND);
            assert!((0..steps).all(|_| allowance.step()));
            allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
            allowance.end();
            allowance.mark.is_some()
        };
        for round in 1..=2 {
            let count = (0..SHORT_MEASURED).filter(|_| measured(&mut allowance, 2)).count();
            assert_eq!(count, 1);
            let spent = MAX_NS_AT_ONCE - allowance.left;
            assert!((SHORT_MEASURED * round..SHORT_MEASURED * round + 4).contains(&(spent / 1_000_000)), "{spent}");
        }
        // Without steps none is; with many each is, and counts once.
        assert!(!(0..100).any(|_| measured(&mut allowance, 0)));
        allowance.until_measured = 5;
        let before = allowance.left;
        assert!(measured(&mut allowance, STEPS));
        assert_eq!((before - allowance.left) / 1_000_000, 1);
        assert_eq!(allowance.until_measured, 4);
        // What is slow in other ways is measured in each, so it counts once in one that is, too.
        allowance.until_measured = 0;
        let before = allowance.left;
        allowance.begin(100 * SECOND);
        assert!(allowance.step());
        allowance.start();
        allowance.mark = allowance.mark.map(|mark| mark - 1_000_000);
        allowance.end();
        assert_eq!((before - allowance.left) / 1_000_000, 1);
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
        let passed = 1000 * (MAX_NS_AT_ONCE / 20);
        assert!(spent <= passed / SHARE_OF_TIME * 3 / 2 + 2 * MAX_NS_AT_ONCE, "{spent} of {passed}");
        assert!(spent >= passed / SHARE_OF_TIME / 2, "{spent} of {passed}");
    }
}
