//! Output files: opened so that no other user can redirect the name to another file.
//!
//! The directory may belong to a user who renames, links and swaps names while ccsd (perhaps as root) opens one. The path is
//! therefore walked one component at a time on descriptors, and the checks are of the opened descriptors:
//!
//! - A symbolic link is followed only if it and its directory are root's or the caller's own. Links of others are refused
//!   wherever they are in the path.
//! - An existing file has to be root's or the caller's own. One with several names (hard links) is refused unless only the
//!   caller and root can make names in its directory.
//! - A new file is made with `O_EXCL`; a name that exists is never opened with `O_CREAT`.
//!
//! A file is written in place ([`open`], for profiles that grow) or replaced when it is whole ([`replace`]). One that grows can
//! be replaced by a shorter one of the same contents ([`OpenedFile::successor`]). Descriptors of the caller (`/dev/stdout`,
//! `/dev/fd/3`) are appended to: the caller has opened them.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat, readlinkat, renameat};
use nix::sys::stat::{Mode, fstatat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, geteuid, unlinkat};

use crate::authority::user_name;

/// Links that one path may lead through, as in the kernel.
const MAX_LINKS: usize = 40;
/// Attempts to open a name whose file changes meanwhile.
const MAX_ATTEMPTS: usize = 8;
/// Temporary names tried.
const MAX_NAMES: u32 = 100;
/// Bytes read to recognise a format.
const START_BYTES: usize = 4096;

/// Why a destination is refused or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum DestinationError {
    /// The file cannot be created or opened.
    #[error("cannot create {}: {source}", path.display())]
    Open {
        /// The path as the user named it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Writing failed; what was there before is untouched.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The path as the user named it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The path is a directory, a FIFO, a socket or a disk.
    #[error("{} is {kind}, no regular file: not written to; choose another name with -o", path.display())]
    NotAFile {
        /// The path as the user named it.
        path: PathBuf,
        /// The type of the file.
        kind: &'static str,
    },
    /// The file holds something that ccsd does not overwrite.
    #[error("{} exists and is {}: not overwritten; choose another name{}", path.display(), .contents.unlike, .contents.remedy)]
    Foreign {
        /// The path as the user named it.
        path: PathBuf,
        /// The contents that may be overwritten.
        contents: Contents,
    },
    /// The file belongs to another user, who could read what is written, or alter it.
    #[error("{} belongs to {}: not written to; remove it, or choose another name with -o", path.display(), user_name(*.owner))]
    Stranger {
        /// The path as the user named it.
        path: PathBuf,
        /// The owner's user id.
        owner: u32,
    },
    /// The path leads through a symbolic link that another user may have put there.
    #[error(
        "{} leads through the symbolic link {}, {whose}: not followed; name the file that it leads to",
        path.display(), link.display()
    )]
    Link {
        /// The path as the user named it.
        path: PathBuf,
        /// The component.
        link: PathBuf,
        /// Why the link is not trusted.
        whose: String,
    },
    /// The file has other names, and others may have made them.
    #[error(
        "{} is one of {names} names of the same file (hard links), in a directory where others may make some: not written to; \
         remove it, or choose another name with -o",
        path.display()
    )]
    Linked {
        /// The path as the user named it.
        path: PathBuf,
        /// Number of hard links.
        names: u64,
    },
    /// Another user replaces the file while it is opened or written.
    #[error(
        "{} was replaced by somebody else while it was being opened or written; choose a directory that only you can change",
        path.display()
    )]
    Changed {
        /// The path as the user named it.
        path: PathBuf,
    },
    /// A file that is being written cannot be replaced: its name means another file by now, or is not its only one.
    #[error("{} was moved or removed, has another owner, or other names (hard links)", path.display())]
    Displaced {
        /// Which.
        path: PathBuf,
    },
    /// Another ccsd is writing it.
    #[error("{} is being written by another ccsd; choose another name with -o", path.display())]
    Busy {
        /// The path as the user named it.
        path: PathBuf,
    },
}

/// The contents of a file that may be overwritten.
#[derive(Clone, Copy)]
pub struct Contents {
    /// Whether a file that begins with these bytes may be overwritten.
    pub known: fn(&[u8]) -> bool,
    /// How messages call a file that may not be overwritten.
    pub unlike: &'static str,
    /// The remedy that messages suggest after "choose another name".
    pub remedy: &'static str,
}

impl std::fmt::Debug for Contents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.unlike)
    }
}

/// A file opened for writing in place.
#[derive(Debug)]
pub struct OpenedFile {
    file: File,
    /// Of a regular file that was opened by name, and locked; none of a device, or a descriptor of the caller.
    name: Option<Arc<Name>>,
}

impl OpenedFile {
    /// The file, empty if it is a regular one.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is a regular file that was opened by name, and locked; else a device, or a descriptor of the caller.
    pub fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Prepares a file that takes the place of this one under its name, locked and with its permissions. `None` of what has
    /// no name.
    ///
    /// # Errors
    /// [`DestinationError::Displaced`] if the file is not the caller's own, or not under its name alone: links would part.
    /// [`DestinationError::Open`], [`DestinationError::Busy`].
    pub fn successor(&self) -> Result<Option<Replacement>, DestinationError> {
        let Some(name) = &self.name else { return Ok(None) };
        let old = name.check_still(&self.file)?;
        let replacement = Replacement::beside(name, Some(old))?;
        name.lock(&replacement.file)?;
        let of = self.file.try_clone().map_err(|source| name.failed(source))?;
        Ok(Some(Replacement { of: Some(of), ..replacement }))
    }

    /// Puts a successor in the place of this file.
    ///
    /// # Errors
    /// As [`Replacement::commit`]; this file keeps its place then.
    pub fn give_way(&mut self, successor: Replacement) -> Result<(), DestinationError> {
        let file = successor.file.try_clone();
        let file = file.map_err(|source| DestinationError::Open { path: successor.path.clone(), source })?;
        successor.commit()?;
        self.file = file;
        Ok(())
    }
}

/// Opens a file to be written in place, and truncates it if `contents` allows its old contents to be overwritten.
///
/// # Errors
/// All of [`DestinationError`] but `Write` and `Displaced`.
pub fn open(path: &Path, contents: Contents) -> Result<OpenedFile, DestinationError> {
    let name = match resolve(path)? {
        ResolvedPath::Descriptor(file) => return Ok(OpenedFile { file, name: None }),
        ResolvedPath::Name(name) => name,
    };
    for _ in 0..MAX_ATTEMPTS {
        let Some(meta) = name.existing()? else {
            match name.create(&name.name, 0o666) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => {
                    let file = file.map_err(|source| name.failed(source))?;
                    name.lock(&file)?;
                    return Ok(OpenedFile { file, name: Some(Arc::new(name)) });
                }
            }
        };
        name.admit(&meta, false)?;
        let Some(file) = name.open_existing(&meta)? else { continue };
        if !meta.is_file() {
            return Ok(OpenedFile { file, name: None });
        }
        name.lock(&file)?;
        name.check_contents(&file, contents)?;
        file.set_len(0).map_err(|source| name.failed(source))?;
        return Ok(OpenedFile { file, name: Some(Arc::new(name)) });
    }
    Err(DestinationError::Changed { path: name.path })
}

/// Creates a temporary file that replaces the file at a path on [`Replacement::commit`]. Without `contents` any regular file may
/// be replaced. Devices, FIFOs and descriptors of the caller are written to directly.
///
/// # Errors
/// All of [`DestinationError`] but `Write` and `Displaced`.
pub fn replace(path: &Path, contents: Option<Contents>) -> Result<Replacement, DestinationError> {
    let name = match resolve(path)? {
        ResolvedPath::Descriptor(file) => return Ok(Replacement::none(file, path)),
        ResolvedPath::Name(name) => name,
    };
    let existing = name.check(contents, true)?;
    if let Some(meta) = existing.as_ref().filter(|meta| !meta.is_file()) {
        let file = name.open_existing(meta)?.ok_or_else(|| DestinationError::Changed { path: path.to_owned() })?;
        return Ok(Replacement::none(file, path));
    }
    // Permissions are kept only from a file of the caller or root.
    let kept = existing.filter(|meta| is_trusted(meta.uid()));
    Replacement::beside(&Arc::new(name), kept)
}

/// Replaces the file at a path by one with these contents.
///
/// # Errors
/// All of [`DestinationError`] but `Displaced`.
pub fn write(path: &Path, bytes: &[u8], contents: Option<Contents>) -> Result<(), DestinationError> {
    let replacement = replace(path, contents)?;
    let written = (&replacement.file).write_all(bytes);
    written.map_err(|source| DestinationError::Write { path: path.to_owned(), source })?;
    replacement.commit()
}

/// How a file is going to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By [`open`].
    InPlace,
    /// By [`replace`].
    Replaced,
}

/// Checks in advance whether a path may be written to. Where the `way` is given, also checks the permission that it takes: of
/// the file, or to make names in its directory.
///
/// # Errors
/// As [`open`].
pub fn check(path: &Path, contents: Contents, way: Option<Way>) -> Result<(), DestinationError> {
    let ResolvedPath::Name(name) = resolve(path)? else { return Ok(()) };
    let existing = name.check(Some(contents), false)?;
    let Some(way) = way else { return Ok(()) };
    // Devices are written to as they are.
    let is_written = existing.is_some_and(|meta| way == Way::InPlace || !meta.is_file());
    let access = if is_written {
        let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
        faccessat(&name.directory, name.name.as_os_str(), AccessFlags::W_OK, flags)
    } else {
        faccessat(&name.directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
    };
    access.map_err(|error| name.failed(error.into()))
}

/// A temporary file that replaces another on [`Replacement::commit`]. Removed when dropped before that.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    path: PathBuf,
    /// The temporary file; `None` for a device, FIFO or descriptor, which is written to directly.
    pending: Option<Pending>,
    /// The file that has to have its name until then, with the same contents, if it is a successor.
    of: Option<File>,
}

#[derive(Debug)]
struct Pending {
    place: Arc<Name>,
    temporary: OsString,
    done: bool,
}

impl Replacement {
    /// A file that is written in place.
    fn none(file: File, path: &Path) -> Replacement {
        Replacement { file, path: path.to_owned(), pending: None, of: None }
    }

    /// A new file beside a name, with the permissions of an old one.
    fn beside(name: &Arc<Name>, old: Option<Metadata>) -> Result<Replacement, DestinationError> {
        // The new file must stay private until it has the group of the old one: an open descriptor stays readable.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (temporary, file) = name.create_beside(mode).map_err(|source| name.failed(source))?;
        let pending = Pending { place: Arc::clone(name), temporary, done: false };
        let replacement = Replacement { file, path: name.path.clone(), pending: Some(pending), of: None };
        if let Some(old) = old {
            replacement.keep_permissions(&old).map_err(|source| name.failed(source))?;
        }
        Ok(replacement)
    }

    /// Prepares another file that takes this one's place, of the same contents. `None` of what is written to as it is.
    ///
    /// # Errors
    /// [`DestinationError::Open`].
    pub fn successor(&self) -> Result<Option<Replacement>, DestinationError> {
        let Some(pending) = &self.pending else { return Ok(None) };
        let old = self.file.metadata().map_err(|source| pending.place.failed(source))?;
        Replacement::beside(&pending.place, Some(old)).map(Some)
    }

    /// Whether this is a temporary file, not a device, FIFO or descriptor of the caller.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Renames the temporary file to its final name.
    ///
    /// # Errors
    /// [`DestinationError::Write`], [`DestinationError::Changed`]; [`DestinationError::Displaced`] of a successor.
    pub fn commit(mut self) -> Result<(), DestinationError> {
        let Some(pending) = &mut self.pending else { return Ok(()) };
        let (directory, to) = (&pending.place.directory, pending.place.name.as_os_str());
        let failed = |error: io::Error| DestinationError::Write { path: self.path.clone(), source: error };
        if pending.place.existing()?.is_some() {
            // Its contents are on disk before those of the old one are gone: what a power failure leaves is one of the two.
            self.file.sync_data().map_err(failed)?;
        }
        if let Some(old) = &self.of {
            pending.place.check_still(old)?;
        }
        renameat(directory, pending.temporary.as_os_str(), directory, to).map_err(|error| failed(error.into()))?;
        pending.done = true;
        // Another user who may rename in this directory could have replaced the temporary file.
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
            // The new file has another group, which gets none of the old group's permissions.
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

/// Whether a user id is root's or the caller's.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

/// The result of resolving a path.
enum ResolvedPath {
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

    /// Looks at the file of this name without opening it: opening a device may have effects.
    fn existing(&self) -> Result<Option<Metadata>, DestinationError> {
        match look(&self.directory, &self.name) {
            Err(Errno::ENOENT) => Ok(None),
            found => {
                let meta = found.map_err(io::Error::from).and_then(|file| file.metadata());
                meta.map(Some).map_err(|source| self.failed(source))
            }
        }
    }

    /// That a file of the caller still has this name, and no other.
    fn check_still(&self, file: &File) -> Result<Metadata, DestinationError> {
        let meta = file.metadata().map_err(|source| self.failed(source))?;
        let is_here = self.existing()?.is_some_and(|found| is_same(file, &found));
        if is_here && meta.nlink() == 1 && meta.uid() == geteuid().as_raw() {
            Ok(meta)
        } else {
            Err(DestinationError::Displaced { path: self.path.clone() })
        }
    }

    /// Checks type, owner and hard links of a file to be written in place, or `replaced`.
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

    /// Checks the file of this name, if there is one, before it is written in place or `replaced`. Without `contents` any regular
    /// file may be replaced: that does nothing to the file itself.
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

    /// Opens for writing the file that was looked at. `None` if the name is another file's by now.
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
            Err(Errno::ENOENT | Errno::ELOOP) => return Ok(None),
            // A FIFO or a socket has taken the name, or this is a device that is not there.
            Err(Errno::ENXIO) if !self.existing()?.is_some_and(|now| is_same_file(&now, meta)) => return Ok(None),
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
            // Some file systems have no locks.
            Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(DestinationError::Busy { path: self.path.clone() }),
        }
    }
}

fn is_same(file: &File, meta: &Metadata) -> bool {
    file.metadata().is_ok_and(|now| is_same_file(&now, meta))
}

fn is_same_file(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

/// A handle (O_PATH) of a name, which is not followed if it is a link.
fn look(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    Ok(File::from(openat(directory, name, flags, Mode::empty())?))
}

/// Walks a path to the directory of its last component.
fn resolve(path: &Path) -> Result<ResolvedPath, DestinationError> {
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
            Err(Errno::ENOENT) if last => {
                return Ok(ResolvedPath::Name(Name { directory, name, path: path.to_owned() }));
            }
            Err(error) => return Err(failed(error)),
        };
        let io_failed = |source| DestinationError::Open { path: path.to_owned(), source };
        let meta = found.metadata().map_err(io_failed)?;
        if !meta.is_symlink() {
            if last {
                return Ok(ResolvedPath::Name(Name { directory, name, path: path.to_owned() }));
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

/// Whether a link in the directory `around` may be followed.
fn check_link(path: &Path, name: &OsStr, link: &Metadata, around: &Metadata) -> Result<(), DestinationError> {
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
