//! The files of the last mappings, kept open for a moment: where thousands of processes start in a second, they map the
//! same few files.
//!
//! Looking for a file takes a dozen system calls. An open file's inode cannot be reused; whether it has been written to
//! is asked each time. Processes in other mount namespaces have it from somebody else, so they look for it themselves.

use std::fs::File;

use ccsd_worker::{FileKey, Principal};

use super::image::ImageIndex;
use super::mapped_file::MappedFile;
use super::process_files::FoundFile;
use crate::{other_process, procfs};

/// How many there are at most: a compiler, an assembler and a shell with their libraries. Programs that map many files once
/// each gain nothing from more.
const MOST: usize = 24;

#[derive(Debug, Default)]
pub struct RecentFiles {
    /// Of root's and the session's own processes.
    own: RecentList,
    /// Of others, whose files take no places of those.
    others: RecentList,
}

#[derive(Debug, Default)]
struct RecentList {
    files: Vec<RecentFile>,
    /// The one whose place is taken next.
    oldest: usize,
}

#[derive(Debug)]
struct RecentFile {
    /// The mount namespace of its process; none of one that had ended, whose files are those of ccsd's own namespace.
    namespace: Option<u64>,
    device: (u32, u32),
    inode: u64,
    path: Box<[u8]>,
    file: File,
    key: FileKey,
    image: ImageIndex,
    /// The user whose processes alone see it there; see [`MappedImage::shown_by`](super::image::MappedImage::shown_by).
    shown_to: Option<Principal>,
}

impl RecentFiles {
    /// The image of a file that a process of `user` maps.
    pub fn image(&self, mapped: &MappedFile<'_>, user: impl Fn() -> Option<Principal>) -> Option<ImageIndex> {
        let is_file = |it: &&RecentFile| (it.device, it.inode, &*it.path) == (mapped.device, mapped.inode, mapped.path);
        let known: Vec<(Option<u64>, File, FileKey, ImageIndex)> = (self.own.files.iter().chain(&self.others.files))
            .filter(is_file)
            .filter(|it| it.shown_to.is_none_or(|shown_to| user() == Some(shown_to)))
            .filter_map(|it| Some((it.namespace, it.file.try_clone().ok()?, it.key.clone(), it.image)))
            .collect();
        if known.is_empty() {
            return None;
        }
        let pid = mapped.pid;
        other_process::ask(pid, move || {
            let namespace = procfs::mount_namespace(pid);
            let (_, file, key, image) = known.into_iter().find(|(of, ..)| *of == namespace)?;
            (ccsd_worker::file_key(&file, Some(pid)).ok()? == key).then_some(image)
        })
        .flatten()
    }

    /// Keeps the file that a process of `user` has mapped; `None` for root's and the session's own.
    pub fn keep(
        &mut self,
        mapped: &MappedFile<'_>,
        FoundFile { key, file, namespace }: FoundFile,
        image: ImageIndex,
        (user, shown_to): (Option<Principal>, Option<Principal>),
    ) {
        let &MappedFile { device, inode, path, .. } = mapped;
        let recent = RecentFile { namespace, device, inode, path: path.into(), file, key, image, shown_to };
        let list = if user.is_some() { &mut self.others } else { &mut self.own };
        let same = |old: &RecentFile| {
            (old.namespace, old.device, old.inode, &old.path, old.shown_to)
                == (namespace, device, inode, &recent.path, shown_to)
        };
        if let Some(position) = list.files.iter().position(same) {
            list.files[position] = recent;
        } else if list.files.len() < MOST {
            list.files.push(recent);
        } else if let Some(place) = list.files.get_mut(list.oldest) {
            *place = recent;
            list.oldest = (list.oldest + 1) % MOST;
        }
    }

    pub fn clear(&mut self) {
        *self = RecentFiles::default();
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
        let pid = std::process::id();
        let mapped =
            MappedFile { pid, start: 0, end: 4096, device, inode: meta.ino(), build_id: &[], path: path_bytes };
        let key = ccsd_worker::file_key(&file, None).unwrap();
        let mut recent = RecentFiles::default();
        let found = |pid| FoundFile {
            key: key.clone(),
            file: file.try_clone().unwrap(),
            namespace: procfs::mount_namespace(pid),
        };
        let keep = |recent: &mut RecentFiles, mapped: &MappedFile<'_>| {
            recent.keep(mapped, found(mapped.pid), ImageIndex(7), (None, None));
        };
        let image = |recent: &RecentFiles, mapped: &MappedFile<'_>| recent.image(mapped, || None);
        keep(&mut recent, &mapped);
        assert_eq!(image(&recent, &MappedFile { start: 8192, end: 9000, ..mapped }), Some(ImageIndex(7)));
        // Another process maps it, too.
        assert_eq!(
            image(&recent, &MappedFile { pid: std::os::unix::process::parent_id(), ..mapped }),
            Some(ImageIndex(7))
        );
        for other in [
            MappedFile { pid: u32::MAX - 10, ..mapped },
            MappedFile { inode: mapped.inode + 1, ..mapped },
            MappedFile { device: (device.0 + 1, device.1), ..mapped },
            MappedFile { path: b"/other", ..mapped },
        ] {
            assert_eq!(image(&recent, &other), None, "{other:?}");
        }
        let ended = MappedFile { pid: u32::MAX - 10, ..mapped };
        keep(&mut recent, &ended);
        assert_eq!(image(&recent, &MappedFile { pid: u32::MAX - 11, ..ended }), Some(ImageIndex(7)));
        recent.own.files.pop();
        recent.own.files[0].namespace = Some(1);
        assert_eq!(image(&recent, &mapped), None, "those of another mount namespace have it from elsewhere");
        recent.clear();
        let (user, other) = (Principal::User(7), Principal::User(8));
        recent.keep(&mapped, found(pid), ImageIndex(9), (Some(user), Some(user)));
        let images = [None, Some(other), Some(user)].map(|asks| recent.image(&mapped, || asks));
        assert_eq!(images, [None, None, Some(ImageIndex(9))], "what a user shows is his processes' alone");
        recent.clear();
        // The same again takes no other's place; so many others do, and no more are kept.
        for _ in 0..2 * MOST {
            keep(&mut recent, &mapped);
        }
        (0..MOST as u64 - 1).for_each(|other| keep(&mut recent, &MappedFile { inode: other, ..mapped }));
        assert_eq!((image(&recent, &mapped), recent.own.files.len()), (Some(ImageIndex(7)), MOST));
        // Nor do others' files.
        for inode in 0..2 * MOST as u64 {
            let others = MappedFile { inode, ..mapped };
            recent.keep(&others, found(pid), ImageIndex(8), (Some(user), None));
        }
        assert_eq!((image(&recent, &mapped), recent.others.files.len()), (Some(ImageIndex(7)), MOST));
        keep(&mut recent, &MappedFile { inode: 1 << 60, ..mapped });
        assert_eq!((image(&recent, &mapped), recent.own.files.len()), (None, MOST));
        keep(&mut recent, &mapped);
        std::fs::write(&path, "xy").unwrap();
        assert_eq!(image(&recent, &mapped), None, "it is another one now");
        std::fs::remove_file(&path).unwrap();
    }
}
