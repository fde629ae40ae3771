//! What watches have found out, on disk: `STATE_DIR/WATCH/20261121T163419Z.ccsd`, each a profile of at most an hour.
//!
//! A segment is a valid profile stream from its first record on, so what a crash leaves of it is good up to its last whole
//! record, and old data goes by removing whole files. Whoever writes one holds a lock on it. Files of other names, and
//! those that are no profiles, are nobody's business here: they are left alone, and named.

mod lock;
mod query;
mod retention;
mod segment;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::WatchName;

pub use lock::{InUse, StateLock};
pub use query::{StoredProfile, TimeRange, query, query_columns};
pub use retention::{Removed, retain};
pub use segment::{SegmentWriter, WriteError, room};

/// A segment covers at most this much time, but for its last interval.
pub const SEGMENT: Duration = Duration::from_secs(3600);
/// From its start to its end a segment takes no longer than this: an hour, and the longest interval that can be configured.
const LONGEST: Duration = Duration::from_secs(3600 + 600 + 60);
/// Segments of one watch that are looked at. A week of hours is 168; restarts make more.
const MAX_SEGMENTS: usize = 1 << 20;

/// Ending of the name of a segment.
const ENDING: &str = ".ccsd";

/// Why stored profiles cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory of the service cannot be read.
    #[error("cannot read {}: {source}{}", path.display(), hint(source))]
    Read {
        /// Which directory or file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// No watch of this name has ever stored anything.
    #[error("there is no watch {name:?}{}", known(names))]
    NoSuchWatch {
        /// As asked for.
        name: String,
        /// Those that there are.
        names: Vec<String>,
    },
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

/// A file of a watch's directory that is a segment by its name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Seconds since 1970 at which it began, by its name.
    pub start: i64,
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: u64,
}

/// What is in the directory of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Segments, by time.
    pub segments: Vec<Segment>,
    /// What is none, by name.
    pub foreign: Vec<PathBuf>,
}

/// The watches that have stored something, by name.
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

/// What is in the directory of a watch.
///
/// # Errors
/// [`StoreError::Read`].
pub fn contents(dir: &Path) -> Result<Contents, StoreError> {
    let read = |source| StoreError::Read { path: dir.to_owned(), source };
    let mut contents = Contents::default();
    for entry in fs::read_dir(dir).map_err(read)?.flatten().take(MAX_SEGMENTS) {
        // Neither of these follows a link.
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let start = entry.file_name().to_str().and_then(parse_name).filter(|_| is_file);
        match (start, entry.metadata()) {
            (Some(start), Ok(meta)) => {
                contents.segments.push(Segment { start, path: entry.path(), bytes: meta.len() });
            }
            // Removed in the meantime.
            (Some(_), Err(_)) => {}
            (None, _) => contents.foreign.push(entry.path()),
        }
    }
    contents.segments.sort_unstable();
    contents.foreign.sort_unstable();
    Ok(contents)
}

/// `20261121T163419Z.ccsd`, and with `-1`, `-2` before the dot where there is one from the same second.
fn name(start: i64, number: u32) -> String {
    let time = jiff::Timestamp::from_second(start).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    let number = if number == 0 { String::new() } else { format!("-{number}") };
    format!("{}{number}{ENDING}", time.strftime("%Y%m%dT%H%M%SZ"))
}

/// The start of the segment of this name.
fn parse_name(name: &str) -> Option<i64> {
    let stem = name.strip_suffix(ENDING)?;
    let (time, number) = stem.split_once('-').map_or((stem, None), |(time, number)| (time, Some(number)));
    if number.is_some_and(|number| number.len() > 9 || number.parse::<u32>().is_err()) {
        return None;
    }
    let time = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", time).ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

#[cfg(test)]
mod tests;
