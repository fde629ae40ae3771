//! Which pages of a process can be read without waiting for a disk or another process.
//!
//! `process_vm_readv(2)` faults pages in. With `userfaultfd(2)` or a file system in user space that may take for ever,
//! uninterruptibly. So only pages in memory or swap are read, by `/proc/PID/pagemap`
//! (`Documentation/admin-guide/mm/pagemap.rst`). Of a stack nothing is lost: a page that was never touched holds no
//! frame.
//!
//! A page may go between look and read. Should the sampling thread then wait, the session can still be ended; see
//! [`Watchdog`](crate::watchdog::Watchdog).

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;

use nix::errno::Errno;
use nix::sys::uio::RemoteIoVec;

use crate::perf::ring_buffer::PAGE;
use crate::pids::is_free;

/// The page is in memory; it is in swap; userfaultfd handles it (bits 63, 62 and 57).
const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const WATCHED: u64 = 1 << 57;
/// Pages asked for at once at least: pieces lie next to each other.
const MIN_PAGES: usize = 16;
/// The same at most; a piece that is longer is cut.
const MAX_PAGES: usize = 1024;

/// Whether this kernel tells (`CONFIG_PROC_PAGE_MONITOR`). Those of distributions do.
static TELLS: LazyLock<bool> = LazyLock::new(|| std::path::Path::new("/proc/self/pagemap").exists());

#[derive(Debug, Default)]
pub struct Pages {
    file: Option<File>,
    pid: i32,
    opened_at: u64,
    /// Eight bytes each of the pages from `first` on, as of the last question.
    entries: Vec<u8>,
    first: usize,
}

impl Pages {
    /// Cuts the list of pieces at the first page that cannot be read at once. Returns how many are left; the last may
    /// be shortened. `time` is the sample's, `now` is now (nanoseconds). Errors: ESRCH, EPERM and others: why the
    /// process's pages cannot be asked for.
    pub fn cut(&mut self, pid: i32, time: u64, now: u64, pieces: &mut [RemoteIoVec]) -> nix::Result<usize> {
        if !*TELLS {
            return Ok(pieces.len());
        }
        // After `execve` the file still speaks of the memory before.
        if self.pid != pid || self.opened_at < time || self.file.is_none() {
            if is_free(pid.cast_unsigned()) {
                return Err(Errno::ESRCH);
            }
            let file = File::open(format!("/proc/{pid}/pagemap")).map_err(|error| match error.kind() {
                ErrorKind::NotFound => Errno::ESRCH,
                ErrorKind::PermissionDenied => Errno::EPERM,
                // Newer kernels refuse to open it for a zombie.
                _ if error.raw_os_error() == Some(libc::ESRCH) => Errno::ESRCH,
                _ => Errno::EAGAIN,
            })?;
            (self.file, self.pid, self.opened_at) = (Some(file), pid, now);
        }
        self.entries.clear();
        for (at, piece) in pieces.iter_mut().enumerate() {
            let readable = self.readable(piece.base, piece.len)?;
            if readable < piece.len {
                piece.len = readable;
                return Ok(at + usize::from(readable > 0));
            }
        }
        Ok(pieces.len())
    }

    /// How many of the `len` bytes at `base` can be read at once.
    fn readable(&mut self, base: usize, len: usize) -> nix::Result<usize> {
        let mut end = base;
        let last = base.saturating_add(len);
        for page in base / PAGE..last.div_ceil(PAGE) {
            let entry = match self.entry(page) {
                Some(entry) => entry,
                None => {
                    self.ask(page, last.div_ceil(PAGE) - page)?;
                    // Beyond the end of all addresses.
                    let Some(entry) = self.entry(page) else { break };
                    entry
                }
            };
            if entry & PRESENT == 0 && entry & (SWAPPED | WATCHED) != SWAPPED {
                break;
            }
            end = last.min((page + 1).saturating_mul(PAGE));
        }
        Ok(end - base)
    }

    fn entry(&self, page: usize) -> Option<u64> {
        let at = page.checked_sub(self.first)?.checked_mul(8)?;
        self.entries.get(at..)?.first_chunk().map(|&entry| u64::from_le_bytes(entry))
    }

    fn ask(&mut self, page: usize, pages: usize) -> nix::Result<()> {
        let file = self.file.as_ref().ok_or(Errno::ESRCH)?;
        self.first = page.saturating_sub(1);
        self.entries.resize(8 * (pages + 1).clamp(MIN_PAGES, MAX_PAGES), 0);
        let read = file.read_at(&mut self.entries, 8 * self.first as u64);
        self.entries.truncate(*read.as_ref().unwrap_or(&0));
        read.map(drop).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EAGAIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_pages_are_not_read() {
        let mut pages = Pages::default();
        let own = std::process::id().cast_signed();
        // Fresh from the kernel; of its pages, large ones too, those are there that have been written to.
        let mut bytes = vec![0u8; 64 << 20];
        let base = bytes.as_ptr() as usize;
        let written = base.next_multiple_of(4 << 20);
        bytes[written - base..][..3 * PAGE].fill(1);
        let piece = |base, len| RemoteIoVec { base, len };
        let cut = |pages: &mut Pages, mut pieces: Vec<RemoteIoVec>| {
            let left = pages.cut(own, 1, 2, &mut pieces).unwrap();
            pieces.truncate(left);
            pieces
        };
        let there = [piece(written + 8, 8), piece(written + PAGE - 8, 16), piece(written, 3 * PAGE)];
        assert_eq!(cut(&mut pages, there.to_vec()), there);
        // The rest of the list goes with what is missing.
        let missing = piece(written + (32 << 20), 8);
        assert_eq!(cut(&mut pages, vec![there[0], missing, there[1]]), [there[0]]);
        let cut_short = cut(&mut pages, vec![piece(written + 100, 32 << 20)]);
        assert!(cut_short[0].len >= 3 * PAGE - 100 && cut_short[0].len <= (4 << 20), "{cut_short:?}");
        for base in [8, 1 << 46, usize::MAX - 100] {
            assert_eq!(cut(&mut pages, vec![piece(base, 50)]), []);
        }
        assert_eq!(pages.cut(i32::MAX, 1, 2, &mut [missing]), Err(Errno::ESRCH));
        // A zombie has no memory, and can be asked.
        let mut ended = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        std::io::Read::read_to_end(ended.stdout.as_mut().unwrap(), &mut Vec::new()).unwrap();
        let pid = ended.id().cast_signed();
        let options = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(nix::unistd::Pid::from_raw(pid)), options).unwrap();
        assert!(matches!(pages.cut(pid, 3, 4, &mut [there[0]]), Ok(0) | Err(Errno::ESRCH)));
        ended.wait().unwrap();
    }
}
