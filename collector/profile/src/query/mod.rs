//! Questions asked of a profile after the run: which functions, stacks and threads count ([`Filter`]), and by what costs
//! are summed ([`Grouping`]). Text, JSON, and exports all go through here, so that they agree.

mod filter;
mod group;
mod lexical;
mod pattern;
mod prune;
mod regroup;
mod startup;

pub use filter::{Filter, Preset, QueryError};
pub use pattern::{Pattern, PatternError, Subject};
pub use prune::Pruned;
pub use regroup::Grouping;
