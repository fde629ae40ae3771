//! Being a shell to the program that is recorded, where there is a terminal.
//!
//! The program has a process group of its own and ccsd stays in the terminal's foreground, so that Ctrl-C comes to ccsd
//! alone. A program that reads from the terminal, or sets it up, is stopped by the kernel for being in the background; then
//! it is given the foreground, and from then on Ctrl-C and Ctrl-Z are its own. When it is suspended, so is ccsd, so that the
//! user's shell comes back; when that continues ccsd, everything is as it was.

use std::io::{self, IsTerminal, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::Mutex;

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCONT, SIGTTIN, SIGTTOU};

/// Whether Ctrl-C on the terminal of standard error means this process, and one can see what it prints.
///
/// In a pipeline, Ctrl-C ends the others; a dump of what goes on without them is not what is meant.
pub fn owns_ctrl_c() -> bool {
    let piped = |file: &dyn AsFd| {
        let kind = fstat(file.as_fd()).map(|meta| SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT);
        kind.is_ok_and(|kind| kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK)
    };
    stderr().is_terminal() && !piped(&stdout()) && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

/// Whether a program that is started can be given a process group of its own: ccsd is all that the user's shell knows of
/// this job. (As a part of a script, it leaves the terminal to it.)
pub fn can_lead() -> bool {
    let piped =
        fstat(stdin()).is_ok_and(|meta| SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO);
    owns_ctrl_c() && !piped && getpgrp() == getpid()
}

/// The program's process group, and the terminal.
pub struct Job {
    own: Pid,
    child: Pid,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    /// Whether the program has been given the foreground.
    child_in_front: bool,
    /// Whether it is stopped because ccsd is.
    suspended: bool,
}

impl Job {
    /// The job of a child in a process group of its own.
    pub fn new(child: u32) -> Job {
        let child = Pid::from_raw(i32::try_from(child).unwrap_or(i32::MAX));
        Job { own: getpgrp(), child, state: Mutex::default() }
    }

    /// Sends the whole group a signal, as a terminal does.
    pub fn pass(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = kill(Pid::from_raw(-self.child.as_raw()), signal);
        }
    }

    /// The program was stopped by this signal.
    pub fn stopped(&self, signal: i32) {
        let mut state = self.lock();
        if state.suspended {
            return;
        }
        let wants_terminal = signal == SIGTTIN || signal == SIGTTOU;
        if wants_terminal && self.is_ours() {
            state.child_in_front = give(self.child);
            self.pass(SIGCONT);
            return;
        }
        // Something stopped it while it was in the background: whoever that was will let it go on.
        if !wants_terminal && !state.child_in_front {
            return;
        }
        // Suspended, or in need of a terminal that is another's: as a job of the user's shell, ccsd is what that sees.
        self.suspend_both(&mut state);
    }

    /// Ctrl-Z, while ccsd is in the foreground.
    pub fn suspend(&self) {
        let mut state = self.lock();
        self.pass(Signal::SIGTSTP as i32);
        self.suspend_both(&mut state);
    }

    fn suspend_both(&self, state: &mut JobState) {
        // Nobody could continue us.
        if is_orphan() {
            if state.child_in_front {
                give(self.child);
            }
            self.pass(SIGCONT);
            return;
        }
        if state.child_in_front && tcgetpgrp(stderr()).is_ok_and(|group| group == self.child) {
            give(self.own);
        }
        state.suspended = true;
        // Here ccsd stands still.
        let _ = raise(Signal::SIGSTOP);
        state.suspended = false;
        if state.child_in_front && self.is_ours() {
            give(self.child);
        }
        self.pass(SIGCONT);
    }

    /// The program has ended: the terminal is ours again.
    pub fn ended(&self) {
        let mut state = self.lock();
        // If the user's shell has taken it in the meantime, it is not.
        if std::mem::take(&mut state.child_in_front) && tcgetpgrp(stderr()).is_ok_and(|group| group == self.child) {
            give(self.own);
        }
    }

    /// Whether ccsd is in the foreground.
    fn is_ours(&self) -> bool {
        tcgetpgrp(stderr()).is_ok_and(|group| group == self.own)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Gives a process group the foreground. From the background that takes having SIGTTOU blocked.
fn give(group: Pid) -> bool {
    let mut blocked = SigSet::empty();
    blocked.add(Signal::SIGTTOU);
    let before = blocked.thread_swap_mask(nix::sys::signal::SigmaskHow::SIG_BLOCK);
    let given = tcsetpgrp(stderr(), group);
    if let Ok(before) = before {
        let _ = before.thread_set_mask();
    }
    given.is_ok()
}

/// Whether no process of the same session is there to continue us if we stop: there is no shell with job control.
fn is_orphan() -> bool {
    match (getsid(None), getsid(Some(getppid()))) {
        (Ok(own), Ok(parent)) => own != parent,
        _ => true,
    }
}

/// The user's keys, where standard input is the terminal that ccsd is in the foreground of: `quit` is called with every line
/// that begins with `q`. (Single keys would take changing the terminal's settings, and these would stay if ccsd is killed.)
pub fn on_quit(quit: impl Fn() + Send + 'static) -> io::Result<()> {
    if !stdin().is_terminal() {
        return Ok(());
    }
    let read = move || {
        // In the background, reading is an error then and does not stop us.
        let mut blocked = SigSet::empty();
        blocked.add(Signal::SIGTTIN);
        let _ = blocked.thread_block();
        let mut line = [0u8; 256];
        loop {
            match nix::unistd::read(stdin(), &mut line) {
                Ok(0) => return,
                Ok(_) if line.first() == Some(&b'q') => quit(),
                Ok(_) => {}
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(500)),
            }
        }
    };
    std::thread::Builder::new().name("ccsd-keys".to_owned()).spawn(read).map(drop)
}
