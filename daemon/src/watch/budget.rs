//! The budget of the service: above it, first the rate is lowered, then detail is dropped.

use std::time::{Duration, Instant};

use ccsd_collector::{HALVINGS, Overhead, halved};

use crate::config::ServiceBudget;

/// Windows below [`SPARE`] after which a step is undone.
const PATIENCE: u8 = 10;
/// Share of the budget below which a step is undone. The rate then doubles, and so may the cost.
const SPARE: f64 = 0.4;

/// A number of back-off steps; 0 is full rate and detail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackoffStep(u8);

impl BackoffStep {
    /// The last step: the rate has been halved as often as is useful, and kernel frames are off.
    pub const LAST: BackoffStep = BackoffStep(HALVINGS + 1);

    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The rate of a watch configured with `rate`.
    #[must_use]
    pub fn rate(self, rate: u32) -> u32 {
        halved(rate, self.0)
    }

    /// The overhead of a watch configured with `budget`; at least 0.01%.
    #[must_use]
    pub fn overhead(self, budget: Overhead) -> Overhead {
        Overhead::ppm(halved(budget.as_ppm(), self.0)).unwrap_or(Overhead::LEAST)
    }

    /// Whether kernel frames are off; then the kernel's symbols, the largest symbol table, are not needed either.
    #[must_use]
    pub fn user_only(self) -> bool {
        self >= BackoffStep::LAST
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Use {
    pub cpu_percent: f64,
    /// Resident memory, bytes.
    pub memory: u64,
}

#[derive(Debug)]
pub struct Shedder {
    budget: ServiceBudget,
    step: BackoffStep,
    /// Start of the window, and the CPU time at that point.
    window: (Instant, Duration),
    /// Set for the first window after a step, which is not judged.
    settling: bool,
    spare_windows: u8,
    last: Option<Use>,
}

impl Shedder {
    #[must_use]
    pub fn new(budget: ServiceBudget, now: Instant, cpu: Duration) -> Shedder {
        Shedder {
            budget,
            step: BackoffStep::default(),
            window: (now, cpu),
            settling: true,
            spare_windows: 0,
            last: None,
        }
    }

    pub fn set_budget(&mut self, budget: ServiceBudget) {
        self.budget = budget;
    }

    #[must_use]
    pub fn step(&self) -> BackoffStep {
        self.step
    }

    #[must_use]
    pub fn last_use(&self) -> Option<Use> {
        self.last
    }

    /// Whether the last window exceeded the budget and no step is left.
    #[must_use]
    pub fn is_helpless(&self) -> bool {
        self.step == BackoffStep::LAST && self.last.is_some_and(|used| self.share(used) > 1.0)
    }

    /// Reviews the use; call periodically with CPU time so far and memory in use. Returns the reason when the step
    /// changes.
    pub fn review(&mut self, now: Instant, cpu: Duration, memory: u64) -> Option<String> {
        let elapsed = now.saturating_duration_since(self.window.0);
        if elapsed < self.budget.window.0 {
            return None;
        }
        let cpu_percent = 100.0 * cpu.saturating_sub(self.window.1).as_secs_f64() / elapsed.as_secs_f64();
        self.window = (now, cpu);
        let used = Use { cpu_percent, memory };
        self.last = Some(used);
        if std::mem::take(&mut self.settling) {
            return None;
        }
        let share = self.share(used);
        let step = if share > 1.0 {
            self.spare_windows = 0;
            BackoffStep((self.step.0 + 1).min(BackoffStep::LAST.0))
        } else if share < SPARE && self.step > BackoffStep::default() {
            self.spare_windows += 1;
            if self.spare_windows < PATIENCE {
                return None;
            }
            self.spare_windows = 0;
            BackoffStep(self.step.0 - 1)
        } else {
            self.spare_windows = 0;
            return None;
        };
        if step == self.step {
            return None;
        }
        self.step = step;
        self.settling = true;
        Some(format!(
            "the service used {cpu_percent:.1}% of a CPU and {} MiB of memory; its budget is {}% and {} MiB",
            memory >> 20,
            self.budget.cpu_percent.0,
            self.budget.memory.0 >> 20
        ))
    }

    fn share(&self, used: Use) -> f64 {
        (used.cpu_percent / self.budget.cpu_percent.0).max(used.memory as f64 / self.budget.memory.0 as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{CpuPercent, MemoryBytes, Window};

    const WINDOW: Duration = Duration::from_secs(60);

    struct TestClock {
        shedder: Shedder,
        now: Instant,
        cpu: Duration,
    }

    impl TestClock {
        fn new() -> TestClock {
            let budget =
                ServiceBudget { cpu_percent: CpuPercent(2.0), memory: MemoryBytes(100 << 20), window: Window(WINDOW) };
            let now = Instant::now();
            TestClock { shedder: Shedder::new(budget, now, Duration::ZERO), now, cpu: Duration::ZERO }
        }

        fn minute(&mut self, percent: f64, mib: u64) -> bool {
            self.now += WINDOW;
            self.cpu += WINDOW.mul_f64(percent / 100.0);
            self.shedder.review(self.now, self.cpu, mib << 20).is_some()
        }
    }

    #[test]
    fn steps_go_from_rate_to_detail() {
        let rates: Vec<u32> = (0..=BackoffStep::LAST.0).map(|step| BackoffStep(step).rate(49)).collect();
        assert_eq!(rates, [49, 24, 12, 6, 3, 3]);
        let user: Vec<bool> = (0..=BackoffStep::LAST.0).map(|step| BackoffStep(step).user_only()).collect();
        assert_eq!(user, [false, false, false, false, false, true]);
        assert_eq!(BackoffStep::LAST.rate(1), 1);
        let percent = |percent| Overhead::percent(percent).unwrap();
        assert_eq!(BackoffStep(2).overhead(percent(1.0)), percent(0.25));
        assert_eq!(BackoffStep::LAST.overhead(percent(0.1)), percent(0.01));
    }

    #[test]
    fn within_the_budget_nothing_changes() {
        let mut clock = TestClock::new();
        assert!((0..100).all(|_| !clock.minute(1.9, 99)));
        assert_eq!(clock.shedder.step(), BackoffStep::default());
    }

    #[test]
    fn beyond_it_a_step_every_other_minute() {
        let mut clock = TestClock::new();
        let steps: Vec<bool> = (0..6).map(|_| clock.minute(3.0, 10)).collect();
        assert_eq!(steps, [false, true, false, true, false, true]);
        assert_eq!(clock.shedder.step(), BackoffStep(3));
        let _ = (0..10).map(|_| clock.minute(3.0, 10)).count();
        assert_eq!(clock.shedder.step(), BackoffStep::LAST);
        assert!(clock.shedder.is_helpless());
    }

    #[test]
    fn memory_counts_too() {
        let mut clock = TestClock::new();
        assert!(!clock.minute(0.1, 101) && clock.minute(0.1, 101));
    }

    #[test]
    fn steps_are_taken_back_when_there_is_room_for_long() {
        let mut clock = TestClock::new();
        let _ = (0..4).map(|_| clock.minute(3.0, 10)).count();
        assert_eq!(clock.shedder.step(), BackoffStep(2));
        // At twice the rate, half of the budget would become all of it.
        assert!((0..50).all(|_| !clock.minute(1.0, 10)));
        let minutes = (1..).find(|_| clock.minute(0.5, 10)).unwrap();
        assert_eq!((clock.shedder.step(), minutes), (BackoffStep(1), i32::from(PATIENCE)));
        // A busy minute restarts the wait.
        let _ = (0..9).map(|_| clock.minute(0.5, 10)).count();
        assert!(!clock.minute(1.5, 10));
        assert_eq!((1..).find(|_| clock.minute(0.5, 10)), Some(i32::from(PATIENCE)));
        assert_eq!(clock.shedder.step(), BackoffStep::default());
        assert!((0..50).all(|_| !clock.minute(0.5, 10)));
    }

    #[test]
    fn the_reason_has_figures() {
        let mut clock = TestClock::new();
        let _ = clock.minute(3.0, 10);
        clock.now += WINDOW;
        clock.cpu += WINDOW.mul_f64(0.03);
        let reason = clock.shedder.review(clock.now, clock.cpu, 10 << 20).unwrap();
        assert_eq!(reason, "the service used 3.0% of a CPU and 10 MiB of memory; its budget is 2% and 100 MiB");
    }
}
