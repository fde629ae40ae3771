//! Names that come later: a stripped program's profile, and debug files found elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::suite::{CC, Need, OPENSSL, PYTHON, Suite};
use serde_json::Value;
use tempfile::TempDir;

const DEBUGINFOD: Need = Need::Program("debuginfod", "debuginfod");

fn main() -> ExitCode {
    Suite::new()
        .test("from_debug_files_elsewhere", &[CC], from_debug_files)
        .test("from_a_debuginfod_server", &[CC, DEBUGINFOD], from_debuginfod)
        .test("from_a_server_by_https", &[CC, PYTHON, OPENSSL], from_debuginfod_by_https)
        .test("every_reader_names_what_is_at_hand", &[CC], every_reader)
        .test("only_a_file_of_the_build_id_names", &[CC], other_build_id)
        .test("an_address_that_cannot_be_asked_is_refused", &[CC], refused_address)
        .run()
}

/// The profile of a stripped program, and the debug file that it had not.
struct Stripped {
    dir: TempDir,
    profile: PathBuf,
    debug: PathBuf,
}

impl Stripped {
    fn record() -> Stripped {
        let dir = scratch();
        let whole = build("images.c", &["-O1", "-g", "-Wl,--build-id=sha1"]);
        fs::create_dir(dir.path().join("debug")).unwrap();
        let [program, debug] = ["program", "debug/program.debug"].map(|name| dir.path().join(name));
        for (option, to) in [("--only-keep-debug", &debug), ("--strip-all", &program)] {
            assert!(Command::new("objcopy").arg(option).arg(&whole).arg(to).status().unwrap().success());
        }
        let profile = dir.path().join("profile.ccsd");
        let mut record = ccsd(["record", "-q", "--no-daemon", "-F", "999", "-o"]);
        let ended = EndedProgram::of(record.arg(&profile).arg("--").arg(&program).arg("now"));
        assert!(ended.status.success(), "{ended:?}");
        // As on another machine: the program is not there.
        fs::remove_file(program).unwrap();
        Stripped { dir, profile, debug }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `ccsd symbolize`, which knows no server and has a cache of its own.
    fn symbolize(&self, args: &[&str]) -> Command {
        let mut command = ccsd(["symbolize"]);
        command.args(args).arg(&self.profile).env_remove("DEBUGINFOD_URLS");
        command.env("DEBUGINFOD_CACHE_PATH", self.path("cache")).env("no_proxy", "*").env_remove("http_proxy");
        command
    }
}

/// Rows of the flat profile: name, self weight, inherited weight.
fn rows(profile: &Path) -> (Vec<(String, u64, u64)>, Value) {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).arg(profile).env_remove("DEBUGINFOD_CACHE_PATH"));
    assert!(ended.status.success(), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let row = |row: &Value| {
        let weight = |name: &str| row[name].as_u64().unwrap();
        (row["name"].as_str().unwrap().to_owned(), weight("self_weight"), weight("inherited_weight"))
    };
    let mut rows: Vec<_> = report["flat"]["rows"].as_array().unwrap().iter().map(row).collect();
    rows.sort_by(|a, b| (a.1, a.2, &a.0).cmp(&(b.1, b.2, &b.0)));
    (rows, report)
}

/// Every function of the program has its name, and all weights are as they were.
fn assert_named(before: &Path, after: &Path) {
    let ((before, old), (after, new)) = (rows(before), rows(after));
    let of_program = |rows: &[(String, u64, u64)]| rows.iter().filter(|row| row.0.starts_with("program+")).count();
    assert!(of_program(&before) >= 3, "{before:?}");
    // What the linker made has no name.
    assert!(of_program(&after) <= 1, "{after:?}");
    for name in ["main", "image_work", "image_loop"] {
        assert!(after.iter().any(|row| row.0 == name), "{name}: {after:?}");
        assert!(!before.iter().any(|row| row.0 == name), "{name}: {before:?}");
    }
    let weights = |rows: &[(String, u64, u64)]| rows.iter().map(|row| (row.1, row.2)).collect::<Vec<_>>();
    assert_eq!(weights(&before), weights(&after));
    assert_eq!(old["accounting"]["received"], new["accounting"]["received"]);
    let unsymbolised = |report: &Value| report["accounting"]["unsymbolised"].as_u64().unwrap();
    assert!(unsymbolised(&new) * 2 < unsymbolised(&old), "{} of {}", unsymbolised(&new), unsymbolised(&old));
}

fn from_debug_files() {
    let stripped = Stripped::record();
    let named = stripped.path("named.ccsd");
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", named.to_str().unwrap()]));
    assert!(ended.status.success() && ended.stdout.contains(" functions named"), "{ended:?}");
    assert_named(&stripped.profile, &named);
    // By build id, and in place; times are still there.
    let whole = fs::read(&stripped.debug).unwrap();
    let note = EndedProgram::of(Command::new("readelf").arg("-n").arg(&stripped.debug)).stdout;
    let id = note.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap().to_owned();
    let place = stripped.path(&format!("other/.build-id/{}", &id[..2]));
    fs::create_dir_all(&place).unwrap();
    fs::write(place.join(format!("{}.debug", &id[2..])), whole).unwrap();
    let original = stripped.path("original.ccsd");
    fs::copy(&stripped.profile, &original).unwrap();
    let other = stripped.path("other").to_str().unwrap().to_owned();
    assert!(EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &other])).status.success());
    assert_named(&original, &stripped.profile);
    let part = EndedProgram::of(ccsd(["report", "--since", "+0s", "--until", "+1h"]).arg(&stripped.profile));
    assert!(part.status.success() && part.stdout.contains("image_loop"), "{part:?}");
    // Nothing is left to be named.
    let again = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &other]));
    assert!(again.stdout.starts_with("0 functions named"), "{again:?}");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn from_debuginfod() {
    let stripped = Stripped::record();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let mut server = Command::new("debuginfod");
    server.args(["-d", ":memory:", "-p", &port, "-F"]).arg(stripped.debug.parent().unwrap());
    let _server = Server(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let url = format!("http://127.0.0.1:{port}");
    let named = stripped.path("named.ccsd");
    let began = Instant::now();
    // It scans its directory first.
    loop {
        let ended = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", &url, "-o", named.to_str().unwrap()]));
        assert!(ended.status.success(), "{ended:?}");
        if !ended.stdout.starts_with("0 functions") {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{ended:?}");
    }
    assert_named(&stripped.profile, &named);
    drop(_server);
    // From the cache, by the variable of elfutils.
    let again = stripped.path("again.ccsd");
    let mut command = stripped.symbolize(&["-o", again.to_str().unwrap()]);
    let ended = EndedProgram::of(command.env("DEBUGINFOD_URLS", &url));
    assert!(ended.status.success() && !ended.stdout.starts_with("0 functions"), "{ended:?}");
    assert_named(&stripped.profile, &again);
}

/// With the debug file where elfutils keeps those that it has fetched.
fn every_reader() {
    let stripped = Stripped::record();
    let output = Command::new("readelf").arg("-n").arg(&stripped.debug).output().unwrap();
    let notes = String::from_utf8(output.stdout).unwrap();
    let build_id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap();
    let cache = stripped.path("cache");
    fs::create_dir_all(cache.join(build_id)).unwrap();
    fs::copy(&stripped.debug, cache.join(build_id).join("debuginfo")).unwrap();
    let named = stripped.path("named.ccsd");
    let ended = EndedProgram::of(&mut stripped.symbolize(&["-o", named.to_str().unwrap()]));
    assert!(ended.status.success() && !ended.stdout.starts_with("0 functions"), "{ended:?}");
    let names = |(rows, _): (Vec<(String, u64, u64)>, Value)| rows.into_iter().map(|row| row.0).collect::<Vec<_>>();
    let (before, after) = (names(rows(&stripped.profile)), names(rows(&named)));
    let new = after.iter().find(|name| !before.contains(name)).unwrap();
    let profile = stripped.profile.to_str().unwrap();
    for args in [
        &["report", profile][..],
        &["export", "csv", profile],
        &["export", "folded", profile],
        &["export", "speedscope", "-o", "-", profile],
        &["diff", profile, profile],
    ] {
        let mut command = ccsd(args);
        let ended = EndedProgram::of(command.env("DEBUGINFOD_CACHE_PATH", &cache).env_remove("DEBUGINFOD_URLS"));
        assert!(ended.status.success() && ended.stdout.contains(new), "{args:?}: {ended:?}");
    }
}

fn other_build_id() {
    let stripped = Stripped::record();
    let other = build("images.c", &["-O2", "-g", "-Wl,--build-id=0x0123456789abcdef"]);
    fs::copy(other, &stripped.debug).unwrap();
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let before = fs::read(&stripped.profile).unwrap();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir]));
    assert!(ended.status.success() && ended.stdout.contains("0 functions named; "), "{ended:?}");
    assert_eq!(fs::read(&stripped.profile).unwrap(), before, "the file is untouched");
}

fn refused_address() {
    let stripped = Stripped::record();
    let refused = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", "ftp://localhost"]));
    refused.assert_refused(2, &["ftp://localhost", "begins with https:// or http://"]);
}

/// Serves a directory by TLS: directory, certificate and key; prints the port.
const HTTPS: &str = "
import functools, http.server, ssl, sys
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=sys.argv[1])
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2], sys.argv[3])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
";

fn from_debuginfod_by_https() {
    let stripped = Stripped::record();
    let (certificate, key) = (stripped.path("cert.pem"), stripped.path("key.pem"));
    let mut command = Command::new("openssl");
    command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
    command
        .args(["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate);
    assert!(EndedProgram::of(&mut command).status.success());
    let note = EndedProgram::of(Command::new("readelf").arg("-n").arg(&stripped.debug)).stdout;
    let id = note.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap().to_owned();
    let place = stripped.path(&format!("served/buildid/{id}"));
    fs::create_dir_all(&place).unwrap();
    fs::copy(&stripped.debug, place.join("debuginfo")).unwrap();
    let mut server = Command::new("python3");
    server.args(["-c", HTTPS]).arg(stripped.path("served")).arg(&certificate).arg(&key);
    let mut server = Server(server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("https://localhost:{}", port.trim());
    // Whom nobody trusts is not believed.
    let before = fs::read(&stripped.profile).unwrap();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", &url]));
    assert!(ended.stdout.starts_with("0 functions") && ended.stderr.contains("certificate"), "{ended:?}");
    assert_eq!(fs::read(&stripped.profile).unwrap(), before);
    let named = stripped.path("named.ccsd");
    let mut command = stripped.symbolize(&["--debuginfod", &url, "-o", named.to_str().unwrap()]);
    let ended = EndedProgram::of(command.env("SSL_CERT_FILE", &certificate));
    assert!(ended.status.success(), "{ended:?}");
    assert_named(&stripped.profile, &named);
}
