//! What ccsd itself costs.

use std::cell::Cell;
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// What the process had spent when [`begin`] was called.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Begins to count: what this process has spent before is not ccsd's. It may have been another program until it called
/// `execve`, which keeps the times: `cargo run` builds for minutes and becomes what it has built. To be called first in `main`.
pub fn begin() {
    BEFORE.get_or_init(process_cpu_ns);
}

/// CPU time of this process since [`begin`], user and system, in nanoseconds.
pub fn own_cpu_ns() -> u64 {
    process_cpu_ns().saturating_sub(BEFORE.get().copied().unwrap_or(0))
}

fn process_cpu_ns() -> u64 {
    getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        micros.unsigned_abs() * 1000
    })
}

/// CPU time of this process and of the one that reads images for it, in nanoseconds.
pub fn all_cpu_ns() -> u64 {
    own_cpu_ns().saturating_add(ccsd_worker::worker_usage().cpu_ns)
}

/// What both have in memory now, in bytes.
pub fn all_rss_bytes() -> u64 {
    own_rss_bytes().saturating_add(ccsd_worker::worker_usage().resident_bytes)
}

/// What this process has in memory now, in bytes.
pub fn own_rss_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    pages.saturating_mul(page.map_or(4096, i64::unsigned_abs))
}

/// CPU time of the calling thread so far, user and system, in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).ok();
    let time = time.map(std::time::Duration::from).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a thread does beside its usual work, and what is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// Opens images and reads what is in them.
    Images,
    /// Reads the names of kernel functions.
    KernelNames,
}

thread_local! {
    /// CPU time of this thread for each [`Aside`], and whether one is under way.
    static ASIDE: Cell<([u64; 2], bool)> = const { Cell::new(([0; 2], false)) };
}

/// Does something and counts the CPU time that this thread spends on it. What is counted within counts once, as the outer.
pub fn aside<T>(what: Aside, work: impl FnOnce() -> T) -> T {
    let (sums, nested) = ASIDE.get();
    if nested {
        return work();
    }
    ASIDE.set((sums, true));
    let before = thread_cpu_ns();
    let done = work();
    let (mut sums, _) = ASIDE.get();
    if let Some(sum) = sums.get_mut(what as usize) {
        *sum = sum.saturating_add(thread_cpu_ns().saturating_sub(before));
    }
    ASIDE.set((sums, false));
    done
}

/// What [`aside`] has counted of this thread, nanoseconds.
pub fn aside_ns(what: Aside) -> u64 {
    ASIDE.get().0.get(what as usize).copied().unwrap_or(0)
}

/// Largest resident set of this process so far, in bytes (`VmHWM`; `ru_maxrss` would include what ran before `execve`).
pub fn own_peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_aside_is_counted_once() {
        let spend = || {
            let until = thread_cpu_ns() + 2_000_000;
            while thread_cpu_ns() < until {}
        };
        let before = thread_cpu_ns();
        aside(Aside::Images, || {
            spend();
            aside(Aside::KernelNames, spend);
        });
        let all = thread_cpu_ns() - before;
        assert_eq!(aside_ns(Aside::KernelNames), 0);
        assert!((4_000_000..=all).contains(&aside_ns(Aside::Images)));
        aside(Aside::KernelNames, spend);
        assert!(aside_ns(Aside::KernelNames) >= 2_000_000);
    }
}
