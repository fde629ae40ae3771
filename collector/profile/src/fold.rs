//! Selects the frames of a deep recursive stack to show: those that its history keeps.

use crate::ids::CostCentreId;
use crate::marked::Marked;

/// Positions of the frames in the marked history of a stack (root first), ascending.
///
/// They include the most recent activation of every function, with its caller and callee as far as the history has
/// them, and the outermost frame. Of consecutive frames of one function (direct recursion), it is the innermost. The
/// frames between two positions are repeated by recursion. Without recursion the result has every frame.
#[must_use]
pub fn fold(stack: impl IntoIterator<Item = CostCentreId>) -> Vec<usize> {
    let mut history = Marked::default();
    let mut positions: Vec<usize> = Vec::new();
    for (at, function) in stack.into_iter().enumerate() {
        let undo = history.push(function.0);
        let Some(collapsed) = undo.collapsed() else {
            // A1: direct recursion continues.
            if let Some(last) = positions.last_mut() {
                *last = at;
            }
            continue;
        };
        // The ends of a collapsed run remain; of two equal entries, the outer one: the frame next to its marked
        // neighbour further out.
        let (start, before, after) = collapsed;
        if before > after {
            let end = start + before;
            let inner = positions.get(end.wrapping_sub(1)).copied();
            if let (2, Some(inner), Some(slot)) = (after, inner, positions.get_mut(start + 1)) {
                *slot = inner;
            }
            positions.drain(start + after..end);
        }
        positions.push(at);
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::History;

    fn ids(text: &str) -> Vec<CostCentreId> {
        text.bytes().map(|byte| CostCentreId::new(byte.into())).collect()
    }

    fn folded(text: &str) -> String {
        let stack = ids(text);
        fold(stack.iter().copied()).into_iter().map(|at| char::from(stack[at].get() as u8)).collect()
    }

    #[test]
    fn without_recursion_nothing_is_folded() {
        assert_eq!(fold(ids("")), [] as [usize; 0]);
        assert_eq!(fold(ids("mabc")), [0, 1, 2, 3]);
    }

    #[test]
    fn direct_recursion_is_one_frame() {
        assert_eq!(fold(ids(&format!("m{}", "d".repeat(1000)))), [0, 1000]);
        assert_eq!(fold(ids(&format!("m{}x", "d".repeat(1000)))), [0, 1000, 1001]);
    }

    #[test]
    fn a_cycle_keeps_its_ends() {
        let stack = format!("m{}ps", "pqr".repeat(1000));
        assert_eq!(folded(&stack), "mprqrps".replacen('r', "", 1));
        let kept = fold(ids(&stack));
        assert_eq!((kept[0], kept[1]), (0, 1), "where the cycle is entered");
        assert_eq!(kept[kept.len() - 4..], [2999, 3000, 3001, 3002], "the last turn");
    }

    #[test]
    fn it_is_the_history() {
        for text in ["abababab", "abcabdabcabd", "mpqrpqrps", "aabbaabb", "abcdcba", "xyzzyxyzzy"] {
            let entries = History::of(ids(text));
            let expected: String =
                entries.entries().iter().map(|entry| char::from(entry.function.get() as u8)).collect();
            assert_eq!(folded(text), expected, "{text}");
        }
    }
}
