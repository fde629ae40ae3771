//! Decides which processes a watch matches.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ccsd_collector::other_process;
use ccsd_collector::procfs::Stat;
use ccsd_collector::{Executed, FileIdentity, ProcessFilter, ProcessSelection, cgroup_path};
use ccsd_profile::cgroup::units;
use wildmatch::WildMatch;

use super::proc_stat::{ScannedProcess, read, read_living_thread};
use crate::config::{SelectorPattern, WatchConfig};

/// Attributes of a process. A process chooses its own names, so these texts are only compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub cgroup: String,
    /// Executable, if the daemon may look at it.
    pub exe: Option<Exe>,
    pub comm: String,
    /// Real, effective and saved user ids in the daemon's user namespace.
    pub users: Option<[u32; 3]>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exe {
    /// Path as the process sees it: only a name.
    pub path: String,
    pub program: ProgramIdentity,
    pub is_there: bool,
    /// The path by which it was executed, if a link there leads the daemon to the same file.
    pub executed: Option<String>,
}

/// A program that a process runs: the file, and the addresses of its code and stack, which change with `execve`.
pub type ProgramIdentity = (FileIdentity, (u64, u64));

impl Facts {
    /// Reads the attributes from a directory in /proc; the executable only if that is wanted.
    pub fn read(dir: &Path, stat: &Stat, with_exe: bool) -> Facts {
        Facts {
            cgroup: read(&dir.join("cgroup")).map(|bytes| cgroup_path(&bytes)).unwrap_or_default(),
            exe: with_exe.then(|| Exe::read(dir, stat)).flatten(),
            comm: stat.comm.clone(),
            users: read(&dir.join("status")).and_then(|bytes| users(&bytes)),
        }
    }
}

impl Facts {
    /// Groups and users of a process that may have ended and was not waited for, without its executable.
    fn read_groups(dir: &Path, comm: &str) -> Option<Facts> {
        let users = users(&read(&dir.join("status"))?)?;
        let cgroup = cgroup_path(&read(&dir.join("cgroup"))?);
        Some(Facts { cgroup, exe: None, comm: comm.to_owned(), users: Some(users) })
    }
}

/// The last characters of a path: its owner chooses how long it is.
fn end_of(path: &str, most: usize) -> String {
    let left_out = path.chars().count().saturating_sub(most);
    let rest: String = path.chars().skip(left_out).collect();
    if left_out > 0 { format!("…{rest}") } else { rest }
}

impl Exe {
    /// The owner of a process chooses these paths. They are looked up only in the kernel's memory: a mount that hangs
    /// must not stop the scan.
    fn read(dir: &Path, stat: &Stat) -> Option<Exe> {
        let link = dir.join("exe");
        // The kernel resolves this link to the file itself, independent of mounts.
        let read = move || Some((FileIdentity::from_link(&link).ok()?, fs::read_link(&link).ok()?));
        let (file, path) = other_process::ask_by(dir, read).flatten()?;
        let is_there = FileIdentity::at_once(&path, false).is_ok_and(|here| here.is_regular && here == file);
        // A process may have changed this name, but only to another one of the file that it runs.
        let is_same = |path: &PathBuf| FileIdentity::at_once(path, true).is_ok_and(|here| here == file);
        let executed = executed_path(dir).filter(|executed| *executed != path && is_same(executed));
        let executed = executed.map(|path| path.to_string_lossy().into_owned());
        Some(Exe { path: path.to_string_lossy().into_owned(), program: (file, stat.program), is_there, executed })
    }
}

/// Characters of a path that are shown. A message may have sixteen of them, with six bytes for each.
const SHOWN_CHARS: usize = 200;
/// `AT_EXECFN` of getauxval(3): where the absolute path that was given to `execve` is.
const AT_EXECFN: u64 = 31;
/// `PATH_MAX` of the kernel.
const PATH_BYTES: usize = 4096;

/// The path that was given to `execve`, links included, if it is absolute.
fn executed_path(dir: &Path) -> Option<PathBuf> {
    let of = dir.to_owned();
    other_process::ask_by(dir, move || read_executed_path(&of)).flatten()
}

fn read_executed_path(dir: &Path) -> Option<PathBuf> {
    let vector = read(&dir.join("auxv"))?;
    let words: Vec<u64> =
        vector.chunks_exact(8).filter_map(|word| Some(u64::from_ne_bytes(word.try_into().ok()?))).collect();
    let address = words.chunks_exact(2).find(|pair| pair[0] == AT_EXECFN)?[1];
    let memory = fs::File::open(dir.join("mem")).ok()?;
    let mut bytes = vec![0; present_bytes(dir, address)?];
    // The string is at the end of the stack, so that there may be less.
    let count = memory.read_at(&mut bytes, address).ok()?;
    let path = bytes.get(..count)?.split(|&byte| byte == 0).next()?;
    Some(PathBuf::from(OsStr::from_bytes(path))).filter(|path| path.is_absolute())
}

/// Bytes at an address that can be read without waiting for a page: from a disk, or from a program, perhaps never.
fn present_bytes(dir: &Path, address: u64) -> Option<usize> {
    /// The bit of a page that is in memory (Documentation/admin-guide/mm/pagemap.rst).
    const PRESENT: u64 = 1 << 63;
    const PAGE: u64 = 4096;
    let pages = fs::File::open(dir.join("pagemap")).ok()?;
    let first = address / PAGE;
    let mut left = (first + 1) * PAGE - address;
    let mut present = 0;
    for page in first..first + 2 {
        let mut entry = [0; 8];
        let is_read = page.checked_mul(8).is_some_and(|at| pages.read_exact_at(&mut entry, at).is_ok());
        if !is_read || u64::from_ne_bytes(entry) & PRESENT == 0 {
            break;
        }
        present += left;
        left = PAGE;
    }
    usize::try_from(present).ok().map(|present| present.min(PATH_BYTES)).filter(|&present| present > 0)
}

/// Parses the real, effective and saved user ids from `/proc/PID/status`.
fn users(status: &[u8]) -> Option<[u32; 3]> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(|word| word.parse().ok());
    Some([words.next()??, words.next()??, words.next()??])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RuleUser {
    Any,
    Number(u32),
    Unknown,
}

impl RuleUser {
    fn new(name: &str, users: impl Fn(&str) -> Option<u32>) -> RuleUser {
        let number = || name.parse().ok().or_else(|| users(name)).or((name == "root").then_some(0));
        if name == "*" { RuleUser::Any } else { number().map_or(RuleUser::Unknown, RuleUser::Number) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkippedSelector {
    User,
    Exe,
}

/// A watch's selectors in compiled form: a process must match all of them.
#[derive(Clone, Debug)]
pub struct WatchRule {
    /// Whether all processes match, so that nothing need be known of them.
    of_everything: bool,
    unit: Option<WildMatch>,
    cgroup: Option<WildMatch>,
    exe: Option<WildMatch>,
    comm: Option<WildMatch>,
    /// The one unit or group around all processes that match, if there is one.
    around: ProcessSelection,
    /// Names of users, and what is known of them. Shared by all copies of the rule.
    names: Vec<String>,
    users: Arc<Mutex<Vec<RuleUser>>>,
    /// Processes that have matched, and their programs: they match even after an upgrade replaced the file. Shared by
    /// copies.
    admitted: Arc<Mutex<HashMap<ScannedProcess, ProgramIdentity>>>,
}

impl WatchRule {
    pub fn new(watch: &WatchConfig, users: impl Fn(&str) -> Option<u32>) -> WatchRule {
        let wild = |pattern: &Option<SelectorPattern>| pattern.as_ref().map(|pattern| WildMatch::new(&pattern.0));
        // The kernel keeps 15 bytes of a name, which administrators need not know.
        let comm = watch.comm.as_ref().map(|SelectorPattern(comm)| match comm.contains(['*', '?']) {
            true => WildMatch::new(comm),
            false => WildMatch::new(clip(comm, COMM_BYTES)),
        });
        let one = |pattern: &Option<SelectorPattern>| -> Vec<String> {
            let name = pattern.iter().map(|pattern| pattern.0.clone());
            name.filter(|name| !name.contains(['*', '?'])).collect()
        };
        let units = one(&watch.unit);
        let cgroups = if units.is_empty() { one(&watch.cgroup) } else { Vec::new() };
        let rule = WatchRule {
            around: ProcessSelection { units, cgroups, ..ProcessSelection::default() },
            of_everything: watch.is_of_everything(),
            unit: wild(&watch.unit),
            cgroup: wild(&watch.cgroup),
            exe: wild(&watch.exe),
            comm,
            names: watch.users().0,
            users: Arc::default(),
            admitted: Arc::default(),
        };
        rule.set_users(users);
        rule
    }

    /// Looks the rule's users up again, for all copies of the rule. Whether one of them is another.
    pub fn set_users(&self, users: impl Fn(&str) -> Option<u32>) -> bool {
        let now: Vec<RuleUser> = self.names.iter().map(|name| RuleUser::new(name, &users)).collect();
        let mut known = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *known != now;
        *known = now;
        is_new
    }

    #[must_use]
    pub fn is_of_everything(&self) -> bool {
        self.of_everything
    }

    /// Whether the rule asks for a process's executable.
    #[must_use]
    pub fn asks_for_exe(&self) -> bool {
        self.exe.is_some()
    }

    pub fn fits(&self, process: ScannedProcess, facts: &Facts) -> bool {
        self.of_everything || self.fits_but_for(None, process, facts)
    }

    fn fits_but_for(&self, left_out: Option<SkippedSelector>, process: ScannedProcess, facts: &Facts) -> bool {
        let is_user = |users: &[u32; 3], user: &RuleUser| match user {
            RuleUser::Any => true,
            RuleUser::Number(number) => users.iter().all(|user| user == number),
            RuleUser::Unknown => false,
        };
        let any_user = left_out == Some(SkippedSelector::User);
        facts.users.is_some_and(|users| any_user || self.known_users().iter().any(|user| is_user(&users, user)))
            && self.keeps_name(&facts.comm)
            && self.cgroup.as_ref().is_none_or(|cgroup| cgroup.matches(&facts.cgroup))
            && self.unit.as_ref().is_none_or(|unit| units(&facts.cgroup).any(|name| unit.matches(name)))
            && (left_out == Some(SkippedSelector::Exe)
                || self.exe.as_ref().is_none_or(|pattern| self.exe_fits(pattern, process, facts.exe.as_ref())))
    }

    /// How a process nearly matches, in words: all but the user, or all but the executable, whose last name is right.
    pub fn near_miss(&self, process: ScannedProcess, facts: &Facts) -> Option<String> {
        let named = [&self.unit, &self.cgroup, &self.exe, &self.comm].into_iter().any(Option::is_some);
        if named && facts.users.is_some() && self.fits_but_for(Some(SkippedSelector::User), process, facts) {
            let [real, effective, saved] = facts.users?;
            let users = if real == effective && real == saved {
                real.to_string()
            } else {
                format!("{real}, {effective}, {saved}")
            };
            return Some(format!("PID {} ({}) matches but for its user, {users}", process.pid, facts.comm));
        }
        let (pattern, exe) = (self.exe.as_ref()?, facts.exe.as_ref()?);
        let text = pattern.to_string();
        let wanted = text.rsplit('/').next().filter(|name| !name.is_empty() && !name.contains(['*', '?']))?;
        let is_named = |path: &str| path.trim_end_matches(" (deleted)").rsplit('/').next() == Some(wanted);
        let similar = is_named(&exe.path) || facts.comm == clip(wanted, COMM_BYTES);
        (similar && self.fits_but_for(Some(SkippedSelector::Exe), process, facts)).then(|| {
            let path = end_of(&exe.path, SHOWN_CHARS);
            format!("PID {} ({}) matches but for its executable, {path}", process.pid, facts.comm)
        })
    }

    fn known_users(&self) -> MutexGuard<'_, Vec<RuleUser>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the executable matches: its file is at the pattern's path for the daemon, or was when the process was
    /// admitted.
    fn exe_fits(&self, pattern: &WildMatch, process: ScannedProcess, exe: Option<&Exe>) -> bool {
        let Some(exe) = exe else { return false };
        let mut admitted = self.admitted.lock().unwrap_or_else(PoisonError::into_inner);
        let is_executed = exe.executed.as_ref().is_some_and(|path| pattern.matches(path));
        if is_executed || (exe.is_there && pattern.matches(&exe.path)) {
            admitted.insert(process, exe.program);
            return true;
        }
        admitted.get(&process) == Some(&exe.program)
    }

    pub fn forget(&self, is_there: impl Fn(&ScannedProcess) -> bool) {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner).retain(|process, _| is_there(process));
    }
}

impl ProcessFilter for WatchRule {
    fn keeps(&self, pid: u32) -> Option<bool> {
        let dir = Path::new("/proc").join(pid.to_string());
        let (stat, living) = read_living_thread(&dir).flatten()?;
        let process = ScannedProcess { pid, start_time: stat.start_time };
        Some(self.fits(process, &Facts::read(&living, &stat, self.asks_for_exe())))
    }

    fn keeps_name(&self, name: &str) -> bool {
        self.comm.as_ref().is_none_or(|comm| comm.matches(name))
    }

    fn keeps_after_exec(&self, name: &str, was_kept: bool) -> Option<bool> {
        match self.keeps_name(name) {
            false => Some(false),
            // What it belongs to stays, but for a user who changes by executing a privileged program: that is looked at soon.
            true => (was_kept && self.exe.is_none()).then_some(true),
        }
    }

    fn group_of(&self, pid: u32) -> Option<String> {
        self.around.group_of(pid)
    }

    fn keeps_executed(&self, executed: &Executed<'_>) -> Option<bool> {
        if !self.keeps_name(executed.name) {
            return Some(false);
        }
        let dirs = executed.relatives().map(|pid| Path::new("/proc").join(pid.to_string()));
        let facts = dirs.into_iter().find_map(|dir| Facts::read_groups(&dir, executed.name))?;
        let process = ScannedProcess { pid: executed.pid, start_time: 0 };
        if !self.fits_but_for(Some(SkippedSelector::Exe), process, &facts) {
            return Some(false);
        }
        let Some(pattern) = &self.exe else { return Some(true) };
        let program = executed.program?;
        let path = Path::new(OsStr::from_bytes(program.path));
        let is_there = || FileIdentity::at_once(path, false).is_ok_and(|it| it.is_regular && it.file == program.file);
        // Another path may be a link by which it was executed.
        (pattern.matches(&path.to_string_lossy()) && is_there()).then_some(true)
    }
}

/// Describes a watch's rule in words, including its default users.
#[must_use]
pub fn describe(watch: &WatchConfig) -> String {
    if watch.is_of_everything() {
        return format!("watch {}: all processes and the kernel's threads", watch.name.0);
    }
    let selectors = [("unit", &watch.unit), ("cgroup", &watch.cgroup), ("exe", &watch.exe), ("comm", &watch.comm)];
    let selectors = selectors.into_iter().filter_map(|(key, pattern)| Some(format!(", {key} {}", pattern.as_ref()?.0)));
    let selectors: String = selectors.collect();
    format!("watch {}: processes of {}{selectors}", watch.name.0, describe_users(watch))
}

fn describe_users(watch: &WatchConfig) -> String {
    let users = watch.users();
    if users.0.iter().any(|name| name == "*") {
        return "any user".to_owned();
    }
    format!("user {users}")
}

/// The users named by a watch that do not exist.
pub fn unknown_users(watch: &WatchConfig, users: impl Fn(&str) -> Option<u32>) -> Vec<String> {
    watch.users().0.into_iter().filter(|name| RuleUser::new(name, &users) == RuleUser::Unknown).collect()
}

/// `TASK_COMM_LEN` without the final zero.
const COMM_BYTES: usize = 15;

fn clip(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use std::path::Path;

    fn rule(selectors: &str) -> WatchRule {
        let text = format!("[[watch]]\nname = \"x\"\n{selectors}");
        let config = Config::parse(text.as_bytes(), Path::new("x")).unwrap();
        WatchRule::new(&config.watches[0], |name| (name == "www-data").then_some(33))
    }

    const PROCESS: ScannedProcess = ScannedProcess { pid: 7, start_time: 100 };

    fn exe(path: &str, ino: u64, is_there: bool) -> Exe {
        Exe {
            path: path.to_owned(),
            program: (FileIdentity { file: (0, 1, ino), born: None, is_regular: true }, (2, 3)),
            is_there,
            executed: None,
        }
    }

    fn nginx() -> Facts {
        Facts {
            cgroup: "/system.slice/nginx.service".to_owned(),
            exe: Some(exe("/usr/sbin/nginx", 5, true)),
            comm: "nginx".to_owned(),
            users: Some([33; 3]),
        }
    }

    fn fits(selectors: &str, facts: &Facts) -> bool {
        let user = if selectors.contains("user = ") { "" } else { "\nuser = \"*\"" };
        rule(&format!("{selectors}{user}")).fits(PROCESS, facts)
    }

    #[test]
    fn a_near_miss_is_told_in_few_words() {
        let path = format!("/{}/nginx", "\u{1}".repeat(4000));
        let facts = Facts { exe: Some(exe(&path, 5, true)), ..nginx() };
        let near = rule("exe = \"/usr/sbin/nginx\"\nuser = \"*\"").near_miss(PROCESS, &facts).unwrap();
        assert!(near.contains("…\u{1}") && near.ends_with("/nginx") && near.chars().count() < 300, "{near:?}");
    }

    #[test]
    fn each_selector() {
        for selectors in [
            "unit = \"nginx.service\"",
            "unit = \"nginx*\"",
            "unit = \"system.slice\"",
            "cgroup = \"/system.slice/*\"",
            "exe = \"/usr/*bin/nginx\"",
            "comm = \"ngin?\"",
            "user = \"www-data\"",
            "user = \"*\"",
            "user = [\"root\", 33]",
            "user = \"33\"",
            "unit = \"nginx.service\"\nuser = \"www-data\"",
        ] {
            assert!(fits(selectors, &nginx()), "{selectors}");
        }
        for selectors in [
            "unit = \"nginx\"",
            "unit = \"*.service\"\nuser = \"root\"",
            "cgroup = \"nginx.service\"",
            "exe = \"nginx\"",
            "comm = \"ngin\"",
            "user = \"3\"",
            "user = [\"root\", 3]",
            "user = \"www\"",
        ] {
            assert!(!fits(selectors, &nginx()), "{selectors}");
        }
    }

    #[test]
    fn unknown_facts_do_not_match() {
        let unknown = Facts { exe: None, users: None, ..nginx() };
        assert!(!fits("comm = \"nginx\"", &unknown));
        assert!(!fits("exe = \"*\"", &unknown));
        assert!(!fits("user = \"*\"", &unknown));
        assert!(!fits("unit = \"*\"", &Facts::default()));
    }

    #[test]
    fn a_rule_that_names_no_user_is_about_root() {
        let rule = rule("comm = \"nginx\"");
        for (users, fits) in
            [([0; 3], true), ([33; 3], false), ([33, 0, 0], false), ([0, 33, 0], false), ([0, 0, 33], false)]
        {
            assert_eq!(rule.fits(PROCESS, &Facts { users: Some(users), ..nginx() }), fits, "{users:?}");
        }
        assert_eq!(super::users(b"Name:\tUid:\t9\nUid:\t1\t2\t3\t4\n"), Some([1, 2, 3]));
        for status in [&b""[..], b"Uid:\t1\t2\n", b"Uid:\t1\t2\tx\t4", b"Uid:\t-1 0 0 0"] {
            assert_eq!(super::users(status), None, "{status:?}");
        }
    }

    #[test]
    fn another_file_at_the_path_does_not_fit() {
        let elsewhere = Facts { exe: Some(exe("/usr/sbin/nginx", 6, false)), ..nginx() };
        assert!(!fits("exe = \"/usr/sbin/nginx\"", &elsewhere));
        assert!(!fits("exe = \"*\"", &elsewhere));
    }

    #[test]
    fn a_link_that_was_executed_fits() {
        let mut redis =
            Facts { exe: Some(exe("/usr/bin/redis-check-rdb", 5, true)), comm: "redis-server".to_owned(), ..nginx() };
        assert!(!fits("exe = \"*/redis-server\"", &redis) && fits("exe = \"*/redis-check-rdb\"", &redis));
        redis.exe.as_mut().unwrap().executed = Some("/usr/bin/redis-server".to_owned());
        assert!(fits("exe = \"*/redis-server\"", &redis) && fits("exe = \"/usr/bin/redis-server\"", &redis));
        assert!(fits("exe = \"*/redis-check-rdb\"", &redis) && !fits("exe = \"redis-server\"", &redis));
    }

    #[test]
    fn the_path_as_executed_is_that_of_the_link() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("as-executed");
        std::os::unix::fs::symlink("/bin/sleep", &link).unwrap();
        let mut child = std::process::Command::new(&link).arg("60").spawn().unwrap();
        let proc = PathBuf::from(format!("/proc/{}", child.id()));
        let stat = read_living_thread(&proc).flatten().unwrap().0;
        // The program is there before its arguments are.
        let read = || Exe::read(&proc, &stat).unwrap();
        let found = std::iter::repeat_with(read).find(|exe| exe.executed.is_some()).unwrap();
        let own = read_executed_path(Path::new("/proc/self"));
        child.kill().unwrap();
        let _ = child.wait();
        assert_eq!(found.executed.as_deref(), link.to_str());
        assert!(found.is_there && !found.path.contains("as-executed"), "{found:?}");
        assert!(own.is_none_or(|path| path.is_absolute()));
    }

    #[test]
    fn near_matches_are_reported() {
        let near = |selectors: &str, facts: &Facts| rule(selectors).near_miss(PROCESS, facts);
        assert_eq!(near("comm = \"nginx\"", &nginx()).unwrap(), "PID 7 (nginx) matches but for its user, 33");
        let any = "user = \"*\"\nexe = ";
        let elsewhere = near(&format!("{any}\"/opt/nginx\""), &nginx()).unwrap();
        assert_eq!(elsewhere, "PID 7 (nginx) matches but for its executable, /usr/sbin/nginx");
        for other in ["\"/opt/apache\"", "\"/opt/*\""] {
            assert_eq!(near(&format!("{any}{other}"), &nginx()), None, "{other}");
        }
        assert_eq!(near("comm = \"apache\"", &nginx()), None);
        assert_eq!(near("user = \"root\"", &nginx()), None);
    }

    #[test]
    fn an_upgrade_keeps_what_runs() {
        let rule = rule("exe = \"/usr/sbin/nginx\"\nuser = \"*\"");
        let removed = |ino| Facts { exe: Some(exe("/usr/sbin/nginx (deleted)", ino, false)), ..nginx() };
        assert!(rule.fits(PROCESS, &nginx()) && rule.clone().fits(PROCESS, &removed(5)));
        assert!(!rule.fits(ScannedProcess { pid: 8, ..PROCESS }, &removed(5)));
        assert!(!rule.fits(ScannedProcess { start_time: 101, ..PROCESS }, &removed(5)));
        assert!(!rule.fits(PROCESS, &removed(6)));
        let mut executed = removed(5);
        executed.exe.as_mut().unwrap().program.1 = (2, 4);
        assert!(!rule.fits(PROCESS, &executed));
        // All other selectors must still match.
        assert!(!rule.fits(PROCESS, &Facts { users: None, ..removed(5) }));
        rule.forget(|_| false);
        assert!(!rule.fits(PROCESS, &removed(5)));
    }

    #[test]
    fn a_rule_in_words() {
        let of = |selectors: &str| {
            let text = format!("[[watch]]\nname = \"x\"\n{selectors}");
            let watch = Config::parse(text.as_bytes(), Path::new("x")).unwrap().watches.remove(0);
            (describe(&watch), unknown_users(&watch, |_| None))
        };
        assert_eq!(of("exe = \"/bin/a\""), ("watch x: processes of user root, exe /bin/a".to_owned(), vec![]));
        let (text, unknown) = of("user = [\"a\", 7]\nunit = \"b.service\"");
        assert_eq!(text, "watch x: processes of user a, 7, unit b.service");
        assert_eq!(unknown, ["a"]);
        assert_eq!(of("user = \"*\"").0, "watch x: processes of any user");
    }

    #[test]
    fn a_long_name_of_a_command_fits_what_the_kernel_keeps_of_it() {
        let facts = Facts { comm: "systemd-journal".to_owned(), ..nginx() };
        assert!(fits("comm = \"systemd-journald\"", &facts));
        let facts = Facts { comm: "aaaaaaaaaaaaaa".to_owned(), ..nginx() };
        assert!(fits("comm = \"aaaaaaaaaaaaaaé\"", &facts), "cut before a character, not within it");
    }

    #[test]
    fn patterns_take_no_more_than_linear_time() {
        let facts = Facts { comm: "a".repeat(100_000), ..nginx() };
        let pattern = "a*".repeat(1_000);
        assert!(fits(&format!("comm = \"{pattern}\""), &facts));
        assert!(!fits(&format!("comm = \"{pattern}b\""), &facts));
    }
}
