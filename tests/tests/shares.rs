//! What one user takes of the service is not missing to another one, nor to root.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::channel;

use ccsd_tests::ccsd::{EndedProgram, as_user, binary};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::suite::{CC, Need, PYTHON, Suite, UNSHARE, cpus};
use ccsd_tests::wait::until;
use nix::sys::signal::Signal;
use serde_json::Value;

fn main() -> ExitCode {
    const NEEDS: [Need; 2] = [PYTHON, Need::Root];
    Suite::new()
        .test("however_many_sessions_users_have_the_next_and_root_get_one", &NEEDS, sessions)
        .test("finished_sessions_of_users_drive_out_nobody_else_s", &NEEDS, finished)
        .test("one_user_s_events_leave_room_for_another", &[PYTHON, Need::Root, UNSHARE], files)
        .test("memory_that_users_lock_is_not_missing_to_root", &[PYTHON, Need::Root, UNSHARE], locked_memory)
        .test("events_that_threads_inherit_are_charged", &[PYTHON, Need::Root, UNSHARE], inherited_events)
        .test("connections_that_say_nothing_keep_nobody_out", &NEEDS, silent_connections)
        .test("slow_readers_of_forgotten_sessions_are_charged", &[CC, PYTHON, Need::Root], slow_readers)
        .test("cpu_time_for_a_user_s_sessions_is_not_missing_to_others", &NEEDS, cpu_time)
        .test("users_sessions_have_no_priority", &NEEDS, priority)
        .test("subordinate_ids_count_for_their_owner", &NEEDS, subordinate_ids)
        .test("a_client_s_going_is_not_lost_in_a_crowd", &[CC, PYTHON, Need::Root], crowd)
        .test("a_thread_that_hangs_is_named", &[Need::Root], hanging)
        .run()
}

/// Users that nothing else has.
const USERS: std::ops::Range<u32> = 61_001..61_100;

/// A client. Usage: SOCKET sessions COUNT PID: starts detached sessions until refused; finished COUNT PID: starts and ends
/// them; silent COUNT: opens connections; slow PID CONTEXTS: starts a session, waits until it has so many contexts, reads
/// nothing of it, ends and forgets it, and waits; crowd COUNT SESSION: connects, prints, waits, and reads the session by all
/// connections at once. Prints what it has got, and the first refusal.
const CLIENT: &str = r#"
import json, os, socket, struct, sys, time

def connect():
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(sys.argv[1])
    return stream

def say(stream, message):
    payload = json.dumps(message).encode()
    stream.sendall(b"C" + struct.pack("<I", len(payload)) + payload)

def exactly(stream, count):
    data = b""
    while len(data) < count:
        part = stream.recv(count - len(data))
        if not part: sys.exit("closed")
        data += part
    return data

def hear(stream):
    kind, length = struct.unpack("<cI", exactly(stream, 5))
    assert kind == b"C", kind
    return json.loads(exactly(stream, length))

def ask(stream, message):
    say(stream, message)
    return hear(stream)

def greeted():
    stream = connect()
    ask(stream, {"protocol": 1, "ccsd": "test", "pid": os.getpid()})
    return stream

def attach(stream, pid, **collect):
    return ask(stream, {"attach": {"pids": [int(pid)], "collect": {"rate_hz": 49, **collect}, "detach": True}})

def ended(stream, session):
    while True:
        listed = ask(stream, "list")["sessions"]["sessions"]
        if any(one["id"] == session and one["ended"] is not None for one in listed): return
        time.sleep(0.001)

def grown(stream, session, contexts):
    while True:
        listed = ask(stream, "list")["sessions"]["sessions"]
        if any(one["id"] == session and one["contexts"] >= contexts for one in listed): return
        time.sleep(0.01)

got, refused = [], None
what = sys.argv[2]
if what in ("sessions", "finished"):
    stream = greeted()
    for _ in range(int(sys.argv[3])):
        reply = attach(stream, sys.argv[4])
        if "refused" in reply:
            refused = reply["refused"]["message"]
            break
        got.append(reply["started"]["session"])
        if what == "finished":
            ask(stream, {"stop": {"session": got[-1]}})
            ended(stream, got[-1])
elif what == "silent":
    for _ in range(int(sys.argv[3])): got.append(connect())
    last = connect()
    refused = hear(last)["refused"]["message"]
    got = len(got)
elif what == "slow":
    reader, other = greeted(), greeted()
    session = attach(other, sys.argv[3], rate_hz=4999)["started"]["session"]
    grown(other, session, int(sys.argv[4]))
    say(reader, {"subscribe": {"session": session, "follow": True}})
    # The first byte has come: the snapshot is under way.
    exactly(reader, 1)
    ask(other, {"stop": {"session": session}})
    ended(other, session)
    ask(other, {"forget": {"session": session}})
    got.append(session)
elif what == "crowd":
    got = [greeted() for _ in range(int(sys.argv[3]))]
    print("{}", flush=True)
    sys.stdin.read(1)
    for reader in got: say(reader, {"subscribe": {"session": int(sys.argv[4]), "follow": True}})
    got = len(got)
print(json.dumps({"got": got, "refused": refused}), flush=True)
if what in ("silent", "slow", "crowd"): sys.stdin.read(1)
"#;

fn client(daemon: &Daemon, user: u32, args: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.args(["-c", CLIENT]).arg(&daemon.socket).args(args);
    as_user(&mut command, user);
    command
}

/// Runs a client to its end: how many it has got, and why not more.
fn run(daemon: &Daemon, user: u32, args: &[&str]) -> (usize, String) {
    let ended = EndedProgram::of(&mut client(daemon, user, args));
    assert!(ended.status.success(), "{ended:?}");
    let told: Value = serde_json::from_str(&ended.stdout).unwrap();
    (told["got"].as_array().unwrap().len(), told["refused"].as_str().unwrap_or_default().to_owned())
}

/// An idle process of a user's.
fn idle(user: u32) -> Running {
    Running::start_command(as_user(Command::new("sh").args(["-c", "printf r; read line"]), user))
}

/// One with that many threads beside the first.
fn threads(user: u32, count: usize) -> Running {
    let script = format!(
        "import os, sys, threading\n\
         stay = threading.Event()\n\
         for _ in range({count}): threading.Thread(target=stay.wait, daemon=True).start()\n\
         print('r', end='', flush=True)\n\
         sys.stdin.read(1)\n\
         os._exit(0)\n"
    );
    Running::start_command(as_user(Command::new("python3").args(["-c", &script]), user))
}

/// A user may have so much memory for each CPU: rings and events are on each.
fn daemon(mib_for_a_cpu: u64) -> Daemon {
    let dir = scratch();
    let config = dir.path().join("ccsd.toml");
    fs::write(&config, format!("[sessions]\nmemory_of_user = \"{}MiB\"\n", mib_for_a_cpu * cpus())).unwrap();
    Daemon::start(&["--socket-mode", "666", "--config", config.to_str().unwrap()])
}

fn sessions() {
    let daemon = daemon(32);
    let targets: Vec<(u32, Running)> = USERS.take(17).map(|user| (user, idle(user))).collect();
    let taken: Vec<(usize, String)> = targets
        .iter()
        .take(16)
        .map(|(user, target)| run(&daemon, *user, &["sessions", "17", &target.pid().to_string()]))
        .collect();
    let (first, why) = &taken[0];
    assert_eq!(*first, 16);
    assert!(why.starts_with("you already have 16 sessions, and 16 are the most for one user;"), "{why}");
    let (last, why) = &taken[15];
    assert!(*last >= 1 && why.starts_with("other users of this service have "), "{last} {why}");
    let all: usize = taken.iter().map(|(count, _)| count).sum();
    assert!((150..=192).contains(&all), "{all}");
    let (user, target) = &targets[16];
    assert!(run(&daemon, *user, &["sessions", "1", &target.pid().to_string()]).0 == 1);
    let of_root: Vec<u32> = (0..3).map(|_| daemon.detached(&["-F", "49"], target.pid())).collect();
    assert!(of_root.iter().all(|&id| daemon.session(id)["ended"].is_null()));
}

fn finished() {
    let daemon = daemon(512);
    let target = idle(USERS.start);
    let of_root = daemon.detached(&["-F", "49"], target.pid());
    assert!(daemon.run(&["daemon", "stop", &of_root.to_string()]).status.success());
    until(|| !daemon.session(of_root)["ended"].is_null());
    for user in USERS.take(5) {
        let target = idle(user);
        assert_eq!(run(&daemon, user, &["finished", "9", &target.pid().to_string()]).0, 9);
    }
    let mut kept = BTreeMap::new();
    for session in daemon.sessions() {
        *kept.entry(session["owner_uid"].as_u64().unwrap()).or_insert(0) += 1;
    }
    let expected = std::iter::once(0).chain(USERS.take(5)).map(|user| (u64::from(user), if user == 0 { 1 } else { 8 }));
    assert_eq!(kept, expected.collect());
}

fn files() {
    let limit = 2000 * cpus();
    let mut command = Command::new("prlimit");
    command.arg(format!("--nofile={limit}:{limit}")).arg(binary());
    let daemon = Daemon::start_by(scratch(), command, &["--socket-mode", "666"]);
    let [greedy, other] = [USERS.start, USERS.start + 1];
    // On two CPUs even the smallest layout takes two files for each thread.
    let large = threads(greedy, 600);
    let (got, why) = run(&daemon, greedy, &["sessions", "1", &large.pid().to_string()]);
    assert_eq!(got, 0);
    assert!(why.contains("you already have ") && why.contains(" open files for events and images, and "), "{why}");
    assert!(why.contains("the most for one user; `ccsd daemon stop ID` ends a session"), "{why}");
    assert!(!why.contains("ulimit") && !why.contains("raise"), "{why}");
    let several = threads(greedy, 20);
    let (got, why) = run(&daemon, greedy, &["sessions", "16", &several.pid().to_string()]);
    assert!((1..16).contains(&got), "{got}");
    assert!(why.contains("open files for events and images"), "{why}");
    let twenty = threads(other, 20);
    assert_eq!(run(&daemon, other, &["sessions", "1", &twenty.pid().to_string()]), (1, String::new()));
    // What is root's is not bounded by what is the users'.
    let _ = daemon.detached(&["-F", "49"], large.pid());
    for session in daemon.sessions().iter().filter(|session| session["owner_uid"] == greedy) {
        assert!(daemon.run(&["daemon", "stop", &session["id"].to_string()]).status.success());
    }
    let running = || daemon.sessions().into_iter().filter(|one| one["owner_uid"] == greedy && one["ended"].is_null());
    until(|| running().count() == 0);
    let (again, _) = run(&daemon, greedy, &["sessions", "16", &several.pid().to_string()]);
    assert_eq!(again, got);
}

fn locked_memory() {
    // Without the capability that lifts the limit, which root has.
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock"]);
    let limit = cpus() * (4 << 20);
    command.args(["prlimit", &format!("--memlock={limit}:{limit}")]).arg(binary());
    let daemon = Daemon::start_by(scratch(), command, &["--socket-mode", "666"]);
    let targets: Vec<(u32, Running)> = USERS.take(4).map(|user| (user, idle(user))).collect();
    for (user, target) in &targets {
        let (got, why) = run(&daemon, *user, &["sessions", "16", &target.pid().to_string()]);
        assert!(got >= 1 && why.contains(" of locked memory for rings"), "{got} {why}");
        assert!(!why.contains("sysctl") && !why.contains("ulimit"), "{why}");
    }
    let of_root: Vec<u32> = (0..8).map(|_| daemon.detached(&["-F", "49"], targets[0].1.pid())).collect();
    assert!(of_root.iter().all(|&id| daemon.session(id)["ended"].is_null()));
}

fn inherited_events() {
    let daemon = daemon(32);
    let user = USERS.start;
    let script = "import os, sys, threading\n\
                  stay = threading.Event()\n\
                  threading.stack_size(65536)\n\
                  print('r', end='', flush=True)\n\
                  sys.stdin.read(1)\n\
                  for _ in range(6000): threading.Thread(target=stay.wait, daemon=True).start()\n\
                  print('r', end='', flush=True)\n\
                  sys.stdin.read(1)\n\
                  os._exit(0)\n";
    let mut target = Running::start_command(as_user(Command::new("python3").args(["-c", script]), user));
    assert_eq!(run(&daemon, user, &["sessions", "1", &target.pid().to_string()]).0, 1);
    let id = u32::try_from(daemon.sessions()[0]["id"].as_u64().unwrap()).unwrap();
    target.go();
    target.wait_until_told();
    // Two events each are 40 MiB of the kernel's memory for each CPU, without a file.
    let why = || daemon.session(id)["ended"]["failed"].as_str().map(str::to_owned);
    let is_why =
        |why: String| why.contains("of the daemon's memory, and ") && why.contains(" are the most for one user");
    until(|| why().is_some_and(is_why));
    target.go();
    let _ = target.finish();
}

fn silent_connections() {
    let daemon = daemon(32);
    let mut silent = client(&daemon, USERS.start, &["silent", "64"]);
    let mut silent = WaitingClient::start(&mut silent);
    let told = silent.told();
    assert_eq!(told["got"], 64);
    let why = told["refused"].as_str().unwrap();
    assert_eq!(why, "you already have 64 connections, and 64 are the most for one user; try again later");
    let target = idle(USERS.start + 1);
    assert_eq!(run(&daemon, USERS.start + 1, &["sessions", "1", &target.pid().to_string()]).0, 1);
    assert_eq!(daemon.sessions().len(), 1);
    // Those that never speak are closed after a while, and each gives its place back.
    silent.end();
    assert_eq!(run(&daemon, USERS.start, &["sessions", "0", "1"]).0, 0);
}

/// A client that has printed its result and waits.
struct WaitingClient(Child);

impl WaitingClient {
    fn start(command: &mut Command) -> WaitingClient {
        WaitingClient(command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn told(&mut self) -> Value {
        let mut line = String::new();
        BufReader::new(self.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn go(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"g").unwrap();
    }

    fn end(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

impl Drop for WaitingClient {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn metric(daemon: &Daemon, name: &str) -> u64 {
    let ended = daemon.run(&["daemon", "metrics"]);
    let line = ended.stdout.lines().find_map(|line| line.strip_prefix(name)).expect("a metric");
    line.trim().parse().unwrap()
}

/// A program of many functions whose names cannot be compressed well, so that its profile does not fit a socket's buffer.
fn large_profile(dir: &Path) -> PathBuf {
    const FUNCTIONS: usize = 3000;
    let mut state = 1u64;
    let mut hex = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        format!("{:08x}", state >> 32)
    };
    let names: Vec<String> = (0..FUNCTIONS).map(|_| (0..60).map(|_| hex()).collect()).collect();
    let mut text = String::from("#include <poll.h>\n#include <stdio.h>\n");
    for name in &names {
        text += &format!("static void f{name}(void) {{ for (volatile int i = 0; i < 30000; i++); }}\n");
    }
    text += "int main(void) { setvbuf(stdout, 0, _IONBF, 0); putchar('r'); struct pollfd in = {0, POLLIN, 0};\n";
    text += "for (;;) { if (poll(&in, 1, 0) > 0) return 0;\n";
    for name in &names {
        text += &format!("f{name}();\n");
    }
    text += "} }\n";
    let (source, program) = (dir.join("large.c"), dir.join("large"));
    fs::write(&source, text).unwrap();
    assert!(Command::new("cc").arg("-o").args([&program, &source]).status().unwrap().success());
    program
}

fn slow_readers() {
    const NAME: &str = "ccsd_users_memory_bytes";
    let dir = scratch();
    let program = large_profile(dir.path());
    let daemon = daemon(32);
    let target = Running::start_command(as_user(&mut Command::new(program), USERS.start));
    assert_eq!(metric(&daemon, NAME), 0);
    let arguments = ["slow", &target.pid().to_string(), "2000"];
    let mut slow = WaitingClient::start(&mut client(&daemon, USERS.start, &arguments));
    let _ = slow.told();
    assert_eq!(daemon.sessions(), Vec::<Value>::new());
    let held = metric(&daemon, NAME);
    assert!(held > 2000 * 480, "{held}");
    slow.end();
    until(|| metric(&daemon, NAME) == 0);
}

fn cpu_time() {
    const MOST: &str = "2000";
    let daemon = daemon(128);
    let [first, second] = [USERS.start, USERS.start + 1];
    // To open the events of so many threads takes some milliseconds on a fast machine, too.
    let target = threads(first, 250);
    let (got, why) = run(&daemon, first, &["finished", MOST, &target.pid().to_string()]);
    assert!(got > 1 && why.contains(" of CPU time for requests and for starting and ending sessions"), "{got} {why}");
    let target = idle(second);
    assert_eq!(run(&daemon, second, &["finished", "1", &target.pid().to_string()]), (1, String::new()));
    assert!(daemon.session(daemon.detached(&["-F", "49"], target.pid()))["ended"].is_null());
}

fn priority() {
    let daemon = daemon(32);
    let user = USERS.start;
    let target = idle(user);
    assert_eq!(run(&daemon, user, &["sessions", "1", &target.pid().to_string()]).0, 1);
    let mut seen = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten() {
        // The thread may have ended.
        let Ok(stat) = fs::read_to_string(task.path().join("stat")) else { continue };
        let (name, fields) = stat.rsplit_once(") ").unwrap();
        let name = name.split_once('(').unwrap().1;
        if name.starts_with("ccsd-session") || ["ccsd-sample", "ccsd-aggregate"].contains(&name) {
            let fields: Vec<&str> = fields.split_whitespace().collect();
            // Nice value and scheduling policy: 0 is SCHED_OTHER. See proc_pid_stat(5).
            assert_eq!((fields[16], fields[38]), ("0", "0"), "{stat}");
            seen.push(name.to_owned());
        }
    }
    assert_eq!(seen.len(), 3, "{seen:?}");
}

struct Added {
    path: &'static str,
    before: String,
}

impl Added {
    fn to(path: &'static str, line: &str) -> Added {
        let before = fs::read_to_string(path).unwrap_or_default();
        fs::write(path, format!("{before}{line}\n")).unwrap();
        Added { path, before }
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        let _ = fs::write(self.path, &self.before);
    }
}

fn subordinate_ids() {
    let owner = USERS.start + 50;
    let _ranges = Added::to("/etc/subuid", &format!("{owner}:4000000:65536"));
    let daemon = daemon(512);
    let targets = [4_000_000, 4_000_001].map(|user| (user, idle(user)));
    for (user, target) in &targets {
        assert_eq!(run(&daemon, *user, &["sessions", "8", &target.pid().to_string()]).0, 8);
    }
    for user in [owner, 4_000_002] {
        let target = idle(user);
        let (got, why) = run(&daemon, user, &["sessions", "1", &target.pid().to_string()]);
        assert_eq!(got, 0);
        assert!(why.starts_with("you already have 16 sessions"), "{why}");
    }
}

fn crowd() {
    // More than the commands that a session may have waiting.
    const READERS: &str = "400";
    let daemon = Daemon::start(&["--grace", "1ms"]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let mut collecting = daemon.attach(fixture.pid());
    collecting.wait_for_writes(1);
    let session = daemon.sessions()[0]["id"].to_string();
    let mut readers = WaitingClient::start(&mut client(&daemon, 0, &["crowd", READERS, &session]));
    let _ = readers.told();
    daemon.halt();
    readers.go();
    assert_eq!(readers.told()["got"], 400);
    collecting.child.kill().unwrap();
    collecting.child.wait().unwrap();
    daemon.signal(Signal::SIGCONT);
    until(|| daemon.sessions()[0]["ended"] == "client_gone");
}

fn hanging() {
    let dir = scratch();
    let path = dir.path().join("notify");
    let notified = UnixDatagram::bind(&path).unwrap();
    let mut command = Command::new(binary());
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "2000000");
    let mut daemon = Daemon::start_by(scratch(), command, &[]);
    // Read at once: a full queue would hold the daemon up.
    let (messages, told) = channel();
    std::thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(length) = notified.recv(&mut message) {
            let text = String::from_utf8_lossy(&message[..length]).into_owned();
            if messages.send(text.starts_with("WATCHDOG=1")).is_err() {
                return;
            }
        }
    });
    let wait_for_ping = || while !told.recv().unwrap() {};
    wait_for_ping();
    let task = || {
        let mut tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().flatten();
        tasks.find(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "ccsd-table\n"))
    };
    // A thread that has just been started gives itself its name.
    until(|| task().is_some());
    let tid: i32 = task().unwrap().file_name().to_str().unwrap().parse().unwrap();
    let ptrace = |request| {
        // SAFETY: these requests of ptrace(2) take numbers, and change nothing in this process.
        assert_eq!(unsafe { libc::ptrace(request, tid, 0, 0) }, 0, "{request}");
    };
    ptrace(libc::PTRACE_SEIZE);
    ptrace(libc::PTRACE_INTERRUPT);
    daemon.wait_until_it_says("thread ccsd-table hangs");
    let _sent_before = told.try_iter().count();
    let pings: Vec<bool> = told.iter().take(3).collect();
    assert_eq!(pings, [false; 3]);
    ptrace(libc::PTRACE_DETACH);
    wait_for_ping();
    daemon.stop();
}
