//! The lock on the state directory: one daemon per directory, the directory is still the same, and nobody else decides what
//! is in it.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::unistd::getegid;

use crate::authority::user_name;
use crate::destination::is_trusted;
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

/// Why a state directory is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another daemon does.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// Others could have the daemon write and remove files wherever it may.
    #[error(
        "{} is not safe for `state_dir`: {} {why}, who could put links in place of what ccsd keeps there; name a directory \
         that only the daemon's user may change",
        dir.display(),
        part.display()
    )]
    OfOthers {
        /// The directory.
        dir: PathBuf,
        /// It, or one above it.
        part: PathBuf,
        /// Who may change that.
        why: String,
    },
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
    pub fn take(dir: &Path) -> Result<Option<StateLock>, StateDirError> {
        // Neither is anything created below a directory of others.
        check_owners(dir)?;
        let _ = DirBuilder::new().recursive(true).mode(0o750).create(dir);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o640).custom_flags(libc::O_NOFOLLOW);
        match lock_file::lock(&dir.join(NAME), &options) {
            Ok(file) => Ok(Some(StateLock { dir: dir.to_owned(), file })),
            Err(LockError::Held(pid)) => Err(InUse { dir: dir.to_owned(), pid }.into()),
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

/// Checks that neither a directory nor one above it, as named and where links lead, is others' to change.
fn check_owners(dir: &Path) -> Result<(), StateDirError> {
    let there = dir.ancestors().find_map(|part| part.canonicalize().ok());
    for path in [Some(dir), there.as_deref()].into_iter().flatten() {
        for part in path.ancestors() {
            let Ok(meta) = part.metadata() else { continue };
            if let Some(why) = changed_by(&meta, part == dir) {
                return Err(StateDirError::OfOthers { dir: dir.to_owned(), part: part.to_owned(), why });
            }
        }
    }
    Ok(())
}

/// Who else may change what is in a directory; in one with the sticky bit (inode(7)), which `is_last` forbids, that is only
/// each file's owner.
fn changed_by(meta: &Metadata, is_last: bool) -> Option<String> {
    let keeps_owners = meta.mode() & 0o1000 != 0 && !is_last;
    match meta.mode() {
        _ if !is_trusted(meta.uid()) => Some(format!("belongs to {}", user_name(meta.uid()))),
        mode if mode & 0o002 != 0 && !keeps_owners => Some("may be changed by all users".to_owned()),
        // A user may have a group of his own.
        mode if mode & 0o020 != 0 && !keeps_owners && meta.gid() != 0 && meta.gid() != getegid().as_raw() => {
            Some(format!("may be changed by group {}", meta.gid()))
        }
        _ => None,
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
        assert!(matches!(&refused, StateDirError::InUse(by) if by.pid == Some(std::process::id())));
        assert!(refused.to_string().contains("state_dir"), "{refused}");
        drop(first);
        assert!(StateLock::take(&state).unwrap().is_some());
        assert!(StateLock::take(Path::new("/proc/none")).unwrap().is_none(), "who cannot write says so elsewhere");
    }

    #[test]
    fn nobody_else_may_change_what_is_there() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (shared, state) = (dir.path().join("shared"), dir.path().join("shared/state"));
        std::fs::create_dir(&shared).unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        for (mode, is_safe) in [(0o777, false), (0o1777, true), (0o755, true)] {
            set(&shared, mode);
            let taken = StateLock::take(&state);
            assert_eq!(taken.is_ok(), is_safe, "{mode:o}: {taken:?}");
        }
        std::os::unix::fs::symlink(&state, dir.path().join("link")).unwrap();
        set(&shared, 0o777);
        assert!(StateLock::take(&dir.path().join("link/deeper")).is_err());
        set(&shared, 0o755);
        set(&state, 0o1777);
        let error = StateLock::take(&state).unwrap_err();
        assert!(error.to_string().contains("may be changed by all users"), "{error}");
        if nix::unistd::geteuid().is_root() {
            set(&state, 0o750);
            std::os::unix::fs::chown(&shared, Some(4_000_001), None).unwrap();
            let error = StateLock::take(&state).unwrap_err();
            assert!(error.to_string().contains("shared belongs to user 4000001"), "{error}");
        }
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
