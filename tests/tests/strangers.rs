//! What one user's files, processes and sessions do to another's: nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use ccsd_profile::view::{FlatRow, FlatView, Selection};
use ccsd_profile::{Profile, read_profile};
use ccsd_tests::ccsd::{Collecting, EndedProgram, NOBODY, as_user, binary, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::elf::exhausting_program;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, OBJCOPY, Suite, UNSHARE};
use ccsd_tests::watched::{WatchedService, samples};

fn main() -> ExitCode {
    Suite::new()
        .test("a_user_s_file_made_to_exhaust_memory_blinds_nobody", &[CC, OBJCOPY, Need::Root], exhausting_file)
        .test("endless_perf_maps_hold_nobody_up", &[CC, Need::Root], endless_maps)
        .test("held_mappings_hold_nobody_up", &[CC, Need::Root], held_mappings)
        .test("debug_files_that_never_open_hold_nobody_up", &[CC, Need::Root], hanging_debug_files)
        .test("a_copy_at_the_path_of_a_program_is_another", &[CC, Need::Root, UNSHARE], forged_image)
        .test("a_program_has_no_names_by_who_shows_it_elsewhere", &[CC, OBJCOPY, Need::Root], shown_elsewhere)
        .test("a_debug_file_that_a_stranger_puts_beside_a_program", &[CC, OBJCOPY, Need::Root], debug_file_beside)
        .test("a_program_whose_server_does_not_answer_is_not_opened", &[CC, Need::Root], || {
            ["2", "0"].into_iter().for_each(served_program)
        })
        .test("a_program_that_others_run_first_has_its_names", &[CC, Need::Root], run_first)
        .test("files_mapped_in_turn_cost_their_user_s_time", &[CC, Need::Root], files_in_turn)
        .test("a_process_kept_in_execve_holds_nobody_up", &[CC, Need::Root], kept_in_execve)
        .test("the_machine_s_worker_does_not_work_for_users", &[CC, OBJCOPY, Need::Root], machine_worker)
        .run()
}

/// The most memory that a process has had.
fn most_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Root has programs that take much memory to read, and all may run them.
fn machine_worker() {
    const PROGRAMS: usize = 3;
    let program = build("phases.c", &["-O1"]);
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let large = exhausting_program(&program, 12_000_000, dir.path());
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let own = daemon.worker().unwrap();
    let mut running: Vec<Running> = (0..PROGRAMS)
        .map(|number| {
            let copy = dir.path().join(format!("large-{number}"));
            copy_program(&large, &copy);
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            Running::start_command(as_user(&mut Command::new(&copy), NOBODY))
        })
        .collect();
    let attach = |user: Option<u32>, pid: u32| {
        Collecting::start(|file| {
            let mut command = daemon.ccsd(["attach", "--daemon", "--no-adapt", "-o"]);
            command.arg(file).arg(pid.to_string());
            if let Some(user) = user {
                as_user(&mut command, user);
            }
            command
        })
    };
    let recorded_by = |user: Option<u32>, running: &[Running]| -> Vec<Recorded> {
        // One after the other: what was read for one session is still in memory when the next begins.
        let recorded = |it: &Running| {
            let mut collecting = attach(user, it.pid());
            collecting.wait_for_samples(100);
            collecting.stop()
        };
        running.iter().map(recorded).collect()
    };
    for recorded in recorded_by(Some(NOBODY), &running) {
        recorded.assert_whole().assert_complete();
    }
    // One of them alone would take several hundred.
    assert!(most_memory(own) < 128 << 20, "{}", most_memory(own));
    // Root's own sessions have them read there, one at a time.
    for recorded in recorded_by(None, &running) {
        recorded.assert_whole().assert_complete();
    }
    // It is still the same process.
    assert!(most_memory(own) > 128 << 20, "{}", most_memory(own));
    for program in &mut running {
        program.go();
        program.go();
        let _ = program.finish();
    }
    daemon.stop();
}

/// Each of these maps alone would take seconds to read, again and again.
fn endless_maps() {
    const STRANGERS: usize = 8;
    let program = build("generated.c", &["-O1"]);
    let daemon = Daemon::start(&[]);
    let mut strangers: Vec<Running> = (0..STRANGERS)
        .map(|_| Running::start_command(as_user(Command::new(&program).args(["endless", "waits"]), NOBODY)))
        .collect();
    strangers.iter_mut().for_each(Running::go);
    let mut own = Running::start(&build("phases.c", &["-O1"]), &[]);
    let pids: Vec<String> = strangers.iter().chain([&own]).map(|running| running.pid().to_string()).collect();
    let mut collecting = Collecting::start(|file| {
        let mut command = daemon.ccsd(["attach", "--daemon", "--no-adapt", "-o"]);
        command.arg(file).args(&pids);
        command
    });
    // Updates come, and what is said of the session is not of its beginning.
    collecting.wait_for_samples(200);
    let received = || daemon.sessions()[0]["received"].as_u64().unwrap();
    let before = received();
    collecting.wait_for_samples(200);
    assert!(received() > before, "{before}");
    let began = Instant::now();
    let recorded = collecting.stop();
    let took = began.elapsed();
    // Names take a second at the end and a little before. (Each of these used to take five, one after the other.)
    assert!(took < Duration::from_secs(15), "{took:?}");
    let notes = &recorded.profile.session().notes;
    let said = format!("the names that {STRANGERS} processes wrote for their generated code were not all read");
    assert!(notes.iter().any(|note| note.starts_with(&said)), "{notes:?}");
    assert!(recorded.samples("first").own > 0, "{:?}", recorded.names());
    let accounting = recorded.profile.accounting();
    // If sampling waited for one of these maps, more than half of the samples would be lost.
    assert!(accounting.lost * 10 < accounting.received, "{accounting:?} {notes:?}");
    for stranger in &strangers {
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", stranger.pid()));
    }
    own.go();
    own.go();
    let _ = own.finish();
    daemon.stop();
}

/// This program of a stranger holds the lock of its mappings: to read its memory or to open its files would take for ever.
fn held_mappings() {
    let program = build("holding.c", &["-O1", "-pthread"]);
    let dir = scratch();
    let daemon = Daemon::start(&[]);
    let holding = Running::start_command(Command::new(&program).arg(dir.path()).arg(NOBODY.to_string()));
    let mut own = Running::start(&build("phases.c", &["-O1"]), &[]);
    let pids = [holding.pid(), own.pid()].map(|pid| pid.to_string());
    for daemon in [Some(&daemon), None] {
        let mut collecting = collect(daemon, &pids);
        collecting.wait_for_samples(2_000);
        let recorded = collecting.stop();
        let accounting = recorded.profile.accounting();
        // Both burn a CPU, and neither is waited for: not a half is lost, however busy the machine is.
        assert!(accounting.lost < accounting.received, "{accounting:?}");
        for name in ["first", "deep"] {
            assert!(recorded.samples(name).own > 400, "{name}: {:?}", recorded.names());
        }
        let notes = &recorded.profile.session().notes;
        assert!(!notes.iter().any(|note| note.contains("hangs")), "{notes:?}");
    }
    own.go();
    own.go();
    let _ = own.finish();
    drop(holding);
    daemon.stop();
}

/// Samples programs with a daemon, or without one.
fn collect(daemon: Option<&Daemon>, pids: &[String]) -> Collecting {
    Collecting::start(|file| {
        let mut command = match daemon {
            Some(daemon) => daemon.ccsd(["attach", "--daemon", "--no-adapt", "-o"]),
            None => ccsd(["attach", "--no-daemon", "--no-adapt", "-o"]),
        };
        command.arg(file).args(pids);
        command
    })
}

/// Path and build id of a stranger's image are those of a program of root's.
fn forged_image() {
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let [path, copy] = ["program", "copy"].map(|name| dir.path().join(name));
    for file in [&path, &copy] {
        copy_program(build("phases.c", &["-O1"]), file);
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    chown(&copy, Some(NOBODY), Some(NOBODY)).unwrap();
    let script = "mount --bind \"$1\" \"$2\" && exec setpriv --reuid \"$0\" --regid \"$0\" --clear-groups \"$2\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(NOBODY.to_string()).args([&copy, &path]);
    let mut his = Running::start_command(&mut command);
    let mut own = Running::start(&path, &[]);
    let pids = [his.pid(), own.pid()].map(|pid| pid.to_string());
    let mut collecting = collect(None, &pids);
    collecting.wait_for_samples(1_000);
    let recorded = collecting.stop();
    let rows = recorded.flat().rows;
    let samples = |whose: &str| -> u64 {
        let name = |row: &FlatRow| {
            let image = recorded.profile.cost_centre(row.function).and_then(|it| recorded.profile.image(it.image));
            image.map(|image| image.name.clone())
        };
        let image = format!("{whose}{}", path.display());
        let of_image = |row: &&FlatRow| row.name == "first" && name(row).as_ref() == Some(&image);
        rows.iter().filter(of_image).map(|row| row.samples_self).sum()
    };
    let counted = [samples(""), samples(&format!("user {NOBODY}:"))];
    assert!(counted.iter().all(|&samples| samples > 200), "{counted:?}: {:?}", recorded.names());
    for program in [&mut his, &mut own] {
        program.go();
        program.go();
        let _ = program.finish();
    }
}

/// A stranger maps a program of root's before it runs, in a root of his own, and shows a debug file of its build id.
fn shown_elsewhere() {
    const BUILD_ID: &str = "-Wl,--build-id=0x0123456789abcdef";
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("program");
    copy_program(build("phases.c", &["-O1", "-s", BUILD_ID]), &path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let his = scratch();
    let debug = his.path().join("usr/lib/debug/.build-id/01");
    fs::create_dir_all(&debug).unwrap();
    let other = build("images.c", &["-O1", BUILD_ID]);
    let debug_file = debug.join("23456789abcdef.debug");
    assert!(Command::new("objcopy").arg("--only-keep-debug").args([&other, &debug_file]).status().unwrap().success());
    for file in [&debug_file, &debug, &his.path().to_owned()] {
        chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let shows = build("shows.c", &[]);
    let user = NOBODY.to_string();
    let daemon = Daemon::start(&[]);
    for daemon in [None, Some(&daemon)] {
        let mut command = Command::new("sh");
        // The program begins when it has been mapped, and ends with who has done so.
        command
            .args(["-c", r#"printf r; head -c 1 >/dev/null; "$@" | { head -c 1 >/dev/null; exec "$0"; }"#])
            .arg(&path);
        command.args(["setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"]).arg(&shows);
        let mut both = Running::start_command(command.arg(&path).args([dir.path(), his.path()]));
        let mut collecting = collect(daemon, &[both.pid().to_string()]);
        collecting.wait_for_writes(1);
        both.go();
        let functions = |profile: &Profile| {
            let mut functions = BTreeMap::new();
            profile.for_each_charge(|charge| {
                let leaf = profile.contexts().leaf(charge.context);
                let function = leaf.and_then(|leaf| profile.cost_centre(leaf)).unwrap();
                let image = profile.image(function.image).unwrap().name.clone();
                if image.ends_with("program") {
                    *functions.entry((image, function.linkage_name.clone())).or_insert(0) += charge.samples;
                }
            });
            functions
        };
        collecting.wait_until(|profile| functions(profile).values().sum::<u64>() > 200);
        let mut found = functions(&collecting.stop().profile);
        // Stubs have the names of what they lead to, and where it begins is known, as the program itself says.
        found.retain(|(_, name), _| !name.as_deref().is_some_and(|name| name == "_start" || name.ends_with("@plt")));
        assert_eq!(found.into_keys().collect::<Vec<_>>(), [(path.display().to_string(), None)]);
    }
}

/// In a directory that all may write to, a stranger puts other names beside root's program, with its build id.
fn debug_file_beside() {
    const BUILD_ID: &str = "-Wl,--build-id=0x0123456789abcdef";
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let (program, debug_file) = (dir.path().join("program"), dir.path().join("program.debug"));
    copy_program(build("images.c", &["-O1", "-s", BUILD_ID]), &program);
    let other = build("phases.c", &["-O1", BUILD_ID]);
    let objcopy = |args: &[&OsStr]| {
        assert!(Command::new("objcopy").current_dir(dir.path()).args(args).status().unwrap().success());
    };
    objcopy(&["--only-keep-debug".as_ref(), other.as_os_str(), debug_file.as_os_str()]);
    fs::set_permissions(&debug_file, fs::Permissions::from_mode(0o644)).unwrap();
    objcopy(&["--add-gnu-debuglink=program.debug".as_ref(), program.as_os_str()]);
    let daemon = Daemon::start(&[]);
    let places = [(0o1777, NOBODY, None), (0o1777, NOBODY, Some(&daemon)), (0o755, 0, None), (0o755, 0, Some(&daemon))];
    for (mode, owner, daemon) in places {
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        chown(&debug_file, Some(owner), Some(owner)).unwrap();
        // Each run has a copy of its own, because a daemon keeps the names that it has read from a file.
        let copy = dir.path().join(format!("{owner}-{}", daemon.is_some()));
        copy_program(&program, &copy);
        let mut record = daemon.map_or_else(|| ccsd(["record"]), |daemon| daemon.ccsd(["record", "--daemon"]));
        let file = dir.path().join("profile.ccsd");
        let ended = EndedProgram::of(record.args(["-e", "cpu-clock", "-o"]).arg(&file).arg("--").arg(&copy).arg("now"));
        assert!(ended.status.success(), "{ended:?}");
        let profile = read_profile(File::open(&file).unwrap()).unwrap().profile;
        let wrong = profile.cost_centres().iter().filter(|function| {
            let image = profile.image(function.image).unwrap();
            Path::new(&image.name) == copy && function.linkage_name.as_deref().is_some_and(|name| name != "_start")
        });
        let wrong: Vec<_> = wrong.collect();
        assert_eq!(wrong.is_empty(), owner != 0, "{owner} {}: {wrong:?}", daemon.is_some());
        let notes = &profile.session().notes;
        let note = notes.iter().any(|note| note.contains(&format!("was not used: it belongs to user {NOBODY}")));
        assert!(note || owner == 0 || daemon.is_some(), "{notes:?}");
    }
    daemon.stop();
}

/// A stranger's program has its split debug information, by a link, in a file system that does not answer.
fn hanging_debug_files() {
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&[]);
    for daemon in [Some(&daemon), None] {
        let mounted = scratch();
        let mut holding = Command::new(build("holding.c", &["-O1", "-pthread"]));
        let holding = Running::start_command(holding.arg(mounted.path()).arg(NOBODY.to_string()));
        let name = if daemon.is_some() { "split" } else { "split-too" };
        let (copy, package) = (dir.path().join(name), dir.path().join(format!("{name}.dwp")));
        copy_program(build("phases.c", &["-O1", "-g", "-gsplit-dwarf"]), &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        chown(&copy, Some(NOBODY), Some(NOBODY)).unwrap();
        symlink(format!("/proc/{}/root{}/hangs", holding.pid(), mounted.path().display()), &package).unwrap();
        let mut split = Running::start_command(as_user(&mut Command::new(&copy), NOBODY));
        let own = Running::start(&build("forever.c", &["-O1", "-g"]), &[]);
        let pids = [split.pid(), own.pid()].map(|pid| pid.to_string());
        let mut collecting = collect(daemon, &pids);
        collecting.wait_for_samples(2_000);
        // No signal ends a thread that waits for an answer.
        drop(holding);
        let recorded = collecting.stop();
        let accounting = recorded.profile.accounting();
        assert!(accounting.lost < accounting.received / 4, "{accounting:?}");
        // Its symbols name it.
        for name in ["first", "forever"] {
            assert!(recorded.samples(name).own > 400, "{name}: {:?}", recorded.names());
        }
        if daemon.is_some() {
            let notes = &recorded.profile.session().notes;
            assert!(notes.iter().any(|note| note.contains("debug files of it were not opened")), "{notes:?}");
        }
        split.go();
        split.go();
        let _ = split.finish();
        drop(own);
    }
    daemon.stop();
}

/// One process maps files of root's, ever another, thousands of times a second.
fn files_in_turn() {
    const FILES: usize = 100;
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let library = build("plugin.c", &["-O1", "-shared", "-fPIC"]);
    for number in 0..FILES {
        let copy = dir.path().join(number.to_string());
        copy_program(&library, &copy);
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let daemon = Daemon::start(&[]);
    let mut mapping = Command::new(build("hostile.c", &["-O1", "-pthread"]));
    mapping.args(["in-turn", "600000"]).arg(dir.path()).arg(FILES.to_string());
    let mapping = Running::start_command(as_user(&mut mapping, NOBODY));
    let own = Running::start(&build("forever.c", &["-O1"]), &[]);
    for daemon in [None, Some(&daemon)] {
        let mut collecting = collect(daemon, &[mapping.pid(), own.pid()].map(|pid| pid.to_string()));
        collecting.wait_for_samples(3_000);
        let recorded = collecting.stop();
        let accounting = recorded.profile.accounting();
        // Where questions about files took more than their user's time, 0.8 to 1.9 of those received.
        assert!(accounting.lost * 2 < accounting.received, "{accounting:?}");
        // Both burn a CPU.
        assert!(recorded.samples("forever").own * 4 > accounting.received, "{:?}", recorded.names());
    }
    drop((mapping, own));
    daemon.stop();
}

/// Who has run root's program first paid for what is kept of it, until root runs it.
fn run_first() {
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("program");
    // The addresses of its code are no offsets in its file.
    copy_program(build("forever.c", &["-O1", "-no-pie"]), &path);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&[]);
    let theirs = Running::start_command(as_user(&mut Command::new(&path), NOBODY));
    let own = Running::start(&path, &[]);
    for daemon in [None, Some(&daemon)] {
        let mut collecting = collect(daemon, &[theirs.pid(), own.pid()].map(|pid| pid.to_string()));
        collecting.wait_for_samples(1_000);
        let recorded = collecting.stop();
        recorded.assert_whole().assert_complete();
        let received = recorded.profile.accounting().received;
        assert!(recorded.samples("forever").inherited * 10 > received * 9, "{:?}", recorded.names());
    }
    daemon.stop();
}

/// The kernel tells nothing of this process of a stranger, nor does it refuse to.
fn kept_in_execve() {
    let dir = scratch();
    let mut service = WatchedService::start("rate_hz = 499");
    let mut command = Command::new(build("holding.c", &["-O1", "-pthread"]));
    let holding = Running::start_command(command.arg(dir.path()).args([&NOBODY.to_string(), "executes"]));
    let watched = Running::start(&service.program, &[]);
    service.until_status("root's program is watched", |status| samples(status) >= 200);
    let [own, other] = [watched.pid(), holding.pid()].map(|pid| pid.to_string());
    for daemon in ["--daemon", "--no-daemon"] {
        // Child processes belong to a target, and the one that is kept is one.
        for (target, function) in [(&own, "forever"), (&other, "main")] {
            let mut collecting = Collecting::start(|file| {
                let mut command = service.ccsd(&["attach", daemon, "-e", "cpu-clock", "-o"]);
                command.arg(file).arg(target);
                command
            });
            collecting.wait_for_samples(200);
            let recorded = collecting.stop();
            assert!(recorded.samples(function).inherited > 150, "{daemon} {target}: {:?}", recorded.names());
        }
    }
    let before = samples(&service.status());
    service.until_status("it goes on", |status| samples(status) >= before + 200);
    // Before the service ends: what waits ends with its server.
    drop((holding, watched));
    service.stop();
}

/// A stranger's program serves root's (FUSE) and does not answer who closes it.
fn served_program(inode: &str) {
    let (dir, mounted) = (scratch(), scratch());
    let file = dir.path().join("profile.ccsd");
    let mut command = Command::new(build("holding.c", &["-O1", "-pthread"]));
    command.arg(mounted.path()).arg(NOBODY.to_string()).arg(build("hostile.c", &["-O1"])).arg(binary());
    command.args(["record", "-e", "cpu-clock", "-o"]).arg(&file).arg("--");
    // Root runs it, and then its owner.
    let script = r#""$0" recurse 1000; exec setpriv --reuid "$1" --regid "$1" --clear-groups "$0" recurse 1000"#;
    command.args(["sh", "-c", script]).arg(mounted.path().join("file")).arg(NOBODY.to_string());
    let ended = EndedProgram::of(command.env("INODE", inode));
    let recorded = Recorded::open(dir, &file, ended);
    recorded.assert_whole();
    let accounting = recorded.profile.accounting();
    assert!(accounting.missing() * 2 < accounting.received, "{accounting:?}");
    let said = format!("files that a program of user {NOBODY} serves (FUSE) are not opened");
    let notes = &recorded.profile.session().notes;
    assert!(notes.iter().any(|note| note.contains(&said)), "{notes:?}");
    // Of his process it is his alone, whatever number he gives it.
    let his = format!("user {NOBODY}:{}", mounted.path().join("file").display());
    assert!(recorded.profile.images().iter().any(|image| image.name == his), "{inode}: {:?}", recorded.names());
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
