//! The scan for all threads of a running target: what starts meanwhile is found in the next round, or has inherited.
//!
//! Used to attach and to change the rate; a dump has rounds of its own.

use std::io;

use hashbrown::HashMap;

use crate::procfs;

/// Rounds of looking for threads. Where a program starts them faster than events are opened, attaching then relies on
/// inheritance, and a change of the rate is given up.
pub const SCAN_ROUNDS: u32 = 20;

/// Longest time from inheritance in `clone(2)` to the record of the fork, nanoseconds; a fork takes some 100 us.
pub const FORK_NS: u64 = 5_000_000;

/// The forks recorded during a scan.
#[derive(Debug, Default)]
pub struct ForkLog(Option<HashMap<u32, ForkedBy>>);

#[derive(Clone, Copy, Debug)]
struct ForkedBy {
    parent_tid: u32,
    time: u64,
}

impl ForkLog {
    /// No fork yet. (The default one notes none.)
    pub fn begin() -> ForkLog {
        ForkLog(Some(HashMap::new()))
    }

    pub fn add(&mut self, tid: u32, parent_tid: u32, time: u64) {
        if let Some(forks) = &mut self.0 {
            forks.insert(tid, ForkedBy { parent_tid, time });
        }
    }

    pub fn contains(&self, tid: u32) -> bool {
        self.get(tid).is_some()
    }

    fn get(&self, tid: u32) -> Option<ForkedBy> {
        self.0.as_ref()?.get(&tid).copied()
    }
}

#[derive(Debug, Default)]
pub struct ThreadScan {
    opened: HashMap<u32, u64>,
}

impl ThreadScan {
    /// A thread has been dealt with at `time`: its events, if any, are open since then.
    pub fn open(&mut self, tid: u32, time: u64) {
        self.opened.insert(tid, time);
    }

    pub fn contains(&self, tid: u32) -> bool {
        self.opened.contains_key(&tid)
    }

    pub fn count(&self) -> usize {
        self.opened.len()
    }

    /// The threads of a process that have yet to be dealt with. Errors: those of reading /proc.
    pub fn new_threads(&self, pid: u32) -> io::Result<Vec<u32>> {
        let mut tids = procfs::threads(pid)?;
        tids.retain(|&tid| !self.contains(tid));
        Ok(tids)
    }

    /// Whether a thread has inherited the first events: a fork record exists only if the parent has events, so a parent
    /// this scan has not opened has inherited them, or was opened earlier.
    pub fn has_inherited_first(&self, tid: u32, forks: &ForkLog) -> bool {
        forks.get(tid).is_some_and(|ForkedBy { parent_tid, time }| {
            self.opened.get(&parent_tid).is_none_or(|&since| time.saturating_sub(since) > FORK_NS)
        })
    }

    /// Whether a thread has certainly inherited further events: an ancestor was open when it forked the next. Otherwise
    /// it is opened, and a duplicate is closed again.
    pub fn has_inherited_next(&self, tid: u32, forks: &ForkLog) -> bool {
        let mut before = u64::MAX;
        let mut child = tid;
        while let Some(ForkedBy { parent_tid, time }) = forks.get(child) {
            // No thread is forked after its own child: that was another thread with this id. (So this ends.)
            if time >= before {
                return false;
            }
            if self.opened.get(&parent_tid).is_some_and(|&since| time.saturating_sub(since) > FORK_NS) {
                return true;
            }
            (child, before) = (parent_tid, time);
        }
        false
    }
}

/// Descendants of processes, without ccsd itself: a user who attaches to the own shell does not mean ccsd.
pub fn descendants(pids: &[u32]) -> impl Iterator<Item = u32> + use<> {
    let own = std::process::id();
    procfs::descendants(pids).into_iter().filter(move |&pid| pid != own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_inherited_from_any_ancestor() {
        const T: u64 = 1_000_000_000;
        let mut scan = ThreadScan::default();
        scan.open(1, T);
        scan.open(20, T + 3 * FORK_NS);
        let mut forks = ForkLog::begin();
        for (tid, (parent_tid, time)) in [
            (2, (1, T + FORK_NS + 1)),
            (3, (2, T + FORK_NS + 2)),
            (4, (3, T + FORK_NS + 3)),
            // While their parent was being opened, or before.
            (10, (1, T + FORK_NS)),
            (11, (10, T + FORK_NS + 1)),
            (12, (1, T - 1)),
            (20, (1, T + 2 * FORK_NS)),
            (21, (20, T + 3 * FORK_NS)),
            // Reused ids.
            (30, (31, T + 5)),
            (31, (30, T + 4)),
            (41, (40, T + 2 * FORK_NS)),
            (40, (1, T + 3 * FORK_NS)),
        ] {
            forks.add(tid, parent_tid, time);
        }
        let inherited: Vec<u32> = (0..50).filter(|&tid| scan.has_inherited_next(tid, &forks)).collect();
        assert_eq!(inherited, [2, 3, 4, 20, 21, 40]);
        // The first events: a parent that was not opened has inherited.
        let inherited: Vec<u32> = (0..50).filter(|&tid| scan.has_inherited_first(tid, &forks)).collect();
        assert_eq!(inherited, [2, 3, 4, 11, 20, 30, 31, 40, 41]);
    }

    #[test]
    fn forks_are_noted_during_a_scan_alone() {
        let mut forks = ForkLog::default();
        forks.add(2, 1, 5);
        assert!(!forks.contains(2));
        forks = ForkLog::begin();
        forks.add(2, 1, 5);
        assert!(forks.contains(2) && !forks.contains(1));
    }
}
