//! Profiles of watches on disk: `STATE_DIR/WATCH/20261121T163419Z.ccsd`, each of at most an hour.
//!
//! A segment is a valid profile stream, readable up to its last whole record after a crash; old data is removed by
//! whole files. Its writer holds a lock. Files with other names or contents are left alone and listed.

mod files;
mod lock;
mod query;
mod retention;
mod segment;

use std::time::Duration;

pub use files::{StoreError, StoredSegment, WatchFiles, contents, watch_dir, watches};
pub use lock::{StateDirError, StateLock};
pub use query::{CpuInterval, StoredGap, StoredProfile, TimeRange, cpu_intervals, query, query_timeline};
pub use retention::{Removed, retain, writable};
pub use segment::{SegmentWriter, WriteError, free_for_segments, room};

/// Minimum bytes before another segment starts: each segment repeats its symbols.
pub const LEAST_SEGMENT: u64 = 32 << 10;
/// Time covered by a segment at most, except for its last interval.
pub const SEGMENT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
