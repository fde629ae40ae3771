//! What /proc says of one thread, without stopping it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::procfs;

use super::model::TaskState;

/// Longest kernel stack kept, in lines. The kernel prints at most 64 entries.
const MAX_KERNEL_LINES: usize = 64;
/// Room for the text of /proc/PID/syscall: a number and eight addresses.
const SYSCALL_BYTES: usize = 256;
/// `SECCOMP_MODE_FILTER` of `linux/seccomp.h`.
const SECCOMP_MODE_FILTER: u64 = 2;

#[derive(Clone, Debug)]
pub struct Look {
    pub name: String,
    pub state: TaskState,
    /// The kernel function that it waits in.
    pub wait: Option<String>,
    /// The kernel's part of its stack, innermost first.
    pub kernel_stack: Vec<String>,
    /// Where it is as seen by user code.
    pub place: SyscallStatus,
    pub tracer: Option<u32>,
    /// Whether a seccomp filter looks at its system calls, which may hand them to a supervisor.
    pub has_seccomp_filter: bool,
    /// How often it has been given a CPU: while that stays the same it has not run.
    switches: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyscallStatus {
    /// On a CPU, or waiting for one.
    Running,
    InCall(SystemCall),
    /// Blocked outside a system call: in a page fault, or stopped.
    Blocked {
        sp: u64,
        ip: u64,
    },
    /// That may not be known, and why.
    Unknown(io::ErrorKind),
}

/// A thread's file in /proc that tells its [`SyscallStatus`], open: a look at it takes a microsecond.
#[derive(Debug)]
pub struct SyscallFile(File);

impl SyscallFile {
    pub fn open(pid: u32, tid: u32) -> io::Result<SyscallFile> {
        File::open(format!("/proc/{pid}/task/{tid}/syscall")).map(SyscallFile)
    }

    pub fn status(&self) -> SyscallStatus {
        let mut text = [0; SYSCALL_BYTES];
        match self.0.read_at(&mut text, 0) {
            Ok(len) => parse_place(&String::from_utf8_lossy(text.get(..len).unwrap_or_default())),
            Err(error) => SyscallStatus::Unknown(error.kind()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemCall {
    pub number: i64,
    pub args: [u64; 6],
    pub sp: u64,
    pub ip: u64,
}

impl Look {
    pub fn at(pid: u32, tid: u32) -> Option<Look> {
        let file = |name: &str| procfs::read(&format!("/proc/{pid}/task/{tid}/{name}"));
        let text = |name: &str| file(name).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let place =
            SyscallFile::open(pid, tid).map_or_else(|error| SyscallStatus::Unknown(error.kind()), |file| file.status());
        let stat = procfs::parse_stat(&file("stat").ok()?)?;
        let state = TaskState::of(stat.state);
        let status = text("status").unwrap_or_default();
        let number = |field: &str| status.lines().find_map(|line| line.strip_prefix(field)?.trim().parse::<u64>().ok());
        let switches = number("voluntary_ctxt_switches:").zip(number("nonvoluntary_ctxt_switches:"));
        // "0" is what it says of threads that run, and where it may not be known.
        let wait = text("wchan").ok().filter(|wait| !wait.is_empty() && wait != "0");
        let kernel_stack = match state {
            TaskState::Running => String::new(),
            _ => text("stack").unwrap_or_default(),
        };
        Some(Look {
            name: stat.comm,
            state,
            wait,
            kernel_stack: kernel_stack.lines().take(MAX_KERNEL_LINES).map(kernel_line).collect(),
            place,
            tracer: number("TracerPid:").and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0),
            has_seccomp_filter: number("Seccomp:") == Some(SECCOMP_MODE_FILTER),
            switches: switches.map(|(own, forced)| own.wrapping_add(forced)),
        })
    }

    /// Whether it has not run between an earlier look and this one, and was blocked in both.
    pub fn is_undisturbed_since(&self, before: &Look) -> bool {
        let blocked = matches!(self.place, SyscallStatus::InCall(_) | SyscallStatus::Blocked { .. });
        blocked && self.place == before.place && self.switches.is_some() && self.switches == before.switches
    }

    pub fn pointers(&self) -> Option<(u64, u64)> {
        match self.place {
            SyscallStatus::InCall(SystemCall { sp, ip, .. }) | SyscallStatus::Blocked { sp, ip } => Some((sp, ip)),
            SyscallStatus::Running | SyscallStatus::Unknown(_) => None,
        }
    }
}

/// `[<0>] do_epoll_wait+0x6a1/0x8a0` without what stands for the address.
fn kernel_line(line: &str) -> String {
    line.split_once("] ").map_or(line, |(_, function)| function).trim().to_owned()
}

fn parse_place(text: &str) -> SyscallStatus {
    let invalid = SyscallStatus::Unknown(io::ErrorKind::InvalidData);
    let text = text.trim();
    if text == "running" {
        return SyscallStatus::Running;
    }
    let mut words = text.split_ascii_whitespace();
    let Some(number) = words.next().and_then(|word| word.parse::<i64>().ok()) else { return invalid };
    let values: Option<Vec<u64>> =
        words.map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).take(8).collect();
    match values.as_deref() {
        Some(&[sp, ip]) if number == -1 => SyscallStatus::Blocked { sp, ip },
        Some(&[a, b, c, d, e, f, sp, ip]) => {
            SyscallStatus::InCall(SystemCall { number, args: [a, b, c, d, e, f], sp, ip })
        }
        _ => invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(parse_place("running\n"), SyscallStatus::Running);
        assert_eq!(parse_place("-1 0x7ffc 0x55\n"), SyscallStatus::Blocked { sp: 0x7ffc, ip: 0x55 });
        let call = SystemCall { number: 232, args: [4, 0x10, 8, 0xffff_ffff, 0, 8], sp: 0x7ffc, ip: 0x55 };
        assert_eq!(parse_place("232 0x4 0x10 0x8 0xffffffff 0x0 0x8 0x7ffc 0x55\n"), SyscallStatus::InCall(call));
        for text in ["", "x", "1 2 3", "232 0x4", "-1 0x1", "-1 0x1 0x2 0x3 0x4 0x5 0x6 0x7"] {
            assert_eq!(parse_place(text), SyscallStatus::Unknown(io::ErrorKind::InvalidData), "{text:?}");
        }
    }

    #[test]
    fn kernel_lines() {
        assert_eq!(kernel_line("[<0>] do_epoll_wait+0x6a1/0x8a0"), "do_epoll_wait+0x6a1/0x8a0");
        assert_eq!(kernel_line("odd"), "odd");
    }

    #[test]
    fn this_thread_runs() {
        let pid = std::process::id();
        let tid = nix::unistd::gettid().as_raw().unsigned_abs();
        let look = Look::at(pid, tid).unwrap();
        assert_eq!((look.state, look.tracer), (TaskState::Running, None));
        assert!(Look::at(pid, u32::MAX - 1).is_none());
    }
}
