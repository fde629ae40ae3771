//! What a session is to collect, and how.

use std::sync::Arc;
use std::time::Duration;

use crate::budget::Budget;
use crate::pace::Overhead;
use crate::perf::choice::{EventChoice, Scope};
use crate::perf::files::FileShare;
use crate::process::filter::ProcessFilter;
use crate::process::owner::Owner;

/// What to collect and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which event.
    pub event: EventChoice,
    /// Kernel, user or both.
    pub scope: Scope,
    /// Samples per second of CPU time; see [`crate::perf::choice::check_rate`]. With a budget it is not used.
    pub rate_hz: u32,
    /// Maximum cost of sampling in the target's CPU time; the rate follows it. Measured before the session, in 50 ms.
    pub overhead: Option<Overhead>,
    /// Lowers the rate where the machine does not keep up. Not with [`Options::owner`]: new events might be on somebody
    /// else's process.
    pub adapts: bool,
    /// Whether threads and processes that the target starts are sampled too.
    pub inherit: bool,
    /// Sample CPUs and keep the target's samples, instead of following threads: sees threads however short. Also chosen
    /// for targets with too many threads.
    pub per_cpu: bool,
    /// Whether CPUs may be sampled, which also takes other programs' samples before dropping them. If not, `per_cpu` is
    /// refused.
    pub whole_machine: bool,
    /// Whether this process does nothing else and ends with the session: its cost is the session's, and memory need not
    /// be freed.
    pub own_process: bool,
    /// Follows only this owner's processes, where ccsd may do more than whom it serves. Not with whole CPUs, whose
    /// events the kernel does not end. The session's threads then have ordinary priority.
    pub owner: Option<Owner>,
    /// Bounds the files that the session may have open.
    pub files: Option<Arc<dyn FileShare>>,
    /// What a process must fit: its samples are kept only while it does. `None` for all that is followed.
    pub filter: Option<Arc<dyn ProcessFilter>>,
    /// Whether the target's arguments, which may hold secrets, are noted in the profile; its program is in any case.
    pub arguments: bool,
    /// Time between two updates.
    pub interval: Duration,
    /// What it may have in memory.
    pub budget: Budget,
    /// What a user can do where threads live too short to be sampled: the subject of "sees more".
    pub more_samples: &'static str,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            event: EventChoice::Auto,
            scope: Scope::Auto,
            // Not 1000: a rate that divides the usual timers' would see their work always or never.
            rate_hz: 999,
            overhead: None,
            adapts: true,
            inherit: true,
            per_cpu: false,
            whole_machine: true,
            own_process: true,
            owner: None,
            files: None,
            filter: None,
            arguments: true,
            interval: Duration::from_secs(1),
            budget: Budget::default(),
            more_samples: "a higher rate (-F), or --per-cpu as root,",
        }
    }
}
