//! Limits on sessions.

use std::time::Duration;

/// Limits on the memory and lifetime of sessions. Their number is bounded by the [ledger](crate::ledger).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Bytes that one ordinary user may have: rings, events, profiles, symbols, streams, dumps.
    pub bytes_of_user: u64,
    /// Whether profiles store the arguments of targets, unless the client forbids it.
    pub arguments: bool,
    /// Whether ordinary users are served where `kernel.perf_event_paranoid` is 3 or above.
    pub paranoid_users: bool,
    /// Bytes of the profiles of the ended sessions of root and the group.
    pub ended_bytes: u64,
    /// Bytes of locked sample rings of one principal's running sessions. The smallest rings (half a MiB per CPU) come
    /// on top.
    pub ring_bytes: usize,
    /// How long an undetached session continues after its client has disconnected.
    pub grace: Duration,
}

impl Default for SessionLimits {
    fn default() -> Self {
        SessionLimits {
            bytes_of_user: 256 << 20,
            arguments: false,
            paranoid_users: false,
            ended_bytes: 256 << 20,
            ring_bytes: 256 << 20,
            grace: Duration::from_secs(5),
        }
    }
}
