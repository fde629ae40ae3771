//! Control messages: what a client asks and what the daemon answers, as JSON.
//!
//! The first message of each side is [`Hello`], whose form never changes; all others are of the version that it names. A
//! field that is missing has its default and one that is unknown is skipped, so a version can grow without a new number.

use std::time::Duration;

use ccsd_collector::{Budget, Options, Overhead, Scope};
use serde::{Deserialize, Serialize};

use crate::watch::WatchStatus;

/// Number of this protocol.
pub const PROTOCOL: u32 = 1;

/// The first message of each side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`] of the sender.
    pub protocol: u32,
    /// The sender's version of ccsd.
    pub ccsd: String,
    /// The sender's process id, as it sees it itself. If the daemon sees another one, the two do not mean the same
    /// processes by the same numbers.
    pub pid: u32,
}

impl Hello {
    /// Of this process.
    #[must_use]
    pub fn ours() -> Hello {
        Hello { protocol: PROTOCOL, ccsd: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() }
    }
}

/// How to collect, as it is asked for.
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
    /// What sampling may take, in millionths of the target's CPU time; the rate is chosen by that then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overhead_ppm: Option<u32>,
    /// Whether the rate is lowered where the machine does not keep up.
    #[serde(default = "yes")]
    pub adapts: bool,
    /// Whether threads and processes that the target starts are sampled, too.
    #[serde(default = "yes")]
    pub inherit: bool,
    /// Whether to sample CPUs instead of threads.
    #[serde(default)]
    pub per_cpu: bool,
    /// Milliseconds between two updates.
    #[serde(default = "one_second")]
    pub interval_ms: u64,
    /// Bytes that it may have in memory. (The daemon may give less.)
    #[serde(default = "usual_memory")]
    pub memory: u64,
    /// Whether the target's arguments are noted in the profile. (The daemon may leave them out.)
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

/// [`Scope`] as it is sent.
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
    /// Of the collector's options.
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

    /// The collector's options.
    ///
    /// # Errors
    /// If the event is unknown or the rate, the budget or the interval out of range.
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

/// Every reader takes some work at every update, so there are at most so many of them.
const MIN_INTERVAL_MS: u64 = 100;
/// An hour.
const MAX_INTERVAL_MS: u64 = 3_600_000;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Request {
    /// A session on running processes. Answered by [`Reply::Started`].
    Attach {
        /// The processes.
        pids: Vec<u32>,
        /// How.
        collect: Collect,
        /// When it ends by itself.
        #[serde(default)]
        duration_ms: Option<u64>,
        /// Whether the session goes on without this connection.
        #[serde(default)]
        detach: bool,
    },
    /// A session on a child of the client that waits to call `execve`, at which its events switch themselves on.
    /// Answered by [`Reply::Started`], whereupon the client lets it go.
    Adopt {
        /// The child.
        pid: u32,
        /// The program and its arguments.
        command: Vec<String>,
        /// How.
        collect: Collect,
    },
    /// Which sessions there are. Answered by [`Reply::Sessions`], as many as it takes, the last of them not `more`.
    List,
    /// Ends a session. Answered by [`Reply::Done`] when it has been told; its readers get its end.
    Stop {
        /// Which.
        session: u32,
        /// CPU time of the recorded program, nanoseconds, user and in all, if the client knows it.
        #[serde(default)]
        target_cpu_ns: Option<(u64, u64)>,
        /// Whether to forget it when it has ended.
        #[serde(default)]
        forget: bool,
    },
    /// Forgets a session that has ended: its owner has taken all of it. Answered by [`Reply::Done`].
    Forget {
        /// Which.
        session: u32,
    },
    /// What the watches are doing. Answered by [`Reply::Watches`], as many as it takes. For root and the group alone.
    Watches,
    /// The service's own metrics. Answered by [`Reply::Metrics`], as many as it takes. For root and the group alone.
    Metrics,
    /// The stacks of all threads of a process, now. Answered by [`Reply::Dump`], as many as it takes.
    Dump {
        /// The process.
        pid: u32,
    },
    /// The profile so far, and then what comes. Answered by [`Reply::Stream`], stream frames, and [`Reply::StreamEnd`];
    /// then the connection takes requests again.
    Subscribe {
        /// Which session.
        session: u32,
        /// Whether to go on with updates until the session ends.
        follow: bool,
    },
}

/// What the daemon answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reply {
    /// The session runs.
    Started {
        /// Its number.
        session: u32,
    },
    /// Some of the sessions that the client may see.
    Sessions {
        /// In order of their numbers.
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
        /// Where their profiles are kept.
        #[serde(default)]
        state_dir: Option<String>,
    },
    /// A part of the metrics.
    Metrics {
        /// In the text format of Prometheus.
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
    /// Done.
    Done,
    /// A stream begins, or begins anew: what was streamed before is to be forgotten, because its reader was so slow that
    /// a fresh start is less than what it had missed. Stream frames follow.
    Stream,
    /// The stream is over.
    StreamEnd {
        /// Why the session has ended; `None` if it goes on.
        ended: Option<SessionEnd>,
    },
    /// Refused.
    Refused(Refusal),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What kind of reason it is.
    pub kind: RefusalKind,
    /// In words, with what to do about it.
    pub message: String,
}

/// What the client can do about a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// The request is wrong, whoever asks whomever.
    BadRequest,
    /// The daemon may not or will not do this for this client; it may try for itself.
    NotPermitted,
    /// The daemon has too much to do.
    Busy,
    /// The two do not speak the same protocol.
    Version,
    /// Something went wrong in the daemon.
    Failed,
}

impl Refusal {
    /// A refusal of this kind, with this message.
    pub fn new(kind: RefusalKind, message: impl Into<String>) -> Refusal {
        Refusal { kind, message: message.into() }
    }
}

impl From<ccsd_collector::Error> for Refusal {
    fn from(error: ccsd_collector::Error) -> Refusal {
        use ccsd_collector::Error;
        let kind = match &error {
            // The client may still be able to.
            Error::NotPermitted { .. }
            | Error::Paranoid { .. }
            | Error::NoPerfEvents { .. }
            | Error::KernelRefused
            | Error::WholeMachineRefused
            | Error::Itself(_) => RefusalKind::NotPermitted,
            Error::TooManyFiles { .. } | Error::OpenFiles { .. } | Error::MlockAllowance { .. } => RefusalKind::Busy,
            error if error.is_bad_request() => RefusalKind::BadRequest,
            _ => RefusalKind::Failed,
        };
        Refusal::new(kind, error.to_string())
    }
}

/// A session, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    /// Its number.
    pub id: u32,
    /// Whose it is.
    pub owner_uid: u32,
    /// The target: a program, or names with process ids.
    pub target: String,
    /// The processes asked for.
    pub pids: Vec<u32>,
    /// Whether it goes on without its client.
    pub detached: bool,
    /// Why it has ended; `None` while it runs.
    pub ended: Option<SessionEnd>,
    /// When it began, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Time collected, nanoseconds.
    pub duration_ns: u64,
    /// The event.
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
    /// Memory that it takes in the daemon, about, in bytes: rings, names and profile while it runs, then the profile.
    pub bytes: u64,
}

/// Why a session has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionEnd {
    /// Its target has.
    Target,
    /// A client stopped the session.
    Stopped,
    /// Its duration was over.
    Duration,
    /// Its client went away without a word.
    ClientGone,
    /// The daemon was stopped.
    Shutdown,
    /// The target ran a program that the session's owner may not look at: which, and why.
    NotPermitted(String),
    /// Collecting failed: how.
    Failed(String),
}

impl SessionEnd {
    /// In words.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            SessionEnd::Target => "its target has ended".to_owned(),
            SessionEnd::Stopped => "stopped".to_owned(),
            SessionEnd::Duration => "its time was over".to_owned(),
            SessionEnd::ClientGone => "its client went away".to_owned(),
            SessionEnd::Shutdown => "the daemon was stopped".to_owned(),
            SessionEnd::NotPermitted(why) | SessionEnd::Failed(why) => why.clone(),
        }
    }
}
