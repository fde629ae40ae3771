//! Opening regular files in a file system that a profiled program sees.
//!
//! Paths come from images, so from whoever made them, and the reader may be root. Two things must not happen: that
//! a path in another root leads out of it (a symbolic link that is absolute there), and that anything but a regular
//! file is opened, which may wait for ever (a FIFO) or do something (a device). So a file is first opened with O_PATH,
//! which does nothing to it, is looked at, and only then opened for reading.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat, openat2};
use nix::sys::stat::Mode;

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

    /// The directory itself (O_PATH).
    pub(crate) fn directory(&self) -> io::Result<OwnedFd> {
        match self {
            Root::Own => {
                let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
                Ok(open("/", flags, Mode::empty())?)
            }
            Root::Other(root) => root.try_clone(),
        }
    }

    /// What an absolute path leads to, to be looked at (O_PATH), with the rights of this process.
    pub(crate) fn find(&self, path: &Path) -> io::Result<OwnedFd> {
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

/// Refuses paths that are relative or too long.
pub(crate) fn check_path(path: &Path) -> io::Result<()> {
    // A relative one, as of an image that is in no file, would start where this process happens to be.
    match path.is_absolute() && path.as_os_str().len() <= crate::limits::MAX_PATH {
        true => Ok(()),
        false => Err(io::ErrorKind::InvalidFilename.into()),
    }
}

/// Opens for reading what a handle (O_PATH) is for, if `admit` lets it. Nothing but a regular file is opened.
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
    use crate::door::Door;
    use std::io::Read;
    use std::os::unix::fs::symlink;

    fn text(file: io::Result<File>) -> Option<String> {
        let mut text = String::new();
        file.ok()?.read_to_string(&mut text).ok()?;
        Some(text)
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
        let open = |path: &str| text(Door::default().open(&root, Path::new(path)));
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
                assert!(Door::default().open(&root, &at(name)).is_err(), "{name}");
            }
        }
        assert!(Door::default().open(&Root::Own, Path::new("/dev/null")).is_err());
        assert!(Door::default().open(&Root::Own, Path::new("/proc/self/exe")).is_ok());
        assert!(Door::default().open(&Root::Own, Path::new("Cargo.toml")).is_err(), "it is there, but relative");
    }
}
