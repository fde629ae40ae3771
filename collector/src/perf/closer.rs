//! Closing what takes long to close, when ccsd itself has nothing left to do.
//!
//! When the last event of a tracepoint is closed the kernel waits until no CPU can be in its handler any more
//! (`tracepoint_synchronize_unregister`): some 40 ms, in which whoever waits for ccsd would wait for nothing. So at its end
//! ccsd leaves these files to a child that does not run anything: it has them open until ccsd has gone, and ends then.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::fcntl::OFlag;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::{ForkResult, fork, pipe2};

/// Files that a child may keep at most; one for each CPU of the largest machines that Linux supports. Others are closed by
/// who has them.
const MAX_KEPT: usize = 8192;

/// Keeps `files` open in a child until the [`Leaving`] that is returned is dropped, at the latest by the end of this
/// process. `None` where that cannot be done: then closing them takes as long as it takes.
pub fn leave(files: &[OwnedFd]) -> Option<Leaving> {
    if files.is_empty() || files.len() > MAX_KEPT {
        return None;
    }
    let (until, gone) = pipe2(OFlag::O_CLOEXEC).ok()?;
    let mut kept: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).chain([until.as_raw_fd()]).collect();
    kept.sort_unstable();
    // In the child no handler may run: what it tells, it would tell its parent once more.
    let signals = SigSet::all();
    let before = signals.thread_swap_mask(SigmaskHow::SIG_SETMASK).ok()?;
    // SAFETY: the child makes system calls only that are async-signal-safe (close_range, read, _exit). It takes no lock that
    // another thread may have held, and allocates nothing: `kept` was made before.
    let forked = unsafe { fork() };
    if !matches!(forked, Ok(ForkResult::Child)) {
        let _ = before.thread_set_mask();
    }
    match forked {
        Ok(ForkResult::Child) => {
            // Above all the standard streams, whose readers wait for their end, and the pipe's other end.
            if close_others(&kept) {
                let mut byte = [0u8; 1];
                let _ = nix::unistd::read(&until, &mut byte);
            }
            // SAFETY: _exit(2) takes a number, and does not return.
            unsafe { libc::_exit(0) }
        }
        Ok(ForkResult::Parent { .. }) => Some(Leaving { _gone: gone }),
        Err(_) => None,
    }
}

/// While this is there, so is the child.
pub struct Leaving {
    _gone: OwnedFd,
}

impl Leaving {
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
    // SAFETY: close_range(2) takes numbers. It is called in a child that ends without touching what it closes.
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
