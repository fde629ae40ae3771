//! Beginning a new generation of contexts, routes and charges; see [`crate::generation`].

use crate::charges::ChargeTable;
use crate::context::{ContextStats, ContextTable};
use crate::ids::{ContextId, RouteId};
use crate::profile::Profile;
use crate::routes::RouteTable;
use crate::update::{DefinitionCounts, Update};

/// Contexts that must be in a table before another generation begins: an attempt to make room must gain some.
const LEAST_CONTEXTS: usize = 256;

impl Profile {
    /// A place in the stream that this profile follows, by the profile's own numbers.
    pub(crate) fn own_place(&mut self, context: ContextId, route: RouteId) -> (ContextId, RouteId) {
        match &self.generations.current {
            Some(generation) => (generation.charged(context, &mut self.contexts), generation.route(route)),
            None => (context, route),
        }
    }

    /// Whether the next `contexts` new contexts, their routes, or the next charge may have no room.
    #[must_use]
    pub fn needs_generation(&self, contexts: usize) -> bool {
        let gains = self.contexts.len() >= LEAST_CONTEXTS && self.contexts.len() > 2 * contexts;
        let rows = !self.charges.has_room_for(2 * contexts.min(LEAST_CONTEXTS)) && self.charges.len() >= LEAST_CONTEXTS;
        let routes = self.routes.len() > 2 * contexts && self.routes.is_nearly_full(contexts);
        gains && self.contexts.is_nearly_full(contexts) || rows || routes
    }

    pub(crate) fn context_stats(&self) -> ContextStats {
        let mut stats = self.contexts.stats();
        if let Some(earlier) = &self.generations.earlier_contexts {
            stats.follow(earlier);
        }
        stats
    }

    /// Begins a new generation of contexts, routes and charges. Call it after [`Profile::take_update`], once that
    /// update was handed on: no earlier context is valid.
    pub fn begin_generation(&mut self) {
        self.generations.earlier_contexts = Some(self.context_stats());
        self.contexts = ContextTable::new(self.limits.context_bytes);
        self.charges = ChargeTable::new(self.session.metrics.len(), self.limits.charge_bytes);
        self.routes = RouteTable::new(self.limits.route_bytes);
        (self.sent.counts.contexts, self.sent.counts.routes) =
            (DefinitionCounts::FRESH.contexts, DefinitionCounts::FRESH.routes);
    }

    /// Whether a generation has begun since the first.
    #[must_use]
    pub const fn has_generations(&self) -> bool {
        self.generations.earlier_contexts.is_some() || self.generations.current.is_some()
    }

    pub(crate) fn stream_contexts(&self) -> u32 {
        let own = self.counts().contexts;
        self.generations.current.as_ref().map_or(own, |generation| u32::try_from(generation.len()).unwrap_or(u32::MAX))
    }

    pub(crate) fn stream_routes(&self) -> u32 {
        let own = self.counts().routes;
        self.generations
            .current
            .as_ref()
            .map_or(own, |generation| u32::try_from(generation.routes()).unwrap_or(u32::MAX))
    }

    /// What a reader of [`Profile::snapshot`] needs before later updates: this generation's contexts. `None` if
    /// numbered alike.
    #[must_use]
    pub fn snapshot_generation(&self) -> Option<Update> {
        let generation = self.generations.current.as_ref()?;
        let now = self.sent.accounting.duration_ns;
        Some(Update {
            from_ns: now,
            to_ns: now,
            base: DefinitionCounts {
                contexts: DefinitionCounts::FRESH.contexts,
                routes: DefinitionCounts::FRESH.routes,
                ..self.sent.counts
            },
            contexts: generation.contexts.clone(),
            routes: generation.new_routes.clone(),
            accounting: self.sent.accounting.clone(),
            ..Update::default()
        })
    }
}

impl Update {
    /// Whether a new generation of contexts begins with this update, for a reader with so many contexts.
    #[must_use]
    pub const fn begins_generation(&self, contexts: u32) -> bool {
        self.base.contexts == DefinitionCounts::FRESH.contexts && contexts > DefinitionCounts::FRESH.contexts
    }
}
