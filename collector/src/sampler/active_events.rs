//! The events in use: their period, those that take their place at another rate, and those that sample a thread twice.

use super::duplicate_events::DuplicateEvents;
use super::throttling::Throttling;
use crate::perf::attr::{Event, EventSpec};
use crate::process::NEVER;

struct NextEvents {
    /// From when on; [`NEVER`] as long as they are being prepared.
    at: u64,
    period: u64,
    duplicates: DuplicateEvents,
}

/// The events in use and those that follow them.
pub struct ActiveEvents {
    period: u64,
    /// How often the events have been replaced by others of another rate.
    generation: u32,
    next: Option<NextEvents>,
    throttling: Throttling,
    duplicates: DuplicateEvents,
    /// Events found to sample what others sample, too. They are closed after the round.
    redundant: Vec<u64>,
}

impl ActiveEvents {
    pub fn new(spec: &EventSpec) -> ActiveEvents {
        ActiveEvents {
            period: period_of(spec),
            generation: 0,
            next: None,
            throttling: Throttling::default(),
            duplicates: DuplicateEvents::default(),
            redundant: Vec::new(),
        }
    }

    #[inline]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Other events are being prepared. Records of forks and ends now concern them, too.
    pub fn prepare(&mut self, spec: &EventSpec) {
        // There is none that waits: those rings have been read since.
        self.begin_next();
        self.next = Some(NextEvents { at: NEVER, period: period_of(spec), duplicates: DuplicateEvents::default() });
    }

    pub fn switch(&mut self, at: u64) {
        if let Some(next) = &mut self.next {
            next.at = at;
        }
    }

    pub fn give_up(&mut self) {
        self.next = None;
    }

    /// A sample of this time is the first of the next events, if there are such.
    #[inline]
    pub fn reach(&mut self, time: u64) {
        if self.next.as_ref().is_some_and(|next| time >= next.at) {
            self.begin_next();
        }
    }

    #[cold]
    fn begin_next(&mut self) {
        if let Some(NextEvents { at, period, duplicates }) = self.next.take() {
            // Those were throttled at their own rate.
            self.throttling.end_all(at, self.period);
            self.generation = self.generation.wrapping_add(1);
            (self.period, self.duplicates) = (period, duplicates);
        }
    }

    /// Events were opened on a thread that may have inherited them already.
    pub fn doubt(&mut self, tid: u32) {
        self.duplicates.add(tid);
    }

    /// The same of the events that are being prepared.
    pub fn doubt_next(&mut self, tid: u32) {
        if let Some(next) = &mut self.next {
            next.duplicates.add(tid);
        }
    }

    /// A thread was forked: it inherits all of its parent's events, even those that have yet to sample, and passes them
    /// on.
    pub fn fork(&mut self, tid: u32, parent_tid: u32) {
        self.duplicates.fork(tid, parent_tid);
        if let Some(next) = &mut self.next {
            next.duplicates.fork(tid, parent_tid);
        }
    }

    pub fn exit(&mut self, tid: u32) {
        self.duplicates.exit(tid);
        if let Some(next) = &mut self.next {
            next.duplicates.exit(tid);
        }
    }

    /// Notes an event to be closed if another in the ring samples the thread, too. Returns whether so: the sample does
    /// not count.
    #[inline]
    pub fn note_if_redundant(&mut self, tid: u32, ring: usize, event: u64) -> bool {
        let Some(redundant) = self.duplicates.redundant(tid, ring, event) else { return false };
        if self.redundant.last() != Some(&redundant) {
            self.redundant.push(redundant);
        }
        true
    }

    /// The events that were found to be redundant since the last call, to be closed.
    pub fn take_redundant(&mut self) -> impl Iterator<Item = u64> + '_ {
        self.redundant.drain(..)
    }

    /// The kernel has stopped an event that fires too often, or lets it go on.
    pub fn throttle(&mut self, stream: u64, time: u64, stopped: bool) {
        match stopped {
            true => self.throttling.stop(stream, time),
            false => self.throttling.go_on(stream, time, self.period),
        }
    }

    pub fn throttled(&self) -> u64 {
        self.throttling.samples()
    }
}

/// Nanoseconds between two samples; 0 where it is cycles that are counted.
fn period_of(spec: &EventSpec) -> u64 {
    if matches!(spec.event, Event::Cycles { .. }) { 0 } else { spec.period_ns() }
}
