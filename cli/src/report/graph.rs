//! The call graph profile, in gprof's form.

use std::collections::HashMap;

use ccsd_profile::view::{GraphArc, GraphNode, GraphView};
use ccsd_profile::{CostCentreId, Labels, sanitise};

use super::presentation::Presentation;
use crate::format::{UnitScale, percent};
use crate::style::Tone;
use crate::table::{TableCell, TableColumn, TextTable};

const ARCS_ON_TERMINAL: usize = 10;

/// The view, and the number of each function: its position in the whole view.
pub fn view(shown: &Presentation<'_>) -> (GraphView, HashMap<CostCentreId, usize>) {
    let mut view = GraphView::new(shown.profile, &shown.selection);
    let numbers = view.nodes.iter().enumerate().map(|(i, node)| (node.function, i + 1)).collect();
    if let Some(column) = shown.sort {
        view.sort(column);
    }
    view.nodes.retain(|node| shown.wants(node.function));
    (view, numbers)
}

pub fn text(shown: &Presentation<'_>) -> String {
    let (view, numbers) = view(shown);
    if view.nodes.is_empty() {
        return shown.nothing();
    }
    let scale = UnitScale::new(shown.metric.unit, view.total.weight);
    let graph = GraphPrinter {
        view: &view,
        labels: &shown.labels,
        scale,
        numbers,
        arcs: shown.layout.is_terminal().then_some(ARCS_ON_TERMINAL),
    };
    let mut table = TextTable::new(vec![
        TableColumn::text("index"),
        TableColumn::number("%"),
        TableColumn::number(format!("self {}", scale.unit)),
        TableColumn::number(format!("child {}", scale.unit)),
        TableColumn::text(shown.by.nouns().0),
    ]);
    let rows = shown.rows(view.nodes.len());
    for node in view.nodes.iter().take(rows) {
        graph.block(&mut table, node);
        table.rule();
    }
    let mut text = table.render(shown.layout);
    if let left @ 1.. = view.nodes.len() - rows {
        let more = shown.counted(left, "more ");
        text.push_str(&shown.layout.paint(Tone::Faint, &format!("[{more}{}]\n", shown.hint())));
    }
    text
}

struct GraphPrinter<'a> {
    view: &'a GraphView,
    labels: &'a Labels<'a>,
    scale: UnitScale,
    numbers: HashMap<CostCentreId, usize>,
    arcs: Option<usize>,
}

impl GraphPrinter<'_> {
    fn block(&self, table: &mut TextTable, node: &GraphNode) {
        if node.root_self_weight > 0 || node.root_child_weight > 0 {
            let name = if node.root_approximate { "~<root>" } else { "<root>" };
            self.line(table, node.root_self_weight, node.root_child_weight, name);
        }
        self.side(table, &node.callers);
        let number = self.numbers.get(&node.function).copied().unwrap_or(0);
        let strong = |text: String| TableCell::toned(Tone::Strong, text);
        table.row(vec![
            strong(format!("[{number}]")),
            strong(percent(node.share.fraction)),
            strong(self.scale.weight(node.self_weight)),
            strong(self.scale.weight(node.child_weight)),
            strong(format!("{} [{number}]", sanitise(&self.labels.label(node.function)))),
        ]);
        self.side(table, &node.callees);
    }

    fn side(&self, table: &mut TextTable, arcs: &[GraphArc]) {
        let shown = self.arcs.unwrap_or(arcs.len());
        for arc in arcs.iter().take(shown) {
            let number = self.numbers.get(&arc.function).copied().unwrap_or(0);
            let mark = if arc.approximate { "~" } else { "" };
            let label = self.labels.label(arc.function);
            let label = self.view.in_arc(&label);
            self.line(table, arc.self_weight, arc.child_weight, &format!("{mark}{} [{number}]", sanitise(&label)));
        }
        if let Some(rest @ [_, ..]) = arcs.get(shown..) {
            let sum = |weight: fn(&GraphArc) -> u64| rest.iter().map(weight).fold(0, u64::saturating_add);
            let (own, child) = (sum(|arc| arc.self_weight), sum(|arc| arc.child_weight));
            self.line(table, own, child, &format!("[{} more]", rest.len()));
        }
    }

    fn line(&self, table: &mut TextTable, own: u64, child: u64, name: &str) {
        let (own, child) = (self.scale.weight(own), self.scale.weight(child));
        table.row(vec!["".into(), "".into(), own.into(), child.into(), format!("    {name}").into()]);
    }
}
