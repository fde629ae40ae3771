//! Contexts as (parent, function), and rebuilding of their histories.
//!
//! A rebuild replays pushes from the nearest stored history. To bound this, histories are stored as checkpoints: if a
//! new context is `K = 2 * max(32, entries of its history)` parents away from a stored history, that of the ancestor
//! halfway is stored. Every checkpoint thus has K / 2 contexts of its own, on the path below it that no other
//! checkpoint claims: storing costs at most about 5 bytes per context, however contexts branch, and nothing where
//! chains are shorter than 64. A replay has at most K pushes of at most `entries` steps each.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::fair_length::fair_length;
use crate::gaps::MARK;
use crate::ids::{ContextId, CostCentreId};
use crate::limits::MAX_HISTORY_ENTRIES;
use crate::marked::{Marked, Undo};

pub(super) const NONE: u32 = u32::MAX;

/// Minimum replay before a history is stored. 64 pushes of a common history of 24 entries take about a microsecond.
const MIN_REPLAY: usize = 64;

/// Contexts in one block: 6 KiB. Blocks never move, so growing copies nothing and wastes at most one block.
const BLOCK: usize = 512;

pub(super) const BLOCK_BYTES: usize = size_of::<[ContextNode; BLOCK]>();
pub(super) const POINTER_BYTES: usize = size_of::<Box<[ContextNode; BLOCK]>>();

pub(super) const fn blocks(contexts: usize) -> usize {
    contexts.div_ceil(BLOCK)
}

/// Entries of all histories that are visited, more in proportion to contexts. `cc1 -O2`: 15,702 contexts of 24.
const FREE_ENTRIES: usize = 1 << 24;
/// Entries of a history that is visited in any case: beyond them its middle may be left out.
const LEAST_ENTRIES: usize = 128;

/// `[elided]` and a function below it: the end of the history of an elided path.
const ELIDED_ENTRIES: usize = 2;

/// Top bit of a stored parent: this context's history is stored. Contexts are numbered below it.
const CHECKPOINT: u32 = 1 << 31;

#[derive(Clone, Copy, Debug)]
pub(super) struct ContextNode {
    parent: u32,
    pub(super) function: u32,
    pub(super) hash: u32,
}

impl ContextNode {
    const EMPTY: Self = Self { parent: 0, function: NONE, hash: 0 };

    #[inline]
    pub(super) const fn parent(&self) -> u32 {
        self.parent & !CHECKPOINT
    }
}

/// The start of a rebuild, and the number of pushes replayed.
pub(super) enum Base {
    /// A stored history, or the root.
    Stored(u32),
    Cached(u32),
}

#[derive(Debug)]
pub(super) struct Store {
    blocks: Vec<Box<[ContextNode; BLOCK]>>,
    len: usize,
    checkpoints: HashMap<u32, Box<[u32]>>,
    checkpoint_bytes: usize,
}

impl Store {
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new(), len: 0, checkpoints: HashMap::new(), checkpoint_bytes: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Whether an id is left below the checkpoint bit.
    pub(super) const fn has_ids(&self) -> bool {
        self.len < CHECKPOINT as usize
    }

    pub(super) fn checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> Option<&ContextNode> {
        let id = id as usize;
        if id >= self.len {
            return None;
        }
        self.blocks.get(id / BLOCK).map(|block| &block[id % BLOCK])
    }

    #[inline]
    pub(super) fn node(&self, id: u32) -> &ContextNode {
        self.get(id).unwrap_or(&ContextNode::EMPTY)
    }

    #[inline]
    pub(super) fn is_child(&self, id: u32, parent: u32, function: u32) -> bool {
        self.get(id).is_some_and(|node| node.function == function && node.parent() == parent)
    }

    pub(super) fn append(&mut self, parent: u32, function: u32, hash: u32) -> u32 {
        let id = self.len;
        if id / BLOCK == self.blocks.len() {
            self.blocks.push(Box::new([ContextNode::EMPTY; BLOCK]));
        }
        if let Some(block) = self.blocks.get_mut(id / BLOCK) {
            block[id % BLOCK] = ContextNode { parent, function, hash };
        }
        self.len += 1;
        id as u32
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
        self.blocks.truncate(self.len.div_ceil(BLOCK));
        let first = self.len as u32;
        let mut freed = 0;
        self.checkpoints.retain(|&id, history| {
            let keep = id < first;
            freed += if keep { 0 } else { size_of_val(&**history) };
            keep
        });
        self.checkpoint_bytes -= freed;
    }

    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() * size_of::<[ContextNode; BLOCK]>()
            + self.blocks.capacity() * size_of::<Box<[ContextNode; BLOCK]>>()
            + self.checkpoints.allocation_size()
            + self.checkpoint_bytes
    }

    pub(super) fn pointer_bytes(&self) -> usize {
        self.blocks.capacity() * POINTER_BYTES
    }

    /// Maximum bytes that one more context may allocate, without its checkpoint.
    pub(super) fn growth(&self) -> usize {
        if self.len < self.blocks.len() * BLOCK {
            return 0;
        }
        let pointers = if self.blocks.len() < self.blocks.capacity() { 0 } else { 2 * self.blocks.capacity() + 4 };
        size_of::<[ContextNode; BLOCK]>() + pointers * size_of::<Box<[ContextNode; BLOCK]>>()
    }

    /// Maximum bytes that a checkpoint of about `entries` entries may allocate, including growth of the map.
    pub(super) fn checkpoint_growth(&self, entries: usize) -> usize {
        let map = if self.checkpoints.len() < self.checkpoints.capacity() {
            0
        } else {
            2 * self.checkpoints.allocation_size() + 512
        };
        // The ancestor halfway may have up to `MIN_REPLAY / 2 + entries` shortening pushes more, of three entries each.
        (4 * entries + 3 * MIN_REPLAY) * size_of::<u32>() + map
    }

    /// Number of parents from `id` to the nearest stored history or the root.
    pub(super) fn distance(&self, mut id: u32) -> u32 {
        let mut steps = 0;
        while id != ContextId::ROOT.0 {
            let node = self.node(id);
            if node.parent & CHECKPOINT != 0 {
                break;
            }
            id = node.parent();
            steps += 1;
        }
        steps
    }

    /// Stores the history of the ancestor halfway if `id` is too far from a stored one. Returns the new distance.
    pub(super) fn checkpoint(&mut self, id: u32, distance: u32, history: &Marked, path: &mut Vec<u32>) -> u32 {
        let most = (2 * history.len()).max(MIN_REPLAY) as u32;
        if distance < most {
            return distance;
        }
        let mut ancestor = id;
        for _ in 0..most / 2 {
            ancestor = self.node(ancestor).parent();
        }
        let mut marked = Marked::default();
        self.rebuild(ancestor, &mut marked, path);
        let stored: Box<[u32]> = marked.entries().into();
        self.checkpoint_bytes += size_of_val(&*stored);
        self.checkpoints.insert(ancestor, stored);
        let index = ancestor as usize;
        if let Some(block) = self.blocks.get_mut(index / BLOCK) {
            block[index % BLOCK].parent |= CHECKPOINT;
        }
        most / 2
    }

    pub(super) fn rebuild(&self, id: u32, history: &mut Marked, path: &mut Vec<u32>) {
        self.rebuild_from(id, None, history, path);
    }

    /// As [`Self::rebuild`]; with `cached`, `history` initially has the history of that context.
    pub(super) fn rebuild_from(&self, id: u32, cached: Option<u32>, history: &mut Marked, path: &mut Vec<u32>) -> Base {
        path.clear();
        let mut at = id;
        let base = loop {
            if cached == Some(at) {
                break Base::Cached(path.len() as u32);
            }
            let node = self.node(at);
            if at == ContextId::ROOT.0 {
                history.clear();
                break Base::Stored(path.len() as u32);
            }
            if node.parent & CHECKPOINT != 0 {
                history.set(self.checkpoints.get(&at).map_or(&[], |stored| stored));
                break Base::Stored(path.len() as u32);
            }
            path.push(node.function);
            at = node.parent();
        };
        for &function in path.iter().rev() {
            history.push(function & !MARK);
        }
        base
    }

    pub(super) fn set_hash(&mut self, id: u32, hash: u32) {
        let index = id as usize;
        if let Some(block) = self.blocks.get_mut(index / BLOCK) {
            block[index % BLOCK].hash = hash;
        }
    }

    /// Calls `visit` with every context, parents before children, and with the history of each that is wanted. One walk down and
    /// up the tree, with one push for each context; where histories are long, two.
    ///
    /// The total length of what `visit` gets is limited: beyond that, the middle of the longest histories is `[elided]`, so that
    /// those of one program do not take the place of others'. Returns how many these are.
    pub(super) fn visit(&self, wanted: impl Fn(ContextId) -> bool, mut visit: impl FnMut(ContextVisit<'_>)) -> u64 {
        let most = self.most_entries(&wanted);
        let (mut short, mut shortened) = (Vec::new(), 0);
        self.walk(|step| match step {
            ContextVisit::At(id, _) if !wanted(id) => {}
            ContextVisit::At(id, entries) if entries.len() > most => {
                shortened += 1;
                cut(entries, most, &mut short);
                visit(ContextVisit::At(id, &short));
            }
            step => visit(step),
        });
        shortened
    }

    /// Up to how many entries histories are visited in full, so that all that are wanted have room.
    fn most_entries(&self, wanted: &impl Fn(ContextId) -> bool) -> usize {
        let all = (0..self.len as u32).filter(|&id| wanted(ContextId(id))).count();
        let room = FREE_ENTRIES.saturating_add(all.saturating_mul(LEAST_ENTRIES));
        let longest = MAX_HISTORY_ENTRIES + ELIDED_ENTRIES;
        if all.saturating_mul(longest) <= room {
            return longest;
        }
        let mut by_length: BTreeMap<usize, usize> = BTreeMap::new();
        self.walk(|step| {
            if let ContextVisit::At(id, entries) = step
                && wanted(id)
            {
                *by_length.entry(entries.len()).or_default() += 1;
            }
        });
        fair_length(&by_length, room, LEAST_ENTRIES)
    }

    /// Calls `visit` with every context and its history.
    pub(super) fn walk(&self, mut visit: impl FnMut(ContextVisit<'_>)) {
        let mut first_child = vec![NONE; self.len];
        let mut next_sibling = vec![NONE; self.len];
        for id in (1..self.len).rev() {
            let parent = self.node(id as u32).parent() as usize;
            if let (Some(first), Some(next)) = (first_child.get_mut(parent), next_sibling.get_mut(id)) {
                *next = std::mem::replace(first, id as u32);
            }
        }
        let link = |links: &[u32], id: u32| links.get(id as usize).copied().unwrap_or(NONE);
        let mut history = Marked::default();
        let mut undos: Vec<Undo> = Vec::new();
        let mut at = ContextId::ROOT.0;
        visit(ContextVisit::At(ContextId(at), history.entries()));
        loop {
            let mut next = link(&first_child, at);
            while next == NONE {
                let Some(undo) = undos.pop() else { return };
                visit(ContextVisit::Leave(ContextId(at)));
                history.undo(&undo);
                next = link(&next_sibling, at);
                at = self.node(at).parent();
            }
            at = next;
            let mut function = self.node(at).function & !MARK;
            // No push creates a longer history, but a file may claim one.
            let is_too_long = history.len() >= MAX_HISTORY_ENTRIES + ELIDED_ENTRIES && history.grows_by(function);
            if is_too_long {
                function = CostCentreId::ELIDED.0;
            }
            visit(ContextVisit::Enter(ContextId(at), history.entries(), CostCentreId(function)));
            undos.push(history.push(function));
            visit(ContextVisit::At(ContextId(at), history.entries()));
        }
    }
}

/// Leaves out the middle of a history, so that so many entries are left: its callers and the running function stay.
fn cut(entries: &[u32], most: usize, short: &mut Vec<u32>) {
    let outer = most / 2;
    let inner = entries.len() - (most - outer - 1).min(entries.len() - outer);
    // An earlier `[elided]` is dropped with what is before it, so that there is only one.
    let elided = entries[inner..].iter().rposition(|entry| entry & !MARK == CostCentreId::ELIDED.0);
    let inner = inner + elided.map_or(0, |at| at + 1);
    short.clear();
    short.extend_from_slice(&entries[..outer]);
    short.push(CostCentreId::ELIDED.0 | MARK);
    short.extend_from_slice(&entries[inner..]);
}

pub(crate) enum ContextVisit<'a> {
    /// A context, the history of the one that it was made from, and the function that was called there.
    Enter(ContextId, &'a [u32], CostCentreId),
    At(ContextId, &'a [u32]),
    Leave(ContextId),
}

#[cfg(test)]
mod tests {
    use crate::context::ContextTable;
    use crate::gaps::MARK;
    use crate::ids::{ContextId, CostCentreId};

    #[test]
    fn long_histories_do_not_take_the_place_of_others() {
        const LONG: u32 = 2_000;
        const OTHERS: u32 = 20_000;
        let mut table = ContextTable::new(64 << 20);
        let mut stack = |functions: std::ops::Range<u32>, from: ContextId| {
            functions.fold(from, |context, function| table.push(context, CostCentreId(function)))
        };
        let (first, functions) = (CostCentreId::ELIDED.0 + 1, CostCentreId::ELIDED.0 + 1 + LONG);
        let long = stack(first..functions, ContextId::ROOT);
        (0..OTHERS).for_each(|leaf| _ = stack(functions + leaf..functions + leaf + 1, long));
        // The last of all, of 300 calls.
        let root = functions + OTHERS;
        let last = stack(root..root + 300, ContextId::ROOT);
        let (mut longest, mut found) = (0, Vec::new());
        let is_leaf = |id| id == last || table.parent(id) == Some(long);
        let cut = table.visit_of(is_leaf, |id, entries| {
            longest = longest.max(entries.len());
            assert_eq!(entries.last().map(|entry| entry & !MARK), table.leaf(id).map(|leaf| leaf.0));
            if id == last {
                found = entries.to_vec();
            }
        });
        assert_eq!(cut, u64::from(OTHERS));
        assert!((900..1_000).contains(&longest), "{longest}");
        assert_eq!(found, (root..root + 300).map(|function| function | MARK).collect::<Vec<_>>());
        // Histories that are not asked for use none of the limit.
        assert_eq!(table.visit_of(|id| id == long, |_, entries| assert_eq!(entries.len(), LONG as usize)), 0);
    }
}
