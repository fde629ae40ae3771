//! Files with random names that only this user can read.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::Uid;
use tempfile::{Builder, NamedTempFile, TempDir};

const PREFIX: &str = "page-";
const SUFFIX: &str = ".html";
const RANDOM: usize = 16;
/// Age at which pages of earlier commands are removed: the folder is in memory.
const KEPT: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_FILES: usize = 1_000;

pub fn write(page: &[u8]) -> io::Result<PathBuf> {
    let PrivateFile { file, folder } = PrivateFile::write(page)?;
    let (_, path) = file.keep()?;
    if let Folder::New(dir) = folder {
        let _ = dir.keep();
    }
    Ok(path)
}

/// A file with mode 0600 in a folder of this user alone, until it is dropped.
struct PrivateFile {
    /// Before the folder, so that it is removed first.
    file: NamedTempFile,
    folder: Folder,
}

enum Folder {
    Runtime(PathBuf),
    New(TempDir),
}

impl PrivateFile {
    fn write(content: &[u8]) -> io::Result<PrivateFile> {
        let folder = folder()?;
        let dir = match &folder {
            Folder::Runtime(dir) => dir,
            Folder::New(dir) => dir.path(),
        };
        let mut file = Builder::new().prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM).tempfile_in(dir)?;
        file.write_all(content)?;
        Ok(PrivateFile { file, folder })
    }
}

fn folder() -> io::Result<Folder> {
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| is_private(dir)) {
        let dir = runtime.join("ccsd");
        // The user's daemon may have made the folder already.
        let _ = DirBuilder::new().mode(0o700).create(&dir);
        if is_private(&dir) {
            remove_old(&dir);
            return Ok(Folder::Runtime(dir));
        }
    }
    let new = Builder::new().prefix("ccsd-").rand_bytes(RANDOM).permissions(Permissions::from_mode(0o700)).tempdir()?;
    Ok(Folder::New(new))
}

/// Whether a path is a folder, no link to one, that only this user can read and change.
fn is_private(dir: &Path) -> bool {
    dir.is_absolute()
        && fs::symlink_metadata(dir)
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == Uid::effective().as_raw() && meta.mode() & 0o077 == 0)
}

fn remove_old(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.take(MOST_FILES).flatten() {
        let name = entry.file_name();
        let is_page = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let modified = entry.metadata().ok().filter(|meta| meta.is_file()).and_then(|meta| meta.modified().ok());
        let is_old = modified.is_some_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > KEPT));
        if is_page && is_old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A page that leads to an address, until it is dropped.
pub struct Redirect(PrivateFile);

impl Redirect {
    /// Writes it. The address is one that this program made: it needs no escapes.
    pub fn write(address: &str) -> io::Result<Redirect> {
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>ccsd</title><meta name=\"referrer\" \
             content=\"no-referrer\"><meta http-equiv=\"refresh\" content=\"0; url={address}\"><a href=\"{address}\">the \
             profile</a>\n"
        );
        PrivateFile::write(page.as_bytes()).map(Redirect)
    }

    pub fn path(&self) -> &Path {
        self.0.file.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_folders_are_taken() {
        let dir = Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
        assert!(is_private(dir.path()));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!is_private(&link) && !is_private(Path::new("relative")) && !is_private(&dir.path().join("none")));
        fs::set_permissions(dir.path(), Permissions::from_mode(0o750)).unwrap();
        assert!(!is_private(dir.path()));
        assert!(!is_private(Path::new("/tmp")));
    }

    #[test]
    fn old_pages_go_and_other_files_stay() {
        let dir = Builder::new().tempdir().unwrap();
        let make = |name: &str, age: Duration| {
            let file = fs::File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
        };
        make("page-old.html", KEPT * 2);
        make("page-new.html", KEPT / 2);
        make("ccsd.sock", KEPT * 2);
        remove_old(dir.path());
        let mut left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["ccsd.sock", "page-new.html"]);
    }
}
