//! Views: what a profile says, as plain data that text, JSON, HTML and exports are made from.
//!
//! Every view charges each context's weight to what stands in its history, in one walk over the context tree that pushes
//! every context once. Functions that a [`Selection`] hides are left out of the calls that made each context first (I6):
//! what they spent themselves goes to their innermost visible caller, and to `[root]` ([`CostCentreId::ROOT`]) where nothing
//! is visible.
//!
//! Views show only calls that happened. Where recursion was squeezed out between two entries, there is a gap. Where
//! functions are hidden or merged, a caller or callee that may be another one is marked as approximate.
//!
//! Names in views are as the profiled program has them: pass them through [`sanitise`](crate::sanitise) before they go to
//! a terminal.

mod calls;
mod column;
mod cycles;
mod diff;
mod diff_tree;
mod flat;
mod graph;
mod grow;
mod interval;
mod lines;
mod matching;
mod selection;
mod significance;
mod special;
mod stacks;
mod stats;
mod summary;
mod threads;
mod timeline;
mod tree;
mod walk;

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;

use crate::ids::CostCentreId;
use crate::labels::{Definition, labelled};
use crate::profile::Profile;
use crate::squares::Squares;

pub(crate) use calls::call_lines;
pub use column::Column;
pub use cycles::{Cycle, CycleRow, CyclesView};
pub use diff::{DiffRow, DiffSide, DiffView, Run};
pub use diff_tree::{ChainSide, DiffNode, DiffTree, OtherDiff};
pub use flat::{FlatRow, FlatView, OtherRows};
pub use graph::{GraphArc, GraphNode, GraphView};
pub use interval::{Share, Sums};
pub use lines::{FunctionLines, LineRow, LinesView};
pub use matching::{DiffFunction, Matching};
pub use selection::Selection;
pub use significance::{LEVEL as SIGNIFICANCE_LEVEL, WORDS as SIGNIFICANCE};
pub use stacks::{OtherStacks, StackRow, StacksView};
pub use stats::StatsView;
pub use summary::{ChainStep, SummaryView};
pub use threads::{ProcessRow, ThreadRow, ThreadsView};
pub use timeline::{Band, TimelineView};
pub use tree::{OtherChains, TreeNode, TreeView};
pub(crate) use walk::{function, is_gap, walk_contexts};

/// What a view is made of in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Weight of everything in the view, in the unit of its metric. Shares are of this.
    pub weight: u64,
    /// Samples of everything in the view.
    pub samples: u64,
    /// Sum of the squared weights of its samples, see [`Sums`].
    #[serde(skip)]
    pub squares: Squares,
    /// What of the weight no sample stands for, see [`Sums`].
    #[serde(skip)]
    pub unsampled: u64,
    /// Weight of the whole profile: more than `weight` where the selection leaves threads or stacks out.
    pub whole_weight: u64,
    /// Samples of the whole profile.
    pub whole_samples: u64,
}

impl Total {
    /// Everything in the view.
    #[must_use]
    pub const fn sums(&self) -> Sums {
        Sums { weight: self.weight, samples: self.samples, squares: self.squares, unsampled: self.unsampled }
    }

    /// The total of a view that shows everything.
    #[must_use]
    pub fn of_sums(all: Sums) -> Total {
        let Sums { weight, samples, squares, unsampled } = all;
        Total { weight, samples, squares, unsampled, whole_weight: weight, whole_samples: samples }
    }

    /// What is selected of a profile.
    #[must_use]
    pub fn of(profile: &Profile, selection: &Selection) -> Total {
        walk::walk(profile, selection, |_| {})
    }
}

/// Names of the functions that a view mentions. Several may have one: [`Definitions`] tell them apart.
pub type Names = BTreeMap<CostCentreId, String>;

/// Where the functions that a view mentions are defined.
pub type Definitions = BTreeMap<CostCentreId, Definition>;

fn names(profile: &Profile, functions: impl Iterator<Item = CostCentreId>) -> (Names, Definitions) {
    // Marked first and named once: a view of stacks mentions its functions a million times.
    let mut mentioned = vec![false; profile.cost_centres().len()];
    for function in functions {
        if let Some(mentioned) = mentioned.get_mut(function.index()) {
            *mentioned = true;
        }
    }
    let labels = profile.labels();
    (0u32..)
        .map(CostCentreId::new)
        .zip(mentioned)
        .filter(|(_, mentioned)| *mentioned)
        .map(|(id, _)| ((id, profile.name(id).into_owned()), (id, labels.definition(id))))
        .unzip()
}

/// The name of a function as text shows it, see [`Labels`](crate::Labels).
fn named<'a>(function: CostCentreId, names: &'a Names, definitions: &'a Definitions) -> Cow<'a, str> {
    let definition = definitions.get(&function);
    let short = definition.and_then(|it| it.short_name.as_ref());
    let name = short.or_else(|| names.get(&function)).map_or("[unknown]", String::as_str);
    labelled(name.into(), definition.and_then(|it| it.apart.as_deref()))
}

/// Bytes of names in a list of stacks: in proportion to what the profile itself holds, because names can be long, stacks
/// deep, and a few bytes of a file one stack more. It is several times what stacks of 24 functions need.
#[must_use]
pub fn room_for_names(profile: &Profile) -> usize {
    let places = profile.contexts().len() + profile.charge_count();
    (4 << 20) + places.saturating_mul(256) + profile.name_bytes().saturating_mul(8)
}

/// How many of the lists of functions, from the first on, have together so many bytes of names.
fn listed(profile: &Profile, names: &Names, mut room: usize, lists: impl Iterator<Item = Vec<CostCentreId>>) -> usize {
    let mut lengths = vec![0; profile.cost_centres().len()];
    for (function, name) in names {
        if let Some(length) = lengths.get_mut(function.index()) {
            *length = name.len();
        }
    }
    lists
        .take_while(|list| {
            let length = |function: &CostCentreId| lengths.get(function.index()).copied().unwrap_or(0) + 2;
            let bytes: usize = list.iter().map(length).sum();
            let fits = bytes <= room;
            room = room.saturating_sub(bytes);
            fits
        })
        .count()
}

/// An entry of a history as a view shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct StackEntry {
    /// The function.
    pub function: CostCentreId,
    /// Whether this entry is the function's most recent activation.
    pub marked: bool,
    /// Between the entry before and this one, recursion was squeezed out: the one may not have called the other.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub gap: bool,
    /// The call by the entry before may be another, because functions are hidden or merged.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub approximate: bool,
}

impl StackEntry {
    fn of(entry: u32) -> StackEntry {
        StackEntry {
            function: walk::function(entry),
            marked: walk::is_marked(entry),
            gap: walk::is_gap(entry),
            approximate: walk::is_approximate(entry),
        }
    }
}

/// What stands between two functions of which the one may not have called the other.
pub const SQUEEZED_OUT: &str = "[...]";

/// A history, oldest first, as words: unmarked entries in parentheses, gaps as [`SQUEEZED_OUT`], `~` where the call before is
/// approximate.
fn words(entries: &[StackEntry], names: &Names, definitions: &Definitions) -> Vec<String> {
    let mut words = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.gap {
            words.push(SQUEEZED_OUT.to_owned());
        }
        let name = named(entry.function, names, definitions);
        words.push(label(&crate::sanitise(&name), entry.marked, false, entry.approximate));
    }
    words
}

/// What to call an entry of a history.
fn label(name: &str, marked: bool, gap: bool, approximate: bool) -> String {
    let gap = if gap { "[...] " } else { "" };
    let mark = if approximate { "~" } else { "" };
    if marked { format!("{gap}{mark}{name}") } else { format!("{gap}{mark}({name})") }
}
