//! A program built with inlining and debug information gives the cost centres of the program built without (I12).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, ExitCode};

use ccsd_tests::ccsd::RecordCommand;
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::{Recorded, short_name};
use ccsd_tests::statistics::{SIGMAS, wilson};
use ccsd_tests::suite::{CC, CXX, NM, Suite};

/// Functions are compared if they are on more than this share of stacks.
const THRESHOLD: f64 = 0.02;
/// Allowance for two consecutive runs of loops that the compiler may lay out differently.
const ALLOWANCE: f64 = 0.15;

fn main() -> ExitCode {
    const INLINED: [&str; 3] = ["-O3", "-g", "-finline-limit=10000"];
    const NOT_INLINED: [&str; 3] = ["-O2", "-g", "-fno-inline"];
    Suite::new()
        .test("c", &[CC, NM], || compare("inlining.c", &INLINED, &NOT_INLINED, &["innermost", "inner", "once"]))
        .test("cpp", &[CXX, NM], || {
            compare("inlining.cpp", &INLINED, &NOT_INLINED, &["method", "generic", "hidden", "lambda"]);
        })
        .test("rust", &[CC, NM], || {
            let inlined = ["-Copt-level=2", "-g", "--cfg", "inlined"];
            compare("inlining.rs", &inlined, &["-Copt-level=2", "-g"], &["method", "generic", "inner"]);
        })
        .run()
}

fn compare(source: &str, inlined_flags: &[&str], plain_flags: &[&str], names: &[&str]) {
    let (inlined, plain) = (build(source, inlined_flags), build(source, plain_flags));
    for name in names {
        assert!(!has_symbol(&inlined, name), "{name} is not inlined: the test would show nothing");
        assert!(has_symbol(&plain, name), "{name} is inlined: the test would show nothing");
    }
    let record = |program: &Path| {
        let recorded = RecordCommand::new(program, &[]).options(&["-F", "1999"]).run();
        recorded.assert_whole().assert_complete();
        recorded
    };
    let (inlined, plain) = (record(&inlined), record(&plain));
    let (inlined_shares, plain_shares) = (shares(&inlined), shares(&plain));
    // Functions that may be on either side of the threshold by chance are not compared.
    let clearly = |shares: &BTreeMap<String, [u64; 2]>, total| -> BTreeSet<String> {
        let clear = shares.iter().filter(|(_, samples)| wilson(samples[1], total, SIGMAS).0 > THRESHOLD);
        clear.map(|(name, _)| name.clone()).collect()
    };
    for name in clearly(&inlined_shares, inlined.total()).union(&clearly(&plain_shares, plain.total())) {
        for (kind, which) in [("self", 0), ("inherited", 1)] {
            let of = |shares: &BTreeMap<String, [u64; 2]>| shares.get(name).map_or(0, |samples| samples[which]);
            let a = wilson(of(&inlined_shares), inlined.total(), SIGMAS);
            let b = wilson(of(&plain_shares), plain.total(), SIGMAS);
            assert!(
                a.0 <= b.1 * (1.0 + ALLOWANCE) && b.0 <= a.1 * (1.0 + ALLOWANCE),
                "{kind} of {name}: {} of {} inlined, {} of {} not",
                of(&inlined_shares),
                inlined.total(),
                of(&plain_shares),
                plain.total()
            );
        }
    }
    for name in names {
        assert!(plain_shares.keys().any(|seen| is_called(seen, name)), "{name} is not in {plain_shares:?}");
        let callers = |recorded: &Recorded| -> BTreeSet<String> {
            let rows = recorded.flat().rows;
            let functions = rows.iter().filter(|row| is_called(&row.name, name) && row.samples_self > 20);
            functions
                .flat_map(|row| recorded.graph().node(row.function).unwrap().callers.clone())
                .map(|arc| arc.name)
                .collect()
        };
        assert_eq!(callers(&inlined), callers(&plain), "callers of {name}");
    }
}

fn shares(recorded: &Recorded) -> BTreeMap<String, [u64; 2]> {
    let mut shares = BTreeMap::new();
    for row in recorded.flat().rows {
        let sum: &mut [u64; 2] = shares.entry(row.name).or_default();
        sum[0] += row.samples_self;
        sum[1] += row.samples_inherited;
    }
    shares
}

fn has_symbol(program: &Path, name: &str) -> bool {
    let output = Command::new("nm").arg("-C").arg(program).output().unwrap();
    assert!(output.status.success());
    String::from_utf8_lossy(&output.stdout).lines().any(|line| {
        let mut words = line.splitn(3, ' ').skip(1);
        let is_code = words.next().is_some_and(|kind| "tTwW".contains(kind));
        is_code && words.next().is_some_and(|symbol| is_called(symbol, name))
    })
}

/// Whether a full name is a function's name. Compilers call lambdas `{lambda#1}`, some with parameters.
fn is_called(full: &str, name: &str) -> bool {
    short_name(full) == name || (name == "lambda" && full.contains("{lambda"))
}
