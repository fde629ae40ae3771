//! The processes that a watch matches: by user, file, and time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user};
use ccsd_tests::fixture::{Running, build, copy_program};
use ccsd_tests::suite::{CC, Need, Suite, UNSHARE};
use ccsd_tests::watched::{WatchedService, samples};
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> ExitCode {
    Suite::new()
        .test("a_rule_is_about_its_users", &[CC, Need::Root], users)
        .test("a_file_mounted_over_the_path_is_another", &[CC, UNSHARE, Need::Root], mounted_over)
        .test("an_upgrade_keeps_what_runs", &[CC, Need::Root], upgraded)
        .test("another_name_ends_it_at_once", &[CC], another_name)
        .test("another_program_ends_it_at_once", &[CC], another_program)
        .test("a_child_is_judged_by_the_same_rule", &[CC], child)
        .test("another_user_ends_it", &[CC, Need::Root], || becomes_nobody("uid"))
        .test("another_user_after_its_main_thread_ended_ends_it", &[CC, Need::Root], || becomes_nobody("leader"))
        .test("a_configuration_that_others_may_write", &[CC], writable_configuration)
        .test("names_of_other_users_programs_are_shown_harmless", &[CC, Need::Root], hostile_names)
        .run()
}

fn part(report: &Value, function: &str) -> f64 {
    let rows = report["flat"]["rows"].as_array().unwrap();
    let weight = |row: &Value| row["self_weight"].as_u64().unwrap() as f64;
    let own: f64 = rows.iter().filter(|row| row["name"] == function).map(weight).sum();
    own / rows.iter().map(weight).sum::<f64>().max(1.0)
}

fn telling(more: &str) -> WatchedService {
    let mut service = WatchedService::start(more);
    service.stop();
    let mut command = service.command();
    command.env("CCSD_LOG", "debug");
    service.begin(command);
    service
}

fn follows(service: &WatchedService, pid: u32) -> bool {
    service.log().lines().any(|line| line.contains(&format!("follows PID {pid}")) && !line.contains("no longer"))
}

fn until_more(service: &WatchedService, more: u64) {
    let before = samples(&service.status());
    service.until_status("more samples", |status| samples(status) >= before + more);
}

fn configure(service: &WatchedService, more: &str, shown: &str) {
    service.configure(more);
    let checked = EndedProgram::of(service.command().arg("--check-config"));
    assert!(checked.stdout.contains(shown), "{checked:?}");
    service.signal(Signal::SIGHUP);
}

fn users() {
    let service = telling("rate_hz = 499\ncomm = \"watched\"");
    // The stranger starts first, so every scan sees it.
    let stranger = Running::start_command(as_user(&mut Command::new(&service.program), NOBODY));
    let own = Running::start(&service.program, &[]);
    until_more(&service, 500);
    assert_eq!(service.status()["processes"], 1);
    assert!(follows(&service, own.pid()) && !follows(&service, stranger.pid()), "{}", service.log());
    configure(&service, &format!("rate_hz = 499\ncomm = \"watched\"\nuser = {NOBODY}"), "of user 65534");
    service.until("the stranger's", || follows(&service, stranger.pid()));
    until_more(&service, 200);
    assert_eq!(service.status()["processes"], 1);
    configure(&service, &format!("rate_hz = 499\nuser = [\"root\", \"{NOBODY}\"]"), "of user root, 65534");
    service.until_status("both", |status| status["processes"] == 2);
    configure(&service, "rate_hz = 499\nuser = \"*\"\ncomm = \"watched\"", "of any user");
    until_more(&service, 200);
    assert_eq!(service.status()["processes"], 2);
}

fn mounted_over() {
    let service = telling("rate_hz = 499\nuser = \"*\"");
    let other = service.path("other");
    copy_program(&service.program, &other);
    let inside = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script]).arg(&service.program).arg(&other);
        Running::start_command(&mut command)
    };
    let script = "mount --bind \"$1\" \"$0\" && exec \"$0\"";
    let file = inside(script);
    // A whole directory, and the same through a separate file system.
    let directory = inside(
        "dir=$(dirname \"$0\"); mkdir \"$dir/new\" && cp \"$1\" \"$dir/new/$(basename \"$0\")\" && \
         mount --bind \"$dir/new\" \"$dir\" && exec \"$0\"",
    );
    let link = |running: &Running| fs::read_link(format!("/proc/{}/exe", running.pid())).unwrap();
    assert!([&file, &directory].iter().all(|running| link(running) == service.program));
    // The same file in another mount namespace matches.
    let same = inside("exec \"$0\"");
    until_more(&service, 500);
    assert_eq!(service.status()["processes"], 1);
    assert!(follows(&service, same.pid()));
    assert!(!follows(&service, file.pid()) && !follows(&service, directory.pid()), "{}", service.log());
}

fn upgraded() {
    let service = telling("rate_hz = 499");
    let old = Running::start(&service.program, &[]);
    until_more(&service, 100);
    let new = service.path("new");
    copy_program(build("forever.c", &["-O1"]), &new);
    let kept = service.path("kept");
    fs::hard_link(&service.program, &kept).unwrap();
    fs::rename(&new, &service.program).unwrap();
    until_more(&service, 500);
    assert!(!service.log().contains("no longer"), "{}", service.log());
    let of_new = Running::start(&service.program, &[]);
    let of_old = Running::start(&kept, &[]);
    service.until("the new one", || follows(&service, of_new.pid()));
    until_more(&service, 500);
    assert_eq!(service.status()["processes"], 2);
    assert!(!follows(&service, of_old.pid()) && follows(&service, old.pid()), "{}", service.log());
}

/// A service that watches a program which changes its identity, and that process after some samples.
fn turncoat(more: &str, args: &[&str]) -> (WatchedService, Running) {
    let service = WatchedService::start(&format!("rate_hz = 499\n{more}"));
    // Other programs of that file would be busy.
    fs::remove_file(&service.program).unwrap();
    copy_program(build("turncoat.c", &["-O1", "-pthread"]), &service.program);
    let other = service.path("other");
    copy_program(&service.program, &other);
    let args: Vec<&str> = args.iter().map(|&arg| if arg == "OTHER" { other.to_str().unwrap() } else { arg }).collect();
    let running = Running::start(&service.program, &args);
    service.until_status("it is watched", |status| samples(status) >= 1_000);
    (service, running)
}

fn report(mut service: WatchedService, most: f64) -> Value {
    service.stop();
    let report = service.report(&[]);
    let (before, after) = (part(&report, "before"), part(&report, "after"));
    assert!(before > 0.3 && after <= most, "before {before}, after {after}: {report}");
    // Samples of other processes are not losses.
    let accounting = &report["accounting"];
    let count = |name: &str| accounting[name].as_u64().unwrap_or(0);
    assert!(count("expected") <= 2 * count("received") + 500, "{accounting}");
    report
}

fn another_name() {
    let (service, mut running) = turncoat("comm = \"watched\"", &["comm", "watched"]);
    running.go();
    running.wait_until_told();
    running.go();
    until_more(&service, 200);
    let report = report(service, 0.0);
    assert!(part(&report, "again") > 0.02, "{report}");
    running.go();
    assert!(running.end().1.success());
}

fn another_program() {
    let (service, mut running) = turncoat("", &["exec", "OTHER"]);
    running.go();
    running.wait_until_told();
    report(service, 0.0);
}

fn child() {
    let (service, mut running) = turncoat("", &["child", "OTHER"]);
    running.go();
    running.wait_until_told();
    until_more(&service, 200);
    let report = report(service, 0.0);
    assert!(part(&report, "again") > 0.02, "{report}");
}

fn becomes_nobody(how: &str) {
    let (service, mut running) = turncoat("", &[how]);
    running.go();
    running.wait_until_told();
    // No record reports that change, so samples continue until the next scan: for half a second of four, after two, or for
    // three on a slow machine.
    report(service, 0.6);
}

fn writable_configuration() {
    let service = WatchedService::start("");
    let config = service.path("ccsd.toml");
    let mode = |mode| fs::set_permissions(&config, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o666);
    service.signal(Signal::SIGHUP);
    service.until("it is refused", || service.log().contains("the configuration stays as it was"));
    let check = || EndedProgram::of(service.command().arg("--check-config"));
    check().assert_refused(2, &["is writable for everybody"]);
    mode(0o644);
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&config, Some(NOBODY), None).unwrap();
        check().assert_refused(2, &[&format!("belongs to user {NOBODY}")]);
        std::os::unix::fs::chown(&config, Some(0), None).unwrap();
    }
    let checked = check();
    let path: &Path = &service.program;
    let shown = format!("watch busy: processes of user root, exe {}: ", path.display());
    assert!(checked.status.success() && (checked.stdout.contains(&shown) || !nix::unistd::geteuid().is_root()));
}

fn hostile_names() {
    let service = WatchedService::start("");
    let program = service.path("watched\n\x1b[31mwatch all");
    copy_program(&service.program, &program);
    let text = fs::read_to_string(service.path("ccsd.toml")).unwrap();
    fs::write(service.path("ccsd.toml"), text.replace("/watched\"", "/watched*\"")).unwrap();
    fs::set_permissions(service.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let _running = Running::start_command(as_user(&mut Command::new(&program), NOBODY));
    let checked = EndedProgram::of(service.command().arg("--check-config")).stdout;
    assert!(checked.contains("none now; PID ") && checked.contains("matches but for its user, "), "{checked}");
    // The watch and the verdict.
    assert_eq!(checked.lines().count(), 2, "{checked}");
    assert!(!checked.contains(|it: char| it.is_control() && it != '\n'), "{checked:?}");
}
