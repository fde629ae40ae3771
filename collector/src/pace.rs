//! How often samples are taken: decided from what became of those before.
//!
//! A *budget* of overhead says how many samples a second are affordable at what one costs. Where samples are *missing*
//! because the machine does not keep up, the rate is halved, step by step, and doubled again after a good while.
//! Everything here is a pure function of its inputs. Threads that end before their first sample do not lower the rate.

use crate::error::{Error, Result};

/// Times that a rate is halved for want of room, here and by the budget of the service.
pub const HALVINGS: u8 = 4;

/// The rate after a number of halvings, samples per second.
#[must_use]
pub fn halved(rate_hz: u32, halvings: u8) -> u32 {
    (rate_hz >> halvings.min(HALVINGS)).max(1)
}

/// The rates of a budget, samples per second, down by the square root of two. All odd; none divides common periods of
/// 1, 10 or 100 ms.
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
/// Good time after which a halving is taken back, nanoseconds. Doubles, up to the second value, when trouble is back
/// within it.
const PATIENCE_NS: u64 = 10_000_000_000;
const LONGEST_PATIENCE_NS: u64 = 320_000_000_000;
/// Pause after a change that failed, nanoseconds. Doubles, up to the second value, until one succeeds.
const PAUSE_NS: u64 = 5_000_000_000;
const LONGEST_PAUSE_NS: u64 = 320_000_000_000;
/// Limit on reported rate changes that failed.
const REFUSALS_TOLD: u32 = 8;
/// The part of a CPU that the reader may have used, percent, for the rate to be doubled.
const SPARE_PERCENT: u64 = 40;

/// A budget of overhead, in millionths of the target's CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overhead(u32);

impl Overhead {
    /// In percent.
    pub const PERCENT: std::ops::RangeInclusive<f64> = 0.01..=25.0;
    /// The smallest.
    pub const LEAST: Overhead = Overhead(100);

    /// From percent.
    ///
    /// # Errors
    /// [`Error::Overhead`](crate::Error::Overhead) outside of [`Overhead::PERCENT`].
    pub fn percent(percent: f64) -> Result<Overhead> {
        if Overhead::PERCENT.contains(&percent) {
            Ok(Overhead((percent * 1e4).round() as u32))
        } else {
            Err(Error::Overhead(percent))
        }
    }

    /// From millionths.
    ///
    /// # Errors
    /// As [`Overhead::percent`].
    pub fn ppm(ppm: u32) -> Result<Overhead> {
        Overhead::percent(f64::from(ppm) / 1e4)
    }

    /// In millionths.
    #[must_use]
    pub const fn as_ppm(self) -> u32 {
        self.0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleCost {
    /// The target: the interrupt, and the copy of its registers and stack.
    pub target_ns: u64,
    /// ccsd: reading it, unwinding, names, contexts.
    pub own_ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateWindow {
    pub elapsed_ns: u64,
    pub received: u64,
    pub lost: u64,
    pub throttled: u64,
    pub dropped: u64,
    /// Whether those that have been read wait for names.
    pub backlog: bool,
    /// CPU time of ccsd's threads, nanoseconds.
    pub own_cpu_ns: u64,
    /// That of the one which reads the rings, part of it.
    pub reader_cpu_ns: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateChange {
    /// Samples per second of CPU time, from now on.
    pub rate_hz: u32,
    pub why: String,
}

#[derive(Clone, Debug)]
pub struct RateController {
    most_hz: u32,
    overhead: Option<Overhead>,
    adapts: bool,
    held: bool,
    rate_hz: u32,
    /// What the budget affords, one of [`RUNGS`].
    rung_hz: u32,
    since_rung: u32,
    cost: CostMeter,
    shortage: Shortage,
    /// What was before the last change, for where that cannot be made.
    before: RateBefore,
    refusals: RateRefusals,
}

#[derive(Clone, Copy, Debug)]
struct RateBefore {
    rate_hz: u32,
    rung_hz: u32,
    shortage: Shortage,
}

#[derive(Clone, Debug)]
struct CostMeter {
    target_ns: u64,
    own_ns: [u64; KEPT],
    next_own: usize,
    measured: bool,
    /// Samples and CPU time of windows that had too few to judge by.
    few: (u64, u64),
    /// The least part of a CPU that ccsd has taken while there were nearly no samples; infinite until there was such a window.
    idle_share: f64,
}

#[derive(Clone, Copy, Debug)]
struct Shortage {
    halvings: u8,
    doubtful: bool,
    /// The first window after a change has what was missing before.
    settling: bool,
    good_ns: u64,
    patience_ns: u64,
    /// Time since a halving was taken back, nanoseconds, until another one follows.
    since_raise_ns: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct RateRefusals {
    /// What is left of the time in which no change is tried, and how long the next one is, nanoseconds.
    pause_ns: u64,
    next_pause_ns: u64,
    told: u32,
}

impl RateController {
    /// At `rate_hz`, and never faster. `adapts` says whether it is lowered where samples are missing.
    #[must_use]
    pub fn at(rate_hz: u32, adapts: bool) -> RateController {
        let shortage = Shortage {
            halvings: 0,
            doubtful: false,
            settling: false,
            good_ns: 0,
            patience_ns: PATIENCE_NS,
            since_raise_ns: None,
        };
        RateController {
            most_hz: rate_hz,
            overhead: None,
            adapts,
            held: false,
            rate_hz,
            rung_hz: rate_hz,
            since_rung: 0,
            cost: CostMeter::new(0),
            shortage,
            before: RateBefore { rate_hz, rung_hz: rate_hz, shortage },
            refusals: RateRefusals { pause_ns: 0, next_pause_ns: PAUSE_NS, told: 0 },
        }
    }

    /// As fast as a budget allows, if a sample costs the target `target_ns`, but never faster than `most_hz`.
    #[must_use]
    pub fn within(budget: Overhead, target_ns: u64, most_hz: u32, adapts: bool) -> RateController {
        let mut pace = RateController {
            overhead: Some(budget),
            cost: CostMeter::new(target_ns),
            ..RateController::at(most_hz, adapts)
        };
        pace.rung_hz = rung(pace.affordable(budget)).min(most_hz);
        pace.rate_hz = pace.rung_hz;
        pace
    }

    #[must_use]
    pub fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    #[must_use]
    pub fn overhead(&self) -> Option<Overhead> {
        self.overhead
    }

    #[must_use]
    pub fn is_variable(&self) -> bool {
        !self.held && (self.adapts || self.overhead.is_some())
    }

    /// What a sample costs; of ccsd, what is usual until it has been measured for some seconds.
    #[must_use]
    pub fn cost(&self) -> SampleCost {
        self.cost.cost()
    }

    /// The same, where ccsd's part is 0 until it has been measured.
    #[must_use]
    pub fn measured_cost(&self) -> SampleCost {
        SampleCost { own_ns: if self.cost.measured { self.cost().own_ns } else { 0 }, ..self.cost() }
    }

    fn affordable(&self, budget: Overhead) -> f64 {
        let SampleCost { target_ns, own_ns } = self.cost();
        f64::from(budget.0) * 1e3 / target_ns.saturating_add(own_ns).max(1) as f64
    }

    /// To be called for each window, about [`WINDOW_NS`] long. Says when the rate is to change.
    pub fn review(&mut self, window: &RateWindow) -> Option<RateChange> {
        self.cost.measure(window);
        if self.held {
            return None;
        }
        if self.refusals.pause_ns > 0 {
            self.refusals.pause_ns = self.refusals.pause_ns.saturating_sub(window.elapsed_ns);
            return None;
        }
        let before = RateBefore { rate_hz: self.rate_hz, rung_hz: self.rung_hz, shortage: self.shortage };
        let trouble = if self.adapts { self.shortage.review(window, self.rate_hz) } else { None };
        let spending = self.overhead.and_then(|budget| self.spending(budget));
        let why = trouble.or(spending)?;
        let rate_hz = halved(self.rung_hz, self.shortage.halvings);
        if rate_hz == self.rate_hz {
            return None;
        }
        (self.rate_hz, self.shortage.settling, self.before) = (rate_hz, true, before);
        Some(RateChange { rate_hz, why })
    }

    pub fn hold(&mut self) {
        self.held = true;
    }

    /// That the last change has been made.
    pub fn accepted(&mut self) {
        self.refusals.next_pause_ns = PAUSE_NS;
    }

    /// The last change failed: the old rate stays, and no other is tried for a while. Returns whether to report it: the
    /// first time in a row, and a few times in all.
    pub fn refused(&mut self) -> bool {
        let RateBefore { rate_hz, rung_hz, shortage } = self.before;
        (self.rate_hz, self.rung_hz) = (rate_hz, rung_hz);
        let good_ns = self.shortage.good_ns;
        self.shortage = Shortage { good_ns, settling: false, doubtful: false, ..shortage };
        let refusals = &mut self.refusals;
        refusals.pause_ns = refusals.next_pause_ns;
        refusals.next_pause_ns = refusals.pause_ns.saturating_mul(2).min(LONGEST_PAUSE_NS);
        let tell = refusals.pause_ns == PAUSE_NS && refusals.told < REFUSALS_TOLD;
        refusals.told += u32::from(tell);
        tell
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
        let SampleCost { target_ns, own_ns } = self.cost();
        Some(format!(
            "a sample costs the target {:.1} us and ccsd {:.1} us, of which {}% of CPU time affords {affordable:.0} a second",
            target_ns as f64 / 1e3,
            own_ns as f64 / 1e3,
            f64::from(budget.0) / 1e4
        ))
    }
}

impl CostMeter {
    fn new(target_ns: u64) -> CostMeter {
        CostMeter {
            target_ns,
            own_ns: [USUAL_OWN_NS; KEPT],
            next_own: 0,
            measured: false,
            few: (0, 0),
            idle_share: f64::INFINITY,
        }
    }

    fn cost(&self) -> SampleCost {
        let mut own_ns = self.own_ns;
        own_ns.sort_unstable();
        SampleCost { target_ns: self.target_ns, own_ns: own_ns[KEPT / 2] }
    }

    fn measure(&mut self, window: &RateWindow) {
        // An idle target has few samples and as many looks: dividing these would make a sample dear and samples fewer
        // still.
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
}

impl Shortage {
    /// Whether missing samples ask for another rate, or their absence, and why.
    fn review(&mut self, window: &RateWindow, rate_hz: u32) -> Option<String> {
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
            if !(again || is_part(TERRIBLE_PERCENT)) || self.halvings >= HALVINGS || rate_hz == 1 {
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
fn reason(window: &RateWindow, missing: u64, all: u64) -> String {
    let why = if missing < FEW {
        return "samples wait for ccsd to name them and add them up".to_owned();
    } else if window.lost >= window.throttled.max(window.dropped) {
        "lost, because ccsd did not come to read them in time"
    } else if window.throttled >= window.dropped {
        "throttled by the kernel"
    } else {
        "dropped, because ccsd did not name them and add them up in time"
    };
    format!("{}% of the samples were {why}", missing.saturating_mul(100) / all.max(1))
}

/// The highest of [`RUNGS`] that is affordable; 1 if none is.
fn rung(affordable: f64) -> u32 {
    RUNGS.into_iter().find(|&rung| f64::from(rung) <= affordable).unwrap_or(1)
}

pub const MOST_HZ: u32 = RUNGS[0];

#[cfg(test)]
#[path = "pace_tests.rs"]
mod tests;
