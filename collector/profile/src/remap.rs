//! Contexts with other functions: renamed, hidden, or several as one.

use std::collections::HashSet;

use crate::context::ContextTable;
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId};
use crate::uncertain::Uncertain;

pub(crate) struct Contexts<'a> {
    pub(crate) table: &'a ContextTable,
    pub(crate) uncertain: &'a Uncertain,
    pub(crate) charged: Vec<bool>,
    pub(crate) functions: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Remapped {
    pub(crate) context: ContextId,
    /// Its running function is not hidden.
    pub(crate) shows_leaf: bool,
}

/// Makes all contexts in the table `to`, with the functions that `function` says; `None` hides a function. Returns the
/// new contexts and what is uncertain of them. Every call left was made in a recorded stack.
pub(crate) fn remap(
    from: &Contexts<'_>,
    to: &mut ContextTable,
    function: impl Fn(CostCentreId) -> Option<CostCentreId>,
) -> (Vec<Remapped>, Uncertain) {
    let new = replay(from.table, to, (), |(), leaf| ((), function(leaf)));
    let mut known = HashSet::new();
    let mut functions = (0..from.functions as u32).map(|id| function(CostCentreId(id)));
    let is_one_to_one = functions.all(|new| new.is_some_and(|new| known.insert(new)));
    let uncertain = match is_one_to_one && from.uncertain.is_empty() {
        true => Uncertain::default(),
        false => Uncertain::of(from.table, from.uncertain, &from.charged, |id| place(&new, id), function),
    };
    (new, uncertain)
}

/// As [`remap`], where the new function depends on the callers: `function` takes its result for the caller. Recursive
/// calls in such contexts are all uncertain, as a history knows only the last activation.
pub(crate) fn remap_by_callers<S: Copy>(
    from: &Contexts<'_>,
    to: &mut ContextTable,
    start: S,
    mut function: impl FnMut(S, CostCentreId) -> (S, CostCentreId),
) -> (Vec<Remapped>, Uncertain) {
    let new = replay(from.table, to, start, |state, leaf| {
        let (state, function) = function(state, leaf);
        (state, Some(function))
    });
    let mut is_recursive = vec![false; to.len()];
    let is_charged = |id: ContextId| from.charged.get(id.index()).is_some_and(|is_charged| *is_charged);
    from.table.visit_of(is_charged, |id, entries| {
        if entries.iter().any(|entry| entry & MARK == 0)
            && let Some(is_recursive) = is_recursive.get_mut(place(&new, id).index())
        {
            *is_recursive = true;
        }
    });
    let mut uncertain = Uncertain::default();
    let is_recursive = |id: ContextId| is_recursive.get(id.index()).is_some_and(|is_recursive| *is_recursive);
    to.visit_of(is_recursive, |id, entries| {
        for entry in entries.iter().filter(|&&entry| entry & MARK != 0) {
            uncertain.add(id, CostCentreId(entry & !MARK), true, true);
        }
    });
    (new, uncertain)
}

fn place(new: &[Remapped], id: ContextId) -> ContextId {
    new.get(id.index()).map_or(ContextId::ELIDED, |new| new.context)
}

fn replay<S: Copy>(
    from: &ContextTable,
    to: &mut ContextTable,
    start: S,
    mut function: impl FnMut(S, CostCentreId) -> (S, Option<CostCentreId>),
) -> Vec<Remapped> {
    let root = (Remapped { context: ContextId::ROOT, shows_leaf: true }, start);
    let elided = (Remapped { context: ContextId::ELIDED, shows_leaf: true }, start);
    let new = from.replay(root, elided, |_, (parent, state), leaf| {
        let (state, function) = function(state, leaf);
        let context = function.map_or(parent.context, |function| to.graft(parent.context, function));
        (Remapped { context, shows_leaf: function.is_some() }, state)
    });
    new.into_iter().map(|(new, _)| new).collect()
}
