//! How many of a thread's outermost frames have changed at most once in its last 64 to 128 stacks (in all, if it had
//! fewer).
//!
//! Only these stand outside a gap: calls that alternate put the same words back, so the last stack's frames may be in
//! memory although the sample had others. If a frame differs between a share `p` of consecutive stacks, it differs at most
//! once in `n` stacks with the probability `(1 - p)^n + np(1 - p)^(n-1)`. From 64 stacks on, at most 1.3% of the samples
//! with a gap show a frame by mistake, if stacks are independent.
//!
//! One change is allowed: a program starts once, and so does each of its phases.

/// Stacks of a window; those of the one before count, too.
const WINDOW: u32 = 64;

/// The two least numbers of frames that a stack had in common with the one before.
type Least = [u32; 2];

const NONE: Least = [u32::MAX; 2];

#[derive(Clone, Copy, Debug)]
pub struct SteadyFrames {
    now: Least,
    before: Least,
    stacks: u32,
}

impl Default for SteadyFrames {
    fn default() -> SteadyFrames {
        SteadyFrames { now: NONE, before: NONE, stacks: 0 }
    }
}

impl SteadyFrames {
    /// How many frames, counted from the root.
    pub fn count(&self) -> usize {
        let mut least = [self.now[0], self.now[1], self.before[0], self.before[1]];
        least.sort_unstable();
        least[1] as usize
    }

    /// Whether a stack that has only so many frames in common with the one before says anything new.
    #[inline]
    pub fn is_new(&self, common: usize) -> bool {
        common < self.now[1] as usize
    }

    /// A stack has only so many frames in common with the one before.
    pub fn limit(&mut self, common: usize) {
        let mut least = [self.now[0], self.now[1], u32::try_from(common).unwrap_or(u32::MAX)];
        least.sort_unstable();
        self.now = [least[0], least[1]];
    }

    /// Another stack has been compared with the one before.
    #[inline]
    pub fn advance(&mut self) {
        self.stacks += 1;
        if self.stacks == WINDOW {
            *self = SteadyFrames { now: NONE, before: self.now, stacks: 0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_change_counts_for_64_to_128_stacks() {
        for first in 0..WINDOW {
            let mut steady = SteadyFrames::default();
            (0..first).for_each(|_| steady.advance());
            assert!(steady.is_new(3));
            steady.limit(3);
            assert_eq!(steady.count(), u32::MAX as usize);
            steady.limit(5);
            assert!(!steady.is_new(5) && steady.is_new(4));
            let lasted = (0..1000).take_while(|_| {
                steady.advance();
                steady.count() == 5
            });
            assert_eq!(lasted.count() as u32 + 1, 2 * WINDOW - first);
        }
    }

    #[test]
    fn changes_in_two_windows_count_together() {
        let mut steady = SteadyFrames::default();
        steady.limit(3);
        (0..WINDOW).for_each(|_| steady.advance());
        steady.limit(7);
        assert_eq!(steady.count(), 7);
        steady.limit(2);
        assert_eq!(steady.count(), 3);
    }
}
