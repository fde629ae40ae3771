//! The profile file of a collection.

use std::fs::File;
use std::io::Seek;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ccsd_profile::codec::MAGIC;
use ccsd_profile::{EncodeError, Encoder, Session, Update};

use crate::destination::{self, Contents, DestinationError, Replacement};

/// A file that holds something else than a profile must not be lost to a mistyped `-o`.
const PROFILE: Contents =
    Contents { known: |start| start.starts_with(&MAGIC), unlike: "not a ccsd profile", remedy: " with -o" };

/// Why there is no profile file, or why it ends early.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The file cannot be opened, or may not be written.
    #[error(transparent)]
    Destination(#[from] DestinationError),
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
    /// Writing a file failed that was to replace another.
    #[error("cannot write {}: {source}; what was there before is untouched", path.display())]
    Replace {
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
    /// Whether this is a regular file of its own, which can be shortened, and not a device or the caller's descriptor.
    named: bool,
    /// Where the file goes when it is whole, if it is not written in place.
    replacement: Option<Replacement>,
    bytes: u64,
    error: Option<OutputError>,
}

impl OutputFile {
    /// Creates a file that others read while it grows, or empties an older profile of that name.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn create(path: &Path, session: &Session) -> Result<OutputFile, OutputError> {
        let opened = destination::open(path, PROFILE)?;
        Ok(OutputFile::begin(path, opened.file, opened.named, None, session))
    }

    /// Creates a file that appears, or takes the place of an older profile, when it is finished.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn replace(path: &Path, session: &Session) -> Result<OutputFile, OutputError> {
        let replacement = destination::replace(path, Some(PROFILE))?;
        let file = replacement.file().try_clone();
        let file = file.map_err(|source| DestinationError::Open { path: path.to_owned(), source })?;
        let named = replacement.is_pending();
        Ok(OutputFile::begin(path, file, named, Some(replacement), session))
    }

    fn begin(path: &Path, file: File, named: bool, replacement: Option<Replacement>, session: &Session) -> OutputFile {
        let mut output = OutputFile { path: path.to_owned(), encoder: None, named, replacement, bytes: 0, error: None };
        match Encoder::new(file, session) {
            Ok(encoder) => output.encoder = Some(encoder),
            Err(source) => output.fail(source),
        }
        output
    }

    /// Whether a path may be written to: asked before a program runs for nothing.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn check_replaceable(path: &Path) -> Result<(), OutputError> {
        Ok(destination::check(path, PROFILE, false)?)
    }

    /// The same, and whether a file can be made at a path, or the one there be written, as far as its directory and the file
    /// tell. A full disk, for one, still comes out as it is written.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn check_creatable(path: &Path) -> Result<(), OutputError> {
        Ok(destination::check(path, PROFILE, true)?)
    }

    /// Begins anew: what was written is replaced by what comes.
    pub fn restart(&mut self, session: &Session) {
        let Some(encoder) = self.encoder.take() else { return };
        let restarted = encoder.get_ref().try_clone().and_then(|mut file| {
            if self.named {
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

    /// Writes the end, and puts the file into its place.
    pub fn finish(&mut self) {
        let Some(encoder) = self.encoder.take() else { return };
        let meta = match encoder.finish().and_then(|file| Ok(file.metadata()?)) {
            Ok(meta) => meta,
            Err(source) => return self.fail(source),
        };
        if self.named {
            if meta.nlink() == 0 || meta.len() < self.bytes {
                self.error = Some(OutputError::Disturbed { path: self.path.clone() });
            }
            self.bytes = meta.len();
        }
        if let Some(replacement) = self.replacement.take()
            && self.error.is_none()
        {
            self.error = replacement.commit().err().map(OutputError::from);
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
        let path = self.path.clone();
        self.error = Some(match self.replacement.take() {
            Some(_) => OutputError::Replace { path, source },
            None => OutputError::Write { path, source },
        });
    }
}
