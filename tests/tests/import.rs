//! `ccsd import`: what perf has recorded is what perf says it is.
// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{Ended, ccsd};
use ccsd_tests::fixture::{build, copy_program, scratch};
use ccsd_tests::suite::{CC, PERF, Suite};
use serde_json::Value;

/// Samples in which a function runs, and in which it is on the stack.
type Counts = BTreeMap<String, (u64, u64)>;

const FLAGS: [&str; 4] = ["-O1", "-g", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

fn main() -> ExitCode {
    Suite::new()
        .test("frame_pointers_as_perf_has_them", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g"]);
            agree(&data, &import(&data));
        })
        .test("stack_bytes_as_perf_unwinds_them", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["--call-graph", "dwarf,32768"]);
            let profile = import(&data);
            agree(&data, &profile);
            let document = report(&profile);
            let accounting = &document["accounting"];
            assert_eq!((&accounting["truncated"], &accounting["with_gap"]), (&0.into(), &0.into()), "{accounting}");
        })
        .test("without_stacks", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &[]);
            agree(&data, &import(&data));
        })
        .test("a_program_that_was_built_anew_gives_no_names", &[CC, PERF], || {
            let dir = scratch();
            let program = dir.path().join("program");
            copy_program(build("recursion.c", &FLAGS), &program);
            let data = record_of(&program, dir.path(), &["-g"]);
            fs::remove_file(&program).unwrap();
            fs::copy(build("weights.c", &["-O1"]), &program).unwrap();
            let ended = Ended::of(ccsd(["import"]).arg(&data).arg("-o").arg(dir.path().join("p.ccsd")));
            assert!(ended.status.success(), "{ended:?}");
            let note = ended.stdout.lines().find(|line| line.contains("not as they were when recorded"));
            assert!(note.is_some_and(|note| note.contains("program")), "{}", ended.stdout);
            assert!(!ended.stdout.contains("weight_"), "{}", ended.stdout);
        })
        .test("what_is_damaged_is_told", &[CC, PERF], || {
            let dir = scratch();
            let data = record(dir.path(), &["-g"]);
            let whole = fs::read(&data).unwrap();
            let damaged = dir.path().join("damaged.data");
            let profile = dir.path().join("damaged.ccsd");
            let import = |bytes: &[u8]| {
                fs::write(&damaged, bytes).unwrap();
                let _ = fs::remove_file(&profile);
                let ended = Ended::of(ccsd(["import"]).arg(&damaged).arg("-o").arg(&profile));
                match ended.status.code() {
                    Some(0) => {}
                    Some(2) => {
                        ended.assert_refused(2, &["damaged.data"]);
                        assert!(!profile.exists(), "{ended:?}");
                    }
                    _ => panic!("{ended:?}"),
                }
                ended
            };
            for part in 0..10 {
                import(&whole[..whole.len() * part / 10]);
            }
            // Every word of the header, and some of the rest.
            let mut seed = 1u64;
            for at in (0..104).step_by(8).chain((104..whole.len() - 8).step_by(whole.len() / 15 / 8 * 8)) {
                let mut bytes = whole.clone();
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let word = [seed.to_le_bytes(), u64::MAX.to_le_bytes()][at / 8 % 2];
                bytes[at..at + 8].copy_from_slice(&word);
                import(&bytes);
            }
            let is_none = import(
                b"this is no perf.data file, and long enough for the header of one, which has a hundred and four bytes",
            );
            is_none.assert_refused(2, &["no perf.data file"]);
        })
        .run()
}

fn record(dir: &Path, options: &[&str]) -> PathBuf {
    record_of(&build("recursion.c", &FLAGS), dir, options)
}

fn record_of(program: &Path, dir: &Path, options: &[&str]) -> PathBuf {
    let data = dir.join("perf.data");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", "cpu-clock", "-F", "999"]).args(options).arg("-o").arg(&data);
    let ended = Ended::of(perf.arg("--").arg(program).args(["three", "30", "20"]));
    assert!(ended.status.success(), "{ended:?}");
    data
}

fn import(data: &Path) -> PathBuf {
    let profile = data.with_extension("ccsd");
    let ended = Ended::of(ccsd(["import"]).arg(data).arg("-o").arg(&profile));
    assert!(ended.status.success(), "{ended:?}");
    profile
}

fn report(profile: &Path) -> Value {
    let ended = Ended::of(ccsd(["report", "--json"]).arg(profile));
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The functions of the program, as both have them.
fn agree(data: &Path, profile: &Path) {
    let document = report(profile);
    let mut ours = Counts::new();
    for row in document["flat"]["rows"].as_array().unwrap() {
        let number = |field: &str| row[field].as_u64().unwrap();
        if row["image"].as_str().unwrap().starts_with("recursion") {
            let name = row["name"].as_str().unwrap().to_owned();
            ours.insert(name, (number("samples_self"), number("samples_inherited")));
        }
    }
    let theirs = perf_script(data);
    assert_eq!(document["accounting"]["received"].as_u64().unwrap(), theirs.1);
    assert!(ours.len() > 3, "{ours:?}");
    for (name, counts) in &ours {
        assert_eq!(Some(counts), theirs.0.get(name), "{name}: {ours:?} {:?}", theirs.0);
    }
}

/// What `perf script` says: functions of the program by name, and how many samples there are.
fn perf_script(data: &Path) -> (Counts, u64) {
    let mut perf = Command::new("perf");
    perf.args(["script", "--no-inline", "-F", "ip,sym,dso", "--max-stack", "1000", "-i"]).arg(data);
    let ended = Ended::of(&mut perf);
    assert!(ended.status.success(), "{ended:?}");
    let (mut counts, mut samples) = (Counts::new(), 0);
    // Each sample is a paragraph; without call chains a line.
    let is_chain = ended.stdout.contains("\n\n");
    let separator = if is_chain { "\n\n" } else { "\n" };
    for sample in ended.stdout.split(separator).filter(|sample| !sample.trim().is_empty()) {
        samples += 1;
        let mut seen = BTreeSet::new();
        for (depth, line) in sample.lines().filter(|line| !line.trim().is_empty()).enumerate() {
            // ADDRESS NAME (IMAGE)
            let mut words = line.split_whitespace().skip(1);
            let (Some(name), Some(image)) = (words.next(), words.next()) else { continue };
            if !image.rsplit('/').next().unwrap().starts_with("recursion") {
                continue;
            }
            let count = counts.entry(name.to_owned()).or_default();
            count.0 += u64::from(depth == 0);
            count.1 += u64::from(seen.insert(name.to_owned()));
        }
    }
    (counts, samples)
}
