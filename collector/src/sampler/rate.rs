//! Sampling at another rate, when [`Pace`] says so.

use std::time::Duration;

use hashbrown::{HashMap, HashSet};

use super::doubts::Doubts;
use super::records::{FORK_NS, Next};
use super::{BETWEEN_READS, Sampler, close_elsewhere};
use crate::batch::{Counts, Item};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::pace::{Change, Cost, Pace, WINDOW_NS, Window};
use crate::perf::attr::EventSpec;
use crate::perf::layout::Layout;
use crate::perf::set::Opened;
use crate::perf::set::renew::Renewal;
use crate::perf::sorter::MARGIN_NS;
use crate::process::NEVER;
use crate::procfs;
use crate::usage::thread_cpu_ns;

/// Rounds of looking for threads that came meanwhile; see [`super::attach`].
const SCAN_ROUNDS: u32 = 20;

/// The pace, and what had been counted at the last review.
pub struct RateControl {
    pace: Pace,
    reviewed: u64,
    counts: Counts,
    cpu_ns: (u64, u64),
}

impl RateControl {
    /// From `now` on.
    pub fn new(pace: Pace, now: u64) -> RateControl {
        RateControl { pace, reviewed: now, counts: Counts::default(), cpu_ns: (0, 0) }
    }
}

impl RateControl {
    /// What a sample costs, where there is a budget.
    pub fn cost(&self) -> Option<Cost> {
        self.pace.overhead().map(|_| self.pace.measured_cost())
    }
}

impl Sampler {
    /// To be called at every turn: judges what became of the samples of the last window, and changes the rate.
    pub(super) fn review_rate(&mut self, now: u64) {
        let elapsed_ns = now.saturating_sub(self.rate.reviewed);
        // A child that is still ccsd has no samples to judge by, and events that wait for its `execve`.
        let concerned = self.rate.pace.is_variable() || self.rate.pace.overhead().is_some();
        if elapsed_ns < WINDOW_NS || !concerned || self.state.waiting_child.is_some() {
            return;
        }
        let (counts, before) = (self.state.counts, self.rate.counts);
        let cpu_ns = (thread_cpu_ns(), self.channels.pulse.aggregator_cpu_ns());
        let reader_cpu_ns = cpu_ns.0.saturating_sub(self.rate.cpu_ns.0);
        let throttled = self.state.throttled();
        let window = Window {
            elapsed_ns,
            // Whoever they are of: so are those that are missing.
            received: (counts.received + counts.others).saturating_sub(before.received + before.others),
            lost: counts.samples_of(counts.lost.saturating_sub(before.lost)),
            throttled: throttled.saturating_sub(before.throttled),
            dropped: counts.dropped.saturating_sub(before.dropped),
            backlog: self.state.is_behind(),
            own_cpu_ns: reader_cpu_ns.saturating_add(cpu_ns.1.saturating_sub(self.rate.cpu_ns.1)),
            reader_cpu_ns,
        };
        (self.rate.reviewed, self.rate.cpu_ns) = (now, cpu_ns);
        self.rate.counts = Counts { throttled, ..counts };
        let rate_hz = self.rate.pace.rate_hz();
        let change = self.rate.pace.review(&window);
        self.state.counts.cost = self.rate.cost();
        let Some(change) = change else { return };
        let at = self.state.counts.duration_ns;
        match self.change_rate(change.rate_hz) {
            Ok(()) => {
                self.rate.pace.accepted();
                self.state.batch.items.push(Item::Rate { at, change });
            }
            Err(error) => {
                let Change { rate_hz: wanted, why } = change;
                if self.rate.pace.refused() {
                    let note = format!(
                        "the rate stays at {rate_hz} Hz instead of {wanted} Hz ({why}), until it is tried again: {error}"
                    );
                    self.state.batch.items.push(Item::Note(note));
                }
            }
        }
    }

    /// Replaces the events of all threads.
    fn change_rate(&mut self, rate_hz: u32) -> Result<()> {
        let mut renewal = self.events.prepare(rate_hz)?;
        let spec = EventSpec { rate_hz, ..*self.events.spec() };
        self.state.expect(Next { at: NEVER, spec, doubts: Doubts::default() });
        if self.events.layout() != Layout::Cpus {
            self.state.scanning = true;
            let prepared = self.prepare_threads(&mut renewal);
            self.state.scanning = false;
            self.state.forked = HashMap::new();
            if let Err(error) = prepared {
                self.state.next = None;
                close_elsewhere(renewal.into_files());
                return Err(error);
            }
        }
        let switched = self.events.switch(renewal);
        if let Some(next) = &mut self.state.next {
            next.at = switched.at;
        }
        // These told of mappings, too: between the two none did.
        self.state.tracking_lost |= self.events.layout() == Layout::Compact;
        close_elsewhere(switched.old);
        Ok(())
    }

    /// Every thread of the target, until a look at /proc finds none that has neither been opened nor inherited.
    ///
    /// # Errors
    /// [`Error::RestlessThreads`] if there is none such; those of [`EventSet::prepare_thread`](crate::perf::set::EventSet).
    fn prepare_threads(&mut self, renewal: &mut Renewal) -> Result<()> {
        let mut opened: HashMap<u32, u64> = HashMap::new();
        let mut gone = HashSet::new();
        self.read_rings(now_ns().saturating_sub(MARGIN_NS));
        for round in 0..SCAN_ROUNDS {
            let late = round > 0;
            self.state.forget_the_replaced();
            let mut unsettled = Vec::new();
            for (count, tid) in self.unopened(&opened).into_iter().enumerate() {
                self.channels.pulse.beat();
                if count % BETWEEN_READS == BETWEEN_READS - 1 {
                    self.read_rings(now_ns().saturating_sub(MARGIN_NS));
                }
                if self.events.prepare_thread(renewal, tid, late)? == Opened::Yes {
                    opened.insert(tid, now_ns());
                    if let Some(next) = self.state.next.as_mut().filter(|_| late) {
                        next.doubts.add(tid);
                    }
                    unsettled.push(tid);
                } else if gone.insert(tid) {
                    // It may have forked another before. (One that nobody waits for is found again and again.)
                    unsettled.push(tid);
                }
            }
            self.let_forks_be_told();
            // Of those that had been forked just before it was not known that they had inherited.
            if late && unsettled.iter().all(|&tid| has_inherited(tid, &opened, &self.state.forked)) {
                return Ok(());
            }
        }
        Err(Error::RestlessThreads)
    }

    /// Waits until every fork that had begun has been told of, and reads that.
    fn let_forks_be_told(&mut self) {
        std::thread::sleep(Duration::from_nanos(FORK_NS + MARGIN_NS));
        self.read_rings(now_ns().saturating_sub(MARGIN_NS));
    }

    /// Threads that are to be opened, as /proc and the records tell.
    fn unopened(&self, opened: &HashMap<u32, u64>) -> Vec<u32> {
        let mut found = Vec::new();
        let mut pids = self.state.table.pids();
        if self.state.inherits() {
            // Of some of them it may never have been told: the record was lost. Those that wait make no sample, either.
            let unknown = procfs::descendants(&pids).into_iter();
            let own = std::process::id();
            pids.extend(unknown.filter(|&pid| pid != own && self.state.may_follow(pid).is_ok()));
        }
        for pid in pids {
            self.channels.pulse.beat();
            found.extend(procfs::threads(pid).unwrap_or_default().into_iter().filter(|&tid| {
                // Without inheritance only those that are followed already are.
                let followed = self.state.inherits() || self.is_known(tid);
                followed && !opened.contains_key(&tid) && !has_inherited(tid, opened, &self.state.forked)
            }));
        }
        found
    }

    /// Whether a thread is one that is followed, and not another one that has its number.
    fn is_known(&self, tid: u32) -> bool {
        let table = &self.state.table;
        table.knows_thread(tid) && procfs::stat(tid).is_ok_and(|stat| !table.is_replaced_thread(tid, stat.start_time))
    }
}

/// Whether a thread has certainly inherited events: one of those that it descends from was open when it forked the next.
/// `opened` says since when threads are, `forked` by whom threads were forked, and when. Where it is not certain a thread is
/// opened, and if it has both, one is closed again.
fn has_inherited(tid: u32, opened: &HashMap<u32, u64>, forked: &HashMap<u32, (u32, u64)>) -> bool {
    let mut before = u64::MAX;
    let mut child = tid;
    while let Some(&(parent, time)) = forked.get(&child) {
        // Nobody is forked after his own child: that was another thread with this number. (So this comes to an end.)
        if time >= before {
            return false;
        }
        if opened.get(&parent).is_some_and(|&since| time.saturating_sub(since) > FORK_NS) {
            return true;
        }
        (child, before) = (parent, time);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_inherited_from_any_ancestor() {
        const T: u64 = 1_000_000_000;
        let opened = HashMap::from([(1, T), (20, T + 3 * FORK_NS)]);
        let forked = HashMap::from([
            (2, (1, T + FORK_NS + 1)),
            (3, (2, T + FORK_NS + 2)),
            (4, (3, T + FORK_NS + 3)),
            // While their parent was being opened, or before.
            (10, (1, T + FORK_NS)),
            (11, (10, T + FORK_NS + 1)),
            (12, (1, T - 1)),
            // Opened itself, though it had inherited.
            (20, (1, T + 2 * FORK_NS)),
            (21, (20, T + 3 * FORK_NS)),
            // Numbers that were given anew.
            (30, (31, T + 5)),
            (31, (30, T + 4)),
            (41, (40, T + 2 * FORK_NS)),
            (40, (1, T + 3 * FORK_NS)),
        ]);
        let inherited: Vec<u32> = (0..50).filter(|&tid| has_inherited(tid, &opened, &forked)).collect();
        assert_eq!(inherited, [2, 3, 4, 20, 21, 40]);
    }
}
