//! The tree of stacks of a page: that of one profile by one or several metrics, or of two profiles.

use hashbrown::HashMap;

use crate::gaps::MARK;
use crate::uncertain::{APPROXIMATE, GAP};
use crate::view::{DiffTree, TreeView, function, is_gap};

pub(super) struct StackNode {
    pub(super) parent: Option<usize>,
    pub(super) function: u32,
    pub(super) marked: bool,
    pub(super) gap: bool,
    pub(super) approximate: bool,
    /// The largest share of a total that this stack and all that go on from it have in any layer.
    pub(super) share: f64,
    /// Stands for all stacks of its caller that a tree had no room for. It is never kept.
    pub(super) is_beyond: bool,
}

/// The entry of a node that [`StackNode::is_beyond`], and of functions that no node has.
pub(super) const BEYOND: u32 = !APPROXIMATE;

#[derive(Default)]
pub(super) struct Stacks {
    pub(super) nodes: Vec<StackNode>,
    index: HashMap<(Option<usize>, u32), usize>,
}

impl Stacks {
    pub(super) fn add_tree(&mut self, tree: &TreeView) {
        let total = tree.total.weight.max(1) as f64;
        let mut places = Vec::with_capacity(tree.nodes.len());
        for node in &tree.nodes {
            let parent = node.parent.and_then(|parent| places.get(parent).copied());
            let entry = node.function.0 | if node.marked { MARK } else { 0 } | if node.gap { GAP } else { 0 };
            let at = self.add(parent, entry);
            if let Some(known) = self.nodes.get_mut(at) {
                known.approximate |= node.approximate;
                known.share = known.share.max(node.weight as f64 / total);
            }
            places.push(at);
        }
    }

    pub(super) fn from_difference(tree: &DiffTree) -> Self {
        let mut stacks = Self::default();
        let share = |weight: u64, total: u64| weight as f64 / total.max(1) as f64;
        stacks.nodes.extend(tree.nodes.iter().map(|node| StackNode {
            parent: node.parent,
            function: node.function as u32,
            marked: node.marked,
            gap: node.gap,
            approximate: node.approximate,
            share: share(node.before.weight, tree.before.weight).max(share(node.after.weight, tree.after.weight)),
            is_beyond: false,
        }));
        for (at, node) in stacks.nodes.iter().enumerate() {
            let entry = node.function | if node.marked { MARK } else { 0 } | if node.gap { GAP } else { 0 };
            stacks.index.entry((node.parent, entry)).or_insert(at);
        }
        stacks
    }

    fn add(&mut self, parent: Option<usize>, entry: u32) -> usize {
        let next = self.nodes.len();
        let at = *self.index.entry((parent, entry)).or_insert(next);
        if at == next {
            self.nodes.push(StackNode {
                parent,
                function: function(entry).0,
                marked: entry & MARK != 0,
                gap: is_gap(entry),
                approximate: false,
                share: 0.0,
                is_beyond: entry == BEYOND,
            });
        }
        at
    }

    /// The node of a stack, or the one that stands for it below the callers that have nodes. `None` for no stack.
    pub(super) fn place(&mut self, entries: impl IntoIterator<Item = u32>) -> Option<usize> {
        let mut at = None;
        for entry in entries {
            match self.index.get(&(at, entry & !APPROXIMATE)) {
                Some(&below) => at = Some(below),
                None => return Some(self.add(at, BEYOND)),
            }
        }
        at
    }

    /// Whether trees had no room for some.
    pub(super) fn has_beyond(&self) -> bool {
        self.nodes.iter().any(|node| node.is_beyond)
    }

    /// Whether each node is among the `most` heaviest. Callers come first among equals, so a kept node's caller is
    /// kept.
    pub(super) fn heaviest(&self, most: usize) -> Vec<bool> {
        let is_known = |i: &usize| self.nodes.get(*i).is_some_and(|node| !node.is_beyond);
        let mut order: Vec<usize> = (0..self.nodes.len()).filter(is_known).collect();
        if most < order.len() {
            let share = |i: usize| self.nodes.get(i).map_or(0.0, |node| node.share);
            order.sort_by(|&a, &b| share(b).total_cmp(&share(a)).then(a.cmp(&b)));
            order.truncate(most);
        }
        let mut kept = vec![false; self.nodes.len()];
        for at in order {
            if let Some(kept) = kept.get_mut(at) {
                *kept = true;
            }
        }
        kept
    }

    /// The kept nodes with their depths, each before its callees and these before what comes after it.
    pub(super) fn in_depth(&self, kept: &[bool]) -> Vec<(usize, u64)> {
        // Linked lists of callees, the last one first.
        let mut last: Vec<Option<usize>> = vec![None; self.nodes.len() + 1];
        let mut before: Vec<Option<usize>> = vec![None; self.nodes.len()];
        for (at, node) in self.nodes.iter().enumerate().filter(|(at, _)| kept.get(*at) == Some(&true)) {
            let list = last.get_mut(node.parent.map_or(0, |parent| parent + 1));
            if let (Some(list), Some(before)) = (list, before.get_mut(at)) {
                *before = list.replace(at);
            }
        }
        let callees = |of: usize, depth: u64| {
            let first = last.get(of).copied().flatten();
            std::iter::successors(first, |at| before.get(*at).copied().flatten()).map(move |at| (at, depth))
        };
        let mut order = Vec::new();
        let mut waiting: Vec<(usize, u64)> = callees(0, 0).collect();
        while let Some((at, depth)) = waiting.pop() {
            order.push((at, depth));
            waiting.extend(callees(at + 1, depth + 1));
        }
        order
    }
}
