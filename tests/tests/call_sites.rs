//! Call sites: a line's cost includes its calls, and all readers of a profile agree about it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::Recorded;
use ccsd_tests::statistics::assert_share;
use ccsd_tests::suite::{CC, CXX, GO, Need, Suite};
use serde_json::Value;

const ANNOTATE: Need = Need::Program("callgrind_annotate", "valgrind");

/// Lines of the fixture by their comments, and their cost including calls, of 100 units.
const LINES: [(&str, &str, u32); 14] = [
    ("main", "main directly", 40),
    ("main", "main through", 20),
    ("main", "main recursive", 20),
    ("main", "main even", 20),
    ("directly", "direct, first", 10),
    ("directly", "direct, second", 30),
    ("through", "through, first", 5),
    ("through", "through, second", 15),
    ("inlined", "inlined", 20),
    ("recursive", "recursion", 20),
    ("recursive", "recursion ends", 20),
    ("even", "even works", 10),
    ("even", "even calls", 15),
    ("odd", "odd works", 10),
];

type LineCosts = BTreeMap<u32, u64>;

fn source() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/callsites.h");
    fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
}

fn line_of(comment: &str) -> u32 {
    let comment = format!("/* {comment} */");
    source().iter().position(|line| line.contains(&comment)).unwrap() as u32 + 1
}

fn record(name: &str) -> Recorded {
    let program = build(name, &["-O2", "-g"]);
    let recorded = RecordCommand::new(&program, &[]).run();
    recorded.assert_whole().assert_complete();
    recorded
}

fn annotated(recorded: &Recorded, function: &str, options: &[&str]) -> LineCosts {
    let ended = EndedProgram::of(ccsd(["annotate", function, "--json"]).args(options).arg(&recorded.file));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let functions = document["functions"].as_array().unwrap().iter();
    lines_of(functions.flat_map(|it| it["files"].as_array().unwrap()).flat_map(|it| it["lines"].as_array().unwrap()))
}

fn lines_of<'a>(rows: impl Iterator<Item = &'a Value>) -> LineCosts {
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap();
    let rows = rows.map(|row| (number(row, "line") as u32, number(row, "inherited_weight")));
    rows.filter(|&(line, weight)| line > 0 && weight > 0).collect()
}

fn reported(recorded: &Recorded, function: &str) -> LineCosts {
    let ended =
        EndedProgram::of(ccsd(["report", "--view", "lines", "--json", "-n", "0", "--min", "0"]).arg(&recorded.file));
    assert!(ended.status.success(), "{ended:?}");
    let document: Value = serde_json::from_str(&ended.stdout).unwrap();
    let functions = document["lines"]["functions"].as_array().unwrap().iter();
    let is_it = |it: &&Value| it["name"].as_str().unwrap().split('(').next() == Some(function);
    lines_of(functions.filter(is_it).flat_map(|it| it["lines"].as_array().unwrap()))
}

fn export(recorded: &Recorded, format: &str) -> PathBuf {
    let file = recorded.dir.path().join(format);
    let ended = EndedProgram::of(ccsd(["export", format, "-o"]).arg(&file).arg(&recorded.file));
    assert!(ended.status.success(), "{ended:?}");
    file
}

fn callgrind(recorded: &Recorded) -> LineCosts {
    let mut command = Command::new("callgrind_annotate");
    command
        .args(["--threshold=100", "--show-percs=no", "--auto=yes", "--context=100"])
        .arg(export(recorded, "callgrind"));
    let ended = EndedProgram::of(&mut command);
    assert!(ended.status.success(), "{ended:?}");
    let shown = ended.stdout.lines().skip_while(|it| !(it.contains("source: ") && it.ends_with("callsites.h")));
    let shown = shown.skip(4).take_while(|line| !line.starts_with("-----"));
    let mut lines = LineCosts::new();
    let mut number = 0;
    for line in shown.filter(|line| !line.is_empty() && !line.starts_with("-- line")) {
        let (cost, rest) = line.trim_start().split_once(' ').unwrap_or((line.trim_start(), ""));
        let is_call = rest.trim_start().starts_with("=> ");
        number += u32::from(!is_call);
        *lines.entry(number).or_default() += cost.replace(',', "").replace('.', "0").parse::<u64>().expect(line);
    }
    lines
}

fn pprof(recorded: &Recorded, function: &str) -> LineCosts {
    let args = ["tool", "pprof", "-top", "-lines", "-unit=ns", "-nodecount=100000", "-nodefraction=0"];
    let ended = EndedProgram::of(Command::new("go").args(args).arg(export(recorded, "pprof")));
    assert!(ended.status.success(), "{ended:?}");
    let rows = ended.stdout.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1);
    let rows = rows.filter_map(|row| {
        let words: Vec<&str> = row.split_whitespace().collect();
        let line = words.last()?.rsplit_once(':')?.1.parse().ok()?;
        let is_it = words.get(5)?.split('(').next() == Some(function);
        is_it.then(|| (line, words[3].trim_end_matches("ns").parse::<u64>().unwrap()))
    });
    rows.collect()
}

fn main() -> ExitCode {
    Suite::new()
        .test("c", &[CC], || costs(&record("callsites.c")))
        .test("cpp", &[CXX], || costs(&record("callsites.cpp")))
        .test("readers_agree", &[CC, GO, ANNOTATE], || {
            let recorded = record("callsites.c");
            let lines = callgrind(&recorded);
            for (function, comment, _) in LINES {
                let line = line_of(comment);
                let expected = annotated(&recorded, function, &[])[&line];
                assert_eq!(reported(&recorded, function)[&line], expected, "{comment}");
                // Both fold recursion: only the latest activation of a function has its line.
                if !["recursion", "even calls"].contains(&comment) {
                    assert_eq!(pprof(&recorded, function).get(&line), Some(&expected), "{comment}");
                    assert_eq!(lines.get(&line), Some(&expected), "{comment}");
                }
            }
        })
        .test("selects_processes", &[CC], || {
            let recorded = record("callsites.c");
            // A hidden function's self cost counts for the line that called it.
            let ended =
                EndedProgram::of(ccsd(["annotate", "directly", "--json", "--hide", "work"]).arg(&recorded.file));
            let document: Value = serde_json::from_str(&ended.stdout).unwrap();
            let rows = document["functions"][0]["files"][0]["lines"].as_array().unwrap();
            let second = rows.iter().find(|row| row["line"] == line_of("direct, second")).unwrap();
            let own = second["weight"].as_u64().unwrap();
            assert!(own > 0 && own <= second["inherited_weight"].as_u64().unwrap(), "{second}");
            // Only below a function; only a part of the time.
            let main = line_of("main directly");
            let all = annotated(&recorded, "main", &[]);
            assert_eq!(annotated(&recorded, "main", &["--focus", "directly"]), LineCosts::from([(main, all[&main])]));
            assert!(!annotated(&recorded, "main", &["--ignore", "directly"]).contains_key(&main));
            let half = format!("+{}ms", recorded.profile.accounting().duration_ns / 2_000_000);
            // One of the parts may have no samples of it.
            let parts = ["--since", "--until"].map(|option| {
                let there =
                    EndedProgram::of(ccsd(["annotate", "main", option, &half]).arg(&recorded.file)).status.success();
                if there { annotated(&recorded, "main", &[option, &half]) } else { LineCosts::new() }
            });
            let sum = |line: u32| parts.iter().filter_map(|part| part.get(&line)).sum::<u64>();
            all.iter().for_each(|(&line, &weight)| assert_eq!(sum(line), weight, "{line}"));
        })
        .run()
}

fn costs(recorded: &Recorded) {
    let samples = recorded.sampled().total.samples;
    let weight = recorded.sampled().total.weight;
    let calibrated = recorded.samples("calibrate").inherited;
    for (function, comment, units) in LINES {
        let lines = annotated(recorded, function, &[]);
        let line = lines.get(&line_of(comment)).copied().unwrap_or_else(|| panic!("no {comment} in {lines:?}"));
        let found = line * samples / weight;
        assert_share(comment, found, samples - calibrated, f64::from(units) / 100.0, 0.1);
    }
    let text = EndedProgram::of(ccsd(["annotate", "main"]).arg(&recorded.file)).stdout;
    let row = text.lines().find(|line| line.contains("/* main directly */")).unwrap();
    assert!(row.contains("directly(unit);") && text.contains("main ("), "{text}");
    assert!(!text.contains("no lines of calls"), "{text}");
}
