//! SIGINT, SIGTERM and SIGHUP end a collection in order, but for Ctrl-C on a terminal.
//!
//! There the first Ctrl-C asks for the stacks of all threads, and only a second one within two seconds ends the collection;
//! it is passed on to a recorded program, which is in a process group of its own then (see [`Job`]), as all is that the
//! terminal sends.
//!
//! Without a terminal, or as part of a script or a pipeline, a SIGINT reaches the program by itself, because it is in the
//! same process group. A signal that somebody sent to ccsd alone, with kill(2), is passed on: who stops `ccsd record` means
//! the program.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ccsd_daemon::Stop;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

use crate::exit::Exit;
use crate::job::Job;

/// A second Ctrl-C within this time after one, or after what that has asked for was shown, means the end.
const TWICE: Duration = Duration::from_secs(2);

/// Time for a program to end when it is told to, before the collection does.
const GRACE: Duration = Duration::from_millis(100);

/// Where the first Ctrl-C is told.
#[derive(Clone)]
pub struct Asking {
    sender: Sender<()>,
    /// When it was last asked, or answered; `None` while an answer is being prepared.
    last: Arc<Mutex<Option<Instant>>>,
}

impl Asking {
    /// To be asked and the other end.
    pub fn new() -> (Asking, Receiver<()>) {
        // One that waits beside the one that is being answered is enough.
        let (sender, receiver) = bounded(1);
        let long_ago = Instant::now().checked_sub(TWICE);
        (Asking { sender, last: Arc::new(Mutex::new(long_ago)) }, receiver)
    }

    /// Asks, unless this is the second time.
    fn ask(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() < TWICE) {
            return false;
        }
        *last = None;
        self.sender.try_send(()).is_ok()
    }

    /// What was asked for has been shown.
    pub fn answered(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// What signals do beside ending the collection.
#[derive(Clone, Default)]
pub struct Plan {
    /// Where the first Ctrl-C is told, if it asks for a dump.
    pub dump: Option<Asking>,
    /// The recorded program, if it is in a group of its own.
    pub job: Option<Arc<Job>>,
}

/// The signals that have come.
pub struct Signals {
    /// Told once, with the first signal.
    pub stop: Receiver<Stop>,
    /// The second signal and those after it, by number.
    pub again: Receiver<i32>,
    /// Whether the collection has ended, so that `again` is being read.
    waiting: Arc<AtomicBool>,
    /// For others who may ask for the end; so `stop` stays connected although nobody catches signals.
    pub stop_sender: Sender<Stop>,
}

impl Signals {
    /// Catches the signals from now on. To be called after the program was forked: it must find them as our own parent
    /// left them. `child` is whom to pass signals on to.
    ///
    /// # Errors
    /// If no handler can be installed.
    pub fn catch(child: Option<u32>, plan: Plan) -> io::Result<Signals> {
        let (stop_sender, stop) = bounded(1);
        let (again_sender, again) = unbounded();
        let waiting = Arc::new(AtomicBool::new(false));
        let signals = Signals { stop, again, waiting: Arc::clone(&waiting), stop_sender: stop_sender.clone() };
        // A file that grows beyond `ulimit -f` is to be an error of writing, not our death.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let wanted = wanted(plan.job.is_some());
        if wanted.is_empty() {
            return Ok(signals);
        }
        let mut caught = SignalsInfo::<WithOrigin>::new(&wanted)?;
        thread::Builder::new().name("ccsd-signals".to_owned()).spawn(move || {
            let mut earlier = 0;
            for origin in caught.forever() {
                let from_terminal = !is_for_us_alone(&origin);
                match (origin.signal, &plan.job) {
                    (SIGTSTP, Some(job)) => {
                        job.suspend();
                        continue;
                    }
                    (SIGQUIT | SIGWINCH, Some(job)) => {
                        job.pass(origin.signal);
                        continue;
                    }
                    _ => {}
                }
                let first = origin.signal == SIGINT && from_terminal && earlier == 0;
                if first && plan.dump.as_ref().is_some_and(Asking::ask) {
                    continue;
                }
                match (&plan.job, child) {
                    (Some(job), _) if from_terminal => {
                        job.pass(origin.signal);
                        // One that ends at once is seen to its end, and prints its last words before our report.
                        thread::sleep(GRACE);
                    }
                    (_, Some(child)) if earlier == 0 && !from_terminal => pass_on(child, origin.signal),
                    _ => {}
                }
                match earlier {
                    0 => {
                        let _ = stop_sender.try_send(Stop);
                    }
                    // The second while the profile is being finished is most likely impatience; the third is meant.
                    2.. if !waiting.load(Ordering::Relaxed) => Exit::Status(Exit::shell_status(origin.signal)).leave(),
                    _ => {
                        let _ = again_sender.send(origin.signal);
                    }
                }
                earlier += 1;
            }
        })?;
        Ok(signals)
    }

    /// The collection has ended; from now on `again` is heeded.
    pub fn now_waiting(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }
}

/// The signals to catch: those that were not being ignored when we were started (`nohup`, a background job of `sh`).
fn wanted(job: bool) -> Vec<i32> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    let of_job: &[i32] = if job { &[SIGTSTP, SIGQUIT, SIGWINCH] } else { &[] };
    [SIGINT, SIGTERM, SIGHUP]
        .iter()
        .chain(of_job)
        .copied()
        .filter(|signal| ignored & (1 << (signal - 1)) == 0)
        .collect()
}

/// The mask of ignored signals in /proc/PID/status, bit n - 1 for signal n.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a process sent it; the terminal's come from the kernel, and to the whole group.
fn is_for_us_alone(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue))
}

/// The program may have ended, and been waited for, a moment ago; its number is not given to another process before
/// all others have been used.
fn pass_on(child: u32, signal: i32) {
    if let (Ok(pid), Ok(signal)) = (i32::try_from(child), Signal::try_from(signal)) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_a_second_time() {
        let (asking, requests) = Asking::new();
        assert!(asking.ask());
        assert!(!asking.ask(), "while it is being answered");
        assert!(requests.try_recv().is_ok());
        let before = Instant::now();
        asking.answered();
        assert!(!asking.ask() || before.elapsed() >= TWICE, "right after it");
        *asking.last.lock().unwrap() = Instant::now().checked_sub(TWICE);
        assert!(asking.ask(), "later");
    }

    #[test]
    fn masks() {
        let ignored =
            ignored_signals("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001002\nSigCgt:\t00000000000004a0\n");
        assert_eq!(ignored, 1 << (SIGINT - 1) | 1 << 12);
        assert_eq!(ignored_signals(""), 0);
    }
}
