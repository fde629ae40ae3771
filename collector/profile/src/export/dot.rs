//! The call graph for Graphviz.

use std::collections::HashSet;
use std::io::{self, Write};

use super::{Export, unit_name};
use crate::sanitise;
use crate::view::GraphView;

/// Functions with less of the total than this, inherited, are left out, and arcs with less; a graph of thousands of
/// nodes cannot be drawn, let alone read. (gprof2dot leaves out 0.5% and 0.1%.)
const LEAST_NODE: f64 = 0.005;
const LEAST_ARC: f64 = 0.001;

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let graph = GraphView::new(export.profile, export.selection);
    let total = graph.total.weight;
    let share = |weight: u64| if total == 0 { 0.0 } else { weight as f64 / total as f64 };
    let kept: HashSet<_> = graph
        .nodes
        .iter()
        .filter(|node| share(node.inherited_weight()) >= LEAST_NODE)
        .map(|node| node.function)
        .collect();
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
        format!("\\n{left_out} functions with less than {:.1}% are left out", 100.0 * LEAST_NODE)
    };
    let unit = unit_name(metric.unit);
    writeln!(out, "\tlabel=\"{title}\\n{total} {unit} ({name}); recursion is folded{rest}\";")?;
    writeln!(out, "\tnode [shape=box, style=filled, fontname=\"Helvetica\"];\n\tedge [fontname=\"Helvetica\"];")?;
    for node in graph.nodes.iter().filter(|node| kept.contains(&node.function)) {
        let inherited = share(node.inherited_weight());
        writeln!(
            out,
            "\tf{} [label=\"{}\\n{:.2}%\\n({:.2}%)\", tooltip=\"{} {} self, {} inherited\", fillcolor=\"{}\", fontcolor=\"{}\"];",
            node.function.index(),
            escape(&sanitise(&node.name)),
            100.0 * inherited,
            100.0 * share(node.self_weight),
            node.self_weight,
            unit,
            node.inherited_weight(),
            colour(inherited),
            if inherited > 0.5 { "white" } else { "black" },
        )?;
    }
    for node in graph.nodes.iter().filter(|node| kept.contains(&node.function)) {
        for arc in node.callees.iter().filter(|arc| kept.contains(&arc.function)) {
            let part = share(arc.self_weight.saturating_add(arc.child_weight));
            if part < LEAST_ARC {
                continue;
            }
            writeln!(
                out,
                "\tf{} -> f{} [label=\"{:.2}%\", penwidth=\"{:.2}\", color=\"{}\"];",
                node.function.index(),
                arc.function.index(),
                100.0 * part,
                (4.0 * part).max(0.5),
                colour(part),
            )?;
        }
    }
    writeln!(out, "}}")
}

/// From pale to dark, by hue, saturation and value as Graphviz takes them: told apart without colour, too.
fn colour(share: f64) -> String {
    let share = share.clamp(0.0, 1.0).sqrt();
    format!("{:.3} {:.3} {:.3}", 0.58 * (1.0 - share), 0.15 + 0.75 * share, 0.98 - 0.35 * share)
}

/// Text within quotes. A backslash begins an escape of Graphviz' own.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}
