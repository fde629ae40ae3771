//! A copy of the last good configuration, with which the service starts if the file is refused.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, ConfigError, DEFAULT_PATH, read};

const NAME: &str = "last-good.toml";

/// Where the copy is.
#[derive(Clone, Debug)]
pub struct LastGood(PathBuf);

impl LastGood {
    /// The copy in a directory that only the service may write.
    #[must_use]
    pub fn in_dir(dir: &Path) -> LastGood {
        LastGood(dir.join(NAME))
    }

    /// The copy in systemd's state directory of the service; `None` if systemd did not start this process.
    #[must_use]
    pub fn for_service() -> Option<LastGood> {
        let dirs = std::env::var("STATE_DIRECTORY").ok()?;
        let first = dirs.split(':').next().filter(|dir| Path::new(dir).is_absolute())?;
        Some(LastGood::in_dir(Path::new(first)))
    }

    /// Path of the copy.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads a configuration file, whose default path may have no file, and keeps a copy if it is good.
    ///
    /// # Errors
    /// That the file is refused.
    pub fn read(this: Option<&LastGood>, path: &Path) -> Result<Config, ConfigError> {
        let text = match read(path) {
            Err(ConfigError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound && path == Path::new(DEFAULT_PATH) =>
            {
                Vec::new()
            }
            other => other?,
        };
        let config = Config::parse(&text, path)?;
        if let Some(LastGood(copy)) = this
            && let Err(error) = replace(copy, &text)
        {
            tracing::warn!("cannot keep a copy of the configuration in {}: {error}", copy.display());
        }
        Ok(config)
    }

    /// The configuration in the copy, if there is one.
    #[must_use]
    pub fn load(&self) -> Option<Config> {
        Config::load(&self.0).ok()
    }
}

fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("part");
    // May be left over from a crash.
    let _ = fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o640).open(&temporary)?;
    file.write_all(text)?;
    // An empty copy after a power failure would be a good configuration without watches.
    file.sync_data()?;
    fs::rename(&temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_file_leaves_the_copy() {
        let dir = tempfile::tempdir().unwrap();
        let last = LastGood::in_dir(dir.path());
        assert!(last.load().is_none());
        let file = dir.path().join("ccsd.toml");
        let text = "[[watch]]\nname = \"a\"\ncomm = \"a\"\n";
        fs::write(&file, text).unwrap();
        assert_eq!(LastGood::read(Some(&last), &file).unwrap().watches.len(), 1);
        fs::write(&file, "watch = 1\n").unwrap();
        assert!(LastGood::read(Some(&last), &file).is_err());
        assert_eq!(fs::read_to_string(last.path()).unwrap(), text);
        assert_eq!(last.load().unwrap().watches.first().unwrap().name.0, "a");
        // Without a place for a copy the file is read all the same.
        fs::write(&file, "").unwrap();
        let nowhere = LastGood::in_dir(Path::new("/nonexistent"));
        assert!(LastGood::read(Some(&nowhere), &file).is_ok() && LastGood::read(None, &file).is_ok());
    }
}
