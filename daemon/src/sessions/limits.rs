//! Limits on sessions.

use std::time::Duration;

/// Limits on the number, memory and lifetime of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Running sessions in total.
    pub running: usize,
    /// Running sessions of one user who is neither root nor a member of the group.
    pub running_of_user: usize,
    /// Ended sessions kept, in total.
    pub ended: usize,
    /// Ended sessions kept of one such user.
    pub ended_of_user: usize,
    /// Bytes that all sessions of one such user may use: rings, profiles, symbols, updates for slow readers.
    pub bytes_of_user: u64,
    /// Whether profiles store the arguments of targets, unless the client forbids it.
    pub arguments: bool,
    /// Whether such users are served where `kernel.perf_event_paranoid` is 3 or above, at which the kernel keeps perf events
    /// from them.
    pub paranoid_users: bool,
    /// Bytes of the profiles of all ended sessions.
    pub ended_bytes: u64,
    /// Bytes of locked sample rings of all running sessions. The smallest rings, half a MiB per CPU, are granted beyond
    /// that, at most `running` times.
    pub ring_bytes: usize,
    /// How long an undetached session continues after its client has disconnected.
    pub grace: Duration,
}

impl Default for SessionLimits {
    /// A session takes three threads, its rings, and at least a few megabytes; hundreds exceed the programs that are
    /// worth watching at once.
    fn default() -> Self {
        SessionLimits {
            running: 256,
            running_of_user: 16,
            ended: 32,
            ended_of_user: 8,
            bytes_of_user: 256 << 20,
            arguments: false,
            paranoid_users: false,
            ended_bytes: 256 << 20,
            ring_bytes: 256 << 20,
            grace: Duration::from_secs(5),
        }
    }
}
