//! Stacks of samples, and how much of the threads' last stacks is remembered for the next ones.

use crate::budget::Budget;
use crate::perf::record::Sample;
use crate::process::images::{ImageIndex, Images};
use crate::process::{Process, Thread};
use crate::stack_delta::Common;
use crate::unwind::shadow::ShadowStack;
use crate::unwind::{Frame, Root, StackUnwinder, Target, UnwindStats, Unwound};

/// The unwinder with the stack that it has found last.
pub struct Unwinding {
    unwinder: StackUnwinder,
    frames: Vec<Frame>,
    /// Frames of the threads' stacks that are remembered; too many by those of ended threads until [`Unwinding::forget`].
    remembered: usize,
    /// The most that it may be; by default that is ten stacks of 100,000.
    most_remembered: usize,
    /// Stacks remembered only in part, because there was no room.
    cut_memories: u64,
}

impl Unwinding {
    /// Never takes more than this budget.
    pub fn within(budget: &Budget) -> Unwinding {
        Unwinding {
            unwinder: StackUnwinder::within(budget.unwind_tables, budget.unwind_rules),
            frames: Vec::new(),
            remembered: 0,
            most_remembered: budget.stack_frames,
            cut_memories: 0,
        }
    }

    /// Unwinds a sample of a thread, `is_dying` if a signal has killed it and its stack will be shown, and remembers the stack for its next sample.
    #[inline]
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        thread: &mut Thread,
        process: &mut Process,
        images: &Images,
        is_dying: bool,
    ) -> Unwound {
        let room = self.remembered < self.most_remembered && !thread.is_others;
        let remembered = thread.shadow.remembered();
        let target = Target { mappings: &mut process.mappings, goroutines: &mut process.goroutines, images };
        self.unwinder.set_dying(is_dying);
        let mut unwound = self.unwinder.unwind(sample, target, &mut thread.shadow, room, &mut self.frames);
        let no_stack = is_dying && sample.stack.is_empty();
        let is_whole = unwound.root == Root::Complete && unwound.gap.is_none();
        if no_stack && !is_whole && unwound.gap.is_none_or(|gap| gap.outer == 0) {
            let followed = self.unwinder.follow_pointers(sample, &mut process.mappings, images, &mut self.frames);
            unwound.gap = followed.or(unwound.gap);
        }
        // A shared stack of threads that are not followed is forgotten before each sample.
        if !thread.is_others {
            self.remembered = (self.remembered + thread.shadow.remembered()).saturating_sub(remembered);
        }
        // That threads which are not followed share one stack is counted as that.
        self.cut_memories += u64::from(unwound.common.few && !thread.is_others);
        unwound
    }

    /// Takes over a stack that another profiler has followed, innermost frame first. The thread's next stack is unwound whole.
    pub fn adopt(&mut self, thread: &mut Thread, stack: impl Iterator<Item = Frame>, root: Root) -> Unwound {
        self.remembered = self.remembered.saturating_sub(thread.shadow.remembered());
        thread.shadow = ShadowStack::default();
        self.frames.clear();
        self.frames.extend(stack);
        Unwound { root, common: Common::default(), gap: None }
    }

    /// The frames of the last stack that are not in common with the one before.
    #[inline]
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// So many frames that were remembered are of threads that have ended.
    pub fn forget(&mut self, frames: usize) {
        self.remembered = self.remembered.saturating_sub(frames);
    }

    /// Stacks remembered only in part, because there was no room.
    pub fn cut_memories(&self) -> u64 {
        self.cut_memories
    }

    /// What the unwinder has counted.
    pub fn stats(&self) -> UnwindStats {
        self.unwinder.stats()
    }

    /// Stacks whose outer part was not there any more when it was read.
    pub fn read_too_late(&self) -> u64 {
        self.unwinder.read_too_late()
    }

    /// Bytes that unwind tables take, and what is remembered of addresses.
    pub fn held_bytes(&self) -> u64 {
        self.unwinder.held_bytes()
    }

    /// Frees what is kept of an image that is not mapped any more.
    pub fn drop_image(&mut self, index: ImageIndex) {
        self.unwinder.drop_image(index);
    }
}
