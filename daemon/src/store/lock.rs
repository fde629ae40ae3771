//! The lock on the state directory: one daemon per directory, which is no other user's and is still the same.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::lock_file::{self, LockError};
use crate::trusted_path;

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
    /// Another daemon uses it.
    #[error(transparent)]
    InUse(#[from] InUse),
    /// Another user could have the daemon write and remove files wherever it may.
    #[error(
        "{} is not safe for `state_dir`: {} belongs to user {owner}, who could put links in place of what ccsd keeps there; name a \
         directory of the daemon's user or of root",
        dir.display(),
        part.display()
    )]
    Stranger {
        /// The directory.
        dir: PathBuf,
        /// It, one above it, or a link on the way.
        part: PathBuf,
        /// Whose that is.
        owner: u32,
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
        check(dir)?;
        let _ = DirBuilder::new().recursive(true).mode(0o750).create(dir);
        // Others may have been faster.
        if let Some(part) = check(dir)? {
            let (dir, part) = (dir.display(), part.display());
            tracing::warn!("all users may change {part}: they can put links in place of what ccsd keeps in {dir}");
        }
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

fn check(dir: &Path) -> Result<Option<PathBuf>, StateDirError> {
    trusted_path::check(dir).map_err(|stranger| StateDirError::Stranger {
        dir: dir.to_owned(),
        part: stranger.part,
        owner: stranger.owner,
    })
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
        use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
        let dir = tempfile::tempdir().unwrap();
        let (shared, state) = (dir.path().join("shared"), dir.path().join("shared/state"));
        std::fs::create_dir_all(&state).unwrap();
        let set = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        for (mode, is_open) in [(0o777, true), (0o1777, false), (0o755, false)] {
            set(&shared, mode);
            assert_eq!(check(&state).unwrap(), is_open.then(|| shared.clone()), "{mode:o}");
        }
        set(&state, 0o1777);
        assert_eq!(check(&state).unwrap(), Some(state.clone()));
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let owner = Some(4_000_001);
        // In the directory of a stranger, by a link of his, and through his directory on the way.
        let at = |name: &str| dir.path().join(name);
        symlink(&state, at("his")).unwrap();
        symlink(at("other/link"), at("own")).unwrap();
        std::fs::create_dir(at("other")).unwrap();
        symlink(&state, at("other/link")).unwrap();
        assert!(StateLock::take(&at("own/deeper")).unwrap().is_some());
        lchown(at("his"), owner, None).unwrap();
        chown(at("other"), owner, None).unwrap();
        for path in [at("his"), at("own"), at("own/deeper"), at("other/state")] {
            let error = StateLock::take(&path).unwrap_err();
            assert!(error.to_string().contains(" belongs to user 4000001"), "{error}");
        }
        chown(&state, owner, None).unwrap();
        assert!(matches!(StateLock::take(&state), Err(StateDirError::Stranger { part, .. }) if part == state));
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
