//! Processes and threads, from records and /proc: names, mappings, parents.
//!
//! A process is its pid, start time and exec generation. Each gets a [`ProcessKey`], each thread a [`ThreadKey`]; these
//! are never used again, whatever the kernel does with pids.

mod awaited_images;
pub mod debug_roots;
mod entry_bytes;
pub mod filter;
pub mod image;
pub mod images;
pub mod jit_code;
mod live;
mod mapped;
pub mod mapped_file;
pub mod mappings;
pub mod owner;
pub mod process_files;
mod recent_files;
pub mod recorded_files;
mod room;
pub mod sampled_time;
pub mod shared_room;
mod untracked_threads;

use std::collections::BTreeSet;
use std::sync::Arc;

use ccsd_profile::Membership;
use ccsd_worker::Principal;
use hashbrown::{HashMap, HashSet};

use crate::backoff::Backoff;
use crate::clock::{boot_ticks, now_ns};
use crate::perf::record::Fork;
use crate::process::filter::{Executed, ProgramFile};
use crate::procfs;
use entry_bytes::{MAPPING_BYTES, PROCESS_BYTES, RING_BYTES, THREAD_BYTES};
use images::Images;
use live::user_of;
use mappings::Mappings;
use sampled_time::SampledTime;
use shared_room::SharedRoom;
use untracked_threads::{UntrackedThread, UntrackedThreads};

pub use live::{LiveProcess, LiveThread, ProcessKey, ThreadKey, children_of};

/// The time from which on nothing is permitted.
pub const NEVER: u64 = u64::MAX;

/// Clock ticks by which a start may seem later than it is: two clocks, read one after the other. Pids are not reused so
/// soon.
const START_SLACK: u64 = 10;

/// Name of the aggregate thread for a process's untracked threads, and of [`OTHER_PROCESS`].
const OTHERS: &str = "[other]";
/// Number of the aggregate process for a recording's processes beyond the limit. No process has it.
pub const OTHER_PROCESS: u32 = u32::MAX - 1;
/// Mappings that all forks of a recording may copy: some seconds of work. Starting a hundred thousand programs copies
/// fewer.
const MAX_COPIED: usize = 1 << 28;

/// How often it is looked whether a process has ended whose last known thread has.
const LOOKS_FOR_END: u8 = 2;

/// Part of the memory for the ids of untracked threads: as many as are tracked.
const UNTRACKED_PART: usize = 16;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverflowCounts {
    /// Threads: their samples are of their process's others.
    pub threads: u64,
    /// Mappings: code in them is in no image.
    pub mappings: u64,
    /// Other users' processes whose mappings were not read in time. What they run until these are is in no image.
    pub late: u64,
}

/// All live processes and threads of a session.
#[derive(Debug)]
pub struct ProcessTable {
    /// Bytes that all may take but `untracked`, and that a thread takes. Processes are always entered.
    limit: usize,
    thread_bytes: usize,
    /// Whether /proc is asked what no record has told. The processes of a recording are others than those of now.
    asks_proc: bool,
    copies_left: usize,
    mapped: usize,
    /// Processes with a mapping that did not fit, when it was too early to read their mappings again.
    missed: HashSet<u32>,
    /// Other users' processes whose mappings could not be read in time, and when that is tried again.
    unread: HashMap<u32, Principal>,
    unread_at: u64,
    /// What each user takes, as of the last look, and when the next is due; known from where much is taken.
    shares: SharedRoom,
    shares_at: u64,
    left_out: OverflowCounts,
    untracked: UntrackedThreads,
    /// Aggregate entry for the untracked threads of a process, by process id.
    others: HashMap<u32, LiveThread>,
    processes: HashMap<u32, LiveProcess>,
    threads: HashMap<u32, LiveThread>,
    /// The process and number of each of `threads`: those of one process are found however many there are.
    by_process: BTreeSet<(u32, u32)>,
    next_process: u32,
    next_thread: u32,
    /// Calls of `execve`: each makes a new process, and a new thread, of old ones.
    execs: u32,
    ended: Vec<ThreadKey>,
    ended_processes: Vec<ProcessKey>,
    /// Processes that had ended at the last look, and had not been told to have.
    ended_untold: HashSet<ProcessKey>,
    /// [`LiveProcess::permitted_from`] of those that were not forked by a permitted one.
    newcomers_from: u64,
    /// Whether all that runs is the target: threads of processes found running are known only once they are sampled.
    observes_machine: bool,
    /// Processes found running whose last known thread has ended, and how often it is yet to be looked whether they have, too.
    perhaps_ended: HashMap<u32, u8>,
}

impl Default for ProcessTable {
    fn default() -> Self {
        ProcessTable::within(usize::MAX, 0)
    }
}

impl ProcessTable {
    /// None yet. Threads and mappings are entered while all take no more than these bytes; threads have values of that
    /// many rings.
    pub fn within(limit: usize, rings: usize) -> ProcessTable {
        let untracked = limit / UNTRACKED_PART;
        ProcessTable {
            limit: limit - untracked,
            thread_bytes: THREAD_BYTES + rings * RING_BYTES,
            asks_proc: true,
            copies_left: usize::MAX,
            mapped: 0,
            missed: HashSet::new(),
            unread: HashMap::new(),
            unread_at: 0,
            shares: SharedRoom::new((limit - untracked) as u64),
            shares_at: 0,
            left_out: OverflowCounts::default(),
            untracked: UntrackedThreads::within(untracked),
            others: HashMap::new(),
            processes: HashMap::new(),
            threads: HashMap::new(),
            by_process: BTreeSet::new(),
            next_process: 0,
            next_thread: 0,
            execs: 0,
            ended: Vec::new(),
            ended_processes: Vec::new(),
            ended_untold: HashSet::new(),
            newcomers_from: 0,
            observes_machine: false,
            perhaps_ended: HashMap::new(),
        }
    }

    /// The processes of a recording: all that is known of them is in records.
    pub fn for_recording(limit: usize) -> ProcessTable {
        ProcessTable { asks_proc: false, copies_left: MAX_COPIED, ..ProcessTable::within(limit, 0) }
    }

    /// The same for a session of this user.
    #[must_use]
    pub fn of_user(mut self, user: u32) -> ProcessTable {
        self.shares.set_user(user);
        self
    }

    /// The same in which no process is permitted before [`ProcessTable::permit`] says so, but by descent.
    #[must_use]
    pub fn restricted(self) -> ProcessTable {
        ProcessTable { newcomers_from: NEVER, ..self }
    }

    /// Says that all that runs is the target.
    pub fn observe_machine(&mut self) {
        self.observes_machine = true;
    }

    /// Everything that ever exceeded a limit.
    pub fn left_out(&self) -> OverflowCounts {
        self.left_out
    }

    /// Says from when on a known process is permitted, or [`NEVER`]. What it forks after that is, too.
    pub fn permit(&mut self, pid: u32, from: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.permitted_from = from;
            process.sampled_time.begin_anew();
        }
    }

    /// Whether what a process did at some time is to be kept from everybody.
    #[inline]
    pub fn is_withheld(&self, pid: u32, time: u64) -> bool {
        self.newcomers_from != 0 && self.processes.get(&pid).is_none_or(|process| time < process.permitted_from)
    }

    /// Number of the process that forked one, 0 if that is not known.
    pub fn parent_pid(&self, pid: u32) -> u32 {
        self.processes.get(&pid).map_or(0, |process| process.parent_pid)
    }

    /// When a process was forked, clock ticks since boot, 0 if that is not known.
    pub fn start_time(&self, pid: u32) -> u64 {
        self.processes.get(&pid).map_or(0, |process| process.start_time)
    }

    /// For the filter: a process that has just executed a program.
    pub fn executed<'a>(&self, pid: u32, name: &'a str, program: Option<ProgramFile<'a>>) -> Executed<'a> {
        Executed { pid, parent_pid: self.parent_pid(pid), start_time: self.start_time(pid), name, program }
    }

    /// Whether no process is alive.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Threads that are alive, with or without room for them.
    pub fn live_threads(&self) -> u64 {
        let untracked = |process: &LiveProcess| u64::from(process.untracked);
        self.threads.len() as u64 + self.processes.values().map(untracked).sum::<u64>()
    }

    /// How many threads and processes there ever were, or more.
    pub fn ever(&self) -> (u64, u64) {
        let ever = |next: u32| u64::from(next.saturating_sub(self.execs));
        (ever(self.next_thread).saturating_add(self.left_out.threads), ever(self.next_process))
    }

    /// Whether a thread is known and no sample of it has been taken.
    pub fn is_unsampled(&self, tid: u32) -> bool {
        self.threads.get(&tid).is_some_and(|thread| !thread.announced)
    }

    /// Live threads that have been announced and stand for themselves, with their processes and numbers.
    pub fn announced_threads(&self) -> impl Iterator<Item = (u32, u32, ThreadKey)> + '_ {
        let announced = self.threads.iter().filter(|(_, thread)| thread.announced && !thread.is_others);
        announced.map(|(&tid, thread)| (thread.pid, tid, thread.key))
    }

    /// Live processes.
    pub fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    /// Enters a process found running of which nothing is kept, if it is not known.
    pub fn enter_withheld(&mut self, pid: u32) {
        if self.processes.contains_key(&pid) {
            return;
        }
        let (start_time, name) =
            procfs::stat(pid).map_or_else(|_| (0, String::new()), |stat| (stat.start_time, stat.comm));
        self.add_process(pid, None, start_time, 0, name, Mappings::default());
        if let Some(process) = self.processes.get_mut(&pid) {
            process.has_unknown_threads = true;
        }
    }

    /// A live process of which something is kept at `time`.
    pub fn kept_at(&mut self, pid: u32, time: u64) -> Option<&mut LiveProcess> {
        self.processes.get_mut(&pid).filter(|process| process.permitted_from <= time)
    }

    /// Whether a process is known to be alive.
    #[inline]
    pub fn knows_process(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Whether a thread is known to be alive, with or without room for it.
    #[inline]
    pub fn knows_thread(&self, tid: u32) -> bool {
        self.threads.contains_key(&tid) || self.untracked.get(tid).is_some()
    }

    /// Whether a known process's number now belongs to another, which started at `start` (clock ticks since boot): the
    /// first one's exit record was lost.
    pub fn is_replaced(&self, pid: u32, start: u64) -> bool {
        // (0 where /proc did not say when it started.)
        let known = self.processes.get(&pid).map(|process| process.start_time).filter(|&known| known > 0);
        known.is_some_and(|known| start > known.saturating_add(START_SLACK))
    }

    /// The same of a known thread.
    pub fn is_replaced_thread(&self, tid: u32, start: u64) -> bool {
        let followed = self.threads.get(&tid).map(|thread| thread.known_since);
        let since = followed.or_else(|| self.untracked.get(tid).map(|thread| thread.known_since));
        since.is_some_and(|since| start > since.saturating_add(START_SLACK))
    }

    /// The thread and its process; without records both are read from /proc.
    pub fn thread(&mut self, pid: u32, tid: u32, images: &mut Images) -> Option<(&mut LiveThread, &mut LiveProcess)> {
        if self.threads.get(&tid).is_none_or(|thread| thread.pid != pid) {
            if !self.processes.contains_key(&pid) {
                self.enter_untold(pid, images);
            }
            if !self.asks_proc && !self.processes.contains_key(&pid) {
                return self.others(OTHER_PROCESS, tid);
            }
            if !self.has_room_for_thread(pid) {
                return self.others(pid, tid);
            }
            self.forget_untracked(pid, tid);
            self.add_thread(pid, tid, self.name_of_untold(pid, tid));
        }
        let process = self.processes.get_mut(&pid)?;
        if self.asks_proc && process.user.is_none() {
            process.user = Some(user_of(pid));
        }
        Some((self.threads.get_mut(&tid)?, process))
    }

    #[cold]
    fn enter_untold(&mut self, pid: u32, images: &mut Images) {
        match self.asks_proc {
            true => self.read_process(pid, images),
            false => self.enter_recorded(pid),
        }
    }

    /// Enters a process of a recording by its id alone, or the aggregate process beyond the limit.
    fn enter_recorded(&mut self, pid: u32) {
        let pid = if self.has_room_for_process() { pid } else { OTHER_PROCESS };
        if !self.processes.contains_key(&pid) {
            let name = if pid == OTHER_PROCESS { OTHERS.to_owned() } else { String::new() };
            self.add_process(pid, None, 0, 0, name, Mappings::default());
        }
    }

    fn name_of_untold(&self, pid: u32, tid: u32) -> String {
        match self.asks_proc {
            true => procfs::comm(pid, tid).unwrap_or_default(),
            false => self.processes.get(&pid).map(|process| process.name.clone()).unwrap_or_default(),
        }
    }

    /// The aggregate entry for the untracked threads of a process.
    #[cold]
    fn others(&mut self, pid: u32, tid: u32) -> Option<(&mut LiveThread, &mut LiveProcess)> {
        // The thread may be new. If there are more untracked threads than ids are kept, it counts as known.
        if !self.untracked.is_full() || self.processes.get(&pid).is_some_and(|process| process.untracked == 0) {
            self.leave_out(pid, tid);
        }
        if !self.processes.contains_key(&pid) {
            return None;
        }
        if !self.others.contains_key(&pid) {
            let key = ThreadKey(self.next_thread);
            self.next_thread += 1;
            self.others.insert(pid, LiveThread::new(key, pid, OTHERS.to_owned(), true));
        }
        Some((self.others.get_mut(&pid)?, self.processes.get_mut(&pid)?))
    }

    /// Notes an untracked thread of a known process, if it is new.
    fn leave_out(&mut self, pid: u32, tid: u32) {
        match self.untracked.get(tid) {
            Some(known) if known.pid == pid => return,
            // An earlier thread with this id has ended.
            Some(known) => self.exit(known.pid, tid),
            None => {}
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        self.untracked.insert(tid, UntrackedThread { pid, known_since: boot_ticks(now_ns()) });
        process.untracked += 1;
        self.left_out.threads += 1;
    }

    /// Removes a thread from the untracked ones: it has ended, or is tracked now. Returns whether it was untracked.
    fn forget_untracked(&mut self, pid: u32, tid: u32) -> bool {
        let Some(process) = self.processes.get_mut(&pid) else { return false };
        let was = process.untracked > 0 && self.untracked.remove(pid, tid);
        process.untracked -= u32::from(was);
        was
    }

    /// Enters a process that is about to call `execve`: nothing that it has mapped until then is of interest.
    pub fn expect_exec(&mut self, pid: u32) {
        let stat = procfs::stat(pid).ok();
        let (start_time, name) = stat.map(|stat| (stat.start_time, stat.comm)).unwrap_or_default();
        self.add_process(pid, None, start_time, 0, name, Mappings::default());
    }

    fn add_process(
        &mut self,
        pid: u32,
        parent: Option<ProcessKey>,
        start_time: u64,
        exec_generation: u32,
        name: String,
        mappings: Mappings,
    ) {
        let key = ProcessKey(self.next_process);
        self.next_process += 1;
        self.mapped += mappings.count();
        let old = self.processes.get(&pid);
        let (threads, untracked) = old.map_or((0, 0), |old| (old.threads, old.untracked));
        let process = LiveProcess {
            key,
            parent,
            parent_pid: 0,
            start_time,
            exec_generation,
            name,
            membership: None,
            announced: false,
            mappings,
            permitted_from: self.newcomers_from,
            jit: None,
            full: Backoff::default(),
            threads,
            is_late: false,
            may_have_ended: false,
            user: None,
            forebear: Principal::SOMEWHERE,
            has_unknown_threads: false,
            untracked,
            awaits_mapping: false,
            sampled_time: SampledTime::default(),
        };
        if let Some(old) = self.processes.insert(pid, process) {
            self.mapped = self.mapped.saturating_sub(old.mappings.count());
        }
    }

    /// Enters a thread of a known process, within the limit. An earlier thread with its number is gone, even if its
    /// exit was not seen.
    pub fn add_thread(&mut self, pid: u32, tid: u32, name: String) {
        if let Some(old) = self.threads.get(&tid) {
            match old.pid == pid {
                true => self.ended.extend(old.announced.then_some(old.key)),
                false => self.exit(old.pid, tid),
            }
        }
        if !self.threads.contains_key(&tid) {
            if !self.has_room_for_thread(pid) {
                return self.leave_out(pid, tid);
            }
            match self.untracked.get(tid) {
                Some(known) if known.pid != pid => self.exit(known.pid, tid),
                Some(_) => _ = self.forget_untracked(pid, tid),
                None => {}
            }
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let key = ThreadKey(self.next_thread);
        self.next_thread += 1;
        let thread = LiveThread::new(key, pid, name, false);
        if self.threads.insert(tid, thread).is_none() {
            process.threads += 1;
            self.by_process.insert((pid, tid));
            self.count_taken(pid, self.thread_bytes);
        }
    }

    /// Enters a thread of the same process, or a process with a copy of the parent's mappings.
    pub fn fork(&mut self, fork: Fork, time: u64) {
        let Fork { pid, tid, parent_pid, parent_tid } = fork;
        let name = self.threads.get(&parent_tid).map(|thread| &thread.name);
        let name = name.or_else(|| self.processes.get(&parent_pid).map(|process| &process.name));
        let name = name.cloned().unwrap_or_default();
        if pid != parent_pid {
            // It may have been found permitted before this record was read.
            let found = self.processes.get(&pid).map(|known| known.permitted_from);
            let found = found.filter(|&from| from > time && from != NEVER);
            // An earlier process with this pid has ended, even if its exit was not seen.
            self.remove_process(pid);
            // It is the parent's user's until it executes a program.
            let room = self.room_for_mappings(parent_pid).min(self.copies_left);
            let parent = self.processes.get(&parent_pid);
            let user = parent.and_then(|parent| parent.user);
            let inherited = parent.map(|parent| parent.permitted_from).filter(|&from| from <= time);
            let permitted_from = found.or(inherited).unwrap_or(self.newcomers_from);
            let code = parent.and_then(|parent| parent.jit.clone());
            let membership = parent.and_then(|parent| parent.membership.clone());
            let key = parent.map(|parent| parent.key);
            let forebear = parent.map_or(children_of(parent_pid), |parent| parent.forebear_of_child(parent_pid));
            let inherited = parent.map(|parent| &parent.mappings);
            let mappings = match inherited {
                Some(mappings) if mappings.count() <= room => mappings.clone(),
                Some(mappings) => {
                    self.left_out.mappings += mappings.count() as u64;
                    Mappings::default()
                }
                None => Mappings::default(),
            };
            self.copies_left = self.copies_left.saturating_sub(mappings.count());
            if !self.has_room_for_process() {
                self.left_out.threads += 1;
                return;
            }
            let start_time = if self.asks_proc { boot_ticks(time) } else { 0 };
            let taken = PROCESS_BYTES + mappings.count() * MAPPING_BYTES;
            self.add_process(pid, key, start_time, 0, name.clone(), mappings);
            self.permit(pid, permitted_from);
            if let Some(child) = self.processes.get_mut(&pid) {
                child.jit = code;
                child.membership = membership;
                child.parent_pid = parent_pid;
                child.user = user;
                child.forebear = forebear;
            }
            self.count_taken(pid, taken);
        }
        self.add_thread(pid, tid, name);
    }

    /// `execve`: the same pid becomes another program.
    pub fn exec(&mut self, pid: u32, tid: u32, name: &str) {
        let old = self
            .processes
            .get(&pid)
            .map(|old| (old.key, old.parent, old.start_time, old.exec_generation, old.announced));
        // If it has got rights by this, its events end; see `owner`.
        let permitted_from = self.processes.get(&pid).map_or(self.newcomers_from, |old| old.permitted_from);
        let membership = self.processes.get(&pid).and_then(|old| old.membership.clone());
        let forebear = self.processes.get(&pid).map_or(Principal::SOMEWHERE, LiveProcess::forebear_after_exec);
        let parent_pid = self.parent_pid(pid);
        let sampled_time = self.processes.get(&pid).map(|old| old.sampled_time).unwrap_or_default();
        let (parent, start_time, generation) = match old {
            // A generation without a sample is of no interest: its child takes its place.
            Some((key, parent, start, generation, announced)) => {
                (if announced { Some(key) } else { parent }, start, generation + 1)
            }
            None if self.asks_proc => (None, procfs::stat(pid).map_or(0, |stat| stat.start_time), 0),
            None => (None, 0, 0),
        };
        self.remove_process(pid);
        if !self.has_room_for_process() {
            self.left_out.threads += 1;
            return;
        }
        self.execs += u32::from(old.is_some());
        self.add_process(pid, parent, start_time, generation, name.to_owned(), Mappings::default());
        self.permit(pid, permitted_from);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.membership = membership;
            process.parent_pid = parent_pid;
            process.forebear = forebear;
            process.awaits_mapping = true;
            process.sampled_time = sampled_time;
        }
        self.add_thread(pid, tid, name.to_owned());
        // The counters belong to the task that called `execve`, which has taken the main thread's place.
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.group_values.unknown_start = true;
        }
    }

    /// Whether others know of a process; `None` where it is not known itself.
    #[inline]
    pub fn is_announced(&self, pid: u32) -> Option<bool> {
        self.processes.get(&pid).map(|process| process.announced)
    }

    /// What a process belongs to, if that is known.
    pub fn membership(&self, pid: u32) -> Option<&Arc<Membership>> {
        self.processes.get(&pid)?.membership.as_ref()
    }

    /// Announced live processes and what they belong to, if known. (Where it could not be read, nothing says that the
    /// process moved.)
    pub fn announced_memberships(&self) -> Vec<(u32, Arc<Membership>)> {
        let announced = self.processes.iter().filter(|(_, process)| process.announced);
        announced.filter_map(|(&pid, process)| Some((pid, process.membership.clone()?))).collect()
    }

    /// A process belongs to something else: it goes on as another generation, and what others know of it stays.
    pub fn move_process(&mut self, pid: u32, membership: Arc<Membership>) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.membership = Some(membership);
        process.user = None;
        if !process.announced {
            return;
        }
        (process.parent, process.announced) = (Some(process.key), false);
        self.ended_processes.push(process.key);
        process.key = ProcessKey(self.next_process);
        self.next_process += 1;
        process.exec_generation += 1;
        self.execs += 1;
        for tid in self.threads_of(pid).into_iter().map(Some).chain([None]) {
            let thread = match tid {
                Some(tid) => self.threads.get_mut(&tid),
                None => self.others.get_mut(&pid),
            };
            if let Some(thread) = thread.filter(|thread| thread.announced) {
                self.ended.push(thread.key);
                (thread.key, thread.announced) = (ThreadKey(self.next_thread), false);
                self.next_thread += 1;
            }
        }
    }

    /// A thread's new name; the main thread's is the process's.
    pub fn rename(&mut self, pid: u32, tid: u32, name: &str) -> Option<(&LiveThread, &LiveProcess)> {
        if !self.asks_proc && !self.threads.contains_key(&tid) {
            // A recording has no earlier record of processes that ran before it.
            self.enter_recorded(pid);
            self.add_thread(pid, tid, name.to_owned());
        }
        let process = self.processes.get_mut(&pid)?;
        if pid == tid {
            name.clone_into(&mut process.name);
        }
        let thread = self.threads.get_mut(&tid)?;
        name.clone_into(&mut thread.name);
        Some((thread, process))
    }

    /// Whether a process has called `execve` and mapped nothing since.
    pub fn awaits_mapping(&self, pid: u32) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.awaits_mapping)
    }

    /// The next record of a process's end is of its end, whether it has mapped anything or not. If there is none, it is looked
    /// whether it has ended.
    pub fn expect_end(&mut self, pid: u32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.awaits_mapping = false;
            process.may_have_ended = true;
            self.perhaps_ended.insert(pid, LOOKS_FOR_END);
        }
    }

    /// Whether the processes are those of a recording.
    pub fn is_of_recording(&self) -> bool {
        !self.asks_proc
    }

    /// A thread ended, and with the last one its process.
    pub fn exit(&mut self, pid: u32, tid: u32) {
        let thread = self.remove_thread(tid);
        self.ended.extend(thread.as_ref().filter(|thread| thread.announced).map(|thread| thread.key));
        let is_unknown = thread.is_none() && !self.forget_untracked(pid, tid);
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.threads = process.threads.saturating_sub(u32::from(thread.is_some()));
        let is_last = process.threads == 0 && process.untracked == 0;
        if process.has_unknown_threads && is_last {
            // The record comes before the kernel has taken the thread out of /proc.
            self.perhaps_ended.insert(pid, LOOKS_FOR_END);
        } else if is_last && !is_unknown {
            self.drop_process(pid);
        }
    }

    fn remove_thread(&mut self, tid: u32) -> Option<LiveThread> {
        let thread = self.threads.remove(&tid)?;
        self.by_process.remove(&(thread.pid, tid));
        Some(thread)
    }

    fn threads_of(&self, pid: u32) -> Vec<u32> {
        self.by_process.range((pid, 0)..=(pid, u32::MAX)).map(|&(_, tid)| tid).collect()
    }

    fn drop_process(&mut self, pid: u32) -> bool {
        let process = self.processes.remove(&pid);
        let gone = process.as_ref().map_or(0, |process| process.mappings.count());
        self.mapped = self.mapped.saturating_sub(gone);
        self.untracked.remove_process(pid, process.as_ref().map_or(0, |process| process.untracked as usize));
        let others = self.others.remove(&pid).filter(|others| others.announced);
        self.ended.extend(others.map(|others| others.key));
        self.ended_processes.extend(process.as_ref().filter(|process| process.announced).map(|process| process.key));
        process.is_some()
    }

    /// Forgets a process and its threads.
    pub fn remove_process(&mut self, pid: u32) {
        if self.drop_process(pid) {
            for tid in self.threads_of(pid) {
                let thread = self.remove_thread(tid).filter(|thread| thread.announced);
                self.ended.extend(thread.map(|thread| thread.key));
            }
        }
    }

    /// Forgets processes found running that have ended since, as `has_ended` says. To be called now and then.
    pub fn forget_ended(&mut self, has_ended: impl Fn(u32) -> bool) {
        for (pid, looks) in std::mem::take(&mut self.perhaps_ended) {
            let is_last =
                self.processes.get(&pid).is_some_and(|process| process.threads == 0 || process.may_have_ended);
            if is_last && has_ended(pid) {
                self.remove_process(pid);
            } else if is_last && looks > 1 {
                self.perhaps_ended.insert(pid, looks - 1);
            }
        }
    }

    /// Forgets processes that `has_ended` on two consecutive calls: their exit record was lost. (After one, records of
    /// the exit and earlier forks may still come.)
    pub fn forget_untold(&mut self, has_ended: impl Fn(u32) -> bool) {
        let ended: Vec<(u32, ProcessKey)> = self
            .processes
            .iter()
            .filter(|&(&pid, _)| has_ended(pid))
            .map(|(&pid, process)| (pid, process.key))
            .collect();
        let before = std::mem::take(&mut self.ended_untold);
        for (pid, key) in ended {
            if before.contains(&key) {
                self.remove_process(pid);
            } else {
                self.ended_untold.insert(key);
            }
        }
    }

    /// Announced threads that have ended, each once, however their end became known.
    pub fn take_ended(&mut self) -> impl Iterator<Item = ThreadKey> + '_ {
        self.ended.drain(..)
    }

    /// The same of processes. One that executes another program ends, too.
    pub fn take_ended_processes(&mut self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.ended_processes.drain(..)
    }
}

#[cfg(test)]
#[path = "process_tests.rs"]
mod tests;
