//! Removing what is too old, or too much.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::codec::MAGIC;

use super::{LONGEST, Segment, StoreError, contents, watches};
use crate::config::Retention;

/// What was removed, and what was not.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Segments removed.
    pub segments: Vec<PathBuf>,
    /// Bytes that the profiles of all watches have now.
    pub bytes: u64,
    /// Files that are not ours, and were left alone.
    pub foreign: Vec<PathBuf>,
    /// Those that could not be removed, and why.
    pub failed: Vec<String>,
}

/// Removes segments whose end is older than the age, then the oldest of all watches until they are no more than the bytes.
/// One that is being written is not removed.
///
/// # Errors
/// [`StoreError::Read`] if the state directory cannot be read.
pub fn retain(state_dir: &Path, retention: Retention, now: SystemTime) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    let mut segments: Vec<Segment> = Vec::new();
    for name in watches(state_dir)? {
        // It may have gone in the meantime.
        let Ok(found) = contents(&state_dir.join(name)) else { continue };
        segments.extend(found.segments);
        removed.foreign.extend(found.foreign);
    }
    segments.sort_unstable();
    // What is not ours neither counts nor goes: else one large file of somebody else would cost all profiles.
    let mut ours = Vec::with_capacity(segments.len());
    for segment in segments {
        match state(&segment.path) {
            State::Foreign => removed.foreign.push(segment.path),
            state => ours.push((segment, matches!(state, State::InUse))),
        }
    }
    removed.bytes = ours.iter().fold(0, |sum, (segment, _)| segment.bytes.saturating_add(sum));
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let oldest = now.saturating_sub(seconds(retention.age.0)).saturating_sub(seconds(LONGEST));
    for (segment, in_use) in ours {
        let too_old = segment.start < oldest;
        let too_much = removed.bytes > retention.bytes.0;
        if !too_old && !too_much {
            break;
        }
        if in_use {
            continue;
        }
        match fs::remove_file(&segment.path) {
            Ok(()) => {
                removed.bytes = removed.bytes.saturating_sub(segment.bytes);
                removed.segments.push(segment.path);
            }
            Err(error) => removed.failed.push(format!("cannot remove {}: {error}", segment.path.display())),
        }
    }
    Ok(removed)
}

enum State {
    /// A profile that nobody writes.
    Ours,
    /// A profile that is being written.
    InUse,
    /// No profile.
    Foreign,
}

fn state(path: &Path) -> State {
    let options = || OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    let Ok(mut file) = options() else { return State::Foreign };
    if is_being_written(&file) {
        return State::InUse;
    }
    let mut start = [0; MAGIC.len()];
    // One that was created a moment before the power failed is empty.
    match file.read(&mut start) {
        Ok(0) => State::Ours,
        Ok(read) if start.get(..read) == MAGIC.get(..read) => State::Ours,
        _ => State::Foreign,
    }
}

/// Whether somebody writes it.
pub(super) fn is_being_written(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
