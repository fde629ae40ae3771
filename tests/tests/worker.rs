//! The daemon reads images in a process without rights, and works without it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use ccsd_tests::ccsd::{EndedProgram, RecordCommand};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, Suite};
use ccsd_tests::wait::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn main() -> ExitCode {
    Suite::new()
        .test("it_has_no_rights", &[], it_has_no_rights)
        .test("names_are_those_without_it", &[CXX], names_are_the_same)
        .test("killed_in_a_session_it_is_replaced", &[CC], killed_in_a_session)
        .test("without_it_a_session_goes_on_nameless", &[CC], without_it)
        .test("unread_images_are_read_later", &[CC], read_later)
        .test("damaged_programs_are_profiled", &[CC], damaged_programs)
        .test("names_of_generated_code_come_through_it", &[CC], generated_code)
        .test("it_ends_with_the_daemon", &[], it_ends_with_the_daemon)
        .run()
}

fn status(pid: u32, field: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

fn record(daemon: &Daemon, program: &Path, args: &[&str]) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let mut command = daemon.ccsd(["record", "--daemon", "--no-adapt", "-o"]);
    let ended = EndedProgram::of(command.arg(&file).arg("--").arg(program).args(args));
    Recorded::open(dir, &file, ended)
}

fn kill_worker(daemon: &Daemon) -> u32 {
    let pid = daemon.worker().unwrap();
    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL).unwrap();
    until(|| daemon.worker() != Some(pid));
    pid
}

fn it_has_no_rights() {
    let daemon = Daemon::start(&[]);
    let worker = daemon.worker().unwrap();
    for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(u64::from_str_radix(&status(worker, set), 16).unwrap(), 0, "{set}");
    }
    assert_eq!((status(worker, "Seccomp").as_str(), status(worker, "NoNewPrivs").as_str()), ("2", "1"));
    // It ends before the daemon when memory runs out.
    let score = fs::read_to_string(format!("/proc/{worker}/oom_score_adj")).unwrap();
    assert_eq!(score, "500\n");
    if nix::unistd::geteuid().is_root() {
        for entry in fs::read_dir(format!("/proc/{worker}/fd")).unwrap() {
            let target = fs::read_link(entry.unwrap().path()).unwrap();
            let target = target.to_str().unwrap();
            assert!(target.starts_with("socket:") || target == "/dev/null", "{target}");
        }
    }
    daemon.stop();
}

fn declarations(recorded: &Recorded) -> BTreeMap<String, (String, Option<String>, u32)> {
    let profile = &recorded.profile;
    let rows = recorded.flat().rows.into_iter().filter(|row| row.image.contains("inlining"));
    rows.map(|row| {
        let centre = profile.cost_centre(row.function).unwrap();
        let linkage = centre.linkage_name.clone().unwrap_or_default();
        (row.name, (linkage, centre.file.clone(), centre.line))
    })
    .collect()
}

fn names_are_the_same() {
    let program = build("inlining.cpp", &["-O2", "-g"]);
    let daemon = Daemon::start(&[]);
    let through = record(&daemon, &program, &[]);
    assert!(through.ended.status.success(), "{:?}", through.ended);
    through.assert_whole().assert_complete();
    let without = RecordCommand::new(&program, &[]).run();
    let (here, there) = (declarations(&without), declarations(&through));
    // Functions with single samples vary by chance.
    let common: Vec<&String> = here.keys().filter(|name| there.contains_key(*name)).collect();
    assert!(common.len() >= 3 && here.values().any(|(linkage, ..)| linkage.starts_with("_Z")), "{here:?} {there:?}");
    for name in common {
        assert_eq!(here[name], there[name], "{name}");
    }
    assert!(there.values().filter(|(_, file, line)| file.is_some() && *line > 0).count() >= 3, "{there:?}");
    let heaviest = |recorded: &Recorded| recorded.flat().rows.first().unwrap().name.clone();
    assert!(here.contains_key(&heaviest(&through)) && there.contains_key(&heaviest(&without)));
    let unnamed = through.profile.accounting().unsymbolised;
    assert!(unnamed * 50 <= through.total(), "{unnamed}");
    daemon.stop();
}

fn killed_in_a_session() {
    let daemon = Daemon::start(&[]);
    let mut fixture = Running::start(&build("phases.c", &["-O1"]), &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    let before = kill_worker(&daemon);
    fixture.go();
    // A worker starts when something new needs it.
    collecting.wait_for_samples(20);
    assert!(daemon.worker().is_some_and(|pid| pid != before));
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole().assert_complete();
    for name in ["first", "second"] {
        assert!(recorded.samples(name).inherited > 10, "{name}: {:?}", recorded.names());
    }
    let unnamed = recorded.profile.accounting().unsymbolised;
    assert!(unnamed * 20 <= recorded.total(), "{unnamed}");
    daemon.stop();
}

/// Kills the worker until it has been started as often as is allowed in a minute. Each session needs it again.
fn use_up_starts(daemon: &Daemon) {
    while daemon.worker().is_some() {
        kill_worker(daemon);
        let ended = daemon.run(&["record", "--daemon", "--no-output", "-q", "--", "/bin/true"]);
        assert!(ended.status.success(), "{ended:?}");
    }
}

fn without_it() {
    let mut daemon = Daemon::start(&[]);
    let program = build("phases.c", &["-O1"]);
    let mut fixture = Running::start(&program, &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    use_up_starts(&daemon);
    fixture.go();
    let said = daemon.wait_until_it_says("was started 5 times");
    assert!(said.contains("no names"), "{said}");
    collecting.wait_for_samples(20);
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    // All samples are there, the later ones without names, with the reason.
    recorded.assert_whole();
    assert!(recorded.samples("first").own > 10, "{:?}", recorded.names());
    let accounting = recorded.profile.accounting();
    assert!(accounting.unsymbolised > 10, "{accounting:?}");
    let notes = &recorded.profile.session().notes;
    assert!(notes.iter().any(|note| note.contains("the process that reads images")), "{notes:?}");
    daemon.stop();
}

fn read_later() {
    let mut daemon = Daemon::start(&[]);
    let program = build("phases.c", &["-O1"]);
    use_up_starts(&daemon);
    let mut fixture = Running::start(&program, &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    daemon.wait_until_it_says("was started 5 times");
    // A reload makes the daemon try again. The next question comes within a second.
    daemon.signal(Signal::SIGHUP);
    while daemon.worker().is_none() {
        let _ = collecting.writes();
    }
    collecting.wait_for_samples(300);
    fixture.go();
    fixture.go();
    let _ = fixture.finish();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole();
    // The earlier samples have no names; the same program in the same phase.
    assert!(recorded.samples("first").own > 10, "{:?}", recorded.names());
    let accounting = recorded.profile.accounting();
    assert!(accounting.unsymbolised > 10, "{accounting:?}");
    let notes = &recorded.profile.session().notes;
    assert!(notes.iter().any(|note| note.contains("could not be read when they were first seen")), "{notes:?}");
    daemon.stop();
}

fn damaged_programs() {
    let daemon = Daemon::start(&[]);
    let worker = daemon.worker().unwrap();
    let program = fs::read(build("weights.c", &["-O1", "-g"])).unwrap();
    let word = |at: usize| u64::from_le_bytes(program[at..at + 8].try_into().unwrap()) as usize;
    let (headers, section_headers) = (word(32), word(40));
    let count = usize::from(program[56]);
    // The end of the loaded part: PT_LOAD is 1; offset and size in the file are at 8 and 32.
    let loaded = (0..count).map(|i| headers + 56 * i).filter(|&at| program[at] == 1);
    let loaded = loaded.map(|at| word(at + 8) + word(at + 32)).max().unwrap();
    assert!(loaded < section_headers && section_headers < program.len());
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    let dir = scratch();
    for (name, from, one_in) in
        [("all", loaded, 1), ("some", loaded, 40), ("few", loaded, 500), ("headers", section_headers, 3)]
    {
        let mut damaged = program.clone();
        for byte in &mut damaged[from..] {
            if one_in == 1 || random() % 250 < (250 / one_in.min(250)) as u8 {
                *byte = random();
            }
        }
        let (data, path) = (dir.path().join("data"), dir.path().join(name));
        fs::write(&data, damaged).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
        copy_program(&data, &path);
        let recorded = record(&daemon, &path, &["100"]);
        assert!(recorded.ended.status.success(), "{name}: {:?}", recorded.ended);
        recorded.assert_whole();
        assert!(recorded.total() > 20, "{name}");
    }
    // An undamaged program has its names: nothing was harmed.
    let recorded = record(&daemon, &build("weights.c", &["-O1", "-g"]), &["200"]);
    assert!(recorded.samples("weight_12").own > 0, "{:?}", recorded.names());
    assert_eq!(daemon.worker(), Some(worker));
    daemon.stop();
}

fn generated_code() {
    let daemon = Daemon::start(&[]);
    let program = build("generated.c", &["-O1"]);
    // The worker parses two file formats, also after it was killed.
    for (how, ending) in [("map", "perf"), ("dump", "jit"), ("garbage", "perf")] {
        let recorded = record(&daemon, &program, &[how]);
        assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
        for process in recorded.processes() {
            let end = if ending == "perf" { "map" } else { "dump" };
            let _ = fs::remove_file(format!("/tmp/{ending}-{}.{end}", process.pid));
        }
        recorded.assert_whole();
        let (all, total) = (recorded.samples("caller").inherited, recorded.total());
        // Its start, and writing the file, take some of 130 samples, more with a busy disk.
        assert!(all * 10 >= total * 6 && total > 50, "{how}: {all} of {total}: {:?}", recorded.names());
        kill_worker(&daemon);
    }
}

fn it_ends_with_the_daemon() {
    let daemon = Daemon::start(&[]);
    let worker = daemon.worker().unwrap();
    let (_dir, _status) = daemon.kill();
    // Its parent has changed, so it is identified by its own id.
    until(|| fs::read_to_string(format!("/proc/{worker}/stat")).map_or(true, |stat| stat.contains(") Z ")));
}
