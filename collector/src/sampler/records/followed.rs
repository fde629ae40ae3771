//! Which processes are followed, as far as /proc has to be asked: at the beginning, and where records are missing.

use std::sync::Arc;

use super::State;
use crate::clock::now_ns;
use crate::process::NEVER;
use crate::process::filter::Filter;
use crate::process::owner::Denied;
use crate::procfs;

/// Time between two looks at all processes for the filter, nanoseconds, at least: so long samples are kept of a process that
/// has changed its user or control group.
const REVIEW_NS: u64 = 500_000_000;
/// The part of the time that these looks take, one in so many.
const REVIEW_SHARE: u64 = 100;

impl State {
    /// Keeps samples of processes only while these fit a filter. To be called before any is followed.
    pub fn keep_only(&mut self, filter: Option<Arc<dyn Filter>>) {
        if filter.is_some() {
            self.table = std::mem::take(&mut self.table).restricted();
        }
        self.filter = filter;
    }

    /// A process has another name.
    pub fn judge_name(&mut self, pid: u32, name: &str) {
        let Some(filter) = &self.filter else { return };
        if !filter.keeps_name(name) {
            self.table.permit(pid, NEVER);
        } else if self.table.is_withheld(pid, NEVER - 1) {
            self.unjudged.insert(pid);
        }
    }

    /// A sample of a process that is not known is withheld until the filter, if there is one, has judged that.
    #[cold]
    pub fn withhold(&mut self, pid: u32) {
        if self.filter.is_some() {
            self.unjudged.insert(pid);
        }
        self.count_withheld();
    }

    /// Counts a sample that is withheld.
    pub fn count_withheld(&mut self) {
        let filtered = u64::from(self.filter.is_some());
        self.counts.filtered += filtered;
        self.counts.others += filtered;
        self.counts.withheld += 1 - filtered;
    }

    /// Judges processes by the filter: those that have executed something or are unknown, and now and then all. To be called
    /// after every look at the rings.
    pub fn judge(&mut self, now: u64) {
        let Some(filter) = self.filter.clone() else { return };
        let all = now >= self.review_at;
        if !all && (self.unjudged.is_empty() || !self.judging.is_due(now)) {
            return;
        }
        let mut pids = std::mem::take(&mut self.unjudged);
        if all {
            pids.extend(self.table.pids());
        }
        for pid in pids {
            let withheld = self.table.is_withheld(pid, NEVER - 1);
            match filter.keeps(pid) {
                Some(true) if withheld => _ = self.enter(pid),
                Some(false) if !withheld => self.table.permit(pid, NEVER),
                // One that has ended makes no more samples; those that it has made are what it was.
                _ => {}
            }
        }
        let ended = now_ns();
        if all {
            self.review_at =
                ended.saturating_add(ended.saturating_sub(now).saturating_mul(REVIEW_SHARE).max(REVIEW_NS));
        }
        self.judging.done(now, ended);
    }

    /// Drops processes whose end was not seen, because its record was lost or there is no event to tell of it: the session
    /// must not wait for them. To be called now and then, with a look at the rings in between.
    pub fn forget_the_dead(&mut self) {
        self.forget_the_replaced();
        self.table.forget_untold(procfs::has_ended);
        self.tell_ended();
    }

    /// Drops processes whose number is another's by now: no event may be opened on that one.
    pub fn forget_the_replaced(&mut self) {
        for pid in self.table.pids() {
            if procfs::stat(pid).is_ok_and(|stat| self.table.is_replaced(pid, stat.start_time)) {
                self.table.remove_process(pid);
            }
        }
        self.tell_ended();
    }

    /// Whether samples are kept of some processes alone: those of a user, or those that fit a filter.
    pub fn is_restricted(&self) -> bool {
        self.owner.is_some() || self.filter.is_some()
    }

    /// Whether a process may be followed.
    ///
    /// # Errors
    /// Why not.
    pub fn may_follow(&self, pid: u32) -> Result<(), Denied> {
        self.owner.map_or(Ok(()), |owner| owner.check(pid))?;
        // One that does not fit the filter is left out without a word, as one that has ended is.
        let fits = self.filter.as_ref().is_none_or(|filter| filter.keeps(pid) == Some(true));
        if fits { Ok(()) } else { Err(Denied::Gone) }
    }

    /// Enters a process of which events are open, as it is now. If it may be followed, its samples are charged from now on,
    /// else never; if it has ended meanwhile, as before.
    ///
    /// # Errors
    /// Why never.
    pub fn enter(&mut self, pid: u32) -> Result<(), Denied> {
        let permitted = self.may_follow(pid);
        let from = match permitted {
            // Not what was before the look: then it may have been another program.
            Ok(()) => Some(now_ns()),
            Err(Denied::Forbidden(_)) => Some(NEVER),
            // A process that does not fit the filter has not ended.
            Err(Denied::Gone) if self.filter.as_ref().is_some_and(|filter| filter.keeps(pid) == Some(false)) => {
                Some(NEVER)
            }
            // What it did before its end is what it was.
            Err(Denied::Gone) => None,
        };
        if permitted.is_ok() {
            if self.waiting_child == Some(pid) {
                self.table.expect_exec(pid);
            } else {
                self.table.read_process(pid, &mut self.images);
            }
        }
        if self.is_restricted()
            && let Some(from) = from
        {
            self.table.permit(pid, from);
        }
        permitted
    }

    /// After records were lost that tell what is mapped where: looks at all processes anew. Not at once where that took long
    /// the last time: meanwhile rings run full, and what maps so much that its records are lost will go on. `at_end` there is
    /// no later.
    pub fn reread_processes(&mut self, at_end: bool) {
        let began = now_ns();
        if !at_end && !self.reread.is_due(began) {
            return;
        }
        for pid in self.table.pids() {
            // Whose descendant it is is uncertain, too. One that is refused stays, and so do its threads.
            let _ = self.enter(pid);
        }
        self.tracking_lost = false;
        self.reread.done(began, now_ns());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::*;
    use crate::budget::Budget;
    use crate::perf::attr::EventSpec;
    use crate::perf::layout::Layout;
    use crate::perf::record::{Change, Record, Sample};
    use crate::perf::ring_buffer::Bytes;

    /// Keeps the processes of a set, and names that begin with `a`.
    #[derive(Debug, Default)]
    struct These(Mutex<HashSet<u32>>);

    impl These {
        fn set(&self, pids: &[u32]) {
            *self.0.lock().unwrap() = pids.iter().copied().collect();
        }
    }

    impl Filter for These {
        fn keeps(&self, pid: u32) -> Option<bool> {
            Some(self.0.lock().unwrap().contains(&pid))
        }

        fn keeps_name(&self, name: &str) -> bool {
            name.starts_with('a')
        }
    }

    const SPEC: EventSpec = EventSpec::CLOCK;

    struct Filtered {
        state: State,
        these: Arc<These>,
        time: u64,
    }

    impl Filtered {
        /// This process is followed.
        fn new() -> Filtered {
            let mut state = State::new(&SPEC, Layout::Threads, 2, None, &Budget::of(Budget::MIN_MEMORY));
            let these = Arc::new(These::default());
            these.set(&[own_pid()]);
            state.keep_only(Some(Arc::<These>::clone(&these)));
            let mut filtered = Filtered { state, these, time: 0 };
            filtered.state.enter(own_pid()).unwrap();
            filtered.time = now_ns() + 1;
            filtered
        }

        fn tell(&mut self, change: Change) {
            self.time += 1;
            self.state.handle(1, Record::Change { time: self.time, id: 0, change });
        }

        /// Whether a sample of a process is kept.
        fn keeps(&mut self, pid: u32) -> bool {
            self.time = self.time.max(now_ns()) + 1;
            let received = self.state.counts.received;
            let no = || Bytes::new(&[]);
            let sample = Sample {
                id: 1,
                pid,
                tid: pid,
                time: self.time,
                period: SPEC.period_ns(),
                group_value: None,
                kernel_chain: no(),
                user_chain: no(),
                regs: None,
                has_user_state: false,
                stack: no(),
                stack_full: false,
            };
            self.state.handle(0, Record::Sample(sample));
            self.state.counts.received > received
        }

        fn judge(&mut self, all: bool) {
            self.state.review_at = if all { 0 } else { u64::MAX };
            self.state.judge(now_ns());
        }
    }

    fn own_pid() -> u32 {
        std::process::id()
    }

    fn comm(pid: u32, exec: bool, name: &str) -> Change {
        Change::Comm { pid, tid: pid, exec, name: name.to_owned() }
    }

    #[test]
    fn what_executes_something_is_judged_before_anything_is_kept() {
        let own = own_pid();
        let mut filtered = Filtered::new();
        assert!(filtered.keeps(own));
        filtered.tell(comm(own, true, "other"));
        assert!(!filtered.keeps(own), "until it is judged");
        filtered.judge(false);
        assert!(filtered.keeps(own));
        filtered.these.set(&[]);
        filtered.tell(comm(own, true, "third"));
        filtered.judge(false);
        assert!(!filtered.keeps(own));
        let counts = filtered.state.counts;
        assert_eq!((counts.received, counts.filtered, counts.others, counts.withheld), (2, 2, 2, 0));
    }

    #[test]
    fn another_name_counts_from_its_record_on() {
        let own = own_pid();
        let mut filtered = Filtered::new();
        filtered.tell(comm(own, false, "b"));
        assert!(!filtered.keeps(own));
        // Only a name that fits has it judged anew.
        filtered.judge(false);
        assert!(!filtered.keeps(own));
        filtered.tell(comm(own, false, "a2"));
        filtered.judge(false);
        assert!(filtered.keeps(own));
        // That of another thread is not the process's.
        filtered.tell(Change::Comm { pid: own, tid: own + 1, exec: false, name: "b".to_owned() });
        assert!(filtered.keeps(own));
    }

    #[test]
    fn what_no_record_tells_of_is_found_at_the_next_look() {
        let (own, child) = (own_pid(), u32::MAX - 7);
        let mut filtered = Filtered::new();
        filtered.tell(Change::Fork { pid: child, tid: child, parent_pid: own, parent_tid: own });
        assert!(filtered.keeps(child), "it is what its parent is");
        filtered.judge(true);
        assert!(filtered.keeps(own) && !filtered.keeps(child));
        filtered.these.set(&[child]);
        filtered.judge(true);
        assert!(!filtered.keeps(own) && filtered.keeps(child));
        // What it forks now is as it is; of another process nobody has told.
        filtered.tell(Change::Fork { pid: child + 1, tid: child + 1, parent_pid: own, parent_tid: own });
        assert!(!filtered.keeps(child + 1) && !filtered.keeps(child + 2));
    }
}
