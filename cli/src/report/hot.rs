//! The most expensive call chains, and where they fork.

use ccsd_profile::view::{Share, Total, TreeNode, TreeView};
use ccsd_profile::{CostCentreId, Definition, sanitise};
use serde::Serialize;

use super::presentation::Presentation;
use super::tree;
use crate::format::{UnitScale, indent, percent};
use crate::style::Tone;
use crate::table::TableCell;

const ASIDES: usize = 2;

#[derive(Serialize)]
pub struct Hot {
    total: Total,
    paths: Vec<HotPath>,
}

#[derive(Serialize)]
struct HotPath {
    /// Number of its first steps that an earlier chain also has.
    shared: usize,
    steps: Vec<HotStep>,
}

#[derive(Serialize)]
struct HotStep {
    /// Name as shown, with its marks and what distinguishes it from namesakes.
    name: String,
    function: CostCentreId,
    #[serde(flatten)]
    definition: Definition,
    marked: bool,
    self_weight: u64,
    weight: u64,
    samples: u64,
    share: Share,
    /// The caller's other callees in these stacks, heaviest first.
    aside: Vec<Sibling>,
    more: u64,
    more_weight: u64,
}

#[derive(Serialize)]
struct Sibling {
    name: String,
    weight: u64,
    share: Share,
}

pub fn view(shown: &Presentation<'_>) -> Hot {
    let tree = TreeView::new(shown.profile, &shown.selection);
    let total = tree.total;
    let mut seen = vec![false; tree.nodes.len()];
    let step = |at: usize, node: &TreeNode| {
        let caller = node.parent.and_then(|parent| tree.nodes.get(parent));
        let siblings = caller.map_or(tree.roots.as_slice(), |caller| caller.children.as_slice());
        let mut others = siblings.iter().filter(|&&other| other != at).filter_map(|&other| tree.nodes.get(other));
        let aside = |node: &TreeNode| Sibling { name: tree.label(node), weight: node.weight, share: node.share };
        let first: Vec<Sibling> = others.by_ref().take(ASIDES).map(aside).collect();
        let (more, more_weight) = others.fold((0, 0u64), |(n, sum), node| (n + 1, sum.saturating_add(node.weight)));
        HotStep {
            name: tree.label(node),
            function: node.function,
            definition: tree.definitions.get(&node.function).cloned().unwrap_or_default(),
            marked: node.marked,
            self_weight: node.self_weight,
            weight: node.weight,
            samples: node.samples,
            share: node.share,
            aside: first,
            more,
            more_weight,
        }
    };
    let mut path = |nodes: Vec<usize>| {
        let shared = nodes.iter().take_while(|&&at| seen.get(at).copied().unwrap_or(false)).count();
        for &at in &nodes {
            if let Some(seen) = seen.get_mut(at) {
                *seen = true;
            }
        }
        let steps = nodes.iter().filter_map(|&at| Some(step(at, tree.nodes.get(at)?))).collect();
        HotPath { shared, steps }
    };
    let count = shown.limit.unwrap_or(1);
    Hot { total, paths: tree.hot_paths(count).into_iter().map(&mut path).collect() }
}

pub fn text(shown: &Presentation<'_>) -> String {
    let Hot { total, paths } = view(shown);
    if paths.is_empty() {
        return shown.nothing();
    }
    let scale = UnitScale::new(shown.metric.unit, total.weight);
    let mut text = String::new();
    for (number, path) in (1..).zip(&paths) {
        let mut table = tree::table_of_both(shown, &scale);
        let fork = path.shared.checked_sub(1).and_then(|at| path.steps.get(at));
        let head = match (fork, path.steps.get(path.shared)) {
            (Some(fork), Some(_)) => format!("{number}. leaves a chain before this at {}", sanitise(&fork.name)),
            _ if number > 1 => format!("{number}. the next heaviest, from another root"),
            _ => format!("{number}. the heaviest chain"),
        };
        if number > 1 {
            text.push('\n');
        }
        text.push_str(&shown.layout.paint(Tone::Strong, &head));
        text.push('\n');
        for (depth, step) in path.steps.iter().enumerate().skip(path.shared) {
            let own = Share::from_weight(step.self_weight, &total);
            table.row(vec![
                scale.weight(step.weight).into(),
                percent(step.share.fraction).into(),
                scale.weight(step.self_weight).into(),
                percent(own.fraction).into(),
                format!("{}{}", indent(depth), sanitise(&step.name)).into(),
            ]);
            // The siblings at the fork were shown with the earlier chain.
            if depth == path.shared && path.shared > 0 {
                continue;
            }
            let mut aside = |weight: u64, name: String| {
                let share = Share::from_weight(weight, &total);
                if weight > 0 && share.fraction >= shown.min {
                    table.row(vec![
                        TableCell::toned(Tone::Faint, scale.weight(weight)),
                        TableCell::toned(Tone::Faint, percent(share.fraction)),
                        TableCell::default(),
                        TableCell::default(),
                        TableCell::toned(Tone::Faint, format!("{}or {name}", indent(depth))),
                    ]);
                }
            };
            for other in &step.aside {
                aside(other.weight, sanitise(&other.name).into_owned());
            }
            aside(step.more_weight, format!("[{} others]", step.more));
        }
        text.push_str(&table.render(shown.layout));
    }
    text
}
