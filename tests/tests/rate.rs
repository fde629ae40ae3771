//! Sampling at a changing rate: lowered when samples are lost, and within a budget.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_profile::Accounting;
use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{Running, build};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::SIGMAS;
use ccsd_tests::suite::{CC, Need, Suite};
use nix::sys::signal::Signal;

/// Allowance for clock differences, the start of a thread, and missed samples.
const ALLOWANCE: f64 = 0.15;

fn main() -> ExitCode {
    Suite::new()
        .test("where_samples_are_lost_there_are_fewer", &[CC, Need::Root], || {
            let (recorded, took) = disturbed(&[], |accounting| accounting.pace.changes > 0, 600);
            let accounting = recorded.profile.accounting();
            let rates: Vec<u32> = accounting.pace.rates.iter().map(|span| span.rate_hz).collect();
            assert_eq!((rates[0], rates[1]), (999, 499), "{accounting:?}");
            let time: u64 = accounting.pace.rates.iter().map(|span| span.duration_ns).sum();
            assert_eq!(time, accounting.duration_ns);
            let notes = &recorded.profile.session().notes;
            assert!(
                notes
                    .iter()
                    .any(|note| note.starts_with("499 Hz instead of 999 Hz from ") && note.contains("were lost")),
                "{notes:?}"
            );
            let text = report(&recorded, &["-v"]);
            assert!(text.contains("# rates    999 Hz for ") && text.contains(", 499 Hz for "), "{text}");
            let json: serde_json::Value = serde_json::from_str(&report(&recorded, &["--json"])).unwrap();
            assert_eq!(json["accounting"]["pace"]["rates"][1]["rate_hz"], 499);
            // Every sample has the weight of a period at its rate.
            assert!(accounting.lost > 0, "{accounting:?}");
            let total = recorded.sampled().total;
            assert_eq!(total.samples, accounting.received);
            if accounting.pace.changes == 1 {
                let (before, after) = (1_000_000_000 / 999, 1_000_000_000 / 499);
                let of_after = (total.weight - total.samples * before) / (after - before);
                assert_eq!(total.weight, (total.samples - of_after) * before + of_after * after);
                assert!(of_after > 0 && of_after < total.samples, "{of_after} of {total:?}");
            }
            // So weights equal time, before and after.
            for (name, ns) in [("early", took[0]), ("later", took[2])] {
                assert_time(&recorded, name, ns);
            }
            let known = accounting.received + accounting.lost + accounting.throttled + accounting.dropped_by_us;
            // At most the periods in its time: double sampling would exceed it.
            let expected = accounting.expected.unwrap();
            assert!(known <= expected + expected / 50 + 5, "{accounting:?}");
        })
        .test("threads_started_during_a_rate_change_are_sampled_once", &[CC, Need::Root], || {
            let mut fixture = Running::start(&build("links.c", &["-O1", "-pthread"]), &[]);
            let mut collecting = Collecting::start(|file| {
                // Of event groups the kernel does not count processes forked while they are created.
                let mut command = ccsd(["attach", "-e", "cpu-clock", "-o"]);
                command.arg(file).arg(fixture.pid().to_string());
                command
            });
            collecting.wait_for_writes(1);
            fixture.go();
            collecting.wait_for_samples(300);
            lose_samples(&mut fixture, &collecting);
            // A change takes longer than a thread or process lives.
            collecting.wait_until(|profile| profile.accounting().pace.changes > 0);
            collecting.wait_for_samples(600);
            fixture.go();
            let used: u64 = fixture.finish().trim().parse().unwrap();
            let recorded = collecting.wait();
            let accounting = recorded.profile.accounting();
            // All time is counted once: missed threads would count zero times, threads with both kinds of events twice.
            let counted = accounting.target_cpu_ns.unwrap();
            assert!(counted.abs_diff(used) <= used / 25, "{counted} of {used} ns: {accounting:?}");
            // And sampled once, except for the rest of a period when a thread ends or moves to another CPU.
            let known = accounting.received + accounting.lost + accounting.throttled + accounting.dropped_by_us;
            let expected = accounting.expected.unwrap();
            assert!(known <= expected + expected / 50 + 5, "{accounting:?}");
            assert!(known * 3 >= expected, "{accounting:?}");
            assert_eq!(recorded.flat().total.samples, accounting.received);
        })
        .test("last_losses_are_known", &[CC, Need::Root], || {
            let mut fixture = Running::start(&build("pace.c", &["-O1", "-pthread"]), &[]);
            let mut collecting = Collecting::attach(&[], &[fixture.pid()]);
            fixture.go();
            collecting.wait_for_samples(100);
            // The thread works for 0.7 s and ends while ccsd is stopped: no later record reports the loss.
            collecting.signal(Signal::SIGSTOP);
            fixture.go();
            fixture.wait_until_told();
            fixture.go();
            let _ = fixture.finish();
            collecting.signal(Signal::SIGCONT);
            let recorded = collecting.wait();
            let accounting = recorded.profile.accounting();
            assert!(accounting.lost > 100, "{accounting:?}");
            let known = accounting.received + accounting.lost + accounting.throttled + accounting.dropped_by_us;
            let expected = accounting.expected.unwrap();
            assert!(known <= expected + expected / 50 + 5, "{accounting:?}");
            assert!(accounting.undelivered() <= expected * 2 / 5 + 24, "{accounting:?}");
        })
        .test("a_fixed_rate_stays", &[CC, Need::Root], || {
            let (recorded, took) = disturbed(&["--no-adapt"], |accounting| accounting.lost > 0, 1_000);
            recorded.assert_whole();
            let accounting = recorded.profile.accounting();
            assert_eq!((accounting.pace.changes, accounting.pace.rates.len()), (0, 0), "{accounting:?}");
            assert!(accounting.lost > 0 && !report(&recorded, &["-v"]).contains("# rates"), "{accounting:?}");
            assert_time(&recorded, "later", took[2]);
        })
        .test("a_budget_chooses_the_rate", &[CC], || {
            let weights = build("weights.c", &["-O1"]);
            let rate = |percent: &str| {
                let recorded = RecordCommand::new(&weights, &["300"]).options(&["--overhead", percent]).run();
                let (session, pace) = (recorded.profile.session(), &recorded.profile.accounting().pace);
                let percent: f64 = percent.parse().unwrap();
                assert_eq!(pace.budget_ppm, (percent * 1e4) as u64);
                assert!(pace.target_cost_ns > 0, "{pace:?}");
                // The cost of samples for the target is within the budget, or the rate is one per second.
                let spent = f64::from(session.rate_hz) * pace.target_cost_ns as f64 / 1e9;
                assert!(spent <= percent / 100.0 || session.rate_hz == 1, "{session:?} {pace:?}");
                assert_eq!(pace.rates[0].rate_hz, session.rate_hz);
                let text = report(&recorded, &["-v"]);
                assert!(text.contains(&format!("# rates    {percent}% of the target's CPU time to spend; ")), "{text}");
                session.rate_hz
            };
            let rates = ["0.05", "1", "25"].map(rate);
            // A hundred times the budget gives more than ten times the rate, whatever the measurements.
            assert!(rates[0] < rates[1] && rates[1] <= rates[2] && rates[2] >= rates[0] * 10, "{rates:?}");
        })
        .test("budgets_that_make_no_sense", &[], || {
            for (options, parts) in [
                (&["--overhead", "0"][..], &["0%", "0.01% to 25%"][..]),
                (&["--overhead", "100"], &["100%", "0.01% to 25%"]),
                (&["--overhead", "cheap"], &["cheap", "percent"]),
                (&["--overhead", "1", "-F", "99"], &["--overhead", "--frequency"]),
            ] {
                EndedProgram::of(ccsd(["record"]).args(options).args(["--", "true"])).assert_refused(2, parts);
            }
        })
        .test("the_tick_has_no_rate_to_choose", &[Need::Root], || {
            let ended =
                EndedProgram::of(&mut ccsd(["record", "--overhead", "1", "-e", "tick", "--no-output", "--", "true"]));
            // An unusable event is reported first.
            ended.assert_refused(2, &["event tick cannot be used here"]);
        })
        .run()
}

/// Stops ccsd while the fixture works on: samples that cannot be read then are lost.
fn lose_samples(fixture: &mut Running, collecting: &Collecting) {
    collecting.signal(Signal::SIGSTOP);
    fixture.go();
    fixture.wait_until_told();
    collecting.signal(Signal::SIGCONT);
}

/// Attaches, and stops ccsd while the fixture works, so that samples are lost. Goes on until `settled`, and for
/// `samples` more. Returns nanoseconds by function.
fn disturbed(options: &[&str], settled: impl Fn(&Accounting) -> bool, samples: u64) -> (Recorded, Vec<u64>) {
    let mut fixture = Running::start(&build("pace.c", &["-O1", "-pthread"]), &[]);
    let mut collecting = Collecting::start(|file| {
        let mut command = ccsd(["attach", "-o"]);
        command.arg(file).args(options).arg(fixture.pid().to_string());
        command
    });
    collecting.wait_for_writes(1);
    fixture.go();
    collecting.wait_for_samples(300);
    lose_samples(&mut fixture, &collecting);
    collecting.wait_until(|profile| settled(profile.accounting()));
    collecting.wait_for_samples(samples);
    fixture.go();
    let took = fixture.finish().split_whitespace().map(|ns| ns.parse().unwrap()).collect();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    (recorded, took)
}

fn assert_time(recorded: &Recorded, name: &str, ns: u64) {
    let function = recorded.function(name).unwrap_or_else(|| panic!("no {name} in {:?}", recorded.names()));
    let flat = recorded.flat();
    let weight = flat.row(function).map_or(0, |row| row.inherited_weight) as f64;
    // At the lowest possible rate.
    let period = 1e9 / 499.0;
    let bound = ns as f64 * ALLOWANCE + SIGMAS * (ns as f64 / period).sqrt() * period;
    assert!((weight - ns as f64).abs() <= bound, "{name}: {weight} ns in samples, {ns} +- {bound} were spent");
}

fn report(recorded: &Recorded, options: &[&str]) -> String {
    let ended = EndedProgram::of(ccsd(["report"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout
}
