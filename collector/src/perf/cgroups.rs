//! Control groups of version 2 to which events are bound: the kernel then samples their processes alone.

use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::procfs;

/// Largest number of groups: each takes an event on each CPU.
pub const MAX_GROUPS: usize = 8;
/// Bytes of `cgroup.events` that are read: a few short lines.
const EVENTS_BYTES: usize = 256;

/// A control group with processes, open.
#[derive(Debug)]
pub struct ControlGroup {
    path: String,
    directory: File,
    /// `cgroup.events`, which says whether there are processes in the group or below it.
    events: File,
    inode: u64,
}

impl ControlGroup {
    /// Opens the group of this path within the hierarchy of version 2. `None` if it has no processes or cannot be
    /// opened.
    pub fn open(mount: &Path, path: &str) -> Option<ControlGroup> {
        // Names of groups cannot be `..`; one that a caller wrote may.
        let below = path.trim_matches('/');
        if below.is_empty() || below.split('/').any(|name| name == "..") {
            return None;
        }
        let directory = File::open(mount.join(below)).ok()?;
        let meta = directory.metadata().ok().filter(Metadata::is_dir)?;
        let events = File::open(mount.join(below).join("cgroup.events")).ok()?;
        let group = ControlGroup { path: format!("/{below}"), directory, events, inode: meta.ino() };
        group.is_populated().then_some(group)
    }

    /// The path within the hierarchy.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether there are processes in the group or below it. Not in one that was removed.
    pub fn is_populated(&self) -> bool {
        let mut bytes = [0; EVENTS_BYTES];
        let read = self.events.read_at(&mut bytes, 0).unwrap_or(0);
        is_populated(bytes.get(..read).unwrap_or_default())
    }

    /// The descriptor for `PERF_FLAG_PID_CGROUP`.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Polled for `POLLPRI`: the group got its first process or lost its last.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// Whether both are the same group, not only groups of one path.
    pub fn is_same(&self, other: &ControlGroup) -> bool {
        self.inode == other.inode && self.path == other.path
    }
}

fn is_populated(events: &[u8]) -> bool {
    events.split(|&byte| byte == b'\n').any(|line| line == b"populated 1")
}

/// Where the hierarchy of version 2 is mounted, from its root on.
pub fn mount() -> Option<PathBuf> {
    parse_mounts(&procfs::read("/proc/self/mountinfo").ok()?)
}

/// Lines of proc_pid_mountinfo(5): number, parent, device, root, mount point, options, optional fields, `-`, type, ...
fn parse_mounts(mountinfo: &[u8]) -> Option<PathBuf> {
    mountinfo.split(|&byte| byte == b'\n').find_map(|line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (root, point) = (fields.nth(3)?, fields.next()?);
        let kind = fields.skip_while(|&field| field != b"-").nth(1)?;
        (kind == b"cgroup2" && root == b"/").then(|| PathBuf::from(OsString::from_vec(unescaped(point))))
    })
}

/// A path in which `\040` and the like stand for blanks.
fn unescaped(path: &[u8]) -> Vec<u8> {
    let mut found = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| byte == b'\\').and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 8).ok()) {
            Some(code) => {
                found.push(code);
                rest = rest.get(4..).unwrap_or_default();
            }
            None => {
                found.push(byte);
                rest = after;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn mounts_of_version_2() {
        let of = |text: &str| parse_mounts(text.as_bytes());
        let v1 = "30 24 0:26 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu\n";
        let part = "31 24 0:27 /a.slice /mnt rw - cgroup2 cgroup2 rw\n";
        let whole = "32 24 0:27 / /sys/fs/cgroup/uni\\040fied rw,nosuid shared:9 master:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(of(&[v1, part, whole].concat()), Some("/sys/fs/cgroup/uni fied".into()));
        for none in [v1, part, "", "x", "1 2 3 / /x", "1 2 3 / /x -", "1 2 3 / /x cgroup2\n"] {
            assert_eq!(of(none), None, "{none:?}");
        }
        assert_eq!(unescaped(br"a\134\9\04"), br"a\\9\04");
    }

    #[test]
    fn only_groups_with_processes_are_opened() {
        let mount = tempfile::tempdir().unwrap();
        let events = mount.path().join("a.slice/b.service/cgroup.events");
        fs::create_dir_all(events.parent().unwrap()).unwrap();
        let open = |path: &str| ControlGroup::open(mount.path(), path);
        assert!(open("/a.slice/b.service").is_none());
        fs::write(&events, "populated 0\nfrozen 0\n").unwrap();
        assert!(open("/a.slice/b.service").is_none());
        fs::write(&events, "populated 1\nfrozen 0\n").unwrap();
        let group = open("/a.slice/b.service").unwrap();
        assert_eq!(group.path(), "/a.slice/b.service");
        assert!(group.is_populated() && group.is_same(&open("a.slice/b.service/").unwrap()));
        for other in ["", "/", "/a.slice/../a.slice/b.service", "/none", "/a.slice/b.service/cgroup.events"] {
            assert!(open(other).is_none(), "{other:?}");
        }
        // It is removed, and made again.
        fs::rename(events.parent().unwrap(), mount.path().join("old")).unwrap();
        fs::create_dir_all(events.parent().unwrap()).unwrap();
        fs::write(&events, "populated 1\n").unwrap();
        assert!(!group.is_same(&open("/a.slice/b.service").unwrap()));
        fs::write(mount.path().join("old/cgroup.events"), "populated 0\n").unwrap();
        assert!(!group.is_populated());
    }
}
