//! Opens only files that a session's user could open.
//!
//! The daemon may read more than its users, and the target chooses paths, mounts and links. A [`Door`] for a user opens
//! a file only if the user certainly could.
//!
//! # Checks
//!
//! - The file: mode and owner by `fstat` of the open handle, with the host's ids. The owner needs the owner's
//!   permission; another user both the group's and the others', as group membership is not known here. A file with an
//!   access control list is refused to all but its owner, as the list may exclude a user.
//! - Every directory on the path must be searchable by the user. Symbolic links are followed here, step by step.
//! - The file system: not /proc and similar ones, whose content depends on the process that opens it. This door is closed to
//!   root, too: a stranger's link must not have the service take lines from `/proc/kmsg`. Nor one that a program of another
//!   user serves (FUSE): each use of a file there, closing it included, may take that program for ever.
//!
//! A file that the kernel shows as mapped or executed by a process that the user may trace is checked without
//! directories ([`Door::follow`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
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
use nix::unistd::{Group, User, geteuid};
use serde::{Deserialize, Serialize};

use crate::mounts::{MountTable, mount_and_device};
use crate::root::{FileRoot, check_path, open_regular};

const MAX_LINKS: usize = 40;
/// Maximum names looked up for one path, including those in links.
const MAX_STEPS: usize = 4096;
const MAX_NAMED: usize = 8;
/// The extended attribute of a file's access control list, if it says more than the mode (acl(5)).
const ACL: &str = "system.posix_acl_access";
/// File systems whose files differ by reader.
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

/// A user with fewer rights than this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl ForUser {
    /// A user of whom nothing is known: what he may read, everybody may.
    pub const ANYBODY: ForUser = ForUser { uid: u32::MAX - 1, gid: u32::MAX - 1 };

    /// Whether this user may certainly access an open file: `what` is 4 for reading, 1 for searching a directory.
    fn may(self, file: &File, meta: &Metadata, what: u32) -> bool {
        let of = |shift: u32| meta.mode() >> shift & what == what;
        match meta.uid() == self.uid && self != ForUser::ANYBODY {
            true => of(6),
            false => of(0) && of(3) && !may_have_acl(file),
        }
    }
}

/// Whether the file may have an access control list beside its mode.
fn may_have_acl(file: &File) -> bool {
    // Attributes of an O_PATH handle are accessible only by its path in /proc.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let found = rustix::fs::getxattr(path, ACL, &mut [0u8; 0]);
    !matches!(found, Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP))
}

/// Opens files for one principal. Clones share their notes.
#[derive(Clone, Debug, Default)]
pub struct Door {
    user: Option<ForUser>,
    withheld: Arc<Mutex<Withheld>>,
    /// Of this process; not read before they are needed.
    mounts: Arc<Mutex<Option<MountTable>>>,
}

#[derive(Debug, Default)]
struct Withheld {
    named: BTreeSet<String>,
    more: bool,
    /// Users whose programs serve files that were not opened.
    servers: BTreeSet<u32>,
}

impl Door {
    /// A door for a user with fewer rights than this process. (`Door::default()` checks nothing.)
    #[must_use]
    pub fn of(user: ForUser) -> Door {
        Door { user: Some(user), ..Door::default() }
    }

    /// The user who must be able to read the files, if restricted.
    #[must_use]
    pub fn user(&self) -> Option<ForUser> {
        self.user
    }

    /// Opens a regular file at an absolute path inside a root for reading. Notes files that the user may not read.
    ///
    /// # Errors
    /// Those of opening; `InvalidFilename` (relative path), `InvalidInput` (other kinds of files), `PermissionDenied`,
    /// `Unsupported` (a program of another user serves it).
    pub fn open(&self, root: &FileRoot, path: &Path) -> io::Result<File> {
        let opened = self.open_if(root, path, |_| true);
        if opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            self.withhold(&path.display().to_string());
        }
        opened
    }

    /// As [`Door::open`], if the file is `wanted`, which is checked before opening it. Notes nothing.
    ///
    /// # Errors
    /// As [`Door::open`]; `NotFound` for an unwanted file.
    pub fn open_if(&self, root: &FileRoot, path: &Path, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        check_path(path)?;
        let handle = match self.user {
            Some(user) => walk_for(user, root, path)?,
            None => root.find(path)?,
        };
        self.open_handle(handle, wanted)
    }

    /// As [`Door::open_if`] a file of this name in a directory, no link.
    ///
    /// # Errors
    /// As [`Door::open`]; `InvalidInput` for a link.
    pub fn open_entry(&self, directory: &FileRoot, name: &str) -> io::Result<File> {
        if let (Some(user), FileRoot::Other(handle)) = (self.user, directory) {
            let directory = File::from(handle.try_clone()?);
            if !user.may(&directory, &directory.metadata()?, 1) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        self.open_handle(directory.entry(name)?, |_| true)
    }

    /// Opens the target of a link in /proc (`exe`, `map_files/...`) if it is `wanted`. Only the file itself is checked:
    /// it may no longer have a path.
    ///
    /// # Errors
    /// As [`Door::open_if`].
    pub fn follow(&self, link: &Path, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        self.open_handle(open(link, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?, wanted)
    }

    /// Opens a directory inside a root as a root, if the user can enter it. Stays valid when the mount is removed.
    ///
    /// # Errors
    /// Those of opening a directory.
    pub fn below(&self, root: &FileRoot, path: &Path) -> io::Result<FileRoot> {
        check_path(path)?;
        let handle = match self.user {
            Some(user) => walk_for(user, root, path)?,
            None => root.find(path)?,
        };
        match File::from(handle.try_clone()?).metadata()?.is_dir() {
            true => Ok(FileRoot::Other(Arc::new(handle))),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn open_handle(&self, handle: OwnedFd, wanted: impl FnOnce(&Metadata) -> bool) -> io::Result<File> {
        // Before anything of it is asked.
        if self.is_served_by_another(&handle) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        open_regular(handle, |file, meta| {
            if !wanted(meta) {
                return Err(io::ErrorKind::NotFound.into());
            }
            // Reading /proc/kmsg or trace_pipe takes from others what is read.
            let is_of_reader = match self.user {
                Some(_) => shows_by_reader(file)?,
                // One that does not say what it is, is none of the kernel's.
                None => shows_by_reader(file).unwrap_or(false),
            };
            if is_of_reader || self.user.is_some_and(|user| !user.may(file, meta, 4)) {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            Ok(())
        })
    }

    /// Whether a program serves the file that is neither root's, nor this process's user's, nor the door's user's.
    fn is_served_by_another(&self, handle: &OwnedFd) -> bool {
        // What users may mount is on no device.
        let Some((id, 0)) = mount_and_device(handle) else { return false };
        let mut mounts = self.mounts.lock().unwrap_or_else(PoisonError::into_inner);
        if mounts.is_none() {
            *mounts = MountTable::open("/proc/self/mountinfo");
        }
        let mount = mounts.as_mut().and_then(|mounts| mounts.get(id));
        drop(mounts);
        let own = [Some(0), Some(geteuid().as_raw()), self.user.map(|user| user.uid)];
        let other = mount.and_then(|mount| mount.server()).filter(|&server| !own.contains(&Some(server)));
        if let Some(other) = other {
            let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
            if withheld.servers.len() < MAX_NAMED {
                withheld.servers.insert(other);
            }
        }
        other.is_some()
    }

    /// Notes something withheld from the user.
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

    /// One line for each thing withheld from the user, and for each user whose programs serve files.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        let mut notes: Vec<String> = Vec::new();
        for uid in &withheld.servers {
            notes.push(format!("files that a program of user {uid} serves (FUSE) are not opened: it may never answer"));
        }
        let Some(ForUser { uid, .. }) = self.user else { return notes };
        let named = withheld.named.iter().map(|what| format!("withheld, as user {uid} could not read it: {what}"));
        notes.extend(named);
        notes.extend(withheld.more.then(|| format!("withheld, as user {uid} could not read them: further files")));
        notes
    }
}

fn shows_by_reader(file: &File) -> io::Result<bool> {
    Ok(BY_READER.contains(&fstatfs(file)?.filesystem_type()))
}

/// Who could have put a file at its path, beside root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authors {
    /// These users, ordered by number; none if only root could.
    Users(Vec<ForUser>),
    /// Any user: a folder or the file may be written to by others than its owner.
    Anybody,
}

impl Authors {
    /// Those of the file or folder at an absolute path of this process: the owners of the file, and of the links and
    /// folders that lead to it.
    ///
    /// # Errors
    /// Those of looking it up; `PermissionDenied` for a link of /proc.
    pub fn of(path: &Path) -> io::Result<Authors> {
        check_path(path)?;
        let (mut users, mut is_open) = (BTreeMap::new(), false);
        let mut note = |file: &File, meta: &Metadata| {
            if meta.uid() != 0 {
                users.insert(meta.uid(), ForUser { uid: meta.uid(), gid: meta.gid() });
            }
            // In a sticky directory others cannot remove what is not theirs. The mode of a link says nothing.
            let is_sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
            let others = if is_private_group(file, meta) { 0o002 } else { 0o022 };
            is_open |= meta.mode() & others != 0 && !is_sticky && !meta.is_symlink();
            Ok(())
        };
        let found = File::from(walk(&FileRoot::own(), path, &mut note)?);
        note(&found, &found.metadata()?)?;
        Ok(if is_open { Authors::Anybody } else { Authors::Users(users.into_values().collect()) })
    }
}

/// Whether a file's group is its owner's own, as useradd(8) makes it: of the user's name, without other members. Then what the
/// group may, the owner may. (An access control list shows as the permissions of the group, acl(5).)
fn is_private_group(file: &File, meta: &Metadata) -> bool {
    let is_writable = meta.mode() & 0o020 != 0 && !meta.is_symlink();
    let owner = || User::from_uid(meta.uid().into()).ok().flatten();
    let group = || Group::from_gid(meta.gid().into()).ok().flatten();
    is_writable
        && !may_have_acl(file)
        && owner().zip(group()).is_some_and(|(owner, group)| {
            owner.gid == group.gid && owner.name == group.name && group.mem.iter().all(|member| *member == owner.name)
        })
}

/// Resolves an absolute path inside a root to an O_PATH handle, if a user may search every directory on it. Absolute
/// links and `..` stay inside.
fn walk_for(user: ForUser, root: &FileRoot, path: &Path) -> io::Result<OwnedFd> {
    walk(root, path, &mut |file, meta| match meta.is_dir() && !user.may(file, meta, 1) {
        true => Err(io::ErrorKind::PermissionDenied.into()),
        false => Ok(()),
    })
}

/// Resolves an absolute path inside a root to an O_PATH handle, if every directory that is searched and every link that
/// is followed is admitted.
fn walk(
    root: &FileRoot,
    path: &Path,
    admit: &mut dyn FnMut(&File, &Metadata) -> io::Result<()>,
) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // Directories from the root to the current one, and the remaining names, the next one last.
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
        admit(directory, &meta)?;
        if name == ".." {
            if directories.len() > 1 {
                directories.pop();
            }
            continue;
        }
        let next = File::from(openat(directory, name.as_os_str(), flags, Mode::empty())?);
        let meta = next.metadata()?;
        if !meta.is_symlink() {
            directories.push(next);
            continue;
        }
        admit(&next, &meta)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(Errno::ELOOP.into());
        }
        // Links in /proc differ by reader, or need the right to trace a process.
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

fn push_names(names: &mut Vec<OsString>, path: &Path) {
    names.extend(path.components().rev().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    }));
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs::{self, Permissions};
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    pub(crate) fn text(file: io::Result<File>) -> Option<String> {
        let mut text = String::new();
        file.ok()?.read_to_string(&mut text).ok()?;
        Some(text)
    }

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
        for root in [FileRoot::Own, FileRoot::at(Path::new("/")).unwrap()] {
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
        assert!(Door::of(stranger).below(&FileRoot::Own, &dir.path().join("closed/deep")).is_err());
        let open = Door::of(stranger).below(&FileRoot::Own, &dir.path().join("open")).unwrap();
        assert_eq!(text(Door::of(stranger).open(&open, Path::new("/good"))).as_deref(), Some("open"));
        assert!(Door::of(stranger).open(&open, Path::new("/link")).is_err(), "it leads out");
        // Permissions that only the group has, or all but the group, are not certain.
        for (mode, readable) in [(0o640, false), (0o604, false), (0o444, true), (0o044, true), (0o400, false)] {
            set("open/file", mode);
            assert_eq!(
                Door::of(stranger).open(&FileRoot::Own, &dir.path().join("open/file")).is_ok(),
                readable,
                "{mode:o}"
            );
        }
        // The owner does not have the others' permissions.
        set("open/file", 0o044);
        assert!(Door::of(own).open(&FileRoot::Own, &dir.path().join("open/file")).is_err());
    }

    #[test]
    fn whoever_could_have_put_a_file_there_is_its_author() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let set = |name: &str, mode| fs::set_permissions(at(name), Permissions::from_mode(mode)).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "").unwrap();
        symlink("folder/file", at("link")).unwrap();
        let (_, own) = users(dir.path());
        let users = if own.uid == 0 { Vec::new() } else { vec![own] };
        for (folder, file, name, certain) in [
            (0o755, 0o644, "folder/file", true),
            (0o755, 0o644, "link", true),
            (0o755, 0o646, "link", false),
            (0o757, 0o644, "link", false),
            (0o1777, 0o644, "folder/file", true),
        ] {
            set("folder", folder);
            set("folder/file", file);
            let authors = if certain { Authors::Users(users.clone()) } else { Authors::Anybody };
            assert_eq!(Authors::of(&at(name)).unwrap(), authors, "{folder:o} {file:o} {name}");
        }
        assert!(Authors::of(&at("nothing")).is_err());
        if own.uid == 0 {
            // Root's group is root's own, the other's is not.
            set("folder/file", 0o664);
            assert_eq!(Authors::of(&at("link")).unwrap(), Authors::Users(Vec::new()));
            std::os::unix::fs::chown(at("folder/file"), None, Some(65_534)).unwrap();
            set("folder/file", 0o664);
            assert_eq!(Authors::of(&at("link")).unwrap(), Authors::Anybody);
            set("folder/file", 0o644);
            let stranger = ForUser { uid: 65_534, gid: 65_534 };
            for (name, of) in [("link", &["link"][..]), ("folder", &["link", "folder/file"])] {
                std::os::unix::fs::lchown(at(name), Some(stranger.uid), Some(stranger.gid)).unwrap();
                for path in of {
                    assert_eq!(Authors::of(&at(path)).unwrap(), Authors::Users(vec![stranger]), "{path}");
                }
                std::os::unix::fs::lchown(at(name), Some(0), Some(0)).unwrap();
            }
        }
    }

    #[test]
    fn a_list_that_may_exclude_a_user_by_name_does() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
        for path in ["file", "sub", "sub/file"].map(|name| dir.path().join(name)) {
            if path.ends_with("sub") {
                fs::create_dir(&path).unwrap();
            } else {
                fs::write(&path, "text").unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
        let (stranger, own) = users(dir.path());
        let read = |user, path: &str| text(Door::of(user).open(&FileRoot::Own, &dir.path().join(path)));
        let both = |user| ["file", "sub/file"].map(|path| read(user, path).is_some());
        assert_eq!((both(own), both(stranger)), ([true; 2], [true; 2]));
        // Version 2; tag, permissions and id of owner, user, group, mask and others.
        let entry = |tag: u16, permissions: u16, id: u32| {
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let none = u32::MAX;
        let entries =
            [entry(1, 7, none), entry(2, 0, stranger.uid), entry(4, 5, none), entry(16, 5, none), entry(32, 5, none)];
        let list = [2u32.to_le_bytes().to_vec(), entries.concat()].concat();
        for path in ["file", "sub"].map(|name| dir.path().join(name)) {
            match rustix::fs::setxattr(&path, ACL, &list, rustix::fs::XattrFlags::empty()) {
                Err(rustix::io::Errno::OPNOTSUPP) => return,
                set => set.unwrap(),
            }
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, 0o755, "the mode tells nothing of it");
        }
        assert_eq!((both(own), both(stranger)), ([true; 2], [false; 2]));
    }

    #[test]
    fn hidden_files_look_absent() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        fs::write(dir.path().join("there"), "").unwrap();
        let (stranger, _) = users(dir.path());
        let kind = |name: &str| Door::of(stranger).open(&FileRoot::Own, &dir.path().join(name)).unwrap_err().kind();
        assert_eq!(kind("there"), io::ErrorKind::PermissionDenied);
        assert_eq!((kind("there"), kind("there")), (kind("not"), kind("not/there")));
    }

    #[test]
    fn a_file_that_shows_each_reader_something_else_is_nobody_s() {
        let door = Door::of(ForUser { uid: u32::MAX - 1, gid: u32::MAX - 1 });
        assert!(door.open(&FileRoot::Own, Path::new("/proc/kallsyms")).is_err());
        assert!(door.follow(Path::new("/proc/kallsyms"), |_| true).is_err());
        assert!(door.open(&FileRoot::Own, Path::new("/proc/version")).is_err());
        // Links in /proc do not bypass the checks of directories.
        assert!(door.open(&FileRoot::Own, Path::new("/proc/self/root/etc/passwd")).is_err());
        assert!(Door::default().open(&FileRoot::Own, Path::new("/proc/version")).is_err());
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
    fn an_entry_of_a_directory_is_no_link_and_within_reach() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("file"), "text").unwrap();
        fs::set_permissions(path("file"), Permissions::from_mode(0o644)).unwrap();
        symlink("file", path("link")).unwrap();
        let root = FileRoot::at(dir.path()).unwrap();
        let open = |door: &Door, name: &str| door.open_entry(&root, name).map(|_| ()).map_err(|error| error.kind());
        let (machine, user) = (Door::default(), Door::of(ForUser::ANYBODY));
        for (mode, of_user) in [(0o755, Ok(())), (0o700, Err(io::ErrorKind::PermissionDenied))] {
            fs::set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            assert_eq!((open(&machine, "file"), open(&user, "file")), (Ok(()), of_user), "{mode:o}");
        }
        assert_eq!(open(&machine, "link"), Err(io::ErrorKind::InvalidInput));
        assert_eq!(open(&machine, "."), Err(io::ErrorKind::InvalidInput));
        assert_eq!(open(&machine, "none"), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn withheld_files_are_noted_within_bounds() {
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
