//! Runs the binary.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;

use ccsd_profile::{Profile, read_profile};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::fixture::{copy_program, once, scratch};
use crate::recorded::Recorded;

/// The ordinary user of these tests: nobody, who exists on every machine.
pub const NOBODY: u32 = 65_534;

/// The binary, built from the same sources and profile as these tests, by cargo. `CCSD_UNDER_TEST` names another.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(path) = std::env::var_os("CCSD_UNDER_TEST") {
        return path.into();
    }
    // TARGET/PROFILE/deps/THIS
    let this = std::env::current_exe().unwrap();
    let profile_dir = this.parent().and_then(Path::parent).expect("tests are run from a target directory");
    let profile = match profile_dir.file_name().and_then(OsStr::to_str) {
        Some("debug") => "dev",
        Some(profile) => profile,
        None => panic!("no profile in {}", this.display()),
    };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--package=ccsd", "--bin=ccsd"]);
    cargo.arg(format!("--profile={profile}")).arg("--target-dir").arg(profile_dir.parent().unwrap());
    assert!(cargo.status().unwrap().success(), "{cargo:?} failed");
    profile_dir.join("ccsd")
});

#[must_use]
pub fn binary() -> PathBuf {
    once("ccsd".to_owned(), |path| copy_program(&*BUILT, path))
}

#[derive(Debug)]
pub struct EndedProgram {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl EndedProgram {
    #[must_use]
    pub fn of(command: &mut Command) -> EndedProgram {
        command.stdin(Stdio::null());
        // ETXTBSY: another thread's forked child holds the new program open until exec.
        let output = loop {
            match command.output() {
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => std::thread::yield_now(),
                output => break output.unwrap(),
            }
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let ended = EndedProgram { status: output.status, stdout: text(&output.stdout), stderr: text(&output.stderr) };
        ended.assert_no_panic();
        ended
    }

    pub fn assert_no_panic(&self) {
        assert!(!self.stderr.contains("panicked at"), "{}", self.stderr);
    }

    pub fn assert_refused(&self, status: i32, parts: &[&str]) {
        assert_eq!((self.status.code(), self.status.signal()), (Some(status), None), "{}", self.stderr);
        let message = self.stderr.lines().find(|line| line.starts_with("ccsd: ") || line.starts_with("error: "));
        let message = message.unwrap_or_else(|| panic!("no message in {:?}", self.stderr));
        for part in parts {
            assert!(message.contains(part), "{part:?} is not in {message:?}");
        }
    }
}

/// `ccsd` with arguments, without access to a daemon of this machine.
pub fn ccsd(args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
    let mut command = Command::new(binary());
    command.args(args).env("CCSD_SOCKET", "");
    command
}

/// Runs a command as another user, with only that user's rights.
pub fn as_user(command: &mut Command, user: u32) -> &mut Command {
    // The standard library drops supplementary groups when root sets a uid.
    command.uid(user).gid(user)
}

/// Adds an event, if the options have none. On a machine that counts cycles ccsd samples by cycles, and their number in a second
/// is unknown. These tests compare numbers with a rate, so they sample by the CPU clock there.
fn add_event(command: &mut Command, mut options: impl Iterator<Item = impl AsRef<OsStr>>) {
    if !options.any(|option| option.as_ref() == "-e") {
        command.args(counted_event());
    }
}

fn counted_event() -> &'static [&'static str] {
    let devices = fs::read_dir("/sys/bus/event_source/devices").into_iter().flatten().flatten();
    let mut names = devices.map(|device| device.file_name().to_string_lossy().into_owned());
    if names.any(|name| name.starts_with("cpu") || name.contains("pmuv3")) { &["-e", "cpu-clock"] } else { &[] }
}

#[must_use]
pub struct RecordCommand {
    options: Vec<OsString>,
    program: Vec<OsString>,
    user: Option<u32>,
}

impl RecordCommand {
    pub fn new(program: impl AsRef<OsStr>, args: &[&str]) -> RecordCommand {
        let program = std::iter::once(program.as_ref().to_owned()).chain(args.iter().map(OsString::from)).collect();
        RecordCommand { options: Vec::new(), program, user: None }
    }

    pub fn options(mut self, options: &[&str]) -> RecordCommand {
        self.options.extend(options.iter().map(OsString::from));
        self
    }

    pub fn user(mut self, user: u32) -> RecordCommand {
        self.user = Some(user);
        self
    }

    #[must_use]
    pub fn command(&self, file: &Path) -> Command {
        // Without adaptation, because the numbers of samples are compared with the rate: the machine may be busy.
        let mut command = ccsd(["record", "--no-adapt"]);
        add_event(&mut command, self.options.iter());
        command.arg("-o").arg(file).args(&self.options).arg("--").args(&self.program);
        if let Some(user) = self.user {
            as_user(&mut command, user);
        }
        command
    }

    #[must_use]
    pub fn run(&self) -> Recorded {
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let ended = EndedProgram::of(&mut self.command(&file));
        assert!(ended.status.success(), "{ended:?}");
        Recorded::read(dir, &file, ended)
    }
}

pub struct Collecting {
    pub child: Child,
    pub file: PathBuf,
    dir: TempDir,
    inotify: Inotify,
}

impl Collecting {
    /// Starts `ccsd attach` with a constant rate. Returns when it samples.
    #[must_use]
    pub fn attach(options: &[&str], pids: &[u32]) -> Collecting {
        Collecting::attach_as(None, options, pids)
    }

    #[must_use]
    pub fn attach_as(user: Option<u32>, options: &[&str], pids: &[u32]) -> Collecting {
        let mut collecting = Collecting::start(|file| {
            let mut command = ccsd(["attach", "--no-adapt"]);
            add_event(&mut command, options.iter());
            command.arg("-o").arg(file).args(options).args(pids.iter().map(u32::to_string));
            if let Some(user) = user {
                as_user(&mut command, user);
            }
            command
        });
        // The file is created when all threads are open.
        collecting.wait_for_writes(1);
        collecting
    }

    #[must_use]
    pub fn start(command: impl FnOnce(&Path) -> Command) -> Collecting {
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).unwrap();
        inotify.add_watch(dir.path(), AddWatchFlags::IN_MODIFY).unwrap();
        let output = |name: &str| File::create(dir.path().join(name)).unwrap();
        let mut command = command(&file);
        let child = command.stdin(Stdio::null()).stdout(output("stdout")).stderr(output("stderr")).spawn().unwrap();
        Collecting { child, file, dir, inotify }
    }

    /// Waits for this number of writes to the profile: the header, then updates, the first of which may have only
    /// notes.
    pub fn wait_for_writes(&mut self, mut writes: usize) {
        while writes > 0 {
            writes = writes.saturating_sub(self.writes());
        }
    }

    /// Waits until the profile has `samples` more samples than now.
    pub fn wait_for_samples(&mut self, samples: u64) {
        let wanted = self.samples() + samples;
        while self.samples() < wanted {
            let _ = self.writes();
        }
    }

    pub fn wait_until(&mut self, wanted: impl Fn(&Profile) -> bool) {
        while !self.profile().is_some_and(|profile| wanted(&profile)) {
            let _ = self.writes();
        }
    }

    fn samples(&self) -> u64 {
        self.profile().map_or(0, |profile| profile.accounting().received)
    }

    fn profile(&self) -> Option<Profile> {
        let file = File::open(&self.file).ok()?;
        read_profile(file).ok().map(|loaded| loaded.profile)
    }

    /// Waits for writes to the profile and counts them; 0 at a timeout.
    pub fn writes(&mut self) -> usize {
        let mut fds = [PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        // The timeout only serves to notice that ccsd has ended.
        poll(&mut fds, PollTimeout::from(100u8)).unwrap();
        let name = self.file.file_name();
        let events = self.inotify.read_events().unwrap_or_default();
        let writes = events.iter().filter(|event| event.name.as_deref() == name).count();
        if writes == 0 && self.child.try_wait().unwrap().is_some() {
            let stderr = fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default();
            panic!("ccsd has ended early: {stderr}");
        }
        writes
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    #[must_use]
    pub fn wait(mut self) -> Recorded {
        let status = self.child.wait().unwrap();
        let text = |name: &str| {
            String::from_utf8_lossy(&fs::read(self.dir.path().join(name)).unwrap_or_default()).into_owned()
        };
        let ended = EndedProgram { status, stdout: text("stdout"), stderr: text("stderr") };
        ended.assert_no_panic();
        let dir = std::mem::replace(&mut self.dir, scratch());
        Recorded::read(dir, &self.file, ended)
    }

    /// Ends it as Ctrl-C would, and reads the profile.
    #[must_use]
    pub fn stop(self) -> Recorded {
        self.signal(Signal::SIGINT);
        let recorded = self.wait();
        assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
        recorded
    }
}

impl Drop for Collecting {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
