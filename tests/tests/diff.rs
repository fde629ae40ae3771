//! `ccsd diff`: growth has its own exit status, with one run or several runs per side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccsd_profile::{
    ContextId, CostCentre, Encoder, Image, LineId, Metric, Process, Profile, ProfileLimits, Recovery, SessionInfo,
    Thread, Unit, read_profile,
};
use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::scratch;
use ccsd_tests::suite::Suite;
use serde_json::Value;

fn main() -> ExitCode {
    Suite::new()
        .test("growth_ends_with_a_status_of_its_own", &[], growth)
        .test("a_gate_refuses_what_it_cannot_read_whole", &[], refused_gate)
        .test("a_nameless_profile_of_the_same_program_is_pointed_out", &[], nameless_side)
        .run()
}

fn written(dir: &Path, name: &str, functions: &[(&str, u64)]) -> PathBuf {
    written_with(dir, name, functions, true)
}

fn written_with(dir: &Path, name: &str, functions: &[(&str, u64)], has_names: bool) -> PathBuf {
    let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
    let session =
        SessionInfo { target: name.to_owned(), event: "cpu-clock".to_owned(), metrics, ..SessionInfo::default() };
    let mut profile = Profile::new(session.clone(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/usr/bin/demo".to_owned(), build_id: vec![1] });
    let process = profile.add_process(Process::new(7, 1, "demo"));
    let thread = profile.add_thread(Thread { process, tid: 7, name: "demo".to_owned() });
    let mut push = |at, name: &str| {
        let function = profile.add_cost_centre(CostCentre {
            linkage_name: has_names.then(|| name.to_owned()),
            start: (!has_names).then(|| name.bytes().fold(0x1000, |sum, byte| sum * 2 + u64::from(byte))),
            ..CostCentre::named(image, name)
        });
        profile.contexts_mut().push(at, function)
    };
    let main = push(ContextId::ROOT, "main");
    let contexts: Vec<_> = functions.iter().map(|(name, _)| push(main, name)).collect();
    for (context, (_, samples)) in contexts.into_iter().zip(functions) {
        profile.charge_many(thread, context, LineId::UNKNOWN, *samples, &[samples * 1_000_000]);
    }
    if !has_names {
        profile.accounting_mut().unsymbolised = functions.iter().map(|(_, samples)| samples).sum();
    }
    let mut encoder = Encoder::new(Vec::new(), &session).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    let file = dir.join(name);
    fs::write(&file, encoder.finish().unwrap()).unwrap();
    file
}

fn growth() {
    let dir = scratch();
    let of = |name: &str, f: u64, g: u64| written(dir.path(), name, &[("f", f), ("g", g)]);
    let (old, new) = (of("old", 500, 500), of("new", 700, 300));
    let diff = |options: &[&str], before: &[&PathBuf], after: &[&PathBuf]| {
        EndedProgram::of(ccsd(["diff"]).args(options).arg("--before").args(before).arg("--after").args(after))
    };
    let status = |options: &[&str], before: &[&PathBuf], after: &[&PathBuf]| {
        let ended = diff(options, before, after);
        assert_eq!(ended.status.code() == Some(3), ended.stderr.contains("grew significantly"), "{ended:?}");
        assert!(ended.stdout.contains('f') || ended.stdout.contains('g'), "{ended:?}");
        ended.status.code()
    };
    assert_eq!(status(&["--fail-above", "5"], &[&old], &[&new]), Some(3));
    // Runs after without runs before are refused, whatever else is compared.
    for others in [vec![&old, &old], vec![]] {
        let ended = EndedProgram::of(ccsd(["diff", "--fail-above", "5"]).args(others).arg("--after").arg(&new));
        assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    }
    assert_eq!(status(&["--fail-above", "19.9%", "--tree"], &[&old], &[&new]), Some(3));
    assert_eq!(status(&["--fail-above", "20.1"], &[&old], &[&new]), Some(0));
    assert_eq!(status(&["--fail-above", "5", "--function", "g"], &[&old], &[&new]), Some(0));
    assert_eq!(status(&["--fail-above", "0"], &[&old], &[&old]), Some(0));
    assert_eq!(status(&[], &[&old], &[&new]), Some(0));
    assert_eq!(status(&["--fail-above", "5"], &[&of("few", 5, 5)], &[&of("few more", 7, 3)]), Some(0));
    // A recording that has caught nothing tells nothing.
    let empty = of("empty", 0, 0);
    for (before, after) in [(&old, &empty), (&empty, &old)] {
        let ended = diff(&["--fail-above", "5"], &[before], &[after]);
        assert!(ended.status.code() == Some(2) && ended.stderr.contains("has none"), "{ended:?}");
    }
    let two = EndedProgram::of(ccsd(["diff", "--fail-above", "5", "--json"]).arg(&old).arg(&new));
    assert!(
        two.status.code() == Some(3) && two.stderr.contains("1 row grew") && two.stderr.contains("f (demo) +20.00")
    );
    let document: Value = serde_json::from_str(&two.stdout).unwrap();
    assert_eq!(document["fail_above"]["grew"][0]["name"], "f");
    assert_eq!(document["significance"]["level"], 0.05);
    // Several runs: variation between runs of one side is not growth.
    let runs = |name: &str, counts: [u64; 3]| counts.map(|f| of(&format!("{name} {f}"), f, 1_000 - f));
    let (steady, grown) = (runs("steady", [490, 500, 510]), runs("grown", [690, 700, 712]));
    let (restless, more) = (runs("restless", [400, 600, 500]), runs("more", [450, 720, 540]));
    let all = |files: &'_ [PathBuf; 3]| files.to_vec();
    for (before, after, expected) in
        [(&steady, &grown, Some(3)), (&restless, &more, Some(0)), (&steady, &steady, Some(0))]
    {
        let (before, after) = (all(before), all(after));
        let (before, after): (Vec<_>, Vec<_>) = (before.iter().collect(), after.iter().collect());
        assert_eq!(status(&["--fail-above", "5"], &before, &after), expected);
        let text = diff(&[], &before, &after).stdout;
        assert_eq!(text.matches("# before").count() + text.matches("# after").count(), 6, "{text}");
        assert!(text.contains("between runs"), "{text}");
        let document: Value = serde_json::from_str(&diff(&["--json"], &before, &after).stdout).unwrap();
        assert_eq!(document["before"]["runs"].as_array().unwrap().len(), 3);
        assert_eq!(document["before"]["total"]["weight"], 1_000_000_000u64);
    }
    let (alone, longer) = (written(dir.path(), "alone", &[("f", 1_000)]), of("longer", 1_000, 200));
    let ended = diff(&["--fail-above", "10", "--absolute"], &[&alone], &[&longer]);
    assert!(ended.status.code() == Some(3) && ended.stderr.contains("g (demo) +20.00"), "{ended:?}");
    assert!(!ended.stderr.contains("f (demo)"), "{ended:?}");
    EndedProgram::of(
        ccsd(["diff", "--svg"])
            .arg(dir.path().join("x.svg"))
            .arg("--absolute")
            .arg("--before")
            .arg(&old)
            .arg(&new)
            .arg("--after")
            .arg(&new),
    )
    .assert_refused(2, &["as many runs"]);
}

fn refused_gate() {
    let dir = scratch();
    let whole = written(dir.path(), "whole", &[("f", 500), ("g", 500)]);
    let bytes = fs::read(&whole).unwrap();
    let with = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        fs::write(&file, bytes).unwrap();
        file
    };
    let mut flipped = bytes.clone();
    let middle = bytes.len() * 3 / 4;
    flipped[middle] ^= 1;
    // Cut within the last record, and before it.
    let end = (0..bytes.len())
        .rev()
        .find(|&length| read_profile(&bytes[..length]).is_ok_and(|it| matches!(it.recovery, Recovery::Whole)));
    let cut =
        [with("within", &bytes[..bytes.len() - 1]), with("before", &bytes[..end.unwrap()]), with("damaged", &flipped)];
    for file in &cut {
        for (before, after) in [(&whole, file), (file, &whole)] {
            let diff = |options: &[&str]| EndedProgram::of(ccsd(["diff"]).args(options).arg(before).arg(after));
            let name = file.to_str().unwrap();
            let ended = diff(&["--fail-above", "5"]);
            assert_eq!((ended.status.code(), ended.stdout.as_str()), (Some(2), ""), "{ended:?}");
            let refusal = ended.stderr.lines().find(|line| line.contains("--fail-above")).unwrap();
            assert!(refusal.contains(name) && refusal.contains("record again"), "{ended:?}");
            let ended = diff(&[]);
            assert!(ended.status.success() && ended.stderr.contains(name), "{ended:?}");
        }
    }
    let whole_ones = EndedProgram::of(ccsd(["diff", "--fail-above", "5"]).arg(&whole).arg(&whole));
    assert!(whole_ones.status.success() && whole_ones.stderr.is_empty(), "{whole_ones:?}");
}

fn nameless_side() {
    let dir = scratch();
    let functions = [("f", 500), ("g", 500)];
    let named = written(dir.path(), "named", &functions);
    let nameless = written_with(dir.path(), "name less", &functions, false);
    let diff = |before: &PathBuf, after: &PathBuf| EndedProgram::of(ccsd(["diff"]).arg(before).arg(after));
    for ended in [diff(&named, &nameless), diff(&nameless, &named)] {
        let expected = format!("`ccsd symbolize '{}'`", nameless.display());
        assert!(ended.status.success() && ended.stderr.contains(&expected), "{ended:?}");
        assert!(ended.stderr.contains("functions of demo have no names"), "{ended:?}");
    }
    for ended in [diff(&named, &named), diff(&nameless, &nameless)] {
        assert!(ended.status.success() && ended.stderr.is_empty(), "{ended:?}");
    }
}
