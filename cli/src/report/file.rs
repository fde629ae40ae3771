//! Opens a profile.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use ccsd_daemon::client::Client;
use ccsd_profile::codec::{read_timeline, read_window_with};
use ccsd_profile::{
    DecodeError, Intervals, Loaded, Profile, Recovery, TimeWindow, Timeline, notes, read_profile, read_window,
};
use jiff::Zoned;

use crate::args::socket::SocketArgs;
use crate::args::stored::StoredArgs;
use crate::exit::Failure;
use crate::format::{count, counted, nanoseconds};
use crate::locate::{Located, Lookup, no_session_on};
use crate::recording::{OpenedProfile, open_profile};
use crate::source::ProfileSource;
use crate::stored::{self, About, LoadedWatch};
use crate::times;

pub struct LoadedFile {
    pub path: PathBuf,
    pub session: Option<u32>,
    pub profile: Profile,
    pub recovery: Recovery,
    pub finished: bool,
    pub records: u64,
    pub bytes: u64,
    /// The part of a watch, if not from a file.
    pub stored: Option<About>,
    pub intervals: Option<Intervals>,
}

impl From<LoadedWatch> for LoadedFile {
    fn from(stored: LoadedWatch) -> LoadedFile {
        let LoadedWatch { profile, dir, about, .. } = stored;
        let (recovery, finished, records, bytes) = (Recovery::Whole, true, 0, about.bytes);
        LoadedFile {
            path: dir,
            session: None,
            profile,
            recovery,
            finished,
            records,
            bytes,
            stored: Some(about),
            intervals: None,
        }
    }
}

pub fn load_source(source: &ProfileSource, stored: &StoredArgs, socket: &SocketArgs) -> Result<LoadedFile, Failure> {
    let source = stored.source(source)?;
    load_time(&source, stored, (stored.since.as_deref(), stored.until.as_deref()), socket)
}

/// As [`load_source`], with a time other than `--since` and `--until`.
pub fn load_time(
    source: &ProfileSource,
    stored: &StoredArgs,
    (since, until): (Option<&str>, Option<&str>),
    socket: &SocketArgs,
) -> Result<LoadedFile, Failure> {
    let is_part = since.is_some() || until.is_some();
    let whole_only =
        || Failure::bad_request(anyhow!("a session has no intervals; --since and --until go with files and watches"));
    if is_part && source.is_session() {
        return Err(whole_only());
    }
    match locate(source, socket)? {
        Located::File(path) if is_part => load_part(&path, since, until),
        Located::File(path) => load(&path),
        Located::Watch(name) => Ok(stored::load(&name, stored, socket, since, until)?.into()),
        Located::Session(..) if is_part => Err(whole_only()),
        Located::Session(client, id) => load_session(*client, id),
        Located::Process(pid) => Err(no_session_on(pid)),
    }
}

fn locate(source: &ProfileSource, socket: &SocketArgs) -> Result<Located, Failure> {
    Lookup { daemon: Some(socket), files: true, processes: false }.locate(source)
}

pub struct LoadedTimeline {
    pub file: LoadedFile,
    /// Without columns, the profile has all its metrics.
    pub timeline: Timeline,
    pub metrics: Vec<String>,
}

fn metric_names(profile: &Profile) -> Vec<String> {
    profile.session().metrics.iter().map(|metric| metric.name.clone()).collect()
}

/// Loads a source over time, in at most `most` columns: none without charges, or for a session (with `files_only`, a
/// watch).
pub fn load_timeline(
    source: &ProfileSource,
    stored: &StoredArgs,
    socket: &SocketArgs,
    metric: Option<&str>,
    (most, files_only): (usize, bool),
) -> Result<LoadedTimeline, Failure> {
    let source = stored.source(source)?;
    let path = match locate(&source, socket)? {
        Located::File(path) => path,
        Located::Watch(name) if !files_only => {
            let (stored, timeline) = stored::load_timeline(&name, stored, socket, metric, most)?;
            return Ok(LoadedTimeline { file: stored.into(), timeline, metrics: Vec::new() });
        }
        _ => {
            let file = load_source(&source, stored, socket)?;
            let metrics = metric_names(&file.profile);
            return Ok(LoadedTimeline { file, timeline: Timeline::default(), metrics });
        }
    };
    let path = path.as_path();
    let (mut opened, window) = open_part(path, stored.since.as_deref(), stored.until.as_deref())?;
    let mut list = Vec::new();
    let (whole, intervals) = read_window_with(reader(&opened.file), window, |from, to| list.push((from, to)))
        .map_err(|error| failure(path, error))?;
    let metrics = metric_names(&whole.profile);
    if intervals.taken == 0 && !stored.is_part() {
        let file = LoadedFile::of(path, &opened, whole, None);
        return Ok(LoadedTimeline { file, timeline: Timeline::default(), metrics });
    }
    rewind(&mut opened.file, path)?;
    none_of(path, &intervals)?;
    let (number, _) = crate::query::metric(&whole.profile, metric)?;
    let timeline = Timeline::of_intervals(&list, whole.profile.charge_count(), most);
    drop(whole);
    let loaded = read_timeline(reader(&opened.file), number, &timeline).map_err(|error| failure(path, error))?;
    let intervals = stored.is_part().then_some(intervals);
    Ok(LoadedTimeline { file: LoadedFile::of(path, &opened, loaded, intervals), timeline, metrics })
}

fn reader(file: &File) -> BufReader<&File> {
    BufReader::with_capacity(1 << 18, file)
}

fn rewind(file: &mut File, path: &Path) -> Result<(), Failure> {
    let rewound = file.rewind().with_context(|| format!("cannot read {}", path.display()));
    rewound.map_err(Failure::at_run_time)
}

fn open_part(path: &Path, since: Option<&str>, until: Option<&str>) -> Result<(OpenedProfile, TimeWindow), Failure> {
    let mut opened = open_profile(path)?;
    // The last record has the file's duration.
    let (whole, all) = read_window(reader(&opened.file), TimeWindow::ALL).map_err(|error| failure(path, error))?;
    let session = whole.profile.session();
    let window = times::window(since, until, (session.started_unix_ns, all.end_ns), &Zoned::now());
    rewind(&mut opened.file, path)?;
    Ok((opened, window.map_err(|error| Failure::bad_request(anyhow!(error)))?))
}

fn none_of(path: &Path, intervals: &Intervals) -> Result<(), Failure> {
    if intervals.taken > 0 {
        return Ok(());
    }
    Err(Failure::bad_request(anyhow!(
        "{} has no interval that ends in that time: it has {} of at most {}, up to +{}",
        path.display(),
        counted(intervals.all, "interval", "intervals"),
        nanoseconds(intervals.longest_ns),
        nanoseconds(intervals.end_ns),
    )))
}

fn load_part(path: &Path, since: Option<&str>, until: Option<&str>) -> Result<LoadedFile, Failure> {
    let (opened, window) = open_part(path, since, until)?;
    let (loaded, intervals) = read_window(reader(&opened.file), window).map_err(|error| failure(path, error))?;
    none_of(path, &intervals)?;
    Ok(LoadedFile::of(path, &opened, loaded, Some(intervals)))
}

fn failure(path: &Path, error: DecodeError) -> Failure {
    let name = path.display();
    match error {
        DecodeError::Io(error) => {
            Failure::at_run_time(anyhow::Error::from(error).context(format!("cannot read {name}")))
        }
        error => Failure::bad_request(anyhow!("{name}: {error}")),
    }
}

fn load_session(client: Client, session: u32) -> Result<LoadedFile, Failure> {
    let path = PathBuf::from(format!("session {session}"));
    let (profile, ended) = client.subscribe(session, false)?.read_all()?;
    let finished = ended.is_some();
    let recovery = Recovery::Whole;
    let (session, stored, intervals) = (Some(session), None, None);
    Ok(LoadedFile { path, session, profile, recovery, finished, records: 0, bytes: 0, stored, intervals })
}

fn load(path: &Path) -> Result<LoadedFile, Failure> {
    let opened = open_profile(path)?;
    let loaded = read_profile(reader(&opened.file)).map_err(|error| failure(path, error))?;
    Ok(LoadedFile::of(path, &opened, loaded, None))
}

impl LoadedFile {
    fn of(path: &Path, opened: &OpenedProfile, loaded: Loaded, intervals: Option<Intervals>) -> LoadedFile {
        let Loaded { profile, recovery, finished, records, bytes } = loaded;
        let bytes = opened.recording_bytes.unwrap_or(bytes);
        let (path, session, stored) = (path.to_owned(), None, None);
        LoadedFile { path, session, profile, recovery, finished, records, bytes, stored, intervals }
    }

    /// The file, or the folder of a watch's files; `None` for a session.
    pub fn place(&self) -> Option<&Path> {
        self.session.is_none().then_some(self.path.as_path())
    }

    /// The time range in a line, if not the whole file.
    pub fn time(&self) -> Option<String> {
        let Intervals { taken, all, from_ns, to_ns, end_ns, longest_ns } = self.intervals?;
        Some(format!(
            "+{} to +{} of {}: {taken} of {}, each of at most {}",
            nanoseconds(from_ns),
            nanoseconds(to_ns),
            nanoseconds(end_ns),
            counted(all, "interval", "intervals"),
            nanoseconds(longest_ns),
        ))
    }

    /// Whether everything that was collected could be read. A session that goes on is whole as far as it is.
    pub fn is_whole(&self) -> bool {
        let is_recording_cut = || self.profile.session().notes.iter().any(|it| it.starts_with(notes::CUT_RECORDING));
        let is_file_whole = matches!(self.recovery, Recovery::Whole) && self.finished && !is_recording_cut();
        match &self.stored {
            Some(about) => about.problems.is_empty(),
            None => self.session.is_some() || is_file_whole,
        }
    }

    pub fn messages(&self) -> Vec<String> {
        self.stored.as_ref().map_or_else(|| self.message().into_iter().collect(), About::messages)
    }

    pub fn message(&self) -> Option<String> {
        if self.session.is_some() {
            return None;
        }
        let name = self.path.display();
        let length = self.intervals.map_or(self.profile.accounting().duration_ns, |it| it.end_ns);
        let shown = match length {
            0 if self.profile.charge_count() == 0 => "it holds no sample".to_owned(),
            0 => "the time of its samples is not known".to_owned(),
            ns => format!("its first {} can be read", nanoseconds(ns)),
        };
        match &self.recovery {
            Recovery::Cut { whole_records, bytes_used, why, .. } => {
                let what = if matches!(why, DecodeError::CutOff { .. }) { "is cut short" } else { "is damaged" };
                Some(format!(
                    "{name} {what} ({why}): {}, {} of {} bytes used; {shown}",
                    counted(*whole_records, "whole record", "whole records"),
                    count(*bytes_used),
                    count(self.bytes),
                ))
            }
            Recovery::Whole if !self.finished => {
                Some(format!("{name} has no end yet: the collection still runs or was interrupted; {shown}"))
            }
            Recovery::Whole => None,
        }
    }
}
