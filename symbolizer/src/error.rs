//! Errors of images.

/// Why a file cannot be used as an image, or a part of it cannot be read. The profile then shows path and offsets.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Reading failed, or the file is shorter than when it was opened.
    #[error("cannot read: {0}")]
    Io(#[from] std::io::Error),
    /// A directory, FIFO, device or socket, which could block for ever.
    #[error("not a regular file")]
    NotRegular,
    /// The file does not begin with the ELF magic number, or is shorter than an ELF header.
    #[error("not an ELF file")]
    NotElf,
    /// An ELF file of an unsupported kind; the text names the field and its value.
    #[error("unsupported ELF file: {0}")]
    Unsupported(String),
    /// A header or section contradicts the file; the text names it.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    /// Something exceeds a limit in [`crate::limits`] and was not read.
    #[error("{what} of {size} bytes is above the limit of {limit} bytes")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The claimed size in bytes.
        size: u64,
        /// The limit, in bytes.
        limit: u64,
    },
    /// Reading it would take more memory or time than an image may.
    #[error("it takes more memory or time than the limit allows")]
    Spent,
    /// A compressed section contradicts its header, or uses an unknown method.
    #[error("cannot decompress a section: {0}")]
    Compression(&'static str),
}
