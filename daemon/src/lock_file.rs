//! Lock files: of a daemon's socket, and of its directory of profiles.
//!
//! The kernel releases a lock when the last thread of its process has ended. One that waits for a file system that a
//! program serves may never end, whatever signal it gets. So a lock counts for nothing if its process has been killed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use ccsd_collector::procfs;

/// Bytes read of a lock file.
const MAX_BYTES: u64 = 64;
/// Times that a file may turn out to have been removed by a daemon that ends.
const ATTEMPTS: usize = 10;

/// For how long a lock must seem to be a dead process's, and a new one must hold: of several daemons that start at once, one
/// remains.
const SETTLED: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub enum LockError {
    /// Another process has it: its number, if known.
    Held(Option<u32>),
    /// The file cannot be made or locked.
    Io(io::Error),
}

/// Who has locked a file, as is written in it: the process's number, and the number of the namespace in which it has that.
type Holder = (u32, u64);

/// Makes and locks a file, for as long as it is open. `options` are those of opening it to read and write.
pub fn lock(path: &Path, options: &OpenOptions) -> Result<File, LockError> {
    let (mut holder, mut dead) = (None, None);
    for _ in 0..ATTEMPTS {
        let mut file = options.open(path).map_err(LockError::Io)?;
        match file.try_lock() {
            Ok(()) if is_at(&file, path) => {
                // For messages, and for who finds that this process does not end.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{} {}", std::process::id(), own_namespace()));
                if dead.is_some() {
                    std::thread::sleep(SETTLED);
                }
                if is_at(&file, path) {
                    return Ok(file);
                }
            }
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(LockError::Io(error)),
            Err(TryLockError::WouldBlock) => {
                holder = holder_in(&mut file);
                let killed = holder.filter(|&(pid, of)| of == own_namespace() && procfs::is_zombie(pid));
                match killed {
                    None => break,
                    // The number may be that of the one before, and not written yet.
                    Some(_) if killed != dead => {
                        dead = killed;
                        std::thread::sleep(SETTLED);
                    }
                    Some(_) if is_at(&file, path) => std::fs::remove_file(path).map_err(LockError::Io)?,
                    Some(_) => {}
                }
            }
        }
    }
    Err(LockError::Held(holder.map(|(pid, _)| pid)))
}

fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(own), Ok(there)) = (file.metadata(), path.symlink_metadata()) else { return false };
    (own.dev(), own.ino()) == (there.dev(), there.ino())
}

fn holder_in(file: &mut File) -> Option<Holder> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
    let mut words = text.split_ascii_whitespace();
    // Earlier versions wrote no namespace.
    Some((words.next()?.parse().ok()?, words.next().and_then(|word| word.parse().ok()).unwrap_or(0)))
}

/// The number of this process's PID namespace; 0 if it is not known.
fn own_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino())
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
        writeln!(first, "{} {}", dead.id(), own_namespace()).unwrap();
        let second = lock(&path, &options).unwrap();
        assert!(!is_at(&first, &path) && is_at(&second, &path));
        assert!(matches!(lock(&path, &options), Err(LockError::Held(Some(pid))) if pid == own));
        dead.wait().unwrap();
        drop(second);
        assert!(lock(&path, &options).is_ok());
    }
}
