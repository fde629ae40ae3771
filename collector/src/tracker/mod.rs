//! The processes and threads of a session: which are followed, which may be shown, what they have mapped.
//!
//! Records of forks, ends, names and mappings change it in order of time. Where records are missing, /proc is asked.

mod admission;
mod reread;
pub mod round;
pub mod scan;

use std::collections::BTreeSet;
use std::sync::Arc;

use ccsd_profile::Membership;
use ccsd_worker::Principal;

use crate::budget::Budget;
use crate::clock::now_ns;
use crate::host::membership::Memberships;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::EventLayout;
use crate::perf::record::{Fork, Mmap, TargetChange};
use crate::process::filter::{ProcessFilter, ProgramFile};
use crate::process::images::{ImageIndex, Images};
use crate::process::jit_code::is_file;
use crate::process::owner::{Denied, Owner};
use crate::process::recorded_files::RecordedFiles;
use crate::process::{LiveProcess, LiveThread, NEVER, OverflowCounts, ProcessKey, ProcessTable, ThreadKey};
use crate::procfs::{self, MapEntry};
use admission::Admission;
use reread::Rereading;
use round::Round;
use scan::ForkLog;

/// Time between two looks at whether images that could not be read at first can be now, nanoseconds.
const RETRY_NS: u64 = 50_000_000;

const MOVES_NS: u64 = 500_000_000;
const MOVES_SHARE: u64 = 200;
/// Ancestors that are asked at most for what a process belonged to that has ended.
const MAX_ANCESTORS: u32 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrackerStats {
    pub ended_threads: u64,
    /// Of these, those of which no sample was taken.
    pub ended_unsampled: u64,
    /// Processes whose events the kernel ended, because they got other rights by `execve`.
    pub gained_rights: u64,
    /// Threads that were alive at the last [`Tracker::count_live`].
    pub live_threads: u64,
    /// Threads that there ever were until then, or more.
    pub threads: u64,
    /// Processes that there ever were until then, or more.
    pub processes: u64,
    /// Threads and mappings of live processes beyond the limits.
    pub not_followed: OverflowCounts,
    /// Samples of other programs, where whole CPUs are sampled, and [`TrackerStats::filtered`].
    pub others: u64,
    /// Of these, samples of CPUs that were idle. A clock gives none.
    pub idle: u64,
    /// Samples of processes that are followed and do not fit the session's filter.
    pub filtered: u64,
    /// Of these, samples dropped before it was known whether their process fits, but for those whose process then did not.
    pub unjudged: u64,
    /// Of these, samples of processes that were then found to fit.
    pub unjudged_own: u64,
    /// Samples of processes that were not known to be the user's, where only those are followed.
    pub withheld: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRename {
    pub thread: ThreadKey,
    /// Its process, if the name is the process's too.
    pub process: Option<ProcessKey>,
    pub name: String,
}

pub struct Tracker {
    table: ProcessTable,
    pub images: Images,
    admission: Admission,
    memberships: Memberships,
    /// When it is looked again what processes belong to, and those that are yet to be looked at.
    memberships_at: u64,
    moves: Round<(u32, Arc<Membership>)>,
    /// Whether what threads start is followed.
    inherit: bool,
    layout: EventLayout,
    observes_machine: bool,
    /// Whether process 0 is a CPU's idle task. (A clock does not sample idle CPUs; then it is any process without a
    /// number here.)
    samples_idle: bool,
    /// A child that is still ccsd, and no target before it calls `execve`. (Events on threads wait for that
    /// themselves.)
    waiting_child: Option<u32>,
    /// The forks recorded while the target's threads are being looked for.
    forks: ForkLog,
    rereading: Rereading,
    /// When images that could not be read were last asked for again.
    retried: u64,
    stats: TrackerStats,
}

impl Tracker {
    /// No process yet. `rings` is the number of rings whose counters are read with samples; threads have values of each.
    pub fn new(spec: &EventSpec, layout: EventLayout, rings: usize, owner: Option<Owner>, budget: &Budget) -> Tracker {
        let table = ProcessTable::within(budget.live, rings);
        let table = if let Some(owner) = owner { table.of_user(owner.uid) } else { table };
        Tracker {
            admission: Admission::new(owner),
            inherit: spec.inherit,
            samples_idle: matches!(spec.event, Event::Cycles { .. }),
            layout,
            ..Tracker::of(
                if owner.is_some() { table.restricted() } else { table },
                Images::within(budget.images).of(owner),
            )
        }
    }

    /// The processes of a recording: nothing of the running system is taken for what it was then but these files.
    pub fn for_recording(files: RecordedFiles, budget: &Budget) -> Tracker {
        Tracker::of(ProcessTable::for_recording(budget.live), Images::within(budget.images).with_recorded_files(files))
    }

    /// A process as it is now, alone. For an owner by these lines of its `maps`: it may run another program by now.
    pub fn for_process(pid: u32, owner: Option<Owner>, maps: Option<Vec<MapEntry>>) -> Tracker {
        let (mut table, mut images) = (ProcessTable::default(), Images::default().of(owner).patient());
        match owner {
            None => table.read_mappings(pid, procfs::executable_maps(pid).unwrap_or_default(), &mut images),
            Some(_) => table.read_mappings(pid, maps.unwrap_or_default(), &mut images),
        }
        Tracker::of(table, images)
    }

    fn of(table: ProcessTable, images: Images) -> Tracker {
        Tracker {
            table,
            images,
            admission: Admission::new(None),
            memberships: Memberships::default(),
            memberships_at: 0,
            moves: Round::default(),
            inherit: true,
            layout: EventLayout::Threads,
            observes_machine: false,
            samples_idle: false,
            waiting_child: None,
            forks: ForkLog::default(),
            rereading: Rereading::default(),
            retried: 0,
            stats: TrackerStats::default(),
        }
    }

    /// Keeps samples of processes only while these fit a filter. To be called before any is followed.
    pub fn keep_only(&mut self, filter: Option<Arc<dyn ProcessFilter>>) {
        if filter.is_some() {
            self.table = std::mem::take(&mut self.table).restricted();
        }
        self.admission.keep_only(filter);
    }

    /// Says that all that runs is the target, as far as it fits the filter.
    pub fn observe_machine(&mut self) {
        self.observes_machine = true;
        self.table.observe_machine();
    }

    pub fn stats(&self) -> TrackerStats {
        TrackerStats { not_followed: self.table.left_out(), ..self.stats }
    }

    /// Counts live threads and processes, for [`Tracker::stats`].
    pub fn count_live(&mut self) {
        self.stats.live_threads = self.table.live_threads();
        (self.stats.threads, self.stats.processes) = self.table.ever();
    }

    pub fn held_bytes(&self) -> u64 {
        self.table.held_bytes() as u64
    }

    pub fn inherits(&self) -> bool {
        self.inherit
    }

    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Live threads that have been sampled and stand for themselves, with their processes and numbers.
    pub fn sampled_threads(&self) -> impl Iterator<Item = (u32, u32, ThreadKey)> + '_ {
        self.table.announced_threads()
    }

    pub fn knows_process(&self, pid: u32) -> bool {
        self.table.knows_process(pid)
    }

    /// Who answers for a process.
    pub fn look_up_user(&mut self, pid: u32) -> Principal {
        self.table.look_up_user(pid)
    }

    /// A live process of which something is kept at `time`.
    pub fn kept_at(&mut self, pid: u32, time: u64) -> Option<&mut LiveProcess> {
        self.table.kept_at(pid, time)
    }

    pub fn pids(&self) -> Vec<u32> {
        self.table.pids()
    }

    pub fn take_ended_processes(&mut self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.table.take_ended_processes()
    }

    pub fn take_ended(&mut self) -> impl Iterator<Item = ThreadKey> + '_ {
        self.table.take_ended()
    }

    /// Whether a sample's process (with children) or thread is known as the target's.
    #[inline]
    pub fn is_known(&self, pid: u32, tid: u32) -> bool {
        if self.observes_machine {
            return true;
        }
        if self.inherit { self.table.knows_process(pid) } else { self.table.knows_thread(tid) }
    }

    pub fn is_waiting_child(&self, pid: u32) -> bool {
        self.waiting_child == Some(pid)
    }

    pub fn has_waiting_child(&self) -> bool {
        self.waiting_child.is_some()
    }

    /// Enters the process that is about to execute the recorded program.
    pub fn enter_waiting_child(&mut self, pid: u32) -> Result<(), Denied> {
        self.waiting_child = Some(pid);
        self.enter(pid)?;
        self.table.add_thread(pid, pid, String::new());
        Ok(())
    }

    /// Enters a thread whose events have been opened, under its name in /proc.
    pub fn enter_thread(&mut self, pid: u32, tid: u32) {
        if !self.table.knows_thread(tid) {
            self.table.add_thread(pid, tid, procfs::comm(pid, tid).unwrap_or_default());
        }
    }

    /// Counts the sample of a thread that is not the target's. Returns whether it is one. Only where whole CPUs are observed are there others.
    #[inline]
    pub fn count_if_foreign(&mut self, pid: u32, tid: u32) -> bool {
        if self.observes_machine {
            let is_idle = self.samples_idle && pid == 0 && tid == 0;
            self.stats.idle += u64::from(is_idle);
            self.stats.others += u64::from(is_idle);
            return is_idle;
        }
        let is_foreign = self.layout == EventLayout::Cpus && (!self.is_known(pid, tid) || self.is_waiting_child(pid));
        self.stats.others += u64::from(is_foreign);
        is_foreign
    }

    /// Whether a record is of another process than the target's. (A process is the target's from the fork on.)
    pub fn is_about_others(&self, change: &TargetChange) -> bool {
        match change {
            TargetChange::Mmap(mmap) => self.is_foreign_process(mmap.pid),
            TargetChange::Fork(fork) => self.is_foreign_process(fork.parent_pid),
            TargetChange::Exit { pid, .. } | TargetChange::Comm { pid, .. } => self.is_foreign_process(*pid),
            TargetChange::Lost { .. } | TargetChange::Throttle { .. } => false,
        }
    }

    fn is_foreign_process(&self, pid: u32) -> bool {
        self.layout == EventLayout::Cpus && !self.observes_machine && !self.table.knows_process(pid)
    }

    /// Withholds, and counts, samples of unknown processes where only some processes' are kept. Returns whether it is
    /// withheld.
    #[inline]
    pub fn withhold_unknown(&mut self, pid: u32) -> bool {
        if self.observes_machine && self.is_restricted() && !self.table.knows_process(pid) {
            // It ran before the session, or the record of its fork was lost.
            let _ = self.enter(pid);
        }
        let withheld = self.is_restricted() && !self.table.knows_process(pid);
        if withheld {
            // The fork record is missing, so the parent, and with it the permission, is unknown.
            self.admission.leave_undecided(pid);
            self.count_withheld(pid);
        }
        withheld
    }

    /// The samples of a process that was undecided are known to be of one that fits or not.
    fn decide(&mut self, pid: u32, fits: bool) {
        let samples = self.admission.take_undecided(pid);
        match fits {
            true => self.stats.unjudged_own += samples,
            false => self.stats.unjudged = self.stats.unjudged.saturating_sub(samples),
        }
    }

    pub fn count_withheld(&mut self, pid: u32) {
        let filtered = u64::from(self.admission.has_filter());
        self.stats.unjudged += u64::from(self.admission.count_undecided(pid));
        self.stats.filtered += filtered;
        self.stats.others += filtered;
        self.stats.withheld += 1 - filtered;
    }

    /// The thread and process of a sample, made up from /proc if no record told of them, and all images. `None` for a
    /// thread in no process.
    #[inline]
    pub fn thread(&mut self, pid: u32, tid: u32) -> Option<(&mut LiveThread, &mut LiveProcess, &mut Images)> {
        let Tracker { table, images, .. } = self;
        let (thread, process) = table.thread(pid, tid, images)?;
        Some((thread, process, images))
    }

    /// Reads what a process belongs to before its first sample. An ended one belongs to what its parent did.
    #[inline]
    pub fn look_at_membership(&mut self, pid: u32) {
        if self.table.is_of_recording() {
            return;
        }
        match self.table.is_announced(pid) {
            Some(true) => {}
            Some(false) => self.read_membership(pid),
            None => self.read_untold(pid),
        }
    }

    /// Enters a process whose fork record was lost, and reads what it belongs to.
    #[cold]
    fn read_untold(&mut self, pid: u32) {
        self.table.read_process(pid, &mut self.images);
        self.read_membership(pid);
    }

    #[cold]
    fn read_membership(&mut self, pid: u32) {
        let (mut relative, start_time) = (pid, self.table.start_time(pid));
        for _ in 0..MAX_ANCESTORS {
            // A number may be another process's by now.
            if procfs::has_run_since(relative, start_time)
                && let Some(membership) = self.memberships.of(relative)
            {
                return self.table.move_process(pid, membership);
            }
            // The process has ended: its parent's membership is taken, unless one is known already.
            let parent = self.table.parent_pid(relative);
            if parent == 0 || self.table.membership(pid).is_some() {
                return;
            }
            relative = parent;
        }
    }

    /// Checks for processes that moved to another control group or user, which no record tells. Call after every look
    /// at the rings.
    pub fn review_memberships(&mut self, now: u64) {
        if !self.moves.is_going_on() {
            if now < self.memberships_at {
                return;
            }
            self.moves = Round::of(self.table.announced_memberships());
        }
        let took = self.moves.portion(now, |(pid, before)| {
            // Whether it is still the process that it was then, and has not moved since.
            let is_same = self.table.membership(pid).is_some_and(|now| Arc::ptr_eq(now, &before));
            if is_same && let Some(membership) = self.memberships.instead_of(&before, pid) {
                self.table.move_process(pid, membership);
            }
        });
        if let Some(took) = took {
            self.memberships_at = now_ns().saturating_add(took.saturating_mul(MOVES_SHARE).max(MOVES_NS));
        }
    }

    pub fn apply(&mut self, change: TargetChange, time: u64) -> Option<ThreadRename> {
        match change {
            TargetChange::Mmap(mmap) => self.mmap(&mmap, time),
            TargetChange::Fork(fork) => self.fork(fork, time),
            TargetChange::Exit { pid, tid } => self.exit(pid, tid),
            TargetChange::Comm { pid, tid, exec: true, name } => self.exec(pid, tid, &name, time),
            TargetChange::Comm { pid, tid, exec: false, name } => return self.rename(pid, tid, name),
            TargetChange::Lost { .. } | TargetChange::Throttle { .. } => {}
        }
        None
    }

    /// A process has mapped something. One that is not known yet is read from /proc when it is sampled.
    fn mmap(&mut self, mmap: &Mmap, time: u64) {
        if self.admission.awaits_program(mmap.pid) && is_file(mmap.inode, &mmap.path) {
            let program = ProgramFile { path: &mmap.path, file: (mmap.device.0, mmap.device.1, mmap.inode) };
            let decided = self.admission.judge_program(self.table.executed(mmap.pid, "", Some(program)));
            if decided == Some(true) {
                self.table.permit(mmap.pid, time);
            }
            if let Some(fits) = decided {
                self.decide(mmap.pid, fits);
            }
        }
        if !self.table.is_withheld(mmap.pid, time) {
            self.table.mmap(mmap, &mut self.images);
        }
    }

    fn fork(&mut self, fork: Fork, time: u64) {
        // Its mappings are those of the new one, too.
        if self.observes_machine && fork.pid != fork.parent_pid && !self.table.knows_process(fork.parent_pid) {
            let _ = self.enter(fork.parent_pid);
        }
        self.forks.add(fork.tid, fork.parent_tid, time);
        self.table.fork(fork, time);
        if fork.pid != fork.parent_pid && self.admission.is_undecided(fork.parent_pid) {
            self.admission.leave_undecided(fork.pid);
        }
    }

    fn exit(&mut self, pid: u32, tid: u32) {
        if pid == tid && self.table.awaits_mapping(pid) && self.goes_on_with_other_rights(pid) {
            return;
        }
        self.stats.ended_threads += 1;
        self.stats.ended_unsampled += u64::from(self.table.is_unsampled(tid));
        if pid == tid {
            self.admission.forget(pid);
        }
        self.table.exit(pid, tid);
    }

    /// A process seems to have ended between `execve` and the first mapping of the program. If `execve` has not killed it, which
    /// is found out later, the kernel says that it ended events on the process, which has got other rights (setuid;
    /// `begin_new_exec` calls `perf_event_exit_task`). Events on CPUs go on. Returns whether the process does so for the
    /// session, too: not where its samples are for
    /// those alone who may see it, because it may not be theirs any more.
    #[cold]
    fn goes_on_with_other_rights(&mut self, pid: u32) -> bool {
        self.table.expect_end(pid);
        // The record of the mapping may be lost.
        if self.rereading.may_miss_records() && procfs::is_exiting(pid) {
            return false;
        }
        let has_events = self.layout == EventLayout::Cpus || self.table.is_of_recording();
        let goes_on = has_events && !self.is_restricted();
        self.stats.gained_rights += u64::from(!goes_on && !self.observes_machine);
        goes_on
    }

    fn exec(&mut self, pid: u32, tid: u32, name: &str, time: u64) {
        self.waiting_child = self.waiting_child.filter(|&child| child != pid);
        let was_kept = !self.table.is_withheld(pid, time);
        self.table.exec(pid, tid, name);
        if self.admission.has_filter() {
            let by_name = self.admission.keeps_after_exec(name, was_kept);
            let executed = self.table.executed(pid, name, None);
            let decided = by_name.or_else(|| self.admission.judge_executed(executed));
            match decided {
                Some(true) if was_kept => {}
                Some(true) => self.table.permit(pid, time),
                Some(false) | None => self.table.permit(pid, NEVER),
            }
            match decided {
                // Samples from before are of another program: it is not known what that was.
                Some(_) => _ = self.admission.take_undecided(pid),
                None => self.admission.leave_undecided(pid),
            }
            if by_name != Some(false) {
                self.admission.judge_later(pid);
            }
        }
    }

    /// Renames a thread. Returns whose names the aggregator has to change: announced threads that are not withheld.
    fn rename(&mut self, pid: u32, tid: u32, name: String) -> Option<ThreadRename> {
        if pid == tid {
            match self.admission.keeps_name(&name) {
                Some(false) => self.table.permit(pid, NEVER),
                Some(true) if self.table.is_withheld(pid, NEVER - 1) => self.admission.leave_undecided(pid),
                _ => {}
            }
        }
        let (thread, process) = self.table.rename(pid, tid, &name)?;
        let told = thread.announced && process.permitted_from != NEVER;
        let process = (pid == tid && process.announced).then_some(process.key);
        told.then_some(ThreadRename { thread: thread.key, process, name })
    }

    /// Judges processes by the filter: executed or unknown ones, now and then all. Call after every look at the rings.
    pub fn judge(&mut self, now: u64) {
        let Some(review) = self.admission.begin_review(now, || self.table.pids()) else { return };
        for &pid in &review.pids {
            let withheld = self.table.is_withheld(pid, NEVER - 1);
            let fits = review.filter.keeps(pid);
            match fits {
                Some(true) if withheld => _ = self.enter(pid),
                Some(false) if !withheld => self.table.permit(pid, NEVER),
                // One that has ended makes no more samples; those that it has made are what it was.
                _ => {}
            }
            match fits {
                Some(fits) => self.decide(pid, fits),
                None => _ = self.admission.take_undecided(pid),
            }
        }
        self.admission.end_review(&review, now_ns());
    }

    #[cfg(test)]
    pub fn set_next_review(&mut self, at: u64) {
        self.admission.set_next_review(at);
    }

    /// The paths of the control groups, of version 2, that have all processes of which samples are kept; empty paths for
    /// those that are in none. See [`ProcessFilter::group_of`].
    pub fn group_paths(&self) -> BTreeSet<String> {
        let Some(filter) = self.admission.filter() else { return BTreeSet::new() };
        let kept = self.table.pids().into_iter().filter(|&pid| !self.is_withheld(pid));
        kept.filter_map(|pid| filter.group_of(pid)).collect()
    }

    /// Whether samples are kept of some processes alone: those of a user, or those that fit a filter.
    pub fn is_restricted(&self) -> bool {
        self.admission.is_restricted()
    }

    pub fn is_withheld(&self, pid: u32) -> bool {
        self.table.is_withheld(pid, NEVER - 1)
    }

    pub fn may_follow(&self, pid: u32) -> Result<(), Denied> {
        self.admission.check(pid)
    }

    /// Enters a process with open events as it is now. Its samples count from now on if it may be followed, else never;
    /// if it has ended, as before.
    pub fn enter(&mut self, pid: u32) -> Result<(), Denied> {
        let permitted = self.admission.check(pid);
        let from = self.admission.permitted_from(pid, permitted);
        if permitted.is_ok() {
            if self.is_waiting_child(pid) {
                self.table.expect_exec(pid);
            } else {
                self.table.read_process(pid, &mut self.images);
                if self.observes_machine {
                    // What it forks may have ended before it is looked at.
                    self.look_at_membership(pid);
                }
            }
        }
        if self.observes_machine && permitted.is_err() {
            // It is not asked again at each sample.
            self.table.enter_withheld(pid);
            if from.is_none() {
                // It has ended: what it belonged to is unknown.
                self.admission.leave_undecided(pid);
            }
        }
        if self.is_restricted()
            && let Some(from) = from
        {
            self.table.permit(pid, from);
        }
        permitted
    }

    /// Records about mappings, forks or names were lost, or no event gave them: processes are read again.
    pub fn records_were_lost(&mut self) {
        self.rereading.records_were_lost();
    }

    /// Whether processes are yet to be read anew.
    pub fn is_rereading(&self) -> bool {
        self.rereading.is_going_on()
    }

    /// Reads from /proc what records did not tell: after losses a portion of all processes, and full ones. `at_end` there
    /// is no later.
    pub fn read_missed(&mut self, at_end: bool) {
        if self.rereading.may_miss_records() {
            self.reread_processes(at_end);
        }
        self.table.read_missed(&mut self.images);
    }

    #[cold]
    fn reread_processes(&mut self, at_end: bool) {
        self.rereading.begin_if_due(now_ns(), at_end, || self.table.pids());
        let mut rereading = std::mem::take(&mut self.rereading);
        rereading.portion(now_ns(), at_end, |pid| {
            // It may have ended since the round began, or its end may be what was lost.
            if self.table.knows_process(pid) && !self.forget_if_replaced(pid) {
                // Whose descendant it is is uncertain, too. One that is refused stays, and so do its threads.
                let _ = self.enter(pid);
            }
        });
        if self.rereading.may_miss_records() {
            rereading.records_were_lost();
        }
        self.rereading = rereading;
    }

    /// Retries unreadable images now and then. Returns those that can be read: addresses in them change.
    pub fn retry_images(&mut self) -> Vec<ImageIndex> {
        if !self.images.is_awaiting() || now_ns().saturating_sub(self.retried) < RETRY_NS {
            return Vec::new();
        }
        self.retried = now_ns();
        let known = self.images.retry();
        known.iter().for_each(|&index| self.table.translate(index, &self.images));
        known
    }

    /// Images for which another user paid until now. What was left out for lack of room is read: addresses in them change.
    pub fn take_paid(&mut self) -> Vec<ImageIndex> {
        let paid = self.images.take_paid();
        paid.iter().for_each(|&index| self.table.translate(index, &self.images));
        paid
    }

    /// Closes files that are not needed at the moment. Returns the images that no process has mapped any more.
    pub fn close_images(&mut self) -> Vec<ImageIndex> {
        self.images.forget_recent();
        self.images.sweep(|| self.table.mapped_images()).unwrap_or_default()
    }

    /// Drops processes whose end was not seen (a lost record, or no event), so that the session does not wait for them.
    /// Call now and then, with a look at the rings in between.
    pub fn forget_the_dead(&mut self) {
        self.forget_the_replaced();
        self.table.forget_untold(procfs::has_ended);
    }

    /// Drops processes found running that have ended. To be called now and then where all that runs is the target.
    pub fn forget_ended(&mut self) {
        self.table.forget_ended(procfs::has_ended);
    }

    /// Drops processes whose number is another's by now: no event may be opened on that one.
    pub fn forget_the_replaced(&mut self) {
        for pid in self.table.pids() {
            self.forget_if_replaced(pid);
        }
    }

    fn forget_if_replaced(&mut self, pid: u32) -> bool {
        let is_replaced = procfs::stat(pid).is_ok_and(|stat| self.table.is_replaced(pid, stat.start_time));
        if is_replaced {
            self.table.remove_process(pid);
        }
        is_replaced
    }

    /// Notes forks from now on, for a scan for the target's threads, until [`Tracker::end_scan`].
    pub fn begin_scan(&mut self) {
        self.forks = ForkLog::begin();
    }

    pub fn end_scan(&mut self) {
        self.forks = ForkLog::default();
    }

    pub fn forks(&self) -> &ForkLog {
        &self.forks
    }

    /// The live processes, with inheritance also permitted descendants, of which no record may have told.
    pub fn family(&self) -> Vec<u32> {
        let mut pids = self.table.pids();
        if self.inherit {
            pids.extend(scan::descendants(&pids).filter(|&pid| self.may_follow(pid).is_ok()));
        }
        pids
    }

    /// Whether events may be opened on a thread of these processes: without inheritance only on followed ones, and not
    /// on a reused number.
    pub fn follows(&self, tid: u32) -> bool {
        let is_same = || procfs::stat(tid).is_ok_and(|stat| !self.table.is_replaced_thread(tid, stat.start_time));
        self.inherit || (self.table.knows_thread(tid) && is_same())
    }
}
