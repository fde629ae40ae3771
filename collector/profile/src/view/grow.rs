//! Trees grown from chains of entries. Subtrees too light to be shown are never grown, however many chains there are.

use crate::uncertain::APPROXIMATE;

pub(super) trait Amount: Clone + Default {
    fn add(&mut self, other: &Self);
    /// By what nodes are ordered, largest first.
    fn order(&self) -> u64;
}

pub(super) struct Chains<A> {
    entries: Vec<u32>,
    /// Of each chain, where it begins in `entries`; and the end of the last.
    starts: Vec<usize>,
    amounts: Vec<A>,
}

impl<A: Amount> Chains<A> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), starts: vec![0], amounts: Vec::new() }
    }

    /// Adds a chain, from where the tree is to have its root.
    pub(super) fn push(&mut self, chain: impl IntoIterator<Item = u32>, amount: A) {
        self.entries.extend(chain);
        self.starts.push(self.entries.len());
        self.amounts.push(amount);
    }

    /// The entry of a chain at a depth, with [`APPROXIMATE`]; `None` where the chain has ended.
    fn flagged(&self, chain: u32, depth: usize) -> Option<u32> {
        let start = self.starts.get(chain as usize)?;
        let end = self.starts.get(chain as usize + 1)?;
        let at = start.checked_add(depth).filter(|at| at < end)?;
        self.entries.get(at).copied()
    }

    fn sum(&self, group: &[NextEntry]) -> A {
        let mut sum = A::default();
        for amount in group.iter().filter_map(|next| self.amounts.get(next.chain as usize)) {
            sum.add(amount);
        }
        sum
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest<A> {
    pub(super) subtrees: usize,
    pub(super) amount: A,
}

pub(super) struct GrownNode<A> {
    /// Before this one.
    pub(super) parent: Option<usize>,
    pub(super) entry: u32,
    /// Whether the entry is [`APPROXIMATE`] in any chain.
    pub(super) approximate: bool,
    /// Of the chains that end here.
    pub(super) own: A,
    /// Of all that come through here.
    pub(super) all: A,
    pub(super) children: Vec<usize>,
    pub(super) rest: Rest<A>,
}

pub(super) struct Forest<A> {
    /// Parents before children.
    pub(super) nodes: Vec<GrownNode<A>>,
    pub(super) roots: Vec<usize>,
    pub(super) rest: Rest<A>,
}

/// Chains from `first` to `end` in the order of the growing tree, which are alike up to `depth`.
struct Task {
    node: Option<usize>,
    first: usize,
    end: usize,
    depth: usize,
}

/// How a chain goes on at a depth. What orders chains comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NextEntry {
    /// The entry without [`APPROXIMATE`], which does not tell chains apart; `None` where the chain has ended.
    entry: Option<u32>,
    chain: u32,
    approximate: bool,
}

/// Grows a tree of the nodes that `keep` wants. It must want every node above one that it wants.
pub(super) fn grow<A: Amount>(chains: &Chains<A>, keep: impl Fn(&A) -> bool) -> Forest<A> {
    let mut order: Vec<u32> = (0..chains.amounts.len() as u32).collect();
    let mut forest = Forest { nodes: Vec::new(), roots: Vec::new(), rest: Rest::default() };
    let mut nexts: Vec<NextEntry> = Vec::new();
    let mut tasks = vec![Task { node: None, first: 0, end: order.len(), depth: 0 }];
    while let Some(Task { node, first, end, depth }) = tasks.pop() {
        let Some(part) = order.get_mut(first..end) else { continue };
        // Read once: deep chains come here once for each depth, mostly in order already.
        nexts.clear();
        nexts.extend(part.iter().map(|&chain| {
            let flagged = chains.flagged(chain, depth);
            let approximate = flagged.is_some_and(|entry| entry & APPROXIMATE != 0);
            NextEntry { entry: flagged.map(|entry| entry & !APPROXIMATE), chain, approximate }
        }));
        if !nexts.is_sorted() {
            nexts.sort_unstable();
            part.iter_mut().zip(&nexts).for_each(|(place, next)| *place = next.chain);
        }
        let mut at = first;
        let mut own = A::default();
        let (mut children, mut rest) = (Vec::new(), Rest::<A>::default());
        for group in nexts.chunk_by(|a, b| a.entry == b.entry) {
            let (from, to) = (at, at + group.len());
            at = to;
            let all = chains.sum(group);
            let Some(entry) = group.first().and_then(|next| next.entry) else {
                own = all;
                continue;
            };
            if !keep(&all) {
                rest.subtrees += 1;
                rest.amount.add(&all);
                continue;
            }
            let id = forest.nodes.len();
            forest.nodes.push(GrownNode {
                parent: node,
                entry,
                approximate: group.iter().any(|next| next.approximate),
                own: A::default(),
                all,
                children: Vec::new(),
                rest: Rest::default(),
            });
            tasks.push(Task { node: Some(id), first: from, end: to, depth: depth + 1 });
            children.push(id);
        }
        let key = |id: &usize| forest.nodes.get(*id).map(|node| (std::cmp::Reverse(node.all.order()), node.entry));
        children.sort_by_key(key);
        match node.and_then(|node| forest.nodes.get_mut(node)) {
            Some(node) => (node.own, node.children, node.rest) = (own, children, rest),
            None => (forest.roots, forest.rest) = (children, rest),
        }
    }
    forest
}
