//! Scans for processes that match rules.
//!
//! A scan reads one small file per process; only new or changed ones are checked fully. Scans cost a small, fixed part
//! of a CPU; see [`Scanner::pause`]. So where there are many processes, which any user can see to, they are rare, and in
//! between, each second to each third, only processes are looked at that are new or match.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};

use ccsd_collector::procfs::Stat;

use super::proc_stat::{ScannedProcess, read_living_thread};
use super::rules::{Facts, WatchRule};

const SHARE: u32 = 500;
/// Minimum time between two scans: shorter processes are not worth a session.
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(30);
/// The same between two scans of new processes, which are cheap unless many are new.
const MOST_BETWEEN_NEW: Duration = Duration::from_secs(3);
/// Full checks of a new process: the first may precede its exec, or the move to its control group.
const CLOSE_LOOKS: u8 = 2;
/// Scans between two full checks of a process that matches no rule: its user or control group may have changed.
const SELDOM: u64 = 32;
/// Maximum rules that a process is remembered nearly to match.
const MAX_NEAR: usize = 8;

struct KnownProcess {
    start_time: u64,
    comm: String,
    program: (u64, u64),
    looks: u8,
    fits: Vec<u32>,
    /// The rules that it nearly matches, at most [`MAX_NEAR`].
    near: Vec<u32>,
    seen: u64,
}

pub struct Scanner {
    proc: PathBuf,
    rules: Vec<WatchRule>,
    known: HashMap<u32, KnownProcess>,
    looks: u64,
    cost: Duration,
    /// What the last scan of new processes cost.
    cost_of_new: Duration,
    /// When all processes are looked at again.
    all_at: Instant,
}

impl Scanner {
    #[must_use]
    pub fn new(rules: Vec<WatchRule>) -> Scanner {
        Scanner::in_dir(rules, Path::new("/proc"))
    }

    fn in_dir(rules: Vec<WatchRule>, proc: &Path) -> Scanner {
        Scanner {
            proc: proc.to_owned(),
            rules,
            known: HashMap::new(),
            looks: 0,
            cost: Duration::ZERO,
            cost_of_new: Duration::ZERO,
            all_at: Instant::now(),
        }
    }

    #[must_use]
    pub fn rules(&self) -> &[WatchRule] {
        &self.rules
    }

    /// Makes the next scan check all processes: a rule's users are others now.
    pub fn check_all(&mut self) {
        self.known.values_mut().for_each(|known| known.looks = 0);
        self.all_at = Instant::now();
    }

    #[must_use]
    pub fn pause(&self) -> Duration {
        pause_after(self.cost_of_new).min(MOST_BETWEEN_NEW)
    }

    #[must_use]
    pub fn cost(&self) -> Duration {
        self.cost
    }

    /// Scans all processes, or those that are new or match, as it is due. Returns each rule's matches; unreadable processes
    /// match nothing. Calls `beat` at each process.
    pub fn scan(&mut self, beat: impl Fn()) -> Vec<Vec<ScannedProcess>> {
        let all = Instant::now() >= self.all_at;
        let fits = self.scan_these(all, beat);
        match all {
            true => self.all_at = Instant::now() + pause_after(self.cost),
            false => self.cost_of_new = self.cost,
        }
        fits
    }

    fn scan_these(&mut self, all: bool, beat: impl Fn()) -> Vec<Vec<ScannedProcess>> {
        let began = cpu_time();
        self.looks += u64::from(all);
        let mut fits = vec![Vec::new(); self.rules.len()];
        let entries = fs::read_dir(&self.proc).map(|entries| entries.flatten()).into_iter().flatten();
        let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        for &pid in &pids {
            beat();
            // The daemon does not watch itself: every sample would cause work for the next.
            let is_new =
                || self.known.get(&pid).is_none_or(|known| known.looks < CLOSE_LOOKS || !known.fits.is_empty());
            if pid != std::process::id() && (all || is_new()) {
                self.look_at(pid, &mut fits);
            }
        }
        let looks = self.looks;
        self.known.retain(|pid, known| if all { known.seen == looks } else { pids.binary_search(pid).is_ok() });
        let is_there = |found: &ScannedProcess| {
            self.known.get(&found.pid).is_some_and(|known| known.start_time == found.start_time)
        };
        self.rules.iter().for_each(|rule| rule.forget(is_there));
        self.cost = cpu_time().saturating_sub(began);
        fits
    }

    fn look_at(&mut self, pid: u32, fits: &mut [Vec<ScannedProcess>]) {
        let dir = self.proc.join(pid.to_string());
        let (stat, living) = match read_living_thread(&dir) {
            Some(Some(found)) => found,
            Some(None) => return,
            // It stays what it was: it may only be kept from answering.
            None => return self.keep(pid, fits),
        };
        if stat.kernel_thread {
            // None becomes another.
            let Stat { start_time, comm, program, .. } = stat;
            let (fits, near) = (Vec::new(), Vec::new());
            let thread = KnownProcess { start_time, comm, program, looks: CLOSE_LOOKS, fits, near, seen: self.looks };
            self.known.insert(pid, thread);
            return;
        }
        let before = self.known.remove(&pid).filter(|known| known.start_time == stat.start_time);
        let changed = before.as_ref().is_none_or(|known| {
            // A matching process is checked each time: `stat` does not show a change of user or control group.
            known.fits.iter().any(|&rule| self.rules.get(rule as usize).is_some_and(|rule| !rule.is_of_everything()))
                || (&known.comm, known.program) != (&stat.comm, stat.program)
                || known.looks < CLOSE_LOOKS
                || (self.looks + u64::from(pid)).is_multiple_of(SELDOM)
        });
        let before = before.map(|known| (known.looks, known.fits, known.near));
        let (looks, fitted, near) = before.unwrap_or_default();
        let found = ScannedProcess { pid, start_time: stat.start_time };
        let (fitting, near) = if changed { self.fitting(&living, found, &stat) } else { (fitted, near) };
        for &rule in &fitting {
            if let Some(fits) = fits.get_mut(rule as usize) {
                fits.push(found);
            }
        }
        let looks = looks.saturating_add(1);
        let Stat { start_time, comm, program, .. } = stat;
        self.known
            .insert(pid, KnownProcess { start_time, comm, program, looks, fits: fitting, near, seen: self.looks });
    }

    fn keep(&mut self, pid: u32, fits: &mut [Vec<ScannedProcess>]) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        known.seen = self.looks;
        for &rule in &known.fits {
            if let Some(fits) = fits.get_mut(rule as usize) {
                fits.push(ScannedProcess { pid, start_time: known.start_time });
            }
        }
    }

    fn fitting(&self, dir: &Path, process: ScannedProcess, stat: &Stat) -> (Vec<u32>, Vec<u32>) {
        let facts = Facts::read(dir, stat, self.rules.iter().any(WatchRule::asks_for_exe));
        let rules = (0u32..).zip(&self.rules);
        let (fitting, others): (Vec<_>, Vec<_>) = rules.partition(|(_, rule)| rule.fits(process, &facts));
        let near = others.into_iter().filter(|(_, rule)| rule.near_miss(process, &facts).is_some());
        (fitting.into_iter().map(|(i, _)| i).collect(), near.map(|(i, _)| i).take(MAX_NEAR).collect())
    }

    /// What nearly matches a rule, in words: the process of the lowest id.
    #[must_use]
    pub fn near_miss(&self, rule: usize) -> Option<String> {
        let is_near = |known: &KnownProcess| known.near.iter().any(|near| *near as usize == rule);
        let pid = self.known.iter().filter(|(_, known)| is_near(known)).map(|(pid, _)| *pid).min()?;
        let (stat, living) = read_living_thread(&self.proc.join(pid.to_string())).flatten()?;
        let (rule, process) = (self.rules.get(rule)?, ScannedProcess { pid, start_time: stat.start_time });
        rule.near_miss(process, &Facts::read(&living, &stat, rule.asks_for_exe()))
    }
}

/// The pause after a scan of this cost.
fn pause_after(cost: Duration) -> Duration {
    cost.saturating_mul(SHARE).clamp(LEAST, MOST)
}

/// CPU time of this thread: waiting for other threads is not a cost of scanning.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// Looks up a user's id, which may take long: see [`crate::users`] for a service.
#[must_use]
pub fn user_number(name: &str) -> Option<u32> {
    Some(nix::unistd::User::from_name(name).ok()??.uid.as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use ccsd_collector::procfs::PF_KTHREAD;

    struct Proc(tempfile::TempDir);

    impl Proc {
        fn new() -> Proc {
            Proc(tempfile::tempdir().unwrap())
        }

        fn put(&self, pid: u32, start: u64, comm: &str, cgroup: &str) {
            let dir = self.0.path().join(pid.to_string());
            fs::create_dir_all(&dir).unwrap();
            self.put_stat(pid, start, comm);
            fs::write(dir.join("cgroup"), format!("0::{cgroup}\n")).unwrap();
            fs::write(dir.join("status"), format!("Name:\t{comm}\nUid:\t{pid}\t{pid}\t{pid}\t5\n")).unwrap();
            fs::write(self.program(comm), "").unwrap();
            self.link(pid, comm);
        }

        fn put_stat(&self, pid: u32, start: u64, comm: &str) {
            let stat = format!("{pid} ({comm}) S 1 1 1 0 -1 4194560 1 2 3 4 11 22 0 0 20 0 1 0 {start} 1 2 3 1");
            fs::write(self.0.path().join(pid.to_string()).join("stat"), stat).unwrap();
        }

        fn program(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn link(&self, pid: u32, program: &str) {
            let link = self.0.path().join(pid.to_string()).join("exe");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(self.program(program), link).unwrap();
        }

        fn scanner(&self, selectors: &[&str]) -> Scanner {
            let watch = |selector: &&str| {
                let user = if selector.contains("user") { "" } else { "\nuser = \"*\"" };
                let text = format!("[[watch]]\nname = \"x\"\n{selector}{user}");
                let config = Config::parse(text.as_bytes(), Path::new("x")).unwrap();
                WatchRule::new(&config.watches[0], |_| None)
            };
            Scanner::in_dir(selectors.iter().map(watch).collect(), self.0.path())
        }
    }

    fn pids(found: &[ScannedProcess]) -> Vec<u32> {
        let mut pids: Vec<u32> = found.iter().map(|found| found.pid).collect();
        pids.sort_unstable();
        pids
    }

    #[test]
    fn processes_come_change_and_go() {
        let proc = Proc::new();
        proc.put(10, 100, "a", "/a.slice/a.service");
        proc.put(11, 100, "b", "/b.service");
        let mut scanner = proc.scanner(&["exe = \"*/a\"", "unit = \"b.service\"", "user = \"11\""]);
        let look = |scanner: &mut Scanner| -> Vec<Vec<u32>> {
            scanner.scan_these(true, || {}).iter().map(|fits| pids(fits)).collect()
        };
        assert_eq!(look(&mut scanner), [[10], [11], [11]]);
        assert_eq!(look(&mut scanner), [[10], [11], [11]]);
        proc.put(11, 100, "a", "/b.service");
        proc.put(12, 200, "a", "/");
        proc.put(10, 300, "a", "/");
        assert_eq!(look(&mut scanner), [vec![10, 11, 12], vec![11], vec![11]]);
        let found = scanner.scan_these(true, || {}).swap_remove(0);
        assert_eq!(found.iter().find(|found| found.pid == 10).unwrap().start_time, 300);
        fs::remove_dir_all(proc.0.path().join("10")).unwrap();
        assert_eq!(look(&mut scanner)[0], [11, 12]);
    }

    #[test]
    fn a_young_process_is_looked_at_again() {
        let proc = Proc::new();
        proc.put(10, 100, "a", "/");
        let mut scanner = proc.scanner(&["unit = \"a.service\""]);
        assert!(scanner.scan_these(true, || {})[0].is_empty());
        proc.put(10, 100, "a", "/a.service");
        assert_eq!(pids(&scanner.scan_these(true, || {})[0]), [10]);
    }

    #[test]
    fn matching_processes_are_checked_every_time() {
        let proc = Proc::new();
        let service = "/a.service";
        for pid in 10..14 {
            proc.put(pid, 100, "a", service);
        }
        let mut scanner = proc.scanner(&["unit = \"a.service\"\nexe = \"*/a\"\nuser = [10, 11, 12, 13]"]);
        (0..5).for_each(|_| assert_eq!(pids(&scanner.scan_these(true, || {})[0]), [10, 11, 12, 13]));
        // Another control group; another user; another file at the path, for a process that is not new.
        let file = |pid: u32, name: &str| proc.0.path().join(pid.to_string()).join(name);
        fs::write(file(10, "cgroup"), "0::/b.service\n").unwrap();
        fs::write(file(11, "status"), "Uid:\t11\t0\t11\t11\n").unwrap();
        fs::rename(proc.program("a"), proc.program("a (deleted)")).unwrap();
        fs::write(proc.program("a"), "").unwrap();
        [12, 13].iter().for_each(|&pid| proc.link(pid, "a (deleted)"));
        proc.put_stat(13, 101, "a");
        assert_eq!(pids(&scanner.scan_these(true, || {})[0]), [12]);
        fs::write(file(10, "cgroup"), "0::/a.service\n").unwrap();
        let found = (0..=SELDOM).find(|_| pids(&scanner.scan_these(true, || {})[0]) == [10, 12]);
        assert!(found.is_some());
    }

    #[test]
    fn another_program_of_the_same_name() {
        let proc = Proc::new();
        proc.put(10, 100, "a", "/");
        let mut scanner = proc.scanner(&["exe = \"*/b\""]);
        (0..3).for_each(|_| assert!(scanner.scan_these(true, || {})[0].is_empty()));
        // The process has executed a program: only the addresses of code and stack differ.
        let stat = "10 (a) S 1 1 1 0 -1 4194560 1 2 3 4 11 22 0 0 20 0 1 0 100 1 2 3 94000 95000 140000 1";
        fs::write(proc.0.path().join("10/stat"), stat).unwrap();
        fs::write(proc.program("b"), "").unwrap();
        proc.link(10, "b");
        assert_eq!(pids(&scanner.scan_these(true, || {})[0]), [10]);
    }

    #[test]
    fn ended_processes_and_kernel_threads() {
        let proc = Proc::new();
        for (pid, state, flags) in [(1, "Z", 0), (2, "S", PF_KTHREAD), (3, "S", 0)] {
            let dir = proc.0.path().join(pid.to_string());
            fs::create_dir_all(&dir).unwrap();
            let stat = format!("{pid} (a) {state} 1 1 1 0 -1 {flags} 1 2 3 4 11 22 0 0 20 0 1 0 7 1 2 3 1");
            fs::write(dir.join("stat"), stat).unwrap();
            fs::write(dir.join("status"), "Uid:\t0\t0\t0\t0\n").unwrap();
        }
        assert_eq!(pids(&proc.scanner(&["comm = \"a\""]).scan_these(true, || {})[0]), [3]);
    }

    #[test]
    fn a_process_without_its_main_thread_is_what_the_others_are() {
        let proc = Proc::new();
        proc.put(10, 100, "a", "/");
        let mut scanner = proc.scanner(&["comm = \"a\"\nuser = 10", "comm = \"a\"\nuser = 11"]);
        assert_eq!(scanner.scan_these(true, || {}).iter().map(Vec::len).collect::<Vec<_>>(), [1, 0]);
        let dir = proc.0.path().join("10");
        let of = |state: char| format!("10 (a) {state} 1 1 1 0 -1 0 1 2 3 4 11 22 0 0 20 0 1 0 100 1 2 3 1");
        fs::write(dir.join("stat"), of('Z')).unwrap();
        assert!(scanner.scan_these(true, || {}).iter().all(Vec::is_empty), "it has ended");
        let thread = dir.join("task/12");
        fs::create_dir_all(&thread).unwrap();
        fs::write(thread.join("stat"), of('R').replace("(a)", "(thread)")).unwrap();
        fs::write(thread.join("status"), "Uid:\t11\t11\t11\t11\n").unwrap();
        assert_eq!(scanner.scan_these(true, || {}).iter().map(Vec::len).collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn hostile_content() {
        let proc = Proc::new();
        let contents: [&[u8]; 6] = [b"", b"1 (a", b")1 (a", b"1 (a) S", b"\xff\xfe(\xff) S \xff", &[b'('; 300_000]];
        for (pid, content) in (1..).zip(contents) {
            let dir = proc.0.path().join(pid.to_string());
            fs::create_dir_all(&dir).unwrap();
            for name in ["stat", "cgroup", "status"] {
                fs::write(dir.join(name), content).unwrap();
            }
        }
        // A FIFO and a directory in place of files; a name that is not a number.
        let dir = proc.0.path().join("77");
        fs::create_dir_all(dir.join("cgroup")).unwrap();
        nix::unistd::mkfifo(&dir.join("stat"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::create_dir_all(proc.0.path().join("99999999999999999999")).unwrap();
        // A name chosen to look like the end of its field.
        proc.put(50, 9, "a) R 1 (b", "/");
        let found = proc.scanner(&["comm = \"*\""]).scan_these(true, || {});
        assert_eq!(found[0], [ScannedProcess { pid: 50, start_time: 9 }]);
    }

    #[test]
    fn looking_takes_a_fixed_part_of_a_cpu() {
        let mut scanner = Proc::new().scanner(&[]);
        for (cost, pause) in [(0, 1_000), (2, 1_000), (15, 7_500), (100, 30_000)] {
            assert_eq!(pause_after(Duration::from_millis(cost)), Duration::from_millis(pause));
        }
        // A scan of all does not put off the next one of new processes.
        (scanner.cost, scanner.cost_of_new) = (Duration::from_secs(1), Duration::from_millis(4));
        assert_eq!(scanner.pause(), Duration::from_secs(2));
        scanner.cost_of_new = Duration::from_secs(1);
        assert_eq!(scanner.pause(), MOST_BETWEEN_NEW);
    }

    #[test]
    fn new_and_matching_processes_are_looked_at_between_scans_of_all() {
        let proc = Proc::new();
        proc.put(10, 100, "a", "/");
        proc.put(11, 100, "b", "/");
        let mut scanner = proc.scanner(&["exe = \"*/a\""]);
        let look = |scanner: &mut Scanner, all| pids(&scanner.scan_these(all, || {})[0]);
        (0..CLOSE_LOOKS).for_each(|_| assert_eq!(look(&mut scanner, true), [10]));
        // What has become another is found later; what is new is found now, and what matched is checked.
        proc.put(11, 100, "a", "/");
        proc.put(12, 200, "b", "/");
        proc.put(13, 200, "a", "/");
        assert_eq!(look(&mut scanner, false), [10, 13]);
        proc.put(10, 100, "b", "/");
        proc.put(12, 200, "a", "/");
        assert_eq!(look(&mut scanner, false), [12, 13]);
        // Another process has the number of one that has ended.
        fs::remove_dir_all(proc.0.path().join("11")).unwrap();
        fs::remove_dir_all(proc.0.path().join("13")).unwrap();
        assert_eq!(look(&mut scanner, false), [12]);
        proc.put(11, 300, "a", "/");
        assert_eq!(look(&mut scanner, false), [11, 12]);
        assert_eq!(look(&mut scanner, true), [11, 12]);
    }

    #[test]
    fn this_process_s_parent_is_there() {
        let parent = nix::unistd::getppid().as_raw().unsigned_abs();
        let config = Config::parse(b"[[watch]]\nname = \"x\"\nuser = \"*\"", Path::new("x")).unwrap();
        let found = Scanner::new(vec![WatchRule::new(&config.watches[0], |_| None)]).scan_these(true, || {});
        assert!(pids(&found[0]).contains(&parent));
        assert!(!pids(&found[0]).contains(&std::process::id()));
    }
}
