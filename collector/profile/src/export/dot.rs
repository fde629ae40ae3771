//! The call graph for Graphviz.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};

use super::request::{Export, unit_name};
use crate::ids::CostCentreId;
use crate::text::sanitise;
use crate::view::{GraphArc, GraphView, TreeView};

/// Minimum share of functions and arcs of the total, inherited; and the most functions: a screen holds no more.
/// (gprof2dot leaves out 0.5% and 0.1%.)
const LEAST_NODE: f64 = 0.005;
const LEAST_ARC: f64 = 0.005;
const MOST_NODES: usize = 24;

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
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
        format!("\\n{left_out} functions with at most {:.1}% are one", 100.0 * least)
    };
    let unit = unit_name(metric.unit);
    writeln!(out, "\tlabel=\"{title}\\n{total} {unit} ({name}); recursion is folded{rest}\";")?;
    writeln!(out, "\tnode [shape=box, style=filled, fontname=\"Helvetica\"];\n\tedge [fontname=\"Helvetica\"];")?;
    for node in graph.nodes.iter().filter(|node| kept.contains(&node.function)) {
        let inherited = share(node.inherited_weight());
        writeln!(
            out,
            "\tf{} [label=\"{}\\n{:.2}%\\n({:.2}%)\", tooltip=\"{}: {} {} self, {} inherited\", fillcolor=\"{}\", fontcolor=\"{}\"];",
            node.function.index(),
            escape(&sanitise(&labels.label(node.function))),
            100.0 * inherited,
            100.0 * share(node.self_weight),
            escape(&sanitise(&full_labels.label(node.function))),
            node.self_weight,
            unit,
            node.inherited_weight(),
            colour(inherited),
            if inherited > 0.5 { "white" } else { "black" },
        )?;
    }
    // Functions below the threshold are one node, so that self weights add up to the total.
    let rest = graph.nodes.iter().filter(|node| !kept.contains(&node.function));
    let rest = rest.fold(0u64, |sum, node| sum.saturating_add(node.self_weight));
    if left_out > 0 {
        writeln!(
            out,
            "\tother [label=\"[other: {left_out} functions]\\n({:.2}%)\", tooltip=\"{rest} {unit} self\", style=\"filled,dashed\", \
             fillcolor=\"white\"];",
            100.0 * share(rest),
        )?;
    }
    let hot = hot_chain(export);
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
        let is_hot = from.zip(to).is_some_and(|arc| hot.contains(&arc));
        writeln!(
            out,
            "\t{} -> {} [label=\"{mark}{label}\", penwidth=\"{:.2}\", color=\"{}\"{}{}];",
            id(from),
            id(to),
            (4.0 * part).max(if is_hot { 2.0 } else { 0.5 }),
            if is_hot { "red".to_owned() } else { colour(part) },
            if arc.approximate { ", style=dashed" } else { "" },
            if is_hot { ", class=\"hot\"" } else { "" },
        )?;
    }
    writeln!(out, "}}")
}

/// Both weights of an arc.
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

/// The calls on the heaviest chain.
fn hot_chain(export: &Export<'_>) -> HashSet<(CostCentreId, CostCentreId)> {
    let tree = TreeView::new(export.profile, export.selection);
    let path = tree.hot_path();
    let nodes = path.iter().filter_map(|&at| tree.nodes.get(at));
    nodes
        .clone()
        .zip(nodes.skip(1))
        .filter(|(_, callee)| !callee.gap)
        .map(|(caller, callee)| (caller.function, callee.function))
        .collect()
}

/// From pale to dark, as hue, saturation and value for Graphviz: distinguishable without colour, too.
fn colour(share: f64) -> String {
    let share = share.clamp(0.0, 1.0).sqrt();
    format!("{:.3} {:.3} {:.3}", 0.58 * (1.0 - share), 0.15 + 0.75 * share, 0.98 - 0.35 * share)
}

/// Escapes text within quotes, where a backslash begins an escape.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
