//! The `perf_event_open` system call and the few controls on its descriptors.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use perf_event_open_sys as perf;

use crate::other_process;

/// Opens one event on a thread (`pid` 0: the caller) and a CPU, in the group of `leader` if there is one.
///
/// # Errors
/// The errno of `perf_event_open(2)`; `TimedOut` where the thread is another user's, who can keep the kernel from answering.
pub fn open(
    attr: &perf::bindings::perf_event_attr,
    pid: i32,
    cpu: i32,
    leader: Option<BorrowedFd<'_>>,
) -> io::Result<OwnedFd> {
    let flags = perf::bindings::PERF_FLAG_FD_CLOEXEC.into();
    let Ok(number) = u32::try_from(pid) else { return open_with(attr, (pid, cpu), leader, flags) };
    if number == 0 {
        return open_with(attr, (pid, cpu), leader, flags);
    }
    let (attr, leader) = (*attr, leader.map(|fd| fd.try_clone_to_owned()).transpose()?);
    let open = move || open_with(&attr, (pid, cpu), leader.as_ref().map(AsFd::as_fd), flags);
    other_process::ask(number, open).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// Opens one event on the processes of a control group, and of those below it, while they run on a CPU. The group is its
/// open directory.
///
/// # Errors
/// The errno of `perf_event_open(2)`: EBADF for a group of a hierarchy without perf events.
pub fn open_on_group(attr: &perf::bindings::perf_event_attr, group: BorrowedFd<'_>, cpu: i32) -> io::Result<OwnedFd> {
    let flags = perf::bindings::PERF_FLAG_FD_CLOEXEC | perf::bindings::PERF_FLAG_PID_CGROUP;
    open_with(attr, (group.as_raw_fd(), cpu), None, flags.into())
}

fn open_with(
    attr: &perf::bindings::perf_event_attr,
    (pid, cpu): (i32, i32),
    leader: Option<BorrowedFd<'_>>,
    flags: std::ffi::c_ulong,
) -> io::Result<OwnedFd> {
    let mut attr = *attr;
    let leader = leader.map_or(-1, |fd| fd.as_raw_fd());
    // SAFETY: `attr` is a live, initialised perf_event_attr with its own size in `size`; the kernel reads it (and
    // writes `size` on E2BIG). The other arguments are integers, among them descriptors that are open for the call.
    let fd = unsafe { perf::perf_event_open(&mut attr, pid, cpu, leader, flags) };
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Its count with that of everything that inherited it: nanoseconds for a clock, cycles for cycles.
    pub count: u64,
    /// That of the other event of its group.
    pub member: u64,
    /// Records of the event and its heirs that found no room in the ring. 0 for a group while any heir lives (up to
    /// Linux 6.18 at least, the kernel overwrites the number with the last heir's).
    pub lost: u64,
}

/// Reads an event that was opened with this `read_format`: any of `PERF_FORMAT_GROUP` and `PERF_FORMAT_LOST`.
///
/// # Errors
/// The errno of `read(2)`, or `UnexpectedEof` for a short answer.
pub fn read(event: &OwnedFd, read_format: u64) -> io::Result<Reading> {
    let mut buffer = [0u8; 64];
    let n = nix::unistd::read(event, &mut buffer)?;
    parse(buffer.get(..n).unwrap_or(&buffer), read_format).ok_or(io::ErrorKind::UnexpectedEof.into())
}

/// `struct read_format` of `linux/perf_event.h`: `value, [lost]`, or `nr, (value, [lost]) * nr`.
fn parse(bytes: &[u8], read_format: u64) -> Option<Reading> {
    let has = |flag: u32| read_format & u64::from(flag) != 0;
    let (grouped, tells_lost) = (has(perf::bindings::PERF_FORMAT_GROUP), has(perf::bindings::PERF_FORMAT_LOST));
    let mut words = bytes.chunks_exact(8).filter_map(|word| word.try_into().ok()).map(u64::from_ne_bytes);
    if grouped {
        words.next()?;
    }
    let count = words.next()?;
    let lost = if tells_lost { words.next()? } else { 0 };
    // A member that is not there yet has counted nothing.
    Some(Reading { count, member: words.next().unwrap_or(0), lost })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_it_was_opened_to_say() {
        let (group, lost) = (perf::bindings::PERF_FORMAT_GROUP.into(), perf::bindings::PERF_FORMAT_LOST.into());
        let told = |words: &[u64], format| {
            parse(&words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>(), format)
        };
        let reading = |count, member, lost| Some(Reading { count, member, lost });
        assert_eq!(told(&[5], 0), reading(5, 0, 0));
        assert_eq!(told(&[5, 7], lost), reading(5, 0, 7));
        assert_eq!(told(&[1, 5], group), reading(5, 0, 0));
        assert_eq!(told(&[2, 5, 6], group), reading(5, 6, 0));
        assert_eq!(told(&[1, 5, 7], group | lost), reading(5, 0, 7));
        assert_eq!(told(&[2, 5, 7, 6, 0], group | lost), reading(5, 6, 7));
        for (short, format) in [(&[][..], 0), (&[5], lost), (&[2], group), (&[2, 5], group | lost)] {
            assert_eq!(told(short, format), None);
        }
    }
}
