//! Which system calls can be interrupted so that the program does not notice.
//!
//! A stopped thread leaves its blocking system call and makes it again. The kernel does so for most calls, with what is
//! left of their timeouts. Three kinds are different:
//!
//! - Some end with EINTR (signal(7), "Interruption of system calls and library functions by stop signals"). The dump
//!   makes the kernel restart them. A timeout then starts again, so only where that is a second at most.
//! - Some end with a partial result: a blocked `write` to a pipe returns a smaller number, which may lose output.
//! - For a few nothing is known.
//!
//! Threads in the last two kinds, or with long timeouts, are not stopped: their stacks are read as they are.

use super::look::SystemCall;
use crate::arch::system_calls::{EPOLL_WAIT, IO_PGETEVENTS};

/// The longest that a wait may become longer, milliseconds.
const MAX_MORE_MS: i32 = 1000;
/// `io_uring_enter` (`asm-generic/unistd.h`).
const IO_URING_ENTER: i64 = 426;
/// `epoll_pwait2` (`asm-generic/unistd.h`).
const EPOLL_PWAIT2: i64 = 441;

pub fn not_to_be_interrupted(call: &SystemCall) -> Option<&'static str> {
    const PARTIAL: &str = "its system call would end with what it has done so far";
    const TIMEOUT: &str = "its wait would begin anew, with the whole of its timeout";
    let [_, _, third, fourth, fifth, _] = call.args;
    let waits_for_all = |flags: u64| flags & libc::MSG_WAITALL as u64 != 0;
    match call.number {
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg
        | libc::SYS_recvmmsg
        | libc::SYS_sendfile
        | libc::SYS_splice
        | libc::SYS_tee
        | libc::SYS_vmsplice
        | libc::SYS_copy_file_range
        | IO_URING_ENTER => Some(PARTIAL),
        libc::SYS_recvfrom if waits_for_all(fourth) => Some(PARTIAL),
        libc::SYS_recvmsg if waits_for_all(third) => Some(PARTIAL),
        // The argument is an `int`; -1 and below wait without end.
        EPOLL_WAIT | libc::SYS_epoll_pwait if fourth as i32 > MAX_MORE_MS => Some(TIMEOUT),
        EPOLL_PWAIT2 | libc::SYS_semtimedop if fourth != 0 => Some(TIMEOUT),
        libc::SYS_rt_sigtimedwait if third != 0 => Some(TIMEOUT),
        libc::SYS_io_getevents | IO_PGETEVENTS if fifth != 0 => Some(TIMEOUT),
        _ => None,
    }
}

/// Whether a call that a stop has ended with EINTR has done nothing yet and can be made again. (A `close` has closed its file.)
pub fn can_be_made_again(number: i64) -> bool {
    matches!(
        number,
        EPOLL_WAIT
            | libc::SYS_epoll_pwait
            | EPOLL_PWAIT2
            | libc::SYS_semop
            | libc::SYS_semtimedop
            | libc::SYS_rt_sigtimedwait
            | libc::SYS_io_getevents
            | IO_PGETEVENTS
            | IO_URING_ENTER
            // On sockets with a timeout.
            | libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_accept
            | libc::SYS_accept4
            | libc::SYS_connect
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(number: i64, args: [u64; 6]) -> bool {
        not_to_be_interrupted(&SystemCall { number, args, sp: 0, ip: 0 }).is_some()
    }

    #[test]
    fn calls_that_can_be_made_again() {
        assert!(can_be_made_again(EPOLL_WAIT) && can_be_made_again(libc::SYS_recvfrom));
        assert!(!can_be_made_again(libc::SYS_close) && !can_be_made_again(-1));
    }

    #[test]
    fn calls_that_may_be_interrupted() {
        assert!(!call(libc::SYS_read, [0; 6]) && !call(libc::SYS_clock_nanosleep, [9; 6]));
        assert!(call(libc::SYS_write, [1, 2, 3, 0, 0, 0]));
        let epoll = |timeout: i32| call(EPOLL_WAIT, [3, 4, 5, u64::from(timeout.cast_unsigned()), 0, 0]);
        assert!(!epoll(-1) && !epoll(1000) && epoll(1001) && !epoll(i32::MIN));
        let pwait2 = |timeout: u64| call(EPOLL_PWAIT2, [3, 4, 5, timeout, 0, 0]);
        assert!(!pwait2(0) && pwait2(0x7ffc_0000));
        let recv = |flags: i32| call(libc::SYS_recvfrom, [3, 4, 5, flags.cast_unsigned().into(), 0, 0]);
        assert!(!recv(0) && recv(libc::MSG_WAITALL));
    }
}
