//! Removes old profiles by age and size.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::codec::MAGIC;

use super::files::{LONGEST, StoreError, StoredSegment, contents, is_being_written, watches};
use crate::config::Retention;

/// The result of [`retain`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Removed segments.
    pub segments: Vec<PathBuf>,
    /// Bytes of the remaining profiles of all watches.
    pub bytes: u64,
    /// Bytes of the remaining profiles of each watch that has any, by name.
    pub by_watch: HashMap<String, u64>,
    /// Files that are no segments, left alone.
    pub foreign: Vec<PathBuf>,
    /// Errors of segments that could not be removed.
    pub failed: Vec<String>,
}

/// Removes segments beyond the maximum age; then, while the rest exceeds the maximum bytes, the oldest segment of the
/// largest watch beyond its share. Shares of `configured` and stored watches are equal. Segments being written are
/// kept. Calls `beat` at each watch and segment: many may take long.
///
/// # Errors
/// [`StoreError::Read`] if the state directory cannot be read.
pub fn retain(
    state_dir: &Path,
    retention: Retention,
    now: SystemTime,
    configured: usize,
    beat: impl Fn(),
) -> Result<Removed, StoreError> {
    let mut removed = Removed::default();
    let mut stored: Vec<WatchSegments> = Vec::new();
    for name in watches(state_dir)? {
        beat();
        // The directory may have been removed meanwhile.
        let Ok(found) = contents(&state_dir.join(&name)) else { continue };
        removed.foreign.extend(found.foreign);
        let mut watch = WatchSegments { name, ..WatchSegments::default() };
        for segment in found.segments {
            beat();
            // Foreign files neither count nor are removed: a large one would cost all profiles.
            match state(&segment.path) {
                SegmentState::Foreign => removed.foreign.push(segment.path),
                state => {
                    watch.bytes = watch.bytes.saturating_add(segment.bytes);
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
            beat();
            watch.remove_oldest(&mut removed);
        }
    }
    let share = retention.bytes.0 / stored.len().max(configured).max(1) as u64;
    while removed.bytes > retention.bytes.0 {
        beat();
        let over = |watch: &&mut WatchSegments| watch.bytes > share && !watch.removable.is_empty();
        let Some(watch) = stored.iter_mut().filter(over).max_by_key(|watch| watch.bytes) else { break };
        watch.remove_oldest(&mut removed);
    }
    removed.by_watch = stored.into_iter().map(|watch| (watch.name, watch.bytes)).collect();
    Ok(removed)
}

/// How many bytes each watch may write, of which `stored` has the bytes stored so far, where `free` are left and at most
/// `limit` are kept: what it lacks of an equal share of all there is room for, and an equal part of what no watch lacks.
/// So none can take what another has not used yet.
#[must_use]
pub fn writable(stored: &[u64], free: u64, limit: u64) -> Vec<u64> {
    let watches = stored.len().max(1) as u64;
    let room = stored.iter().fold(free, |sum, bytes| sum.saturating_add(*bytes)).min(limit);
    let lacks = |bytes: &u64| (room / watches).saturating_sub(*bytes);
    let spare = free.saturating_sub(stored.iter().map(lacks).fold(0, u64::saturating_add)) / watches;
    stored.iter().map(|bytes| lacks(bytes).saturating_add(spare)).collect()
}

#[derive(Default)]
struct WatchSegments {
    name: String,
    removable: Vec<StoredSegment>,
    bytes: u64,
}

impl WatchSegments {
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
    Ours,
    InUse,
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
