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
mod entry;
mod flat;
mod graph;
mod grow;
mod interval;
mod lines;
mod matching;
mod names;
mod significance;
mod special;
mod stacks;
mod stats;
mod summary;
mod sums;
mod threads;
mod timeline;
mod total;
mod tree;
mod visible;

pub use crate::selection::Selection;
pub(crate) use calls::call_lines;
pub use column::ViewColumn;
pub use cycles::{Cycle, CycleRow, CyclesView};
pub(crate) use diff::with_one_of_a_name;
pub use diff::{DiffRow, DiffSide, DiffView, Run};
pub use diff_tree::{ChainSide, DiffNode, DiffTree, OtherDiff};
pub use entry::{SQUEEZED_OUT, StackEntry};
pub use flat::{FlatRow, FlatView, OtherRows};
pub use graph::{GraphArc, GraphNode, GraphView};
pub use interval::Share;
pub use lines::{FunctionLines, LineRow, LinesView};
pub use matching::{DiffFunction, Matching};
pub use names::{Definitions, FunctionNames, room_for_names};
pub use significance::{LEVEL as SIGNIFICANCE_LEVEL, WORDS as SIGNIFICANCE};
pub use stacks::{OtherStacks, StackRow, StacksView};
pub use stats::StatsView;
pub use summary::{ChainStep, ProgramRow, SummaryView};
pub use sums::Sums;
pub use threads::{ProcessRow, ThreadRow, ThreadsView};
pub use timeline::{Band, TimelineView};
pub use total::Total;
pub use tree::{OtherChains, TreeNode, TreeView};
pub(crate) use visible::{Visible, function, is_gap};
