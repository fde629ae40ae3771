//! Trees grown from chains of entries. Subtrees too light to be shown are never grown, however many chains there are.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

use crate::uncertain::APPROXIMATE;

/// Most nodes of a tree, which take some 300 bytes each.
const MOST_NODES: usize = 1 << 20;

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

/// A node that may be grown: chains from `first` to `end` in the order of the growing tree, which are alike up to `depth`.
struct Candidate<A> {
    parent: Option<usize>,
    entry: u32,
    approximate: bool,
    all: A,
    first: usize,
    end: usize,
    depth: usize,
}

impl<A: Amount> Candidate<A> {
    /// The heaviest come first.
    fn key(&self) -> (u64, Reverse<Option<usize>>, Reverse<u32>) {
        (self.all.order(), Reverse(self.parent), Reverse(self.entry))
    }
}

impl<A: Amount> Ord for Candidate<A> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<A: Amount> PartialOrd for Candidate<A> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<A: Amount> PartialEq for Candidate<A> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<A: Amount> Eq for Candidate<A> {}

/// How a chain goes on at a depth. What orders chains comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NextEntry {
    /// The entry without [`APPROXIMATE`], which does not tell chains apart; `None` where the chain has ended.
    entry: Option<u32>,
    chain: u32,
    approximate: bool,
}

/// Grows a tree of the nodes that `keep` wants. It must want every node above one that it wants. Of more than
/// [`MOST_NODES`], these are the heaviest.
pub(super) fn grow<A: Amount>(chains: &Chains<A>, keep: impl Fn(&A) -> bool) -> Forest<A> {
    grow_within(chains, keep, MOST_NODES)
}

fn grow_within<A: Amount>(chains: &Chains<A>, keep: impl Fn(&A) -> bool, most: usize) -> Forest<A> {
    let mut growing = Growing {
        chains,
        keep,
        order: (0..chains.amounts.len() as u32).collect(),
        nexts: Vec::new(),
        candidates: BinaryHeap::new(),
    };
    let mut forest = Forest { nodes: Vec::<GrownNode<A>>::new(), roots: Vec::new(), rest: Rest::default() };
    (_, forest.rest) = growing.look_below(None, 0..chains.amounts.len(), 0);
    // For each node, what is below comes in the order that it is to have.
    while let Some(Candidate { parent, entry, approximate, all, first, end, depth }) = growing.candidates.pop() {
        let id = forest.nodes.len();
        let above = parent.and_then(|parent| forest.nodes.get_mut(parent));
        let (siblings, rest) = match above {
            Some(above) => (&mut above.children, &mut above.rest),
            None => (&mut forest.roots, &mut forest.rest),
        };
        if id >= most {
            rest.subtrees += 1;
            rest.amount.add(&all);
            continue;
        }
        siblings.push(id);
        let (own, rest) = growing.look_below(Some(id), first..end, depth);
        forest.nodes.push(GrownNode { parent, entry, approximate, own, all, children: Vec::new(), rest });
    }
    forest
}

struct Growing<'a, A, F> {
    chains: &'a Chains<A>,
    keep: F,
    order: Vec<u32>,
    nexts: Vec<NextEntry>,
    candidates: BinaryHeap<Candidate<A>>,
}

impl<A: Amount, F: Fn(&A) -> bool> Growing<'_, A, F> {
    /// Finds what may be grown below a node, whose chains these are. Returns the amount of the chains that end there, and what
    /// is not to be grown.
    fn look_below(&mut self, node: Option<usize>, chains: Range<usize>, depth: usize) -> (A, Rest<A>) {
        let (mut own, mut rest) = (A::default(), Rest::<A>::default());
        let mut first = chains.start;
        let Some(part) = self.order.get_mut(chains) else { return (own, rest) };
        // Read once: deep chains come here once for each depth, mostly in order already.
        self.nexts.clear();
        self.nexts.extend(part.iter().map(|&chain| {
            let flagged = self.chains.flagged(chain, depth);
            let approximate = flagged.is_some_and(|entry| entry & APPROXIMATE != 0);
            NextEntry { entry: flagged.map(|entry| entry & !APPROXIMATE), chain, approximate }
        }));
        if !self.nexts.is_sorted() {
            self.nexts.sort_unstable();
            part.iter_mut().zip(&self.nexts).for_each(|(place, next)| *place = next.chain);
        }
        for group in self.nexts.chunk_by(|a, b| a.entry == b.entry) {
            let end = first + group.len();
            let all = self.chains.sum(group);
            match group.first().and_then(|next| next.entry) {
                None => own = all,
                Some(_) if !(self.keep)(&all) => {
                    rest.subtrees += 1;
                    rest.amount.add(&all);
                }
                Some(entry) => self.candidates.push(Candidate {
                    parent: node,
                    entry,
                    approximate: group.iter().any(|next| next.approximate),
                    all,
                    first,
                    end,
                    depth: depth + 1,
                }),
            }
            first = end;
        }
        (own, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Weight(u64);

    impl Amount for Weight {
        fn add(&mut self, other: &Self) {
            self.0 += other.0;
        }

        fn order(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn of_too_many_nodes_the_heaviest_are_grown() {
        let mut chains = Chains::new();
        (0..50).for_each(|light| chains.push([1, 100 + light, 200 + light], Weight(2)));
        chains.push([1, 1_000, 3], Weight(100));
        chains.push([1, 1_000], Weight(1));
        let Forest { nodes, roots, rest } = grow_within(&chains, |_| true, 5);
        assert_eq!(nodes.iter().map(|node| node.entry).collect::<Vec<_>>(), [1, 1_000, 3, 100, 101]);
        assert!(roots == [0] && rest.subtrees == 0);
        let node = |at: usize| (nodes[at].own.0, nodes[at].all.0, nodes[at].rest.subtrees, nodes[at].rest.amount.0);
        assert_eq!(node(0), (0, 201, 48, 96));
        assert_eq!([node(1), node(2), node(3)], [(1, 101, 0, 0), (100, 100, 0, 0), (0, 2, 1, 2)]);
        assert_eq!(nodes[0].children, [1, 3, 4]);
        let whole = grow(&chains, |_| true);
        assert!(whole.nodes.len() == 103 && whole.nodes.iter().all(|node| node.rest.subtrees == 0));
    }
}
