//! Watches on real processes: found when they start, followed, and stored.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use ccsd_daemon::config::Config;
use ccsd_daemon::ledger::{Ledger, Shares};
use ccsd_daemon::store::{StoredProfile, TimeRange, contents, query};
use ccsd_daemon::supervisor::Supervisor;
use ccsd_daemon::watch::{WatchStatus, Watches};
use tempfile::TempDir;

/// Limit for events that must happen: scans are at most 30 seconds apart.
const PATIENCE: Duration = Duration::from_secs(120);

/// A shell with a unique name that is busy until told to end.
struct Busy {
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Busy {
    fn start(program: &Path) -> Busy {
        let script =
            "while :; do i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; done & read x; kill $!; wait $! 2>/dev/null";
        let mut command = Command::new(program);
        command.args(["-c", script]).stdin(Stdio::piped());
        // ETXTBSY: another thread's forked child still holds the new program open for writing until exec.
        let mut child = loop {
            match command.spawn() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                child => break child.unwrap(),
            }
        };
        let stdin = child.stdin.take();
        Busy { child, stdin }
    }

    fn end(&mut self) {
        if let Some(mut stdin) = self.stdin.take() {
            let _ = stdin.write_all(b"x\n");
        }
        let _ = self.child.wait();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.end();
    }
}

struct WatchService {
    watches: Option<Watches>,
    state: PathBuf,
    program: PathBuf,
    dir: TempDir,
}

impl WatchService {
    fn start(more: &str) -> WatchService {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("busy-shell");
        fs::copy(fs::canonicalize("/bin/sh").unwrap(), &program).unwrap();
        let service = WatchService { watches: None, state: dir.path().join("state"), program, dir };
        let ledger = Ledger::new(Shares::new(0, 0, 0));
        let watches = Watches::start(service.config(more), ledger, &Supervisor::for_this_process()).unwrap();
        WatchService { watches: Some(watches), ..service }
    }

    fn config(&self, more: &str) -> Config {
        // A debug build on a busy machine may exceed the default budget of a release build.
        let text = format!(
            "state_dir = {:?}\n[budget]\ncpu_percent = 100000.0\n[[watch]]\nname = \"busy\"\nexe = {:?}\nuser = \"*\"\ninterval = \"1s\"\n{more}",
            self.state.display().to_string(),
            self.program.display().to_string(),
        );
        Config::parse(text.as_bytes(), Path::new("test.toml")).unwrap()
    }

    fn watches(&self) -> &Watches {
        self.watches.as_ref().unwrap()
    }

    fn wait(&self, what: &str, is: impl Fn(&WatchStatus) -> bool) -> WatchStatus {
        let began = Instant::now();
        loop {
            let status = self.watches().overview().watches.into_iter().next();
            if let Some(status) = status.filter(|status| is(status)) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {:?}", self.watches().overview());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn stop(&mut self) {
        self.watches.take().unwrap().stop();
    }

    fn stored(&self) -> StoredProfile {
        query(&self.state.join("busy"), TimeRange::ALL).unwrap()
    }
}

fn pids(answer: &StoredProfile) -> Vec<u32> {
    let mut pids: Vec<u32> = answer.profile.as_ref().unwrap().processes().iter().map(|process| process.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

#[test]
fn processes_are_found_and_followed_as_they_come_and_go() {
    let mut service = WatchService::start("rate_hz = 199");
    service.wait("nothing runs yet", |status| !status.profiling && status.processes == 0);
    let mut first = Busy::start(&service.program);
    let status = service.wait("the first", |status| status.processes == 2 && status.samples >= 20);
    assert!(status.profiling && status.problem.is_none(), "{status:?}");
    let second = Busy::start(&service.program);
    service.wait("the second", |status| status.processes == 4);
    let before = service.wait("both", |status| status.samples >= 100).samples;
    first.end();
    service.wait("one is left", |status| status.processes == 2);
    service.wait("it goes on", |status| status.samples >= before + 50);
    service.stop();
    let answer = service.stored();
    assert!(answer.interrupted.is_empty() && answer.problems.is_empty(), "{answer:?}");
    assert_eq!(answer.segments, 1);
    let profile = answer.profile.as_ref().unwrap();
    let accounting = profile.accounting();
    assert!(accounting.received >= before + 50, "{accounting:?}");
    // No process was sampled twice, and running processes were sampled.
    let expected = accounting.expected.unwrap();
    // Wide enough for a virtual machine's timers; a shell or loop sampled twice or not at all would exceed it.
    assert!(accounting.received <= expected + expected / 10 + 8, "{accounting:?}");
    assert!(accounting.received * 4 >= expected * 3, "{accounting:?}");
    let session = profile.session();
    assert_eq!((session.target.as_str(), session.rate_hz, session.metrics.len()), ("busy", 199, 1));
    let pids = pids(&answer);
    // Each shell's loop is one process; the shells themselves do almost nothing.
    assert!((2..=4).contains(&pids.len()), "{pids:?}");
    assert!(!pids.contains(&std::process::id()), "{pids:?}");
    drop(second);
}

#[test]
fn another_configuration_is_taken_up() {
    let mut service = WatchService::start("rate_hz = 199");
    let _busy = Busy::start(&service.program);
    service.wait("some samples", |status| status.samples >= 20);
    service.watches().configure(service.config("rate_hz = 99"));
    service.wait("the other rate", |status| status.rate_hz == 99 && status.segments == 2);
    service.watches().configure(service.config("rate_hz = 99"));
    let samples = service.wait("it goes on", |status| status.profiling).samples;
    service.wait("it goes on", |status| status.samples >= samples + 10 && status.segments == 2);
    let none = Config { watches: Vec::new(), ..service.config("") };
    service.watches().configure(none);
    let began = Instant::now();
    while !service.watches().overview().watches.is_empty() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    service.stop();
    let answer = service.stored();
    assert_eq!((answer.segments, answer.interrupted.len()), (2, 0), "{answer:?}");
}

#[test]
fn where_nothing_can_be_stored_profiling_goes_on_and_is_stored_again() {
    let mut service = WatchService::start("rate_hz = 199");
    fs::create_dir_all(&service.state).unwrap();
    let place = service.state.join("busy");
    fs::write(&place, "").unwrap();
    let _busy = Busy::start(&service.program);
    let status = service.wait("a problem", |status| status.problem.is_some() && status.samples >= 20);
    assert!(status.profiling && status.segments == 0, "{status:?}");
    assert!(status.problem.unwrap().contains("nothing is stored"));
    fs::remove_file(&place).unwrap();
    let status = service.wait("it is stored again", |status| status.segments == 1 && status.bytes > 0);
    assert_eq!(status.problem, None);
    let segment = contents(&place).unwrap().segments.remove(0).path;
    fs::remove_file(&segment).unwrap();
    service.wait("another segment", |status| status.segments == 2 && status.problem.is_none());
    service.stop();
    assert_eq!(service.stored().segments, 1);
    let elsewhere = service.dir.path().join("elsewhere");
    fs::rename(&place, &elsewhere).unwrap();
    symlink(&elsewhere, &place).unwrap();
    assert_eq!(ccsd_daemon::store::watches(&service.state).unwrap(), [""; 0], "links are not followed");
}
