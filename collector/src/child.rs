//! Starting the program to be recorded, so that it notices nothing.
//!
//! The child is forked early and waits on a pipe while its events are opened; `execve` then switches them on. It keeps
//! ccsd's terminal, standard streams, environment, directory and limits.

use std::ffi::CString;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, Pid, fork, pipe2, setpgid};

use crate::error::{Error, Result, doing};

/// A forked child that has not called `execve` yet. Dropped without [`WaitingChild::start`], it runs nothing.
pub struct WaitingChild {
    pid: Pid,
    program: String,
    /// `None` once the child has been let go.
    go: Option<std::fs::File>,
    outcome: std::fs::File,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `exit(status)`
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// The end of a child, and what it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildEnd {
    /// How it ended.
    pub status: ExitStatus,
    /// User CPU time of it and the children that it waited for, nanoseconds.
    pub user_ns: u64,
    /// System CPU time, likewise.
    pub system_ns: u64,
}

impl ChildEnd {
    /// Its CPU time in nanoseconds: user, and in all.
    #[must_use]
    pub fn cpu_ns(&self) -> (u64, u64) {
        (self.user_ns, self.user_ns.saturating_add(self.system_ns))
    }
}

impl WaitingChild {
    /// Forks a child that will run `command` (`execvp(3)`: the program is searched in `PATH`).
    ///
    /// # Errors
    /// [`Error::ProgramNotFound`] for an empty command or one with a NUL byte, [`Error::System`] if forking fails.
    pub fn spawn(command: &[std::ffi::OsString]) -> Result<WaitingChild> {
        WaitingChild::fork(command, false)
    }

    /// The same, in a process group of its own, which is not the terminal's foreground.
    ///
    /// # Errors
    /// The same.
    pub fn spawn_in_own_group(command: &[std::ffi::OsString]) -> Result<WaitingChild> {
        WaitingChild::fork(command, true)
    }

    fn fork(command: &[std::ffi::OsString], own_group: bool) -> Result<WaitingChild> {
        let program = command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let words: Vec<CString> = command
            .iter()
            .map(|word| CString::new(word.as_bytes()))
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| Error::ProgramNotFound(program.clone()))?;
        let Some(file) = words.first() else { return Err(Error::ProgramNotFound(program)) };
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(io::Error::from).map_err(doing("make a pipe"));
        let (go_read, go_write) = pipe()?;
        let (outcome_read, outcome_write) = pipe()?;

        let arguments: Vec<*const libc::c_char> =
            words.iter().map(|word| word.as_ptr()).chain([std::ptr::null()]).collect();

        // SAFETY: between fork and exec the child only makes async-signal-safe system calls (close, read, setpgid,
        // sigaction, sigprocmask, write, _exit), and execvp, whose PATH search in glibc and musl uses the stack only.
        // No lock, no allocation.
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                drop(go_write);
                if own_group {
                    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                }
                let mut byte = [0u8; 1];
                // The parent closes the pipe without a byte if it gives up.
                if !matches!(nix::unistd::read(&go_read, &mut byte), Ok(1)) {
                    exit_now(127);
                }
                restore_surroundings();
                // SAFETY: `arguments` ends with a null pointer, and all others point to strings that `words` owns.
                unsafe { libc::execvp(file.as_ptr(), arguments.as_ptr()) };
                let error = Errno::last();
                let _ = nix::unistd::write(&outcome_write, &(error as i32).to_le_bytes());
                exit_now(if error == Errno::ENOENT { 127 } else { 126 });
            }
            Ok(ForkResult::Parent { child }) => {
                if own_group {
                    // Both do it, because neither knows who comes first.
                    let _ = setpgid(child, child);
                }
                Ok(WaitingChild { pid: child, program, go: Some(file_of(go_write)), outcome: file_of(outcome_read) })
            }
            Err(error) => Err(doing(format!("fork for {program}"))(error.into())),
        }
    }

    /// The child's process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    /// Lets the child call `execve` and waits until that has succeeded or failed.
    ///
    /// # Errors
    /// [`Error::ProgramNotFound`] or [`Error::ProgramNotExecutable`]; the child has then been waited for.
    pub fn start(mut self) -> Result<RunningChild> {
        if let Some(mut go) = self.go.take() {
            let _ = go.write_all(b"g");
        }
        let mut answer = Vec::new();
        // The pipe closes without a word when execve succeeds, because it is close-on-exec.
        let _ = (&mut self.outcome).take(4).read_to_end(&mut answer);
        let Ok(code) = <[u8; 4]>::try_from(answer) else { return Ok(RunningChild { pid: self.pid() }) };
        let source = io::Error::from_raw_os_error(i32::from_le_bytes(code));
        let _ = wait(self.pid());
        let program = std::mem::take(&mut self.program);
        // ENOENT also means a script's missing interpreter. A name without a path is not looked for in this directory.
        let is_there = program.contains('/') && std::path::Path::new(&program).exists();
        if source.raw_os_error() == Some(libc::ENOENT) && !is_there {
            return Err(Error::ProgramNotFound(program));
        }
        Err(Error::ProgramNotExecutable { program, source })
    }
}

impl Drop for WaitingChild {
    fn drop(&mut self) {
        if let Some(go) = self.go.take() {
            drop(go);
            let _ = wait(self.pid());
        }
    }
}

/// A child that runs the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningChild {
    /// Its process id.
    pub pid: u32,
}

impl RunningChild {
    /// Waits for its end.
    ///
    /// # Errors
    /// [`Error::System`] if it has been waited for already.
    pub fn wait(self) -> Result<ChildEnd> {
        wait(self.pid)
    }

    /// The same; `stopped` is called with the signal whenever job control has stopped it.
    ///
    /// # Errors
    /// The same.
    pub fn wait_and_tell(self, stopped: impl FnMut(i32)) -> Result<ChildEnd> {
        until_ended(self.pid, stopped)?;
        wait(self.pid)
    }
}

fn file_of(fd: OwnedFd) -> std::fs::File {
    std::fs::File::from(fd)
}

fn exit_now(status: i32) -> ! {
    // SAFETY: _exit ends the child without running anything of the parent's exit handlers.
    unsafe { libc::_exit(status) }
}

/// What Rust's runtime changes before `main`: it opens `/dev/null` for closed standard streams and ignores SIGPIPE.
struct Surroundings {
    closed: [bool; 3],
    sigpipe_ignored: bool,
    mask: SigSet,
}

static SURROUNDINGS: OnceLock<Surroundings> = OnceLock::new();

/// Notes what this process was started with, for [`WaitingChild`]. Call it before Rust's runtime begins: the binary
/// calls it from `.init_array`. Otherwise the program inherits ccsd's streams, SIGPIPE disposition and blocked signals.
pub extern "C" fn note_surroundings() {
    // SAFETY: F_GETFD only asks; a descriptor that is not open is an answer.
    let closed = [0, 1, 2].map(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1);
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: without a new action only the old one is written, to a live place of its type; zero bytes are a value of it.
    let action = unsafe {
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    let mask = SigSet::thread_get_mask().unwrap_or_else(|_| SigSet::empty());
    let _ = SURROUNDINGS.set(Surroundings { closed, sigpipe_ignored: action.sa_sigaction == libc::SIG_IGN, mask });
}

/// Restores closed streams, SIGPIPE and blocked signals as ccsd's parent left them. `execve` resets caught signals
/// itself.
fn restore_surroundings() {
    let Some(found) = SURROUNDINGS.get() else { return };
    for (fd, closed) in (0..).zip(found.closed) {
        if closed {
            // SAFETY: the child owns the copy; nothing else uses what the runtime has put there.
            unsafe { libc::close(fd) };
        }
    }
    if !found.sigpipe_ignored {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        // SAFETY: no handler of ours is installed, only the default restored.
        let _ = unsafe { sigaction(Signal::SIGPIPE, &default) };
    }
    let _ = found.mask.thread_set_mask();
}

/// A pause while a dump has the child stopped, which takes less.
const DUMP_PAUSE: Duration = Duration::from_millis(1);

/// Waits until the child has ended, and leaves its end to be waited for.
fn until_ended(pid: u32, mut stopped: impl FnMut(i32)) -> Result<()> {
    loop {
        let look = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT;
        match change_of(pid, look)? {
            // Its tracer, another thread of ccsd, must see this, so it is left alone.
            Some((libc::CLD_TRAPPED, _)) => std::thread::sleep(DUMP_PAUSE),
            Some((libc::CLD_STOPPED, _)) => {
                if let Some((libc::CLD_STOPPED, signal)) = change_of(pid, libc::WSTOPPED | libc::WNOHANG)? {
                    stopped(signal);
                }
            }
            Some(_) => return Ok(()),
            None => {}
        }
    }
}

/// How a child has changed: the code and the status of its `siginfo_t`. `None` if it has not, or a signal came.
fn change_of(pid: u32, options: i32) -> Result<Option<(i32, i32)>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `info` is live and of the type that waitid(2) writes; zero bytes are a value of it.
    let (result, info) = unsafe {
        let result = libc::waitid(libc::P_PID, pid, info.as_mut_ptr(), options);
        (result, info.assume_init())
    };
    if result == -1 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::Interrupted => Ok(None),
            _ => Err(doing(format!("wait for process {pid}"))(error)),
        };
    }
    // SAFETY: waitid(2) has filled in the fields of a child's change, or left them zero where there is none.
    let (changed, status) = unsafe { (info.si_pid() != 0, info.si_status()) };
    Ok(changed.then_some((info.si_code, status)))
}

fn wait(pid: u32) -> Result<ChildEnd> {
    until_ended(pid, drop)?;
    let mut status = 0;
    // SAFETY: rusage is plain data, for which all zero bytes are a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are live and of the types that wait4(2) writes.
        let result = unsafe { libc::wait4(pid.cast_signed(), &mut status, 0, &mut usage) };
        if result >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(doing(format!("wait for process {pid}"))(error));
        }
    }
    let nanos = |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_usec.unsigned_abs() * 1_000;
    let status = if libc::WIFSIGNALED(status) {
        ExitStatus::Signal(libc::WTERMSIG(status))
    } else {
        ExitStatus::Code(libc::WEXITSTATUS(status))
    };
    Ok(ChildEnd { status, user_ns: nanos(usage.ru_utime), system_ns: nanos(usage.ru_stime) })
}

/// An eventfd-like pair made of a pipe: writing a byte to the first wakes who polls the second.
pub(crate) fn wake_pipe() -> Result<(OwnedFd, OwnedFd)> {
    let (read, write) =
        pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).map_err(io::Error::from).map_err(doing("make a pipe"))?;
    Ok((write, read))
}
