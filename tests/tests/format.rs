//! The file format matches its document: a reader in Python, written from `collector/profile/docs/file-format.md`
//! alone, finds what `ccsd report` finds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::{EndedProgram, RecordCommand, ccsd};
use ccsd_tests::fixture::build;
use ccsd_tests::suite::{CC, PYTHON, Suite};
use serde_json::{Value, json};

fn main() -> ExitCode {
    Suite::new()
        .test("golden_files", &[PYTHON], || {
            for version in 1..=3 {
                let name = format!("../collector/profile/tests/data/golden-v{version}.profile");
                assert_alike(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name));
            }
        })
        .test("fresh_recordings", &[PYTHON, CC], || {
            for (source, args) in [("weights.c", &["300"][..]), ("recursion.c", &["three", "30", "20"])] {
                let recorded = RecordCommand::new(build(source, &["-O1"]), args).run();
                assert!(recorded.total() > 0);
                assert_alike(&recorded.file);
            }
        })
        .test("a_file_that_is_cut_off", &[PYTHON, CC], || {
            let recorded = RecordCommand::new(build("weights.c", &["-O1"]), &["300"]).run();
            let mut bytes = std::fs::read(&recorded.file).unwrap();
            bytes.truncate(bytes.len() - 3);
            std::fs::write(&recorded.file, bytes).unwrap();
            assert_alike(&recorded.file);
        })
        .run()
}

fn assert_alike(file: &Path) {
    let reader: PathBuf = [env!("CARGO_MANIFEST_DIR"), "reader", "ccsd_reader.py"].iter().collect();
    let ended = EndedProgram::of(Command::new("python3").arg(reader).arg("--json").arg(file));
    assert!(ended.status.success(), "{ended:?}");
    let found: Value = serde_json::from_str(&ended.stdout).unwrap();
    let flat = report(file, "flat");
    let rows = flat["flat"]["rows"].as_array().unwrap().iter().map(|row| {
        let weights = ["self_weight", "inherited_weight", "samples_self", "samples_inherited"];
        let row = ["name", "image"].iter().chain(&weights).map(|field| row[field].clone());
        row.collect::<Value>()
    });
    assert_eq!(sorted(&found["flat"]), sorted(&rows.collect()), "{}", file.display());

    let stacks = report(file, "stacks");
    let view = &stacks["stacks"];
    let entry = |entry: &Value| {
        let name = &view["names"][entry["function"].to_string()];
        json!([name, entry["marked"], entry["gap"].as_bool().unwrap_or(false)])
    };
    let rows = view["rows"].as_array().unwrap().iter().map(|row| {
        let stack: Value = row["stack"].as_array().unwrap().iter().map(entry).collect();
        json!([stack, row["weight"], row["samples"]])
    });
    assert_eq!(sorted(&found["stacks"]), sorted(&rows.collect()), "{}", file.display());

    assert_eq!(found["finished"], flat["file"]["finished"]);
    assert_eq!(found["notes"], flat["session"]["notes"]);
    // Fields of the file; the report computes some numbers from them.
    for (name, value) in flat["accounting"].as_object().unwrap() {
        if !["undelivered", "truncated"].contains(&name.as_str()) {
            assert_eq!(&found["accounting"][name], value, "{name} of {}", file.display());
        }
    }
}

fn report(file: &Path, view: &str) -> Value {
    let ended = EndedProgram::of(ccsd(["report", "--json", "--view", view, "-n", "0"]).arg(file));
    assert!(ended.status.success(), "{ended:?}");
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The format does not define the order of equal weights.
fn sorted(rows: &Value) -> Vec<String> {
    let mut rows: Vec<String> = rows.as_array().unwrap().iter().map(Value::to_string).collect();
    rows.sort_unstable();
    rows
}
