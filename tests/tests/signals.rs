//! How a collection ends: by signal, by itself, in disorder.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{Running, build};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    Suite::new()
        .test("interrupt_ends_attach_in_order", &[CC], || attach_until(Signal::SIGINT))
        .test("terminate_ends_attach_in_order", &[CC], || attach_until(Signal::SIGTERM))
        .test("hang_up_ends_attach_in_order", &[CC], || attach_until(Signal::SIGHUP))
        .test("kill_leaves_the_target_and_a_profile", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let mut collecting = Collecting::attach(&[], &[fixture.pid()]);
            collecting.wait_for_samples(20);
            collecting.signal(Signal::SIGKILL);
            let recorded = collecting.wait();
            assert_eq!(recorded.ended.status.signal(), Some(libc::SIGKILL));
            assert!(fixture.is_alive());
            assert!(!recorded.finished);
            // How many there are depends on who else uses the machine.
            assert!(recorded.samples("forever").inherited > 0, "{:?}", recorded.names());
            let report = EndedProgram::of(ccsd(["report"]).arg(&recorded.file));
            assert!(report.status.success(), "{report:?}");
            assert!(report.stdout.contains("forever") && report.stdout.contains("interrupted"), "{}", report.stdout);
        })
        .test("stack_that_nobody_serves", &[CC, Need::Root], || {
            // Who reads the outer part of this stack waits for ever.
            let mut fixture = Running::start(&build("served.c", &["-O1", "-pthread"]), &[]);
            let mut collecting = Collecting::attach(&[], &[fixture.pid()]);
            collecting.wait_for_samples(20);
            let recorded = collecting.stop();
            assert!(fixture.is_alive());
            let all = recorded.samples("forever").inherited;
            assert!(all > 0 && recorded.profile.accounting().received == all, "{:?}", recorded.names());
            assert_eq!(recorded.samples("[truncated: stack copy too small]").inherited, all);
        })
        .test("attach_for_a_duration", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let recorded = Collecting::attach(&["--duration", "300ms"], &[fixture.pid()]).wait();
            assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
            recorded.assert_whole();
            assert!(recorded.profile.accounting().duration_ns >= 300_000_000);
            assert!(recorded.samples("forever").inherited > 0);
            assert!(fixture.is_alive());
        })
        .test("record_for_a_duration", &[CC], || {
            let record = RecordCommand::new(build("forever.c", &["-O1"]), &["1500"]).options(&["--duration", "300ms"]);
            let recorded = Collecting::start(|file| record.command(file)).wait();
            assert_eq!(recorded.ended.status.code(), Some(5), "{:?}", recorded.ended);
            recorded.assert_whole();
            let accounting = recorded.profile.accounting();
            let limit = accounting.duration_ns / 1_000_000 + 5;
            assert!(accounting.received <= limit, "{} samples in {limit} ms", accounting.received);
        })
        .test("target_ends_and_so_does_attach", &[CC], || {
            let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
            let collecting = Collecting::attach(&[], &[fixture.pid()]);
            fixture.go();
            assert_eq!(fixture.end().1.code(), Some(5));
            let recorded = collecting.wait();
            assert!(recorded.ended.status.success());
            recorded.assert_whole();
        })
        .test("interrupted_record_passes_the_signal_on", &[CC], || {
            let record = RecordCommand::new(build("forever.c", &["-O1"]), &["600000"]);
            let mut collecting = Collecting::start(|file| record.command(file));
            collecting.wait_for_samples(20);
            collecting.signal(Signal::SIGTERM);
            let recorded = collecting.wait();
            // It was ccsd alone that was told; it ends as the program did.
            assert_eq!(recorded.ended.status.signal(), Some(libc::SIGTERM), "{:?}", recorded.ended);
            recorded.assert_whole();
            assert_report(&recorded);
        })
        .run()
}

fn attach_until(signal: Signal) {
    let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let mut collecting = Collecting::attach(&[], &[fixture.pid()]);
    collecting.wait_for_samples(20);
    collecting.signal(signal);
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole();
    assert_report(&recorded);
    assert!(fixture.is_alive());
    fixture.go();
    assert_eq!(fixture.end().1.code(), Some(5), "the target ends as it likes");
}

fn assert_report(recorded: &Recorded) {
    let stderr = &recorded.ended.stderr;
    assert!(stderr.contains(" samples ") && stderr.contains("forever") && stderr.contains("saved in"), "{stderr}");
    assert!(recorded.ended.stdout.is_empty());
}
