//! CPU time that no sample stands for (I13).
//!
//! The events count the target's CPU time; the clocks of its processes also have thread switches, when events are off.
//! What samples do not stand for is charged to `[not sampled]`.
//!
//! - A timer's sample stands for one period. Rests of less than a period per thread and CPU are rounding: nothing is
//!   charged while they explain all that is missing.
//! - A tick's sample stands for what its thread has run since the last one, within chance: see [`TickTime`].
//! - A charge is never taken back, so a running session charges only what no later sample can stand for.
//! - Nothing is charged where the CPU time is not exact: whole CPUs, user code alone, processes outside a filter,
//!   cycles.

use ccsd_profile::{NotSampled, Process, Thread, ThreadId, Unseen};

use super::Aggregator;
use super::thread_time::ThreadTime;
use super::tick_time::TickTime;
use crate::batch::{BatchCounts, part_of};
use crate::perf::attr::Event;
use crate::perf::layout::EventLayout;

/// Part of the CPU time, in percent, and periods that the rests of periods may come to without being charged.
const MAX_RESTS_PERCENT: u64 = 5;
const MAX_RESTS: u64 = 24;
/// Part of the target's CPU time, in percent, that may be in no sample without a word.
const QUIET_PERCENT: u64 = 3;

impl Aggregator {
    pub(super) fn charge_ended(&mut self, mut time: TickTime, thread: ThreadId) {
        let excess = time.take_excess(self.spec.period_ns());
        self.charge_unseen_time(thread, excess);
    }

    fn charge_unseen_time(&mut self, thread: ThreadId, ns: u64) {
        if ns > 0 {
            self.unseen.charged = self.unseen.charged.saturating_add(ns);
            self.profile.charge_not_sampled(thread, &[ns]);
        }
    }

    /// Charges the target's unsampled time, as far as it is known. Called at each update, after `accounting` is up to
    /// date. Returns what to note at the end.
    pub(super) fn charge_unseen(&mut self, counts: &BatchCounts, last: bool) -> Option<String> {
        let period = self.spec.period_ns();
        let threads = self.threads.values_mut().filter(|thread| thread.tick.held > period);
        let excess: Vec<_> = threads.map(|thread| (thread.id, thread.tick.take_excess(period))).collect();
        excess.into_iter().for_each(|(thread, ns)| self.charge_unseen_time(thread, ns));
        let Some(used) = self.exact_cpu_ns(counts) else {
            if self.unseen.charged > 0 {
                // By the threads' own clocks.
                let used = self.weighed.saturating_add(self.unseen.charged);
                self.profile.accounting_mut().not_sampled = Some(self.split_unseen(counts, used));
            }
            return None;
        };
        let accounted = self.weighed.saturating_add(self.unseen.charged);
        // Of each thread that was sampled, the rest of a period on each CPU.
        let period = self.rates.longest_period_ns();
        let sets = self.profile.accounting().pace.changes.saturating_add(1);
        let timers = |threads: u64| threads.saturating_mul(self.cpus).saturating_mul(sets);
        let rests = timers(self.profile.threads().len() as u64).min(counts.samples.received).saturating_mul(period);
        if last {
            let rest = used.saturating_sub(accounted);
            // Of threads that live for a few periods, the rests are a large part of the time.
            let much = rest > (used / 100).saturating_mul(MAX_RESTS_PERCENT) && rest > period.saturating_mul(MAX_RESTS);
            if rest > rests || much {
                let held: Vec<_> = self.threads.values().map(|thread| (thread.id, thread.tick.held)).collect();
                let mut rest = rest;
                for (thread, held) in held {
                    let held = held.min(rest);
                    self.charge_unseen_time(thread, held);
                    rest -= held;
                }
                let rest = self.charge_threads(rest, ThreadTime::missing);
                self.charge_anyone(counts, rest);
            }
        } else {
            // As of the last update: samples of the time since may still be on their way. Threads alive may be sampled yet.
            let before = std::mem::replace(&mut self.unseen.used_before, used);
            let later = timers(counts.tracker.live_threads).saturating_mul(period);
            let sure = before.saturating_sub(accounted.saturating_add(rests).saturating_add(later));
            if sure > before / 100 {
                let slack = self.cpus.saturating_mul(period);
                let sure = self.charge_threads(sure, |time| time.surely_missing(slack));
                self.charge_anyone(counts, sure);
            }
            self.threads.values_mut().for_each(|thread| thread.unsampled.end_interval());
        }
        let split = self.split_unseen(counts, used);
        let accounting = self.profile.accounting_mut();
        accounting.target_cpu_ns = Some(used);
        accounting.not_sampled = Some(split);
        note(&split, used, self.more_samples)
    }

    /// CPU time that samples should stand for, if exact: by the events, else by the clocks of the target's processes.
    pub(super) fn exact_cpu_ns(&self, counts: &BatchCounts) -> Option<u64> {
        let whole = !matches!(self.spec.event, Event::Cycles { .. })
            && self.spec.kernel
            && self.layout != EventLayout::Cpus
            && counts.tracker.others == 0
            && counts.tracker.withheld == 0;
        counts.target.counted.filter(|_| whole).map(|counted| counted.used.saturating_add(counts.target.uncounted_ns))
    }

    /// Charges time to the threads that are known to have spent it, each no more than is `missing` of it. Returns what is left.
    fn charge_threads(&mut self, ns: u64, missing: impl Fn(&ThreadTime) -> u64) -> u64 {
        let live = self.threads.values().map(|thread| missing(&thread.unsampled));
        let ended = self.unseen.ended.iter().map(|(_, missing)| *missing);
        let all = live.chain(ended).fold(0, u64::saturating_add);
        // What events count is not to the nanosecond what the kernel accounts to threads.
        let part = |missing: u64| match all > ns {
            true => u64::try_from(u128::from(missing) * u128::from(ns) / u128::from(all)).unwrap_or(0),
            false => missing,
        };
        let mut left = ns;
        let mut charges = Vec::new();
        let mut last = None;
        for thread in self.threads.values_mut() {
            let charge = part(missing(&thread.unsampled));
            thread.unsampled.charge(charge);
            charges.push((thread.id, charge));
        }
        for (thread, missing) in &mut self.unseen.ended {
            let charge = part(*missing);
            *missing -= charge;
            charges.push((*thread, charge));
        }
        self.unseen.ended.retain(|(_, missing)| *missing > 0);
        for (thread, charge) in charges {
            left = left.saturating_sub(charge);
            self.charge_unseen_time(thread, charge);
            last = Some(thread).filter(|_| charge > 0).or(last);
        }
        // The nanoseconds that the division leaves are of these threads too.
        if all > ns
            && let Some(thread) = last
        {
            self.charge_unseen_time(thread, left);
            return 0;
        }
        left
    }

    /// Charges time of which at most the process is known: to its only thread, else to a thread of its own.
    fn charge_anyone(&mut self, counts: &BatchCounts, ns: u64) {
        if ns == 0 {
            return;
        }
        let (threads, processes) = (self.profile.threads().len(), self.profile.processes().len());
        let only = self.profile.threads().first().map(|thread| thread.process);
        let thread = match only {
            Some(_) if threads == 1 && counts.tracker.threads == 1 => ThreadId::new(0),
            _ => {
                let process = only.filter(|_| processes == 1 && counts.tracker.processes == 1).unwrap_or_else(|| {
                    let (exec_generation, name) = (u32::MAX - 1, ANYONE.to_owned());
                    self.profile.add_process(Process { exec_generation, ..Process::new(0, 0, name) })
                });
                self.profile.add_thread(Thread { process, tid: 0, name: ANYONE.to_owned() })
            }
        };
        self.charge_unseen_time(thread, ns);
    }

    fn split_unseen(&self, counts: &BatchCounts, used: u64) -> NotSampled {
        let accounting = self.profile.accounting();
        let counted = counts.target.counted.unwrap_or_default();
        let period = match u128::from(counted.used).saturating_mul(1000).checked_div(counted.due_milli.into()) {
            Some(period) => u64::try_from(period).unwrap_or(u64::MAX),
            None => self.spec.period_ns(),
        };
        let of_samples = |samples: u64| samples.saturating_mul(period);
        let switching = counts.target.uncounted_ns;
        let in_kernel = counts.target.user_share.map_or(0, |(user, all)| {
            let system = part_of(used, all.saturating_sub(user).into(), all.into());
            system.saturating_sub(part_of(
                self.weighed,
                counts.samples.in_kernel.into(),
                counts.samples.received.into(),
            ))
        });
        NotSampled::split(
            self.unseen.charged,
            &[
                (Unseen::Lost, of_samples(accounting.lost.saturating_add(accounting.dropped_by_us))),
                (Unseen::Throttled, of_samples(accounting.throttled)),
                (Unseen::Ended, of_samples(counts.tracker.ended_unsampled)),
                (Unseen::Switching, switching),
                (Unseen::Kernel, in_kernel.saturating_sub(switching)),
            ],
        )
    }
}

/// Name of the thread, and of its process, for time that no known thread spent.
const ANYONE: &str = "[not sampled]";

/// How much of the CPU time is in no sample and why, if that is worth a word.
fn note(unseen: &NotSampled, used: u64, more_samples: &str) -> Option<String> {
    let percent = |ns: u64| u128::from(ns) * 100 / u128::from(used.max(1));
    let all = percent(unseen.total());
    if all < QUIET_PERCENT.into() {
        return None;
    }
    let why: Vec<String> = unseen
        .iter()
        .filter(|&(_, ns)| percent(ns) > 0)
        .map(|(cause, ns)| format!("{}% {}{}", percent(ns), cause.text(), hint(cause, more_samples)))
        .collect();
    Some(format!("{all}% of the CPU time is in no sample and counts as [not sampled]: {}", why.join(", ")))
}

fn hint(cause: Unseen, more_samples: &str) -> String {
    match cause {
        Unseen::Ended => format!(" ({more_samples} sees more)"),
        Unseen::Unknown => {
            " (timers that came late on a busy machine, or a virtual one whose host is busy; the kernel with interrupts off; \
             threads that ran for less than a period)"
                .to_owned()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use ccsd_profile::{Metric, Profile, ProfileLimits, SessionInfo, Unit};

    use super::*;
    use crate::batch::{Batch, BatchItem};
    use crate::budget::Budget;
    use crate::perf::attr::EventSpec;
    use crate::perf::counters::EventCounts;
    use crate::process::{ProcessKey, ThreadKey};
    use crate::stack_delta::Common;
    use crate::tracker::TrackerStats;
    use crate::unwind::StackRoot;

    const PERIOD: u64 = 4_000_000;

    fn sums(time: &mut TickTime, gained: impl Iterator<Item = u64>) -> (u64, u64) {
        let (mut weight, mut ran) = (0, 0);
        for gained in gained {
            ran += gained;
            weight += time.weigh(gained, PERIOD);
            assert_eq!(weight + time.held, ran);
        }
        (weight, ran)
    }

    /// A generator of numbers between 0 and 1, the same in each run.
    fn chances() -> impl Iterator<Item = f64> {
        let mut state = 7u64;
        std::iter::repeat_with(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64
        })
    }

    #[test]
    fn a_thread_that_every_tick_finds_is_sampled_whole() {
        let mut time = TickTime::default();
        assert_eq!(sums(&mut time, std::iter::repeat_n(PERIOD, 500)), (500 * PERIOD, 500 * PERIOD));
        assert_eq!((time.held, time.take_excess(PERIOD)), (0, 0));
    }

    #[test]
    fn chance_is_no_time_that_was_not_sampled() {
        // The thread shares its CPU with others: whether a tick finds it is chance.
        for samples in [20, 100, 1_000, 10_000] {
            let mut time = TickTime::default();
            let (weight, ran) = sums(&mut time, gaps_of(samples));
            assert!(weight <= ran && time.held <= ran / 20, "{} of {ran} after {samples}", time.held);
        }
    }

    fn gaps_of(samples: usize) -> impl Iterator<Item = u64> {
        chances().map(|chance| (-chance.ln() * PERIOD as f64) as u64).take(samples)
    }

    #[test]
    fn time_unseen_by_ticks_is_not_weighed_up_to_the_whole() {
        // Three tenths of its time are where ticks see it.
        let (mut time, samples) = (TickTime::default(), 300);
        let (weight, ran) = sums(&mut time, gaps_of(samples).map(|gap| gap * 10 / 3));
        let share = weight as f64 / ran as f64;
        assert!((0.25..0.38).contains(&share), "{share}");
        let held = time.held;
        let excess = time.take_excess(PERIOD);
        assert!(excess > ran / 2 && excess + time.held == held, "{excess} of {held}");
    }

    #[test]
    fn a_short_phase_has_no_credit_of_a_long_one() {
        let mut time = TickTime::default();
        let _ = sums(&mut time, std::iter::repeat_n(PERIOD / 10, 100_000));
        let (weight, ran) = sums(&mut time, std::iter::repeat_n(4 * PERIOD, 100));
        assert!(weight <= ran / 4 + 10 * PERIOD, "{weight} of {ran}");
    }

    /// A session of one process whose threads run for a period before each sample, and now and then without one.
    struct Simulated {
        aggregator: Aggregator,
        counts: BatchCounts,
        used: u64,
    }

    impl Simulated {
        fn new(threads: u32) -> Simulated {
            let spec = EventSpec { kernel: true, ..EventSpec::CLOCK };
            let metrics = vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }];
            let profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
            let aggregator = Aggregator::new(profile, spec, EventLayout::Threads, true, &Budget::default());
            let tracker = TrackerStats {
                threads: threads.into(),
                processes: 1,
                live_threads: threads.into(),
                ..TrackerStats::default()
            };
            let counts = BatchCounts { tracker, ..BatchCounts::default() };
            let mut simulated = Simulated { aggregator, counts, used: 0 };
            let key = ProcessKey(0);
            let process = BatchItem::Process {
                key,
                parent: None,
                pid: 7,
                start_time: 1,
                exec_generation: 0,
                name: "p".into(),
                membership: None,
            };
            let thread = |tid| BatchItem::Thread {
                key: ThreadKey(tid),
                process: key,
                tid: 7 + tid,
                name: format!("thread {tid}"),
            };
            simulated.absorb(std::iter::once(process).chain((0..threads).map(thread)).collect());
            simulated
        }

        fn absorb(&mut self, items: Vec<BatchItem>) {
            self.aggregator.absorb(&mut Batch { items, ..Batch::default() });
        }

        fn sample(&mut self, tid: u32) {
            let weights = [EventSpec::CLOCK.period_ns(), 0];
            self.used += weights[0];
            self.counts.samples.received += 1;
            let (thread, root, common) = (ThreadKey(tid), StackRoot::Complete, Common::default());
            self.absorb(vec![BatchItem::Sample {
                thread,
                time: self.used,
                frames: 0,
                common,
                gap: None,
                root,
                weights,
            }]);
        }

        /// All that is charged after an update, and what of that is not sampled.
        fn update(&mut self, last: bool) -> (u64, u64) {
            self.counts.target.counted = Some(EventCounts {
                used: self.used,
                ticks: 0,
                due_milli: self.used * 1000 / EventSpec::CLOCK.period_ns(),
            });
            self.aggregator.account(&self.counts, last);
            let mut sum = 0;
            self.aggregator.profile.for_each_charge(|charge| sum += charge.weights[0]);
            let accounting = self.aggregator.profile.accounting();
            assert_eq!(accounting.target_cpu_ns, Some(self.used));
            let unseen = accounting.not_sampled.unwrap().total();
            assert_eq!(sum, self.counts.samples.received * EventSpec::CLOCK.period_ns() + unseen);
            (sum, unseen)
        }
    }

    #[test]
    fn charges_are_the_cpu_time() {
        let mut chances = chances();
        for (threads, unseen_share) in [(1, 0.0), (1, 0.3), (5, 0.3), (40, 0.05)] {
            let mut session = Simulated::new(threads);
            let mut before = 0;
            for _ in 0..30 {
                for _ in 0..300 {
                    let tid = (chances.next().unwrap() * f64::from(threads)) as u32;
                    if chances.next().unwrap() < unseen_share {
                        session.used += EventSpec::CLOCK.period_ns();
                    } else {
                        session.sample(tid);
                    }
                }
                let (charged, unseen) = session.update(false);
                assert!(charged <= session.used && unseen >= before, "{charged} of {}, {unseen}", session.used);
                before = unseen;
            }
            let (charged, unseen) = session.update(true);
            let rests = u64::from(threads) * session.aggregator.cpus * EventSpec::CLOCK.period_ns();
            assert!(charged == session.used || session.used - charged <= rests && unseen_share < 0.1);
            assert_eq!(unseen > 0, session.used - charged == 0 && unseen_share > 0.0, "{threads} {unseen_share}");
            // Of one thread, all is its own.
            assert_eq!(
                session.aggregator.profile.threads().len() as u32,
                threads + u32::from(threads > 1 && unseen > 0)
            );
        }
    }

    #[test]
    fn each_thread_is_charged_what_it_has_spent() {
        const PERIOD: u64 = 1_000_000;
        for (is_whole, before) in [(true, 0), (false, 77 * PERIOD)] {
            let mut session = Simulated::new(4);
            let mut used = [0; 4];
            let read = |session: &mut Simulated, used: [u64; 4]| {
                let time =
                    |(tid, ns): (u32, u64)| BatchItem::ThreadTime { key: ThreadKey(tid), ns: before + ns, is_whole };
                session.absorb((0..).zip(used).map(time).collect());
            };
            read(&mut session, used);
            for round in 0..40 {
                for _ in 0..100 {
                    for tid in u32::from(round > 20)..3 {
                        session.sample(tid);
                        used[tid as usize] += PERIOD;
                    }
                    // No sample stands for half of what the second uses, and for nearly all of the last one's.
                    used[1] += PERIOD;
                    used[3] += PERIOD * 9 / 10;
                }
                session.sample(3);
                used[3] += PERIOD;
                session.used = used.iter().sum();
                // The first ends early; of the others it is known until a while before the end.
                match round {
                    20 => session.absorb(vec![BatchItem::ThreadEnd(ThreadKey(0))]),
                    39 => {}
                    _ => read(&mut session, used),
                }
                let _ = session.update(false);
            }
            let (charged, _) = session.update(true);
            assert_eq!(charged, session.used);
            let mut by_thread = [0; 5];
            session.aggregator.profile.for_each_charge(|charge| by_thread[charge.thread.index()] += charge.weights[0]);
            for tid in 0..4 {
                let (own, used) = (by_thread[tid], used[tid]);
                assert!(own <= used && used - own <= used / 20, "{tid}: {own} of {used}, {is_whole}");
            }
            assert!(by_thread[4] > 0 && by_thread[4] < session.used / 40, "{by_thread:?}");
        }
    }

    #[test]
    fn nothing_is_charged_where_the_cpu_time_is_not_known() {
        let mut session = Simulated::new(1);
        session.sample(0);
        session.used *= 1_000;
        session.counts.target.counted = Some(EventCounts { used: session.used, ticks: 0, due_milli: 1_000_000 });
        for (others, kernel, layout) in
            [(1, true, EventLayout::Threads), (0, false, EventLayout::Threads), (0, true, EventLayout::Cpus)]
        {
            session.counts.tracker.others = others;
            session.aggregator.spec.kernel = kernel;
            session.aggregator.layout = layout;
            session.aggregator.account(&session.counts, true);
            assert_eq!(session.aggregator.profile.accounting().not_sampled, None);
            assert_eq!(session.aggregator.profile.not_sampled_cost_centre(), None);
        }
        (session.aggregator.spec.kernel, session.aggregator.layout) = (true, EventLayout::Threads);
        assert_eq!(session.update(true), (session.used, session.used - EventSpec::CLOCK.period_ns()));
    }

    #[test]
    fn the_note_says_why() {
        assert_eq!(note(&NotSampled::split(29, &[]), 1_000, "-F"), None);
        let split = NotSampled::split(400, &[(Unseen::Lost, 5), (Unseen::Ended, 300)]);
        let said = note(&split, 1_000, "-F").unwrap();
        assert!(
            said.starts_with("40% of the CPU time is in no sample and counts as [not sampled]: 30% of threads"),
            "{said}"
        );
        assert!(said.contains(", 9% for no known cause (timers") && !said.contains("lost"), "{said}");
    }
}
