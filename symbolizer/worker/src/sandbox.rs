//! Gives up all rights of the process.
//!
//! Afterwards it can only read and write open files, allocate and free memory, and wait. It cannot open files, create
//! sockets, processes or threads, look at or signal other processes, or make memory executable. A forbidden system call
//! kills it (SIGSYS). Only opening a file fails (EACCES) instead: the C library's allocator occasionally reads a kernel
//! setting, and continues without it.

use std::io;

use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{Resource, setrlimit};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter_all_threads,
};

/// Maximum CPU time of a real-time thread in a row, microseconds: reading headers takes less than a millisecond. Beyond
/// it the process is killed (SIGXCPU).
const MAX_URGENT_US: u64 = 2_000_000;
/// Maximum open files: each image has one, and some have debug files.
pub const MAX_FILES: u64 = 4096;

/// Why rights cannot be given up. Nothing may then be read.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum SandboxError {
    #[error("cannot {what}: {source}")]
    System { what: &'static str, source: io::Error },
    #[error("cannot give up capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    #[error("cannot filter system calls: {0}")]
    Filter(String),
}

fn doing(what: &'static str) -> impl FnOnce(nix::errno::Errno) -> SandboxError {
    move |error| SandboxError::System { what, source: error.into() }
}

/// Closes all files but the first three. To be called first: other files were inherited by mistake.
///
/// # Errors
/// If the kernel is older than 5.9.
pub fn close_inherited() -> Result<(), SandboxError> {
    // SAFETY: close_range(2) takes numbers. The process has just started: nothing in it owns a descriptor above 2 yet.
    let done = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    let failed = || SandboxError::System { what: "close files", source: io::Error::last_os_error() };
    if done == 0 { Ok(()) } else { Err(failed()) }
}

/// Gives up all capabilities and the ways to regain them, and limits the process's resources: beyond `memory` bytes an
/// allocation fails, and with it the process. Of several processes the kernel kills the one with the highest `oom_score`
/// first. Applies to threads started afterwards, too.
///
/// # Errors
/// If a step is refused.
pub fn give_up_rights(memory: u64, oom_score: u16) -> Result<(), SandboxError> {
    // When memory runs out, the worker can be replaced. Set while the file is still writable.
    let _ = std::fs::write("/proc/self/oom_score_adj", oom_score.to_string());
    let limits = [
        (Resource::RLIMIT_CORE, 0, "forbid core files"),
        (Resource::RLIMIT_FSIZE, 0, "forbid to write files"),
        (Resource::RLIMIT_MEMLOCK, 0, "forbid to lock memory"),
        (Resource::RLIMIT_NOFILE, MAX_FILES, "limit open files"),
        (Resource::RLIMIT_DATA, memory, "limit memory"),
        (Resource::RLIMIT_RTTIME, MAX_URGENT_US, "limit the time of urgent threads"),
    ];
    for (resource, most, what) in limits {
        let hard = nix::sys::resource::getrlimit(resource).map_or(most, |(_, hard)| hard.min(most));
        setrlimit(resource, hard, hard).map_err(doing(what))?;
    }
    prctl::set_no_new_privs().map_err(doing("forbid new privileges"))?;
    // Needs CAP_SETPCAP, which not all users have. Without new privileges the bounding set has no effect.
    let _ = caps::clear(None, CapSet::Bounding);
    caps::clear(None, CapSet::Ambient)?;
    for set in [CapSet::Inheritable, CapSet::Effective, CapSet::Permitted] {
        caps::clear(None, set)?;
    }
    // Only root may inspect the process.
    prctl::set_dumpable(false).map_err(doing("forbid dumps"))
}

/// Filters the system calls of all existing threads.
///
/// # Errors
/// If the filter is refused.
pub fn filter_system_calls() -> Result<(), SandboxError> {
    let failed = |error: &dyn std::fmt::Display| SandboxError::Filter(error.to_string());
    // The stricter of two filters applies. The last filter prevents installing another.
    for filter in [refusal(), filter()] {
        let filter = filter.map_err(|error| failed(&error))?;
        apply_filter_all_threads(&filter).map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn refusal() -> Result<BpfProgram, seccompiler::BackendError> {
    let rules = [(libc::SYS_openat, Vec::new())].into_iter().collect();
    let refused = SeccompAction::Errno(libc::EACCES.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, refused, TargetArch::x86_64)?.try_into()
}

/// System calls allowed with any arguments.
const ALLOWED: [libc::c_long; 33] = [
    // Open files and connections.
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_fstat,
    libc::SYS_close,
    // Fails instead of killing; see `refusal`.
    libc::SYS_openat,
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    // The C library's allocator counts CPUs before it makes another arena, which it does when the first is full.
    libc::SYS_sched_getaffinity,
    // Existing threads, and their end.
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // A thread that wants to end the process while another does it waits for that.
    libc::SYS_pause,
    libc::SYS_gettid,
    // `abort` in the C library, which finds damaged memory: the process ends by SIGABRT, as its message says.
    libc::SYS_getpid,
    libc::SYS_rt_sigaction,
    // Without a vdso.
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
];

fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    // Requires the bits `mask` of argument `index` to equal `value`.
    let bits = |index: u8, mask: u64, value: u64| {
        let operator = SeccompCmpOp::MaskedEq(mask);
        SeccompRule::new(vec![SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value)?])
    };
    let (executable, empty_path) = (libc::PROT_EXEC as u64, libc::AT_EMPTY_PATH as u64);
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&call| (call, Vec::new())).collect();
    rules.insert(libc::SYS_mmap, vec![bits(2, executable, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![bits(2, executable, 0)?]);
    // Only on open files: the standard library's way to get a file's size.
    rules.insert(libc::SYS_statx, vec![bits(2, empty_path, empty_path)?]);
    // To duplicate a file; and the standard library with assertions checks whether a file that it closes is open.
    let command = |command: libc::c_int| {
        let is =
            SeccompCondition::new(1, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(command.unsigned_abs()))?;
        SeccompRule::new(vec![is])
    };
    // To itself only: the C library's `abort`.
    let own = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, u64::from(std::process::id()))?;
    rules.insert(libc::SYS_tgkill, vec![SeccompRule::new(vec![own])?]);
    rules.insert(libc::SYS_fcntl, vec![command(libc::F_DUPFD_CLOEXEC)?, command(libc::F_GETFD)?]);
    SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, TargetArch::x86_64)?.try_into()
}
