//! Copying a part of a stack in very little time.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use crate::clock::now_ns;
use crate::perf::ring_buffer::PAGE;
use crate::process::owner::{Denied, Owner};

/// The first piece: more than most stacks hold. It takes some 10 us.
const FIRST: usize = 64 << 10;
const PIECE: usize = 128 << 10;
/// Bytes copied at most. What lies beyond is read when the thread runs again.
const MAX: usize = FIRST + 4 * PIECE;
/// Nanoseconds that copying may take in all; a piece that is begun is finished, in some 30 us.
const MAX_NS: u64 = 150_000;
/// The bit of a page that is in memory (Documentation/admin-guide/mm/pagemap.rst).
const PRESENT: u64 = 1 << 63;

/// Room for a stack, that is in memory already: the kernel must not have to find pages for it while a thread is stopped.
#[derive(Debug)]
pub struct StackBuffer(Vec<u8>);

impl Default for StackBuffer {
    fn default() -> StackBuffer {
        let mut room = Vec::with_capacity(MAX);
        // Zeroed memory is mapped when it is first written to.
        room.resize(MAX, 1);
        StackBuffer(room)
    }
}

#[derive(Debug)]
pub struct StackCopier {
    pid: u32,
    tid: u32,
    pagemap: Option<File>,
    /// The memory that the thread had when its rights were checked. A program that is executed later has other memory.
    memory: Option<File>,
}

#[derive(Clone, Debug, Default)]
pub struct StackCopy {
    pub bytes: Vec<u8>,
    pub more: bool,
}

impl StackCopier {
    /// A copier for a thread; to be made before the thread is stopped.
    pub fn new(pid: u32, tid: u32) -> StackCopier {
        StackCopier { pid, tid, pagemap: File::open(format!("/proc/{pid}/task/{tid}/pagemap")).ok(), memory: None }
    }

    /// Copies from now on only what the thread has in memory now, and only if it is this owner's to observe.
    pub fn bind(&mut self, owner: Owner) -> Result<(), Denied> {
        // In this order: what has been executed in between has its rights checked, and its predecessor's memory has gone.
        let memory = File::open(format!("/proc/{}/task/{}/mem", self.pid, self.tid));
        owner.check_thread(self.tid)?;
        self.memory = Some(memory.map_err(|_| Denied::Gone)?);
        Ok(())
    }

    fn read(&self, address: u64, piece: &mut [u8]) -> usize {
        if let Some(memory) = &self.memory {
            return memory.read_at(piece, address).unwrap_or(0);
        }
        let Ok(pid) = i32::try_from(self.tid) else { return 0 };
        let remote = [RemoteIoVec { base: address as usize, len: piece.len() }];
        process_vm_readv(Pid::from_raw(pid), &mut [IoSliceMut::new(piece)], &remote).unwrap_or(0)
    }

    /// Two bytes of code, if they are in memory.
    pub fn code(&self, address: u64) -> Option<[u8; 2]> {
        let mut code = [0; 2];
        (self.present(address, code.len()) == code.len() && self.read(address, &mut code) == code.len()).then_some(code)
    }

    /// Bytes of the next piece that can be read without waiting for a page: from a disk, or from a program that
    /// provides it and may be the stopped one.
    fn present(&self, address: u64, len: usize) -> usize {
        let Some(pagemap) = &self.pagemap else { return len };
        let page = PAGE as u64;
        let (first, last) = (address / page, address.saturating_add(len as u64).div_ceil(page));
        let mut entries = [0u8; 8 * (PIECE / PAGE + 1)];
        let wanted = usize::try_from(last - first).map_or(entries.len(), |pages| (8 * pages).min(entries.len()));
        let Some(entries) = entries.get_mut(..wanted) else { return 0 };
        let got = pagemap.read_at(entries, first * 8).unwrap_or(0);
        let words = entries.get(..got).unwrap_or_default().chunks_exact(8);
        let is_present = |word: &&[u8]| (*word).try_into().is_ok_and(|word| u64::from_le_bytes(word) & PRESENT != 0);
        let pages = words.take_while(is_present).count() as u64;
        let end = (first + pages) * page;
        usize::try_from(end.saturating_sub(address)).map_or(len, |bytes| bytes.min(len))
    }

    /// Copies from the stack pointer upwards, as long as time permits. Returns how much, and whether there may be more.
    pub fn copy(&self, sp: u64, room: &mut StackBuffer) -> (usize, bool) {
        let begun = now_ns();
        let mut held = 0;
        while held < MAX {
            let len = if held == 0 { FIRST } else { PIECE };
            let Some(address) = sp.checked_add(held as u64) else { break };
            let here = self.present(address, len);
            let read = match room.0.get_mut(held..held + here) {
                Some(piece) if here > 0 => self.read(address, piece),
                _ => 0,
            };
            held += read;
            if read < len {
                // A missing page is mostly the end of the stack; otherwise it is read later.
                return (held, false);
            }
            if now_ns().saturating_sub(begun) > MAX_NS {
                break;
            }
        }
        (held, true)
    }
}

impl StackCopy {
    pub fn from_room(room: &StackBuffer, (held, more): (usize, bool)) -> StackCopy {
        StackCopy { bytes: room.0.get(..held).unwrap_or_default().to_vec(), more }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_copied_to_its_end() {
        let (pid, tid) = (std::process::id(), nix::unistd::gettid().as_raw().unsigned_abs());
        let (copier, mut room) = (StackCopier::new(pid, tid), StackBuffer::default());
        let bytes: Vec<u8> = (0..200_000u32).map(|i| (i % 251) as u8).collect();
        let copied = copier.copy(bytes.as_ptr() as u64, &mut room);
        let copy = StackCopy::from_room(&room, copied);
        let same = copy.bytes.len().min(bytes.len());
        assert!(same >= FIRST.min(bytes.len() - PAGE), "{same}");
        assert!(copy.bytes[..same] == bytes[..same]);
        assert_eq!(copier.copy(8, &mut room), (0, false));
    }

    /// A program that the process executes after its rights were checked is not read.
    #[test]
    fn memory_is_that_of_the_program_whose_rights_were_checked() {
        use std::io::Write;
        use std::os::unix::process::CommandExt;

        use crate::dump::look::Look;

        const NOBODY: u32 = 65_534;
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "read line; exec sleep 60"]).stdin(std::process::Stdio::piped());
        let is_root = nix::unistd::geteuid().is_root();
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        let own = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let (uid, gid) = if is_root { (NOBODY, NOBODY) } else { own };
        let mut child = command.spawn().unwrap();
        let pid = child.id();
        // Until it waits for its line.
        let (sp, _) = std::iter::repeat_with(|| Look::at(pid, pid).unwrap().pointers()).flatten().next().unwrap();
        let mut room = StackBuffer::default();
        let mut stranger = StackCopier::new(pid, pid);
        let refused = stranger.bind(Owner { uid: uid.wrapping_add(1), gid });
        assert!(matches!(refused, Err(Denied::Forbidden(_))), "{refused:?}");
        let mut copier = StackCopier::new(pid, pid);
        copier.bind(Owner { uid, gid }).unwrap();
        assert!(copier.copy(sp, &mut room).0 > 0);
        child.stdin.take().unwrap().write_all(b"\n").unwrap();
        while std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        assert_eq!(copier.copy(sp, &mut room).0, 0);
        // While it is being executed its stack pointer may still be the old one.
        let mut pointers = std::iter::repeat_with(|| Look::at(pid, pid).unwrap().pointers()).flatten();
        let next = pointers.find(|&(sp, _)| StackCopier::new(pid, pid).copy(sp, &mut room).0 > 0).unwrap().0;
        assert_eq!(copier.copy(next, &mut room).0, 0);
        child.kill().unwrap();
        let _ = child.wait();
    }
}
