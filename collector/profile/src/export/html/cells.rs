//! What each stack cost, by thread and time.

use hashbrown::HashMap;
use serde::Serialize;

use super::super::request::Export;
use super::packed::{pack, pack_ascending};
use super::stacks::{BEYOND, Stacks};
use crate::cgroup;
use crate::gaps::MARK;
use crate::ids::{CostCentreId, ProcessId, ThreadId};
use crate::model::{Membership, Process, Thread};
use crate::profile::Profile;
use crate::text::sanitise;
use crate::timeline::{TimeColumn, Timeline};
use crate::uncertain::GAP;
use crate::view::{DiffFunction, DiffTree, Matching, Selection, function, with_one_of_a_name};

/// What was spent in exactly one stack by one thread in one column of time, by one metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CostCell {
    node: usize,
    thread: usize,
    column: usize,
    layer: usize,
    weight: u64,
}

impl CostCell {
    const fn place(&self) -> (usize, usize, usize, usize) {
        (self.node, self.thread, self.column, self.layer)
    }
}

/// The costs of a tree of stacks. A layer is a metric, or one of two profiles.
#[derive(Clone)]
pub(super) struct Cells {
    layers: usize,
    /// Empty where time is not known.
    columns: Vec<TimeColumn>,
    /// Name and id of each thread, and its process in [`Cells::processes`]. Empty where threads are not known.
    threads: Vec<(String, u32, usize)>,
    /// Name and id of each process, and where in [`Cells::groups`] stands what it belongs to, if that is known.
    processes: Vec<(String, u32, Option<usize>)>,
    groups: Vec<CellGroup>,
    cells: Vec<CostCell>,
}

/// What processes belong to, as `--by` names it, with what else a pattern may call it by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct CellGroup {
    unit: String,
    container: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// The container's name beside its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    user: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
}

impl CellGroup {
    fn of(membership: &Membership) -> Self {
        let clean = |text: String| sanitise(&text).into_owned();
        let id = cgroup::container(&membership.cgroup).filter(|_| membership.cgroup != Membership::KERNEL);
        Self {
            unit: clean(membership.unit()),
            container: clean(membership.container()),
            id: id.map(|container| clean(container.id.into_owned())),
            name: Some(&membership.container_name).filter(|name| !name.is_empty()).map(|name| clean(name.clone())),
            user: clean(membership.user()),
            uid: membership.uid,
        }
    }
}

#[derive(Serialize)]
pub(super) struct PackedCells {
    /// Where each column of time begins, nanoseconds since the session began.
    starts: Vec<u64>,
    ends: Vec<u64>,
    threads: Vec<(String, u32, usize)>,
    processes: Vec<(String, u32, Option<usize>)>,
    groups: Vec<CellGroup>,
    /// `(node * threads + thread) * columns + column` of each cell, as differences.
    steps: String,
    layers: Vec<PackedLayer>,
}

#[derive(Serialize)]
struct PackedLayer {
    /// All weights are multiples of it: mostly that of one sample.
    unit: u64,
    weights: String,
}

impl Cells {
    pub(super) fn from_metrics(exports: &[&Export<'_>], stacks: &mut Stacks) -> Self {
        // The columns of the first export are those of all.
        let timeline = exports.first().map_or(Timeline::none(), |export| export.timeline);
        let timeline = if timeline.columns().len() < 2 { Timeline::none() } else { timeline };
        let mut threads = Threads::default();
        let mut cells = Vec::new();
        for (layer, export) in exports.iter().enumerate() {
            threads.known.clear();
            let side = (export.profile, export.selection, layer);
            let place = |entries: &[u32]| stacks.place(entries.iter().copied());
            add_cells(side, timeline, place, &mut threads, &mut cells);
        }
        let Threads { threads, processes, groups, .. } = threads;
        let columns = timeline.columns().to_vec();
        Self { layers: exports.len(), columns, threads, processes, groups, cells: joined(cells) }
    }

    /// Layers: the profile after, then before. Two runs have their own threads and no common time.
    pub(super) fn from_difference(
        tree: &DiffTree,
        stacks: &mut Stacks,
        matching: &Matching,
        [after, before]: [&Export<'_>; 2],
    ) -> Self {
        let numbers: HashMap<&DiffFunction, u32> = tree.functions.iter().zip(0..).collect();
        let mut threads = Threads::default();
        let mut cells = Vec::new();
        for (layer, export) in [after, before].into_iter().enumerate() {
            threads.known.clear();
            with_one_of_a_name(export.profile, export.selection, matching, |profile, selection| {
                let ids = (0..).map(CostCentreId::new).take(profile.cost_centres().len());
                let common: Vec<Option<u32>> =
                    ids.map(|id| numbers.get(&matching.function(profile, id)).copied()).collect();
                let number = |&entry: &u32| {
                    let number = common.get(function(entry).index()).copied().flatten();
                    number.map_or(BEYOND, |number| number | (entry & (MARK | GAP)))
                };
                let place = |entries: &[u32]| stacks.place(entries.iter().map(number));
                add_cells((profile, selection, layer), Timeline::none(), place, &mut threads, &mut cells);
            });
        }
        let Threads { threads, processes, groups, .. } = threads;
        Self { layers: 2, columns: Vec::new(), threads, processes, groups, cells: joined(cells) }
    }

    pub(super) const fn columns(&self) -> usize {
        self.columns.len()
    }

    pub(super) const fn has_parts(&self) -> bool {
        !self.columns.is_empty() || !self.threads.is_empty()
    }

    pub(super) const fn has_threads(&self) -> bool {
        self.threads.len() > 1
    }

    pub(super) fn longest_ns(&self) -> u64 {
        self.columns.iter().map(|column| column.to_ns.saturating_sub(column.from_ns)).max().unwrap_or(0)
    }

    pub(super) fn coarser(self) -> Self {
        let columns = self.columns.chunks(2).filter_map(|pair| {
            let (first, last) = (pair.first()?, pair.last()?);
            Some(TimeColumn { from_ns: first.from_ns, to_ns: last.to_ns })
        });
        let columns = columns.collect();
        let cells = self.cells.into_iter().map(|cell| CostCell { column: cell.column / 2, ..cell }).collect();
        Self { columns, cells: joined(cells), ..self }
    }

    pub(super) fn without_threads(self) -> Self {
        let cells = self.cells.into_iter().map(|cell| CostCell { thread: 0, ..cell }).collect();
        Self { threads: Vec::new(), processes: Vec::new(), groups: Vec::new(), cells: joined(cells), ..self }
    }

    pub(super) fn whole(self) -> Self {
        let cells = self.cells.into_iter().map(|cell| CostCell { thread: 0, column: 0, ..cell }).collect();
        Self {
            columns: Vec::new(),
            threads: Vec::new(),
            processes: Vec::new(),
            groups: Vec::new(),
            cells: joined(cells),
            ..self
        }
    }

    /// The wanted nodes with self cost, and their share of the first layer's total.
    pub(super) fn own(&self, is_wanted: impl Fn(usize) -> bool) -> (Vec<usize>, f64) {
        let (mut nodes, mut wanted, mut total) = (Vec::new(), 0u64, 0u64);
        for cell in &self.cells {
            let weight = if cell.layer == 0 { cell.weight } else { 0 };
            total = total.saturating_add(weight);
            if is_wanted(cell.node) {
                wanted = wanted.saturating_add(weight);
                nodes.push(cell.node);
            }
        }
        nodes.dedup();
        (nodes, wanted as f64 / total.max(1) as f64)
    }

    /// Packs the cells for a page in which node `n` stands at `place(n)`.
    pub(super) fn packed(&self, place: impl Fn(usize) -> Option<usize>) -> PackedCells {
        let placed = |cell: &CostCell| Some(CostCell { node: place(cell.node)?, ..*cell });
        let cells = joined(self.cells.iter().filter_map(placed).collect());
        let (threads, columns) = (self.threads.len().max(1) as u64, self.columns.len().max(1) as u64);
        let key = |cell: &CostCell| (cell.node as u64 * threads + cell.thread as u64) * columns + cell.column as u64;
        let groups: Vec<&[CostCell]> = cells.chunk_by(|a, b| key(a) == key(b)).collect();
        let layer = |layer: usize| {
            let of_layer =
                |group: &&[CostCell]| group.iter().find(|cell| cell.layer == layer).map_or(0, |cell| cell.weight);
            let unit = groups.iter().map(of_layer).fold(0, common_divisor).max(1);
            PackedLayer { unit, weights: pack(groups.iter().map(|group| of_layer(group) / unit)) }
        };
        PackedCells {
            starts: self.columns.iter().map(|column| column.from_ns).collect(),
            ends: self.columns.iter().map(|column| column.to_ns).collect(),
            threads: self.threads.clone(),
            processes: self.processes.clone(),
            groups: self.groups.clone(),
            steps: pack_ascending(groups.iter().filter_map(|group| group.first().map(key))),
            layers: (0..self.layers).map(layer).collect(),
        }
    }
}

/// Adds what a profile charged as one layer. `place` tells the node of a stack.
fn add_cells(
    (profile, selection, layer): (&Profile, &Selection, usize),
    timeline: &Timeline,
    mut place: impl FnMut(&[u32]) -> Option<usize>,
    threads: &mut Threads,
    cells: &mut Vec<CostCell>,
) {
    let walk = profile.walk(selection);
    let mut places: Vec<Option<usize>> = vec![None; walk.table().len()];
    walk.visit(|id, visible| {
        if let Some(known) = places.get_mut(id.index()) {
            *known = place(visible.entries());
        }
    });
    walk.charges(|context, charge| {
        let Some(node) = places.get(context.index()).copied().flatten() else { return };
        let thread = threads.number(profile, charge.thread);
        let mut add = |column, weight| {
            if weight > 0 {
                cells.push(CostCell { node, thread, column, layer, weight });
            }
        };
        if timeline.is_empty() {
            add(0, charge.weights.get(selection.metric_index()).copied().unwrap_or(0));
        } else {
            timeline.weights(charge.weights).iter().enumerate().for_each(|(column, &weight)| add(column, weight));
        }
    });
}

#[derive(Default)]
struct Threads {
    threads: Vec<(String, u32, usize)>,
    processes: Vec<(String, u32, Option<usize>)>,
    groups: Vec<CellGroup>,
    /// Of the profile at hand.
    known: HashMap<ThreadId, usize>,
    /// Profiles of one file by other metrics have the same threads.
    same: HashMap<(Process, Thread), usize>,
    same_process: HashMap<Process, usize>,
    same_group: HashMap<CellGroup, usize>,
}

impl Threads {
    fn number(&mut self, profile: &Profile, id: ThreadId) -> usize {
        if let Some(&number) = self.known.get(&id) {
            return number;
        }
        let unknown = Process::new(0, 0, String::new());
        let thread = profile.thread(id).cloned();
        let process = thread.as_ref().and_then(|thread| profile.process(thread.process)).cloned();
        let process = process.unwrap_or(unknown);
        let thread = thread.unwrap_or(Thread { process: ProcessId::new(0), tid: 0, name: String::new() });
        let next = self.processes.len();
        let in_process = *self.same_process.entry(process.clone()).or_insert(next);
        if in_process == next {
            let group = process.membership.as_deref().map(|membership| self.group(membership));
            self.processes.push((sanitise(&process.name).into_owned(), process.pid, group));
        }
        let (name, tid) = (sanitise(&thread.name).into_owned(), thread.tid);
        let next = self.threads.len();
        let number = *self.same.entry((process, thread)).or_insert(next);
        if number == next {
            self.threads.push((name, tid, in_process));
        }
        self.known.insert(id, number);
        number
    }

    fn group(&mut self, membership: &Membership) -> usize {
        let group = CellGroup::of(membership);
        let next = self.groups.len();
        let number = *self.same_group.entry(group.clone()).or_insert(next);
        if number == next {
            self.groups.push(group);
        }
        number
    }
}

fn joined(mut cells: Vec<CostCell>) -> Vec<CostCell> {
    cells.sort_unstable();
    cells.dedup_by(|next, kept| {
        let same = next.place() == kept.place();
        if same {
            kept.weight = kept.weight.saturating_add(next.weight);
        }
        same
    });
    cells
}

fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Cells {
        let columns = (0..5).map(|i| TimeColumn { from_ns: i * 10, to_ns: i * 10 + 10 }).collect();
        let cell = |node, thread, column, weight| CostCell { node, thread, column, layer: 0, weight };
        let cells =
            joined(vec![cell(2, 1, 4, 12), cell(0, 0, 1, 6), cell(0, 0, 0, 3), cell(2, 1, 4, 3), cell(1, 0, 3, 9)]);
        let threads = vec![("a".to_owned(), 1, 0), ("b".to_owned(), 2, 0)];
        Cells { layers: 1, columns, threads, processes: vec![("p".to_owned(), 1, None)], groups: Vec::new(), cells }
    }

    #[test]
    fn cells_are_packed_in_small_numbers() {
        let packed = cells().packed(Some);
        // Keys 0, 1, 13 and 29.
        assert_eq!(packed.steps, pack([0, 1, 12, 16]));
        assert_eq!((packed.layers[0].unit, &packed.layers[0].weights), (3, &pack([1, 2, 3, 5])));
    }

    #[test]
    fn nothing_is_lost_in_coarser_columns() {
        let coarse = cells().coarser();
        assert_eq!(
            coarse.columns.iter().map(|it| (it.from_ns, it.to_ns)).collect::<Vec<_>>(),
            [(0, 20), (20, 40), (40, 50)]
        );
        // Keys 0, 7 and 17.
        let packed = coarse.packed(Some);
        assert_eq!((packed.steps, &packed.layers[0].weights), (pack([0, 7, 10]), &pack([3, 3, 5])));
    }

    #[test]
    fn pruned_stacks_are_joined() {
        let packed = cells().packed(|_| Some(0));
        assert_eq!((packed.steps, &packed.layers[0].weights), (pack([0, 1, 2, 6]), &pack([1, 2, 3, 5])));
        let of_all = cells().without_threads().packed(Some);
        // Keys 0, 1, 8 and 14.
        assert_eq!(
            (of_all.steps, of_all.threads.len(), &of_all.layers[0].weights),
            (pack([0, 1, 7, 6]), 0, &pack([1, 2, 3, 5]))
        );
        let whole = cells().whole().packed(|_| Some(0));
        assert_eq!((whole.steps, whole.layers[0].unit, &whole.layers[0].weights), (pack([0]), 33, &pack([1])));
    }

    #[test]
    fn layers_have_their_own_unit() {
        let mut both = cells();
        both.layers = 2;
        both.cells.push(CostCell { node: 3, thread: 0, column: 0, layer: 1, weight: 7 });
        let packed = both.packed(Some);
        assert_eq!((packed.layers[1].unit, &packed.layers[1].weights), (7, &pack([0, 0, 0, 0, 1])));
        assert_eq!(packed.layers[0].weights, pack([1, 2, 3, 5, 0]));
    }

    #[test]
    fn stacks_beyond_a_tree_keep_their_weight() {
        use crate::{ContextId, CostCentre, Image, LineId, ProfileLimits, SessionInfo};
        let metric = crate::Metric { name: "cpu-clock".to_owned(), unit: crate::Unit::Nanoseconds };
        let info = SessionInfo { metrics: vec![metric], ..SessionInfo::default() };
        let mut profile = Profile::new(info, ProfileLimits::default());
        let image = profile.add_image(Image { name: "p".to_owned(), build_id: Vec::new() });
        let process = profile.add_process(Process::new(1, 1, "p"));
        let thread = profile.add_thread(Thread { process, tid: 1, name: "p".to_owned() });
        let function = |profile: &mut Profile, name: String| {
            let (linkage_name, display_name, file) = (Some(name), None, None);
            profile.add_cost_centre(CostCentre {
                image,
                linkage_name,
                display_name,
                start: None,
                file,
                line: 0,
                local: false,
            })
        };
        for (root, weight) in [("main", 10), ("other", 1)] {
            for leaf in 0..5 {
                let functions = [root.to_owned(), format!("f{leaf}")].map(|name| function(&mut profile, name));
                let push = |context, function: CostCentreId| profile.contexts_mut().push(context, function);
                let context = functions.into_iter().fold(ContextId::ROOT, push);
                profile.charge(thread, context, LineId::UNKNOWN, &[weight + leaf]);
            }
        }
        let selection = Selection::all();
        let mut tree = crate::view::TreeView::new(&profile, &selection);
        tree.limit(3);
        let mut stacks = Stacks::default();
        stacks.add_tree(&tree);
        let export = Export::new(&profile, &selection);
        let cells = Cells::from_metrics(&[&export], &mut stacks);
        assert_eq!(cells.cells.iter().map(|cell| cell.weight).sum::<u64>(), tree.total.weight);
        // Of both, which have one callee together.
        assert!(stacks.has_beyond() && stacks.nodes.len() == 5);
        let kept = stacks.heaviest(usize::MAX);
        assert_eq!(kept.iter().filter(|&&kept| kept).count(), 3);
        let (beyond, share) = cells.own(|node| !kept[node]);
        assert!(beyond.len() == 2 && (share - 61.0 / 75.0).abs() < 1e-9, "{share}");
    }
}
