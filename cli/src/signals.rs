//! SIGINT, SIGTERM and SIGHUP end a collection in order.
//!
//! A SIGINT from the terminal reaches the program by itself, because it is in the same process group. A signal that
//! somebody sent to ccsd alone, with kill(2), is passed on: who stops `ccsd record` means the program.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ccsd_daemon::Stop;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin, Sent};

use crate::exit::Exit;

/// The signals that have come.
pub struct Signals {
    /// Told once, with the first signal.
    pub stop: Receiver<Stop>,
    /// The second signal and those after it, by number.
    pub again: Receiver<i32>,
    /// Whether the collection has ended, so that `again` is being read.
    waiting: Arc<AtomicBool>,
    /// Kept so that `stop` stays connected although nobody catches signals.
    _stop: Sender<Stop>,
}

impl Signals {
    /// Catches the signals from now on. To be called after the program was forked: it must find them as our own parent
    /// left them. `child` is whom to pass signals on to.
    ///
    /// # Errors
    /// If no handler can be installed.
    pub fn catch(child: Option<u32>) -> io::Result<Signals> {
        let (stop_sender, stop) = bounded(1);
        let (again_sender, again) = unbounded();
        let waiting = Arc::new(AtomicBool::new(false));
        let signals = Signals { stop, again, waiting: Arc::clone(&waiting), _stop: stop_sender.clone() };
        // A file that grows beyond `ulimit -f` is to be an error of writing, not our death.
        signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
        let wanted = wanted();
        if wanted.is_empty() {
            return Ok(signals);
        }
        let mut caught = SignalsInfo::<WithOrigin>::new(&wanted)?;
        thread::Builder::new().name("ccsd-signals".to_owned()).spawn(move || {
            for (earlier, origin) in caught.forever().enumerate() {
                if let Some(child) = child.filter(|_| earlier == 0 && is_for_us_alone(&origin)) {
                    pass_on(child, origin.signal);
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
fn wanted() -> Vec<i32> {
    let ignored = ignored_signals(&fs::read_to_string("/proc/self/status").unwrap_or_default());
    [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| ignored & (1 << (signal - 1)) == 0).collect()
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
    fn masks() {
        let ignored =
            ignored_signals("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001002\nSigCgt:\t00000000000004a0\n");
        assert_eq!(ignored, 1 << (SIGINT - 1) | 1 << 12);
        assert_eq!(ignored_signals(""), 0);
    }
}
