//! The same histories as [`History`](crate::History), compact and fast: one `u32` an entry, the mark in its top bit, and a
//! push in one pass that can be undone.

use crate::gaps::MARK;
use crate::history::{History, HistoryEntry};
use crate::ids::CostCentreId;

/// Longest run of unmarked entries that a push can make: A4 leaves runs of at most two, and a push unmarks one entry
/// between two of them.
pub(crate) const RUN: usize = 5;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Undo {
    /// False where A1 applied and nothing changed.
    pushed: bool,
    /// Entries that the collapsed run had, 0 where nothing was unmarked.
    before: u8,
    /// Entries that are left of it.
    after: u8,
    start: u32,
    run: [u32; RUN],
}

impl Undo {
    /// Whether anything has changed.
    pub(crate) fn has_pushed(&self) -> bool {
        self.pushed
    }

    /// The entries of the run that was collapsed, as they were before; none where no entry was unmarked.
    pub(crate) fn run(&self) -> &[u32] {
        self.run.get(..usize::from(self.before)).unwrap_or_default()
    }

    /// The run of entries that the push has collapsed: where it begins, how many it had and how many it has. `None` where the
    /// push has changed nothing.
    pub(crate) fn collapsed(&self) -> Option<(usize, usize, usize)> {
        self.pushed.then_some((self.start as usize, usize::from(self.before), usize::from(self.after)))
    }

    const NOTHING: Self = Self { pushed: false, before: 0, after: 0, start: 0, run: [0; RUN] };
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Marked {
    entries: Vec<u32>,
}

impl Marked {
    pub(crate) fn entries(&self) -> &[u32] {
        &self.entries
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    pub(crate) fn set(&mut self, entries: &[u32]) {
        self.entries.clear();
        self.entries.extend_from_slice(entries);
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn capacity_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<u32>()
    }

    /// Steps A1-A5. Equal to [`History::push`] (a property test holds them together).
    #[inline]
    pub(crate) fn push(&mut self, function: u32) -> Undo {
        let marked = function | MARK;
        let s = &mut self.entries;
        // A1. The last entry is always marked.
        if s.last() == Some(&marked) {
            return Undo::NOTHING;
        }
        // A3 has at most one marked entry to unmark.
        let earlier = position(s, marked);
        s.push(marked); // A2
        let mut undo = Undo { pushed: true, ..Undo::NOTHING };
        if let Some(i) = earlier {
            self.unmark(i, &mut undo);
        }
        undo
    }

    pub(crate) fn grows_by(&mut self, function: u32) -> bool {
        let before = self.entries.len();
        let undo = self.push(function);
        let grows = self.entries.len() > before;
        self.undo(&undo);
        grows
    }

    /// A3-A5 at one place: unmarks entry `i` and collapses the run of unmarked entries it then belongs to.
    fn unmark(&mut self, i: usize, undo: &mut Undo) {
        let s = &mut self.entries;
        let unmarked = |entry: &u32| entry & MARK == 0;
        let start = i - s[..i].iter().rev().take_while(|e| unmarked(e)).count();
        let end = i + 1 + s[i + 1..].iter().take_while(|e| unmarked(e)).count();
        let before = end - start;
        debug_assert!(before <= RUN, "A4 leaves at most two unmarked entries in a row");
        for (saved, entry) in undo.run.iter_mut().zip(&s[start..end]) {
            *saved = *entry;
        }
        s[i] &= !MARK;
        let (first, last) = (s[start], s[end - 1]);
        let after = if before == 1 || first == last { 1 } else { 2 };
        if after == 2 {
            s[start + 1] = last;
        }
        if before > after {
            s.copy_within(end.., start + after);
            s.truncate(s.len() - (before - after));
        }
        undo.start = start as u32;
        undo.before = before as u8;
        undo.after = after as u8;
    }

    pub(crate) fn undo(&mut self, undo: &Undo) {
        if !undo.pushed {
            return;
        }
        let s = &mut self.entries;
        s.pop();
        if undo.before > 0 {
            let start = undo.start as usize;
            let (before, after) = (usize::from(undo.before), usize::from(undo.after));
            s.splice(start..start + after, undo.run.iter().take(before).copied());
        }
    }

    pub(crate) fn to_history(&self) -> History {
        to_history(&self.entries)
    }
}

/// Where an entry is first. In blocks, each compared at once: histories may be long, and mostly it is nowhere.
fn position(entries: &[u32], wanted: u32) -> Option<usize> {
    const BLOCK: usize = 32;
    let blocks = entries.chunks_exact(BLOCK);
    let rest = entries.len() - blocks.remainder().len();
    let holds = |block: &[u32]| block.iter().fold(false, |found, &entry| found | (entry == wanted));
    let start = blocks.clone().position(holds).map_or(rest, |block| block * BLOCK);
    entries[start..].iter().position(|&entry| entry == wanted).map(|at| start + at)
}

pub(crate) fn to_history(entries: &[u32]) -> History {
    History::from_entries(entries.iter().map(|&entry| to_entry(entry)).collect())
}

pub(crate) fn to_entry(entry: u32) -> HistoryEntry {
    HistoryEntry { function: CostCentreId(entry & !MARK), marked: entry & MARK != 0 }
}
