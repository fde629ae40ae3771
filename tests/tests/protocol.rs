//! Whatever a client sends, and however it disconnects, the daemon answers or closes, and serves other clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitCode, Stdio};

use ccsd_tests::ccsd::{EndedProgram, NOBODY, as_user};
use ccsd_tests::daemon::Daemon;
use ccsd_tests::fixture::{Running, build};
use ccsd_tests::suite::{CC, Need, PYTHON, Suite};
use ccsd_tests::wait::until;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

fn main() -> ExitCode {
    Suite::new()
        .test("garbage_is_answered_and_ended", &[], garbage)
        .test("a_huge_length_takes_no_memory", &[], a_huge_length)
        .test("incomplete_messages_are_ignored", &[], half_messages)
        .test("another_version_is_told_of_both", &[], another_version)
        .test("requests_that_make_no_sense", &[], nonsense)
        .test("replies_have_the_numbers_of_their_requests", &[], numbers)
        .test("a_process_that_took_the_number_of_another", &[], another_process)
        .test("when_another_s_process_began_is_not_told", &[PYTHON, Need::Root], another_s_process)
        .test("a_client_written_from_the_document", &[CC, PYTHON], a_client_of_the_document)
        .test("idle_connections_do_no_harm", &[], idle_connections)
        .test("a_user_has_only_so_many_connections", &[Need::Root, PYTHON], connections_of_a_user)
        .test("thousands_of_connections_come_and_go", &[], come_and_go)
        .test("a_stopped_reader_holds_nobody_up", &[CC], a_stopped_reader)
        .test("a_reader_may_be_killed", &[CC], a_killed_reader)
        .run()
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![kind];
    frame.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

fn say(stream: &mut UnixStream, message: &Value) {
    stream.write_all(&frame(b'C', message.to_string().as_bytes())).unwrap();
}

fn hear(stream: &mut UnixStream) -> Option<Value> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).ok()?;
    assert_eq!(header[0], b'C');
    let mut payload = vec![0; u32::from_le_bytes(header[1..].try_into().unwrap()) as usize];
    stream.read_exact(&mut payload).unwrap();
    Some(serde_json::from_slice(&payload).unwrap())
}

fn greeted(daemon: &Daemon) -> UnixStream {
    let mut stream = daemon.connect();
    say(&mut stream, &json!({"protocol": 1, "ccsd": "test", "pid": std::process::id()}));
    assert_eq!(hear(&mut stream).unwrap()["protocol"], 1);
    stream
}

fn message_of(reply: Option<Value>) -> String {
    reply.unwrap()["refused"]["message"].as_str().unwrap().to_owned()
}

fn assert_serves(daemon: &Daemon) {
    assert_eq!(daemon.sessions(), Vec::<Value>::new());
}

fn garbage() {
    let daemon = Daemon::start(&[]);
    let mut stream = daemon.connect();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(message_of(hear(&mut stream)).contains("not a ccsd message"));
    assert_eq!(hear(&mut stream), None);
    // A fixed pseudo-random stream of bytes.
    let mut state = 1u64;
    for _ in 0..200 {
        let mut stream = daemon.connect();
        let bytes: Vec<u8> = (0..100)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as u8
            })
            .collect();
        // The daemon may close the connection before the end.
        let _ = stream.write_all(&bytes);
    }
    let mut stream = daemon.connect();
    stream.write_all(&frame(b'C', b"{\"protocol\": ")).unwrap();
    assert!(message_of(hear(&mut stream)).contains("not understood"));
    let mut stream = daemon.connect();
    stream.write_all(&frame(b'C', &[b'['; 60_000])).unwrap();
    assert!(message_of(hear(&mut stream)).contains("not understood"));
    let mut stream = daemon.connect();
    stream.write_all(&frame(b'S', b"profile")).unwrap();
    assert!(message_of(hear(&mut stream)).contains("a message was due"));
    assert_serves(&daemon);
}

fn a_huge_length() {
    let daemon = Daemon::start(&[]);
    for length in [u32::MAX, 65_537] {
        let mut stream = daemon.connect();
        stream.write_all(b"C").unwrap();
        stream.write_all(&length.to_le_bytes()).unwrap();
        let message = message_of(hear(&mut stream));
        assert!(message.contains(&length.to_string()) && message.contains("65536"), "{message}");
        assert_eq!(hear(&mut stream), None);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kilobytes: u64 = peak.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(kilobytes < 100_000, "{peak}");
    assert_serves(&daemon);
}

fn half_messages() {
    let daemon = Daemon::start(&[]);
    let hello = frame(b'C', json!({"protocol": 1, "ccsd": "test", "pid": 1}).to_string().as_bytes());
    for end in 0..hello.len() {
        let mut stream = daemon.connect();
        stream.write_all(&hello[..end]).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(hear(&mut stream), None);
    }
    assert_serves(&daemon);
}

fn another_version() {
    let daemon = Daemon::start(&[]);
    let mut stream = daemon.connect();
    say(&mut stream, &json!({"protocol": 999, "ccsd": "9.8.7", "pid": 1, "something": {"new": []}}));
    let hello = hear(&mut stream).unwrap();
    assert_eq!(hello["protocol"], 2);
    let message = message_of(hear(&mut stream));
    let own = hello["ccsd"].as_str().unwrap();
    for part in [own, "protocols 1 to 2", "9.8.7", "protocol 999", "--no-daemon"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(hear(&mut stream), None);
    assert_serves(&daemon);
}

fn nonsense() {
    let daemon = Daemon::start(&[]);
    let mut stream = greeted(&daemon);
    let collect = json!({"rate_hz": 99});
    for (request, part) in [
        (json!("unknown_request"), "not understood"),
        (json!({"stop": {}}), "not understood"),
        (json!({"stop": {"session": -1}}), "not understood"),
        (json!({"stop": {"session": 4_294_967_295u32}}), "no session 4294967295"),
        (json!({"forget": {"session": 0}}), "no session 0"),
        (json!({"subscribe": {"session": 5, "follow": true}}), "no session 5"),
        (json!({"attach": {"pids": [], "collect": collect}}), "1 to 1024 processes"),
        (json!({"attach": {"pids": (1..=1025).collect::<Vec<u32>>(), "collect": collect}}), "1 to 1024 processes"),
        (json!({"attach": {"pids": [4_294_967_295u32], "collect": collect}}), "no process"),
        (json!({"attach": {"pids": [0], "collect": collect}}), "no process"),
        (json!({"attach": {"pids": [1], "collect": {"rate_hz": 0}}}), "outside 1 to"),
        (json!({"attach": {"pids": [1], "collect": {"rate_hz": 99, "event": "nonsense"}}}), "nonsense"),
        (json!({"adopt": {"pid": 1, "command": [], "collect": collect}}), "not a child"),
        (json!({"adopt": {"pid": daemon.pid(), "command": [], "collect": collect}}), "ccsd itself"),
    ] {
        say(&mut stream, &request);
        let message = message_of(hear(&mut stream));
        assert!(message.contains(part), "{request}: {message}");
    }
    // A client that states another process id than the kernel is in another PID namespace.
    let mut stream = daemon.connect();
    say(&mut stream, &json!({"protocol": 1, "ccsd": "test", "pid": 1}));
    hear(&mut stream).unwrap();
    say(&mut stream, &json!({"attach": {"pids": [std::process::id()], "collect": {"rate_hz": 99}}}));
    assert!(message_of(hear(&mut stream)).contains("PID namespace"));
    assert_serves(&daemon);
}

fn greeted_anew(daemon: &Daemon) -> UnixStream {
    let mut stream = daemon.connect();
    say(&mut stream, &json!({"protocol": 1, "newest": 7, "ccsd": "test", "pid": std::process::id()}));
    assert_eq!(hear(&mut stream).unwrap()["protocol"], 2);
    stream
}

fn numbers() {
    let daemon = Daemon::start(&[]);
    let mut stream = greeted_anew(&daemon);
    for (request, id, part) in [
        (json!({"id": 7, "request": "list"}), 7, "sessions"),
        (json!({"id": u64::MAX, "request": "list"}), u64::MAX, "sessions"),
        (json!({"id": 8, "request": "dance"}), 8, "not understood"),
        (json!({"id": 9, "request": {"stop": {"session": 1}}}), 9, "no session 1"),
        (json!({"request": "list"}), 0, "not understood"),
        (json!("list"), 0, "not understood"),
        (json!({"id": 7, "request": "list", "mood": "good"}), 7, "sessions"),
    ] {
        say(&mut stream, &request);
        let answered = hear(&mut stream).unwrap();
        assert_eq!(answered["id"], id, "{request}");
        assert!(answered["reply"].to_string().contains(part), "{request}: {answered}");
    }
    let mut old = greeted(&daemon);
    say(&mut old, &json!("list"));
    assert_eq!(hear(&mut old).unwrap()["sessions"]["more"], false);
}

fn another_process() {
    let daemon = Daemon::start(&[]);
    let mut stream = greeted_anew(&daemon);
    let own = std::process::id();
    let start = start_of(own);
    let ask = |stream: &mut UnixStream, request: Value| {
        say(stream, &json!({"id": 1, "request": request}));
        hear(stream).unwrap()["reply"].clone()
    };
    let attach = |start: u64| json!({"attach": {"pids": [own], "starts": [start], "collect": {"rate_hz": 99}}});
    for request in [attach(start + 1), json!({"dump": {"pid": own, "start": start + 1}})] {
        let reply = ask(&mut stream, request);
        let message = reply["refused"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("PID {own} is another process by now")), "{message}");
    }
    assert_serves(&daemon);
    assert_eq!(ask(&mut stream, attach(start))["started"]["session"], 1);
}

/// A stranger who guesses when root's process started learns nothing, as on a machine where /proc does not show it.
fn another_s_process() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    let (own, start) = (std::process::id(), start_of(std::process::id()));
    let ask = "import sys; sys.path.insert(0, sys.argv[1]); import ccsd_client as c\n\
               for request in sys.argv[3:]:\n\
               \x20   try: print(list(c.Client(sys.argv[2]).answers(__import__('json').loads(request))))\n\
               \x20   except c.Refused as refused: print(refused)";
    let requests = [start, start + 1].into_iter().flat_map(|start| {
        let attach = json!({"attach": {"pids": [own], "starts": [start], "collect": {"rate_hz": 99}}});
        [attach.to_string(), json!({"dump": {"pid": own, "start": start}}).to_string()]
    });
    let mut command = Command::new("python3");
    command.args(["-B", "-c", ask, concat!(env!("CARGO_MANIFEST_DIR"), "/reader")]).arg(&daemon.socket).args(requests);
    let output = as_user(&mut command, NOBODY).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    let [attach, dump, attach_other, dump_other] = lines[..] else { panic!("{said} {:?}", output.stderr) };
    assert!(attach.contains("may not profile"), "{said}");
    assert_eq!((attach, dump), (attach_other, dump_other));
}

/// When a process started, clock ticks since boot.
fn start_of(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().split(' ').nth(19).unwrap().parse().unwrap()
}

fn a_client_of_the_document() {
    let daemon = Daemon::start(&[]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let session = daemon.detached(&[], fixture.pid());
    let client = |args: &[&str]| {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/reader/ccsd_client.py");
        let mut command = Command::new("python3");
        let ended = EndedProgram::of(command.arg(program).arg(&daemon.socket).args(args));
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_str::<Value>(&ended.stdout).unwrap()
    };
    let listed = client(&["list"]);
    assert_eq!((&listed[0]["id"], &listed[0]["pids"][0]), (&json!(session), &json!(fixture.pid())));
    let dump = client(&["dump", &fixture.pid().to_string()]);
    assert_eq!((&dump["pid"], &dump["threads"][0]["end"]), (&json!(fixture.pid()), &json!("complete")));
    until(|| daemon.session(session)["received"] != 0);
    let file = daemon.socket.with_file_name("streamed.ccsd");
    let said = daemon.run(&["daemon", "stop", &session.to_string()]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(client(&["stream", &session.to_string(), file.to_str().unwrap()]), json!("stopped"));
    let loaded = ccsd_profile::read_profile(std::fs::File::open(&file).unwrap()).unwrap();
    assert!(loaded.finished && loaded.profile.accounting().received > 0);
}

fn raise_file_limit() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
}

fn idle_connections() {
    raise_file_limit();
    let daemon = Daemon::start(&[]);
    let silent: Vec<UnixStream> = (0..500).map(|_| daemon.connect()).collect();
    let mut greeted: Vec<UnixStream> = (0..500).map(|_| greeted(&daemon)).collect();
    assert_serves(&daemon);
    let last = greeted.last_mut().unwrap();
    say(last, &json!("list"));
    assert_eq!(hear(last).unwrap()["sessions"]["more"], false);
    drop(silent);
    daemon.stop();
}

fn connections_of_a_user() {
    let daemon = Daemon::start(&["--socket-mode", "666"]);
    // Another program of that user holds 64.
    let script = "import socket, sys\nall = [socket.socket(socket.AF_UNIX) for _ in range(64)]\n\
                  for s in all: s.connect(sys.argv[1])\nprint('r', end='', flush=True)\nsys.stdin.read()";
    let mut python = std::process::Command::new("python3");
    let holder = Running::start_command(as_user(python.args(["-c", script]).arg(&daemon.socket), NOBODY));
    let ended = EndedProgram::of(as_user(&mut daemon.ccsd(["daemon", "status"]), NOBODY));
    ended.assert_refused(2, &["64 connections"]);
    assert_serves(&daemon);
    drop(holder);
    until(|| EndedProgram::of(as_user(&mut daemon.ccsd(["daemon", "status"]), NOBODY)).status.success());
}

fn come_and_go() {
    let daemon = Daemon::start(&[]);
    for _ in 0..3_000 {
        drop(daemon.connect());
    }
    assert_serves(&daemon);
    let threads = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    // The threads end when they find their clients gone.
    until(|| threads() <= 10);
}

fn reader(daemon: &Daemon, session: u32) -> std::process::Child {
    let mut command = daemon.ccsd(["top", "--json"]);
    command.arg(format!("session:{session}")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn lines(child: &mut std::process::Child, count: usize) {
    let mut byte = [0];
    let mut seen = 0;
    let stdout = child.stdout.as_mut().unwrap();
    while seen < count {
        stdout.read_exact(&mut byte).expect("a reader has ended early");
        seen += usize::from(byte == *b"\n");
    }
}

fn a_stopped_reader() {
    let daemon = Daemon::start(&[]);
    let mut fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let session = daemon.detached(&[], fixture.pid());
    let mut readers: Vec<std::process::Child> = (0..4).map(|_| reader(&daemon, session)).collect();
    for reader in &mut readers {
        lines(reader, 1);
    }
    let pid = |child: &std::process::Child| Pid::from_raw(child.id().cast_signed());
    kill(pid(&readers[0]), Signal::SIGSTOP).unwrap();
    kill(pid(&readers[1]), Signal::SIGSTOP).unwrap();
    for reader in &mut readers[2..] {
        lines(reader, 2);
    }
    fixture.go();
    let _ = fixture.end();
    until(|| daemon.session(session)["ended"] == "target");
    let received = daemon.session(session)["received"].as_u64().unwrap();
    for reader in &readers[..2] {
        kill(pid(reader), Signal::SIGCONT).unwrap();
    }
    for mut reader in readers {
        let mut text = String::new();
        reader.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        assert!(reader.wait().unwrap().success());
        let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!(last["received"].as_u64(), Some(received), "{last}");
    }
}

fn a_killed_reader() {
    let daemon = Daemon::start(&[]);
    let fixture = Running::start(&build("forever.c", &["-O1"]), &[]);
    let session = daemon.detached(&[], fixture.pid());
    let (mut victim, mut other) = (reader(&daemon, session), reader(&daemon, session));
    lines(&mut victim, 1);
    victim.kill().unwrap();
    victim.wait().unwrap();
    lines(&mut other, 3);
    until(|| daemon.session(session)["readers"] == 1);
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(daemon.session(session)["ended"], Value::Null);
}
