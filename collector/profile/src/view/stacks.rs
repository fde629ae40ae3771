//! The stacks view: every cost-centre stack with its weight, as Morgan and Jarvis list them.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::walk::walk;
use super::{Column, Names, Selection, Share, Total, names, words};
use crate::history::Entry;
use crate::marked::to_entry;
use crate::profile::Profile;

/// One stack: recursion is folded, see [`History`](crate::History).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StackRow {
    /// The entries, oldest first.
    pub entries: Vec<Entry>,
    /// Weight charged to exactly this stack.
    pub weight: u64,
    /// Samples charged to it.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
    /// Hidden functions and mutual recursion met: unmarked entries may not be the true ones.
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
        let row = |entries: &[u32], weight, samples, approximate| StackRow {
            entries: entries.iter().map(|&entry| to_entry(entry)).collect(),
            weight,
            samples,
            share: Share::default(),
            approximate,
        };
        let mut rows: Vec<StackRow> = Vec::new();
        // Hiding functions makes stacks equal that were different; without, no two contexts have the same.
        let mut known: HashMap<Vec<u32>, usize> = HashMap::new();
        let total = walk(profile, selection, |context| {
            let (weight, samples) = (context.weight, context.samples);
            if selection.hides() {
                let at = *known.entry_ref(context.entries()).or_insert(rows.len());
                if let Some(row) = rows.get_mut(at) {
                    row.weight = row.weight.saturating_add(weight);
                    row.samples = row.samples.saturating_add(samples);
                    row.approximate |= context.approximate;
                    return;
                }
            }
            rows.push(row(context.entries(), weight, samples, context.approximate));
        });
        for row in &mut rows {
            row.share = Share::of(row.weight, total.weight, total.samples);
        }
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
        format!("<{}> {}", words(row.entries.iter().rev(), &self.names, ","), row.weight)
    }
}
