//! The profile file of a collection.
//!
//! It grows by a record per interval, up to [`MAX_INTERVALS`] or fewer ([`Written::is_long`]). Then a file with half as
//! many is written beside it and takes its name: the name always has a complete profile, even if ccsd is killed. A
//! finished file likewise gives way to a shorter one. Pipes, devices and descriptors of the caller are only appended
//! to.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use ccsd_profile::codec::{CoarsenError, MAGIC, Written, coarsen, compact};
use ccsd_profile::{EncodeError, Encoder, SessionInfo, Update};

use crate::destination::{self, AllowedContents, DestinationError, OpenedFile, Replacement, WriteMode};

/// Protects files other than profiles from a mistyped `-o`.
const PROFILE: AllowedContents =
    AllowedContents { known: |start| start.starts_with(&MAGIC), unlike: "not a ccsd profile", remedy: " with -o" };

/// Why there is no profile file, or why it ends early.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum OutputError {
    #[error(transparent)]
    Destination(#[from] DestinationError),
    #[error("{} was removed or changed by another program while ccsd was writing it", path.display())]
    Disturbed { path: PathBuf },
    #[error("cannot write {}: {source}; what was written before stays readable", path.display())]
    Write { path: PathBuf, source: EncodeError },
    #[error("cannot write {}: {source}; what was there before is untouched", path.display())]
    Replace { path: PathBuf, source: EncodeError },
}

/// Longer files are not compacted: that takes about a second for this many bytes.
const COMPACTED_BYTES: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub enum RewriteError {
    #[error(transparent)]
    Destination(#[from] DestinationError),
    #[error(transparent)]
    Coarsen(#[from] CoarsenError),
}

/// A profile file being written record by record, or the error that ended it.
pub struct OutputFile {
    path: PathBuf,
    encoder: Option<Encoder<File>>,
    sink: Option<Sink>,
    written: Written,
    /// Number of intervals at which merging is tried again after a failure.
    retry_at: usize,
    bytes: u64,
    error: Option<OutputError>,
    rewrite_error: Option<RewriteError>,
}

enum Sink {
    InPlace(OpenedFile),
    Beside(Replacement),
}

impl Sink {
    /// Whether this is a regular file with a name, which can be rewritten.
    fn is_named(&self) -> bool {
        match self {
            Sink::InPlace(opened) => opened.is_named(),
            Sink::Beside(replacement) => replacement.is_pending(),
        }
    }

    fn file(&self) -> &File {
        match self {
            Sink::InPlace(opened) => opened.file(),
            Sink::Beside(replacement) => replacement.file(),
        }
    }

    /// Replaces this file of `bytes` bytes with the one that `rewrite` makes. `None` if the file has no name.
    fn rewrite<T>(
        &mut self,
        bytes: u64,
        rewrite: impl FnOnce(io::Take<FromStart<'_>>, File) -> Result<T, CoarsenError>,
    ) -> Result<Option<T>, RewriteError> {
        let successor = match self {
            Sink::InPlace(opened) => opened.successor()?,
            Sink::Beside(replacement) => replacement.successor()?,
        };
        let Some(successor) = successor else { return Ok(None) };
        let input = FromStart { file: self.file(), at: 0 }.take(bytes);
        let out = successor.file().try_clone().map_err(|error| CoarsenError::Write(error.into()))?;
        let rewritten = rewrite(input, out)?;
        match self {
            Sink::InPlace(opened) => opened.replace_with(successor)?,
            Sink::Beside(replacement) => *replacement = successor,
        }
        Ok(Some(rewritten))
    }
}

struct FromStart<'a> {
    file: &'a File,
    at: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

impl OutputFile {
    /// Creates a file that can be read while it grows, or empties an older profile of that name.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn create(path: &Path, session: &SessionInfo) -> Result<OutputFile, OutputError> {
        OutputFile::begin(path, Sink::InPlace(destination::open(path, PROFILE)?), session)
    }

    /// Creates a file that appears, or replaces an older profile, when finished.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn replace(path: &Path, session: &SessionInfo) -> Result<OutputFile, OutputError> {
        OutputFile::begin(path, Sink::Beside(destination::replace(path, Some(PROFILE))?), session)
    }

    fn begin(path: &Path, sink: Sink, session: &SessionInfo) -> Result<OutputFile, OutputError> {
        let file = sink.file().try_clone();
        let file = file.map_err(|source| DestinationError::Open { path: path.to_owned(), source })?;
        let mut output = OutputFile {
            path: path.to_owned(),
            encoder: None,
            sink: Some(sink),
            written: Written::default(),
            retry_at: 0,
            bytes: 0,
            error: None,
            rewrite_error: None,
        };
        match Encoder::new(file, session) {
            Ok(encoder) => output.encoder = Some(encoder),
            Err(source) => output.fail(source),
        }
        Ok(output)
    }

    /// Checks that a path may be written, before a program runs in vain.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn check_contents(path: &Path) -> Result<(), OutputError> {
        Ok(destination::check(path, PROFILE, None)?)
    }

    /// As [`OutputFile::check_contents`], and checks the permission for [`OutputFile::create`] as far as directory and
    /// file show.
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn check_creatable(path: &Path) -> Result<(), OutputError> {
        Ok(destination::check(path, PROFILE, Some(WriteMode::InPlace))?)
    }

    /// As [`OutputFile::check_creatable`], for [`OutputFile::replace`].
    ///
    /// # Errors
    /// [`OutputError::Destination`].
    pub fn check_replaceable(path: &Path) -> Result<(), OutputError> {
        Ok(destination::check(path, PROFILE, Some(WriteMode::Replaced))?)
    }

    /// Starts the file again: what follows replaces what was written.
    pub fn restart(&mut self, session: &SessionInfo) {
        let (Some(encoder), Some(sink)) = (self.encoder.take(), &self.sink) else { return };
        self.written = Written::default();
        let restarted = encoder.get_ref().try_clone().and_then(|mut file| {
            if sink.is_named() {
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

    /// Writes an update. The first error is kept, and nothing is written after it.
    pub fn write(&mut self, update: &Update) {
        if self.written.is_long() && self.written.len() >= self.retry_at {
            self.coarsen();
        }
        let (Some(encoder), Some(sink)) = (&mut self.encoder, &self.sink) else { return };
        let result = encoder.write(update);
        self.bytes = encoder.bytes_written();
        if sink.is_named() {
            self.written.add(update, encoder);
        }
        if let Err(source) = result {
            self.fail(source);
        }
    }

    /// Merges intervals. After a failure the file grows by a quarter before the next attempt.
    fn coarsen(&mut self) {
        let (Some(encoder), Some(sink)) = (&mut self.encoder, &mut self.sink) else { return };
        self.retry_at = 0;
        self.rewrite_error = None;
        let written = &self.written;
        match sink.rewrite(encoder.bytes_written(), |input, out| coarsen(input, out, written, written.coarsened_len()))
        {
            Ok(Some(coarser)) => (*encoder, self.written) = coarser,
            Ok(None) => {}
            Err(error) => {
                self.retry_at = self.written.len().saturating_add(self.written.len() / 4);
                self.rewrite_error = Some(error);
            }
        }
    }

    /// Writes the end record and commits the file.
    pub fn finish(&mut self) {
        self.end(true);
    }

    /// Commits the file without an end record: its readers say that the rest is missing.
    pub fn finish_cut(&mut self) {
        self.end(false);
    }

    fn end(&mut self, is_whole: bool) {
        let (Some(encoder), Some(mut sink)) = (self.encoder.take(), self.sink.take()) else { return };
        let file = if is_whole { encoder.finish() } else { Ok(encoder.into_inner()) };
        let meta = match file.and_then(|file| Ok(file.metadata()?)) {
            Ok(meta) => meta,
            Err(source) => {
                self.sink = Some(sink);
                return self.fail(source);
            }
        };
        if sink.is_named() {
            if meta.nlink() == 0 || meta.len() < self.bytes {
                self.error = Some(OutputError::Disturbed { path: self.path.clone() });
            }
            self.bytes = meta.len();
        }
        if is_whole && sink.is_named() && self.error.is_none() && self.bytes <= COMPACTED_BYTES {
            // Who follows the longer file has read its end there. It stays where it cannot be replaced.
            let written = &self.written;
            let compacted = sink.rewrite(self.bytes, |input, mut out| {
                compact(input, &out, written)?;
                out.stream_position().map_err(|error| CoarsenError::Write(error.into()))
            });
            if let Ok(Some(bytes)) = compacted {
                self.bytes = bytes;
            }
        }
        if let Sink::Beside(replacement) = sink
            && self.error.is_none()
        {
            self.error = replacement.commit().err().map(OutputError::from);
        }
    }

    /// Whether this is a regular file with a name, which can be read again.
    pub fn is_named(&self) -> bool {
        self.sink.as_ref().is_some_and(Sink::is_named)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The error that ended writing.
    pub fn error(&self) -> Option<&OutputError> {
        self.error.as_ref()
    }

    /// The number of intervals and the error, if intervals could not be merged.
    pub fn unmerged(&self) -> Option<(usize, &RewriteError)> {
        self.rewrite_error.as_ref().map(|error| (self.written.len(), error))
    }

    fn fail(&mut self, source: EncodeError) {
        self.encoder = None;
        let path = self.path.clone();
        self.error = Some(match self.sink.take() {
            Some(Sink::Beside(_)) => OutputError::Replace { path, source },
            _ => OutputError::Write { path, source },
        });
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
