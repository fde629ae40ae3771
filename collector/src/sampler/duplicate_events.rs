//! Threads that two events may sample: they were opened while they may already have inherited others.
//!
//! The event opened later has the higher identifier, and all its heirs have the other too. So the lower is believed and
//! the other closed.

use hashbrown::{HashMap, HashSet};

/// Threads of which that is not known yet, and all that descend from them.
#[derive(Debug, Default)]
pub struct DuplicateEvents {
    threads: HashSet<u32>,
    /// Which event of a thread is believed, by ring.
    believed: HashMap<(u32, usize), u64>,
}

impl DuplicateEvents {
    pub fn add(&mut self, tid: u32) {
        self.threads.insert(tid);
    }

    /// A thread was forked: it has inherited from all events of its parent.
    pub fn fork(&mut self, tid: u32, parent_tid: u32) {
        if self.threads.contains(&parent_tid) {
            self.threads.insert(tid);
        }
    }

    pub fn exit(&mut self, tid: u32) {
        if self.threads.remove(&tid) {
            self.believed.retain(|&(thread, _), _| thread != tid);
        }
    }

    /// An event has sampled a thread in a ring: `None` if that counts; else another event samples it there, and this is
    /// to be closed.
    #[inline]
    pub fn redundant(&mut self, tid: u32, ring: usize, event: u64) -> Option<u64> {
        if self.threads.is_empty() || !self.threads.contains(&tid) {
            return None;
        }
        let believed = self.believed.entry((tid, ring)).or_insert(event);
        if *believed == event {
            return None;
        }
        let later = event.max(*believed);
        *believed = event.min(*believed);
        Some(later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_two_events_is_believed() {
        let mut duplicates = DuplicateEvents::default();
        assert_eq!(duplicates.redundant(1, 0, 7), None);
        duplicates.add(1);
        duplicates.fork(2, 1);
        duplicates.fork(3, 9);
        for tid in [1, 2] {
            assert_eq!([7, 7].map(|event| duplicates.redundant(tid, 0, event)), [None, None]);
            // Each ring has events of its own.
            assert_eq!(duplicates.redundant(tid, 2, 8), None);
            assert_eq!(
                [9, 5, 7, 5].map(|event| duplicates.redundant(tid, 0, event)),
                [Some(9), Some(7), Some(7), None]
            );
        }
        assert_eq!([4, 5].map(|event| duplicates.redundant(3, 0, event)), [None, None]);
        // The number may be another thread's later.
        duplicates.exit(1);
        duplicates.add(1);
        assert_eq!(duplicates.redundant(1, 0, 9), None);
        assert_eq!(duplicates.redundant(2, 0, 9), Some(9));
    }
}
