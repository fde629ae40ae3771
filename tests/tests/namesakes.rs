//! Local functions that share a name in a program are distinguished in numbers, text, JSON and every export.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, GO, NM, Suite};
use serde_json::Value;

/// The second file of the program, compiled separately.
const OTHER_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/namesakes_b.c");
/// Shares of the samples of each duplicated name: self and inherited.
const SHARES: [(&str, &str, f64, f64); 4] = [
    ("walk", "a", 1.0 / 8.0, 4.0 / 8.0),
    ("walk", "b", 3.0 / 8.0, 3.0 / 8.0),
    ("turn", "a", 1.0 / 8.0, 4.0 / 8.0),
    ("turn", "b", 3.0 / 8.0, 3.0 / 8.0),
];
/// Allowance for loops of equal work.
const ALLOWANCE: f64 = 0.15;

fn main() -> ExitCode {
    Suite::new()
        .test("with_debug_information", &[CC, NM], || {
            for flags in [["-g", "-O1"], ["-g", "-O2"]] {
                shares(&run(&flags), &flags);
            }
        })
        .test("without_debug_information", &[CC, NM], || {
            for flags in [["-s", "-O1"], ["-g0", "-O1"], ["-g0", "-O2"]] {
                // Without symbols there are no names, and each function is known by its start.
                if flags[0] == "-s" {
                    let recorded = run(&flags);
                    assert!(recorded.function("walk").is_none(), "{:?}", recorded.names());
                } else {
                    shares(&run(&flags), &flags);
                }
            }
        })
        .test("text_tells_them_apart", &[CC, NM], || {
            for flags in [["-g", "-O2"], ["-g0", "-O2"]] {
                text(&run(&flags), &flags);
            }
        })
        .test("a_label_names_one_of_them", &[CC, NM], || {
            let recorded = run(&["-g", "-O2"]);
            let labels = labels(&recorded);
            let [a, b] = ["a", "b"].map(|file| labels[&("walk".to_owned(), file.to_owned())].as_str());
            // The label selects one, the bare name both.
            for (asked, rows) in [(a, 1), (b, 1), ("walk", 2)] {
                let found = json(&recorded, &["--function", asked]);
                assert_eq!(found["flat"]["rows"].as_array().unwrap().len(), rows, "{asked}: {found}");
            }
            let hidden = report(&recorded, &["--hide", b]);
            let named = |name: &str| hidden.lines().any(|line| line.split_whitespace().last() == Some(name));
            assert!(named("g") && !hidden.lines().any(|line| line.ends_with(b)), "{hidden}");
            assert!(hidden.lines().any(|line| line.ends_with(a)), "{hidden}");
            for (label, own, other) in [(a, "namesakes_a.c", "namesakes_b.c"), (b, "namesakes_b.c", "namesakes_a.c")] {
                let ended = EndedProgram::of(ccsd(["annotate", label, "--asm"]).arg(&recorded.file));
                let (_, instructions) = ended.stdout.split_once("instructions of walk").expect(&ended.stderr);
                assert!(instructions.contains(own) && !instructions.contains(other), "{label}: {instructions}");
            }
        })
        .test("files", &[CC], || {
            let recorded = run(&["-g", "-O2"]);
            let by_file = json(&recorded, &["--by", "file"]);
            let total = by_file["flat"]["total"]["samples"].as_u64().unwrap();
            let of = |document: &Value, name: &str, field: &str| {
                let rows = document["flat"]["rows"].as_array().unwrap();
                let rows = rows.iter().filter(|row| row["name"].as_str().unwrap().ends_with(name));
                rows.map(|row| row[field].as_u64().unwrap()).sum::<u64>()
            };
            for (name, own) in [("namesakes_a.c", 0.25), ("namesakes_b.c", 0.75)] {
                assert_share(name, of(&by_file, name, "samples_self"), total, own, ALLOWANCE);
            }
            assert_share("a.c", of(&by_file, "namesakes_a.c", "samples_inherited"), total, 1.0, ALLOWANCE);
            // The other file's time counts for its callers in this one.
            let hidden = json(&recorded, &["--hide", "file:namesakes_b.c"]);
            for name in ["walk", "turn"] {
                assert_share(name, of(&hidden, name, "samples_self"), total, 0.5, ALLOWANCE);
                let rows = hidden["flat"]["rows"].as_array().unwrap().iter().filter(|row| row["name"] == name);
                assert_eq!(rows.count(), 1, "{hidden}");
            }
        })
        .test("exports_tell_them_apart", &[CC, NM], || {
            for flags in [["-g", "-O2"], ["-g0", "-O2"]] {
                exports(&run(&flags));
            }
        })
        .test("pprof_tells_them_apart", &[CC, GO], || {
            let recorded = run(&["-g", "-O2"]);
            let file = recorded.dir.path().join("out.pprof");
            let ended = EndedProgram::of(ccsd(["export", "pprof"]).arg(&recorded.file).arg("-o").arg(&file));
            assert!(ended.status.success(), "{ended:?}");
            let top =
                EndedProgram::of(Command::new("go").args(["tool", "pprof", "-top", "-nodefraction=0"]).arg(&file));
            for label in labels(&recorded).values() {
                assert_eq!(top.stdout.lines().filter(|line| line.ends_with(label)).count(), 1, "{top:?}");
            }
        })
        .test("a_difference_tells_them_apart", &[CC], || {
            for flags in [["-g", "-O2"], ["-g0", "-O2"]] {
                let recorded = run(&flags);
                let ended = EndedProgram::of(ccsd(["diff", "--json"]).args([&recorded.file, &recorded.file]));
                let document: Value = serde_json::from_str(&ended.stdout).unwrap();
                let rows: Vec<&Value> =
                    document["rows"].as_array().unwrap().iter().filter(|row| row["name"] == "walk").collect();
                assert_eq!(rows.len(), 2, "{document}");
                assert_ne!(rows[0]["definition"], rows[1]["definition"], "{rows:?}");
                for tree in [&[][..], &["--tree"]] {
                    let ended = EndedProgram::of(ccsd(["diff"]).args(tree).args([&recorded.file, &recorded.file]));
                    for row in &rows {
                        let label = format!("walk ({})", row["definition"].as_str().unwrap());
                        assert!(ended.stdout.lines().any(|line| line.ends_with(&label)), "{label}: {}", ended.stdout);
                    }
                }
            }
        })
        .run()
}

fn run(flags: &[&str]) -> Recorded {
    let flags: Vec<&str> = flags.iter().copied().chain([OTHER_FILE]).collect();
    RecordCommand::new(build("namesakes_a.c", &flags), &["1000"]).options(&["-F", "1999"]).run()
}

fn json(recorded: &Recorded, options: &[&str]) -> Value {
    let ended = EndedProgram::of(ccsd(["report", "--json"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{options:?}: {ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

fn report(recorded: &Recorded, options: &[&str]) -> String {
    let ended = EndedProgram::of(ccsd(["report"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{options:?}: {ended:?}");
    ended.stdout
}

/// Rows of the duplicated functions by name and file (`a` or `b`). Without debug information the file follows from the
/// order in the program.
fn rows(recorded: &Recorded) -> BTreeMap<(String, String), Value> {
    let document = json(recorded, &[]);
    let mut found = BTreeMap::new();
    for name in ["walk", "turn"] {
        let all = document["flat"]["rows"].as_array().unwrap().iter();
        let mut rows: Vec<&Value> = all.filter(|row| row["name"] == name).collect();
        assert_eq!(rows.len(), 2, "{rows:?}");
        rows.sort_by_key(|row| row["start"].as_u64().unwrap());
        for (row, file) in rows.into_iter().zip(["a", "b"]) {
            if let Some(declared) = row["file"].as_str() {
                assert!(declared.ends_with(&format!("namesakes_{file}.c")), "{row}");
                assert!(row["line"].as_u64().unwrap() > 0, "{row}");
            }
            found.insert((name.to_owned(), file.to_owned()), row.clone());
        }
    }
    found
}

fn labels(recorded: &Recorded) -> BTreeMap<(String, String), String> {
    let label = |row: &Value| format!("{} ({})", row["name"].as_str().unwrap(), row["apart"].as_str().unwrap());
    rows(recorded).into_iter().map(|(key, row)| (key, label(&row))).collect()
}

fn shares(recorded: &Recorded, flags: &[&str]) {
    recorded.assert_whole();
    let rows = rows(recorded);
    let total = recorded.total();
    for (name, file, own, inherited) in SHARES {
        let row = &rows[&(name.to_owned(), file.to_owned())];
        let samples = |field: &str| row[field].as_u64().unwrap();
        let what = format!("{name} of {file}, {flags:?}");
        assert_share(&what, samples("samples_self"), total, own, ALLOWANCE);
        assert_share(&what, samples("samples_inherited"), total, inherited, ALLOWANCE);
    }
    let cycles = report(recorded, &["--cycles"]);
    assert!(cycles.contains("no cycles: "), "{cycles}");
}

fn text(recorded: &Recorded, flags: &[&str]) {
    let labels = labels(recorded);
    for (key, label) in &labels {
        let by_file = label.starts_with(&format!("{} (namesakes_{}.c:", key.0, key.1));
        assert!(if flags.contains(&"-g") { by_file } else { label.contains(" (+0x") }, "{flags:?}: {label}");
    }
    let views: [&[&str]; 9] = [
        &["--flat", "-n", "0"],
        &["--graph"],
        &["--stacks"],
        &["--lines"],
        &["--view", "tree"],
        &["--view", "bottom-up"],
        &["--view", "butterfly", "--function", "main"],
        &["--view", "hot", "-n", "9"],
        &["--view", "timeline", "-n", "0"],
    ];
    for view in views {
        let text = report(recorded, view);
        let text: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for ((name, _), label) in &labels {
            assert!(text.iter().any(|line| line.contains(label.as_str())), "no {label} in {view:?}: {text:#?}");
            for line in &text {
                // Not `link_path_walk` of the kernel.
                let is_bare = |at: usize| {
                    !line[..at].ends_with(|c: char| c == '_' || c.is_alphanumeric())
                        && ![" (", "_"].iter().any(|next| line[at + name.len()..].starts_with(next))
                };
                let bare = line.match_indices(name.as_str()).filter(|(at, _)| is_bare(*at));
                assert_eq!(bare.count(), 0, "{view:?}: {line}");
            }
        }
        // The head of a butterfly has the image after the name.
        let is_main = |line: &&&str| line.contains("main (") && !line.contains("): total ");
        assert_eq!(text.iter().find(is_main), None, "{text:#?}");
    }
}

fn exports(recorded: &Recorded) {
    let labels = labels(recorded);
    for format in ["callgrind", "folded", "speedscope", "firefox", "dot", "gprof", "html", "csv"] {
        let file = recorded.dir.path().join(format!("out.{format}"));
        let ended = EndedProgram::of(ccsd(["export", format]).arg(&recorded.file).arg("-o").arg(&file));
        assert!(ended.status.success(), "{ended:?}");
        let text = std::fs::read_to_string(&file).unwrap();
        for label in labels.values() {
            assert!(text.contains(label.as_str()), "{format}: no {label} in {text}");
        }
        for bare in [";walk;", "\"walk\"", " walk\n"] {
            assert!(!text.contains(bare), "{format}: {text}");
        }
    }
    let file = recorded.dir.path().join("out.json");
    let ended = EndedProgram::of(ccsd(["export", "json"]).arg(&recorded.file).arg("-o").arg(&file));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let functions = document["functions"].as_array().unwrap().iter();
    let found: BTreeMap<u64, &Value> =
        functions.filter(|it| it["name"] == "walk").map(|it| (it["start"].as_u64().unwrap(), &it["apart"])).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found
            .values()
            .all(|apart| labels.values().any(|label| label == &format!("walk ({})", apart.as_str().unwrap())))
    );
}
