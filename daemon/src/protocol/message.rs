//! Control messages: requests of clients and replies of the daemon, as JSON.
//!
//! Each side first sends [`Hello`], whose form never changes; later messages have the version that the daemon chose.
//! Missing fields have defaults, unknown fields are skipped and unknown reasons kept, so a version can grow.
//! `daemon/docs/protocol.md` describes it for clients in other languages.

use std::time::Duration;

use ccsd_collector::{Budget, Options, Overhead, ProcessSelection, Scope, procfs};
use serde::{Deserialize, Serialize};

use crate::ledger::Full;
use crate::watch::WatchStatus;

/// Newest version of this protocol. From version 2 on, requests have numbers ([`Asked`]).
pub const PROTOCOL: u32 = 2;
/// Oldest version that is still spoken.
pub const OLDEST_PROTOCOL: u32 = 1;

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Of a client, the oldest version that it speaks. Of the daemon, the version of all that follows.
    pub protocol: u32,
    /// The newest version that the sender speaks; not less than `protocol`, and that where it is missing.
    #[serde(default)]
    pub newest: u32,
    /// The newest version of profiles that the sender reads or streams; 0 where it is missing.
    #[serde(default)]
    pub codec: u32,
    /// The sender's version of ccsd.
    pub ccsd: String,
    /// The sender's process id as it sees it. If the daemon sees another, the PID namespaces differ.
    pub pid: u32,
}

impl Hello {
    /// The greeting of this process as a client.
    #[must_use]
    pub fn ours() -> Hello {
        Hello::speaking(OLDEST_PROTOCOL)
    }

    /// The greeting of this process as a daemon that has chosen a version.
    #[must_use]
    pub fn speaking(protocol: u32) -> Hello {
        Hello {
            protocol,
            newest: PROTOCOL,
            codec: ccsd_profile::codec::VERSION,
            ccsd: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
        }
    }

    /// The newest version that both sides speak.
    #[must_use]
    pub fn common_version(&self) -> Option<u32> {
        let newest = self.newest.max(self.protocol).min(PROTOCOL);
        (newest >= self.protocol.max(OLDEST_PROTOCOL)).then_some(newest)
    }
}

/// A request with its number, from version 2 on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The client's choice. Replies have it, too.
    pub id: u64,
    /// The request.
    pub request: Request,
}

/// A reply with the number of its request, from version 2 on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answered {
    /// Number of the request; 0 where that could not be read.
    pub id: u64,
    /// The reply.
    pub reply: Reply,
}

/// Options of a collection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collect {
    /// The event, as `-e` takes it.
    #[serde(default = "auto")]
    pub event: String,
    /// Kernel, user or both.
    #[serde(default)]
    pub scope: WhichCode,
    /// Samples per second of CPU time.
    pub rate_hz: u32,
    /// Maximum cost of sampling, in millionths of the target's CPU time; the rate is then chosen accordingly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_ppm: Option<u32>,
    /// Whether the rate is lowered under load.
    #[serde(default = "yes")]
    pub adapts: bool,
    /// Whether threads and processes that the target starts are also sampled.
    #[serde(default = "yes")]
    pub inherit: bool,
    /// Whether to sample CPUs instead of threads.
    #[serde(default)]
    pub per_cpu: bool,
    /// Milliseconds between two updates.
    #[serde(default = "one_second")]
    pub interval_ms: u64,
    /// Memory budget, bytes. The daemon may grant less.
    #[serde(default = "usual_memory")]
    pub memory: u64,
    /// Whether the profile stores the target's arguments. The daemon may leave them out.
    #[serde(default = "yes")]
    pub arguments: bool,
}

fn auto() -> String {
    "auto".to_owned()
}

const fn yes() -> bool {
    true
}

const fn usual_memory() -> u64 {
    Budget::DEFAULT_MEMORY
}

const fn one_second() -> u64 {
    1000
}

/// [`Scope`] on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhichCode {
    /// As much as is permitted.
    #[default]
    Auto,
    /// Kernel and user code.
    Kernel,
    /// User code.
    User,
}

impl Collect {
    /// Converts the collector's options.
    #[must_use]
    pub fn of(options: &Options) -> Collect {
        let scope = match options.scope {
            Scope::Auto => WhichCode::Auto,
            Scope::Kernel => WhichCode::Kernel,
            Scope::User => WhichCode::User,
        };
        Collect {
            event: options.event.name().to_owned(),
            scope,
            rate_hz: options.rate_hz,
            overhead_ppm: options.overhead.map(Overhead::as_ppm),
            adapts: options.adapts,
            inherit: options.inherit,
            per_cpu: options.per_cpu,
            interval_ms: u64::try_from(options.interval.as_millis()).unwrap_or(u64::MAX),
            memory: options.budget.memory,
            arguments: options.arguments,
        }
    }

    /// Converts to the collector's options.
    ///
    /// # Errors
    /// If the event is unknown or the rate, the budget or the interval is out of range.
    pub fn options(&self) -> Result<Options, ccsd_collector::Error> {
        Ok(Options {
            event: self.event.parse()?,
            scope: match self.scope {
                WhichCode::Auto => Scope::Auto,
                WhichCode::Kernel => Scope::Kernel,
                WhichCode::User => Scope::User,
            },
            rate_hz: ccsd_collector::check_rate(self.rate_hz.into())?,
            overhead: self.overhead_ppm.map(Overhead::ppm).transpose()?,
            adapts: self.adapts,
            inherit: self.inherit,
            per_cpu: self.per_cpu,
            interval: Duration::from_millis(self.interval_ms.clamp(MIN_INTERVAL_MS, MAX_INTERVAL_MS)),
            budget: Budget::of(self.memory),
            arguments: self.arguments,
            ..Options::default()
        })
    }
}

/// Minimum interval: every reader does some work at each update.
const MIN_INTERVAL_MS: u64 = 100;
const MAX_INTERVAL_MS: u64 = 3_600_000;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// Starts a session on running processes. Answered by [`Reply::Started`].
    Attach {
        /// Process ids.
        pids: Vec<u32>,
        /// Start of each process, clock ticks since boot (field 22 of /proc/PID/stat); a reused pid is refused. 0 and
        /// missing ones are not checked.
        #[serde(default)]
        starts: Vec<u64>,
        /// Options.
        collect: Collect,
        /// Maximum duration.
        #[serde(default)]
        duration_ms: Option<u64>,
        /// Whether the session continues without this connection.
        #[serde(default)]
        detach: bool,
    },
    /// Starts a session on the machine or a part of it. Answered by [`Reply::Started`]. Only for root and the group.
    Machine {
        /// Which part.
        selection: ProcessSelection,
        /// Options.
        collect: Collect,
        /// Maximum duration.
        #[serde(default)]
        duration_ms: Option<u64>,
        /// Whether the session continues without this connection.
        #[serde(default)]
        detach: bool,
    },
    /// Starts a session on a client's child that waits to call `execve`. Answered by [`Reply::Started`]; the child may
    /// then continue.
    Adopt {
        /// Process id of the child.
        pid: u32,
        /// The program and its arguments.
        command: Vec<String>,
        /// Options.
        collect: Collect,
    },
    /// Lists the sessions. Answered by one or more [`Reply::Sessions`]; the last has `more` unset.
    List,
    /// Ends a session. Answered by [`Reply::Done`] once the session has been signalled; readers receive its end.
    Stop {
        /// Number of the session.
        session: u32,
        /// CPU time of the recorded program in nanoseconds, user and total, if the client knows it.
        #[serde(default)]
        target_cpu_ns: Option<(u64, u64)>,
        /// Whether the daemon forgets the session when it has ended.
        #[serde(default)]
        forget: bool,
    },
    /// Forgets an ended session that its owner has fetched. Answered by [`Reply::Done`].
    Forget {
        /// Number of the session.
        session: u32,
    },
    /// State of the watches. Answered by one or more [`Reply::Watches`]. Only for root and the group.
    Watches,
    /// The service's own metrics. Answered by one or more [`Reply::Metrics`]. Only for root and the group.
    Metrics,
    /// Stacks of all threads of a process. Answered by one or more [`Reply::Dump`].
    Dump {
        /// Process id.
        pid: u32,
        /// When the process started, as in [`Request::Attach`].
        #[serde(default)]
        start: u64,
    },
    /// The profile so far, then updates. Answered by [`Reply::Stream`], stream frames and [`Reply::StreamEnd`].
    Subscribe {
        /// Number of the session.
        session: u32,
        /// Whether updates follow until the session ends.
        follow: bool,
    },
}

impl Request {
    /// [`Request::Attach`] to processes that run now.
    #[must_use]
    pub fn attach(pids: Vec<u32>, collect: Collect, duration_ms: Option<u64>, detach: bool) -> Request {
        let starts = pids.iter().map(|&pid| start_of(pid)).collect();
        Request::Attach { pids, starts, collect, duration_ms, detach }
    }

    /// [`Request::Dump`] of a process that runs now.
    #[must_use]
    pub fn dump(pid: u32) -> Request {
        Request::Dump { pid, start: start_of(pid) }
    }
}

/// In place of the start of a process that had ended before it was looked at: no process has started then.
pub const NEVER: u64 = u64::MAX;

/// When a process started, clock ticks since boot as the daemon sees it; 0 if that is not to be found out.
pub fn start_of(pid: u32) -> u64 {
    // In a time namespace of its own /proc has other times (time_namespaces(7)).
    let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    let is_offset = |line: &str| line.starts_with("boottime") && !line.split_whitespace().skip(1).all(|it| it == "0");
    if offsets.lines().any(is_offset) { 0 } else { procfs::stat(pid).map_or(0, |stat| stat.start_time) }
}

/// A reply of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// The session runs.
    Started {
        /// Number of the session.
        session: u32,
    },
    /// Some of the sessions that the client may see.
    Sessions {
        /// Ordered by number.
        sessions: Vec<SessionSummary>,
        /// Whether another part follows.
        more: bool,
    },
    /// Some of the watches.
    Watches {
        /// In the order of the configuration.
        watches: Vec<WatchStatus>,
        /// Whether another part follows.
        more: bool,
        /// Directory of their profiles.
        #[serde(default)]
        state_dir: Option<String>,
        /// What is wrong with the service as a whole.
        #[serde(default)]
        problems: Vec<String>,
    },
    /// A part of the metrics.
    Metrics {
        /// OpenMetrics.
        text: String,
        /// Whether another part follows.
        more: bool,
    },
    /// A part of a dump.
    Dump {
        /// [`ccsd_collector::dump::Dump`] as JSON.
        text: String,
        /// Whether another part follows.
        more: bool,
    },
    /// The request succeeded.
    Done,
    /// A stream starts, or restarts because the reader is too slow: discard what was streamed before. Stream frames
    /// follow.
    Stream,
    /// The stream has ended.
    StreamEnd {
        /// Why the session ended; `None` if it continues.
        ended: Option<SessionEnd>,
    },
    /// The request was refused.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Kind of the reason.
    pub kind: RefusalKind,
    /// Message with the remedy.
    pub message: String,
}

/// What the client can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request is wrong for any client and daemon.
    BadRequest,
    /// The daemon may not or will not do this for this client; the client may try without it.
    NotPermitted,
    /// The daemon is overloaded.
    Busy,
    /// The protocol versions differ.
    Version,
    /// An error inside the daemon.
    #[serde(other)]
    Failed,
}

impl Refusal {
    /// Creates a refusal.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into() }
    }
}

impl From<Full> for Refusal {
    fn from(full: Full) -> Refusal {
        Refusal::new(RefusalKind::Busy, full.to_string())
    }
}

impl From<ccsd_collector::Error> for Refusal {
    fn from(error: ccsd_collector::Error) -> Refusal {
        use ccsd_collector::Error;
        let kind = match &error {
            // The client may have permissions that the daemon lacks.
            Error::NotPermitted { .. }
            | Error::NoAnswer { .. }
            | Error::Paranoid { .. }
            | Error::NoPerfEvents { .. }
            | Error::KernelRefused
            | Error::WholeMachineRefused
            | Error::MachineRefused
            | Error::Itself(_) => RefusalKind::NotPermitted,
            Error::TooManyFiles { .. }
            | Error::FileShare(_)
            | Error::OpenFiles { .. }
            | Error::MlockAllowance { .. } => RefusalKind::Busy,
            error if error.is_bad_request() => RefusalKind::BadRequest,
            _ => RefusalKind::Failed,
        };
        Refusal::new(kind, error.to_string())
    }
}

/// Summary of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Number of the session.
    pub id: u32,
    /// User id of the owner.
    pub owner_uid: u32,
    /// The target: a program, or names with process ids.
    pub target: String,
    /// Process ids asked for.
    pub pids: Vec<u32>,
    /// When each started, clock ticks since boot: a number may be another process's by now. 0 where that is not known, and
    /// [`NEVER`] of one that had ended; empty from an older daemon.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<u64>,
    /// Whether the session continues without its client.
    pub detached: bool,
    /// Why the session ended; `None` while it runs.
    pub ended: Option<SessionEnd>,
    /// Start time, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Time collected, nanoseconds.
    pub duration_ns: u64,
    /// Name of the event.
    pub event: String,
    /// Samples per second of CPU time.
    pub rate_hz: u32,
    /// Samples received.
    pub received: u64,
    /// Samples lost, throttled or dropped.
    pub lost: u64,
    /// Contexts in the table.
    pub contexts: u64,
    /// Current readers.
    pub readers: u32,
    /// Approximate memory of the session in the daemon, bytes; after the end, of its profile.
    pub bytes: u64,
}

/// Why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// The target ended.
    Target,
    /// A client stopped the session.
    Stopped,
    /// The requested duration passed.
    Duration,
    /// The client disconnected without stopping the session.
    ClientGone,
    /// The daemon was stopped.
    Shutdown,
    /// The target executed a program that the session's owner may not look at: the program and the reason.
    NotPermitted(String),
    /// Collecting failed: the reason.
    Failed(String),
    /// A reason that this version does not know.
    #[serde(untagged)]
    Other(serde_json::Value),
}

impl SessionSummary {
    /// Whether the process that has a number now, or the last that had it, was asked for.
    #[must_use]
    pub fn is_on(&self, pid: u32) -> bool {
        let Some(place) = self.pids.iter().position(|&asked| asked == pid) else { return false };
        let (then, now) = (self.starts.get(place).copied().unwrap_or(0), start_of(pid));
        then == 0 || now == 0 || then == now
    }
}

impl SessionEnd {
    /// The reason in words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            SessionEnd::Target => "its target has ended".to_owned(),
            SessionEnd::Stopped => "stopped".to_owned(),
            SessionEnd::Duration => "its time was over".to_owned(),
            SessionEnd::ClientGone => "its client went away".to_owned(),
            SessionEnd::Shutdown => "the daemon was stopped".to_owned(),
            SessionEnd::NotPermitted(why) | SessionEnd::Failed(why) => why.clone(),
            SessionEnd::Other(why) => format!("ended for a reason that this version of ccsd does not know: {why}"),
        }
    }
}
