//! Which frames of one stack to show where recursion makes it too long: those that its history keeps.

use crate::ids::CostCentreId;
use crate::marked::Marked;

/// The positions of the frames that the marked history of a stack (root first) consists of, in ascending order.
///
/// Of every function on the stack the most recent activation is among them, with the function that called it and the one
/// that it called wherever the history has them, and the outermost frame. Of a row of frames of one function, as direct
/// recursion makes it, it is the innermost. Between two positions lies what recursion repeats. Without recursion it is every
/// frame.
#[must_use]
pub fn fold(stack: impl IntoIterator<Item = CostCentreId>) -> Vec<usize> {
    let mut history = Marked::default();
    let mut positions: Vec<usize> = Vec::new();
    for (at, function) in stack.into_iter().enumerate() {
        let undo = history.push(function.0);
        let Some(collapsed) = undo.collapsed() else {
            // A1: the row goes on.
            if let Some(last) = positions.last_mut() {
                *last = at;
            }
            continue;
        };
        // What is left of a run are its ends; of two that are equal, the outer one: the frame next to its marked neighbour
        // further out.
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
