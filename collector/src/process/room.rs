//! The memory that processes, threads and mappings take, and each user's share of it.

use ccsd_worker::Principal;

use super::ProcessTable;
use super::entry_bytes::{MAPPING_BYTES, PROCESS_BYTES, THREAD_BYTES};
use super::live::user_of;
use crate::clock::now_ns;

/// The part of the room from which on users have shares of it, how often these are counted at most, nanoseconds and a part of
/// the time, and of how many processes the user is looked up then, which takes some 15 us.
const SHARES_FROM: usize = 4;
const SHARES_NS: u64 = 50_000_000;
const SHARES_SHARE: u64 = 20;
const USERS_AT_ONCE: usize = 256;

impl ProcessTable {
    /// Bytes that all take, at most.
    pub fn held_bytes(&self) -> usize {
        self.entered_bytes().saturating_add(self.untracked.held_bytes())
    }

    pub(super) fn entered_bytes(&self) -> usize {
        let processes = self.processes.len() * PROCESS_BYTES + self.mapped * MAPPING_BYTES;
        let processes = processes + self.others.len() * THREAD_BYTES;
        self.threads.len().saturating_mul(self.thread_bytes).saturating_add(processes)
    }

    /// Whether one more process may be entered. Those that run may: there are not many.
    pub(super) fn has_room_for_process(&self) -> bool {
        self.asks_proc || self.limit.saturating_sub(self.entered_bytes()) >= PROCESS_BYTES
    }

    pub(super) fn has_room_for_thread(&mut self, pid: u32) -> bool {
        self.room_for(pid) >= self.thread_bytes
    }

    /// Bytes that a process's threads and mappings may take beside what is taken. Where much is, each user has a share.
    pub(super) fn room_for(&mut self, pid: u32) -> usize {
        let left = self.limit.saturating_sub(self.entered_bytes());
        if !self.has_shares() {
            return left;
        }
        let now = now_ns();
        if now >= self.shares_at {
            self.count_shares();
            let ended = now_ns();
            self.shares_at = ended + SHARES_NS.max(ended.saturating_sub(now) * SHARES_SHARE);
        }
        let user = self.look_up_user(pid);
        match self.shares.is_other(user) {
            true => left.min(usize::try_from(self.shares.left(user)).unwrap_or(usize::MAX)),
            false => left,
        }
    }

    /// Whether so much is taken that users have shares.
    fn has_shares(&self) -> bool {
        self.asks_proc && self.entered_bytes() > self.limit / SHARES_FROM
    }

    /// Counts what a process has taken since the last look at the shares.
    pub(super) fn count_taken(&mut self, pid: u32, bytes: usize) {
        if bytes > 0 && self.has_shares() {
            let user = self.look_up_user(pid);
            self.shares.add(user, bytes as u64);
        }
    }

    /// Who answers for a process.
    pub fn look_up_user(&mut self, pid: u32) -> Principal {
        match self.processes.get_mut(&pid) {
            Some(process) => *process.user.get_or_insert_with(|| user_of(pid)),
            None => user_of(pid),
        }
    }

    fn count_shares(&mut self) {
        let (mut shares, mut looked_up) = (self.shares.emptied(), 0);
        for (&pid, process) in &mut self.processes {
            if process.user.is_none() && looked_up < USERS_AT_ONCE {
                looked_up += 1;
                process.user = Some(user_of(pid));
            }
            let threads = (process.threads as usize).saturating_mul(self.thread_bytes);
            let bytes = PROCESS_BYTES + threads + process.mappings.count() * MAPPING_BYTES;
            shares.add(process.user.unwrap_or(Principal::SOMEWHERE), bytes as u64);
        }
        self.shares = shares;
    }
}
