//! Replaces the sampling events: at another rate ([`RateController`]), or with the user's call chain once Go is seen.

use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashSet;

use super::source::{BETWEEN_READS, RecordSource, close_elsewhere};
use crate::batch::BatchCounts;
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::pace::{RateChange, RateController, RateWindow, SampleCost, WINDOW_NS};
use crate::perf::attr::EventSpec;
use crate::perf::cgroups::ControlGroup;
use crate::perf::layout::EventLayout;
use crate::perf::set::OpenOutcome;
use crate::perf::set::renew::Renewal;
use crate::perf::sorter::MARGIN_NS;
use crate::tracker::scan::{FORK_NS, SCAN_ROUNDS, ThreadScan};
use crate::usage::thread_cpu_ns;

/// Time between two attempts to have the call chain, nanoseconds.
const CHAIN_RETRY_NS: u64 = 10_000_000_000;

pub struct RateControl {
    pace: RateController,
    reviewed: u64,
    counts: BatchCounts,
    cpu_ns: (u64, u64),
    /// When the call chain is tried again, if it is wanted and could not be had.
    chain_at: u64,
}

impl RateControl {
    pub fn new(pace: RateController, now: u64) -> RateControl {
        RateControl { pace, reviewed: now, counts: BatchCounts::default(), cpu_ns: (0, 0), chain_at: 0 }
    }

    /// Has samples carry the user's call chain as soon as there is code of Go, whose stacks may need it.
    fn review_user_chain(&mut self, source: &mut RecordSource, now: u64) {
        let tracker = &source.pipeline.tracker;
        let wanted = tracker.images.has_go() && !source.events.spec().user_chain;
        if !wanted || now < self.chain_at || tracker.has_waiting_child() {
            return;
        }
        let spec = EventSpec { user_chain: true, ..*source.events.spec() };
        if let Err(error) = renew_events(source, spec) {
            if self.chain_at == 0 {
                source.pipeline.batch.note(format!("stacks of C called from Go may end early: {error}"));
            }
            self.chain_at = now.saturating_add(CHAIN_RETRY_NS);
        }
    }

    pub fn cost(&self) -> Option<SampleCost> {
        self.pace.overhead().map(|_| self.pace.measured_cost())
    }

    /// To be called at every turn: judges what became of the samples of the last window, and changes the rate.
    pub fn review(&mut self, source: &mut RecordSource, now: u64) {
        self.review_user_chain(source, now);
        let elapsed_ns = now.saturating_sub(self.reviewed);
        // A child that is still ccsd has no samples to judge by, and events that wait for its `execve`.
        let concerned = self.pace.is_variable() || self.pace.overhead().is_some();
        if elapsed_ns < WINDOW_NS || !concerned || source.pipeline.tracker.has_waiting_child() {
            return;
        }
        let counts = source.pipeline.counts();
        let cpu_ns = (thread_cpu_ns(), source.channels.watchdog.aggregator_cpu_ns());
        let reader_cpu_ns = cpu_ns.0.saturating_sub(self.cpu_ns.0);
        let before = &self.counts;
        // Of any process: missing samples are of any process, too.
        let received = |counts: &BatchCounts| counts.samples.received + counts.tracker.others;
        let window = RateWindow {
            elapsed_ns,
            received: received(&counts).saturating_sub(received(before)),
            lost: counts.samples_of(counts.rings.lost.saturating_sub(before.rings.lost)),
            throttled: counts.rings.throttled.saturating_sub(before.rings.throttled),
            dropped: counts.samples.dropped.saturating_sub(before.samples.dropped),
            backlog: source.pipeline.batch.is_behind(),
            own_cpu_ns: reader_cpu_ns.saturating_add(cpu_ns.1.saturating_sub(self.cpu_ns.1)),
            reader_cpu_ns,
        };
        (self.reviewed, self.cpu_ns, self.counts) = (now, cpu_ns, counts);
        let rate_hz = self.pace.rate_hz();
        let change = self.pace.review(&window);
        source.pipeline.sampler.cost = self.cost();
        let Some(change) = change else { return };
        let at = source.pipeline.sampler.duration_ns;
        match renew_events(source, EventSpec { rate_hz: change.rate_hz, ..*source.events.spec() }) {
            Ok(()) => {
                self.pace.accepted();
                source.pipeline.batch.announce_rate(at, change);
            }
            Err(error) => {
                let RateChange { rate_hz: wanted, why } = change;
                if self.pace.refused() {
                    let note = format!(
                        "the rate stays at {rate_hz} Hz instead of {wanted} Hz ({why}), until it is tried again: {error}"
                    );
                    source.pipeline.batch.note(note);
                }
            }
        }
    }
}

/// Replaces the events by those of another `spec`.
fn renew_events(source: &mut RecordSource, spec: EventSpec) -> Result<()> {
    let groups = Arc::clone(source.events.groups());
    renew_events_on(source, spec, groups)
}

/// The same on other control groups.
pub fn renew_events_on(source: &mut RecordSource, spec: EventSpec, groups: Arc<[ControlGroup]>) -> Result<()> {
    let mut renewal = source.events.prepare(spec, groups)?;
    let layout = source.events.layout();
    source.pipeline.events.prepare(&spec);
    if layout != EventLayout::Cpus {
        source.pipeline.tracker.begin_scan();
        let prepared = prepare_threads(source, &mut renewal);
        source.pipeline.tracker.end_scan();
        if let Err(error) = prepared {
            source.pipeline.events.give_up();
            close_elsewhere(renewal.into_files());
            return Err(error);
        }
    }
    let switched = source.events.switch(renewal);
    source.pipeline.events.switch(switched.at);
    if layout == EventLayout::Compact {
        // These gave records of mappings, too; in between, no event did.
        source.pipeline.tracker.records_were_lost();
    }
    close_elsewhere(switched.old);
    Ok(())
}

/// Every thread of the target, until a scan of /proc finds none that is neither opened nor inherited. Errors:
/// [`Error::RestlessThreads`] if it never does; those of [`EventSet::prepare_thread`](crate::perf::set::EventSet).
fn prepare_threads(source: &mut RecordSource, renewal: &mut Renewal) -> Result<()> {
    let mut scan = ThreadScan::default();
    let mut gone = HashSet::new();
    source.read_recent();
    for round in 0..SCAN_ROUNDS {
        let late = round > 0;
        source.pipeline.tracker.forget_the_replaced();
        let mut unsettled = Vec::new();
        for (count, tid) in unopened(source, &scan).into_iter().enumerate() {
            source.channels.watchdog.beat();
            if count % BETWEEN_READS == BETWEEN_READS - 1 {
                source.read_recent();
            }
            if source.events.prepare_thread(renewal, tid, late)? == OpenOutcome::Yes {
                scan.open(tid, now_ns());
                if late {
                    source.pipeline.events.doubt_next(tid);
                }
                unsettled.push(tid);
            } else if gone.insert(tid) {
                // It may have forked another before. (A zombie is found again and again.)
                unsettled.push(tid);
            }
        }
        // After this time, the records of all forks that had begun are here.
        std::thread::sleep(Duration::from_nanos(FORK_NS + MARGIN_NS));
        source.read_recent();
        // Of those that had been forked just before it was not known that they had inherited.
        let forks = source.pipeline.tracker.forks();
        if late && unsettled.iter().all(|&tid| scan.has_inherited_next(tid, forks)) {
            return Ok(());
        }
    }
    Err(Error::RestlessThreads)
}

/// Threads that are to be opened, as /proc and the records tell.
fn unopened(source: &RecordSource, scan: &ThreadScan) -> Vec<u32> {
    let tracker = &source.pipeline.tracker;
    let mut found = Vec::new();
    for pid in tracker.family() {
        source.channels.watchdog.beat();
        let mut threads = scan.new_threads(pid).unwrap_or_default();
        threads.retain(|&tid| tracker.follows(tid) && !scan.has_inherited_next(tid, tracker.forks()));
        found.append(&mut threads);
    }
    found
}
