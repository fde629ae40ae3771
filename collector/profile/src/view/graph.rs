//! The call graph view, in gprof's form: every function between its callers and its callees.
//!
//! As in the paper's "Presenting the results": a context with running function P gives its weight, for each item A\[B\]C, to
//! `self1(B, C)` or `child1(B, C)` depending on whether C = P, and to `self2(A, B)` or `child2(A, B)` depending on whether
//! B = P. An item without A is time of B as a root; one without C is self time of B. Direct recursion makes no arc: A1
//! has folded it away.
//!
//! I9: a function's child weight is the sum over its outgoing arcs, and its incoming arcs and its time as a root add up to
//! its inherited weight. Under mutual recursion, the outgoing and the incoming weight of one arc may differ.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use hashbrown::HashMap;
use serde::Serialize;

use super::column::ViewColumn;
use super::interval::Share;
use super::names::{room_for_names, shortened};
use super::sums::Sums;
use super::total::Total;
use super::visible::{function, is_approximate, is_marked};
use crate::fair_length::fair_length;
use crate::ids::CostCentreId;
use crate::labels::{Definition, Labels};
use crate::profile::Profile;
use crate::selection::Selection;

/// Bytes of the name of an arc's function that are shown however many arcs there are.
const LEAST_NAME: usize = 100;
/// Bytes beyond that of a label, which has more than the name.
const MOST_APART: usize = 60;

/// An arc to a caller or a callee, as seen from one function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphArc {
    /// The other function.
    pub function: CostCentreId,
    /// Its name as in [`GraphView::in_arc`].
    pub name: String,
    /// What tells it from other functions of that name, see [`Definition::apart`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apart: Option<String>,
    /// Weight while the callee of the arc was running itself: `self1` of an arc to a callee, `self2` of one from a caller.
    pub self_weight: u64,
    /// Weight while the callee of the arc was waiting for others: `child1` or `child2`.
    pub child_weight: u64,
    /// Samples of both.
    pub samples: u64,
    /// Part of the weight may have another neighbour: functions are hidden or merged ([`Profile::selected`],
    /// [`Profile::by`]).
    pub approximate: bool,
}

/// A function with its callers and callees.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphNode {
    /// The function.
    pub function: CostCentreId,
    /// Its name.
    pub name: String,
    /// Where it is defined.
    #[serde(flatten)]
    pub definition: Definition,
    /// Weight of the stacks that it is the leaf of.
    pub self_weight: u64,
    /// Inherited weight less self weight.
    pub child_weight: u64,
    /// Samples of the stacks that it is on.
    pub samples: u64,
    /// Share of the inherited weight in the view's total.
    pub share: Share,
    /// Weight as a root while it was running itself: the part of `self_weight` that no caller explains.
    pub root_self_weight: u64,
    /// Weight as a root while it was waiting for others.
    pub root_child_weight: u64,
    /// A part of the weight as a root may have a caller, because functions are hidden or merged.
    pub root_approximate: bool,
    /// Incoming arcs, the heaviest first: `self2` and `child2`.
    pub callers: Vec<GraphArc>,
    /// Outgoing arcs, the heaviest first: `self1` and `child1`.
    pub callees: Vec<GraphArc>,
}

impl GraphNode {
    /// Weight of the stacks that it is on.
    #[must_use]
    pub const fn inherited_weight(&self) -> u64 {
        self.self_weight.saturating_add(self.child_weight)
    }
}

/// All functions, by inherited weight, largest first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GraphView {
    /// All of it.
    pub total: Total,
    /// The functions.
    pub nodes: Vec<GraphNode>,
    /// Most bytes of a name that an arc shows.
    #[serde(skip)]
    most: usize,
}

/// What is charged to a function or an arc, and the part of it while the callee was running itself.
#[derive(Clone, Copy, Default)]
struct Parts {
    own: u64,
    child: u64,
    all: Sums,
}

impl Parts {
    fn add(&mut self, is_self: bool, sums: Sums) {
        let part = if is_self { &mut self.own } else { &mut self.child };
        *part = part.saturating_add(sums.weight);
        self.all.add(sums);
    }
}

#[derive(Clone, Copy, Default)]
struct ArcSums {
    outgoing: Parts,
    incoming: Parts,
    approximate: bool,
}

#[derive(Clone, Default)]
struct NodeSums {
    all: Parts,
    root: Parts,
    root_approximate: bool,
    callers: Vec<GraphArc>,
    callees: Vec<GraphArc>,
}

impl GraphView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let mut nodes = vec![NodeSums::default(); profile.cost_centres().len()];
        let mut arcs: HashMap<(CostCentreId, CostCentreId), ArcSums> = HashMap::new();
        let total = profile.walk(selection).visit(|_, context| {
            let running = context.leaf();
            let mut before = None;
            let mut entries = context.entries().iter().peekable();
            while let Some(&entry) = entries.next() {
                let b = function(entry);
                if is_marked(entry) {
                    if let Some(node) = nodes.get_mut(b.index()) {
                        node.all.add(b == running, context.sums);
                        if before.is_none() {
                            node.root.add(b == running, context.sums);
                            node.root_approximate |= is_approximate(entry);
                        }
                    }
                    if let Some(a) = before {
                        let arc = arcs.entry((a, b)).or_default();
                        arc.incoming.add(b == running, context.sums);
                        arc.approximate |= is_approximate(entry);
                    }
                    if let Some(&&next) = entries.peek() {
                        let c = function(next);
                        let arc = arcs.entry((b, c)).or_default();
                        arc.outgoing.add(c == running, context.sums);
                        arc.approximate |= is_approximate(next);
                    }
                }
                before = Some(b);
            }
        });
        let labels = profile.labels();
        let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
        for function in arcs.keys().flat_map(|&(caller, callee)| [caller, callee]) {
            *lengths.entry(profile.name(function).len()).or_default() += 1;
        }
        let most = fair_length(&lengths, room_for_names(profile), LEAST_NAME);
        for ((caller, callee), sums) in arcs {
            let arc = |function, part: Parts| GraphArc {
                function,
                name: shortened(&profile.name(function), most).into_owned(),
                apart: labels.apart(function),
                self_weight: part.own,
                child_weight: part.child,
                samples: part.all.samples,
                approximate: sums.approximate,
            };
            let seen = |part: Parts| part.all.samples > 0 || part.own > 0 || part.child > 0;
            if let Some(node) = nodes.get_mut(callee.index()).filter(|_| seen(sums.incoming)) {
                node.callers.push(arc(caller, sums.incoming));
            }
            if let Some(node) = nodes.get_mut(caller.index()).filter(|_| seen(sums.outgoing)) {
                node.callees.push(arc(callee, sums.outgoing));
            }
        }
        Self { total, nodes: finish(&labels, total, nodes), most }
    }

    /// What [`GraphView::sort`] can order by.
    pub const COLUMNS: &[ViewColumn] =
        &[ViewColumn::Inherited, ViewColumn::Own, ViewColumn::Child, ViewColumn::Samples, ViewColumn::Name];

    /// Orders the functions by a column instead of inherited weight.
    pub fn sort(&mut self, by: ViewColumn) {
        match by {
            ViewColumn::Own => self.nodes.sort_by_key(|node| Reverse(node.self_weight)),
            ViewColumn::Child => self.nodes.sort_by_key(|node| Reverse(node.child_weight)),
            ViewColumn::Samples => self.nodes.sort_by_key(|node| Reverse(node.samples)),
            ViewColumn::Name => self.nodes.sort_by(|a, b| a.name.cmp(&b.name)),
            _ => self.nodes.sort_by_key(|node| Reverse(node.inherited_weight())),
        }
    }

    /// A label as arcs show it: the beginning where arcs are many and names are long, see [`room_for_names`], and then its end,
    /// which tells functions of one name apart.
    #[must_use]
    pub fn in_arc<'a>(&self, label: &'a str) -> Cow<'a, str> {
        if label.len() <= self.most.saturating_add(MOST_APART) {
            return label.into();
        }
        let mut end = label.len() - MOST_APART / 2;
        while !label.is_char_boundary(end) {
            end += 1;
        }
        format!("{}{}", shortened(label, self.most), label.get(end..).unwrap_or_default()).into()
    }

    /// A function with its callers and callees.
    #[must_use]
    pub fn node(&self, function: CostCentreId) -> Option<&GraphNode> {
        self.nodes.iter().find(|node| node.function == function)
    }
}

fn finish(labels: &Labels<'_>, total: Total, sums: Vec<NodeSums>) -> Vec<GraphNode> {
    let mut nodes: Vec<GraphNode> = sums
        .into_iter()
        .enumerate()
        .filter(|(_, node)| node.all.all.samples > 0 || node.all.own > 0 || node.all.child > 0)
        .map(|(i, mut node)| {
            // What one arc has too much, another on this side has too little.
            node.root_approximate |= node.callers.iter().any(|arc| arc.approximate);
            let unsure = [node.root_approximate, node.callees.iter().any(|arc| arc.approximate)];
            for (arcs, unsure) in [&mut node.callers, &mut node.callees].into_iter().zip(unsure) {
                arcs.iter_mut().for_each(|arc| arc.approximate = unsure);
                arcs.sort_by(|a, b| {
                    let weight = |arc: &GraphArc| arc.self_weight.saturating_add(arc.child_weight);
                    weight(b).cmp(&weight(a)).then_with(|| a.name.cmp(&b.name)).then(a.function.cmp(&b.function))
                });
            }
            let function = CostCentreId::new(i as u32);
            GraphNode {
                function,
                name: labels.name(function).into_owned(),
                definition: labels.definition(function),
                self_weight: node.all.own,
                child_weight: node.all.child,
                samples: node.all.all.samples,
                share: Share::of(node.all.all, &total),
                root_self_weight: node.root.own,
                root_child_weight: node.root.child,
                root_approximate: node.root_approximate,
                callers: node.callers,
                callees: node.callees,
            }
        })
        .collect();
    nodes.sort_by(|a, b| {
        let order = |node: &GraphNode| (node.inherited_weight(), node.self_weight);
        order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)).then(a.function.cmp(&b.function))
    });
    nodes
}
