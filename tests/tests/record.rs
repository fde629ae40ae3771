//! `ccsd record` follows forks, execs, threads and their names.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use ccsd_profile::Phase;
use ccsd_profile::view::ProcessRow;
use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::{assert_samples, assert_share};
use ccsd_tests::suite::{CC, Suite};

/// Two runs of equal work differ because of other programs on the machine. Measured on a busy machine: up to a tenth.
const ALLOWANCE: f64 = 0.25;

fn main() -> ExitCode {
    Suite::new()
        .test("sampled_time_is_used_time", &[CC], || {
            // The fixture measures itself; the rest is the start of libc and of the fixture.
            let recorded = record("weights.c", &["2000"], &["-F", "1999"]);
            let used: u64 =
                recorded.ended.stdout.lines().map(|line| line.split_once(' ').unwrap().1.parse::<u64>().unwrap()).sum();
            let samples: u64 = (1..=12).map(|i| recorded.samples(&format!("weight_{i:02}")).inherited).sum();
            assert_samples("all functions", samples, used, recorded.rate_hz(), 2, 0.01);
            let accounting = recorded.profile.accounting();
            let expected = accounting.expected.unwrap();
            assert!(expected >= samples);
            assert_eq!(
                expected,
                accounting.received
                    + accounting.lost
                    + accounting.throttled
                    + accounting.dropped_by_us
                    + accounting.undelivered()
            );
            assert_samples(
                "received",
                accounting.received,
                accounting.target_cpu_ns.unwrap(),
                recorded.rate_hz(),
                2,
                0.01,
            );
        })
        .test("time_before_execve_is_not_ccsd_s", &[CC], || {
            // As when `cargo run` has just built.
            const BEFORE_S: i64 = 5;
            let dir = scratch();
            let file = dir.path().join("profile.ccsd");
            let mut command = ccsd(["record", "-o"]);
            command.arg(&file).arg("--").arg(build("weights.c", &["-O1"])).arg("300");
            // SAFETY: between fork and exec this only reads a clock.
            unsafe {
                command.pre_exec(|| {
                    let spent = || nix::time::clock_gettime(nix::time::ClockId::CLOCK_PROCESS_CPUTIME_ID);
                    while spent()?.tv_sec() < BEFORE_S {}
                    Ok(())
                });
            }
            let recorded = Recorded::open(dir, &file, EndedProgram::of(&mut command));
            let accounting = recorded.assert_whole().profile.accounting();
            let own = accounting.own.by_phase.unwrap();
            assert_eq!(own.once() + own.lasting(), accounting.own.cpu_ns);
            assert!(accounting.own.cpu_ns < BEFORE_S.unsigned_abs() * 1_000_000_000, "{own:?}");
            for phase in [Phase::Start, Phase::Images, Phase::Sampling, Phase::Aggregating] {
                assert!(own.get(phase) > 0, "{phase:?}: {own:?}");
            }
            let stats = EndedProgram::of(ccsd(["report", "--stats"]).arg(&file)).stdout;
            for (phase, _) in own.iter() {
                assert!(stats.contains(&format!("CPU: {}", phase.text())), "{stats}");
            }
        })
        .test("unsampled_short_threads_are_accounted_for", &[CC], || {
            // A thread shorter than a period is not sampled. Its time is missing, and the accounting says so.
            let recorded = record("threads.c", &["short"], &["-F", "999"]);
            let accounting = recorded.profile.accounting();
            let expected = accounting.expected.unwrap();
            assert_samples("expected", expected, accounting.target_cpu_ns.unwrap(), recorded.rate_hz(), 1, 0.0);
            // 500 threads of some 0.4 ms, and the kernel's time to start them.
            assert!(expected > 100, "{accounting:?}");
            let known = accounting.received + accounting.lost + accounting.throttled + accounting.dropped_by_us;
            assert_eq!(accounting.undelivered(), expected - known.min(expected));
        })
        .test("standard_output_is_the_program_s", &[], || {
            let dir = scratch();
            for command in [&["record", "-o", "-", "--", "true"][..], &["attach", "-o", "-", "1"]] {
                EndedProgram::of(ccsd(command).current_dir(dir.path()))
                    .assert_refused(2, &["standard output", "-o ./-"]);
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        })
        .test("arguments_are_kept_unless_they_are_not_to_be", &[CC], || {
            const SECRET: &str = "--password=hunter2";
            for (options, kept) in [(&[][..], true), (&["--no-args"], false)] {
                let recorded = RecordCommand::new("sh", &["-c", "exit 0", SECRET]).options(options).run();
                let bytes = recorded.bytes();
                assert_eq!(bytes.windows(SECRET.len()).any(|it| it == SECRET.as_bytes()), kept, "{options:?}");
                assert_eq!(recorded.profile.session().command[0], "sh");
                let fixture = Running::start(&build("forever.c", &["-O1"]), &[SECRET]);
                let recorded = Collecting::attach(options, &[fixture.pid()]).stop();
                let bytes = recorded.bytes();
                assert_eq!(bytes.windows(SECRET.len()).any(|it| it == SECRET.as_bytes()), kept, "{options:?}");
            }
        })
        .test("short_lived_children", &[CC], || {
            let recorded = record("processes.c", &["children"], &["-F", "1999"]);
            recorded.assert_complete();
            let processes = recorded.processes();
            // Each of eight children is a separate process, a child of the first.
            let parent =
                processes.iter().find(|process| recorded.profile.process(process.id).unwrap().parent.is_none());
            let parent = parent.unwrap();
            let children: Vec<&ProcessRow> = processes
                .iter()
                .filter(|process| recorded.profile.process(process.id).unwrap().parent == Some(parent.id))
                .collect();
            assert_eq!((children.len(), processes.len()), (8, 9), "{processes:#?}");
            let work = recorded.samples("child_work").inherited;
            let all: u64 = children.iter().map(|child| child.samples).sum();
            assert!(all >= work && all - work < all / 10, "{work} of {all} samples of the children are work");
            for child in children {
                assert_share(format!("child {}", child.pid), child.samples, all, 1.0 / 8.0, ALLOWANCE);
            }
        })
        .test("without_children", &[CC], || {
            let recorded = record("processes.c", &["children"], &["-F", "1999", "--no-inherit"]);
            assert_eq!(recorded.function("child_work"), None);
            assert_eq!(recorded.processes().len(), 1);
            assert!(recorded.samples("main").inherited > 0);
        })
        .test("exec_begins_another_program", &[CC], || {
            let recorded = record("processes.c", &["exec"], &["-F", "1999"]);
            recorded.assert_complete();
            recorded.assert_proportions(&[("first_life", 1), ("second_life", 2)], ALLOWANCE);
            // One process id, two programs, distinguished by generation. Neither has the other's samples.
            let lives = recorded.processes();
            let [first, second] = by_generation(&lives)[..] else { panic!("{lives:#?}") };
            assert_eq!((first.pid, first.start_time), (second.pid, second.start_time));
            assert_eq!(first.exec_generation + 1, second.exec_generation);
            let samples = |name| recorded.samples(name).inherited;
            assert!(samples("first_life") <= first.samples && samples("second_life") <= second.samples);
            assert!(first.samples < samples("second_life"));
        })
        .test("exec_chain", &[CC], || {
            let fixture = build("processes.c", &["-O1", "-pthread"]);
            let script = "exec env -u NOTHING \"$0\" second";
            let recorded =
                RecordCommand::new("sh", &["-c", script, &fixture.to_string_lossy()]).options(&["-F", "1999"]).run();
            recorded.assert_whole().assert_complete();
            let lives = recorded.processes();
            let last = *by_generation(&lives).last().unwrap();
            // The third program in the process; the first two are too short for most samples.
            assert!(lives.iter().all(|life| life.pid == last.pid), "{lives:#?}");
            assert_eq!(lives.iter().filter(|life| life.exec_generation == last.exec_generation).count(), 1);
            let name = fixture.file_name().unwrap().to_string_lossy();
            assert_eq!(last.name, name[..name.len().min(15)], "the kernel keeps 15 bytes");
            let work = recorded.samples("second_life").inherited;
            assert!(work <= last.samples && work * 10 > last.samples * 9, "{lives:#?}");
        })
        .test("forked_by_a_shell", &[CC], || {
            let fixture = build("processes.c", &["-O1", "-pthread"]);
            let script = "\"$0\" second; \"$0\" second; true";
            let recorded =
                RecordCommand::new("sh", &["-c", script, &fixture.to_string_lossy()]).options(&["-F", "1999"]).run();
            recorded.assert_whole().assert_complete();
            let name = fixture.file_name().unwrap().to_string_lossy().into_owned();
            let lives = recorded.processes();
            let programs: Vec<&ProcessRow> = lives.iter().filter(|life| name.starts_with(&life.name)).collect();
            assert_eq!(programs.len(), 2, "{lives:#?}");
            assert_ne!(programs[0].pid, programs[1].pid);
            let all = programs[0].samples + programs[1].samples;
            assert_share("the first", programs[0].samples, all, 0.5, ALLOWANCE);
        })
        .test("names_of_threads", &[CC], || {
            let recorded = record("processes.c", &["names"], &["-F", "1999"]);
            recorded.assert_complete();
            let processes = recorded.processes();
            let [process] = &processes[..] else { panic!("{processes:#?}") };
            let thread = |name: &str| {
                let mut found = process.threads.iter().filter(|thread| thread.name == name);
                let only = found.next().unwrap_or_else(|| panic!("{name} is not in {process:#?}"));
                assert!(found.next().is_none());
                only
            };
            // A thread has its last name for all its work.
            let (first, second) = (thread("first"), thread("second-renamed"));
            let all = first.samples + second.samples;
            assert_share("the first thread", first.samples, all, 0.5, ALLOWANCE);
            let work = recorded.samples("thread_work").inherited;
            assert!(work <= all && work * 10 > all * 9, "{work} of {all}");
        })
        .run()
}

fn record(source: &str, args: &[&str], options: &[&str]) -> Recorded {
    let recorded = RecordCommand::new(build(source, &["-O1", "-pthread"]), args).options(options).run();
    recorded.assert_whole();
    recorded
}

fn by_generation(lives: &[ProcessRow]) -> Vec<&ProcessRow> {
    let mut lives: Vec<&ProcessRow> = lives.iter().collect();
    lives.sort_by_key(|life| life.exec_generation);
    lives
}
