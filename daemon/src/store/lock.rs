//! The lock on the state directory: one daemon per directory, and the directory is still the same.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::lock_file::{self, LockError};

const NAME: &str = ".daemon";

/// Another daemon uses the state directory.
#[derive(Debug, thiserror::Error)]
#[error("another ccsd daemon{} keeps its profiles in {}; stop it, or name another `state_dir`", told(*pid), dir.display())]
pub struct InUse {
    /// The directory.
    pub dir: PathBuf,
    /// Process id of the other daemon, if known.
    pub pid: Option<u32>,
}

fn told(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (PID {pid})"))
}

/// The lock on a state directory, until dropped.
#[derive(Debug)]
pub struct StateLock {
    dir: PathBuf,
    file: File,
}

impl StateLock {
    /// Locks the directory, and creates it if needed. `None` if that fails: writing will report why.
    pub fn take(dir: &Path) -> Result<Option<StateLock>, InUse> {
        let _ = DirBuilder::new().recursive(true).mode(0o750).create(dir);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o640).custom_flags(libc::O_NOFOLLOW);
        match lock_file::lock(&dir.join(NAME), &options) {
            Ok(file) => Ok(Some(StateLock { dir: dir.to_owned(), file })),
            Err(LockError::Held(pid)) => Err(InUse { dir: dir.to_owned(), pid }),
            Err(LockError::Io(_)) => Ok(None),
        }
    }

    /// The locked directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Whether the path still refers to the locked directory.
    #[must_use]
    pub fn is_there(&self) -> bool {
        let (Ok(own), Ok(there)) = (self.file.metadata(), self.dir.join(NAME).symlink_metadata()) else { return false };
        (own.dev(), own.ino()) == (there.dev(), there.ino())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_has_one_daemon() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        let first = StateLock::take(&state).unwrap().unwrap();
        let refused = StateLock::take(&state).unwrap_err();
        assert_eq!(refused.pid, Some(std::process::id()));
        assert!(refused.to_string().contains("state_dir"), "{refused}");
        drop(first);
        assert!(StateLock::take(&state).unwrap().is_some());
        assert!(StateLock::take(Path::new("/proc/none")).unwrap().is_none(), "who cannot write says so elsewhere");
    }

    #[test]
    fn another_directory_is_another() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let lock = StateLock::take(&state).unwrap().unwrap();
        assert!(lock.is_there());
        std::fs::rename(&state, dir.path().join("moved")).unwrap();
        assert!(!lock.is_there());
        let other = StateLock::take(&state).unwrap().unwrap();
        assert!(other.is_there() && !lock.is_there());
    }
}
