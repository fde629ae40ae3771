//! Whose samples are kept: processes of the session's user, and those that fit its filter.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::backoff::Backoff;
use crate::clock::now_ns;
use crate::process::NEVER;
use crate::process::filter::{Executed, ProcessFilter};
use crate::process::owner::{Denied, Owner};

/// Minimum time between two reviews of all processes by the filter, nanoseconds: no record shows a changed user or
/// control group.
const REVIEW_NS: u64 = 500_000_000;
/// The part of the time that reviews take, one in so many.
const REVIEW_SHARE: u64 = 100;
/// Time in which executed programs are judged at once, nanoseconds, and what that may take of it: 40 us for each.
const AT_ONCE_NS: u64 = 1_000_000_000;
const AT_ONCE_MOST_NS: u64 = 50_000_000;

pub struct Admission {
    owner: Option<Owner>,
    /// What a process must fit. `None` where all are kept.
    filter: Option<Arc<dyn ProcessFilter>>,
    /// Processes to be judged at the next review.
    due: HashSet<u32>,
    /// Those of them of which it is not known whether they fit, with their samples since.
    undecided: HashMap<u32, u64>,
    judging: Backoff,
    /// Processes that have executed a program of which the name alone does not decide, and that name.
    executed: HashMap<u32, String>,
    /// When the present second began, and what judging at once has taken since.
    at_once: (u64, u64),
    /// When all processes are judged again.
    review_at: u64,
}

pub struct Review {
    pub filter: Arc<dyn ProcessFilter>,
    pub pids: HashSet<u32>,
    all: bool,
    began: u64,
}

impl Admission {
    pub fn new(owner: Option<Owner>) -> Admission {
        Admission {
            owner,
            filter: None,
            due: HashSet::new(),
            undecided: HashMap::new(),
            judging: Backoff::default(),
            executed: HashMap::new(),
            at_once: (0, 0),
            review_at: 0,
        }
    }

    pub fn keep_only(&mut self, filter: Option<Arc<dyn ProcessFilter>>) {
        self.filter = filter;
    }

    pub fn is_restricted(&self) -> bool {
        self.owner.is_some() || self.filter.is_some()
    }

    pub fn filter(&self) -> Option<&dyn ProcessFilter> {
        self.filter.as_deref()
    }

    pub fn has_filter(&self) -> bool {
        self.filter.is_some()
    }

    pub fn keeps_name(&self, name: &str) -> Option<bool> {
        self.filter.as_ref().map(|filter| filter.keeps_name(name))
    }

    /// Whether the filter, if any, keeps a process that has just executed a program. `None` if that is still to be
    /// judged.
    pub fn keeps_after_exec(&self, name: &str, was_kept: bool) -> Option<bool> {
        self.filter.as_ref()?.keeps_after_exec(name, was_kept)
    }

    /// Judges a process that has just executed, if its name does not decide. `None`: wait for the program's mapping, or
    /// the next review.
    #[cold]
    pub fn judge_executed(&mut self, executed: Executed<'_>) -> Option<bool> {
        let Executed { pid, name, .. } = executed;
        let decided = self.judge_at_once(&executed);
        match decided {
            None => _ = self.executed.insert(pid, name.to_owned()),
            Some(_) => _ = self.executed.remove(&pid),
        }
        decided
    }

    /// Whether the program that a process maps next decides whether it is kept.
    pub fn awaits_program(&self, pid: u32) -> bool {
        self.executed.contains_key(&pid)
    }

    #[cold]
    pub fn judge_program(&mut self, executed: Executed<'_>) -> Option<bool> {
        let name = self.executed.remove(&executed.pid)?;
        self.judge_at_once(&Executed { name: &name, ..executed })
    }

    fn judge_at_once(&mut self, executed: &Executed<'_>) -> Option<bool> {
        // A user's own rights are looked at by themselves.
        let filter = self.filter.as_ref().filter(|_| self.owner.is_none())?;
        let began = now_ns();
        if began.saturating_sub(self.at_once.0) > AT_ONCE_NS {
            self.at_once = (began, 0);
        }
        if self.at_once.1 > AT_ONCE_MOST_NS {
            return None;
        }
        let decided = filter.keeps_executed(executed);
        self.at_once.1 = self.at_once.1.saturating_add(now_ns().saturating_sub(began));
        decided
    }

    /// Whether it is not known whether a process fits the filter.
    pub fn is_undecided(&self, pid: u32) -> bool {
        self.undecided.contains_key(&pid)
    }

    /// Counts a sample that is not kept. Returns whether it is not known whether its process fits the filter.
    pub fn count_undecided(&mut self, pid: u32) -> bool {
        let samples = self.undecided.get_mut(&pid);
        samples.map(|samples| *samples += 1).is_some()
    }

    /// A process is decided, or has ended undecided. Returns how many samples it gave until then.
    pub fn take_undecided(&mut self, pid: u32) -> u64 {
        if self.undecided.is_empty() { 0 } else { self.undecided.remove(&pid).unwrap_or(0) }
    }

    pub fn forget(&mut self, pid: u32) {
        if !self.executed.is_empty() {
            self.executed.remove(&pid);
        }
    }

    /// The filter, if there is one, judges a process at the next review.
    #[cold]
    pub fn judge_later(&mut self, pid: u32) {
        if self.filter.is_some() {
            self.due.insert(pid);
        }
    }

    /// The same of a process of which it is not known until then whether it fits.
    #[cold]
    pub fn leave_undecided(&mut self, pid: u32) {
        if self.filter.is_some() {
            self.due.insert(pid);
            self.undecided.entry(pid).or_insert(0);
        }
    }

    pub fn check(&self, pid: u32) -> Result<(), Denied> {
        self.owner.map_or(Ok(()), |owner| owner.check(pid))?;
        // One that does not fit the filter is left out without a word, as one that has ended is.
        let fits = self.filter.as_ref().is_none_or(|filter| filter.keeps(pid) == Some(true));
        if fits { Ok(()) } else { Err(Denied::Gone) }
    }

    /// From when on the samples of a process are kept, after [`Admission::check`]. `None`: that does not change.
    pub fn permitted_from(&self, pid: u32, checked: Result<(), Denied>) -> Option<u64> {
        match checked {
            // Not what was before the check: then it may have been another program.
            Ok(()) => Some(now_ns()),
            Err(Denied::Forbidden(_)) => Some(NEVER),
            // A process that does not fit the filter has not ended.
            Err(Denied::Gone) if self.filter.as_ref().is_some_and(|filter| filter.keeps(pid) == Some(false)) => {
                Some(NEVER)
            }
            // What it did before its end is what it was.
            Err(Denied::Gone) => None,
        }
    }

    /// The processes to be judged now, if there are a filter and any: those that wait for it, and now and then all.
    pub fn begin_review(&mut self, now: u64, live: impl FnOnce() -> Vec<u32>) -> Option<Review> {
        let filter = self.filter.clone()?;
        let all = now >= self.review_at;
        if !all && (self.due.is_empty() || !self.judging.is_due(now)) {
            return None;
        }
        let mut pids = std::mem::take(&mut self.due);
        self.executed.clear();
        if all {
            pids.extend(live());
        }
        Some(Review { filter, pids, all, began: now })
    }

    pub fn end_review(&mut self, review: &Review, ended: u64) {
        if review.all {
            let took = ended.saturating_sub(review.began);
            self.review_at = ended.saturating_add(took.saturating_mul(REVIEW_SHARE).max(REVIEW_NS));
        }
        self.judging.done(review.began, ended);
    }

    #[cfg(test)]
    pub fn set_next_review(&mut self, at: u64) {
        self.review_at = at;
    }
}
