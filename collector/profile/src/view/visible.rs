//! The charged contexts that a selection shows, one at a time.

use super::sums::Sums;
use super::total::Total;
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId};
use crate::profile::{Charge, Profile};
use crate::selection::Selection;
use crate::uncertain::{APPROXIMATE, GAP, flagged};
use crate::walk::SelectionWalk;

impl Total {
    /// What is selected of a profile.
    #[must_use]
    pub fn of(profile: &Profile, selection: &Selection) -> Total {
        profile.walk(selection).visit(|_, _| {})
    }
}

pub(crate) struct Visible<'a> {
    /// The history without hidden functions; `[root]` if nothing is visible. Entries have [`GAP`] and [`APPROXIMATE`]
    /// bits.
    entries: &'a [u32],
    pub(crate) sums: Sums,
}

impl Visible<'_> {
    pub(crate) const fn entries(&self) -> &[u32] {
        self.entries
    }

    /// The entries up to position `last`, from there to the root: the bits that say how sure a call is stay with the call.
    pub(super) fn upwards(&self, last: usize) -> impl Iterator<Item = u32> {
        let bits = |at: usize| self.entries.get(at).map_or(0, |entry| entry & (GAP | APPROXIMATE));
        let end = last;
        (0..=last).rev().filter_map(move |at| {
            let entry = self.entries.get(at)? & !(GAP | APPROXIMATE);
            Some(entry | if at < end { bits(at + 1) } else { 0 })
        })
    }

    pub(super) fn downwards(&self, first: usize) -> impl Iterator<Item = u32> {
        let without = if first > 0 { GAP | APPROXIMATE } else { 0 };
        self.entries
            .iter()
            .skip(first)
            .enumerate()
            .map(move |(i, entry)| if i == 0 { entry & !without } else { *entry })
    }

    /// Whether a call in it may be another, for what is hidden or merged.
    pub(crate) fn is_approximate(&self) -> bool {
        self.entries.iter().any(|entry| entry & APPROXIMATE != 0)
    }

    pub(super) fn leaf(&self) -> CostCentreId {
        self.entries.last().map_or(CostCentreId::ROOT, |&entry| function(entry))
    }

    pub(super) fn active(&self) -> impl Iterator<Item = CostCentreId> + '_ {
        self.entries.iter().filter(|&&entry| is_marked(entry)).map(|&entry| function(entry))
    }
}

pub(crate) const fn function(entry: u32) -> CostCentreId {
    CostCentreId(entry & !(MARK | GAP | APPROXIMATE))
}

pub(super) const fn is_marked(entry: u32) -> bool {
    entry & MARK != 0
}

pub(crate) const fn is_gap(entry: u32) -> bool {
    entry & GAP != 0
}

pub(super) fn sums_of(charge: &Charge<'_>, selection: &Selection) -> Sums {
    let metric = selection.metric_index();
    let weight = charge.weights.get(metric).copied().unwrap_or(0);
    let squares = charge.squares.get(metric).copied().unwrap_or(0);
    let unsampled = if charge.samples == 0 { weight } else { 0 };
    Sums { weight, samples: charge.samples, squares, unsampled }
}

pub(super) const fn is_approximate(entry: u32) -> bool {
    entry & APPROXIMATE != 0
}

impl SelectionWalk<'_> {
    /// Calls `visit` with every context that is shown and has charges that count.
    pub(crate) fn visit(&self, mut visit: impl FnMut(ContextId, &Visible<'_>)) -> Total {
        let mut total = Total::default();
        let mut all = Sums::default();
        self.profile().for_each_charge(|charge| {
            let charged = sums_of(&charge, self.selection());
            total.whole_weight = total.whole_weight.saturating_add(charged.weight);
            total.whole_samples = total.whole_samples.saturating_add(charged.samples);
        });
        // One sum for each context first, over all threads and lines.
        let mut sums = vec![Sums::default(); self.table().len()];
        self.charges(|context, charge| {
            if let Some(sum) = sums.get_mut(context.index()) {
                let charged = sums_of(&charge, self.selection());
                sum.add(charged);
                all.add(charged);
            }
        });
        let mut entries = Vec::new();
        let sums_of = |id: ContextId| sums.get(id.index()).copied().unwrap_or_default();
        let is_charged = |id| sums_of(id).weight > 0 || sums_of(id).samples > 0;
        self.table().visit_of(is_charged, |id, history| {
            let sums = sums_of(id);
            flagged(self.uncertain(), id, history, &mut entries);
            if entries.is_empty() {
                entries.push(CostCentreId::ROOT.0 | MARK);
            }
            visit(id, &Visible { entries: &entries, sums });
        });
        Total { weight: all.weight, samples: all.samples, squares: all.squares, unsampled: all.unsampled, ..total }
    }
}
