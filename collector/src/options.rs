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
    /// What sampling may take, of the target's CPU time: the rate is chosen and adjusted by it. What a sample costs is
    /// measured before the session, which takes 50 ms.
    pub overhead: Option<Overhead>,
    /// Whether the rate is lowered where the machine does not keep up, and raised again. Not with [`Options::owner`]: new
    /// events on a process that has become somebody else's in the meantime would be events on what is not his.
    pub adapts: bool,
    /// Whether threads and processes that the target starts are sampled too.
    pub inherit: bool,
    /// Whether to sample CPUs and keep what is the target's, instead of following its threads: threads however short are
    /// seen then. (Where the target has too many threads to follow them all, that is chosen anyway.)
    pub per_cpu: bool,
    /// Whether CPUs may be sampled, where `per_cpu` asks for it or the target has too many threads: then samples of
    /// other programs are taken, too, before they are dropped. Where it is forbidden, `per_cpu` is refused.
    pub whole_machine: bool,
    /// Whether this process does nothing else, and ends with it: then what it costs is what the session costs, and what
    /// the session holds need not be given back. Else its cost is the CPU time of its own threads.
    pub own_process: bool,
    /// Whose processes are followed, and no others, where ccsd may do more than whom it serves. `None` for all that the
    /// kernel lets it. Not with whole CPUs: the kernel does not end the events on these. The session's threads then have the
    /// ordinary priority.
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
