//! Numbers of system calls that other architectures have not, or have other ones for and libc does not name.

pub const EPOLL_WAIT: i64 = libc::SYS_epoll_wait;
pub const PAUSE: i64 = libc::SYS_pause;
pub const POLL: i64 = libc::SYS_poll;
pub const SELECT: i64 = libc::SYS_select;
/// `io_pgetevents` (`asm/unistd_64.h`).
pub const IO_PGETEVENTS: i64 = 333;
