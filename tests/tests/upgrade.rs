//! What earlier versions have left goes on working: profiles, history, configuration, clients and daemons.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::scratch;
use ccsd_tests::suite::Suite;
use serde_json::{Value, json};

fn main() -> ExitCode {
    Suite::new()
        .test("profiles_of_every_version_are_one_history", &[], history)
        .test("a_configuration_with_every_key_of_0_1_0", &[], configuration)
        .test("a_daemon_of_version_1_is_asked_in_its_version", &[], daemon_before)
        .run()
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn history() {
    let dir = scratch();
    let watch = dir.path().join("web");
    fs::create_dir(&watch).unwrap();
    let mut of_all = 0;
    for version in 1..=3 {
        let golden = file(&format!("../collector/profile/tests/data/golden-v{version}.profile"));
        let report = EndedProgram::of(ccsd(["report", "--json"]).arg(&golden));
        of_all += total(&report);
        fs::copy(golden, watch.join(format!("19700101T00000{}Z.ccsd", version - 1))).unwrap();
    }
    let mut command = ccsd(["report", "--json", "--watch", "web", "--since", "1970-01-01", "--state-dir"]);
    assert_eq!(total(&EndedProgram::of(command.arg(dir.path()))), of_all);
}

fn total(report: &EndedProgram) -> u64 {
    assert!(report.status.success(), "{report:?}");
    let document: Value = serde_json::from_str(&report.stdout).unwrap();
    document["flat"]["total"]["samples"].as_u64().unwrap_or_else(|| panic!("{document}"))
}

fn configuration() {
    let mut command = ccsd(["daemon", "run", "--check-config", "--config"]);
    let checked = EndedProgram::of(command.arg(file("fixtures/upgrade/ccsd.toml")));
    assert!(checked.status.success() && checked.stdout.contains("nginx"), "{checked:?}");
}

/// A daemon that knows nothing of later versions: as before, messages have no numbers.
fn daemon_before() {
    let dir = scratch();
    let socket = dir.path().join("sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let daemon = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        let hello = hear(&mut client);
        // It would refuse any other number.
        assert_eq!(hello["protocol"], 1);
        say(&mut client, &json!({"protocol": 1, "ccsd": "0.1.0", "pid": std::process::id()}));
        assert_eq!(hear(&mut client), json!("list"));
        let session = json!({
            "id": 3, "owner_uid": 0, "target": "an-old-session", "pids": [7], "detached": true, "ended": null,
            "started_unix_ns": 1, "duration_ns": 2, "event": "cpu-clock", "rate_hz": 999, "received": 4, "lost": 5,
            "contexts": 6, "readers": 7, "bytes": 8
        });
        say(&mut client, &json!({"sessions": {"sessions": [session], "more": false}}));
        // What else it asks a daemon refuses.
        while let Some(_request) = hear_more(&mut client) {
            say(&mut client, &json!({"refused": {"kind": "not_permitted", "message": "no"}}));
        }
    });
    let mut command = ccsd(["daemon", "status", "--socket"]);
    let listed = EndedProgram::of(command.arg(&socket));
    assert!(listed.status.success() && listed.stdout.contains("an-old-session"), "{listed:?}");
    daemon.join().unwrap();
}

fn say(stream: &mut UnixStream, message: &Value) {
    let payload = message.to_string();
    let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
    stream.write_all(&[b"C", &length[..], payload.as_bytes()].concat()).unwrap();
}

fn hear(stream: &mut UnixStream) -> Value {
    hear_more(stream).unwrap()
}

fn hear_more(stream: &mut UnixStream) -> Option<Value> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).ok()?;
    let mut payload = vec![0; u32::from_le_bytes(header[1..].try_into().unwrap()) as usize];
    stream.read_exact(&mut payload).unwrap();
    Some(serde_json::from_slice(&payload).unwrap())
}
