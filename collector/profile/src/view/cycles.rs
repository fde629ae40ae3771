//! The cycles view: recursion that really happened.
//!
//! A cycle is closed where a function is called that is active already. It is what led from that activation to the call,
//! without the cycles inside: from each function on to the one that its last activation called. These calls are all known
//! where the cycle is closed; afterwards, the history may squeeze them out. So cycles are found at the calls that made the
//! contexts: where a context stands for several stacks, those of the first of them that was recorded.
//!
//! Direct recursion is no cycle: A1 has folded it away.

use std::borrow::Cow;

use hashbrown::HashMap;
use serde::Serialize;

use super::entry::{StackEntry, words};
use super::interval::Share;
use super::names::{Definitions, FunctionNames, listed, named, names, room_for_names};
use super::sums::Sums;
use super::total::Total;
use super::visible::{function, is_marked};
use crate::context::ContextVisit;
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId};
use crate::profile::Profile;
use crate::selection::Selection;

/// One cycle, in one history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CycleRow {
    /// The history, oldest first; the running function is its last entry and stands unmarked earlier.
    pub entries: Vec<StackEntry>,
    /// The cycle, from the running function to the running function.
    pub cycle: Vec<CostCentreId>,
    /// Weight of the running function in this history.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
    /// A call of the history may be another, because functions are hidden or merged.
    pub approximate: bool,
}

/// One cycle, in whatever histories and wherever it was entered.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cycle {
    /// Its functions, each once and in calling order, from the one with the lowest number.
    pub functions: Vec<CostCentreId>,
    /// Weight while the function that closed it was running.
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
    /// Its weight may be that of another in part, because functions are hidden or merged.
    pub approximate: bool,
}

/// All cycles, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CyclesView {
    /// All of the profile, with or without cycles.
    pub total: Total,
    /// The cycles, each once, by inherited weight.
    pub cycles: Vec<Cycle>,
    /// How many cycles are not listed, because all of them would be too long; the lightest, as far as they were looked at.
    pub left_out: usize,
    /// The histories that end by closing one and show it: the running function also stands unmarked earlier.
    pub rows: Vec<CycleRow>,
    /// Names of the functions.
    pub names: FunctionNames,
    /// Where they are defined.
    pub definitions: Definitions,
}

impl CyclesView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let walk = profile.walk(selection);
        let table = walk.table();
        // What each context was charged, and whether it is approximate; and with all that were made from it.
        let mut own = vec![Sum::default(); table.len()];
        let mut charged: Vec<(ContextId, Vec<StackEntry>)> = Vec::new();
        let mut is_closed = vec![false; table.len()];
        table.steps(|step| {
            if let ContextVisit::Enter(id, before, called) = step
                && closes(before, called)
                && let Some(place) = is_closed.get_mut(id.index())
            {
                *place = true;
            }
        });
        let closes_one = |id: ContextId| is_closed.get(id.index()).copied().unwrap_or(false);
        let total = walk.visit(|id, context| {
            let approximate = context.is_approximate();
            if let Some(place) = own.get_mut(id.index()) {
                *place = Sum { sums: context.sums, approximate };
            }
            let leaf = context.leaf();
            let shows_it = |&entry: &u32| !is_marked(entry) && function(entry) == leaf;
            if closes_one(id) && context.entries().iter().any(shows_it) {
                charged.push((id, context.entries().iter().map(|&entry| StackEntry::of(entry)).collect()));
            }
        });
        let mut all = own.clone();
        for id in (1..table.len()).rev().map(ContextId::at) {
            let sum = all.get(id.index()).copied().unwrap_or_default();
            if let Some(place) = table.parent(id).and_then(|parent| all.get_mut(parent.index())) {
                place.add(sum);
            }
        }
        let mut known: HashMap<Vec<CostCentreId>, usize> = HashMap::new();
        let mut found: Vec<FoundCycles> = Vec::new();
        let mut closed: HashMap<ContextId, usize> = HashMap::new();
        let mut latest = vec![0; profile.cost_centres().len()];
        let room_for_names = room_for_names(profile) / 4;
        let mut room = room_for_names;
        let mut left_out = 0;
        table.steps(|step| match step {
            ContextVisit::Enter(id, before, called) if closes_one(id) => {
                let sum = |sums: &[Sum]| sums.get(id.index()).copied().unwrap_or_default();
                if sum(&all).is_none() {
                    return;
                }
                let functions = rotated(cycle(before, called, &mut latest));
                if functions.len() > room && !known.contains_key(&functions) {
                    left_out += 1;
                    return;
                }
                let next = found.len();
                let at = *known.entry_ref(functions.as_slice()).or_insert(next);
                if at == next {
                    room -= functions.len();
                    found.push(FoundCycles { functions, ..FoundCycles::default() });
                }
                closed.insert(id, at);
                let Some(cycle) = found.get_mut(at) else { return };
                cycle.own.add(sum(&own));
                // Within another turn of the same cycle, all is counted already.
                if cycle.turns == 0 {
                    cycle.inherited.add(sum(&all));
                }
                cycle.turns += 1;
            }
            ContextVisit::Leave(id) => {
                if let Some(cycle) = closed.get(&id).and_then(|&at| found.get_mut(at)) {
                    cycle.turns -= 1;
                }
            }
            _ => {}
        });
        let row = |(id, entries): (ContextId, Vec<StackEntry>)| {
            let of = own.get(id.index()).copied().unwrap_or_default();
            let cycle = closed.get(&id).and_then(|&at| found.get(at)).map_or(&[][..], |found| &found.functions);
            let running = entries.last().map_or(CostCentreId::ROOT, |entry| entry.function);
            let start = cycle.iter().position(|&it| it == running).unwrap_or(0);
            let turn = cycle.iter().cycle().skip(start).take(cycle.len()).copied();
            CycleRow {
                cycle: turn.chain([running]).collect(),
                entries,
                weight: of.sums.weight,
                samples: of.sums.samples,
                share: Share::of(of.sums, &total),
                approximate: of.approximate,
            }
        };
        let mut rows: Vec<CycleRow> = charged.into_iter().map(row).collect();
        rows.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.entries.cmp(&b.entries)));
        let mut cycles: Vec<Cycle> = found
            .into_iter()
            .map(|FoundCycles { functions, own, inherited, .. }| Cycle {
                functions,
                self_weight: own.sums.weight,
                samples_self: own.sums.samples,
                self_share: Share::of(own.sums, &total),
                inherited_weight: inherited.sums.weight,
                samples_inherited: inherited.sums.samples,
                inherited_share: Share::of(inherited.sums, &total),
                approximate: inherited.approximate,
            })
            .collect();
        cycles.sort_by(|a, b| {
            let weights = |it: &Cycle| (it.inherited_weight, it.self_weight);
            weights(b).cmp(&weights(a)).then_with(|| a.functions.cmp(&b.functions))
        });
        let members = cycles.iter().flat_map(|cycle| cycle.functions.iter().copied());
        let (names, definitions) =
            names(profile, members.chain(rows.iter().flat_map(|row| row.entries.iter().map(|entry| entry.function))));
        let fit = listed(profile, &names, room_for_names, cycles.iter().map(|cycle| cycle.functions.clone()));
        left_out += cycles.len() - fit;
        cycles.truncate(fit);
        let functions = |row: &CycleRow| row.entries.iter().map(|entry| entry.function).collect::<Vec<_>>();
        rows.truncate(listed(profile, &names, room_for_names, rows.iter().map(functions)));
        Self { total, cycles, left_out, rows, names, definitions }
    }

    /// The functions of a cycle, each as text names it.
    #[must_use]
    pub fn labels(&self, cycle: &Cycle) -> Vec<Cow<'_, str>> {
        cycle.functions.iter().map(|&function| named(function, &self.names, &self.definitions)).collect()
    }

    /// The history of a row as text, safe to print: oldest first, unmarked entries in parentheses.
    #[must_use]
    pub fn text(&self, row: &CycleRow) -> String {
        words(&row.entries, &self.names, &self.definitions).join(" ")
    }
}

#[derive(Clone, Copy, Default)]
struct Sum {
    sums: Sums,
    approximate: bool,
}

impl Sum {
    const fn is_none(self) -> bool {
        self.sums.weight == 0 && self.sums.samples == 0
    }

    fn add(&mut self, other: Sum) {
        self.sums.add(other.sums);
        self.approximate |= other.approximate;
    }
}

/// A cycle, and how often it is closed where the walk is.
#[derive(Default)]
struct FoundCycles {
    functions: Vec<CostCentreId>,
    own: Sum,
    inherited: Sum,
    turns: usize,
}

/// Whether a call closes a cycle: the function is active, and not running.
fn closes(before: &[u32], called: CostCentreId) -> bool {
    let called = called.0 | MARK;
    before.split_last().is_some_and(|(&last, rest)| last != called && rest.contains(&called))
}

/// The cycle that a call closes: along last activations' callees up to the caller. `latest` has room for every
/// function.
fn cycle(before: &[u32], called: CostCentreId, latest: &mut [usize]) -> Vec<CostCentreId> {
    for (at, &entry) in before.iter().enumerate().filter(|(_, entry)| is_marked(**entry)) {
        if let Some(place) = latest.get_mut(function(entry).index()) {
            *place = at;
        }
    }
    // What is left of another history is no activation in this one.
    let activation =
        |of: CostCentreId| latest.get(of.index()).copied().filter(|&at| before.get(at) == Some(&(of.0 | MARK)));
    let mut functions = vec![called];
    let mut at = activation(called);
    while let Some(next) = at.and_then(|at| before.get(at + 1)).map(|&entry| function(entry)) {
        functions.push(next);
        at = activation(next);
    }
    functions
}

fn rotated(mut cycle: Vec<CostCentreId>) -> Vec<CostCentreId> {
    let lowest = cycle.iter().enumerate().min_by_key(|(_, id)| **id).map_or(0, |(i, _)| i);
    cycle.rotate_left(lowest);
    cycle
}
