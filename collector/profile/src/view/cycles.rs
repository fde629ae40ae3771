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

/// One cycle, in whatever histories and wherever it was entered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cycle {
    /// Its functions, each calling the next and the last one the first; begins with the one of the lowest number.
    pub functions: Vec<CostCentreId>,
    /// Weight while the function that closed it was running: the sum of its rows.
    pub self_weight: u64,
    /// Samples of that.
    pub samples_self: u64,
    /// Share of that in the view's total.
    pub self_share: Share,
    /// Weight while it was on the stack, with whatever was called from within it.
    pub inherited_weight: u64,
    /// Samples of that.
    pub samples_inherited: u64,
    /// Share of that in the view's total.
    pub inherited_share: Share,
    /// Functions were hidden: it may have passed through others.
    pub approximate: bool,
}

/// All cycles, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CyclesView {
    /// All of the profile, with or without cycles.
    pub total: Total,
    /// The cycles, each once, by inherited weight.
    pub cycles: Vec<Cycle>,
    /// The histories that end by closing one.
    pub rows: Vec<CycleRow>,
    /// Names of the functions.
    pub names: Names,
}

impl CyclesView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let mut found: HashMap<Vec<u32>, (u64, u64, bool)> = HashMap::new();
        let mut cycles: HashMap<Vec<CostCentreId>, Sums> = HashMap::new();
        let mut closed = Vec::new();
        let total = walk(profile, selection, |context| {
            let leaf = context.leaf();
            closed_cycles(context.entries(), &mut closed);
            for (cycle, at_leaf) in closed.drain(..) {
                let sums = cycles.entry(cycle).or_default();
                sums.inherited.0 = sums.inherited.0.saturating_add(context.weight);
                sums.inherited.1 = sums.inherited.1.saturating_add(context.samples);
                if at_leaf {
                    sums.own.0 = sums.own.0.saturating_add(context.weight);
                    sums.own.1 = sums.own.1.saturating_add(context.samples);
                }
                sums.approximate |= context.approximate;
            }
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
        let share = |weight| Share::of(weight, total.weight, total.samples);
        let mut cycles: Vec<Cycle> = cycles
            .into_iter()
            .map(|(functions, Sums { own, inherited, approximate })| Cycle {
                functions,
                self_weight: own.0,
                samples_self: own.1,
                self_share: share(own.0),
                inherited_weight: inherited.0,
                samples_inherited: inherited.1,
                inherited_share: share(inherited.0),
                approximate,
            })
            .collect();
        cycles.sort_by(|a, b| {
            let weights = |it: &Cycle| (it.inherited_weight, it.self_weight);
            weights(b).cmp(&weights(a)).then_with(|| a.functions.cmp(&b.functions))
        });
        let members = cycles.iter().flat_map(|cycle| cycle.functions.iter().copied());
        let names =
            names(profile, members.chain(rows.iter().flat_map(|row| row.entries.iter().map(|entry| entry.function))));
        Self { total, cycles, rows, names }
    }

    /// The history of a row as text, safe to print: oldest first, unmarked entries in parentheses.
    #[must_use]
    pub fn text(&self, row: &CycleRow) -> String {
        words(row.entries.iter(), &self.names, " ")
    }
}

/// Weight and samples of a cycle.
#[derive(Default)]
struct Sums {
    own: (u64, u64),
    inherited: (u64, u64),
    approximate: bool,
}

/// Every cycle that a history has closed, once, and whether it is its last entry that closed it: from the last earlier entry
/// of a function to its latest activation.
fn closed_cycles(entries: &[u32], closed: &mut Vec<(Vec<CostCentreId>, bool)>) {
    if entries.iter().all(|&entry| is_marked(entry)) {
        return;
    }
    let last = entries.len() - 1;
    for (at, &entry) in entries.iter().enumerate().filter(|(_, entry)| is_marked(**entry)) {
        let before = entries.get(..at).unwrap_or_default();
        let Some(start) = before.iter().rposition(|&earlier| function(earlier) == function(entry)) else { continue };
        let mut cycle: Vec<CostCentreId> = before.iter().skip(start).map(|&entry| function(entry)).collect();
        let lowest = cycle.iter().enumerate().min_by_key(|(_, id)| **id).map_or(0, |(i, _)| i);
        cycle.rotate_left(lowest);
        match closed.iter_mut().find(|(known, _)| *known == cycle) {
            Some((_, at_leaf)) => *at_leaf |= at == last,
            None => closed.push((cycle, at == last)),
        }
    }
}

fn cycle(entries: &[u32]) -> Vec<CostCentreId> {
    let Some((&leaf, rest)) = entries.split_last() else { return Vec::new() };
    let start = rest.iter().rposition(|&entry| function(entry) == function(leaf)).unwrap_or(0);
    entries.iter().skip(start).map(|&entry| function(entry)).collect()
}
