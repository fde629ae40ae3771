//! Finding all threads of a running target, while it starts new ones.

use hashbrown::{HashMap, HashSet};

use super::records::FORK_NS;
use super::{BETWEEN_READS, Sampler, refusal};
use crate::batch::Item;
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::perf::layout::Layout;
use crate::perf::set::Opened;
use crate::perf::sorter::MARGIN_NS;
use crate::process::NEVER;
use crate::process::owner::Denied;
use crate::procfs;
use crate::promptness::{become_ordinary, become_urgent};

/// Rounds of looking for threads that came while the events were being opened. Each finds those that the one before
/// missed; a program that starts threads faster than they can be opened is followed by inheritance from then on.
const SCAN_ROUNDS: u32 = 20;

impl Sampler {
    /// Opens the events of every thread of `pids`, and with `children` of every process that descends from them, until a
    /// look at /proc finds no thread that is neither open nor inherited.
    ///
    /// # Errors
    /// [`Error::DiedDuringAttach`] if all are gone before any could be opened, [`Error::NotPermitted`],
    /// [`Error::TooManyFiles`].
    pub fn attach(&mut self, pids: &[u32], children: bool) -> Result<()> {
        self.attached = true;
        self.ends_with_target = true;
        self.started = Some(now_ns());
        // The rings fill from the first thread on.
        let urgent = become_urgent();
        let attached = self.open_all(pids, children, &mut Refused::Never);
        if matches!(urgent, Ok(true)) {
            let _ = become_ordinary();
        }
        match pids.first() {
            Some(&pid) if attached? == 0 => Err(Error::DiedDuringAttach(pid)),
            _ => Ok(()),
        }
    }

    /// Follows more processes, with all that descend from them, or the first ones of a session that goes on when all have
    /// ended. Those that are followed already stay as they are. Returns those whose events the kernel refuses.
    ///
    /// # Errors
    /// [`Error::TooManyFiles`]; some of the processes may be followed then, or some of their threads.
    pub fn add(&mut self, pids: &[u32]) -> Result<Vec<u32>> {
        self.attached = true;
        self.started = self.started.or_else(|| Some(now_ns()));
        let mut refused = Refused::These(Vec::new());
        let opened = self.open_all(pids, true, &mut refused);
        self.state.scanning = false;
        opened?;
        match refused {
            Refused::These(pids) => Ok(pids),
            Refused::Never => Ok(Vec::new()),
        }
    }

    /// Returns how many threads were opened.
    fn open_all(&mut self, pids: &[u32], children: bool, refused: &mut Refused) -> Result<usize> {
        let mut opened: HashMap<u32, u64> = HashMap::new();
        let mut processes: HashSet<u32> = HashSet::new();
        self.state.scanning = true;
        let mut settled = false;
        // Not those that are followed already, nor what they fork. Where there are such, a process that is found may be one
        // of theirs of which the record is still to come.
        self.sorter.drain(u64::MAX, |ring, record| self.state.handle(ring, record));
        let followed: HashSet<u32> = self.state.table.pids().into_iter().collect();
        let per_cpu = self.events.layout() == Layout::Cpus;
        for round in 0..SCAN_ROUNDS {
            let mut all = pids.to_vec();
            if children {
                all.extend(procfs::descendants(pids));
                // Whoever attaches to his own shell does not mean ccsd.
                all.retain(|&pid| pid != std::process::id());
            }
            all.retain(|pid| !followed.contains(pid) && !refused.contains(*pid));
            // What was forked in the meantime by threads already open says so in the rings.
            self.sorter.drain(u64::MAX, |ring, record| self.state.handle(ring, record));
            let mut found = false;
            for &pid in &all {
                match self.state.may_follow(pid) {
                    Ok(()) => {}
                    Err(denied @ Denied::Forbidden(_)) if pids.contains(&pid) && !refused.add(pid) => {
                        return Err(refusal(denied, pid));
                    }
                    Err(_) => continue,
                }
                let mut unknown = self.state.table.is_withheld(pid, NEVER - 1);
                let (mut new, mut failed) = (Vec::new(), None);
                // Whether it was looked at before all of its threads were opened: one that was not yet may have mapped
                // something since, of which no record tells.
                let mut early = false;
                let threads = match procfs::threads(pid) {
                    Err(error) if error.raw_os_error() == Some(libc::EMFILE) => {
                        return Err(Error::system(format!("look at process {pid}"), error));
                    }
                    threads => threads.unwrap_or_default(),
                };
                for tid in threads {
                    self.channels.pulse.beat();
                    // A thread forked by an open one has inherited its events, unless these were opened while it was
                    // being forked: then it may or may not have.
                    let inherited = self.state.forked.get(&tid).is_some_and(|&(parent, time)| {
                        opened.get(&parent).is_none_or(|&since| time.saturating_sub(since) > FORK_NS)
                    });
                    if opened.contains_key(&tid) || inherited {
                        continue;
                    }
                    // Where whole CPUs are sampled, all that is in doubt is whether its time is counted already.
                    if per_cpu && self.state.forked.contains_key(&tid) {
                        continue;
                    }
                    let doubtful = (round > 0 || !followed.is_empty()) && !per_cpu;
                    match self.events.open_thread(tid, doubtful) {
                        Ok(Opened::Yes) => {}
                        Ok(Opened::Gone) => continue,
                        // A child may have become another user's; only those asked for must be permitted.
                        Err(Error::NotPermitted { .. }) if !pids.contains(&pid) || refused.add(pid) => continue,
                        Err(error) => {
                            failed = Some(error);
                            break;
                        }
                    }
                    found = true;
                    new.push(tid);
                    opened.insert(tid, now_ns());
                    if doubtful {
                        self.state.doubts.add(tid);
                    }
                    if processes.insert(pid) {
                        let ticks = procfs::stat(pid).map(|stat| stat.cpu_ticks).unwrap_or_default();
                        self.state.cpu_before.insert(pid, ticks);
                        self.clocks.begin(pid);
                        unknown = true;
                    }
                    // Where it is looked again who it belongs to, nothing may be charged to it before that.
                    if new.len() == BETWEEN_READS && !self.state.is_restricted() {
                        if std::mem::take(&mut unknown) {
                            let _ = self.state.enter(pid);
                            early = true;
                        }
                        self.add_threads(pid, &mut new);
                        self.read_rings(now_ns().saturating_sub(MARGIN_NS));
                    }
                }
                // It may have executed something since it was looked at: then these are that program's events.
                let looks_again = unknown || early || (!new.is_empty() && self.state.is_restricted());
                match if looks_again { self.state.enter(pid) } else { Ok(()) } {
                    Err(denied @ Denied::Forbidden(_)) if pids.contains(&pid) && !refused.add(pid) => {
                        return Err(refusal(denied, pid));
                    }
                    Err(_) => continue,
                    Ok(()) => {}
                }
                self.add_threads(pid, &mut new);
                if let Some(error) = failed {
                    return Err(error);
                }
            }
            if !found {
                settled = true;
                break;
            }
        }
        if !settled {
            let note = "the target started threads faster than they could be attached to: some may be missing";
            self.state.batch.items.push(Item::Note(note.to_owned()));
        }
        if !self.events.counts_all() {
            let note = "more threads than files may be open: how many samples to expect is not known";
            self.state.batch.items.push(Item::Note(note.to_owned()));
        }
        self.state.scanning = false;
        self.state.forked = HashMap::new();
        // A process that ended in between left its entry; without it the session would wait for it forever.
        self.state.forget_the_dead();
        Ok(opened.len())
    }

    /// Enters threads that have been opened.
    fn add_threads(&mut self, pid: u32, new: &mut Vec<u32>) {
        for tid in new.drain(..) {
            if !self.state.table.knows_thread(tid) {
                self.state.table.add_thread(pid, tid, procfs::comm(pid, tid).unwrap_or_default());
            }
        }
    }
}

/// What is done about a process that may not be followed although it was asked for.
enum Refused {
    /// It is an error.
    Never,
    /// It is left out, and told.
    These(Vec<u32>),
}

impl Refused {
    fn contains(&self, pid: u32) -> bool {
        matches!(self, Refused::These(pids) if pids.contains(&pid))
    }

    /// Notes a process that is left out; false if it may not be.
    fn add(&mut self, pid: u32) -> bool {
        let Refused::These(pids) = self else { return false };
        if !pids.contains(&pid) {
            pids.push(pid);
        }
        true
    }
}
