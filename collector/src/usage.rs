//! What ccsd itself costs.

use std::cell::Cell;
use std::sync::OnceLock;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

use crate::clock::now_ns;

/// What the process had spent when [`begin`] was called.
static BEFORE: OnceLock<u64> = OnceLock::new();

/// Begins to count: earlier time of this process is not ccsd's, as it may have been another program until `execve`
/// (`cargo run` builds for minutes first). Call first in `main`.
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

/// What this process and all that read images for it have in memory now, in bytes.
pub fn all_rss_bytes() -> u64 {
    own_rss_bytes().saturating_add(ccsd_worker::worker_usage().resident_bytes)
}

/// CPU time of this process and of the one that reads this machine's own images, in nanoseconds. What is read of other users'
/// files, and for users, is theirs.
pub fn machine_cpu_ns() -> u64 {
    own_cpu_ns().saturating_add(ccsd_worker::own_worker_usage().cpu_ns)
}

/// What these have in memory now, in bytes.
pub fn machine_rss_bytes() -> u64 {
    own_rss_bytes().saturating_add(ccsd_worker::own_worker_usage().resident_bytes)
}

/// Symbol workers that died or were killed for hanging.
#[must_use]
pub fn worker_failures() -> u64 {
    ccsd_worker::worker_usage().failures
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
    let read_at = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    ASIDE.set(AsideUsage { read_at, ..ASIDE.get() });
    read_at
}

thread_local! {
    /// CPU time of threads that this one has waited for, nanoseconds.
    static HELPERS: Cell<u64> = const { Cell::new(0) };
}

/// Counts the CPU time of a thread that has worked for the calling one.
pub fn add_helper(ns: u64) {
    HELPERS.set(HELPERS.get().saturating_add(ns));
}

/// CPU time of the calling thread so far and of those that have worked for it, in nanoseconds.
#[must_use]
pub fn thread_work_ns() -> u64 {
    thread_cpu_ns().saturating_add(HELPERS.get())
}

/// What a thread does beside its usual work, and what is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// Opens images and reads what is in them.
    Images,
    /// Reads the names of kernel functions.
    KernelNames,
}

#[derive(Clone, Copy, Default)]
struct AsideUsage {
    /// CPU time, nanoseconds.
    sums: [u64; 2],
    nested: bool,
    read_at: u64,
}

thread_local! {
    static ASIDE: Cell<AsideUsage> = const { Cell::new(AsideUsage { sums: [0; 2], nested: false, read_at: 0 }) };
}

/// Shorter work is counted by [`aside_briefly`] by elapsed time, nanoseconds: no system call, and hardly any waiting.
const BRIEF_NS: u64 = 200_000;

/// Does something and counts the CPU time that this thread spends on it. What is counted within counts once, as the outer.
pub fn aside<T>(what: Aside, work: impl FnOnce() -> T) -> T {
    counted(what, work, thread_cpu_ns, |before| thread_cpu_ns().saturating_sub(before))
}

/// The same for work of mostly some microseconds, a thousand times a second. If it takes longer and waits, CPU time
/// since the clock was last read may count in place of the waiting.
pub fn aside_briefly<T>(what: Aside, work: impl FnOnce() -> T) -> T {
    let read_at = ASIDE.get().read_at;
    counted(what, work, now_ns, |before| {
        let passed = now_ns().saturating_sub(before);
        if passed <= BRIEF_NS { passed } else { passed.min(thread_cpu_ns().saturating_sub(read_at)) }
    })
}

fn counted<T>(what: Aside, work: impl FnOnce() -> T, begin: fn() -> u64, spent: impl FnOnce(u64) -> u64) -> T {
    if ASIDE.get().nested {
        return work();
    }
    let before = begin();
    ASIDE.set(AsideUsage { nested: true, ..ASIDE.get() });
    let done = work();
    let spent = spent(before);
    let mut counted = AsideUsage { nested: false, ..ASIDE.get() };
    if let Some(sum) = counted.sums.get_mut(what as usize) {
        *sum = sum.saturating_add(spent);
    }
    ASIDE.set(counted);
    done
}

/// What [`aside`] has counted of this thread, nanoseconds.
pub fn aside_ns(what: Aside) -> u64 {
    ASIDE.get().sums.get(what as usize).copied().unwrap_or(0)
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
    fn work_done_aside_is_counted_once() {
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
        aside_briefly(Aside::KernelNames, spend);
        aside_briefly(Aside::KernelNames, || {});
        assert!(aside_ns(Aside::KernelNames) >= 2_000_000);
    }
}
