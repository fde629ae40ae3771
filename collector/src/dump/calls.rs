//! Which blocked system calls can be interrupted so that the program does not notice.
//!
//! A stopped thread leaves its blocking system call and makes it again. Only calls whose outcome then stays the same are
//! interrupted, and they are listed here:
//!
//! - Some are made again by the kernel, with what is left of their timeouts.
//! - Some end with EINTR (signal(7), "Interruption of system calls and library functions by stop signals"). The dump
//!   makes the kernel restart them. A timeout then starts again, so only where that is a second at most.
//!
//! All others may lose something: a `write` to a pipe returns a smaller number, a call that a supervisor makes for the
//! thread is made twice, and of most `ioctl`s nothing is known. Threads in these are not stopped.
//!
//! One exception is left: a `read` of a socket with `SO_RCVLOWAT`, whose blocked reader may hold a part already.

use super::look::{Look, SystemCall};
use crate::arch::system_calls::{EPOLL_WAIT, IO_PGETEVENTS, PAUSE, POLL, SELECT};

/// The longest that a wait may become longer, milliseconds.
const MAX_MORE_MS: i32 = 1000;
/// `io_uring_enter` (`asm-generic/unistd.h`).
const IO_URING_ENTER: i64 = 426;
/// `epoll_pwait2` (`asm-generic/unistd.h`).
const EPOLL_PWAIT2: i64 = 441;
/// `futex_waitv` (`asm-generic/unistd.h`).
const FUTEX_WAITV: i64 = 449;
/// `futex_wait` (`asm-generic/unistd.h`).
const FUTEX_WAIT: i64 = 455;

/// The reason not to interrupt a blocked call. `reads_whole` says whether a read of a descriptor blocks only while there
/// is nothing to read, so that a blocked reader has read nothing yet.
pub fn not_to_be_interrupted(call: &SystemCall, reads_whole: impl Fn(u64) -> bool) -> Option<&'static str> {
    const PARTIAL: &str = "its system call would end with what it has done so far";
    const TIMEOUT: &str = "its wait would begin anew, with the whole of its timeout";
    const UNKNOWN: &str = "what its system call would lose is not known";
    let [first, second, third, fourth, fifth, _] = call.args;
    let waits_for_all = |flags: u64| flags & libc::MSG_WAITALL as u64 != 0;
    match call.number {
        // A terminal's reader may wait for more than it has (VMIN), a sound device's for the rest.
        libc::SYS_read if third <= 1 || reads_whole(first) => None,
        libc::SYS_readv if reads_whole(first) => None,
        libc::SYS_recvfrom if !waits_for_all(fourth) => None,
        libc::SYS_recvmsg if !waits_for_all(third) => None,
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_write
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
        | libc::SYS_getrandom
        | IO_URING_ENTER => Some(PARTIAL),
        // The argument is an `int`; -1 and below wait without end.
        EPOLL_WAIT | libc::SYS_epoll_pwait => (fourth as i32 > MAX_MORE_MS).then_some(TIMEOUT),
        EPOLL_PWAIT2 | libc::SYS_semtimedop => (fourth != 0).then_some(TIMEOUT),
        libc::SYS_rt_sigtimedwait => (third != 0).then_some(TIMEOUT),
        // At least `second` events; fewer may be in its hands already.
        libc::SYS_io_getevents | IO_PGETEVENTS if second > 1 => Some(PARTIAL),
        libc::SYS_io_getevents | IO_PGETEVENTS => (fifth != 0).then_some(TIMEOUT),
        libc::SYS_fcntl if matches!(second as i32, libc::F_SETLKW | libc::F_OFD_SETLKW) => None,
        libc::SYS_futex if second as i32 & libc::FUTEX_CMD_MASK != libc::FUTEX_WAIT_REQUEUE_PI => None,
        FUTEX_WAITV
        | FUTEX_WAIT
        | POLL
        | SELECT
        | libc::SYS_ppoll
        | libc::SYS_pselect6
        | libc::SYS_nanosleep
        | libc::SYS_clock_nanosleep
        // One of those that were interrupted before: poll, nanosleep or futex.
        | libc::SYS_restart_syscall
        | libc::SYS_wait4
        | libc::SYS_waitid
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_connect
        | libc::SYS_flock
        | libc::SYS_rt_sigsuspend
        | PAUSE
        | libc::SYS_semop
        | libc::SYS_msgrcv
        | libc::SYS_msgsnd
        | libc::SYS_mq_timedreceive
        | libc::SYS_mq_timedsend => None,
        _ => Some(UNKNOWN),
    }
}

/// The reason not to interrupt a blocked thread whatever its call is: another program is at work on the call.
pub fn made_by_another(look: &Look) -> Option<&'static str> {
    // `seccomp_do_user_notification`, or the function that it is inlined into.
    let supervised = match &look.wait {
        Some(wait) => wait.contains("seccomp"),
        None => look.has_seccomp_filter,
    };
    if supervised {
        return Some("its system call may be a supervisor's to make, who would make it twice");
    }
    // A file system in user space is asked to give up. (`fuse_dev_do_read` is where that program waits itself.)
    let file_system = |wait: &str| {
        wait.starts_with("request_wait_answer") || wait.starts_with("fuse_") && !wait.starts_with("fuse_dev")
    };
    look.wait.as_deref().is_some_and(file_system).then_some("its file system, a program, would be interrupted")
}

/// Whether reads of a file block only while there is nothing to read, by its name in `/proc/PID/fd` and the kernel
/// function that its reader waits in.
pub fn reads_whole(name: &[u8], wait: Option<&str>) -> bool {
    const NAMES: [&[u8]; 7] = [
        b"pipe:[",
        b"socket:[",
        b"anon_inode:[eventfd]",
        b"anon_inode:[signalfd]",
        b"anon_inode:[timerfd]",
        b"anon_inode:[userfaultfd]",
        b"anon_inode:inotify",
    ];
    // (A named pipe has a name like any file.)
    NAMES.iter().any(|beginning| name.starts_with(beginning)) || wait.is_some_and(|wait| wait.contains("pipe_read"))
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
            // Where the timeout cannot be written back.
            | SELECT
            | libc::SYS_pselect6
            | libc::SYS_ppoll
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
        not_to_be_interrupted(&SystemCall { number, args, sp: 0, ip: 0 }, |fd| fd == 0).is_some()
    }

    #[test]
    fn calls_that_can_be_made_again() {
        assert!(can_be_made_again(EPOLL_WAIT) && can_be_made_again(libc::SYS_recvfrom));
        assert!(!can_be_made_again(libc::SYS_close) && !can_be_made_again(-1));
    }

    #[test]
    fn calls_that_may_be_interrupted() {
        assert!(!call(libc::SYS_read, [0, 0, 9, 0, 0, 0]) && !call(libc::SYS_clock_nanosleep, [9; 6]));
        assert!(call(libc::SYS_write, [1, 2, 3, 0, 0, 0]));
        assert!(call(libc::SYS_read, [1, 2, 3, 0, 0, 0]) && !call(libc::SYS_read, [1, 2, 1, 0, 0, 0]));
        let epoll = |timeout: i32| call(EPOLL_WAIT, [3, 4, 5, u64::from(timeout.cast_unsigned()), 0, 0]);
        assert!(!epoll(-1) && !epoll(1000) && epoll(1001) && !epoll(i32::MIN));
        let pwait2 = |timeout: u64| call(EPOLL_PWAIT2, [3, 4, 5, timeout, 0, 0]);
        assert!(!pwait2(0) && pwait2(0x7ffc_0000));
        let recv = |flags: i32| call(libc::SYS_recvfrom, [3, 4, 5, flags.cast_unsigned().into(), 0, 0]);
        assert!(!recv(0) && recv(libc::MSG_WAITALL));
        let events = |least: u64| call(libc::SYS_io_getevents, [3, least, 5, 6, 0, 0]);
        assert!(!events(1) && events(2));
        let futex = |operation: i32| call(libc::SYS_futex, [3, operation.cast_unsigned().into(), 5, 0, 0, 0]);
        assert!(!futex(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) && !futex(libc::FUTEX_LOCK_PI));
        assert!(futex(libc::FUTEX_WAIT_REQUEUE_PI | libc::FUTEX_PRIVATE_FLAG));
        let fcntl = |command: i32| call(libc::SYS_fcntl, [3, command.cast_unsigned().into(), 5, 0, 0, 0]);
        assert!(!fcntl(libc::F_SETLKW) && fcntl(libc::F_GETFL));
    }

    #[test]
    fn calls_of_which_nothing_is_known() {
        assert!(call(libc::SYS_ioctl, [0; 6]) && call(libc::SYS_close, [0; 6]) && call(100_000, [0; 6]));
        assert!(call(libc::SYS_mkdirat, [0; 6]) && call(libc::SYS_getrandom, [0; 6]));
    }

    #[test]
    fn files_that_are_read_whole() {
        assert!(reads_whole(b"pipe:[1]", None) && reads_whole(b"/tmp/fifo", Some("anon_pipe_read")));
        assert!(!reads_whole(b"/dev/pts/1", Some("wait_woken")) && !reads_whole(b"", None));
    }
}
