//! The way of a record: through the tracker and, with a sample, through the unwinder into the batch, in order of time.

use ccsd_profile::own_names::of_program;
use crossbeam_channel::TrySendError;

use super::active_events::ActiveEvents;
use super::channels::Channels;
use super::kept_deaths::{Kept, KeptDeaths};
use crate::batch::{BatchCounts, Death, MAX_METRICS, RingStats, SampleStats, SamplerStats, TargetStats};
use crate::batch_builder::BatchBuilder;
use crate::budget::Budget;
use crate::clock::now_ns;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::EventLayout;
use crate::perf::record::{Record, Sample, TargetChange};
use crate::process::owner::Owner;
use crate::tracker::Tracker;
use crate::unwind::StackRoot;
use crate::unwinding::Unwinding;

#[derive(Clone, Copy, Debug)]
enum WeightSource {
    Tick,
    Period,
    /// By their period and what a second counter, which is read with them, has gained.
    PeriodAndCounter,
}

/// What handling a record touches: apart from the rings, so that both can be borrowed.
pub struct Pipeline {
    pub tracker: Tracker,
    pub unwinding: Unwinding,
    pub batch: BatchBuilder,
    pub events: ActiveEvents,
    weighing: WeightSource,
    layout: EventLayout,
    samples: SampleStats,
    rings: RingStats,
    /// Samples that records of the rings say were lost. (What the events say of the same, and of more, is in the counts.)
    lost_by_records: u64,
    deaths: KeptDeaths,
    /// One has just died: its update is due at once.
    died: bool,
    pub sampler: SamplerStats,
    pub target: TargetStats,
}

impl Pipeline {
    pub fn new(spec: &EventSpec, layout: EventLayout, rings: usize, owner: Option<Owner>, budget: &Budget) -> Pipeline {
        let weighing = match spec.event {
            _ if spec.metrics() > 1 => WeightSource::PeriodAndCounter,
            Event::Tick { .. } => WeightSource::Tick,
            _ => WeightSource::Period,
        };
        // Where samples have one weight, no values of counters are kept.
        let rings = if matches!(weighing, WeightSource::Period) { 0 } else { rings };
        let (mut unwinding, mut batch) = (Unwinding::within(budget), BatchBuilder::within(budget.batch));
        if let Some(owner) = owner {
            unwinding.set_user(owner.uid);
            batch.set_user(owner.uid);
        }
        Pipeline {
            tracker: Tracker::new(spec, layout, rings, owner, budget),
            unwinding,
            batch,
            events: ActiveEvents::new(spec),
            weighing,
            layout,
            samples: SampleStats::default(),
            rings: RingStats::default(),
            lost_by_records: 0,
            deaths: KeptDeaths::new(owner.map(|owner| owner.uid)),
            died: false,
            sampler: SamplerStats::default(),
            target: TargetStats::default(),
        }
    }

    pub fn counts(&self) -> BatchCounts {
        BatchCounts {
            samples: SampleStats { cut_memories: self.unwinding.cut_memories(), ..self.samples },
            rings: RingStats { throttled: self.events.throttled(), ..self.rings },
            tracker: self.tracker.stats(),
            images: self.tracker.images.stats(),
            unwind: self.unwinding.stats(),
            sampler: self.sampler,
            target: self.target,
        }
    }

    #[cfg(test)]
    pub fn samples_came(&mut self, count: u64) {
        self.samples.received += count;
    }

    /// Sends the batch if it fits the queue, or with `wait` as soon as it does.
    pub fn send(&mut self, channels: &Channels, wait: bool) {
        if channels.watchdog.has_generations() {
            self.deaths.renew(now_ns());
        }
        self.batch.end_threads(&mut self.tracker, &mut self.unwinding);
        let full = self.batch.take(self.counts(), channels.empty.try_recv().unwrap_or_default());
        if wait {
            // The aggregator may be gone.
            let _ = channels.batches.send(full);
            return;
        }
        match channels.batches.try_send(full) {
            Ok(()) => self.batch.was_taken(),
            Err(TrySendError::Full(full) | TrySendError::Disconnected(full)) => self.batch.put_back(full),
        }
    }

    /// Raises lost samples to what the events say. A record also tells, but only with the ring's next record: never of
    /// the last losses.
    pub fn raise_lost(&mut self, lost: u64) {
        if lost > self.rings.lost {
            self.rings.lost = lost;
            self.samples_were_lost();
        }
    }

    fn samples_were_lost(&mut self) {
        if self.layout == EventLayout::Compact {
            self.tracker.records_were_lost();
        }
    }

    /// Whether a process has been killed by a signal since the last call.
    pub fn take_died(&mut self) -> bool {
        std::mem::take(&mut self.died)
    }

    /// Ends a round of reading records, of which `late` came out of order since the beginning. `at_end` it is the last.
    pub fn end_round(&mut self, late: u64, at_end: bool) {
        self.rings.late = late;
        self.batch.retry_queue();
        self.tracker.read_missed(at_end);
        if self.tracker.images.jit.sweep() {
            self.batch.announce_images(&mut self.tracker.images);
            self.batch.take_ended_code().into_iter().for_each(|index| self.unwinding.drop_image(index));
        }
        let known = self.tracker.retry_images();
        for index in known.into_iter().chain(self.tracker.take_paid()) {
            self.unwinding.drop_image(index);
        }
        for index in self.tracker.close_images() {
            self.unwinding.drop_image(index);
            self.batch.close_image(index);
        }
    }

    pub fn handle(&mut self, ring: usize, record: Record<'_>) {
        match record {
            Record::Sample(sample) => {
                self.events.reach(sample.time);
                if !self.tracker.count_if_foreign(sample.pid, sample.tid) {
                    self.sample(ring, &sample, None);
                }
            }
            Record::Fatal { sample, signal, code } => self.fatal(ring, &sample, (signal, code)),
            Record::Change { change, .. } if self.tracker.is_about_others(&change) => {}
            Record::Change { time, change, .. } => {
                let is_beside = self.layout == EventLayout::Compact && !matches!(change, TargetChange::Lost { .. });
                self.rings.beside_samples += u64::from(is_beside);
                self.change(ring, time, change);
            }
            Record::Other => {}
            Record::Malformed => self.rings.malformed += 1,
        }
    }

    /// A signal has killed a process, of the target or any other.
    #[cold]
    fn fatal(&mut self, ring: usize, sample: &Sample<'_>, signal: (u32, i32)) {
        if self.tracker.is_known(sample.pid, sample.tid) && !self.tracker.is_waiting_child(sample.pid) {
            self.sample(ring, sample, Some(signal));
        }
    }

    #[inline]
    fn sample(&mut self, ring: usize, sample: &Sample<'_>, fatal: Option<(u32, i32)>) {
        if fatal.is_none() && self.events.note_if_redundant(sample.tid, ring, sample.id) {
            return;
        }
        if self.batch.is_full() {
            self.samples.dropped += 1;
            self.samples.dropped_by_queue += 1;
            return;
        }
        if self.tracker.withhold_unknown(sample.pid) {
            return;
        }
        self.tracker.look_at_membership(sample.pid);
        let Some((thread, process, images)) = self.tracker.thread(sample.pid, sample.tid) else {
            // A thread that is in no process: nothing to charge it to.
            self.samples.dropped += 1;
            return;
        };
        thread.group_values.begin(self.events.generation());
        // Each thread has a counter of its own: what one of many has gained is not known. Of a sample that is dropped, the next one
        // must not have the gain.
        let value = sample.group_value.filter(|_| !thread.is_others);
        let gained = value.map_or(0, |value| thread.group_values.advance(ring, value));
        if fatal.is_none() {
            process.sampled_time.add(sample.period);
        }
        if sample.time < process.permitted_from {
            self.tracker.count_withheld(sample.pid);
            return;
        }
        let payer = process.payer();
        if fatal.is_none() && !self.batch.has_room(payer) {
            self.batch.note_dropped(payer);
            self.samples.dropped += 1;
            self.samples.dropped_by_queue += 1;
            self.samples.dropped_own += 1;
            return;
        }
        if let Some(Kept::No { note }) = fatal.map(|_| self.deaths.take(process.answers_at_death(sample.pid))) {
            self.samples.deaths_left_out += 1;
            note.into_iter().for_each(|note| self.batch.note(note));
            return;
        }
        self.samples.received += u64::from(fatal.is_none());
        self.samples.in_kernel += u64::from(fatal.is_none() && !sample.kernel_chain.is_empty());
        let weights: [u64; MAX_METRICS] = match self.weighing {
            WeightSource::Tick => [gained, 0],
            WeightSource::Period => [sample.period, 0],
            WeightSource::PeriodAndCounter => [sample.period, gained],
        };
        let is_dying = fatal.is_some();
        self.died |= is_dying;
        let unwound = self.unwinding.unwind(sample, thread, process, images, is_dying);
        self.batch.announce_images(images);
        self.batch.announce(process, thread, sample.tid);
        let frames = self.unwinding.frames();
        match fatal {
            None => self.batch.stack((thread.key, payer), sample.time, unwound, frames, weights),
            Some((signal, code)) => {
                let of = |name: &str| of_program(name).into_owned();
                let (process, name) = (of(&process.name), of(&thread.name));
                let death = Death { pid: sample.pid, tid: sample.tid, process, thread: name, signal, code };
                self.batch.crash((thread.key, payer), sample.time, unwound, frames, death);
            }
        }
    }

    fn change(&mut self, ring: usize, time: u64, change: TargetChange) {
        match &change {
            // Without inheritance there is no event on the new thread, so its end gives no record.
            TargetChange::Fork(_) if !self.tracker.inherits() => return,
            TargetChange::Fork(fork) => self.events.fork(fork.tid, fork.parent_tid),
            TargetChange::Exit { tid, .. } => self.events.exit(*tid),
            TargetChange::Mmap(_) | TargetChange::Comm { .. } => {}
            // Even rings carry samples, odd ones everything else; see `EventSet`.
            TargetChange::Lost { count } if ring.is_multiple_of(2) => {
                self.lost_by_records = self.lost_by_records.saturating_add(*count);
                self.rings.lost = self.rings.lost.max(self.lost_by_records);
                self.samples_were_lost();
            }
            TargetChange::Lost { count } => {
                self.rings.lost_tracking += *count;
                self.tracker.records_were_lost();
            }
            TargetChange::Throttle { stopped, stream } => {
                self.rings.throttle_events += u64::from(*stopped);
                self.events.throttle(*stream, time, *stopped);
            }
        }
        if let Some(renamed) = self.tracker.apply(change, time) {
            self.batch.rename(renamed);
        }
    }
}

// A root is part of every sample item; if it grew, batches would.
const _: () = assert!(size_of::<StackRoot>() <= 2);

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
