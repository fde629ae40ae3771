//! What is known of a process and of a thread for as long as they live.

use std::sync::Arc;

use ccsd_profile::Membership;
use ccsd_worker::Principal;

use super::jit_code::JitCode;
use super::mappings::Mappings;
use super::sampled_time::SampledTime;
use crate::backoff::Backoff;
use crate::clock::{boot_ticks, now_ns};
use crate::procfs;

/// One identity of a process (pid, start, exec generation) in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcessKey(pub u32);

/// One thread of a [`ProcessKey`] in this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ThreadKey(pub u32);

#[derive(Clone, Debug)]
pub struct LiveProcess {
    pub key: ProcessKey,
    /// The process that forked it, or that it was before `execve`.
    pub parent: Option<ProcessKey>,
    /// Process id of its parent; 0 if the fork record is missing.
    pub parent_pid: u32,
    /// Start, clock ticks since boot; for a process seen forking, computed from the record's time.
    pub start_time: u64,
    /// How many `execve` calls of this pid the session has seen.
    pub exec_generation: u32,
    pub name: String,
    /// What it belongs to, as of the last look; of one that has not been looked at, what its parent did.
    pub membership: Option<Arc<Membership>>,
    pub announced: bool,
    pub mappings: Mappings,
    /// From when on its samples may be shown, `CLOCK_MONOTONIC` nanoseconds: 0 for always, [`NEVER`](super::NEVER)
    /// until permitted.
    pub permitted_from: u64,
    /// The code that it, or its parent before the fork, has generated.
    pub(super) jit: Option<Arc<JitCode>>,
    /// When its mappings are read again, if more do not fit.
    pub(super) full: Backoff,
    pub(super) threads: u32,
    /// Whether its mappings, or what they are of, could not be read in time.
    pub(super) is_late: bool,
    /// Whether it seems to have ended, or has got other rights.
    pub(super) may_have_ended: bool,
    /// Who answers for it, as far as that has been looked at; of one that was forked and has executed nothing, its parent's.
    pub user: Option<Principal>,
    /// Who answers for it where its user is not known: the last of its forebears' users that was not root, or else all that
    /// the last one of root's has forked.
    pub(super) forebear: Principal,
    /// Whether it may have threads that are not known: it was found running, and not all that runs is looked for.
    pub(super) has_unknown_threads: bool,
    pub(super) untracked: u32,
    /// Whether it has called `execve` and mapped nothing since.
    pub(super) awaits_mapping: bool,
    /// What its samples stand for, kept or not.
    pub sampled_time: SampledTime,
}

impl LiveProcess {
    /// Who pays for its samples; `None` if that is not to be looked at.
    pub fn payer(&self) -> Option<Principal> {
        self.user.map(|user| if user == Principal::SOMEWHERE { self.forebear } else { user })
    }

    /// Its user, if that is known. A child of root's may have given up root's rights since it was forked.
    fn known_user(&self) -> Option<Principal> {
        let may_have_changed = self.parent_pid != 0 && self.exec_generation == 0;
        self.user.filter(|&user| user != Principal::SOMEWHERE && !(user == Principal::Own && may_have_changed))
    }

    /// Whether a user has started it, who answers for what it does with root's rights, too.
    fn is_started_by_user(&self) -> bool {
        matches!(self.forebear, Principal::User(_))
    }

    /// The forebear of a process that it forks.
    pub(super) fn forebear_of_child(&self, pid: u32) -> Principal {
        match self.known_user() {
            Some(Principal::Own) if !self.is_started_by_user() => children_of(pid),
            Some(Principal::Own) => self.forebear,
            Some(user) => user,
            None => self.forebear,
        }
    }

    /// Its forebear after an `execve`.
    pub(super) fn forebear_after_exec(&self) -> Principal {
        self.known_user().filter(|&user| user != Principal::Own).unwrap_or(self.forebear)
    }

    /// Who answers for it that has died: its user, as that is now or was known before, but if that is root the user who started
    /// it; else that of its control group, but not root, of whom it may have that without the rights; else its forebear.
    pub fn answers_at_death(&self, pid: u32) -> Principal {
        let is_it = |_: &Principal| procfs::has_run_since(pid, self.start_time);
        let now = Some(user_of(pid)).filter(|&user| user != Principal::SOMEWHERE).filter(is_it);
        let of_group =
            || self.membership.as_ref()?.uid.map(ccsd_worker::principal_of).filter(|&user| user != Principal::Own);
        let known = now.or_else(|| self.known_user()).or_else(of_group);
        known.filter(|&user| user != Principal::Own || !self.is_started_by_user()).unwrap_or(self.forebear)
    }
}

/// Who answers for a process that is there now.
pub(super) fn user_of(pid: u32) -> Principal {
    ccsd_worker::principal_of_process(pid, procfs::user_of_process(pid))
}

/// Stands for the users of all that a process has forked.
pub const fn children_of(pid: u32) -> Principal {
    Principal::Elsewhere { namespace: 0, device: pid as u64 }
}

#[derive(Clone, Debug)]
pub struct LiveThread {
    pub key: ThreadKey,
    pub pid: u32,
    pub name: String,
    pub announced: bool,
    pub group_values: GroupValues,
    /// When it was entered here, clock ticks since boot: it had started then.
    pub(super) known_since: u64,
    /// Whether this is the aggregate entry for the process's untracked threads.
    pub is_others: bool,
}

impl LiveThread {
    pub(super) fn new(key: ThreadKey, pid: u32, name: String, is_others: bool) -> LiveThread {
        let known_since = boot_ticks(now_ns());
        LiveThread { key, pid, name, announced: false, group_values: GroupValues::default(), is_others, known_since }
    }
}

/// The last values of a counter that runs on, per ring (each CPU has its own).
#[derive(Clone, Debug, Default)]
pub struct GroupValues {
    last: Vec<Option<u64>>,
    /// Whether a counter that has not been read yet may have run before this thread was known.
    pub(super) unknown_start: bool,
    /// Which events they are of, counted from 0.
    generation: u32,
}

impl GroupValues {
    /// Says which events are read from now on. Those of another generation have begun to count at zero.
    #[inline]
    pub fn begin(&mut self, generation: u32) {
        if self.generation != generation {
            self.generation = generation;
            self.last.clear();
            self.unknown_start = false;
        }
    }

    /// A counter's gain in a ring since its last read. The first value is all gain if the counter began with the
    /// thread, else none.
    #[inline]
    pub fn advance(&mut self, ring: usize, value: u64) -> u64 {
        if self.last.len() <= ring {
            self.last.resize(ring + 1, None);
        }
        let before = self.last[ring].replace(value).unwrap_or(if self.unknown_start { value } else { 0 });
        value.saturating_sub(before)
    }
}
