//! The whole machine, and parts of it by unit, control group, container and user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::{Command, ExitCode};

use ccsd_profile::Profile;
use ccsd_profile::query::Grouping;
use ccsd_profile::view::{FlatView, Selection, ThreadsView};
use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::cgroup::CgroupTree;
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};

/// A rate that a busy machine keeps up with.
const RATE: [&str; 2] = ["-F", "499"];
/// As docker and others make them.
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn main() -> ExitCode {
    Suite::new()
        .test("everything_that_runs", &[CC, Need::Root], everything)
        .test("short_processes_are_seen", &[CC, Need::Root], short_processes)
        .test("forks_of_what_ran_before", &[CC, Need::Root], forks)
        .test("excluded_names", &[CC, Need::Root], excluded)
        .test("until_a_program_ends", &[Need::Root], until_a_program_ends)
        .test("messages_for_a_user", &[Need::Root], refused)
        .test("through_the_daemon", &[CC, Need::Root], through_the_daemon)
        .test("top_without_a_target", &[CC, Need::Root], top)
        .test("a_unit_and_who_joins_and_leaves", &[CC, Need::Root, Need::Cgroup2], unit)
        .test("a_group_a_container_a_user", &[CC, Need::Root, Need::Cgroup2], groups)
        .test("sums_are_the_kernel_s", &[CC, Need::Root, Need::Cgroup2], sums)
        .test("changes_of_groups", &[CC, Need::Root, Need::Cgroup2], changes_of_groups)
        .test("a_group_is_sampled_by_the_kernel", &[CC, Need::Root, Need::Cgroup2], by_kernel)
        .test("a_group_that_is_empty_at_times", &[CC, Need::Root, Need::Cgroup2], empty_at_times)
        .test("a_group_that_is_made_again", &[CC, Need::Root, Need::Cgroup2], made_again)
        .test("nothing_fits_yet", &[Need::Root], nothing_fits)
        .test("a_group_that_does_not_exist", &[Need::Root, Need::Cgroup2], no_such_group)
        .run()
}

fn forever() -> std::path::PathBuf {
    build("forever.c", &["-O1"])
}

fn samples_of(profile: &Profile, pid: u32) -> u64 {
    let rows = ThreadsView::new(profile, &Selection::all()).processes;
    rows.iter().filter(|process| process.pid == pid).map(|process| process.samples).sum()
}

fn collect(options: &[&str]) -> Collecting {
    let mut collecting = Collecting::start(|file| {
        let mut command = ccsd(["record", "--no-adapt", "-o"]);
        command.arg(file).args(RATE).args(options);
        command
    });
    collecting.wait_for_writes(1);
    collecting
}

fn record(options: &[&str], program: &[&str]) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let mut command = ccsd(["record", "--no-adapt", "-o"]);
    let ended = EndedProgram::of(command.arg(&file).args(RATE).args(options).arg("--").args(program));
    Recorded::open(dir, &file, ended)
}

/// Samples with the program's own loop on the stack. (Other tests may run a program of the same source.)
fn in_forever(recorded: &Recorded, program: &Path) -> u64 {
    let image = program.file_name().unwrap().to_str().unwrap();
    let flat = recorded.flat();
    flat.rows.iter().filter(|row| row.name == "forever" && row.image == image).map(|row| row.samples_inherited).sum()
}

fn everything() {
    let program = forever();
    let before = Running::start(&program, &[]);
    let mut collecting = collect(&["-a"]);
    let after = Running::start(&program, &[]);
    let (before_pid, after_pid) = (before.pid(), after.pid());
    collecting.wait_until(|profile| samples_of(profile, before_pid) > 50 && samples_of(profile, after_pid) > 50);
    let recorded = collecting.stop();
    recorded.assert_whole();
    assert_eq!(recorded.profile.session().pids, [0u32; 0]);
    assert!(recorded.profile.session().target.contains("the whole machine"), "{:?}", recorded.profile.session());
    let processes = recorded.processes();
    for pid in [before_pid, after_pid] {
        let process = processes.iter().find(|process| process.pid == pid).unwrap();
        assert!(process.name.starts_with("forever"), "{process:?}");
    }
    // Every process has a name, and what is idle has no samples.
    assert!(processes.iter().all(|process| !process.name.is_empty()), "{processes:#?}");
    assert!(processes.iter().all(|process| !process.name.starts_with("swapper")), "{processes:#?}");
    let stacks = in_forever(&recorded, &program);
    assert!(stacks * 10 > (samples_of(&recorded.profile, before_pid) + samples_of(&recorded.profile, after_pid)) * 9);
    let idle = recorded.profile.session().notes.iter().find(|note| note.starts_with("this machine: ")).unwrap();
    assert!(idle.contains("CPU") && idle.contains("idle"), "{idle}");
}

fn short_processes() {
    let program = forever();
    let script = format!("i=0; while [ $i -lt 60 ]; do {} 10; i=$((i+1)); done", program.display());
    let recorded = record(&["-a"], &["sh", "-c", &script]);
    recorded.assert_whole();
    let named = recorded.processes().into_iter().filter(|process| process.name.starts_with("forever"));
    let (mut processes, mut samples) = (0u64, 0u64);
    for process in named {
        processes += 1;
        samples += process.samples;
    }
    let accounting = recorded.profile.accounting();
    let part = accounting.received as f64 / (accounting.received + accounting.lost).max(1) as f64;
    assert!(samples as f64 > 240.0 * part && processes > 40, "{samples} samples of {processes}: {accounting:?}");
    assert!(in_forever(&recorded, &program) as f64 > 200.0 * part, "{:?}", recorded.names());
}

fn forks() {
    let mut fixture = Running::start(&build("processes.c", &["-O1", "-pthread", "-ldl"]), &["family"]);
    let collecting = collect(&["-a"]);
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.stop();
    recorded.assert_whole();
    for name in ["parent_work", "old_child_work", "grandchild_work", "new_child_work"] {
        assert!(recorded.samples(name).inherited > 20, "{name}: {:?}", recorded.names());
    }
}

fn excluded() {
    let dir = scratch();
    let (kept, left_out) = (dir.path().join("is-kept"), dir.path().join("is-left-out"));
    [&kept, &left_out].iter().for_each(|path| copy_program(forever(), path));
    let (kept, left_out) = (Running::start(&kept, &[]), Running::start(&left_out, &[]));
    let mut collecting = collect(&["-a", "--exclude", "is-left*"]);
    let pid = kept.pid();
    collecting.wait_until(|profile| samples_of(profile, pid) > 100);
    let recorded = collecting.stop();
    recorded.assert_whole();
    assert_eq!(samples_of(&recorded.profile, left_out.pid()), 0);
    assert!(recorded.profile.session().target.contains("without is-left*"));
}

fn until_a_program_ends() {
    let recorded = record(&["-a"], &["sh", "-c", "exit 7"]);
    assert_eq!(recorded.ended.status.code(), Some(7), "{:?}", recorded.ended);
    assert!(recorded.finished);
}

fn refused() {
    let mut command = ccsd(["record", "-a", "--no-output", "--duration", "1"]);
    let ended = EndedProgram::of(as_user(&mut command, NOBODY));
    ended.assert_refused(2, &["all that runs on this machine", "perf_event_paranoid=0", "root"]);
    let refused = |args: &[&str], part: &str| EndedProgram::of(&mut ccsd(args)).assert_refused(2, &[part]);
    refused(&["record", "-a", "--no-inherit", "--no-output"], "--no-inherit");
    refused(&["record", "-a", "--unit", "x", "--no-output"], "--all samples everything");
    refused(&["attach", "--uid", "nobody-of-this-name", "--no-output"], "there is no user");
    refused(&["attach", "-a", "1"], "cannot be used with");
    refused(&["record", "--exclude", "x", "--no-output", "true"], "required");
}

fn through_the_daemon() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let fixture = Running::start(&forever(), &[]);
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let mut command = daemon.ccsd(["attach", "--daemon", "-a", "--duration", "2", "-o"]);
    let ended = EndedProgram::of(command.arg(&file));
    assert!(ended.status.success(), "{ended:?}");
    let recorded = Recorded::open(dir, &file, ended);
    assert!(samples_of(&recorded.profile, fixture.pid()) > 20);
    let mut command = daemon.ccsd(["attach", "--daemon", "-a", "--duration", "1", "--no-output"]);
    let ended = EndedProgram::of(as_user(&mut command, NOBODY));
    ended.assert_refused(2, &["root and members of group ccsd"]);
    daemon.stop();
}

fn top() {
    let fixture = Running::start(&forever(), &[]);
    let ended = EndedProgram::of(&mut ccsd(["top", "--json", "--duration", "4"]));
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stdout.contains("\"forever\""), "{ended:?}");
    drop(fixture);
}

fn unit() {
    let tree = CgroupTree::new();
    let program = forever();
    let fixtures = [(); 3].map(|()| Running::start(&program, &[]));
    let [inside, joins, outside] = fixtures.each_ref().map(Running::pid);
    tree.join("a.service/worker", inside);
    tree.join("b.service", joins);
    let mut collecting = collect(&["--unit", "a"]);
    collecting.wait_until(|profile| samples_of(profile, inside) > 50 && samples_of(profile, joins) == 0);
    tree.join("a.service", joins);
    collecting.wait_until(|profile| samples_of(profile, joins) > 50);
    tree.join("b.service", joins);
    // What it did until it is looked at again is kept: wait until that is over.
    let last = std::cell::Cell::new((0, 0));
    collecting.wait_until(|profile| {
        let (now, of_inside) = (samples_of(profile, joins), samples_of(profile, inside));
        let (before, since) = last.get();
        if now != before {
            last.set((now, of_inside));
        }
        now == before && of_inside > since + 300
    });
    let recorded = collecting.stop();
    recorded.assert_whole();
    assert_eq!(samples_of(&recorded.profile, outside), 0);
    assert!(recorded.profile.session().target.contains("unit a.service"), "{:?}", recorded.profile.session());
    assert_eq!(recorded.processes().len(), 2, "{:#?}", recorded.processes());
    drop(fixtures);
}

fn groups() {
    let tree = CgroupTree::new();
    let program = forever();
    let fixtures = [(); 3].map(|()| Running::start(&program, &[]));
    let nobodys = Running::start_command(as_user(&mut Command::new(&program), NOBODY));
    let [grouped, contained, _other] = fixtures.each_ref().map(Running::pid);
    tree.join("group/below", grouped);
    tree.join(&format!("docker-{ID}.scope"), contained);
    let path = format!("{}/group", tree.path);
    for (options, pid) in [
        (["--cgroup", path.as_str()], grouped),
        (["--container", &ID[..12]], contained),
        (["--uid", "nobody"], nobodys.pid()),
    ] {
        let mut collecting = collect(&options);
        collecting.wait_until(|profile| samples_of(profile, pid) > 50);
        let recorded = collecting.stop();
        recorded.assert_whole();
        let pids: Vec<u32> = recorded.processes().iter().map(|process| process.pid).collect();
        assert_eq!(pids, [pid], "{options:?}: {:#?}", recorded.processes());
    }
}

/// What a profile has by units, processes or others: name, samples and weight of each.
fn rows_by(recorded: &Recorded, by: Grouping) -> Vec<(String, u64, u64)> {
    let by = recorded.profile.by(by);
    let rows = FlatView::new(&by, &Selection::all()).rows;
    rows.into_iter().map(|row| (row.name, row.samples_self, row.self_weight)).collect()
}

fn weight_of(rows: &[(String, u64, u64)], name: &str) -> u64 {
    rows.iter().filter(|row| row.0 == name).map(|row| row.2).sum()
}

fn shell_in(tree: &CgroupTree, group: &str, script: &str) -> std::process::Child {
    let procs = tree.group(group).join("cgroup.procs");
    shell(&format!("echo $$ > {}; {script}", procs.display()))
}

fn shell(script: &str) -> std::process::Child {
    Command::new("sh").args(["-c", script]).stdin(std::process::Stdio::null()).spawn().unwrap()
}

/// What units and containers have used by the samples, and by the kernel's own accounts.
fn sums() {
    // Units of names that no other test has: they run at the same time, and units are told apart by name.
    let tree = CgroupTree::new();
    let id = "f".repeat(64);
    let program = forever();
    let container = format!("docker-{id}.scope");
    let fixtures = [(); 4].map(|()| Running::start(&program, &[]));
    for (fixture, group) in fixtures.iter().zip(["sum-a.service", "sum-a.service/worker", "sum-b.service", &container])
    {
        tree.join(group, fixture.pid());
    }
    // Processes of 10 ms, one after the other, and of less, several at once.
    let short = program.display();
    let mut shells = [
        shell_in(&tree, "sum-c.service", &format!("while :; do {short} 10; done")),
        shell_in(&tree, "sum-d.service", "while :; do (:) & (:) & (:) & wait; done"),
    ];
    let groups = ["sum-a.service", "sum-b.service", "sum-c.service", "sum-d.service", &container];
    while groups.iter().any(|group| tree.cpu_ns(group) == 0) {}
    tree.freeze(true);
    let before = groups.map(|group| tree.cpu_ns(group));
    let mut collecting = collect(&["-a"]);
    tree.freeze(false);
    std::thread::sleep(std::time::Duration::from_secs(3));
    tree.freeze(true);
    let after = groups.map(|group| tree.cpu_ns(group));
    collecting.wait_for_writes(1);
    let recorded = collecting.stop();
    shells.iter_mut().for_each(|shell| {
        let _ = shell.kill();
    });
    tree.freeze(false);
    shells.iter_mut().for_each(|shell| _ = shell.wait());
    let of_a = [0, 1].map(|i: usize| fixtures[i].pid());
    drop(fixtures);
    recorded.assert_whole();
    let [units, containers, processes, users] =
        [Grouping::Unit, Grouping::Container, Grouping::Process, Grouping::User].map(|by| rows_by(&recorded, by));
    // Every weight is in one unit, one process, one user, one container.
    let sum = |rows: &[(String, u64, u64)]| rows.iter().map(|row| row.2).sum::<u64>();
    assert!([&containers, &processes, &users].iter().all(|rows| sum(rows) == sum(&units)));
    let accounting = recorded.profile.accounting();
    let expected = accounting.expected.unwrap() as f64;
    let missing = accounting.missing() as f64 / expected;
    let period = 1e9 / f64::from(recorded.profile.session().rate_hz);
    let unknown = weight_of(&units, "[unknown]");
    for ((group, before), after) in groups.iter().zip(before).zip(after) {
        let used = (after - before) as f64;
        let sampled = weight_of(&units, group) as f64;
        // Chance, four times its standard deviation; what did not come; and half a period for each CPU.
        let most = 4.0 * (used * period).sqrt() + used * (missing + 0.02) + 2.0 * period;
        // What is not known may be anybody's: of processes that had ended, and whose records were lost.
        let is_right = sampled - used < most && used - sampled < most + unknown as f64;
        assert!(is_right, "{group}: {sampled} of {used}, {most}: {units:#?} {accounting:?}");
    }
    let of_container = weight_of(&containers, &format!("docker {}", &id[..12]));
    assert_eq!(of_container, weight_of(&units, &container));
    let of_a: u64 = of_a.iter().map(|&pid| processes_weight(&processes, pid)).sum();
    assert_eq!(of_a, weight_of(&units, "sum-a.service"));
    // The kernel's own work has no unit, and stands apart.
    let share = unknown as f64 / sum(&units) as f64;
    assert!(share <= 0.02 + missing, "{units:#?} {accounting:?}");
}

fn processes_weight(rows: &[(String, u64, u64)], pid: u32) -> u64 {
    rows.iter().filter(|row| row.0.ends_with(&format!("({pid})"))).map(|row| row.2).sum()
}

/// A process that moves, a unit that starts after everything else, one that is removed while it is recorded, and a thread
/// in another group than its process.
fn changes_of_groups() {
    let tree = CgroupTree::new();
    let program = forever();
    let mover = Running::start(&program, &[]);
    tree.join("a.service", mover.pid());
    // Not the whole machine, of which all programs would be read.
    let mut collecting = collect(&["--cgroup", &tree.path]);
    let in_unit = |profile: &Profile, unit: &str| {
        let by_unit = profile.by(Grouping::Unit);
        let rows = FlatView::new(&by_unit, &Selection::all()).rows;
        rows.iter().filter(|row| row.name == unit).map(|row| row.samples_self).sum::<u64>()
    };
    collecting.wait_until(|profile| in_unit(profile, "a.service") > 50);
    tree.join("b.service", mover.pid());
    std::fs::remove_dir(tree.group("a.service")).unwrap();
    collecting.wait_until(|profile| in_unit(profile, "b.service") > 50);
    let late = Running::start(&program, &[]);
    tree.join("late.service", late.pid());
    collecting.wait_until(|profile| in_unit(profile, "late.service") > 50);
    let recorded = collecting.stop();
    recorded.assert_whole();
    let all = rows_by(&recorded, Grouping::Process);
    assert!(processes_weight(&all, mover.pid()) > 0);
    let units = rows_by(&recorded, Grouping::Unit);
    let of_mover = weight_of(&units, "a.service") + weight_of(&units, "b.service");
    assert_eq!(of_mover, processes_weight(&all, mover.pid()), "{units:#?}");
    drop(late);
    let mut collecting = collect(&["--unit", "later.service"]);
    let late = Running::start(&program, &[]);
    tree.join("later.service", late.pid());
    let pid = late.pid();
    collecting.wait_until(|profile| samples_of(profile, pid) > 50);
    drop(late);
    // Its group goes, and comes again with another process.
    while std::fs::remove_dir(tree.group("later.service")).is_err() {}
    let again = Running::start(&program, &[]);
    tree.join("later.service", again.pid());
    let pid = again.pid();
    collecting.wait_until(|profile| samples_of(profile, pid) > 50);
    let recorded = collecting.stop();
    recorded.assert_whole();
    assert_eq!(recorded.processes().len(), 2, "{:#?}", recorded.processes());
}

/// Samples of other programs that were taken and dropped.
fn dropped(recorded: &Recorded) -> u64 {
    let notes = &recorded.profile.session().notes;
    let number = notes.iter().find_map(|note| note.strip_suffix(" samples of other programs were taken and dropped"));
    number.map_or(0, |number| number.parse().unwrap())
}

/// Of a small group on a busy machine only the group is sampled, and all of it, by the kernel's own account.
fn by_kernel() {
    let tree = CgroupTree::new();
    let program = forever();
    let fixtures = [(); 4].map(|()| Running::start(&program, &[]));
    let [first, second, ..] = fixtures.each_ref().map(Running::pid);
    tree.join("group/below", first);
    tree.join("group", second);
    tree.freeze(true);
    let before = tree.cpu_ns("group");
    let collecting = collect(&["--cgroup", &format!("{}/group", tree.path)]);
    tree.freeze(false);
    std::thread::sleep(std::time::Duration::from_secs(3));
    tree.freeze(true);
    let used = (tree.cpu_ns("group") - before) as f64;
    let recorded = collecting.stop();
    tree.freeze(false);
    recorded.assert_whole();
    let accounting = recorded.profile.accounting();
    let notes = &recorded.profile.session().notes;
    let note = notes.iter().find(|note| note.starts_with("only what ran in control groups was sampled: "));
    assert!(note.is_some_and(|note| note.ends_with(&format!("{}/group", tree.path))), "{notes:?}");
    // The other two would have given as many as the group.
    assert!(dropped(&recorded) * 10 < accounting.received, "{} of {accounting:?}", dropped(&recorded));
    let pids: Vec<u32> = recorded.processes().iter().map(|process| process.pid).collect();
    assert!(pids.len() == 2 && pids.contains(&first) && pids.contains(&second), "{:#?}", recorded.processes());
    let period = 1e9 / f64::from(recorded.profile.session().rate_hz);
    let missing = accounting.missing() as f64 / accounting.expected.unwrap() as f64;
    let sampled: u64 = recorded.flat().rows.iter().map(|row| row.self_weight).sum();
    let most = 4.0 * (used * period).sqrt() + used * (missing + 0.02) + 2.0 * period;
    assert!((sampled as f64 - used).abs() < most, "{sampled} of {used}, {most}: {accounting:?}");
    // What is expected is what the kernel has counted of the group, however busy the machine was.
    let counted = accounting.target_cpu_ns.unwrap() as f64;
    assert!((counted - used).abs() < used * 0.02 + 2e7, "{counted} of {used}: {accounting:?}");
    let expected = accounting.expected.unwrap() as f64 * period;
    assert!((expected - counted).abs() < counted * 0.02 + 2e7, "{expected} of {counted}: {accounting:?}");
}

/// Short processes in a group, one now and then, beside many that end before anybody could look at them.
fn empty_at_times() {
    let tree = CgroupTree::new();
    let group = tree.group("group");
    let inside = format!("sh -c 'echo $$ > {}/cgroup.procs; exec {} 20'", group.display(), forever().display());
    let others = ["while :; do /bin/true; done"; 4].map(shell);
    let starter = shell(&format!("while :; do {inside}; sleep 0.2; done"));
    while tree.cpu_ns("group") == 0 {}
    tree.freeze(true);
    let before = tree.cpu_ns("group");
    let mut collecting = collect(&["--cgroup", &format!("{}/group", tree.path)]);
    tree.freeze(false);
    std::thread::sleep(std::time::Duration::from_secs(6));
    tree.freeze(true);
    let used = (tree.cpu_ns("group") - before) as f64;
    collecting.wait_for_writes(1);
    let recorded = collecting.stop();
    for mut shell in others.into_iter().chain([starter]) {
        let _ = shell.kill();
        let _ = shell.wait();
    }
    tree.freeze(false);
    recorded.assert_whole();
    let accounting = recorded.profile.accounting();
    let period = 1e9 / f64::from(recorded.profile.session().rate_hz);
    // Which processes give the samples is chance; and the shell counts as what it was, until it executes the program.
    let most = 4.0 * (used * period).sqrt() + 0.1 * used + 2e7;
    let counted = accounting.target_cpu_ns.unwrap() as f64;
    assert!((counted - used).abs() < most, "{counted} of {used}, {most}: {accounting:?}");
    let expected = accounting.expected.unwrap() as f64 * period;
    assert!((expected - used).abs() < most, "{expected} of {used}, {most}: {accounting:?}");
    let received = accounting.received as f64 * period;
    assert!(expected - received < most, "{received} of {expected}, {most}: {accounting:?}");
}

/// A unit that is restarted has another group of the same path: what runs there is sampled from its beginning.
fn made_again() {
    let tree = CgroupTree::new();
    let program = forever();
    let first = Running::start(&program, &[]);
    tree.join("again.service", first.pid());
    let pid = first.pid();
    let mut collecting = collect(&["--unit", "again.service"]);
    collecting.wait_until(|profile| samples_of(profile, pid) > 100);
    drop(first);
    while std::fs::remove_dir(tree.group("again.service")).is_err() {}
    let mut shell = shell_in(&tree, "again.service", &format!("exec {} 1000", program.display()));
    let pid = shell.id();
    assert_eq!(shell.wait().unwrap().code(), Some(5));
    let used = tree.cpu_ns("again.service") as f64;
    collecting.wait_until(|profile| samples_of(profile, pid) > 0);
    let recorded = collecting.stop();
    recorded.assert_whole();
    let accounting = recorded.profile.accounting();
    let period = 1e9 / f64::from(recorded.profile.session().rate_hz);
    let part = accounting.received as f64 / (accounting.received + accounting.lost).max(1) as f64;
    let samples = samples_of(&recorded.profile, pid) as f64;
    assert!(samples > 0.85 * part * used / period, "{samples} of {used} ns: {accounting:?}");
}

fn nothing_fits() {
    let ended = EndedProgram::of(&mut ccsd(["attach", "--unit", "no-such-unit", "--duration", "0.3", "--no-output"]));
    assert!(ended.status.success() && ended.stderr.contains("no process of unit no-such-unit.service"), "{ended:?}");
}

fn no_such_group() {
    let attach = |path: &str, more: &[&str]| {
        EndedProgram::of(ccsd(["record", "--cgroup", path]).args(more).args([
            "--",
            "sh",
            "-c",
            "i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done",
        ]))
    };
    let ended = attach("/no/such-group", &["--no-output"]);
    let waits = "there is no control group /no/such-group now: ccsd waits for it";
    assert!(ended.status.success() && ended.stderr.contains(waits), "{ended:?}");
    // One that has no process, and the program is not in it, either.
    let tree = CgroupTree::new();
    let _ = tree.group("empty");
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let path = format!("{}/empty", tree.path);
    let ended = attach(&path, &["-o", file.to_str().unwrap()]);
    assert!(ended.status.success() && ended.stderr.contains("no process of cgroup "), "{ended:?}");
    assert!(!ended.stderr.contains("no control group"), "{ended:?}");
    let said = EndedProgram::of(ccsd(["report"]).arg(&file)).stdout;
    assert!(said.contains("no samples: nothing that belongs to cgroup ") && !said.contains("-F"), "{said}");
}
