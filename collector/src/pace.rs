//! How often samples are taken: decided from what became of those before.
//!
//! Two things bring the rate down, and one rule combines them. A *budget* of overhead says how many samples a second are
//! affordable at what one costs; where samples are *missing* because the machine does not keep up, the rate is halved, step
//! by step, and doubled again when nothing has been missing for long. Everything here is a pure function of what it is
//! told: no clock is read and nothing is opened. Threads that end before their first sample are no reason to go slower:
//! fewer samples would see less of them.

/// Times that a rate is halved for want of room, here and by the budget of the service.
pub const HALVINGS: u8 = 4;

/// A rate after so many halvings, samples per second.
#[must_use]
pub fn halved(rate_hz: u32, halvings: u8) -> u32 {
    (rate_hz >> halvings.min(HALVINGS)).max(1)
}

/// The rates of a budget, samples per second: from the highest down by the square root of two. All are odd, and none
/// divides what programs do every 1, 10 or 100 ms.
const RUNGS: [u32; 23] =
    [4_999, 3_533, 2_499, 1_767, 1_249, 883, 623, 441, 313, 221, 157, 109, 79, 53, 39, 29, 19, 13, 9, 7, 5, 3, 1];
/// What a sample costs ccsd itself until it has been measured, nanoseconds: a stack of 20 frames of known code.
const USUAL_OWN_NS: u64 = 8_000;
/// Windows of which the median decides what a sample costs ccsd: the first ones, in which names are read, are outliers.
const KEPT: usize = 9;
/// Samples that a window must have to say what one costs.
const ENOUGH: u64 = 50;
/// Samples of a window at most whose CPU time is taken for what ccsd spends without any: looks at rings that are empty.
const NEARLY_NONE: u64 = 2;
/// How much smaller another such share must be to be news.
const LESS: f64 = 0.8;
/// Windows between two changes of a rate by the budget.
const UNHURRIED: u32 = 8;
/// How much more must be affordable than the next higher rate before that is taken: a change costs something, too.
const WELL_ABOVE: f64 = 1.2;

/// Nanoseconds of a window. The reader sleeps 0.1 s at most, so several of its looks are in each.
pub const WINDOW_NS: u64 = 500_000_000;
/// Missing samples below which a window is good, whatever part of all they are.
const FEW: u64 = 10;
/// The part that is missing from a bad window, percent, and from one that needs no second.
const BAD_PERCENT: u64 = 2;
const TERRIBLE_PERCENT: u64 = 20;
/// Good time after which a halving is taken back, nanoseconds. It doubles, up to the second, each time that trouble is back
/// within it.
const PATIENCE_NS: u64 = 10_000_000_000;
const LONGEST_PATIENCE_NS: u64 = 320_000_000_000;
/// Time after a change that could not be made in which none is tried, nanoseconds. It doubles, up to the second, until one is
/// made.
const PAUSE_NS: u64 = 5_000_000_000;
const LONGEST_PAUSE_NS: u64 = 320_000_000_000;
/// Of so many changes at most that could not be made it is said.
const REFUSALS_TOLD: u32 = 8;
/// The part of a CPU that the reader may have used, percent, for the rate to be doubled.
const SPARE_PERCENT: u64 = 40;

/// A budget of overhead, in millionths of the target's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead(u32);

impl Overhead {
    /// In percent, as users say it.
    pub const PERCENT: std::ops::RangeInclusive<f64> = 0.01..=25.0;
    /// The smallest.
    pub const LEAST: Overhead = Overhead(100);

    /// Of so many percent.
    ///
    /// # Errors
    /// [`Error::Overhead`](crate::Error::Overhead) outside of [`Overhead::PERCENT`].
    pub fn percent(percent: f64) -> crate::Result<Overhead> {
        if Overhead::PERCENT.contains(&percent) {
            Ok(Overhead((percent * 1e4).round() as u32))
        } else {
            Err(crate::Error::Overhead(percent))
        }
    }

    /// Of so many millionths.
    ///
    /// # Errors
    /// The same.
    pub fn ppm(ppm: u32) -> crate::Result<Overhead> {
        Overhead::percent(f64::from(ppm) / 1e4)
    }

    /// In millionths.
    #[must_use]
    pub const fn as_ppm(self) -> u32 {
        self.0
    }
}

/// What a sample costs, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// The target: the interrupt, and the copy of its registers and stack.
    pub target_ns: u64,
    /// ccsd: reading it, unwinding, names, contexts.
    pub own_ns: u64,
}

/// What happened in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Its length, nanoseconds.
    pub elapsed_ns: u64,
    /// Samples received.
    pub received: u64,
    /// Samples that the kernel lost, because a ring was full.
    pub lost: u64,
    /// Samples that the kernel did not take, because there were too many.
    pub throttled: u64,
    /// Samples that ccsd dropped.
    pub dropped: u64,
    /// Whether those that have been read wait for names.
    pub backlog: bool,
    /// CPU time of ccsd's threads, nanoseconds.
    pub own_cpu_ns: u64,
    /// That of the one which reads the rings, part of it.
    pub reader_cpu_ns: u64,
}

/// Another rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Samples per second of CPU time, from now on.
    pub rate_hz: u32,
    /// Why, in words.
    pub why: String,
}

/// Decides how often samples are taken.
#[derive(Clone, Debug)]
pub struct Pace {
    most_hz: u32,
    overhead: Option<Overhead>,
    adapts: bool,
    /// It must not be changed.
    held: bool,
    rate_hz: u32,
    /// What the budget affords, one of [`RUNGS`].
    rung_hz: u32,
    since_rung: u32,
    target_ns: u64,
    own_ns: [u64; KEPT],
    next_own: usize,
    measured: bool,
    /// Samples and CPU time of windows that had too few to judge by.
    few: (u64, u64),
    /// The least part of a CPU that ccsd has taken while there were nearly no samples; infinite until there was such a window.
    idle_share: f64,
    halvings: u8,
    /// The last window was bad.
    doubtful: bool,
    /// The first window after a change has what was missing before.
    settling: bool,
    good_ns: u64,
    patience_ns: u64,
    /// Time since a halving was taken back, nanoseconds, until another one follows.
    since_raise_ns: Option<u64>,
    /// What was before the last change, for where that cannot be made: rate, rung, halvings.
    before: (u32, u32, u8),
    /// What is left of the time in which no change is tried, and how long the next one is, nanoseconds.
    pause_ns: u64,
    next_pause_ns: u64,
    refusals_told: u32,
}

impl Pace {
    /// At `rate_hz`, and never faster. `adapts` says whether it is lowered where samples are missing.
    #[must_use]
    pub fn at(rate_hz: u32, adapts: bool) -> Pace {
        Pace {
            most_hz: rate_hz,
            overhead: None,
            adapts,
            held: false,
            rate_hz,
            rung_hz: rate_hz,
            since_rung: 0,
            target_ns: 0,
            own_ns: [USUAL_OWN_NS; KEPT],
            next_own: 0,
            measured: false,
            few: (0, 0),
            idle_share: f64::INFINITY,
            halvings: 0,
            doubtful: false,
            settling: false,
            good_ns: 0,
            patience_ns: PATIENCE_NS,
            since_raise_ns: None,
            before: (rate_hz, rate_hz, 0),
            pause_ns: 0,
            next_pause_ns: PAUSE_NS,
            refusals_told: 0,
        }
    }

    /// As fast as a budget allows, if a sample costs the target `target_ns`, but never faster than `most_hz`.
    #[must_use]
    pub fn within(budget: Overhead, target_ns: u64, most_hz: u32, adapts: bool) -> Pace {
        let mut pace = Pace { overhead: Some(budget), target_ns, ..Pace::at(most_hz, adapts) };
        pace.rung_hz = rung(pace.affordable(budget)).min(most_hz);
        pace.rate_hz = pace.rung_hz;
        pace
    }

    /// Samples per second of CPU time, at the moment.
    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// The budget, if there is one.
    #[must_use]
    pub fn overhead(&self) -> Option<Overhead> {
        self.overhead
    }

    /// Whether the rate may change at all.
    #[must_use]
    pub fn is_variable(&self) -> bool {
        !self.held && (self.adapts || self.overhead.is_some())
    }

    /// What a sample costs; of ccsd, what is usual until it has been measured for some seconds.
    #[must_use]
    pub fn cost(&self) -> Cost {
        let mut own_ns = self.own_ns;
        own_ns.sort_unstable();
        Cost { target_ns: self.target_ns, own_ns: own_ns[KEPT / 2] }
    }

    /// The same, where ccsd's part is 0 until it has been measured.
    #[must_use]
    pub fn measured_cost(&self) -> Cost {
        Cost { own_ns: if self.measured { self.cost().own_ns } else { 0 }, ..self.cost() }
    }

    /// Samples per second that a budget affords.
    fn affordable(&self, budget: Overhead) -> f64 {
        let Cost { target_ns, own_ns } = self.cost();
        f64::from(budget.0) * 1e3 / target_ns.saturating_add(own_ns).max(1) as f64
    }

    /// To be called for each window, about [`WINDOW_NS`] long. Says when the rate is to change.
    pub fn review(&mut self, window: &Window) -> Option<Change> {
        self.measure(window);
        if self.held {
            return None;
        }
        if self.pause_ns > 0 {
            self.pause_ns = self.pause_ns.saturating_sub(window.elapsed_ns);
            return None;
        }
        let before = (self.rate_hz, self.rung_hz, self.halvings);
        let trouble = if self.adapts { self.trouble(window) } else { None };
        let spending = self.overhead.and_then(|budget| self.spending(budget));
        let why = trouble.or(spending)?;
        let rate_hz = halved(self.rung_hz, self.halvings);
        if rate_hz == self.rate_hz {
            return None;
        }
        (self.rate_hz, self.settling, self.before) = (rate_hz, true, before);
        Some(Change { rate_hz, why })
    }

    /// The rate stays what it is from now on.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// That the last change has been made.
    pub fn accepted(&mut self) {
        self.next_pause_ns = PAUSE_NS;
    }

    /// That the last change could not be made: the rate is what it was, and for a while no other is tried. What is so then
    /// decides anew. Returns whether it is worth saying: the first time in a row, and a few times in all.
    pub fn refused(&mut self) -> bool {
        (self.rate_hz, self.rung_hz, self.halvings) = self.before;
        (self.settling, self.doubtful) = (false, false);
        self.pause_ns = self.next_pause_ns;
        self.next_pause_ns = self.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
        let tell = self.pause_ns == PAUSE_NS && self.refusals_told < REFUSALS_TOLD;
        self.refusals_told += u32::from(tell);
        tell
    }

    fn measure(&mut self, window: &Window) {
        // A target that is mostly idle has few samples and as many looks: divided among them, these would make a sample dear,
        // the rate low, and samples fewer still.
        if window.received <= NEARLY_NONE && window.elapsed_ns > 0 {
            let share = window.own_cpu_ns as f64 / window.elapsed_ns as f64;
            if share < self.idle_share * LESS {
                // What was measured before had these looks in it.
                (self.idle_share, self.own_ns, self.few) = (share, [USUAL_OWN_NS; KEPT], (0, 0));
            }
        }
        let idle_ns = match self.idle_share.is_finite() {
            true => (self.idle_share * window.elapsed_ns as f64) as u64,
            false => 0,
        };
        self.few.0 = self.few.0.saturating_add(window.received);
        self.few.1 = self.few.1.saturating_add(window.own_cpu_ns.saturating_sub(idle_ns));
        let (samples, cpu) = self.few;
        if samples >= ENOUGH {
            self.own_ns[self.next_own] = cpu / samples;
            self.next_own = (self.next_own + 1) % KEPT;
            self.measured = true;
            self.few = (0, 0);
        }
    }

    /// Whether the budget asks for another rate, and why.
    fn spending(&mut self, budget: Overhead) -> Option<String> {
        self.since_rung = self.since_rung.saturating_add(1);
        if self.since_rung < UNHURRIED {
            return None;
        }
        let affordable = self.affordable(budget);
        let lower = affordable < f64::from(self.rung_hz) && self.rung_hz > 1;
        let wanted = if lower { rung(affordable) } else { rung(affordable / WELL_ABOVE) }.min(self.most_hz);
        if !lower && wanted <= self.rung_hz {
            return None;
        }
        (self.rung_hz, self.since_rung) = (wanted, 0);
        let Cost { target_ns, own_ns } = self.cost();
        Some(format!(
            "a sample costs the target {:.1} us and ccsd {:.1} us, of which {}% of CPU time affords {affordable:.0} a second",
            target_ns as f64 / 1e3,
            own_ns as f64 / 1e3,
            f64::from(budget.0) / 1e4
        ))
    }

    /// Whether missing samples ask for another rate, or their absence, and why.
    fn trouble(&mut self, window: &Window) -> Option<String> {
        self.since_raise_ns = self.since_raise_ns.map(|since| since.saturating_add(window.elapsed_ns));
        if std::mem::take(&mut self.settling) {
            return None;
        }
        let missing = window.lost.saturating_add(window.throttled).saturating_add(window.dropped);
        let all = window.received.saturating_add(missing);
        let is_part = |percent: u64| missing >= FEW && missing.saturating_mul(100) >= all.saturating_mul(percent);
        if is_part(BAD_PERCENT) || window.backlog {
            let again = std::mem::replace(&mut self.doubtful, true);
            self.good_ns = 0;
            if !(again || is_part(TERRIBLE_PERCENT)) || self.halvings >= HALVINGS || self.rate_hz == 1 {
                return None;
            }
            if let Some(since) = self.since_raise_ns.take() {
                let soon = since < self.patience_ns;
                self.patience_ns =
                    if soon { self.patience_ns.saturating_mul(2).min(LONGEST_PATIENCE_NS) } else { PATIENCE_NS };
            }
            (self.halvings, self.doubtful) = (self.halvings + 1, false);
            return Some(reason(window, missing, all));
        }
        self.doubtful = false;
        self.good_ns = self.good_ns.saturating_add(window.elapsed_ns);
        let busy = window.reader_cpu_ns.saturating_mul(100) > window.elapsed_ns.saturating_mul(SPARE_PERCENT);
        if self.halvings == 0 || self.good_ns < self.patience_ns || busy {
            return None;
        }
        let seconds = self.good_ns / 1_000_000_000;
        (self.halvings, self.good_ns, self.since_raise_ns) = (self.halvings - 1, 0, Some(0));
        Some(format!("no samples were missing for {seconds} s"))
    }
}

/// Why there is trouble, by what most are missing for.
fn reason(window: &Window, missing: u64, all: u64) -> String {
    let why = if missing < FEW {
        return "samples wait for ccsd to find their names".to_owned();
    } else if window.lost >= window.throttled.max(window.dropped) {
        "lost, because ccsd did not come to read them in time"
    } else if window.throttled >= window.dropped {
        "kept back by the kernel, which throttles what fires too often"
    } else {
        "dropped, because ccsd did not come to find their names in time"
    };
    format!("{}% of the samples were {why}", missing.saturating_mul(100) / all.max(1))
}

/// The highest of [`RUNGS`] that is affordable; 1 if none is.
fn rung(affordable: f64) -> u32 {
    RUNGS.into_iter().find(|&rung| f64::from(rung) <= affordable).unwrap_or(1)
}

/// The highest rate of a budget.
pub const MOST_HZ: u32 = RUNGS[0];

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: Window = Window {
        elapsed_ns: WINDOW_NS,
        received: 500,
        lost: 0,
        throttled: 0,
        dropped: 0,
        backlog: false,
        own_cpu_ns: 4_000_000,
        reader_cpu_ns: 2_000_000,
    };
    const BAD: Window = Window { lost: 25, ..CLEAN };
    const TERRIBLE: Window = Window { lost: 500, ..CLEAN };
    /// Good windows after which a halving is taken back.
    const PATIENCE: usize = (PATIENCE_NS / WINDOW_NS) as usize;

    /// The rates after each of the windows.
    fn rates(pace: &mut Pace, windows: &[Window]) -> Vec<u32> {
        windows
            .iter()
            .map(|window| {
                let change = pace.review(window);
                assert!(change.is_none_or(|change| change.rate_hz == pace.rate_hz()));
                pace.rate_hz()
            })
            .collect()
    }

    /// Good windows until the rate changes.
    fn until_raised(pace: &mut Pace) -> usize {
        (1..10_000).find(|_| pace.review(&CLEAN).is_some()).unwrap()
    }

    #[test]
    fn without_trouble_nothing_changes() {
        let mut pace = Pace::at(999, true);
        assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
        // Nine missing are few, and so is one in fifty-one.
        let few = Window { received: 10, lost: 9, ..CLEAN };
        let seldom = Window { received: 5_000, lost: 50, throttled: 30, dropped: 19, ..CLEAN };
        assert_eq!(rates(&mut pace, &[few, few, seldom, seldom, seldom]), [999; 5]);
        // Once is chance.
        assert_eq!(rates(&mut pace, &[BAD, CLEAN, BAD, CLEAN, CLEAN]), [999; 5]);
    }

    #[test]
    fn what_goes_on_being_missing_halves_the_rate() {
        let mut pace = Pace::at(999, true);
        // The window after a step is not judged: what was read in it was lost before.
        let windows = [BAD; 14];
        let expected = [999, 499, 499, 499, 249, 249, 249, 124, 124, 124, 62, 62, 62, 62];
        assert_eq!(rates(&mut pace, &windows), expected);
        assert_eq!(rates(&mut pace, &[TERRIBLE; 20]), [62; 20]);
        let mut pace = Pace::at(999, true);
        assert_eq!(rates(&mut pace, &[TERRIBLE, TERRIBLE, TERRIBLE]), [499, 499, 249]);
        let mut pace = Pace::at(3, true);
        assert_eq!(rates(&mut pace, &[TERRIBLE; 6]), [1; 6]);
    }

    #[test]
    fn the_reason_is_what_most_are_missing_for() {
        let why = |window: Window| Pace::at(999, true).review(&window).unwrap().why;
        assert_eq!(why(TERRIBLE), "50% of the samples were lost, because ccsd did not come to read them in time");
        assert!(why(Window { throttled: 600, ..TERRIBLE }).starts_with("68% of the samples were kept back"));
        assert!(why(Window { dropped: 600, ..TERRIBLE }).contains("68% of the samples were dropped"));
        let mut pace = Pace::at(999, true);
        let waits = Window { backlog: true, ..CLEAN };
        assert_eq!(pace.review(&waits), None);
        assert_eq!(pace.review(&waits).unwrap().why, "samples wait for ccsd to find their names");
    }

    #[test]
    fn who_wants_one_rate_has_it() {
        let mut pace = Pace::at(999, false);
        assert!(!pace.is_variable());
        assert_eq!(rates(&mut pace, &[TERRIBLE; 50]), [999; 50]);
    }

    #[test]
    fn the_rate_rises_when_there_is_room_for_long() {
        let mut pace = Pace::at(999, true);
        assert_eq!(rates(&mut pace, &[TERRIBLE, CLEAN, TERRIBLE]), [499, 499, 249]);
        // One window settles.
        assert_eq!(until_raised(&mut pace), PATIENCE + 1);
        assert_eq!(pace.rate_hz(), 499);
        // A busy reader has no room.
        let busy = Window { reader_cpu_ns: WINDOW_NS / 2, ..CLEAN };
        assert_eq!(rates(&mut pace, &[busy; 100]), [499; 100]);
        let change = pace.review(&CLEAN).unwrap();
        assert_eq!((change.rate_hz, change.why.as_str()), (999, "no samples were missing for 50 s"));
        assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
    }

    #[test]
    fn trouble_that_comes_back_is_given_more_time() {
        let mut pace = Pace::at(999, true);
        let _ = pace.review(&TERRIBLE);
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.push(until_raised(&mut pace) - 1);
            assert_eq!(rates(&mut pace, &[CLEAN, TERRIBLE]), [999, 499]);
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 32, 32].map(|times| times * PATIENCE));
        // After a good while it is news again.
        let _ = until_raised(&mut pace);
        let _ = rates(&mut pace, &[CLEAN; 33 * PATIENCE]);
        let _ = pace.review(&TERRIBLE);
        assert_eq!(until_raised(&mut pace) - 1, PATIENCE);
    }

    /// Within a budget, if a sample costs the target 16 us.
    fn budgeted(percent: f64) -> Pace {
        Pace::within(Overhead::percent(percent).unwrap(), 16_000, MOST_HZ, true)
    }

    #[test]
    fn a_budget_affords_a_rate() {
        // 24 us a sample in all.
        let rates = [0.01, 0.1, 0.5, 1.0, 5.0, 25.0].map(|percent| budgeted(percent).rate_hz());
        assert_eq!(rates, [3, 39, 157, 313, 1_767, 4_999]);
        for (percent, rate) in [(0.1, 39.0), (1.0, 313.0)] {
            let spent = rate * 24e-6;
            assert!(spent <= percent / 100.0 && spent * 2f64.sqrt() * 1.1 > percent / 100.0, "{spent}");
        }
        for wrong in [0.0, -1.0, 0.009, 25.1, 100.0, f64::NAN, f64::INFINITY] {
            assert!(Overhead::percent(wrong).is_err(), "{wrong}");
        }
        assert_eq!(Overhead::percent(0.5).unwrap().as_ppm(), 5_000);
        assert_eq!(Overhead::ppm(5_000).unwrap(), Overhead::percent(0.5).unwrap());
        assert!(Overhead::ppm(0).is_err());
    }

    #[test]
    fn a_budget_follows_what_samples_cost() {
        let mut pace = budgeted(1.0);
        // 8 us as assumed: nothing to do.
        assert_eq!(rates(&mut pace, &[CLEAN; 100]), [313; 100]);
        // Four windows in which names are read are outliers.
        let names = Window { own_cpu_ns: 400_000_000, ..CLEAN };
        assert_eq!(rates(&mut pace, &[names; 4]), [313; 4]);
        assert_eq!(rates(&mut pace, &[CLEAN; 20]), [313; 20]);
        // 44 us, of which 10,000 us a second afford 166.
        let dear = Window { own_cpu_ns: 500 * 44_000, ..CLEAN };
        let steps = rates(&mut pace, &[dear; 20]);
        assert_eq!((steps[3], steps[19], pace.cost()), (313, 157, Cost { target_ns: 16_000, own_ns: 44_000 }));
        // And back, when there is enough for the next rate and a fifth.
        let cheap = Window { own_cpu_ns: 500 * 8_000, ..CLEAN };
        assert_eq!(rates(&mut pace, &[cheap; 30])[29], 313);
        assert!(rates(&mut pace, &[Window { own_cpu_ns: 500 * 5_500, ..CLEAN }; 50]).iter().all(|&rate| rate == 313));
        assert_eq!(rates(&mut pace, &[Window { own_cpu_ns: 500 * 1_000, ..CLEAN }; 50])[49], 441);
        // Windows with few samples are added up.
        let idle = Window { received: 10, own_cpu_ns: 10 * 44_000, ..CLEAN };
        assert_eq!(rates(&mut pace, &[idle; 60])[59], 157);
    }

    #[test]
    fn a_target_that_is_mostly_idle_keeps_its_rate() {
        let mut pace = budgeted(1.0);
        let mut lowest = u32::MAX;
        // One that works a twentieth of the time, and 6 ms a second of looks, however many samples there are.
        for _ in 0..2_000 {
            let received = u64::from(pace.rate_hz()) / 40;
            let _ = pace.review(&Window { received, own_cpu_ns: 3_000_000 + received * 8_000, ..CLEAN });
            lowest = lowest.min(pace.rate_hz());
        }
        // It takes a while to tell the one from the other.
        assert!(lowest < 313, "{lowest}");
        assert_eq!(pace.rate_hz(), 313);
    }

    #[test]
    fn trouble_and_a_budget_go_together() {
        let mut pace = budgeted(1.0);
        assert_eq!(rates(&mut pace, &[TERRIBLE, CLEAN, TERRIBLE]), [156, 156, 78]);
        assert_eq!(until_raised(&mut pace), PATIENCE + 1);
        assert_eq!(pace.rate_hz(), 156);
        pace.hold();
        assert!(!pace.is_variable());
        assert_eq!(rates(&mut pace, &[TERRIBLE; 10]), [156; 10]);
    }

    #[test]
    fn what_could_not_be_changed_is_tried_again() {
        let mut pace = Pace::at(999, true);
        let mut waits = Vec::new();
        let mut told = 0;
        for _ in 0..9 {
            let windows = (1..10_000).find(|_| pace.review(&TERRIBLE).is_some()).unwrap();
            waits.push((windows - 1) as u64 * WINDOW_NS / PAUSE_NS);
            told += u32::from(pace.refused());
            assert_eq!((pace.rate_hz(), pace.is_variable()), (999, true));
        }
        assert_eq!((waits, told), (vec![0, 1, 2, 4, 8, 16, 32, 64, 64], 1));
        // What is over by then needs no change.
        assert_eq!(rates(&mut pace, &[CLEAN; 1_000]), [999; 1_000]);
        // The halvings that were not made are not made up for.
        assert_eq!(pace.review(&TERRIBLE).unwrap().rate_hz, 499);
        pace.accepted();
        // Raising it may be refused as well; then it is time to raise it again in a while, and not at once.
        assert_eq!((until_raised(&mut pace), pace.refused(), pace.rate_hz()), (PATIENCE + 1, true, 499));
        assert_eq!(until_raised(&mut pace), (PAUSE_NS / WINDOW_NS) as usize + PATIENCE);
        pace.accepted();
        assert_eq!(pace.rate_hz(), 999);
        // It is not said without end.
        for _ in 0..100 {
            let _ = (1..10_000).find(|_| pace.review(&TERRIBLE).is_some());
            told += u32::from(pace.refused());
            pace.accepted();
        }
        assert_eq!(told + 1, REFUSALS_TOLD);
    }

    #[test]
    fn a_budget_that_could_not_be_kept_is_tried_again() {
        let mut pace = budgeted(1.0);
        let dear = Window { own_cpu_ns: 500 * 44_000, ..CLEAN };
        let _ = (0..100).find(|_| pace.review(&dear).is_some());
        assert!(pace.rate_hz() < 313 && pace.refused());
        let least = (PAUSE_NS / WINDOW_NS) as usize;
        let again = (1..100).find(|_| pace.review(&dear).is_some()).unwrap();
        assert!(pace.rate_hz() < 313 && (least..=least + UNHURRIED as usize + 1).contains(&again), "{again}");
    }
}
