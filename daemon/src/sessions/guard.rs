//! Checks that a session's owner may (still) look at what the session samples.
//!
//! The collector opens events only on the owner's processes and charges nothing else (`Options::owner`). Later the
//! kernel ends the events on a process that executes a privileged program, unless `fs.suid_dumpable` makes such
//! programs visible to everyone; then only trusted users may have sessions. This module refuses with a reason, checks
//! the processes that an update is about before it is shown, and ends a session whose target now belongs to another user.

use std::time::{Duration, Instant};

use ccsd_collector::{events_end_with_rights, system};
use ccsd_profile::{Profile, Update};

use crate::authority::{Authority, GROUP};
use crate::protocol::message::{Refusal, RefusalKind};

/// The reason on machines where only trusted users may have sessions.
const UNGUARDED: &str = "fs.suid_dumpable is 1 here, so the kernel would not end the sampling of a program that gets more rights: \
                         only root and members of group ccsd may use the daemon";

/// The level of `kernel.perf_event_paranoid` at which, on kernels that know it, users without rights get no events.
const NO_EVENTS: i32 = 3;

/// Checks that the service serves a user at this `kernel.perf_event_paranoid`, which may mean that users do not
/// profile. Errors: the refusal, unless `paranoid_users` are to be served.
pub fn check_paranoid(owner: &Authority, paranoid_users: bool) -> Result<(), Refusal> {
    let level = system::perf_event_paranoid().unwrap_or(NO_EVENTS);
    if owner.trusted || paranoid_users || level < NO_EVENTS {
        return Ok(());
    }
    let message = format!(
        "kernel.perf_event_paranoid is {level} here, so only root and members of group {GROUP} may use the daemon; \
         `paranoid_users = true` below [sessions] in ccsd.toml lets others in"
    );
    Err(Refusal::new(RefusalKind::NotPermitted, message))
}

/// The time between two looks at targets that did not run: so many times what the last took, and at most so long.
const LOOK_SHARE: u32 = 200;
const MAX_LOOK: Duration = Duration::from_secs(1);

/// The processes that a session was asked for, with their start times.
pub struct Guard {
    owner: Authority,
    targets: Vec<(u32, u64)>,
    next_look: Instant,
}

impl Guard {
    /// Checks the targets before the collector attaches. Fails if a target does not exist or is not visible, or the
    /// kernel does not end events on privileged programs.
    pub fn new(owner: Authority, pids: &[u32]) -> Result<Guard, Refusal> {
        if !owner.trusted && !events_end_with_rights() {
            return Err(Refusal::new(RefusalKind::NotPermitted, UNGUARDED));
        }
        let targets = pids.iter().map(|&pid| Ok((pid, owner.check(pid)?))).collect::<Result<_, Refusal>>()?;
        Ok(Guard { owner, targets, next_look: Instant::now() })
    }

    /// Checks the targets again once their events are open: they must be the same processes.
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

    /// Checks that an update may be shown: every charged process is still the owner's to see. Targets without charges are
    /// checked about once in a second, or more often. `before` is the profile without the update.
    pub fn check_update(&mut self, before: &Profile, update: &Update) -> Result<(), String> {
        if self.owner.trusted {
            return Ok(());
        }
        if !events_end_with_rights() {
            return Err(UNGUARDED.to_owned());
        }
        let began = Instant::now();
        if began >= self.next_look {
            self.check_targets()?;
            let took = began.elapsed();
            self.next_look = began + took + took.saturating_mul(LOOK_SHARE).min(MAX_LOOK);
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

    /// Checks that all targets are still the owner's to see.
    pub fn check_targets(&self) -> Result<(), String> {
        self.targets.iter().try_for_each(|&(pid, began)| self.check(pid, began))
    }

    /// Processes that have ended, or whose id was reused, cannot be checked; the module says why that is safe.
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
