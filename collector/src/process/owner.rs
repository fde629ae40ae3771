//! Whether a process is for a user who may do no more than trace his own.
//!
//! The rule is ptrace(2)'s, "Ptrace access mode checking", without exceptions: all user and group ids of each thread
//! are the user's, the process is dumpable, and has no capabilities.
//!
//! It is checked when events are opened. Later on a process gains rights only by `execve`, where the kernel ends all
//! events on it if it is not dumpable afterwards (`begin_new_exec` in `fs/exec.c`); see [`events_end_with_rights`].

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use ccsd_symbolizer::{Door, ForUser};

use crate::pids::is_free;
use crate::procfs;

/// A user who may observe his own processes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Why a process may not be observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It has ended.
    #[error("it has ended")]
    Gone,
    /// It is not the user's to observe.
    #[error("{0}")]
    Forbidden(&'static str),
}

impl Owner {
    /// Opens files with this user's rights, or with those of this process.
    pub fn door(owner: Option<Owner>) -> Door {
        owner.map_or_else(Door::default, |Owner { uid, gid }| Door::of(ForUser { uid, gid }))
    }

    /// Whether every thread of a process is for this user, without those that end meanwhile.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check(&self, pid: u32) -> Result<(), Denied> {
        let mut found = Err(Denied::Gone);
        for tid in procfs::threads(pid).map_err(|_| Denied::Gone)? {
            match self.check_thread(tid) {
                Ok(()) => found = Ok(()),
                Err(Denied::Gone) => {}
                forbidden => return forbidden,
            }
        }
        found
    }

    /// Whether a process is for this user, by its main thread, or if that has ended by another one.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check_one_thread(&self, pid: u32) -> Result<(), Denied> {
        match self.check_thread(pid) {
            Err(Denied::Gone) => {}
            known => return known,
        }
        let others = procfs::threads(pid).map_err(|_| Denied::Gone)?;
        let mut known = others.into_iter().filter(|&tid| tid != pid).map(|tid| self.check_thread(tid));
        known.find(|result| *result != Err(Denied::Gone)).unwrap_or(Err(Denied::Gone))
    }

    /// Whether a thread is for this user. An ending thread has no memory, which looks as if it were not dumpable: it
    /// has gone.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check_thread(&self, tid: u32) -> Result<(), Denied> {
        let checked = self.check_rights(tid);
        // Checked last: a process that was ending before still is.
        match checked {
            Err(Denied::Forbidden(_)) if procfs::is_exiting(tid) => Err(Denied::Gone),
            checked => checked,
        }
    }

    fn check_rights(&self, tid: u32) -> Result<(), Denied> {
        if is_free(tid) {
            return Err(Denied::Gone);
        }
        let status = procfs::read(&format!("/proc/{tid}/status")).map_err(unseen)?;
        let credentials = Credentials::parse(&String::from_utf8_lossy(&status)).ok_or(Denied::Gone)?;
        // Not the directory's, which is the effective user's even if the process is not dumpable. After reading ids: a
        // program executed in between shows here, and a privileged one has no events any more.
        let memory = fs::metadata(format!("/proc/{tid}/mem")).map_err(unseen)?;
        credentials.check(*self, (memory.uid(), memory.gid())).map_err(Denied::Forbidden)
    }
}

fn unseen(error: io::Error) -> Denied {
    if procfs::is_gone(&error) { Denied::Gone } else { Denied::Forbidden("it cannot be looked at") }
}

/// Whether the kernel ends events on a process that executes a privileged program: not with `fs.suid_dumpable` at 1,
/// where such programs are dumpable (proc_sys_fs(5)).
#[must_use]
pub fn events_end_with_rights() -> bool {
    procfs::read("/proc/sys/fs/suid_dumpable").is_ok_and(|value| matches!(value.trim_ascii(), b"0" | b"2"))
}

/// What /proc/PID/status says of a thread's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Credentials {
    uids: [u32; 3],
    gids: [u32; 3],
    capabilities: u64,
}

impl Credentials {
    fn parse(status: &str) -> Option<Credentials> {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
        let ids = |name: &str| -> Option<[u32; 3]> {
            let mut words = field(name)?.split_ascii_whitespace().map(str::parse);
            Some([words.next()?.ok()?, words.next()?.ok()?, words.next()?.ok()?])
        };
        Some(Credentials {
            uids: ids("Uid:")?,
            gids: ids("Gid:")?,
            capabilities: u64::from_str_radix(field("CapPrm:")?.trim(), 16).ok()?,
        })
    }

    /// `memory` is to whom its memory file in /proc belongs: its effective user and group if it is dumpable, else root.
    fn check(&self, owner: Owner, memory: (u32, u32)) -> Result<(), &'static str> {
        let Owner { uid, gid } = owner;
        if self.uids.iter().any(|&id| id != uid) || self.gids.iter().any(|&id| id != gid) {
            return Err("it runs as another user or group");
        }
        if memory != (uid, gid) {
            return Err(
                "it is not dumpable, because it executes a privileged or unreadable file or has asked for that",
            );
        }
        if self.capabilities != 0 {
            return Err("it has capabilities");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(uids: &str, gids: &str, capabilities: &str) -> Credentials {
        let status = format!("Name:\tUid: 0\nUid:\t{uids}\nGid:\t{gids}\nCapInh:\t0\nCapPrm:\t{capabilities}\n");
        Credentials::parse(&status).unwrap()
    }

    #[test]
    fn refuses_as_ptrace_does() {
        let (all, own) = ("1000 1000 1000 1000", (1000, 1000));
        let plain = "0000000000000000";
        let owner = Owner { uid: 1000, gid: 1000 };
        assert_eq!(credentials(all, all, plain).check(owner, own), Ok(()));
        for (uids, gids, capabilities, memory) in [
            ("1000 0 1000 0", all, plain, own),
            ("1000 1000 0 1000", all, plain, own),
            ("0 1000 1000 1000", all, plain, own),
            ("1001 1001 1001 1001", all, plain, (1001, 1000)),
            (all, "1000 42 42 42", plain, own),
            (all, "42 1000 1000 1000", plain, own),
            (all, all, plain, (0, 0)),
            (all, all, plain, (1000, 0)),
            (all, all, "0000000000002000", own),
        ] {
            let refused = credentials(uids, gids, capabilities).check(owner, memory);
            assert!(refused.is_err(), "{uids} {gids} {capabilities} {memory:?}");
        }
    }

    #[test]
    fn a_status_that_lacks_something_is_no_permission() {
        assert_eq!(Credentials::parse(""), None);
        assert_eq!(Credentials::parse("Uid:\t1 1\nGid:\t1 1 1 1\nCapPrm:\t0\n"), None);
        assert_eq!(Credentials::parse("Uid:\t1 1 1 1\nGid:\t1 1 1 1\nCapPrm:\tx\n"), None);
    }

    #[test]
    fn only_ended_processes_are_gone() {
        let mut child = std::process::Command::new("true").stdin(std::process::Stdio::null()).spawn().unwrap();
        let pid = child.id();
        while !procfs::is_exiting(pid) {
            std::thread::yield_now();
        }
        let meta = fs::metadata("/proc/self").unwrap();
        for owner in [Owner { uid: meta.uid(), gid: meta.gid() }, Owner { uid: 54_321, gid: 54_321 }] {
            assert_eq!(owner.check_thread(pid), Err(Denied::Gone));
            assert_eq!((owner.check_one_thread(pid), owner.check(pid)), (Err(Denied::Gone), Err(Denied::Gone)));
        }
        child.wait().unwrap();
    }

    #[test]
    fn nobody_else_s() {
        let stranger = Owner { uid: 54_321, gid: 54_321 };
        assert!(matches!(stranger.check(std::process::id()), Err(Denied::Forbidden(_))));
        assert_eq!(stranger.check(u32::MAX), Err(Denied::Gone));
    }
}
