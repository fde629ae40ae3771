//! Taking the registers and stacks of threads, one after the other.
//!
//! | a thread that | is |
//! |---|---|
//! | is blocked in a call that goes on as if nothing had been ([`calls`](super::calls)), or in a page fault | stopped |
//! | is blocked in another call | read as it is: its stack pointer and instruction pointer are known |
//! | runs, in a call or not | sampled ([`sample`](super::sample)): the kernel may be in the midst of a call |
//! | is blocked and runs in turns | read or sampled, whichever succeeds first |
//!
//! Between the last look at a thread and its stop it may go on. About a microsecond lies between them, more if ccsd loses
//! the CPU. A long call that the thread begins in that time is cut short.
//!
//! For an owner, each thread's rights are checked while it is stopped, and only its memory and mappings of that moment
//! are read ([`StackCopier::bind`]): a privileged program executed in between shows nothing. A sampled thread's rights
//! are checked before the event is opened and after the sample; the kernel ends the event with the rights.
//!
//! One thread traces all, because ptrace(2) belongs to a thread. While a target thread is stopped, it allocates nothing
//! beyond the copy, opens no file of /proc and does not unwind. A thread that does not stop in time, or dies, stays
//! traced; then the tracing thread ends, so that the kernel lets it go, and a new one goes on.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;

use crate::arch::{UNREADABLE, is_foreign_call};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::perf::record::UserRegs;
use crate::process::owner::{Denied, Owner, events_end_with_rights};
use crate::procfs;
use crate::sched_priority::become_urgent;
use crate::usage::{add_helper, thread_cpu_ns};

use super::calls::{can_be_made_again, made_by_another, not_to_be_interrupted, reads_whole};
use super::hold::Hold;
use super::look::{Look, SyscallFile, SyscallStatus};
use super::model::{Method, TaskState};
use super::ptrace::{Condition, Tracer};
use super::sample::{Sampler, ThreadSample};
use super::stack_copy::{StackBuffer, StackCopier, StackCopy};

/// How long a thread may take to stop, or to run and be sampled.
const MAX_WAIT: Duration = Duration::from_millis(20);
/// The same for a thread in a system call, which needs a CPU to stop: a second or two on a very busy machine.
const MAX_CALL_WAIT: Duration = Duration::from_secs(5);
/// The same where all others have been looked at: it may have had to wait for a CPU.
const MAX_LAST_WAIT: Duration = Duration::from_millis(200);
const SECOND_CHANCES: usize = 20;
const QUICK_LOOKS: u32 = 4;
/// The pause between two later looks. What is longer adds to the time that a thread is stopped.
const PAUSE: Duration = Duration::from_micros(15);
/// How often a thread that runs in between is looked at again.
const TRIES: u32 = 3;
/// The pause between two looks at a thread that is blocked and runs in turns.
const SAMPLE_WAIT: Duration = Duration::from_millis(1);

/// In place of an unknown register: nothing is read with it and unwinding ends there. (A frame pointer of 0 would be a
/// root.)
const UNKNOWN: u64 = UNREADABLE;

const TOO_SLOW: &str = "it did not stop";
const NOT_SEEN: &str = "it was not seen to run";
const RUNS: &str = "it runs";
pub const NOT_PERMITTED: &str = "it may not be traced";
pub const NOT_SAMPLED: &str = "it runs, and may not be sampled";
pub const NOT_IN_KERNEL: &str = "it may not be sampled in the kernel";

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
    /// The thread has gone on before it was stopped, and is to be looked at again.
    TracingMovedOn,
    Gone,
}

/// How to get a thread's stack.
enum Approach {
    Stop,
    /// As it is, or by a sample; and why it is not stopped.
    Watch(String),
    /// Not at all.
    Nothing(String),
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
            let gave_up = |why: &str| [TOO_SLOW, NOT_SEEN, NOT_IN_KERNEL].iter().any(|begin| why.starts_with(begin));
            matches!(&one.method, Method::NotStopped { why } if gave_up(why))
                && one.look.state != TaskState::Uninterruptible
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
        // A thread that has moved on is not stopped any more.
        let mut moved_on = None;
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
                    let left = if in_time {
                        self.one(tid, wait, moved_on != Some(tid), &mut room)
                    } else {
                        too_late(self.pid, tid)
                    };
                    match left {
                        TracerState::Clean(one) => taken.push(one),
                        TracerState::Gone => {}
                        TracerState::TracingGone => return at + 1,
                        TracerState::TracingMovedOn => {
                            moved_on = Some(tid);
                            return at;
                        }
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

    fn one(&mut self, tid: u32, wait: Duration, may_stop: bool, room: &mut StackBuffer) -> TracerState {
        let pid = self.pid;
        let Some(mut look) = Look::at(pid, tid) else { return TracerState::Gone };
        let mut copier = StackCopier::new(pid, tid);
        let mut sampler: Option<io::Result<Sampler>> = None;
        let mut until = self.until;
        loop {
            let why = match approach(pid, tid, &look, &copier) {
                Approach::Nothing(why) => return TracerState::Clean(nothing(tid, look, why)),
                Approach::Stop if may_stop => return self.stop(tid, look, (&mut copier, room), wait),
                Approach::Stop => "it goes from one system call to the next".to_owned(),
                Approach::Watch(why) => why,
            };
            if let Some(taken) = self.quietly(tid, &look, (&mut copier, room), &why) {
                return TracerState::Clean(taken);
            }
            let sample = match &mut sampler {
                Some(Ok(sampler)) => sampler.wait(SAMPLE_WAIT),
                Some(Err(_)) => {
                    std::thread::sleep(SAMPLE_WAIT);
                    None
                }
                None => {
                    match self.bind(tid, &mut copier) {
                        Ok(()) => {}
                        Err(denied) => return denied_one(tid, look, denied),
                    }
                    sampler = Some(self.sampler(tid));
                    // The first event of a machine takes some 10 ms to open.
                    until = until.min(Instant::now() + wait);
                    None
                }
            };
            if let Some(sample) = sample {
                return self.sampled(tid, look, (&copier, room), sample);
            }
            if Instant::now() >= until {
                let why = match &sampler {
                    Some(Err(error)) => format!("{NOT_SAMPLED}: {}", described(error)),
                    Some(Ok(sampler)) if !sampler.in_kernel => {
                        format!("{NOT_IN_KERNEL}, and was not seen elsewhere within {} ms", wait.as_millis())
                    }
                    _ => format!("{NOT_SEEN} within {} ms", wait.as_millis()),
                };
                return TracerState::Clean(nothing(tid, look, why));
            }
            look = match Look::at(pid, tid) {
                Some(look) => look,
                None => return TracerState::Gone,
            };
        }
    }

    fn sampler(&self, tid: u32) -> io::Result<Sampler> {
        if self.owner.is_some() && !events_end_with_rights() {
            return Err(io::Error::other("fs.suid_dumpable is 1"));
        }
        Sampler::open(tid)
    }

    fn sampled(
        &self,
        tid: u32,
        mut look: Look,
        (copier, room): (&StackCopier, &mut StackBuffer),
        sample: ThreadSample,
    ) -> TracerState {
        if let Some(Err(denied)) = self.owner.map(|owner| owner.check_thread(tid)) {
            return denied_one(tid, look, denied);
        }
        let registers =
            sample.regs.map(KnownRegisters::All).ok_or_else(|| "a 32-bit program is not unwound".to_owned());
        let mut stack = sample.stack;
        // What lies beyond belongs to functions that have been running for long, and hardly changes.
        if let (true, Some(regs)) = (stack.more, sample.regs) {
            let copied = copier.copy(regs.sp.saturating_add(stack.bytes.len() as u64), room);
            let rest = StackCopy::from_room(room, copied);
            stack.bytes.extend(rest.bytes);
            stack.more = rest.more;
        }
        // The look may be one at the thread while it was blocked.
        (look.state, look.wait, look.kernel_stack) = (TaskState::Running, None, Vec::new());
        TracerState::Clean(Taken { tid, look, registers, stack, method: Method::Sampled })
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
        tid: u32,
        look: Look,
        (copier, room): (&mut StackCopier, &mut StackBuffer),
        wait: Duration,
    ) -> TracerState {
        // A thread blocked in a call leaves it however late it gets a CPU; if given up before, nothing would restart the
        // call.
        let blocked = matches!(look.place, SyscallStatus::InCall(_));
        let wait = if blocked { wait.max(MAX_CALL_WAIT) } else { wait };
        let Ok(place) = SyscallFile::open(self.pid, tid) else { return TracerState::Gone };
        let _hold = Hold::begin();
        let tracer = match Tracer::seize(tid) {
            Ok(tracer) => tracer,
            Err(Errno::ESRCH) => return TracerState::Gone,
            Err(error) => return TracerState::Clean(self.refused(tid, look, (copier, room), error)),
        };
        // Since the look, the thread may have begun a call that would lose something.
        if place.status() != look.place {
            return TracerState::TracingMovedOn;
        }
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
            (Some(tracer), _) => traced(tracer),
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

/// How to get a thread's stack, by what the thread does now. If another program traces it, stopping it is refused anyway.
fn approach(pid: u32, tid: u32, look: &Look, copier: &StackCopier) -> Approach {
    if matches!(look.state, TaskState::Zombie | TaskState::Dead) {
        return Approach::Nothing("it has ended".to_owned());
    }
    let why = match &look.place {
        SyscallStatus::Unknown(_) if look.state == TaskState::Running => Some(NOT_PERMITTED),
        SyscallStatus::Unknown(io::ErrorKind::PermissionDenied) => {
            return Approach::Nothing(NOT_PERMITTED.to_owned());
        }
        SyscallStatus::Unknown(_) => return Approach::Nothing("what it does is not known".to_owned()),
        _ if look.state == TaskState::Uninterruptible => Some("it is in uninterruptible sleep"),
        SyscallStatus::Running => Some(RUNS),
        // One that is stopped has been interrupted already.
        _ if matches!(look.state, TaskState::Stopped | TaskState::Traced) => None,
        SyscallStatus::Blocked { .. } => None,
        // A system call was made that may have the number of a call of i386.
        SyscallStatus::InCall(call) => match call.ip.checked_sub(2).and_then(|at| copier.code(at)) {
            Some(code) if is_foreign_call(code) => Some("what its 32-bit system call would lose is not known"),
            Some(_) => {
                let name = |fd: u64| {
                    let name = fs::read_link(format!("/proc/{pid}/task/{tid}/fd/{}", fd as u32));
                    name.map(|name| name.as_os_str().as_bytes().to_vec()).unwrap_or_default()
                };
                let whole = |fd: u64| reads_whole(&name(fd), look.wait.as_deref());
                made_by_another(look).or_else(|| not_to_be_interrupted(call, whole))
            }
            None => Some("what its system call would lose is not known: its code is not in memory"),
        },
    };
    match (why, look.tracer) {
        (Some(_), Some(tracer)) => Approach::Watch(traced(tracer)),
        (Some(why), None) => Approach::Watch(why.to_owned()),
        (None, _) => Approach::Stop,
    }
}

/// An error without its number.
fn described(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}

fn traced(tracer: u32) -> String {
    format!("it is traced by {} already", named(tracer))
}

fn denied_one(tid: u32, look: Look, denied: Denied) -> TracerState {
    match denied {
        Denied::Gone => TracerState::Gone,
        Denied::Forbidden(why) => TracerState::Clean(nothing(tid, look, format!("{NOT_PERMITTED}: {why}"))),
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
