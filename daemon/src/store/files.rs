//! Names and states of the files of a watch.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::WatchName;

/// Maximum time from start to end of a segment: an hour, and the longest interval that can be configured.
pub const LONGEST: Duration = Duration::from_secs(3600 + 600 + 60);
/// Maximum segments read of one watch. A week of hours is 168; restarts add more.
const MAX_SEGMENTS: usize = 1 << 20;

const ENDING: &str = ".ccsd";

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum StoreError {
    #[error("cannot read {}: {source}{}", path.display(), hint(source))]
    Read { path: PathBuf, source: io::Error },
    #[error("there is no watch {name:?}{}", known(names))]
    NoSuchWatch { name: String, names: Vec<String> },
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => " (root and members of group ccsd may)",
        io::ErrorKind::NotFound => " (has the service run? `systemctl status ccsd`)",
        _ => "",
    }
}

fn known(names: &[String]) -> String {
    if names.is_empty() {
        "; none has stored anything yet".to_owned()
    } else {
        format!("; there are: {}", names.join(", "))
    }
}

/// A file in a watch's directory with the name of a segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredSegment {
    /// Start time from its name, seconds since 1970.
    pub start: i64,
    /// Path of the file.
    pub path: PathBuf,
    /// Size of the file.
    pub bytes: u64,
}

/// The files in the directory of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchFiles {
    /// Segments, ordered by time.
    pub segments: Vec<StoredSegment>,
    /// Other files, ordered by name.
    pub foreign: Vec<PathBuf>,
}

/// The watches that have stored something, ordered by name.
///
/// # Errors
/// [`StoreError::Read`].
pub fn watches(state_dir: &Path) -> Result<Vec<String>, StoreError> {
    let read = |source| StoreError::Read { path: state_dir.to_owned(), source };
    let mut names: Vec<String> = fs::read_dir(state_dir)
        .map_err(read)?
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| WatchName::is_valid(name))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// The directory of a watch.
///
/// # Errors
/// [`StoreError::NoSuchWatch`], [`StoreError::Read`].
pub fn watch_dir(state_dir: &Path, name: &str) -> Result<PathBuf, StoreError> {
    let names = watches(state_dir)?;
    if names.iter().any(|known| known == name) {
        return Ok(state_dir.join(name));
    }
    Err(StoreError::NoSuchWatch { name: name.to_owned(), names })
}

/// Lists the files in the directory of a watch.
///
/// # Errors
/// [`StoreError::Read`].
pub fn contents(dir: &Path) -> Result<WatchFiles, StoreError> {
    let read = |source| StoreError::Read { path: dir.to_owned(), source };
    let mut contents = WatchFiles::default();
    for entry in fs::read_dir(dir).map_err(read)?.flatten().take(MAX_SEGMENTS) {
        // Neither call follows a link.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let start = entry.file_name().to_str().and_then(parse_name).filter(|_| is_file);
        match (start, entry.metadata()) {
            (Some(start), Ok(meta)) => {
                contents.segments.push(StoredSegment { start, path: entry.path(), bytes: meta.len() });
            }
            // The file was removed meanwhile.
            (Some(_), Err(_)) => {}
            (None, _) => contents.foreign.push(entry.path()),
        }
    }
    contents.segments.sort_unstable();
    contents.foreign.sort_unstable();
    Ok(contents)
}

/// `20261121T163419Z.ccsd`, with `-1`, `-2` before the dot if several start in one second.
pub fn name(start: i64, number: u32) -> String {
    let time = jiff::Timestamp::from_second(start).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let number = if number == 0 { String::new() } else { format!("-{number}") };
    format!("{}{number}{ENDING}", time.strftime("%Y%m%dT%H%M%SZ"))
}

pub fn parse_name(name: &str) -> Option<i64> {
    let stem = name.strip_suffix(ENDING)?;
    let (time, number) = stem.split_once('-').map_or((stem, None), |(time, number)| (time, Some(number)));
    if number.is_some_and(|number| number.len() > 9 || number.parse::<u32>().is_err()) {
        return None;
    }
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Whether a writer holds the lock of the segment.
pub fn is_being_written(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
