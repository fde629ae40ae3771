//! What happened is handed on to the aggregator.

use crossbeam_channel::TrySendError;

use super::super::{BATCH_BYTES, Channels};
use super::State;
use crate::batch::Item;
use crate::process::images::{ImageIndex, Images};

impl State {
    /// Sends the batch, if there is room for it, or as soon as there is if `wait`.
    pub fn send(&mut self, channels: &Channels, wait: bool) {
        self.tell_ended();
        self.counts.throttled = self.throttled();
        self.batch.counts = self.counts;
        let mut next = channels.empty.try_recv().unwrap_or_default();
        next.clear();
        let full = std::mem::replace(&mut self.batch, next);
        if wait {
            // If the aggregator is gone there is no one to tell.
            let _ = channels.batches.send(full);
            return;
        }
        if let Err(TrySendError::Full(full) | TrySendError::Disconnected(full)) = channels.batches.try_send(full) {
            self.batch = full;
            self.queue_full = true;
        }
    }

    /// Tells of images that are new, and of what has happened to generated code.
    pub fn announce(&mut self) {
        announce(&mut self.images, &mut self.announced_images, &mut self.batch.items);
    }

    /// Whether what was read waits to be taken: a batch that finds room is sent long before it is so large.
    pub fn is_behind(&self) -> bool {
        self.batch.bytes() > (self.most_batch / 4).max(8 * BATCH_BYTES)
    }
}

/// Tells of images that are new, and of what has happened to generated code.
#[cold]
pub(super) fn announce(images: &mut Images, announced: &mut usize, items: &mut Vec<Item>) {
    for index in *announced..images.len() {
        if let Some(image) = images.get(ImageIndex(index as u32)) {
            items.push(Item::Image(image.clone()));
        }
    }
    *announced = images.len();
    items.extend(images.jit.take_events().into_iter().map(Item::Jit));
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::Arc;

    use ccsd_profile::view::{FlatView, Selection};
    use ccsd_profile::{Metric, Profile, Session, Shed, Unit};
    use crossbeam_channel::bounded;

    use super::*;
    use crate::aggregator::Aggregator;
    use crate::batch::Mark;
    use crate::budget::Budget;
    use crate::perf::attr::EventSpec;
    use crate::perf::layout::Layout;
    use crate::perf::record::{Record, Sample};
    use crate::perf::ring_buffer::Bytes;
    use crate::pulse::Pulse;
    use crate::session_event::{Held, SessionEvent};

    const SPEC: EventSpec = EventSpec::CLOCK;

    /// The aggregator does not come to take anything for 20,000 samples, where a few thousand have room.
    #[test]
    fn samples_that_the_queue_has_no_room_for_are_dropped_and_counted() {
        const SAMPLES: u64 = 20_000;
        let budget = Budget::of(Budget::MIN_MEMORY);
        let (batches, taken) = bounded(2);
        let (_returned, empty) = bounded(2);
        let (_told, commands) = bounded(1);
        let wake = File::open("/dev/null").unwrap().into();
        let pulse = Arc::new(Pulse::default());
        let channels = Channels { batches, empty, commands, wake, pulse: Arc::clone(&pulse) };
        let mut state = State::new(&SPEC, Layout::Threads, 2, None, &budget);
        let pid = std::process::id();
        let chain: Vec<u8> = (0..20u64).flat_map(|i| (0xffff_ffff_8100_0000 + i * 16).to_le_bytes()).collect();
        for time in 1..=SAMPLES {
            let sample = Sample {
                id: 1,
                pid,
                tid: pid,
                time,
                period: SPEC.period_ns(),
                group_value: None,
                kernel_chain: Bytes::new(&chain),
                user_chain: Bytes::new(&[]),
                regs: None,
                has_user_state: false,
                stack: Bytes::new(&[]),
                stack_full: false,
            };
            state.handle(0, Record::Sample(sample));
            if state.batch.bytes() >= BATCH_BYTES && !state.queue_full {
                state.send(&channels, false);
            }
            assert!(state.batch.bytes() <= budget.batch + (8 << 10), "{}", state.batch.bytes());
        }
        let counts = state.counts;
        assert!(counts.dropped_by_queue > SAMPLES / 4 && counts.received > 200, "{counts:?}");
        assert_eq!((counts.dropped, counts.received + counts.dropped), (counts.dropped_by_queue, SAMPLES));
        // Of those that had room none is lost, and the profile says how many are missing.
        let (forward, received) = bounded(8);
        taken.try_iter().for_each(|batch| forward.send(batch).unwrap());
        state.batch.mark = Mark::End;
        state.send(&channels, true);
        taken.try_iter().for_each(|batch| forward.send(batch).unwrap());
        let metrics = vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }];
        let profile = Profile::new(Session { metrics, ..Session::default() }, budget.profile.clone());
        let (events, told) = bounded(8);
        let aggregator = Aggregator::new(profile, SPEC, Layout::Threads, true, &budget);
        aggregator.run(&received, &bounded(8).0, &events, &pulse, &Held::new(0));
        let finished = told.try_iter().find_map(|event| match event {
            SessionEvent::Finished(profile) => Some(profile),
            _ => None,
        });
        let profile = finished.expect("the end was told");
        let accounting = profile.accounting();
        assert_eq!((accounting.received, accounting.dropped_by_us), (counts.received, counts.dropped));
        assert_eq!(accounting.shed.get(Shed::Queue), counts.dropped);
        let total = FlatView::new(&profile, &Selection::all()).total;
        assert_eq!((total.samples, total.weight), (counts.received, counts.received * SPEC.period_ns()));
    }
}
