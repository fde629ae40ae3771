//! Watches under adverse conditions: a wrong configuration, state directory trouble, or a sudden end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE};
use ccsd_tests::watched::{WatchedService, samples};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

fn main() -> ExitCode {
    Suite::new()
        .test("a_bad_configuration_changes_nothing", &[CC], a_bad_configuration_changes_nothing)
        .test("killed_and_begun_again", &[CC], killed_and_begun_again)
        .test("a_state_directory_has_one_daemon", &[CC], a_state_directory_has_one_daemon)
        .test("a_state_directory_that_is_moved_away_is_noticed", &[CC], a_state_directory_is_moved)
        .test("a_full_disk_and_room_again", &[CC, UNSHARE, Need::Root], a_full_disk)
        .test("a_flooded_watch_leaves_room_to_others", &[CC, UNSHARE, Need::Root], a_flooded_watch)
        .test("a_read_only_state_directory", &[CC, UNSHARE, Need::Root], a_read_only_state_directory)
        .test("a_configuration_that_cannot_be_read", &[CC], a_configuration_that_cannot_be_read)
        .run()
}

fn a_bad_configuration_changes_nothing() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 50);
    service.configure("rate_hz = \"many\"");
    service.signal(Signal::SIGHUP);
    service.until("it is refused", || service.log().contains("stays as it was"));
    let log = service.log();
    let line = log.lines().find(|line| line.contains("stays as it was")).unwrap();
    assert!(line.contains("ccsd.toml:8:11: ") && line.contains("whole number from 1 to 9999"), "{line}");
    let before = samples(&service.status());
    service.until_status("it goes on", |status| samples(status) >= before + 50);
    assert_eq!(service.status()["segments"], 1);
    // Nor is the message longer than can be told.
    service.configure(&format!("rate_hz = \"{}\"", "x".repeat(100_000)));
    service.signal(Signal::SIGHUP);
    service.until("it is refused, too", || service.log().contains("xxxx"));
    let told = service.stored(&["daemon", "watches"]);
    assert!(told.status.success() && told.stdout.contains("configuration refused"), "{told:?}");
    service.configure("rate_hz = 199");
    service.signal(Signal::SIGHUP);
    service.until_status("the other rate", |status| status["rate_hz"] == 199 && status["segments"] == 2);
    service.until_status("it goes on", |status| samples(status) >= before + 100);
    service.stop();
    assert_eq!(service.report(&[])["file"]["stored"]["segments"], 2);
    service.configure("rat = 5");
    let ended = EndedProgram::of(&mut service.command());
    ended.assert_refused(2, &["ccsd.toml:8:1: ", "unknown field `rat`", "rate_hz"]);
    EndedProgram::of(service.command().arg("--check-config")).assert_refused(2, &["rat"]);
    service.configure("");
    assert!(EndedProgram::of(service.command().arg("--check-config")).status.success());
}

fn killed_and_begun_again() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 100);
    let before = samples(&service.status());
    service.daemon.kill().unwrap();
    let _ = service.daemon.wait();
    // The profile is complete up to the last interval, and marked as interrupted.
    let report = service.report(&[]);
    assert!(report["accounting"]["received"].as_u64().unwrap() >= before, "{report}");
    let stored = &report["file"]["stored"];
    assert_eq!(stored["interrupted"].as_array().unwrap().len(), 1, "{stored}");
    let text = service.stored(&["report", "--watch", "busy"]);
    assert!(text.stderr.contains("the service was killed there"), "{text:?}");
    // Neither a stale socket nor foreign files matter.
    let foreign = service.path("state/busy/20200101T000000Z.ccsd");
    fs::write(&foreign, "mine").unwrap();
    let command = service.command();
    service.begin(command);
    service.until_status("watching again", |status| samples(status) >= 100);
    service.until("it names the foreign file", || service.log().contains("ccsd leaves it alone"));
    service.stop();
    let report = service.report(&[]);
    assert_eq!(report["file"]["stored"]["segments"], 2, "{report}");
    assert_eq!(fs::read_to_string(foreign).unwrap(), "mine");
}

fn a_state_directory_has_one_daemon() {
    let mut service = WatchedService::start("");
    let other = scratch();
    let config = other.path().join("ccsd.toml");
    let text = fs::read_to_string(service.path("ccsd.toml")).unwrap();
    let sock = |path: PathBuf| format!("{path:?}");
    fs::write(&config, text.replace(&sock(service.path("sock")), &sock(other.path().join("sock")))).unwrap();
    let second = || {
        let mut command = ccsd(["daemon", "--config"]);
        command.arg(&config).env_remove("CCSD_SOCKET").stdin(Stdio::null());
        command
    };
    let pid = format!("(PID {})", service.daemon.id());
    EndedProgram::of(&mut second()).assert_refused(2, &["another ccsd daemon", &pid, "state_dir"]);
    let state = sock(service.path("state"));
    let apart = fs::read_to_string(&config).unwrap().replace(&state, &sock(other.path().join("state")));
    fs::write(&config, &apart).unwrap();
    let log = other.path().join("log");
    let said = |words: &str| fs::read_to_string(&log).unwrap().contains(words);
    let mut daemon = second().stderr(fs::File::create(&log).unwrap()).stdout(Stdio::null()).spawn().unwrap();
    service.until("the second listens", || said("listens at"));
    fs::write(&config, apart.replace(&sock(other.path().join("state")), &state)).unwrap();
    let signal = |signal| kill(Pid::from_raw(daemon.id().cast_signed()), signal).unwrap();
    signal(Signal::SIGHUP);
    service.until("it refuses", || said("the configuration stays as it was: another ccsd daemon"));
    // The directory is free when the first service has ended, in any way.
    service.daemon.kill().unwrap();
    let _ = service.daemon.wait();
    signal(Signal::SIGHUP);
    service.until("it takes it up", || said("the configuration was reloaded"));
    signal(Signal::SIGTERM);
    assert!(daemon.wait().unwrap().success());
}

fn a_state_directory_is_moved() {
    let mut service = WatchedService::start("rate_hz = 499");
    service.stop();
    let mut command = service.command();
    command.env("CCSD_LOG", "debug");
    service.begin(command);
    let fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 10);
    let begins = format!("watch busy: follows PID {}", fixture.pid());
    service.until("it is said who is followed", || service.log().contains(&begins));
    fs::rename(service.path("state"), service.path("moved")).unwrap();
    service.until("it is noticed", || service.log().contains("removed or moved away"));
    let stored = || fs::read_dir(service.path("state/busy")).is_ok_and(|mut files| files.next().is_some());
    service.until("it is stored in what is there now", stored);
    let pid = fixture.pid();
    drop(fixture);
    service.until("it is said who is not", || service.log().contains(&format!("no longer follows PID {pid}")));
    service.stop();
}

/// Starts the service again with a file system for its state that only it sees: options of tmpfs, a command in it.
fn begin_in_own_file_system(service: &mut WatchedService, options: &str, before: &str) {
    service.stop();
    let state = service.path("state");
    fs::create_dir_all(&state).unwrap();
    let script = format!("mount -t tmpfs -o {options} tmpfs \"$0\" && cd \"$0\" && {before}; cd /; exec \"$@\"");
    let inner = service.command();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).arg(&state).arg(inner.get_program()).args(inner.get_args());
    service.begin(command);
}

/// What the service sees as its state directory.
fn inside(service: &WatchedService) -> PathBuf {
    PathBuf::from(format!("/proc/{}/root{}", service.daemon.id(), service.path("state").display()))
}

fn a_full_disk() {
    let mut service = WatchedService::start("rate_hz = 499");
    begin_in_own_file_system(&mut service, "size=24m", "head -c 20M /dev/zero > ballast");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("nothing is stored", |status| samples(status) >= 100 && !status["problem"].is_null());
    let problem = service.status()["problem"].as_str().unwrap().to_owned();
    // Some space is left for others: a profile starts only if an hour of it fits.
    assert!(problem.contains("profiling goes on, but nothing is stored: less than 16 MiB are free"), "{problem}");
    assert!(service.stored(&["daemon", "watches"]).stdout.contains("# busy: profiling goes on"), "it is said");
    let inside = inside(&service);
    fs::remove_file(inside.join("ballast")).unwrap();
    service.until_status("it is stored again", |status| {
        status["problem"].is_null() && status["bytes"].as_u64().unwrap() > 500 && status["profiling"] == true
    });
    let before = samples(&service.status());
    service.until_status("it goes on", |status| samples(status) >= before + 100);
    assert!(service.log().contains("it works again"));
    // What was lost is said there and in what comes after it.
    let unstored = service.status()["unstored"].as_u64().unwrap();
    assert!((100..=before).contains(&unstored), "{unstored} of {before}");
    let watches = service.stored(&["daemon", "watches"]).stdout;
    assert!(watches.contains("samples could not be stored"), "{watches}");
    let answer = EndedProgram::of(service.ccsd(&["report", "--watch", "busy", "--state-dir"]).arg(&inside));
    assert!(answer.status.success() && answer.stdout.contains("forever"), "{answer:?}");
    let mut noted = service.ccsd(&["report", "-v", "--watch", "busy", "--state-dir"]);
    let noted = EndedProgram::of(noted.arg(&inside));
    let note = format!("{unstored} samples of the ");
    assert!(noted.stdout.contains(&note) || noted.stderr.contains(&note), "{noted:?}");
    service.stop();
}

/// What is free is less than `retention.bytes`.
fn a_flooded_watch() {
    // Beyond the 16 MiB that stay free, 512 KiB: half for each watch.
    const SHARE: u64 = 256 << 10;
    let program = build("hostile.c", &["-O1"]);
    let flood =
        format!("[[watch]]\nname = \"flood\"\nexe = {program:?}\nuser = \"*\"\ninterval = \"1s\"\nrate_hz = 4999");
    let mut service = WatchedService::start(&format!("rate_hz = 499\n{flood}"));
    begin_in_own_file_system(&mut service, "size=16896k", "true");
    let _hostile = Running { child: Command::new(&program).args(["recurse", "600000"]).spawn().unwrap() };
    let flooded = || service.watches()[1]["status"].clone();
    service.until("the flood has its share", || !flooded()["problem"].is_null());
    let problem = flooded()["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("nothing is stored: this watch has written its share of what is free"), "{problem}");
    // The last update is whole, however much it has.
    let written = flooded()["bytes"].as_u64().unwrap();
    assert!((SHARE * 9 / 10..SHARE * 4).contains(&written), "{written}");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("another watch stores all", |status| {
        samples(status) >= 1_000 && status["bytes"].as_u64() > Some(500)
    });
    let status = service.status();
    assert!(status["problem"].is_null() && status["unstored"] == 0, "{status}");
    assert!(flooded()["unstored"].as_u64() > Some(0) && flooded()["bytes"] == written, "{}", flooded());
    // What was stored is whole, and readable.
    let stored = EndedProgram::of(service.ccsd(&["report", "--watch", "flood", "--state-dir"]).arg(inside(&service)));
    assert!(stored.status.success() && stored.stdout.contains("bottom"), "{stored:?}");
    service.stop();
}

fn a_read_only_state_directory() {
    let mut service = WatchedService::start("rate_hz = 499");
    begin_in_own_file_system(&mut service, "ro", "true");
    let fixture = Running::start(&service.program, &[]);
    service.until_status("nothing is stored", |status| samples(status) >= 100 && !status["problem"].is_null());
    let problem = service.status()["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("nothing is stored") && problem.contains("Read-only file system"), "{problem}");
    let pid = fixture.pid().to_string();
    let live =
        EndedProgram::of(&mut service.ccsd(&["top", "--attach", "--daemon", "--json", "--duration", "300ms", &pid]));
    assert!(live.status.success() && live.stdout.contains("\"received\""), "{live:?}");
    service.stop();
}

fn a_configuration_that_cannot_be_read() {
    let mut service = WatchedService::start("rate_hz = 499");
    let _fixture = Running::start(&service.program, &[]);
    service.until_status("some samples", |status| samples(status) >= 10);
    // Permissions do not keep root from reading, so the file is replaced by a directory.
    let config = service.path("ccsd.toml");
    fs::rename(&config, service.path("kept")).unwrap();
    fs::create_dir(&config).unwrap();
    service.signal(Signal::SIGHUP);
    service.until("it is said", || service.log().contains("the configuration stays as it was"));
    let before = samples(&service.status());
    service.until_status("it goes on", |status| samples(status) >= before + 10);
    service.stop();
    EndedProgram::of(&mut service.command()).assert_refused(2, &["ccsd.toml", "is not a regular file"]);
}
