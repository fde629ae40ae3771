//! The tree views: top down, bottom up, and those of one function both ways. Flame graphs and hot paths use them.

use std::borrow::Cow;
use std::cmp::Reverse;

use serde::Serialize;

use super::column::ViewColumn;
use super::entry::label;
use super::grow::{Amount, Chains, Forest, GrownNode, grow};
use super::interval::Share;
use super::names::{Definitions, FunctionNames, named, names};
use super::sums::Sums;
use super::total::Total;
use super::visible::{Visible, function, is_gap, is_marked};
use crate::ids::CostCentreId;
use crate::profile::Profile;
use crate::selection::Selection;

/// One function in a chain of others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeNode {
    /// Position of the node that this one is below in [`TreeView::nodes`], which is before it; `None` for a root.
    pub parent: Option<usize>,
    /// The function.
    pub function: CostCentreId,
    /// Whether this entry is the function's most recent activation; see [`History`](crate::History).
    pub marked: bool,
    /// Between this node and its parent, recursion was squeezed out: the one may not have called the other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gap: bool,
    /// The call from the parent may be another in part: functions are hidden or merged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approximate: bool,
    /// Weight of exactly this chain; from the root down that is self weight.
    pub self_weight: u64,
    /// Weight of this chain and its continuations. A function twice in a chain has it at both places.
    pub weight: u64,
    /// Samples of `weight`.
    pub samples: u64,
    /// Share of `weight` in the view's total.
    #[serde(skip)]
    pub share: Share,
    /// What goes on from here, the heaviest first, as positions in [`TreeView::nodes`].
    pub children: Vec<usize>,
    /// What goes on from here and is too light to be there.
    #[serde(skip_serializing_if = "OtherChains::is_none")]
    pub other: OtherChains,
}

/// Chains left out, so that totals survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OtherChains {
    /// How many nodes would be in their place; more may be below them.
    pub nodes: usize,
    /// Weight.
    pub weight: u64,
    /// Samples.
    pub samples: u64,
}

impl OtherChains {
    /// Whether nothing was left out.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.nodes == 0
    }
}

/// All chains of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TreeView {
    /// All of it. From the root down and from the leaves up it is the sum of the roots, with `other`.
    pub total: Total,
    /// The nodes, those above before those below.
    pub nodes: Vec<TreeNode>,
    /// Those with nothing above, the heaviest first.
    pub roots: Vec<usize>,
    /// Roots that are too light to be there.
    #[serde(skip_serializing_if = "OtherChains::is_none")]
    pub other: OtherChains,
    /// Names of the functions.
    pub names: FunctionNames,
    /// Where they are defined.
    pub definitions: Definitions,
}

impl Amount for Sums {
    fn add(&mut self, other: &Self) {
        Sums::add(self, *other);
    }

    fn order(&self) -> u64 {
        self.weight
    }
}

impl TreeView {
    /// Callers above callees. Of more than a million nodes, this and the other trees have the heaviest; `other` counts the rest.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        Self::top_down(profile, selection, 0.0)
    }

    /// Callers above callees, without what has less than `least` of the total.
    #[must_use]
    pub fn top_down(profile: &Profile, selection: &Selection, least: f64) -> Self {
        Self::grown(profile, selection, least, |context, chains, amount| {
            chains.push(context.entries().iter().copied(), amount);
        })
    }

    /// Callees above callers: the roots are the functions that ran, with their self weight.
    #[must_use]
    pub fn bottom_up(profile: &Profile, selection: &Selection, least: f64) -> Self {
        Self::grown(profile, selection, least, |context, chains, amount| {
            chains.push(context.upwards(context.entries().len() - 1), amount);
        })
    }

    /// What a function called: the one root is its latest activation. (No root if it was never active.)
    #[must_use]
    pub fn callees(profile: &Profile, selection: &Selection, of: CostCentreId, least: f64) -> Self {
        Self::grown(profile, selection, least, |context, chains, amount| {
            if let Some(at) = latest(context, of) {
                chains.push(context.downwards(at), amount);
            }
        })
    }

    /// Who called a function: the one root is its latest activation, its callers below with their parts.
    #[must_use]
    pub fn callers(profile: &Profile, selection: &Selection, of: CostCentreId, least: f64) -> Self {
        Self::grown(profile, selection, least, |context, chains, amount| {
            if let Some(at) = latest(context, of) {
                chains.push(context.upwards(at), amount);
            }
        })
    }

    fn grown(
        profile: &Profile,
        selection: &Selection,
        least: f64,
        mut chain: impl FnMut(&Visible<'_>, &mut Chains<Sums>, Sums),
    ) -> Self {
        let mut chains = Chains::new();
        let total = profile.walk(selection).visit(|_, context| {
            chain(context, &mut chains, context.sums);
        });
        // Of nothing, everything is shown.
        let share = |weight: u64| if total.weight == 0 { 1.0 } else { weight as f64 / total.weight as f64 };
        let Forest { nodes, roots, rest } = grow(&chains, |amount| share(amount.weight) >= least);
        let other = |nodes, amount: Sums| OtherChains { nodes, weight: amount.weight, samples: amount.samples };
        let node = |it: GrownNode<Sums>| TreeNode {
            parent: it.parent,
            function: function(it.entry),
            marked: is_marked(it.entry),
            gap: is_gap(it.entry),
            approximate: it.approximate,
            self_weight: it.own.weight,
            weight: it.all.weight,
            samples: it.all.samples,
            share: Share::of(it.all, &total),
            children: it.children,
            other: other(it.rest.subtrees, it.rest.amount),
        };
        let nodes: Vec<TreeNode> = nodes.into_iter().map(node).collect();
        let (names, definitions) = names(profile, nodes.iter().map(|node| node.function));
        Self { total, nodes, roots, other: other(rest.subtrees, rest.amount), names, definitions }
    }

    /// What [`TreeView::sort`] can order by.
    pub const COLUMNS: &[ViewColumn] = &[ViewColumn::Inherited, ViewColumn::Own, ViewColumn::Samples, ViewColumn::Name];

    /// Orders what is below each node by a column instead of weight.
    pub fn sort(&mut self, by: ViewColumn) {
        let mut lists: Vec<Vec<usize>> = self.nodes.iter_mut().map(|node| std::mem::take(&mut node.children)).collect();
        lists.push(std::mem::take(&mut self.roots));
        for list in &mut lists {
            let node = |i: &usize| self.nodes.get(*i);
            match by {
                ViewColumn::Own => list.sort_by_key(|i| Reverse(node(i).map(|it| it.self_weight))),
                ViewColumn::Samples => list.sort_by_key(|i| Reverse(node(i).map(|it| it.samples))),
                ViewColumn::Name => list.sort_by_key(|i| node(i).and_then(|it| self.names.get(&it.function))),
                _ => list.sort_by_key(|i| Reverse(node(i).map(|it| it.weight))),
            }
        }
        self.roots = lists.pop().unwrap_or_default();
        for (node, list) in self.nodes.iter_mut().zip(lists) {
            node.children = list;
        }
    }

    /// Leaves out all but the `most` heaviest nodes.
    pub fn limit(&mut self, most: usize) {
        if self.nodes.len() <= most {
            return;
        }
        let mut order: Vec<usize> = (0..self.nodes.len()).collect();
        // What is above is at least as heavy, and comes first among equals: it is kept, too.
        order.sort_by_key(|&i| (Reverse(self.nodes.get(i).map(|node| node.weight)), i));
        order.truncate(most);
        order.sort_unstable();
        let mut place = vec![None; self.nodes.len()];
        for (new, &old) in order.iter().enumerate() {
            if let Some(place) = place.get_mut(old) {
                *place = Some(new);
            }
        }
        let nodes = std::mem::take(&mut self.nodes);
        let keep = |list: &mut Vec<usize>, other: &mut OtherChains| {
            list.retain_mut(|i| match place.get(*i).copied().flatten() {
                Some(new) => {
                    *i = new;
                    true
                }
                None => {
                    let (weight, samples) = nodes.get(*i).map_or((0, 0), |node| (node.weight, node.samples));
                    other.nodes += 1;
                    other.weight = other.weight.saturating_add(weight);
                    other.samples = other.samples.saturating_add(samples);
                    false
                }
            });
        };
        keep(&mut self.roots, &mut self.other);
        for mut node in order.iter().filter_map(|&i| nodes.get(i).cloned()) {
            keep(&mut node.children, &mut node.other);
            node.parent = node.parent.and_then(|parent| place.get(parent).copied().flatten());
            self.nodes.push(node);
        }
        let used: std::collections::HashSet<CostCentreId> = self.nodes.iter().map(|node| node.function).collect();
        self.names.retain(|function, _| used.contains(function));
        self.definitions.retain(|function, _| used.contains(function));
    }

    /// Name of a node's function as text shows it.
    #[must_use]
    pub fn name(&self, node: &TreeNode) -> Cow<'_, str> {
        named(node.function, &self.names, &self.definitions)
    }

    /// The label; in parentheses if entered again further in, after `[...]` or `~` if the call is a gap or approximate.
    #[must_use]
    pub fn label(&self, node: &TreeNode) -> String {
        label(&self.name(node), node.marked, node.gap, node.approximate)
    }

    /// The chain of heaviest callees, while heavier than the caller's own time (Morgan and Jarvis' most expensive arm).
    #[must_use]
    pub fn hot_path(&self) -> Vec<usize> {
        self.hot_path_from(&self.roots)
    }

    /// The `count` heaviest chains: each leaves the earlier ones at their heaviest untaken callee. Looks at all nodes
    /// for each.
    #[must_use]
    pub fn hot_paths(&self, count: usize) -> Vec<Vec<usize>> {
        let mut paths: Vec<Vec<usize>> = Vec::new();
        let mut taken = vec![false; self.nodes.len()];
        while paths.len() < count {
            // The heaviest node that is not on a path and whose caller is (or that is a root).
            let on_path = |i: usize| taken.get(i).copied().unwrap_or(false);
            let next = self
                .nodes
                .iter()
                .enumerate()
                .filter(|&(i, node)| !on_path(i) && node.parent.is_none_or(on_path))
                .max_by_key(|&(i, node)| (node.weight, std::cmp::Reverse(i)));
            let Some((start, _)) = next else { break };
            let mut path = self.path_to(start);
            path.extend(self.hot_path_from(self.children(start)));
            for &i in &path {
                if let Some(taken) = taken.get_mut(i) {
                    *taken = true;
                }
            }
            paths.push(path);
        }
        paths
    }

    fn children(&self, i: usize) -> &[usize] {
        self.nodes.get(i).map_or(&[], |node| &node.children)
    }

    /// The chain from a root to a node.
    #[must_use]
    pub fn path_to(&self, i: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(i), |&i| self.nodes.get(i).and_then(|node| node.parent)).collect();
        path.reverse();
        path
    }

    fn hot_path_from<'a>(&'a self, mut choice: &'a [usize]) -> Vec<usize> {
        let mut path = Vec::new();
        let mut own = 0;
        while let Some((i, node)) = choice.first().and_then(|&i| Some((i, self.nodes.get(i)?))) {
            if node.weight < own {
                break;
            }
            path.push(i);
            own = node.self_weight;
            choice = &node.children;
        }
        path
    }
}

fn latest(context: &Visible<'_>, of: CostCentreId) -> Option<usize> {
    context.entries().iter().position(|&entry| is_marked(entry) && function(entry) == of)
}
