//! The rows of each view, from a profile and what was asked.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use ccsd_profile::view::{DiffView, FlatView, GraphView, Matching, Selection, ThreadsView, Total, TreeView};
use ccsd_profile::{CostCentreId, Labels, ThreadId, sanitise};

use super::model::TopModel;
use crate::flame::FlameTree;

/// Chains deeper than this are not opened by themselves, nor all at once.
const DEEPEST: usize = 200;
/// A function of the tree is open by itself where it has at least this share of the whole.
const OPEN: f64 = 0.05;
/// Rows at most: who unfolds everything may mean a million.
const MOST: usize = 20_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopView {
    Flat,
    Tree,
    Callers,
    Threads,
    Flame,
}

impl TopView {
    /// All, in the order of their keys.
    pub const ALL: [TopView; 5] = [TopView::Flat, TopView::Tree, TopView::Callers, TopView::Threads, TopView::Flame];

    pub fn name(self) -> &'static str {
        match self {
            TopView::Flat => "flat",
            TopView::Tree => "tree",
            TopView::Callers => "callers",
            TopView::Threads => "threads",
            TopView::Flame => "flame",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Own,
    Inherited,
    Name,
    /// By how much the share of self weight has changed, while a moment is compared with.
    Change,
}

impl Sort {
    pub fn next(self, compares: bool) -> Sort {
        match self {
            Sort::Own => Sort::Inherited,
            Sort::Inherited => Sort::Name,
            Sort::Name if compares => Sort::Change,
            Sort::Name | Sort::Change => Sort::Own,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Sort::Own => "self",
            Sort::Inherited => "total",
            Sort::Name => "name",
            Sort::Change => "change",
        }
    }
}

/// A chain of calls, root first, by the hash of its functions and whether each is marked: a chain may be thousands long.
pub type ChainHash = u64;

fn chain(above: ChainHash, function: CostCentreId, marked: bool) -> ChainHash {
    let mut hasher = DefaultHasher::new();
    (above, function, marked).hash(&mut hasher);
    hasher.finish()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowKey {
    Function(CostCentreId),
    Chain(ChainHash, CostCentreId),
    /// A function above (`true`) or below the one that is looked at.
    Neighbour(CostCentreId, bool),
    Threads(Vec<ThreadId>),
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TopRow {
    pub key: RowKey,
    pub own: u64,
    pub inherited: u64,
    /// Change of the self share since the compared moment, from -1 to 1, and whether chance hardly explains it.
    pub change: Option<(f64, bool)>,
    pub depth: usize,
    /// Whether it is unfolded; `None` where there is nothing below.
    pub open: Option<bool>,
    /// Safe to print.
    pub name: String,
    /// Safe to print.
    pub image: String,
    pub strong: bool,
}

impl TopRow {
    fn new(key: RowKey, own: u64, inherited: u64, name: &str, image: &str) -> TopRow {
        TopRow {
            key,
            own,
            inherited,
            change: None,
            depth: 0,
            open: None,
            name: sanitise(name).into_owned(),
            image: sanitise(image).into_owned(),
            strong: false,
        }
    }

    pub fn function(&self) -> Option<CostCentreId> {
        match &self.key {
            RowKey::Function(function) | RowKey::Neighbour(function, _) | RowKey::Chain(_, function) => Some(*function),
            RowKey::Threads(_) | RowKey::None => None,
        }
    }
}

#[derive(Clone, Debug)]
pub struct TopQuery {
    pub view: TopView,
    pub sort: Sort,
    /// Only rows whose names contain this, whatever its case, and in the tree those above them.
    pub filter: String,
    /// Only these threads, and what they are called.
    pub threads: Option<(Vec<ThreadId>, String)>,
    /// Only stacks with this function, and its name.
    pub focus: Option<(CostCentreId, String)>,
    /// Functions whose own time counts for their callers.
    pub hidden: Vec<CostCentreId>,
    pub looked_at: Option<CostCentreId>,
    pub open: HashMap<ChainHash, bool>,
}

impl Default for TopQuery {
    fn default() -> TopQuery {
        TopQuery {
            view: TopView::Flat,
            sort: Sort::Own,
            filter: String::new(),
            threads: None,
            focus: None,
            hidden: Vec::new(),
            looked_at: None,
            open: HashMap::new(),
        }
    }
}

impl TopQuery {
    fn selection(&self) -> Selection {
        let mut selection = Selection::all().hide(self.hidden.iter().copied());
        if let Some((threads, _)) = &self.threads {
            selection = selection.threads(threads.iter().copied());
        }
        if let Some((function, _)) = self.focus {
            selection = selection.focus([function]);
        }
        selection
    }

    fn matches(&self, name: &str) -> bool {
        self.filter.is_empty() || name.to_lowercase().contains(&self.filter.to_lowercase())
    }

    pub fn answer(&self, model: &TopModel) -> (Vec<TopRow>, Total) {
        let (mut rows, total) = match self.view {
            TopView::Flat => self.flat(model),
            TopView::Tree => self.tree(model),
            TopView::Callers => self.callers(model),
            TopView::Threads => self.processes(model),
            TopView::Flame => (Vec::new(), Total::default()),
        };
        rows.truncate(MOST);
        (rows, total)
    }

    fn flat(&self, model: &TopModel) -> (Vec<TopRow>, Total) {
        let selection = self.selection();
        let (profile, mut changes) = match model.frozen() {
            None => (model.shown(), HashMap::new()),
            // Nothing has changed as long as nothing is known.
            Some(frozen) if frozen.since.charge_count() == 0 => return (Vec::new(), Total::default()),
            Some(frozen) => {
                let view = DiffView::new((&frozen.before, &selection), (&frozen.since, &selection));
                let changes = view.rows.into_iter();
                let changes = changes.map(|row| (row.function, (row.self_change, row.self_significant)));
                (&frozen.since, changes.collect())
            }
        };
        let matching = Matching::of(model.frozen().into_iter().flat_map(|frozen| [&frozen.before, &frozen.since]));
        let labels = profile.labels();
        let view = FlatView::new(profile, &selection);
        let wanted = |labels: &Labels<'_>, function| labels.any(function, |name| self.matches(name));
        // A filter searches start-up functions as well.
        let startup: HashSet<_> =
            if self.filter.is_empty() { profile.startup_functions().into_iter().collect() } else { HashSet::new() };
        let is_shown = |function| !startup.contains(&function) && wanted(&labels, function);
        let rows = view.rows.into_iter().filter(|row| is_shown(row.function)).map(|row| {
            let change = changes.remove(&matching.function(profile, row.function));
            let label = labels.label(row.function);
            let shown =
                TopRow::new(RowKey::Function(row.function), row.self_weight, row.inherited_weight, &label, &row.image);
            TopRow { change, ..shown }
        });
        let mut rows: Vec<TopRow> = rows.collect();
        if let Some(frozen) = model.frozen().filter(|_| !changes.is_empty()) {
            let labels_before = frozen.before.labels();
            let before = FlatView::new(&frozen.before, &selection).rows.into_iter();
            rows.extend(before.filter(|row| wanted(&labels_before, row.function)).filter_map(|row| {
                let change = changes.remove(&matching.function(&frozen.before, row.function))?;
                let label = labels_before.label(row.function);
                let shown = TopRow::new(RowKey::Function(row.function), 0, 0, &label, &row.image);
                Some(TopRow { change: Some(change), ..shown })
            }));
        }
        self.order(&mut rows);
        (rows, view.total)
    }

    fn order(&self, rows: &mut [TopRow]) {
        let by = |key: fn(&TopRow) -> u64| {
            move |a: &TopRow, b: &TopRow| {
                key(b).cmp(&key(a)).then(b.inherited.cmp(&a.inherited)).then(a.name.cmp(&b.name))
            }
        };
        let size = |row: &TopRow| row.change.map_or(0.0, |(change, _)| change.abs());
        match self.sort {
            Sort::Own => rows.sort_by(by(|row| row.own)),
            Sort::Inherited => rows.sort_by(by(|row| row.inherited)),
            Sort::Name => rows.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Change => rows.sort_by(|a, b| size(b).total_cmp(&size(a)).then(a.name.cmp(&b.name))),
        }
    }

    fn tree(&self, model: &TopModel) -> (Vec<TopRow>, Total) {
        let profile = model.shown();
        let view = TreeView::new(profile, &self.selection().hide(profile.startup_functions()));
        let name = |at: usize| view.nodes.get(at).map_or("[unknown]".into(), |node| view.name(node));
        // Which chains lead to a name that is looked for.
        let mut leads = vec![self.filter.is_empty(); view.nodes.len()];
        if !self.filter.is_empty() {
            for (at, node) in view.nodes.iter().enumerate().rev() {
                if leads.get(at).copied().unwrap_or(false) || self.matches(&name(at)) {
                    if let Some(own) = leads.get_mut(at) {
                        *own = true;
                    }
                    // Callers come before callees.
                    if let Some(caller) = node.parent.and_then(|parent| leads.get_mut(parent)) {
                        *caller = true;
                    }
                }
            }
        }
        let mut rows = Vec::new();
        let mut next: Vec<(usize, usize, ChainHash)> = view.roots.iter().rev().map(|&root| (root, 0, 0)).collect();
        while let Some((at, depth, above)) = next.pop() {
            let Some(node) = view.nodes.get(at).filter(|_| leads.get(at).copied().unwrap_or(false)) else { continue };
            if rows.len() == MOST {
                break;
            }
            let chain = chain(above, node.function, node.marked);
            let by_itself = node.weight as f64 >= OPEN * view.total.weight as f64 && depth < DEEPEST;
            // What is looked for is shown, folded away or not.
            let open = !self.filter.is_empty() || self.open.get(&chain).copied().unwrap_or(by_itself);
            let text = view.label(node);
            let image = profile.image_name(node.function);
            let mut row =
                TopRow::new(RowKey::Chain(chain, node.function), node.self_weight, node.weight, &text, &image);
            row.depth = depth;
            let below = node.children.iter().any(|&child| leads.get(child).copied().unwrap_or(false));
            row.open = below.then_some(open);
            rows.push(row);
            if open {
                next.extend(node.children.iter().rev().map(|&child| (child, depth + 1, chain)));
            }
        }
        (rows, view.total)
    }

    /// The calls of the flame graph, since the compared moment if there is one. `None` while nothing is known.
    pub fn flame(&self, model: &TopModel) -> Option<FlameTree> {
        let profile = model.frozen().map_or_else(|| model.shown(), |frozen| &frozen.since);
        let selection = self.selection().hide(profile.startup_functions());
        let mut tree = match model.frozen() {
            None => FlameTree::new(profile, &selection, 0.0),
            Some(frozen) if frozen.since.charge_count() == 0 => return None,
            Some(frozen) => FlameTree::difference(&frozen.before, &frozen.since, &selection),
        };
        if !self.filter.is_empty() {
            let labels = profile.labels();
            tree.search(|function, name| match function {
                Some(function) => labels.any(function, |name| self.matches(name)),
                None => self.matches(name),
            });
        }
        Some(tree)
    }

    fn callers(&self, model: &TopModel) -> (Vec<TopRow>, Total) {
        let profile = model.shown();
        let view = GraphView::new(profile, &self.selection());
        // The most expensive one where none was chosen.
        let function = self.looked_at.map(|function| profile.real(function));
        let node = function.and_then(|function| view.node(function));
        let Some(node) = node.or_else(|| view.nodes.first().filter(|_| function.is_none())) else {
            return (Vec::new(), view.total);
        };
        let labels = profile.labels();
        let image = |function| profile.image_name(function);
        let arcs = |arcs: &[ccsd_profile::view::GraphArc], above| -> Vec<TopRow> {
            let row = |arc: &ccsd_profile::view::GraphArc| TopRow {
                depth: if above { 0 } else { 2 },
                ..TopRow::new(
                    RowKey::Neighbour(arc.function, above),
                    arc.self_weight,
                    arc.self_weight.saturating_add(arc.child_weight),
                    &format!("{}{}", if arc.approximate { "~" } else { "" }, labels.label(arc.function)),
                    &image(arc.function),
                )
            };
            let mut rows: Vec<TopRow> =
                arcs.iter().filter(|arc| labels.any(arc.function, |name| self.matches(name))).map(row).collect();
            if self.sort == Sort::Name {
                self.order(&mut rows);
            }
            rows
        };
        let mut rows = arcs(&node.callers, true);
        let as_root = node.root_self_weight.saturating_add(node.root_child_weight);
        if as_root > 0 {
            rows.push(TopRow::new(RowKey::None, node.root_self_weight, as_root, "[nothing above]", ""));
        }
        let own = TopRow::new(
            RowKey::Function(node.function),
            node.self_weight,
            node.inherited_weight(),
            &labels.label(node.function),
            &image(node.function),
        );
        rows.push(TopRow { depth: 1, strong: true, ..own });
        rows.extend(arcs(&node.callees, false));
        (rows, view.total)
    }

    fn processes(&self, model: &TopModel) -> (Vec<TopRow>, Total) {
        let view = ThreadsView::new(model.shown(), &TopQuery { threads: None, ..self.clone() }.selection());
        let mut rows = Vec::new();
        for process in &view.processes {
            let name = format!("{} ({})", process.pid, process.name);
            let mut threads: Vec<TopRow> = process
                .threads
                .iter()
                .filter(|thread| thread.weight > 0)
                .map(|thread| {
                    let name = format!("{} {}", thread.tid, thread.name);
                    TopRow {
                        depth: 1,
                        ..TopRow::new(RowKey::Threads(vec![thread.id]), thread.weight, thread.weight, &name, "")
                    }
                })
                .filter(|row| self.matches(&row.name))
                .collect();
            if threads.is_empty() && (process.weight == 0 || !self.matches(&name)) {
                continue;
            }
            if self.sort == Sort::Name {
                self.order(&mut threads);
            }
            let key = RowKey::Threads(process.threads.iter().map(|thread| thread.id).collect());
            rows.push(TopRow { strong: true, ..TopRow::new(key, process.weight, process.weight, &name, "") });
            rows.append(&mut threads);
        }
        (rows, view.total)
    }
}
