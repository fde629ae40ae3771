//! Every charge with its stack.

use super::Export;
use crate::ids::{CostCentreId, LineId, ThreadId};
use crate::view::{Total, walk_contexts};

/// What was charged in one place: a thread, a stack, a line of its innermost function.
pub(super) struct Stack<'a> {
    pub(super) thread: ThreadId,
    /// Root first, never empty.
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
    let named = profile.named();
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
        if selection.takes_thread(charge.thread) {
            rows.push(Row {
                context: named.context(charge.context).index(),
                thread: charge.thread,
                line: charge.line,
                samples: charge.samples,
                weights: weights.len(),
            });
            weights.extend_from_slice(charge.weights);
        }
    });
    rows.sort_by_key(|row| (row.context, row.thread, row.line));
    let mut functions = Vec::new();
    walk_contexts(profile, &named, selection, |id, visible| {
        functions.clear();
        functions.extend(visible.functions());
        let leaf_is_shown = functions.last().copied() == named.contexts().leaf(id);
        let first = rows.partition_point(|row| row.context < id.index());
        for row in rows.iter().skip(first).take_while(|row| row.context == id.index()) {
            let weights = weights.get(row.weights..row.weights + metrics).unwrap_or(&[]);
            let weight = weights.get(selection.metric_index()).copied().unwrap_or(0);
            if weight == 0 && row.samples == 0 {
                continue;
            }
            let line = if leaf_is_shown { row.line } else { LineId::UNKNOWN };
            visit(&Stack { thread: row.thread, functions: &functions, line, samples: row.samples, weight, weights });
        }
    })
}
