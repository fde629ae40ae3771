//! Entries of histories, as data and in words.

use serde::Serialize;

use super::names::{Definitions, FunctionNames, named};
use super::visible;
use crate::ids::CostCentreId;
use crate::text::sanitise;

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
    pub(super) fn of(entry: u32) -> StackEntry {
        StackEntry {
            function: visible::function(entry),
            marked: visible::is_marked(entry),
            gap: visible::is_gap(entry),
            approximate: visible::is_approximate(entry),
        }
    }
}

/// What stands between two functions of which the one may not have called the other.
pub const SQUEEZED_OUT: &str = "[...]";

/// A history as words: unmarked entries in parentheses, gaps as [`SQUEEZED_OUT`], `~` before an approximate call.
pub(super) fn words(entries: &[StackEntry], names: &FunctionNames, definitions: &Definitions) -> Vec<String> {
    let mut words = Vec::with_capacity(entries.len());
    for entry in entries {
        if entry.gap {
            words.push(SQUEEZED_OUT.to_owned());
        }
        let name = named(entry.function, names, definitions);
        words.push(label(&sanitise(&name), entry.marked, false, entry.approximate));
    }
    words
}

pub(super) fn label(name: &str, marked: bool, gap: bool, approximate: bool) -> String {
    let gap = if gap { "[...] " } else { "" };
    let mark = if approximate { "~" } else { "" };
    if marked { format!("{gap}{mark}{name}") } else { format!("{gap}{mark}({name})") }
}
