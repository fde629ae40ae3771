//! The call graph for Graphviz.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use super::palette::{NEUTRAL, Palette};
use super::request::{Export, unit_name};
use crate::ids::CostCentreId;
use crate::model::Unit;
use crate::numbers::{count, nanoseconds};
use crate::text::sanitise;
use crate::view::{GraphArc, GraphView, TreeView};

/// Minimum shares of functions and arcs, and maximum functions: a screen's worth. (gprof2dot uses 0.5% and 0.1%.)
const LEAST_NODE: f64 = 0.005;
const LEAST_ARC: f64 = 0.005;
const MOST_NODES: usize = 24;

const LAYOUT: &str = "ranksep=0.22, nodesep=0.15, fontname=\"Helvetica\", fontsize=11";
const NODES: &str = "shape=box, style=\"filled,rounded\", fontname=\"Helvetica\", fontsize=10, height=0.3, margin=\"0.08,0.03\", \
                     color=\"#00000040\"";
const EDGES: &str = "fontname=\"Helvetica\", fontsize=9, fontcolor=\"#5a626b\", arrowsize=0.6, color=\"#8a929b\"";
/// The heaviest chain, as in a page.
const HOT: &str = "#c4161c";

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let palette = Palette::of(export.profile, &TreeView::new(export.profile, export.selection));
    // As in a page, what only starts the program is left out.
    let selection = export.selection.clone().hide(export.profile.startup_functions());
    let export = &Export { selection: &selection, ..*export };
    let graph = GraphView::new(export.profile, export.selection);
    // Whole names of templates make boxes wider than a screen; they are in the tips.
    let (labels, full_labels) = (export.profile.labels(), export.profile.full_labels());
    let total = graph.total.weight;
    let share = |weight: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
    let mut heavy: Vec<_> = graph.nodes.iter().filter(|node| share(node.inherited_weight()) >= LEAST_NODE).collect();
    heavy.sort_by_key(|node| (Reverse(node.inherited_weight()), node.function));
    let kept: HashSet<_> = heavy.iter().take(MOST_NODES).map(|node| node.function).collect();
    let least = heavy.get(MOST_NODES).map_or(LEAST_NODE, |node| share(node.inherited_weight()));
    let left_out = graph.nodes.len() - kept.len();
    for remark in export.remarks() {
        writeln!(out, "// {remark}")?;
    }
    writeln!(out, "digraph ccsd {{")?;
    let metric = export.metric();
    let (title, name) = (escape(&export.title()), escape(&sanitise(&metric.name)));
    let rest = if left_out == 0 {
        String::new()
    } else {
        format!("\\n{left_out} functions with at most {:.1}% are one box", 100.0 * least)
    };
    let unit = unit_name(metric.unit);
    let whole = if metric.unit == Unit::Nanoseconds { nanoseconds(total) } else { format!("{} {unit}", count(total)) };
    writeln!(out, "\tgraph [{LAYOUT}, labelloc=t];\n\tnode [{NODES}];\n\tedge [{EDGES}];")?;
    writeln!(out, "\tlabel=\"{title}\\n{whole} of {name}; recursion is folded, and what starts the program{rest}\";")?;
    let path = hot_path(export);
    let hot: HashSet<CostCentreId> = path.iter().map(|step| step.1).collect();
    for node in graph.nodes.iter().filter(|node| kept.contains(&node.function)) {
        let colour = palette.get(node.function).map_or(NEUTRAL, |it| it.tone).light.hex();
        let border =
            if hot.contains(&node.function) { format!(", color=\"{HOT}\", penwidth=1.5") } else { String::new() };
        writeln!(
            out,
            "\tf{} [label=\"{}\\ntotal {:.2}%  self {:.2}%\", tooltip=\"{}: {} {} self, {} total\", fillcolor=\"{colour}\"{border}];",
            node.function.index(),
            escape(&sanitise(&labels.label(node.function))),
            100.0 * share(node.inherited_weight()),
            100.0 * share(node.self_weight),
            escape(&sanitise(&full_labels.label(node.function))),
            node.self_weight,
            unit,
            node.inherited_weight(),
        )?;
    }
    // Functions below the threshold are one node, so that self weights add up to the total.
    let rest = graph.nodes.iter().filter(|node| !kept.contains(&node.function));
    let rest = rest.fold(0u64, |sum, node| sum.saturating_add(node.self_weight));
    if left_out > 0 {
        writeln!(
            out,
            "\tother [label=\"[other: {left_out} functions]\\nself {:.2}%\", tooltip=\"{rest} {unit} self\", \
             style=\"filled,rounded,dashed\", fillcolor=\"white\"];",
            100.0 * share(rest),
        )?;
    }
    let calls: HashSet<(CostCentreId, CostCentreId)> =
        path.iter().filter_map(|&(caller, callee)| Some((caller?, callee))).collect();
    for (&(from, to), arc) in &arcs(&graph, &kept) {
        let part = share(arc.outgoing.max(arc.incoming));
        if part < LEAST_ARC {
            continue;
        }
        let id = |end: Option<CostCentreId>| end.map_or_else(|| "other".to_owned(), |it| format!("f{}", it.index()));
        // With mutual recursion, caller and callee each count an arc by their own latest activation.
        let label = if arc.outgoing == arc.incoming {
            format!("{:.2}%", 100.0 * part)
        } else {
            format!("{:.2}% out\\n{:.2}% in", 100.0 * share(arc.outgoing), 100.0 * share(arc.incoming))
        };
        let mark = if arc.approximate { "~" } else { "" };
        let is_hot = from.zip(to).is_some_and(|arc| calls.contains(&arc));
        writeln!(
            out,
            "\t{} -> {} [label=\"{mark}{label}\", penwidth=\"{:.2}\"{}{}];",
            id(from),
            id(to),
            (4.0 * part).max(if is_hot { 2.0 } else { 0.5 }),
            if arc.approximate { ", style=dashed" } else { "" },
            if is_hot { format!(", color=\"{HOT}\", class=\"hot\"") } else { String::new() },
        )?;
    }
    writeln!(out, "}}")
}

#[derive(Default)]
struct CallArc {
    outgoing: u64,
    incoming: u64,
    approximate: bool,
}

/// The arcs between kept functions, and between them and all others as one (`None`).
fn arcs(
    graph: &GraphView,
    kept: &HashSet<CostCentreId>,
) -> BTreeMap<(Option<CostCentreId>, Option<CostCentreId>), CallArc> {
    let mut arcs: BTreeMap<_, CallArc> = BTreeMap::new();
    let end = |function| Some(function).filter(|it| kept.contains(it));
    let weight = |arc: &GraphArc| arc.self_weight.saturating_add(arc.child_weight);
    for node in &graph.nodes {
        let here = end(node.function);
        for arc in node.callees.iter().filter(|arc| here.is_some() || kept.contains(&arc.function)) {
            let sum = arcs.entry((here, end(arc.function))).or_default();
            sum.outgoing = sum.outgoing.saturating_add(weight(arc));
            sum.approximate |= arc.approximate;
        }
        for arc in node.callers.iter().filter(|arc| here.is_some() || kept.contains(&arc.function)) {
            let sum = arcs.entry((end(arc.function), here)).or_default();
            sum.incoming = sum.incoming.saturating_add(weight(arc));
            sum.approximate |= arc.approximate;
        }
    }
    arcs
}

/// The functions of the heaviest chain, each with its caller, if it certainly called it.
fn hot_path(export: &Export<'_>) -> Vec<(Option<CostCentreId>, CostCentreId)> {
    let tree = TreeView::new(export.profile, export.selection);
    let path = tree.hot_path();
    let nodes = path.iter().filter_map(|&at| tree.nodes.get(at));
    let callers = std::iter::once(None).chain(nodes.clone().map(Some));
    nodes
        .zip(callers)
        .map(|(node, caller)| (caller.filter(|_| !node.gap).map(|it| it.function), node.function))
        .collect()
}

/// Escapes text within quotes, where a backslash begins an escape.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
