//! Profiles of watches on disk: `STATE_DIR/WATCH/20261121T163419Z.ccsd`, each of at most an hour.
//!
//! A segment is a valid profile stream from its first record on: after a crash it is readable up to its last whole
//! record, and old data is removed by removing whole files. The writer of a segment holds a lock on it. Files with
//! other names, and files that are no profiles, are left alone and listed.

mod files;
mod lock;
mod query;
mod retention;
mod segment;

use std::time::Duration;

pub use files::{StoreError, StoredSegment, WatchFiles, contents, watch_dir, watches};
pub use lock::{InUse, StateLock};
pub use query::{CpuInterval, StoredGap, StoredProfile, TimeRange, cpu_intervals, query, query_columns};
pub use retention::{Removed, retain};
pub use segment::{SegmentWriter, WriteError, room};

/// Time covered by a segment at most, except for its last interval.
pub const SEGMENT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
