//! What /proc says of processes. Every field is optional, every size has a limit: a process names itself and its files.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use hashbrown::{HashMap, HashSet};

use crate::other_process;
use crate::pids::is_free;
pub use crate::pids::is_ours;
use crate::users::PasswdUsers;
pub use crate::users::user_of_process;

/// Largest /proc file read: the default `vm.max_map_count` is 65,530 mappings of about 100 bytes.
const MAX_FILE: u64 = 64 << 20;
/// `PF_KTHREAD` of `linux/sched.h`.
pub const PF_KTHREAD: u64 = 0x0020_0000;
/// `PF_EXITING` of the same: set before the memory is given up.
const PF_EXITING: u64 = 0x4;

/// Some of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Name of the (main) thread.
    pub comm: String,
    /// `R`, `S`, `Z`, ...
    pub state: char,
    /// Parent process.
    pub parent: u32,
    /// Whether it is a thread of the kernel.
    pub kernel_thread: bool,
    /// Whether it is ending or has ended, and does nothing more of its program.
    pub exiting: bool,
    /// CPU time in clock ticks, user and system.
    pub cpu_ticks: (u64, u64),
    /// Start, clock ticks since boot.
    pub start_time: u64,
    /// Addresses of code and stack, which change with `execve`. 0 if the reader may not trace the process.
    pub program: (u64, u64),
}

/// An executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Offset in the file, bytes.
    pub file_offset: u64,
    /// Of the file system; major and minor number.
    pub device: (u32, u32),
    /// Inode number; 0 for anonymous memory.
    pub inode: u64,
    /// Path as the kernel prints it; empty for anonymous memory.
    pub path: Vec<u8>,
}

/// The bytes of a file of /proc, up to a limit.
///
/// # Errors
/// Those of opening and reading it.
pub fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The number of a process's mount namespace; `None` where the process is not there, or may not be looked at, or not now.
pub fn mount_namespace(pid: u32) -> Option<u64> {
    ask(pid, move || fs::metadata(format!("/proc/{pid}/ns/mnt"))).ok().map(|meta| meta.ino())
}

/// Asks /proc about a process. Errors: those of the question; `NotFound` if it has gone, `TimedOut` if another user's process
/// does not answer in time.
fn ask<T: Send + 'static>(pid: u32, question: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    if is_free(pid) {
        return Err(io::ErrorKind::NotFound.into());
    }
    other_process::ask(pid, question).unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
}

/// `/proc/PID/stat` of a process or thread.
///
/// # Errors
/// `NotFound` where it does not exist, `InvalidData` where it cannot be understood, `TimedOut` where it is another user's, who
/// can keep the kernel from answering.
pub fn stat(pid: u32) -> io::Result<Stat> {
    let bytes = ask(pid, move || read(&format!("/proc/{pid}/stat")))?;
    parse_stat(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether the process that has a number now started then or earlier, in clock ticks since boot: the number may be another
/// process's by now. True where it is not known when, with a time of 0.
pub fn has_run_since(pid: u32, start_time: u64) -> bool {
    /// By how many ticks the time of a record may be before that in /proc.
    const SLACK: u64 = 1;
    start_time == 0 || stat(pid).is_ok_and(|stat| stat.start_time <= start_time.saturating_add(SLACK))
}

/// The same from the bytes of the file; `None` where they cannot be understood.
pub fn parse_stat(bytes: &[u8]) -> Option<Stat> {
    // The name stands in parentheses and may itself contain them: the last one ends it.
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc_pid_stat(5) numbers fields from 1; the first here is 3, the state.
    let field = |number: usize| fields.get(number - 3).copied();
    let (state, flags) = (field(3)?.chars().next()?, field(9)?.parse::<u64>().ok()?);
    let address = |number| field(number).and_then(|field| field.parse().ok()).unwrap_or(0);
    Some(Stat {
        comm,
        state,
        parent: field(4)?.parse().ok()?,
        kernel_thread: flags & PF_KTHREAD != 0,
        exiting: flags & PF_EXITING != 0 || matches!(state, 'Z' | 'X' | 'x'),
        cpu_ticks: (field(14)?.parse().ok()?, field(15)?.parse().ok()?),
        start_time: field(22)?.parse().ok()?,
        program: (address(26), address(28)),
    })
}

/// The process that a thread belongs to.
pub fn thread_group(tid: u32) -> Option<u32> {
    let status = read(&format!("/proc/{tid}/status")).ok()?;
    String::from_utf8_lossy(&status).lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok())
}

/// The number that a process has in its own namespace, and its effective user.
pub fn own_pid_and_user(pid: u32) -> (Option<u32>, Option<u32>) {
    if is_free(pid) {
        return (None, None);
    }
    let Ok(status) = read(&format!("/proc/{pid}/status")) else { return (None, None) };
    let status = String::from_utf8_lossy(&status);
    let words = |field: &str| status.lines().find_map(|line| Some(line.strip_prefix(field)?.split_ascii_whitespace()));
    // From the outermost namespace to its own; real, effective, saved, file system.
    let own_pid = words("NSpid:").and_then(|mut words| words.next_back()?.parse().ok());
    (own_pid, words("Uid:").and_then(|mut words| words.nth(1)?.parse().ok()))
}

/// What the `CLOCK_MONOTONIC` of a process is ahead of that of records, nanoseconds: it may be in a time namespace, of which
/// records know nothing.
pub fn clock_ahead_ns(pid: u32) -> i64 {
    let offsets = ask(pid, move || {
        let namespace = |name: &str| fs::read_link(format!("/proc/{pid}/ns/{name}")).ok();
        // The offsets are those of its children.
        let is_own = namespace("time") == namespace("time_for_children");
        Ok(read(&format!("/proc/{pid}/timens_offsets")).ok().filter(|_| is_own))
    });
    offsets.ok().flatten().and_then(|offsets| monotonic_offset_ns(&offsets)).unwrap_or(0)
}

/// Whether this process's clocks are not those of records and of the kernel: time_namespaces(7).
pub fn has_other_clocks() -> bool {
    let namespace = |name: &str| fs::read_link(format!("/proc/self/ns/{name}")).ok();
    let offsets = read("/proc/self/timens_offsets").unwrap_or_default();
    let is_offset = |line: &str| line.split_ascii_whitespace().skip(1).any(|number| number != "0");
    namespace("time") == namespace("time_for_children") && String::from_utf8_lossy(&offsets).lines().any(is_offset)
}

/// From `/proc/PID/timens_offsets`: seconds and nanoseconds of each clock.
fn monotonic_offset_ns(offsets: &[u8]) -> Option<i64> {
    let offsets = String::from_utf8_lossy(offsets);
    let line = offsets.lines().find_map(|line| line.strip_prefix("monotonic "))?;
    let (seconds, ns) = line.trim().split_once(char::is_whitespace)?;
    seconds.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(ns.trim().parse().ok()?)
}

/// All processes, threads of the kernel included.
pub fn processes() -> Vec<u32> {
    numbers_in("/proc").unwrap_or_default()
}

fn numbers_in(path: &str) -> io::Result<Vec<u32>> {
    Ok(fs::read_dir(path)?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The threads of a process.
///
/// # Errors
/// `NotFound` where the process has gone.
pub fn threads(pid: u32) -> io::Result<Vec<u32>> {
    numbers_in(&format!("/proc/{pid}/task"))
}

/// CPU time of a thread, nanoseconds, as of its last switch or tick (`CONFIG_SCHED_INFO`).
pub fn thread_cpu_ns(pid: u32, tid: u32) -> Option<u64> {
    let bytes = read(&format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    std::str::from_utf8(&bytes).ok()?.split_ascii_whitespace().next()?.parse().ok()
}

/// Whether a process has ended: it does not exist, or is a zombie with no other thread. (A main thread may end first.)
/// Unreadable ones count as alive.
pub fn has_ended(pid: u32) -> bool {
    match stat(pid) {
        Ok(stat) => matches!(stat.state, 'Z' | 'X' | 'x') && threads(pid).is_ok_and(|threads| threads.len() <= 1),
        Err(error) => is_gone(&error),
    }
}

/// Whether the main thread of a process has ended and was not waited for. Others may go on.
pub fn is_zombie(pid: u32) -> bool {
    stat(pid).is_ok_and(|stat| matches!(stat.state, 'Z' | 'X' | 'x'))
}

/// Whether a thread, or the main one of a process, is ending or has ended.
pub fn is_exiting(tid: u32) -> bool {
    stat(tid).map_or_else(|error| is_gone(&error), |stat| stat.exiting)
}

/// Whether /proc says by an error that a thread does not exist any more.
pub fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// All processes whose line of parents leads to one of `ancestors`, these not included, parents before children; in a user's
/// session without those of other users.
pub fn descendants(ancestors: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let all = numbers_in("/proc").unwrap_or_default();
    for pid in all.into_iter().filter(|&pid| !other_process::is_of_no_interest(pid)) {
        if let Ok(stat) = stat(pid) {
            children.entry(stat.parent).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut seen: HashSet<u32> = ancestors.iter().copied().collect();
    let mut frontier = ancestors.to_vec();
    while let Some(parent) = frontier.pop() {
        for &pid in children.get(&parent).into_iter().flatten() {
            if seen.insert(pid) {
                found.push(pid);
                frontier.push(pid);
            }
        }
    }
    found
}

/// A thread's name.
pub fn comm(pid: u32, tid: u32) -> Option<String> {
    if is_free(tid) {
        return None;
    }
    let name = read(&format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// A process that was found by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its number.
    pub pid: u32,
    /// Whether this process may look at its memory, as `ptrace` would: its executable is readable then.
    pub is_traceable: bool,
}

/// Bytes of a name that the kernel keeps: `TASK_COMM_LEN` without the final zero.
const COMM_BYTES: usize = 15;

/// The running processes, by number, with this name or executable file name, without kernel threads and this process.
pub fn named(name: &str) -> Vec<Named> {
    let own = std::process::id();
    let pids = numbers_in("/proc").unwrap_or_default().into_iter().filter(|&pid| pid != own);
    let mut found: Vec<Named> = pids
        .filter_map(|pid| {
            let stat = stat(pid).ok().filter(|stat| !stat.kernel_thread && !stat.exiting)?;
            let executable = executable(pid);
            let is_traceable = executable.is_ok();
            let file = executable.ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
            // The command line tells a name that is longer than the kernel keeps, where the executable is not to be seen.
            let is_beginning =
                || name.len() > COMM_BYTES && name.as_bytes().get(..COMM_BYTES) == Some(stat.comm.as_bytes());
            let is_it = stat.comm == name
                || match file {
                    Some(file) => file.strip_suffix(" (deleted)").unwrap_or(&file) == name,
                    None => is_beginning() && command_line(pid).first().is_some_and(|word| file_name(word) == name),
                };
            is_it.then_some(Named { pid, is_traceable })
        })
        .collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// The path of a process's executable file, as the kernel prints it.
///
/// # Errors
/// `PermissionDenied` where it may not be looked at, `TimedOut` where another user's process does not answer.
pub fn executable(pid: u32) -> io::Result<PathBuf> {
    ask(pid, move || fs::read_link(format!("/proc/{pid}/exe")))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The words of a process's command line; empty for a zombie.
pub fn command_line(pid: u32) -> Vec<String> {
    words(&read(&format!("/proc/{pid}/cmdline")).unwrap_or_default())
}

/// Words that end with a zero each. A process that writes its title over them leaves zeros behind it, which are no words.
fn words(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    let text = bytes.get(..end).unwrap_or_default();
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&b| b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The user of a process, for messages: number, and name by this machine's own file. A name service might take for
/// ever.
pub fn owner_label(pid: u32) -> String {
    let Some(uid) = user_of_process(pid) else { return "another user".to_owned() };
    match PasswdUsers::read().name(uid) {
        "" => format!("user {uid}"),
        name => format!("user {name}"),
    }
}

/// The name, or else the number, of the user that a process runs as, by the name service. For the command line.
pub fn owner_name(pid: u32) -> String {
    let Some(uid) = user_of_process(pid) else { return "another user".to_owned() };
    match nix::unistd::User::from_uid(uid.into()) {
        Ok(Some(user)) => format!("user {}", user.name),
        _ => format!("user {uid}"),
    }
}

/// The executable mappings of a process.
///
/// # Errors
/// `NotFound` where the process has gone, `PermissionDenied` where it may not be looked at.
pub fn executable_maps(pid: u32) -> io::Result<Vec<MapEntry>> {
    if is_free(pid) {
        return Err(io::ErrorKind::NotFound.into());
    }
    if let Some(found) = executable_lines(&format!("/proc/{pid}/maps"))? {
        return Ok(found);
    }
    // The main thread has ended and left its mappings to the others.
    let maps = |tid| executable_lines(&format!("/proc/{pid}/task/{tid}/maps")).ok().flatten();
    Ok(threads(pid)?.into_iter().find_map(maps).unwrap_or_default())
}

/// The executable mappings in an open `/proc/PID/maps`: of the program at opening, or none if it has gone.
///
/// # Errors
/// Those of reading.
pub fn executable_maps_in(file: &mut File) -> io::Result<Vec<MapEntry>> {
    Ok(executable_lines_in(file)?.unwrap_or_default())
}

fn executable_lines(path: &str) -> io::Result<Option<Vec<MapEntry>>> {
    executable_lines_in(&mut File::open(path)?)
}

/// Reads line by line: a file may be a hundred times as long as what is wanted of it.
fn executable_lines_in(file: &mut File) -> io::Result<Option<Vec<MapEntry>>> {
    let mut lines = BufReader::with_capacity(64 << 10, file.take(MAX_FILE));
    let (mut found, mut line) = (Vec::new(), Vec::new());
    let mut is_empty = true;
    while lines.read_until(b'\n', &mut line)? > 0 {
        is_empty = false;
        found.extend(parse_map(line.strip_suffix(b"\n").unwrap_or(&line)));
        line.clear();
    }
    Ok((!is_empty).then_some(found))
}

fn parse_map(line: &[u8]) -> Option<MapEntry> {
    // start-end perms offset dev inode   path (which may contain blanks)
    let mut rest = line;
    let mut word = || {
        let trimmed = rest.trim_ascii_start();
        let end = trimmed.iter().position(|&byte| byte == b' ').unwrap_or(trimmed.len());
        let (word, tail) = trimmed.split_at(end);
        rest = tail;
        std::str::from_utf8(word).ok()
    };
    let (range, perms, offset, device, inode) = (word()?, word()?, word()?, word()?, word()?);
    if perms.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let (major, minor) = device.split_once(':')?;
    (start < end).then_some(MapEntry {
        start,
        end,
        file_offset: hex(offset)?,
        device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
        inode: inode.parse().ok()?,
        // A path begins with a slash, so these blanks are not its own.
        path: rest.trim_ascii_start().to_vec(),
    })
}

/// The bytes of ccsd's own `[vdso]`, which is every process's: the kernel has one.
///
/// # Errors
/// Those of reading `/proc/self/mem`; `NotFound` where there is no vdso.
pub fn vdso_bytes() -> io::Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let maps = executable_maps(std::process::id())?;
    let vdso = maps.iter().find(|map| map.path == b"[vdso]").ok_or(io::ErrorKind::NotFound)?;
    // A vdso is two to four pages; 1 MiB is far beyond any.
    let len = usize::try_from(vdso.end - vdso.start).map_or(0, |len| len.min(1 << 20));
    let mut bytes = vec![0; len];
    File::open("/proc/self/mem")?.read_exact_at(&mut bytes, vdso.start)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_time_namespaces() {
        assert_eq!(monotonic_offset_ns(b"monotonic           3         5\nboottime   7 0\n"), Some(3_000_000_005));
        assert_eq!(monotonic_offset_ns(b"monotonic          -1         0\n"), Some(-1_000_000_000));
        for hostile in [&b""[..], b"monotonic 1", b"monotonic 9223372036854775807 0", b"boottime 1 2"] {
            assert_eq!(monotonic_offset_ns(hostile), None);
        }
        assert_eq!(clock_ahead_ns(u32::MAX), 0);
    }

    #[test]
    fn a_title_has_no_empty_words_behind_it() {
        assert_eq!(words(b"nginx: worker process\0\0\0\0\0"), ["nginx: worker process"]);
        assert_eq!(words(b"prog\0-x\0\0y\0"), ["prog", "-x", "", "y"]);
        assert_eq!(words(b"no end"), ["no end"]);
        assert!(words(b"").is_empty() && words(b"\0\0").is_empty());
    }

    #[test]
    fn a_name_may_hold_parentheses() {
        let line =
            b"42 (a) R (b) S 7 42 42 0 -1 4194560 1 2 3 4 11 22 0 0 20 0 1 0 12345 1000 2 18446744073709551615 1";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state, stat.parent), ("a) R (b", 'S', 7));
        assert_eq!((stat.cpu_ticks, stat.start_time, stat.kernel_thread), ((11, 22), 12345, false));
        assert!(!stat.exiting, "its flags are 4194560");
        let ending =
            |state: &str, flags: u64| format!("42 (x) {state} 7 42 42 0 -1 {flags} 1 2 3 4 11 22 0 0 20 0 1 0 12345");
        for (line, exiting) in [(ending("R", 0x40_0104), true), (ending("Z", 0), true), (ending("S", 0x40_0100), false)]
        {
            assert_eq!(parse_stat(line.as_bytes()).map(|stat| stat.exiting), Some(exiting), "{line}");
        }
        assert_eq!(parse_stat(b"42 (x"), None);
        assert_eq!(parse_stat(b")42 (x"), None);
    }

    #[test]
    fn maps_keep_only_what_is_executable() {
        let map = parse_map(b"7f00-8000 r-xp 00001000 08:01 99                         /tmp/a b (deleted)").unwrap();
        assert_eq!((map.start, map.end, map.file_offset, map.inode), (0x7f00, 0x8000, 0x1000, 99));
        assert_eq!(map.device, (8, 1));
        assert_eq!(map.path, b"/tmp/a b (deleted)");
        assert_eq!(parse_map(b"7f00-8000 rw-p 00001000 08:01 99 /tmp/a"), None);
        assert_eq!(parse_map(b"7f00-8000 r-xp 0 00:00 0").unwrap().path, b"");
        assert_eq!(parse_map(b"7f00-8000 r-xp 0 00:00 0   /\xff ").unwrap().path, b"/\xff ");
        assert_eq!(parse_map(b"garbage"), None);
        assert_eq!(parse_map(b""), None);
    }

    #[test]
    fn a_process_is_found_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        // Longer than the kernel keeps; then another name than the file's.
        let program = dir.path().join("sleep-for-procfs-tests");
        fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(&program).arg("100").spawn().unwrap();
        let pid = child.id();
        // Until it has executed the program it has this one's name.
        while command_line(pid).get(1).is_none_or(|word| word != "100") {
            std::thread::yield_now();
        }
        let process = Named { pid, is_traceable: true };
        assert_eq!(named("sleep-for-procfs-tests"), std::slice::from_ref(&process));
        assert_eq!(named("sleep-for-procf"), std::slice::from_ref(&process));
        assert!(named("sleep-for-proc").is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(named("sleep-for-procfs-tests").is_empty());
    }

    #[test]
    fn this_process_is_there() {
        let own = std::process::id();
        assert_eq!(thread_group(own), Some(own));
        assert!(threads(own).unwrap().contains(&own));
        assert!(executable_maps(own).unwrap().iter().any(|map| map.path.starts_with(b"/")));
        assert!(vdso_bytes().unwrap().starts_with(b"\x7fELF"));
    }
}
