//! Live threads beyond the limit, by id only: each is counted once, and known to be the target's.

use hashbrown::HashMap;

/// Bytes that one takes, with its part of the index.
pub const UNTRACKED_BYTES: usize = 64;

// An index of hashes has up to 16 places for 7 entries.
const _: () = assert!(size_of::<(u32, UntrackedThread)>() * 16 / 7 <= UNTRACKED_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UntrackedThread {
    pub pid: u32,
    /// When it was entered here, clock ticks since boot: it had started then.
    pub known_since: u64,
}

/// As many of them as there may be; of further ones only the number is known.
#[derive(Debug)]
pub struct UntrackedThreads {
    most: usize,
    threads: HashMap<u32, UntrackedThread>,
    nameless: usize,
}

impl UntrackedThreads {
    pub fn within(bytes: usize) -> UntrackedThreads {
        UntrackedThreads { most: bytes / UNTRACKED_BYTES, threads: HashMap::new(), nameless: 0 }
    }

    pub fn held_bytes(&self) -> usize {
        self.threads.len() * UNTRACKED_BYTES
    }

    #[inline]
    pub fn get(&self, tid: u32) -> Option<UntrackedThread> {
        self.threads.get(&tid).copied()
    }

    /// Whether one that is not here may still be one of them.
    pub fn has_nameless(&self) -> bool {
        self.nameless > 0
    }

    pub fn is_full(&self) -> bool {
        self.threads.len() >= self.most
    }

    pub fn insert(&mut self, tid: u32, thread: UntrackedThread) {
        if self.is_full() {
            self.nameless += 1;
        } else {
            self.threads.insert(tid, thread);
        }
    }

    /// One is no more, or is followed by now. False if there was none such: not by this number, and none without.
    pub fn remove(&mut self, pid: u32, tid: u32) -> bool {
        if self.get(tid).is_some_and(|thread| thread.pid == pid) {
            self.threads.remove(&tid);
            return true;
        }
        let had = self.has_nameless();
        self.nameless = self.nameless.saturating_sub(1);
        had
    }

    pub fn remove_process(&mut self, pid: u32, count: usize) {
        if count > 0 {
            let named = self.threads.extract_if(|_, thread| thread.pid == pid).count();
            self.nameless = self.nameless.saturating_sub(count.saturating_sub(named));
        }
    }
}
