//! The first screen answers the user's question, which function to change, for six kinds of programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::Path;
use std::process::ExitCode;

use ccsd_tests::ccsd::{EndedProgram, ccsd};
use ccsd_tests::fixture::{build, scratch};
use ccsd_tests::suite::{CC, CXX, Need, PYTHON, Suite, find_program, new_python};

const NODE: Need = Need::Program("node", "nodejs");
/// Lines of a common terminal.
const SCREEN: usize = 24;

fn main() -> ExitCode {
    Suite::new()
        .test("cpp_that_copies", &[CXX], || {
            let screen = record(&build("answers/copies.cpp", &["-O2", "-g"]), &[]);
            screen.says(&["report (copies.cpp:", " -> ", "std::vector<Item"]);
            screen.lists(&["total_for", "report", "Item::Item"]);
        })
        .test("rust_tokeniser", &[CC], || {
            let screen = record(&build("answers/tokens.rs", &["-Copt-level=2", "-g"]), &[]);
            screen.says(&["tokens::tokenise (tokens.rs:"]);
            screen.lists(&["tokens::main", "tokens::next_token"]);
            screen.hides(&["lang_start", "__libc_start_main", "_start"]);
        })
        .test("python", &[Need::NewPython], || {
            let screen = record(&new_python().unwrap(), &["-X", "perf", &source("prices.py")]);
            screen.says(&["py::discount:", "in itself"]);
            screen.lists(&["py::main:"]);
            screen.hides(&["_PyEval_EvalFrameDefault"]);
        })
        .test("python_without_names", &[PYTHON], || {
            let screen = record(&find_program("python3").unwrap(), &[&source("prices.py")]);
            screen.says(&["interpreter", "no names", "python3 -X perf"]);
        })
        .test("node", &[NODE], || {
            let options = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
            let screen = record(&find_program("node").unwrap(), &[&options[..], &[&source("histogram.js")]].concat());
            screen.says(&["histogram.js:"]);
            screen.lists(&["JS:*slowSort"]);
        })
        .test("node_without_names", &[NODE], || {
            let screen = record(&find_program("node").unwrap(), &[&source("histogram.js")]);
            screen.says(&["interpreter node", "no names", "--perf-basic-prof"]);
        })
        .test("server_under_load", &[CC], || {
            let screen = record(&build("answers/server.c", &["-O1", "-g"]), &[]);
            screen.says(&["receive (server.c:", "is_complete (server.c:12), "]);
            screen.lists(&["serve"]);
        })
        .test("mostly_waits", &[CC], || {
            let screen = record(&build("answers/waits.c", &["-O1", "-g"]), &[]);
            screen.says(&["poll_queue (waits.c:7)", "on the CPU for ", "`ccsd dump "]);
        })
        .test("one_function_of_many_callers", &[CC], || {
            let screen = record(&build("answers/hub.c", &["-O1", "-g"]), &[]);
            screen.says(&["of the time is in mix itself; ", "through check (hub.c:15)"]);
            screen.lists(&["parse", "print"]);
        })
        .test("accounting_on_request", &[CC], accounting)
        .run()
}

fn source(name: &str) -> String {
    format!("{}/fixtures/answers/{name}", env!("CARGO_MANIFEST_DIR"))
}

struct Screen(String);

fn record(program: &Path, args: &[&str]) -> Screen {
    let dir = scratch();
    let mut command = ccsd(["record", "-o"]);
    // Node writes a log to its directory.
    command.arg("profile.ccsd").arg("--").arg(program).args(args).current_dir(dir.path());
    let ended = EndedProgram::of(&mut command);
    ended.assert_no_panic();
    assert!(ended.status.success(), "{}", ended.stderr);
    let answer = ended.stderr.split("\n# ").next().unwrap().split("\nsaved in ").next().unwrap();
    let lines = answer.lines().filter(|line| !line.starts_with("ccsd: ")).count();
    assert!(lines <= SCREEN, "the answer does not fit on a screen: {answer}");
    Screen(ended.stderr)
}

impl Screen {
    /// Asserts that the sentences before the first empty line contain these parts in order.
    fn says(&self, parts: &[&str]) {
        let mut rest = self.0.split("\n\n").next().unwrap();
        for part in parts {
            let at = rest.find(part).unwrap_or_else(|| panic!("not said, or not in this order: {part:?}\n{}", self.0));
            rest = &rest[at + part.len()..];
        }
    }

    fn lists(&self, functions: &[&str]) {
        for function in functions {
            assert!(self.rows().any(|row| row.contains(function)), "{function} is not listed:\n{}", self.0);
        }
    }

    fn hides(&self, functions: &[&str]) {
        for function in functions {
            let is_row = |row: &str| row.split_whitespace().next_back() == Some(function) && !row.contains("ld-linux");
            assert!(!self.rows().any(is_row), "{function} is listed:\n{}", self.0);
        }
    }

    fn rows(&self) -> impl Iterator<Item = &str> {
        self.0.lines().skip_while(|line| !line.contains("where")).take_while(|line| !line.starts_with("# "))
    }
}

/// `-v` prints the full accounting; without it one line, unless something is wrong.
fn accounting() {
    let dir = scratch();
    let file = dir.path().join("profile.ccsd");
    let program = build("answers/copies.cpp", &["-O2", "-g"]);
    let mut command = ccsd(["record", "--verbose", "-o"]);
    let ended = EndedProgram::of(command.arg(&file).arg("--").arg(&program));
    for label in ["# target ", "# event ", "# samples ", "# stacks ", "# cost "] {
        assert!(ended.stderr.contains(label), "{label}: {}", ended.stderr);
    }
    let report = |options: &[&str]| EndedProgram::of(ccsd(["report"]).args(options).arg(&file)).stdout;
    assert!(report(&["-v"]).contains("\n# stacks "));
    assert!(report(&["--flat"]).contains("95% interval"));
    let short = report(&[]);
    assert!(!short.contains("95% interval") && report(&["--intervals"]).contains("95% interval  where"), "{short}");
    // A loss of 1% would be reported in full, but occurs only on a busy machine.
    assert!(short.contains("-v shows all\n") || short.contains("\n# samples "), "{short}");
    assert!(short.find("of the time is in") < short.find("samples at 999 Hz").or(short.find("# samples")), "{short}");
}
