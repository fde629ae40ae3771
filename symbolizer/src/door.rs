//! The one door through which files are opened for a session.
//!
//! Whoever serves others may read more than they may. What a user's session shows of a file he must be able to read himself:
//! his target chooses the paths, and what is mounted, linked or renamed to where they lead. So a [`Door`] for a user asks of
//! each file whether he could open it, and takes what it cannot tell for no.
//!
//! # What it asks
//!
//! - Of the file that is open, never of its path: its mode, and its owner by the host's user ids, as `fstat` gives them to this
//!   process. His own files he may read if their mode lets their owner; other files, if it lets both their group and all
//!   others. A group alone is not enough, as an access control list may hide behind its bits, and neither are all others,
//!   as he may be in that group. Where there is such a list, which may name him, nothing is certain that is not his own.
//! - Of every directory on the way, likewise, whether he may search it, before a name is looked up in it. Links are followed
//!   here, one step at a time, so that the door is never inside a directory that he cannot enter, and what it says of a
//!   path is what the kernel would tell him.
//! - That the file is no part of a file system such as /proc, where what is read depends on who has opened it.
//!
//! What the kernel proves to be mapped or executed by a process that he may trace is in his hands already, wherever it is:
//! there the file alone is asked ([`Door::follow`]).

use std::collections::BTreeSet;
use std::ffi::{CStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, readlinkat};
use nix::sys::stat::Mode;
use nix::sys::statfs::{
    BPF_FS_MAGIC, CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC, FsType, NSFS_MAGIC, PROC_SUPER_MAGIC,
    SECURITYFS_MAGIC, SYSFS_MAGIC, TRACEFS_MAGIC, fstatfs,
};
use serde::{Deserialize, Serialize};

use crate::root::{Root, check_path, open_regular};

/// Symbolic links followed on one path, as many as the kernel follows.
const MAX_LINKS: usize = 40;
/// Names looked up on one path, links' included.
const MAX_STEPS: usize = 4096;
/// Files that are named as withheld; further ones are counted.
const MAX_NAMED: usize = 8;
/// File systems whose files show each reader something else.
const BY_READER: [FsType; 9] = [
    PROC_SUPER_MAGIC,
    SYSFS_MAGIC,
    DEBUGFS_MAGIC,
    TRACEFS_MAGIC,
    SECURITYFS_MAGIC,
    BPF_FS_MAGIC,
    CGROUP_SUPER_MAGIC,
    CGROUP2_SUPER_MAGIC,
    NSFS_MAGIC,
];

/// The extended attribute that is a file's access control list; see acl(5).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";

/// A user who may not see all that this process may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl ForUser {
    /// Whether something lets this user for certain do `what` with it: 4 for reading, 1 for searching a directory.
    fn may(self, file: &File, meta: &Metadata, what: u32) -> bool {
        let of = |shift: u32| meta.mode() >> shift & what == what;
        match meta.uid() == self.uid {
            true => of(6),
            false => of(0) && of(3) && !may_have_list(file),
        }
    }
}

/// Opens files for one principal. Clones share what is noted.
#[derive(Clone, Debug, Default)]
pub struct Door {
    /// `None` for whom everything that this process may.
    user: Option<ForUser>,
    withheld: Arc<Mutex<Withheld>>,
}

/// What a user was refused.
#[derive(Debug, Default)]
struct Withheld {
    named: BTreeSet<String>,
    more: bool,
}

impl Door {
    /// For a user who may do less than this process. (`Door::default()` is for whom may do the same.)
    #[must_use]
    pub fn of(user: ForUser) -> Door {
        Door { user: Some(user), ..Door::default() }
    }

    /// Who has to be allowed to read what is opened, if that is anybody in particular.
    #[must_use]
    pub fn user(&self) -> Option<ForUser> {
        self.user
    }

    /// Opens a regular file for reading, given its absolute path inside a root. What the user may not read is noted.
    ///
    /// # Errors
    /// Those of opening; `InvalidFilename` for a relative path, `InvalidInput` for what is no regular file,
    /// `PermissionDenied` for what the user may not read.
    pub fn open(&self, root: &Root, path: &Path) -> io::Result<File> {
        let opened = self.open_if(root, path, |_| true);
        if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            self.withhold(&path.display().to_string());
        }
        opened
    }

    /// The same if it is `wanted`, which is asked before it is opened. Nothing is noted.
    ///
    /// # Errors
    /// The same; `NotFound` for what is not wanted.
    pub fn open_if(&self, root: &Root, path: &Path, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        check_path(path)?;
        let handle = match self.user {
            Some(user) => walk_for(user, root, path)?,
            None => root.find(path)?,
        };
        self.open_handle(handle, wanted)
    }

    /// Opens the file that a link of /proc is for (`exe`, `map_files/...`), if it is `wanted`. It may have no path: the file
    /// alone says whether the user may read it.
    ///
    /// # Errors
    /// As [`Door::open_if`].
    pub fn follow(&self, link: &Path, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        self.open_handle(open(link, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?, wanted)
    }

    /// A directory inside a root, as a root of its own, which the user can enter: paths in it do not lead out. It is held,
    /// whatever becomes of what was mounted there.
    ///
    /// # Errors
    /// Those of opening a directory.
    pub fn below(&self, root: &Root, path: &Path) -> io::Result<Root> {
        check_path(path)?;
        let handle = match self.user {
            Some(user) => walk_for(user, root, path)?,
            None => root.find(path)?,
        };
        match File::from(handle.try_clone()?).metadata()?.is_dir() {
            true => Ok(Root::Other(Arc::new(handle))),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn open_handle(&self, handle: OwnedFd, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        open_regular(handle, |file, meta| {
            if !wanted(meta) {
                return Err(io::ErrorKind::NotFound.into());
            }
            match self.user {
                Some(user) if !user.may(file, meta, 4) || shows_by_reader(file)? => {
                    Err(io::ErrorKind::PermissionDenied.into())
                }
                _ => Ok(()),
            }
        })
    }

    /// Notes something that is kept from the user.
    pub fn withhold(&self, what: &str) {
        if self.user.is_none() {
            return;
        }
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        if withheld.named.len() < MAX_NAMED {
            withheld.named.insert(what.to_owned());
        } else if !withheld.named.contains(what) {
            withheld.more = true;
        }
    }

    /// What was kept from the user, a line each.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let Some(ForUser { uid, .. }) = self.user else { return Vec::new() };
        let withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        let named = withheld.named.iter().map(|what| format!("withheld, as user {uid} could not read it: {what}"));
        named
            .chain(withheld.more.then(|| format!("withheld, as user {uid} could not read them: further files")))
            .collect()
    }
}

/// Whether something (O_PATH) has an access control list beside its mode, as far as can be told.
fn may_have_list(file: &File) -> bool {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    // Of no size: what is in it is not asked.
    let list = rustix::fs::getxattr(path, ACCESS_LIST, &mut [0u8; 0]);
    !matches!(list, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP))
}

/// Whether something is in a file system that shows each reader something else.
fn shows_by_reader(file: &File) -> io::Result<bool> {
    Ok(BY_READER.contains(&fstatfs(file)?.filesystem_type()))
}

/// What an absolute path leads to inside a root (O_PATH), if a user may search every directory on the way. Links that are
/// absolute begin at the root, and `..` ends there.
fn walk_for(user: ForUser, root: &Root, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // The directories from the root to where the walk is, and the names to come, the next one last.
    let mut directories = vec![File::from(root.directory()?)];
    let mut names: Vec<OsString> = Vec::new();
    push_names(&mut names, path);
    let mut links = 0;
    for _ in 0..MAX_STEPS {
        let directory = directories.last().ok_or(Errno::ENOENT)?;
        let Some(name) = names.pop() else { return Ok(directory.try_clone()?.into()) };
        let meta = directory.metadata()?;
        if !meta.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        if !user.may(directory, &meta, 1) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if name == ".." {
            if directories.len() > 1 {
                directories.pop();
            }
            continue;
        }
        let next = File::from(openat(directory, name.as_os_str(), flags, Mode::empty())?);
        if !next.metadata()?.is_symlink() {
            directories.push(next);
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        // What /proc links to is each reader's own, or may be known only to whom may trace a process.
        if shows_by_reader(&next)? {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let to = PathBuf::from(readlinkat(&next, "")?);
        if to.is_absolute() {
            directories.truncate(1);
        }
        push_names(&mut names, &to);
    }
    Err(Errno::ELOOP.into())
}

/// Puts the names of a path before those to come.
fn push_names(names: &mut Vec<OsString>, path: &Path) {
    names.extend(path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{self, Permissions};
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn text(file: io::Result<File>) -> Option<String> {
        let mut text = String::new();
        file.ok()?.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// Somebody else than who runs this, and who does.
    fn users(directory: &Path) -> (ForUser, ForUser) {
        let own = fs::metadata(directory).unwrap();
        (ForUser { uid: own.uid() + 1, gid: own.gid() + 1 }, ForUser { uid: own.uid(), gid: own.gid() })
    }

    #[test]
    fn a_user_gets_what_he_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &str, mode| fs::set_permissions(dir.path().join(path), Permissions::from_mode(mode)).unwrap();
        for directory in ["open", "closed", "closed/deep"] {
            fs::create_dir(dir.path().join(directory)).unwrap();
            fs::write(dir.path().join(directory).join("file"), directory).unwrap();
        }
        fs::write(dir.path().join("open/private"), "private").unwrap();
        let links = [
            ("../closed/deep/file", "link"),
            ("../closed/deep", "directory"),
            ("file", "good"),
            ("loop", "loop"),
            ("../closed/deep/../../open/file", "through"),
            ("../open/./good", "twice"),
        ];
        for (to, name) in links {
            symlink(to, dir.path().join("open").join(name)).unwrap();
        }
        for path in ["", "open", "closed/deep"] {
            set(path, 0o755);
        }
        for path in ["open/file", "closed/file", "closed/deep/file"] {
            set(path, 0o644);
        }
        set("closed", 0o700);
        set("open/private", 0o600);
        let (stranger, own) = users(dir.path());
        for root in [Root::Own, Root::at(Path::new("/")).unwrap()] {
            let read = |user, path: &str| text(Door::of(user).open(&root, &dir.path().join(path)));
            for path in ["open/file", "open/good", "open/twice", "open/../open/file"] {
                assert_eq!(read(stranger, path).as_deref(), Some("open"), "{path}");
            }
            for path in [
                "open/private",
                "closed/file",
                "closed/deep/file",
                "open/link",
                "open/directory/file",
                "open/loop",
                "open/through",
                "closed/../open/file",
                "open/file/../file",
            ] {
                assert_eq!(read(stranger, path), None, "{path}");
            }
            assert_eq!(read(own, "open/private").as_deref(), Some("private"));
            assert_eq!(read(own, "open/link").as_deref(), Some("closed/deep"));
            for path in ["/", "a"] {
                assert!(Door::of(stranger).open(&root, Path::new(path)).is_err());
            }
        }
        assert!(Door::of(stranger).below(&Root::Own, &dir.path().join("closed/deep")).is_err());
        let open = Door::of(stranger).below(&Root::Own, &dir.path().join("open")).unwrap();
        assert_eq!(text(Door::of(stranger).open(&open, Path::new("/good"))).as_deref(), Some("open"));
        assert!(Door::of(stranger).open(&open, Path::new("/link")).is_err(), "it leads out");
        // What may be his group's alone, or all others' but his group's, is not certain to be his.
        for (mode, readable) in [(0o640, false), (0o604, false), (0o444, true), (0o044, true), (0o400, false)] {
            set("open/file", mode);
            assert_eq!(
                Door::of(stranger).open(&Root::Own, &dir.path().join("open/file")).is_ok(),
                readable,
                "{mode:o}"
            );
        }
        // Neither has the owner what all others have.
        set("open/file", 0o044);
        assert!(Door::of(own).open(&Root::Own, &dir.path().join("open/file")).is_err());
    }

    #[test]
    fn what_is_hidden_is_not_told_from_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        fs::write(dir.path().join("there"), "").unwrap();
        let (stranger, _) = users(dir.path());
        let kind = |name: &str| Door::of(stranger).open(&Root::Own, &dir.path().join(name)).unwrap_err().kind();
        assert_eq!(kind("there"), io::ErrorKind::PermissionDenied);
        assert_eq!((kind("there"), kind("there")), (kind("not"), kind("not/there")));
    }

    #[test]
    fn a_file_that_shows_each_reader_something_else_is_nobody_s() {
        let door = Door::of(ForUser { uid: u32::MAX - 1, gid: u32::MAX - 1 });
        assert!(door.open(&Root::Own, Path::new("/proc/kallsyms")).is_err());
        assert!(door.follow(Path::new("/proc/kallsyms"), |_| true).is_err());
        assert!(door.open(&Root::Own, Path::new("/proc/version")).is_err());
        // A link of /proc is no way around the directories before it.
        assert!(door.open(&Root::Own, Path::new("/proc/self/root/etc/passwd")).is_err());
        assert!(Door::default().open(&Root::Own, Path::new("/proc/version")).is_ok());
    }

    #[test]
    fn a_link_of_proc_leads_to_the_file_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "text").unwrap();
        let (stranger, own) = users(dir.path());
        let file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let link = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        for (mode, user, readable) in [(0o644, stranger, true), (0o640, stranger, false), (0o600, own, true)] {
            file.set_permissions(Permissions::from_mode(mode)).unwrap();
            assert_eq!(Door::of(user).follow(&link, |_| true).is_ok(), readable, "{mode:o}");
        }
        assert!(Door::of(own).follow(&link, |_| false).is_err());
        assert!(Door::default().follow(Path::new("/dev/null"), |_| true).is_err());
    }

    #[test]
    fn what_is_withheld_is_noted_within_bounds() {
        let everybody = Door::default();
        everybody.withhold("a");
        assert!(everybody.notes().is_empty());
        let door = Door::of(ForUser { uid: 7, gid: 7 });
        assert!(door.notes().is_empty());
        for name in 0..100 {
            door.clone().withhold(&format!("/{name}"));
        }
        let notes = door.notes();
        assert_eq!(notes.len(), MAX_NAMED + 1);
        assert!(notes.iter().all(|note| note.starts_with("withheld, as user 7 could not read")), "{notes:?}");
    }
}
