//! What events say when they are read: what they counted, and what was lost of their samples.

use std::os::fd::OwnedFd;

use super::attr::{Event, EventSpec};
use super::event;

/// What the events of a session say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What they counted. `None` if none of them can be read, or if there were too many threads to count them all.
    pub counted: Option<Counted>,
    /// Records of samples that the kernel lost, those included of which no record tells yet. Never more than there are, but
    /// less where the kernel does not say so: before Linux 6.0, and of groups that threads alive have inherited (see
    /// [`event::Reading`]).
    pub lost: u64,
}

/// What the events of a session counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Nanoseconds of CPU time, or cycles.
    pub used: u64,
    /// Ticks, where they sample.
    pub ticks: u64,
    /// Samples that a clock should have given in that time at the rates of its parts, in thousandths.
    pub due_milli: u64,
}

/// What events say together, all opened with the format of `spec`'s samples.
pub fn sum_of<'a>(events: impl Iterator<Item = &'a OwnedFd>, spec: &EventSpec) -> Told {
    let (format, by_tick) = (spec.read_format(), matches!(spec.event, Event::Tick { .. }));
    let mut told = Told::default();
    for event::Reading { count, member, lost } in events.filter_map(|fd| event::read(fd, format).ok()) {
        let sum: &mut Counted = told.counted.get_or_insert_default();
        let (more, tick) = if by_tick { (member, count) } else { (count, 0) };
        sum.used = sum.used.saturating_add(more);
        sum.ticks = sum.ticks.saturating_add(tick);
        told.lost = told.lost.saturating_add(lost);
    }
    told
}
