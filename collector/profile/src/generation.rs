//! Generations of the table of contexts.
//!
//! A session that writes its profile need not keep it. When contexts or charges are full, it begins a new generation:
//! both tables are emptied, and the next update numbers its contexts from the start ([`DefinitionCounts::FRESH`]). Functions,
//! lines, threads and everything else stay.
//!
//! A reader joins generations. It keeps one table of contexts, in which equal calls in equal contexts are one, and maps
//! the contexts of the current generation to it. Its own budgets apply: beyond them it charges to `[elided]` below the
//! deepest context that it knows.

use crate::context::{ContextStats, ContextTable};
use crate::ids::{ContextId, CostCentreId, RouteId};
use crate::routes::{NewRoute, RouteTable};
use crate::update::{DefinitionCounts, NewContext};

#[derive(Debug, Default)]
pub(crate) struct Generations {
    /// Of a profile that follows a stream, the contexts of its generation under way, if that is not its first.
    pub(crate) current: Option<Generation>,
    /// What the tables of contexts of earlier generations did.
    pub(crate) earlier_contexts: Option<ContextStats>,
}

#[derive(Debug)]
pub(crate) struct Generation {
    /// From number 2 on.
    pub(crate) contexts: Vec<NewContext>,
    /// What they are in the reader's own table, or the `[elided]` that they are below.
    own: Vec<ContextId>,
    /// The same of routes, from number 1 on, and all of them in the reader's own table.
    pub(crate) new_routes: Vec<NewRoute>,
    own_routes: Vec<RouteId>,
}

impl Generation {
    pub(crate) fn new() -> Self {
        Self {
            contexts: Vec::new(),
            own: vec![ContextId::ROOT, ContextId::ELIDED],
            new_routes: Vec::new(),
            own_routes: vec![RouteId::EMPTY],
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.own.len()
    }

    pub(crate) fn routes(&self) -> usize {
        self.own_routes.len()
    }

    pub(crate) fn add_route(&mut self, new: NewRoute, routes: &mut RouteTable) {
        let parent = self.route(new.parent);
        self.own_routes.push(routes.graft(parent, new.function, new.line));
        self.new_routes.push(new);
    }

    pub(crate) fn route(&self, id: RouteId) -> RouteId {
        let own = self.own_routes.get(id.index()).copied().unwrap_or(RouteId::EMPTY.cut());
        if id.is_cut() { own.cut() } else { own }
    }

    pub(crate) fn add(&mut self, new: NewContext, contexts: &mut ContextTable) {
        let parent = self.own.get(new.parent.index()).copied().unwrap_or(ContextId::ELIDED);
        self.own.push(contexts.join(parent, new.function));
        self.contexts.push(new);
    }

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
            + self.new_routes.capacity() * size_of::<NewRoute>()
            + self.own_routes.capacity() * size_of::<RouteId>()
    }
}

/// The first context that a generation defines, after the empty context and `[elided]`.
const FIRST: usize = DefinitionCounts::FRESH.contexts as usize;
