//! The difference of two profiles as a call tree.

use ccsd_profile::view::{ChainSide, DiffTree, OtherDiff, Share, Total};
use ccsd_profile::{Unit, sanitise};

use super::change::{ShownChange, change_cell};
use crate::format::{UnitScale, indent, percent};
use crate::style::{TextLayout, Tone};
use crate::table::{TableCell, TableColumn, TextTable};

/// Renders the tree in at most `limit` lines.
pub fn text(tree: &DiffTree, unit: Unit, absolute: bool, limit: Option<usize>, layout: TextLayout) -> String {
    if tree.nodes.is_empty() {
        return "no call to show\n".to_owned();
    }
    let scale = UnitScale::new(unit, tree.before.weight.max(tree.after.weight));
    let mut table = TextTable::new(vec![
        TableColumn::number(if absolute { format!("change {}", scale.unit) } else { "change %".to_owned() }),
        TableColumn::text(""),
        TableColumn::number(format!("total {}", scale.unit)),
        TableColumn::number("%"),
        TableColumn::number("-> total"),
        TableColumn::number("%"),
        TableColumn::number("self"),
        TableColumn::number("-> self"),
        TableColumn::text("function"),
    ]);
    let share = |weight: u64, total: Total| Share::from_weight(weight, &total).fraction;
    let mut steps = Vec::new();
    push(&mut steps, &tree.roots, tree.other, 0);
    let (mut shown, mut beyond) = (0, 0);
    while let Some(step) = steps.pop() {
        if limit.is_some_and(|limit| shown >= limit) {
            beyond += 1;
            continue;
        }
        shown += 1;
        match step {
            DiffVisit::Other(other, depth) => {
                let OtherDiff { nodes, before, after } = other;
                let change = share(after, tree.after) - share(before, tree.before);
                let change = ShownChange { share: change, weights: (before, after), significant: false };
                let faint = |text: String| TableCell::toned(Tone::Faint, text);
                table.row(vec![
                    change_cell(&change, absolute, scale),
                    TableCell::default(),
                    faint(scale.weight(before)),
                    faint(percent(share(before, tree.before))),
                    faint(scale.weight(after)),
                    faint(percent(share(after, tree.after))),
                    TableCell::default(),
                    TableCell::default(),
                    faint(format!("{}[{nodes} more]", indent(depth))),
                ]);
            }
            DiffVisit::Node(at, depth) => {
                let Some(node) = tree.nodes.get(at) else { continue };
                let significant = if absolute { node.absolutely_significant } else { node.significant };
                let (before, after): (ChainSide, ChainSide) = (node.before, node.after);
                let change = ShownChange { share: node.change, weights: (before.weight, after.weight), significant };
                table.row(vec![
                    change_cell(&change, absolute, scale),
                    TableCell::toned(Tone::Faint, if significant { "" } else { "~" }),
                    scale.weight(before.weight).into(),
                    percent(share(before.weight, tree.before)).into(),
                    scale.weight(after.weight).into(),
                    percent(share(after.weight, tree.after)).into(),
                    scale.weight(before.self_weight).into(),
                    scale.weight(after.self_weight).into(),
                    format!("{}{}", indent(depth), sanitise(&tree.label(node))).into(),
                ]);
                push(&mut steps, &node.children, node.other, depth + 1);
            }
        }
    }
    let mut text = table.render(layout);
    if beyond > 0 {
        text.push_str("[more below; -n 0 shows all, --min less of it]\n");
    }
    text
}

enum DiffVisit {
    Node(usize, usize),
    Other(OtherDiff, usize),
}

fn push(steps: &mut Vec<DiffVisit>, list: &[usize], other: OtherDiff, depth: usize) {
    if other.nodes > 0 {
        steps.push(DiffVisit::Other(other, depth));
    }
    steps.extend(list.iter().rev().map(|&node| DiffVisit::Node(node, depth)));
}
