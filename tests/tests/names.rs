//! Symbols in unusual places: stripped programs, with packed symbols or a separate file.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{Collecting, EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::{Running, build, scratch};
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, NM, Need, Suite, UNSHARE};
use serde_json::{Value, json};

const RATE: [&str; 2] = ["-F", "1999"];
const CHROOT: Need = Need::Program("chroot", "coreutils");
const XZ: Need = Need::Program("xz", "xz-utils");

fn main() -> ExitCode {
    Suite::new()
        .test("stripped", &[CC, NM], stripped)
        .test("without_tables", &[CC, NM], without_tables)
        .test("mini_debug_info", &[CC, NM, XZ], mini_debug_info)
        .test("debug_file_in_another_mount_namespace", &[CC, NM, UNSHARE, Need::Root], || {
            let (dir, at) = (scratch(), scratch());
            let _ = linked(&["-O1", "-g"], dir.path());
            // The mount is visible only to the program, and disappears with it.
            let script = format!(
                "mount -t tmpfs none {at} && cp {dir}/program {dir}/program.debug {at} && exec {at}/program now",
                at = at.path().display(),
                dir = dir.path().display()
            );
            let recorded = RecordCommand::new("unshare", &["--mount", "sh", "-c", &script]).options(&RATE).run();
            assert_named(&recorded);
        })
        .test("debug_file_in_another_root", &[CC, NM, CHROOT, Need::Root], || {
            let dir = scratch();
            let root = linked(&["-O1", "-g", "-static"], dir.path());
            assert_named(&RecordCommand::new("chroot", &[&root, "/program", "now"]).options(&RATE).run());
            let mut fixture = Running::start_command(Command::new("chroot").args([&root, "/program", "wait"]));
            let collecting = Collecting::attach_as(None, &RATE, &[fixture.pid()]);
            fixture.go();
            let _ = fixture.finish();
            assert_named(&collecting.wait());
        })
        .run()
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn objcopy(args: &[&str], from: &Path, to: &Path) {
    run(Command::new("objcopy").args(args).arg(from).arg(to));
}

/// Creates a stripped program in a directory, whose only source of names is a debug link. Returns the directory.
fn linked(args: &[&str], dir: &Path) -> String {
    let whole = build("images.c", &[args, &["-Wl,--build-id=none"]].concat());
    let (program, debug) = (dir.join("program"), dir.join("program.debug"));
    objcopy(&["--only-keep-debug"], &whole, &debug);
    objcopy(&["--strip-all", &format!("--add-gnu-debuglink={}", debug.display())], &whole, &program);
    dir.to_str().unwrap().to_owned()
}

fn assert_named(recorded: &Recorded) {
    recorded.assert_whole().assert_complete();
    recorded.assert_only_caller("image_work", "image_loop");
    recorded.assert_only_caller("main", "image_work");
    assert!(recorded.samples("image_loop").own > 300, "{:?}", recorded.names());
}

fn start(program: &Path, function: &str) -> u64 {
    let listing = run(Command::new("nm").arg(program));
    let line = listing.lines().find(|line| line.ends_with(&format!(" {function}"))).unwrap();
    u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
}

fn stripped() {
    let dir = scratch();
    let whole = build("images.c", &["-O1"]);
    let program = dir.path().join("program");
    objcopy(&["--strip-all"], &whole, &program);
    let recorded = RecordCommand::new(&program, &["now"]).options(&RATE).run();
    recorded.assert_whole().assert_complete();
    // Each function is one row, named by its start, for all its addresses.
    let name = |function| format!("program+{:#x}", start(&whole, function));
    let [main, work, inner] = ["main", "image_work", "image_loop"].map(name);
    recorded.assert_only_caller(&work, &inner);
    recorded.assert_only_caller(&main, &work);
    assert!(recorded.samples(&inner).own > 300, "{:?}", recorded.names());
    let in_program = recorded.names().into_iter().filter(|name| name.starts_with("program+")).count();
    assert!(in_program <= 12, "some of {:?} are parts of one function", recorded.names());
}

/// Without symbols and unwind tables every address is a row, which can be named later by its image's build id.
fn without_tables() {
    let dir = scratch();
    let whole = build(
        "images.c",
        &["-O1", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--build-id=0x0123456789abcdef"],
    );
    let program = dir.path().join("program");
    objcopy(&["--strip-all"], &whole, &program);
    let recorded = RecordCommand::new(&program, &["now"]).options(&RATE).run();
    recorded.assert_whole();
    let listing = run(Command::new("nm").arg("--numeric-sort").arg(&whole));
    let symbols: Vec<(u64, &str)> = listing
        .lines()
        .filter_map(|line| {
            let (address, rest) = line.split_once(' ')?;
            let (kind, name) = rest.split_once(' ')?;
            Some((u64::from_str_radix(address, 16).ok().filter(|_| "tT".contains(kind))?, name))
        })
        .collect();
    let report = EndedProgram::of(ccsd(["report", "--json", "-n", "0"]).arg(&recorded.file));
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    let mut own: BTreeMap<&str, u64> = BTreeMap::new();
    for row in report["flat"]["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let Some(address) = name.strip_prefix("program+0x") else { continue };
        let address = u64::from_str_radix(address, 16).unwrap();
        assert_eq!((&row["build_id"], &row["start"]), (&json!("0123456789abcdef"), &json!(address)), "{row}");
        let function = symbols.iter().rfind(|(start, _)| *start <= address).unwrap().1;
        *own.entry(function).or_default() += row["samples_self"].as_u64().unwrap();
    }
    assert!(own["image_loop"] > 300, "{own:?}");
    for function in ["main", "image_work"] {
        assert!(own.contains_key(function), "{function} is on no stack: {own:?}");
    }
}

fn mini_debug_info() {
    let dir = scratch();
    let whole = build("images.c", &["-O1"]);
    let path = |name: &str| -> PathBuf { dir.path().join(name) };
    objcopy(&["--only-keep-debug", "--strip-debug"], &whole, &path("names"));
    run(Command::new("xz").arg(path("names")));
    let section = format!(".gnu_debugdata={}", path("names.xz").display());
    objcopy(&["--strip-all", "--add-section", &section], &whole, &path("program"));
    assert!(!run(Command::new("nm").arg(&whole)).is_empty());
    fs::remove_file(path("names.xz")).unwrap();
    assert_named(&RecordCommand::new(path("program"), &["now"]).options(&RATE).run());
}
