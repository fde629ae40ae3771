//! Many, short-lived and changing processes and threads.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_profile::view::ProcessRow;
use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, RecordCommand, as_user, binary};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::{assert_samples, assert_share};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE, cpus};

const PRLIMIT: Need = Need::Program("prlimit", "util-linux");
const TASKSET: Need = Need::Program("taskset", "util-linux");
const PYTHON: Need = Need::Program("python3", "python3");
/// Allowance for equal concurrent work on a busy machine.
const UNEQUAL: f64 = 0.25;
/// Share of samples that a CPU's timer may miss, and difference between the kernel's counts and samples.
const ALLOWANCE: f64 = 0.05;
const CROWD: u64 = 1_000;

fn main() -> ExitCode {
    Suite::new()
        .test("storm_of_children", &[CC], || {
            // Two thousand processes shorter than a sampling period: nothing is lost, and unsampled time is reported.
            let recorded = RecordCommand::new(motion(), &["storm", "2000", "300"]).run();
            assert_next_to_nothing_is_lost(recorded.assert_whole());
            assert_adds_up(&recorded);
            assert!(note(&recorded, "--per-cpu").is_some(), "{:?}", recorded.profile.session().notes);
        })
        .test("storm_of_children_per_cpu", &[CC, Need::Root], || {
            let recorded = RecordCommand::new(motion(), &["storm", "2000", "300"]).options(&["--per-cpu"]).run();
            assert_next_to_nothing_is_lost(recorded.assert_whole().assert_complete());
            assert_expected(&recorded);
            // At least 600 ms, beside the cost of forking.
            let work = (recorded.samples("child_work").inherited + recorded.profile.accounting().lost) as f64;
            assert!(work >= 600.0 - 5.0 * 600f64.sqrt() - 600.0 * ALLOWANCE, "{work} samples of child_work");
            assert!(note(&recorded, "samples of other programs were taken").is_some());
        })
        .test("two_hundred_busy_threads", &[CC, Need::Root], || {
            let recorded = RecordCommand::new(motion(), &["busy", "200", "8000"]).run();
            assert_next_to_nothing_is_lost(recorded.assert_whole().assert_complete());
            let accounting = recorded.profile.accounting();
            assert_eq!(accounting.throttled, 0, "{accounting:?}");
            assert_adds_up(&recorded);
            assert!(note(&recorded, "wait for the CPU").is_none());
        })
        .test("two_hundred_busy_threads_of_a_user", &[CC, Need::Root], || {
            // This user has small rings and no priority: losses are counted, and the reason is reported.
            let recorded = RecordCommand::new(motion(), &["busy", "200", "8000"]).user(NOBODY).run();
            let accounting = recorded.assert_whole().assert_complete().profile.accounting();
            assert_adds_up(&recorded);
            assert_eq!(accounting.lost > 0, note(&recorded, "wait for the CPU").is_some(), "{accounting:?}");
        })
        .test("a_thousand_threads", &[CC, Need::Root, PRLIMIT], || {
            let recorded = crowd(None, 10_000 * cpus(), |files| assert!(files >= 2 * CROWD, "{files} files"));
            assert_adds_up(&recorded);
            assert_eq!(layout_note(&recorded), None);
        })
        .test("more_threads_than_files", &[CC, Need::Root, PRLIMIT], || {
            let recorded =
                crowd(None, 1_400 + 50 * cpus(), |files| assert!(files < 1_100 + 50 * cpus(), "{files} files"));
            assert!(layout_note(&recorded).unwrap().starts_with("sampled per CPU"));
            // The work of a thousand threads while events are being opened is counted, and partly sampled.
            let accounting = recorded.profile.accounting();
            // The target's samples among those lost in all CPUs' rings are an estimate between none and all.
            let counted = accounting.target_cpu_ns.unwrap();
            let expected = (counted as f64 / 1e9 * recorded.rate_hz()) as u64;
            let known = expected.clamp(accounting.received, accounting.received + accounting.lost);
            assert_samples("all", known, counted, recorded.rate_hz(), 0, 5.0 * ALLOWANCE);
        })
        .test("more_threads_than_files_to_count_them", &[CC, Need::Root, PRLIMIT], || {
            let recorded = crowd(None, 400 + 50 * cpus(), |files| assert!(files <= 250 + 50 * cpus(), "{files} files"));
            assert!(layout_note(&recorded).unwrap().starts_with("sampled per CPU"));
            assert_eq!(recorded.profile.accounting().expected, None);
            assert!(note(&recorded, "the number of expected samples is unknown").is_some());
        })
        .test("more_threads_than_files_of_a_user", &[CC, Need::Root, PRLIMIT], || {
            let files = 400 + (CROWD + 10) * cpus();
            let recorded = crowd(Some(NOBODY), files, |open| assert!(open < files, "{open} files"));
            assert!(layout_note(&recorded).unwrap().starts_with("one event per thread and CPU"));
            assert_adds_up(&recorded);
        })
        .test("more_threads_than_files_of_a_user_on_one_cpu", &[CC, Need::Root, PRLIMIT, TASKSET], || {
            // ccsd is late at rings with samples and thread records: many of both are lost, and counted apart.
            let files = 400 + (CROWD + 10) * cpus();
            let recorded = crowd_on(Some(&first_cpu()), Some(NOBODY), files, |_| ());
            assert!(layout_note(&recorded).unwrap().starts_with("one event per thread and CPU"));
            assert_adds_up(&recorded);
        })
        .test("too_many_threads_of_a_user", &[CC, Need::Root, PRLIMIT], || {
            let mut command = Command::new(motion());
            let mut fixture = Running::start_command(as_user(&mut command, NOBODY).args(["crowd", "1000", "100"]));
            let dir = scratch();
            let mut command = Command::new("prlimit");
            command.arg("--nofile=600:600").arg(binary()).args(["attach", "-o"]).arg(dir.path().join("profile.ccsd"));
            command.arg(fixture.pid().to_string());
            let ended = EndedProgram::of(as_user(&mut command, NOBODY));
            ended.assert_refused(1, &["more threads", "600 files", "ulimit -Hn", "CAP_PERFMON"]);
            fixture.go();
            let _ = fixture.finish();
        })
        .test("exec_chain", &[CC, PYTHON], || {
            let script = "import time\nwhile time.process_time() < 0.5: pass";
            let recorded = RecordCommand::new("sh", &["-c", "exec env /usr/bin/python3 -c \"$0\"", script]).run();
            recorded.assert_whole();
            let (pid, processes) = one_pid(&recorded);
            let python = processes.iter().max_by_key(|process| process.samples).unwrap();
            // sh was the first program, env the second.
            assert_eq!((python.exec_generation, python.name.starts_with("python3")), (3, true), "{processes:#?}");
            assert!(python.samples * 10 >= recorded.total() * 8, "{pid}: {processes:#?}");
            assert!(processes.iter().all(|process| process.exec_generation <= 3));
        })
        .test("execs_itself", &[CC], || execs_itself(&[]))
        .test("execs_itself_per_cpu", &[CC, Need::Root], || execs_itself(&["--per-cpu"]))
        .test("pid_is_used_again", &[CC, Need::Root, UNSHARE], || pid_is_used_again(&[]))
        .test("pid_is_used_again_per_cpu", &[CC, Need::Root, UNSHARE], || pid_is_used_again(&["--per-cpu"]))
        .test("in_a_pid_namespace", &[CC, Need::Root, UNSHARE], || {
            let mut unshare = Command::new("unshare");
            unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(motion());
            let mut fixture = Running::start_command(unshare.args(["hold", "0", "400000"]));
            let outer = fixture.pid();
            let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children")).unwrap();
            let pid: u32 = children.trim().parse().unwrap();
            let collecting = Collecting::attach(&[], &[pid]);
            fixture.go();
            let _ = fixture.finish();
            let recorded = collecting.wait();
            recorded.assert_whole().assert_complete();
            assert_eq!(one_pid(&recorded).0, pid);
            recorded.assert_only_caller("main", "held_work");
            assert!(recorded.samples("held_work").inherited * 10 >= recorded.total() * 9, "{:?}", recorded.names());
        })
        .run()
}

fn motion() -> PathBuf {
    build("motion.c", &["-O1", "-pthread"])
}

fn note<'a>(recorded: &'a Recorded, part: &str) -> Option<&'a str> {
    recorded.profile.session().notes.iter().find(|note| note.contains(part)).map(String::as_str)
}

fn layout_note(recorded: &Recorded) -> Option<&str> {
    note(recorded, "files, and")
}

/// At most one in fifty samples is lost: none on a quiet machine.
fn assert_next_to_nothing_is_lost(recorded: &Recorded) {
    let accounting = recorded.profile.accounting();
    assert_eq!(accounting.dropped_by_us, 0, "{accounting:?}");
    assert!(accounting.lost * 50 <= accounting.received, "{accounting:?}");
}

/// I1: expected samples are received or missing for a counted reason. Followed threads never exceed their time's
/// periods.
fn assert_adds_up(recorded: &Recorded) {
    let accounting = recorded.profile.accounting();
    let known = accounting.received + accounting.lost + accounting.throttled + accounting.dropped_by_us;
    let expected = accounting.expected.unwrap();
    let about = if recorded.profile.session().event.ends_with(":u") { expected / 10 } else { expected / 100 + 2 };
    assert!(known <= expected + about, "{accounting:?}");
    assert_eq!(known + accounting.undelivered(), expected.max(known), "{accounting:?}");
}

fn assert_expected(recorded: &Recorded) {
    let accounting = recorded.profile.accounting();
    let known = accounting.received + accounting.lost;
    assert_samples("all", known, accounting.target_cpu_ns.unwrap(), recorded.rate_hz(), 0, ALLOWANCE);
}

/// Attaches to a thousand threads, each of which starts another, and to their child, with `limit` open files.
fn crowd(user: Option<u32>, limit: u64, files: impl FnOnce(u64)) -> Recorded {
    crowd_on(None, user, limit, files)
}

fn crowd_on(cpu: Option<&str>, user: Option<u32>, limit: u64, files: impl FnOnce(u64)) -> Recorded {
    let on_cpu = |program: &Path| match cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cpu]).arg(program);
            command
        }
        None => Command::new(program),
    };
    let mut command = on_cpu(&motion());
    if let Some(user) = user {
        as_user(&mut command, user);
    }
    let mut fixture = Running::start_command(command.args(["crowd", &CROWD.to_string(), "300"]));
    let mut collecting = Collecting::start(|file| {
        let mut command = on_cpu(Path::new("prlimit"));
        command
            .arg(format!("--nofile={limit}:{limit}"))
            .arg(binary())
            .args(["attach", "--no-adapt", "-F", "1999", "-o"])
            .arg(file);
        if let Some(user) = user {
            as_user(&mut command, user);
        }
        command.arg(fixture.pid().to_string());
        command
    });
    collecting.wait_for_writes(1);
    files(fs::read_dir(format!("/proc/{}/fd", collecting.child.id())).unwrap().count() as u64);
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole();
    // A thread's stack disappears with the thread, before its last samples are unwound: some stacks are truncated.
    let accounting = recorded.profile.accounting();
    assert!(accounting.truncated_total() * 20 <= accounting.received, "{accounting:?}");
    let processes = recorded.processes();
    assert_eq!(processes.len(), 2, "{processes:#?}");
    // A thread's own timer does not sample its 300 us, unless the kernel moves the rest of a period to it.
    let child = recorded.samples("child_work").inherited as f64;
    let lost = recorded.profile.accounting().lost as f64;
    let expected = CROWD as f64 * 300e-6 * recorded.rate_hz();
    assert!(child + lost >= expected * 0.9 - 5.0 * expected.sqrt(), "{child} samples and {lost} lost of {expected:.0}");
    recorded
}

fn first_cpu() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    list.trim().chars().take_while(char::is_ascii_digit).collect()
}

fn one_pid(recorded: &Recorded) -> (u32, Vec<ProcessRow>) {
    let processes = recorded.processes();
    let pid = processes.first().unwrap().pid;
    assert!(processes.iter().all(|process| process.pid == pid), "{processes:#?}");
    (pid, processes)
}

fn execs_itself(options: &[&str]) {
    let recorded = RecordCommand::new(motion(), &["reexec", "5", "100000"]).options(options).run();
    recorded.assert_whole().assert_complete();
    let (_, mut processes) = one_pid(&recorded);
    processes.sort_by_key(|process| process.exec_generation);
    let generations: Vec<u32> = processes.iter().map(|process| process.exec_generation).collect();
    assert_eq!(generations, [1, 2, 3, 4, 5, 6], "{processes:#?}");
    for process in &processes {
        assert_share(process.exec_generation, process.samples, recorded.total(), 1.0 / 6.0, UNEQUAL);
    }
    assert!(processes.windows(2).all(|pair| pair[0].start_time == pair[1].start_time), "{processes:#?}");
}

fn pid_is_used_again(options: &[&str]) {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(binary());
    command.args(["record", "--no-adapt", "-o"]).arg(&file);
    let ended = EndedProgram::of(command.args(options).arg("--").arg(motion()).args(["reuse", "0", "200000"]));
    assert!(ended.status.success(), "{ended:?}");
    let recorded = Recorded::open(dir, &file, ended);
    recorded.assert_whole().assert_complete();
    let mut same: Vec<ProcessRow> = recorded.processes().into_iter().filter(|process| process.pid == 300).collect();
    same.sort_by_key(|process| process.start_time);
    assert_eq!(same.len(), 2, "{:#?}", recorded.processes());
    assert!(same[0].start_time < same[1].start_time, "{same:#?}");
    recorded.assert_proportions(&[("first_work", 1), ("second_work", 1)], UNEQUAL);
    // Each process has its own work only: forking and ending take a millisecond.
    for (process, work) in same.iter().zip(["first_work", "second_work"]) {
        let work = recorded.samples(work).inherited;
        assert!(process.samples.abs_diff(work) * 10 <= work, "{work}: {process:#?}");
    }
}
