//! Resolves the path of a destination to a name in an open directory, and checks the file of that name.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use ccsd_collector::procfs;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FcntlArg, OFlag, fcntl, openat, readlinkat};
use nix::sys::stat::{Mode, major, minor};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::error::{AllowedContents, DestinationError};
use crate::authority::user_name;

pub(super) const MAX_ATTEMPTS: usize = 8;
const MAX_LINKS: usize = 40;
const MAX_NAMES: u32 = 100;
/// Bytes read from the start of a file to recognise its format.
const START_BYTES: usize = 4096;

/// Whether a user may put anything in the place of this process's files: root, and its own user.
pub(super) fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

pub(super) enum ResolvedPath {
    Name(DirectoryEntry),
    /// A descriptor of a process of the caller.
    Descriptor(File),
}

#[derive(Debug)]
pub(super) struct DirectoryEntry {
    pub(super) directory: OwnedFd,
    pub(super) name: OsString,
    pub(super) path: PathBuf,
}

impl DirectoryEntry {
    pub(super) fn failed(&self, source: io::Error) -> DestinationError {
        DestinationError::Open { path: self.path.clone(), source }
    }

    /// Looks at the file without opening it: opening a device may have effects.
    pub(super) fn existing(&self) -> Result<Option<Metadata>, DestinationError> {
        match look(&self.directory, &self.name) {
            Err(Errno::ENOENT) => Ok(None),
            found => {
                let meta = found.map_err(io::Error::from).and_then(|file| file.metadata());
                meta.map(Some).map_err(|source| self.failed(source))
            }
        }
    }

    pub(super) fn check_still(&self, file: &File) -> Result<Metadata, DestinationError> {
        let meta = file.metadata().map_err(|source| self.failed(source))?;
        let is_here = self.existing()?.is_some_and(|found| is_same(file, &found));
        if is_here && meta.nlink() == 1 && meta.uid() == geteuid().as_raw() {
            Ok(meta)
        } else {
            Err(DestinationError::Displaced { path: self.path.clone() })
        }
    }

    /// Checks type, owner and hard links of a file that will be written in place, or `replaced`.
    pub(super) fn admit(&self, meta: &Metadata, replaced: bool) -> Result<(), DestinationError> {
        let path = || self.path.clone();
        let kind = meta.file_type();
        let refused = |kind| Err(DestinationError::NotAFile { path: path(), kind });
        match () {
            () if kind.is_symlink() => return Err(DestinationError::Changed { path: path() }),
            () if kind.is_dir() => return refused("a directory"),
            () if kind.is_socket() => return refused("a socket"),
            () if kind.is_block_device() => return refused("a disk"),
            () if kind.is_fifo() && !replaced => return refused("a FIFO"),
            () => {}
        }
        if !is_trusted(meta.uid()) {
            return Err(DestinationError::Stranger { path: path(), owner: meta.uid() });
        }
        if kind.is_file() && meta.nlink() > 1 {
            let directory = self.directory.try_clone().and_then(|fd| File::from(fd).metadata());
            let directory = directory.map_err(|source| self.failed(source))?;
            if !is_trusted(directory.uid()) || directory.mode() & 0o022 != 0 {
                return Err(DestinationError::Linked { path: path(), names: meta.nlink() });
            }
        }
        Ok(())
    }

    /// Checks an existing file before it is written in place or `replaced`. Without `contents`, any regular file may be
    /// replaced.
    pub(super) fn check(
        &self,
        contents: Option<AllowedContents>,
        replaced: bool,
    ) -> Result<Option<Metadata>, DestinationError> {
        for _ in 0..MAX_ATTEMPTS {
            let Some(meta) = self.existing()? else { return Ok(None) };
            if !meta.is_file() {
                self.admit(&meta, replaced)?;
                return Ok(Some(meta));
            }
            let Some(contents) = contents else { return Ok(Some(meta)) };
            self.admit(&meta, replaced)?;
            let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let file = match openat(&self.directory, self.name.as_os_str(), flags, Mode::empty()) {
                Ok(fd) => File::from(fd),
                Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => continue,
                // The contents cannot be read; whether the file can be written is checked elsewhere.
                Err(Errno::EACCES) if meta.len() == 0 => return Ok(Some(meta)),
                Err(error) => return Err(self.failed(error.into())),
            };
            if !is_same(&file, &meta) {
                continue;
            }
            self.check_contents(&file, contents)?;
            if replaced {
                self.lock(&file)?;
            }
            return Ok(Some(meta));
        }
        Err(DestinationError::Changed { path: self.path.clone() })
    }

    pub(super) fn check_contents(&self, file: &File, contents: AllowedContents) -> Result<(), DestinationError> {
        let mut start = [0; START_BYTES];
        let read = file.read_at(&mut start, 0).map_err(|source| self.failed(source))?;
        if read == 0 || (contents.known)(start.get(..read).unwrap_or_default()) {
            return Ok(());
        }
        Err(DestinationError::Foreign { path: self.path.clone(), contents })
    }

    /// Opens the file that was looked at for writing. `None` if the name now refers to another file.
    pub(super) fn open_existing(&self, meta: &Metadata) -> Result<Option<File>, DestinationError> {
        let kind = meta.file_type();
        let flags = match () {
            () if kind.is_file() => OFlag::O_RDWR | OFlag::O_NONBLOCK,
            // Blocks until the FIFO has a reader.
            () if kind.is_fifo() => OFlag::O_WRONLY,
            () => OFlag::O_WRONLY | OFlag::O_NONBLOCK,
        };
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, self.name.as_os_str(), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT | Errno::ELOOP) => return Ok(None),
            // A FIFO or a socket has taken the name, or the device does not exist.
            Err(Errno::ENXIO) if !self.existing()?.is_some_and(|now| is_same_file(&now, meta)) => return Ok(None),
            Err(error) => return Err(self.failed(error.into())),
        };
        if !is_same(&file, meta) {
            return Ok(None);
        }
        // Links and owner may have changed since the look.
        let now = file.metadata().map_err(|source| self.failed(source))?;
        self.admit(&now, kind.is_fifo())?;
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).map_err(|error| self.failed(error.into()))?;
        Ok(Some(file))
    }

    pub(super) fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.directory, name, flags, Mode::from_bits_truncate(mode))?))
    }

    pub(super) fn create_beside(&self, mode: u32) -> io::Result<(OsString, File)> {
        for number in 0..MAX_NAMES {
            // Not derived from the file's name, which may already have the maximum length.
            let name = OsString::from(format!(".ccsd-{}-{number}", std::process::id()));
            match self.create(&name, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return file.map(|file| (name, file)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn lock(&self, file: &File) -> Result<LockOutcome, DestinationError> {
        match file.try_lock() {
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(LockOutcome::Own),
            Err(TryLockError::WouldBlock) if is_locked_by_stranger(file) => Ok(LockOutcome::Stranger),
            Err(TryLockError::WouldBlock) => Err(DestinationError::Busy { path: self.path.clone() }),
        }
    }

    /// A new file in place of one that others hold open.
    pub(super) fn create_anew(&self, meta: &Metadata) -> Result<File, DestinationError> {
        unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir)
            .map_err(|error| self.failed(error.into()))?;
        self.create(&self.name, meta.mode() & 0o777).map_err(|source| self.failed(source))
    }
}

/// Who holds the lock on a file. A lock needs no more than the right to read: a stranger's does not mean that he writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockOutcome {
    Own,
    Stranger,
}

/// Whether the lock on a file is that of a process of somebody who may not write it: `/proc/locks`, see proc_locks(5).
fn is_locked_by_stranger(file: &File) -> bool {
    let (Ok(meta), Ok(locks)) = (file.metadata(), std::fs::read_to_string("/proc/locks")) else { return false };
    let name = format!("{:02x}:{:02x}:{}", major(meta.dev()), minor(meta.dev()), meta.ino());
    let holders = locks.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        // 7: FLOCK ADVISORY WRITE 1234 fd:01:5678 0 EOF; who waits for one has an arrow before the kind.
        match words.as_slice() {
            [_, "FLOCK", _, _, pid, of, ..] if *of == name => pid.parse::<u32>().ok(),
            _ => None,
        }
    });
    let users: Vec<Option<u32>> = holders.map(procfs::user_of_process).collect();
    !users.is_empty() && users.into_iter().all(|user| user.is_some_and(|user| !is_trusted(user)))
}

pub(super) fn is_same(file: &File, meta: &Metadata) -> bool {
    file.metadata().is_ok_and(|now| is_same_file(&now, meta))
}

pub(super) fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

pub(super) fn look(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::empty())?))
}

/// Walks a path to the directory of its last component.
pub(super) fn resolve(path: &Path) -> Result<ResolvedPath, DestinationError> {
    let failed = |error: Errno| DestinationError::Open { path: path.to_owned(), source: error.into() };
    let a_directory = || DestinationError::NotAFile { path: path.to_owned(), kind: "a directory" };
    let enter = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let start = |path: &Path| {
        let start = if path.is_absolute() { "/" } else { "." };
        openat(AT_FDCWD, start, enter, Mode::empty())
    };
    // Remaining components, the next one last.
    let mut rest: Vec<OsString> = Vec::new();
    // A path that ends in a slash or a dot names a directory.
    let push = |rest: &mut Vec<OsString>, path: &Path| {
        let bytes = path.as_os_str().as_bytes();
        if bytes.ends_with(b"/") || bytes.ends_with(b"/.") {
            rest.push(".".into());
        }
        let names = path.components().filter(|component| !matches!(component, Component::RootDir));
        rest.extend(names.map(|component| component.as_os_str().to_owned()).rev());
    };
    if path.as_os_str().is_empty() {
        return Err(failed(Errno::ENOENT));
    }
    push(&mut rest, path);
    let mut directory = start(path).map_err(failed)?;
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let last = rest.is_empty();
        if last && (name == "." || name == "..") {
            return Err(a_directory());
        }
        if !last {
            // With O_DIRECTORY, automounts are triggered.
            match openat(&directory, name.as_os_str(), enter | OFlag::O_NOFOLLOW, Mode::empty()) {
                Ok(entered) => {
                    directory = entered;
                    continue;
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let found = match look(&directory, &name) {
            Ok(found) => found,
            Err(Errno::ENOENT) if last => {
                return Ok(ResolvedPath::Name(DirectoryEntry { directory, name, path: path.to_owned() }));
            }
            Err(error) => return Err(failed(error)),
        };
        let io_failed = |source| DestinationError::Open { path: path.to_owned(), source };
        let meta = found.metadata().map_err(io_failed)?;
        if !meta.is_symlink() {
            if last {
                return Ok(ResolvedPath::Name(DirectoryEntry { directory, name, path: path.to_owned() }));
            }
            return Err(failed(Errno::ENOTDIR));
        }
        let around = directory.try_clone().and_then(|fd| File::from(fd).metadata()).map_err(io_failed)?;
        check_link(path, &name, &meta, &around)?;
        links += 1;
        if links > MAX_LINKS {
            return Err(failed(Errno::ELOOP));
        }
        let in_proc = fstatfs(&directory).is_ok_and(|system| system.filesystem_type() == PROC_SUPER_MAGIC);
        if last && in_proc && name.as_bytes().iter().all(u8::is_ascii_digit) {
            return open_descriptor(&directory, &name).map(ResolvedPath::Descriptor).map_err(failed);
        }
        let to = PathBuf::from(readlinkat(&found, "").map_err(failed)?);
        if to.is_absolute() {
            directory = start(&to).map_err(failed)?;
        }
        push(&mut rest, &to);
    }
    Err(a_directory())
}

pub(super) fn check_link(
    path: &Path,
    name: &OsStr,
    link: &Metadata,
    around: &Metadata,
) -> Result<(), DestinationError> {
    let whose = match () {
        () if !is_trusted(link.uid()) => format!("which belongs to {}", user_name(link.uid())),
        // The owner of a directory can move links of other users into it.
        () if !is_trusted(around.uid()) => format!("in a directory of {}", user_name(around.uid())),
        () if around.mode() & 0o022 != 0 && link.nlink() > 1 => "which others may have linked there".to_owned(),
        () if around.mode() & 0o1002 == 0o002 => "in a directory where others may have moved it".to_owned(),
        () => return Ok(()),
    };
    Err(DestinationError::Link { path: path.to_owned(), link: PathBuf::from(name), whose })
}

/// Reopens the file behind a descriptor in `/proc/PID/fd`, for appending.
pub(super) fn open_descriptor(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    // O_NONBLOCK: opening a pipe whose reader has gone must not block.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}
