//! Counts the open event files of all sessions of this process. The daemon bounds each user's part ([`FileShare`]).

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::system;

/// Files that the events of all sessions of this process take: they share one limit.
static EVENT_FILES: AtomicU64 = AtomicU64::new(0);

/// Files that the events of all sessions of this process take.
pub fn files_of_all_events() -> u64 {
    EVENT_FILES.load(Ordering::Relaxed)
}

/// Files that this process has open beside events, but for those that every process has and [`room`](super::layout_choice::room) leaves room for.
pub fn open_elsewhere() -> u64 {
    system::open_files().saturating_sub(files_of_all_events()).saturating_sub(USUAL_FILES)
}

/// Files that a process of one session has open before its events: pipes, sockets, logs.
const USUAL_FILES: u64 = 50;

/// Bounds the open files of one session.
pub trait FileShare: Debug + Send + Sync {
    /// The session has so many files of events open now.
    fn set_events(&self, files: u64);

    /// So many events more have no files: threads have inherited them. The kernel's memory has them all.
    fn set_inherited(&self, events: u64);

    /// The session has so many files of images open now.
    fn set_images(&self, files: u64);

    /// How many more files the session may open.
    fn room(&self) -> u64;

    /// Why not more, in words.
    fn reason(&self) -> String;
}

#[derive(Default)]
pub struct CountedFiles {
    files: u64,
    share: Option<Arc<dyn FileShare>>,
}

impl CountedFiles {
    pub fn set(&mut self, files: u64) {
        // Relaxed: a number that is compared with a limit, nothing else depends on it.
        EVENT_FILES.fetch_add(files, Ordering::Relaxed);
        EVENT_FILES.fetch_sub(std::mem::replace(&mut self.files, files), Ordering::Relaxed);
        if let Some(share) = &self.share {
            share.set_events(files);
        }
    }

    /// So many events have been opened or inherited.
    pub fn tell_events(&self, events: u64) {
        if let Some(share) = &self.share {
            share.set_inherited(events.saturating_sub(self.files));
        }
    }

    pub fn share(&mut self, share: Arc<dyn FileShare>) {
        share.set_events(self.files);
        self.share = Some(share);
    }

    /// The reason why it may not open so many more, if a share bounds it.
    pub fn refusal(&self, more: u64) -> Option<String> {
        self.share.as_ref().filter(|share| share.room() < more).map(|share| share.reason())
    }
}

impl Drop for CountedFiles {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_count_their_files_together() {
        // Other tests of this process may have sessions; those do not go below what these two have.
        let (mut one, mut other) = (CountedFiles::default(), CountedFiles::default());
        one.set(1_000_000);
        other.set(2_000_000);
        one.set(500_000);
        assert!((2_500_000..2_600_000).contains(&files_of_all_events()));
        drop(other);
        assert!((500_000..600_000).contains(&files_of_all_events()));
        drop(one);
        assert!(files_of_all_events() < 100_000);
    }
}
