//! `ccsd daemon watches`: the list of watches and of their stored profiles.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

use anyhow::anyhow;
use ccsd_daemon::client::{ClientError, ServiceStatus};
use ccsd_daemon::config::Config;
use ccsd_daemon::store::{self, CpuInterval, StoreError, TimeRange};
use ccsd_daemon::watch::WatchStatus;
use ccsd_profile::json::to_text;
use ccsd_profile::sanitise;
use jiff::Zoned;
use serde::Serialize;

use crate::args::service::WatchesArgs;
use crate::blocks::Blocks;
use crate::connection;
use crate::exit::{Exit, Failure};
use crate::format::{bytes, count, counted, moment_in};
use crate::stored::refused;
use crate::style::{ColorChoice, TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable};
use crate::times;

#[derive(Serialize)]
struct WatchRow {
    name: String,
    segments: usize,
    bytes: u64,
    first_unix_ns: Option<u64>,
    last_unix_ns: Option<u64>,
    being_written: bool,
    open_segment: Option<PathBuf>,
    foreign_files: usize,
    cpu: CpuOverTime,
    status: Option<WatchStatus>,
}

#[derive(Serialize)]
struct CpuOverTime {
    /// Start of the first part, nanoseconds since 1970.
    from_unix_ns: u64,
    /// End of the last part, nanoseconds since 1970.
    until_unix_ns: u64,
    /// CPU time of each part, nanoseconds.
    cpu_ns: Vec<u64>,
}

const PARTS: u32 = 12;

impl CpuOverTime {
    /// Spreads the intervals over the parts. CPU time within an interval is spread evenly.
    fn new(intervals: &[CpuInterval], range: TimeRange) -> CpuOverTime {
        let width = u128::from(range.until.saturating_sub(range.from));
        // Nanoseconds since 1970 are no exact floating-point numbers.
        let edge = |number: u32| {
            let offset = width * u128::from(number) / u128::from(PARTS);
            range.from.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
        };
        // What an interval has used up to a time, so that its parts add up.
        let until = |it: &CpuInterval, at: u64| {
            let passed = at.clamp(it.from_ns, it.to_ns.max(it.from_ns)).saturating_sub(it.from_ns);
            let length = it.to_ns.saturating_sub(it.from_ns).max(1);
            u64::try_from(u128::from(it.cpu_ns) * u128::from(passed) / u128::from(length)).unwrap_or(0)
        };
        let part = |number: u32| {
            let (from, to) = (edge(number), edge(number + 1));
            let within = intervals.iter().map(|it| until(it, to).saturating_sub(until(it, from)));
            within.fold(0u64, u64::saturating_add)
        };
        CpuOverTime { from_unix_ns: range.from, until_unix_ns: range.until, cpu_ns: (0..PARTS).map(part).collect() }
    }

    fn cpus(&self) -> f64 {
        let wall = self.until_unix_ns.saturating_sub(self.from_unix_ns).max(1);
        self.cpu_ns.iter().fold(0, |sum: u64, part| sum.saturating_add(*part)) as f64 / wall as f64
    }
}

pub fn list(args: &WatchesArgs, colour: ColorChoice) -> Result<Exit, Failure> {
    let mut rows = Vec::new();
    let now = Zoned::now();
    let since = args.since.as_deref().unwrap_or("-1h");
    let mut range =
        times::range(Some(since), args.until.as_deref(), &now).map_err(|error| Failure::bad_request(anyhow!(error)))?;
    range.until = range.until.min(u64::try_from(now.timestamp().as_nanosecond()).unwrap_or(u64::MAX));
    // Stored profiles exist without a running service, and only the service knows watches that have stored nothing yet.
    let told = connection::connect(&args.socket).and_then(|mut client| client.watches());
    let served = told.is_ok();
    // Who may not ask cannot know; a daemon that does not answer is not at work.
    let hangs = matches!(told, Err(ClientError::NoAnswer(_) | ClientError::Gone(_)));
    let unserved = told.as_ref().err().map(ToString::to_string);
    let ServiceStatus { watches: mut statuses, state_dir: dir, problems } = told.unwrap_or_default();
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
        let intervals = store::cpu_intervals(&dir.join(&name), range).unwrap_or_default();
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
            cpu: CpuOverTime::new(&intervals, range),
            status,
        });
    }
    let text = if args.json {
        #[derive(Serialize)]
        struct List {
            schema: u32,
            watches: Vec<WatchRow>,
            problems: Vec<String>,
        }
        to_text(&List { schema: 1, watches: rows, problems }).map_err(Failure::at_run_time)?
    } else {
        let mut text = table(&rows, hangs, &now).render(TextLayout::of(&stdout(), colour));
        let zone = now.time_zone();
        let (from, until) = (moment_in(range.from, zone), moment_in(range.until, zone));
        text.push_str(&format!("# CPUs: on average from {from} to {until}, in {PARTS} parts\n"));
        if hangs {
            text.push_str(&format!("# the service does not answer: {}\n", unserved.unwrap_or_default()));
        }
        for row in &rows {
            let status = row.status.as_ref();
            let remarks = status
                .into_iter()
                .flat_map(|status| status.problem.as_ref().or(status.hint.as_ref()).into_iter().chain(&status.warning));
            for remark in remarks {
                text.push_str(&format!("# {}: {}\n", row.name, sanitise(remark)));
            }
            if let Some(status) = status.filter(|status| status.refused > 0) {
                let processes = counted(status.refused, "process is", "processes are");
                text.push_str(&format!("# {}: {processes} not sampled: the service's log says why\n", row.name));
            }
            if let Some(status) = status.filter(|status| status.unstored > 0) {
                text.push_str(&format!("# {}: {} samples could not be stored\n", row.name, count(status.unstored)));
            }
        }
        for problem in problems {
            text.push_str(&format!("# {}\n", sanitise(&problem)));
        }
        text
    };
    let mut out = stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())?;
    Ok(Exit::SUCCESS)
}

fn table(rows: &[WatchRow], hangs: bool, now: &Zoned) -> TextTable {
    let blocks = Blocks::from_locale();
    let most = rows.iter().flat_map(|row| &row.cpu.cpu_ns).copied().max().unwrap_or(0) as f64;
    let mut table = TextTable::new(vec![
        TableColumn::text("watch"),
        TableColumn::text("now"),
        TableColumn::number("processes"),
        TableColumn::number("rate"),
        TableColumn::number("samples"),
        TableColumn::number("expected"),
        TableColumn::number("CPUs"),
        TableColumn::text("over time"),
        TableColumn::number("segments").if_room(),
        TableColumn::number("bytes"),
        TableColumn::text("from").if_room(),
        TableColumn::text("last written"),
    ]);
    for row in rows {
        let moment = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), |at| moment_in(at, now.time_zone()));
        let status = row.status.as_ref();
        let state = match status {
            Some(status) if status.problem.is_some() => TableCell::toned(Tone::Bad, "problem"),
            Some(status) if status.profiling => TableCell::toned(Tone::Good, "profiling"),
            Some(_) => TableCell::toned(Tone::Plain, "waiting"),
            None if row.being_written && hangs => TableCell::toned(Tone::Bad, "no answer"),
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
            match status {
                Some(status) if status.warning.is_some() => TableCell::toned(Tone::Bad, count(status.expected())),
                _ => known(|status| count(status.expected())).into(),
            },
            format!("{:.2}", row.cpu.cpus()).into(),
            blocks.draw(&row.cpu.cpu_ns.iter().map(|&part| part as f64).collect::<Vec<f64>>(), most).into(),
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
