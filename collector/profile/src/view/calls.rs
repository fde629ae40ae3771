//! From which lines calls were made: the outgoing arcs of the graph view by line.

use hashbrown::HashMap;

use super::sums::Sums;
use super::visible::{function, is_marked, sums_of};
use crate::ids::{CostCentreId, LineId, RouteId};
use crate::profile::Profile;
use crate::routed::{CallBudget, CallerLines};
use crate::selection::Selection;

/// Lines of the latest calls from the first to the second function, heaviest first. They add up to the outgoing arc of
/// [`GraphView`](super::GraphView).
pub(crate) type CallLines = HashMap<(CostCentreId, CostCentreId), Vec<(LineId, Sums)>>;

/// The lines of all calls, and the weight of stacks that have so many call sites that none of their lines were looked for.
pub(crate) fn call_lines(profile: &Profile, selection: &Selection) -> (CallLines, u64) {
    let walk = profile.walk(selection);
    let mut charged: HashMap<(usize, RouteId), Sums> = HashMap::new();
    walk.charges(|context, charge| {
        charged.entry((context.index(), charge.route)).or_default().add(sums_of(&charge, selection));
    });
    let mut charged: Vec<((usize, RouteId), Sums)> = charged.into_iter().collect();
    charged.sort_unstable_by_key(|(key, _)| *key);
    let mut sums: HashMap<(CostCentreId, CostCentreId, LineId), Sums> = HashMap::new();
    let mut latest = (RouteId::EMPTY, HashMap::new());
    let mut budget = CallBudget::new(charged.len());
    walk.visit(|id, visible| {
        let entries = visible.entries();
        // The latest activation may be in what is left out.
        let is_elided = entries.iter().any(|&entry| function(entry) == CostCentreId::ELIDED);
        let mut rest = None;
        let mut add = |calls: Option<&HashMap<CostCentreId, CallerLines>>, of_route: Sums| {
            for pair in entries.windows(2) {
                let &[caller, callee] = pair else { continue };
                if is_marked(caller) {
                    let calls = calls.and_then(|calls| calls.get(&function(caller)));
                    let line = calls.map_or(LineId::UNKNOWN, |calls| calls.latest);
                    sums.entry((function(caller), function(callee), line)).or_default().add(of_route);
                }
            }
        };
        let first = charged.partition_point(|((context, _), _)| *context < id.index());
        for ((_, route), of_route) in charged.iter().skip(first).take_while(|((context, _), _)| *context == id.index())
        {
            let sites = profile.routes().depth(*route);
            let has_lines = !is_elided && !route.is_cut() && sites > 0;
            if !has_lines || !budget.take(sites + entries.len() as u64, of_route.weight) {
                rest.get_or_insert_with(Sums::default).add(*of_route);
                continue;
            }
            if latest.0 != *route {
                latest = (*route, profile.calls_of(*route));
            }
            add(Some(&latest.1), *of_route);
        }
        if let Some(rest) = rest {
            add(None, rest);
        }
    });
    let mut lines = CallLines::new();
    for ((caller, callee, line), sums) in sums {
        lines.entry((caller, callee)).or_default().push((line, sums));
    }
    for lines in lines.values_mut() {
        lines.sort_unstable_by_key(|(line, sums)| (std::cmp::Reverse(sums.weight), *line));
    }
    (lines, budget.unknown_weight)
}
