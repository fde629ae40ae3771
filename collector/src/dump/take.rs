//! Taking the registers and stacks of threads, one after the other.
//!
//! For an owner, each thread's rights are checked while it is stopped, and only its memory and mappings of that moment
//! are read ([`StackCopier::bind`]): a privileged program executed in between shows nothing.
//!
//! One thread traces all, because ptrace(2) belongs to a thread. While a target thread is stopped, it allocates nothing
//! beyond the copy, opens no file of /proc and does not unwind. A thread that does not stop in time, or dies, stays
//! traced; then the tracing thread ends, so that the kernel lets it go, and a new one goes on.

use std::fs::File;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;

use crate::arch::{UNREADABLE, is_foreign_call};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::perf::record::UserRegs;
use crate::process::owner::{Denied, Owner};
use crate::procfs;
use crate::sched_priority::become_urgent;
use crate::usage::{add_helper, thread_cpu_ns};

use super::calls::{can_be_made_again, not_to_be_interrupted};
use super::look::{Look, SyscallStatus};
use super::model::{Method, TaskState};
use super::ptrace::{Condition, Tracer};
use super::stack_copy::{StackBuffer, StackCopier, StackCopy};

/// How long a thread may take to stop. Running threads take some 10 us, sleeping ones until they get a CPU.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// The same for a thread in a system call, which needs a CPU to stop: a second or two on a very busy machine.
const MAX_CALL_WAIT: Duration = Duration::from_secs(5);
/// The same where all others have been looked at: it may have had to wait for a CPU.
const MAX_LAST_WAIT: Duration = Duration::from_millis(500);
const SECOND_CHANCES: usize = 20;
const QUICK_LOOKS: u32 = 4;
/// The pause between two later looks. What is longer adds to the time that a thread is stopped.
const PAUSE: Duration = Duration::from_micros(15);
/// How often a thread that runs in between is looked at again.
const TRIES: u32 = 3;

/// In place of an unknown register: nothing is read with it and unwinding ends there. (A frame pointer of 0 would be a
/// root.)
const UNKNOWN: u64 = UNREADABLE;

const TOO_SLOW: &str = "it did not stop";
pub const NOT_PERMITTED: &str = "it may not be traced";

#[derive(Clone, Debug)]
pub struct Taken {
    pub tid: u32,
    /// What /proc said of it just before.
    pub look: Look,
    /// Its registers, or why there are none.
    pub registers: std::result::Result<KnownRegisters, String>,
    pub stack: StackCopy,
    pub method: Method,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownRegisters {
    All(UserRegs),
    /// The instruction pointer and the stack pointer; [`UNKNOWN`] in place of all others.
    Pointers(UserRegs),
}

/// How the tracing thread is left behind by one thread.
enum TracerState {
    /// As it was: the next one can follow.
    Clean(Taken),
    Tracing(Taken),
    TracingGone,
    Gone,
}

pub struct Taking {
    pub pid: u32,
    pub owner: Option<Owner>,
    pub until: Instant,
    /// For an owner, `/proc/PID/maps` of the memory of the first thread that was his to observe.
    pub maps: Option<File>,
}

impl Taking {
    pub fn take(&mut self, tids: &[u32], taken: &mut Vec<Taken>) -> Result<()> {
        let first = taken.len();
        self.pass(tids, MAX_WAIT, taken)?;
        let too_slow = |one: &Taken| {
            let gave_up = matches!(&one.method, Method::NotStopped { why } if why.starts_with(TOO_SLOW));
            gave_up && one.look.state != TaskState::Uninterruptible
        };
        let again: Vec<u32> = taken.iter().skip(first).filter(|one| too_slow(one)).map(|one| one.tid).collect();
        let again = again.get(..again.len().min(SECOND_CHANCES)).unwrap_or_default();
        let mut better = Vec::new();
        self.pass(again, MAX_LAST_WAIT, &mut better)?;
        for one in better {
            if let Some(place) = taken.iter_mut().skip(first).find(|other| other.tid == one.tid) {
                *place = one;
            }
        }
        Ok(())
    }

    fn pass(&mut self, tids: &[u32], wait: Duration, taken: &mut Vec<Taken>) -> Result<()> {
        let mut rest = tids;
        let mut room = StackBuffer::default();
        while !rest.is_empty() {
            let mut trace = || {
                // Neither is necessary: waiting for a CPU makes stops long, but a user's dump must not outrank others'
                // work.
                if self.owner.is_none() {
                    let _ = become_urgent();
                }
                let _ = prctl::set_timerslack(1);
                for (at, &tid) in rest.iter().enumerate() {
                    let in_time = Instant::now() < self.until;
                    let left = if in_time { self.one(tid, wait, &mut room) } else { too_late(self.pid, tid) };
                    match left {
                        TracerState::Clean(one) => taken.push(one),
                        TracerState::Gone => {}
                        TracerState::TracingGone => return at + 1,
                        TracerState::Tracing(one) => {
                            taken.push(one);
                            return at + 1;
                        }
                    }
                }
                rest.len()
            };
            let trace = || (trace(), thread_cpu_ns());
            let done = std::thread::scope(|scope| {
                let thread = std::thread::Builder::new().name("ccsd-tracer".to_owned()).spawn_scoped(scope, trace);
                thread.map(|thread| thread.join().unwrap_or((1, 0)))
            });
            let done = done.map(|(done, cpu_ns)| {
                add_helper(cpu_ns);
                done
            });
            let done = done.map_err(|error| Error::system("start a thread", error))?;
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    fn one(&mut self, tid: u32, wait: Duration, room: &mut StackBuffer) -> TracerState {
        let pid = self.pid;
        let Some(look) = Look::at(pid, tid) else { return TracerState::Gone };
        if matches!(look.state, TaskState::Zombie | TaskState::Dead) {
            return TracerState::Clean(nothing(tid, look, "it has ended".to_owned()));
        }
        let mut copier = StackCopier::new(pid, tid);
        let why = match &look.place {
            _ if look.state == TaskState::Uninterruptible => Some("it is in uninterruptible sleep"),
            // One that is stopped has been interrupted already.
            SyscallStatus::InCall(call) if look.state != TaskState::Stopped => {
                // A system call was made that may have the number of a call of i386.
                match call.ip.checked_sub(2).and_then(|at| copier.code(at)) {
                    Some(code) if is_foreign_call(code) => Some("what its 32-bit system call would lose is not known"),
                    Some(_) => not_to_be_interrupted(call),
                    None => Some("what its system call would lose is not known: its code is not in memory"),
                }
            }
            _ => None,
        };
        if let Some(why) = why
            && let Some(taken) = self.quietly(tid, &look, (&mut copier, room), why)
        {
            return TracerState::Clean(taken);
        }
        let tracer = match Tracer::seize(tid) {
            Ok(tracer) => tracer,
            Err(Errno::ESRCH) => return TracerState::Gone,
            Err(error) => return TracerState::Clean(self.refused(tid, look, (&mut copier, room), error)),
        };
        self.stop(look, (&mut copier, room), tracer, wait)
    }

    /// Whether the thread is the owner's to observe now; the reason if not. What is copied later is what it has now.
    fn bind(&mut self, tid: u32, copier: &mut StackCopier) -> std::result::Result<(), Denied> {
        let Some(owner) = self.owner else { return Ok(()) };
        let maps =
            if self.maps.is_none() { File::open(format!("/proc/{}/task/{tid}/maps", self.pid)).ok() } else { None };
        copier.bind(owner)?;
        self.maps = self.maps.take().or(maps);
        Ok(())
    }

    fn stop(
        &mut self,
        look: Look,
        (copier, room): (&mut StackCopier, &mut StackBuffer),
        tracer: Tracer,
        wait: Duration,
    ) -> TracerState {
        let tid = tracer.tid();
        // A thread blocked in a call leaves it however late it gets a CPU; if given up before, nothing would restart the
        // call.
        let blocked = matches!(look.place, SyscallStatus::InCall(_)) && look.state != TaskState::Uninterruptible;
        let wait = if blocked { wait.max(MAX_CALL_WAIT) } else { wait };
        let begun = Instant::now();
        let mut ran = now_ns();
        if tracer.interrupt().is_err() {
            return TracerState::TracingGone;
        }
        let mut looks = 0;
        let stop = loop {
            let now = now_ns();
            match tracer.condition() {
                Condition::Stopped(stop) => break stop,
                Condition::Gone => return TracerState::TracingGone,
                Condition::Runs if begun.elapsed() > wait => {
                    let why = format!("{TOO_SLOW} within {} ms", wait.as_millis());
                    let taken = self.quietly(tid, &look, (copier, room), &why);
                    return TracerState::Tracing(taken.unwrap_or_else(|| nothing(tid, look, why)));
                }
                Condition::Runs => ran = now,
            }
            looks += 1;
            if looks > QUICK_LOOKS {
                std::thread::sleep(PAUSE);
            }
        };
        match self.bind(tid, copier) {
            Ok(()) => {}
            Err(Denied::Gone) => return TracerState::TracingGone,
            Err(Denied::Forbidden(why)) => {
                let taken = nothing(tid, look, format!("{NOT_PERMITTED}: {why}"));
                return if tracer.detach(stop).is_ok() {
                    TracerState::Clean(taken)
                } else {
                    TracerState::Tracing(taken)
                };
            }
        }
        let Ok(stopped) = tracer.registers() else { return TracerState::TracingGone };
        let copied = copier.copy(stopped.sp(), room);
        // By the call it was in when it stopped, which may be a later one. The kernel makes EINTR of it if a handler
        // runs.
        if look.state != TaskState::Stopped && stopped.interrupted_call().is_some_and(can_be_made_again) {
            // Only a thread that has been killed refuses.
            let _ = tracer.restart(&stopped);
        }
        let detached = tracer.detach(stop);
        let method = Method::Stopped { ns: now_ns().saturating_sub(ran) };
        let registers =
            stopped.user_regs().map(KnownRegisters::All).ok_or_else(|| "a 32-bit program is not unwound".to_owned());
        let taken = Taken { tid, look, registers, stack: StackCopy::from_room(room, copied), method };
        if detached.is_ok() { TracerState::Clean(taken) } else { TracerState::Tracing(taken) }
    }

    /// What can be had without stopping: pointers and stack of a blocked thread. `None` if it runs, or is not the
    /// owner's.
    fn quietly(
        &mut self,
        tid: u32,
        look: &Look,
        (copier, room): (&mut StackCopier, &mut StackBuffer),
        why: &str,
    ) -> Option<Taken> {
        let pid = self.pid;
        let mut before = look.clone();
        for _ in 0..TRIES {
            let (sp, ip) = before.pointers()?;
            self.bind(tid, copier).ok()?;
            let copied = copier.copy(sp, room);
            let after = Look::at(pid, tid)?;
            if after.is_undisturbed_since(&before) {
                let regs = UserRegs::from_pointers(ip, sp, UNKNOWN);
                let method = Method::NotStopped { why: why.to_owned() };
                let stack = StackCopy::from_room(room, copied);
                return Some(Taken { tid, look: before, registers: Ok(KnownRegisters::Pointers(regs)), stack, method });
            }
            before = after;
        }
        None
    }

    fn refused(
        &mut self,
        tid: u32,
        look: Look,
        (copier, room): (&mut StackCopier, &mut StackBuffer),
        error: Errno,
    ) -> Taken {
        let why = match (look.tracer, error) {
            (Some(tracer), _) => format!("it is traced by {} already", named(tracer)),
            (None, Errno::EPERM) => NOT_PERMITTED.to_owned(),
            (None, error) => format!("it cannot be traced: {}", error.desc()),
        };
        if let Some(taken) = self.quietly(tid, &look, (copier, room), &why) {
            return taken;
        }
        let missing = match look.place {
            SyscallStatus::Unknown(_) => why,
            _ => format!("{why}, and it runs"),
        };
        nothing(tid, look, missing)
    }
}

fn too_late(pid: u32, tid: u32) -> TracerState {
    let why = "not looked at: the dump took too long".to_owned();
    Look::at(pid, tid).map_or(TracerState::Gone, |look| TracerState::Clean(nothing(tid, look, why)))
}

fn nothing(tid: u32, look: Look, why: String) -> Taken {
    let method = Method::NotStopped { why: why.clone() };
    Taken { tid, look, registers: Err(why), stack: StackCopy::default(), method }
}

pub fn named(pid: u32) -> String {
    match procfs::stat(pid) {
        Ok(stat) => format!("{} ({pid})", stat.comm),
        Err(_) => format!("process {pid}"),
    }
}
