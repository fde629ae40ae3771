//! The profile file of a collection.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ccsd_profile::codec::MAGIC;
use ccsd_profile::{EncodeError, Encoder, Session, Update};
use nix::unistd::{AccessFlags, eaccess};

/// Why there is no profile file, or why it ends early.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file cannot be created.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is a file of this name that is no profile; it is left alone.
    #[error("{} exists and is not a ccsd profile: not overwritten; choose another name with -o", path.display())]
    NotAProfile {
        /// Which.
        path: PathBuf,
    },
    /// It is a directory, a FIFO, a socket or a disk.
    #[error("{} is no regular file: not written to; choose another name with -o", path.display())]
    NotAFile {
        /// Which.
        path: PathBuf,
    },
    /// Another ccsd is writing it.
    #[error("{} is being written by another ccsd; choose another name with -o", path.display())]
    Busy {
        /// Which.
        path: PathBuf,
    },
    /// The file was removed, replaced or shortened by somebody else while it was written.
    #[error("{} was removed or changed by somebody else while it was being written", path.display())]
    Disturbed {
        /// Which.
        path: PathBuf,
    },
    /// Writing failed on the way. What was written up to then is a readable profile.
    #[error("cannot write {}: {source}; what was written before stays readable", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: EncodeError,
    },
}

/// A profile file being written, one whole record after the other, or the error that ended it.
pub struct OutputFile {
    path: PathBuf,
    encoder: Option<Encoder<File>>,
    bytes: u64,
    error: Option<OutputError>,
}

impl OutputFile {
    /// Creates the file, or replaces an older profile of that name.
    ///
    /// # Errors
    /// [`OutputError::NotAProfile`] where something else would be overwritten, [`OutputError::NotAFile`],
    /// [`OutputError::Busy`], [`OutputError::Create`].
    pub fn create(path: &Path, session: &Session) -> Result<OutputFile, OutputError> {
        OutputFile::check_replaceable(path)?;
        let create = |source| OutputError::Create { path: path.to_owned(), source };
        // Not truncated before it is ours alone. O_NONBLOCK: a FIFO put there in the meantime must not hold us.
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(create)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OutputError::Busy { path: path.to_owned() }),
            // File systems without locks exist; there is no more to be had from them.
            Err(TryLockError::Error(_)) => {}
        }
        if file.metadata().map_err(create)?.is_file() {
            file.set_len(0).map_err(create)?;
        }
        let mut output = OutputFile { path: path.to_owned(), encoder: None, bytes: 0, error: None };
        match Encoder::new(file, session) {
            Ok(encoder) => output.encoder = Some(encoder),
            Err(source) => output.error = Some(OutputError::Write { path: path.to_owned(), source }),
        }
        Ok(output)
    }

    /// Whether a path may be written to: a file that holds something else than a profile must not be lost to a mistyped
    /// `-o`.
    ///
    /// # Errors
    /// [`OutputError::NotAProfile`], [`OutputError::NotAFile`].
    pub fn check_replaceable(path: &Path) -> Result<(), OutputError> {
        let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
        let kind = meta.file_type();
        if !kind.is_file() && !kind.is_char_device() {
            return Err(OutputError::NotAFile { path: path.to_owned() });
        }
        if !kind.is_file() || meta.len() == 0 {
            return Ok(());
        }
        let mut start = [0u8; MAGIC.len()];
        // A FIFO put there in the meantime must not hold us.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let is_profile = file.and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == MAGIC;
        if is_profile { Ok(()) } else { Err(OutputError::NotAProfile { path: path.to_owned() }) }
    }

    /// Whether a file can be made at a path, or the one there be written, as far as its folder and the file tell: who has named
    /// it is told before a program runs for nothing. A full disk, for one, still comes out as it is written.
    ///
    /// # Errors
    /// [`OutputError::Create`]
    pub fn check_creatable(path: &Path) -> Result<(), OutputError> {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let possible = match std::fs::metadata(path) {
            Ok(_) => eaccess(path, AccessFlags::W_OK).map_err(io::Error::from),
            // A link that leads nowhere: where that is, the folder does not tell.
            Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_symlink() => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                eaccess(folder, AccessFlags::W_OK | AccessFlags::X_OK).map_err(io::Error::from)
            }
            Err(error) => Err(error),
        };
        possible.map_err(|source| OutputError::Create { path: path.to_owned(), source })
    }

    /// Begins anew: what was written is replaced by what comes.
    pub fn restart(&mut self, session: &Session) {
        let Some(encoder) = self.encoder.take() else { return };
        let restarted = encoder.get_ref().try_clone().and_then(|mut file| {
            if file.metadata()?.is_file() {
                file.set_len(0)?;
                file.rewind()?;
            }
            Ok(file)
        });
        match restarted.map_err(EncodeError::from).and_then(|file| Encoder::new(file, session)) {
            Ok(encoder) => self.encoder = Some(encoder),
            Err(source) => self.fail(source),
        }
    }

    /// Writes an update. After an error, which is kept, nothing more is written.
    pub fn write(&mut self, update: &Update) {
        let Some(encoder) = &mut self.encoder else { return };
        let result = encoder.write(update);
        self.bytes = encoder.bytes_written();
        if let Err(source) = result {
            self.fail(source);
        }
    }

    /// Writes the end.
    pub fn finish(&mut self) {
        let Some(encoder) = self.encoder.take() else { return };
        let meta = match encoder.finish().and_then(|file| Ok(file.metadata()?)) {
            Ok(meta) => meta,
            Err(source) => return self.fail(source),
        };
        if meta.is_file() {
            if meta.nlink() == 0 || meta.len() < self.bytes {
                self.error = Some(OutputError::Disturbed { path: self.path.clone() });
            }
            self.bytes = meta.len();
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What went wrong, if anything.
    pub fn error(&self) -> Option<&OutputError> {
        self.error.as_ref()
    }

    fn fail(&mut self, source: EncodeError) {
        self.encoder = None;
        self.error = Some(OutputError::Write { path: self.path.clone(), source });
    }
}
