//! Merges the rings into one stream in order of time.
//!
//! Each ring is nearly in order. The sorter takes the ring with the oldest next record and stops at a *horizon* a
//! little
//! before now, because an older record may be in the making on another CPU. Records are handled where they lie.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::record::{Record, SampleLayout, parse, time_of};
use super::ring_buffer::{Bytes, RingBuffer};
use super::signals::FatalSignals;

/// Maximum time from a record's time stamp to its publication, nanoseconds. Copying 64 KiB of stack takes 10 to 30 us;
/// the rest is for an interrupt. Later records are handled and counted as late.
pub const MARGIN_NS: u64 = 1_000_000;

pub struct EventSorter {
    rings: Vec<RingBuffer>,
    layout: SampleLayout,
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    last_time: u64,
    late: u64,
}

impl EventSorter {
    /// Merges `rings`, whose samples all have the same layout.
    pub fn new(rings: Vec<RingBuffer>, layout: SampleLayout) -> EventSorter {
        EventSorter { heap: BinaryHeap::with_capacity(rings.len()), rings, layout, last_time: 0, late: 0 }
    }

    /// Says which samples tell of fatal signals.
    pub fn expect_fatal(&mut self, fatal: FatalSignals) {
        self.layout.fatal = Some(fatal);
    }

    pub fn rings(&self) -> &[RingBuffer] {
        &self.rings
    }

    /// Records that came out after a younger one.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Hands every record before `horizon` (`CLOCK_MONOTONIC`, nanoseconds) to `handle`, oldest first, with its ring's
    /// index, and frees its room. Returns their number.
    #[inline]
    pub fn drain(&mut self, horizon: u64, mut handle: impl FnMut(usize, Record<'_>)) -> u64 {
        let layout = self.layout;
        self.drain_raw(horizon, |ring, bytes| handle(ring, parse(bytes, layout)))
    }

    /// [`EventSorter::drain`] with unparsed records; one whose length makes no sense is empty.
    pub fn drain_raw(&mut self, horizon: u64, mut handle: impl FnMut(usize, Bytes<'_>)) -> u64 {
        self.heap.clear();
        for (index, ring) in self.rings.iter_mut().enumerate() {
            if ring.refresh() {
                // A record without a time is handled at once.
                let time = ring.peek().and_then(time_of).unwrap_or(0);
                self.heap.push(Reverse((time, index)));
            }
        }
        let mut count = 0;
        while let Some(Reverse((time, index))) = self.heap.pop() {
            if time >= horizon {
                // This is the oldest of all: so is everything else.
                break;
            }
            if time < self.last_time {
                self.late += 1;
            } else {
                self.last_time = time;
            }
            let ring = &mut self.rings[index];
            handle(index, ring.peek().unwrap_or(Bytes::new(&[])));
            ring.advance();
            count += 1;
            // A half-full ring gets its room back at once, so that a long round loses nothing.
            if count % 16 == 0 {
                ring.release();
            }
            if let Some(record) = ring.peek() {
                self.heap.push(Reverse((time_of(record).unwrap_or(0), index)));
            }
        }
        self.rings.iter_mut().for_each(RingBuffer::release);
        count
    }
}
