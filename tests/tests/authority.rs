//! A daemon with all rights shows a user what he could see without it.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{Ended, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, NM, Need, Suite};

const NEEDS: &[Need] = &[CC, Need::Root, Need::SetUserId];

fn main() -> ExitCode {
    Suite::new()
        .test("a_child_with_more_rights_is_not_followed", NEEDS, a_child_with_more_rights)
        .test("a_recorded_program_with_more_rights_is_not_followed", NEEDS, a_recorded_program)
        .test("private_debug_files_are_not_read_for_others", &[CC, NM, Need::Root], private_debug_files)
        .test("programs_that_are_not_dumpable_are_refused", NEEDS, not_dumpable)
        .run()
}

/// The fixture with this mode, root's.
fn relatives(mode: u32) -> PathBuf {
    // A program of its own for each, not a copy: what one test has open for writing others could not execute.
    let program = build("relatives.c", &["-O1", &format!("-DMODE={mode}")]);
    fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    program
}

fn as_nobody(daemon: &Daemon, args: &[&str]) -> Ended {
    Ended::of(as_user(&mut daemon.ccsd(args), NOBODY))
}

/// Saves a session's profile as it is for this user.
fn saved(daemon: &Daemon, id: &str) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let ended = as_nobody(daemon, &["save", id, "-o", file.to_str().unwrap()]);
    assert!(ended.status.success(), "{ended:?}");
    Recorded::open(dir, &file, ended)
}

fn a_child_with_more_rights() {
    // Whoever is sampled in the moment before it executes the program ends the session, if it is seen to be root's while it
    // lives. That is as it should be, and rare; nothing of the program is shown then either.
    let through = (0..5).any(|_| family_is_followed());
    assert!(through, "every session ended early");
}

/// Whether the session on a family went on to its end. Either way nothing of what runs as root is in it.
fn family_is_followed() -> bool {
    let (plain, privileged) = (relatives(0o755), relatives(0o4755));
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let mut command = Command::new(&plain);
    let mut family = Running::start_command(as_user(command.arg(&privileged), NOBODY));
    let ended = as_nobody(&daemon, &["attach", "--detach", "-F", "499", &family.pid().to_string()]);
    assert!(ended.status.success(), "{ended:?}");
    let id = ended.stdout.trim();
    // After the first update, which comes soon, they live and end within one interval: nobody can look at them by the next.
    let number: u32 = id.parse().unwrap();
    while daemon.session(number)["duration_ns"] == 0 {}
    family.go();
    family.wait_until_told();
    assert!(as_nobody(&daemon, &["stop", id]).status.success());
    while daemon.session(number)["ended"].is_null() {}
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
    // Its part is played without an audience, whoever waits for it.
    for (program, role, seen) in
        [(privileged, "late_secret", false), (relatives(0o755).to_str().unwrap(), "late_plain", true)]
    {
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let file_name = file.to_str().unwrap();
        let ended =
            as_nobody(&daemon, &["record", "--daemon", "-F", "499", "-o", file_name, "--", program, role, "0", "0"]);
        // If it is found to have become root's while it lives, the session ends, and `record` fails.
        assert!(ended.status.success() || !seen, "{ended:?}");
        let recorded = Recorded::open(dir, &file, ended);
        let names = recorded.names();
        assert_eq!(names.iter().any(|name| *name == format!("{role}_work")), seen, "{names:?}");
    }
}

/// A stripped program whose names are in a file beside it, of this mode.
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
    // First for root: what the daemon knows then is not for everybody.
    for (program, user, named) in [(&private, 0, true), (&private, NOBODY, false), (&public, NOBODY, true)] {
        let profile = scratch();
        let file = profile.path().join("profile.ccsd");
        let mut command = daemon.ccsd(["record", "--daemon", "-F", "1999", "-o"]);
        let ended = Ended::of(as_user(command.arg(&file).arg("--").arg(program).arg("now"), user));
        assert!(ended.status.success(), "{ended:?}");
        let recorded = Recorded::open(profile, &file, ended);
        let names = recorded.names();
        assert_eq!(names.iter().any(|name| *name == "image_loop"), named, "{user}: {names:?}");
        // It is there all the same.
        assert!(recorded.total() > 100, "{}", recorded.total());
    }
}

fn not_dumpable() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    // One that may be executed and not read, and one that has been root: both are his by all their ids.
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
