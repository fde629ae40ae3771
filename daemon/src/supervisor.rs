//! Watches the essential threads: the session table, the acceptor, the watches and the upkeep.
//!
//! If one panics, the process ends with [`STATUS`] and a line that says which, and systemd restarts it. Each beats at
//! least every [`BEAT`]; the upkeep satisfies systemd's watchdog only while all do.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Exit status where an essential thread has failed: `EX_SOFTWARE` of sysexits.h.
pub const STATUS: i32 = 70;
/// Time after which a waiting thread beats.
pub const BEAT: Duration = Duration::from_secs(2);
/// Time between two looks at the beats.
pub const LOOK: Duration = Duration::from_secs(5);
/// Looks in a row without a beat that make a thread hang. Looks are counted, not time: a stopped process does not look.
const SILENT_LOOKS: u32 = 2;

/// What is done when a thread fails: the line that says which.
type OnFailure = Arc<dyn Fn(&str) + Send + Sync>;

/// The essential threads. Clones share them.
#[derive(Clone)]
pub struct Supervisor {
    threads: Arc<Mutex<Vec<Watched>>>,
    on_failure: OnFailure,
}

struct Watched {
    name: &'static str,
    beats: Arc<AtomicU64>,
    /// The beats at the last look, and the looks since they changed.
    seen: (u64, u32),
}

impl Supervisor {
    /// Ends the process if an essential thread fails.
    #[must_use]
    pub fn for_this_process() -> Supervisor {
        Supervisor::new(|line| {
            tracing::error!("{line}");
            std::process::exit(STATUS);
        })
    }

    fn new(on_failure: impl Fn(&str) + Send + Sync + 'static) -> Supervisor {
        Supervisor { threads: Arc::default(), on_failure: Arc::new(on_failure) }
    }

    /// Starts an essential thread.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn spawn(&self, name: &'static str, body: impl FnOnce(&Heart) + Send + 'static) -> io::Result<JoinHandle<()>> {
        let heart = Heart { beats: Arc::default(), threads: Arc::clone(&self.threads) };
        let on_failure = Arc::clone(&self.on_failure);
        self.threads().push(Watched { name, beats: Arc::clone(&heart.beats), seen: (0, 0) });
        let beats = Arc::clone(&heart.beats);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Nothing of the thread's is used after a panic: the process ends.
            if catch_unwind(AssertUnwindSafe(|| body(&heart))).is_err() {
                on_failure(&format!("thread {name} has failed; the service ends, for systemd to start it again"));
            }
        });
        if thread.is_err() {
            self.threads().retain(|watched| !Arc::ptr_eq(&watched.beats, &beats));
        }
        thread
    }

    /// Looks at all threads, which is to be done every [`LOOK`]. Returns those that hang.
    #[must_use]
    pub fn look(&self) -> Vec<&'static str> {
        let mut threads = self.threads();
        let mut silent = Vec::new();
        for Watched { name, beats, seen } in threads.iter_mut() {
            // Relaxed: nothing else depends on the number.
            let now = beats.load(Ordering::Relaxed);
            *seen = if now == seen.0 { (now, seen.1 + 1) } else { (now, 0) };
            if seen.1 >= SILENT_LOOKS {
                silent.push(*name);
            }
        }
        silent
    }

    fn threads(&self) -> MutexGuard<'_, Vec<Watched>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The heart of an essential thread. The thread is not watched any more when it is dropped.
pub struct Heart {
    beats: Arc<AtomicU64>,
    threads: Arc<Mutex<Vec<Watched>>>,
}

impl Heart {
    #[cfg(test)]
    pub(crate) fn unwatched() -> Heart {
        Heart { beats: Arc::default(), threads: Arc::default() }
    }

    /// Shows that the thread works.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.retain(|watched| !Arc::ptr_eq(&watched.beats, &self.beats));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crossbeam_channel::{Receiver, bounded, unbounded};

    fn supervisor() -> (Supervisor, Receiver<String>) {
        let (failures, failed) = unbounded();
        (Supervisor::new(move |line| failures.send(line.to_owned()).unwrap()), failed)
    }

    #[test]
    fn a_panic_is_a_failure_that_names_the_thread() {
        let (supervisor, failed) = supervisor();
        let good = supervisor.spawn("ccsd-good", |heart| heart.beat()).unwrap();
        let bad = supervisor.spawn("ccsd-bad", |_| panic!("as this test wants it")).unwrap();
        good.join().unwrap();
        bad.join().unwrap();
        let lines: Vec<String> = failed.try_iter().collect();
        assert_eq!(lines, ["thread ccsd-bad has failed; the service ends, for systemd to start it again"]);
    }

    #[test]
    fn a_panic_ends_the_process() {
        const CHILD: &str = "CCSD_TEST_OF_SUPERVISOR";
        if std::env::var_os(CHILD).is_some() {
            let thread = Supervisor::for_this_process().spawn("ccsd-bad", |_| panic!("as this test wants it"));
            // The process ends before.
            thread.unwrap().join().unwrap();
            return;
        }
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "supervisor::tests::a_panic_ends_the_process"]).env(CHILD, "1");
        assert_eq!(again.output().unwrap().status.code(), Some(STATUS));
    }

    #[test]
    fn a_thread_that_does_not_beat_hangs() {
        let (supervisor, failed) = supervisor();
        let (beat, beats) = bounded::<()>(0);
        let (beaten, done) = bounded::<()>(0);
        let (let_go, stuck) = bounded::<()>(0);
        let beating = supervisor
            .spawn("ccsd-beats", move |heart| {
                for () in beats {
                    heart.beat();
                    beaten.send(()).unwrap();
                }
            })
            .unwrap();
        let hanging = supervisor.spawn("ccsd-hangs", move |_| assert!(stuck.recv().is_err())).unwrap();
        let mut looks = Vec::new();
        for _ in 0..4 {
            beat.send(()).unwrap();
            done.recv().unwrap();
            looks.push(supervisor.look());
        }
        let hangs = || vec!["ccsd-hangs"];
        assert_eq!(looks, [vec![], hangs(), hangs(), hangs()]);
        // One that has ended in order is not missed.
        drop((beat, let_go));
        beating.join().unwrap();
        hanging.join().unwrap();
        assert_eq!((supervisor.look(), supervisor.look()), (vec![], vec![]));
        assert!(failed.is_empty());
    }
}
