//! The `perf_event_open` system call and the few controls on its descriptors.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as perf;

/// Opens one event on a thread (`pid` 0: the caller) and a CPU, in the group of `leader` if there is one.
///
/// # Errors
/// The errno of `perf_event_open(2)`.
pub fn open(
    attr: &perf::bindings::perf_event_attr,
    pid: i32,
    cpu: i32,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let mut attr = *attr;
    let group = leader.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: `attr` is a live, initialised perf_event_attr whose `size` field is its own size; the kernel only reads
    // it (and writes `size` on E2BIG). The other arguments are plain integers.
    let fd = unsafe { perf::perf_event_open(&mut attr, pid, cpu, group, perf::bindings::PERF_FLAG_FD_CLOEXEC.into()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call returned a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes `event` write its records into the ring that `ring_owner` has mapped.
///
/// # Errors
/// EINVAL where CPU or clock of the two differ.
pub fn redirect(event: &OwnedFd, ring_owner: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_SET_OUTPUT takes a descriptor by value; both are open for the call.
    let result = unsafe { perf::ioctls::SET_OUTPUT(event.as_raw_fd(), ring_owner.as_raw_fd()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Switches an event on.
///
/// # Errors
/// The errno of the ioctl; none is expected on an open event.
pub fn enable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_ENABLE takes a flag word by value.
    let result = unsafe { perf::ioctls::ENABLE(event.as_raw_fd(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Lets a tracepoint's event fire only where an expression on the tracepoint's fields is true.
///
/// # Errors
/// EINVAL where the expression makes no sense.
pub fn set_filter(event: &OwnedFd, filter: &CStr) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_SET_FILTER reads a string that ends in NUL, which lives for the call; it does not write to it.
    let result = unsafe { perf::ioctls::SET_FILTER(event.as_raw_fd(), filter.as_ptr().cast_mut()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Stops an event, its group and all that inherited it.
///
/// # Errors
/// The errno of the ioctl; none is expected on an open event.
pub fn disable(event: &OwnedFd) -> io::Result<()> {
    // SAFETY: PERF_EVENT_IOC_DISABLE takes a flag word by value.
    let result = unsafe { perf::ioctls::DISABLE(event.as_raw_fd(), perf::bindings::PERF_IOC_FLAG_GROUP) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The kernel's identifier of the event, which stands on each of its records.
///
/// # Errors
/// The errno of the ioctl; none is expected on an open event.
pub fn id(event: &OwnedFd) -> io::Result<u64> {
    let mut id = 0u64;
    // SAFETY: PERF_EVENT_IOC_ID writes one u64 through the pointer, which is live and aligned.
    let result = unsafe { perf::ioctls::ID(event.as_raw_fd(), &mut id) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(id) }
}

/// The event's count with that of everything that inherited it: nanoseconds for a clock, cycles for cycles. `grouped` says
/// whether it was opened with `PERF_FORMAT_GROUP`; the second is then that of the other event of its group.
///
/// # Errors
/// The errno of `read(2)`, or `UnexpectedEof` for a short answer.
pub fn count(event: &OwnedFd, grouped: bool) -> io::Result<[u64; 2]> {
    let mut buffer = [0u8; 64];
    let n = nix::unistd::read(event, &mut buffer)?;
    let at = if grouped { 8 } else { 0 };
    let word = |at: usize| buffer.get(at..at + 8).filter(|_| n >= at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let first = word(at).ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok([first, word(at + 8).unwrap_or(0)])
}
