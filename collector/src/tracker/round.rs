//! Long work on all processes, a portion at a time: meanwhile rings fill.

use crate::clock::now_ns;

/// Time after which a portion ends, nanoseconds. A ring of samples holds some ten times as much.
const PORTION_NS: u64 = 5_000_000;

/// A round over items, the last first.
#[derive(Debug)]
pub struct Round<T> {
    left: Vec<T>,
    /// The time that its portions took so far, nanoseconds.
    took: u64,
}

impl<T> Default for Round<T> {
    fn default() -> Self {
        Round::of(Vec::new())
    }
}

impl<T> Round<T> {
    pub fn of(items: Vec<T>) -> Round<T> {
        Round { left: items, took: 0 }
    }

    pub fn is_going_on(&self) -> bool {
        !self.left.is_empty()
    }

    /// Does a portion of the work, which begins `now`. Returns what the round has taken, when it is over.
    pub fn portion(&mut self, now: u64, work: impl FnMut(T)) -> Option<u64> {
        self.portion_of(now, PORTION_NS, work)
    }

    /// Does all of it.
    pub fn rest(&mut self, now: u64, work: impl FnMut(T)) -> Option<u64> {
        self.portion_of(now, u64::MAX, work)
    }

    fn portion_of(&mut self, began: u64, most: u64, mut work: impl FnMut(T)) -> Option<u64> {
        let mut took = 0;
        while took < most
            && let Some(item) = self.left.pop()
        {
            work(item);
            took = now_ns().saturating_sub(began);
        }
        self.took = self.took.saturating_add(took);
        (!self.is_going_on()).then(|| std::mem::take(&mut self.took))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_goes_on_until_all_is_done() {
        let mut round = Round::of((0..5).collect());
        let mut done = Vec::new();
        // Each of them is a portion: it takes longer than one may.
        for left in (0..5).rev() {
            let began = now_ns() - PORTION_NS;
            let took = round.portion(began, |item| done.push(item));
            assert_eq!((done.len(), took.is_some()), (5 - left, left == 0));
            assert!(took.is_none_or(|took| took >= 5 * PORTION_NS));
        }
        assert_eq!(done, [4, 3, 2, 1, 0]);
        let mut round = Round::of((0..5).collect());
        assert!(round.rest(now_ns() - PORTION_NS, |_| {}).is_some() && !round.is_going_on());
        assert_eq!(Round::<u32>::default().portion(now_ns(), |_| {}), Some(0));
    }
}
