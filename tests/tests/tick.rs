//! Sampling by the scheduler's tick: shares, time that is neither lost nor invented, and refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::ExitCode;

use ccsd_tests::ccsd::{EndedProgram, NOBODY, RecordCommand};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, Need, Suite, no_tick};

const TRACEFS: &str = "/sys/kernel/tracing";
/// What a thread may have run after the last tick that found it, in multiples of the usual gap. (By chance alone once
/// in 20,000 times.)
const LAST: u64 = 10;
/// What clocks and the program's own start differ by.
const ALLOWANCE: f64 = 0.03;

fn main() -> ExitCode {
    Suite::new()
        .test("shares_are_those_of_the_program", &[CC, Need::Root], || {
            let Some(recorded) = record("tick.c", &["shares", "2000"]) else { return };
            let measured = |line: &str| line.split_once(' ').map(|(name, ns)| (name.to_owned(), ns.parse().unwrap()));
            let truth: Vec<(String, u64)> = recorded.ended.stdout.lines().filter_map(measured).collect();
            let whole: u64 = truth.iter().map(|(_, ns)| ns).sum();
            let flat = recorded.flat();
            let weight = |name: &str| {
                recorded.function(name).and_then(|function| flat.row(function)).map_or(0, |row| row.inherited_weight)
            };
            let weights: Vec<u64> = truth.iter().map(|(name, _)| weight(name)).collect();
            let total: u64 = weights.iter().sum();
            // Samples do not weigh the same: weights that vary by 1.7 times their mean are worth a quarter as many
            // equal ones (1 + cv^2).
            let draws = recorded.total() / 4;
            assert!(draws > 20, "{draws} draws");
            for ((name, ns), weight) in truth.iter().zip(weights) {
                let part = (weight as f64 / total as f64 * draws as f64).round() as u64;
                assert_share(name, part, draws, *ns as f64 / whole as f64, 0.02);
            }
        })
        .test("time_is_conserved", &[CC, Need::Root], || {
            let Some(recorded) = record("tick.c", &["threads", "400"]) else { return };
            let used: f64 = recorded.ended.stdout.trim().parse().unwrap();
            let accounting = recorded.profile.accounting();
            let counted = accounting.target_cpu_ns.unwrap() as f64;
            assert!((counted - used).abs() <= used * ALLOWANCE, "the events counted {counted} ns of {used}");
            let weighed = recorded.flat().total.weight as f64;
            // Two threads on one CPU.
            let tails = (2 * LAST) as f64 * weighed / recorded.total() as f64;
            assert!(weighed <= used * (1.0 + ALLOWANCE), "{weighed} ns in samples, and {used} were used");
            assert!(weighed >= used * (1.0 - ALLOWANCE) - tails, "{weighed} ns in samples of {used}, less {tails}");
            // Whatever a tick finds is sampled, and each sample arrives.
            let all = accounting.received + accounting.lost + accounting.dropped_by_us + accounting.throttled;
            assert_eq!(accounting.expected, Some(all + accounting.undelivered()), "{accounting:?}");
            assert!(accounting.undelivered() <= 2, "{accounting:?}");
        })
        .test("timers_of_the_program_are_no_ticks", &[CC, Need::Root], || {
            // Each comes with the same interrupt as the tick, at a moment that is not by chance. Were it the timers, there
            // would be four times as many samples as ticks, always. Where the program happens to be in step with the ticks,
            // these find it much more or less often than by chance: in one run of five, here.
            let mut seen = Vec::new();
            for _ in 0..8 {
                let Some(recorded) = record("tick.c", &["step", "300"]) else { return };
                let cpu = recorded.profile.accounting().target_cpu_ns.unwrap();
                let ticks = cpu as f64 * recorded.rate_hz() / 1e9;
                let samples = recorded.total() as f64;
                if samples <= ticks * 1.5 + 5.0 * ticks.sqrt() {
                    return;
                }
                seen.push((samples, ticks));
            }
            panic!("samples, and ticks that there were: {seen:?}");
        })
        .test("the_interrupt_is_not_the_programs", &[CC, Need::Root], || {
            let Some(recorded) = record("motion.c", &["kernel", "0", "400000"]) else { return };
            recorded.assert_complete();
            let flat = recorded.flat();
            // Half a second in the kernel, but for the way there: the kernel's functions are below the interrupt.
            let kernel: u64 = flat.rows.iter().filter(|row| row.image == "[kernel]").map(|row| row.self_weight).sum();
            assert!(kernel * 10 >= flat.total.weight * 6, "{kernel} ns of {}", flat.total.weight);
            for name in ["__hrtimer_run_queues", "hrtimer_interrupt", "__sysvec_apic_timer_interrupt"] {
                assert_eq!(recorded.samples(name).own, 0, "{name}");
            }
        })
        .test("refused_to_a_user", &[CC, Need::Root], || {
            if open_to_all() {
                return;
            }
            let dir = scratch();
            let record =
                RecordCommand::new(build("weights.c", &["-O1"]), &["10"]).options(&["-e", "tick"]).user(NOBODY);
            let ended = EndedProgram::of(&mut record.command(&dir.path().join("profile.ccsd")));
            ended.assert_refused(2, &["tick", "as root"]);
            assert!(ended.stdout.is_empty(), "the program ran: {ended:?}");
        })
        .test("refused_for_user_code_alone", &[CC], || {
            let dir = scratch();
            let record = RecordCommand::new(build("weights.c", &["-O1"]), &["10"]).options(&["-e", "tick", "--user"]);
            let ended = EndedProgram::of(&mut record.command(&dir.path().join("profile.ccsd")));
            ended.assert_refused(2, &["tick", "user code alone"]);
        })
        .run()
}

fn record(fixture: &str, arguments: &[&str]) -> Option<Recorded> {
    let record = RecordCommand::new(build(fixture, &["-O1", "-pthread"]), arguments).options(&["-e", "tick"]);
    if let Some(missing) = no_tick() {
        let dir = scratch();
        EndedProgram::of(&mut record.command(&dir.path().join("profile.ccsd"))).assert_refused(2, &["tick", missing]);
        return None;
    }
    let recorded = record.run();
    recorded.assert_whole();
    assert_eq!(recorded.profile.session().event, "tick");
    Some(recorded)
}

/// Whether an ordinary user may have it on this machine.
fn open_to_all() -> bool {
    let others = fs::metadata(TRACEFS).is_ok_and(|tracefs| tracefs.permissions().mode() & 0o001 != 0);
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap();
    others && paranoid.trim().parse::<i32>().unwrap() <= 1
}
