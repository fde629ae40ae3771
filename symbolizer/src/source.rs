//! The bytes of a file, read with `pread(2)` and never mapped: truncating a mapped file would kill the process with
//! SIGBUS.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::error::ImageError;
use crate::meter;

#[derive(Debug)]
pub(crate) enum ImageSource {
    /// A regular file and its size when opened.
    File(File, u64),
    /// A file that another process reads: here it is only passed on.
    Handle(File),
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

    pub(crate) fn len(&self) -> u64 {
        match self {
            ImageSource::File(_, len) => *len,
            ImageSource::Handle(_) => 0,
            ImageSource::Bytes(bytes) => bytes.len() as u64,
        }
    }

    /// Reads `size` bytes at `offset`, checked against the file and `limit` before allocating.
    pub(crate) fn read(&self, what: &'static str, offset: u64, size: u64, limit: u64) -> Result<Arc<[u8]>, ImageError> {
        let end = offset.checked_add(size).ok_or(ImageError::Malformed(what))?;
        if end > self.len() {
            return Err(ImageError::Malformed(what));
        }
        if size > limit {
            return Err(ImageError::TooLarge { what, size, limit });
        }
        let spent = |meter::Spent| ImageError::Spent;
        meter::reserve(size).map_err(spent)?;
        let len = usize::try_from(size).map_err(|_| ImageError::Malformed(what))?;
        meter::spend(meter::steps_of(len)).map_err(spent)?;
        match self {
            ImageSource::File(file, _) => {
                // Collecting an exact-size iterator allocates the Arc once; it is then filled in place.
                let mut bytes: Arc<[u8]> = std::iter::repeat_n(0u8, len).collect();
                if let Some(buffer) = Arc::get_mut(&mut bytes) {
                    file.read_exact_at(buffer, offset)?;
                }
                Ok(bytes)
            }
            ImageSource::Handle(_) => Err(ImageError::Malformed(what)),
            ImageSource::Bytes(all) => {
                let start = usize::try_from(offset).map_err(|_| ImageError::Malformed(what))?;
                let part = all.get(start..).and_then(|rest| rest.get(..len));
                Ok(Arc::from(part.ok_or(ImageError::Malformed(what))?))
            }
        }
    }
}
