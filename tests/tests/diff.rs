//! `ccsd diff`: growth has its own exit status, with one run or several runs per side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use ccsd_profile::{
    ContextId, CostCentre, Encoder, Image, LineId, Metric, Process, Profile, ProfileLimits, SessionInfo, Thread, Unit,
};
use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::scratch;
use ccsd_tests::suite::Suite;
use serde_json::Value;

fn main() -> ExitCode {
    Suite::new().test("growth_ends_with_a_status_of_its_own", &[], growth).run()
}

fn written(dir: &Path, name: &str, functions: &[(&str, u64)]) -> PathBuf {
    let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
    let session =
        SessionInfo { target: name.to_owned(), event: "cpu-clock".to_owned(), metrics, ..SessionInfo::default() };
    let mut profile = Profile::new(session.clone(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/usr/bin/demo".to_owned(), build_id: vec![1] });
    let process = profile.add_process(Process {
        pid: 7,
        start_time: 1,
        exec_generation: 0,
        parent: None,
        membership: None,
        name: "demo".to_owned(),
    });
    let thread = profile.add_thread(Thread { process, tid: 7, name: "demo".to_owned() });
    let mut push = |at, name: &str| {
        let function = profile.add_cost_centre(CostCentre {
            image,
            linkage_name: Some(name.to_owned()),
            display_name: None,
            start: None,
            file: None,
            line: 0,
            local: false,
        });
        profile.contexts_mut().push(at, function)
    };
    let main = push(ContextId::ROOT, "main");
    let contexts: Vec<_> = functions.iter().map(|(name, _)| push(main, name)).collect();
    for (context, (_, samples)) in contexts.into_iter().zip(functions) {
        profile.charge_many(thread, context, LineId::UNKNOWN, *samples, &[samples * 1_000_000]);
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
    assert_eq!(status(&["--fail-above", "19.9%", "--tree"], &[&old], &[&new]), Some(3));
    assert_eq!(status(&["--fail-above", "20.1"], &[&old], &[&new]), Some(0));
    assert_eq!(status(&["--fail-above", "5", "--function", "g"], &[&old], &[&new]), Some(0));
    assert_eq!(status(&["--fail-above", "0"], &[&old], &[&old]), Some(0));
    assert_eq!(status(&[], &[&old], &[&new]), Some(0));
    // Within chance.
    assert_eq!(status(&["--fail-above", "5"], &[&of("few", 5, 5)], &[&of("few more", 7, 3)]), Some(0));
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
