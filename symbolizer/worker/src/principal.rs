//! Principals: who answers for a file.
//!
//! The owner of a file answers for what it does to the process that reads it. Subordinate user ids (subuid(5)) count
//! for the user who owns their range. A file of root's counts as the daemon's own only where root of this machine has
//! put it: in the mount namespace of the daemon or of the first process, and on no file system that a user's program
//! serves (FUSE), where the owner is what that program says. Elsewhere, mostly in a container, the file system answers.

use std::collections::HashSet;
use std::fs::{self, File, Metadata};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, fstatfs};
use nix::unistd::geteuid;
use rustix::fs::{AtFlags, StatxFlags, statx};
use serde::{Deserialize, Serialize};

/// Who answers for a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Principal {
    /// Root of this machine, or the daemon's own user.
    #[default]
    Own,
    /// A user.
    User(u32),
    /// Whoever has put files of root's on this device, elsewhere than root of this machine.
    Elsewhere(u64),
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Principal::Own => f.write_str("of this machine"),
            Principal::User(uid) => write!(f, "of user {uid}"),
            Principal::Elsewhere(device) => write!(f, "of a container (device {device:#x})"),
        }
    }
}

/// Bytes read of a table of mounts or users. A mount takes some 150 bytes.
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// Maximum ranges of subordinate ids.
const MAX_RANGES: usize = 65_536;
/// Interval of looking whether the ranges have changed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Finds principals. Keeps the tables that decide.
#[derive(Debug)]
pub struct Principals {
    mounts: Mutex<Vec<MountTable>>,
    users: SubordinateIds,
}

impl Default for Principals {
    fn default() -> Principals {
        let tables = ["/proc/self/mountinfo", "/proc/1/mountinfo"].into_iter().filter_map(MountTable::open);
        Principals { mounts: Mutex::new(tables.collect()), users: SubordinateIds::default() }
    }
}

impl Principals {
    /// The principal of an open file with this `meta`.
    pub fn of(&self, file: &File, meta: &Metadata) -> Principal {
        match meta.uid() {
            0 if self.is_of_this_machine(file) => Principal::Own,
            0 => Principal::Elsewhere(meta.dev()),
            own if own == geteuid().as_raw() => Principal::Own,
            uid => Principal::User(self.users.owner(uid)),
        }
    }

    fn is_of_this_machine(&self, file: &File) -> bool {
        if !fstatfs(file).is_ok_and(|system| system.filesystem_type() != FUSE_SUPER_MAGIC) {
            return false;
        }
        let Ok(found) = statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID) else { return false };
        if !StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID) {
            return false;
        }
        let mut tables = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        tables.iter_mut().any(|table| table.has(found.stx_mnt_id))
    }
}

/// The mounts of a mount namespace.
#[derive(Debug)]
struct MountTable {
    file: File,
    /// Empty until read.
    ids: HashSet<u64>,
}

impl MountTable {
    fn open(path: &str) -> Option<MountTable> {
        let mut table = MountTable { file: File::open(path).ok()?, ids: HashSet::new() };
        table.read();
        Some(table)
    }

    fn has(&mut self, id: u64) -> bool {
        // The kernel reports changes since the last call (proc_pid_mountinfo(5)); the ids of mounts are reused.
        let mut changed = [PollFd::new(self.file.as_fd(), PollFlags::POLLPRI)];
        let is_same = matches!(poll(&mut changed, PollTimeout::ZERO), Ok(0));
        if !is_same {
            self.read();
        }
        self.ids.contains(&id)
    }

    fn read(&mut self) {
        self.ids.clear();
        let mut text = String::new();
        let read = self.file.seek(SeekFrom::Start(0)).and_then(|_| {
            // Names of mounts may be any bytes.
            let mut bytes = Vec::new();
            (&self.file).take(MAX_TABLE_BYTES).read_to_end(&mut bytes)?;
            text = String::from_utf8_lossy(&bytes).into_owned();
            Ok(())
        });
        if read.is_ok() {
            self.ids.extend(text.lines().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()));
        }
    }
}

/// The users to whom ranges of subordinate ids belong.
#[derive(Debug, Default)]
pub struct SubordinateIds(Mutex<Ranges>);

#[derive(Debug, Default)]
struct Ranges {
    /// First id, number of ids, and the owner.
    list: Vec<(u32, u32, u32)>,
    modified: Option<SystemTime>,
    looked: Option<Instant>,
}

impl SubordinateIds {
    /// The user who answers for `uid`: the owner of the range that contains it, or the user itself.
    #[must_use]
    pub fn owner(&self, uid: u32) -> u32 {
        let mut ranges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ranges.looked.is_none_or(|looked| looked.elapsed() >= LOOK_AGAIN) {
            ranges.looked = Some(Instant::now());
            let modified = fs::metadata("/etc/subuid").and_then(|meta| meta.modified()).ok();
            if modified != ranges.modified {
                ranges.modified = modified;
                ranges.list = parse(&text_of("/etc/subuid"), &text_of("/etc/passwd"));
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
        let of = |file: &File| principals.of(file, &file.metadata().unwrap());
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
