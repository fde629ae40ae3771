//! The stacks view: every cost-centre stack with its weight, as Morgan and Jarvis list them.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::walk::walk;
use super::{Column, Names, Selection, Share, StackEntry, Sums, Total, names, words};
use crate::profile::Profile;

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

/// Every stack that was charged, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StacksView {
    /// All of it: the sum of all rows.
    pub total: Total,
    /// The stacks.
    pub rows: Vec<StackRow>,
    /// Names of the functions.
    pub names: Names,
}

impl StacksView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let row = |entries: &[u32], approximate| StackRow {
            entries: entries.iter().map(|&entry| StackEntry::of(entry)).collect(),
            weight: 0,
            samples: 0,
            share: Share::default(),
            approximate,
        };
        let mut rows: Vec<(StackRow, Sums)> = Vec::new();
        let total = walk(profile, selection, |context| {
            rows.push((row(context.entries(), context.is_approximate()), context.sums));
        });
        let row = |(row, sums): (StackRow, Sums)| {
            let share = Share::of(sums, &total);
            StackRow { weight: sums.weight, samples: sums.samples, share, ..row }
        };
        let mut rows: Vec<StackRow> = rows.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.entries.cmp(&b.entries)));
        let names = names(profile, rows.iter().flat_map(|row| row.entries.iter().map(|entry| entry.function)));
        Self { total, rows, names }
    }

    /// What [`StacksView::sort`] can order by.
    pub const COLUMNS: &[Column] = &[Column::Own, Column::Samples, Column::Name];

    /// Orders by a column instead of weight; by name is by that of the innermost function, then of its callers.
    pub fn sort(&mut self, by: Column) {
        match by {
            Column::Samples => self.rows.sort_by_key(|row| Reverse(row.samples)),
            Column::Name => {
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
        let mut words = words(&row.entries, &self.names);
        words.reverse();
        format!("<{}> {}", words.join(","), row.weight)
    }
}
