//! Sampling at another rate, when [`Pace`] says so.

use hashbrown::HashMap;

use super::records::{FORK_NS, Next};
use super::{Sampler, close_elsewhere};
use crate::batch::{Counts, Item};
use crate::error::Result;
use crate::pace::{Change, Cost, Pace, WINDOW_NS, Window};
use crate::perf::layout::Layout;
use crate::perf::now_ns;
use crate::perf::set::{Opened, Renewal};
use crate::process::procfs;
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
            lost: counts.lost.saturating_sub(before.lost),
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
            Ok(()) => self.state.batch.items.push(Item::Rate { at, change }),
            Err(error) => {
                let Change { rate_hz: wanted, why } = change;
                self.rate.pace.refused(rate_hz);
                let note = format!("the rate stays at {rate_hz} Hz instead of {wanted} Hz ({why}): {error}");
                self.state.batch.items.push(Item::Note(note));
            }
        }
    }

    /// Replaces the events of all threads.
    fn change_rate(&mut self, rate_hz: u32) -> Result<()> {
        let mut renewal = self.events.prepare(rate_hz)?;
        let mut next = Next { at: 0, spec: *self.events.spec(), doubtful_threads: Default::default() };
        next.spec.rate_hz = rate_hz;
        if self.events.layout() != Layout::Cpus {
            self.state.scanning = true;
            let opened = self.prepare_threads(&mut renewal, &mut next);
            self.state.scanning = false;
            self.state.forked = HashMap::new();
            opened?;
        }
        let switched = self.events.switch(renewal);
        next.at = switched.at;
        self.state.expect(next);
        // These told of mappings, too: between the two none did.
        self.state.tracking_lost |= self.events.layout() == Layout::Compact;
        close_elsewhere(switched.old);
        Ok(())
    }

    /// Every thread of the target, until a look at /proc finds none that has neither been opened nor inherited; as when
    /// attaching.
    fn prepare_threads(&mut self, renewal: &mut Renewal, next: &mut Next) -> Result<()> {
        let mut opened: HashMap<u32, u64> = HashMap::new();
        for round in 0..SCAN_ROUNDS {
            self.sorter.drain(u64::MAX, |ring, record| self.state.handle(ring, record));
            let mut found = false;
            for pid in self.state.table.pids() {
                for tid in procfs::threads(pid).unwrap_or_default() {
                    self.channels.pulse.beat();
                    // One forked by a thread that was open has inherited. One of which that is uncertain is opened, and where
                    // it has both, one is closed again.
                    let inherited = self.state.forked.get(&tid).is_some_and(|&(parent, time)| {
                        opened.get(&parent).is_some_and(|&since| time.saturating_sub(since) > FORK_NS)
                    });
                    if opened.contains_key(&tid) || inherited {
                        continue;
                    }
                    // Without inheritance only those that are followed already are.
                    if !self.state.inherits() && !self.state.table.knows_thread(tid) {
                        continue;
                    }
                    let late = round > 0;
                    if self.events.prepare_thread(renewal, tid, late)? == Opened::Gone {
                        continue;
                    }
                    found = true;
                    opened.insert(tid, now_ns());
                    if late {
                        next.doubtful_threads.insert(tid);
                    }
                }
            }
            if !found {
                break;
            }
        }
        Ok(())
    }
}
