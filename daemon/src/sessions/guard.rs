//! Whether a session's owner may (still) look at what it samples.
//!
//! What a session may sample at all the collector sees to: it opens events on the owner's processes alone, and charges
//! nothing of any other (`Options::owner`), however soon that ends. From then on the kernel does: it ends the events on a
//! process that executes a privileged program, unless `fs.suid_dumpable` says that such programs are anybody's; then there
//! are no sessions but of the trusted. What is done here is to refuse with a reason, and to end a session whose target has
//! become somebody else's: before an update is shown, the processes in it that still live are looked at again.

use ccsd_collector::process::owner::events_end_with_rights;
use ccsd_profile::{Profile, Update};

use crate::authority::Authority;
use crate::protocol::message::{Refusal, RefusalKind};

/// Where nobody but the trusted can have sessions.
const UNGUARDED: &str = "fs.suid_dumpable is 1 here, so the kernel would not end the sampling of a program that gets more rights: \
                         only root and members of group ccsd may use the daemon";

/// The processes that a session was asked for, each bound to the moment when it began.
pub struct Guard {
    owner: Authority,
    targets: Vec<(u32, u64)>,
}

impl Guard {
    /// Looks at the targets before they are attached to.
    ///
    /// # Errors
    /// If one does not exist or is not for this user, or if this machine keeps no program from its user.
    pub fn new(owner: Authority, pids: &[u32]) -> Result<Guard, Refusal> {
        if !owner.trusted && !events_end_with_rights() {
            return Err(Refusal::new(RefusalKind::NotPermitted, UNGUARDED));
        }
        let targets = pids.iter().map(|&pid| Ok((pid, owner.check(pid)?))).collect::<Result<_, Refusal>>()?;
        Ok(Guard { owner, targets })
    }

    /// Looks at them again, now that their events are open: they must be the same processes.
    ///
    /// # Errors
    /// As [`Guard::new`].
    pub fn check_attached(&self) -> Result<(), Refusal> {
        for &(pid, began) in &self.targets {
            match self.owner.check(pid) {
                Ok(now) if now == began => {}
                Ok(_) => return Err(ccsd_collector::Error::DiedDuringAttach(pid).into()),
                // The process has ended. Its samples were permitted; the process id may be reused.
                Err(refusal) if refusal.kind != RefusalKind::NotPermitted => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Whether an update may be shown: no target has become what the owner may not see, and nothing was charged to
    /// another process that has. `before` is the profile without the update.
    ///
    /// # Errors
    /// Why it may not. The session is to end.
    pub fn check_update(&self, before: &Profile, update: &Update) -> Result<(), String> {
        if self.owner.trusted {
            return Ok(());
        }
        if !events_end_with_rights() {
            return Err(UNGUARDED.to_owned());
        }
        for &(pid, began) in &self.targets {
            self.check(pid, began)?;
        }
        let known = before.processes();
        let process_at =
            |index: usize| known.get(index).or_else(|| update.processes.get(index.checked_sub(known.len())?));
        let threads = before.threads();
        let mut seen = Vec::new();
        for charge in &update.charges {
            let index = charge.thread.index();
            let thread = threads.get(index).or_else(|| update.threads.get(index.checked_sub(threads.len())?));
            let Some(process) = thread.map(|thread| thread.process.index()) else { continue };
            if seen.last() == Some(&process) || seen.contains(&process) {
                continue;
            }
            seen.push(process);
            if let Some(process) = process_at(process) {
                self.check(process.pid, process.start_time)?;
            }
        }
        Ok(())
    }

    /// A process that has ended, or whose number is another's by now, cannot be asked any more; see above for why it need not.
    fn check(&self, pid: u32, began: u64) -> Result<(), String> {
        match self.owner.check(pid) {
            Err(refusal) if refusal.kind == RefusalKind::NotPermitted => {
                let other = ccsd_collector::procfs::stat(pid).is_ok_and(|stat| stat.start_time != began);
                if other { Ok(()) } else { Err(format!("PID {pid} has become what may not be profiled: {refusal}")) }
            }
            _ => Ok(()),
        }
    }
}
