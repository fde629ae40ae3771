//! Threads' last stacks that were found whole, where others have followed: a crash report shows by them where a thread
//! came from.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::process::ThreadKey;
use crate::unwind::Frame;

/// Threads whose stacks are kept at most.
const MAX_THREADS: usize = 1_024;
/// Frames that are kept of each, the outermost.
const MAX_FRAMES: usize = 64;

#[derive(Default)]
pub(super) struct WholeStacks(HashMap<ThreadKey, Vec<Frame>, FxBuildHasher>);

impl WholeStacks {
    /// Keeps the outer part of a thread's stack, outermost first. Without room for it, the others are forgotten.
    pub(super) fn keep(&mut self, thread: ThreadKey, stack: impl Iterator<Item = Frame>) {
        if self.0.len() >= MAX_THREADS && !self.0.contains_key(&thread) {
            self.0.clear();
        }
        let kept = self.0.entry(thread).or_default();
        kept.clear();
        kept.extend(stack.take(MAX_FRAMES));
    }

    /// The outer part of the thread's last whole stack, outermost first.
    pub(super) fn of(&self, thread: ThreadKey) -> &[Frame] {
        self.0.get(&thread).map_or(&[], Vec::as_slice)
    }

    pub(super) fn end(&mut self, thread: ThreadKey) {
        self.0.remove(&thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::images::ImageIndex;

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let mut stacks = WholeStacks::default();
        let frame = |address| Frame { image: ImageIndex(0), address };
        for thread in 0..10_000 {
            stacks.keep(ThreadKey(thread), (0..100).map(frame));
            stacks.keep(ThreadKey(thread), (7..107).map(frame));
            assert!(stacks.0.len() <= MAX_THREADS);
            assert_eq!(stacks.of(ThreadKey(thread)), (7..71).map(frame).collect::<Vec<_>>());
        }
        stacks.end(ThreadKey(9_999));
        assert!(stacks.of(ThreadKey(9_999)).is_empty() && !stacks.of(ThreadKey(9_998)).is_empty());
    }
}
