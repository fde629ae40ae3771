//! Which of the processes that a session follows it keeps.

use std::fmt;

use crate::procfs;

/// A rule that a process must fit while its samples are kept. A forked child is taken to be like its parent until it
/// executes, changes its name, or is looked at.
pub trait ProcessFilter: fmt::Debug + Send + Sync {
    /// Whether a process fits, by what /proc says of it now. `None` where it has ended.
    fn keeps(&self, pid: u32) -> Option<bool>;

    /// Whether a process may have this name (that of its main thread), whatever else it is.
    fn keeps_name(&self, name: &str) -> bool;

    /// Whether a process fits after executing a program of this name. `None`: must be looked at, and its samples are
    /// not kept until then.
    fn keeps_after_exec(&self, name: &str, was_kept: bool) -> Option<bool> {
        let _ = (name, was_kept);
        None
    }

    /// The path, in the hierarchy of version 2, of the outermost control group around a process that fits, if every
    /// process that fits is in that group or in another one that is found like this. Empty where there is none such, and
    /// `None` where the process has ended.
    fn group_of(&self, pid: u32) -> Option<String> {
        let _ = pid;
        Some(String::new())
    }

    /// Judges a process that [`ProcessFilter::keeps_after_exec`] left undecided, by records and /proc; if it has ended,
    /// by its parent's groups and user. `None` if undecided.
    fn keeps_executed(&self, executed: &Executed<'_>) -> Option<bool> {
        let _ = executed;
        None
    }
}

/// A process that has just executed a program, from its records.
#[derive(Clone, Copy, Debug)]
pub struct Executed<'a> {
    /// The process.
    pub pid: u32,
    /// The process that forked it, 0 if that is not known.
    pub parent_pid: u32,
    /// When it was forked, clock ticks since boot.
    pub start_time: u64,
    /// Its name since.
    pub name: &'a str,
    /// The program, once it is mapped.
    pub program: Option<ProgramFile<'a>>,
}

impl Executed<'_> {
    /// Processes to ask for its groups and user, in this order: itself, then its parent, if it has ended. None that has got
    /// the number of either since.
    pub fn relatives(&self) -> impl Iterator<Item = u32> + use<> {
        let start_time = self.start_time;
        let is_relative = move |&pid: &u32| pid != 0 && procfs::has_run_since(pid, start_time);
        [self.pid, self.parent_pid].into_iter().filter(is_relative)
    }
}

/// A program's file.
#[derive(Clone, Copy, Debug)]
pub struct ProgramFile<'a> {
    /// Its path for the process.
    pub path: &'a [u8],
    /// Device, major and minor number, and inode, as the kernel has them for mapped files.
    pub file: (u32, u32, u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_got_a_number_since_is_no_relative() {
        let own = std::process::id();
        let start = procfs::stat(own).unwrap().start_time;
        let relatives = |pid, parent_pid, start_time| {
            let executed = Executed { pid, parent_pid, start_time, name: "x", program: None };
            executed.relatives().collect::<Vec<u32>>()
        };
        assert_eq!(relatives(own, 0, start), [own]);
        // A parent is older than its child.
        assert_eq!(relatives(u32::MAX, own, start + 100), [own]);
        assert_eq!(relatives(own, own, start - 2), [0; 0]);
    }
}
