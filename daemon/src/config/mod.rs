//! The configuration of the service, `/etc/ccsd/ccsd.toml`. Errors name the line and column of the wrong key or value.

mod values;

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use toml::Spanned;

use crate::trusted_path::{self, Stranger};

pub use values::{
    AbsolutePath, Age, CpuPercent, Interval, MemoryBytes, Rate, SelectorPattern, StoreBytes, UserSelector, WatchEvent,
    WatchLayout, WatchMatch, WatchName, WatchOverhead, Window, bytes,
};

/// Path of the configuration file.
pub const DEFAULT_PATH: &str = "/etc/ccsd/ccsd.toml";
/// Maximum size of the file in bytes. A thousand watches take about 100 KiB.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum number of watches in a file. Each has its own events and threads while a process matches it.
const MAX_WATCHES: usize = 1000;

/// The configuration of the service.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Path of the socket, if systemd does not pass one and the default is not wanted.
    pub socket: Option<AbsolutePath>,
    /// Directory of the profiles, with a subdirectory for each watch.
    pub state_dir: AbsolutePath,
    /// File for the service's own metrics, read by node_exporter.
    pub metrics_file: Option<AbsolutePath>,
    /// How long profiles are kept.
    pub retention: Retention,
    /// Resources of the whole service.
    pub budget: ServiceBudget,
    /// Limits of clients' sessions.
    pub sessions: ClientSessions,
    /// The watches.
    #[serde(rename = "watch")]
    pub watches: Vec<WatchConfig>,
    /// Warnings about watches that no process can match, one line each with file, line and column.
    #[serde(skip)]
    pub warnings: Vec<String>,
}

/// How long profiles are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Retention {
    /// Maximum age; older profiles are removed.
    pub age: Age,
    /// Maximum bytes of all profiles together; the oldest are removed first.
    pub bytes: StoreBytes,
}

/// Resources of the whole service. Above them, watches get a lower rate, then less detail.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceBudget {
    /// Percent of one CPU.
    pub cpu_percent: CpuPercent,
    /// Resident memory.
    pub memory: MemoryBytes,
    /// Time over which CPU use is averaged.
    pub window: Window,
}

/// Limits of clients' sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientSessions {
    /// Memory of all sessions of one user who is neither root nor a member of the group.
    pub memory_of_user: MemoryBytes,
    /// Whether profiles store the arguments of programs, which may hold secrets.
    pub arguments: bool,
    /// Whether such users are served even where `kernel.perf_event_paranoid` keeps perf events from them altogether.
    pub paranoid_users: bool,
}

/// A watch: which processes are profiled for as long as they run.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchConfig {
    /// Name on command lines.
    pub name: WatchName,
    /// Pattern for the systemd unit.
    pub unit: Option<SelectorPattern>,
    /// Pattern for the path of the control group.
    pub cgroup: Option<SelectorPattern>,
    /// Pattern for the path of the executable.
    pub exe: Option<SelectorPattern>,
    /// Pattern for the name of the command.
    pub comm: Option<SelectorPattern>,
    /// Users whose processes match; only root if not given.
    pub user: Option<UserSelector>,
    /// A set of processes, in place of all of these.
    #[serde(rename = "match")]
    pub matches: Option<WatchMatch>,
    /// How the events are spread.
    #[serde(default)]
    pub layout: WatchLayout,
    /// Event to sample.
    #[serde(default)]
    pub event: WatchEvent,
    /// Samples per second of CPU time.
    #[serde(default = "default_rate")]
    pub rate_hz: Rate,
    /// Maximum cost of sampling. The rate is then chosen accordingly, and `rate_hz` is not used.
    pub overhead: Option<WatchOverhead>,
    /// Time between two updates.
    #[serde(default = "default_interval")]
    pub interval: Interval,
    /// Memory of the watch's session.
    #[serde(default = "default_memory")]
    pub memory: MemoryBytes,
}

impl WatchConfig {
    fn has_selector(&self) -> bool {
        self.user.is_some() || [&self.unit, &self.cgroup, &self.exe, &self.comm].into_iter().any(Option::is_some)
    }

    /// Whether all that runs matches.
    #[must_use]
    pub fn is_of_everything(&self) -> bool {
        self.matches == Some(WatchMatch::Everything)
    }

    /// Whether CPUs are sampled, whatever the processes are like.
    #[must_use]
    pub fn samples_cpus(&self) -> bool {
        self.is_of_everything() || self.layout == WatchLayout::Cpus
    }

    fn contradiction(&self) -> Option<&'static str> {
        if self.is_of_everything() {
            if self.has_selector() {
                return Some("match = \"everything\" goes with none of unit, cgroup, exe, comm, user");
            }
            if self.layout == WatchLayout::Threads {
                return Some("match = \"everything\" samples CPUs: it does not go with layout = \"threads\"");
            }
        }
        (self.samples_cpus() && self.event == WatchEvent::Tick)
            .then_some("event = \"tick\" samples threads, not CPUs: leave it out, or use event = \"clock\"")
    }

    /// The users whose processes match.
    #[must_use]
    pub fn users(&self) -> UserSelector {
        self.user.clone().unwrap_or_default()
    }
}

fn default_rate() -> Rate {
    // Not 50, to avoid lockstep with periodic work, as 999 instead of 1000.
    Rate(49)
}

fn default_interval() -> Interval {
    Interval(Duration::from_secs(10))
}

fn default_memory() -> MemoryBytes {
    // A quarter of the default for a client's session: there are many watches.
    MemoryBytes(ccsd_collector::Budget::DEFAULT_MEMORY / 4)
}

impl Default for Config {
    fn default() -> Self {
        Config {
            socket: None,
            state_dir: AbsolutePath("/var/lib/ccsd".into()),
            metrics_file: None,
            retention: Retention::default(),
            budget: ServiceBudget::default(),
            sessions: ClientSessions::default(),
            watches: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Retention { age: Age(Duration::from_secs(7 * 24 * 3600)), bytes: StoreBytes(1 << 30) }
    }
}

impl Default for ServiceBudget {
    fn default() -> Self {
        ServiceBudget {
            cpu_percent: CpuPercent(5.0),
            memory: MemoryBytes(512 << 20),
            // Restarting a session reads symbols again; that must not decide about the next step.
            window: Window(Duration::from_secs(60)),
        }
    }
}

impl Default for ClientSessions {
    fn default() -> Self {
        ClientSessions { memory_of_user: MemoryBytes(256 << 20), arguments: false, paranoid_users: false }
    }
}

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ConfigError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a regular file", path.display())]
    NotAFile { path: PathBuf },
    #[error("{} is writable for everybody, so ccsd does not trust it: chmod o-w", path.display())]
    WritableByAll { path: PathBuf },
    #[error("{} belongs to user {owner}, so ccsd does not trust {}: give it to root, or keep the file elsewhere", part.display(), path.display())]
    Stranger { path: PathBuf, part: PathBuf, owner: u32 },
    #[error("{} has more than {MAX_BYTES} bytes: no configuration of ccsd is that large", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}:{line}:{column}: {message}", path.display())]
    Wrong {
        path: PathBuf,
        line: usize,
        /// Characters, from 1.
        column: usize,
        message: String,
    },
}

impl Config {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        Config::parse(&read(path)?, path)
    }

    /// Reads the default file; without one, the defaults apply.
    pub fn load_default() -> Result<Config, ConfigError> {
        match Config::load(Path::new(DEFAULT_PATH)) {
            Err(ConfigError::Read { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(Config::default()),
            other => other,
        }
    }

    /// Parses the content of the file `path`.
    ///
    /// # Errors
    /// [`ConfigError::Wrong`].
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Config, ConfigError> {
        let wrong = |at: Option<Range<usize>>, message: &str| {
            let (line, column) = position(bytes, at.map_or(0, |range| range.start));
            // One line, for the journal.
            let message = message.trim().replace('\n', "; ");
            ConfigError::Wrong { path: path.to_owned(), line, column, message }
        };
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => {
                let at = error.valid_up_to();
                return Err(wrong(Some(at..at), "this is not UTF-8"));
            }
        };
        let mut config: Config = toml::from_str(text).map_err(|error| wrong(error.span(), error.message()))?;
        // Parses again with spans, which only the warnings about whole watches need.
        let places: WatchPositions = toml::from_str(text).map_err(|error| wrong(error.span(), error.message()))?;
        let place = |i: usize| places.watch.get(i).map(Spanned::span);
        for (watch, place) in config.watches.iter().zip(&places.watch) {
            for (at, why) in find_unmatchable(place.get_ref()) {
                let warning = wrong(Some(at), &format!("watch {:?} can never find a process: {why}", watch.name.0));
                config.warnings.push(warning.to_string());
            }
        }
        for (i, watch) in config.watches.iter().enumerate() {
            if i >= MAX_WATCHES {
                return Err(wrong(place(i), &format!("more than {MAX_WATCHES} watches")));
            }
            let name = &watch.name.0;
            if !watch.has_selector() && watch.matches.is_none() {
                let message = format!(
                    "watch {name:?} says not what to watch: give it one or more of unit, cgroup, exe, comm, user, or \
                     match = \"everything\""
                );
                return Err(wrong(place(i), &message));
            }
            if let Some(contradiction) = watch.contradiction() {
                return Err(wrong(place(i), &format!("watch {name:?}: {contradiction}")));
            }
            if config.watches.iter().take(i).any(|other| other.name == watch.name) {
                return Err(wrong(place(i), &format!("there is a watch {name:?} before this one")));
            }
        }
        Ok(config)
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    let read = |source| ConfigError::Read { path: path.to_owned(), source };
    // Opening a FIFO must not block the service.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(read)?;
    let meta = file.metadata().map_err(read)?;
    if !meta.is_file() {
        return Err(ConfigError::NotAFile { path: path.to_owned() });
    }
    // Who can change the configuration decides what the service watches and which files it writes.
    if meta.mode() & 0o002 != 0 {
        return Err(ConfigError::WritableByAll { path: path.to_owned() });
    }
    if let Err(Stranger { part, owner }) = trusted_path::check(path) {
        return Err(ConfigError::Stranger { path: path.to_owned(), part, owner });
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(read)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}

#[derive(Deserialize)]
struct WatchPositions {
    #[serde(default)]
    watch: Vec<Spanned<Selectors>>,
}

#[derive(Deserialize)]
struct Selectors {
    unit: Option<Spanned<String>>,
    cgroup: Option<Spanned<String>>,
    exe: Option<Spanned<String>>,
    comm: Option<Spanned<String>>,
}

const UNIT_ENDINGS: [&str; 6] = [".service", ".slice", ".scope", ".socket", ".mount", ".swap"];
/// Maximum length of a command name in bytes: `TASK_COMM_LEN` without the final zero.
const COMM_BYTES: usize = 15;

/// A selector, if given; a predicate that no value matches it; and the reason.
type SelectorCheck<'a> = (&'a Option<Spanned<String>>, fn(&str) -> bool, fn(&str) -> String);

fn find_unmatchable(selectors: &Selectors) -> Vec<(Range<usize>, String)> {
    let checks: [SelectorCheck<'_>; 4] = [
        (
            &selectors.unit,
            |unit| !unit.ends_with(['*', '?']) && !UNIT_ENDINGS.iter().any(|ending| unit.ends_with(ending)),
            |unit| format!("the name of a unit has an ending, as in {:?}", format!("{unit}.service")),
        ),
        (&selectors.cgroup, |path| !path.starts_with(['*', '?', '/']), |path| absolute("a control group", path)),
        (&selectors.exe, |path| !path.starts_with(['*', '?', '/']), |path| absolute("an executable", path)),
        (
            &selectors.comm,
            |comm| comm.contains(['*', '?']) && comm.replace('*', "").len() > COMM_BYTES,
            |_| format!("the kernel keeps only {COMM_BYTES} bytes of a command's name, and this one is longer"),
        ),
    ];
    let found = checks.into_iter().filter_map(|(selector, is_pointless, why)| {
        let selector = selector.as_ref()?;
        let text = selector.get_ref();
        is_pointless(text).then(|| (selector.span(), why(text)))
    });
    found.collect()
}

fn absolute(what: &str, path: &str) -> String {
    format!("the path of {what} begins with /, as in {:?}", format!("*/{path}"))
}

/// Line and column of a byte offset, both from 1.
fn position(bytes: &[u8], offset: usize) -> (usize, usize) {
    let before = bytes.get(..offset).unwrap_or(bytes);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let column = String::from_utf8_lossy(before.get(start..).unwrap_or(&[])).chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests;
