//! A daemon with all rights shows a user only what the user could see without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, NM, Need, Suite};
use ccsd_tests::wait::until;
use tempfile::TempDir;

const NEEDS: &[Need] = &[CC, Need::Root, Need::SetUserId];

fn main() -> ExitCode {
    Suite::new()
        .test("a_child_with_more_rights_is_not_followed", NEEDS, a_child_with_more_rights)
        .test("a_recorded_program_with_more_rights_is_not_followed", NEEDS, a_recorded_program)
        .test("private_debug_files_are_not_read_for_others", &[CC, NM, Need::Root], private_debug_files)
        .test("programs_that_are_not_dumpable_are_refused", NEEDS, not_dumpable)
        .test("a_daemon_of_a_stranger_is_not_asked", &[CC, Need::Root], daemon_of_a_stranger)
        .run()
}

/// A daemon run by an ordinary user, found through `XDG_RUNTIME_DIR`.
struct Impostor {
    child: Child,
    _messages: Lines<BufReader<ChildStderr>>,
    runtime_dir: TempDir,
}

impl Impostor {
    fn start() -> Impostor {
        let runtime_dir = scratch();
        let mut command = ccsd(["daemon", "--socket-mode", "666", "--socket"]);
        command.arg(runtime_dir.path().join("ccsd/ccsd.sock")).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = as_user(&mut command, NOBODY).spawn().unwrap();
        let mut messages = BufReader::new(child.stderr.take().unwrap()).lines();
        assert!(messages.by_ref().map_while(Result::ok).any(|line| line.contains("listens at")));
        let impostor = Impostor { child, _messages: messages, runtime_dir };
        let socket = impostor.socket();
        // Its directory is private to its user, which does not keep root out.
        fs::set_permissions(socket.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
        impostor
    }

    fn socket(&self) -> PathBuf {
        self.runtime_dir.path().join("ccsd/ccsd.sock")
    }
}

impl Drop for Impostor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stranger who owns a directory where a client looks for a daemon must not answer for it, and learns nothing.
fn daemon_of_a_stranger() {
    let impostor = Impostor::start();
    let found = |args: &[&str], user: u32| {
        let mut command = ccsd(args);
        command.env_remove("CCSD_SOCKET").env("XDG_RUNTIME_DIR", impostor.runtime_dir.path());
        EndedProgram::of(as_user(&mut command, user))
    };
    let at = |args: &[&str], socket: &Path, user: u32| {
        EndedProgram::of(as_user(ccsd(args).env("CCSD_SOCKET", socket), user))
    };
    let socket = impostor.socket();
    let named = ["user nobody", socket.to_str().unwrap()];
    let target = Running::start_command(&mut Command::new(build("forever.c", &["-O1"])));
    let pid = target.pid().to_string();
    let to_itself = |user| found(&["daemon", "status"], user);
    assert!(to_itself(NOBODY).status.success(), "{:?}", to_itself(NOBODY));
    for user in [0, NOBODY - 1] {
        for args in [
            &["daemon", "status"][..],
            &["daemon", "watches"],
            &["attach", "--daemon", &pid],
            &["daemon", "save", "1", "-o", "/dev/null"],
        ] {
            found(args, user).assert_refused(2, &named);
            at(args, &socket, user).assert_refused(2, &named);
        }
    }
    at(&["daemon", "status", "--socket", named[1]], Path::new(""), 0).assert_refused(2, &named);
    let dir = scratch();
    let link = dir.path().join("link");
    symlink(&socket, &link).unwrap();
    at(&["daemon", "status"], &link, 0).assert_refused(2, &["user nobody", link.to_str().unwrap()]);
    // If a daemon is optional, ccsd works without it.
    let ended = found(&["record", "--no-output", "--", "true"], 0);
    assert!(ended.status.success(), "{ended:?}");
    // A daemon of root is trusted by all, even through a link of another user.
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let link = impostor.runtime_dir.path().join("to-root");
    symlink(&daemon.socket, &link).unwrap();
    lchown(&link, Some(NOBODY), Some(NOBODY)).unwrap();
    for user in [0, NOBODY] {
        for socket in [&daemon.socket, &link] {
            let ended = at(&["daemon", "status"], socket, user);
            assert!(ended.status.success(), "{ended:?}");
        }
    }
}

fn relatives(mode: u32) -> PathBuf {
    // Built separately, not copied: a file open for writing in one test could not be executed by others.
    let program = build("relatives.c", &["-O1", &format!("-DMODE={mode}")]);
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    program
}

fn as_nobody(daemon: &Daemon, args: &[&str]) -> EndedProgram {
    EndedProgram::of(as_user(&mut daemon.ccsd(args), NOBODY))
}

fn saved(daemon: &Daemon, id: &str) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let ended = as_nobody(daemon, &["daemon", "save", id, "-o", file.to_str().unwrap()]);
    assert!(ended.status.success(), "{ended:?}");
    Recorded::open(dir, &file, ended)
}

fn a_child_with_more_rights() {
    // A process sampled just before it executes the program, and then seen as root's, ends the session: correct and
    // rare.
    let through = (0..5).any(|_| family_is_followed());
    assert!(through, "every session ended early");
}

/// Whether the session on a family continued to its end. In both cases it has nothing that runs as root.
fn family_is_followed() -> bool {
    let (plain, privileged) = (relatives(0o755), relatives(0o4755));
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let mut command = Command::new(&plain);
    let mut family = Running::start_command(as_user(command.arg(&privileged), NOBODY));
    let ended = as_nobody(&daemon, &["attach", "--detach", "-F", "499", &family.pid().to_string()]);
    assert!(ended.status.success(), "{ended:?}");
    let id = ended.stdout.trim();
    // After the first update, they start and end within one interval, so the next check cannot see them.
    let number: u32 = id.parse().unwrap();
    until(|| daemon.session(number)["duration_ns"] != 0);
    family.go();
    family.wait_until_told();
    assert!(as_nobody(&daemon, &["daemon", "stop", id]).status.success());
    until(|| !daemon.session(number)["ended"].is_null());
    let end = daemon.session(number)["ended"].clone();
    let recorded = saved(&daemon, id);
    let names = recorded.names();
    assert!(!names.iter().any(|name| name.contains("secret")), "{names:?}");
    family.go();
    assert_eq!(family.finish(), "");
    if end != "stopped" {
        assert!(end["not_permitted"].is_string(), "{end}");
        return false;
    }
    // 75 each are expected.
    for name in ["plain_work", "late_plain_work"] {
        assert!(recorded.samples(name).inherited > 30, "{name} of {names:?}");
    }
    true
}

fn a_recorded_program() {
    let privileged = relatives(0o4755);
    let privileged = privileged.to_str().unwrap();
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    // The program runs without a reader of its output.
    for (program, role, seen) in
        [(privileged, "late_secret", false), (relatives(0o755).to_str().unwrap(), "late_plain", true)]
    {
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let file_name = file.to_str().unwrap();
        let ended =
            as_nobody(&daemon, &["record", "--daemon", "-F", "499", "-o", file_name, "--", program, role, "0", "0"]);
        // If it is seen as root's while alive, the session ends, and `record` fails.
        assert!(ended.status.success() || !seen, "{ended:?}");
        let recorded = Recorded::open(dir, &file, ended);
        let names = recorded.names();
        assert_eq!(names.iter().any(|name| *name == format!("{role}_work")), seen, "{names:?}");
    }
}

/// A stripped program with its symbols in a separate file of this mode.
fn linked(dir: &Path, mode: u32) -> PathBuf {
    let whole = build("images.c", &["-O1", "-g"]);
    let (program, debug) = (dir.join(format!("program-{mode:o}")), dir.join(format!("{mode:o}.debug")));
    let objcopy = |args: &[&str], to: &Path| {
        assert!(Command::new("objcopy").args(args).arg(&whole).arg(to).status().unwrap().success());
    };
    objcopy(&["--only-keep-debug"], &debug);
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())], &program);
    fs::set_permissions(&debug, fs::Permissions::from_mode(mode)).unwrap();
    program
}

fn private_debug_files() {
    let (daemon, dir) = (Daemon::start(&["--socket-mode", "666"]), scratch());
    let (private, public) = (linked(dir.path(), 0o600), linked(dir.path(), 0o644));
    // First for root: the daemon's cached symbols are not for everyone.
    for (program, user, named) in [(&private, 0, true), (&private, NOBODY, false), (&public, NOBODY, true)] {
        let profile = scratch();
        let file = profile.path().join("profile.ccsd");
        let mut command = daemon.ccsd(["record", "--daemon", "-F", "1999", "-o"]);
        let ended = EndedProgram::of(as_user(command.arg(&file).arg("--").arg(program).arg("now"), user));
        assert!(ended.status.success(), "{ended:?}");
        let recorded = Recorded::open(profile, &file, ended);
        let names = recorded.names();
        assert_eq!(names.iter().any(|name| *name == "image_loop"), named, "{user}: {names:?}");
        // The function still has its time.
        assert!(recorded.total() > 100, "{}", recorded.total());
    }
}

fn not_dumpable() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    // One that may be executed but not read, and one that has been root: both have all ids of the user.
    for (mode, what) in [(0o711, "wait"), (0o4755, "drop")] {
        let mut command = Command::new(relatives(mode));
        let running = Running::start_command(as_user(command.arg(what), NOBODY));
        let ended = as_nobody(&daemon, &["attach", "--detach", &running.pid().to_string()]);
        ended.assert_refused(2, &["may not profile", "not dumpable"]);
    }
    let mut command = Command::new(relatives(0o755));
    let running = Running::start_command(as_user(command.arg("wait"), NOBODY));
    let ended = as_nobody(&daemon, &["attach", "--detach", &running.pid().to_string()]);
    assert!(ended.status.success(), "{ended:?}");
}
