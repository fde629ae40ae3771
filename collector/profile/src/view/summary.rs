//! The summary: where the time goes, for a reader who knows the program and not the profiler.
//!
//! Frames that say nothing about the program are hidden ([`Selection::hide`]): program start, an interpreter whose
//! functions have names, and the end of a context switch, where expired timers interrupt the thread.

use std::cmp::Reverse;

use hashbrown::HashMap;
use serde::Serialize;

use super::flat::{FlatRow, FlatView};
use super::interval::Share;
use super::threads::ThreadsView;
use super::total::Total;
use super::tree::{TreeNode, TreeView};
use crate::ids::CostCentreId;
use crate::origin::{Origin, Origins};
use crate::profile::Profile;
use crate::selection::Selection;

/// Steps of the hot chain with a smaller share are left out.
const LEAST_STEP: f64 = 0.05;
/// The share that makes a function worth the headline.
const NOTABLE: f64 = 0.2;
const LEAST_CALL: f64 = 0.01;

/// One function of the hot chain.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChainStep {
    /// The function.
    pub function: CostCentreId,
    /// Its name as text shows it, see [`TreeView::name`].
    pub name: String,
    /// File of its declaration, and line (0 if unknown).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// See `file`.
    pub line: u32,
    /// Whether it is the program's own.
    pub own: bool,
    /// Functions of libraries between the step before and this one.
    pub folded: usize,
    /// The call to this step, or one between the folded functions, is a gap or approximate (see [`TreeNode`]).
    pub uncertain: bool,
    /// Weight of the chain up to here and all that goes on from it.
    pub weight: u64,
    /// Weight of the chain that ends here.
    pub self_weight: u64,
    /// Share of `weight` in the total.
    pub share: Share,
}

/// All processes of one name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramRow {
    /// The name.
    pub name: String,
    /// Number of processes with weight.
    pub processes: usize,
    /// Their weight.
    pub weight: u64,
    /// Share of the view's total.
    pub share: Share,
}

/// The view.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SummaryView {
    /// All of it.
    pub total: Total,
    /// The programs that ran, the heaviest first.
    pub programs: Vec<ProgramRow>,
    /// The most expensive chain, outermost first: the program's own functions, and the first library function each
    /// calls.
    pub chain: Vec<ChainStep>,
    /// Steps that the headline names: up to the last own one with a fifth of the total. 0 if there is none.
    pub headline: usize,
    /// The program's own functions, by total.
    pub own: Vec<FlatRow>,
    /// All other functions, by total.
    pub others: Vec<FlatRow>,
}

impl SummaryView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> SummaryView {
        let origins = Origins::of(profile);
        let switches = (0u32..).zip(profile.cost_centres()).filter(|(_, centre)| {
            let name = centre.linkage_name.as_deref().unwrap_or("");
            name == "finish_task_switch" && profile.image(centre.image).is_some_and(|it| it.name.starts_with("[kernel"))
        });
        let interpreters: Vec<CostCentreId> = origins.all(Origin::Interpreter).collect();
        let is_interpreted = !interpreters.is_empty();
        let selection = selection.clone().hide(interpreters).hide(switches.map(|(id, _)| CostCentreId::new(id)));
        // The chain folds these itself, and says so.
        let tree = TreeView::top_down(profile, &selection, LEAST_CALL);
        let idle = profile.idle();
        let wrappers = origins.all(Origin::Wrapper).filter(|id| idle.get(id.index()).copied().unwrap_or(false));
        let selection = selection.hide(profile.startup_functions()).hide(wrappers);
        let mut flat = FlatView::new(profile, &selection);
        let order = |row: &FlatRow| Reverse((row.inherited_weight, row.self_weight));
        flat.rows.sort_by_key(order);
        let is_own = |row: &FlatRow| origins.get(row.function) == Origin::Own;
        let (own, others) = flat.rows.into_iter().partition(is_own);
        let programs = programs(profile, &selection, &flat.total);
        let chain = chain(profile, &tree, &origins, is_interpreted);
        let headline = chain.iter().rposition(|step| step.own && step.share.fraction >= NOTABLE).map_or(0, |at| at + 1);
        SummaryView { total: flat.total, programs, chain, headline, own, others }
    }
}

fn programs(profile: &Profile, selection: &Selection, total: &Total) -> Vec<ProgramRow> {
    let view = ThreadsView::new(profile, selection);
    let mut programs: HashMap<&str, (usize, u64)> = HashMap::new();
    for process in view.processes.iter().filter(|process| process.weight > 0) {
        let (processes, weight) = programs.entry(process.name.as_str()).or_default();
        *processes += 1;
        *weight = weight.saturating_add(process.weight);
    }
    let row = |(name, (processes, weight)): (&str, _)| ProgramRow {
        name: name.to_owned(),
        processes,
        weight,
        share: Share::from_weight(weight, total),
    };
    let mut rows: Vec<ProgramRow> = programs.into_iter().map(row).collect();
    rows.sort_by(|a, b| b.weight.cmp(&a.weight).then_with(|| a.name.cmp(&b.name)));
    rows
}

fn chain(profile: &Profile, tree: &TreeView, origins: &Origins, is_interpreted: bool) -> Vec<ChainStep> {
    let path: Vec<&TreeNode> = tree.hot_path().into_iter().filter_map(|at| tree.nodes.get(at)).collect();
    let is_own = |node: &TreeNode| origins.get(node.function) == Origin::Own;
    // What comes before the program's first function is a runtime; without such a function, there is but libraries.
    let folds = path.iter().any(|node| is_own(node));
    let mut steps = Vec::new();
    let (mut folded, mut uncertain, mut entering) = (0, false, false);
    for node in path {
        let own = is_own(node);
        // Between scripts' functions stands the interpreter.
        uncertain |= node.gap || node.approximate || is_interpreted;
        if folds && !own && !entering && origins.get(node.function) != Origin::Special {
            folded += 1;
            continue;
        }
        if node.share.fraction < LEAST_STEP {
            break;
        }
        steps.push(step(profile, tree, node, own, (std::mem::take(&mut folded), std::mem::take(&mut uncertain))));
        entering = own;
    }
    steps
}

fn step(
    profile: &Profile,
    tree: &TreeView,
    node: &TreeNode,
    own: bool,
    (folded, uncertain): (usize, bool),
) -> ChainStep {
    let centre = profile.cost_centre(node.function);
    ChainStep {
        function: node.function,
        name: tree.name(node).into_owned(),
        file: centre.and_then(|centre| centre.file.clone()),
        line: centre.map_or(0, |centre| centre.line),
        own,
        folded,
        uncertain,
        weight: node.weight,
        self_weight: node.self_weight,
        share: node.share,
    }
}
