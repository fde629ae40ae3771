//! The difference of two profiles, chain of calls by chain of calls.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::diff::{Run, Side, matching, runs_of, with_one_of_a_name};
use super::entry::label;
use super::grow::{Amount, Chains, Forest, GrownNode, grow};
use super::matching::{DiffFunction, labels};
use super::significance::{Basis, significant, test};
use super::sums::Sums;
use super::sums::sum;
use super::total::Total;
use super::visible::{function, is_gap, is_marked};
use crate::gaps::MARK;
use crate::uncertain::{APPROXIMATE, GAP};

/// What one profile says of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChainSide {
    /// Weight of exactly this chain; of several runs, that of one on average.
    pub self_weight: u64,
    /// Weight of it and all that go on from it.
    pub weight: u64,
    /// Samples of `weight`, of all runs.
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
    /// Between its caller and this function, recursion was squeezed out: the one may not have called the other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gap: bool,
    /// The call may be another in a part of the weight, because functions are hidden or merged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approximate: bool,
    /// Before.
    pub before: ChainSide,
    /// After.
    pub after: ChainSide,
    /// Share of `weight` after, less that before: from -1 to 1.
    pub change: f64,
    /// Chance hardly explains the change: at most 5% of such nodes are false on average; see
    /// [`SIGNIFICANCE`](super::SIGNIFICANCE).
    pub significant: bool,
    /// The same of `weight` instead of its share.
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

/// All chains of calls of two profiles.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffTree {
    /// All before: weights of one run on average, samples of all runs.
    pub before: Total,
    /// All after.
    pub after: Total,
    /// The functions, matched as in the flat difference.
    pub functions: Vec<DiffFunction>,
    /// Their names as text shows them, with what tells apart those of one name.
    #[serde(skip)]
    pub labels: Vec<String>,
    /// The nodes, callers before callees.
    pub nodes: Vec<DiffNode>,
    /// Those without a caller, the largest change of share first.
    pub roots: Vec<usize>,
    /// Roots that are too light in both to be there.
    pub other: OtherDiff,
}

#[derive(Clone, Default)]
struct Both([Vec<Sums>; 2]);

impl Amount for Both {
    fn add(&mut self, other: &Self) {
        for (runs, others) in self.0.iter_mut().zip(&other.0) {
            runs.resize(runs.len().max(others.len()), Sums::default());
            runs.iter_mut().zip(others).for_each(|(run, other)| run.add(*other));
        }
    }

    fn order(&self) -> u64 {
        self.0.iter().map(|runs| sum(runs).weight).max().unwrap_or(0)
    }
}

impl DiffTree {
    /// Compares two profiles, without what has less than `least` of the total in both.
    #[must_use]
    pub fn new(before: Run<'_>, after: Run<'_>, least: f64) -> Self {
        Self::from_runs(&[before], &[after], least)
    }

    /// Compares several runs before with several after, without what has less than `least` of the total on both sides.
    #[must_use]
    pub fn from_runs(before: &[Run<'_>], after: &[Run<'_>], least: f64) -> Self {
        let matching = matching(before, after);
        let mut functions: Vec<DiffFunction> = Vec::new();
        let mut known: HashMap<DiffFunction, u32> = HashMap::new();
        let mut chains = Chains::new();
        let mut sides = [Side::default(), Side::default()];
        for (which, &(profile, selection)) in runs_of(before, after) {
            let Some(side) = sides.get_mut(which) else { continue };
            let run = side.totals.runs.len();
            let (total, threads) = with_one_of_a_name(profile, selection, &matching, |profile, selection| {
                let numbers: Vec<u32> = (0u32..)
                    .map(crate::ids::CostCentreId::new)
                    .take(profile.cost_centres().len())
                    .map(|id| {
                        *known.entry(matching.function(profile, id)).or_insert_with_key(|it| {
                            functions.push(it.clone());
                            functions.len() as u32 - 1
                        })
                    })
                    .collect();
                let total = profile.walk(selection).visit(|_, context| {
                    let mut amount = Both::default();
                    if let Some(runs) = amount.0.get_mut(which) {
                        runs.resize(run, Sums::default());
                        runs.push(context.sums);
                    }
                    let common = |&entry: &u32| {
                        let number = numbers.get(function(entry).index()).copied().unwrap_or(0);
                        number | (entry & (MARK | GAP | APPROXIMATE))
                    };
                    chains.push(context.entries().iter().map(common), amount);
                });
                (total, profile.threads().len())
            });
            side.add(total, threads);
        }
        let share = |which: usize, amount: &Both| {
            let (Some(side), Some(runs)) = (sides.get(which), amount.0.get(which)) else { return 0.0 };
            side.share(sum(runs)).fraction
        };
        let keep = |it: &Both| least <= 0.0 || (0..2).any(|which| share(which, it) >= least);
        let Forest { nodes: mut grown, mut roots, rest } = grow(&chains, keep);
        let [before, after] = &sides;
        let all = [&before.totals, &after.totals];
        for node in &mut grown {
            let seen = node.all.0.iter_mut().zip(all);
            seen.for_each(|(runs, totals)| runs.resize(totals.runs.len(), Sums::default()));
        }
        let tested = |basis| {
            let one = |node: &GrownNode<Both>| {
                let [was, is] = &node.all.0;
                test(all, [was, is], basis)
            };
            significant(&grown.iter().map(one).collect::<Vec<_>>())
        };
        let (relatively, absolutely) = (tested(Basis::Share), tested(Basis::Weight([1.0; 2])));
        let of_a_run = |amount: &Both| {
            let [was, is] = &amount.0;
            [sum(was).weight / before.runs(), sum(is).weight / after.runs()]
        };
        let other = |nodes: usize, it: &Both| {
            let [before, after] = of_a_run(it);
            OtherDiff { nodes, before, after }
        };
        let mut nodes: Vec<DiffNode> = grown
            .iter()
            .zip(relatively.into_iter().zip(absolutely))
            .map(|(it, (significant, absolutely_significant))| {
                let ([own_before, own_after], [weight_before, weight_after]) = (of_a_run(&it.own), of_a_run(&it.all));
                let [was, is] = &it.all.0;
                DiffNode {
                    parent: it.parent,
                    function: function(it.entry).index(),
                    marked: is_marked(it.entry),
                    gap: is_gap(it.entry),
                    approximate: it.approximate,
                    change: share(1, &it.all) - share(0, &it.all),
                    significant,
                    absolutely_significant,
                    before: ChainSide { self_weight: own_before, weight: weight_before, samples: sum(was).samples },
                    after: ChainSide { self_weight: own_after, weight: weight_after, samples: sum(is).samples },
                    children: it.children.clone(),
                    other: other(it.rest.subtrees, &it.rest.amount),
                }
            })
            .collect();
        let size: Vec<f64> = nodes.iter().map(|node| node.change.abs()).collect();
        // Every index is valid; changes are between -1 and 1.
        let sort = |list: &mut Vec<usize>| {
            list.sort_by(|a, b| size.get(*b).unwrap_or(&0.0).total_cmp(size.get(*a).unwrap_or(&0.0)));
        };
        nodes.iter_mut().for_each(|node| sort(&mut node.children));
        sort(&mut roots);
        let other = other(rest.subtrees, &rest.amount);
        Self {
            before: before.run_total(),
            after: after.run_total(),
            labels: labels(&functions, true, matching.full_names),
            functions,
            nodes,
            roots,
            other,
        }
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
        let name = self.labels.get(node.function).map_or("[unknown]", String::as_str);
        label(name, node.marked, node.gap, node.approximate)
    }
}
