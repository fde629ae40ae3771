//! A daemon of a test's own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::ccsd::{Collecting, EndedProgram, binary, ccsd};
use crate::fixture::scratch;
use crate::wait::until;

pub struct Daemon {
    child: Child,
    messages: BufReader<ChildStderr>,
    pub socket: PathBuf,
    dir: TempDir,
}

impl Daemon {
    #[must_use]
    pub fn start(options: &[&str]) -> Daemon {
        let dir = scratch();
        Daemon::start_in(dir, options)
    }

    #[must_use]
    pub fn start_in(dir: TempDir, options: &[&str]) -> Daemon {
        Daemon::start_by(dir, Command::new(binary()), options)
    }

    /// As [`Daemon::start_in`], by a command to which the arguments are added.
    #[must_use]
    pub fn start_by(dir: TempDir, mut command: Command, options: &[&str]) -> Daemon {
        let socket = dir.path().join("ccsd.sock");
        command.env("CCSD_SOCKET", "").args(["daemon", "--socket"]);
        command.arg(&socket).args(options).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let messages = BufReader::new(child.stderr.take().unwrap());
        let mut daemon = Daemon { child, messages, socket, dir };
        let said = daemon.wait_until_it_says("listens at");
        assert!(said.contains(daemon.socket.to_str().unwrap()), "{said}");
        daemon
    }

    pub fn wait_until_it_says(&mut self, words: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.messages.read_line(&mut line).unwrap() > 0, "the daemon has ended without saying {words:?}");
            assert!(!line.contains("panicked"), "{line}");
            if line.contains(words) {
                return line;
            }
        }
    }

    /// The lines up to one with these words.
    pub fn lines_until(&mut self, words: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.messages.read_line(&mut line).unwrap() > 0, "the daemon has ended without saying {words:?}");
            if line.contains(words) {
                return lines;
            }
            lines.push(line);
        }
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn worker(&self) -> Option<u32> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(|pid: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            // pid (comm) state ppid ...
            let Some((_, rest)) = stat.split_once(" (ccsd-worker) ") else { return false };
            let fields: Vec<&str> = rest.split(' ').take(2).collect();
            fields[0] != "Z" && fields[1] == self.child.id().to_string()
        })
    }

    pub fn ccsd(&self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = ccsd(args);
        command.env("CCSD_SOCKET", &self.socket);
        command
    }

    #[must_use]
    pub fn attach(&self, pid: u32) -> Collecting {
        Collecting::start(|file| {
            let mut command = self.ccsd(["attach", "--daemon", "--no-adapt", "-o"]);
            command.arg(file).arg(pid.to_string());
            command
        })
    }

    #[must_use]
    pub fn run(&self, args: &[&str]) -> EndedProgram {
        EndedProgram::of(&mut self.ccsd(args))
    }

    #[must_use]
    pub fn detached(&self, options: &[&str], pid: u32) -> u32 {
        let mut command = self.ccsd(["attach", "--detach"]);
        let ended = EndedProgram::of(command.args(options).arg(pid.to_string()));
        assert!(ended.status.success(), "{ended:?}");
        ended.stdout.trim().parse().unwrap()
    }

    #[must_use]
    pub fn sessions(&self) -> Vec<Value> {
        let ended = self.run(&["daemon", "status", "--json"]);
        assert!(ended.status.success(), "{ended:?}");
        let document: Value = serde_json::from_str(&ended.stdout).unwrap();
        document["sessions"].as_array().unwrap().clone()
    }

    #[must_use]
    pub fn session(&self, id: u32) -> Value {
        let sessions = self.sessions();
        sessions.iter().find(|session| session["id"] == id).unwrap_or_else(|| panic!("{id}: {sessions:?}")).clone()
    }

    #[must_use]
    pub fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.socket).unwrap()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Stops the daemon until SIGCONT. Waits for all threads, which continue until one has seen the signal.
    pub fn halt(&self) {
        self.signal(Signal::SIGSTOP);
        let goes_on = |path: PathBuf| {
            let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('T'))
        };
        let threads = || std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        until(|| !threads().any(|thread| goes_on(thread.path())));
    }

    /// Ends the daemon as a service manager would.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        self.wait_until_it_says("ending");
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status:?}");
        assert!(!self.socket.exists());
    }

    #[must_use]
    pub fn kill(mut self) -> (TempDir, ExitStatus) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        (std::mem::replace(&mut self.dir, scratch()), status)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
