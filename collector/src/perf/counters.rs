//! Counters of events: what they counted, and what was lost of their samples.

use std::os::fd::OwnedFd;

use super::attr::{Event, EventSpec};
use super::event;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTotals {
    /// What they counted. `None` if none of them can be read, or if there were too many threads to count them all.
    pub counted: Option<EventCounts>,
    /// Samples that the kernel lost, reported by records or not yet. Too few before Linux 6.0, and for groups that live
    /// threads have inherited (see [`event::Reading`]).
    pub lost: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Nanoseconds of CPU time, or cycles.
    pub used: u64,
    pub ticks: u64,
    /// Samples that a clock should have given in that time at the rates of its parts, in thousandths.
    pub due_milli: u64,
}

impl EventCounts {
    /// With what events of a period of `period_ns` have counted.
    pub fn plus(self, counted: Option<EventCounts>, period_ns: u64) -> EventCounts {
        let counted = counted.unwrap_or_default();
        let due = u128::from(counted.used) * 1000 / u128::from(period_ns.max(1));
        EventCounts {
            used: self.used.saturating_add(counted.used),
            ticks: self.ticks.saturating_add(counted.ticks),
            due_milli: self.due_milli.saturating_add(u64::try_from(due).unwrap_or(u64::MAX)),
        }
    }
}

/// What events say together, all opened with the format of `spec`'s samples.
pub fn sum_of<'a>(events: impl Iterator<Item = &'a OwnedFd>, spec: &EventSpec) -> CounterTotals {
    let (format, by_tick) = (spec.read_format(), matches!(spec.event, Event::Tick { .. }));
    let mut totals = CounterTotals::default();
    for event::Reading { count, member, lost } in events.filter_map(|fd| event::read(fd, format).ok()) {
        let sum: &mut EventCounts = totals.counted.get_or_insert_default();
        let (more, tick) = if by_tick { (member, count) } else { (count, 0) };
        sum.used = sum.used.saturating_add(more);
        sum.ticks = sum.ticks.saturating_add(tick);
        totals.lost = totals.lost.saturating_add(lost);
    }
    totals
}

/// What was counted at earlier rates.
#[derive(Clone, Copy, Debug, Default)]
pub struct Past {
    pub closed: EventCounts,
    /// What had been counted in all when the present rate began, and what was due then.
    pub before: EventCounts,
    /// Records that events which are closed had lost.
    pub lost: u64,
}

impl Past {
    /// With what the present events have counted since at a period of `period_ns`.
    pub fn with(&self, present: Option<EventCounts>, period_ns: u64) -> Option<EventCounts> {
        if present.is_none() && [self.before, self.closed] == [EventCounts::default(); 2] {
            return None;
        }
        let EventCounts { used, ticks, .. } = present.unwrap_or_default();
        let used = self.closed.used.saturating_add(used);
        let since = used.saturating_sub(self.before.used);
        let due = u128::from(since) * 1000 / u128::from(period_ns.max(1));
        let due_milli = self.before.due_milli.saturating_add(u64::try_from(due).unwrap_or(u64::MAX));
        Some(EventCounts { used, ticks: self.closed.ticks.saturating_add(ticks), due_milli })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_due_at_the_rate_of_their_time() {
        let counted = |used| Some(EventCounts { used, ..EventCounts::default() });
        let mut past = Past::default();
        assert_eq!(past.with(None, 1_000), None);
        let twice = EventCounts::default().plus(counted(4_000), 2_000).plus(counted(500), 1_000).plus(None, 1);
        assert_eq!((twice.used, twice.due_milli), (4_500, 2_500));
        assert_eq!(past.with(counted(10_500), 1_000).unwrap().due_milli, 10_500);
        // Threads: the old events are closed, and the new ones begin at zero.
        past.before = past.with(counted(10_500), 1_000).unwrap();
        past.closed = past.before;
        let total = past.with(counted(4_000), 2_000).unwrap();
        assert_eq!((total.used, total.due_milli), (14_500, 12_500));
        assert_eq!(past.with(None, 2_000), Some(past.before));
        // CPUs: what counts goes on.
        past.closed = EventCounts::default();
        let total = past.with(counted(14_500), 2_000).unwrap();
        assert_eq!((total.used, total.due_milli), (14_500, 12_500));
    }
}
