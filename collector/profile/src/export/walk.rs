//! Every charge with its stack.

use super::Export;
use std::borrow::Cow;

use crate::ids::{CostCentreId, LineId, ThreadId};
use crate::profile::Profile;
use crate::sanitise;
use crate::view::{SQUEEZED_OUT, Total, function, is_gap, walk_contexts};

/// The frame that stands where recursion was squeezed out between two functions of which the one may not have called the
/// other. No function has this number.
pub(super) const GAP_FRAME: CostCentreId = CostCentreId(u32::MAX);

/// What to call a frame, safe to print.
pub(super) fn frame_name(profile: &Profile, frame: CostCentreId) -> Cow<'static, str> {
    if frame == GAP_FRAME { SQUEEZED_OUT.into() } else { sanitise(&profile.name(frame)).into_owned().into() }
}

/// The place of a frame in a list of all functions and, at its end, the gap.
pub(super) fn frame_index(profile: &Profile, frame: CostCentreId) -> usize {
    if frame == GAP_FRAME { profile.cost_centres().len() } else { frame.index() }
}

/// What was charged in one place: a thread, a stack, a line of its innermost function.
pub(super) struct Stack<'a> {
    pub(super) thread: ThreadId,
    /// Root first, never empty, with [`GAP_FRAME`] where the one above may not have called the one below.
    pub(super) functions: &'a [CostCentreId],
    /// Where the innermost function ran, if it is shown and the line is known.
    pub(super) line: LineId,
    pub(super) samples: u64,
    /// By the metric of the selection.
    pub(super) weight: u64,
    /// By every metric.
    pub(super) weights: &'a [u64],
}

/// Calls `visit` for everything that was charged and is selected; in an order that depends on the profile alone.
pub(super) fn walk(export: &Export<'_>, mut visit: impl FnMut(&Stack<'_>)) -> Total {
    let (profile, selection) = (export.profile, export.selection);
    let shown = profile.shown(selection);
    struct Row {
        context: usize,
        thread: ThreadId,
        line: LineId,
        samples: u64,
        /// Where its weights begin.
        weights: usize,
    }
    let metrics = profile.session().metrics.len();
    let (mut rows, mut weights) = (Vec::with_capacity(profile.charge_count()), Vec::new());
    profile.for_each_charge(|charge| {
        if selection.takes_thread(charge.thread) && shown.counts(charge.context) {
            rows.push(Row {
                context: shown.context(charge.context).index(),
                thread: charge.thread,
                line: if shown.shows_leaf(charge.context) { charge.line } else { LineId::UNKNOWN },
                samples: charge.samples,
                weights: weights.len(),
            });
            weights.extend_from_slice(charge.weights);
        }
    });
    rows.sort_by_key(|row| (row.context, row.thread, row.line));
    let mut functions = Vec::new();
    walk_contexts(profile, &shown, selection, |id, visible| {
        functions.clear();
        for &entry in visible.entries() {
            functions.extend(is_gap(entry).then_some(GAP_FRAME));
            functions.push(function(entry));
        }
        let first = rows.partition_point(|row| row.context < id.index());
        for row in rows.iter().skip(first).take_while(|row| row.context == id.index()) {
            let weights = weights.get(row.weights..row.weights + metrics).unwrap_or(&[]);
            let weight = weights.get(selection.metric_index()).copied().unwrap_or(0);
            if weight == 0 && row.samples == 0 {
                continue;
            }
            visit(&Stack {
                thread: row.thread,
                functions: &functions,
                line: row.line,
                samples: row.samples,
                weight,
                weights,
            });
        }
    })
}
