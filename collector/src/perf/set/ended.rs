//! Events of threads that have ended, as has all that inherited them: nothing comes of them any more.

use std::os::fd::{AsFd, OwnedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::EventSet;
use crate::perf::attr::EventSpec;
use crate::perf::counters::{Counted, sum_of};
use crate::perf::layout::Layout;

impl EventSet {
    /// Takes the events of threads that have ended with all that inherited them, to be closed. What they have counted is kept.
    /// The kernel may then have told of records in the rings for the last time: they are to be read next.
    pub fn take_ended(&mut self) -> Vec<OwnedFd> {
        let by_cpu = self.layout == Layout::Cpus;
        // Members of groups before their leaders: where one has ended, the leader's last count has both.
        let mut ended = if by_cpu { Vec::new() } else { take_hung_up(&mut self.samplers) };
        if !by_cpu {
            ended.append(&mut take_hung_up(&mut self.others));
        }
        let mut counting = take_hung_up(&mut self.counting);
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
        let spec = EventSpec { tells_lost: self.spec.tells_lost && !by_cpu, ..self.spec };
        let last = sum_of(counting.iter(), &spec);
        let Counted { used, ticks, .. } = last.counted.unwrap_or_default();
        self.past.closed.used = self.past.closed.used.saturating_add(used);
        self.past.closed.ticks = self.past.closed.ticks.saturating_add(ticks);
        self.past.lost = self.past.lost.saturating_add(last.lost);
        ended.append(&mut counting);
        self.count_files();
        ended
    }
}

/// Takes the events that have hung up out of a list.
fn take_hung_up(events: &mut Vec<OwnedFd>) -> Vec<OwnedFd> {
    let mut is_ended = hung_up(events.iter()).into_iter();
    let (ended, left) = std::mem::take(events).into_iter().partition(|_| is_ended.next() == Some(true));
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
