//! What a process belongs to: its control groups and its user, as /proc shows them.

use std::sync::Arc;

use ccsd_profile::Membership;
use hashbrown::HashMap;

use crate::pids::is_free;
use crate::procfs;
use crate::users::PasswdUsers;

/// Different memberships that are kept once each; of further ones every process has its own.
const MAX_SHARED: usize = 8192;
const MAX_PATH: usize = 4096;

/// Largest file of these: a process is in one group of each hierarchy.
const MAX_PATHS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessGroups {
    /// Paths of its control groups in all hierarchies, the one that names units and containers first.
    pub cgroups: Vec<String>,
    pub uid: Option<u32>,
    /// Path in the hierarchy of version 2; empty where there is none.
    pub unified: String,
}

impl ProcessGroups {
    /// Reads them. `None` where the process has ended.
    pub fn read(pid: u32) -> Option<ProcessGroups> {
        if is_free(pid) {
            return None;
        }
        let file = procfs::read(&format!("/proc/{pid}/cgroup")).ok()?;
        Some(ProcessGroups {
            cgroups: cgroup_paths(&file),
            uid: procfs::own_pid_and_user(pid).1,
            unified: unified_path(&file),
        })
    }

    #[must_use]
    pub fn cgroup(&self) -> &str {
        self.cgroups.first().map_or("", String::as_str)
    }
}

#[derive(Debug, Default)]
pub struct Memberships {
    users: Option<PasswdUsers>,
    shared: HashMap<(String, Option<u32>), Arc<Membership>>,
}

impl Memberships {
    /// What a process belongs to now. `None` where it has ended.
    pub fn of(&mut self, pid: u32) -> Option<Arc<Membership>> {
        let ProcessGroups { mut cgroups, uid, .. } = ProcessGroups::read(pid).filter(|groups| groups.uid.is_some())?;
        let cgroup = if cgroups.is_empty() { String::new() } else { cgroups.swap_remove(0) };
        let cgroup = if cgroup.len() > MAX_PATH { String::new() } else { cgroup };
        // They are in the root group, as processes may be.
        let is_kernel = cgroup == "/" && procfs::stat(pid).is_ok_and(|stat| stat.kernel_thread);
        let cgroup = if is_kernel { Membership::KERNEL.to_owned() } else { cgroup };
        let key = (cgroup, uid);
        if let Some(known) = self.shared.get(&key) {
            return Some(Arc::clone(known));
        }
        let users = self.users.get_or_insert_with(PasswdUsers::read);
        let user = uid.map_or("", |uid| users.name(uid)).to_owned();
        let membership = Arc::new(Membership { cgroup: key.0.clone(), uid, user, container_name: String::new() });
        if self.shared.len() < MAX_SHARED {
            self.shared.insert(key, Arc::clone(&membership));
        }
        Some(membership)
    }

    /// What a process belongs to instead of `before`, if it has moved. One that ends leaves its groups of version 1 (see
    /// `proc_cgroup_show` in the kernel's kernel/cgroup/cgroup.c), and has not moved.
    pub fn instead_of(&mut self, before: &Membership, pid: u32) -> Option<Arc<Membership>> {
        let now = self.of(pid).filter(|now| **now != *before)?;
        (!procfs::is_exiting(pid)).then_some(now)
    }
}

/// One line of /proc/PID/cgroup: hierarchy, controllers, path. The path may contain colons.
fn parts(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b':');
    Some((parts.next()?, parts.next()?, parts.next()?))
}

/// The path of a process's control group of version 2 from `/proc/PID/cgroup`; empty where there is none.
#[must_use]
pub fn unified_path(file: &[u8]) -> String {
    let mut lines = file.split(|&byte| byte == b'\n').filter_map(parts);
    let found = lines.find(|(number, controllers, _)| *number == b"0" && controllers.is_empty());
    found.map_or_else(String::new, |(_, _, path)| String::from_utf8_lossy(path).into_owned())
}

/// The path of a process's control group from `/proc/PID/cgroup`: systemd's own hierarchy, or version 2.
#[must_use]
pub fn cgroup_path(file: &[u8]) -> String {
    let (mut named, mut unified) = (None, None);
    for (number, controllers, path) in file.split(|&byte| byte == b'\n').filter_map(parts) {
        match (number, controllers) {
            (_, b"name=systemd") => named = Some(path),
            (b"0", b"") => unified = Some(path),
            _ => {}
        }
    }
    // With both hierarchies, systemd may use either; all processes are in the root of the other.
    let path = named.filter(|path| *path != b"/").or(unified).or(named);
    String::from_utf8_lossy(path.unwrap_or_default()).into_owned()
}

/// The paths of all hierarchies, that of [`cgroup_path`] first unless only another is below the root: without systemd,
/// a container may be in version 1 hierarchies alone.
fn cgroup_paths(file: &[u8]) -> Vec<String> {
    let mut paths = vec![cgroup_path(file)];
    for (_, _, path) in file.split(|&byte| byte == b'\n').filter_map(parts) {
        let path = String::from_utf8_lossy(path).into_owned();
        if paths.len() < MAX_PATHS && !paths.contains(&path) {
            paths.push(path);
        }
    }
    if paths.first().is_some_and(|path| path.is_empty() || path == "/") && paths.len() > 1 {
        paths.rotate_left(1);
    }
    paths
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use nix::sys::wait::{Id, WaitPidFlag, waitid};
    use nix::unistd::Pid;

    use super::*;

    #[test]
    fn control_groups_of_all_versions() {
        assert_eq!(cgroup_path(b"0::/system.slice/a.service\n"), "/system.slice/a.service");
        let hybrid = b"12:cpu:/x\n1:name=systemd:/system.slice/a:b.service\n0::/system.slice/other\n";
        assert_eq!(cgroup_path(hybrid), "/system.slice/a:b.service");
        assert_eq!(cgroup_path(b"1:name=systemd:/\n0::/system.slice/b.service\n"), "/system.slice/b.service");
        assert_eq!(cgroup_path(b"1:name=systemd:/\n"), "/");
        assert_eq!(unified_path(hybrid), "/system.slice/other");
        assert_eq!((unified_path(b"1:name=systemd:/x\n"), unified_path(b"0:cpu:/x\n")), (String::new(), String::new()));
        for hostile in [&b""[..], b":", b"::::", b"0", b"x:y:z\n\n\n", b"0:\xff:\xff"] {
            assert_eq!(cgroup_path(hostile), "", "{hostile:?}");
        }
    }

    #[test]
    fn all_paths_of_a_process() {
        assert_eq!(cgroup_paths(b"0::/a.service\n"), ["/a.service"]);
        let hybrid = b"12:cpu:/x\n4:memory:/x\n1:name=systemd:/a.service\n0::/\n";
        assert_eq!(cgroup_paths(hybrid), ["/a.service", "/x", "/"]);
        assert_eq!(cgroup_paths(b"3:cpu,cpuacct:/docker/1\n1:name=systemd:/\n0::/\n"), ["/docker/1", "/"]);
        assert_eq!(cgroup_paths(b""), [""]);
        let many: String = (0..1_000).map(|number| format!("{number}:x:/{number}\n")).collect();
        assert_eq!(cgroup_paths(many.as_bytes()).len(), MAX_PATHS);
    }

    #[test]
    fn this_process_belongs_somewhere() {
        let groups = ProcessGroups::read(std::process::id()).unwrap();
        assert!(groups.uid.is_some());
        assert_eq!(ProcessGroups::read(u32::MAX), None);
    }

    #[test]
    fn a_process_that_has_ended_has_not_moved() {
        let mut memberships = Memberships::default();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let now = memberships.of(pid).unwrap();
        let before = Membership { cgroup: "/before.service".to_owned(), ..Membership::clone(&now) };
        assert_eq!(memberships.instead_of(&now, pid), None);
        assert_eq!(memberships.instead_of(&before, pid), Some(now));
        drop(child.stdin.take());
        waitid(Id::Pid(Pid::from_raw(pid.cast_signed())), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        assert!(memberships.of(pid).is_some());
        assert_eq!(memberships.instead_of(&before, pid), None);
        child.wait().unwrap();
        assert_eq!(memberships.instead_of(&before, pid), None);
    }
}
