//! Errors of destinations, and the contents that may be overwritten.

use std::io;
use std::path::PathBuf;

use crate::authority::user_name;

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum DestinationError {
    #[error("cannot create {}: {source}", path.display())]
    Open { path: PathBuf, source: io::Error },
    #[error("cannot write {}: {source}", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("{} is {kind}, no regular file: not written to; choose another name with -o", path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    #[error("{} exists and is {}: not overwritten; choose another name{}", path.display(), .contents.unlike, .contents.remedy)]
    Foreign { path: PathBuf, contents: AllowedContents },
    /// The file belongs to another user, who could read or alter the output.
    #[error("{} belongs to {}: not written to; remove it, or choose another name with -o", path.display(), user_name(*.owner))]
    Stranger { path: PathBuf, owner: u32 },
    /// The path leads through a symbolic link that another user may have put there.
    #[error(
        "{} leads through the symbolic link {}, {whose}: not followed; name the file that it leads to",
        path.display(), link.display()
    )]
    Link { path: PathBuf, link: PathBuf, whose: String },
    /// The file has several hard links, and other users can create names in its directory.
    #[error(
        "{} is one of {names} names of the same file (hard links), in a directory where others may make some: not written to; \
         remove it, or choose another name with -o",
        path.display()
    )]
    Linked { path: PathBuf, names: u64 },
    /// Another user replaced the file while it was opened or written.
    #[error(
        "{} was replaced by another program while ccsd was opening or writing it; choose a directory that only you can change",
        path.display()
    )]
    Changed { path: PathBuf },
    /// The name of a file being written refers to another file, or the file has another owner or several hard links.
    #[error("{} was moved or removed, has another owner, or other names (hard links)", path.display())]
    Displaced { path: PathBuf },
    #[error("{} is being written by another ccsd; choose another name with -o", path.display())]
    Busy { path: PathBuf },
}

/// Describes the contents that may be overwritten.
#[derive(Clone, Copy)]
pub struct AllowedContents {
    /// Whether a file that starts with these bytes may be overwritten.
    pub known: fn(&[u8]) -> bool,
    /// How messages describe a file that may not be overwritten.
    pub unlike: &'static str,
    /// The remedy that messages suggest after "choose another name".
    pub remedy: &'static str,
}

impl std::fmt::Debug for AllowedContents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.unlike)
    }
}
