//! Visits every charge with its stack.

use std::borrow::Cow;
use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::request::Export;
use crate::fair_length::fair_length;
use crate::ids::{ContextId, CostCentreId, LineId, RouteId, ThreadId};
use crate::labels::Labels;
use crate::profile::Profile;
use crate::routed::{CallBudget, CallerLines};
use crate::text::sanitise;
use crate::view::{SQUEEZED_OUT, Total, Visible, function, is_gap, room_for_names};

/// The frame between two functions where recursion was squeezed out, so that the upper may not have called the lower.
/// No function has this number.
pub(super) const GAP_FRAME: CostCentreId = CostCentreId(u32::MAX);

/// The printable name of a frame. Most readers merge frames with the same text.
pub(super) fn frame_name(labels: &Labels<'_>, frame: CostCentreId) -> Cow<'static, str> {
    if frame == GAP_FRAME { SQUEEZED_OUT.into() } else { sanitise(&labels.label(frame)).into_owned().into() }
}

/// Index of a frame in a list of all functions followed by the gap.
pub(super) fn frame_index(profile: &Profile, frame: CostCentreId) -> usize {
    if frame == GAP_FRAME { profile.cost_centres().len() } else { frame.index() }
}

/// A charge: thread, stack, and line of the innermost function.
pub(super) struct ChargedStack<'a> {
    pub(super) thread: ThreadId,
    /// Root first, never empty, with [`GAP_FRAME`] where the upper function may not have called the lower.
    pub(super) functions: &'a [CostCentreId],
    /// Line of the innermost function, if it is shown and the line is known.
    pub(super) line: LineId,
    /// Call sites of its callers; empty if not requested.
    pub(super) route: RouteId,
    pub(super) samples: u64,
    pub(super) weight: u64,
    pub(super) weights: &'a [u64],
}

/// Entries of all stacks together: this many, and more in proportion to the rows. A row of `cc1 -O2` has 24.
const FREE_ENTRIES: usize = 1 << 23;
const ENTRIES_PER_ROW: usize = 128;

/// Entries, and bytes of names, of a stack that is whole in any case.
const SHORT_ENTRIES: usize = 128;
const SHORT_BYTES: usize = 4096;

/// How much of stacks is shown.
struct StackRoom<'a> {
    profile: &'a Profile,
    /// Bytes of each name, once known, and of what separates it from the next.
    lengths: Vec<Option<usize>>,
    /// How many stacks there are of so many entries, and of so many bytes.
    by_entries: BTreeMap<usize, usize>,
    by_bytes: BTreeMap<usize, usize>,
    most_entries: usize,
    most_bytes: usize,
}

impl<'a> StackRoom<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self {
            profile,
            lengths: vec![None; profile.cost_centres().len() + 1],
            by_entries: BTreeMap::new(),
            by_bytes: BTreeMap::new(),
            most_entries: usize::MAX,
            most_bytes: usize::MAX,
        }
    }

    fn length(&mut self, frame: CostCentreId) -> usize {
        let profile = self.profile;
        let known = self.lengths.get_mut(frame_index(profile, frame));
        known.map_or(1, |known| *known.get_or_insert_with(|| profile.name(frame).len() + 1))
    }

    fn bytes(&mut self, functions: &[CostCentreId]) -> usize {
        functions.iter().map(|&function| self.length(function)).sum()
    }

    /// Stacks of these functions come in so many rows.
    fn count(&mut self, functions: &[CostCentreId], rows: usize) {
        let bytes = self.bytes(functions);
        *self.by_entries.entry(functions.len()).or_default() += rows;
        *self.by_bytes.entry(bytes).or_default() += rows;
    }

    /// Finds how long stacks may be, once all have been counted. Their names have `bytes` of room, or the usual room.
    fn share(&mut self, rows: usize, bytes: Option<usize>) {
        let entries = FREE_ENTRIES.saturating_add(rows.saturating_mul(ENTRIES_PER_ROW));
        self.most_entries = fair_length(&std::mem::take(&mut self.by_entries), entries, SHORT_ENTRIES);
        let usual = || (room_for_names(self.profile).saturating_mul(4), SHORT_BYTES);
        let (bytes, least) = bytes.map_or_else(usual, |bytes| (bytes, 0));
        self.most_bytes = fair_length(&std::mem::take(&mut self.by_bytes), bytes, least);
    }

    fn is_whole(&mut self, functions: &[CostCentreId]) -> bool {
        functions.len() <= self.most_entries && self.bytes(functions) <= self.most_bytes
    }

    /// How many of these functions half of a stack has that is not whole.
    fn fitting<'f>(&mut self, functions: impl Iterator<Item = &'f CostCentreId>) -> usize {
        let (mut bytes, most) = (0usize, self.most_bytes / 2);
        let most_entries = self.most_entries / 2;
        let mut fits = |function: &CostCentreId| {
            bytes += self.length(*function);
            bytes <= most
        };
        functions.take(most_entries).take_while(|function| fits(function)).count()
    }

    /// The outer and the inner part of a stack, and `[elided]` between them. `None` if these are all of it.
    fn shorten(&mut self, functions: &[CostCentreId]) -> Option<Vec<CostCentreId>> {
        let (outer, rest) = functions.split_at(self.fitting(functions.iter()).min(functions.len() / 2));
        // The function that ran may have more than half.
        let leaf = rest.last().is_some_and(|&leaf| self.length(leaf) <= self.most_bytes);
        let kept = self.fitting(rest.iter().rev()).max(usize::from(leaf));
        let (omitted, inner) = rest.split_at(rest.len() - kept.min(rest.len()));
        if omitted.is_empty() {
            return None;
        }
        // An earlier `[elided]` is dropped with what is before it, so that there is only one.
        let elided = inner.iter().rposition(|&function| function == CostCentreId::ELIDED).map_or(0, |at| at + 1);
        Some([outer, &[CostCentreId::ELIDED], inner.get(elided..).unwrap_or_default()].concat())
    }
}

/// The lines of the frames of stacks, as far as their routes tell.
pub(super) struct FrameLines {
    route: RouteId,
    calls: HashMap<CostCentreId, CallerLines>,
    are_known: bool,
    budget: CallBudget,
    /// Of each function the last stack that it was seen on.
    seen: Vec<u64>,
    stacks: u64,
    unknown_weight: u64,
    lines: Vec<LineId>,
}

impl FrameLines {
    pub(super) fn new(profile: &Profile) -> Self {
        Self {
            route: RouteId::EMPTY,
            calls: HashMap::new(),
            are_known: true,
            budget: CallBudget::new(profile.charge_count()),
            seen: vec![0; profile.cost_centres().len() + 1],
            stacks: 0,
            unknown_weight: 0,
            lines: Vec::new(),
        }
    }

    /// A line for each function of a stack of [`walk_routes`]: where the last ran, and from where the others called. Of a
    /// function that is there more than once, only the latest activation's line is known, unless all have the same.
    pub(super) fn of(&mut self, profile: &Profile, stack: &ChargedStack<'_>) -> &[LineId] {
        if self.route != stack.route {
            self.route = stack.route;
            self.are_known = self.budget.take(profile.routes().depth(stack.route), 0);
            self.calls = if self.are_known { profile.calls_of(stack.route) } else { HashMap::new() };
        }
        if !self.are_known {
            self.unknown_weight = self.unknown_weight.saturating_add(stack.weight);
        }
        self.stacks += 1;
        // The latest activation of a function may be in what is left out.
        let is_elided = stack.functions.contains(&CostCentreId::ELIDED);
        self.lines.clear();
        for (depth, &function) in stack.functions.iter().rev().enumerate() {
            let stacks = self.stacks;
            let seen = self.seen.get_mut(frame_index(profile, function));
            let is_latest = seen.map(|seen| std::mem::replace(seen, stacks)) != Some(stacks);
            self.lines.push(match self.calls.get(&function) {
                _ if depth == 0 => stack.line,
                Some(calls) if !is_elided => {
                    if is_latest {
                        calls.latest
                    } else {
                        calls.only
                    }
                }
                _ => LineId::UNKNOWN,
            });
        }
        self.lines.reverse();
        &self.lines
    }

    /// Weight of the stacks with so many call sites that their lines were not looked for.
    pub(super) const fn unknown_weight(&self) -> u64 {
        self.unknown_weight
    }
}

/// Calls `visit` for every selected charge, in an order that depends only on the profile.
///
/// The total work is limited in proportion to the number of rows: a row of a few bytes in a file can have a very deep
/// stack. Of the longest stacks the middle is `[elided]`, so that all have room; see [`shortened`].
pub(super) fn walk(export: &Export<'_>, visit: impl FnMut(&ChargedStack<'_>)) -> Total {
    walk_rows(export, false, None, visit).0
}

/// The same where names have so many bytes together, of each context once. Returns the weight of the stacks that are truncated.
pub(super) fn walk_within(export: &Export<'_>, bytes: usize, visit: impl FnMut(&ChargedStack<'_>)) -> u64 {
    walk_rows(export, false, Some(bytes), visit).1
}

pub(super) fn walk_routes(export: &Export<'_>, visit: impl FnMut(&ChargedStack<'_>)) -> Total {
    walk_rows(export, true, None, visit).0
}

/// The weight of stacks that [`walk`] or, with `routes`, [`walk_routes`] truncates.
pub(super) fn shortened(export: &Export<'_>, routes: bool) -> u64 {
    walk_rows(export, routes, None, |_| {}).1
}

/// The frames of a context.
fn frames(visible: &Visible<'_>, functions: &mut Vec<CostCentreId>) {
    functions.clear();
    for &entry in visible.entries() {
        functions.extend(is_gap(entry).then_some(GAP_FRAME));
        functions.push(function(entry));
    }
}

fn walk_rows(
    export: &Export<'_>,
    routes: bool,
    bytes: Option<usize>,
    mut visit: impl FnMut(&ChargedStack<'_>),
) -> (Total, u64) {
    let (profile, selection) = (export.profile, export.selection);
    let walk = profile.walk(selection);
    struct StackLevel {
        context: usize,
        thread: ThreadId,
        line: LineId,
        route: RouteId,
        samples: u64,
        weights: usize,
    }
    let metrics = profile.session().metrics.len();
    let (mut rows, mut weights) = (Vec::with_capacity(profile.charge_count()), Vec::new());
    let mut known = HashMap::new();
    walk.charges(|context, charge| {
        let context = context.index();
        let route = if routes { charge.route } else { RouteId::EMPTY };
        let (thread, line) = (charge.thread, walk.line(&charge));
        let at = *known.entry((context, thread, line, route)).or_insert(rows.len());
        let Some(row) = rows.get_mut(at) else {
            rows.push(StackLevel { context, thread, line, route, samples: charge.samples, weights: weights.len() });
            weights.extend_from_slice(charge.weights);
            return;
        };
        row.samples = row.samples.saturating_add(charge.samples);
        for (sum, weight) in weights.iter_mut().skip(row.weights).zip(charge.weights) {
            *sum = u64::saturating_add(*sum, *weight);
        }
    });
    drop(known);
    rows.sort_by_key(|row| (row.context, row.thread, row.line, row.route));
    let in_rows = |id: ContextId| {
        let first = rows.partition_point(|row| row.context < id.index());
        rows.iter().skip(first).take_while(move |row| row.context == id.index())
    };
    let mut functions = Vec::new();
    let mut room = StackRoom::new(profile);
    walk.visit(|id, visible| {
        frames(visible, &mut functions);
        let rows = in_rows(id).count();
        room.count(&functions, if bytes.is_some() { rows.min(1) } else { rows });
    });
    room.share(rows.len(), bytes);
    let mut shortened = 0u64;
    let total = walk.visit(|id, visible| {
        frames(visible, &mut functions);
        let short = if room.is_whole(&functions) { None } else { room.shorten(&functions) };
        for row in in_rows(id) {
            let weights = weights.get(row.weights..row.weights + metrics).unwrap_or(&[]);
            let weight = weights.get(selection.metric_index()).copied().unwrap_or(0);
            if weight == 0 && row.samples == 0 {
                continue;
            }
            let (is_whole, whole) = (short.is_none(), &functions);
            let functions = short.as_ref().unwrap_or(whole);
            shortened = shortened.saturating_add(if is_whole { 0 } else { weight });
            let &StackLevel { thread, samples, .. } = row;
            // A route also has the call sites of omitted functions.
            let route = if is_whole { row.route } else { RouteId::EMPTY };
            let leaf = |functions: &[CostCentreId]| functions.last().copied();
            let line = if leaf(functions) == leaf(whole) { row.line } else { LineId::UNKNOWN };
            visit(&ChargedStack { thread, functions, line, route, samples, weight, weights });
        }
    });
    (total, shortened)
}
