//! What one user's files, processes and sessions do to another's: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, ExitCode};

use ccsd_profile::view::{FlatView, Selection};
use ccsd_tests::ccsd::{Collecting, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::elf::exhausting_program;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::suite::{CC, Need, OBJCOPY, Suite};

fn main() -> ExitCode {
    Suite::new()
        .test("a_user_s_file_made_to_exhaust_memory_blinds_nobody", &[CC, OBJCOPY, Need::Root], exhausting_file)
        .run()
}

fn exhausting_file() {
    let program = build("phases.c", &["-O1"]);
    let dir = scratch();
    let hostile = exhausting_program(&program, 12_000_000, dir.path());
    let daemon = Daemon::start(&[]);
    let own = daemon.worker().unwrap();
    // Root looks at several such programs, each a file of its own.
    let mut watched: Vec<(Running, Collecting)> = (0..3)
        .map(|number| {
            let copy = dir.path().join(format!("hostile-{number}"));
            copy_program(&hostile, &copy);
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            chown(&copy, Some(NOBODY), Some(NOBODY)).unwrap();
            let running = Running::start_command(as_user(&mut Command::new(&copy), NOBODY));
            let collecting = daemon.attach(running.pid());
            (running, collecting)
        })
        .collect();
    let mut fixture = Running::start(&program, &[]);
    let mut collecting = daemon.attach(fixture.pid());
    collecting.wait_for_samples(100);
    for (_, other) in &mut watched {
        other.wait_for_samples(50);
    }
    fixture.go();
    // Of this phase: those of the one before may be written only now.
    collecting.wait_until(|profile| {
        let rows = FlatView::new(profile, &Selection::all()).rows;
        rows.iter().any(|row| row.name == "second" && row.samples_self > 20)
    });
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    recorded.assert_whole().assert_complete();
    for name in ["first", "second"] {
        assert!(recorded.samples(name).own > 10, "{name}: {:?}", recorded.names());
    }
    let unnamed = recorded.profile.accounting().unsymbolised;
    assert!(unnamed * 50 <= recorded.total(), "{unnamed}");
    assert!(fs::read_to_string(format!("/proc/{own}/comm")).is_ok_and(|name| name == "ccsd-worker\n"));
    for (mut running, collecting) in watched {
        running.go();
        running.go();
        let _ = running.finish();
        // Even of the hostile program all stacks are complete.
        let recorded = collecting.wait();
        recorded.assert_whole().assert_complete();
    }
    daemon.stop();
}
