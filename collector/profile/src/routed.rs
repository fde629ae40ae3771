//! The routes of a profile as views and other profiles see them.

use hashbrown::HashMap;

use crate::ids::{CostCentreId, LineId, RouteId};
use crate::profile::Profile;

/// Call sites that one export looks at: some seconds. A row of a few bytes in a hostile file can have 2,048 of them; programs
/// have some dozens for each of some thousand routes.
pub(crate) const MAX_SITES: u64 = 1 << 27;

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
        // Of functions that are one, some may have been called from places that are no sites.
        if self.merges_functions {
            return LineId::UNKNOWN;
        }
        let latest = self.routes.sites(route).find(|site| self.real(site.0) == function);
        latest.map_or(LineId::UNKNOWN, |(_, line)| line)
    }

    /// The lines of calls of every function that has some. Takes the sites that it looks at from `left`, see [`MAX_SITES`];
    /// where none are left, no line is known.
    pub(crate) fn calls_of(&self, route: RouteId, left: &mut u64) -> HashMap<CostCentreId, Calls> {
        let mut calls: HashMap<CostCentreId, Calls> = HashMap::new();
        if route.is_cut() || self.merges_functions {
            return calls;
        }
        for (function, line) in self.routes.sites(route) {
            if *left == 0 {
                return HashMap::new();
            }
            *left -= 1;
            let known = calls.entry(self.real(function)).or_insert(Calls { latest: line, only: line });
            if known.only != line {
                known.only = LineId::UNKNOWN;
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
