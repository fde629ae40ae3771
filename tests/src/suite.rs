//! A list of tests that says why a test is ignored.

use std::os::unix::fs::PermissionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::sys::statvfs::{FsFlags, statvfs};

/// Far more than the slowest suite takes, building ccsd included, on a slow machine.
const PATIENCE: Duration = Duration::from_secs(40 * 60);

/// Tests of a suite that may fail once: samples depend on chance and a busy machine. A test that fails once in a
/// hundred runs fails twice in one of ten thousand; one that always fails is not helped.
const MAX_REPEATS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    Program(&'static str, &'static str),
    /// A Python with `-X perf`; see [`new_python`].
    NewPython,
    /// axe-core, which finds what keeps people from using a page; see [`axe`].
    Axe,
    Root,
    Tracefs,
    /// Control groups of version 2 that may be made.
    Cgroup2,
    SetUserId,
}

pub const CC: Need = Need::Program("cc", "gcc");
pub const MUSL: Need = Need::Program("musl-gcc", "musl-tools");
/// A program whose time is all in hand-written assembly.
pub const OPENSSL: Need = Need::Program("openssl", "openssl");
pub const CXX: Need = Need::Program("c++", "g++");
pub const FORTRAN: Need = Need::Program("gfortran", "gfortran");
pub const GO: Need = Need::Program("go", "golang-go");
pub const PERF: Need = Need::Program("perf", "linux-perf");
pub const PYTHON: Need = Need::Program("python3", "python3");
pub const UNSHARE: Need = Need::Program("unshare", "util-linux");
pub const OBJCOPY: Need = Need::Program("objcopy", "binutils");
pub const NM: Need = Need::Program("nm", "binutils");

impl Need {
    fn missing(self) -> Option<String> {
        match self {
            Need::Program(program, package) if find_program(program).is_none() => {
                Some(format!("needs {program} (apt-get install {package})"))
            }
            Need::NewPython if new_python().is_none() => Some(
                "needs Python 3.12 or later (.ci/newer-python DIR fetches one; CCSD_TEST_PYTHON names it)".to_owned(),
            ),
            Need::Axe if axe().is_none() => {
                Some("needs axe-core (npm install axe-core, and its .bin in PATH)".to_owned())
            }
            Need::SetUserId if !can_set_user_id() => {
                Some("needs a directory for temporary files without nosuid (TMPDIR), and no no_new_privs".to_owned())
            }
            Need::Tracefs if !Path::new("/sys/kernel/tracing/events").exists() => {
                Some("needs tracefs (mount -t tracefs tracefs /sys/kernel/tracing)".to_owned())
            }
            Need::Cgroup2 if crate::cgroup::mount().is_none() => {
                Some("needs root and a writable cgroup2 (mount -t cgroup2 cgroup2 DIR)".to_owned())
            }
            Need::Root if !nix::unistd::geteuid().is_root() => Some("needs root".to_owned()),
            _ => None,
        }
    }
}

/// Whether a set-user-ID program in the directory for temporary files gets its owner's rights.
fn can_set_user_id() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let may_gain = status.lines().any(|line| line.split_ascii_whitespace().eq(["NoNewPrivs:", "0"]));
    let flags = statvfs(&std::env::temp_dir()).map(|file_system| file_system.flags());
    may_gain && flags.is_ok_and(|flags| !flags.contains(FsFlags::ST_NOSUID))
}

#[must_use]
pub fn find_program(name: &str) -> Option<PathBuf> {
    let executable =
        |path: &Path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(name)).find(|path| executable(path))
}

/// A Python of version 3.12 or later: the one that `CCSD_TEST_PYTHON` names, or one in the path.
#[must_use]
pub fn new_python() -> Option<PathBuf> {
    let is_new = |python: &PathBuf| {
        let check = ["-S", "-c", "import sys; sys.exit(sys.version_info < (3, 12))"];
        Command::new(python).args(check).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let named = std::env::var_os("CCSD_TEST_PYTHON").map(PathBuf::from);
    let in_path = ["python3", "python3.14", "python3.13", "python3.12"].into_iter().filter_map(find_program);
    named.into_iter().chain(in_path).find(is_new)
}

/// Number of online CPUs (`0-3,5`), some of which may be unavailable to this process.
#[must_use]
pub fn cpus() -> u64 {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    let ranges = list.trim().split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.map(|(first, last)| last.parse::<u64>().unwrap() + 1 - first.parse::<u64>().unwrap()).sum()
}

/// Why the scheduler's tick cannot be sampled on this machine; the refusal has this word.
pub fn no_tick() -> Option<&'static str> {
    if !Path::new("/sys/kernel/tracing/events").exists() {
        return Some("tracefs");
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    ((numbers.next()?, numbers.next()?) < (6, 12)).then_some("6.12")
}

/// axe-core's script: beside the directory of npm's programs that the path has.
#[must_use]
pub fn axe() -> Option<PathBuf> {
    let beside = |dir: PathBuf| dir.join("../axe-core/axe.min.js");
    std::env::split_paths(&std::env::var_os("PATH")?).map(beside).find(|path| path.is_file())
}

/// Ends a suite that hangs, as one would if ccsd did not end when told. The fixtures then find their pipes closed, and end.
fn watch() {
    std::thread::spawn(|| {
        std::thread::sleep(PATIENCE);
        eprintln!("not done after {PATIENCE:?}: something hangs");
        std::process::exit(1);
    });
}

/// ccsd leaves alone the signals that it finds ignored, as those of a job in the background are; these tests send them.
fn restore_signals() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        // SAFETY: no handler is installed, only the default restored.
        unsafe { sigaction(signal, &default) }.expect("these signals have a default");
    }
}

#[derive(Default)]
pub struct Suite {
    trials: Vec<Trial>,
    repeats: Arc<AtomicUsize>,
}

impl Suite {
    #[must_use]
    pub fn new() -> Suite {
        Suite::default()
    }

    /// Adds a test. It is ignored, with the reason, if something is missing; a failure is repeated once, and reported.
    #[must_use]
    pub fn test(mut self, name: impl Into<String>, needs: &[Need], body: impl Fn() + Send + 'static) -> Suite {
        let missing: Vec<String> = needs.iter().filter_map(|need| need.missing()).collect();
        let reason = missing.join(", ");
        let name = name.into();
        let trial = if missing.is_empty() {
            let (shown, repeats) = (name.clone(), Arc::clone(&self.repeats));
            Trial::test(name, move || {
                if catch_unwind(AssertUnwindSafe(&body)).is_ok() {
                    return Ok(());
                }
                if repeats.fetch_add(1, Ordering::Relaxed) >= MAX_REPEATS {
                    return Err(format!("failed, as did {MAX_REPEATS} others before it, which were run again").into());
                }
                eprintln!("RUN AGAIN: {shown} has failed as said above; if it does so twice, that was no chance");
                body();
                Ok(())
            })
        } else {
            Trial::test(name, move || Err(reason.into())).with_kind(missing.join(", ")).with_ignored_flag(true)
        };
        self.trials.push(trial);
        self
    }

    #[must_use]
    pub fn run(self) -> ExitCode {
        restore_signals();
        watch();
        let arguments = Arguments::from_args();
        libtest_mimic::run(&arguments, self.trials).exit_code()
    }
}
