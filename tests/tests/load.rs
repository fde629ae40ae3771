//! Many sessions and clients: shared resources, and limits per user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::suite::{CC, Need, PYTHON, Suite};
use ccsd_tests::wait::until;
use nix::sys::signal::Signal;

fn main() -> ExitCode {
    Suite::new()
        .test("sessions_share_the_names_of_the_kernel", &[Need::Root], sessions_share)
        .test("a_user_s_sessions_are_limited", &[CC, Need::Root], memory_of_a_user)
        .test("sessions_leave_files_for_clients", &[Need::Root], files)
        .test("the_daemon_s_threads_are_favoured", &[Need::Root], favoured)
        .test("many_refusals_are_logged_in_few_lines", &[Need::Root, PYTHON], refusals)
        .test("the_journal_has_sessions_of_root_alone", &[Need::Root], sessions_in_the_journal)
        .run()
}

fn kib(daemon: &Daemon, line: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let line = status.lines().find_map(|found| found.strip_prefix(line)).unwrap();
    line.trim_matches([':', ' ', '\t']).trim_end_matches(" kB").parse().unwrap()
}

fn open_files(daemon: &Daemon) -> usize {
    fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count()
}

fn idle() -> Running {
    Running::start_command(Command::new("sh").args(["-c", "printf r; read line"]))
}

fn sessions_share() {
    const SESSIONS: u64 = 20;
    let daemon = Daemon::start(&[]);
    let targets: Vec<Running> = (0..=SESSIONS).map(|_| idle()).collect();
    // The first session loads shared data. Each has had its first update when it reports a duration.
    let attach = |target: &Running| {
        let id = daemon.detached(&["-F", "49"], target.pid());
        until(|| daemon.session(id)["duration_ns"] != 0);
    };
    attach(&targets[0]);
    let one = kib(&daemon, "VmRSS");
    targets[1..].iter().for_each(attach);
    let each = (kib(&daemon, "VmRSS") - one) / SESSIONS;
    // The kernel's symbols alone take 5 MiB, and took 7 while being read. Each session's own share is half a MiB.
    assert!(each < 3 << 10, "{each} KiB for each session");
    daemon.stop();
}

fn memory_of_a_user() {
    let dir = scratch();
    let config = dir.path().join("ccsd.toml");
    fs::write(&config, "[sessions]\nmemory_of_user = \"64MiB\"\n").unwrap();
    let daemon = Daemon::start(&["--socket-mode", "666", "--config", config.to_str().unwrap()]);
    let mut command = Command::new(build("forever.c", &["-O1"]));
    let fixture = Running::start_command(as_user(&mut command, NOBODY));
    let pid = fixture.pid().to_string();
    let as_nobody = |args: &[&str]| EndedProgram::of(as_user(&mut daemon.ccsd(args), NOBODY));
    // The rings alone take 4 MiB for each CPU and session, as long as they fit.
    let mut sessions = 0;
    let refused = loop {
        let ended = as_nobody(&["attach", "--detach", &pid]);
        if !ended.status.success() {
            break ended;
        }
        sessions += 1;
    };
    assert!(sessions > 0);
    // By memory or, if little was taken of it until then, by number.
    refused.assert_refused(2, &["are the most for one user", "ccsd daemon stop"]);
    let of_root = daemon.detached(&[], fixture.pid());
    let running = || daemon.sessions().into_iter().filter(|session| session["ended"].is_null());
    let of_nobody = running().filter(|session| session["owner_uid"] == NOBODY);
    let first = of_nobody.map(|session| session["id"].to_string()).next().unwrap();
    // After one ends another fits: its kept profile is dropped if necessary.
    assert!(as_nobody(&["daemon", "stop", &first]).status.success());
    let first: u64 = first.parse().unwrap();
    until(|| !running().any(|session| session["id"] == first));
    let ended = as_nobody(&["attach", "--detach", &pid]);
    assert!(ended.status.success(), "{ended:?}");
    assert_eq!(daemon.session(of_root)["ended"], serde_json::Value::Null);
}

fn files() {
    const LIMIT: usize = 700;
    let daemon = Daemon::start(&[]);
    let pid = daemon.pid().to_string();
    // SAFETY: prlimit(2) reads one rlimit, which is live, and writes none.
    let limited = unsafe {
        let limit = libc::rlimit { rlim_cur: LIMIT as u64, rlim_max: LIMIT as u64 };
        libc::prlimit(pid.parse().unwrap(), libc::RLIMIT_NOFILE, &raw const limit, std::ptr::null_mut())
    };
    assert_eq!(limited, 0);
    // On two CPUs 16 threads take a hundred files: available for one session, but not for each of ten.
    let mut targets: Vec<Running> = (0..16).map(|_| idle()).collect();
    let pids: Vec<String> = targets.iter().map(|target| target.pid().to_string()).collect();
    let mut sessions = 0;
    for _ in 0..10 {
        let ended = EndedProgram::of(daemon.ccsd(["attach", "--detach", "-F", "49"]).args(&pids));
        if ended.status.success() {
            sessions += 1;
        } else {
            assert!(ended.stderr.contains("files"), "{ended:?}");
        }
        let open = open_files(&daemon);
        assert!(open < LIMIT - 40, "{open} files are open with {sessions} sessions");
        assert_eq!(daemon.sessions().len(), sessions);
    }
    assert!(sessions > 1);
    assert!(targets.iter_mut().all(Running::is_alive));
}

fn favoured() {
    let daemon = Daemon::start(&[]);
    let target = idle();
    let _ = daemon.detached(&[], target.pid());
    let _waiting = daemon.connect();
    assert_eq!(daemon.sessions().len(), 1);
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        // The thread may have ended.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
        let (name, fields) = stat.rsplit_once(')').unwrap();
        let nice: i32 = fields.split_whitespace().nth(16).unwrap().parse().unwrap();
        // The sampling thread has real-time priority, or has exhausted it and waits.
        assert!(nice <= -10 || name.ends_with("(ccsd-sample"), "{name}) has {nice}");
    }
}

fn refusals() {
    let mut daemon = Daemon::start(&["--socket-mode", "666"]);
    // Three hundred more than one user may have. The script ends when all were answered.
    let script = "import socket, sys\n\
                  all = [socket.socket(socket.AF_UNIX) for _ in range(364)]\n\
                  for one in all: one.connect(sys.argv[1])\n\
                  for one in all[64:]: assert b'refused' in one.recv(4096)\n";
    let mut command = Command::new("python3");
    let ended = EndedProgram::of(as_user(command.args(["-c", script]).arg(&daemon.socket), NOBODY));
    assert!(ended.status.success(), "{ended:?}");
    daemon.signal(Signal::SIGTERM);
    let said = daemon.lines_until("ending");
    let said: Vec<&String> = said.iter().filter(|line| line.contains("refused")).collect();
    // One message at once, and one every ten seconds: seven on a machine that takes a minute.
    assert!((1..=8).contains(&said.len()), "{said:?}");
}

fn sessions_in_the_journal() {
    let mut daemon = Daemon::start(&["--socket-mode", "666"]);
    let dir = scratch();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    for user in [Some(NOBODY), None, Some(NOBODY)] {
        let mut command = daemon.ccsd(["record", "--daemon", "-o"]);
        command.arg(dir.path().join(format!("{user:?}.ccsd"))).args(["--", "true"]);
        if let Some(user) = user {
            as_user(&mut command, user);
        }
        assert!(EndedProgram::of(&mut command).status.success());
    }
    daemon.signal(Signal::SIGTERM);
    let said = daemon.lines_until("ending");
    let said: Vec<&String> = said.iter().filter(|line| line.contains("has ended")).collect();
    assert!(said.len() == 1 && said[0].contains("session 2 has ended"), "{said:?}");
}
