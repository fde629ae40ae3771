//! Finding all threads of a running target, while it starts new ones.

use hashbrown::HashSet;

use super::left_out_pids::LeftOutPids;
use super::source::{BETWEEN_READS, RecordSource};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::perf::layout::EventLayout;
use crate::perf::set::OpenOutcome;
use crate::process::owner::Denied;
use crate::procfs;
use crate::tracker::scan::{SCAN_ROUNDS, ThreadScan, descendants};

/// Opens the events of every thread of `pids`, and with `children` of all descendants, until a scan of /proc finds no
/// thread that is neither open nor inherited. Returns how many threads were opened. Errors: [`Error::NotPermitted`],
/// [`Error::TooManyFiles`]; some of the threads may be open then.
pub fn open_all(source: &mut RecordSource, pids: &[u32], children: bool, refused: &mut RefusedPids) -> Result<usize> {
    source.pipeline.tracker.begin_scan();
    let opened = Attach::new(source, pids, children, refused).run();
    source.pipeline.tracker.end_scan();
    let opened = opened?;
    // A process that ended in between left its entry; without it the session would wait for it forever.
    source.pipeline.tracker.forget_the_dead();
    Ok(opened)
}

pub fn refusal(denied: Denied, pid: u32) -> Error {
    match denied {
        Denied::Gone => Error::DiedDuringAttach(pid),
        Denied::Forbidden(_) => Error::NotPermitted { pid, owner: procfs::owner_label(pid) },
    }
}

struct Attach<'a> {
    source: &'a mut RecordSource,
    pids: &'a [u32],
    children: bool,
    refused: &'a mut RefusedPids,
    scan: ThreadScan,
    processes: HashSet<u32>,
    /// Whether it has been noted of a process that the kernel does not answer.
    has_told: bool,
    /// Processes that were followed before, and whose threads are not opened.
    followed: HashSet<u32>,
}

struct OpeningProcess {
    pid: u32,
    new: Vec<u32>,
    is_unknown: bool,
    /// Whether it was entered before all of its threads were open: one may have mapped something without a record.
    is_early: bool,
}

impl<'a> Attach<'a> {
    fn new(source: &'a mut RecordSource, pids: &'a [u32], children: bool, refused: &'a mut RefusedPids) -> Attach<'a> {
        // Not those that are followed already, nor what they fork.
        source.drain();
        let followed = source.pipeline.tracker.pids().into_iter().collect();
        let (scan, processes) = (ThreadScan::default(), HashSet::new());
        Attach { source, pids, children, refused, scan, processes, has_told: false, followed }
    }

    fn run(mut self) -> Result<usize> {
        let mut settled = false;
        for round in 0..SCAN_ROUNDS {
            // Threads found later may be children of open ones; where other processes are followed, of theirs, with the
            // record to come.
            let is_late = round > 0 || !self.followed.is_empty();
            if !self.round(is_late)? {
                settled = true;
                break;
            }
        }
        self.refused.refuse_partly(&self.processes);
        let batch = &mut self.source.pipeline.batch;
        if !settled {
            let note = "the target started threads faster than ccsd could attach to them; some may be missing";
            batch.note(note.to_owned());
        }
        if !self.source.events.counts_all() {
            let note = "more threads than files may be open, so the number of expected samples is unknown";
            batch.note(note.to_owned());
        }
        Ok(self.scan.count())
    }

    /// One look at all processes. Returns whether a thread was opened.
    fn round(&mut self, is_late: bool) -> Result<bool> {
        let mut all = self.pids.to_vec();
        if self.children {
            all.extend(descendants(self.pids));
            all.retain(|&pid| pid != std::process::id());
        }
        all.retain(|&pid| !self.followed.contains(&pid) && !self.refused.contains(pid));
        // What was forked in the meantime by threads already open says so in the rings.
        self.source.drain();
        let before = self.scan.count();
        for pid in all {
            self.source.channels.watchdog.beat();
            // Rings fill while processes are asked, which may take long to answer.
            self.source.read_recent();
            match self.source.pipeline.tracker.may_follow(pid) {
                Ok(()) => {}
                Err(denied) => {
                    self.refuse(denied, pid)?;
                    continue;
                }
            }
            let is_unknown = self.source.pipeline.tracker.is_withheld(pid);
            let mut process = OpeningProcess { pid, new: Vec::new(), is_unknown, is_early: false };
            let threads = match self.scan.new_threads(pid) {
                Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                    return Err(Error::system(format!("look at process {pid}"), error));
                }
                threads => threads.unwrap_or_default(),
            };
            let opened = self.open_threads(&mut process, threads, is_late);
            if opened.is_ok() && self.refused.contains(pid) && !self.processes.contains(&pid) {
                // It is not followed, and may be later.
                continue;
            }
            // It may have executed something since it was looked at: then these are that program's events.
            let is_restricted = self.source.pipeline.tracker.is_restricted();
            let enters = process.is_unknown || process.is_early || (!process.new.is_empty() && is_restricted);
            if enters && let Err(denied) = self.source.pipeline.tracker.enter(pid) {
                self.refuse(denied, pid)?;
                continue;
            }
            self.enter_threads(&mut process);
            opened?;
        }
        // Those of a process that may not be entered yet count, too: the next round looks at it again.
        Ok(self.scan.count() > before)
    }

    fn open_threads(&mut self, process: &mut OpeningProcess, threads: Vec<u32>, is_late: bool) -> Result<()> {
        let pid = process.pid;
        let per_cpu = self.source.events.layout() == EventLayout::Cpus;
        let is_doubtful = is_late && !per_cpu;
        for tid in threads {
            self.source.channels.watchdog.beat();
            // A thread forked by an open one has inherited its events, unless these were opened during the fork. With
            // whole CPUs, only its counted time is in doubt.
            let forks = self.source.pipeline.tracker.forks();
            if self.scan.has_inherited_first(tid, forks) || (per_cpu && forks.contains(tid)) {
                continue;
            }
            match self.source.events.open_thread(tid, is_doubtful) {
                Ok(OpenOutcome::Yes) => {}
                Ok(OpenOutcome::Gone) => continue,
                // A child may have become another user's; only those asked for must be permitted.
                Err(Error::NotPermitted { .. }) if !self.pids.contains(&pid) || self.refused.add(pid) => continue,
                Err(error @ Error::NoAnswer { .. }) if !self.pids.contains(&pid) || self.refused.add_silent(pid) => {
                    if !std::mem::replace(&mut self.has_told, true) {
                        self.source.pipeline.batch.note(error.to_string());
                    }
                    continue;
                }
                Err(error) => return Err(error),
            }
            process.new.push(tid);
            self.scan.open(tid, now_ns());
            if is_doubtful {
                self.source.pipeline.events.doubt(tid);
            }
            if self.processes.insert(pid) {
                self.source.time.begin(pid);
                process.is_unknown = true;
            }
            // Where it is looked again who it belongs to, nothing may be charged to it before that.
            if process.new.len() == BETWEEN_READS && !self.source.pipeline.tracker.is_restricted() {
                if std::mem::take(&mut process.is_unknown) {
                    let _ = self.source.pipeline.tracker.enter(pid);
                    process.is_early = true;
                }
                self.enter_threads(process);
                self.source.read_recent();
            }
        }
        Ok(())
    }

    /// Leaves out a process that may not be followed. Fails if it was asked for and none may be left out.
    fn refuse(&mut self, denied: Denied, pid: u32) -> Result<()> {
        match denied {
            Denied::Forbidden(_) if self.pids.contains(&pid) && !self.refused.add(pid) => Err(refusal(denied, pid)),
            _ => Ok(()),
        }
    }

    fn enter_threads(&mut self, process: &mut OpeningProcess) {
        for tid in process.new.drain(..) {
            self.source.pipeline.tracker.enter_thread(process.pid, tid);
        }
    }
}

/// What is done about a process that may not be followed although it was asked for.
pub enum RefusedPids {
    Never,
    These(LeftOutPids),
}

impl RefusedPids {
    fn contains(&self, pid: u32) -> bool {
        matches!(self, RefusedPids::These(pids) if pids.refused.contains(&pid) || pids.silent.contains(&pid))
    }

    /// What is followed already is not asked for again, even if one of its threads did not answer.
    fn refuse_partly(&mut self, followed: &HashSet<u32>) {
        if let RefusedPids::These(LeftOutPids { refused, silent }) = self {
            refused.extend(silent.extract_if(.., |pid| followed.contains(pid)));
        }
    }

    fn add(&mut self, pid: u32) -> bool {
        self.add_to(pid, |pids| &mut pids.refused)
    }

    fn add_silent(&mut self, pid: u32) -> bool {
        self.add_to(pid, |pids| &mut pids.silent)
    }

    fn add_to(&mut self, pid: u32, list: impl FnOnce(&mut LeftOutPids) -> &mut Vec<u32>) -> bool {
        let is_known = self.contains(pid);
        let RefusedPids::These(pids) = self else { return false };
        if !is_known {
            list(pids).push(pid);
        }
        true
    }
}
