//! The tree view: calls from the root down, histories that begin alike joined. What flame graphs and hot paths are made of.

use hashbrown::HashMap;
use serde::Serialize;

use super::walk::{function, is_marked, walk};
use super::{Names, Selection, Total, names};
use crate::ids::CostCentreId;
use crate::profile::Profile;

/// One function below a chain of callers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TreeNode {
    /// Position of the caller in [`TreeView::nodes`], which is before this one; `None` for a root.
    pub parent: Option<usize>,
    /// The function.
    pub function: CostCentreId,
    /// Whether this entry is the function's most recent activation; see [`History`](crate::History).
    pub marked: bool,
    /// Weight charged to exactly this chain.
    pub self_weight: u64,
    /// Weight of this chain and all that go on from it. A function that is in a chain twice, unmarked and marked, has this
    /// weight at both places: sums over a function are the flat view's business.
    pub weight: u64,
    /// Samples of `weight`.
    pub samples: u64,
    /// Callees, the heaviest first, as positions in [`TreeView::nodes`].
    pub children: Vec<usize>,
}

/// All chains of calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TreeView {
    /// All of it: the sum of the roots.
    pub total: Total,
    /// The nodes, callers before callees.
    pub nodes: Vec<TreeNode>,
    /// Those without a caller, the heaviest first.
    pub roots: Vec<usize>,
    /// Names of the functions.
    pub names: Names,
}

impl TreeView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let mut nodes: Vec<TreeNode> = Vec::new();
        let mut index: HashMap<(Option<usize>, u32), usize> = HashMap::new();
        let total = walk(profile, selection, |context| {
            let mut parent = None;
            for &entry in context.entries() {
                let at = *index.entry((parent, entry)).or_insert_with(|| {
                    nodes.push(TreeNode {
                        parent,
                        function: function(entry),
                        marked: is_marked(entry),
                        self_weight: 0,
                        weight: 0,
                        samples: 0,
                        children: Vec::new(),
                    });
                    nodes.len() - 1
                });
                if let Some(node) = nodes.get_mut(at) {
                    node.weight = node.weight.saturating_add(context.weight);
                    node.samples = node.samples.saturating_add(context.samples);
                }
                parent = Some(at);
            }
            if let Some(leaf) = parent.and_then(|at| nodes.get_mut(at)) {
                leaf.self_weight = leaf.self_weight.saturating_add(context.weight);
            }
        });
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        let key = |nodes: &[TreeNode], i: usize| nodes.get(i).map(|node| (node.weight, node.function, node.marked));
        order.sort_by(|&a, &b| {
            let (a, b) = (key(&nodes, a), key(&nodes, b));
            b.map(|b| b.0).cmp(&a.map(|a| a.0)).then_with(|| a.cmp(&b))
        });
        let mut roots = Vec::new();
        for i in order {
            match nodes.get(i).and_then(|node| node.parent).and_then(|parent| nodes.get_mut(parent)) {
                Some(parent) => parent.children.push(i),
                None => roots.push(i),
            }
        }
        let names = names(profile, nodes.iter().map(|node| node.function));
        Self { total, nodes, roots, names }
    }

    /// The heaviest chain: from the heaviest root always on to the heaviest callee, as long as that is heavier than what
    /// the caller spent itself (Morgan and Jarvis' most expensive arm).
    #[must_use]
    pub fn hot_path(&self) -> Vec<usize> {
        self.hot_path_from(&self.roots)
    }

    /// The `count` heaviest chains in descending order: after the first, each leaves the ones before at the heaviest callee
    /// that none of them took. Looks at all nodes for each.
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
