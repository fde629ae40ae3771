//! The checks. Each tries the operation: a container may refuse what the settings allow.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;

use ccsd_collector::{
    ChosenEvent, Error, Event, EventChoice, EventLayout, EventSet, MAX_STACK_BYTES, Options, Scope, choose,
    event_file_room, files_per_target, may_observe_machine, system,
};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{User, geteuid};

use super::check::{CheckResult, DoctorCheck};
use crate::format::{bytes, count};

const MOUNT_TRACEFS: &str = "sudo mount -t tracefs tracefs /sys/kernel/tracing";
const PARANOID_1: &str = "sudo sysctl kernel.perf_event_paranoid=1";

pub fn all() -> Vec<DoctorCheck> {
    let capabilities = Capabilities::effective();
    let mut checks = vec![sampling()];
    if checks.iter().all(|check| check.mark == CheckResult::Ok) {
        let kernel = try_event(EventChoice::CpuClock, Scope::Kernel).is_ok();
        checks.extend([
            kernel_stacks(kernel),
            kernel_names(capabilities),
            cycles(),
            tsc(kernel),
            tick(),
            rate(),
            locked_memory(),
            fatal_signals(),
        ]);
    }
    checks.extend(kernel_version(&fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default()));
    checks.extend([open_files(), processes(capabilities), debug_files()]);
    checks
}

/// The oldest kernel that `tests/kernels/run` checks: major and minor version.
const OLDEST_KERNEL: (u32, u32) = (5, 10);

/// A warning about a kernel older than those that are checked.
fn kernel_version(release: &str) -> Option<DoctorCheck> {
    let mut numbers = release.split(['.', '-', '+']).map_while(|number| number.trim().parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    let (major, minor) = OLDEST_KERNEL;
    (version < OLDEST_KERNEL).then(|| {
        let text = format!(
            "Linux {}.{} is older than {major}.{minor}, the oldest that ccsd is tested on: some of it may not work",
            version.0, version.1
        );
        DoctorCheck::limited("kernel", text)
    })
}

fn try_event(event: EventChoice, scope: Scope) -> Result<ChosenEvent, Error> {
    choose(event, scope, Options::default().rate_hz.min(system::perf_max_sample_rate()), true)
}

fn sampling() -> DoctorCheck {
    const NAME: &str = "sampling";
    match try_event(EventChoice::CpuClock, Scope::User) {
        Ok(_) => {
            let paranoid =
                system::perf_event_paranoid().map_or_else(|| "not set".to_owned(), |level| level.to_string());
            DoctorCheck::ok(NAME, format!("perf events work (kernel.perf_event_paranoid is {paranoid})"))
        }
        Err(error @ Error::Paranoid { .. }) => {
            DoctorCheck::no(NAME, error.to_string()).command("sudo sysctl kernel.perf_event_paranoid=2")
        }
        Err(error) => DoctorCheck::no(NAME, error.to_string()),
    }
}

fn kernel_stacks(permitted: bool) -> DoctorCheck {
    const NAME: &str = "kernel stacks";
    if permitted {
        return DoctorCheck::ok(NAME, "the kernel's part of every stack is sampled, too");
    }
    DoctorCheck::limited(NAME, "refused to this user: only user code is sampled, and time in the kernel is not seen")
        .command(PARANOID_1)
}

fn kernel_names(capabilities: Capabilities) -> DoctorCheck {
    const NAME: &str = "kernel names";
    let restrict = system::kptr_restrict();
    if kallsyms_are_readable() {
        return DoctorCheck::ok(NAME, "/proc/kallsyms gives the names of kernel functions");
    }
    let set = restrict.map_or_else(|| "not set".to_owned(), |level| level.to_string());
    let check =
        DoctorCheck::limited(NAME, format!("hidden (kernel.kptr_restrict is {set}): kernel functions have no names"));
    match restrict {
        // At 2 the addresses are hidden from all users; 1 shows them to users with CAP_SYSLOG.
        Some(2..) if capabilities.syslog => check.command("sudo sysctl kernel.kptr_restrict=1"),
        // For other users the kernel also checks whether they may sample it.
        _ => check.command(format!("{PARANOID_1} kernel.kptr_restrict=0")),
    }
}

fn kallsyms_are_readable() -> bool {
    // Some symbols really are at 0 (per-CPU offsets), so a few lines are not enough.
    const LINES: usize = 20_000;
    let Ok(file) = File::open("/proc/kallsyms") else { return false };
    let lines = BufReader::new(file).split(b'\n').take(LINES).map_while(Result::ok);
    let mut address = lines.map(|line| line.split(|&byte| byte == b' ').next().unwrap_or_default().to_vec());
    address.any(|digits| digits.iter().any(|&digit| digit != b'0'))
}

fn cycles() -> DoctorCheck {
    const NAME: &str = "hardware cycles";
    match try_event(EventChoice::Cycles, Scope::Auto) {
        Ok(choice) => {
            let skid = match choice.spec.event {
                Event::Cycles { precise: 3 } => "no skid",
                Event::Cycles { precise: 1 | 2 } => "little skid",
                _ => "some skid: a sample may be charged a few instructions late",
            };
            DoctorCheck::ok(NAME, format!("counted, with {skid}"))
        }
        Err(error) => {
            // No command on this machine helps, so none is printed.
            let host = if is_virtual_machine() {
                "; the host of a virtual machine can give it one (QEMU: `-cpu host,pmu=on`)"
            } else {
                ""
            };
            DoctorCheck::limited(NAME, format!("{}: the CPU clock samples instead{host}", reason(&error)))
        }
    }
}

fn tsc(kernel: bool) -> DoctorCheck {
    const NAME: &str = "TSC cycles";
    match try_event(EventChoice::CpuClockTsc, Scope::Auto) {
        Ok(_) => DoctorCheck::ok(NAME, "samples of the CPU clock also carry cycles of the time stamp counter"),
        Err(error) => {
            let check = DoctorCheck::limited(NAME, format!("none: {}", reason(&error)));
            if kernel { check } else { check.command(PARANOID_1) }
        }
    }
}

fn tick() -> DoctorCheck {
    const NAME: &str = "scheduler's tick";
    match try_event(EventChoice::Tick, Scope::Auto) {
        Ok(choice) => DoctorCheck::ok(
            NAME,
            format!("can sample {} times a second at next to no cost to the target (-e tick)", choice.spec.rate_hz),
        ),
        Err(error) => {
            let check = DoctorCheck::limited(NAME, format!("cannot sample: {}", reason(&error)));
            if has_tracefs() { check } else { check.command(MOUNT_TRACEFS) }
        }
    }
}

fn reason(error: &Error) -> String {
    match error {
        Error::EventUnavailable { why, .. } => why.clone(),
        error => error.to_string(),
    }
}

fn rate() -> DoctorCheck {
    const NAME: &str = "sampling rate";
    let (max, default) = (system::perf_max_sample_rate(), Options::default().rate_hz);
    let text = format!("up to {} Hz (kernel.perf_event_max_sample_rate)", count(max.into()));
    if max >= default {
        return DoctorCheck::ok(NAME, text);
    }
    DoctorCheck::limited(NAME, format!("{text}: the default of {default} Hz is refused, give -F {max}"))
        .command("sudo sysctl kernel.perf_event_max_sample_rate=100000")
}

fn locked_memory() -> DoctorCheck {
    const NAME: &str = "locked memory";
    let limit = match system::memlock_limit_kb() {
        u64::MAX => "unlimited".to_owned(),
        kib => bytes(kib.saturating_mul(1024)),
    };
    let allowance = format!(
        "kernel.perf_event_mlock_kb gives {} per CPU, `ulimit -l` {limit} more",
        bytes(system::perf_event_mlock_kb().saturating_mul(1024))
    );
    let Ok(choice) = try_event(EventChoice::Auto, Scope::Auto) else {
        return DoctorCheck::limited(NAME, allowance);
    };
    let mut notes = Vec::new();
    let cpus = system::online_cpus().len() as u64;
    // The best ring with its header page, and the small ring beside it.
    let command = format!("sudo sysctl kernel.perf_event_mlock_kb={}", 516 + 2048 + 128);
    match EventSet::new(choice.spec, EventLayout::Threads, ccsd_collector::Budget::default().rings, &mut notes) {
        Ok((events, _)) => {
            let stack = u64::from(events.spec().stack_bytes);
            let text = format!("{} of stack are copied per sample, on {cpus} CPUs; {allowance}", bytes(stack));
            if notes.is_empty() && stack >= u64::from(MAX_STACK_BYTES) {
                DoctorCheck::ok(NAME, text)
            } else {
                DoctorCheck::limited(NAME, format!("{text}. Deeper stacks are cut off")).command(command)
            }
        }
        Err(error) => DoctorCheck::no(NAME, error.to_string()).command(command),
    }
}

fn fatal_signals() -> DoctorCheck {
    const NAME: &str = "fatal signals";
    let Ok(choice) = try_event(EventChoice::CpuClock, Scope::User) else {
        return DoctorCheck::no(NAME, "no perf events");
    };
    // The smallest rings: nothing is sampled.
    let opened = EventSet::new(choice.spec, EventLayout::Threads, 0, &mut Vec::new());
    match opened.map(|(mut events, _)| events.open_fatal_signals()) {
        Ok(Ok(_)) => DoctorCheck::ok(NAME, "the stack of a program that dies of a signal is shown and kept"),
        Ok(Err(why)) => {
            let check = DoctorCheck::limited(NAME, format!("no stacks of programs that die of a signal: {why}"));
            if has_tracefs() { check } else { check.command(MOUNT_TRACEFS) }
        }
        Err(error) => DoctorCheck::limited(NAME, error.to_string()),
    }
}

fn has_tracefs() -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts.lines().any(|line| line.split(' ').nth(2) == Some("tracefs"))
}

fn open_files() -> DoctorCheck {
    const NAME: &str = "open files";
    /// More threads than a large server has.
    const PLENTY: u64 = 1_000;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((0, 0));
    let Ok(choice) = try_event(EventChoice::Auto, Scope::Auto) else {
        return DoctorCheck::limited(NAME, format!("{} allowed (`ulimit -Hn`)", count(hard)));
    };
    let cpus = system::online_cpus().len() as u64;
    let reach = |layout| event_file_room(hard) / files_per_target(layout, &choice.spec).saturating_mul(cpus).max(1);
    let threads = reach(EventLayout::Compact);
    let mut text = format!(
        "{} allowed (`ulimit -Hn`): attach follows {} threads one by one, {} with mappings in the samples' rings",
        count(hard),
        count(reach(EventLayout::Threads)),
        count(threads)
    );
    if may_observe_machine(&choice.spec) {
        text.push_str(", and any number by sampling all CPUs");
        return DoctorCheck::ok(NAME, text);
    }
    if threads >= PLENTY {
        return DoctorCheck::ok(NAME, text);
    }
    DoctorCheck::limited(NAME, text).command("sudo prlimit --pid $$ --nofile=1048576:1048576")
}

fn processes(capabilities: Capabilities) -> DoctorCheck {
    const NAME: &str = "processes";
    // perf_event_open needs CAP_PERFMON, reading /proc/PID/maps needs CAP_SYS_PTRACE. Yama restricts tracing only.
    if capabilities.perfmon && capabilities.ptrace {
        return DoctorCheck::ok(NAME, "those of every user can be attached to");
    }
    let program = std::env::current_exe().map_or_else(|_| "ccsd".to_owned(), |path| path.display().to_string());
    DoctorCheck::limited(NAME, format!("those of user {} can be attached to", user_name())).command(format!(
        "sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog=ep {}",
        crate::format::shell_word(&program)
    ))
}

fn debug_files() -> DoctorCheck {
    const NAME: &str = "debug files";
    let directory = Path::new("/usr/lib/debug");
    let has_any = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_some());
    if has_any(&directory.join(".build-id")) {
        return DoctorCheck::ok(
            NAME,
            "/usr/lib/debug has debug files by build id; they name what stripped programs do not",
        );
    }
    let check = DoctorCheck::limited(
        NAME,
        "none in /usr/lib/debug: functions of stripped programs and libraries show as library+0x1234, without lines",
    );
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    match debug_package_command(&os) {
        Some(command) => check.command(command),
        None => check,
    }
}

/// The command that installs the C library's debug files on the distribution of this /etc/os-release.
fn debug_package_command(os_release: &str) -> Option<&'static str> {
    let names: Vec<&str> = os_release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches('"').split(' '))
        .collect();
    let is = |name| names.contains(&name);
    if is("debian") || is("ubuntu") {
        Some("sudo apt install libc6-dbg   # and PACKAGE-dbg or PACKAGE-dbgsym of others")
    } else if is("fedora") || is("rhel") {
        Some("sudo dnf debuginfo-install glibc   # and others")
    } else if is("suse") || is("opensuse") {
        Some("sudo zypper install glibc-debuginfo   # and PACKAGE-debuginfo of others")
    } else {
        None
    }
}

fn is_virtual_machine() -> bool {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    pub perfmon: bool,
    ptrace: bool,
    syslog: bool,
}

impl Capabilities {
    pub fn effective() -> Capabilities {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).map(Capabilities::of).unwrap_or_default()
    }

    fn of(mask: u64) -> Capabilities {
        const SYS_PTRACE: u32 = 19;
        const SYS_ADMIN: u32 = 21;
        const SYSLOG: u32 = 34;
        const PERFMON: u32 = 38;
        let has = |capability: u32| mask & (1 << capability) != 0;
        Capabilities { perfmon: has(PERFMON) || has(SYS_ADMIN), ptrace: has(SYS_PTRACE), syslog: has(SYSLOG) }
    }
}

pub fn user_name() -> String {
    let uid = geteuid();
    match User::from_uid(uid) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_older_than_those_tested_is_told() {
        for tested in ["5.10.0-32-cloud-amd64\n", "6.1.0", "6.12.117+deb13", "7.0-rc1", "nonsense", ""] {
            assert!(kernel_version(tested).is_none(), "{tested}");
        }
        for older in ["5.9.16", "4.19.0-27-amd64\n"] {
            assert!(kernel_version(older).is_some(), "{older}");
        }
    }

    #[test]
    fn capabilities() {
        assert_eq!(Capabilities::of(0), Capabilities::default());
        assert!(Capabilities::of(1 << 38).perfmon);
        assert_eq!(Capabilities::of(u64::MAX), Capabilities { perfmon: true, ptrace: true, syslog: true });
    }

    #[test]
    fn packages() {
        assert!(debug_package_command("NAME=x\nID=debian\n").unwrap().contains("apt"));
        assert!(debug_package_command("ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n").unwrap().contains("zypper"));
        assert_eq!(debug_package_command("ID=alpine\n"), None);
    }

    #[test]
    fn all_checks_run() {
        let checks = all();
        assert!(checks.len() >= 4);
        assert!(checks.iter().all(|check| !check.text.is_empty()));
    }
}
