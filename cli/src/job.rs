//! Job control for the recorded program on a terminal.
//!
//! The program gets its own process group and ccsd stays in the foreground, so that Ctrl-C reaches only ccsd. If the
//! program is stopped for using the terminal, ccsd gives it the foreground, and Ctrl-C and Ctrl-Z go to the program.
//! When it is suspended, ccsd suspends itself, for the user's shell; when continued, ccsd restores the former state.

use std::io::{self, IsTerminal, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::sync::Mutex;

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, getpid, getppid, getsid, tcgetpgrp, tcsetpgrp};
use signal_hook::consts::{SIGCONT, SIGTTIN, SIGTTOU};

/// Whether Ctrl-C on the terminal of standard error is meant for this process. In a pipeline it ends the other
/// processes; a dump is not wanted.
pub fn owns_ctrl_c() -> bool {
    let piped = |file: &dyn AsFd| {
        let kind = fstat(file.as_fd()).map(|meta| SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT);
        kind.is_ok_and(|kind| kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK)
    };
    stderr().is_terminal() && !piped(&stdout()) && tcgetpgrp(stderr()).is_ok_and(|group| group == getpgrp())
}

/// Whether a started program can get its own process group: the user's shell knows only ccsd. (A script keeps the
/// terminal.)
pub fn can_lead() -> bool {
    let piped =
        fstat(stdin()).is_ok_and(|meta| SFlag::from_bits_truncate(meta.st_mode) & SFlag::S_IFMT == SFlag::S_IFIFO);
    owns_ctrl_c() && !piped && getpgrp() == getpid()
}

pub struct Job {
    own: Pid,
    child: Pid,
    state: Mutex<JobState>,
}

#[derive(Default)]
struct JobState {
    child_in_front: bool,
    /// Whether the program is stopped because ccsd is.
    suspended: bool,
}

impl Job {
    pub fn new(child: u32) -> Job {
        let child = Pid::from_raw(i32::try_from(child).unwrap_or(i32::MAX));
        Job { own: getpgrp(), child, state: Mutex::default() }
    }

    /// Signals the whole group, as a terminal does.
    pub fn pass(&self, signal: i32) {
        if let Ok(signal) = Signal::try_from(signal) {
            let _ = kill(Pid::from_raw(-self.child.as_raw()), signal);
        }
    }

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
        // Another process stopped the program in the background, and will continue it.
        if !wants_terminal && !state.child_in_front {
            return;
        }
        // Suspended, or waiting for a terminal of another group: the user's shell must see ccsd stop.
        self.suspend_both(&mut state);
    }

    pub fn suspend(&self) {
        let mut state = self.lock();
        self.pass(Signal::SIGTSTP as i32);
        self.suspend_both(&mut state);
    }

    fn suspend_both(&self, state: &mut JobState) {
        // No shell could continue ccsd.
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
        let _ = raise(Signal::SIGSTOP);
        state.suspended = false;
        if state.child_in_front && self.is_ours() {
            give(self.child);
        }
        self.pass(SIGCONT);
    }

    pub fn ended(&self) {
        let mut state = self.lock();
        // Not if the user's shell has taken it meanwhile.
        if std::mem::take(&mut state.child_in_front) && tcgetpgrp(stderr()).is_ok_and(|group| group == self.child) {
            give(self.own);
        }
    }

    fn is_ours(&self) -> bool {
        tcgetpgrp(stderr()).is_ok_and(|group| group == self.own)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// Gives a process group the foreground. From the background this needs SIGTTOU blocked.
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

/// Whether no parent in the same session could continue a stopped ccsd: there is no shell with job control.
fn is_orphan() -> bool {
    match (getsid(None), getsid(Some(getppid()))) {
        (Ok(own), Ok(parent)) => own != parent,
        _ => true,
    }
}

/// Calls `quit` for every input line that starts with `q`, in the foreground. (Single keys would need terminal settings
/// that remain if ccsd is killed.)
pub fn on_quit(quit: impl Fn() + Send + 'static) -> io::Result<()> {
    if !stdin().is_terminal() {
        return Ok(());
    }
    let read = move || {
        // In the background, reading then fails instead of stopping ccsd.
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
