//! Replaces running events, for another rate or with the user's call chain.
//!
//! The kernel changes neither the period of inherited events nor the period in a changed event's samples. So new events
//! are
//! opened beside the old ones, switched off, on every thread; threads started meanwhile inherit both. Then the old ones
//! are
//! switched off and the new ones on, by one call each. Samples carry their period, and earlier counts are kept. In
//! between,
//! some microseconds for each thread, nothing counts, and the elapsed part of each period is lost: half a sample for
//! each
//! thread and CPU, counted as undelivered.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use hashbrown::HashMap;

use super::{EventSet, LateEvents, OpenOutcome, open_sampler, revoked};
use crate::clock::now_ns;
use crate::error::{Result, doing};
use crate::perf::attr::EventSpec;
use crate::perf::cgroups::ControlGroup;
use crate::perf::counters::{EventCounts, sum_of};
use crate::perf::event;
use crate::perf::layout::EventLayout;

/// Other events, on their way.
pub struct Renewal {
    spec: EventSpec,
    leaders: Vec<OwnedFd>,
    members: Vec<OwnedFd>,
    late: HashMap<u64, LateEvents>,
    groups: Arc<[ControlGroup]>,
}

impl Renewal {
    /// All that is open, where nothing comes of it, to be closed by somebody who may have to wait.
    pub fn into_files(self) -> Vec<OwnedFd> {
        let late = self.late.into_values();
        let late = late.flat_map(|late| [Some(late.sampling), late.member, late.tracking].into_iter().flatten());
        self.leaders.into_iter().chain(self.members).chain(late).collect()
    }
}

pub struct Switched {
    /// When the new events began, by the clock of all records. All earlier samples are of the old ones.
    pub at: u64,
    /// The old events, to be closed by somebody who may have to wait.
    pub old: Vec<OwnedFd>,
}

impl EventSet {
    /// Begins to prepare events of another `spec`, or of other control groups, where CPUs are sampled.
    ///
    /// # Errors
    /// What opening events on CPUs came to, where those are sampled.
    pub fn prepare(&self, spec: EventSpec, groups: Arc<[ControlGroup]>) -> Result<Renewal> {
        // They are switched on by hand, also where the first ones waited for `execve`.
        let spec = EventSpec { enable_on_exec: false, ..spec };
        let leaders = match self.layout {
            EventLayout::Cpus => {
                self.open_cpu_samplers(&spec, &groups).map_err(doing("open perf events on all CPUs"))?
            }
            EventLayout::Threads | EventLayout::Compact => Vec::new(),
        };
        Ok(Renewal { spec, leaders, members: Vec::new(), late: HashMap::new(), groups })
    }

    /// Prepares it for a thread, but where CPUs are sampled. `late` as with [`EventSet::open_thread`].
    ///
    /// # Errors
    /// [`Error::TooManyFiles`](crate::Error::TooManyFiles): then there is no room for two of each.
    pub fn prepare_thread(&self, renewal: &mut Renewal, tid: u32, late: bool) -> Result<OpenOutcome> {
        let Ok(tid) = i32::try_from(tid) else { return Ok(OpenOutcome::Gone) };
        let taken = renewal.leaders.len() + renewal.members.len() + 2 * renewal.late.len();
        if self.is_full_with(taken as u64) {
            return Err(self.too_many_files());
        }
        match self.try_prepare(renewal, tid, late) {
            Ok(()) => Ok(OpenOutcome::Yes),
            Err(error) => match error.raw_os_error() {
                // It may have become another user's; then the kernel has ended the old events, too.
                Some(libc::ESRCH | libc::EACCES | libc::EPERM) => Ok(OpenOutcome::Gone),
                // One that the kernel tells nothing of does not run.
                None if error.kind() == io::ErrorKind::TimedOut => Ok(OpenOutcome::Gone),
                Some(libc::EMFILE | libc::ENFILE) => Err(self.too_many_files()),
                _ => Err(doing(format!("open perf events on thread {tid}"))(error)),
            },
        }
    }

    fn try_prepare(&self, renewal: &mut Renewal, tid: i32, late: bool) -> io::Result<()> {
        let mut attr = renewal.spec.thread_attr(self.layout);
        attr.set_disabled(1);
        for (&cpu, (owner, _)) in self.cpus.iter().zip(&self.owners) {
            let (leader, member) = open_sampler(&renewal.spec, &attr, tid, cpu, owner)?;
            if late {
                let id = event::id(&leader).map_err(revoked)?;
                renewal.late.insert(id, LateEvents { sampling: leader, member, tracking: None });
            } else {
                renewal.leaders.push(leader);
                renewal.members.extend(member);
            }
        }
        Ok(())
    }

    /// Notes that other control groups are sampled from now on, after the present events have counted this.
    fn change_groups(&mut self, groups: Arc<[ControlGroup]>, counted: Option<EventCounts>) {
        let busy = self.machine_times().map_or(0, |times| times.busy);
        if !self.groups.is_empty() {
            self.grouped.past = self.grouped.past.plus(counted, self.spec.period_ns());
        }
        if let Some(since) = self.grouped.since.take() {
            self.grouped.machine_ns = self.grouped.machine_ns.saturating_add(busy.saturating_sub(since));
        }
        self.grouped.since = (!groups.is_empty()).then_some(busy);
        self.groups = groups;
    }

    /// Lets the prepared events take the place of those that sample.
    pub fn switch(&mut self, renewal: Renewal) -> Switched {
        let Renewal { spec, leaders, members, late, groups } = renewal;
        let by_cpu = self.layout == EventLayout::Cpus;
        let old_late = std::mem::replace(&mut self.late, late);
        let replaced = if by_cpu { &mut self.samplers } else { &mut self.counting };
        let old = std::mem::replace(replaced, leaders);
        let old_members = if by_cpu { members } else { std::mem::replace(&mut self.samplers, members) };
        for event in old.iter().chain(old_late.values().map(|late| &late.sampling)) {
            // One whose thread has ended is off already.
            let _ = event::disable(event);
        }
        let at = now_ns();
        let new = if by_cpu { &self.samplers } else { &self.counting };
        for event in new.iter().chain(self.late.values().map(|late| &late.sampling)) {
            let _ = event::enable(event);
        }
        // The old ones stand still: what they have counted is theirs to tell for as long as they are open.
        let sampled = sum_of(old.iter().chain(old_late.values().map(|late| &late.sampling)), &self.spec);
        self.past.lost = self.past.lost.saturating_add(sampled.lost);
        if by_cpu {
            self.change_groups(groups, sampled.counted);
        }
        let counted = if by_cpu { self.counted_of_threads() } else { sampled.counted };
        if let Some(total) = self.past.with(counted, self.spec.period_ns()) {
            self.past.before = total;
            if !by_cpu {
                self.past.closed = total;
            }
        }
        self.spec = spec;
        self.count_files();
        let mut closing: Vec<OwnedFd> = old.into_iter().chain(old_members).collect();
        // With what tells of mappings: a thread that has inherited one of these has another.
        for late in old_late.into_values() {
            closing.push(late.sampling);
            closing.extend(late.member);
            self.others.extend(late.tracking);
        }
        Switched { at, old: closing }
    }
}
