//! Output files, opened so that no other user can redirect the path to another file.
//!
//! The directory may belong to a user who renames, links and swaps names while ccsd (perhaps as root) opens the file.
//! The path is therefore walked one component at a time on descriptors, and the checks are made on the opened
//! descriptors:
//!
//! - A symbolic link is followed only if the link and its directory belong to root or the caller. All other links are
//!   refused, wherever they are in the path.
//! - An existing file must belong to root or the caller. A file with several hard links is refused unless only the
//!   caller and root can create names in its directory.
//! - A new file is created with `O_EXCL`; `O_CREAT` is never used on a name that exists.
//!
//! A file is written in place ([`open`], for profiles that grow) or replaced when it is complete ([`replace`]). A
//! growing file can be replaced by a shorter one with the same contents ([`OpenedFile::successor`]). Descriptors of the
//! caller (`/dev/stdout`, `/dev/fd/3`) are appended to: the caller opened them.

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

/// Symbolic links followed in one path, as in the kernel.
const MAX_LINKS: usize = 40;
/// Attempts to open a name whose file changes meanwhile.
const MAX_ATTEMPTS: usize = 8;
/// Temporary names tried.
const MAX_NAMES: u32 = 100;
/// Bytes read from the start of a file to recognise its format.
const START_BYTES: usize = 4096;

/// Why a destination is refused or cannot be written.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DestinationError {
    /// The file cannot be created or opened.
    #[error("cannot create {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// Writing failed; what was there before is untouched.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    /// The path is a directory, a FIFO, a socket or a disk.
    #[error("{} is {kind}, no regular file: not written to; choose another name with -o", path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    /// The file holds contents that ccsd does not overwrite.
    #[error("{} exists and is {}: not overwritten; choose another name{}", path.display(), .contents.unlike, .contents.remedy)]
    Foreign {
        path: PathBuf,
        /// The contents that may be overwritten.
        contents: AllowedContents,
    },
    /// The file belongs to another user, who could read or alter the output.
    #[error("{} belongs to {}: not written to; remove it, or choose another name with -o", path.display(), user_name(*.owner))]
    Stranger {
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
        path: PathBuf,
        /// The component.
        link: PathBuf,
        /// Why the link is not trusted.
        whose: String,
    },
    /// The file has several hard links, and other users can create names in its directory.
    #[error(
        "{} is one of {names} names of the same file (hard links), in a directory where others may make some: not written to; \
         remove it, or choose another name with -o",
        path.display()
    )]
    Linked {
        path: PathBuf,
        /// Number of hard links.
        names: u64,
    },
    /// Another user replaced the file while it was opened or written.
    #[error(
        "{} was replaced by somebody else while it was being opened or written; choose a directory that only you can change",
        path.display()
    )]
    Changed { path: PathBuf },
    /// The name of a file being written now refers to another file, or the file has another owner or several hard
    /// links.
    #[error("{} was moved or removed, has another owner, or other names (hard links)", path.display())]
    Displaced { path: PathBuf },
    /// Another ccsd is writing the file.
    #[error("{} is being written by another ccsd; choose another name with -o", path.display())]
    Busy { path: PathBuf },
}

/// Describes the contents that may be overwritten.
#[derive(Clone, Copy)]
pub struct AllowedContents {
    /// Whether a file that starts with these bytes may be overwritten.
    pub known: fn(&[u8]) -> bool,
    /// How messages describe a file that may not be overwritten.
    pub unlike: &'static str,
    /// The remedy that messages suggest after "choose another name".
    pub remedy: &'static str,
}

impl std::fmt::Debug for AllowedContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.unlike)
    }
}

/// A file opened for writing in place.
#[derive(Debug)]
pub struct OpenedFile {
    file: File,
    /// Set for a regular file opened by name, which is locked; `None` for devices and descriptors of the caller.
    name: Option<Arc<DirectoryEntry>>,
}

impl OpenedFile {
    /// The file; a regular file is empty.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether this is a regular file opened by name, and so locked; otherwise a device or a descriptor of the caller.
    pub fn is_named(&self) -> bool {
        self.name.is_some()
    }

    /// Prepares a locked file with the same permissions that can replace this file. `None` if this file has no name.
    ///
    /// # Errors
    /// [`DestinationError::Displaced`] if the file has another owner or several hard links, which a replacement would
    /// separate; [`DestinationError::Open`], [`DestinationError::Busy`].
    pub fn successor(&self) -> Result<Option<Replacement>, DestinationError> {
        let Some(name) = &self.name else { return Ok(None) };
        let old = name.check_still(&self.file)?;
        let replacement = Replacement::beside(name, Some(old))?;
        name.lock(&replacement.file)?;
        let of = self.file.try_clone().map_err(|source| name.failed(source))?;
        Ok(Some(Replacement { of: Some(of), ..replacement }))
    }

    /// Replaces this file with a successor.
    ///
    /// # Errors
    /// As [`Replacement::commit`]; this file then stays in place.
    pub fn give_way(&mut self, successor: Replacement) -> Result<(), DestinationError> {
        let file = successor.file.try_clone();
        let file = file.map_err(|source| DestinationError::Open { path: successor.path.clone(), source })?;
        successor.commit()?;
        self.file = file;
        Ok(())
    }
}

/// Opens a file for writing in place, and truncates it if `contents` allows its old contents to be overwritten.
///
/// # Errors
/// All of [`DestinationError`] except `Write` and `Displaced`.
pub fn open(path: &Path, contents: AllowedContents) -> Result<OpenedFile, DestinationError> {
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

/// Creates a temporary file that replaces `path` on [`Replacement::commit`]. Without `contents`, any regular file may
/// be replaced. Devices, FIFOs and descriptors of the caller are written directly.
///
/// # Errors
/// All of [`DestinationError`] except `Write` and `Displaced`.
pub fn replace(path: &Path, contents: Option<AllowedContents>) -> Result<Replacement, DestinationError> {
    let name = match resolve(path)? {
        ResolvedPath::Descriptor(file) => return Ok(Replacement::none(file, path)),
        ResolvedPath::Name(name) => name,
    };
    let existing = name.check(contents, true)?;
    if let Some(meta) = existing.as_ref().filter(|meta| !meta.is_file()) {
        let file = name.open_existing(meta)?.ok_or_else(|| DestinationError::Changed { path: path.to_owned() })?;
        return Ok(Replacement::none(file, path));
    }
    // Permissions are copied only from a file of the caller or root.
    let kept = existing.filter(|meta| is_trusted(meta.uid()));
    Replacement::beside(&Arc::new(name), kept)
}

/// Replaces the file at `path` with `bytes`.
///
/// # Errors
/// All of [`DestinationError`] except `Displaced`.
pub fn write(path: &Path, bytes: &[u8], contents: Option<AllowedContents>) -> Result<(), DestinationError> {
    let replacement = replace(path, contents)?;
    let written = (&replacement.file).write_all(bytes);
    written.map_err(|source| DestinationError::Write { path: path.to_owned(), source })?;
    replacement.commit()
}

/// How a file will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteMode {
    /// With [`open`].
    InPlace,
    /// With [`replace`].
    Replaced,
}

/// Checks in advance whether a path may be written. With `way`, also checks the permission that it needs: on the file,
/// or on its directory.
pub fn check(path: &Path, contents: AllowedContents, way: Option<WriteMode>) -> Result<(), DestinationError> {
    let ResolvedPath::Name(name) = resolve(path)? else { return Ok(()) };
    let existing = name.check(Some(contents), false)?;
    let Some(way) = way else { return Ok(()) };
    // Devices are written directly.
    let is_written = existing.is_some_and(|meta| way == WriteMode::InPlace || !meta.is_file());
    let access = if is_written {
        let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
        faccessat(&name.directory, name.name.as_os_str(), AccessFlags::W_OK, flags)
    } else {
        faccessat(&name.directory, ".", AccessFlags::W_OK | AccessFlags::X_OK, AtFlags::AT_EACCESS)
    };
    access.map_err(|error| name.failed(error.into()))
}

/// A temporary file that replaces another on [`Replacement::commit`], and is removed when dropped before.
#[derive(Debug)]
pub struct Replacement {
    file: File,
    path: PathBuf,
    /// The temporary file; `None` for a device, FIFO or descriptor, which is written directly.
    pending: Option<TemporaryFile>,
    /// For a successor: the file that must still have its name, unchanged, at the commit.
    of: Option<File>,
}

#[derive(Debug)]
struct TemporaryFile {
    place: Arc<DirectoryEntry>,
    temporary: OsString,
    done: bool,
}

impl Replacement {
    /// Writes `file` directly.
    fn none(file: File, path: &Path) -> Replacement {
        Replacement { file, path: path.to_owned(), pending: None, of: None }
    }

    /// Creates a new file in the same directory, with the permissions of `old`.
    fn beside(name: &Arc<DirectoryEntry>, old: Option<Metadata>) -> Result<Replacement, DestinationError> {
        // The new file stays private until it has the group of the old one: an open descriptor stays readable.
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let (temporary, file) = name.create_beside(mode).map_err(|source| name.failed(source))?;
        let pending = TemporaryFile { place: Arc::clone(name), temporary, done: false };
        let replacement = Replacement { file, path: name.path.clone(), pending: Some(pending), of: None };
        if let Some(old) = old {
            replacement.keep_permissions(&old).map_err(|source| name.failed(source))?;
        }
        Ok(replacement)
    }

    /// Prepares another temporary file with the same contents to take this one's place. `None` for files written
    /// directly.
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
            // The new contents reach the disk before the old ones are lost: a power failure leaves one of the two.
            self.file.sync_data().map_err(failed)?;
        }
        if let Some(old) = &self.of {
            pending.place.check_still(old)?;
        }
        renameat(directory, pending.temporary.as_os_str(), directory, to).map_err(|error| failed(error.into()))?;
        pending.done = true;
        // Another user with write permission on this directory could have replaced the temporary file.
        let now = fstatat(directory, to, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))?;
        let own = self.file.metadata().map_err(failed)?;
        if (now.st_dev, now.st_ino) == (own.dev(), own.ino()) {
            Ok(())
        } else {
            Err(DestinationError::Changed { path: self.path.clone() })
        }
    }

    /// Copies the mode and, where possible, the group of the replaced file.
    fn keep_permissions(&self, old: &Metadata) -> io::Result<()> {
        let mut mode = old.mode() & 0o777;
        if self.file.metadata()?.gid() != old.gid() && fchown(&self.file, None, Some(old.gid())).is_err() {
            // The new file has another group, which must not get the old group's permissions.
            mode &= !0o070;
        }
        self.file.set_permissions(Permissions::from_mode(mode))
    }
}

impl Drop for TemporaryFile {
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
    /// A name in a directory, whose file may not exist.
    Name(DirectoryEntry),
    /// A descriptor of a process of the caller.
    Descriptor(File),
}

/// A name in an open directory.
#[derive(Debug)]
struct DirectoryEntry {
    directory: OwnedFd,
    name: OsString,
    /// As the user named it.
    path: PathBuf,
}

impl DirectoryEntry {
    fn failed(&self, source: io::Error) -> DestinationError {
        DestinationError::Open { path: self.path.clone(), source }
    }

    /// Looks at the file without opening it: opening a device may have effects.
    fn existing(&self) -> Result<Option<Metadata>, DestinationError> {
        match look(&self.directory, &self.name) {
            Err(Errno::ENOENT) => Ok(None),
            found => {
                let meta = found.map_err(io::Error::from).and_then(|file| file.metadata());
                meta.map(Some).map_err(|source| self.failed(source))
            }
        }
    }

    /// Checks that a file of the caller has this name and no other.
    fn check_still(&self, file: &File) -> Result<Metadata, DestinationError> {
        let meta = file.metadata().map_err(|source| self.failed(source))?;
        let is_here = self.existing()?.is_some_and(|found| is_same(file, &found));
        if is_here && meta.nlink() == 1 && meta.uid() == geteuid().as_raw() {
            Ok(meta)
        } else {
            Err(DestinationError::Displaced { path: self.path.clone() })
        }
    }

    /// Checks type, owner and hard links of a file that will be written in place, or `replaced`.
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

    /// Checks the file, if it exists, before it is written in place or `replaced`. Without `contents`, any regular file
    /// may be replaced: replacing does nothing to the file itself.
    fn check(&self, contents: Option<AllowedContents>, replaced: bool) -> Result<Option<Metadata>, DestinationError> {
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

    fn check_contents(&self, file: &File, contents: AllowedContents) -> Result<(), DestinationError> {
        let mut start = [0; START_BYTES];
        let read = file.read_at(&mut start, 0).map_err(|source| self.failed(source))?;
        if read == 0 || (contents.known)(start.get(..read).unwrap_or_default()) {
            return Ok(());
        }
        Err(DestinationError::Foreign { path: self.path.clone(), contents })
    }

    /// Opens the file that was looked at for writing. `None` if the name now refers to another file.
    fn open_existing(&self, meta: &Metadata) -> Result<Option<File>, DestinationError> {
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

    fn create(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(File::from(openat(&self.directory, name, flags, Mode::from_bits_truncate(mode))?))
    }

    /// Creates a file with a new name in the same directory.
    fn create_beside(&self, mode: u32) -> io::Result<(OsString, File)> {
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

/// Opens an O_PATH handle of a name without following a link.
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
                // Possibly a link.
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

/// Checks whether a link in the directory `around` may be followed.
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

/// Reopens the file behind a descriptor in `/proc/PID/fd`, for appending.
fn open_descriptor(directory: &OwnedFd, name: &OsStr) -> nix::Result<File> {
    // O_NONBLOCK: opening a pipe whose reader has gone must not block.
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = File::from(openat(directory, name, flags, Mode::empty())?);
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

#[cfg(test)]
#[path = "destination_tests.rs"]
mod tests;
