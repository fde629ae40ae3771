//! The table of contexts: steps B1-B3, a finite-state machine that memoises [`History`] pushes.
//!
//! A context is stored as (parent context, pushed function): 8 bytes, and 4 more for a hash of its history. Its history
//! is rebuilt when needed, see [`store`]. A hit costs one probe of a hash table:
//!
//! * `children` holds the ids of contexts by (parent, function): the transition that created a context needs no entry
//!   of its own;
//! * `transitions` holds the few other transitions, which lead to known contexts (B2);
//! * `histories` holds the ids by hash of history, for B2. The hash has 32 bits, so a match is verified by rebuilding
//!   the candidate's history;
//! * `elisions` and `elided` hold the contexts of a full table, see [`elision`].
//!
//! Hashing is seeded at random for each table, so that no profile file can cause collisions; nothing observable depends
//! on the seed.

mod elision;
mod links;
mod store;

use hashbrown::HashTable;

use crate::gaps::MARK;
use crate::hash::{mix, mix2, random_seed};
use crate::history::History;
use crate::ids::{ContextId, CostCentreId};
use crate::limits::{MAX_HISTORY_ENTRIES, MIN_CONTEXT_BYTES};
use crate::marked::{Marked, Undo};
use links::Links;
pub(crate) use store::ContextVisit;
use store::{NONE, Store};

#[derive(Clone, Copy, Debug)]
struct Transition {
    from: u32,
    function: u32,
    to: u32,
}

/// Statistics of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ContextStats {
    /// Pushes answered by a known transition (B1), direct recursion included.
    pub transition_hits: u64,
    /// Pushes that found a known context by its history (B2).
    pub known_contexts: u64,
    /// Pushes that created a context (B3).
    pub new_contexts: u64,
    /// Pushes that went to `[elided]` because the budget was used up.
    pub elided: u64,
    /// Contexts, the empty one and `[elided]` among them.
    pub contexts: u64,
    /// Transitions: one for each context created by a push, and those that B2 added.
    pub transitions: u64,
    /// Histories stored in full so that rebuilding one is bounded.
    pub checkpoints: u64,
    /// Bytes allocated.
    pub bytes: u64,
    /// The budget in bytes.
    pub limit_bytes: u64,
}

impl ContextStats {
    /// All pushes.
    #[must_use]
    pub fn pushes(&self) -> u64 {
        let counts = [self.known_contexts, self.new_contexts, self.elided];
        counts.into_iter().fold(self.transition_hits, u64::saturating_add)
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        for (sum, more) in self.numbers_mut().into_iter().zip(other.numbers()) {
            *sum = sum.saturating_add(more);
        }
    }

    /// Adds the pushes of an earlier generation of the table, and takes the larger of the sizes.
    pub(crate) fn follow(&mut self, earlier: &Self) {
        let (pushes, sizes) = (0..4, 4..);
        for (at, (number, before)) in self.numbers_mut().into_iter().zip(earlier.numbers()).enumerate() {
            if pushes.contains(&at) {
                *number = number.saturating_add(before);
            } else if sizes.contains(&at) {
                *number = before.max(*number);
            }
        }
    }

    pub(crate) const fn numbers(&self) -> [u64; 9] {
        [
            self.transition_hits,
            self.known_contexts,
            self.new_contexts,
            self.elided,
            self.contexts,
            self.transitions,
            self.checkpoints,
            self.bytes,
            self.limit_bytes,
        ]
    }

    pub(crate) const fn numbers_mut(&mut self) -> [&mut u64; 9] {
        [
            &mut self.transition_hits,
            &mut self.known_contexts,
            &mut self.new_contexts,
            &mut self.elided,
            &mut self.contexts,
            &mut self.transitions,
            &mut self.checkpoints,
            &mut self.bytes,
            &mut self.limit_bytes,
        ]
    }
}

#[derive(Debug)]
struct Cached {
    context: u32,
    history: Marked,
    /// Of `history`.
    links: Links,
    /// Number of parents to the nearest stored history, or [`NONE`] if unknown.
    distance: u32,
    /// What it was before the last push: a function often calls several.
    before: Option<BeforePush>,
}

#[derive(Debug)]
struct BeforePush {
    context: u32,
    undo: Undo,
    links: Links,
    distance: u32,
}

/// Contexts and the transitions between them.
///
/// The context that a stack leads to is a function of the stack alone (I2), as long as the budget is not used up.
#[derive(Debug)]
pub struct ContextTable {
    store: Store,
    children: HashTable<u32>,
    /// Contexts `[elided]` by their parent, except that of the empty context.
    elisions: HashTable<u32>,
    /// Contexts below `[elided]`, by (`[elided]`, function).
    elided: HashTable<u32>,
    histories: HashTable<u32>,
    transitions: HashTable<Transition>,
    cached: Cached,
    scratch: Marked,
    path: Vec<u32>,
    /// Entries of the longest history.
    longest: usize,
    /// Whether grafted contexts are missing in `histories`.
    unindexed: bool,
    seed: u64,
    limit: usize,
    hits: u64,
    known: u64,
    new: u64,
    elided_pushes: u64,
}

impl ContextTable {
    /// An empty table of at most `limit_bytes` (at least [`MIN_CONTEXT_BYTES`]).
    #[must_use]
    pub fn new(limit_bytes: usize) -> Self {
        let mut table = Self {
            store: Store::new(),
            children: HashTable::new(),
            elisions: HashTable::new(),
            elided: HashTable::new(),
            histories: HashTable::new(),
            transitions: HashTable::new(),
            cached: Cached {
                context: 0,
                history: Marked::default(),
                links: Links::default(),
                distance: 0,
                before: None,
            },
            scratch: Marked::default(),
            path: Vec::new(),
            longest: 0,
            unindexed: false,
            seed: random_seed(),
            limit: limit_bytes.max(MIN_CONTEXT_BYTES),
            hits: 0,
            known: 0,
            new: 0,
            elided_pushes: 0,
        };
        table.store.append(0, NONE, 0);
        table.store.append(ContextId::ROOT.0, CostCentreId::ELIDED.0, 0);
        table
    }

    /// The context after a call of `function` in `from`: B1, else B2, else B3. If the budget is used up, and below
    /// `[elided]`, it is `from` -> `[elided]` -> `function`, or without `function` if even that does not fit.
    ///
    /// A `from` or `function` out of range is elided, too.
    #[inline]
    pub fn push(&mut self, from: ContextId, function: CostCentreId) -> ContextId {
        self.step(from, function, true)
    }

    /// As [`Self::push`] for a function that is not the innermost: on an elided path, `[elided]` itself, without a new
    /// context.
    #[inline]
    pub fn descend(&mut self, from: ContextId, function: CostCentreId) -> ContextId {
        self.step(from, function, false)
    }

    #[inline]
    fn step(&mut self, from: ContextId, function: CostCentreId, innermost: bool) -> ContextId {
        let f = function.0;
        // A1, and the check that `from` exists.
        match self.store.get(from.0) {
            Some(node) if node.function == f && f != NONE => {
                self.hits += 1;
                return from;
            }
            Some(_) => {}
            None => return self.push_elided(ContextId::ROOT.0, f, innermost),
        }
        let hash = mix2(self.seed, from.0, f);
        let store = &self.store;
        if let Some(&id) = self.children.find(hash, |&id| store.is_child(id, from.0, f)) {
            self.hits += 1;
            return ContextId(id);
        }
        if let Some(known) = self.transitions.find(hash, |t| t.from == from.0 && t.function == f) {
            self.hits += 1;
            return ContextId(known.to);
        }
        self.miss(from.0, f, hash, innermost)
    }

    /// B2 and B3.
    #[cold]
    fn miss(&mut self, from: u32, f: u32, hash: u64, innermost: bool) -> ContextId {
        if f >= MARK || f == CostCentreId::ELIDED.0 || self.is_elided(ContextId(from)) {
            return self.push_elided(from, f, innermost);
        }
        if self.unindexed {
            self.index_histories();
        }
        self.load(from);
        let (links, distance) = (self.cached.links, self.cached.distance);
        let undo = self.cached.history.push(f);
        self.cached.links.follow(self.seed, self.cached.history.entries(), &undo);
        let history_hash = self.cached.links.hash(self.seed);
        let before = BeforePush { context: from, undo, links, distance };
        // B2: is there a context with this history?
        if let Some(id) = self.find_history(history_hash) {
            self.known += 1;
            self.cached.before = Some(before);
            self.cached.context = id;
            self.cached.distance = NONE;
            if self.has_room_for_transition() {
                let seed = self.seed;
                self.transitions
                    .insert_unique(hash, Transition { from, function: f, to: id }, |t| mix2(seed, t.from, t.function));
            }
            return ContextId(id);
        }
        // B3: a new context, if there is room.
        if !self.has_room_for_context() || self.cached.history.len() > MAX_HISTORY_ENTRIES {
            self.cached.history.undo(&undo);
            self.cached.links = links;
            return self.push_elided(from, f, innermost);
        }
        self.new += 1;
        self.longest = self.longest.max(self.cached.history.len());
        let id = self.create(from, f, hash, history_hash);
        // Where a history was stored meanwhile, it may be nearer now.
        let is_same = distance.checked_add(1) == Some(self.cached.distance);
        self.cached.before = Some(BeforePush { distance: if is_same { distance } else { NONE }, ..before });
        ContextId(id)
    }

    /// B3: creates the context whose history is in `cached`, as a child of the previous one.
    fn create(&mut self, from: u32, f: u32, hash: u64, history_hash: u32) -> u32 {
        let parent_distance =
            if self.cached.distance == NONE { self.store.distance(from) } else { self.cached.distance };
        let id = self.store.append(from, f, history_hash);
        let (store, seed) = (&self.store, self.seed);
        self.children.insert_unique(hash, id, |&id| {
            let node = store.node(id);
            mix2(seed, node.parent(), node.function)
        });
        self.histories
            .insert_unique(mix(seed, u64::from(history_hash)), id, |&id| mix(seed, u64::from(store.node(id).hash)));
        self.cached.context = id;
        self.cached.distance = self.store.checkpoint(id, parent_distance + 1, &self.cached.history, &mut self.path);
        id
    }

    fn load(&mut self, id: u32) {
        if self.cached.context == id {
            return;
        }
        if let Some(before) = self.cached.before.take().filter(|before| before.context == id) {
            self.cached.history.undo(&before.undo);
            (self.cached.links, self.cached.distance) = (before.links, before.distance);
            self.cached.context = id;
            return;
        }
        let below = self.store.rebuild_from(id, Some(self.cached.context), &mut self.cached.history, &mut self.path);
        self.cached.distance = match below {
            store::Base::Cached(steps) if self.cached.distance != NONE => self.cached.distance + steps,
            store::Base::Cached(_) => NONE,
            store::Base::Stored(steps) => steps,
        };
        self.cached.links = Links::of(self.seed, self.cached.history.entries());
        self.cached.context = id;
    }

    fn find_history(&mut self, history_hash: u32) -> Option<u32> {
        let Self { store, histories, cached, scratch, path, seed, .. } = self;
        let leaf = cached.history.entries().last().map_or(NONE, |&entry| entry & !MARK);
        histories
            .find(mix(*seed, u64::from(history_hash)), |&id| {
                let node = store.node(id);
                node.hash == history_hash && node.function == leaf && {
                    store.rebuild(id, scratch, path);
                    scratch.entries() == cached.history.entries()
                }
            })
            .copied()
    }

    /// The context created by this call, even if another one has the same history: O(1). For contexts of another table,
    /// and for views, which add up equal histories. Elides like `push`.
    pub(crate) fn graft(&mut self, from: ContextId, function: CostCentreId) -> ContextId {
        self.graft_step(from, function, true)
    }

    /// Relates to `graft` as [`ContextTable::descend`] to `push`: on an elided path, this is `[elided]` itself.
    pub(crate) fn join(&mut self, from: ContextId, function: CostCentreId) -> ContextId {
        self.graft_step(from, function, false)
    }

    fn graft_step(&mut self, from: ContextId, function: CostCentreId, innermost: bool) -> ContextId {
        let f = function.0;
        match self.store.get(from.0) {
            Some(node) if node.function == f && f != NONE => return from,
            Some(_) => {}
            None => return self.push_elided(ContextId::ROOT.0, f, innermost),
        }
        let hash = mix2(self.seed, from.0, f);
        let store = &self.store;
        if let Some(&id) = self.children.find(hash, |&id| store.is_child(id, from.0, f)) {
            return ContextId(id);
        }
        let growth = self.store.growth() + table_growth(&self.children);
        if f >= MARK || f == CostCentreId::ELIDED.0 || self.is_elided(from) || !self.has_room(growth, 1) {
            return self.push_elided(from.0, f, innermost);
        }
        self.new += 1;
        self.unindexed = true;
        let id = self.store.append(from.0, f, 0);
        let (store, seed) = (&self.store, self.seed);
        self.children.insert_unique(hash, id, |&id| {
            let node = store.node(id);
            mix2(seed, node.parent(), node.function)
        });
        ContextId(id)
    }

    #[cold]
    fn index_histories(&mut self) {
        let mut hashes = Vec::new();
        self.visit(|id, entries| {
            if !self.is_elided(id) {
                hashes.push((id.0, Links::of(self.seed, entries).hash(self.seed)));
            }
        });
        self.histories.clear();
        for &(id, hash) in &hashes {
            self.store.set_hash(id, hash);
        }
        let (store, seed) = (&self.store, self.seed);
        for (id, hash) in hashes {
            let rehash = |&id: &u32| mix(seed, u64::from(store.node(id).hash));
            self.histories.insert_unique(mix(seed, u64::from(hash)), id, rehash);
        }
        self.unindexed = false;
    }

    /// Adds a context under the next id, as another table created it. `None` if it exists, no push creates it, or the
    /// budget is used up. (Equal histories are not checked: that takes time linear in the history.)
    pub(crate) fn append(&mut self, parent: ContextId, function: CostCentreId) -> Option<ContextId> {
        let before = (self.store.len(), self.new, self.elided_pushes);
        if parent.index() >= before.0 {
            return None;
        }
        let id = self.graft(parent, function);
        self.elided_pushes = before.2;
        let expected = id.index() == before.0 && self.parent(id) == Some(parent) && self.leaf(id) == Some(function);
        if !expected {
            self.truncate(before.0);
            self.new = before.1;
        }
        expected.then_some(id)
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        let len = len.max(2);
        let first = len as u32;
        if self.store.len() > len {
            self.children.retain(|&mut id| id < first);
            self.elisions.retain(|&mut id| id < first);
            self.elided.retain(|&mut id| id < first);
            self.histories.retain(|&mut id| id < first);
            self.store.truncate(len);
        }
        self.transitions.retain(|t| t.to < first && t.from < first);
        if self.cached.context >= first {
            self.cached.context = ContextId::ROOT.0;
            self.cached.history.clear();
            self.cached.links = Links::default();
            self.cached.distance = 0;
        }
        self.cached.before = None;
    }

    /// The history of a context, rebuilt with at most `2 * max(32, entries)` pushes. Empty if there is no such context.
    #[must_use]
    pub fn history(&self, id: ContextId) -> History {
        let mut marked = Marked::default();
        if id.index() < self.len() {
            self.store.rebuild(id.0, &mut marked, &mut Vec::new());
        }
        marked.to_history()
    }

    /// Number of contexts, including the empty one and `[elided]`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Never true: the empty context and `[elided]` always exist.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// The context from which this one was first reached; `None` for the empty context and one that does not exist.
    #[must_use]
    pub fn parent(&self, id: ContextId) -> Option<ContextId> {
        if id == ContextId::ROOT {
            return None;
        }
        self.store.get(id.0).map(|node| ContextId(node.parent()))
    }

    /// The running function of a context; `None` for the empty context and one that does not exist.
    #[inline]
    #[must_use]
    pub fn leaf(&self, id: ContextId) -> Option<CostCentreId> {
        self.store.get(id.0).filter(|node| node.function != NONE).map(|node| CostCentreId(node.function))
    }

    /// Statistics of the table.
    #[must_use]
    pub fn stats(&self) -> ContextStats {
        ContextStats {
            transition_hits: self.hits,
            known_contexts: self.known,
            new_contexts: self.new,
            elided: self.elided_pushes,
            contexts: self.len() as u64,
            transitions: (self.children.len() + self.elisions.len() + self.elided.len() + self.transitions.len())
                as u64,
            checkpoints: self.store.checkpoints() as u64,
            bytes: self.bytes() as u64,
            limit_bytes: self.limit as u64,
        }
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>()
            + self.store.bytes()
            + self.children.allocation_size()
            + self.elisions.allocation_size()
            + self.elided.allocation_size()
            + self.histories.allocation_size()
            + self.transitions.allocation_size()
            + self.cached.history.capacity_bytes()
            + self.scratch.capacity_bytes()
            + self.path.capacity() * size_of::<u32>()
    }

    /// Calls `visit` with every context and its history, parents before children.
    pub(crate) fn visit(&self, visit: impl FnMut(ContextId, &[u32])) {
        self.visit_of(|_| true, visit);
    }

    /// The same with those that are wanted. Returns how many histories were too long, see [`Store::visit`].
    pub(crate) fn visit_of(&self, wanted: impl Fn(ContextId) -> bool, mut visit: impl FnMut(ContextId, &[u32])) -> u64 {
        self.store.visit(wanted, |step| {
            if let ContextVisit::At(id, entries) = step {
                visit(id, entries);
            }
        })
    }

    /// Calls `visit` with the length of every context's history.
    pub(crate) fn lengths(&self, mut visit: impl FnMut(ContextId, usize)) {
        self.store.walk(|step| {
            if let ContextVisit::At(id, entries) = step {
                visit(id, entries.len());
            }
        });
    }

    /// Calls `visit` with the call that created each context and with the end of its descendants.
    pub(crate) fn steps(&self, visit: impl FnMut(ContextVisit<'_>)) {
        self.store.visit(|_| false, visit);
    }

    /// Calls `push(context, parent's value, function)` for every context, parents first. It returns the context's
    /// value.
    pub(crate) fn replay<T: Copy>(
        &self,
        root: T,
        elided: T,
        mut push: impl FnMut(ContextId, T, CostCentreId) -> T,
    ) -> Vec<T> {
        let mut places = vec![root];
        for id in (1..self.len()).map(ContextId::at) {
            let parent = self.parent(id).and_then(|parent| places.get(parent.index()).copied());
            places.push(match (parent, self.leaf(id)) {
                (Some(parent), Some(leaf)) => push(id, parent, leaf),
                _ => elided,
            });
        }
        places
    }

    /// Maximum bytes that a rebuild may allocate: two histories and a path of twice their length; vectors double.
    const fn scratch_growth(entries: usize) -> usize {
        32 * entries + 2048
    }

    fn has_room_for_context(&self) -> bool {
        let entries = self.cached.history.len().max(self.longest);
        let growth = self.store.growth()
            + self.store.checkpoint_growth(entries)
            + Self::scratch_growth(entries)
            + table_growth(&self.children)
            + table_growth(&self.histories);
        self.has_room(growth, 1) && self.store.has_ids()
    }

    fn has_room_for_transition(&self) -> bool {
        self.has_room(table_growth(&self.transitions) + Self::scratch_growth(self.longest), 0)
    }
}

/// Maximum bytes that inserting one more entry may allocate: a table doubles, and briefly has both copies.
fn table_growth<T>(table: &HashTable<T>) -> usize {
    if table.len() < table.capacity() { 0 } else { 2 * table.allocation_size() + 16 * size_of::<T>() + 64 }
}
