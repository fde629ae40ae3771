//! Output files, opened so that no other user can redirect the path to another file.
//!
//! The directory's owner may rename, link and swap names while ccsd (perhaps as root) opens the file. So the path is
//! walked one component at a time on descriptors, and the opened descriptors are checked:
//!
//! - A symbolic link is followed only if the link and its directory belong to root or the caller.
//! - An existing file must belong to root or the caller. A file with several hard links is refused unless only the
//!   caller and root can create names in its directory.
//! - A new file is created with `O_EXCL`; `O_CREAT` is never used on a name that exists.
//!
//! A file is written in place ([`open`], for profiles that grow) or replaced when complete ([`replace`]). A growing
//! file can be replaced by a shorter one with the same contents ([`OpenedFile::successor`]). The caller's descriptors
//! (`/dev/stdout`, `/dev/fd/3`) are appended to.

mod error;
mod path;

use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::fstatat;
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, unlinkat};

pub use error::{AllowedContents, DestinationError};
use path::{DirectoryEntry, LockOutcome, MAX_ATTEMPTS, ResolvedPath, is_trusted, resolve};

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
    /// [`DestinationError::Displaced`] if the owner differs or there are several hard links;
    /// [`DestinationError::Open`], [`DestinationError::Busy`].
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
    pub fn replace_with(&mut self, successor: Replacement) -> Result<(), DestinationError> {
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
        let lock = name.lock(&file)?;
        name.check_contents(&file, contents)?;
        if lock == LockOutcome::Stranger {
            let file = name.create_anew(&meta)?;
            name.lock(&file)?;
            return Ok(OpenedFile { file, name: Some(Arc::new(name)) });
        }
        file.set_len(0).map_err(|source| name.failed(source))?;
        return Ok(OpenedFile { file, name: Some(Arc::new(name)) });
    }
    Err(DestinationError::Changed { path: name.path })
}

/// Creates a temporary file that replaces `path` on [`Replacement::commit`]; without `contents`, any regular file.
/// Devices, FIFOs and descriptors of the caller are written directly.
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

/// Checks in advance whether a path may be written; with `way` also the permission on the file or its directory.
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

    /// Prepares another temporary file with the same contents in this one's place. `None` for files written directly.
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

#[cfg(test)]
mod tests;
