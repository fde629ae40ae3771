//! Events of threads that have ended, as has all that inherited them: nothing comes of them any more.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::EventSet;
use crate::perf::counters::{EventCounts, sum_of};
use crate::perf::layout::EventLayout;

impl EventSet {
    /// Removes and returns the events of ended threads and their heirs, to be closed. Counts are kept. Read the rings
    /// next: the
    /// kernel wakes no reader for the last records of such events.
    ///
    /// poll(2) tells an event's end only if it writes to a ring (`perf_poll` in kernel/events/core.c). Counting events,
    /// as in
    /// [`EventLayout::Cpus`], therefore stay open until the session ends.
    pub fn take_ended(&mut self) -> Vec<OwnedFd> {
        if self.layout == EventLayout::Cpus {
            return Vec::new();
        }
        let has_ended = hung_up(self.counting.iter());
        // What rides in a group ends with the sampling event in the same place.
        let are_pairs = self.samplers.len() == self.counting.len();
        let mut ended = if are_pairs { take(&mut self.samplers, &has_ended) } else { Vec::new() };
        let mut counting = take(&mut self.counting, &has_ended);
        let has_ended = hung_up(self.others.iter());
        ended.append(&mut take(&mut self.others, &has_ended));
        let late: Vec<(u64, bool)> = {
            let (ids, events): (Vec<u64>, Vec<_>) = self.late.iter().map(|(id, late)| (*id, &late.sampling)).unzip();
            ids.into_iter().zip(hung_up(events.into_iter())).collect()
        };
        for (id, _) in late.into_iter().filter(|(_, has_ended)| *has_ended) {
            if let Some(late) = self.late.remove(&id) {
                counting.push(late.sampling);
                ended.extend(late.member.into_iter().chain(late.tracking));
            }
        }
        let last = sum_of(counting.iter(), &self.spec);
        let EventCounts { used, ticks, .. } = last.counted.unwrap_or_default();
        self.past.closed.used = self.past.closed.used.saturating_add(used);
        self.past.closed.ticks = self.past.closed.ticks.saturating_add(ticks);
        self.past.lost = self.past.lost.saturating_add(last.lost);
        ended.append(&mut counting);
        self.count_files();
        ended
    }
}

fn take(events: &mut Vec<OwnedFd>, has_ended: &[bool]) -> Vec<OwnedFd> {
    let mut has_ended = has_ended.iter();
    let (ended, left) = std::mem::take(events).into_iter().partition(|_| has_ended.next() == Some(&true));
    *events = left;
    ended
}

/// Which events have hung up: their thread has ended, and nothing is left that has inherited them.
fn hung_up<'a>(events: impl Iterator<Item = &'a OwnedFd>) -> Vec<bool> {
    let mut polled: Vec<PollFd<'_>> = events.map(|event| PollFd::new(event.as_fd(), PollFlags::empty())).collect();
    match poll(&mut polled, PollTimeout::ZERO) {
        Ok(_) => polled.iter().map(|it| it.revents().is_some_and(|it| it.contains(PollFlags::POLLHUP))).collect(),
        Err(_) => vec![false; polled.len()],
    }
}
