//! Writes a segment.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ccsd_profile::{EncodeError, Encoder, SessionInfo, Update};

use super::files::name;

/// Maximum segments with the same start second. A restarting program continues its watch's session, so few are needed.
const MAX_OF_ONE_SECOND: u32 = 1000;
/// Bytes that must be free before a segment is created: an hour of a busy watch.
const ROOM: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum WriteError {
    #[error("cannot create a profile in {}: {source}", dir.display())]
    Create { dir: PathBuf, source: io::Error },
    /// A segment cannot be continued. What was written before is readable.
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: EncodeError },
    #[error("{} was removed or moved away while it was being written", path.display())]
    Removed { path: PathBuf },
    #[error("less than {} MiB are free in {}", ROOM >> 20, dir.display())]
    NoRoom { dir: PathBuf },
    #[error("this watch has written its share of what is free for {}, the rest is for the others; make room there, or let \
             bytes of [retention] be less than what is free", dir.display())]
    NoShare { dir: PathBuf },
}

/// A segment being written, locked until dropped.
pub struct SegmentWriter {
    path: PathBuf,
    encoder: Encoder<File>,
    good: u64,
}

impl SegmentWriter {
    /// Creates a segment for a session, and its directory if needed.
    ///
    /// # Errors
    /// [`WriteError::Create`], [`WriteError::Write`].
    pub fn create(dir: &Path, session: &SessionInfo) -> Result<SegmentWriter, WriteError> {
        let create = |source| WriteError::Create { dir: dir.to_owned(), source };
        // Only group ccsd may read: others must not learn which programs are watched.
        DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(create)?;
        let start = i64::try_from(session.started_unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
        for number in 0..MAX_OF_ONE_SECOND {
            let path = dir.join(name(start, number));
            let file = match OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(create(error)),
            };
            // On file systems without locks, readers take the segment for an interrupted one.
            let _ = file.try_lock();
            let write = |source| WriteError::Write { path: path.clone(), source };
            return match Encoder::new(file, session) {
                Ok(encoder) => Ok(SegmentWriter { good: encoder.bytes_written(), path, encoder }),
                Err(source) => {
                    let error = write(source);
                    let _ = std::fs::remove_file(&path);
                    Err(error)
                }
            };
        }
        Err(create(io::ErrorKind::AlreadyExists.into()))
    }

    /// Writes an update.
    ///
    /// # Errors
    /// [`WriteError::Write`], [`WriteError::Removed`]; the segment then ends with the last update.
    pub fn write(&mut self, update: &Update) -> Result<(), WriteError> {
        let written = self.encoder.write(update);
        let file = self.encoder.get_ref();
        if let Err(source) = written {
            // Removes the part of a record that may have been written; shortening needs no space.
            let _ = file.set_len(self.good);
            return Err(WriteError::Write { path: self.path.clone(), source });
        }
        self.good = self.encoder.bytes_written();
        // Its directory may also have been removed, with what is written then.
        let there = self.path.symlink_metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        if file.metadata().is_ok_and(|own| Some((own.dev(), own.ino())) != there) {
            return Err(WriteError::Removed { path: self.path.clone() });
        }
        Ok(())
    }

    /// Writes the end record.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn finish(self) -> Result<(), WriteError> {
        let SegmentWriter { path, encoder, .. } = self;
        let written = encoder.finish().and_then(|file| Ok(file.sync_data()?));
        written.map_err(|source| WriteError::Write { path, source })
    }

    /// Path of the segment.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.good
    }
}

/// Checks that a segment can be created.
///
/// # Errors
/// The reason why not.
pub fn room(dir: &Path) -> Result<(), WriteError> {
    let create = |source| WriteError::Create { dir: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(create)?;
    if free_bytes(dir).map_err(create)? < ROOM {
        return Err(WriteError::NoRoom { dir: dir.to_owned() });
    }
    // Permissions, quotas and read-only file systems show only on writing.
    let probe = dir.join(".probe");
    // One that was left behind would be in the way, and a link would lead elsewhere.
    let _ = std::fs::remove_file(&probe);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&probe).map_err(create)?;
    let written = io::Write::write_all(&mut &file, &[0; 4096]);
    let _ = std::fs::remove_file(&probe);
    written.map_err(create)
}

/// Bytes that segments can take in the file system of `dir`, less what must stay free for one to be created.
///
/// # Errors
/// The reason why that is not known.
pub fn free_for_segments(dir: &Path) -> io::Result<u64> {
    Ok(free_bytes(dir)?.saturating_sub(ROOM))
}

fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = nix::sys::statvfs::statvfs(dir)?;
    Ok(found.blocks_available().saturating_mul(found.fragment_size()))
}
