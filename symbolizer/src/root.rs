//! Opening regular files in a file system that a profiled program sees.
//!
//! Paths come from images, so from whoever made them, and the reader may be root. Two things must not happen: that
//! a path in another root leads out of it (a symbolic link that is absolute there), and that anything but a regular
//! file is opened, which may wait for ever (a FIFO) or do something (a device).

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

/// A root directory, under which paths are resolved as for a program that has it as its root.
#[derive(Debug, Clone)]
pub enum Root {
    /// That of this process.
    Own,
    /// Another one, held open. When the last program of its mount namespace is gone, what was mounted in it is too.
    Other(Arc<OwnedFd>),
}

/// How often a path is tried again if something in it was renamed meanwhile, which the kernel says with EAGAIN.
const TRIES: usize = 4;

/// A user who may not see all that this process may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForUser {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

impl ForUser {
    /// Whether the mode of something lets this user do `what` with it: 4 for reading, 1 for searching a directory. Other
    /// groups that he is in, and access control lists, do not count for him.
    fn may(self, meta: &Metadata, what: u32) -> bool {
        let of = |shift: u32| meta.mode() >> shift & what == what;
        match meta.uid() == self.uid {
            true => of(6),
            false => of(0) && (meta.gid() != self.gid || of(3)),
        }
    }
}

/// Symbolic links followed at the end of a path, as many as the kernel follows in all.
const MAX_LINKS: usize = 40;
/// Directories above a file.
const MAX_DEPTH: usize = 2048;

impl Root {
    /// That of this process.
    #[must_use]
    pub fn own() -> Root {
        Root::Own
    }

    /// The root at `path`, which may be `/proc/PID/root`.
    ///
    /// # Errors
    /// Those of opening a directory.
    pub fn at(path: &Path) -> io::Result<Root> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Root::Other(Arc::new(open(path, flags, Mode::empty())?)))
    }

    /// A directory inside this root, as a root of its own: paths in it do not lead out. It is held, whatever becomes of
    /// what was mounted there.
    ///
    /// # Errors
    /// Those of opening a directory.
    pub fn below(&self, path: &Path) -> io::Result<Root> {
        let Root::Other(root) = self else { return Root::at(path) };
        let handle = resolve_beneath(root, path.strip_prefix("/").unwrap_or(path))?;
        match File::from(handle.try_clone()?).metadata()?.is_dir() {
            true => Ok(Root::Other(Arc::new(handle))),
            false => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Opens a regular file for reading, given its absolute path inside this root.
    ///
    /// # Errors
    /// Those of opening; `InvalidFilename` for a relative path, `InvalidInput` for what is no regular file.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        // A relative one, as of an image that is in no file, would start where this process happens to be.
        if !path.is_absolute() || path.as_os_str().len() > crate::limits::MAX_PATH {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        open_regular(&File::from(self.handle(path)?))
    }

    /// The same if a user may do it, too: he may read the file, and search every directory that it is in. Whoever else may do
    /// all does not learn for him what is in files of others.
    ///
    /// # Errors
    /// The same; `PermissionDenied` if he may not.
    pub fn open_for(&self, user: ForUser, path: &Path) -> io::Result<File> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            if !path.is_absolute() || path.as_os_str().len() > crate::limits::MAX_PATH {
                return Err(io::ErrorKind::InvalidFilename.into());
            }
            let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let directory_handle = File::from(self.handle(directory)?);
            let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let handle = File::from(openat(&directory_handle, name, flags, Mode::empty())?);
            if !may_search(user, directory_handle)? {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
            let meta = handle.metadata()?;
            if meta.is_symlink() {
                // Another name for what may be elsewhere, where it is looked at in the same way.
                path = directory.join(readlinkat(&handle, "")?);
                continue;
            }
            return match user.may(&meta, 4) {
                true => open_regular(&handle),
                false => Err(io::ErrorKind::PermissionDenied.into()),
            };
        }
        Err(Errno::ELOOP.into())
    }

    /// Something by its absolute path, to be looked at (O_PATH).
    fn handle(&self, path: &Path) -> io::Result<OwnedFd> {
        match self {
            Root::Own => Ok(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?),
            Root::Other(root) => {
                let beneath = path.strip_prefix("/").unwrap_or(path);
                // An empty path is none.
                resolve_beneath(root, if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath })
            }
        }
    }
}

/// Whether a user may search a directory and all those above it, wherever they are mounted.
fn may_search(user: ForUser, mut directory: File) -> io::Result<bool> {
    for _ in 0..MAX_DEPTH {
        let meta = directory.metadata()?;
        if !user.may(&meta, 1) {
            return Ok(false);
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let above = File::from(openat(&directory, "..", flags, Mode::empty())?);
        let above_meta = above.metadata()?;
        if (above_meta.dev(), above_meta.ino()) == (meta.dev(), meta.ino()) {
            return Ok(true);
        }
        directory = above;
    }
    Ok(false)
}

/// Opens for reading what a handle is for. It reads nothing and does nothing itself; what it is is known before it is opened.
fn open_regular(handle: &File) -> io::Result<File> {
    if !handle.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let same = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(File::from(open(&same, flags, Mode::empty())?))
}

/// A handle (O_PATH) of what `path` leads to from `root`, taken for `/`.
fn resolve_beneath(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    for _ in 0..TRIES {
        match openat2(root, path, how) {
            Err(Errno::EAGAIN) => {}
            // Linux before 5.6, or a filter of system calls that does not know this one.
            Err(Errno::ENOSYS | Errno::EPERM) => return walk(root, path),
            result => return Ok(result?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// As [`resolve_beneath`] for kernels without openat2(2): follows no symbolic link and no `..`, so that it finds less.
fn walk(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = root.try_clone()?;
    for component in path.components() {
        match component {
            Component::Normal(name) => at = openat(&at, name, flags, Mode::empty())?,
            Component::CurDir => {}
            _ => return Err(io::ErrorKind::InvalidInput.into()),
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn text(file: io::Result<File>) -> Option<String> {
        let mut text = String::new();
        file.ok()?.read_to_string(&mut text).ok()?;
        Some(text)
    }

    #[test]
    fn a_user_gets_what_he_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let set = |path: &str, mode| {
            std::fs::set_permissions(dir.path().join(path), std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for directory in ["open", "closed", "closed/deep"] {
            std::fs::create_dir(dir.path().join(directory)).unwrap();
            std::fs::write(dir.path().join(directory).join("file"), directory).unwrap();
        }
        std::fs::write(dir.path().join("open/private"), "private").unwrap();
        symlink("../closed/deep/file", dir.path().join("open/link")).unwrap();
        symlink("../closed/deep", dir.path().join("open/directory")).unwrap();
        symlink("file", dir.path().join("open/good")).unwrap();
        symlink("loop", dir.path().join("open/loop")).unwrap();
        for path in ["", "open", "closed/deep"] {
            set(path, 0o755);
        }
        set("open/file", 0o644);
        set("closed/file", 0o644);
        set("closed/deep/file", 0o644);
        set("closed", 0o700);
        set("open/private", 0o600);
        let own = std::fs::metadata(dir.path()).unwrap();
        // Neither is the one who runs this.
        let (stranger, own) =
            (ForUser { uid: own.uid() + 1, gid: own.gid() + 1 }, ForUser { uid: own.uid(), gid: own.gid() });
        for root in [Root::Own, Root::at(Path::new("/")).unwrap()] {
            let read = |user, path: &str| text(root.open_for(user, &dir.path().join(path)));
            for path in ["open/file", "open/good"] {
                assert_eq!(read(stranger, path).as_deref(), Some("open"), "{path}");
            }
            for path in
                ["open/private", "closed/file", "closed/deep/file", "open/link", "open/directory/file", "open/loop"]
            {
                assert_eq!(read(stranger, path), None, "{path}");
            }
            assert_eq!(read(own, "open/private").as_deref(), Some("private"));
            assert_eq!(read(own, "open/link").as_deref(), Some("closed/deep"));
            assert!(
                root.open_for(stranger, Path::new("/")).is_err() && root.open_for(stranger, Path::new("a")).is_err()
            );
        }
        // A group may have less than all others.
        set("open/file", 0o604);
        let member = ForUser { gid: own.gid, ..stranger };
        assert_eq!(text(Root::Own.open_for(member, &dir.path().join("open/file"))), None);
        assert!(text(Root::Own.open_for(stranger, &dir.path().join("open/file"))).is_some());
    }

    #[test]
    fn links_stay_inside_the_root() {
        let outside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("file"), "outside").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let inside = |path: &str| dir.path().join(path);
        std::fs::create_dir_all(inside("usr/lib")).unwrap();
        std::fs::create_dir_all(inside("a/b")).unwrap();
        std::fs::write(inside("usr/lib/file"), "inside").unwrap();
        symlink("/usr/lib", inside("lib")).unwrap();
        symlink("../../../../../../usr/lib", inside("a/b/up")).unwrap();
        symlink(outside.path(), inside("out")).unwrap();
        symlink(outside.path().join("file"), inside("direct")).unwrap();
        let root = Root::at(dir.path()).unwrap();
        let open = |path: &str| text(root.open(Path::new(path)));
        assert_eq!(open("/usr/lib/file").as_deref(), Some("inside"));
        assert_eq!(open("/lib/file").as_deref(), Some("inside"), "an absolute link starts at the root");
        assert_eq!(open("/a/b/up/file").as_deref(), Some("inside"), "there is nothing above the root");
        assert_eq!(open("/../../usr/lib/file").as_deref(), Some("inside"));
        assert_eq!(open("/out/file"), None);
        assert_eq!(open("/direct"), None);
        // The way for old kernels finds what is there without links, and nothing outside.
        let Root::Other(handle) = &root else { unreachable!() };
        assert!(walk(handle, Path::new("usr/lib/file")).is_ok());
        for path in ["lib/file", "a/b/up/file", "out/file", "../usr/lib/file"] {
            assert!(walk(handle, Path::new(path)).is_err(), "{path}");
        }
        // A link at the end is not followed, so that what was found is a link and not a file.
        assert!(!File::from(walk(handle, Path::new("direct")).unwrap()).metadata().unwrap().is_file());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        for root in [Root::at(dir.path()).unwrap(), Root::Own] {
            let at = |name: &str| match root {
                Root::Own => dir.path().join(name),
                Root::Other(_) => Path::new("/").join(name),
            };
            for name in ["fifo", "directory", "missing"] {
                assert!(root.open(&at(name)).is_err(), "{name}");
            }
        }
        assert!(Root::Own.open(Path::new("/dev/null")).is_err());
        assert!(Root::Own.open(Path::new("/proc/self/exe")).is_ok());
        assert!(Root::Own.open(Path::new("Cargo.toml")).is_err(), "it is there, but relative");
    }
}
