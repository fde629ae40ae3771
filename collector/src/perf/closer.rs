//! Leaves slow closes to a child, so that ccsd itself can end.
//!
//! Closing a tracepoint's last event waits until no CPU can be in its handler (`tracepoint_synchronize_unregister`),
//! some
//! 40 ms. The child holds these files open until ccsd has gone, and then ends.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::pipe2;

/// Files that a child may keep: one for each CPU of the largest machines that Linux supports.
const MAX_KEPT: usize = 8192;

/// Bytes of the child's stack, of which three system calls take a part.
const STACK_BYTES: usize = 32 << 10;

struct Kept {
    /// What it leaves open, in order.
    files: Vec<RawFd>,
    /// At whose end it ends.
    until: RawFd,
}

/// Keeps `files` open in a child until the returned [`LeavingChild`] is dropped or this process ends. `None` if that
/// fails.
///
/// The child shares this process's memory: a copy would copy page tables and every page written to. So the child also
/// frees
/// this process's memory at the end; a few kilobytes are never freed before.
pub fn leave(files: &[OwnedFd]) -> Option<LeavingChild> {
    // (An empty range is EINVAL where it is known, since Linux 5.9. In the child it must not fail: see `keep`.)
    let unknown = !close_range(RawFd::MAX, 0) && Errno::last() == Errno::ENOSYS;
    if files.is_empty() || files.len() > MAX_KEPT || unknown {
        return None;
    }
    let (until, gone) = pipe2(OFlag::O_CLOEXEC).ok()?;
    let mut kept: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).chain([until.as_raw_fd()]).collect();
    kept.sort_unstable();
    // In the child no handler may run: what it tells, it would tell its parent once more.
    let signals = SigSet::all();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_SETMASK).ok()?;
    // It may outlive whoever is here.
    let kept = Box::leak(Box::new(Kept { files: kept, until: until.as_raw_fd() }));
    let stack = Box::leak(vec![0u128; STACK_BYTES / size_of::<u128>()].into_boxed_slice());
    // SAFETY: the stack is the child's alone, downwards from its aligned upper end, and never freed, like `kept`, which
    // nobody writes to. The child has its own files and signals (no CLONE_FILES, no CLONE_SIGHAND), ends alone (no
    // CLONE_THREAD) and runs `keep` only, which see.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        libc::clone(keep, top, libc::CLONE_VM | libc::SIGCHLD, std::ptr::from_mut(kept).cast())
    };
    let _ = before.thread_set_mask();
    // Its own end of the pipe it has by now.
    (pid > 0).then_some(LeavingChild { _gone: gone })
}

/// The child: no allocation, no lock, no thread-local of its creator but `errno`. (The C library's `read` would:
/// threads can be cancelled there.)
extern "C" fn keep(kept: *mut c_void) -> c_int {
    // SAFETY: what `leave` has made, which is never freed and nobody writes to.
    let kept = unsafe { &*kept.cast::<Kept>() };
    // Above all the standard streams, whose readers wait for their end, and the pipe's other end.
    if close_others(&kept.files) {
        let mut byte = 0u8;
        // SAFETY: read(2) of one byte into a variable that is there.
        unsafe { libc::syscall(libc::SYS_read, kept.until, &raw mut byte, 1usize) };
    }
    0
}

pub struct LeavingChild {
    _gone: OwnedFd,
}

impl LeavingChild {
    /// Leaves it to the end of this process.
    pub fn until_exit(self) {
        std::mem::forget(self);
    }
}

/// Closes all files but these, which are in order. False before Linux 5.9.
fn close_others(kept: &[RawFd]) -> bool {
    let mut from = 0;
    for &fd in kept {
        if fd > from && !close_range(from, fd - 1) {
            return false;
        }
        from = fd + 1;
    }
    close_range(from, RawFd::MAX)
}

fn close_range(first: RawFd, last: RawFd) -> bool {
    let (first, last) = (first.unsigned_abs(), last.unsigned_abs());
    // SAFETY: close_range(2) takes numbers. It is called in a child with files of its own, which does not touch what it closes.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, 0u32) == 0 }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    #[test]
    fn they_are_open_until_it_ends() {
        let (read_end, write_end) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let (stray_reader, stray) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let files = [write_end];
        let leaving = leave(&files).unwrap();
        drop(files);
        // What was not left to it is closed there at once.
        drop(stray);
        assert_eq!(File::from(stray_reader).read(&mut [0]).unwrap(), 0);
        // This is not: nobody writes, but somebody could.
        let mut reader = File::from(read_end);
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
        assert_eq!(reader.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
        nix::fcntl::fcntl(&reader, nix::fcntl::FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        drop(leaving);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn nothing_needs_nobody() {
        assert!(leave(&[]).is_none());
    }
}
