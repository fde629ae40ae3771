//! The file behind a mapping: how it is found and opened, and what proves that it is the one.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ccsd_symbolizer::{Door, FileRoot, MountTable, mount_id};

use crate::pids::is_free;
use crate::procfs;

/// Appended by the kernel to the path of a file that has no name any more.
const DELETED: &[u8] = b" (deleted)";
/// How `/proc/PID/maps` writes a newline in a path. A backslash it leaves alone, so that this may be either.
const NEWLINE: &[u8] = b"\\012";

#[derive(Clone, Copy, Debug)]
pub struct MappedFile<'a> {
    pub pid: u32,
    pub start: u64,
    pub end: u64,
    /// Of the file system; major and minor number.
    pub device: (u32, u32),
    /// Inode number; 0 for what is no file, and for any file whose server (FUSE) says so.
    pub inode: u64,
    /// Its build id, where a recording has that in place of the inode; else empty.
    pub build_id: &'a [u8],
    /// Path or bracketed name, as the kernel prints it: any bytes but 0, perhaps with an ending or an escape of its own.
    pub path: &'a [u8],
}

impl MappedFile<'_> {
    pub fn name(&self) -> String {
        let path = self.path.strip_suffix(DELETED).unwrap_or(self.path);
        String::from_utf8_lossy(&unescape(path)).into_owned()
    }

    /// Opens the file through a door, or finds that it cannot be had.
    ///
    /// Tried in order: the path in the process's root, if device and inode match; the mapping itself (`map_files`,
    /// which survives deletion, replacement and other mount namespaces, if permitted); the path in the root by inode;
    /// the program that it runs; the path as such (the process has ended, or its root is below ours). A path must lead
    /// to the mapped inode, and outside the process's root also be on the same device. Only regular files are opened,
    /// without waiting.
    ///
    /// `map_files` is not first because it waits for the lock of the target's mappings, among many busy threads for
    /// seconds.
    pub fn open(&self, door: &Door) -> Option<File> {
        let opened = self.open_somewhere(door);
        if matches!(opened, Err(AccessDenied(true))) {
            door.withhold(&self.name());
        }
        opened.ok()
    }

    /// Whether this machine had the file that a process has mapped at this path, where it has been removed or replaced
    /// since. Waits for the lock of the process's mappings.
    pub fn was_there(pid: u32, start: u64, end: u64, path: &Path) -> bool {
        let link = PathBuf::from(format!("/proc/{pid}/map_files/{start:x}-{end:x}"));
        let Ok(linked) = fs::read_link(&link) else { return false };
        if linked.as_os_str().as_bytes().strip_suffix(DELETED) != Some(path.as_os_str().as_bytes()) {
            return false;
        }
        // In another mount, the path is one there.
        let handle = File::options().read(true).custom_flags(libc::O_PATH).open(&link);
        let Some(id) = handle.ok().and_then(mount_id) else { return false };
        let mut tables = ["/proc/self/mountinfo", "/proc/1/mountinfo"].into_iter().filter_map(MountTable::open);
        tables.any(|mut table| table.get(id).is_some())
    }

    fn open_somewhere(&self, door: &Door) -> Result<File, AccessDenied> {
        let paths = self.paths();
        let mut refused = AccessDenied(false);
        let mut is_open = |result: io::Result<File>| refused.file(result);
        let inode = |meta: &Metadata| meta.ino() == self.inode;
        let exact = |meta: &Metadata| inode(meta) && meta.dev() == self.device_number();
        let root_of = |pid: u32| FileRoot::at(&PathBuf::from(format!("/proc/{pid}/root")));
        let has_gone = is_free(self.pid);
        if let Some(path) = paths.first().filter(|_| !has_gone)
            && let Some(file) = is_open(root_of(self.pid).and_then(|root| door.open_if(&root, path, exact)))
        {
            return Ok(file);
        }
        // After the end of a main thread, its files are found at the others.
        let other = || procfs::threads(self.pid).ok()?.into_iter().find(|&tid| tid != self.pid);
        for pid in [Some(self.pid), None].into_iter().filter(|_| !has_gone) {
            let Some(pid) = pid.or_else(other) else { break };
            let proc = PathBuf::from(format!("/proc/{pid}"));
            let mapped = proc.join(format!("map_files/{:x}-{:x}", self.start, self.end));
            if let Some(file) = is_open(door.follow(&mapped, inode)) {
                return Ok(file);
            }
            if let Ok(root) = root_of(pid)
                && let Some(file) = paths.iter().find_map(|path| is_open(door.open_if(&root, path, inode)))
            {
                return Ok(file);
            }
            if let Some(file) = is_open(door.follow(&proc.join("exe"), inode)) {
                return Ok(file);
            }
        }
        for path in &paths {
            let file = is_open(door.open_if(&FileRoot::own(), path, inode));
            if let Some(file) = file.filter(|file| self.is_on_device(file)) {
                return Ok(file);
            }
        }
        Err(refused)
    }

    fn device_number(&self) -> u64 {
        libc::makedev(self.device.0, self.device.1)
    }

    /// The paths that the kernel may mean, the likeliest first; none where it is no path.
    fn paths(&self) -> Vec<PathBuf> {
        if !self.path.starts_with(b"/") {
            return Vec::new();
        }
        let mut paths: Vec<PathBuf> = Vec::new();
        for bytes in [self.path.strip_suffix(DELETED).unwrap_or(self.path), self.path] {
            for bytes in [bytes, &unescape(bytes)] {
                let path = PathBuf::from(OsStr::from_bytes(bytes));
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
        }
        paths
    }

    /// Whether a file is on the mapped device. btrfs gives `stat` a subvolume's device and mappings the whole's, as in
    /// the table of mounts.
    fn is_on_device(&self, file: &File) -> bool {
        let same = |device: u64| device == self.device_number();
        file.metadata().is_ok_and(|meta| same(meta.dev())) || mount_device(file).is_some_and(same)
    }
}

fn unescape(path: &[u8]) -> Vec<u8> {
    let mut rest = path;
    let mut plain = Vec::with_capacity(path.len());
    while let Some((&byte, tail)) = rest.split_first() {
        if let Some(tail) = rest.strip_prefix(NEWLINE) {
            plain.push(b'\n');
            rest = tail;
        } else {
            plain.push(byte);
            rest = tail;
        }
    }
    plain
}

/// The device of the file system that an open file is on, by the table of mounts: see proc_pid_mountinfo(5).
fn mount_device(file: &File) -> Option<u64> {
    let text = |path: &str| Some(String::from_utf8_lossy(&procfs::read(path).ok()?).into_owned());
    let information = text(&format!("/proc/self/fdinfo/{}", file.as_raw_fd()))?;
    let mount = information.lines().find_map(|line| line.strip_prefix("mnt_id:"))?.trim();
    let mounts = text("/proc/self/mountinfo")?;
    // id parent major:minor root ...
    let mut devices = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        (fields.next() == Some(mount)).then(|| fields.nth(1)).flatten()
    });
    let (major, minor) = devices.next()?.split_once(':')?;
    Some(libc::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Whether a file that cannot be had is one that the user may not read.
struct AccessDenied(bool);

impl AccessDenied {
    fn file(&mut self, result: io::Result<File>) -> Option<File> {
        self.0 |= result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        result.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn mapped<'a>(path: &'a Path, meta: &fs::Metadata) -> MappedFile<'a> {
        // No process has this number, so that only the path is left.
        let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let path = path.as_os_str().as_bytes();
        MappedFile { pid: u32::MAX - 10, start: 0x1000, end: 0x2000, device, inode: meta.ino(), build_id: &[], path }
    }

    fn directory(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("ccsd-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_fifo_is_not_opened() {
        let dir = directory("fifo");
        let fifo = dir.join("fifo");
        let _ = nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU);
        assert!(mapped(&fifo, &fs::metadata(&fifo).unwrap()).open(&Door::default()).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_path_is_believed_only_if_it_leads_to_the_file() {
        let dir = directory("mapped");
        let file = dir.join("file");
        fs::write(&file, "x").unwrap();
        let meta = fs::metadata(&file).unwrap();
        let right = mapped(&file, &meta);
        assert!(right.open(&Door::default()).is_some());
        assert!(MappedFile { inode: right.inode + 1, ..right }.open(&Door::default()).is_none());
        let (major, minor) = right.device;
        assert!(MappedFile { device: (major + 1, minor), ..right }.open(&Door::default()).is_none());
        assert!(MappedFile { device: (major, minor + 1), ..right }.open(&Door::default()).is_none());
        assert!(MappedFile { path: b"", ..right }.open(&Door::default()).is_none());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn any_bytes_make_a_path() {
        let dir = directory("bytes");
        let names: [(&[u8], &[u8]); 6] = [
            (b"a\nb", b"a\\012b"),
            (b"a\\012b", b"a\\012b"),
            (b"\xff\xfe", b"\xff\xfe"),
            (b"gone", b"gone (deleted)"),
            (b"so called (deleted)", b"so called (deleted)"),
            (b"both\n", b"both\\012 (deleted)"),
        ];
        for (name, printed) in names {
            let file = dir.join(OsStr::from_bytes(name));
            fs::write(&file, "x").unwrap();
            let meta = fs::metadata(&file).unwrap();
            let printed = dir.join(OsStr::from_bytes(printed));
            let found = mapped(&printed, &meta).open(&Door::default()).unwrap_or_else(|| panic!("{printed:?}"));
            assert_eq!(found.metadata().unwrap().ino(), meta.ino());
        }
        assert_eq!(mapped(Path::new("/x/a\\012b (deleted)"), &fs::metadata(&dir).unwrap()).name(), "/x/a\nb");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn mounts_have_devices() {
        let file = File::open("/proc/self/mountinfo").unwrap();
        assert_eq!(mount_device(&file), Some(file.metadata().unwrap().dev()));
    }
}
