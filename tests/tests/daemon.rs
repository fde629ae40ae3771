//! A daemon serves many clients, keeps finished sessions, and hides each user's sessions from others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user, ccsd};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, copy_program, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, Need, Suite};
use ccsd_tests::wait::until;
use nix::sys::signal::Signal;
use serde_json::Value;

/// For twelve functions in 51 turns, on a busy machine.
const ALLOWANCE: f64 = 0.15;

fn main() -> ExitCode {
    Suite::new()
        .test("record_through_the_daemon", &[CC], record_through_the_daemon)
        .test("record_keeps_status_and_streams", &[], record_keeps_status_and_streams)
        .test("attach_through_the_daemon", &[CC], attach_through_the_daemon)
        .test("arguments_stay_out_of_the_daemon", &[CC], arguments)
        .test("a_detached_session_is_anybody_s", &[CC], a_detached_session)
        .test("a_client_that_vanishes_leaves_its_profile", &[CC], a_client_that_vanishes)
        .test("live_rows_of_files_and_processes", &[CC], live_rows)
        .test("without_a_daemon", &[], without_a_daemon)
        .test("one_daemon_to_a_socket", &[], one_daemon_to_a_socket)
        .test("ending_the_daemon_ends_its_sessions_in_order", &[CC], ending_the_daemon)
        .test("killing_the_daemon_leaves_clients_what_they_have", &[CC], killing_the_daemon)
        .test("a_process_that_execs_a_privileged_program_is_seen_no_more", &[CC, Need::Root], privileged_exec)
        .test("targets_may_end_at_any_moment", &[], targets_that_end)
        .test("users_see_and_profile_their_own", &[CC, Need::Root], users_see_their_own)
        .run()
}

fn collect(daemon: &Daemon, args: &[&str], rest: &[&str]) -> Recorded {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let mut command = daemon.ccsd(args);
    let ended = EndedProgram::of(command.arg("-o").arg(&file).args(rest));
    Recorded::open(dir, &file, ended)
}

fn record_through_the_daemon() {
    let daemon = Daemon::start(&[]);
    let weights = build("weights.c", &["-O1"]);
    let recorded =
        collect(&daemon, &["record", "--no-adapt", "-F", "1999"], &["--", weights.to_str().unwrap(), "2000"]);
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    assert!(recorded.ended.stderr.contains("collecting in the daemon at"), "{:?}", recorded.ended);
    recorded.assert_whole().assert_complete();
    let names: Vec<String> = (1..=12).map(|i| format!("weight_{i:02}")).collect();
    let parts: Vec<(&str, u64)> = names.iter().map(String::as_str).zip(1..).collect();
    recorded.assert_proportions(&parts, ALLOWANCE);
    // Sampled from the first instruction on: the dynamic linker is included, and samples match the CPU time.
    let accounting = recorded.profile.accounting();
    let expected = accounting.expected.unwrap();
    assert!(accounting.received * 100 >= expected * 85, "{accounting:?}");
    // A client that has fetched the profile leaves no session.
    assert_eq!(daemon.sessions(), Vec::<Value>::new());
    daemon.stop();
}

fn record_keeps_status_and_streams() {
    let daemon = Daemon::start(&[]);
    let script = "read line; echo \"got $line\"; echo oops >&2; exit 7";
    let mut command = daemon.ccsd(["record", "--no-output", "--daemon", "--quiet", "--", "sh", "-c", script]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"it\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "got it\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "oops\n");
    // The program is a child of the command line, not of the daemon.
    let ended = daemon.run(&["record", "--no-output", "--daemon", "-q", "--", "sh", "-c", "ps -o comm= -p $PPID"]);
    assert_eq!(ended.stdout.trim().chars().take(4).collect::<String>(), "ccsd", "{ended:?}");
    for (program, status) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let ended = daemon.run(&["record", "--no-output", "--daemon", "--", program]);
        ended.assert_refused(status, &[program]);
    }
    let ended = daemon.run(&["record", "--no-output", "--daemon", "-q", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(ended.status.signal(), Some(9), "{ended:?}");
}

fn attach_through_the_daemon() {
    let daemon = Daemon::start(&[]);
    let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    fixture.go();
    assert_eq!(fixture.end().1.code(), Some(5));
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    recorded.assert_whole().assert_complete();
    let forever = recorded.samples("forever").inherited;
    // The rest is the end of the program, which may take long on a busy machine.
    assert!(forever > 0 && forever * 2 > recorded.total(), "{:?}", recorded.names());
    assert!(recorded.ended.stderr.contains("session 1"), "{:?}", recorded.ended);
}

/// A daemon stores no arguments by default; a client's file has them by default.
fn arguments() {
    const SECRET: &str = "--password=hunter2";
    let dir = scratch();
    let config = dir.path().join("ccsd.toml");
    let program = build("forever.c", &["-O1"]);
    let has = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        bytes.windows(SECRET.len()).any(|bytes| bytes == SECRET.as_bytes())
    };
    for keeps in [false, true] {
        fs::write(&config, format!("[sessions]\narguments = {keeps}\n")).unwrap();
        let options = ["--config", config.to_str().unwrap()];
        let daemon = Daemon::start(if keeps { &options } else { &[] });
        let fixture = Running::start(&program, &[SECRET]);
        for (options, kept) in [(&[][..], keeps), (&["--no-args"], false)] {
            let id = daemon.detached(options, fixture.pid()).to_string();
            let saved = dir.path().join("saved.ccsd");
            let ended = EndedProgram::of(daemon.ccsd(["daemon", "save", &id, "-o"]).arg(&saved));
            assert!(ended.status.success(), "{ended:?}");
            let report = daemon.run(&["report", "--json", &id]);
            assert_eq!((has(&saved), report.stdout.contains(SECRET)), (kept, kept), "{keeps} {options:?}");
            let report: Value = serde_json::from_str(&report.stdout).unwrap();
            assert_eq!(report["session"]["command"][0], program.to_str().unwrap());
        }
        for (options, kept) in [(&[][..], true), (&["--no-args"], false)] {
            let file = dir.path().join("own.ccsd");
            let pid = fixture.pid().to_string();
            let mut attach = daemon.ccsd(["attach", "--daemon", "-q", "--duration", "0.3", "-o"]);
            let ended = EndedProgram::of(attach.arg(&file).args(options).arg(&pid));
            assert!(ended.status.success(), "{ended:?}");
            assert_eq!(has(&file), kept, "attach {options:?}");
            let mut record = daemon.ccsd(["record", "--daemon", "-q", "-o"]);
            let ended = EndedProgram::of(record.arg(&file).args(options).args(["--", "sh", "-c", "exit 0", SECRET]));
            assert!(ended.status.success(), "{ended:?}");
            assert_eq!(has(&file), kept, "record {options:?}");
            // The recording daemon did not store them.
            assert!(!daemon.run(&["daemon", "status", "--json"]).stdout.contains(SECRET));
        }
    }
}

fn report_with_samples(daemon: &Daemon, name: &str) -> Value {
    loop {
        let ended = daemon.run(&["report", "--json", name]);
        assert!(ended.status.success(), "{ended:?}");
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        if report["accounting"]["received"].as_u64().unwrap() > 20 {
            return report;
        }
    }
}

fn a_detached_session() {
    let daemon = Daemon::start(&[]);
    let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let id = daemon.detached(&[], fixture.pid());
    let report = report_with_samples(&daemon, &id.to_string());
    assert_eq!(report["daemon_session"], id);
    assert_eq!(report["file"], Value::Null);
    assert_eq!(report["flat"]["rows"][0]["name"], "forever");
    let report = report_with_samples(&daemon, &fixture.pid().to_string());
    assert_eq!(report["daemon_session"], id);
    let session = daemon.session(id);
    assert_eq!((&session["ended"], &session["detached"]), (&Value::Null, &Value::Bool(true)), "{session}");
    assert_eq!(session["pids"][0], fixture.pid());
    // The client saves a running session, with its rights and in its directory.
    let dir = scratch();
    let file = dir.path().join("now.ccsd");
    let piped = daemon.ccsd(["daemon", "save", &id.to_string(), "-o", "-"]).output().unwrap();
    assert!(piped.status.success() && piped.stderr.is_empty(), "{}", String::from_utf8_lossy(&piped.stderr));
    assert!(ccsd_profile::read_profile(&piped.stdout[..]).unwrap().finished);
    let save =
        EndedProgram::of(daemon.ccsd(["daemon", "save", &id.to_string(), "-o", "now.ccsd"]).current_dir(dir.path()));
    assert!(save.status.success(), "{save:?}");
    let saved = Recorded::open(dir, &file, save);
    saved.assert_whole();
    assert!(saved.samples("forever").inherited > 20);
    fixture.go();
    let _ = fixture.end();
    until(|| daemon.session(id)["ended"] == "target");
    let report = report_with_samples(&daemon, &id.to_string());
    assert!(report["accounting"]["received"].as_u64().unwrap() >= saved.profile.accounting().received);
    let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let id = daemon.detached(&["-F", "49"], fixture.pid());
    assert_eq!(daemon.session(id)["rate_hz"], 49);
    daemon.run(&["daemon", "stop", &id.to_string(), "4999"]).assert_refused(2, &["no session 4999"]);
    assert!(daemon.session(id)["ended"].is_null());
    assert!(daemon.run(&["daemon", "stop", &format!("pid:{}", fixture.pid())]).status.success());
    until(|| daemon.session(id)["ended"] == "stopped");
    assert!(fixture.is_alive());
    let both = scratch();
    fs::write(both.path().join(id.to_string()), "").unwrap();
    let in_folder = |args: &[&str]| EndedProgram::of(daemon.ccsd(args).current_dir(both.path()));
    let (file, session) = (format!("./{id}"), format!("session:{id}"));
    in_folder(&["report", &id.to_string()]).assert_refused(2, &["may mean several things", &file, &session]);
    assert!(in_folder(&["report", &session]).status.success());
    let diff = in_folder(&["diff", "--json", &session, &session]);
    assert!(diff.stdout.contains(&format!("\"daemon_session\":{id}")), "{diff:?}");
    in_folder(&["report", "pid:999999999"]).assert_refused(2, &["no session is on process 999999999"]);
    in_folder(&["daemon", "stop", "profile.ccsd"]).assert_refused(2, &["is no session"]);
    let earlier = daemon.run(&["sessions", "--json"]);
    assert!(earlier.status.success() && earlier.stderr.contains("is now `ccsd daemon status`"), "{earlier:?}");
    for (command, parts) in [
        (vec!["daemon", "stop", "77"], vec!["no session 77", "ccsd daemon status"]),
        (vec!["daemon", "stop", &session, "77"], vec!["no session 77", "ccsd daemon status"]),
        (vec!["report", "77"], vec!["77", "ccsd attach --detach"]),
        (
            vec!["daemon", "save", "77", "-o", "/dev/null"],
            vec!["no session 77, and none on a process 77", "ccsd daemon status"],
        ),
        (
            vec!["top", "--plain", "--no-daemon", "session:3"],
            vec!["session:3 is a session of the daemon", "--no-daemon"],
        ),
        (vec!["attach", "--detach", "999999999"], vec!["no process with PID 999999999"]),
        (vec!["attach", "999999999", "--no-output"], vec!["no process with PID 999999999"]),
    ] {
        daemon.run(&command).assert_refused(2, &parts);
    }
    daemon.stop();
}

fn a_client_that_vanishes() {
    let mut daemon = Daemon::start(&["--grace", "1ms"]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_writes(1);
    report_with_samples(&daemon, "1");
    collecting.signal(Signal::SIGKILL);
    daemon.wait_until_it_says("session 1 has ended: its client went away");
    let report = report_with_samples(&daemon, "1");
    assert_eq!(report["flat"]["rows"][0]["name"], "forever");
}

fn json_lines(ended: &EndedProgram) -> Vec<Value> {
    assert!(ended.status.success(), "{ended:?}");
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn live_rows() {
    // A complete file is shown once, and again with its end.
    let weights = build("weights.c", &["-O1"]);
    let recorded = ccsd_tests::ccsd::RecordCommand::new(&weights, &["200"]).run();
    let file = recorded.file.to_str().unwrap();
    let lines = json_lines(&EndedProgram::of(&mut ccsd(["top", "--json", "-n", "3", file])));
    let last = lines.last().unwrap();
    assert_eq!(last["received"], recorded.profile.accounting().received);
    assert!(last["ended"].as_str().unwrap().contains("is complete"), "{last}");
    assert_eq!(last["rows"].as_array().unwrap().len(), 3);
    assert_eq!(last["rows"][0]["name"], recorded.names()[0]);
    let daemon = Daemon::start(&[]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let pid = fixture.pid().to_string();
    for by in ["--daemon", "--no-daemon"] {
        let lines = json_lines(&daemon.run(&["top", "--attach", "--json", "--duration", "300ms", by, &pid]));
        assert_eq!(lines.last().unwrap()["rows"][0]["name"], "forever", "{lines:?}");
        assert_eq!(daemon.sessions(), Vec::<Value>::new());
    }
    let id = daemon.detached(&[], fixture.pid());
    report_with_samples(&daemon, &id.to_string());
    let mut live = daemon.ccsd(["top", "--json", "--interval", &format!("session:{id}")]);
    let mut live = live.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(live.stdout.take().unwrap()).lines();
    let mut sum = 0;
    for _ in 0..3 {
        let line: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        sum += line["total"]["samples"].as_u64().unwrap();
        assert_eq!(line["received"], sum, "{line}");
    }
    live.kill().unwrap();
    live.wait().unwrap();
    for (name, part) in [("session:77", "there is no session 77"), ("no/such/file", "cannot open no/such/file")] {
        daemon.run(&["top", "--plain", name]).assert_refused(2, &[part]);
    }
}

fn without_a_daemon() {
    let dir = scratch();
    let nowhere = dir.path().join("nowhere.sock");
    let nowhere = nowhere.to_str().unwrap();
    let mut command = ccsd(["record", "--no-output", "-q", "--", "true"]);
    let ended = EndedProgram::of(command.env("CCSD_SOCKET", nowhere));
    assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(0), ""));
    for args in [
        vec!["daemon", "status", "--socket", nowhere],
        vec!["daemon", "stop", "1", "--socket", nowhere],
        vec!["attach", "--socket", nowhere, "--no-output", "1"],
        vec!["record", "--socket", nowhere, "--no-output", "--", "true"],
        vec!["attach", "--detach", "--socket", nowhere, "1"],
    ] {
        EndedProgram::of(&mut ccsd(&args)).assert_refused(2, &["no daemon at", nowhere, "ccsd daemon"]);
    }
    let ended = EndedProgram::of(&mut ccsd(["report", "77", "--socket", nowhere]));
    ended.assert_refused(2, &["no file 77", "no daemon at"]);
    let daemon = Daemon::start(&[]);
    daemon.halt();
    let ended = daemon.run(&["record", "--no-output", "--", "true"]);
    daemon.signal(Signal::SIGCONT);
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("does not answer; collecting in this process"), "{ended:?}");
}

fn one_daemon_to_a_socket() {
    let daemon = Daemon::start(&[]);
    let socket = daemon.socket.to_str().unwrap().to_owned();
    let ended = daemon.run(&["daemon", "--socket", &socket]);
    ended.assert_refused(2, &["another ccsd daemon serves", &socket]);
    assert_eq!(daemon.sessions(), Vec::<Value>::new());
    let (dir, _) = daemon.kill();
    assert!(dir.path().join("ccsd.sock").exists());
    let daemon = Daemon::start_in(dir, &["--socket-mode", "600"]);
    assert_eq!(fs::metadata(&daemon.socket).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(daemon.sessions(), Vec::<Value>::new());
    daemon.stop();
    let dir = scratch();
    let file = dir.path().join("diary");
    fs::write(&file, "dear diary").unwrap();
    let ended = EndedProgram::of(ccsd(["daemon", "--socket"]).arg(&file));
    ended.assert_refused(2, &["is no socket", "--socket"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "dear diary");
}

fn ending_the_daemon() {
    let daemon = Daemon::start(&[]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    report_with_samples(&daemon, "1");
    daemon.stop();
    let recorded = collecting.wait();
    assert!(recorded.ended.status.success(), "{:?}", recorded.ended);
    assert!(recorded.ended.stderr.contains("the daemon was stopped"), "{:?}", recorded.ended);
    recorded.assert_whole();
    assert!(recorded.samples("forever").inherited > 0);
}

fn killing_the_daemon() {
    let daemon = Daemon::start(&[]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let pid = fixture.pid();
    let mut collecting = daemon.attach(pid);
    collecting.wait_for_samples(20);
    let _dir = daemon.kill();
    let recorded = collecting.wait();
    assert!(recorded.ended.stderr.contains("went away"), "{:?}", recorded.ended);
    assert_eq!(recorded.ended.status.code(), Some(1), "{:?}", recorded.ended);
    recorded.assert_whole();
    assert!(recorded.samples("forever").inherited > 0);
    let notes = &recorded.profile.session().notes;
    assert!(notes.iter().any(|note| note.contains("ends early") && note.contains("went away")), "{notes:?}");
}

fn users_see_their_own() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let forever = build("forever.c", &["-O1"]);
    let roots = Running::start(&forever, &[]);
    let mut command = Command::new(&forever);
    let nobodys = Running::start_command(as_user(&mut command, NOBODY));
    let as_nobody = |args: &[&str]| EndedProgram::of(as_user(&mut daemon.ccsd(args), NOBODY));
    let of_root = daemon.detached(&[], roots.pid()).to_string();
    // Root's sessions are invisible to nobody, and root's processes may not be profiled.
    let ended = as_nobody(&["daemon", "status", "--json"]);
    assert!(ended.stdout.contains("\"sessions\":[]"), "{ended:?}");
    as_nobody(&["daemon", "stop", &of_root]).assert_refused(2, &["no session"]);
    as_nobody(&["report", &of_root]).assert_refused(2, &["neither a file nor a session"]);
    let ended = as_nobody(&["attach", "--detach", &roots.pid().to_string()]);
    ended.assert_refused(2, &["may not profile", "another user"]);
    let ended = as_nobody(&["attach", "--detach", &nobodys.pid().to_string()]);
    assert!(ended.status.success(), "{ended:?}");
    let own = ended.stdout.trim().to_owned();
    let list = as_nobody(&["daemon", "status", "--json"]);
    let list: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(list["sessions"].as_array().unwrap().len(), 1, "{list}");
    assert_eq!(list["sessions"][0]["owner_uid"], NOBODY);
    let paranoid: i32 = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap().trim().parse().unwrap();
    if paranoid > 1 {
        assert!(list["sessions"][0]["event"].as_str().unwrap().ends_with(":u"), "{list}");
        let ended = as_nobody(&["attach", "--detach", "--kernel", &nobodys.pid().to_string()]);
        ended.assert_refused(2, &["kernel stacks are refused"]);
    }
    let ended = as_nobody(&["attach", "--detach", "--per-cpu", &nobodys.pid().to_string()]);
    ended.assert_refused(2, &["sampling whole CPUs is refused"]);
    assert_eq!(report_with_samples(&daemon, &own)["flat"]["rows"][0]["name"], "forever");
    // Whose it is is said where it is somebody else's.
    let whose = format!("session {own} is of user {NOBODY}");
    let session = format!("session:{own}");
    assert!(daemon.run(&["report", &session]).stderr.contains(&whose));
    assert!(daemon.run(&["export", "folded", &own]).stderr.contains(&whose));
    let ended = as_nobody(&["report", &session]);
    assert!(ended.status.success() && !ended.stderr.contains("is of user"), "{ended:?}");
    assert!(as_nobody(&["daemon", "stop", &own]).status.success());
    assert_eq!(daemon.sessions().len(), 2);
    // A user without access to the socket is told so, and ccsd works without the daemon.
    let closed = Daemon::start(&["--socket-mode", "600"]);
    let ended = EndedProgram::of(as_user(&mut closed.ccsd(["daemon", "status"]), NOBODY));
    ended.assert_refused(2, &["not permitted to use the daemon", "group ccsd"]);
    let ended = EndedProgram::of(as_user(&mut closed.ccsd(["record", "--no-output", "--", "true"]), NOBODY));
    assert!(ended.status.success(), "{ended:?}");
    assert!(ended.stderr.contains("not permitted to use the daemon"), "{ended:?}");
}

fn privileged_exec() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    // A setuid copy of `forever`, which runs as root.
    let dir = scratch();
    let privileged = dir.path().join("privileged");
    copy_program(build("forever.c", &["-O1"]), &privileged);
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
    let script = "printf r; head -c1 >/dev/null; exec \"$0\"";
    let start = || {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&privileged);
        Running::start_command(as_user(&mut command, NOBODY))
    };
    let mut fixture = start();
    let pid = fixture.pid().to_string();
    let ended = EndedProgram::of(as_user(&mut daemon.ccsd(["attach", "--detach", &pid]), NOBODY));
    assert!(ended.status.success(), "{ended:?}");
    let id = ended.stdout.trim().to_owned();
    // It was nobody's shell when the session began; now it is root's.
    fixture.go();
    fixture.wait_until_told();
    let session = loop {
        let session = daemon.session(id.parse().unwrap());
        if !session["ended"].is_null() {
            break session;
        }
    };
    let why = session["ended"]["not_permitted"].as_str().unwrap();
    assert!([&*pid, "may not be profiled", "another user"].iter().all(|part| why.contains(part)), "{session}");
    let report = EndedProgram::of(as_user(&mut daemon.ccsd(["report", "--json", &id]), NOBODY));
    assert!(report.status.success(), "{report:?}");
    assert!(!report.stdout.contains("forever"), "{report:?}");
    // Starting a session now is refused; root may.
    let ended = EndedProgram::of(as_user(&mut daemon.ccsd(["attach", "--detach", &pid]), NOBODY));
    ended.assert_refused(2, &["may not profile", &pid]);
    let _ = daemon.detached(&[], fixture.pid());
    fixture.go();
    // Such a program runs to its end when recorded, with its exit status.
    let file = dir.path().join("recorded.ccsd");
    let mut command = daemon.ccsd(["record", "--daemon", "-o"]);
    let ended = EndedProgram::of(as_user(command.arg(&file).arg("--").arg(&privileged).arg("1500"), NOBODY));
    assert_eq!(ended.status.code(), Some(5), "{ended:?}");
    assert!(ended.stderr.contains("may not be profiled"), "{ended:?}");
    let recorded = Recorded::open(dir, &file, ended);
    assert_eq!(recorded.samples("forever").inherited, 0);
}

fn targets_that_end() {
    let daemon = Daemon::start(&[]);
    let mut outcomes = [0, 0];
    for i in 0..20u32 {
        // Some targets end before, some during, some after attaching.
        let script = format!("i=0; while [ $i -lt {} ]; do i=$((i+1)); done", i * 3000);
        let mut target = Command::new("sh").args(["-c", &script]).spawn().unwrap();
        let ended = daemon.run(&["attach", "--detach", &target.id().to_string()]);
        if ended.status.success() {
            outcomes[0] += 1;
        } else {
            outcomes[1] += 1;
            let known = [("no process with PID", 2), ("is a zombie", 2), ("exited while", 1)];
            let said = known.iter().find(|(part, _)| ended.stderr.contains(part));
            assert_eq!(said.map(|(_, status)| *status), ended.status.code(), "{ended:?}");
        }
        target.wait().unwrap();
    }
    // Sessions have ended with their targets, and no others exist.
    loop {
        let sessions = daemon.sessions();
        assert_eq!(sessions.len(), outcomes[0], "{outcomes:?}");
        if sessions.iter().all(|session| session["ended"] == "target") {
            break;
        }
    }
    // A process that executes another program stays in its session.
    let mut command = Command::new("sh");
    let mut fixture = Running::start_command(
        command.args(["-c", "printf r; head -c1 >/dev/null; exec sh -c 'printf r; head -c1 >/dev/null'"]),
    );
    let id = daemon.detached(&[], fixture.pid());
    fixture.go();
    fixture.wait_until_told();
    assert_eq!(daemon.session(id)["ended"], Value::Null);
    fixture.go();
    let _ = fixture.end();
    until(|| daemon.session(id)["ended"] == "target");
    daemon.stop();
}
