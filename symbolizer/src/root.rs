//! Opens regular files in a profiled program's file system.
//!
//! Paths are untrusted, and the reader may be root. A path must not lead out of its root, and only regular files may be
//! opened: a FIFO may block, a device have effects. So files are opened with O_PATH, checked, and then opened for
//! reading.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2, readlinkat};
use nix::sys::stat::Mode as NixMode;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, statx};

/// A root directory for resolving paths, as for a program with that root.
#[derive(Debug, Clone)]
pub enum FileRoot {
    /// The root of this process.
    Own,
    /// Another root, held open. Its mounts disappear with the last program of its mount namespace.
    Other(Arc<OwnedFd>),
}

/// A path to an open directory.
#[derive(Debug)]
pub struct DirectoryPath {
    path: PathBuf,
    _handle: OwnedFd,
}

impl AsRef<Path> for DirectoryPath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

const MAX_LINKS: usize = 16;

/// Attempts to resolve a path if a concurrent rename makes the kernel return EAGAIN.
const TRIES: usize = 4;

impl FileRoot {
    /// The root of this process.
    #[must_use]
    pub fn own() -> FileRoot {
        FileRoot::Own
    }

    /// The root at `path`, which may be `/proc/PID/root`.
    ///
    /// # Errors
    /// Those of opening a directory.
    pub fn at(path: &Path) -> io::Result<FileRoot> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(FileRoot::Other(Arc::new(open(path, flags, NixMode::empty())?)))
    }

    pub(crate) fn directory(&self) -> io::Result<OwnedFd> {
        match self {
            FileRoot::Own => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                Ok(open("/", flags, NixMode::empty())?)
            }
            FileRoot::Other(root) => root.try_clone(),
        }
    }

    /// A path of this process to a directory inside the root, for as long as what it returns is held.
    ///
    /// # Errors
    /// Those of looking it up.
    pub fn path_of_directory(&self, path: &Path) -> io::Result<DirectoryPath> {
        check_path(path)?;
        let handle = self.find(path)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
        Ok(DirectoryPath { path, _handle: handle })
    }

    /// What has this name in it, a link itself, as an O_PATH handle.
    pub(crate) fn entry(&self, name: &str) -> io::Result<OwnedFd> {
        let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(match self {
            FileRoot::Own => open(&Path::new("/").join(name), flags, NixMode::empty())?,
            FileRoot::Other(root) => openat(root, name, flags, NixMode::empty())?,
        })
    }

    /// Resolves an absolute path to an O_PATH handle, with the rights of this process.
    pub(crate) fn find(&self, path: &Path) -> io::Result<OwnedFd> {
        match self {
            FileRoot::Own => Ok(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, NixMode::empty())?),
            FileRoot::Other(root) => {
                let beneath = path.strip_prefix("/").unwrap_or(path);
                // An empty path is invalid.
                resolve_beneath(root, if beneath.as_os_str().is_empty() { Path::new(".") } else { beneath })
            }
        }
    }
}

/// What identifies a file while it exists. Its creation time distinguishes it from later files with the same inode number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Device and inode.
    pub file: (u32, u32, u64),
    /// Creation time, seconds and nanoseconds, if the file system has one.
    pub born: Option<(i64, u32)>,
    /// Whether it is a regular file.
    pub is_regular: bool,
}

impl FileIdentity {
    /// The file at a path without links on the way, or at a link of /proc, from the kernel's memory: no server is
    /// asked.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    pub fn from_link(link: &Path) -> io::Result<FileIdentity> {
        FileIdentity::read(CWD, link, AtFlags::empty())
    }

    /// The file at an absolute path, if the kernel has all of it in memory: a stranger's path leads to no mount that
    /// hangs. With `follows`, the last name may be a link; one whose time of access would be noted is followed on this
    /// process's root file system.
    ///
    /// # Errors
    /// `WouldBlock` if not all is in memory, or the kernel is older than 5.12; those of `openat2(2)`.
    pub fn at_once(path: &Path, follows: bool) -> io::Result<FileIdentity> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match FileIdentity::in_memory(&path, follows) {
                Err(error) if follows && error.kind() == io::ErrorKind::WouldBlock => {}
                found => return found.map(|(identity, _)| identity),
            }
            let (link, handle) = FileIdentity::in_memory(&path, false)?;
            let root = FileIdentity::from_link(Path::new("/"))?;
            if (link.file.0, link.file.1) != (root.file.0, root.file.1) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let to = readlinkat(&handle, "")?;
            // An absolute path replaces the directory.
            path = path.parent().unwrap_or(Path::new("/")).join(to);
        }
        Err(Errno::ELOOP.into())
    }

    fn in_memory(path: &Path, follows: bool) -> io::Result<(FileIdentity, OwnedFd)> {
        check_path(path)?;
        let flags = OFlags::PATH | OFlags::CLOEXEC | if follows { OFlags::empty() } else { OFlags::NOFOLLOW };
        let handle = match rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => return Err(io::ErrorKind::WouldBlock.into()),
            handle => handle?,
        };
        Ok((FileIdentity::read(&handle, Path::new(""), AtFlags::EMPTY_PATH)?, handle))
    }

    fn read(at: impl std::os::fd::AsFd, path: &Path, flags: AtFlags) -> io::Result<FileIdentity> {
        let wanted = StatxFlags::INO | StatxFlags::TYPE | StatxFlags::BTIME;
        let found = statx(at, path, flags | AtFlags::STATX_DONT_SYNC, wanted)?;
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        Ok(FileIdentity {
            file: (found.stx_dev_major, found.stx_dev_minor, found.stx_ino),
            born: has_birth.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
            is_regular: FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile,
        })
    }
}

pub(crate) fn check_path(path: &Path) -> io::Result<()> {
    // A relative path, as of an image without a file, would start in this process's directory.
    match path.is_absolute() && path.as_os_str().len() <= crate::limits::MAX_PATH {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidFilename.into()),
    }
}

pub(crate) fn open_regular(
    handle: OwnedFd,
    admit: impl FnOnce(&File, &Metadata) -> io::Result<()>,
) -> io::Result<File> {
    let handle = File::from(handle);
    let meta = handle.metadata()?;
    if !meta.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    admit(&handle, &meta)?;
    let same = PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()));
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    Ok(File::from(open(&same, flags, NixMode::empty())?))
}

/// Resolves `path` with `root` as `/` to an O_PATH handle.
fn resolve_beneath(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_IN_ROOT);
    for _ in 0..TRIES {
        match openat2(root, path, how) {
            Err(Errno::EAGAIN) => {}
            // Linux before 5.6, or a system call filter that does not know openat2.
            Err(Errno::ENOSYS | Errno::EPERM) => return walk(root, path),
            result => return Ok(result?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// As [`resolve_beneath`] for kernels without openat2(2): refuses symbolic links and `..`.
fn walk(root: &OwnedFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = root.try_clone()?;
    for component in path.components() {
        match component {
            Component::Normal(name) => at = openat(&at, name, flags, NixMode::empty())?,
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
    use crate::door::Door;
    use crate::door::tests::text;
    use std::os::unix::fs::symlink;

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
        let root = FileRoot::at(dir.path()).unwrap();
        let open = |path: &str| text(Door::default().open(&root, Path::new(path)));
        assert_eq!(open("/usr/lib/file").as_deref(), Some("inside"));
        assert_eq!(open("/lib/file").as_deref(), Some("inside"), "an absolute link starts at the root");
        assert_eq!(open("/a/b/up/file").as_deref(), Some("inside"), "there is nothing above the root");
        assert_eq!(open("/../../usr/lib/file").as_deref(), Some("inside"));
        assert_eq!(open("/out/file"), None);
        assert_eq!(open("/direct"), None);
        // The fallback for old kernels finds paths without links, and nothing outside.
        let FileRoot::Other(handle) = &root else { unreachable!() };
        assert!(walk(handle, Path::new("usr/lib/file")).is_ok());
        for path in ["lib/file", "a/b/up/file", "out/file", "../usr/lib/file"] {
            assert!(walk(handle, Path::new(path)).is_err(), "{path}");
        }
        // A link at the end is not followed: the result is the link itself.
        assert!(!File::from(walk(handle, Path::new("direct")).unwrap()).metadata().unwrap().is_file());
    }

    #[test]
    fn only_regular_files_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        nix::unistd::mkfifo(&dir.path().join("fifo"), NixMode::S_IRUSR | NixMode::S_IWUSR).unwrap();
        std::fs::create_dir(dir.path().join("directory")).unwrap();
        for root in [FileRoot::at(dir.path()).unwrap(), FileRoot::Own] {
            let at = |name: &str| match root {
                FileRoot::Own => dir.path().join(name),
                FileRoot::Other(_) => Path::new("/").join(name),
            };
            for name in ["fifo", "directory", "missing"] {
                assert!(Door::default().open(&root, &at(name)).is_err(), "{name}");
            }
        }
        assert!(Door::default().open(&FileRoot::Own, Path::new("/dev/null")).is_err());
        assert!(Door::default().open(&FileRoot::Own, Path::new("/proc/self/exe")).is_ok());
        assert!(Door::default().open(&FileRoot::Own, Path::new("Cargo.toml")).is_err(), "it is there, but relative");
    }

    #[test]
    fn a_file_is_itself_by_every_way() {
        let exe = std::fs::read_link("/proc/self/exe").unwrap();
        let by_link = FileIdentity::from_link(Path::new("/proc/self/exe")).unwrap();
        assert!(by_link.is_regular);
        assert_eq!(FileIdentity::at_once(&exe, false).unwrap(), by_link);
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        symlink(&exe, &link).unwrap();
        assert_eq!(FileIdentity::at_once(&link, true).unwrap(), by_link);
        assert!(!FileIdentity::at_once(&link, false).unwrap().is_regular);
        assert!(FileIdentity::at_once(Path::new("relative"), true).is_err());
    }
}
