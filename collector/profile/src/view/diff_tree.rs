//! The difference of two profiles, chain of calls by chain of calls.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::diff::{apart, beyond_chance};
use super::grow::{Amount, Chains, Forest, grow};
use super::walk::{function, is_marked, walk};
use super::{Selection, Share, Total};
use crate::marked::MARK;
use crate::profile::Profile;

/// What one profile says of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChainSide {
    /// Weight of exactly this chain.
    pub self_weight: u64,
    /// Weight of it and all that go on from it.
    pub weight: u64,
    /// Samples of `weight`.
    pub samples: u64,
}

/// One function in a chain of calls, in both profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffNode {
    /// Position of the caller in [`DiffTree::nodes`], which is before this one; `None` for a root.
    pub parent: Option<usize>,
    /// The function, as in [`DiffTree::functions`].
    pub function: usize,
    /// Whether this entry is the function's most recent activation; see [`History`](crate::History).
    pub marked: bool,
    /// Before.
    pub before: ChainSide,
    /// After.
    pub after: ChainSide,
    /// Share of `weight` after, less that before: from -1 to 1.
    pub change: f64,
    /// The 95% intervals of the shares do not overlap: chance alone hardly explains the change.
    pub significant: bool,
    /// `weight` after, less that before, is more than chance alone hardly explains.
    pub absolutely_significant: bool,
    /// Callees, the largest change of share first, as positions in [`DiffTree::nodes`].
    pub children: Vec<usize>,
    /// Callees that are too light in both to be there.
    pub other: OtherDiff,
}

/// Chains left out, so that totals survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OtherDiff {
    /// How many nodes would be in their place.
    pub nodes: usize,
    /// Their weight before.
    pub before: u64,
    /// Their weight after.
    pub after: u64,
}

/// A function of either profile.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct DiffFunction {
    /// Its name.
    pub name: String,
    /// File name of its image.
    pub image: String,
}

/// All chains of calls of two profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffTree {
    /// All of the first.
    pub before: Total,
    /// All of the second.
    pub after: Total,
    /// The functions. They are matched by name and file name of their image, as in the flat difference.
    pub functions: Vec<DiffFunction>,
    /// The nodes, callers before callees.
    pub nodes: Vec<DiffNode>,
    /// Those without a caller, the largest change of share first.
    pub roots: Vec<usize>,
    /// Roots that are too light in both to be there.
    pub other: OtherDiff,
}

/// Weights and samples of both.
#[derive(Clone, Copy, Default)]
struct Both {
    weights: [u64; 2],
    samples: [u64; 2],
}

impl Amount for Both {
    fn add(&mut self, other: &Self) {
        for side in 0..2 {
            self.weights[side] = self.weights[side].saturating_add(other.weights[side]);
            self.samples[side] = self.samples[side].saturating_add(other.samples[side]);
        }
    }

    fn order(&self) -> u64 {
        self.weights[0].max(self.weights[1])
    }
}

impl DiffTree {
    /// Compares two profiles, each by a selection of its own (ids differ between profiles), without what has less than `least`
    /// of the total in both.
    #[must_use]
    pub fn new(before: (&Profile, &Selection), after: (&Profile, &Selection), least: f64) -> Self {
        let mut functions: Vec<DiffFunction> = Vec::new();
        let mut known: HashMap<DiffFunction, u32> = HashMap::new();
        let mut chains = Chains::new();
        let mut totals = [Total::default(); 2];
        for (side, (profile, selection)) in [before, after].into_iter().enumerate() {
            let numbers: Vec<u32> = (0u32..)
                .map(crate::CostCentreId::new)
                .take(profile.cost_centres().len())
                .map(|id| {
                    let it = DiffFunction {
                        name: profile.name(profile.real(id)).into_owned(),
                        image: profile.image_name(profile.real(id)).to_owned(),
                    };
                    *known.entry(it).or_insert_with_key(|it| {
                        functions.push(it.clone());
                        functions.len() as u32 - 1
                    })
                })
                .collect();
            totals[side] = walk(profile, selection, |context| {
                let mut amount = Both::default();
                amount.weights[side] = context.weight;
                amount.samples[side] = context.samples;
                let common = |&entry: &u32| {
                    let number = numbers.get(function(entry).index()).copied().unwrap_or(0);
                    if is_marked(entry) { number | MARK } else { number }
                };
                chains.push(context.entries().iter().map(common), amount);
            });
        }
        let share = |side: usize, weight: u64| match totals[side].weight {
            0 => 0.0,
            total => weight as f64 / total as f64,
        };
        let keep = |it: &Both| least <= 0.0 || (0..2).any(|side| share(side, it.weights[side]) >= least);
        let Forest { nodes: grown, mut roots, rest } = grow(&chains, keep);
        let other = |nodes: usize, it: Both| OtherDiff { nodes, before: it.weights[0], after: it.weights[1] };
        let mut nodes: Vec<DiffNode> = grown
            .into_iter()
            .map(|it| {
                let side = |side: usize| ChainSide {
                    self_weight: it.own.weights[side],
                    weight: it.all.weights[side],
                    samples: it.all.samples[side],
                };
                let (before, after) = (side(0), side(1));
                let of = |it: ChainSide, total: Total| Share::of(it.weight, total.weight, total.samples);
                DiffNode {
                    parent: it.parent,
                    function: function(it.entry).index(),
                    marked: is_marked(it.entry),
                    change: share(1, after.weight) - share(0, before.weight),
                    significant: apart(of(before, totals[0]), of(after, totals[1])),
                    absolutely_significant: beyond_chance(
                        (before.weight, before.samples, totals[0]),
                        (after.weight, after.samples, totals[1]),
                    ),
                    before,
                    after,
                    children: it.children,
                    other: other(it.rest.subtrees, it.rest.amount),
                }
            })
            .collect();
        let size: Vec<f64> = nodes.iter().map(|node| node.change.abs()).collect();
        // Of no number is there none: changes are between -1 and 1.
        let sort = |list: &mut Vec<usize>| {
            list.sort_by(|a, b| size.get(*b).unwrap_or(&0.0).total_cmp(size.get(*a).unwrap_or(&0.0)));
        };
        nodes.iter_mut().for_each(|node| sort(&mut node.children));
        sort(&mut roots);
        let [before, after] = totals;
        Self { before, after, functions, nodes, roots, other: other(rest.subtrees, rest.amount) }
    }

    /// Orders callees by the change of weight instead of that of their share.
    pub fn sort_absolutely(&mut self) {
        let size: Vec<u64> = self.nodes.iter().map(|node| node.before.weight.abs_diff(node.after.weight)).collect();
        let key = |i: &usize| Reverse(size.get(*i).copied());
        self.nodes.iter_mut().for_each(|node| node.children.sort_by_key(key));
        self.roots.sort_by_key(key);
    }

    /// Name of a node's function; in parentheses where the function has been entered again since, further in.
    #[must_use]
    pub fn label(&self, node: &DiffNode) -> String {
        let name = self.functions.get(node.function).map_or("[unknown]", |it| it.name.as_str());
        if node.marked { name.to_owned() } else { format!("({name})") }
    }
}
