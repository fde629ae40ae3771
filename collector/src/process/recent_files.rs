//! The files of the last mappings, kept open for a moment, for programs that map the same few files ten thousand times
//! a
//! second.
//!
//! Looking for a file takes a dozen system calls. An open file's inode cannot be reused; whether it has been written to
//! is
//! asked each time.

use std::fs::File;

use ccsd_worker::FileKey;

use super::image::ImageIndex;
use super::mapped_file::MappedFile;

/// How many there are at most: programs that map many files once each gain nothing from more.
const MOST: usize = 8;

#[derive(Debug, Default)]
pub struct RecentFiles {
    list: Vec<RecentFile>,
    /// The one whose place is taken next.
    oldest: usize,
}

#[derive(Debug)]
struct RecentFile {
    pid: u32,
    device: (u32, u32),
    inode: u64,
    path: Box<[u8]>,
    file: File,
    key: FileKey,
    image: ImageIndex,
}

impl RecentFiles {
    pub fn image(&self, mapped: &MappedFile<'_>) -> Option<ImageIndex> {
        let is_it = |recent: &&RecentFile| {
            let RecentFile { pid, device, inode, path, .. } = recent;
            (*pid, *device, *inode, &**path) == (mapped.pid, mapped.device, mapped.inode, mapped.path)
        };
        let recent = self.list.iter().find(is_it)?;
        (ccsd_worker::file_key(&recent.file, Some(recent.pid)).ok()? == recent.key).then_some(recent.image)
    }

    pub fn keep(&mut self, mapped: &MappedFile<'_>, file: File, key: FileKey, image: ImageIndex) {
        let &MappedFile { pid, device, inode, path, .. } = mapped;
        let recent = RecentFile { pid, device, inode, path: path.into(), file, key, image };
        let same = |old: &RecentFile| (old.pid, old.device, old.inode, &old.path) == (pid, device, inode, &recent.path);
        if let Some(position) = self.list.iter().position(same) {
            self.list[position] = recent;
        } else if self.list.len() < MOST {
            self.list.push(recent);
        } else if let Some(place) = self.list.get_mut(self.oldest) {
            *place = recent;
            self.oldest = (self.oldest + 1) % MOST;
        }
    }

    pub fn clear(&mut self) {
        self.list.clear();
        self.oldest = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_known_until_it_changes_or_others_come() {
        let path = std::env::temp_dir().join(format!("ccsd-recent-{}", std::process::id()));
        std::fs::write(&path, "x").unwrap();
        let file = File::open(&path).unwrap();
        let meta = file.metadata().unwrap();
        let device = (libc::major(meta.dev()), libc::minor(meta.dev()));
        let path_bytes = path.as_os_str().as_bytes();
        let mapped =
            MappedFile { pid: 1, start: 0, end: 4096, device, inode: meta.ino(), build_id: &[], path: path_bytes };
        let key = ccsd_worker::file_key(&file, None).unwrap();
        let mut recent = RecentFiles::default();
        let keep = |recent: &mut RecentFiles, mapped: &MappedFile<'_>| {
            recent.keep(mapped, file.try_clone().unwrap(), key.clone(), ImageIndex(7));
        };
        keep(&mut recent, &mapped);
        assert_eq!(recent.image(&MappedFile { start: 8192, end: 9000, ..mapped }), Some(ImageIndex(7)));
        for other in [
            MappedFile { pid: 2, ..mapped },
            MappedFile { inode: mapped.inode + 1, ..mapped },
            MappedFile { device: (device.0 + 1, device.1), ..mapped },
            MappedFile { path: b"/other", ..mapped },
        ] {
            assert_eq!(recent.image(&other), None, "{other:?}");
        }
        // The same again takes no other's place; so many others do, and no more are kept.
        for _ in 0..2 * MOST {
            keep(&mut recent, &mapped);
        }
        (0..MOST as u32 - 1).for_each(|pid| keep(&mut recent, &MappedFile { pid: 100 + pid, ..mapped }));
        assert_eq!((recent.image(&mapped), recent.list.len()), (Some(ImageIndex(7)), MOST));
        keep(&mut recent, &MappedFile { pid: 200, ..mapped });
        assert_eq!((recent.image(&mapped), recent.list.len()), (None, MOST));
        keep(&mut recent, &mapped);
        std::fs::write(&path, "xy").unwrap();
        assert_eq!(recent.image(&mapped), None, "it is another one now");
        std::fs::remove_file(&path).unwrap();
    }
}
