//! Generations of the table of contexts.
//!
//! A session that writes what it collects need not keep it. When its contexts or charges are full it begins a new
//! generation: both tables are empty again, and the next update numbers its contexts from the start
//! ([`Counts::FRESH`]). Functions, lines, threads and all else stay.
//!
//! A reader joins generations. It keeps one table of contexts, in which equal calls in equal contexts are one, and for the
//! generation under way which of them each context of the stream is. Its own budgets hold: beyond them it charges to
//! `[elided]` below the deepest context that it knows.

use crate::charges::Charges;
use crate::context::{ContextStats, ContextTable};
use crate::ids::{ContextId, CostCentreId, RouteId};
use crate::profile::Profile;
use crate::routes::{NewRoute, RouteTable};
use crate::update::{Counts, NewContext, Update};

/// The contexts of the generation under way, as the stream numbers them.
#[derive(Debug)]
pub(crate) struct Generation {
    /// From number 2 on.
    contexts: Vec<NewContext>,
    /// What they are in the reader's own table, or the `[elided]` that they are below.
    own: Vec<ContextId>,
    /// The same of routes, from number 1 on, and all of them in the reader's own table.
    routes: Vec<NewRoute>,
    own_routes: Vec<RouteId>,
}

impl Generation {
    pub(crate) fn new() -> Self {
        Self {
            contexts: Vec::new(),
            own: vec![ContextId::ROOT, ContextId::ELIDED],
            routes: Vec::new(),
            own_routes: vec![RouteId::EMPTY],
        }
    }

    /// Number of contexts in the stream's numbering.
    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }

    /// Number of routes in the stream's numbering.
    pub(crate) fn routes(&self) -> usize {
        self.own_routes.len()
    }

    /// Adds the next route.
    pub(crate) fn add_route(&mut self, new: NewRoute, routes: &mut RouteTable) {
        let parent = self.route(new.parent);
        self.own_routes.push(routes.graft(parent, new.function, new.line));
        self.routes.push(new);
    }

    /// The route of the reader's table that one of the stream is.
    pub(crate) fn route(&self, id: RouteId) -> RouteId {
        let own = self.own_routes.get(id.index()).copied().unwrap_or(RouteId::EMPTY.cut());
        if id.is_cut() { own.cut() } else { own }
    }

    /// Adds the next context.
    pub(crate) fn add(&mut self, new: NewContext, contexts: &mut ContextTable) {
        let parent = self.own.get(new.parent.index()).copied().unwrap_or(ContextId::ELIDED);
        self.own.push(contexts.join(parent, new.function));
        self.contexts.push(new);
    }

    /// The context of the reader's table that one of the stream is charged as.
    pub(crate) fn charged(&self, id: ContextId, contexts: &mut ContextTable) -> ContextId {
        let own = self.own.get(id.index()).copied().unwrap_or(ContextId::ELIDED);
        let function = id.index().checked_sub(FIRST).and_then(|at| self.contexts.get(at)).map(|it| it.function);
        match function {
            Some(function) if function != CostCentreId::ELIDED && contexts.is_elided(own) => {
                contexts.push(own, function)
            }
            _ => own,
        }
    }

    /// Whether a context of the stream is `[elided]` or below.
    pub(crate) fn is_elided(&self, id: ContextId) -> bool {
        let new = |id: ContextId| self.contexts.get(id.index().checked_sub(FIRST)?);
        let elided = |id| new(id).is_none_or(|it: &NewContext| it.function == CostCentreId::ELIDED);
        id != ContextId::ROOT
            && (elided(id) || new(id).is_some_and(|it| it.parent != ContextId::ROOT && elided(it.parent)))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.contexts.capacity() * size_of::<NewContext>()
            + self.own.capacity() * size_of::<ContextId>()
            + self.routes.capacity() * size_of::<NewRoute>()
            + self.own_routes.capacity() * size_of::<RouteId>()
    }
}

/// The first context that a generation defines: every one has the empty context and `[elided]`.
const FIRST: usize = Counts::FRESH.contexts as usize;

/// Contexts that must be in a table before another generation begins: an attempt to make room must gain some.
const LEAST_CONTEXTS: usize = 256;

impl Profile {
    /// Whether the next `contexts` new contexts, their routes, or the next charge may have no room.
    #[must_use]
    pub fn needs_generation(&self, contexts: usize) -> bool {
        let gains = self.contexts.len() >= LEAST_CONTEXTS && self.contexts.len() > 2 * contexts;
        let rows = !self.charges.has_room_for(2 * contexts.min(LEAST_CONTEXTS)) && self.charges.len() >= LEAST_CONTEXTS;
        let routes = self.routes.len() > 2 * contexts && self.routes.is_nearly_full(contexts);
        gains && self.contexts.is_nearly_full(contexts) || rows || routes
    }

    /// What the tables of contexts of all generations did.
    pub(crate) fn context_stats(&self) -> ContextStats {
        let mut stats = self.contexts.stats();
        if let Some(earlier) = &self.earlier_contexts {
            stats.follow(earlier);
        }
        stats
    }

    /// Begins a new generation of contexts, routes and charges. To be called after [`Profile::take_update`], and only by who has
    /// handed that update on: this profile then holds what comes, and no context of before is valid.
    pub fn begin_generation(&mut self) {
        self.earlier_contexts = Some(self.context_stats());
        self.contexts = ContextTable::new(self.limits.context_bytes);
        self.charges = Charges::new(self.session.metrics.len(), self.limits.charge_bytes);
        self.routes = RouteTable::new(self.limits.route_bytes);
        (self.sent.contexts, self.sent.routes) = (Counts::FRESH.contexts, Counts::FRESH.routes);
    }

    /// Whether a generation has begun since the first.
    #[must_use]
    pub const fn has_generations(&self) -> bool {
        self.earlier_contexts.is_some() || self.generation.is_some()
    }

    /// Number of contexts in the numbering of the stream that this profile follows.
    pub(crate) fn stream_contexts(&self) -> u32 {
        let own = self.counts().contexts;
        self.generation.as_ref().map_or(own, |generation| u32::try_from(generation.len()).unwrap_or(u32::MAX))
    }

    /// The same of routes.
    pub(crate) fn stream_routes(&self) -> u32 {
        let own = self.counts().routes;
        self.generation.as_ref().map_or(own, |generation| u32::try_from(generation.routes()).unwrap_or(u32::MAX))
    }

    /// After [`Profile::snapshot`], what a reader needs that goes on with the updates that this profile will get: the
    /// contexts of the generation under way, as these updates number them. `None` where they are numbered as in the snapshot.
    #[must_use]
    pub fn snapshot_generation(&self) -> Option<Update> {
        let generation = self.generation.as_ref()?;
        let now = self.settled_accounting.duration_ns;
        Some(Update {
            from_ns: now,
            to_ns: now,
            base: Counts { contexts: Counts::FRESH.contexts, routes: Counts::FRESH.routes, ..self.sent },
            contexts: generation.contexts.clone(),
            routes: generation.routes.clone(),
            accounting: self.settled_accounting.clone(),
            ..Update::default()
        })
    }
}

impl Update {
    /// Whether contexts are numbered anew from this update on, for a reader that has so many.
    #[must_use]
    pub const fn begins_generation(&self, contexts: u32) -> bool {
        self.base.contexts == Counts::FRESH.contexts && contexts > Counts::FRESH.contexts
    }
}
