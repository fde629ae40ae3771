//! The lines view: on which source lines each function spent its self weight, and what the calls from each line cost.
//!
//! A line's inherited weight is that of the stacks on which its function has a frame at this line, each stack once: what
//! ran in the line itself, and what was called from it. So the lines of a recursive function may have more together than
//! the function.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::column::ViewColumn;
use super::interval::Share;
use super::sums::Sums;
use super::total::Total;
use super::visible::sums_of;
use crate::ids::{CostCentreId, LineId};
use crate::labels::Definition;
use crate::profile::Profile;
use crate::routes::NewRoute;
use crate::selection::Selection;

/// One line of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineRow {
    /// The line.
    pub id: LineId,
    /// Its file; empty if unknown.
    pub file: String,
    /// Its number; 0 if unknown.
    pub line: u32,
    /// Self weight: what ran in this line.
    pub weight: u64,
    /// Samples of that.
    pub samples: u64,
    /// Share of that in the view's total.
    pub share: Share,
    /// Inherited weight: with what was called from this line.
    pub inherited_weight: u64,
    /// Samples of that.
    pub inherited_samples: u64,
    /// Share of that in the view's total.
    pub inherited_share: Share,
}

/// The lines of one function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FunctionLines {
    /// The function.
    pub function: CostCentreId,
    /// Its name.
    pub name: String,
    /// Where it is defined.
    #[serde(flatten)]
    pub definition: Definition,
    /// Its self weight: the sum of its lines.
    pub self_weight: u64,
    /// Samples of that.
    pub samples: u64,
    /// Share of that in the view's total.
    pub share: Share,
    /// Its inherited weight.
    pub inherited_weight: u64,
    /// Samples of that.
    pub inherited_samples: u64,
    /// Share of that in the view's total.
    pub inherited_share: Share,
    /// Its lines, those with the most self weight first.
    pub lines: Vec<LineRow>,
}

/// Functions with self weight, or of whose calls the lines are known; those with the most self weight first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinesView {
    /// All of it.
    pub total: Total,
    /// The functions.
    pub functions: Vec<FunctionLines>,
    /// Weight of samples some of whose callers' lines are missing, for want of room.
    pub cut_weight: u64,
}

impl LinesView {
    /// What [`LinesView::sort`] can order by.
    pub const COLUMNS: &[ViewColumn] = &[ViewColumn::Inherited, ViewColumn::Own, ViewColumn::Samples, ViewColumn::Name];

    /// Orders the functions by a column instead of self weight, and their lines: by name is by file and number.
    pub fn sort(&mut self, by: ViewColumn) {
        match by {
            ViewColumn::Samples => self.functions.sort_by_key(|it| Reverse(it.samples)),
            ViewColumn::Inherited => self.functions.sort_by_key(|it| Reverse(it.inherited_weight)),
            ViewColumn::Name => self.functions.sort_by(|a, b| a.name.cmp(&b.name)),
            _ => self.functions.sort_by_key(|it| Reverse(it.self_weight)),
        }
        for function in &mut self.functions {
            match by {
                ViewColumn::Samples => function.lines.sort_by_key(|line| Reverse(line.samples)),
                ViewColumn::Inherited => function.lines.sort_by_key(|line| Reverse(line.inherited_weight)),
                ViewColumn::Name => function.lines.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line))),
                _ => function.lines.sort_by_key(|line| Reverse(line.weight)),
            }
        }
    }

    /// Computes the view. What a hidden function spent counts for its innermost visible caller, in the line of the call.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let walk = profile.walk(selection);
        let mut charged = vec![None; walk.table().len()];
        let mut inherited = vec![Sums::default(); profile.cost_centres().len()];
        let total = walk.visit(|context, visible| {
            if let Some(place) = charged.get_mut(context.index()) {
                *place = Some(visible.leaf());
            }
            for function in visible.active() {
                if let Some(sums) = inherited.get_mut(function.index()) {
                    sums.add(visible.sums);
                }
            }
        });
        let mut lines = Lines::new(profile, selection);
        let mut cut_weight = 0u64;
        walk.charges(|context, charge| {
            let Some(function) = charged.get(context.index()).copied().flatten() else { return };
            let sums = sums_of(&charge, selection);
            if charge.route.is_cut() {
                cut_weight = cut_weight.saturating_add(sums.weight);
            }
            lines.add(charge.route.index(), (function, walk.line(&charge)), sums);
        });
        let mut functions: HashMap<CostCentreId, (Vec<LineRow>, Sums)> = HashMap::new();
        for ((function, id), LineSums { own, all }) in lines.finish() {
            let line = profile.line(id);
            let (lines, of_function) = functions.entry(function).or_default();
            of_function.add(own);
            lines.push(LineRow {
                id,
                file: line.map(|line| line.file.to_string()).unwrap_or_default(),
                line: line.map_or(0, |line| line.line),
                weight: own.weight,
                samples: own.samples,
                share: Share::of(own, &total),
                inherited_weight: all.weight,
                inherited_samples: all.samples,
                inherited_share: Share::of(all, &total),
            });
        }
        let labels = profile.labels();
        let mut functions: Vec<FunctionLines> = functions
            .into_iter()
            .map(|(function, (mut lines, own))| {
                let order = |line: &LineRow| (Reverse((line.weight, line.inherited_weight)), line.id);
                lines.sort_by_key(order);
                let all = inherited.get(function.index()).copied().unwrap_or_default();
                FunctionLines {
                    function,
                    name: profile.name(function).into_owned(),
                    definition: labels.definition(function),
                    self_weight: own.weight,
                    samples: own.samples,
                    share: Share::of(own, &total),
                    inherited_weight: all.weight,
                    inherited_samples: all.samples,
                    inherited_share: Share::of(all, &total),
                    lines,
                }
            })
            .collect();
        functions.sort_by_key(|it| (Reverse((it.self_weight, it.inherited_weight)), it.function));
        Self { total, functions, cut_weight }
    }
}

type Site = (CostCentreId, LineId);

#[derive(Clone, Copy, Default)]
struct LineSums {
    own: Sums,
    all: Sums,
}

struct Lines {
    numbers: HashMap<Site, u32>,
    sums: Vec<LineSums>,
    /// Of each route of the profile, the site that was pushed last, if it is shown.
    pushed: Vec<Option<u32>>,
    parents: Vec<u32>,
    routes: Vec<Sums>,
    /// The same by route and by the line that ran.
    running: HashMap<(u32, u32), Sums>,
}

impl Lines {
    fn new(profile: &Profile, selection: &Selection) -> Self {
        let visible = selection.visible(profile);
        let shows =
            |id: CostCentreId| visible.as_ref().is_none_or(|visible| visible.get(id.index()).copied().unwrap_or(false));
        let mut lines = Lines {
            numbers: HashMap::new(),
            sums: Vec::new(),
            pushed: vec![None],
            parents: vec![0],
            routes: vec![Sums::default(); profile.routes().len()],
            running: HashMap::new(),
        };
        for NewRoute { parent, function, line } in profile.routes().range(1, u32::MAX) {
            let function = profile.real(function);
            let is_shown = profile.source_line(line) != LineId::UNKNOWN && shows(function);
            let site = is_shown.then(|| lines.number((function, line)));
            lines.pushed.push(site);
            lines.parents.push(parent.number());
        }
        lines
    }

    fn number(&mut self, site: Site) -> u32 {
        let next = self.sums.len() as u32;
        let number = *self.numbers.entry(site).or_insert(next);
        if number == next {
            self.sums.push(LineSums::default());
        }
        number
    }

    fn add(&mut self, route: usize, site: Site, sums: Sums) {
        let site = self.number(site);
        if let Some(line) = self.sums.get_mut(site as usize) {
            line.own.add(sums);
        }
        if let Some(of_route) = self.routes.get_mut(route) {
            of_route.add(sums);
            self.running.entry((route as u32, site)).or_default().add(sums);
        }
    }

    /// The lines that have anything, in one walk over the tree of routes.
    fn finish(mut self) -> impl Iterator<Item = (Site, LineSums)> {
        // What was charged with a route or one that it leads to. Parents have lower numbers.
        let count = self.routes.len();
        let mut first_child = vec![0u32; count];
        let mut next_sibling = vec![0u32; count];
        for id in (1..count).rev() {
            let parent = self.parents.get(id).copied().unwrap_or(0) as usize;
            let sums = self.routes.get(id).copied().unwrap_or_default();
            if let (Some(all), Some(first), Some(next)) =
                (self.routes.get_mut(parent), first_child.get_mut(parent), next_sibling.get_mut(id))
            {
                all.add(sums);
                *next = std::mem::replace(first, id as u32);
            }
        }
        let mut running: Vec<((u32, u32), Sums)> = self.running.into_iter().collect();
        running.sort_unstable_by_key(|(key, _)| *key);
        // How often each line is on the path to the route that the walk is at.
        let mut active = vec![0u32; self.sums.len()];
        let mut todo = vec![(0u32, false)];
        while let Some((route, leaves)) = todo.pop() {
            let at = route as usize;
            let pushed = self.pushed.get(at).copied().flatten();
            if let Some(times) = pushed.and_then(|site| active.get_mut(site as usize)) {
                if leaves {
                    *times -= 1;
                    continue;
                }
                *times += 1;
                let line = pushed.and_then(|site| self.sums.get_mut(site as usize));
                if let (1, Some(line), Some(sums)) = (*times, line, self.routes.get(at)) {
                    line.all.add(*sums);
                }
                todo.push((route, true));
            }
            let first = running.partition_point(|((of, _), _)| *of < route);
            for ((_, site), sums) in running.iter().skip(first).take_while(|((of, _), _)| *of == route) {
                if active.get(*site as usize) == Some(&0)
                    && let Some(line) = self.sums.get_mut(*site as usize)
                {
                    line.all.add(*sums);
                }
            }
            let mut child = first_child.get(at).copied().unwrap_or(0);
            while child != 0 {
                todo.push((child, false));
                child = next_sibling.get(child as usize).copied().unwrap_or(0);
            }
        }
        let sums = self.sums;
        let has_any = |sums: &LineSums| sums.all.weight > 0 || sums.all.samples > 0;
        let sums_of = move |number: u32| sums.get(number as usize).copied().unwrap_or_default();
        self.numbers.into_iter().map(move |(site, number)| (site, sums_of(number))).filter(move |(_, it)| has_any(it))
    }
}
