//! What can go wrong before or while collecting, and what to do about it.

use std::io;
use std::path::PathBuf;

use nix::unistd::geteuid;

/// An error of the collector. Its text says what happened, to what, and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No process has this id.
    #[error("no process with PID {0}; `ps -e` lists those that run")]
    NoSuchProcess(u32),
    /// `/proc` is not mounted, or is that of another PID namespace.
    #[error(
        "/proc belongs to another PID namespace, so ccsd finds no process in it: `mount -t proc proc /proc` \
         (`unshare --mount-proc` does it)"
    )]
    ForeignProc,
    /// The id is that of a thread which does not lead its process.
    #[error("{tid} is a thread of process {pid}; give the process: {pid}")]
    NotAProcess {
        /// The id given.
        tid: u32,
        /// Its process.
        pid: u32,
    },
    /// The process has no user code.
    #[error("PID {0} is a kernel thread; ccsd samples the stacks of user programs")]
    KernelThread(u32),
    /// The process has ended and waits for its parent.
    #[error("PID {0} has exited and is a zombie: there is nothing left to sample")]
    Zombie(u32),
    /// The kernel does not let this user look at the process.
    #[error(
        "not permitted to sample PID {pid} (it belongs to {owner}); run ccsd as that user, as root, or with CAP_PERFMON \
         and CAP_SYS_PTRACE"
    )]
    NotPermitted {
        /// The process.
        pid: u32,
        /// Name or number of its user.
        owner: String,
    },
    /// ccsd is in a time namespace.
    #[error(
        "ccsd is in a time namespace, whose clocks are not those of the kernel's records: samples would be lost or out of \
         order; run it outside"
    )]
    OtherClocks,
    /// The kernel has not answered in time: while a process executes a program, which its user can make last, or the machine
    /// is very busy.
    #[error(
        "PID {pid} (it belongs to {owner}) cannot be sampled now: the kernel has not answered in time whether that is permitted, \
         perhaps because it is kept from executing a program; try again"
    )]
    NoAnswer {
        /// The process.
        pid: u32,
        /// Name or number of its user.
        owner: String,
    },
    /// The kernel does not let this user see the process's memory and threads.
    #[error(
        "not permitted to see the stacks of PID {pid} (it belongs to {owner}); {}",
        if geteuid().is_root() {
            "run ccsd with CAP_SYS_PTRACE, in the process's user namespace or one above, where no security module forbids it"
        } else {
            "run ccsd as that user, as root, or with CAP_SYS_PTRACE"
        }
    )]
    DumpNotPermitted {
        /// The process.
        pid: u32,
        /// Name or number of its user.
        owner: String,
    },
    /// The process ended while its events were being opened.
    #[error("PID {0} exited while ccsd was attaching to it; nothing was sampled")]
    DiedDuringAttach(u32),
    /// A budget of overhead that makes no sense.
    #[error("a budget of {0}% is outside of 0.01% to 25% of the target's CPU time")]
    Overhead(f64),
    /// What samples cost here could not be measured.
    #[error("cannot measure what a sample costs here: {0}; choose a rate with -F instead of --overhead")]
    Unmeasured(String),
    /// The session is over.
    #[error("the session has ended")]
    Ended,
    /// `execve` did not find the program.
    #[error("{0}: program not found")]
    ProgramNotFound(String),
    /// `execve` found something that it cannot run.
    #[error("{program}: cannot be executed: {source}")]
    ProgramNotExecutable {
        /// As given by the user.
        program: String,
        /// From the kernel.
        source: io::Error,
    },
    /// The rate is zero or more than the kernel takes.
    #[error("a rate of {rate} Hz is outside 1 to {max}, the kernel's maximum (kernel.perf_event_max_sample_rate)")]
    Rate {
        /// As given by the user.
        rate: u64,
        /// `perf_event_max_sample_rate`.
        max: u32,
    },
    /// Perf events are refused by the machine's setting.
    #[error(
        "perf events are refused: kernel.perf_event_paranoid is {level} here; allow them with \
         `sudo sysctl kernel.perf_event_paranoid=2`, or run ccsd as root or with CAP_PERFMON"
    )]
    Paranoid {
        /// The setting.
        level: i32,
    },
    /// The kernel has no `perf_event_open`.
    #[error(
        "this kernel or container offers no perf events ({source}); in a container, run it with \
         `--cap-add PERFMON --security-opt seccomp=unconfined` or a seccomp profile that allows perf_event_open"
    )]
    NoPerfEvents {
        /// From `perf_event_open`.
        source: io::Error,
    },
    /// The event that the user asked for does not exist here.
    #[error("event {event} cannot be used here: {why}; `ccsd doctor` lists those that can")]
    EventUnavailable {
        /// As given by the user.
        event: String,
        /// In words.
        why: String,
    },
    /// Kernel stacks were asked for and are refused.
    #[error(
        "kernel stacks are refused to this user: run ccsd as root or with CAP_PERFMON, or \
         `sudo sysctl kernel.perf_event_paranoid=1`"
    )]
    KernelRefused,
    /// Not even the smallest ring fits the locked-memory allowance.
    #[error(
        "no memory can be locked for the ring buffers (perf_event_mlock_kb {mlock_kb} KiB, `ulimit -l` {rlimit_kb} KiB, \
         both used up or zero); raise one: `sudo sysctl kernel.perf_event_mlock_kb=516`, or run ccsd as root"
    )]
    MlockAllowance {
        /// `perf_event_mlock_kb`.
        mlock_kb: u64,
        /// `RLIMIT_MEMLOCK` in KiB.
        rlimit_kb: u64,
    },
    /// Whole CPUs were to be sampled, and are refused.
    #[error(
        "sampling whole CPUs is refused to this user: run ccsd as root or with CAP_PERFMON, or \
         `sudo sysctl kernel.perf_event_paranoid=0`"
    )]
    WholeMachineRefused,
    /// All that runs was to be sampled, and that is refused.
    #[error(
        "sampling all that runs on this machine is refused to this user: run ccsd as root or with CAP_PERFMON, or \
         `sudo sysctl kernel.perf_event_paranoid=0`; `ccsd attach` samples your own processes"
    )]
    MachineRefused,
    /// Too many threads and CPUs for the descriptor limit.
    #[error(
        "the target has more threads than can be sampled here: each needs a file per CPU, and no more than {limit} files \
         may be open ({open} are events already); raise the limit (`ulimit -Hn`, as root), or run ccsd as root or with \
         CAP_PERFMON, which samples CPUs instead of threads then"
    )]
    TooManyFiles {
        /// Files of events that are open already.
        open: u64,
        /// `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// More files than the share that the session's owner has.
    #[error("sampling the target takes more files, some for each thread and CPU, than the daemon has for you: {0}")]
    FileShare(String),
    /// Some threads of the target would be missed.
    #[error("the target starts threads faster than ccsd can find them")]
    RestlessThreads,
    /// ccsd itself was given as the target.
    #[error("PID {0} is ccsd itself; record a second one instead: `ccsd record -- ccsd ...`")]
    Itself(u32),
    /// A file under /proc or /sys could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No descriptor was left for a file of ccsd's own.
    #[error("cannot {what}: no more than {limit} files may be open; raise the limit (`ulimit -Hn`, as root)")]
    OpenFiles {
        /// What was being done.
        what: String,
        /// `RLIMIT_NOFILE`.
        limit: u64,
    },
    /// A system call failed in a way that has no better name.
    #[error("cannot {what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// From the kernel.
        source: io::Error,
    },
}

impl Error {
    /// A system call has failed: what was being done, and what the kernel said.
    pub fn system(what: impl Into<String>, source: io::Error) -> Error {
        let what = what.into();
        match source.raw_os_error() {
            Some(libc::EMFILE) => Error::OpenFiles { what, limit: crate::system::file_limit() },
            _ => Error::System { what, source },
        }
    }

    /// Whether the request itself was wrong (exit status 2), rather than the machine failing it (1).
    pub fn is_bad_request(&self) -> bool {
        matches!(
            self,
            Error::NoSuchProcess(_)
                | Error::ForeignProc
                | Error::NotAProcess { .. }
                | Error::KernelThread(_)
                | Error::Zombie(_)
                | Error::Itself(_)
                | Error::NotPermitted { .. }
                | Error::NoAnswer { .. }
                | Error::OtherClocks
                | Error::DumpNotPermitted { .. }
                | Error::Rate { .. }
                | Error::Overhead(_)
                | Error::Unmeasured(_)
                | Error::EventUnavailable { .. }
                | Error::KernelRefused
                | Error::WholeMachineRefused
                | Error::MachineRefused
                | Error::Paranoid { .. }
                | Error::NoPerfEvents { .. }
                | Error::MlockAllowance { .. }
        )
    }
}

/// The result of a collector function.
pub type Result<T> = std::result::Result<T, Error>;

/// Names what was being done when a system call failed.
pub(crate) fn doing<'a>(what: impl Into<String> + 'a) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::system(what, source)
}
