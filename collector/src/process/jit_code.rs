//! The code that processes generate: one image for each such process, so that addresses never mix.
//!
//! Executable memory without a file, and memory files that are no ELF files (mapped twice, for writing and executing),
//! belong to the process that mapped them. A child has its parent's, as `fork` copied the code, until it maps some
//! itself; then it has an image of its own, for the old mappings too.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use ccsd_symbolizer::{Door, FileRoot};
use ccsd_worker::Principal;

use super::image::ImageIndex;
use super::process_files::ProcessFiles;
use super::shared_room::SharedRoom;
use crate::pids::is_free;
use crate::procfs;

/// Live processes with generated code, each with a file or two open, of which users have shares. Further ones share one
/// nameless image.
const MAX_ALIVE: u64 = 512;
const MAX_DIGITS: usize = 10;

/// The generated code of one process, and of its children that have made none themselves.
#[derive(Debug)]
pub struct JitCode {
    pub index: ImageIndex,
    pub pid: u32,
    /// What it had from its parent. Held, so that it does not end before.
    _inherited: Option<Arc<JitCode>>,
}

/// Where a process's runtime writes the names of its code, as far as that can be told while it is alive.
#[derive(Clone, Debug)]
pub struct JitSource {
    pub pid: u32,
    /// As it numbers itself: in its own namespace.
    pub own_pid: u32,
    /// Its user; only files of this user and of root are trusted.
    pub user: Option<u32>,
    /// Who that is, if another than root and the session's own user: such a one may have a `/tmp` that a program serves.
    pub other_user: Option<Principal>,
    /// Its `/tmp`, in its root and mount namespace, held open because the namespace goes with its last process. `None`
    /// if unknown: another namespace's would be another program's.
    pub tmp: Option<FileRoot>,
    pub door: Door,
    /// When it started, clock ticks since boot: older files are of others.
    pub start_time: u64,
    /// What its `CLOCK_MONOTONIC` is ahead of this process's, nanoseconds.
    pub ahead_ns: i64,
    /// Whose names are valid where it has none of its own.
    pub inherited: Option<ImageIndex>,
}

impl JitSource {
    fn of(pid: u32, start_time: u64, inherited: Option<ImageIndex>, door: Door) -> JitSource {
        let (own_pid, user) = procfs::own_pid_and_user(pid);
        let root = (!is_free(pid)).then(|| FileRoot::at(&PathBuf::from(format!("/proc/{pid}/root"))).ok()).flatten();
        let tmp = root.and_then(|root| door.below(&root, Path::new("/tmp")).ok());
        let (own_pid, ahead_ns) = (own_pid.unwrap_or(pid), procfs::clock_ahead_ns(pid));
        JitSource { pid, own_pid, user, other_user: None, tmp, door, start_time, ahead_ns, inherited }
    }

    /// Who pays for what its names take.
    pub fn payer(&self) -> Principal {
        self.other_user.unwrap_or_default()
    }
}

#[derive(Debug)]
pub enum JitEvent {
    /// It begins; the index may have been another's before.
    Begin(ImageIndex, Box<JitSource>),
    Dump(ImageIndex, File),
    End(ImageIndex),
}

#[derive(Debug)]
pub struct JitCodes {
    /// With who pays: root and the session's own user as root.
    alive: Vec<(ImageIndex, Weak<JitCode>, Principal)>,
    room: SharedRoom,
    free: Vec<ImageIndex>,
    events: Vec<JitEvent>,
}

impl Default for JitCodes {
    fn default() -> Self {
        JitCodes { alive: Vec::new(), room: SharedRoom::new(MAX_ALIVE), free: Vec::new(), events: Vec::new() }
    }
}

impl JitCodes {
    /// The image for what a process maps now; `code` is what it has so far. `index` returns a new one, if there may be
    /// more.
    pub fn own(
        &mut self,
        code: &mut Option<Arc<JitCode>>,
        pid: u32,
        start_time: u64,
        files: &mut ProcessFiles,
        index: impl FnOnce() -> Option<ImageIndex>,
    ) -> Option<ImageIndex> {
        if let Some(code) = code.as_ref().filter(|code| code.pid == pid) {
            return Some(code.index);
        }
        if !self.room.has(Principal::Own, 1) {
            return None;
        }
        let (inherited, door) = (code.as_ref().map(|code| code.index), files.door().clone());
        let (source, other_user) = files.ask(pid, move || JitSource::of(pid, start_time, inherited, door))?;
        let source = JitSource { other_user, ..source };
        let payer = source.payer();
        if !self.room.has(payer, 1) {
            return None;
        }
        let index = self.free.pop().or_else(index)?;
        let inherited = code.take();
        let new = Arc::new(JitCode { index, pid, _inherited: inherited });
        self.room.add(payer, 1);
        self.alive.push((index, Arc::downgrade(&new), payer));
        *code = Some(new);
        self.events.push(JitEvent::Begin(index, Box::new(source)));
        Some(index)
    }

    pub fn add_dump(&mut self, index: ImageIndex, file: File) {
        self.events.push(JitEvent::Dump(index, file));
    }

    /// Ends those that no process has any more. Returns whether there are events.
    pub fn sweep(&mut self) -> bool {
        let (free, events, room) = (&mut self.free, &mut self.events, &mut self.room);
        self.alive.retain(|(index, code, payer)| {
            let alive = code.strong_count() > 0;
            if !alive {
                room.give(*payer, 1);
                free.push(*index);
                events.push(JitEvent::End(*index));
            }
            alive
        });
        !self.events.is_empty()
    }

    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn take_events(&mut self) -> Vec<JitEvent> {
        std::mem::take(&mut self.events)
    }
}

/// Whether memory mapped under this name is in no file: code in it is generated.
pub fn is_anonymous(path: &[u8]) -> bool {
    // "[anon:...]" is what a program has called it (`PR_SET_VMA_ANON_NAME`).
    let named = [&b"[anon:"[..], b"[anon_shmem:", b"/dev/zero", b"/SYSV", b"anon_inode:"];
    matches!(path, b"" | b"//anon" | b"[heap]" | b"[stack]") || named.iter().any(|prefix| path.starts_with(prefix))
}

/// Whether a mapping has a file. Servers of file systems (FUSE) may give theirs inode 0, so the path decides, too: the names of
/// what is no file are the kernel's, and few.
pub fn is_file(inode: u64, path: &[u8]) -> bool {
    inode != 0 || path.starts_with(b"/") && !is_anonymous(path)
}

/// Whether it is a file in memory: generated code, unless it is an ELF file.
pub fn is_memory_file(path: &[u8]) -> bool {
    [&b"/memfd:"[..], b"/dev/shm/"].iter().any(|prefix| path.starts_with(prefix))
}

/// Whether it is the page of a jitdump, which a runtime maps to say where that is: `.../jit-PID.dump`.
pub fn is_dump(path: &[u8]) -> bool {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let digits = name.strip_prefix(b"jit-").and_then(|rest| rest.strip_suffix(b".dump"));
    digits.is_some_and(|digits| (1..=MAX_DIGITS).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_code_is_recognised() {
        for path in [&b""[..], b"//anon", b"[anon:v8]", b"/dev/zero (deleted)", b"/SYSV00000000 (deleted)"] {
            assert!(is_anonymous(path), "{}", String::from_utf8_lossy(path));
        }
        assert!(!is_anonymous(b"/usr/bin/x") && !is_anonymous(b"[vdso]") && !is_anonymous(b"/memfd:x (deleted)"));
        assert!(is_memory_file(b"/memfd:doublemapper (deleted)") && !is_memory_file(b"/usr/memfd:"));
        for path in [&b"/tmp/jit-12.dump"[..], b"/home/x/.debug/jit/a/jit-4194304.dump (deleted)"] {
            assert!(is_dump(path));
        }
        for path in [&b"/tmp/jit-.dump"[..], b"/tmp/jit-1x.dump", b"/tmp/jit-12345678901.dump", b"/tmp/a-1.dump", b""] {
            assert!(!is_dump(path));
        }
    }

    #[test]
    fn children_share_until_they_make_their_own() {
        let mut codes = JitCodes::default();
        let mut next = 10;
        let mut index = || {
            next += 1;
            Some(ImageIndex(next))
        };
        let mut parent = None;
        let mut own = |codes: &mut JitCodes, code: &mut Option<Arc<JitCode>>, pid: u32| {
            codes.own(code, pid, 0, &mut ProcessFiles::default(), &mut index)
        };
        let of_parent = own(&mut codes, &mut parent, u32::MAX - 1).unwrap();
        assert_eq!(own(&mut codes, &mut parent, u32::MAX - 1), Some(of_parent));
        let (mut child, mut other) = (parent.clone(), parent.clone());
        let of_child = own(&mut codes, &mut child, u32::MAX - 2).unwrap();
        assert_ne!(of_parent, of_child);
        assert!(matches!(&codes.take_events()[..], [
            JitEvent::Begin(a, first),
            JitEvent::Begin(b, second),
        ] if (*a, *b) == (of_parent, of_child) && first.inherited.is_none() && second.inherited == Some(of_parent)));
        // The parent ends; its code lives on in both.
        parent = None;
        assert!(!codes.sweep() && parent.is_none());
        other.take();
        assert!(!codes.sweep());
        child.take();
        assert!(codes.sweep());
        assert_eq!(codes.take_events().len(), 2);
        assert!([of_parent, of_child].contains(&own(&mut codes, &mut other, u32::MAX - 3).unwrap()));
    }
}
