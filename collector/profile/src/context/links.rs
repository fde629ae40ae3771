//! The hash of a history, which a push changes in a step, however long the history is.
//!
//! A link is a marked entry with the unmarked ones before it and the marked one before these. No function has two marked
//! entries, so a history's links say all of it, in whatever order they come: their hashes are added up.

use crate::gaps::MARK;
use crate::hash::mix;
use crate::marked::{RUN, Undo};

/// Stands for what comes before the first entry.
const START: u32 = u32::MAX;

/// The sum of the hashes of a history's links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Links(u64);

impl Links {
    /// Of a history's entries. The last one is marked.
    pub(super) fn of(seed: u64, entries: &[u32]) -> Links {
        Links::between(seed, START, entries)
    }

    /// Of entries that come after this marked one. What comes after the last marked one of them is in no link.
    fn between(seed: u64, before: u32, entries: &[u32]) -> Links {
        let (mut sum, mut link) = (0u64, mix(seed, u64::from(before)));
        for &entry in entries {
            link = mix(link, u64::from(entry));
            if entry & MARK != 0 {
                sum = sum.wrapping_add(link);
                link = mix(seed, u64::from(entry));
            }
        }
        Links(sum)
    }

    /// Follows a push that has made these entries.
    pub(super) fn follow(&mut self, seed: u64, entries: &[u32], undo: &Undo) {
        let (Some(&[last, new]), true) = (entries.last_chunk::<2>(), undo.has_pushed()) else {
            *self = Links::of(seed, entries);
            return;
        };
        // The last entry was marked before the push, too.
        self.0 = self.0.wrapping_add(Links::between(seed, last, &[new]).0);
        let Some((start, _, after)) = undo.collapsed().filter(|_| !undo.run().is_empty()) else { return };
        let before = start.checked_sub(1).and_then(|at| entries.get(at)).copied().unwrap_or(START);
        let Some(&next) = entries.get(start + after) else { return };
        let of = |run: &[u32]| {
            let mut joined = [next; RUN + 1];
            joined.iter_mut().zip(run).for_each(|(joined, entry)| *joined = *entry);
            Links::between(seed, before, &joined[..=run.len().min(RUN)]).0
        };
        let (old, new) = (of(undo.run()), of(&entries[start..start + after]));
        self.0 = self.0.wrapping_sub(old).wrapping_add(new);
    }

    /// What histories are found by.
    pub(super) fn hash(self, seed: u64) -> u32 {
        (mix(seed, self.0) >> 32) as u32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::marked::Marked;

    proptest! {
        #[test]
        fn a_push_is_followed_as_if_all_was_added_up_again(functions in prop::collection::vec(0u32..9, 1..200), seed: u64) {
            let (mut history, mut links) = (Marked::default(), Links::default());
            for function in functions {
                let undo = history.push(function);
                links.follow(seed, history.entries(), &undo);
                prop_assert_eq!(links, Links::of(seed, history.entries()));
            }
        }
    }

    /// Equal links in another order, and an unmarked entry that is missing or elsewhere, are other histories.
    #[test]
    fn other_histories_have_other_links() {
        let of = |stack: &[u32]| {
            let mut history = Marked::default();
            stack.iter().for_each(|&function| _ = history.push(function));
            Links::of(7, history.entries())
        };
        let stacks: [&[u32]; 8] =
            [&[1, 2, 1, 3, 1], &[1, 3, 1, 2, 1], &[2, 1, 3, 1], &[1, 2, 3, 1], &[2, 3, 1], &[3, 2, 1], &[1], &[]];
        for (at, stack) in stacks.iter().enumerate() {
            assert!(stacks[..at].iter().all(|other| of(other) != of(stack)), "{stack:?}");
        }
    }
}
