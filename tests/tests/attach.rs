//! `ccsd attach` misses no running, new, loaded or forked code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::{assert_samples, assert_share};
use ccsd_tests::suite::{CC, Need, Suite};

const CPU_CLOCK: [&str; 2] = ["-F", "1999"];
const FLAGS: [&str; 3] = ["-O1", "-pthread", "-ldl"];
/// Samples that a virtual machine's timer may miss, and CPU time of a fixture outside the measured function.
const ALLOWANCE: f64 = 0.03;
/// Allowance for equal work in different processes at the same time on a busy machine.
const UNEQUAL: f64 = 0.25;

fn main() -> ExitCode {
    Suite::new()
        .test("threads_before_and_after", &[CC], || {
            let (recorded, used) = threads("late", &CPU_CLOCK);
            assert_eq!(used.len(), 6);
            recorded.assert_complete();
            let accounting = recorded.profile.accounting();
            assert_samples(
                "all threads",
                accounting.received,
                accounting.target_cpu_ns.unwrap(),
                recorded.rate_hz(),
                14, // seven threads on two processors
                ALLOWANCE,
            );
            let processes = recorded.processes();
            assert_eq!(processes.len(), 1, "{processes:#?}");
            for (name, (tid, ns)) in &used {
                let thread = processes[0].threads.iter().find(|thread| thread.tid == *tid);
                let thread = thread.unwrap_or_else(|| panic!("{name} ({tid}) is missing: {processes:#?}"));
                assert_eq!(&thread.name, name);
                // A new thread's start and end are not in its own measurement.
                assert_samples(name, thread.samples, *ns, recorded.rate_hz(), 2, ALLOWANCE);
            }
            recorded.assert_proportions(&[("early_work", 2), ("late_work", 1), ("renamed_work", 1)], UNEQUAL);
        })
        .test("threads_before_only", &[CC], || {
            let (recorded, used) = threads("late", &["-F", "1999", "--no-inherit"]);
            let processes = recorded.processes();
            for (name, (tid, ns)) in &used {
                let samples =
                    processes[0].threads.iter().find(|thread| thread.tid == *tid).map(|thread| thread.samples);
                if name.starts_with("early") {
                    assert_samples(name, samples.unwrap_or(0), *ns, recorded.rate_hz(), 2, ALLOWANCE);
                } else {
                    assert_eq!(samples, None, "{name} was started after ccsd had attached");
                }
            }
            assert_eq!(recorded.function("late_work"), None);
        })
        .test("while_threads_start_and_stop", &[CC], || {
            // A missed thread would miss its successors: one of eight chains. A new thread's timers begin a new period
            // on each CPU, and its end cuts them short.
            let (recorded, used) = threads("churn", &CPU_CLOCK);
            let samples = recorded.samples("work_after_go").inherited;
            let expected = used["after_go"].1 as f64 / 1e9 * recorded.rate_hz();
            let bound = 64.0 * 2.0 + expected * ALLOWANCE;
            assert!(bound < expected / 8.0, "the bound must be less than what a chain does");
            // A thread found in /proc that also inherited its parent's events must not be sampled twice.
            assert!((samples as f64 - expected).abs() <= bound, "{samples} of {expected:.0} +- {bound:.0} samples");
            let accounting = recorded.profile.accounting();
            let (all, counted) = (accounting.received as f64, accounting.expected.unwrap() as f64);
            assert!(counted > all * 0.97, "{accounting:?}");
            assert_eq!(recorded.processes().len(), 1);
        })
        .test("by_name", &[CC], || {
            let dir = scratch();
            // The kernel keeps 15 bytes of a name; the file has the whole name.
            let name = "called-like-nothing-else-here";
            let program = dir.path().join(name);
            copy_program(build("forever.c", &["-O1"]), &program);
            let attach = |name: &str| EndedProgram::of(&mut ccsd(["attach", "--no-output", "--duration", "0.3", name]));
            attach(name).assert_refused(2, &["no process is called", name]);
            let dump = |name: &str| EndedProgram::of(&mut ccsd(["dump", name]));
            dump(name).assert_refused(2, &["no process is called", name]);
            let first = Running::start(&program, &["first", "a b"]);
            let pid = first.pid().to_string();
            for name in [name, &name[..15]] {
                let ended = attach(name);
                assert!(ended.status.success() && ended.stderr.contains(&format!("({pid})")), "{ended:?}");
                let ended = dump(name);
                assert!(ended.status.success() && ended.stdout.contains(&pid), "{ended:?}");
            }
            attach(&name[..14]).assert_refused(2, &["no process is called"]);
            let second = Running::start(&program, &["second"]);
            for ended in [attach(name), dump(name)] {
                ended.assert_refused(2, &["several processes are called", name]);
                let listed = |pid: u32, words: &str| {
                    let pid = pid.to_string();
                    let line = ended.stderr.lines().find(|line| line.split_whitespace().next() == Some(pid.as_str()));
                    assert!(line.is_some_and(|line| line.ends_with(words)), "{}", ended.stderr);
                };
                listed(first.pid(), "first 'a b'");
                listed(second.pid(), "second");
            }
        })
        .test("names_of_other_users", &[CC, Need::Root], || {
            let dir = scratch();
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
            let name = "owned-by-others";
            let program = dir.path().join(name);
            copy_program(build("forever.c", &["-O1"]), &program);
            let roots = Running::start(&program, &[]);
            let attach = |user: u32| {
                let mut command = ccsd(["attach", "--user", "--no-output", "--duration", "0.3", name]);
                EndedProgram::of(as_user(&mut command, user))
            };
            let ended = attach(NOBODY);
            ended.assert_refused(2, &["no process that you may look at is called", name]);
            assert!(ended.stderr.contains(&roots.pid().to_string()) && ended.stderr.contains("root"), "{ended:?}");
            let own = Running::start_command(as_user(&mut Command::new(&program), NOBODY));
            let ended = attach(NOBODY);
            assert!(ended.status.success() && ended.stderr.contains(&format!("({})", own.pid())), "{ended:?}");
            assert!(ended.stderr.contains(&format!("PID {} of user root", roots.pid())), "{ended:?}");
        })
        .test("library_loaded_afterwards", &[CC], || {
            let plugin = build("plugin.c", &["-O1", "-shared", "-fPIC"]);
            let mut fixture = Running::start(&build("load.c", &FLAGS), &[&plugin.to_string_lossy()]);
            let collecting = Collecting::attach(&CPU_CLOCK, &[fixture.pid()]);
            fixture.go();
            let _ = fixture.finish();
            let recorded = collecting.wait();
            recorded.assert_whole().assert_complete();
            let plugin = plugin.file_name().unwrap().to_string_lossy();
            let flat = recorded.sampled();
            let row = flat.row(recorded.function("plugin_loop").unwrap()).unwrap();
            assert_eq!(row.image, plugin);
            recorded.assert_only_caller("plugin_work", "plugin_loop");
            recorded.assert_only_caller("main", "plugin_work");
            assert!(row.self_share.fraction > 0.8, "{row:?}");
            assert_eq!(flat.rows.iter().filter(|row| row.image == plugin && row.name.contains("+0x")).count(), 0);
        })
        .test("descendants", &[CC], || {
            let recorded = family(&CPU_CLOCK);
            recorded.assert_complete();
            assert_eq!(recorded.processes().len(), 4, "{:#?}", recorded.processes());
            let works = [("parent_work", 1), ("old_child_work", 1), ("grandchild_work", 1), ("new_child_work", 1)];
            recorded.assert_proportions(&works, UNEQUAL);
        })
        .test("no_descendants", &[CC], || {
            let recorded = family(&["-F", "1999", "--no-inherit"]);
            assert_eq!(recorded.processes().len(), 1);
            assert!(recorded.samples("parent_work").inherited > 100);
            for name in ["old_child_work", "grandchild_work", "new_child_work"] {
                assert_eq!(recorded.function(name), None, "{name}");
            }
        })
        .test("several_processes", &[CC], || {
            let program = build("processes.c", &FLAGS);
            let mut fixtures = [Running::start(&program, &["family"]), Running::start(&program, &["family"])];
            let collecting = Collecting::attach(&CPU_CLOCK, &[fixtures[0].pid(), fixtures[1].pid()]);
            fixtures.iter_mut().for_each(Running::go);
            let _ = fixtures.each_mut().map(Running::finish);
            let recorded = collecting.wait();
            recorded.assert_whole();
            let processes = recorded.processes();
            assert_eq!(processes.len(), 8);
            let mut halves = fixtures.iter().map(|fixture| {
                let parent = processes.iter().find(|process| process.pid == fixture.pid()).unwrap();
                parent.samples
            });
            let (first, second) = (halves.next().unwrap(), halves.next().unwrap());
            assert_share("the first", first, first + second, 0.5, UNEQUAL);
        })
        .run()
}

/// Attaches to the threads fixture. Returns the recording, and the id and CPU time of its threads by name.
fn threads(mode: &str, options: &[&str]) -> (Recorded, HashMap<String, (u32, u64)>) {
    let mut fixture = Running::start(&build("threads.c", &FLAGS), &[mode]);
    let collecting = Collecting::attach(options, &[fixture.pid()]);
    fixture.go();
    // The fixture closes its output and waits, so that its work is done before it ends.
    let text = fixture.rest_of_output();
    fixture.go();
    assert!(fixture.finish().is_empty());
    let recorded = collecting.wait();
    recorded.assert_whole();
    let used = text.lines().map(|line| {
        let mut words = line.split(' ');
        let mut word = || words.next().unwrap();
        (word().to_owned(), (word().parse().unwrap(), word().parse().unwrap()))
    });
    (recorded, used.collect())
}

fn family(options: &[&str]) -> Recorded {
    let mut fixture = Running::start(&build("processes.c", &FLAGS), &["family"]);
    let collecting = Collecting::attach(options, &[fixture.pid()]);
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    recorded.assert_whole();
    recorded
}
