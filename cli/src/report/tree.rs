//! Call trees: top-down, bottom-up, and both for one function.

use ccsd_profile::view::{FlatRow, FlatView, OtherChains, Share, Total, TreeView};
use ccsd_profile::{CostCentreId, sanitise};
use serde::Serialize;

use super::presentation::Presentation;
use crate::format::{UnitScale, counted, indent, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

const FUNCTIONS_ON_TERMINAL: usize = 3;
/// Maximum functions at all: each needs a pass over the whole profile.
const MOST_FUNCTIONS: usize = 50;

pub fn top_down(shown: &Presentation<'_>) -> TreeView {
    finish(shown, TreeView::top_down(shown.profile, &shown.selection, shown.min))
}

pub fn bottom_up(shown: &Presentation<'_>) -> TreeView {
    finish(shown, TreeView::bottom_up(shown.profile, &shown.selection, shown.min))
}

/// From the root down, for a graph that decides by its own width what is shown.
pub fn whole(shown: &Presentation<'_>) -> TreeView {
    TreeView::top_down(shown.profile, &shown.selection, shown.min)
}

fn finish(shown: &Presentation<'_>, mut view: TreeView) -> TreeView {
    if let Some(limit) = shown.limit {
        view.limit(limit);
    }
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    view
}

#[derive(Serialize)]
pub struct Butterfly {
    #[serde(flatten)]
    row: FlatRow,
    callers: TreeView,
    callees: TreeView,
}

/// The requested functions, ordered by inherited weight.
#[derive(Serialize)]
pub struct Butterflies {
    total: Total,
    functions: Vec<Butterfly>,
    left_out: usize,
}

pub fn butterflies(shown: &Presentation<'_>) -> Butterflies {
    let mut flat = FlatView::new(shown.profile, &shown.selection);
    flat.sort(ccsd_profile::view::ViewColumn::Inherited);
    let butterfly = |row: FlatRow| {
        let of: CostCentreId = row.function;
        let callers = finish(shown, TreeView::callers(shown.profile, &shown.selection, of, shown.min));
        let callees = finish(shown, TreeView::callees(shown.profile, &shown.selection, of, shown.min));
        Butterfly { row, callers, callees }
    };
    let most = if shown.layout.is_terminal() { FUNCTIONS_ON_TERMINAL } else { MOST_FUNCTIONS };
    let mut rows: Vec<FlatRow> = flat.rows.into_iter().filter(|row| shown.wants(row.function)).collect();
    let left_out = rows.len().saturating_sub(most);
    rows.truncate(most);
    Butterflies { total: flat.total, functions: rows.into_iter().map(butterfly).collect(), left_out }
}

pub fn top_down_text(shown: &Presentation<'_>) -> String {
    let view = top_down(shown);
    if view.total.samples == 0 { shown.nothing() } else { both_weights(shown, &view) }
}

pub fn bottom_up_text(shown: &Presentation<'_>) -> String {
    let view = bottom_up(shown);
    if view.total.samples == 0 { shown.nothing() } else { one_weight(shown, &view, "self") }
}

pub fn butterflies_text(shown: &Presentation<'_>) -> String {
    let Butterflies { total, functions, left_out } = butterflies(shown);
    if functions.is_empty() {
        return shown.nothing();
    }
    let scale = UnitScale::new(shown.metric.unit, total.weight);
    let mut text = String::new();
    for Butterfly { row, callers, callees } in functions {
        if !text.is_empty() {
            text.push('\n');
        }
        let head = format!(
            "{} ({}): {}",
            sanitise(&shown.labels.label_beside_image(row.function)),
            sanitise(&row.image),
            scale.total_and_self(
                (row.inherited_weight, row.inherited_share.fraction),
                (row.self_weight, row.self_share.fraction)
            ),
        );
        text.push_str(&shown.layout.paint(Tone::Strong, &head));
        text.push_str("\n\ncallers: who its total time was for\n");
        text.push_str(&one_weight(shown, &callers, "total"));
        text.push_str("\ncallees: where it went\n");
        text.push_str(&both_weights(shown, &callees));
    }
    if left_out > 0 {
        let more = counted(left_out as u64, "more function has", "more functions have");
        text.push_str(&format!("\n# {more} such a name\n"));
    }
    text
}

pub fn table_of_both(shown: &Presentation<'_>, scale: &UnitScale) -> TextTable {
    TextTable::new(vec![
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::text(shown.by.nouns().0),
    ])
}

fn both_weights(shown: &Presentation<'_>, view: &TreeView) -> String {
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let share = |weight| percent(Share::from_weight(weight, &view.total).fraction);
    let mut table = table_of_both(shown, &scale);
    for line in lines(view) {
        let tone = line.tone();
        let mut cells =
            vec![TableCell::toned(tone, scale.weight(line.weight)), TableCell::toned(tone, share(line.weight))];
        match line.own {
            Some(own) => cells.extend([scale.weight(own).into(), share(own).into()]),
            None => cells.extend([TableCell::default(), TableCell::default()]),
        }
        cells.push(TableCell::toned(tone, line.text()));
        table.row(cells);
    }
    table.render(shown.layout)
}

fn one_weight(shown: &Presentation<'_>, view: &TreeView, what: &str) -> String {
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let mut table = TextTable::new(vec![
        TableColumn::number(format!("{what} {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::text(shown.by.nouns().0),
    ]);
    for line in lines(view) {
        let share = Share::from_weight(line.weight, &view.total);
        let tone = line.tone();
        table.row(vec![
            TableCell::toned(tone, scale.weight(line.weight)),
            TableCell::toned(tone, percent(share.fraction)),
            TableCell::toned(tone, line.text()),
        ]);
    }
    table.render(shown.layout)
}

struct TreeLine {
    depth: usize,
    weight: u64,
    own: Option<u64>,
    what: Result<String, usize>,
}

impl TreeLine {
    fn tone(&self) -> Tone {
        if self.what.is_ok() { Tone::Plain } else { Tone::Faint }
    }

    fn text(&self) -> String {
        let indent = indent(self.depth);
        match &self.what {
            Ok(label) => format!("{indent}{}", sanitise(label)),
            Err(nodes) => format!("{indent}[{nodes} more]"),
        }
    }
}

/// The lines of a tree from the root down. Iterative: a chain may have thousands of entries.
fn lines(view: &TreeView) -> Vec<TreeLine> {
    enum TreeVisit {
        Node(usize, usize),
        Other(OtherChains, usize),
    }
    let mut lines = Vec::new();
    let mut steps = Vec::new();
    let push = |steps: &mut Vec<TreeVisit>, list: &[usize], other: OtherChains, depth: usize| {
        if !other.is_none() {
            steps.push(TreeVisit::Other(other, depth));
        }
        steps.extend(list.iter().rev().map(|&node| TreeVisit::Node(node, depth)));
    };
    push(&mut steps, &view.roots, view.other, 0);
    while let Some(step) = steps.pop() {
        match step {
            TreeVisit::Other(other, depth) => {
                lines.push(TreeLine { depth, weight: other.weight, own: None, what: Err(other.nodes) });
            }
            TreeVisit::Node(at, depth) => {
                let Some(node) = view.nodes.get(at) else { continue };
                lines.push(TreeLine {
                    depth,
                    weight: node.weight,
                    own: Some(node.self_weight),
                    what: Ok(view.label(node)),
                });
                push(&mut steps, &node.children, node.other, depth + 1);
            }
        }
    }
    lines
}
