//! The cycles view: recursion that really happened.
//!
//! A cycle was traversed where the running function also stands unmarked earlier in the history (the paper, end of
//! "Presenting the results"). Direct recursion is no cycle: A1 has folded it away.

use hashbrown::HashMap;
use serde::Serialize;

use super::walk::{function, is_marked, walk};
use super::{Names, Selection, Share, Total, names, words};
use crate::history::Entry;
use crate::ids::CostCentreId;
use crate::marked::to_entry;
use crate::profile::Profile;

/// One cycle, in one history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CycleRow {
    /// The history, oldest first; the running function is its last entry and stands unmarked earlier.
    pub entries: Vec<Entry>,
    /// The cycle: from the last earlier entry of the running function to the running function.
    pub cycle: Vec<CostCentreId>,
    /// Weight of the running function in this history.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
    /// Functions were hidden: the cycle may have passed through others.
    pub approximate: bool,
}

/// All cycles, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CyclesView {
    /// All of the profile, with or without cycles.
    pub total: Total,
    /// The cycles.
    pub rows: Vec<CycleRow>,
    /// Names of the functions.
    pub names: Names,
}

impl CyclesView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let mut found: HashMap<Vec<u32>, (u64, u64, bool)> = HashMap::new();
        let total = walk(profile, selection, |context| {
            let leaf = context.leaf();
            if !context.entries().iter().any(|&entry| !is_marked(entry) && function(entry) == leaf) {
                return;
            }
            let (weight, samples, approximate) = found.entry_ref(context.entries()).or_default();
            *weight = weight.saturating_add(context.weight);
            *samples = samples.saturating_add(context.samples);
            *approximate |= context.approximate;
        });
        let mut rows: Vec<CycleRow> = found
            .into_iter()
            .map(|(entries, (weight, samples, approximate))| CycleRow {
                cycle: cycle(&entries),
                entries: entries.iter().map(|&entry| to_entry(entry)).collect(),
                weight,
                samples,
                share: Share::of(weight, total.weight, total.samples),
                approximate,
            })
            .collect();
        rows.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.entries.cmp(&b.entries)));
        let names = names(profile, rows.iter().flat_map(|row| row.entries.iter().map(|entry| entry.function)));
        Self { total, rows, names }
    }

    /// The history of a row as text, safe to print: oldest first, unmarked entries in parentheses.
    #[must_use]
    pub fn text(&self, row: &CycleRow) -> String {
        words(row.entries.iter(), &self.names, " ")
    }
}

fn cycle(entries: &[u32]) -> Vec<CostCentreId> {
    let Some((&leaf, rest)) = entries.split_last() else { return Vec::new() };
    let start = rest.iter().rposition(|&entry| function(entry) == function(leaf)).unwrap_or(0);
    entries.iter().skip(start).map(|&entry| function(entry)).collect()
}
