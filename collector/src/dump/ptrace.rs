//! The few ptrace(2) requests that a dump needs, for one thread at a time.
//!
//! A [`Tracer`] belongs to the thread that made it. When that thread ends, or ccsd is killed, the kernel lets traced
//! threads go on; a call that the stop has ended with EINTR then stays ended, so ccsd does not end by itself while it
//! holds a thread ([`hold`](super::hold)). `PTRACE_SEIZE` without options and SIGSTOP leaves the target's signals and job control alone.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use nix::errno::Errno;

use crate::arch::stopped::{self, RawRegisters};
use crate::perf::record::UserRegs;

/// `PTRACE_EVENT_STOP` of `linux/ptrace.h`: the stop that `PTRACE_INTERRUPT` asks for, or that of a whole process.
const EVENT_STOP: i32 = 128;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceStop {
    /// Because it was interrupted, or with its whole process, which stays stopped.
    Asked,
    Signal(i32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Runs,
    Stopped(TraceStop),
    Gone,
}

#[derive(Debug)]
pub struct Tracer {
    tid: libc::pid_t,
    /// Requests come from the thread that attached.
    _not_send: PhantomData<*const ()>,
}

impl Tracer {
    /// Attaches to a thread, which runs on. Errors: EPERM where it may not be traced or another traces it, ESRCH where
    /// it has ended.
    pub fn seize(tid: u32) -> Result<Tracer, Errno> {
        let tid = libc::pid_t::try_from(tid).map_err(|_| Errno::ESRCH)?;
        request(libc::PTRACE_SEIZE, tid, 0)?;
        Ok(Tracer { tid, _not_send: PhantomData })
    }

    /// Asks it to stop. Errors: ESRCH where it has ended.
    pub fn interrupt(&self) -> Result<(), Errno> {
        request(libc::PTRACE_INTERRUPT, self.tid, 0)
    }

    /// What has become of it. What others wait for stays to be told to them.
    pub fn condition(&self) -> Condition {
        let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
        let options = libc::WSTOPPED | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WNOTHREAD;
        // SAFETY: `info` is live and of the type that waitid(2) writes; zero bytes are a value of it.
        let (result, info) = unsafe {
            let result = libc::waitid(libc::P_PID, self.tid.cast_unsigned(), info.as_mut_ptr(), options);
            (result, info.assume_init())
        };
        if result == -1 {
            return if Errno::last() == Errno::EINTR { Condition::Runs } else { Condition::Gone };
        }
        // SAFETY: waitid(2) has filled in the fields of a child's change, or left them zero where there is none.
        let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
        match info.si_code {
            _ if pid == 0 => Condition::Runs,
            libc::CLD_TRAPPED | libc::CLD_STOPPED if status >> 8 == EVENT_STOP => Condition::Stopped(TraceStop::Asked),
            libc::CLD_TRAPPED | libc::CLD_STOPPED => Condition::Stopped(TraceStop::Signal(status & 0xff)),
            _ => Condition::Gone,
        }
    }

    /// The registers of a stopped thread. Errors: ESRCH where it has not stopped, or has been killed since.
    pub fn registers(&self) -> Result<Stopped, Errno> {
        let mut regs = MaybeUninit::<RawRegisters>::zeroed();
        // SAFETY: PTRACE_GETREGS writes registers of this type, which is live; it is plain data.
        let result = unsafe {
            libc::ptrace(libc::PTRACE_GETREGS, self.tid, std::ptr::null_mut::<libc::c_void>(), regs.as_mut_ptr())
        };
        Errno::result(result)?;
        // SAFETY: it was zero before, and all bytes are a value.
        Ok(Stopped { regs: unsafe { regs.assume_init() } })
    }

    /// Restarts a system call that the stop has ended with EINTR, as the kernel does with most. If a signal's handler
    /// runs first, it is EINTR all the same. Errors: ESRCH where the thread has been killed.
    pub fn restart(&self, stopped: &Stopped) -> Result<(), Errno> {
        let regs = stopped::with_call_again(&stopped.regs);
        // SAFETY: PTRACE_SETREGS reads registers of this type, which is live.
        let result = unsafe {
            libc::ptrace(libc::PTRACE_SETREGS, self.tid, std::ptr::null_mut::<libc::c_void>(), &raw const regs)
        };
        Errno::result(result).map(drop)
    }

    /// Lets a stopped thread go on, or stay stopped with its process. Errors: the thread, still traced, where it has
    /// not stopped or has been killed.
    pub fn detach(self, stop: TraceStop) -> Result<(), Tracer> {
        let signal = match stop {
            TraceStop::Asked => 0,
            TraceStop::Signal(signal) => signal,
        };
        request(libc::PTRACE_DETACH, self.tid, signal).map_err(|_| self)
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Stopped {
    regs: RawRegisters,
}

impl Stopped {
    pub fn user_regs(&self) -> Option<UserRegs> {
        stopped::user_regs(&self.regs)
    }

    pub fn sp(&self) -> u64 {
        stopped::stack_pointer(&self.regs)
    }

    /// The system call that has just ended with EINTR, if one has.
    pub fn interrupted_call(&self) -> Option<i64> {
        stopped::interrupted_call(&self.regs)
    }
}

fn request(request: libc::c_uint, tid: libc::pid_t, data: i32) -> Result<(), Errno> {
    let data = std::ptr::without_provenance_mut::<libc::c_void>(data as usize);
    // SAFETY: these requests (SEIZE, INTERRUPT, DETACH) take numbers and touch no memory of ours.
    let result = unsafe { libc::ptrace(request, tid, std::ptr::null_mut::<libc::c_void>(), data) };
    Errno::result(result).map(drop)
}
