//! Files that the user names for output: opened so that nobody else can turn the name into another file.
//!
//! The directory may belong to somebody who renames, links and swaps while ccsd (perhaps as root) opens a name in it. So
//! the path is walked one component at a time on descriptors, and what is checked is what was opened:
//!
//! - A symbolic link is followed only if it and its directory are root's or the caller's own. Links of others are refused
//!   wherever they are in the path.
//! - An existing file has to be root's or the caller's own. One with several names (hard links) is refused unless only the
//!   caller and root can make names in its directory.
//! - A new file is made with `O_EXCL`; a name that exists is never opened with `O_CREAT`.
//!
//! A file is written in place ([`open`], for profiles that grow) or replaced when it is whole ([`replace`]). Descriptors of
//! the caller (`/dev/stdout`, `/dev/fd/3`) are appended to: the caller has opened them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, geteuid, unlinkat};

use crate::authority::user_name;

/// Links that one path may lead through, as in the kernel.
const MAX_LINKS: usize = 40;
/// Times that a name may turn out to be another file than a moment ago.
const MAX_ATTEMPTS: usize = 8;
/// Temporary names that may be taken.
const MAX_NAMES: u32 = 100;
/// Bytes by which a format is known.
const START_BYTES: usize = 4096;

/// Why nothing is written to a path.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// The file cannot be created or opened.
    #[error("cannot create {}: {source}", path.display())]
    Open {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Writing failed; what was there before is untouched.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The path is a directory, a FIFO, a socket or a disk.
    #[error("{} is {kind}, no regular file: not written to; choose another name with -o", path.display())]
    NotAFile {
        /// Which.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The file holds something else than what is to be written.
    #[error("{} exists and is {}: not overwritten; choose another name{}", path.display(), .contents.unlike, .contents.remedy)]
    Foreign {
        /// Which.
        path: PathBuf,
        /// What it should hold.
        contents: Contents,
    },
    /// The file belongs to another user, who could read what is written, or alter it.
    #[error("{} belongs to {}: not written to; remove it, or choose another name with -o", path.display(), user_name(*.owner))]
    Stranger {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        owner: u32,
    },
    /// The path leads through a symbolic link that another user may have put there.
    #[error(
        "{} leads through the symbolic link {}, {whose}: not followed; name the file that it leads to",
        path.display(), link.display()
    )]
    Link {
        /// Which path.
        path: PathBuf,
        /// The component.
        link: PathBuf,
        /// Who can have put it there.
        whose: String,
    },
    /// The file has other names, and others may have made them.
    #[error(
        "{} is one of {names} names of the same file (hard links), in a directory where others may make some: not written to; \
         remove it, or choose another name with -o",
        path.display()
    )]
    Linked {
        /// Which.
        path: PathBuf,
        /// How many names.
        names: u64,
    },
    /// The name means another file from one moment to the next.
    #[error(
        "{} was replaced by somebody else while it was being opened or written; choose a directory that only you can change",
        path.display()
    )]
    Changed {
        /// Which.
        path: PathBuf,
    },
    /// Another ccsd is writing it.
    #[error("{} is being written by another ccsd; choose another name with -o", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
    },
}

/// What may be overwritten.
#[derive(Clone, Copy)]
pub struct Contents {
    /// Whether a file that begins like this may be.
    pub known: fn(&[u8]) -> bool,
    /// What a file is that may not be.
    pub unlike: &'static str,
    /// What to do beside choosing another name.
    pub remedy: &'static str,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.unlike)
    }
}

/// A file opened for writing in place.
#[derive(Debug)]
pub struct Opened {
    /// The file, empty if it is a regular one.
    pub file: File,
    /// Whether it is a regular file that was opened by name, and locked; else a device, or a descriptor of the caller.
    pub named: bool,
}

/// Opens a file to be written as its contents come. What it held, if `contents` says that it may be lost, is gone.
///
/// # Errors
/// All of [`DestinationError`] but `Write`.
pub fn open(path: &Path, contents: Contents) -> Result<Opened, DestinationError> {
    let name = match resolve(path)? {
        Place::Descriptor(file) => return Ok(Opened { file, named: false }),
        Place::Name(name) => name,
    };
    for _ in 0..MAX_ATTEMPTS {
        let Some(meta) = name.existing()? else {
            match name.create(&name.name, 0o666) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => {
                    let file = file.map_err(|source| name.failed(source))?;
                    name.lock(&file)?;
                    return Ok(Opened { file, named: true });
                }
            }
        };
        name.admit(&meta, false)?;
        let Some(file) = name.open_existing(&meta)? else { continue };
        if !meta.is_file() {
            return Ok(Opened { file, named: false });
        }
        name.lock(&file)?;
        name.check_contents(&file, contents)?;
        file.set_len(0).map_err(|source| name.failed(source))?;
        return Ok(Opened { file, named: true });
    }
    Err(DestinationError::Changed { path: name.path })
}

/// Prepares a file that takes the place of what is at a path when it is whole. Without `contents` any regular file may be
/// replaced. Devices, FIFOs and descriptors of the caller are written to as they are.
///
/// # Errors
/// All of [`DestinationError`] but `Write`.
pub fn replace(path: &Path, contents: Option<Contents>) -> Result<Replacement, DestinationError> {
    let name = match resolve(path)? {
        Place::Descriptor(file) => return Ok(Replacement { file, path: path.to_owned(), pending: None }),
        Place::Name(name) => name,
    };
    let existing = name.check(contents, true)?;
    if let Some(meta) = existing.as_ref().filter(|meta| !meta.is_file()) {
        let file = name.open_existing(meta)?.ok_or_else(|| DestinationError::Changed { path: path.to_owned() })?;
        return Ok(Replacement { file, path: path.to_owned(), pending: None });
    }
    // The permissions of a file of somebody else are not for a file of the caller.
    let kept = existing.filter(|meta| is_trusted(meta.uid()));
    let mode = kept.as_ref().map_or(0o666, |meta| meta.mode() & 0o777);
    let failed = |source| DestinationError::Open { path: path.to_owned(), source };
    let (temporary, file) = name.create_beside(mode).map_err(failed)?;
    let replacement =
        Replacement { file, path: path.to_owned(), pending: Some(Pending { place: name, temporary, done: false }) };
    if let Some(old) = kept {
        replacement.keep_permissions(&old).map_err(failed)?;
    }
    Ok(replacement)
}

/// Writes the whole contents of a file that takes the place of what is at a path.
///
/// # Errors
/// All of [`DestinationError`].
pub fn write(path: &Path, bytes: &[u8], contents: Option<Contents>) -> Result<(), DestinationError> {
    let replacement = replace(path, contents)?;
    let written = (&replacement.file).write_all(bytes);
    written.map_err(|source| DestinationError::Write { path: path.to_owned(), source })?;
    replacement.commit()
}

/// Whether a path may be written to, as far as can be known before: to be told before anything else is done. `writable`
/// also asks for permission to write the file, or to make one.
///
/// # Errors
/// As [`open`].
pub fn check(path: &Path, contents: Contents, writable: bool) -> Result<(), DestinationError> {
    let Place::Name(name) = resolve(path)? else { return Ok(()) };
    let existing = name.check(Some(contents), false)?;
    if !writable {
        return Ok(());
    }
    let access = match existing {
        Some(_) => {
            let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
            faccessat(&name.directory, name.name.as_os_str(), AccessFlags::W_OK, flags)
        }
        None => faccessat(&name.directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS),
    };
    access.map_err(|error| name.failed(error.into()))
}

/// A file that has yet to take its place. Dropped, nothing is left of it.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    path: PathBuf,
    /// Where it is until then; `None` for what is written to as it is.
    pending: Option<Pending>,
}

#[derive(Debug)]
struct Pending {
    place: Name,
    temporary: OsString,
    done: bool,
}

impl Replacement {
    /// Whether it has yet to take its place, and is not a device or a descriptor of the caller.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Puts the file into its place.
    ///
    /// # Errors
    /// [`DestinationError::Write`], [`DestinationError::Changed`].
    pub fn commit(mut self) -> Result<(), DestinationError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        let (directory, to) = (&pending.place.directory, pending.place.name.as_os_str());
        let failed = |error: io::Error| DestinationError::Write { path: self.path.clone(), source: error };
        renameat(directory, pending.temporary.as_os_str(), directory, to).map_err(|error| failed(error.into()))?;
        pending.done = true;
        // Who may rename in this directory may have put another file under the temporary name.
        let now = fstatat(directory, to, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))?;
        let own = self.file.metadata().map_err(failed)?;
        if (now.st_dev, now.st_ino) == (own.dev(), own.ino()) {
            Ok(())
        } else {
            Err(DestinationError::Changed { path: self.path.clone() })
        }
    }

    /// Gives the file the mode and, where possible, the group of the one that it replaces.
    fn keep_permissions(&self, old: &Metadata) -> io::Result<()> {
        let mut mode = old.mode() & 0o777;
        if self.file.metadata()?.gid() != old.gid() && fchown(&self.file, None, Some(old.gid())).is_err() {
            // What the old group might do is not for another one.
            mode &= !0o070;
        }
        self.file.set_permissions(Permissions::from_mode(mode))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.done {
            let _ = unlinkat(&self.place.directory, self.temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Whether nobody but root and the caller can do something as this user.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// Where a path leads.
enum Place {
    /// A name in a directory. There may be no such file.
    Name(Name),
    /// A descriptor of a process of the caller.
    Descriptor(File),
}

/// A name in an open directory.
#[derive(Debug)]
struct Name {
    directory: OwnedFd,
    name: OsString,
    /// As the user has named it.
    path: PathBuf,
}

impl Name {
    fn failed(&self, source: io::Error) -> DestinationError {
        DestinationError::Open { path: self.path.clone(), source }
    }

    /// What has this name now. It is not opened: that may do something to a device.
    fn existing(&self) -> Result<Option<Metadata>, DestinationError> {
        match look(&self.directory, &self.name) {
            Err(Errno::ENOENT) => Ok(None),
            found => {
                let meta = found.map_err(io::Error::from).and_then(|file| file.metadata());
                meta.map(Some).map_err(|source| self.failed(source))
            }
        }
    }

    /// Whether such a file may be written to, or be `replaced` by another one, whatever it holds.
    fn admit(&self, meta: &Metadata, replaced: bool) -> Result<(), DestinationError> {
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

    /// Whether what has this name, if anything, may be written to or be `replaced`. Without `contents` all regular files may
    /// be replaced: that does nothing to the file itself.
    fn check(&self, contents: Option<Contents>, replaced: bool) -> Result<Option<Metadata>, DestinationError> {
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
                // Whether it can be written is another question; what it holds cannot be known.
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

    fn check_contents(&self, file: &File, contents: Contents) -> Result<(), DestinationError> {
        let mut start = [0; START_BYTES];
        let read = file.read_at(&mut start, 0).map_err(|source| self.failed(source))?;
        if read == 0 || (contents.known)(start.get(..read).unwrap_or_default()) {
            return Ok(());
        }
        Err(DestinationError::Foreign { path: self.path.clone(), contents })
    }

    /// Opens for writing what was looked at. `None` if the name means another file by now.
    fn open_existing(&self, meta: &Metadata) -> Result<Option<File>, DestinationError> {
        let kind = meta.file_type();
        let flags = match () {
            () if kind.is_file() => OFlag::O_RDWR | OFlag::O_NONBLOCK,
            // Waits for a reader.
            () if kind.is_fifo() => OFlag::O_WRONLY,
            () => OFlag::O_WRONLY | OFlag::O_NONBLOCK,
        };
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = match openat(&self.directory, self.name.as_os_str(), flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT | Errno::ELOOP | Errno::ENXIO) => return Ok(None),
            Err(error) => return Err(self.failed(error.into())),
        };
        if !is_same(&file, meta) {
            return Ok(None);
        }
        // Links and owner may have changed since.
        let now = file.metadata().map_err(|source| self.failed(source))?;
        self.admit(&now, kind.is_fifo())?;
        fcntl(&file, FcntlArg::F_SETFL(OFlag::empty())).map_err(|error| self.failed(error.into()))?;
        Ok(Some(file))
    }

    fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.directory, name, flags, Mode::from_bits_truncate(mode))?))
    }

    /// Creates a file of some new name in the same directory.
    fn create_beside(&self, mode: u32) -> io::Result<(OsString, File)> {
        for number in 0..MAX_NAMES {
            // Not made from the name, which may be as long as a name can be.
            let name = OsString::from(format!(".ccsd-{}-{number}", std::process::id()));
            match self.create(&name, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                file => return file.map(|file| (name, file)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    fn lock(&self, file: &File) -> Result<(), DestinationError> {
        match file.try_lock() {
            // File systems without locks exist; there is no more to be had from them.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(DestinationError::Busy { path: self.path.clone() }),
        }
    }
}

fn is_same(file: &File, meta: &Metadata) -> bool {
    file.metadata().is_ok_and(|now| (now.dev(), now.ino()) == (meta.dev(), meta.ino()))
}

/// What has a name, be it a link, without opening it.
fn look(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::empty())?))
}

/// Walks a path to the directory of its last component.
fn resolve(path: &Path) -> Result<Place, DestinationError> {
    let failed = |error: Errno| DestinationError::Open { path: path.to_owned(), source: error.into() };
    let a_directory = || DestinationError::NotAFile { path: path.to_owned(), kind: "a directory" };
    let enter = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let start = |path: &Path| {
        let start = if path.is_absolute() { "/" } else { "." };
        openat(AT_FDCWD, start, enter, Mode::empty())
    };
    // The components that are left, the next one last.
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
            // With O_DIRECTORY, file systems are mounted that wait for that.
            match openat(&directory, name.as_os_str(), enter | OFlag::O_NOFOLLOW, Mode::empty()) {
                Ok(entered) => {
                    directory = entered;
                    continue;
                }
                // Perhaps a link.
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let found = match look(&directory, &name) {
            Ok(found) => found,
            Err(Errno::ENOENT) if last => return Ok(Place::Name(Name { directory, name, path: path.to_owned() })),
            Err(error) => return Err(failed(error)),
        };
        let io_failed = |source| DestinationError::Open { path: path.to_owned(), source };
        let meta = found.metadata().map_err(io_failed)?;
        if !meta.is_symlink() {
            if last {
                return Ok(Place::Name(Name { directory, name, path: path.to_owned() }));
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
            return open_descriptor(&directory, &name).map(Place::Descriptor).map_err(failed);
        }
        let to = PathBuf::from(readlinkat(&found, "").map_err(failed)?);
        if to.is_absolute() {
            directory = start(&to).map_err(failed)?;
        }
        push(&mut rest, &to);
    }
    Err(a_directory())
}

/// Whether a link in the directory `around` may be followed.
fn check_link(path: &Path, name: &OsStr, link: &Metadata, around: &Metadata) -> Result<(), DestinationError> {
    let whose = match () {
        () if !is_trusted(link.uid()) => format!("which belongs to {}", user_name(link.uid())),
        // Who owns a directory can move links of others into it.
        () if !is_trusted(around.uid()) => format!("in a directory of {}", user_name(around.uid())),
        () if around.mode() & 0o022 != 0 && link.nlink() > 1 => "which others may have linked there".to_owned(),
        () if around.mode() & 0o1002 == 0o002 => "in a directory where others may have moved it".to_owned(),
        () => return Ok(()),
    };
    Err(DestinationError::Link { path: path.to_owned(), link: PathBuf::from(name), whose })
}

/// Opens anew what a descriptor of `/proc/PID/fd` has open. What was written to it before stays.
fn open_descriptor(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    // O_NONBLOCK: a pipe whose reader has gone must not hold us.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

#[cfg(test)]
#[path = "destination_tests.rs"]
mod tests;
