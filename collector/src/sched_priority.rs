//! Running soon after waking, where many threads want the CPU.
//!
//! A ring holds some 64 ms of the largest samples. Among 200 busy threads on two CPUs a waking thread waits 140 ms
//! (measured; neither a shorter slice nor nice -20 helps), and half of the samples are lost. A real-time thread does
//! not wait, and takes no more CPU than later, as long as there is not too much work: [`Urgency`] sees to that. (From
//! one that never sleeps the kernel keeps 5% of each second.)

use std::io;

use crate::usage::thread_work_ns;

/// How often it is looked at how much CPU time the thread takes, nanoseconds.
const LOOK_NS: u64 = 500_000_000;
/// The part of a CPU that an urgent thread may take: 1 / this.
const SHARE: u64 = 2;
/// For how long a thread that took more is ordinary, nanoseconds.
const REST_NS: u64 = 10_000_000_000;

/// The nice value of favoured threads: nine times the share of 0.
const FAVOURED: i32 = -10;

/// Whether the calling thread is urgent. One with more than half a CPU of work has to wait like others; samples are
/// then lost and counted.
#[derive(Debug, Default)]
pub struct Urgency {
    urgent: bool,
    /// When it becomes urgent again, if it once was.
    rests_until: Option<u64>,
    looked: (u64, u64),
}

impl Urgency {
    /// Makes the calling thread urgent, as [`become_urgent`] does. `now` is monotonic, nanoseconds.
    pub fn begin(&mut self, now: u64) -> io::Result<()> {
        self.looked = (now, thread_work_ns());
        // A thread that was real-time before stays so.
        self.urgent = become_urgent()?;
        Ok(())
    }

    /// To be called now and then by the same thread.
    pub fn review(&mut self, now: u64) {
        if now.saturating_sub(self.looked.0) < LOOK_NS {
            return;
        }
        // Both have been allowed before.
        let _ = match self.decide(now, thread_work_ns()) {
            Some(true) => become_urgent(),
            Some(false) => become_ordinary(),
            None => Ok(false),
        };
    }

    /// Whether it becomes urgent, or ordinary, now that the thread has had so much CPU time in all.
    fn decide(&mut self, now: u64, cpu: u64) -> Option<bool> {
        let (since, before) = std::mem::replace(&mut self.looked, (now, cpu));
        let too_much = cpu.saturating_sub(before) > now.saturating_sub(since) / SHARE;
        if self.urgent && too_much {
            (self.urgent, self.rests_until) = (false, Some(now.saturating_add(REST_NS)));
            return Some(false);
        }
        if self.urgent || self.rests_until.is_none_or(|until| now < until) {
            return None;
        }
        self.urgent = true;
        Some(true)
    }
}

/// Makes the calling thread, not its children, real-time with the lowest priority, if it is ordinary. Returns whether
/// it was. Errors: EPERM for those who are neither root (CAP_SYS_NICE) nor allowed it by `RLIMIT_RTPRIO`.
pub fn become_urgent() -> io::Result<bool> {
    change(libc::SCHED_OTHER, libc::SCHED_RR, 1)
}

/// Whether the calling thread is real-time.
pub fn is_urgent() -> bool {
    // SAFETY: sched_getscheduler(2) takes a number; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    policy & !libc::SCHED_RESET_ON_FORK == libc::SCHED_RR
}

/// Takes a [`become_urgent`] back that has changed something.
pub fn become_ordinary() -> io::Result<bool> {
    change(libc::SCHED_RR, libc::SCHED_OTHER, 0)
}

/// Gives the calling thread and its children several times the ordinary CPU share, if allowed (CAP_SYS_NICE,
/// `RLIMIT_NICE`). Among 200 busy threads on two CPUs 1% of one is too little for 200 stacks of 50,000 frames.
pub fn become_favoured() {
    let which = libc::PRIO_PROCESS;
    // SAFETY: getpriority(2) and setpriority(2) take numbers; on Linux 0 is the calling thread.
    let now = unsafe { libc::getpriority(which, 0) };
    if now > FAVOURED {
        // SAFETY: as above. Refused, it is as before.
        unsafe { libc::setpriority(which, 0, FAVOURED) };
    }
}

/// Gives the calling thread, and what it starts, the share that an ordinary one has.
pub fn become_unfavoured() {
    // SAFETY: setpriority(2) takes numbers; on Linux 0 is the calling thread. Everybody may do this.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) };
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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_thread_over_budget_has_to_wait() {
        let mut urgency = Urgency { urgent: true, ..Urgency::default() };
        assert_eq!(urgency.decide(SECOND, SECOND / 2), None);
        assert_eq!(urgency.decide(2 * SECOND, SECOND + 1), Some(false));
        // The rest is no shorter for one that does nothing, nor longer for one that goes on.
        assert_eq!(urgency.decide(3 * SECOND, 2 * SECOND), None);
        assert_eq!(urgency.decide(12 * SECOND - 1, 2 * SECOND), None);
        assert_eq!(urgency.decide(12 * SECOND, 3 * SECOND), Some(true));
        assert_eq!(urgency.decide(13 * SECOND, 3 * SECOND), None);
        assert_eq!(urgency.decide(14 * SECOND, 4 * SECOND), Some(false));
        // One that may not be urgent never is.
        let mut urgency = Urgency::default();
        assert_eq!((1..40).find_map(|second| urgency.decide(second * SECOND, 0)), None);
    }
}
