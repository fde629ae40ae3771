//! Programs killed by signals: their stacks are printed at once and stored in the profile.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ccsd_profile::Crash;
use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, RecordCommand, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, Need, Suite};
use nix::sys::signal::Signal;
use serde_json::Value;

const NEEDS: &[Need] = &[CC, Need::Root, Need::Tracefs];
const CXX_NEEDS: &[Need] = &[CXX, Need::Root, Need::Tracefs];

fn main() -> ExitCode {
    Suite::new()
        .test("fault_three_calls_deep", NEEDS, fault)
        .test("stack_that_is_exhausted", NEEDS, exhausted)
        .test("stack_that_is_exhausted_shows_how_the_recursion_was_entered", CXX_NEEDS, || {
            for (flags, outer) in [("p", "main"), ("tp", "in_thread")] {
                let names = outer_end(flags);
                let enter = names.iter().position(|name| name == "enter").unwrap_or_else(|| panic!("{names:?}"));
                assert!(!names.iter().any(|name| name == "pause_here"), "{names:?}");
                assert_eq!((names[enter - 1].as_str(), names[enter + 1].as_str()), ("Walker::walk(long)", outer));
            }
        })
        .test("stack_that_is_exhausted_shows_no_calls_that_have_returned", CXX_NEEDS, || {
            // The last sample whose stack is whole is of what came before the recursion, or of its first steps.
            for (flags, outer) in [("-", "main"), ("t", "in_thread"), ("d", "main")] {
                let names = outer_end(flags);
                let at = names.iter().position(|name| name == outer).unwrap_or_else(|| panic!("{names:?}"));
                assert!(names.len() > at + 1 && !names.iter().any(|name| name == "warm_up"), "{names:?}");
                assert!(at == 0 || names[at - 1] == "enter" && names[at - 2].contains("walk"), "{names:?}");
            }
        })
        .test("stack_that_is_exhausted_is_whole_while_a_core_dump_is_written", CXX_NEEDS, || {
            let dir = scratch();
            let recorded = overflow("c", |command| _ = command.current_dir(dir.path()));
            let crash = only(&recorded);
            let names = functions(crash);
            assert_eq!((&crash.truncated, &crash.earlier), (&None, &None), "{:?}", recorded.ended);
            assert!(crash.left_out > 10_000, "{}", crash.left_out);
            assert_eq!(names.iter().filter(|name| *name == "enter").count(), 1, "{names:?}");
            assert_eq!(names[names.iter().position(|name| name == "enter").unwrap() + 1], "main");
        })
        .test("abort", NEEDS, || {
            let recorded = record("abort", Some(Signal::SIGABRT));
            let names = functions(only(&recorded));
            let abort = names.iter().position(|name| name == "abort").unwrap_or_else(|| panic!("{names:?}"));
            assert_eq!(names[abort + 1], "main");
            assert!(recorded.ended.stderr.contains("SIGABRT (sent by a program)"), "{}", recorded.ended.stderr);
        })
        .test("thread_that_is_not_the_first", NEEDS, || {
            let recorded = record("thread", Some(Signal::SIGSEGV));
            let crash = only(&recorded);
            assert_ne!(crash.tid, crash.pid);
            assert_eq!(crash.thread, "unlucky");
            let names = functions(crash);
            assert_eq!(names[..4], ["third", "second", "first", "in_thread"]);
        })
        .test("child_that_dies", NEEDS, || {
            let recorded = Collecting::start(|file| program("child").command(file)).wait();
            assert_eq!(recorded.ended.status.code(), Some(7), "{:?}", recorded.ended);
            let crash = only(&recorded);
            assert_ne!(crash.pid, recorded.profile.session().pids[0]);
            assert!(recorded.ended.stderr.contains(&format!("(PID {})", crash.pid)), "{}", recorded.ended.stderr);
            assert_eq!(functions(crash)[..5], ["third", "second", "first", "in_child", "main"]);
        })
        .test("a_handled_signal_is_no_crash", NEEDS, || {
            let recorded = Collecting::start(|file| program("handled").command(file)).wait();
            assert_eq!(recorded.ended.status.code(), Some(3), "{:?}", recorded.ended);
            assert_untold(&recorded);
        })
        .test("an_ended_program_has_not_crashed", NEEDS, || assert_untold(&record("terminate", Some(Signal::SIGTERM))))
        .test("quiet_is_quiet", NEEDS, || {
            let quiet = program("fault").options(&["--quiet"]);
            let recorded = Collecting::start(|file| quiet.command(file)).wait();
            assert_eq!(recorded.ended.stderr, "");
            let _ = only(&recorded);
        })
        .test("attached_one_of_two_dies", NEEDS, attached)
        .test("others_are_not_told_of", NEEDS, || {
            let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let mut collecting = Collecting::attach(&[], &[fixture.pid()]);
            let mut other = Running::start(&crash_program(), &["fault", "wait"]);
            other.go();
            assert_eq!(other.end().1.signal(), Some(libc::SIGSEGV));
            collecting.wait_for_writes(2);
            assert_untold(&collecting.stop());
        })
        .test("through_a_daemon", NEEDS, through_a_daemon)
        .test("an_ordinary_user_is_told_why_not", &[CC, Need::Tracefs], || {
            let record = program("fault").user(NOBODY);
            let recorded = Collecting::start(|file| record.command(file)).wait();
            assert_eq!(recorded.ended.status.signal(), Some(libc::SIGSEGV), "{:?}", recorded.ended);
            assert!(recorded.profile.crashes().is_empty());
            let stderr = &recorded.ended.stderr;
            let note = stderr.lines().find(|line| line.contains("no stacks of fatal signals"));
            assert!(note.is_some_and(|note| note.contains("root")), "{stderr}");
        })
        .run()
}

fn crash_program() -> PathBuf {
    build("crash.c", &["-g", "-O0", "-pthread"])
}

fn program(how: &str) -> RecordCommand {
    RecordCommand::new(crash_program(), &[how])
}

fn record(how: &str, signal: Option<Signal>) -> Recorded {
    let record = program(how);
    let recorded = Collecting::start(|file| record.command(file)).wait();
    assert_eq!(recorded.ended.status.signal(), signal.map(|signal| signal as i32), "{:?}", recorded.ended);
    recorded.assert_whole();
    recorded
}

fn only(recorded: &Recorded) -> &Crash {
    let crashes = recorded.profile.crashes();
    assert_eq!(crashes.len(), 1, "{:?}", recorded.ended);
    &crashes[0]
}

fn functions(crash: &Crash) -> Vec<String> {
    crash.stack.iter().map(|&at| crash.frames[at as usize].function.clone()).collect()
}

fn assert_untold(recorded: &Recorded) {
    assert!(recorded.profile.crashes().is_empty(), "{:?}", recorded.profile.crashes());
    assert!(!recorded.ended.stderr.to_lowercase().contains("died"), "{}", recorded.ended.stderr);
}

fn fault() {
    let recorded = record("fault", Some(Signal::SIGSEGV));
    let crash = only(&recorded);
    assert_eq!(functions(crash)[..4], ["third", "second", "first", "main"]);
    assert_eq!(crash.truncated, None);
    assert_eq!((crash.signal, crash.pid), (11, recorded.profile.session().pids[0]));
    let began = recorded.profile.session().started_unix_ns;
    assert!(crash.unix_ns >= began && crash.unix_ns - began < 60_000_000_000, "{crash:?}");
    let stderr = &recorded.ended.stderr;
    let died = stderr.lines().find(|line| line.starts_with("Died: ")).unwrap_or_else(|| panic!("{stderr}"));
    assert!(died.contains("SIGSEGV (no memory at the address) in third at ") && died.contains("crash.c:12"), "{died}");
    let lines: Vec<&str> = stderr.lines().skip_while(|line| !line.starts_with("    #0 ")).take(4).collect();
    for (line, part) in lines.iter().zip(["third at ", "second at ", "first at ", "main at "]) {
        assert!(line.contains(part) && line.contains("crash.c:"), "{stderr}");
    }
    let report = EndedProgram::of(ccsd(["report"]).arg(&recorded.file)).stdout;
    assert!(
        report.contains("# died     ") && report.contains("SIGSEGV") && report.contains("#    #1   second at "),
        "{report}"
    );
    assert!(report.lines().take_while(|line| !line.is_empty()).all(|line| line.starts_with('#')), "{report}");
    let json = EndedProgram::of(ccsd(["report", "--json", "--hide", "third"]).arg(&recorded.file)).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let crash = &json["crashes"][0];
    assert_eq!((&crash["signal"], &crash["complete"]), (&Value::from("SIGSEGV"), &Value::from(true)));
    assert_eq!(
        (&crash["frames"][0]["function"], &crash["frames"][0]["line"]),
        (&Value::from("third"), &Value::from(12))
    );
}

fn exhausted() {
    let recorded = record("deep", Some(Signal::SIGSEGV));
    let crash = only(&recorded);
    let names = functions(crash);
    assert_eq!(names[0], "down");
    // The stack pointer is beyond the stack, so only frame pointers remain, at most 127.
    let downs = names.iter().filter(|name| *name == "down").count();
    assert!(downs > 100, "{downs} of {}", names.len());
    let stderr = &recorded.ended.stderr;
    let shown =
        stderr.lines().skip_while(|line| !line.starts_with("    #0 ")).take_while(|line| line.starts_with("    "));
    assert!(shown.clone().count() < 40, "{stderr}");
    assert!(shown.clone().any(|line| line.contains("frames of recursion")), "{stderr}");
}

fn overflow(flags: &str, prepare: impl Fn(&mut Command)) -> Recorded {
    let record = RecordCommand::new(build("overflow.cpp", &["-g", "-O1", "-pthread"]), &[flags]);
    let recorded = Collecting::start(|file| {
        let mut command = record.command(file);
        prepare(&mut command);
        command
    });
    let recorded = recorded.wait();
    assert_eq!(recorded.ended.status.signal(), Some(libc::SIGSEGV), "{:?}", recorded.ended);
    recorded
}

/// The outer end of the stack, innermost first: of the last sample and marked as that, or the stack itself.
fn outer_end(flags: &str) -> Vec<String> {
    let recorded = overflow(flags, |_| {});
    let crash = only(&recorded);
    if crash.truncated.is_none() {
        assert_eq!(crash.earlier, None);
        return functions(crash);
    }
    assert!(!functions(crash).iter().any(|name| name == "enter"), "{:?}", recorded.ended);
    let earlier = crash.earlier.as_ref().unwrap_or_else(|| panic!("{:?}", recorded.ended));
    assert!(earlier.age_ns > 0, "{:?}", recorded.ended);
    let names: Vec<String> = earlier.stack.iter().map(|&at| crash.frames[at as usize].function.clone()).collect();
    let stderr = &recorded.ended.stderr;
    let (own, shown) =
        stderr.split_once("    outer frames as of the thread's sample ").unwrap_or_else(|| panic!("{stderr}"));
    assert!(own.contains("[truncated: ") && !own.contains(" enter at "), "{stderr}");
    assert!(shown.lines().nth(1).is_some_and(|line| line.starts_with(&format!("    #?   {}", names[0]))), "{stderr}");
    let json = EndedProgram::of(ccsd(["report", "--json"]).arg(&recorded.file)).stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let frames = json["crashes"][0]["earlier"]["frames"].as_array().unwrap();
    assert_eq!(frames.iter().map(|frame| frame["function"].as_str().unwrap()).collect::<Vec<_>>(), names);
    assert_eq!(json["crashes"][0]["complete"], Value::from(false));
    names
}

fn attached() {
    let mut survivor = Running::start(&build("forever.c", &["-O1"]), &[]);
    let mut fixture = Running::start(&crash_program(), &["fault", "wait"]);
    let mut collecting = Collecting::attach(&[], &[survivor.pid(), fixture.pid()]);
    fixture.go();
    assert_eq!(fixture.end().1.signal(), Some(libc::SIGSEGV));
    collecting.wait_for_writes(2);
    let recorded = collecting.stop();
    assert!(survivor.is_alive());
    let crash = only(&recorded);
    assert_eq!(crash.pid, fixture.pid());
    assert_eq!(functions(crash)[..4], ["third", "second", "first", "main"]);
    // Printed at the crash, before the report.
    let stderr = &recorded.ended.stderr;
    let place = |text: &str| stderr.find(text).unwrap_or_else(|| panic!("no {text} in {stderr}"));
    assert!(place("Died: ") < place("# samples"), "{stderr}");
}

fn through_a_daemon() {
    let daemon = Daemon::start(&[]);
    let mut fixture = Running::start(&crash_program(), &["fault", "wait"]);
    let session = daemon.detached(&[], fixture.pid());
    fixture.go();
    assert_eq!(fixture.end().1.signal(), Some(libc::SIGSEGV));
    let live = daemon.run(&["top", "--json", &format!("session:{session}")]);
    assert!(live.status.success(), "{live:?}");
    let last: Value = serde_json::from_str(live.stdout.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["crashes"][0]["signal"], last["crashes"].as_array().unwrap().len()),
        (&"SIGSEGV".into(), 1),
        "{last}"
    );
    let live = daemon.run(&["top", "--plain", &format!("session:{session}")]);
    assert!(live.stdout.contains("died of SIGSEGV in third"), "{live:?}");
    let report = daemon.run(&["report", "--json", &session.to_string()]);
    let json: Value = serde_json::from_str(&report.stdout).unwrap_or_else(|error| panic!("{error}: {report:?}"));
    assert_eq!(json["crashes"][0]["frames"][2]["function"], "first", "{json}");
    let record = program("fault");
    let recorded = Collecting::start(|file| {
        let mut command = record.command(file);
        command.env("CCSD_SOCKET", &daemon.socket);
        command
    });
    let recorded = recorded.wait();
    assert_eq!(recorded.ended.status.signal(), Some(libc::SIGSEGV), "{:?}", recorded.ended);
    let stderr = &recorded.ended.stderr;
    assert!(stderr.contains("collecting in the daemon") && stderr.contains("Died: "), "{stderr}");
    assert_eq!(functions(only(&recorded))[..4], ["third", "second", "first", "main"]);
    daemon.stop();
}
