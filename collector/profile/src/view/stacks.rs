//! The stacks view: every cost-centre stack with its weight, as Morgan and Jarvis list them.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::column::ViewColumn;
use super::entry::{StackEntry, words};
use super::interval::Share;
use super::names::{Definitions, FunctionNames, listed, names, room_for_names};
use super::sums::Sums;
use super::total::Total;
use crate::profile::Profile;
use crate::selection::Selection;
use crate::uncertain::APPROXIMATE;

/// One stack: recursion is folded, see [`History`](crate::History).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackRow {
    /// The entries, oldest first.
    pub entries: Vec<StackEntry>,
    /// Weight charged to exactly this stack.
    pub weight: u64,
    /// Samples charged to it.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
    /// A call in it may be another, because functions are hidden or merged.
    pub approximate: bool,
}

/// Stacks that are not listed, so that totals survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OtherStacks {
    /// How many.
    pub stacks: usize,
    /// Their weight.
    pub weight: u64,
    /// Their samples.
    pub samples: u64,
}

/// Every stack that was charged, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StacksView {
    /// All of it: the sum of all rows and of `other`.
    pub total: Total,
    /// The stacks.
    pub rows: Vec<StackRow>,
    /// The lightest stacks, where all of them are too long to be listed: see [`room_for_names`].
    pub other: OtherStacks,
    /// Names of the functions.
    pub names: FunctionNames,
    /// Where they are defined.
    pub definitions: Definitions,
}

impl StacksView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        // Contexts may have one history, where functions are hidden or merged.
        let mut known: HashMap<Vec<u32>, (Sums, Vec<u32>)> = HashMap::new();
        let mut key = Vec::new();
        let total = profile.walk(selection).visit(|_, context| {
            key.clear();
            key.extend(context.entries().iter().map(|entry| sorting(entry & !APPROXIMATE)));
            let (sums, flags) = known.entry_ref(key.as_slice()).or_insert_with(|| (Sums::default(), Vec::new()));
            sums.add(context.sums);
            if context.is_approximate() {
                flags.resize(key.len(), 0);
                flags.iter_mut().zip(context.entries()).for_each(|(flag, entry)| *flag |= entry & APPROXIMATE);
            }
        });
        // As numbers: deep stacks of one weight have long beginnings in common.
        let mut known: Vec<_> = known.into_iter().collect();
        known.sort_unstable_by(|(a, (x, _)), (b, (y, _))| y.weight.cmp(&x.weight).then_with(|| a.cmp(b)));
        let row = |(entries, (sums, flags)): (Vec<u32>, (Sums, Vec<u32>))| {
            let approximate = !flags.is_empty();
            let flags = flags.into_iter().chain(std::iter::repeat(0));
            StackRow {
                entries: entries.iter().zip(flags).map(|(key, flag)| StackEntry::of(sorted(*key) | flag)).collect(),
                weight: sums.weight,
                samples: sums.samples,
                share: Share::of(sums, &total),
                approximate,
            }
        };
        let mut rows: Vec<StackRow> = known.into_iter().map(row).collect();
        let (names, definitions) =
            names(profile, rows.iter().flat_map(|row| row.entries.iter().map(|entry| entry.function)));
        let functions = |row: &StackRow| row.entries.iter().map(|entry| entry.function).collect::<Vec<_>>();
        let fit = listed(profile, &names, room_for_names(profile), rows.iter().map(functions));
        let mut other = OtherStacks::default();
        for row in rows.drain(fit..) {
            other.stacks += 1;
            other.weight = other.weight.saturating_add(row.weight);
            other.samples = other.samples.saturating_add(row.samples);
        }
        Self { total, rows, other, names, definitions }
    }

    /// What [`StacksView::sort`] can order by.
    pub const COLUMNS: &[ViewColumn] = &[ViewColumn::Own, ViewColumn::Samples, ViewColumn::Name];

    /// Orders by a column instead of weight; by name is by that of the innermost function, then of its callers.
    pub fn sort(&mut self, by: ViewColumn) {
        match by {
            ViewColumn::Samples => self.rows.sort_by_key(|row| Reverse(row.samples)),
            ViewColumn::Name => {
                // By the place of each name in the order of names.
                let mut order: Vec<_> = self.names.iter().collect();
                order.sort_by(|a, b| a.1.cmp(b.1).then(a.0.cmp(b.0)));
                let place: HashMap<_, usize> = order.into_iter().map(|(id, _)| *id).zip(0..).collect();
                let key = |row: &StackRow| -> Vec<Option<usize>> {
                    row.entries.iter().rev().map(|entry| place.get(&entry.function).copied()).collect()
                };
                self.rows.sort_by_cached_key(key);
            }
            _ => self.rows.sort_by_key(|row| Reverse(row.weight)),
        }
    }

    /// A row as text, safe to print: `<leaf,...,root> weight`, unmarked entries in parentheses.
    #[must_use]
    pub fn text(&self, row: &StackRow) -> String {
        let mut words = words(&row.entries, &self.names, &self.definitions);
        words.reverse();
        format!("<{}> {}", words.join(","), row.weight)
    }
}

/// Bits of an entry beside its function, which stand above it.
const BITS: u32 = 3;

const fn sorting(entry: u32) -> u32 {
    entry.rotate_left(BITS)
}

const fn sorted(key: u32) -> u32 {
    key.rotate_right(BITS)
}
