//! Status of a watch, for clients.

use serde::{Deserialize, Serialize};

/// Status of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchStatus {
    /// Name of the watch.
    pub name: String,
    /// Processes that match now.
    pub processes: u64,
    /// Matching processes that the kernel refuses to sample, or does not answer about.
    pub refused: u64,
    /// Whether a session runs.
    pub profiling: bool,
    /// Current samples per second of CPU time.
    pub rate_hz: u32,
    /// The configured rate.
    pub configured_rate_hz: u32,
    /// Samples received since the service began.
    pub samples: u64,
    /// Samples lost, throttled, dropped or undelivered since the service began.
    pub missing: u64,
    /// Samples lost, throttled or dropped; 0 from an older daemon.
    #[serde(default)]
    pub lost: u64,
    /// Samples received that were not stored, as nothing could be written; 0 from an older daemon.
    #[serde(default)]
    pub unstored: u64,
    /// CPU time of the watched processes since the service began, nanoseconds, as far as known.
    pub target_cpu_ns: u64,
    /// Time since the service began in which processes matched and nothing was stored, nanoseconds.
    #[serde(default)]
    pub uncovered_ns: u64,
    /// Segments created since the service began.
    pub segments: u64,
    /// Bytes written since the service began.
    pub bytes: u64,
    /// Time of the last written update, seconds since 1970; 0 for none.
    pub last_written: u64,
    /// Why nothing is collected or stored, if so.
    pub problem: Option<String>,
    /// Why no process may match, if none does.
    #[serde(default)]
    pub hint: Option<String>,
    /// Whether CPUs are sampled, not threads.
    #[serde(default)]
    pub samples_cpus: bool,
    /// What is wrong with the profile of the present session.
    #[serde(default)]
    pub warning: Option<String>,
}

impl WatchStatus {
    /// Samples that should have been received since the service began.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.samples.saturating_add(self.missing)
    }
}
