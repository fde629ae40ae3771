//! Elision: paths that do not fit a full table.
//!
//! Such a path is charged below its deepest known context, as (context, `[elided]`), so callers keep their inherited
//! time. Room for that is reserved, and [`LEAF_PART`] of the budget for innermost functions below `[elided]`.

use hashbrown::HashTable;

use super::store::{BLOCK_BYTES, POINTER_BYTES, blocks};
use super::{ContextTable, table_growth};
use crate::gaps::MARK;
use crate::hash::{mix, mix2};
use crate::ids::{ContextId, CostCentreId};

/// One part in this many of the budget is reserved for the innermost functions of elided paths.
const LEAF_PART: usize = 4;

impl ContextTable {
    pub(crate) fn set_limit(&mut self, limit_bytes: usize) {
        self.limit = limit_bytes;
    }

    /// Whether `contexts` new contexts may not all fit.
    pub(crate) fn is_nearly_full(&self, contexts: usize) -> bool {
        let index = |table: &HashTable<u32>| match table.len() + contexts <= table.capacity() {
            true => 0,
            false => 2 * table.allocation_size() + index_bytes(contexts),
        };
        let entries = self.longest.max(self.cached.history.len());
        let growth = (blocks(contexts) + 1) * (BLOCK_BYTES + 2 * POINTER_BYTES)
            + self.store.checkpoint_growth(entries)
            + Self::scratch_growth(entries)
            + index(&self.children)
            + index(&self.histories);
        !self.has_room(growth, contexts)
    }

    pub(crate) fn is_tight(&self) -> bool {
        !self.has_room(2 * self.bytes(), 0)
    }

    /// Pushes `[elided]` below the deepest known context, and the innermost function `f` below it.
    #[cold]
    pub(super) fn push_elided(&mut self, from: u32, f: u32, innermost: bool) -> ContextId {
        self.elided_pushes += 1;
        let elided = self.elide(ContextId(from));
        if !innermost || f >= MARK || f == CostCentreId::ELIDED.0 {
            return elided;
        }
        let hash = mix2(self.seed, elided.0, f);
        let (store, seed) = (&self.store, self.seed);
        if let Some(&id) = self.elided.find(hash, |&id| store.is_child(id, elided.0, f)) {
            return ContextId(id);
        }
        let growth = self.store.growth() + table_growth(&self.elided);
        if self.bytes() + growth + self.reserve(0) > self.limit || !self.store.has_ids() {
            return elided;
        }
        let id = self.store.append(elided.0, f, 0);
        let store = &self.store;
        self.elided.insert_unique(hash, id, |&id| {
            let node = store.node(id);
            mix2(seed, node.parent(), node.function)
        });
        ContextId(id)
    }

    /// The context `[elided]` below this one, or this one if it is elided itself.
    pub(crate) fn elide(&mut self, id: ContextId) -> ContextId {
        let prefix = self.prefix(id);
        if let Some(known) = self.find_elided(prefix) {
            return known;
        }
        if !self.store.has_ids() {
            return ContextId::ELIDED;
        }
        let id = self.store.append(prefix.0, CostCentreId::ELIDED.0, 0);
        let (store, seed) = (&self.store, self.seed);
        self.elisions
            .insert_unique(mix(seed, u64::from(prefix.0)), id, |&id| mix(seed, u64::from(store.node(id).parent())));
        ContextId(id)
    }

    pub(crate) fn find_elided(&self, prefix: ContextId) -> Option<ContextId> {
        if prefix == ContextId::ROOT {
            return Some(ContextId::ELIDED);
        }
        let hash = mix(self.seed, u64::from(prefix.0));
        self.elisions.find(hash, |&id| self.store.node(id).parent() == prefix.0).map(|&id| ContextId(id))
    }

    /// The part of a context's path that is not elided.
    pub(crate) fn prefix(&self, id: ContextId) -> ContextId {
        let mut at = id;
        while self.is_elided(at) {
            at = self.parent(at).unwrap_or(ContextId::ROOT);
        }
        at
    }

    /// Whether this context is an `[elided]` or below one.
    #[inline]
    #[must_use]
    pub fn is_elided(&self, id: ContextId) -> bool {
        let elided = |id| self.store.node(id).function == CostCentreId::ELIDED.0;
        elided(id.0) || elided(self.store.node(id.0).parent())
    }

    /// Whether `growth` more bytes for `contexts` new contexts that are not elided fit the budget.
    pub(super) fn has_room(&self, growth: usize, contexts: usize) -> bool {
        self.bytes() + growth + self.reserve(contexts) <= self.limit - self.limit / LEAF_PART
    }

    /// Bytes needed so that every context, and `more` new ones, can have an `[elided]` below it.
    fn reserve(&self, more: usize) -> usize {
        let prefixes = self.children.len() + more;
        let missing = prefixes.saturating_sub(self.elisions.len());
        // The last block may be shared, and pointers to blocks are in a vector that doubles.
        let nodes = (blocks(missing) + 1) * (BLOCK_BYTES + 2 * POINTER_BYTES) + self.store.pointer_bytes();
        // A table that doubles holds both halves while it does.
        let index = if prefixes <= self.elisions.capacity() { 0 } else { index_bytes(prefixes) / 2 * 3 };
        nodes + index
    }
}

/// Bytes of a hash table of `ids` ids: a power of two buckets, at most seven eighths of them full.
const fn index_bytes(ids: usize) -> usize {
    let buckets = (ids + ids / 7 + 2).next_power_of_two();
    buckets * (size_of::<u32>() + 1) + 64
}
