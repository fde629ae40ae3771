//! Control groups of a test's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where control groups of version 2 are mounted and may be made.
#[must_use]
pub fn mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let mut found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let path = PathBuf::from(words.next()?);
        (words.next()? == "cgroup2").then_some(path)
    });
    found.find(|path| {
        let trial = path.join(format!("ccsd-trial-{}", std::process::id()));
        let made = fs::create_dir(&trial).is_ok();
        made && fs::remove_dir(&trial).is_ok()
    })
}

pub struct CgroupTree {
    root: PathBuf,
    pub path: String,
}

impl CgroupTree {
    /// Makes an empty tree, below a slice as systemd has it.
    #[must_use]
    pub fn new() -> CgroupTree {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let name = format!("ccsdtest{}x{}.slice", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let root = mount().unwrap().join(&name);
        fs::create_dir(&root).unwrap();
        CgroupTree { root, path: format!("/{name}") }
    }

    /// A group of it, created if needed.
    pub fn group(&self, name: &str) -> PathBuf {
        let path = self.root.join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn join(&self, name: &str, pid: u32) {
        fs::write(self.group(name).join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Stops all processes of the tree, or lets them go on, and waits until it is so.
    pub fn freeze(&self, frozen: bool) {
        fs::write(self.root.join("cgroup.freeze"), if frozen { "1" } else { "0" }).unwrap();
        let wanted = format!("frozen {}", u8::from(frozen));
        for _ in 0..10_000 {
            if fs::read_to_string(self.root.join("cgroup.events")).unwrap().lines().any(|line| line == wanted) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        panic!("{} is not {wanted}", self.path);
    }

    /// CPU time that a group has used, nanoseconds, as the kernel accounts for it.
    #[must_use]
    pub fn cpu_ns(&self, name: &str) -> u64 {
        let text = fs::read_to_string(self.root.join(name).join("cpu.stat")).unwrap();
        let used = text.lines().find_map(|line| line.strip_prefix("usage_usec ")).unwrap();
        used.trim().parse::<u64>().unwrap() * 1_000
    }
}

impl Default for CgroupTree {
    fn default() -> CgroupTree {
        CgroupTree::new()
    }
}

impl Drop for CgroupTree {
    fn drop(&mut self) {
        // Processes of the test that still run go back, and a group goes before the one above it.
        remove(&self.root);
    }
}

fn remove(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove(&entry.path());
        }
    }
    let processes = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    for pid in processes.lines() {
        let _ = path.parent().map(|above| fs::write(above.join("cgroup.procs"), pid));
    }
    let _ = fs::remove_dir(path);
}
