//! Which of a thread's outermost frames can be shown although a sample has not copied them.
//!
//! Memory is read later than the sample. Calls that alternate put the same words back, so two looks at it may agree although
//! the sample had other frames. How often frames changed tells how far that can be:
//!
//! - Outside a gap stand only [`SteadyFrames`]. If a frame differs between a share `p` of consecutive stacks, it differs at
//!   most once in `n` stacks with the probability `(1 - p)^n + np(1 - p)^(n-1)`. From 64 stacks on, at most 1.3% of the
//!   samples with a gap show a frame by mistake, if stacks are independent. One change is allowed: a program starts once,
//!   and so does each of its phases.
//! - A whole stack has only [`LastingFrames`] beyond the copy. Where two callers take turns more often than memory is looked
//!   at, looks find now the one and now the other, and often one look alone finds a caller.

/// Stacks of a window; those of the one before count, too.
const WINDOW: u32 = 64;

/// How far two stacks are alike, from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Alike {
    /// Equal frames.
    pub frames: u32,
    /// Whether the next one's function is the same, but has called another since.
    pub function: bool,
}

impl Alike {
    /// Nothing is known to differ.
    pub const ALL: Alike = Alike { frames: u32::MAX, function: false };

    pub fn new(frames: usize, function: bool) -> Alike {
        Alike { frames: u32::try_from(frames).unwrap_or(u32::MAX), function }
    }

    /// Functions that are the same.
    pub fn functions(self) -> usize {
        self.frames as usize + usize::from(self.function)
    }
}

/// The outermost frames that have changed at most once in a thread's last 64 to 128 stacks (in all, if it had fewer).
#[derive(Clone, Copy, Debug)]
pub struct SteadyFrames {
    /// The two least that a stack had in common with the one before.
    now: [Alike; 2],
    before: [Alike; 2],
    stacks: u32,
}

impl Default for SteadyFrames {
    fn default() -> SteadyFrames {
        SteadyFrames { now: [Alike::ALL; 2], before: [Alike::ALL; 2], stacks: 0 }
    }
}

impl SteadyFrames {
    pub fn get(&self) -> Alike {
        let mut least = [self.now[0], self.now[1], self.before[0], self.before[1]];
        least.sort_unstable();
        least[1]
    }

    /// Whether a stack that has only so many frames in common with the one before says anything new.
    #[inline]
    pub fn is_new(&self, common: usize) -> bool {
        Alike::new(common, false) < self.now[1]
    }

    /// A stack is like the one before only so far.
    pub fn limit(&mut self, alike: Alike) {
        let mut least = [self.now[0], self.now[1], alike];
        least.sort_unstable();
        self.now = [least[0], least[1]];
    }

    /// Another stack has been compared with the one before.
    #[inline]
    pub fn advance(&mut self) {
        self.stacks += 1;
        if self.stacks == WINDOW {
            *self = SteadyFrames { now: [Alike::ALL; 2], before: self.now, stacks: 0 };
        }
    }
}

/// The outermost frames that, in a thread's last 64 to 128 deep stacks, were never found by one look alone: those that
/// were may change, and change back, between two.
#[derive(Clone, Copy, Debug)]
pub struct LastingFrames {
    now: Alike,
    before: Alike,
    stacks: u32,
}

impl Default for LastingFrames {
    fn default() -> LastingFrames {
        LastingFrames { now: Alike::ALL, before: Alike::ALL, stacks: 0 }
    }
}

impl LastingFrames {
    pub fn get(&self) -> Alike {
        self.now.min(self.before)
    }

    /// One look alone has found other frames than those that are `alike`.
    pub fn limit(&mut self, alike: Alike) {
        self.now = self.now.min(alike);
    }

    /// Another deep stack has come.
    pub fn advance(&mut self) {
        self.stacks += 1;
        if self.stacks == WINDOW {
            *self = LastingFrames { now: Alike::ALL, before: self.now, stacks: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(count: usize) -> Alike {
        Alike::new(count, false)
    }

    #[test]
    fn the_second_change_counts_for_64_to_128_stacks() {
        for first in 0..WINDOW {
            let mut steady = SteadyFrames::default();
            (0..first).for_each(|_| steady.advance());
            assert!(steady.is_new(3));
            steady.limit(frames(3));
            assert_eq!(steady.get(), Alike::ALL);
            steady.limit(frames(5));
            assert!(!steady.is_new(5) && steady.is_new(4));
            let lasted = (0..1000).take_while(|_| {
                steady.advance();
                steady.get() == frames(5)
            });
            assert_eq!(lasted.count() as u32 + 1, 2 * WINDOW - first);
        }
    }

    #[test]
    fn changes_in_two_windows_count_together() {
        let mut steady = SteadyFrames::default();
        steady.limit(frames(3));
        (0..WINDOW).for_each(|_| steady.advance());
        steady.limit(frames(7));
        assert_eq!(steady.get(), frames(7));
        steady.limit(Alike::new(2, true));
        assert_eq!(steady.get(), frames(3));
        steady.limit(Alike::new(2, true));
        assert_eq!(steady.get(), Alike::new(2, true));
    }

    #[test]
    fn what_does_not_last_counts_for_64_to_128_stacks() {
        for first in 0..WINDOW {
            let mut lasting = LastingFrames::default();
            (0..first).for_each(|_| lasting.advance());
            lasting.limit(Alike::new(3, true));
            lasting.limit(frames(5));
            let lasted = (0..1000).take_while(|_| {
                lasting.advance();
                lasting.get() == Alike::new(3, true)
            });
            assert_eq!(lasted.count() as u32 + 1, 2 * WINDOW - first);
            assert_eq!(lasting.get(), Alike::ALL);
        }
    }
}
