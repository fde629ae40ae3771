//! A dump as plain data, for its caller to print, send or store.

pub use ccsd_profile::FrameInfo;
use serde::{Deserialize, Serialize};

/// The stacks of all threads of one process, taken one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// The process.
    pub pid: u32,
    /// When it started, clock ticks since boot.
    pub start_time: u64,
    /// Its name, as it says.
    pub name: String,
    /// Its command line, as it says; empty for a zombie.
    pub command: Vec<String>,
    /// When the first stack was taken, nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Nanoseconds from the first stack to the last.
    pub took_ns: u64,
    /// Its threads, in the order in which they were found: the main thread first.
    pub threads: Vec<ThreadDump>,
    /// What the threads' frames are numbers in.
    pub frames: Vec<FrameInfo>,
    /// What is to be known about the dump as a whole, a line each.
    pub notes: Vec<String>,
}

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadDump {
    /// Thread id.
    pub tid: u32,
    /// Its name, as it says.
    pub name: String,
    /// What it was doing just before it was looked at.
    pub state: TaskState,
    /// The function of the kernel that it waited in, where that may be known.
    pub wait: Option<String>,
    /// The kernel's part of the stack, innermost first. Only root may see it, and only of threads that do not run.
    pub kernel_stack: Vec<String>,
    /// Positions in [`Dump::frames`], innermost first; inlined functions have places of their own.
    pub stack: Vec<u32>,
    /// Where the stack ends.
    pub end: End,
    /// How it was had.
    pub method: Method,
}

/// State of a thread, as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TaskState {
    /// `R`: it runs or waits for a CPU.
    Running,
    /// `S`: it waits for something.
    Sleeping,
    /// `D`: it waits and cannot be interrupted.
    Uninterruptible,
    /// `T`: it was stopped by a signal.
    Stopped,
    /// `t`: another program that traces it has stopped it.
    Traced,
    /// `Z`: it has ended and waits for its parent.
    Zombie,
    /// `X`: it is ending, or has just ended.
    Dead,
    /// `I`: an idle thread of the kernel.
    Idle,
    /// Anything else.
    #[serde(other)]
    Unknown,
}

impl TaskState {
    /// From the letter.
    pub fn of(letter: char) -> TaskState {
        match letter {
            'R' => TaskState::Running,
            'S' => TaskState::Sleeping,
            'D' => TaskState::Uninterruptible,
            'T' => TaskState::Stopped,
            't' => TaskState::Traced,
            'Z' => TaskState::Zombie,
            'X' | 'x' => TaskState::Dead,
            'I' => TaskState::Idle,
            _ => TaskState::Unknown,
        }
    }

    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            TaskState::Running => "running",
            TaskState::Sleeping => "sleeping",
            TaskState::Uninterruptible => "in uninterruptible sleep",
            TaskState::Stopped => "stopped by a signal",
            TaskState::Traced => "stopped by a tracer",
            TaskState::Zombie => "zombie",
            TaskState::Dead => "ended",
            TaskState::Idle => "idle",
            TaskState::Unknown => "in an unknown state",
        }
    }
}

/// Where a stack ends.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// At the frame that nothing called.
    Complete,
    /// Before that, and why.
    Truncated(String),
    /// There is none, and why.
    Missing(String),
}

/// How a stack was had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SentMethod", into = "SentMethod")]
pub enum Method {
    /// Upper bound on the time that the thread was stopped, nanoseconds: from the last look that found it running until it was
    /// let go.
    Stopped {
        /// Nanoseconds.
        ns: u64,
    },
    /// It ran and was not stopped: its stack is that of a sample.
    Sampled,
    /// It was not stopped, and why.
    NotStopped {
        /// In words.
        why: String,
    },
}

/// The same as it is sent: clients that do not know of samples show why the thread was not stopped.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SentMethod {
    Stopped {
        ns: u64,
    },
    NotStopped {
        why: String,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        sampled: bool,
    },
}

impl From<SentMethod> for Method {
    fn from(sent: SentMethod) -> Method {
        match sent {
            SentMethod::Stopped { ns } => Method::Stopped { ns },
            SentMethod::NotStopped { sampled: true, .. } => Method::Sampled,
            SentMethod::NotStopped { why, .. } => Method::NotStopped { why },
        }
    }
}

impl From<Method> for SentMethod {
    fn from(method: Method) -> SentMethod {
        match method {
            Method::Stopped { ns } => SentMethod::Stopped { ns },
            Method::Sampled => SentMethod::NotStopped { why: SAMPLED.to_owned(), sampled: true },
            Method::NotStopped { why } => SentMethod::NotStopped { why, sampled: false },
        }
    }
}

const SAMPLED: &str = "it ran, and its stack is that of a sample";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn clients_that_do_not_know_of_samples_understand() {
        let sent = |method: &Method| serde_json::to_value(method).unwrap();
        let why = serde_json::json!({"not-stopped": {"why": SAMPLED, "sampled": true}});
        assert_eq!(sent(&Method::Sampled), why);
        assert_eq!(sent(&Method::Stopped { ns: 7 }), serde_json::json!({"stopped": {"ns": 7}}));
        for method in [Method::Sampled, Method::Stopped { ns: 7 }, Method::NotStopped { why: "x".to_owned() }] {
            assert_eq!(serde_json::from_value::<Method>(sent(&method)).unwrap(), method);
        }
    }
}
