//! Marked histories: steps A1-A5 as in the paper. Slow and obvious on purpose: [`ContextTable`] is tested against this.
//!
//! [`ContextTable`]: crate::ContextTable

use std::fmt;

use serde::Serialize;

use crate::gaps::{MARK, gaps};
use crate::ids::CostCentreId;

/// One entry of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct HistoryEntry {
    /// The function.
    pub function: CostCentreId,
    /// Marked: this entry stands for the function's most recent activation. Unmarked: it only supplies the caller or
    /// callee of a marked neighbour.
    pub marked: bool,
}

/// `caller[function]callee`: a function on the stack with the arcs of its most recent activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Item {
    /// Its caller; `None` for a root.
    pub caller: Option<CostCentreId>,
    /// The function.
    pub function: CostCentreId,
    /// Its callee; `None` for the running function.
    pub callee: Option<CostCentreId>,
}

/// A stack with recursion folded away, oldest entry first.
///
/// The marked entries are exactly the functions on the stack, each once, ordered by most recent activation (I4).
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct History {
    entries: Vec<HistoryEntry>,
}

impl History {
    /// The empty history.
    #[must_use]
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// The history of a stack, root first.
    pub fn of(stack: impl IntoIterator<Item = CostCentreId>) -> Self {
        let mut history = Self::new();
        for function in stack {
            history.push(function);
        }
        history
    }

    pub(crate) fn from_entries(entries: Vec<HistoryEntry>) -> Self {
        Self { entries }
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[HistoryEntry] {
        &self.entries
    }

    /// The running function.
    #[must_use]
    pub fn leaf(&self) -> Option<CostCentreId> {
        self.entries.last().map(|entry| entry.function)
    }

    /// The active functions, by most recent activation, the running one last.
    pub fn active(&self) -> impl Iterator<Item = CostCentreId> + '_ {
        self.entries.iter().filter(|entry| entry.marked).map(|entry| entry.function)
    }

    /// Number of entries, marked and unmarked.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is active.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Calls `function`.
    pub fn push(&mut self, function: CostCentreId) {
        let s = &mut self.entries;
        // A1: direct recursion changes nothing.
        if s.last().is_some_and(|last| last.function == function) {
            return;
        }
        // A3 (before A2, so that the new entry need not be excepted): unmark the previous activation.
        for entry in s.iter_mut() {
            if entry.function == function {
                entry.marked = false;
            }
        }
        // A2: the new activation.
        s.push(HistoryEntry { function, marked: true });
        // A4: an unmarked entry between two unmarked ones has no use.
        while let Some(i) = s.windows(3).position(|w| w.iter().all(|entry| !entry.marked)) {
            s.remove(i + 1);
        }
        // A5: one of two equal unmarked neighbours suffices.
        while let Some(i) = s.windows(2).position(|w| w[0] == w[1] && !w[0].marked) {
            s.remove(i);
        }
    }

    /// The items `s[i-1] [s[i]] s[i+1]` of the marked entries, oldest first.
    #[must_use]
    pub fn items(&self) -> Vec<Item> {
        let s = &self.entries;
        let at = |i: usize| s.get(i).map(|entry| entry.function);
        s.iter()
            .enumerate()
            .filter(|(_, entry)| entry.marked)
            .map(|(i, entry)| Item {
                caller: i.checked_sub(1).and_then(at),
                function: entry.function,
                callee: at(i + 1),
            })
            .collect()
    }

    /// Positions of entries that the entry before them may not have called; all other neighbours are calls.
    ///
    /// A history does not record what A4 and A5 deleted: `a b c b c a` and `a c b c a` both leave `(a) (c) b c a`, and
    /// only in the second did `a` call `c`. A pair is a gap unless every stack with this history has the call.
    pub fn gaps(&self) -> impl Iterator<Item = usize> {
        let entries: Vec<u32> =
            self.entries.iter().map(|entry| entry.function.0 | if entry.marked { MARK } else { 0 }).collect();
        gaps(&entries).collect::<Vec<_>>().into_iter()
    }

    /// Formats the entries with `name(function, marked)`, separated by spaces.
    pub fn text(&self, mut name: impl FnMut(CostCentreId, bool) -> String) -> String {
        let words: Vec<String> = self.entries.iter().map(|entry| name(entry.function, entry.marked)).collect();
        words.join(" ")
    }
}

/// Numbers of the functions, oldest first, unmarked ones in parentheses: `1 (2) 3 4 2`.
impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(
            |function, marked| {
                if marked { function.get().to_string() } else { format!("({})", function.get()) }
            },
        ))
    }
}
