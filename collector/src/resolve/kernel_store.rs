//! The kernel's own functions, kept in a file until the next boot.
//!
//! Root's alone: others may not know kernel addresses, or may lose the right. Used only with a valid checksum and this
//! boot's id.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use ccsd_symbolizer::KernelSymbols;

/// Where it is. Not where a user's own files are: with sudo those are another user's.
const DIRECTORY: &str = "/var/cache/ccsd";
const FILE: &str = "kernel-symbols";
/// Bytes read at most: 120,000 functions take 5 MB.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of the kernel's list searched for its first function: before Linux 6.15, some hundred per-CPU names come
/// first.
const BEGINNING: u64 = 64 << 10;

/// What was kept in this boot.
pub fn load() -> Option<KernelSymbols> {
    if !nix::unistd::geteuid().is_root() {
        return None;
    }
    let symbols = KernelSymbols::from_stored(read(Path::new(DIRECTORY))?, &boot_id()?)?;
    // What it says is what the kernel says, to this process, now: it may have lost the right to know since.
    let mut beginning = Vec::new();
    File::open("/proc/kallsyms").ok()?.take(BEGINNING).read_to_end(&mut beginning).ok()?;
    let now = KernelSymbols::read(&beginning[..]).ok()?;
    let first = now.first()?;
    (symbols.first() == Some(first)).then_some(symbols)
}

pub fn save(symbols: &KernelSymbols) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    if let Some(stored) = boot_id().and_then(|id| symbols.to_stored(&id)) {
        let _ = write(Path::new(DIRECTORY), &stored);
    }
}

fn boot_id() -> Option<String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

fn read(directory: &Path) -> Option<Vec<u8>> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(directory.join(FILE))
        .ok()?;
    let meta = file.metadata().ok()?;
    let ours = meta.uid() == nix::unistd::geteuid().as_raw() && meta.mode() & 0o022 == 0;
    if !meta.is_file() || !ours || meta.len() > MAX_BYTES {
        return None;
    }
    let mut stored = Vec::with_capacity(usize::try_from(meta.len()).ok()?);
    file.take(MAX_BYTES).read_to_end(&mut stored).ok()?;
    Some(stored)
}

fn write(directory: &Path, stored: &[u8]) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    // Two that write at once write the same; one that is read while it is written has not the right checksum.
    let new = directory.join(format!("{FILE}.new"));
    let mut file: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(&new)?;
    let written = file.write_all(stored).and_then(|()| fs::rename(&new, directory.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn written_symbols_are_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below");
        assert_eq!(read(&below), None);
        write(&below, b"one").unwrap();
        write(&below, b"another").unwrap();
        assert_eq!(read(&below).as_deref(), Some(&b"another"[..]));
        let file = below.join(FILE);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        assert!(!below.join("kernel-symbols.new").exists());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o622)).unwrap();
        assert_eq!(read(&below), None);
        fs::rename(&file, below.join("moved")).unwrap();
        fs::set_permissions(below.join("moved"), fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(below.join("moved"), &file).unwrap();
        assert_eq!(read(&below), None);
    }
}
