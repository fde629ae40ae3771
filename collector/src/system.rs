//! What this machine is set to: a few files of /proc/sys, /sys and the resource limits.

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

fn number<T: std::str::FromStr>(path: &str) -> Option<T> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
pub fn perf_event_paranoid() -> Option<i32> {
    number("/proc/sys/kernel/perf_event_paranoid")
}

/// `kernel.perf_event_max_sample_rate`, samples per second. 100,000 is the kernel's own default.
pub fn perf_max_sample_rate() -> u32 {
    number("/proc/sys/kernel/perf_event_max_sample_rate").unwrap_or(100_000)
}

/// `kernel.perf_event_mlock_kb`: KiB of ring that each user may lock per CPU beside `RLIMIT_MEMLOCK`.
pub fn perf_event_mlock_kb() -> u64 {
    number("/proc/sys/kernel/perf_event_mlock_kb").unwrap_or(0)
}

/// `kernel.kptr_restrict`.
pub fn kptr_restrict() -> Option<i32> {
    number("/proc/sys/kernel/kptr_restrict")
}

/// Whether everybody may read kernel addresses, as `kallsyms_show_value` in `kernel/kallsyms.c` decides without
/// CAP_SYSLOG.
pub fn kernel_symbols_are_public() -> bool {
    kptr_restrict() == Some(0) && perf_event_paranoid().is_some_and(|paranoid| paranoid <= 1)
}

/// `kernel.yama.ptrace_scope`: from 1 on, non-root may trace only descendants. `None` without Yama.
pub fn ptrace_scope() -> Option<i32> {
    number("/proc/sys/kernel/yama/ptrace_scope")
}

/// `RLIMIT_MEMLOCK` in KiB; `u64::MAX` for unlimited.
pub fn memlock_limit_kb() -> u64 {
    getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(soft, _)| if soft == u64::MAX { soft } else { soft / 1024 })
}

/// Whether this process has one of these capabilities (capabilities(7)), by their numbers.
fn has_capability(numbers: &[u32]) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|effective| numbers.iter().any(|number| effective >> number & 1 == 1))
}

/// Whether this process reads files that its user could not: it runs as root, or may pass over the permissions of files.
pub fn reads_any_file() -> bool {
    const CAP_DAC_OVERRIDE: u32 = 1;
    const CAP_DAC_READ_SEARCH: u32 = 2;
    let is_set_id = nix::unistd::getuid() != nix::unistd::geteuid();
    nix::unistd::geteuid().is_root() || is_set_id || has_capability(&[CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH])
}

/// Bytes that all rings of this process may lock together; `u64::MAX` where nothing bounds them.
pub fn lockable_bytes() -> u64 {
    const CAP_IPC_LOCK: u32 = 14;
    let is_exempt = has_capability(&[CAP_IPC_LOCK]) || perf_event_paranoid().is_some_and(|paranoid| paranoid < 0);
    match memlock_limit_kb() {
        limit if is_exempt || limit == u64::MAX => u64::MAX,
        limit => {
            perf_event_mlock_kb().saturating_mul(online_cpus().len() as u64).saturating_add(limit).saturating_mul(1024)
        }
    }
}

/// `RLIMIT_NOFILE`.
pub fn file_limit() -> u64 {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft)
}

/// Raises the soft limit on open files to the hard one and returns it. Events are descriptors: one per thread and CPU.
pub fn raise_file_limit() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return 0 };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() { hard } else { soft }
}

/// Files that this process has open. Takes a microsecond or so for each.
pub fn open_files() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |files| files.count().saturating_sub(1) as u64)
}

/// The CPUs that are online, from `/sys/devices/system/cpu/online` (`0-3,5`).
pub fn online_cpus() -> Vec<i32> {
    let cpus = fs::read_to_string("/sys/devices/system/cpu/online").map(|list| parse_cpus(&list)).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// More CPUs than any kernel is built for (`NR_CPUS` is at most 8192).
const MAX_CPUS: i32 = 8192;

fn parse_cpus(list: &str) -> Vec<i32> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            cpus.extend(first.max(0)..=last.min(MAX_CPUS));
        }
    }
    cpus
}

/// `type` and `config` of the `msr/tsc/` event, from sysfs.
pub fn msr_tsc_event() -> Option<(u32, u64)> {
    let pmu = number("/sys/bus/event_source/devices/msr/type")?;
    let event = fs::read_to_string("/sys/bus/event_source/devices/msr/events/tsc").ok()?;
    let config = event.trim().strip_prefix("event=0x")?;
    Some((pmu, u64::from_str_radix(config, 16).ok()?))
}

/// The machine's name.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::parse_cpus;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_cpus("7"), [7]);
        assert_eq!(parse_cpus("x,3-1"), [] as [i32; 0]);
    }
}
