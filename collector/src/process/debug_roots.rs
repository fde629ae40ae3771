//! Where the debug files of a process's images are: in the file system that it sees.
//!
//! Names are resolved later, when the process and its mount namespace may be gone, and with it the mounts, even below
//! an open root directory. So for a process with another file system, possible debug files are opened when the image is
//! first seen.

use std::fs;
use std::path::PathBuf;

use ccsd_symbolizer::{DebugFileFinder, Door, ElfFile};
use hashbrown::HashMap;

use crate::other_process;

/// Other roots kept open, one file descriptor each. Debug files of further ones are looked for on this machine only.
const MAX_ROOTS: usize = 64;

/// A view of the file system: the mount namespace, and the directory in it that is the root (see `chroot(2)`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct FileSystemView {
    namespace: PathBuf,
    root: PathBuf,
}

#[derive(Debug, Default)]
pub struct DebugRoots {
    own: Option<FileSystemView>,
    others: HashMap<FileSystemView, DebugFileFinder>,
    door: Door,
}

impl DebugRoots {
    pub fn through(door: Door) -> DebugRoots {
        DebugRoots { door, ..DebugRoots::default() }
    }

    /// Where to look for debug files of an `image` that the process `pid` has mapped from `path`. Two system calls if
    /// it sees what we see, which is also assumed of a process that has gone or is not ours.
    pub fn finder(&mut self, pid: u32, path: &str, image: Option<&ElfFile>) -> DebugFileFinder {
        let Some(image) = image else { return DebugFileFinder::none() };
        match self.in_view(pid) {
            Some(finder) => finder.door(self.door.clone()).image_path(path).hold(image, ccsd_worker::open_debug),
            None => self.on_machine(path),
        }
    }

    /// Where to look on this machine.
    pub fn on_machine(&self, path: &str) -> DebugFileFinder {
        DebugFileFinder::system().door(self.door.clone()).image_path(path)
    }

    fn in_view(&mut self, pid: u32) -> Option<DebugFileFinder> {
        let process = format!("/proc/{pid}");
        let of = process.clone();
        let theirs = other_process::ask(pid, move || view(&of)).flatten()?;
        if self.own.is_none() {
            self.own = view("/proc/self");
        }
        if self.own.as_ref() == Some(&theirs) {
            return None;
        }
        if let Some(finder) = self.others.get(&theirs) {
            return Some(finder.clone());
        }
        if self.others.len() >= MAX_ROOTS {
            return None;
        }
        let finder = other_process::ask(pid, move || DebugFileFinder::in_root(format!("{process}/root")));
        let finder = finder?.ok()?.or_system();
        self.others.insert(theirs, finder.clone());
        Some(finder)
    }
}

fn view(process: &str) -> Option<FileSystemView> {
    let link = |name: &str| fs::read_link(format!("{process}/{name}")).ok();
    Some(FileSystemView { namespace: link("ns/mnt")?, root: link("root")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_for_processes_that_see_what_we_see() {
        let mut roots = DebugRoots::default();
        assert!(roots.in_view(std::process::id()).is_none());
        assert!(roots.in_view(u32::MAX).is_none());
        assert!(roots.others.is_empty());
    }
}
