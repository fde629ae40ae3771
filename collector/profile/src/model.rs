//! What a profile speaks about: images, cost centres, lines, processes, threads, metrics, the session.

use crate::cgroup;
use std::sync::Arc;

use serde::Serialize;

use crate::ids::{ImageId, ProcessId};

/// An ELF file, the kernel, the vdso, a JIT region. Deduplicated by name and build id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Image {
    /// Path, or `[vdso]`, `[kernel]`, `[jit]`, `[anon]`; `[ccsd]` for the special cost centres.
    pub name: String,
    /// The GNU build id; empty if there is none. Of the generated code of users other than root and the session's own,
    /// [`Image::generated`] says whose it is.
    pub build_id: Vec<u8>,
}

impl Image {
    const GENERATED: &str = "[jit]";

    /// The image of named functions that processes generate: `owner` is empty, the number of a user, or tells a container from
    /// others.
    #[must_use]
    pub fn generated(owner: Vec<u8>) -> Self {
        Self { name: Self::GENERATED.to_owned(), build_id: owner }
    }

    pub(crate) fn is_generated(&self) -> bool {
        self.name == Self::GENERATED
    }

    /// The user whose generated code it is, if that is another than root and the session's own.
    #[must_use]
    pub fn generated_by(&self) -> Option<u32> {
        let owner = self.is_generated().then_some(self.build_id.as_slice())?;
        owner.try_into().ok().map(u32::from_le_bytes)
    }
}

/// A logical function: a function inlined somewhere is the same cost centre as its out-of-line copy.
///
/// Identity: (image, linkage name), for a local function also (file, line) or its start; (image, start) without a name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct CostCentre {
    /// Where it is.
    pub image: ImageId,
    /// As in the symbol table, clone suffix removed.
    pub linkage_name: Option<String>,
    /// Demangled; `None` when equal to the linkage name or when there is no name.
    pub display_name: Option<String>,
    /// Address in its image (SVMA); that of an instruction if the start is unknown. Stands for a missing linkage name.
    pub start: Option<u64>,
    /// File of the declaration.
    pub file: Option<String>,
    /// Line of the declaration, 0 if unknown.
    pub line: u32,
    /// Whether it can be seen in its own compilation unit only (`static`), so that another function may have its name.
    pub local: bool,
}

impl CostCentre {
    /// The function of an image that has this linkage name, with nothing else known.
    #[must_use]
    pub fn named(image: ImageId, linkage_name: impl Into<String>) -> CostCentre {
        CostCentre {
            image,
            linkage_name: Some(linkage_name.into()),
            display_name: None,
            start: None,
            file: None,
            line: 0,
            local: false,
        }
    }
}

/// A source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// Path as in the debug information. Shared: many lines are of one file.
    pub file: Arc<str>,
    /// Line number from 1, 0 if unknown.
    pub line: u32,
}

/// A process; one process id can be several of them over time, and one process several programs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Clock ticks since boot, `/proc/PID/stat` field 22; 0 if unknown.
    pub start_time: u64,
    /// How many times it called exec while it was watched.
    pub exec_generation: u32,
    /// The process that forked it, if that was watched, too.
    pub parent: Option<ProcessId>,
    /// Command name.
    pub name: String,
    /// What it belongs to, where that was looked at.
    #[serde(skip)]
    pub membership: Option<Arc<Membership>>,
}

impl Process {
    /// The first program of a process whose parent was not watched.
    #[must_use]
    pub fn new(pid: u32, start_time: u64, name: impl Into<String>) -> Process {
        Process { pid, start_time, exec_generation: 0, parent: None, name: name.into(), membership: None }
    }

    /// The exec generation of entries that several processes share. Processes of their own do not get as far.
    pub(crate) const GROUPED: u32 = 1 << 31;

    /// The entry of all processes of one name that belong to the same, for when the table is nearly full.
    pub(crate) const fn grouped(name: String, membership: Option<Arc<Membership>>) -> Process {
        Process { pid: 0, start_time: 0, exec_generation: Process::GROUPED, parent: None, name, membership }
    }

    /// Whether several processes share this entry. Its PID is then 0; its name and membership identify it.
    #[must_use]
    pub const fn is_grouped(&self) -> bool {
        self.pid == 0 && self.exec_generation >= Process::GROUPED
    }

    /// Name and PID as text shows them, as in `make (7)`; `make (many)` of an entry that several share.
    #[must_use]
    pub fn label(&self) -> String {
        match self.is_grouped() {
            true => format!("{} (many)", self.name),
            false => format!("{} ({})", self.name, self.pid),
        }
    }
}

/// What a process belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Membership {
    /// Path of the control group that names its unit and container; empty if not known.
    pub cgroup: String,
    /// Effective user, if known.
    pub uid: Option<u32>,
    /// Name of that user; empty if not known.
    pub user: String,
    /// What the container is called beside its id; empty if that is not known.
    pub container_name: String,
}

impl Membership {
    /// Stands for the path of the control group of the kernel's own threads.
    pub const KERNEL: &str = "[kernel threads]";
    /// The unit, container and user of a process of which it was not looked at what it belongs to.
    pub const UNKNOWN: &str = "[unknown]";

    /// The unit, `[kernel threads]`, or `[no unit]`.
    #[must_use]
    pub fn unit(&self) -> String {
        if self.cgroup == Membership::KERNEL {
            return self.cgroup.clone();
        }
        cgroup::unit(&self.cgroup).map_or_else(|| "[no unit]".to_owned(), ToOwned::to_owned)
    }

    /// The container, `[kernel threads]`, or `[no container]`.
    #[must_use]
    pub fn container(&self) -> String {
        if self.cgroup == Membership::KERNEL {
            return self.cgroup.clone();
        }
        match (cgroup::container(&self.cgroup), self.container_name.as_str()) {
            (None, _) => "[no container]".to_owned(),
            (Some(container), "") => container.label(),
            (Some(container), name) => format!("{} ({name})", container.label()),
        }
    }

    /// The user's name, else the number.
    #[must_use]
    pub fn user(&self) -> String {
        match (self.user.as_str(), self.uid) {
            ("", Some(uid)) => format!("uid {uid}"),
            ("", None) => "[unknown user]".to_owned(),
            (name, _) => name.to_owned(),
        }
    }
}

/// A thread. Identity: (process, tid).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Thread {
    /// Its process.
    pub process: ProcessId,
    /// Thread id.
    pub tid: u32,
    /// Thread name.
    pub name: String,
}

impl Thread {
    /// `name (tid)`.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{} ({})", self.name, self.tid)
    }
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Unit {
    /// Nanoseconds.
    #[default]
    Nanoseconds,
    /// Cycles.
    Cycles,
    /// A count of events.
    Count,
    /// One that this version does not know.
    Unknown,
}

/// What is measured.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Metric {
    /// `cpu-clock`, `cycles`, `tsc`.
    pub name: String,
    /// Unit of its weights.
    pub unit: Unit,
}

/// One collection over a set of processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SessionInfo {
    /// What was profiled, in a few words: a command name, a process name.
    pub target: String,
    /// The command that was started, empty when attached.
    pub command: Vec<String>,
    /// Processes attached to or started.
    pub pids: Vec<u32>,
    /// The event that sampled, e.g. `cpu-clock:u`.
    pub event: String,
    /// Samples asked for per second of CPU time.
    pub rate_hz: u32,
    /// Host name.
    pub host: String,
    /// Start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Charges have one weight for each (at most [`MAX_METRICS`](crate::MAX_METRICS)). Views show the first by default.
    pub metrics: Vec<Metric>,
    /// One line for each fallback taken.
    pub notes: Vec<String>,
    /// Version of the collector.
    pub version: String,
}
