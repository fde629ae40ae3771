//! The routes of a profile as views and other profiles see them.

use hashbrown::HashMap;

use crate::ids::{CostCentreId, LineId, RouteId};
use crate::profile::Profile;

/// Routes of a profile in another, by their numbers in the first.
pub(crate) struct CopiedRoutes(Vec<RouteId>);

impl CopiedRoutes {
    /// What a route of the first profile is in the other.
    pub(crate) fn of(&self, id: RouteId) -> RouteId {
        let there = self.0.get(id.index()).copied().unwrap_or(RouteId::EMPTY);
        if id.is_cut() { there.cut() } else { there }
    }
}

impl Profile {
    /// Makes the routes of this profile in `new`, each site with the function that `function` says, and without those for
    /// which there is none.
    pub(crate) fn copied_routes(
        &self,
        new: &mut Profile,
        function: impl Fn(CostCentreId) -> Option<CostCentreId>,
    ) -> CopiedRoutes {
        let mut lines: HashMap<LineId, LineId> = HashMap::new();
        let mut routes = vec![RouteId::EMPTY];
        for site in self.routes.range(1, u32::MAX) {
            let parent = routes.get(site.parent.index()).copied().unwrap_or(RouteId::EMPTY);
            let there = function(site.function).map(|function| {
                let line = *lines.entry(site.line).or_insert_with(|| self.copied_line(new, site.line));
                new.routes.graft(parent, function, line)
            });
            routes.push(there.unwrap_or(parent));
        }
        CopiedRoutes(routes)
    }

    /// A line of this profile in another.
    pub(crate) fn copied_line(&self, new: &mut Profile, id: LineId) -> LineId {
        self.line(id).map_or(LineId::UNKNOWN, |line| new.add_line(&line.file, line.line))
    }

    /// From which line the latest activation of a function made its call, as far as the route says.
    pub(crate) fn latest_line(&self, route: RouteId, function: CostCentreId) -> LineId {
        if route.is_cut() {
            return LineId::UNKNOWN;
        }
        let mut lines = self.routes.sites(route).filter(|site| self.real(site.0) == function).map(|site| site.1);
        let Some(latest) = lines.next() else { return LineId::UNKNOWN };
        let is_sure = !self.merges_functions || lines.all(|line| line == latest);
        if is_sure { latest } else { LineId::UNKNOWN }
    }

    /// The lines of calls of every function that has some.
    pub(crate) fn calls_of(&self, route: RouteId) -> HashMap<CostCentreId, Calls> {
        let mut calls: HashMap<CostCentreId, Calls> = HashMap::new();
        if route.is_cut() {
            return calls;
        }
        for (function, line) in self.routes.sites(route) {
            let known = calls.entry(self.real(function)).or_insert(Calls { latest: line, only: line });
            if known.only != line {
                known.only = LineId::UNKNOWN;
                if self.merges_functions {
                    known.latest = LineId::UNKNOWN;
                }
            }
        }
        calls
    }
}

/// From where a function on a stack made its calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    /// The line of its latest activation; unknown where that is not sure.
    pub(crate) latest: LineId,
    /// The line of all its activations, if it is one.
    pub(crate) only: LineId,
}
