//! Reads what the kernel says of a process in /proc.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use ccsd_collector::other_process;
use ccsd_collector::procfs::{Stat, parse_stat};

/// Maximum bytes read of a file in /proc: control group paths of 4096 bytes, a dozen in version 1.
const MAX_FILE: u64 = 1 << 17;

/// A process, distinct from later ones with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScannedProcess {
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

/// `/proc/PID/stat` of a process, and the directory of a living thread: the main one's, or another's if that has ended.
/// `Some(None)` if all have, `None` where another user's process does not answer in time.
pub fn read_living_thread(dir: &Path) -> Option<Option<(Stat, PathBuf)>> {
    let of = dir.to_owned();
    other_process::ask_by(dir, move || living_thread(&of))
}

fn living_thread(dir: &Path) -> Option<(Stat, PathBuf)> {
    let stat = read_stat(dir)?;
    if !has_ended(&stat) {
        return Some((stat, dir.to_owned()));
    }
    let threads = fs::read_dir(dir.join("task")).ok()?.flatten().map(|entry| entry.path());
    let mut living = threads.filter_map(|dir| Some((read_stat(&dir).filter(|stat| !has_ended(stat))?, dir)));
    let (of_thread, dir) = living.next()?;
    // Name and start time stay those of the main thread.
    Some((Stat { program: of_thread.program, state: of_thread.state, ..stat }, dir))
}

fn read_stat(dir: &Path) -> Option<Stat> {
    parse_stat(&read(&dir.join("stat"))?)
}

fn has_ended(stat: &Stat) -> bool {
    matches!(stat.state, 'Z' | 'X')
}
