//! What ccsd itself costs.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::time::{ClockId, clock_gettime};

/// CPU time of this process so far, user and system, in nanoseconds.
pub fn own_cpu_ns() -> u64 {
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

/// Largest resident set of this process so far, in bytes (`VmHWM`; `ru_maxrss` would include what ran before `execve`).
pub fn own_peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
