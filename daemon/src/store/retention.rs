//! Removing what is too old, or too much.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::codec::MAGIC;

use super::{LONGEST, Segment, StoreError, contents, watches};
use crate::config::Retention;

/// Removed and kept files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Segments removed.
    pub segments: Vec<PathBuf>,
    /// Bytes that the profiles of all watches have now.
    pub bytes: u64,
    /// Files that are not ours, and were left alone.
    pub foreign: Vec<PathBuf>,
    /// Files that could not be removed, with the reason.
    pub failed: Vec<String>,
}

/// Removes segments whose end is older than the age. If all have more than the bytes then, removes the oldest of the watch
/// that has most, as long as it has more than its share, which is an equal part: what one watch stores never costs what
/// another has stored within its own. There are `configured` watches, and those that have stored something. A segment that
/// is being written is not removed.
///
/// # Errors
/// [`StoreError::Read`] if the state directory cannot be read.
pub fn retain(
    state_dir: &Path,
    retention: Retention,
    now: SystemTime,
    configured: usize,
) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    let mut stored: Vec<Stored> = Vec::new();
    for name in watches(state_dir)? {
        // The file may have been removed meanwhile.
        let Ok(found) = contents(&state_dir.join(name)) else { continue };
        removed.foreign.extend(found.foreign);
        let mut watch = Stored::default();
        for segment in found.segments {
            // Foreign files neither count nor are removed: a large one would cost all profiles.
            match state(&segment.path) {
                SegmentState::Foreign => removed.foreign.push(segment.path),
                state => {
                    watch.bytes = watch.bytes.saturating_add(segment.bytes);
                    // The oldest last.
                    watch.removable.extend(matches!(state, SegmentState::Ours).then_some(segment));
                }
            }
        }
        watch.removable.reverse();
        stored.extend((watch.bytes > 0 || !watch.removable.is_empty()).then_some(watch));
    }
    removed.bytes = stored.iter().fold(0, |sum, watch| watch.bytes.saturating_add(sum));
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
    let seconds = |time: std::time::Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let oldest = now.saturating_sub(seconds(retention.age.0)).saturating_sub(seconds(LONGEST));
    for watch in &mut stored {
        while watch.removable.last().is_some_and(|segment| segment.start < oldest) {
            watch.remove_oldest(&mut removed);
        }
    }
    let share = retention.bytes.0 / stored.len().max(configured).max(1) as u64;
    while removed.bytes > retention.bytes.0 {
        let over = |watch: &&mut Stored| watch.bytes > share && !watch.removable.is_empty();
        let Some(watch) = stored.iter_mut().filter(over).max_by_key(|watch| watch.bytes) else { break };
        watch.remove_oldest(&mut removed);
    }
    Ok(removed)
}

/// What a watch has stored.
#[derive(Default)]
struct Stored {
    removable: Vec<Segment>,
    bytes: u64,
}

impl Stored {
    fn remove_oldest(&mut self, removed: &mut Removed) {
        let Some(segment) = self.removable.pop() else { return };
        match fs::remove_file(&segment.path) {
            Ok(()) => {
                self.bytes = self.bytes.saturating_sub(segment.bytes);
                removed.bytes = removed.bytes.saturating_sub(segment.bytes);
                removed.segments.push(segment.path);
            }
            Err(error) => removed.failed.push(format!("cannot remove {}: {error}", segment.path.display())),
        }
    }
}

enum SegmentState {
    /// A profile that nobody writes.
    Ours,
    /// A profile that is being written.
    InUse,
    /// No profile.
    Foreign,
}

fn state(path: &Path) -> SegmentState {
    let options = || OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path);
    let Ok(mut file) = options() else { return SegmentState::Foreign };
    if is_being_written(&file) {
        return SegmentState::InUse;
    }
    let mut start = [0; MAGIC.len()];
    // A segment created just before a power failure is empty.
    match file.read(&mut start) {
        Ok(0) => SegmentState::Ours,
        Ok(read) if start.get(..read) == MAGIC.get(..read) => SegmentState::Ours,
        _ => SegmentState::Foreign,
    }
}

/// Whether somebody writes it.
pub(super) fn is_being_written(file: &File) -> bool {
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}
