//! Stacks of samples, and how much of the threads' last stacks is remembered for the next ones.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::budget::Budget;
use crate::perf::record::Sample;
use crate::process::images::{ImageIndex, Images};
use crate::process::{LiveProcess, LiveThread, ProcessKey, ThreadKey};
use crate::stack_delta::Common;
use crate::unwind::go::goroutines::GoroutineTable;
use crate::unwind::shadow::ShadowStack;
use crate::unwind::{Frame, StackRoot, StackUnwinder, UnwindStats, UnwindTarget, Unwound};

/// The unwinder, with what it remembers of each thread and process, and the stack that it has found last.
pub struct Unwinding {
    unwinder: StackUnwinder,
    frames: Vec<Frame>,
    /// The last stack of each live thread that has been sampled.
    stacks: HashMap<ThreadKey, ShadowStack, FxBuildHasher>,
    goroutines: GoroutineTable,
    remembered: usize,
    /// Maximum of `remembered`; by default ten stacks of 100,000 frames.
    most_remembered: usize,
    /// Stacks remembered only in part, because there was no room.
    cut_memories: u64,
}

impl Unwinding {
    pub fn within(budget: &Budget) -> Unwinding {
        Unwinding {
            unwinder: StackUnwinder::within(budget.unwind_tables, budget.unwind_rules),
            frames: Vec::new(),
            stacks: HashMap::default(),
            goroutines: GoroutineTable::default(),
            remembered: 0,
            most_remembered: budget.stack_frames,
            cut_memories: 0,
        }
    }

    /// For a session of this user.
    pub fn set_user(&mut self, user: u32) {
        self.unwinder.set_user(user);
    }

    /// Unwinds a sample and remembers the stack. `is_dying`: a signal has killed the thread, and its stack will be
    /// shown.
    #[inline]
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        thread: &LiveThread,
        process: &mut LiveProcess,
        images: &Images,
        is_dying: bool,
    ) -> Unwound {
        let room = self.remembered < self.most_remembered && !thread.is_others;
        let shadow = self.stacks.entry(thread.key).or_default();
        if thread.is_others {
            // The last stack was another thread's.
            shadow.interrupt();
        }
        let remembered = shadow.remembered();
        let (key, goroutines, owner) = (process.key, &mut self.goroutines, process.user);
        let target = UnwindTarget { mappings: &mut process.mappings, process: key, owner, goroutines, images };
        self.unwinder.set_dying(is_dying);
        let mut unwound = self.unwinder.unwind(sample, target, shadow, room, &mut self.frames);
        let no_stack = is_dying && sample.stack.is_empty();
        let is_whole = unwound.root == StackRoot::Complete && unwound.gap.is_none();
        if no_stack && !is_whole && unwound.gap.is_none_or(|gap| gap.outer == 0) {
            let followed = self.unwinder.follow_pointers(sample, &mut process.mappings, images, &mut self.frames);
            unwound.gap = followed.or(unwound.gap);
        }
        self.remembered = (self.remembered + shadow.remembered()).saturating_sub(remembered);
        // Threads that are not followed share one stack, which is never kept.
        self.cut_memories += u64::from(unwound.common.few && !thread.is_others);
        unwound
    }

    /// Takes over a stack that another profiler has followed, innermost frame first. The thread's next stack is unwound whole.
    pub fn adopt(&mut self, thread: &LiveThread, stack: impl Iterator<Item = Frame>, root: StackRoot) -> Unwound {
        self.remove_thread(thread.key);
        self.frames.clear();
        self.frames.extend(stack);
        Unwound { root, common: Common::default(), gap: None }
    }

    pub fn remove_thread(&mut self, thread: ThreadKey) {
        let removed = self.stacks.remove(&thread).map_or(0, |shadow| shadow.remembered());
        self.remembered = self.remembered.saturating_sub(removed);
    }

    pub fn remove_process(&mut self, process: ProcessKey) {
        self.goroutines.remove(process);
    }

    /// The frames of the last stack that are not in common with the one before.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Stacks remembered only in part, because there was no room.
    pub fn cut_memories(&self) -> u64 {
        self.cut_memories
    }

    pub fn stats(&self) -> UnwindStats {
        self.unwinder.stats()
    }

    pub fn read_too_late(&self) -> u64 {
        self.unwinder.read_too_late()
    }

    pub fn read_anew(&self) -> u64 {
        self.unwinder.read_anew()
    }

    pub fn disagreed(&self) -> u64 {
        self.unwinder.disagreed()
    }

    pub fn held_bytes(&self) -> u64 {
        self.unwinder.held_bytes()
    }

    pub fn drop_image(&mut self, index: ImageIndex) {
        self.unwinder.drop_image(index);
    }
}
