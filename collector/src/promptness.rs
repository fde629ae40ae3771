//! Being run soon after waking, where many threads want the CPU.
//!
//! A ring holds some 64 ms of the largest samples. Among 200 busy threads on two CPUs a thread that wakes waits 140 ms for
//! its turn (measured; neither a shorter slice nor a nice value of -20 changes that much, because the scheduler is fair),
//! and half of the samples are lost. A real-time thread does not wait. It takes the CPU from the target no longer than the
//! same work would take later; the kernel keeps 5% of each second for others even from one that never sleeps.

use std::io;

/// Makes the calling thread, but nothing that it starts, a real-time thread of the lowest priority, if it is scheduled as
/// ordinary threads are. Returns whether it was.
///
/// # Errors
/// EPERM for those who are neither root (CAP_SYS_NICE) nor allowed it by `RLIMIT_RTPRIO`.
pub fn become_urgent() -> io::Result<bool> {
    change(libc::SCHED_OTHER, libc::SCHED_RR, 1)
}

/// Takes a [`become_urgent`] back that has changed something.
///
/// # Errors
/// None is expected.
pub fn become_ordinary() -> io::Result<bool> {
    change(libc::SCHED_RR, libc::SCHED_OTHER, 0)
}

fn change(from: i32, to: i32, priority: i32) -> io::Result<bool> {
    // SAFETY: sched_getscheduler(2) takes a number; 0 is the calling thread.
    let now = unsafe { libc::sched_getscheduler(0) };
    if now & !libc::SCHED_RESET_ON_FORK != from {
        return Ok(false);
    }
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: sched_setscheduler(2) reads one sched_param, which is live; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, to | libc::SCHED_RESET_ON_FORK, &raw const param) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(true) }
}
