//! Reads what the kernel says of a process in /proc.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Maximum bytes read of a file in /proc: a control group's path has at most 4096 bytes; version 1 has one for each of
/// a dozen controllers.
const MAX_FILE: u64 = 1 << 17;
/// `PF_KTHREAD` of `linux/sched.h`.
pub const PF_KTHREAD: u64 = 0x0020_0000;

/// A process, distinct from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScannedProcess {
    /// Process id.
    pub pid: u32,
    /// Start time, clock ticks since boot.
    pub start_time: u64,
}

/// Reads a file of /proc up to the limit, without blocking.
pub fn read(path: &Path) -> Option<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// Fields of `/proc/PID/stat`.
pub struct ScanStat {
    /// Name of the command.
    pub comm: String,
    /// Whether the main thread has ended; the process may continue without it.
    zombie: bool,
    /// Whether it is a thread of the kernel.
    pub kernel_thread: bool,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// Addresses of code and stack, which change with `execve`. 0 if the reader may not trace the process.
    pub program: (u64, u64),
}

impl ScanStat {
    /// Reads the file in a directory of /proc.
    fn read(dir: &Path) -> Option<ScanStat> {
        parse_stat(&read(&dir.join("stat"))?)
    }

    /// Reads the file of a process, and finds the directory of a thread that shows its current state: the main
    /// thread's, or another's if that has ended. `None` if all threads have ended.
    pub fn read_living_thread(dir: &Path) -> Option<(ScanStat, PathBuf)> {
        let stat = ScanStat::read(dir)?;
        if !stat.zombie {
            return Some((stat, dir.to_owned()));
        }
        let threads = fs::read_dir(dir.join("task")).ok()?.flatten().map(|entry| entry.path());
        let mut living = threads.filter_map(|dir| Some((ScanStat::read(&dir).filter(|stat| !stat.zombie)?, dir)));
        let (of_thread, dir) = living.next()?;
        // Name and start time stay those of the main thread.
        Some((ScanStat { program: of_thread.program, zombie: false, ..stat }, dir))
    }
}

/// `/proc/PID/stat`; see proc_pid_stat(5).
fn parse_stat(bytes: &[u8]) -> Option<ScanStat> {
    // The name is in parentheses and may itself contain them: the last one ends it.
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    // Fields are numbered from 1; the first here is 3, the state.
    let mut fields = std::str::from_utf8(bytes.get(close + 1..)?).ok()?.split_ascii_whitespace();
    let zombie = matches!(fields.next()?, "Z" | "X");
    let flags: u64 = fields.nth(9 - 4)?.parse().ok()?;
    let start_time = fields.nth(22 - 10)?.parse().ok()?;
    let mut address = |skip: usize| fields.nth(skip).and_then(|field| field.parse().ok()).unwrap_or(0);
    let program = (address(26 - 23), address(28 - 27));
    Some(ScanStat { comm, zombie, kernel_thread: flags & PF_KTHREAD != 0, start_time, program })
}
