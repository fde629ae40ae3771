//! Writing a segment.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ccsd_profile::{EncodeError, Encoder, Session, Update};

use super::name;

/// Segments that may begin in one second: a program that starts and ends all the time makes one session, not many.
const MAX_OF_ONE_SECOND: u32 = 1000;
/// Bytes that must be free before a segment is begun: what a busy watch writes in an hour.
const ROOM: u64 = 16 << 20;

/// Why nothing is stored at the moment.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// No segment can be begun.
    #[error("cannot create a profile in {}: {source}", dir.display())]
    Create {
        /// Where.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A segment cannot be continued. What was written before is good.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: EncodeError,
    },
    /// The segment was removed or moved.
    #[error("{} was removed or moved away while it was being written", path.display())]
    Removed {
        /// Which.
        path: PathBuf,
    },
    /// There is little room left.
    #[error("less than {} MiB are free in {}", ROOM >> 20, dir.display())]
    NoRoom {
        /// Where.
        dir: PathBuf,
    },
}

/// A segment that is being written, locked until it is dropped.
pub struct SegmentWriter {
    path: PathBuf,
    encoder: Encoder<File>,
    good: u64,
}

impl SegmentWriter {
    /// Begins a segment for a session, and makes the directory if need be.
    ///
    /// # Errors
    /// [`WriteError::Create`], [`WriteError::Write`].
    pub fn create(dir: &Path, session: &Session) -> Result<SegmentWriter, WriteError> {
        let create = |source| WriteError::Create { dir: dir.to_owned(), source };
        // Group ccsd may read, nobody else may know the names of watches' programs.
        DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(create)?;
        let start = i64::try_from(session.started_unix_ns / 1_000_000_000).unwrap_or(i64::MAX);
        for number in 0..MAX_OF_ONE_SECOND {
            let path = dir.join(name(start, number));
            let file = match OpenOptions::new().write(true).create_new(true).mode(0o640).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(create(error)),
            };
            // File systems without locks exist; readers take the segment for an interrupted one there.
            let _ = file.try_lock();
            let write = |source| WriteError::Write { path: path.clone(), source };
            return match Encoder::new(file, session) {
                Ok(encoder) => Ok(SegmentWriter { good: encoder.bytes_written(), path, encoder }),
                Err(source) => {
                    let error = write(source);
                    // The file is ours and empty.
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
    /// [`WriteError::Write`], [`WriteError::Removed`]; the segment ends with the update before then, and nothing more can be
    /// written to it.
    pub fn write(&mut self, update: &Update) -> Result<(), WriteError> {
        let written = self.encoder.write(update);
        let file = self.encoder.get_ref();
        if let Err(source) = written {
            // A part of a record may be there; shortening needs no room.
            let _ = file.set_len(self.good);
            return Err(WriteError::Write { path: self.path.clone(), source });
        }
        self.good = self.encoder.bytes_written();
        // With its directory, perhaps: what is written to it then nobody finds.
        let there = self.path.symlink_metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        if file.metadata().is_ok_and(|own| Some((own.dev(), own.ino())) != there) {
            return Err(WriteError::Removed { path: self.path.clone() });
        }
        Ok(())
    }

    /// Writes the end.
    ///
    /// # Errors
    /// [`WriteError::Write`].
    pub fn finish(self) -> Result<(), WriteError> {
        let SegmentWriter { path, encoder, .. } = self;
        let written = encoder.finish().and_then(|file| Ok(file.sync_data()?));
        written.map_err(|source| WriteError::Write { path, source })
    }

    /// Where it is.
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

/// Whether a segment can be begun.
///
/// # Errors
/// Why not.
pub fn room(dir: &Path) -> Result<(), WriteError> {
    let create = |source| WriteError::Create { dir: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o750).create(dir).map_err(create)?;
    let free = nix::sys::statvfs::statvfs(dir).map_err(|errno| create(errno.into()))?;
    if free.blocks_available().saturating_mul(free.fragment_size()) < ROOM {
        return Err(WriteError::NoRoom { dir: dir.to_owned() });
    }
    // Permissions, quotas and read-only file systems are known for certain by trying.
    let probe = dir.join(".probe");
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(&probe).map_err(create)?;
    let written = io::Write::write_all(&mut &file, &[0; 4096]);
    let _ = std::fs::remove_file(&probe);
    written.map_err(create)
}
