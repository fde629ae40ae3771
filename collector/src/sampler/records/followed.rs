//! Which processes are followed, as far as /proc has to be asked: at the beginning, and where records are missing.

use super::State;
use crate::perf::now_ns;
use crate::process::owner::Denied;
use crate::process::{NEVER, procfs};

impl State {
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

    /// Whether processes of one user alone are followed.
    pub fn is_restricted(&self) -> bool {
        self.owner.is_some()
    }

    /// Whether a process may be followed.
    ///
    /// # Errors
    /// Why not.
    pub fn may_follow(&self, pid: u32) -> Result<(), Denied> {
        self.owner.map_or(Ok(()), |owner| owner.check(pid))
    }

    /// Enters a process of which events are open, as it is now. If it may be followed, its samples are charged from now on,
    /// else never.
    ///
    /// # Errors
    /// Why never.
    pub fn enter(&mut self, pid: u32) -> Result<(), Denied> {
        let permitted = self.may_follow(pid);
        // Not what was before the look: then it may have been another program.
        let from = if permitted.is_ok() { now_ns() } else { NEVER };
        if permitted.is_ok() {
            if self.waiting_child == Some(pid) {
                self.table.expect_exec(pid);
            } else {
                self.table.read_process(pid, &mut self.images);
            }
        }
        if self.owner.is_some() {
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
