//! Names that come later: a stripped program's profile, and debug files found elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::statistics::{SIGMAS, wilson};
use ccsd_tests::suite::{CC, CXX, Need, OPENSSL, PYTHON, Suite};
use serde_json::Value;
use tempfile::TempDir;

const DEBUGINFOD: Need = Need::Program("debuginfod", "debuginfod");

fn main() -> ExitCode {
    Suite::new()
        .test("from_debug_files_elsewhere", &[CC], from_debug_files)
        .test("inlined_functions_and_lines_from_debug_files", &[CXX], inlined_from_debug_files)
        .test("inlined_functions_and_lines_from_a_server", &[CXX, DEBUGINFOD], inlined_from_debuginfod)
        .test("lines_of_functions_that_a_stripped_library_exports", &[CC, CXX], exported_by_library)
        .test("every_reader_shows_inlined_functions", &[CXX], every_reader_shows_inlined)
        .test("from_a_debuginfod_server", &[CC, DEBUGINFOD], from_debuginfod)
        .test("from_a_server_by_https", &[CC, PYTHON, OPENSSL], from_debuginfod_by_https)
        .test("every_reader_names_what_is_at_hand", &[CC], every_reader)
        .test("only_a_file_of_the_build_id_names", &[CC], other_build_id)
        .test("where_nothing_is_named_it_says_why_by_image", &[CC], reasons_by_image)
        .test("where_all_have_names_it_says_so", &[CC], all_named)
        .test("an_address_that_cannot_be_asked_is_refused", &[CC], refused_address)
        .test("a_cut_profile_is_not_replaced_by_one_that_looks_whole", &[CC], cut_profile)
        .run()
}

/// The profile of a stripped program, and the debug file that it had not.
struct Stripped {
    dir: TempDir,
    profile: PathBuf,
    debug: PathBuf,
}

/// `ccsd record` of a program.
fn record_program(program: &Path, args: &[&str], profile: &Path) {
    record_with(program, args, profile, None);
}

/// The same with the directory of its libraries.
fn record_with(program: &Path, args: &[&str], profile: &Path, libraries: Option<&Path>) {
    let mut record = ccsd(["record", "-q", "--no-daemon", "-F", "1999", "-o"]);
    record.envs(libraries.map(|dir| ("LD_LIBRARY_PATH", dir)));
    let ended = EndedProgram::of(record.arg(profile).arg("--").arg(program).args(args));
    assert!(ended.status.success(), "{ended:?}");
}

impl Stripped {
    fn record() -> Stripped {
        Stripped::of(&build("images.c", &["-O1", "-g", "-Wl,--build-id=sha1"]), &["now"])
    }

    /// A program with much inlined, and the profile of it with its debug information.
    fn with_inlined() -> (Stripped, PathBuf) {
        let whole = build("inlining.cpp", &["-O2", "-g", "-Wl,--build-id=sha1"]);
        let stripped = Stripped::of(&whole, &[]);
        let named = stripped.path("whole.ccsd");
        record_program(&whole, &[], &named);
        (stripped, named)
    }

    /// The same in a library of which a program calls one function, so that it has the names that it exports; with the
    /// profile of the library with its debug information.
    fn library() -> (Stripped, PathBuf) {
        let flags = ["-O2", "-g", "-DLIBRARY", "-shared", "-fPIC", "-Wl,-soname=liball.so", "-Wl,--build-id=sha1"];
        let whole = build("inlining.cpp", &flags);
        let program = build("calls_work.c", &[whole.to_str().unwrap()]);
        let dir = scratch();
        for name in ["whole", "debug", "stripped"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let debug = dir.path().join("debug/liball.so.debug");
        fs::copy(&whole, dir.path().join("whole/liball.so")).unwrap();
        split(&whole, &debug, &dir.path().join("stripped/liball.so"));
        let [profile, named] = [("profile.ccsd", "stripped"), ("whole.ccsd", "whole")].map(|(name, libraries)| {
            let profile = dir.path().join(name);
            record_with(&program, &[], &profile, Some(&dir.path().join(libraries)));
            profile
        });
        (Stripped { dir, profile, debug }, named)
    }

    fn of(whole: &Path, args: &[&str]) -> Stripped {
        let dir = scratch();
        fs::create_dir(dir.path().join("debug")).unwrap();
        let [program, debug] = ["program", "debug/program.debug"].map(|name| dir.path().join(name));
        split(whole, &debug, &program);
        let profile = dir.path().join("profile.ccsd");
        record_program(&program, args, &profile);
        // As on another machine: the program is not there.
        fs::remove_file(program).unwrap();
        Stripped { dir, profile, debug }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn symbolize(&self, args: &[&str]) -> Command {
        let mut command = ccsd(["symbolize"]);
        command.args(args).arg(&self.profile).env_remove("DEBUGINFOD_URLS");
        // The directory around it is open to all users, in which ccsd makes no cache.
        fs::create_dir_all(self.path("cache")).unwrap();
        command.env("DEBUGINFOD_CACHE_PATH", self.path("cache")).env("no_proxy", "*").env_remove("http_proxy");
        command
    }
}

/// Splits a file into its debug information and the rest, as distributions do.
fn split(whole: &Path, debug: &Path, stripped: &Path) {
    for (option, to) in [("--only-keep-debug", debug), ("--strip-all", stripped)] {
        assert!(Command::new("objcopy").arg(option).arg(whole).arg(to).status().unwrap().success());
    }
}

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
    // A few samples may be in functions that are inlined: self weights move there, those of the functions around them stay.
    let sum = |rows: &[(String, u64, u64)]| rows.iter().map(|row| row.1).sum::<u64>();
    assert_eq!(sum(&before), sum(&after));
    for (name, _, total) in after.iter().filter(|row| ["main", "image_work", "image_loop"].contains(&row.0.as_str())) {
        assert!(before.iter().any(|row| row.0.starts_with("program+") && row.2 == *total), "{name}: {before:?}");
    }
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
    let again = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &other]));
    let nothing = ["0 functions named; ", "all functions have names already"];
    assert!(nothing.iter().any(|nothing| again.stdout.starts_with(nothing)), "{again:?}");
}

fn all_named() {
    let dir = scratch();
    let profile = dir.path().join("profile.ccsd");
    record_program(&build("images.c", &["-O1", "-static"]), &["now"], &profile);
    let before = fs::read(&profile).unwrap();
    let ended = EndedProgram::of(ccsd(["symbolize"]).arg(&profile).env_remove("DEBUGINFOD_URLS"));
    assert!(ended.status.success() && ended.stdout.starts_with("all functions have names already"), "{ended:?}");
    assert_eq!(fs::read(&profile).unwrap(), before, "the file is untouched");
}

/// A share of the samples on the one side has to be possible by those of the other: the two are different runs.
const ALLOWANCE: f64 = 0.1;
/// Functions and lines are compared if they surely have more than this share.
const THRESHOLD: f64 = 0.02;

/// Samples of a view's functions, or of their lines, by name and (for lines) place: self and inherited.
fn samples(profile: &Path, lines: bool) -> (BTreeMap<String, [u64; 2]>, u64) {
    let ended = EndedProgram::of(ccsd(["report", "--json", "--lines"]).arg(profile));
    assert!(ended.status.success(), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let mut samples: BTreeMap<String, [u64; 2]> = BTreeMap::new();
    let mut add = |name: String, row: &Value| {
        let sums = samples.entry(name).or_default();
        for (sum, key) in sums.iter_mut().zip(["samples", "inherited_samples"]) {
            *sum += row[key].as_u64().unwrap();
        }
    };
    for function in report["lines"]["functions"].as_array().unwrap() {
        let name = function["name"].as_str().unwrap();
        match lines {
            false => add(name.to_owned(), function),
            true => function["lines"].as_array().unwrap().iter().for_each(|line| {
                let file = line["file"].as_str().unwrap().rsplit('/').next().unwrap();
                add(format!("{name} {file}:{}", line["line"]), line);
            }),
        }
    }
    (samples, report["lines"]["total"]["samples"].as_u64().unwrap())
}

/// The profile of the stripped program has the functions and lines of that of the program with debug information, and their
/// shares.
fn assert_same(later: &Path, whole: &Path) {
    for lines in [false, true] {
        let ((later, later_total), (whole, whole_total)) = (samples(later, lines), samples(whole, lines));
        let is_clear = |sums: &[u64; 2], total| wilson(sums[1], total, SIGMAS).0 > THRESHOLD;
        let clear = later.iter().filter(|(_, sums)| is_clear(sums, later_total));
        let clear = clear.chain(whole.iter().filter(|(_, sums)| is_clear(sums, whole_total)));
        let names: Vec<&String> = clear.map(|(name, _)| name).collect();
        for name in &names {
            let of = |of: &BTreeMap<String, [u64; 2]>| of.get(*name).copied();
            let (Some(a), Some(b)) = (of(&later), of(&whole)) else {
                panic!("{name} is in one of them only: {later:?}; {whole:?}");
            };
            for which in [0, 1] {
                let (a, b) = (wilson(a[which], later_total, SIGMAS), wilson(b[which], whole_total, SIGMAS));
                let overlap = a.0 <= b.1 * (1.0 + ALLOWANCE) && b.0 <= a.1 * (1.0 + ALLOWANCE);
                assert!(overlap, "{name}: {a:?} and {b:?} of {later:?}; {whole:?}");
            }
        }
        // Inlined into `outer`, all of them.
        let inlined = [("method", 6), ("generic<int>", 9), ("generic<long>", 9), ("hidden", 14), ("{lambda", 19)];
        for (name, line) in inlined {
            let place = format!("inlining.cpp:{line}");
            let is_it = |it: &&String| it.contains(name) && (!lines || it.ends_with(&place));
            assert!(names.iter().any(is_it), "{name}: {names:?}");
        }
    }
}

fn inlined_from_debug_files() {
    let (stripped, whole) = Stripped::with_inlined();
    let before = samples(&stripped.profile, true);
    assert!(before.0.keys().all(|place| !place.contains("inlining.cpp")), "{before:?}");
    let named = stripped.path("named.ccsd");
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", named.to_str().unwrap()]));
    assert!(ended.status.success() && ended.stdout.contains(" functions named"), "{ended:?}");
    assert_same(&named, &whole);
    assert_eq!(samples(&named, false).1, before.1);
    // The time of each sample is still there.
    let part = |profile: &Path| {
        let mut report = ccsd(["report", "--json", "--flat", "--since", "+0s", "--until", "+1s"]);
        let ended = EndedProgram::of(report.arg(profile));
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        report["flat"]["total"]["samples"].as_u64().unwrap()
    };
    assert_eq!(part(&named), part(&stripped.profile));
}

fn exported_by_library() {
    let (stripped, whole) = Stripped::library();
    let (before, total) = samples(&stripped.profile, true);
    let outer = before.iter().find(|(place, _)| place.starts_with("geometry::outer() "));
    assert!(
        outer.is_some_and(|(place, sums)| !place.contains("inlining.cpp") && sums[1] * 10 > total * 9),
        "{before:?}"
    );
    let named = stripped.path("named.ccsd");
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", named.to_str().unwrap()]));
    let has_lines = ended.stdout.starts_with("lines of ") || ended.stdout.contains(" named, and lines of ");
    assert!(ended.status.success() && has_lines, "{ended:?}");
    assert_same(&named, &whole);
    assert_eq!(samples(&named, false).1, total);
    let unsymbolised = |profile: &Path| rows(profile).1["accounting"]["unsymbolised"].as_u64().unwrap();
    assert!(unsymbolised(&named) <= unsymbolised(&stripped.profile));
}

fn inlined_from_debuginfod() {
    let (stripped, whole) = Stripped::with_inlined();
    let (_server, url) = FileServer::start(&stripped);
    let named = stripped.path("named.ccsd");
    symbolize_by(&stripped, &url, &named);
    assert_same(&named, &whole);
}

/// Reports, exports and the rest with the debug file where elfutils keeps those that it has fetched.
fn every_reader_shows_inlined() {
    let (stripped, _) = Stripped::with_inlined();
    let cache = fetched(&stripped);
    let profile = stripped.profile.to_str().unwrap();
    for args in [
        &["report", "--flat", profile][..],
        &["report", "--lines", profile],
        &["export", "folded", profile],
        &["diff", profile, profile],
        &["annotate", "generic", profile],
        &["top", "--plain", "--no-daemon", profile],
    ] {
        let mut command = ccsd(args);
        let ended = EndedProgram::of(command.env("DEBUGINFOD_CACHE_PATH", &cache).env_remove("DEBUGINFOD_URLS"));
        assert!(ended.status.success() && ended.stdout.contains("generic<long>"), "{args:?}: {ended:?}");
    }
}

/// A cache of elfutils with the debug file of a program.
fn fetched(stripped: &Stripped) -> PathBuf {
    let output = Command::new("readelf").arg("-n").arg(&stripped.debug).output().unwrap();
    let notes = String::from_utf8(output.stdout).unwrap();
    let build_id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).unwrap();
    let cache = stripped.path("cache");
    fs::create_dir_all(cache.join(build_id)).unwrap();
    fs::copy(&stripped.debug, cache.join(build_id).join("debuginfo")).unwrap();
    cache
}

struct FileServer(Child);

impl FileServer {
    fn start(stripped: &Stripped) -> (FileServer, String) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let mut server = Command::new("debuginfod");
        server.args(["-d", ":memory:", "-p", &port, "-F"]).arg(stripped.debug.parent().unwrap());
        let server = FileServer(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        (server, format!("http://127.0.0.1:{port}"))
    }
}

/// `ccsd symbolize` by a server, which scans its directory first.
fn symbolize_by(stripped: &Stripped, url: &str, named: &Path) {
    let began = Instant::now();
    loop {
        let ended = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", url, "-o", named.to_str().unwrap()]));
        if ended.status.success() {
            return;
        }
        ended.assert_refused(2, &["no function could be named"]);
        assert!(began.elapsed() < Duration::from_secs(60), "{ended:?}");
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn from_debuginfod() {
    let stripped = Stripped::record();
    let (server, url) = FileServer::start(&stripped);
    let named = stripped.path("named.ccsd");
    symbolize_by(&stripped, &url, &named);
    assert_named(&stripped.profile, &named);
    drop(server);
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
    let cache = fetched(&stripped);
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
    ended.assert_refused(2, &["profile.ccsd: no function could be named, and the file is unchanged"]);
    let reason = "/program: ".to_owned() + stripped.debug.to_str().unwrap() + " is no file of build id ";
    assert!(ended.stderr.contains(&reason), "{ended:?}");
    assert_eq!(fs::read(&stripped.profile).unwrap(), before, "the file is untouched");
}

fn reasons_by_image() {
    let stripped = Stripped::record();
    let debug = fs::read(&stripped.debug).unwrap();
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let output = stripped.path("output.ccsd");
    let refused = |reason: &str| {
        let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", output.to_str().unwrap()]));
        ended.assert_refused(2, &["no function could be named, and nothing is written"]);
        let line = ended.stderr.lines().find(|line| line.contains("/program: ")).unwrap_or_default();
        assert!(line.contains(reason), "{reason:?}: {ended:?}");
        assert!(!output.exists());
    };
    fs::write(&stripped.debug, &debug[..debug.len() / 2]).unwrap();
    refused("program.debug is of its build, but has no names: it is stripped or damaged");
    fs::write(&stripped.debug, b"\x7fELF and so on").unwrap();
    refused("program.debug cannot be read: not an ELF file");
    fs::remove_file(&stripped.debug).unwrap();
    refused("no debug file with build id ");
    fs::write(&stripped.debug, &debug).unwrap();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", output.to_str().unwrap()]));
    assert!(ended.status.success() && output.exists(), "{ended:?}");
}

fn refused_address() {
    let stripped = Stripped::record();
    let refused = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", "ftp://localhost"]));
    refused.assert_refused(2, &["ftp://localhost", "begins with https:// or http://"]);
}

fn cut_profile() {
    let stripped = Stripped::record();
    let dir = stripped.debug.parent().unwrap().to_str().unwrap().to_owned();
    let missing = stripped.path("missing");
    let refused = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", missing.to_str().unwrap()]));
    refused.assert_refused(2, &["--debug-dir", "missing: there is no such directory"]);
    let whole = fs::read(&stripped.profile).unwrap();
    let cut = &whole[..whole.len() - 20];
    fs::write(&stripped.profile, cut).unwrap();
    let refused = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir]));
    refused.assert_refused(2, &["it has no end", "with -o what there is goes to another file"]);
    assert_eq!(fs::read(&stripped.profile).unwrap(), cut, "the file is untouched");
    let named = stripped.path("named.ccsd");
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debug-dir", &dir, "-o", named.to_str().unwrap()]));
    assert!(ended.status.success() && ended.stderr.contains("it has no end"), "{ended:?}");
    let report = EndedProgram::of(ccsd(["report"]).arg(&named));
    assert!(report.stderr.contains("named.ccsd has no end yet") && report.stdout.contains("image_loop"), "{report:?}");
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
    let mut server = FileServer(server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut port = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let url = format!("https://localhost:{}", port.trim());
    // Files of an untrusted user are not used.
    let before = fs::read(&stripped.profile).unwrap();
    let ended = EndedProgram::of(&mut stripped.symbolize(&["--debuginfod", &url]));
    ended.assert_refused(2, &["no function could be named"]);
    assert!(ended.stderr.contains("certificate"), "{ended:?}");
    assert_eq!(fs::read(&stripped.profile).unwrap(), before);
    let named = stripped.path("named.ccsd");
    let mut command = stripped.symbolize(&["--debuginfod", &url, "-o", named.to_str().unwrap()]);
    let ended = EndedProgram::of(command.env("SSL_CERT_FILE", &certificate));
    assert!(ended.status.success(), "{ended:?}");
    assert_named(&stripped.profile, &named);
}
