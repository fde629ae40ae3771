//! Signals during a collection: SIGINT, SIGTERM and SIGHUP end it, except for Ctrl-C on a terminal.
//!
//! On a terminal the first Ctrl-C prints all stacks, a second one within two seconds ends the collection. The
//! terminal's signals are passed on to a recorded program in its own process group ([`Job`]).
//!
//! Without a terminal, or in a script or a pipeline, the program is in the same group and gets SIGINT directly. A
//! signal sent to ccsd alone with kill(2) is passed on.

use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ccsd_collector::dump;
use ccsd_daemon::StopRequest;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGWINCH, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

use crate::exit::Exit;
use crate::job::Job;

/// A second Ctrl-C within this time after the first, or after its dump was printed, ends the collection.
const TWICE: Duration = Duration::from_secs(2);

/// Time for a signalled program to end before the collection does.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub struct Asking {
    sender: Sender<()>,
    /// Time of the last request or answer; `None` while an answer is being prepared.
    last: Arc<Mutex<Option<Instant>>>,
}

impl Asking {
    pub fn new() -> (Asking, Receiver<()>) {
        // One pending request beside the current one is enough.
        let (sender, receiver) = bounded(1);
        let long_ago = Instant::now().checked_sub(TWICE);
        (Asking { sender, last: Arc::new(Mutex::new(long_ago)) }, receiver)
    }

    /// Requests a dump. Returns false if this is the second Ctrl-C.
    fn ask(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() < TWICE) {
            return false;
        }
        *last = None;
        self.sender.try_send(()).is_ok()
    }

    pub fn answered(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

#[derive(Clone, Default)]
pub struct Plan {
    /// Handler of the first Ctrl-C, if it prints a dump.
    pub dump: Option<Asking>,
    pub job: Option<Arc<Job>>,
}

pub struct Signals {
    pub stop: Receiver<StopRequest>,
    pub again: Receiver<i32>,
    /// Whether the collection has ended, so that `again` is read.
    waiting: Arc<AtomicBool>,
    /// Also used by other sources of the request; keeps `stop` connected if no signals are caught.
    pub stop_sender: Sender<StopRequest>,
}

impl Signals {
    /// Catches signals from now on. Call after the fork, as the program must inherit ccsd's original signal settings.
    /// `child` receives passed-on signals.
    pub fn catch(child: Option<u32>, plan: Plan) -> io::Result<Signals> {
        let (stop_sender, stop) = bounded(1);
        let (again_sender, again) = unbounded();
        let waiting = Arc::new(AtomicBool::new(false));
        let signals = Signals { stop, again, waiting: Arc::clone(&waiting), stop_sender: stop_sender.clone() };
        let of_job: &[i32] = if plan.job.is_some() { &[SIGTSTP, SIGQUIT, SIGWINCH] } else { &[] };
        let wanted = not_ignored(&[&[SIGINT, SIGTERM, SIGHUP], of_job].concat());
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
                        // A program that ends at once is waited for, so that its last output precedes the report.
                        thread::sleep(GRACE);
                    }
                    (_, Some(child)) if earlier == 0 && !from_terminal => pass_on(child, origin.signal),
                    _ => {}
                }
                match earlier {
                    0 => {
                        let _ = stop_sender.try_send(StopRequest);
                    }
                    // A second signal while the profile is being finished is most likely impatience; a third is meant.
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

    pub fn now_waiting(&self) {
        self.waiting.store(true, Ordering::Relaxed);
    }
}

/// Lets signals that end ccsd take effect only while a dump holds no thread: it would be let go in the midst of a call.
pub fn end_between_holds() -> io::Result<()> {
    let (idle, late) = (dump::idle(), Arc::new(AtomicUsize::new(0)));
    for signal in not_ignored(&[SIGINT, SIGTERM, SIGHUP, SIGQUIT]) {
        // Noted first: ccsd may begin to hold a thread before the second handler looks.
        signal_hook::flag::register_usize(signal, late.clone(), signal.unsigned_abs() as usize)?;
        signal_hook::flag::register_conditional_default(signal, idle.clone())?;
    }
    dump::on_idle(move || {
        if let Ok(signal @ 1..) = i32::try_from(late.load(Ordering::SeqCst)) {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    });
    Ok(())
}

/// From now on a file that grows beyond `ulimit -f` is an error of writing, and does not kill ccsd without a word. A
/// program that ccsd executes has the signal's default again, or ignores it as ccsd's parent does.
pub fn write_to_the_limit() {
    for signal in not_ignored(&[SIGXFSZ]) {
        // Without it, ccsd is killed there as other programs are.
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

/// The signals of a list that were not ignored when ccsd started (`nohup`, a background job of `sh`).
pub fn not_ignored(signals: &[i32]) -> Vec<i32> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    signals.iter().copied().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
}

/// The mask of ignored signals in /proc/PID/status; bit n - 1 for signal n.
fn ignored_signals(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Whether a process sent the signal; the terminal's signals come from the kernel, for the whole group.
fn is_for_us_alone(origin: &Origin) -> bool {
    matches!(origin.cause, Cause::Sent(Sent::User | Sent::TKill | Sent::Queue))
}

/// Passes a signal on. The program may just have ended; its id is not reused before all others were used.
fn pass_on(child: u32, signal: i32) {
    if let (Ok(pid), Ok(signal)) = (i32::try_from(child), Signal::try_from(signal)) {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_signals() {
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
