//! The lines view: on which source lines each function spent its self weight.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::walk::{sums_of, walk_contexts};
use super::{Column, Selection, Share, Sums, Total};
use crate::ids::{CostCentreId, LineId};
use crate::labels::Definition;
use crate::profile::Profile;

/// One line of a function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LineRow {
    /// The line.
    pub id: LineId,
    /// Its file; empty if unknown.
    pub file: String,
    /// Its number; 0 if unknown.
    pub line: u32,
    /// Weight.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
    /// Share of the view's total.
    pub share: Share,
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
    /// Its lines, the heaviest first.
    pub lines: Vec<LineRow>,
}

/// Functions with self weight, the heaviest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LinesView {
    /// All of it.
    pub total: Total,
    /// The functions.
    pub functions: Vec<FunctionLines>,
}

impl LinesView {
    /// What [`LinesView::sort`] can order by.
    pub const COLUMNS: &[Column] = &[Column::Own, Column::Samples, Column::Name];

    /// Orders the functions by a column instead of self weight, and their lines: by name is by file and number.
    pub fn sort(&mut self, by: Column) {
        match by {
            Column::Samples => self.functions.sort_by_key(|it| Reverse(it.samples)),
            Column::Name => self.functions.sort_by(|a, b| a.name.cmp(&b.name)),
            _ => self.functions.sort_by_key(|it| Reverse(it.self_weight)),
        }
        for function in &mut self.functions {
            match by {
                Column::Samples => function.lines.sort_by_key(|line| Reverse(line.samples)),
                Column::Name => function.lines.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line))),
                _ => function.lines.sort_by_key(|line| Reverse(line.weight)),
            }
        }
    }

    /// Computes the view. What a hidden function spent counts for its innermost visible caller, without a line.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        // Who is charged for each context.
        let shown = profile.shown(selection);
        let mut charged = vec![None; shown.contexts().len()];
        let total = walk_contexts(profile, &shown, selection, |context, visible| {
            if let Some(place) = charged.get_mut(context.index()) {
                *place = Some(visible.leaf());
            }
        });
        let mut sums: HashMap<(CostCentreId, LineId), Sums> = HashMap::new();
        profile.for_each_charge(|charge| {
            let context = shown.context(charge.context);
            let Some(function) = charged.get(context.index()).copied().flatten() else { return };
            if !selection.takes_thread(charge.thread) || !shown.counts(charge.context) {
                return;
            }
            let line = if shown.shows_leaf(charge.context) { charge.line } else { LineId::UNKNOWN };
            sums.entry((function, line)).or_default().add(sums_of(&charge, selection));
        });
        let mut functions: HashMap<CostCentreId, (Vec<LineRow>, Sums)> = HashMap::new();
        for ((function, id), sums) in sums {
            let line = profile.line(id);
            let (lines, all) = functions.entry(function).or_default();
            all.add(sums);
            lines.push(LineRow {
                id,
                file: line.map(|line| line.file.to_string()).unwrap_or_default(),
                line: line.map_or(0, |line| line.line),
                weight: sums.weight,
                samples: sums.samples,
                share: Share::of(sums, &total),
            });
        }
        let labels = profile.labels();
        let mut functions: Vec<FunctionLines> = functions
            .into_iter()
            .map(|(function, (mut lines, all))| {
                lines.sort_by(|a, b| b.weight.cmp(&a.weight).then(a.id.cmp(&b.id)));
                FunctionLines {
                    function,
                    name: profile.name(function).into_owned(),
                    definition: labels.definition(function),
                    self_weight: all.weight,
                    samples: all.samples,
                    share: Share::of(all, &total),
                    lines,
                }
            })
            .collect();
        functions.sort_by(|a, b| b.self_weight.cmp(&a.self_weight).then(a.function.cmp(&b.function)));
        Self { total, functions }
    }
}
