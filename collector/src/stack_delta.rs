//! What two threads of ccsd remember of a thread's last stack, so that the next one is sent as the difference.
//!
//! Stacks change at their inner end: only frames not in [`Common`] with the last one are sent. The outer part of a deep
//! stack stays in reserve when the recursion returns, so that a later stack can share it again.
//!
//! The writer, the unwinder's [`ShadowStack`](crate::unwind::shadow::ShadowStack), finds what is in common and
//! remembers the stack by [`LastStack::write`]. The reader, the aggregator, takes that from its own [`LastStack`] by
//! [`LastStack::begin`], adds the other frames, and ends with [`LastStack::end`]. It remembers no less than the writer.

/// Maximum frames beyond the reserve remembered of a stack: each once deep thread without room for a reserve would hold
/// its whole stack.
pub const MAX_OWN: usize = 4096;
/// The same where all threads together remember as much as they may: thousands of threads can be deep.
pub const FEW_OWN: usize = 64;

#[derive(Clone, Debug)]
pub struct LastStack<T> {
    reserve: Vec<T>,
    /// How much of the reserve the stack has as its outer part.
    shared: usize,
    own: Vec<T>,
}

/// What a stack has in common with the one before it of the same thread, or with its reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    pub shared: u32,
    /// Frames beyond the reserve; they are those of the stack before.
    pub own: u32,
    pub reserve: Reserve,
    /// Whether only [`FEW_OWN`] frames beyond the reserve are to be remembered of the new stack, for want of room.
    pub few: bool,
}

impl Common {
    /// The outermost `count` frames of what is in common, or all.
    pub fn outermost(&self, count: usize) -> Common {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let shared = self.shared.min(count);
        Common { shared, own: self.own.min(count - shared), ..Common::default() }
    }

    /// Frames beyond the reserve that are to be remembered of the new stack, at most.
    pub const fn most(&self) -> usize {
        if self.few { FEW_OWN } else { MAX_OWN }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    #[default]
    Stays,
    /// All of the new stack becomes the reserve.
    Replaced,
    /// It is given up, before the new stack comes, which has nothing of it.
    Dropped,
}

impl<T> Default for LastStack<T> {
    fn default() -> Self {
        LastStack { reserve: Vec::new(), shared: 0, own: Vec::new() }
    }
}

impl<T> LastStack<T> {
    /// The reserve, outermost first.
    pub fn reserve(&self) -> &[T] {
        &self.reserve
    }

    /// How much of the reserve the stack has as its outer part.
    pub fn shared(&self) -> usize {
        self.shared
    }

    pub fn own(&self) -> &[T] {
        &self.own
    }

    pub fn depth(&self) -> usize {
        self.shared + self.own.len()
    }

    pub fn bytes(&self) -> usize {
        (self.reserve.capacity() + self.own.capacity()) * size_of::<T>()
    }

    pub fn last(&self) -> Option<&T> {
        self.own.last().or_else(|| self.reserve.get(self.shared.checked_sub(1)?))
    }

    /// The writer's half: makes a stack the last one, from `common` and its other frames, outermost first. Whether
    /// remembered frames are forgotten.
    pub fn write(&mut self, common: Common, frames: impl ExactSizeIterator<Item = T>) -> bool {
        let own = common.own as usize + frames.len();
        self.begin(common);
        // What would be forgotten at the end is not copied.
        if own <= common.most() || common.reserve == Reserve::Replaced {
            frames.for_each(|frame| self.push(frame));
        }
        self.end(common)
    }

    /// The same for a partial stack or unknown places: the next one can share only the reserve.
    pub fn interrupt(&mut self) {
        self.begin(Common::default());
    }

    /// The reader's half: cuts the stack to what a new one shares. Then follow [`LastStack::push`] and
    /// [`LastStack::end`].
    pub fn begin(&mut self, common: Common) {
        if common.reserve == Reserve::Dropped {
            self.reserve = Vec::new();
        }
        self.shared = (common.shared as usize).min(self.reserve.len());
        self.own.truncate(common.own as usize);
    }

    #[inline]
    pub fn push(&mut self, frame: T) {
        self.own.push(frame);
    }

    /// Changes every frame of the stack, and those of the reserve up to `reserve`, each with the one that called it.
    pub fn each_with_outer(&mut self, reserve: usize, mut change: impl FnMut(Option<&T>, &mut T)) {
        for at in 0..self.reserve.len().min(reserve.max(self.shared)) {
            let (outer, rest) = self.reserve.split_at_mut(at);
            rest.iter_mut().take(1).for_each(|frame| change(outer.last(), frame));
        }
        for at in 0..self.own.len() {
            let (outer, rest) = self.own.split_at_mut(at);
            let outer = outer.last().or_else(|| self.reserve.get(self.shared.checked_sub(1)?));
            rest.iter_mut().take(1).for_each(|frame| change(outer, frame));
        }
    }

    /// Ends a stack: makes it the reserve if `common` says so, and forgets frames too far beyond the reserve, with
    /// their memory. Whether there were any.
    pub fn end(&mut self, common: Common) -> bool {
        if common.reserve == Reserve::Replaced {
            self.reserve.truncate(self.shared);
            self.reserve.append(&mut self.own);
            self.shared = self.reserve.len();
        }
        if self.own.len() <= common.most() {
            return false;
        }
        self.own.truncate(common.most());
        self.own.shrink_to_fit();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(last: &LastStack<u8>) -> Vec<u8> {
        last.reserve()[..last.shared()].iter().chain(last.own()).copied().collect()
    }

    #[test]
    fn too_deep_frames_take_no_memory() {
        let mut last = LastStack::default();
        (0..MAX_OWN).for_each(|_| last.push(1u8));
        assert!(!last.end(Common::default()));
        assert_eq!(last.own().len(), MAX_OWN);
        (0..100 * MAX_OWN).for_each(|_| last.push(2));
        assert!(last.end(Common::default()));
        assert!(last.own() == [1; MAX_OWN] && last.own.capacity() < 2 * MAX_OWN, "{}", last.own.capacity());
        // A reserve has its own limits.
        let deep = Common { own: MAX_OWN as u32, reserve: Reserve::Replaced, ..Common::default() };
        last.begin(deep);
        (0..10).for_each(|_| last.push(3));
        assert!(!last.end(deep));
        assert_eq!(last.depth(), MAX_OWN + 10);
        last.begin(Common::default());
        (0..=FEW_OWN).for_each(|_| last.push(4));
        assert!(!last.end(Common::default()) && last.end(Common { few: true, ..Common::default() }));
        assert_eq!((last.own().len(), last.own.capacity()), (FEW_OWN, FEW_OWN));
    }

    #[test]
    fn a_stack_shrinks_and_grows_back() {
        let mut last = LastStack::default();
        let deep = Common { reserve: Reserve::Replaced, ..Common::default() };
        last.begin(deep);
        [1, 2, 3, 4, 5].into_iter().for_each(|frame| last.push(frame));
        last.end(deep);
        assert_eq!((stack(&last), last.own().len()), (vec![1, 2, 3, 4, 5], 0));

        let shallow = Common { shared: 2, ..Common::default() };
        last.begin(shallow);
        last.push(9);
        last.end(shallow);
        assert_eq!((stack(&last), last.depth(), last.last()), (vec![1, 2, 9], 3, Some(&9)));

        last.begin(Common { shared: 2, own: 1, ..Common::default() });
        last.push(8);
        assert_eq!(stack(&last), [1, 2, 9, 8]);

        let mut calls = Vec::new();
        last.each_with_outer(4, |outer, frame| calls.push((outer.copied(), *frame)));
        let calls: Vec<(u8, u8)> = calls.into_iter().map(|(outer, frame)| (outer.unwrap_or(0), frame)).collect();
        assert_eq!(calls, [(0, 1), (1, 2), (2, 3), (3, 4), (2, 9), (9, 8)]);

        last.begin(Common { shared: 5, ..Common::default() });
        assert_eq!((stack(&last), last.last()), (vec![1, 2, 3, 4, 5], Some(&5)));

        last.push(7);
        last.begin(Common { reserve: Reserve::Dropped, own: 1, ..Common::default() });
        assert_eq!((stack(&last), last.reserve().len(), last.last()), (vec![7], 0, Some(&7)));
    }

    /// A writer's word is enough for a reader to rebuild random stacks, whose innermost frames the writer does not
    /// know.
    #[test]
    fn a_reader_has_what_the_writer_names() {
        let mut seed = 1u64;
        let mut random = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below
        };
        let mut seen = [0u32; 8];
        for _ in 0..30 {
            let (mut writer, mut reader) = (LastStack::<u32>::default(), LastStack::<u32>::default());
            let (mut stack, mut next) = (vec![0u32], 1u32);
            for _ in 0..200 {
                // Returns, few or all, and calls, few or many. A call after a return may be the same one again.
                let kept = if random(8) == 0 { random(stack.len()) } else { stack.len().saturating_sub(random(8)) };
                let returned = stack.split_off(kept.max(1));
                let again = if random(2) == 0 { random(returned.len() + 1) } else { 0 };
                stack.extend(&returned[..again]);
                let calls = if random(16) == 0 { random(2 * MAX_OWN) } else { random(12) };
                stack.extend((0..calls as u32).map(|call| next + call));
                next += calls as u32;
                let (outer, leaf) = stack.split_at(stack.len() - 1);
                if random(16) == 0 {
                    // One that is cut off at its outer end.
                    seen[0] += 1;
                    writer.interrupt();
                    reader.begin(Common::default());
                    let inner = &stack[random(stack.len())..];
                    inner.iter().for_each(|&frame| reader.push(frame));
                    reader.end(Common::default());
                    continue;
                }
                // The writer may recognise any part of what is the same, the outermost first.
                let same = |a: &[u32], b: &[u32]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
                let shared = same(writer.reserve(), outer);
                let shared = if random(4) == 0 { random(shared + 1) } else { shared };
                let own = if shared == writer.shared() { same(writer.own(), &outer[shared..]) } else { 0 };
                let own = if random(4) == 0 { random(own + 1) } else { own };
                let new = outer.len() - shared - own;
                let reserve = match random(8) {
                    0 if new > 0 => Reserve::Replaced,
                    1 if shared == 0 => Reserve::Dropped,
                    _ => Reserve::Stays,
                };
                let few = random(8) == 0;
                let common = Common { shared: shared as u32, own: own as u32, reserve, few };
                let frames = outer[shared + own..].iter().copied();
                let cut = writer.write(common, frames);
                reader.begin(common);
                outer[shared + own..].iter().chain(leaf).for_each(|&frame| reader.push(frame));
                let whole: Vec<u32> = reader.reserve()[..reader.shared()].iter().chain(reader.own()).copied().collect();
                assert_eq!(whole, stack, "{common:?}");
                reader.end(common);
                let of = |last: &LastStack<u32>| (last.reserve()[..last.shared()].to_vec(), last.own().to_vec());
                let ((reserve_of_writer, own_of_writer), (reserve_of_reader, own_of_reader)) =
                    (of(&writer), of(&reader));
                assert!(reserve_of_reader.starts_with(&reserve_of_writer), "{common:?}");
                assert!(own_of_reader.starts_with(&own_of_writer), "{common:?}");
                assert!(reader.reserve().starts_with(writer.reserve()), "{common:?}");
                for (count, happened) in seen[1..].iter_mut().zip([
                    shared > 0,
                    own > 0,
                    reserve == Reserve::Replaced,
                    reserve == Reserve::Dropped,
                    few,
                    cut || own + new > MAX_OWN,
                    shared < writer.reserve().len(),
                ]) {
                    *count += u32::from(happened);
                }
            }
        }
        assert!(seen.iter().all(|&times| times > 20), "{seen:?}");
    }
}
