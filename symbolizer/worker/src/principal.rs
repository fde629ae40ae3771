//! Principals: who answers for a file.
//!
//! The owner of a file answers for what it does to the process that reads it. Subordinate user ids (subuid(5)) count
//! for the user who owns their range. A file of root's counts as the daemon's own only where root of this machine has
//! put it, which is one of:
//!
//! - It is in a mount of the daemon or of the first process.
//! - It is in a mount of the process that maps it, which has this machine's root directory and user namespace, and the
//!   mount shows the same directory of the same file system as one of this machine's. A service with mounts of its own
//!   (systemd's `PrivateTmp=`) sees the machine's libraries like that. A container has another root directory, even if
//!   its root is this machine's and a directory of the machine is bound into it.
//!
//! Never on a file system that a user's program serves (FUSE), where the owner is what that program says. Other files of
//! root's are those of a container: the user namespace of the process and the file system answer.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use ccsd_symbolizer::{Mount, MountTable, mount_id};
use nix::unistd::geteuid;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

/// Who answers for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// Root of this machine, or the daemon's own user.
    #[default]
    Own,
    /// A user.
    User(u32),
    /// A user who can place files of root there, other than root of this machine.
    Elsewhere {
        /// The user namespace of the process that maps the file; 0 if it is not known.
        namespace: u64,
        /// The device of the file.
        device: u64,
    },
}

impl Principal {
    /// Somebody who is not root of this machine.
    pub const SOMEWHERE: Principal = Principal::Elsewhere { namespace: 0, device: 0 };

    /// The owner of a file as it is.
    pub(crate) fn of_user(uid: u32) -> Principal {
        if uid == 0 || uid == geteuid().as_raw() { Principal::Own } else { Principal::User(uid) }
    }
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Principal::Own => f.write_str("of this machine"),
            Principal::User(uid) => write!(f, "of user {uid}"),
            Principal::Elsewhere { namespace, device } => {
                write!(f, "of a container (device {device:#x}, user namespace {namespace})")
            }
        }
    }
}

/// Where a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLocation {
    /// Who answers for it.
    pub principal: Principal,
    /// Whether another machine or a program serves the file, so that reading it may take for ever.
    pub is_remote: bool,
}

/// Bytes read of a table of users.
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// Bytes read of another process's table of mounts. Beyond it nothing is known of its mounts.
const MAX_OTHER_TABLE_BYTES: u64 = 1 << 20;
const MAX_RANGES: usize = 65_536;
/// Interval of looking whether the ranges have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Time for which another process's mounts are remembered: its files are looked for one after the other.
const REMEMBERED: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Principals {
    mounts: Mutex<Vec<MountTable>>,
    last: Mutex<Option<OtherMounts>>,
    users: SubordinateIds,
}

impl Default for Principals {
    fn default() -> Principals {
        let tables = ["/proc/self/mountinfo", "/proc/1/mountinfo"].into_iter().filter_map(MountTable::open);
        Principals { mounts: Mutex::new(tables.collect()), last: Mutex::default(), users: SubordinateIds::default() }
    }
}

impl Principals {
    /// The place of an open file with this `meta`, as the process `pid` maps it, if one does.
    pub fn place(&self, file: &File, meta: &Metadata, pid: Option<u32>) -> FileLocation {
        let id = mount_id(file);
        let own = id.and_then(|id| self.find_local(id));
        let others = || self.find_of_process(pid?, id?);
        let principal = match (meta.uid(), &own) {
            (0, Some(mount)) if !mount.is_fuse() => Principal::Own,
            (0, _) => {
                let is_own = own.is_none() && others().is_some_and(|(mount, is_own)| is_own && !mount.is_fuse());
                match is_own {
                    true => Principal::Own,
                    false => Principal::Elsewhere {
                        namespace: pid.and_then(user_namespace).unwrap_or(0),
                        device: meta.dev(),
                    },
                }
            }
            (uid, _) if uid == geteuid().as_raw() => Principal::Own,
            (uid, _) => Principal::User(self.users.owner(uid)),
        };
        // What is not known may be anywhere. Below an overlay that a user has mounted may be what a program serves.
        let is_remote = match (own, others) {
            (Some(mount), _) => mount.is_remote(),
            (None, others) => others().is_none_or(|(mount, _)| {
                mount.is_remote() || mount.is_overlay() && pid.is_none_or(|pid| !is_in_own_user_namespace(pid))
            }),
        };
        FileLocation { principal, is_remote }
    }

    /// A user, or who answers for the user's id.
    pub fn user(&self, uid: u32) -> Principal {
        Principal::User(self.users.owner(uid))
    }

    fn find_local(&self, id: u64) -> Option<Mount> {
        let mut tables = lock(&self.mounts);
        tables.iter_mut().find_map(|table| table.get(id))
    }

    /// A mount of a process, and whether it shows the process a part of this machine's file system.
    fn find_of_process(&self, pid: u32, id: u64) -> Option<(Mount, bool)> {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok()?.into_os_string();
        let mut last = lock(&self.last);
        let is_it = |known: &OtherMounts| {
            (known.pid, &known.namespace) == (pid, &namespace) && known.read.elapsed() < REMEMBERED
        };
        if !last.as_ref().is_some_and(is_it) {
            let mut bytes = Vec::new();
            let table = File::open(format!("/proc/{pid}/mountinfo")).ok()?;
            table.take(MAX_OTHER_TABLE_BYTES).read_to_end(&mut bytes).ok()?;
            let (read, has_own_root, mounts) = (Instant::now(), is_of_machine(pid), Mount::parse_all(&bytes));
            *last = Some(OtherMounts { pid, namespace, read, has_own_root, mounts });
        }
        let known = last.as_ref()?;
        let mount = known.mounts.get(&id)?.clone();
        let is_shown_here = || lock(&self.mounts).iter().any(|table| table.shows(&mount));
        let is_own = known.has_own_root && is_shown_here();
        Some((mount, is_own))
    }
}

/// Device and inode of a process's root directory. A server that does not answer is not asked.
fn root_of(pid: u32) -> Option<(u32, u32, u64)> {
    let path = format!("/proc/{pid}/root/");
    let found = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::INO).ok()?;
    Some((found.stx_dev_major, found.stx_dev_minor, found.stx_ino))
}

/// Who answers for a process of root that is none of this machine: its container, as its root directory tells.
pub(crate) fn container_of(pid: u32) -> Principal {
    let device = root_of(pid).map_or(0, |(major, minor, _)| rustix::fs::makedev(major, minor));
    Principal::Elsewhere { namespace: user_namespace(pid).unwrap_or(0), device }
}

/// Whether a process has this process's root directory and user namespace.
pub(crate) fn is_of_machine(pid: u32) -> bool {
    is_in_own_user_namespace(pid) && root_of(pid).is_some_and(|root| Some(root) == root_of(std::process::id()))
}

fn is_in_own_user_namespace(pid: u32) -> bool {
    user_namespace(pid).is_some_and(|of| Some(of) == user_namespace(std::process::id()))
}

/// The number of a process's user namespace, from `user:[4026531837]`.
fn user_namespace(pid: u32) -> Option<u64> {
    let link = fs::read_link(format!("/proc/{pid}/ns/user")).ok()?;
    link.to_str()?.strip_prefix("user:[")?.strip_suffix(']')?.parse().ok()
}

#[derive(Debug)]
struct OtherMounts {
    pid: u32,
    namespace: std::ffi::OsString,
    read: Instant,
    /// Whether the process has this process's root directory and user namespace.
    has_own_root: bool,
    mounts: HashMap<u64, Mount>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The users to whom ranges of subordinate ids belong.
#[derive(Debug, Default)]
pub struct SubordinateIds(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    /// First id, number of ids, and the owner.
    list: Vec<(u32, u32, u32)>,
    /// Modification times of [`TABLES`].
    modified: [Option<SystemTime>; 2],
    looked: Option<Instant>,
}

const TABLES: [&str; 2] = ["/etc/subuid", "/etc/passwd"];

impl SubordinateIds {
    /// The user who answers for `uid`: the owner of the range that contains it, or the user itself.
    #[must_use]
    pub fn owner(&self, uid: u32) -> u32 {
        let mut ranges = lock(&self.0);
        if ranges.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN) {
            ranges.looked = Some(Instant::now());
            let modified = TABLES.map(|table| fs::metadata(table).and_then(|meta| meta.modified()).ok());
            if modified != ranges.modified {
                ranges.modified = modified;
                ranges.list = parse(&text_of(TABLES[0]), &text_of(TABLES[1]));
            }
        }
        owner_in(&ranges.list, uid)
    }
}

fn owner_in(list: &[(u32, u32, u32)], uid: u32) -> u32 {
    let found = list.iter().find(|(first, count, _)| uid.checked_sub(*first).is_some_and(|at| at < *count));
    found.map_or(uid, |(_, _, owner)| *owner)
}

/// Reads the local tables only: a directory service may be slow, or wait for this daemon.
fn parse(ranges: &str, users: &str) -> Vec<(u32, u32, u32)> {
    let uid_of = |name: &str| {
        let mut lines = users.lines().map(|line| line.split(':'));
        lines.find_map(|mut fields| if fields.next()? == name { fields.nth(1)?.parse::<u32>().ok() } else { None })
    };
    let range = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let owner = name.parse().ok().or_else(|| uid_of(name))?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.trim().parse().ok()?);
        Some((first, count, owner))
    };
    ranges.lines().filter_map(range).take(MAX_RANGES).collect()
}

fn text_of(path: &str) -> String {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_TABLE_BYTES).read_to_end(&mut bytes));
    read.map(|_| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn subordinate_ids_count_for_their_owner() {
        let users = "root:x:0:0::/root:/bin/sh\nada:x:1000:1000::/home/ada:/bin/sh\n";
        let list = parse("ada:100000:65536\n1001:165536:65536\nnobody-known:1:5\nbroken\n", users);
        assert_eq!(list, [(100_000, 65_536, 1000), (165_536, 65_536, 1001)]);
        let owners = [99_999, 100_000, 165_535, 165_536, 231_072, 1000].map(|uid| owner_in(&list, uid));
        assert_eq!(owners, [99_999, 1000, 1000, 1001, 231_072, 1000]);
    }

    #[test]
    fn files_of_this_machine_and_of_users_differ() {
        let principals = Principals::default();
        let of = |file: &File| principals.place(file, &file.metadata().unwrap(), None).principal;
        let own = File::open("/proc/self/exe").unwrap();
        assert_eq!(of(&own), Principal::Own);
        let file = tempfile::tempfile().unwrap();
        assert_eq!(of(&file), Principal::Own);
        if geteuid().is_root() {
            std::os::unix::fs::fchown(&file, Some(54_321), None).unwrap();
            assert_eq!(of(&file), Principal::User(54_321));
        }
    }
}
