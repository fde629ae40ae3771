//! A thread's stack, as two threads of ccsd hold it: outermost frame first, with a deep stack kept in reserve.
//!
//! Stacks change at their inner end, so each is told as what it keeps of the one before and what is new. A deep recursion
//! that returns and comes again between two samples would have to be told anew each time; so the outer part of a deep
//! stack is kept in reserve even when a stack ends inside it, and a later one may share more of it again.

/// Frames beyond the reserve that are remembered of a stack, at most, by either thread. Without that, each thread of the
/// target that was once deep where there was no room for its reserve would hold its whole stack.
pub const MAX_OWN: usize = 4096;
/// The same where all threads together remember as much as they may: thousands of threads can be deep.
pub const FEW_OWN: usize = 64;

/// One stack, and the deeper one that it may grow back into.
#[derive(Clone, Debug)]
pub struct Layers<T> {
    reserve: Vec<T>,
    /// How much of the reserve the stack has as its outer part.
    shared: usize,
    /// What the stack has beyond that.
    own: Vec<T>,
}

/// What a stack has in common with the one before it of the same thread, or with its reserve.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Frames of the reserve.
    pub shared: u32,
    /// Frames beyond the reserve; they are those of the stack before.
    pub own: u32,
    /// What becomes of the reserve.
    pub reserve: Reserve,
    /// Whether only [`FEW_OWN`] frames beyond the reserve are to be remembered of the new stack, for want of room.
    pub few: bool,
}

impl Common {
    /// Frames beyond the reserve that are to be remembered of the new stack, at most.
    pub const fn most(&self) -> usize {
        if self.few { FEW_OWN } else { MAX_OWN }
    }
}

/// What becomes of the reserve with a new stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// It stays.
    #[default]
    Stays,
    /// All of the new stack becomes the reserve.
    Replaced,
    /// It is given up, before the new stack comes, which has nothing of it.
    Dropped,
}

impl<T> Default for Layers<T> {
    fn default() -> Self {
        Layers { reserve: Vec::new(), shared: 0, own: Vec::new() }
    }
}

impl<T> Layers<T> {
    /// The reserve, outermost first.
    pub fn reserve(&self) -> &[T] {
        &self.reserve
    }

    /// How much of the reserve the stack has as its outer part.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// What the stack has beyond that.
    pub fn own(&self) -> &[T] {
        &self.own
    }

    /// Frames of the stack.
    pub fn depth(&self) -> usize {
        self.shared + self.own.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        (self.reserve.capacity() + self.own.capacity()) * size_of::<T>()
    }

    /// The innermost frame.
    pub fn last(&self) -> Option<&T> {
        self.own.last().or_else(|| self.reserve.get(self.shared.checked_sub(1)?))
    }

    /// Cuts the stack down to what a new one has in common with it; then come the new one's frames, by [`Layers::push`],
    /// and [`Layers::settle`].
    pub fn cut(&mut self, common: Common) {
        if common.reserve == Reserve::Dropped {
            self.reserve = Vec::new();
        }
        self.shared = (common.shared as usize).min(self.reserve.len());
        self.own.truncate(common.own as usize);
    }

    /// Adds an inner frame.
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

    /// Makes the stack the reserve, if `common` says so.
    pub fn settle(&mut self, common: Common) {
        if common.reserve == Reserve::Replaced {
            self.reserve.truncate(self.shared);
            self.reserve.append(&mut self.own);
            self.shared = self.reserve.len();
        }
    }

    /// Forgets what lies further beyond the reserve than is to be remembered, memory included. Whether there was any. To be
    /// called when the stack has settled; no later one has more than that in common with it.
    pub fn bound(&mut self, common: Common) -> bool {
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

    fn stack(layers: &Layers<u8>) -> Vec<u8> {
        layers.reserve()[..layers.shared()].iter().chain(layers.own()).copied().collect()
    }

    #[test]
    fn what_is_too_deep_takes_no_memory() {
        let mut layers = Layers::default();
        (0..MAX_OWN).for_each(|_| layers.push(1u8));
        assert!(!layers.bound(Common::default()));
        assert_eq!(layers.own().len(), MAX_OWN);
        (0..100 * MAX_OWN).for_each(|_| layers.push(2));
        assert!(layers.bound(Common::default()));
        assert!(layers.own() == [1; MAX_OWN] && layers.own.capacity() < 2 * MAX_OWN, "{}", layers.own.capacity());
        // A reserve has its own limits.
        let deep = Common { own: MAX_OWN as u32, reserve: Reserve::Replaced, ..Common::default() };
        layers.cut(deep);
        (0..10).for_each(|_| layers.push(3));
        layers.settle(deep);
        assert!(!layers.bound(Common::default()));
        assert_eq!(layers.depth(), MAX_OWN + 10);
        // Where there is no room it is fewer.
        layers.cut(Common::default());
        (0..=FEW_OWN).for_each(|_| layers.push(4));
        assert!(!layers.bound(Common::default()) && layers.bound(Common { few: true, ..Common::default() }));
        assert_eq!((layers.own().len(), layers.own.capacity()), (FEW_OWN, FEW_OWN));
    }

    #[test]
    fn a_stack_shrinks_and_grows_back() {
        let mut layers = Layers::default();
        let deep = Common { reserve: Reserve::Replaced, ..Common::default() };
        layers.cut(deep);
        [1, 2, 3, 4, 5].into_iter().for_each(|frame| layers.push(frame));
        layers.settle(deep);
        assert_eq!((stack(&layers), layers.own().len()), (vec![1, 2, 3, 4, 5], 0));

        let shallow = Common { shared: 2, ..Common::default() };
        layers.cut(shallow);
        layers.push(9);
        layers.settle(shallow);
        assert_eq!((stack(&layers), layers.depth(), layers.last()), (vec![1, 2, 9], 3, Some(&9)));

        layers.cut(Common { shared: 2, own: 1, ..Common::default() });
        layers.push(8);
        assert_eq!(stack(&layers), [1, 2, 9, 8]);

        let mut calls = Vec::new();
        layers.each_with_outer(4, |outer, frame| calls.push((outer.copied(), *frame)));
        let calls: Vec<(u8, u8)> = calls.into_iter().map(|(outer, frame)| (outer.unwrap_or(0), frame)).collect();
        assert_eq!(calls, [(0, 1), (1, 2), (2, 3), (3, 4), (2, 9), (9, 8)]);

        layers.cut(Common { shared: 5, ..Common::default() });
        assert_eq!((stack(&layers), layers.last()), (vec![1, 2, 3, 4, 5], Some(&5)));

        layers.push(7);
        layers.cut(Common { reserve: Reserve::Dropped, own: 1, ..Common::default() });
        assert_eq!((stack(&layers), layers.reserve().len(), layers.last()), (vec![7], 0, Some(&7)));
    }
}
