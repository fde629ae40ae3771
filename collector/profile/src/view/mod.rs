//! Views: what a profile says, as plain data that text, JSON, HTML and exports are made from.
//!
//! Every view charges each context's weight to what stands in its history, in one walk over the context tree that pushes
//! every context once. Functions that a [`Selection`] hides are taken out of the history first (I6): what they spent
//! themselves goes to their innermost visible caller, and to `[root]` ([`CostCentreId::ROOT`]) where nothing is visible.
//!
//! Names in views are as the profiled program has them: pass them through [`sanitise`](crate::sanitise) before they go to
//! a terminal.

mod column;
mod cycles;
mod diff;
mod diff_tree;
mod flat;
mod graph;
mod grow;
mod interval;
mod lines;
mod selection;
mod stacks;
mod stats;
mod threads;
mod timeline;
mod tree;
mod walk;

use std::collections::BTreeMap;

use serde::Serialize;

use crate::history::Entry;
use crate::ids::CostCentreId;
use crate::profile::Profile;

pub use column::Column;
pub use cycles::{Cycle, CycleRow, CyclesView};
pub use diff::{DiffRow, DiffSide, DiffView};
pub use diff_tree::{ChainSide, DiffFunction, DiffNode, DiffTree, OtherDiff};
pub use flat::{FlatRow, FlatView, OtherRows};
pub use graph::{GraphArc, GraphNode, GraphView};
pub use interval::Share;
pub use lines::{FunctionLines, LineRow, LinesView};
pub use selection::Selection;
pub use stacks::{StackRow, StacksView};
pub use stats::StatsView;
pub use threads::{ProcessRow, ThreadRow, ThreadsView};
pub use timeline::{Band, TimelineView};
pub use tree::{OtherChains, TreeNode, TreeView};
pub(crate) use walk::walk_contexts;

/// What a view is made of in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Weight of everything in the view, in the unit of its metric. Shares are of this.
    pub weight: u64,
    /// Samples of everything in the view.
    pub samples: u64,
    /// Weight of the whole profile: more than `weight` where the selection leaves threads or stacks out.
    pub whole_weight: u64,
    /// Samples of the whole profile.
    pub whole_samples: u64,
}

impl Total {
    /// What is selected of a profile.
    #[must_use]
    pub fn of(profile: &Profile, selection: &Selection) -> Total {
        walk::walk(profile, selection, |_| {})
    }
}

/// Names of the functions that a view mentions.
pub type Names = BTreeMap<CostCentreId, String>;

fn names(profile: &Profile, functions: impl Iterator<Item = CostCentreId>) -> Names {
    // Marked first and named once: a view of stacks mentions its functions a million times.
    let mut mentioned = vec![false; profile.cost_centres().len()];
    for function in functions {
        if let Some(mentioned) = mentioned.get_mut(function.index()) {
            *mentioned = true;
        }
    }
    (0u32..)
        .map(CostCentreId::new)
        .zip(mentioned)
        .filter(|(_, mentioned)| *mentioned)
        .map(|(function, _)| (function, profile.name(function).into_owned()))
        .collect()
}

/// A history as words: unmarked entries in parentheses.
fn words<'a>(entries: impl Iterator<Item = &'a Entry>, names: &Names, separator: &str) -> String {
    let words: Vec<String> = entries
        .map(|entry| {
            let name = names.get(&entry.function).map_or("[unknown]", String::as_str);
            let name = crate::sanitise(name);
            if entry.marked { name.into_owned() } else { format!("({name})") }
        })
        .collect();
    words.join(separator)
}
