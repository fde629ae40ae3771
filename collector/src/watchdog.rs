//! Whether the sampling thread still works.
//!
//! It opens files and reads memory that others may have to serve: file systems in user space or on the network, the
//! target's `userfaultfd`. If these do not answer, the kernel keeps the thread until ccsd ends. What can be foreseen is
//! avoided; for the rest the session can be ended without the thread and what it held.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub const LOOK: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
/// Silent looks in a row before an answer is given up: 10 s. No record takes that long. (A stopped ccsd does not look.)
const PATIENCE: u32 = 10;

/// What the sampling thread shows, and what is expected of it. Nothing else is ordered by these, so `Relaxed` does.
#[derive(Debug, Default)]
pub struct Watchdog {
    beats: AtomicU64,
    end_asked: AtomicBool,
    given_up: AtomicBool,
    generations: AtomicBool,
    /// CPU time of the aggregating thread, nanoseconds.
    aggregator_cpu_ns: AtomicU64,
}

impl Watchdog {
    /// The aggregating thread tells what CPU time it has used so far, nanoseconds.
    pub fn tell_cpu(&self, ns: u64) {
        self.aggregator_cpu_ns.store(ns, Ordering::Relaxed);
    }

    pub fn aggregator_cpu_ns(&self) -> u64 {
        self.aggregator_cpu_ns.load(Ordering::Relaxed)
    }

    #[inline]
    pub fn beat(&self) {
        // There is one that writes, so this need not be one indivisible step.
        self.beats.store(self.beats.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// How often it has shown that so far.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// From now on it is to come to its end.
    pub fn ask_for_end(&self) {
        self.end_asked.store(true, Ordering::Relaxed);
    }

    pub fn end_asked(&self) -> bool {
        self.end_asked.load(Ordering::Relaxed)
    }

    /// Allows or forbids new generations of contexts and charges. Allow them only if all updates are kept elsewhere.
    pub fn set_generations(&self, generations: bool) {
        self.generations.store(generations, Ordering::Relaxed);
    }

    /// Whether full tables of contexts and charges begin a new generation.
    pub fn has_generations(&self) -> bool {
        self.generations.load(Ordering::Relaxed)
    }

    /// The session's handle no longer waits for it.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Relaxed);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub struct WatchdogWait {
    beats: u64,
    silent: u32,
}

impl WatchdogWait {
    /// Takes another look, which is to be done every [`LOOK`]. Whether there has been no beat for too long.
    pub fn hangs(&mut self, watchdog: &Watchdog) -> bool {
        let beats = watchdog.beats();
        self.silent = if beats == self.beats { self.silent + 1 } else { 0 };
        self.beats = beats;
        self.silent >= PATIENCE
    }
}
