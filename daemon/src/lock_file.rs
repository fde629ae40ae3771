//! Lock files: of a daemon's socket, and of its directory of profiles.
//!
//! The kernel releases a lock when the last thread of its process has ended. One that waits for a file system that a
//! program serves may never end, whatever signal it gets. So a lock counts for nothing if its process has been killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ccsd_collector::procfs;

/// Bytes read of a lock file, in which is its process's number.
const MAX_BYTES: u64 = 32;
/// Times that a file may turn out to have been removed by a daemon that ends.
const ATTEMPTS: usize = 10;

#[derive(Debug)]
pub enum LockError {
    /// Another process has it: its number, if known.
    Held(Option<u32>),
    /// The file cannot be made or locked.
    Io(io::Error),
}

/// Makes and locks a file, for as long as it is open. `options` are those of opening it to read and write.
pub fn lock(path: &Path, options: &OpenOptions) -> Result<File, LockError> {
    let mut holder = None;
    for _ in 0..ATTEMPTS {
        let mut file = options.open(path).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => {
                // For messages, and for who finds that this process does not end.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(file);
            }
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
            Err(TryLockError::WouldBlock) => {
                holder = number_in(&mut file);
                if !holder.is_some_and(procfs::is_zombie) {
                    return Err(LockError::Held(holder));
                }
                remove(&file, path).map_err(LockError::Io)?;
            }
        }
    }
    Err(LockError::Held(holder))
}

/// Removes the file that a dead process has locked, unless another one has its place already.
fn remove(file: &File, path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Of several daemons that start at once, one looks and removes at a time.
    let directory = File::open(directory)?;
    directory.lock()?;
    if is_at(file, path) { std::fs::remove_file(path) } else { Ok(()) }
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

fn number_in(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_has_died_holds_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let mut first = lock(&path, &options).unwrap();
        let own = std::process::id();
        assert!(matches!(lock(&path, &options), Err(LockError::Held(Some(pid))) if pid == own));
        // As a process that was killed leaves it, one thread of which goes on: it has not been waited for.
        let mut dead = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        dead.stdout.as_mut().unwrap().read_to_end(&mut Vec::new()).unwrap();
        while !procfs::is_zombie(dead.id()) {
            std::thread::yield_now();
        }
        first.set_len(0).unwrap();
        first.rewind().unwrap();
        writeln!(first, "{}", dead.id()).unwrap();
        let second = lock(&path, &options).unwrap();
        assert!(!is_at(&first, &path) && is_at(&second, &path));
        assert!(matches!(lock(&path, &options), Err(LockError::Held(Some(pid))) if pid == own));
        // What it removes late is not the other's.
        remove(&first, &path).unwrap();
        assert!(is_at(&second, &path));
        dead.wait().unwrap();
        drop(second);
        assert!(lock(&path, &options).is_ok());
    }
}
