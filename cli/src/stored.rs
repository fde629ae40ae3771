//! Stored profiles of watches: sources `watch:NAME`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use ccsd_daemon::config::Config;
use ccsd_daemon::store::{self, StoreError, StoredGap, StoredProfile};
use ccsd_profile::{Profile, TimeColumn, Timeline, sanitise};
use jiff::Zoned;
use jiff::tz::TimeZone;
use serde::Serialize;

use crate::args::socket::SocketArgs;
use crate::args::stored::StoredArgs;
use crate::connection;
use crate::exit::Failure;
use crate::format::{bytes, counted, moment_in, nanoseconds};
use crate::times;

pub struct LoadedWatch {
    pub profile: Profile,
    pub dir: PathBuf,
    pub about: About,
    pub intervals: Vec<TimeColumn>,
}

pub const ALL: &str = "all";
const NAMED_GAPS: usize = 5;

#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub watch: String,
    pub watches: Vec<String>,
    /// Start of the first interval, nanoseconds since 1970.
    pub from_unix_ns: u64,
    /// End of the last interval, nanoseconds since 1970.
    pub until_unix_ns: u64,
    /// Wall time that the intervals cover, each moment once, nanoseconds.
    pub wall_ns: u64,
    /// Processes that are in more than one of the watches, so that their weight is in the profile more than once.
    pub shared: Vec<SharedProcess>,
    pub segments: usize,
    pub opened: usize,
    pub bytes: u64,
    pub gaps: Vec<GapOfWatch>,
    /// Segments without an end record: the service was killed, or the power failed.
    pub interrupted: Vec<PathBuf>,
    pub problems: Vec<String>,
    #[serde(skip)]
    zone: TimeZone,
}

#[derive(Clone, Debug, Serialize)]
pub struct GapOfWatch {
    watch: String,
    #[serde(flatten)]
    gap: StoredGap,
}

#[derive(Clone, Debug, Serialize)]
pub struct SharedProcess {
    pid: u32,
    name: String,
    watches: Vec<String>,
}

type ProcessIdentity = ((u32, u64), String);

fn shared_processes(watches: Vec<(String, Vec<ProcessIdentity>)>) -> Vec<SharedProcess> {
    let mut found: BTreeMap<(u32, u64), SharedProcess> = BTreeMap::new();
    for (watch, processes) in watches {
        // Number 0 is none: what stands for processes that are not known.
        for (identity, name) in processes.into_iter().filter(|((pid, _), _)| *pid != 0) {
            let new = || SharedProcess { pid: identity.0, name, watches: Vec::new() };
            let process = found.entry(identity).or_insert_with(new);
            // A process has an entry for each program that it executed.
            if process.watches.last() != Some(&watch) {
                process.watches.push(watch.clone());
            }
        }
    }
    found.into_values().filter(|process| process.watches.len() > 1).collect()
}

impl About {
    pub fn line(&self) -> String {
        let watches = match self.watch.as_str() {
            ALL => format!("all watches ({})", self.watches.join(", ")),
            name => format!("watch {name}"),
        };
        format!(
            "{} to {} of {watches}, in {} ({})",
            moment_in(self.from_unix_ns, &self.zone),
            moment_in(self.until_unix_ns, &self.zone),
            counted(self.segments as u64, "segment", "segments"),
            bytes(self.bytes)
        )
    }

    pub fn gap_line(&self) -> Option<String> {
        let all: u64 = self.gaps.iter().map(|it| it.gap.until_unix_ns.saturating_sub(it.gap.from_unix_ns)).sum();
        let named = |it: &GapOfWatch| {
            let of = if self.watch == ALL { format!(" (watch {})", it.watch) } else { String::new() };
            let (from, until) =
                (moment_in(it.gap.from_unix_ns, &self.zone), moment_in(it.gap.until_unix_ns, &self.zone));
            format!("{from} to {until}{of}")
        };
        let mut names: Vec<String> = self.gaps.iter().take(NAMED_GAPS).map(named).collect();
        if self.gaps.len() > NAMED_GAPS {
            names.push(format!("and {} more (--json lists them)", self.gaps.len() - NAMED_GAPS));
        }
        (!self.gaps.is_empty()).then(|| {
            format!(
                "nothing stored for {} in {} (no process matched, the service was down or restarted a session, or it could not write): {}",
                nanoseconds(all),
                counted(self.gaps.len() as u64, "gap", "gaps"),
                names.join(", ")
            )
        })
    }

    pub fn messages(&self) -> Vec<String> {
        let mut messages: Vec<String> = self.problems.iter().map(|problem| sanitise(problem).into_owned()).collect();
        if let Some(first) = self.shared.first() {
            messages.push(format!(
                "{} in several watches, and counted in each: {} ({}) in {}{}",
                counted(self.shared.len() as u64, "process is", "processes are"),
                sanitise(&first.name),
                first.pid,
                first.watches.join(" and "),
                if self.shared.len() > 1 { ", ... (--json lists them)" } else { "" },
            ));
        }
        if let Some(first) = self.interrupted.first() {
            messages.push(format!(
                "{} without an end, {} first: the service was killed there, or its disk was full; up to an interval may be missing, and what waited for names",
                counted(self.interrupted.len() as u64, "segment is", "segments are"),
                first.display()
            ));
        }
        messages
    }
}

pub fn state_dir(given: Option<&PathBuf>, socket: &SocketArgs) -> PathBuf {
    let from_service = || connection::connect(socket).and_then(|mut client| client.watches()).ok()?.state_dir;
    let from_file = || Config::load_default().unwrap_or_default().state_dir.0;
    given.cloned().or_else(from_service).unwrap_or_else(from_file)
}

pub fn refused(error: StoreError) -> Failure {
    Failure::bad_request(error)
}

fn watch_dirs(watch: &str, state_dir: &Path) -> Result<Vec<(String, PathBuf)>, Failure> {
    if watch == ALL {
        let names = store::watches(state_dir).map_err(refused)?;
        return Ok(names.into_iter().map(|name| (name.clone(), state_dir.join(name))).collect());
    }
    Ok(vec![(watch.to_owned(), store::watch_dir(state_dir, watch).map_err(refused)?)])
}

/// Loads the time range `--since` to `--until` of a watch, or of all watches.
pub fn load(
    watch: &str,
    args: &StoredArgs,
    socket: &SocketArgs,
    since: Option<&str>,
    until: Option<&str>,
) -> Result<LoadedWatch, Failure> {
    let now = Zoned::now();
    let range = times::range(since, until, &now).map_err(|error| Failure::bad_request(anyhow!(error)))?;
    let state_dir = state_dir(args.state_dir.as_ref(), socket);
    let dirs = watch_dirs(watch, &state_dir)?;
    let dir = if watch == ALL { state_dir } else { dirs.first().map(|(_, dir)| dir.clone()).unwrap_or_default() };
    load_from(watch, dir, &dirs, &now, |dir| store::query(dir, range))
}

fn load_from(
    watch: &str,
    dir: PathBuf,
    dirs: &[(String, PathBuf)],
    now: &Zoned,
    query: impl Fn(&Path) -> Result<StoredProfile, StoreError>,
) -> Result<LoadedWatch, Failure> {
    let mut whole: Option<Profile> = None;
    let mut intervals = Vec::new();
    let mut available: Option<(i64, i64)> = None;
    let mut members: Vec<(String, Vec<ProcessIdentity>)> = Vec::new();
    let mut about = About {
        watch: watch.to_owned(),
        watches: Vec::new(),
        from_unix_ns: u64::MAX,
        until_unix_ns: 0,
        wall_ns: 0,
        shared: Vec::new(),
        segments: 0,
        opened: 0,
        bytes: 0,
        gaps: Vec::new(),
        interrupted: Vec::new(),
        problems: Vec::new(),
        zone: now.time_zone().clone(),
    };
    for (name, dir) in dirs {
        let stored = query(dir).map_err(refused)?;
        if let Some((first, last)) = stored.available {
            available = Some(available.map_or((first, last), |(a, b)| (a.min(first), b.max(last))));
        }
        about.opened += stored.opened;
        about.bytes += stored.bytes;
        about.interrupted.extend(stored.interrupted);
        about.problems.extend(stored.problems);
        let Some(profile) = stored.profile else { continue };
        let identities: Vec<ProcessIdentity> =
            profile.processes().iter().map(|it| ((it.pid, it.start_time), it.name.clone())).collect();
        match &mut whole {
            None => whole = Some(profile),
            Some(whole) => {
                if let Err(error) = whole.merge(&profile) {
                    about.problems.push(format!("watch {name} is left out: {error}"));
                    continue;
                }
            }
        }
        about.watches.push(name.clone());
        members.push((name.clone(), identities));
        about.gaps.extend(stored.gaps.into_iter().map(|gap| GapOfWatch { watch: name.clone(), gap }));
        about.segments += stored.segments;
        about.from_unix_ns = about.from_unix_ns.min(stored.covered.from);
        about.until_unix_ns = about.until_unix_ns.max(stored.covered.until);
        intervals.extend(stored.intervals);
    }
    let unix_ns = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000);
    let Some(mut profile) = whole else {
        let has = available.map_or_else(
            || "it has stored nothing".to_owned(),
            |(first, last)| {
                let moment = |seconds: i64| moment_in(unix_ns(seconds), &about.zone);
                format!("its segments begin at {}, the last at {}", moment(first), moment(last))
            },
        );
        let why: String = about.problems.iter().map(|problem| format!("; {}", sanitise(problem))).collect();
        return Err(Failure::bad_request(anyhow!("watch {watch} has nothing of that time: {has}{why}")));
    };
    if watch == ALL {
        profile.session_mut().target = format!("watches {}", about.watches.join(", "));
        intervals.sort_by_key(|it| (it.to_ns, it.from_ns));
    }
    about.wall_ns = disjoint(&intervals).iter().map(|(from, until)| until - from).sum();
    about.shared = shared_processes(members);
    Ok(LoadedWatch { profile, dir, about, intervals })
}

/// As [`load`], over time by one metric in at most `most` columns, whose times start at the first interval.
pub fn load_timeline(
    watch: &str,
    args: &StoredArgs,
    socket: &SocketArgs,
    metric: Option<&str>,
    most: usize,
) -> Result<(LoadedWatch, Timeline), Failure> {
    let mut stored = load(watch, args, socket, args.since.as_deref(), args.until.as_deref())?;
    crate::query::metric(&stored.profile, metric)?;
    let timeline = Timeline::of_intervals(&disjoint(&stored.intervals), stored.profile.charge_count(), most);
    let state_dir = if watch == ALL { stored.dir.clone() } else { state_dir(args.state_dir.as_ref(), socket) };
    let again = load_from(watch, stored.dir.clone(), &watch_dirs(watch, &state_dir)?, &Zoned::now(), |dir| {
        store::query_timeline(dir, metric, &timeline)
    });
    let again = again.map_err(|_| {
        Failure::at_run_time(anyhow!(
            "the profiles of watch {} of that time were removed meanwhile",
            stored.about.watch
        ))
    })?;
    stored.profile = again.profile;
    stored.about.problems.extend(again.about.problems);
    stored.about.problems.dedup();
    Ok((stored, timeline.since_start()))
}

/// Intervals by end, without those that begin before an earlier one has ended: of several watches, or after a clock was
/// set back.
fn disjoint(intervals: &[TimeColumn]) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for interval in intervals {
        let from = interval.from_ns.max(found.last().map_or(0, |last| last.1));
        if interval.to_ns > from {
            found.push((from, interval.to_ns));
        }
    }
    found
}
