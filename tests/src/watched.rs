//! A daemon with a watch, and what it watches.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::ccsd::{EndedProgram, ccsd};
use crate::fixture::{build, copy_program, scratch};

/// For what must happen at some point; processes are looked for every second or so.
pub const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct WatchedService {
    pub dir: TempDir,
    pub daemon: Child,
    pub program: PathBuf,
}

impl WatchedService {
    #[must_use]
    pub fn start(more: &str) -> WatchedService {
        let dir = scratch();
        let program = dir.path().join("watched");
        copy_program(build("forever.c", &["-O1"]), &program);
        let mut service = WatchedService { daemon: Command::new("true").spawn().unwrap(), program, dir };
        service.configure(more);
        let command = service.command();
        service.begin(command);
        service
    }

    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn configure(&self, more: &str) {
        // A debug build, on a machine that has much else to do, may take what the usual budget has for a release build.
        let (rule, budget) = more.split_once("[budget]").unwrap_or((more, "\ncpu_percent = 100000.0"));
        // Root's processes are watched where nothing is said.
        let own = nix::unistd::geteuid();
        let user = if own.is_root() { String::new() } else { format!("user = {own}\n") };
        let text = format!(
            "socket = {:?}\nstate_dir = {:?}\nmetrics_file = {:?}\n\
             [[watch]]\nname = \"busy\"\nexe = {:?}\ninterval = \"1s\"\n{rule}\n{user}[budget]{budget}\n",
            self.path("sock"),
            self.path("state"),
            self.path("ccsd.prom"),
            self.program
        );
        fs::write(self.path("ccsd.toml"), text).unwrap();
    }

    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = ccsd(["daemon", "--socket-mode", "666", "--config"]);
        command.arg(self.path("ccsd.toml")).env_remove("CCSD_SOCKET");
        command
    }

    pub fn begin(&mut self, mut command: Command) {
        let _ = self.daemon.wait();
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemon = command.spawn().unwrap();
        self.until("it listens", || EndedProgram::of(&mut self.ccsd(&["daemon", "status"])).status.success());
    }

    #[must_use]
    pub fn ccsd(&self, args: &[&str]) -> Command {
        let mut command = ccsd(args);
        command.env("CCSD_SOCKET", self.path("sock")).env("TZ", "UTC");
        command
    }

    #[must_use]
    pub fn stored(&self, args: &[&str]) -> EndedProgram {
        EndedProgram::of(self.ccsd(args).arg("--state-dir").arg(self.path("state")))
    }

    #[must_use]
    pub fn report(&self, args: &[&str]) -> Value {
        let ended = self.stored(&[&["report", "--json", "--watch", "busy"], args].concat());
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str(&ended.stdout).unwrap()
    }

    #[must_use]
    pub fn status(&self) -> Value {
        self.watches()[0]["status"].clone()
    }

    #[must_use]
    pub fn watches(&self) -> Value {
        let ended = self.stored(&["daemon", "watches", "--json"]);
        assert!(ended.status.success(), "{ended:?}");
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        document["watches"].clone()
    }

    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        assert!(!log.contains("panicked"), "{log}");
        log
    }

    pub fn until(&self, what: &str, is: impl Fn() -> bool) {
        let began = Instant::now();
        while !is() {
            assert!(began.elapsed() < PATIENCE, "{what}: {}", self.log());
            std::thread::sleep(PAUSE);
        }
    }

    pub fn until_status(&self, what: &str, is: impl Fn(&Value) -> bool) {
        self.until(what, || is(&self.status()));
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.daemon.id().cast_signed()), signal).unwrap();
    }

    /// Ends it as systemd does. All is flushed within five seconds, on a machine that has nothing else to do.
    pub fn stop(&mut self) {
        let began = Instant::now();
        self.signal(Signal::SIGTERM);
        assert!(self.daemon.wait().unwrap().success(), "{}", self.log());
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    }

    #[must_use]
    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("state/busy")).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }
}

impl Drop for WatchedService {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

#[must_use]
pub fn samples(status: &Value) -> u64 {
    status["samples"].as_u64().unwrap_or(0)
}
