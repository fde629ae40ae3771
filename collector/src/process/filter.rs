//! Which of the processes that a session follows it keeps.

use std::fmt;

/// A rule that a process must fit for as long as its samples are kept. Children are judged by the same rule: one that is
/// forked is taken to be what its parent is, until it executes something, changes its name, or is looked at.
pub trait Filter: fmt::Debug + Send + Sync {
    /// Whether a process fits, by what /proc says of it now. `None` where it has ended.
    fn keeps(&self, pid: u32) -> Option<bool>;

    /// Whether a process may have this name (that of its main thread), whatever else it is.
    fn keeps_name(&self, name: &str) -> bool;

    /// Whether a process fits that has just executed a program, which gave it this name, where it did or did not before.
    /// `None` where it has to be looked at; until then its samples are not kept.
    fn keeps_after_exec(&self, name: &str, was_kept: bool) -> Option<bool> {
        let _ = (name, was_kept);
        None
    }
}
