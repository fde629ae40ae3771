//! The table of routes: from which lines the functions of a stack made their calls.
//!
//! A *call site* is a function and a line of it. The route of a stack is the set of its call sites, and for each function
//! which of them its latest activation has. The line of the function that runs is no part of it: that is the line of the
//! charge. So a route is what two stacks of one context share that call from the same lines, whatever runs in the end.
//!
//! A route is stored as (the route that it was first reached from, the site pushed). A site that the route has already, or
//! one that leads to what another route is, makes no new route: recursion does not make them grow.
//!
//! A function with debug information can call from a place without a line: that is a site, too, of line
//! [`LineId::UNKNOWN`], so that an earlier site does not pass for the latest. Code without debug information has no sites
//! ([`Profile::push_site`](crate::Profile::push_site)): a program without any has the empty route alone. What is
//! pushed where the budget is used up leads to the route so far, marked as cut ([`RouteId::is_cut`]). Its sites are those of
//! the stack; but a function's latest one may be missing.

use hashbrown::HashTable;

use crate::hash::{mix3, random_seed};
use crate::ids::{CostCentreId, LineId, RouteId};
use crate::limits::MAX_ROUTE_SITES;

/// A route as it is sent: where it was first reached from, and by which call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NewRoute {
    /// An earlier route, not cut.
    pub parent: RouteId,
    /// The function that made the call.
    pub function: CostCentreId,
    /// The line of the call.
    pub line: LineId,
}

#[derive(Clone, Copy, Debug)]
struct RouteNode {
    parent: u32,
    function: u32,
    line: u32,
    /// Sites from here to the empty route.
    depth: u32,
    /// A sum over what the route is; equal for equal routes. 0 where it was not needed.
    content: u64,
}

#[derive(Clone, Copy, Debug)]
struct Jump {
    from: u32,
    function: u32,
    line: u32,
    to: u32,
}

/// Routes and the call sites that lead from one to another.
#[derive(Debug)]
pub struct RouteTable {
    nodes: Vec<RouteNode>,
    /// Routes by (parent, function, line).
    children: HashTable<u32>,
    jumps: HashTable<Jump>,
    /// Routes by a seeded 64-bit content hash. Two of a million routes collide, and merge, once in thirty million.
    contents: HashTable<u32>,
    /// Routes were grafted, of which `contents` knows nothing.
    unindexed: bool,
    seed: u64,
    limit: usize,
    /// More than half of the limit is used.
    is_tight: bool,
}

const EMPTY: RouteNode = RouteNode { parent: 0, function: 0, line: 0, depth: 0, content: 0 };

impl RouteTable {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            nodes: vec![EMPTY],
            children: HashTable::new(),
            jumps: HashTable::new(),
            contents: HashTable::new(),
            unindexed: false,
            seed: random_seed(),
            limit: limit_bytes,
            is_tight: false,
        }
    }

    #[inline]
    pub(crate) const fn is_tight(&self) -> bool {
        self.is_tight
    }

    /// The route that a call of `function` from `line` leads to.
    #[inline]
    pub fn push(&mut self, from: RouteId, function: CostCentreId, line: LineId) -> RouteId {
        if from.is_cut() {
            return from;
        }
        match self.find(from, function, line) {
            Some(known) => known,
            None => self.miss(from, function, line),
        }
    }

    /// Where this push is known to lead.
    #[inline]
    fn find(&self, from: RouteId, function: CostCentreId, line: LineId) -> Option<RouteId> {
        let (at, function, line) = (from.number(), function.0, line.0);
        let is_here = |node: &RouteNode| node.function == function && node.line == line;
        if at != 0 && self.nodes.get(at as usize).is_some_and(is_here) {
            return Some(from);
        }
        let hash = mix3(self.seed, at, function, line);
        let is_child = |&id: &u32| self.nodes.get(id as usize).is_some_and(|node| node.parent == at && is_here(node));
        if let Some(&id) = self.children.find(hash, is_child) {
            return Some(RouteId::new(id));
        }
        let is_jump = |jump: &Jump| jump.from == at && jump.function == function && jump.line == line;
        self.jumps.find(hash, is_jump).map(|jump| RouteId::new(jump.to))
    }

    #[cold]
    fn miss(&mut self, from: RouteId, function: CostCentreId, line: LineId) -> RouteId {
        if from.index() >= self.nodes.len() {
            return RouteId::EMPTY.cut();
        }
        if self.unindexed {
            self.index_contents();
        }
        let content = self.content_with(from.number(), function.0, line.0);
        let hash = mix3(self.seed, from.number(), function.0, line.0);
        let is_it = |&id: &u32| self.nodes.get(id as usize).is_some_and(|node| node.content == content);
        if let Some(&to) = self.contents.find(content, is_it) {
            let jump = Jump { from: from.number(), function: function.0, line: line.0, to };
            if self.has_room(table_growth(&self.jumps)) {
                let seed = self.seed;
                self.jumps.insert_unique(hash, jump, |it| mix3(seed, it.from, it.function, it.line));
            }
            return RouteId::new(to);
        }
        let growth = vec_growth(&self.nodes) + table_growth(&self.children) + table_growth(&self.contents);
        match self.append_node(from, function, line, content, growth) {
            Some(id) => {
                let nodes = &self.nodes;
                let rehash = |&id: &u32| nodes.get(id as usize).map_or(0, |node| node.content);
                self.contents.insert_unique(content, id.number(), rehash);
                id
            }
            None => from.cut(),
        }
    }

    fn append_node(
        &mut self,
        from: RouteId,
        function: CostCentreId,
        line: LineId,
        content: u64,
        growth: usize,
    ) -> Option<RouteId> {
        let depth = self.nodes.get(from.index())?.depth + 1;
        let id = u32::try_from(self.nodes.len()).ok().filter(|&id| id < RouteId::MOST)?;
        if depth as usize > MAX_ROUTE_SITES || !self.has_room(growth) {
            return None;
        }
        let parent = from.number();
        self.nodes.push(RouteNode { parent, function: function.0, line: line.0, depth, content });
        let (nodes, seed) = (&self.nodes, self.seed);
        self.children.insert_unique(mix3(seed, parent, function.0, line.0), id, |&id| {
            nodes.get(id as usize).map_or(0, |node| mix3(seed, node.parent, node.function, node.line))
        });
        self.is_tight = self.bytes() > self.limit / 2;
        Some(RouteId::new(id))
    }

    /// The route that this push makes, even if another is equal: for other tables' routes and for views. Cut `from` if
    /// full.
    pub(crate) fn graft(&mut self, from: RouteId, function: CostCentreId, line: LineId) -> RouteId {
        if from.is_cut() {
            return from;
        }
        match self.find(from, function, line) {
            Some(known) => known,
            None => self.add_grafted(from, function, line).unwrap_or(from.cut()),
        }
    }

    /// Adds a route under the next number. `None` if it exists, no table makes it, or the budget is used up.
    pub(crate) fn append(&mut self, new: NewRoute) -> Option<RouteId> {
        let NewRoute { parent, function, line } = new;
        if parent.is_cut() || self.find(parent, function, line).is_some() {
            return None;
        }
        self.add_grafted(parent, function, line)
    }

    fn add_grafted(&mut self, from: RouteId, function: CostCentreId, line: LineId) -> Option<RouteId> {
        let growth = vec_growth(&self.nodes) + table_growth(&self.children);
        let id = self.append_node(from, function, line, 0, growth)?;
        self.unindexed = true;
        Some(id)
    }

    /// What the route is that this push leads to. A sum, so that it does not depend on the order.
    fn content_with(&self, from: u32, function: u32, line: u32) -> u64 {
        let before = self.nodes.get(from as usize).map_or(0, |node| node.content);
        let mut has_it = false;
        let mut latest = None;
        for node in self.path(from) {
            if node.function == function {
                has_it |= node.line == line;
                latest = latest.or(Some(node.line));
            }
        }
        let site = |line| mix3(self.seed, function, line, 0);
        let is_latest = |line| mix3(self.seed, function, line, 1);
        let mut content = before.wrapping_add(is_latest(line));
        if !has_it {
            content = content.wrapping_add(site(line));
        }
        latest.map_or(content, |latest| content.wrapping_sub(is_latest(latest)))
    }

    #[cold]
    fn index_contents(&mut self) {
        self.contents.clear();
        for id in 1..self.nodes.len() as u32 {
            let Some(&RouteNode { parent, function, line, .. }) = self.nodes.get(id as usize) else { continue };
            let content = self.content_with(parent, function, line);
            if let Some(node) = self.nodes.get_mut(id as usize) {
                node.content = content;
            }
            let nodes = &self.nodes;
            // Without room, equal routes stay several.
            if self.has_room(table_growth(&self.contents))
                && self
                    .contents
                    .find(content, |&it| nodes.get(it as usize).is_some_and(|it| it.content == content))
                    .is_none()
            {
                let rehash = |&id: &u32| nodes.get(id as usize).map_or(0, |node| node.content);
                self.contents.insert_unique(content, id, rehash);
            }
        }
        self.unindexed = false;
    }

    fn path(&self, from: u32) -> impl Iterator<Item = &RouteNode> {
        let node = |id: u32| self.nodes.get(id as usize).filter(|_| id != 0);
        std::iter::successors(node(from), move |it| node(it.parent))
    }

    /// Call sites, latest first, possibly repeated. A function's first is its latest activation's, unless the route is
    /// cut.
    pub fn sites(&self, id: RouteId) -> impl Iterator<Item = (CostCentreId, LineId)> + '_ {
        self.path(id.number()).map(|node| (CostCentreId(node.function), LineId(node.line)))
    }

    /// Number of call sites of a route, as often as they were pushed.
    pub(crate) fn depth(&self, id: RouteId) -> u64 {
        self.nodes.get(id.index()).map_or(0, |node| u64::from(node.depth))
    }

    /// Walks the tree of routes: calls `visit` with each route before, and with `true` after, its descendants.
    pub(crate) fn walk(&self, mut visit: impl FnMut(RouteId, (CostCentreId, LineId), bool)) {
        let count = self.nodes.len();
        let (mut first_child, mut next_sibling) = (vec![0u32; count], vec![0u32; count]);
        for (id, node) in self.nodes.iter().enumerate().skip(1) {
            let first = first_child.get_mut(node.parent as usize);
            if let (Some(first), Some(next)) = (first, next_sibling.get_mut(id)) {
                *next = std::mem::replace(first, id as u32);
            }
        }
        let mut todo = vec![(0u32, true)];
        while let Some((id, is_left)) = todo.pop() {
            if let Some(node) = self.nodes.get(id as usize).filter(|_| id != 0) {
                visit(RouteId::new(id), (CostCentreId(node.function), LineId(node.line)), is_left);
                if is_left {
                    continue;
                }
                todo.push((id, true));
            }
            let mut child = first_child.get(id as usize).copied().unwrap_or(0);
            while child != 0 {
                todo.push((child, false));
                child = next_sibling.get(child as usize).copied().unwrap_or(0);
            }
        }
    }

    /// Number of routes, the empty one among them.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is always the empty route")]
    pub const fn len(&self) -> usize {
        self.nodes.len()
    }

    /// All routes but the empty one, in the order of their numbers, from `first` on and up to `end`.
    pub(crate) fn range(&self, first: u32, end: u32) -> Vec<NewRoute> {
        let end = self.nodes.len().min(end as usize);
        let nodes = self.nodes.get(first as usize..end).unwrap_or(&[]);
        let new = |node: &RouteNode| NewRoute {
            parent: RouteId::new(node.parent),
            function: CostCentreId(node.function),
            line: LineId(node.line),
        };
        nodes.iter().map(new).collect()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        let (len, first) = (len.max(1), len.max(1) as u32);
        if self.nodes.len() > len {
            self.children.retain(|&mut id| id < first);
            self.contents.retain(|&mut id| id < first);
            self.jumps.retain(|jump| jump.from < first && jump.to < first);
            self.nodes.truncate(len);
            self.is_tight = self.bytes() > self.limit / 2;
        }
    }

    /// Bytes allocated.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<RouteNode>()
            + self.children.allocation_size()
            + self.jumps.allocation_size()
            + self.contents.allocation_size()
    }

    pub(crate) fn is_nearly_full(&self, more: usize) -> bool {
        // All tables double: each route takes at most this much in them.
        let tight = |len: usize, capacity: usize| len.saturating_add(more) > capacity;
        let grows = tight(self.nodes.len(), self.nodes.capacity())
            || tight(self.children.len(), self.children.capacity())
            || tight(self.jumps.len(), self.jumps.capacity())
            || tight(self.contents.len(), self.contents.capacity());
        grows && self.bytes().saturating_mul(3) > self.limit
    }

    pub(crate) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.is_tight = self.bytes() > limit / 2;
    }

    fn has_room(&self, growth: usize) -> bool {
        self.bytes().saturating_add(growth) <= self.limit
    }
}

/// Bytes that one more entry may allocate: a table doubles, and holds both halves while it does.
fn table_growth<T>(table: &HashTable<T>) -> usize {
    if table.len() < table.capacity() { 0 } else { 2 * table.allocation_size() + 16 * size_of::<T>() + 64 }
}

fn vec_growth<T>(vec: &Vec<T>) -> usize {
    if vec.len() < vec.capacity() { 0 } else { 2 * vec.capacity() * size_of::<T>() + 64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(number: u32) -> (CostCentreId, LineId) {
        (CostCentreId(number), LineId(1))
    }

    /// The table of known pushes counts, too. Once it is full, further pushes are looked up each time.
    #[test]
    fn a_table_is_full_when_its_jumps_are() {
        let mut table = RouteTable::new(48 << 10);
        for from in (0..).map(RouteId::new) {
            if from.index() >= table.len() {
                break;
            }
            for (function, line) in (0..10).map(site) {
                if table.len() < 300 {
                    table.push(from, function, line);
                }
            }
        }
        assert!(table.len() == 300 && !table.is_nearly_full(1));
        for from in (0..300).map(RouteId::new) {
            for (function, line) in (0..10).map(site).filter(|(function, _)| function.0 < 10) {
                let known = table.contents.len();
                table.push(from, function, line);
                assert!(table.contents.len() >= known && table.bytes() <= 48 << 10);
            }
        }
        assert!(table.jumps.len() == table.jumps.capacity() && table.is_nearly_full(1), "{:?}", table.jumps.len());
    }

    #[test]
    fn routes_of_others_are_indexed_within_the_budget() {
        let mut table = RouteTable::new(64 << 10);
        let (mut at, mut number) = (RouteId::EMPTY, 0);
        let add = |at, number| NewRoute { parent: at, function: site(number).0, line: site(number).1 };
        while let Some(next) = table.append(add(at, number)) {
            (at, number) = (if number % 100 == 99 { RouteId::EMPTY } else { next }, number + 1);
        }
        assert!(number > 500 && table.contents.is_empty());
        let (function, line) = site(number);
        table.push(RouteId::EMPTY, function, line);
        assert!(!table.contents.is_empty() && table.bytes() <= 64 << 10, "{}", table.bytes());
    }
}
