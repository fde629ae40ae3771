//! Bytes of one file, read by position.
//!
//! Files are read with `pread(2)` and never mapped: a file that is truncated while it is mapped kills the process
//! that touches the lost pages with SIGBUS, and the files read here belong to the programs being profiled. With
//! `pread` the same event is an error value.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::ImageError;

/// Where the bytes of an image come from.
#[derive(Debug)]
pub(crate) enum ImageSource {
    /// A regular file and its size when it was opened.
    File(File, u64),
    /// Bytes that were never in a file (the vdso).
    Bytes(Arc<[u8]>),
}

impl ImageSource {
    pub(crate) fn from_file(file: File) -> Result<ImageSource, ImageError> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ImageError::NotRegular);
        }
        let len = metadata.len();
        Ok(ImageSource::File(file, len))
    }

    /// The size in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            ImageSource::File(_, len) => *len,
            ImageSource::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Reads `size` bytes at `offset`. Nothing is allocated unless they lie inside the file and under `limit`, so a
    /// claim in a header cannot make us allocate more than the file is long.
    pub(crate) fn read(&self, what: &'static str, offset: u64, size: u64, limit: u64) -> Result<Arc<[u8]>, ImageError> {
        let end = offset.checked_add(size).ok_or(ImageError::Malformed(what))?;
        if end > self.len() {
            return Err(ImageError::Malformed(what));
        }
        if size > limit {
            return Err(ImageError::TooLarge { what, size, limit });
        }
        let len = usize::try_from(size).map_err(|_| ImageError::Malformed(what))?;
        match self {
            ImageSource::File(file, _) => {
                // Collecting an exact-size iterator makes the Arc in one allocation; it is then filled in place.
                let mut bytes: Arc<[u8]> = std::iter::repeat_n(0u8, len).collect();
                if let Some(buffer) = Arc::get_mut(&mut bytes) {
                    file.read_exact_at(buffer, offset)?;
                }
                Ok(bytes)
            }
            ImageSource::Bytes(all) => {
                let start = usize::try_from(offset).map_err(|_| ImageError::Malformed(what))?;
                let part = all.get(start..).and_then(|rest| rest.get(..len));
                Ok(Arc::from(part.ok_or(ImageError::Malformed(what))?))
            }
        }
    }
}
