//! The end of a target is recognised as such: its session ends with all samples.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::wait::until;
use serde_json::Value;

const NEEDS: &[Need] = &[CC, Need::Root];
/// Before the fix, eight of ten such sessions ended as forbidden.
const ROUNDS: usize = 10;

fn main() -> ExitCode {
    Suite::new()
        .test("a_killed_crowd_has_gone", NEEDS, || killed(ROUNDS, "stays"))
        .test("a_crowd_without_its_main_thread_is_profiled_and_killed", NEEDS, || killed(1, "leaves"))
        .run()
}

fn as_nobody(daemon: &Daemon, args: &[&str]) -> EndedProgram {
    let ended = EndedProgram::of(as_user(&mut daemon.ccsd(args), NOBODY));
    assert!(ended.status.success(), "{ended:?}");
    ended
}

fn killed(rounds: usize, leader: &str) {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let program: PathBuf = build("ending.c", &["-O1", "-pthread"]);
    for round in 0..rounds {
        let mut crowd = Running::start_command(as_user(Command::new(&program).arg(leader), NOBODY));
        if leader == "leaves" {
            wait_for_leader(crowd.pid());
        }
        let attached = as_nobody(&daemon, &["attach", "--detach", "-F", "499", &crowd.pid().to_string()]);
        let id: u32 = attached.stdout.trim().parse().unwrap();
        let session = || daemon.session(id);
        while session()["received"].as_u64() < Some(100) {
            assert_eq!(session()["ended"], Value::Null, "it is still profiled");
        }
        // Not waited for yet: it stays visible as a zombie.
        crowd.child.kill().unwrap();
        until(|| !session()["ended"].is_null());
        assert_eq!(session()["ended"], "target", "round {round}");
        crowd.child.wait().unwrap();
        let dir = scratch();
        let file = dir.path().join("profile.ccsd");
        let ended = as_nobody(&daemon, &["daemon", "save", &id.to_string(), "-o", file.to_str().unwrap()]);
        let recorded = Recorded::open(dir, &file, ended);
        // The last update ends the profile.
        assert!(recorded.finished);
        recorded.assert_whole();
        assert!(recorded.samples("crowd_work").own >= 100, "{:?}", recorded.names());
        let notes = &recorded.profile.session().notes;
        // A user's session has no priority: where it is late, records of threads are lost, and their samples are not
        // shown.
        let has = |text: &str| notes.iter().any(|note| note.contains(text));
        assert!(
            !has("did not know whether this user may see their processes")
                || has("records about mappings and threads were lost"),
            "{notes:?}"
        );
    }
}

fn wait_for_leader(pid: u32) {
    let is_zombie = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ");
    until(is_zombie);
}
