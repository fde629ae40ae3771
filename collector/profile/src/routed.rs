//! The routes of a profile as views and other profiles see them.

use hashbrown::HashMap;

use crate::ids::{CostCentreId, LineId, RouteId};
use crate::profile::Profile;

/// Sites and functions an export examines for call lines, in total and per row: a hostile row can have 2,048 of each.
const FREE_SITES: u64 = 1 << 22;
const SITES_PER_ROW: u64 = 256;

/// What is left of the work that an export may have with lines of calls.
#[derive(Debug)]
pub(crate) struct CallBudget {
    left: u64,
    pub(crate) unknown_weight: u64,
}

impl CallBudget {
    pub(crate) const fn new(rows: usize) -> Self {
        Self { left: FREE_SITES.saturating_add(SITES_PER_ROW.saturating_mul(rows as u64)), unknown_weight: 0 }
    }

    /// Whether the work of so many steps for stacks of this weight may be done.
    pub(crate) const fn take(&mut self, steps: u64, weight: u64) -> bool {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                true
            }
            None => {
                self.unknown_weight = self.unknown_weight.saturating_add(weight);
                false
            }
        }
    }
}

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
    /// Copies this profile's routes to `new`, with `function` for each site; sites without one are dropped.
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

    pub(crate) fn copied_line(&self, new: &mut Profile, id: LineId) -> LineId {
        self.lines.get(id.0).map_or(LineId::UNKNOWN, |line| new.add_line(&line.file, line.line))
    }

    /// The line of the latest call of each `asked` route and function, where known. One walk over all routes.
    pub(crate) fn latest_lines(
        &self,
        asked: impl Iterator<Item = (RouteId, CostCentreId)>,
    ) -> HashMap<(RouteId, CostCentreId), LineId> {
        let mut found = HashMap::new();
        // Of functions that are one, some may have been called from places that are no sites.
        let mut asked: Vec<_> =
            if self.flags.merges_functions { Vec::new() } else { asked.filter(|(route, _)| !route.is_cut()).collect() };
        asked.sort_unstable();
        asked.dedup();
        if asked.is_empty() {
            return found;
        }
        // Of each function the line of its latest call, and what that was before each route on the path.
        let mut latest: Vec<Option<LineId>> = vec![None; self.cost_centres().len()];
        let mut before: Vec<Option<LineId>> = Vec::new();
        self.routes.walk(|route, (function, line), is_left| {
            let Some(place) = latest.get_mut(self.real(function).index()) else { return };
            if is_left {
                *place = before.pop().flatten();
                return;
            }
            before.push(place.replace(line));
            let first = asked.partition_point(|(of, _)| *of < route);
            for &(_, function) in asked.iter().skip(first).take_while(|(of, _)| *of == route) {
                if let Some(line) = latest.get(function.index()).copied().flatten() {
                    found.insert((route, function), self.source_line(line));
                }
            }
        });
        found
    }

    /// The lines of calls of every function that has some. Looks at all sites of the route: see [`CallBudget`].
    pub(crate) fn calls_of(&self, route: RouteId) -> HashMap<CostCentreId, CallerLines> {
        let mut calls: HashMap<CostCentreId, CallerLines> = HashMap::new();
        if route.is_cut() || self.flags.merges_functions {
            return calls;
        }
        for (function, line) in self.routes.sites(route) {
            let line = self.source_line(line);
            let known = calls.entry(self.real(function)).or_insert(CallerLines { latest: line, only: line });
            if known.only != line {
                known.only = LineId::UNKNOWN;
            }
        }
        calls
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct CallerLines {
    /// The line of its latest activation; unknown where that is not sure.
    pub(crate) latest: LineId,
    /// The line of all its activations, if it is one.
    pub(crate) only: LineId,
}
