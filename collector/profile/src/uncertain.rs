//! Callers and callees that a history cannot name once functions are hidden or merged.
//!
//! A history has each active function's last caller and callee, and only the ends of what was squeezed out (A4, A5),
//! which can be the true neighbour then. Views show the neighbour in one recorded stack and mark it as approximate.

use hashbrown::HashMap;

use crate::context::ContextTable;
use crate::gaps::{MARK, gaps};
use crate::ids::{ContextId, CostCentreId};

#[derive(Clone, Debug, Default)]
pub(crate) struct Uncertain {
    known: HashMap<(u32, u32), (bool, bool)>,
}

const fn is_marked(entry: u32) -> bool {
    entry & MARK != 0
}

impl Uncertain {
    pub(crate) fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub(crate) fn add(&mut self, context: ContextId, function: CostCentreId, caller: bool, callee: bool) {
        if caller || callee {
            let known = self.known.entry((context.0, function.0)).or_default();
            *known = (known.0 || caller, known.1 || callee);
        }
    }

    pub(crate) fn extend(&mut self, other: Uncertain) {
        for ((context, function), (caller, callee)) in other.known {
            self.add(ContextId(context), CostCentreId(function), caller, callee);
        }
    }

    /// Whether the call between an entry of a context's history and the one before it may be another.
    pub(crate) fn before(&self, context: ContextId, entries: &[u32], at: usize) -> bool {
        let of = |at: usize| {
            let entry = entries.get(at).copied().filter(|&entry| is_marked(entry))?;
            self.known.get(&(context.0, entry & !MARK)).copied()
        };
        !self.is_empty()
            && (of(at).is_some_and(|(caller, _)| caller)
                || at.checked_sub(1).and_then(of).is_some_and(|(_, callee)| callee))
    }

    /// Carries uncertainty through [`remap`](crate::remap::remap). Only contexts with charges are kept: views show no
    /// others.
    pub(crate) fn of(
        table: &ContextTable,
        before: &Uncertain,
        charged: &[bool],
        place: impl Fn(ContextId) -> ContextId,
        function: impl Fn(CostCentreId) -> Option<CostCentreId>,
    ) -> Uncertain {
        let mut new = Uncertain::default();
        let mut found = HashMap::new();
        table.visit_of(
            |id| charged.get(id.index()).copied().unwrap_or(false),
            |id, entries| {
                let moves = |&entry: &u32| function(CostCentreId(entry & !MARK)) != Some(CostCentreId(entry & !MARK));
                let recursive = || entries.iter().any(|&entry| !is_marked(entry)) && entries.iter().any(moves);
                if before.is_empty() && !recursive() {
                    return;
                }
                found.clear();
                let crossings = |at: usize| before.before(id, entries, at);
                trace(entries, crossings, |entry| function(CostCentreId(entry & !MARK)).map(|it| it.0), &mut found);
                for (&function, &(caller, callee)) in &found {
                    new.add(place(id), CostCentreId(function), caller, callee);
                }
            },
        );
        new
    }
}

/// The active functions in the last part of a history, if at most two.
struct Suffix {
    last: Option<u32>,
    other: Option<u32>,
    one: usize,
    two: usize,
}

impl Suffix {
    fn of(entries: &[u32], function: impl Fn(u32) -> Option<u32>) -> Suffix {
        let mut suffix = Suffix { last: None, other: None, one: 0, two: 0 };
        for (at, it) in entries.iter().enumerate().rev().filter(|(_, entry)| is_marked(**entry)) {
            let Some(it) = function(*it) else { continue };
            if suffix.last.is_none_or(|last| last == it) {
                suffix.last = Some(it);
            } else if suffix.other.is_none_or(|other| other == it) {
                if suffix.other.is_none() {
                    suffix.one = at + 1;
                }
                suffix.other = Some(it);
            } else {
                suffix.two = at + 1;
                break;
            }
        }
        suffix
    }

    /// Whether nothing but `a` and `b` can have been squeezed out at a place: what was is active further in.
    fn allows_only(&self, at: usize, a: Option<u32>, b: u32) -> bool {
        let is = |it: Option<u32>| it.is_none() || it == a || it == Some(b);
        if at >= self.one { is(self.last) } else { at >= self.two && is(self.last) && is(self.other) }
    }
}

/// Finds active functions whose caller or callee is uncertain under `function`. Equal neighbours become one (A1).
fn trace(
    entries: &[u32],
    uncertain_before: impl Fn(usize) -> bool,
    function: impl Fn(u32) -> Option<u32>,
    found: &mut HashMap<u32, (bool, bool)>,
) {
    let suffix = Suffix::of(entries, &function);
    let mut gaps = gaps_of_any(entries).peekable();
    // The function shown last and the one before it, whether what led to it is uncertain, and where something may be missing.
    let (mut last, mut before) = (None::<u32>, None::<u32>);
    let (mut into, mut within) = (false, false);
    let (mut active, mut squeezed) = (false, None::<usize>);
    let (mut missing, mut known) = (None::<usize>, false);
    for (at, &entry) in entries.iter().enumerate() {
        if gaps.next_if_eq(&at).is_some() {
            missing.get_or_insert(at);
        }
        // What was uncertain before stays so: the entries themselves are those of one stack of several.
        known |= uncertain_before(at);
        let Some(it) = function(entry) else {
            // A hidden entry of a squeezed run stands for all of it.
            if !is_marked(entry) {
                missing.get_or_insert(at);
            }
            continue;
        };
        if last == Some(it) {
            let between = missing.take();
            let inside = squeezed.or(between);
            within |= std::mem::take(&mut known) || inside.is_some_and(|at| !suffix.allows_only(at, before, it));
        } else {
            let between = missing.take();
            let unsure = std::mem::take(&mut known) || between.is_some_and(|at| !suffix.allows_only(at, last, it));
            if let Some(known) = last.filter(|_| active).and_then(|last| found.get_mut(&last)) {
                known.1 = unsure;
            }
            (before, last) = (last, Some(it));
            (into, within, active) = (unsure, false, false);
        }
        squeezed = (!is_marked(entry)).then_some(at);
        if is_marked(entry) {
            active = true;
            found.insert(it, (into || within, false));
        }
    }
}

/// Positions between two unmarked entries: what stood there may be anything that is active further in.
fn gaps_of_any(entries: &[u32]) -> impl Iterator<Item = usize> + '_ {
    let unmarked = |i: usize| entries.get(i).is_some_and(|entry| !is_marked(*entry));
    (1..entries.len()).filter(move |&i| unmarked(i - 1) && unmarked(i))
}

/// The bit of an entry in a view that the entry before it may not have called: see [`gaps`].
pub(crate) const GAP: u32 = 1 << 30;
/// The bit of an entry in a view whose caller, or whose part as the callee of the entry before, may be another.
pub(crate) const APPROXIMATE: u32 = 1 << 29;

/// A history with [`GAP`] and [`APPROXIMATE`] where they are due.
pub(crate) fn flagged(uncertain: &Uncertain, context: ContextId, entries: &[u32], flagged: &mut Vec<u32>) {
    flagged.clear();
    flagged.extend_from_slice(entries);
    for at in gaps(entries) {
        if let Some(entry) = flagged.get_mut(at) {
            *entry |= GAP;
        }
    }
    if uncertain.is_empty() {
        return;
    }
    for (at, entry) in flagged.iter_mut().enumerate() {
        if uncertain.before(context, entries, at) {
            *entry |= APPROXIMATE;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::ProfileLimits;
    use crate::model::{Metric, Process, SessionInfo, Thread, Unit};
    use crate::profile::Profile;
    use crate::{ContextId, CostCentreId, LineId, view::Selection};

    #[test]
    fn entries_without_a_view_take_no_memory() {
        // A deep recursion over many functions: each of its calls makes a context, and only the last is charged.
        const FUNCTIONS: u32 = 50;
        let metrics = vec![Metric { name: "x".to_owned(), unit: Unit::Count }];
        let mut profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, ProfileLimits::default());
        let process = profile.add_process(Process::new(1, 0, String::new()));
        let thread = profile.add_thread(Thread { process, tid: 1, name: String::new() });
        let functions: Vec<CostCentreId> = (0..FUNCTIONS).map(|i| profile.add_special(&format!("f{i}"))).collect();
        let (mut context, mut at) = (ContextId::ROOT, 1u32);
        for _ in 0..2_000 {
            at = at.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            context = profile.contexts_mut().push(context, functions[(at >> 16) as usize % functions.len()]);
        }
        profile.charge(thread, context, LineId::UNKNOWN, &[1]);
        assert!(profile.contexts().len() > 1_000);
        let hidden: Vec<CostCentreId> = functions.iter().copied().step_by(2).collect();
        let selection = Selection::all().hide(hidden);
        let known = profile.walk(&selection).uncertain().known.len();
        assert!((1..=FUNCTIONS as usize).contains(&known), "{known}");
        let selected = profile.selected(&selection);
        assert_eq!(selected.uncertain.known.len(), known);
    }
}
