//! One walk over all charged contexts, with what a selection makes of their histories.

use super::Total;
use super::selection::Selection;
use crate::ids::{ContextId, CostCentreId};
use crate::marked::MARK;
use crate::named::Named;
use crate::profile::Profile;

/// A charged context as a view sees it.
pub(crate) struct Visible<'a> {
    /// The history without hidden functions, never empty: `[root]` where nothing is visible. The last entry is marked.
    entries: &'a [u32],
    pub(super) weight: u64,
    pub(super) samples: u64,
    /// Functions were hidden in a history with mutual recursion, so that its arcs may not be the true ones (I6).
    pub(super) approximate: bool,
}

impl Visible<'_> {
    pub(crate) const fn entries(&self) -> &[u32] {
        self.entries
    }

    /// The functions of all entries, root first.
    pub(crate) fn functions(&self) -> impl Iterator<Item = CostCentreId> + '_ {
        self.entries.iter().map(|&entry| function(entry))
    }

    /// The function charged with self.
    pub(super) fn leaf(&self) -> CostCentreId {
        self.entries.last().map_or(CostCentreId::ROOT, |&entry| function(entry))
    }

    /// The active functions, each once.
    pub(super) fn active(&self) -> impl Iterator<Item = CostCentreId> + '_ {
        self.entries.iter().filter(|&&entry| is_marked(entry)).map(|&entry| function(entry))
    }
}

pub(super) const fn function(entry: u32) -> CostCentreId {
    CostCentreId(entry & !MARK)
}

pub(super) const fn is_marked(entry: u32) -> bool {
    entry & MARK != 0
}

/// Calls `visit` with every context of the selection that was charged.
pub(super) fn walk(profile: &Profile, selection: &Selection, mut visit: impl FnMut(&Visible<'_>)) -> Total {
    walk_contexts(profile, &profile.named(), selection, |_, visible| visit(visible))
}

/// The same, with the context in the table of `named`.
pub(crate) fn walk_contexts(
    profile: &Profile,
    named: &Named<'_>,
    selection: &Selection,
    mut visit: impl FnMut(ContextId, &Visible<'_>),
) -> Total {
    let mut total = Total::default();
    // One sum for each context first, over all threads and lines.
    let mut sums = vec![(0u64, 0u64); named.contexts().len()];
    profile.for_each_charge(|charge| {
        let weight = charge.weights.get(selection.metric_index()).copied().unwrap_or(0);
        total.whole_weight = total.whole_weight.saturating_add(weight);
        total.whole_samples = total.whole_samples.saturating_add(charge.samples);
        if selection.takes_thread(charge.thread)
            && let Some((weights, samples)) = sums.get_mut(named.context(charge.context).index())
        {
            *weights = weights.saturating_add(weight);
            *samples = samples.saturating_add(charge.samples);
        }
    });
    let visible = selection.visible(profile);
    let (focus, ignored) = (selection.focussed(profile), selection.ignored(profile));
    let holds = |set: &[bool], entry: u32| set.get(function(entry).index()).copied().unwrap_or(false);
    let mut shown = Vec::new();
    named.contexts().visit(|id, entries| {
        let (weight, samples) = sums.get(id.index()).copied().unwrap_or_default();
        if weight == 0 && samples == 0 {
            return;
        }
        let any = |set: &[bool]| entries.iter().any(|&entry| is_marked(entry) && holds(set, entry));
        if focus.as_ref().is_some_and(|focus| !any(focus)) || ignored.as_ref().is_some_and(|ignored| any(ignored)) {
            return;
        }
        total.weight = total.weight.saturating_add(weight);
        total.samples = total.samples.saturating_add(samples);
        let mut entries = entries;
        let mut approximate = false;
        if let Some(visible) = &visible {
            hide(entries, |entry| holds(visible, entry), &mut shown);
            approximate = shown.len() < entries.len() && entries.iter().any(|&entry| !is_marked(entry));
            entries = &shown;
        }
        if entries.is_empty() {
            entries = &[CostCentreId::ROOT.0 | MARK];
        }
        visit(id, &Visible { entries, weight, samples, approximate });
    });
    total
}

/// Takes the hidden entries out of a history and squeezes what is left by A1, A4 and A5.
///
/// The last entry left is marked: after the last marked one, an unmarked entry would be followed by a marked one of the
/// same function.
fn hide(entries: &[u32], visible: impl Fn(u32) -> bool, shown: &mut Vec<u32>) {
    shown.clear();
    for &entry in entries.iter().filter(|&&entry| visible(entry)) {
        if let Some(last) = shown.last_mut()
            && function(*last) == function(entry)
        {
            *last |= entry; // A1: one entry, marked if either is
            continue;
        }
        shown.push(entry);
    }
    // A4 and A5: of a run of unmarked entries the ends, of two equal ones one.
    let mut kept = 0;
    let mut i = 0;
    while let Some(&entry) = shown.get(i) {
        let run = shown.iter().skip(i).take_while(|&&entry| !is_marked(entry)).count();
        let last = shown.get((i + run).saturating_sub(1)).copied().unwrap_or(entry);
        let mut keep = |entry| {
            if let Some(place) = shown.get_mut(kept) {
                *place = entry;
                kept += 1;
            }
        };
        keep(entry);
        if run > 1 && last != entry {
            keep(last);
        }
        i += run.max(1);
    }
    shown.truncate(kept);
}
