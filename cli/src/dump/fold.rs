//! Folds a stack into the lines that are shown.

use ccsd_profile::{CostCentreId, FrameInfo, fold};

/// Stacks with fewer entries are shown unfolded.
const FOLD_FROM: usize = 48;
/// Maximum gap between two shown frames that is filled: a line about the gap would not be shorter.
const SMALL_GAP: usize = 3;
const LISTED: usize = 8;

#[derive(Debug, PartialEq, Eq)]
pub enum StackLine<'a> {
    /// A frame and its number; the innermost is 0.
    Frame(usize, &'a FrameInfo),
    /// Recursive frames: their number, the listed ones with counts, innermost first, and the number of others.
    Recursion { count: usize, listed: Vec<(usize, &'a FrameInfo)>, others: usize },
    /// Frames not shown because there are too many lines.
    LeftOut(usize),
}

/// The lines of a stack: positions in `frames`, innermost first. Deep recursion is folded unless `full`; 0 is no
/// `limit`.
pub fn lines<'a>(frames: &'a [FrameInfo], stack: &[u32], full: bool, limit: usize) -> Vec<StackLine<'a>> {
    let entries: Vec<&FrameInfo> = stack.iter().filter_map(|&at| frames.get(at as usize)).collect();
    let all = 0..entries.len();
    let kept: Vec<usize> = match full || entries.len() < FOLD_FROM {
        true => all.collect(),
        false => {
            let outermost_first = entries.iter().rev().map(|entry| CostCentreId::new(entry.function_id));
            fold(outermost_first).into_iter().rev().map(|position| entries.len() - 1 - position).collect()
        }
    };
    let mut lines = Vec::new();
    let mut next = 0;
    // The position past the end closes a last stretch of direct recursion at the root.
    for at in kept.into_iter().chain([entries.len()]) {
        let between = entries.get(next..at).unwrap_or_default();
        if between.len() <= SMALL_GAP {
            lines.extend(between.iter().zip(next..).map(|(entry, number)| StackLine::Frame(number, entry)));
        } else {
            lines.push(recursion(between));
        }
        lines.extend(entries.get(at).map(|entry| StackLine::Frame(at, entry)));
        next = at + 1;
    }
    cut(&mut lines, limit);
    lines
}

fn recursion<'a>(frames: &[&'a FrameInfo]) -> StackLine<'a> {
    let mut listed: Vec<(usize, &FrameInfo)> = Vec::new();
    let mut others = 0;
    for &frame in frames {
        let same = |other: &FrameInfo| {
            (other.function_id, other.line, &other.file) == (frame.function_id, frame.line, &frame.file)
        };
        if let Some((count, _)) = listed.iter_mut().find(|(_, other)| same(other)) {
            *count += 1;
        } else if listed.len() < LISTED {
            listed.push((1, frame));
        } else {
            others += 1;
        }
    }
    StackLine::Recursion { count: frames.len(), listed, others }
}

/// Drops the middle of a long list: both its ends are of interest.
fn cut(lines: &mut Vec<StackLine<'_>>, limit: usize) {
    if limit == 0 || lines.len() <= limit.max(1) {
        return;
    }
    let outer = limit / 3;
    let left_out = lines.splice(limit - outer..lines.len() - outer, []);
    let count = left_out
        .map(|line| match line {
            StackLine::Frame(..) => 1,
            StackLine::Recursion { count, .. } | StackLine::LeftOut(count) => count,
        })
        .sum();
    lines.insert(limit - outer, StackLine::LeftOut(count));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames named by letters, and a stack of them, innermost first.
    fn dump(text: &str) -> (Vec<FrameInfo>, Vec<u32>) {
        let frame = |letter: u8| FrameInfo {
            function: char::from(letter).to_string(),
            image: "x".to_owned(),
            file: None,
            line: 0,
            inlined: false,
            address: 0,
            function_id: letter.into(),
        };
        ((0..128).map(frame).collect(), text.bytes().map(u32::from).collect())
    }

    fn shown(text: &str, full: bool, limit: usize) -> String {
        let (dump, stack) = dump(text);
        let lines = lines(&dump, &stack, full, limit);
        let words: Vec<String> = lines
            .iter()
            .map(|line| match line {
                StackLine::Frame(number, frame) => format!("{number}{}", frame.function),
                StackLine::Recursion { count, listed, others } => {
                    let listed: Vec<String> =
                        listed.iter().map(|(count, frame)| format!("{count}{}", frame.function)).collect();
                    assert_eq!(listed.is_empty(), *others == *count);
                    format!("[{count}: {}]", listed.join(" "))
                }
                StackLine::LeftOut(count) => format!("[{count}]"),
            })
            .collect();
        words.join(" ")
    }

    #[test]
    fn short_stacks_are_whole() {
        assert_eq!(shown("cbam", false, 100), "0c 1b 2a 3m");
        assert_eq!(shown("aaaam", false, 100), "0a 1a 2a 3a 4m");
        assert_eq!(shown("", false, 100), "");
    }

    #[test]
    fn runaway_recursion_is_a_few_lines() {
        let direct = format!("{}m", "d".repeat(100_000));
        assert_eq!(shown(&direct, false, 100), "0d [99999: 99999d] 100000m");
        let cycle = format!("sp{}m", "rqp".repeat(30_000));
        assert_eq!(shown(&cycle, false, 100), "0s 1p 2r 3q [89997: 29999p 29999r 29999q] 90001p 90002m");
        assert_eq!(shown(&direct, true, 4).split(' ').count(), 5);
    }

    #[test]
    fn the_root_s_recursion_is_counted_too() {
        let stack = format!("x{}", "d".repeat(1_000));
        assert_eq!(shown(&stack, false, 100), "0x 1d [999: 999d]");
    }

    #[test]
    fn the_middle_is_left_out() {
        assert_eq!(shown("abcdefghi", false, 3), "0a 1b [6] 8i");
        assert_eq!(shown("abcdefghi", false, 1), "0a [8]");
        assert_eq!(shown("abc", false, 3), "0a 1b 2c");
    }

    #[test]
    fn nothing_is_lost_in_folding() {
        for text in ["ab".repeat(40), "abcabd".repeat(20), "xyzzy".repeat(30), "ab".repeat(30) + "cdef"] {
            let (dump, stack) = dump(&text);
            let count: usize = lines(&dump, &stack, false, 0)
                .iter()
                .map(|line| match line {
                    StackLine::Frame(..) => 1,
                    StackLine::Recursion { count, .. } | StackLine::LeftOut(count) => *count,
                })
                .sum();
            assert_eq!(count, text.len());
        }
    }
}
