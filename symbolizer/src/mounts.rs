//! The mounts of this machine: proc_pid_mountinfo(5).

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};

/// Bytes read of a table. A mount takes some 150 bytes.
const MAX_TABLE_BYTES: u64 = 16 << 20;
/// File systems that another machine or a program serves, by the beginnings of their names.
const REMOTE: [&str; 10] = ["fuse", "nfs", "9p", "cifs", "smb", "ceph", "afs", "lustre", "gfs", "ocfs"];

/// Which directory of which file system a mount shows: the device's numbers as text, and the directory.
type Shown = (Box<[u8]>, Box<[u8]>);

/// A mount.
#[derive(Clone, Debug)]
pub struct Mount {
    shows: Shown,
    kind: Box<str>,
    server: Option<u32>,
}

impl Mount {
    /// Whether a program of a user's serves it.
    #[must_use]
    pub fn is_fuse(&self) -> bool {
        self.kind.starts_with("fuse")
    }

    /// The user whose program serves it, if one does. fusermount(1) sets the number, so no user can give another's. A mount
    /// that was made in a user namespace has a number of that namespace.
    #[must_use]
    pub fn server(&self) -> Option<u32> {
        self.server.filter(|_| self.is_fuse())
    }

    /// Whether it shows other file systems one over the other.
    #[must_use]
    pub fn is_overlay(&self) -> bool {
        &*self.kind == "overlay"
    }

    /// Whether another machine or a program serves it.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        REMOTE.iter().any(|name| self.kind.starts_with(name))
    }

    /// Parses `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw`. Names may be any bytes.
    #[must_use]
    pub fn parse_all(bytes: &[u8]) -> HashMap<u64, Mount> {
        let mount = |line: &[u8]| {
            let mut fields = line.split(|&byte| byte == b' ');
            let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
            let (device, root) = (fields.nth(1)?, fields.next()?);
            let mut about_system = fields.skip_while(|field| *field != b"-").skip(1);
            let kind = String::from_utf8_lossy(about_system.next()?).into();
            let options = about_system.nth(1).unwrap_or_default();
            let server = options.split(|&byte| byte == b',').find_map(|option| option.strip_prefix(b"user_id="));
            let server = server.and_then(|uid| str::from_utf8(uid).ok()?.parse().ok());
            Some((id, Mount { shows: (device.into(), root.into()), kind, server }))
        };
        bytes.split(|&byte| byte == b'\n').filter_map(mount).collect()
    }
}

/// The mount that an open file is in; `None` where the kernel does not say. Asks no server.
#[must_use]
pub fn mount_id(file: impl AsFd) -> Option<u64> {
    mount_and_device(file).map(|(id, _)| id)
}

/// The same, and the major number of the file's device.
pub(crate) fn mount_and_device(file: impl AsFd) -> Option<(u64, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(file, c"", flags, StatxFlags::MNT_ID).ok()?;
    let has_id = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::MNT_ID);
    has_id.then_some((found.stx_mnt_id, found.stx_dev_major))
}

/// The mounts that a process sees, as they are now.
#[derive(Debug)]
pub struct MountTable {
    file: File,
    /// Empty until read.
    mounts: HashMap<u64, Mount>,
    shown: HashSet<Shown>,
}

impl MountTable {
    /// Reads a table; `None` if it cannot be opened.
    #[must_use]
    pub fn open(path: &str) -> Option<MountTable> {
        let file = File::open(Path::new(path)).ok()?;
        let mut table = MountTable { file, mounts: HashMap::new(), shown: HashSet::new() };
        table.read();
        Some(table)
    }

    /// The mount with a number.
    pub fn get(&mut self, id: u64) -> Option<Mount> {
        // The kernel reports changes since the last call; the ids of mounts are reused.
        let mut changed = [PollFd::new(self.file.as_fd(), PollFlags::POLLPRI)];
        let is_same = matches!(poll(&mut changed, PollTimeout::ZERO), Ok(0));
        if !is_same {
            self.read();
        }
        self.mounts.get(&id).cloned()
    }

    /// Whether one of them, when it was read last, shows the same as this one.
    #[must_use]
    pub fn shows(&self, mount: &Mount) -> bool {
        self.shown.contains(&mount.shows)
    }

    fn read(&mut self) {
        let mut bytes = Vec::new();
        let read =
            self.file.seek(SeekFrom::Start(0)).and_then(|_| (&self.file).take(MAX_TABLE_BYTES).read_to_end(&mut bytes));
        self.mounts = if read.is_ok() { Mount::parse_all(&bytes) } else { HashMap::new() };
        self.shown = self.mounts.values().map(|mount| mount.shows.clone()).collect();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed() {
        let table = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,user_id=5\nx\n\
            40 36 0:31 / /h rw - fuse.sshfs a@b: rw,user_id=1000,group_id=5\n\
            41 36 0:32 / /n rw shared:2 propagate_from:1 - nfs4 h:/ rw\n42 36 8:1\n";
        let mounts = Mount::parse_all(table);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[&36].shows, (b"98:0".as_slice().into(), b"/mnt1".as_slice().into()));
        let kinds = [36, 40, 41].map(|id| (mounts[&id].is_fuse(), mounts[&id].is_remote(), mounts[&id].server()));
        assert_eq!(kinds, [(false, false, None), (true, true, Some(1000)), (false, true, None)]);
        let own = MountTable::open("/proc/self/mountinfo").unwrap();
        assert!(own.mounts.len() >= own.shown.len() && !own.shown.is_empty());
    }
}
