//! Why a recording cannot be imported.

/// Why nothing can be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is no perf.data file, or is damaged.
    #[error("{0}; `perf script` may say more")]
    Damaged(String),
    /// It is one, but not one of this architecture, or without the event that is asked for.
    #[error("{0}")]
    Unsupported(String),
    /// There are no samples in it.
    #[error("it has no samples")]
    Empty,
}
