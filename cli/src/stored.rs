//! Stored profiles of watches: sources `watch:NAME`, and the list of `ccsd daemon watches`.

use std::fs::File;
use std::fs::TryLockError;
use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::anyhow;
use ccsd_daemon::config::Config;
use ccsd_daemon::store::{self, StoreError, StoredProfile};
use ccsd_daemon::watch::WatchStatus;
use ccsd_profile::codec::{TimeColumn, columns};
use ccsd_profile::{Profile, sanitise};
use jiff::Zoned;
use serde::Serialize;

use crate::args::service::SocketArgs;
use crate::args::watch::{StoredArgs, WatchesArgs};
use crate::exit::{Exit, Failure};
use crate::format::{bytes, count, counted};
use crate::service;
use crate::style::{ColorChoice, Layout, Tone};
use crate::table::{Column, TableCell, TextTable};
use crate::times;
use ccsd_profile::json::to_text;

/// A part of a watch's stored profiles.
pub struct LoadedWatch {
    /// The profile of the requested time.
    pub profile: Profile,
    pub dir: PathBuf,
    /// Its time range and its files.
    pub about: About,
    /// Its intervals in order, in nanoseconds since 1970.
    pub intervals: Vec<TimeColumn>,
}

/// The origin of a watch's profile.
#[derive(Clone, Debug, Serialize)]
pub struct About {
    pub watch: String,
    /// Start of the first interval, nanoseconds since 1970.
    pub from_unix_ns: u64,
    /// End of the last interval, nanoseconds since 1970.
    pub until_unix_ns: u64,
    /// Number of segments with data of the time range.
    pub segments: usize,
    /// Number of segments opened.
    pub opened: usize,
    pub bytes: u64,
    /// Segments without an end record: the service was killed, or the power failed.
    pub interrupted: Vec<PathBuf>,
    /// Files that could not be used, and why.
    pub problems: Vec<String>,
    /// The time range in local time.
    #[serde(skip)]
    local: (String, String),
}

impl About {
    pub fn line(&self) -> String {
        format!(
            "{} to {} of watch {}, in {} ({})",
            self.local.0,
            self.local.1,
            self.watch,
            counted(self.segments as u64, "segment", "segments"),
            bytes(self.bytes)
        )
    }

    /// Warnings about the stored data.
    pub fn messages(&self) -> Vec<String> {
        let mut messages: Vec<String> = self.problems.iter().map(|problem| sanitise(problem).into_owned()).collect();
        if let Some(first) = self.interrupted.first() {
            messages.push(format!(
                "{} without an end, {} first: the service was killed there; up to an interval may be missing",
                counted(self.interrupted.len() as u64, "segment is", "segments are"),
                first.display()
            ));
        }
        messages
    }
}

/// The state directory of the service.
pub fn state_dir(given: Option<&PathBuf>, socket: &SocketArgs) -> PathBuf {
    let from_service = || service::connect(socket).and_then(|mut client| client.watches()).ok()?.1;
    // Errors of the configuration concern its administrator.
    let from_file = || Config::load_default().unwrap_or_default().state_dir.0;
    given.cloned().or_else(from_service).unwrap_or_else(from_file)
}

fn refused(error: StoreError) -> Failure {
    Failure::bad_request(error)
}

/// Loads the time range `--since` to `--until` of a watch.
///
/// # Errors
/// A time range without data is a bad request.
pub fn load(
    watch: &str,
    args: &StoredArgs,
    socket: &SocketArgs,
    since: Option<&str>,
    until: Option<&str>,
) -> Result<LoadedWatch, Failure> {
    let now = Zoned::now();
    let range = times::range(since, until, &now).map_err(|error| Failure::bad_request(anyhow!(error)))?;
    let dir = store::watch_dir(&state_dir(args.state_dir.as_ref(), socket), watch).map_err(refused)?;
    let StoredProfile { profile, covered, intervals, segments, opened, bytes, interrupted, problems, available } =
        store::query(&dir, range).map_err(refused)?;
    let Some(profile) = profile else {
        let has = available.map_or_else(
            || "it has stored nothing".to_owned(),
            |(first, last)| {
                let moment = |seconds: i64| {
                    times::local(u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000), &now)
                };
                format!("its segments begin at {}, the last at {}", moment(first), moment(last))
            },
        );
        let why: String = problems.iter().map(|problem| format!("; {}", sanitise(problem))).collect();
        return Err(Failure::bad_request(anyhow!("watch {watch} has nothing of that time: {has}{why}")));
    };
    let local = (times::local(covered.from, &now), times::local(covered.until, &now));
    let about = About {
        watch: watch.to_owned(),
        from_unix_ns: covered.from,
        until_unix_ns: covered.until,
        segments,
        opened,
        bytes,
        interrupted,
        problems,
        local,
    };
    Ok(LoadedWatch { profile, dir, about, intervals })
}

/// As [`load`], with the weights of one metric in at most `most` columns, whose times start at the first interval.
pub fn load_columns(
    watch: &str,
    args: &StoredArgs,
    socket: &SocketArgs,
    metric: Option<&str>,
    most: usize,
) -> Result<(LoadedWatch, Vec<TimeColumn>), Failure> {
    let mut stored = load(watch, args, socket, args.since.as_deref(), args.until.as_deref())?;
    // Reports a missing metric for the whole profile.
    crate::query::metric(&stored.profile, metric)?;
    let intervals: Vec<(u64, u64)> = stored.intervals.iter().map(|it| (it.from_ns, it.to_ns)).collect();
    let columns = columns(&intervals, stored.profile.charge_count(), most);
    let StoredProfile { profile, problems, .. } =
        store::query_columns(&stored.dir, metric, &columns).map_err(refused)?;
    let gone = || Failure::at_run_time(anyhow!("what watch {} had of that time is gone", stored.about.watch));
    stored.profile = profile.ok_or_else(gone)?;
    stored.about.problems.extend(problems);
    stored.about.problems.dedup();
    let start = columns.first().map_or(0, |column| column.from_ns);
    let since = |ns: u64| ns.saturating_sub(start);
    let columns = columns.iter().map(|it| TimeColumn { from_ns: since(it.from_ns), to_ns: since(it.to_ns) });
    Ok((stored, columns.collect()))
}

/// One watch in the list.
#[derive(Serialize)]
struct WatchRow {
    name: String,
    segments: usize,
    bytes: u64,
    /// Start of the first segment, nanoseconds since 1970.
    first_unix_ns: Option<u64>,
    /// Time of the last write, nanoseconds since 1970.
    last_unix_ns: Option<u64>,
    /// Whether the last segment is being written.
    being_written: bool,
    open_segment: Option<PathBuf>,
    /// Number of other files in its directory.
    foreign_files: usize,
    /// Status from the service, if permitted.
    status: Option<WatchStatus>,
}

/// `ccsd daemon watches`.
pub fn watches(args: &WatchesArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let mut rows = Vec::new();
    // Stored profiles exist without a running service, and only the service knows watches that have stored nothing yet.
    let told = service::connect(&args.socket).and_then(|mut client| client.watches());
    let served = told.is_ok();
    let unserved = told.as_ref().err().map(ToString::to_string);
    let (mut statuses, dir) = told.unwrap_or_default();
    let given = args.state_dir.clone().or(dir);
    let dir = given.unwrap_or_else(|| Config::load_default().unwrap_or_default().state_dir.0);
    let mut names = match store::watches(&dir) {
        Err(StoreError::Read { source, .. }) if served && source.kind() == ErrorKind::NotFound => Vec::new(),
        // A missing directory is not the cause.
        Err(StoreError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            let why = unserved.unwrap_or_default();
            return Err(Failure::bad_request(anyhow!("{why}; and nothing is stored in {}", dir.display())));
        }
        names => names.map_err(refused)?,
    };
    names.extend(statuses.iter().map(|status| status.name.clone()));
    names.sort_unstable();
    names.dedup();
    for name in names {
        let contents = store::contents(&dir.join(&name)).unwrap_or_default();
        let status = statuses.iter().position(|status| status.name == name).map(|i| statuses.swap_remove(i));
        let last = contents.segments.last();
        let open = last.filter(|segment| is_locked(&segment.path));
        let modified = last.and_then(|segment| segment.path.metadata().ok()?.modified().ok());
        let nanoseconds = |seconds: i64| u64::try_from(seconds).unwrap_or(0).saturating_mul(1_000_000_000);
        rows.push(WatchRow {
            name,
            segments: contents.segments.len(),
            bytes: contents.segments.iter().map(|segment| segment.bytes).sum(),
            first_unix_ns: contents.segments.first().map(|segment| nanoseconds(segment.start)),
            last_unix_ns: modified.and_then(|at| u64::try_from(at.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()),
            being_written: open.is_some(),
            open_segment: open.map(|segment| segment.path.clone()),
            foreign_files: contents.foreign.len(),
            status,
        });
    }
    let text = if args.json {
        #[derive(Serialize)]
        struct List {
            schema: u32,
            watches: Vec<WatchRow>,
        }
        to_text(&List { schema: 1, watches: rows }).map_err(Failure::at_run_time)?
    } else {
        let mut text = table(&rows).render(Layout::of(&stdout(), colour));
        for row in &rows {
            if let Some(problem) = row.status.as_ref().and_then(|status| status.problem.as_ref()) {
                text.push_str(&format!("# {}: {}\n", row.name, sanitise(problem)));
            }
        }
        text
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

fn table(rows: &[WatchRow]) -> TextTable {
    let now = Zoned::now();
    let mut table = TextTable::new(vec![
        Column::text("watch"),
        Column::text("now"),
        Column::number("processes"),
        Column::number("rate"),
        Column::number("samples"),
        Column::number("segments"),
        Column::number("bytes"),
        Column::text("from"),
        Column::text("last written"),
    ]);
    for row in rows {
        let moment = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), |at| times::local(at, &now));
        let status = row.status.as_ref();
        let state = match status {
            Some(status) if status.problem.is_some() => TableCell::toned(Tone::Bad, "problem"),
            Some(status) if status.profiling => TableCell::toned(Tone::Good, "profiling"),
            Some(_) => TableCell::toned(Tone::Plain, "waiting"),
            None if row.being_written => TableCell::toned(Tone::Good, "profiling"),
            None => TableCell::toned(Tone::Faint, "-"),
        };
        let known = |value: fn(&WatchStatus) -> String| status.map_or_else(|| "-".to_owned(), value);
        table.row(vec![
            sanitise(&row.name).into(),
            state,
            known(|status| count(status.processes)).into(),
            known(|status| format!("{} Hz", status.rate_hz)).into(),
            known(|status| count(status.samples)).into(),
            match row.being_written {
                true => format!("{} (1 open)", count(row.segments as u64)).into(),
                false => count(row.segments as u64).into(),
            },
            bytes(row.bytes).into(),
            moment(row.first_unix_ns).into(),
            moment(row.last_unix_ns).into(),
        ]);
    }
    table
}

/// Whether a segment is being written: its writer holds a lock.
fn is_locked(path: &std::path::Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
