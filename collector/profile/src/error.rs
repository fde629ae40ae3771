//! Typed errors.

use std::io;

use thiserror::Error;

/// Why an [`Update`](crate::Update) does not fit the profile it was to be applied to. The profile is unchanged then.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UpdateError {
    /// Some update before this one is missing, or this one was applied already.
    #[error("the update starts at {what} {found}, the profile has {expected}")]
    OutOfSequence {
        /// Which table.
        what: &'static str,
        /// What the update continues.
        found: u32,
        /// What the profile has.
        expected: u32,
    },
    /// An id that neither the profile nor the update defines.
    #[error("the update names {what} {id}, which does not exist")]
    UnknownId {
        /// Which table.
        what: &'static str,
        /// The id.
        id: u32,
    },
    /// The same thing twice.
    #[error("the update defines {what} {id} a second time")]
    Duplicate {
        /// Which table.
        what: &'static str,
        /// The second id.
        id: u32,
    },
    /// A context that no stack leads to.
    #[error("context {0} is not one that a push makes")]
    BadContext(u32),
    /// A route that no stack leads to.
    #[error("route {0} is not one that a push makes")]
    BadRoute(u32),
    /// A cost centre is named that has a name, or has been named.
    #[error("function {0} cannot be named later")]
    BadNaming(u32),
    /// More than the limits allow.
    #[error("the update brings the number of {what} beyond {limit}")]
    TooMany {
        /// Which table.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// The number of weights is not that of charges times metrics.
    #[error("the update carries {found} weights, {expected} are due")]
    WeightCount {
        /// In the update.
        found: usize,
        /// Charges times metrics.
        expected: usize,
    },
}

/// Why two profiles cannot be merged.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MergeError {
    /// Weights of different meaning cannot be added.
    #[error("the profiles measure different things: {0} and {1}")]
    Metrics(String, String),
}

/// Why a profile could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Writing failed.
    #[error("cannot write the profile: {0}")]
    Io(#[from] io::Error),
    /// A session record too large to be read again: a command line of tens of megabytes.
    #[error("a record of {0} bytes is larger than a record may be")]
    TooLarge(usize),
    /// More names of source files than a stream may have.
    #[error("the profile has more source files than a file can name")]
    TooManyFiles,
}

/// Why a file or stream is no profile, or cannot be read any further.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Reading failed.
    #[error("cannot read the profile: {0}")]
    Io(#[from] io::Error),
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// The magic is missing.
    #[error("not a ccsd profile")]
    NotAProfile,
    /// Cut within its first record, so that not even the session is known.
    #[error("the profile is cut off before its first record is complete")]
    NoSession,
    /// Written by a later version.
    #[error("the profile has format version {found}, this program reads up to version {supported}")]
    NewerVersion {
        /// In the file.
        found: u32,
        /// The newest version known.
        supported: u32,
    },
    /// A record is cut off: the stream ends within it.
    #[error("record {record} is cut off")]
    CutOff {
        /// Number of the record, from 0.
        record: u64,
    },
    /// The checksum of a record does not match.
    #[error("record {record} is damaged (checksum)")]
    Checksum {
        /// Number of the record, from 0.
        record: u64,
    },
    /// A record with a good checksum says something impossible.
    #[error("record {record} is malformed: {what}")]
    Malformed {
        /// Number of the record, from 0.
        record: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An update does not follow from those before it.
    #[error("record {record} does not fit: {source}")]
    Update {
        /// Number of the record, from 0.
        record: u64,
        /// Why.
        #[source]
        source: UpdateError,
    },
}
