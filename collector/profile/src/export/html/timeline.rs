//! What each stack cost when, for the timeline of the page.

use hashbrown::HashMap;
use serde::Serialize;

use super::super::Export;
use crate::codec::TimeColumn;
use crate::marked::MARK;
use crate::uncertain::{APPROXIMATE, GAP};
use crate::view::{TreeView, walk_contexts};

/// What was spent in exactly one stack in one column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cell {
    node: usize,
    column: usize,
    weight: u64,
}

/// The costs of a tree of stacks in columns of time.
pub(super) struct Timeline {
    columns: Vec<TimeColumn>,
    /// In the order of nodes, then of columns.
    cells: Vec<Cell>,
}

/// The same as the page has it.
#[derive(Serialize)]
pub(super) struct Packed {
    /// Where each column begins, nanoseconds since the session began.
    starts: Vec<u64>,
    /// Where it ends.
    ends: Vec<u64>,
    /// `node * columns + column` of each cell, less that of the one before it: small numbers, which are short.
    steps: Vec<u64>,
    /// All weights are multiples of it: mostly that of one sample.
    unit: u64,
    /// The weight of each cell, in that.
    weights: Vec<u64>,
}

impl Timeline {
    /// Of the columns of an export, for the stacks of its tree: `None` where there are not two columns to compare.
    pub(super) fn new(export: &Export<'_>, tree: &TreeView) -> Option<Self> {
        if export.columns.len() < 2 {
            return None;
        }
        let entry = |node: &crate::view::TreeNode| {
            node.function.0 | if node.marked { MARK } else { 0 } | if node.gap { GAP } else { 0 }
        };
        let index: HashMap<(Option<usize>, u32), usize> =
            tree.nodes.iter().enumerate().map(|(i, node)| ((node.parent, entry(node)), i)).collect();
        let shown = export.profile.shown(export.selection);
        let mut places: Vec<Option<usize>> = vec![None; shown.contexts().len()];
        walk_contexts(export.profile, &shown, export.selection, |id, visible| {
            let mut at = None;
            for &entry in visible.entries() {
                let Some(&below) = index.get(&(at, entry & !APPROXIMATE)) else { return };
                at = Some(below);
            }
            if let Some(place) = places.get_mut(id.index()) {
                *place = at;
            }
        });
        let mut cells = Vec::new();
        export.profile.for_each_charge(|charge| {
            let Some(node) = places.get(shown.context(charge.context).index()).copied().flatten() else { return };
            if !export.selection.takes_thread(charge.thread) || !shown.counts(charge.context) {
                return;
            }
            for (column, &weight) in charge.weights.iter().skip(1).enumerate().filter(|(_, weight)| **weight > 0) {
                cells.push(Cell { node, column, weight });
            }
        });
        Some(Self { columns: export.columns.to_vec(), cells: joined(cells) })
    }

    /// How many columns there are.
    pub(super) const fn len(&self) -> usize {
        self.columns.len()
    }

    /// The longest column, in nanoseconds.
    pub(super) fn longest_ns(&self) -> u64 {
        self.columns.iter().map(|column| column.to_ns.saturating_sub(column.from_ns)).max().unwrap_or(0)
    }

    /// With half as many columns.
    pub(super) fn coarser(self) -> Self {
        let columns = self.columns.chunks(2).filter_map(|pair| {
            let (first, last) = (pair.first()?, pair.last()?);
            Some(TimeColumn { from_ns: first.from_ns, to_ns: last.to_ns })
        });
        let columns = columns.collect();
        let cells = self.cells.into_iter().map(|cell| Cell { column: cell.column / 2, ..cell }).collect();
        Self { columns, cells: joined(cells) }
    }

    /// For a page in which the node of the tree stands at `place(node)`.
    pub(super) fn packed(&self, place: impl Fn(usize) -> Option<usize>) -> Packed {
        let placed = |cell: &Cell| Some(Cell { node: place(cell.node)?, ..*cell });
        let cells = joined(self.cells.iter().filter_map(placed).collect());
        let unit = cells.iter().fold(0, |unit, cell| common_divisor(unit, cell.weight)).max(1);
        let mut last = 0;
        let mut step = |cell: &Cell| {
            let key = cell.node as u64 * self.columns.len() as u64 + cell.column as u64;
            key - std::mem::replace(&mut last, key)
        };
        Packed {
            starts: self.columns.iter().map(|column| column.from_ns).collect(),
            ends: self.columns.iter().map(|column| column.to_ns).collect(),
            steps: cells.iter().map(&mut step).collect(),
            unit,
            weights: cells.iter().map(|cell| cell.weight / unit).collect(),
        }
    }
}

/// In order, with one cell for each place.
fn joined(mut cells: Vec<Cell>) -> Vec<Cell> {
    cells.sort_unstable();
    cells.dedup_by(|next, kept| {
        let same = (next.node, next.column) == (kept.node, kept.column);
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

    fn timeline() -> Timeline {
        let columns = (0..5).map(|i| TimeColumn { from_ns: i * 10, to_ns: i * 10 + 10 }).collect();
        let cell = |node, column, weight| Cell { node, column, weight };
        let cells = joined(vec![cell(2, 4, 12), cell(0, 1, 6), cell(0, 0, 3), cell(2, 4, 3), cell(1, 3, 9)]);
        Timeline { columns, cells }
    }

    #[test]
    fn cells_are_packed_in_small_numbers() {
        let packed = timeline().packed(Some);
        // Keys 0, 1, 8 and 14.
        assert_eq!((packed.steps, packed.unit, packed.weights), (vec![0, 1, 7, 6], 3, vec![1, 2, 3, 5]));
    }

    #[test]
    fn nothing_is_lost_in_coarser_columns() {
        let coarse = timeline().coarser();
        assert_eq!(
            coarse.columns.iter().map(|it| (it.from_ns, it.to_ns)).collect::<Vec<_>>(),
            [(0, 20), (20, 40), (40, 50)]
        );
        let packed = coarse.packed(Some);
        assert_eq!((packed.steps, packed.weights), (vec![0, 4, 4], vec![3, 3, 5]));
    }

    #[test]
    fn what_is_pruned_is_joined() {
        let packed = timeline().packed(|_| Some(0));
        assert_eq!((packed.steps, packed.weights, packed.unit), (vec![0, 1, 2, 1], vec![1, 2, 3, 5], 3));
    }
}
