//! Programs in several languages: stacks are complete, and functions have the names of their source.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_tests::ccsd::RecordCommand;
use ccsd_tests::fixture::build;
use ccsd_tests::recorded::Recorded;
use ccsd_tests::suite::{CC, CXX, FORTRAN, GO, Suite};

/// Allowance for forty or more turns each, on a busy machine.
const ALLOWANCE: f64 = 0.2;

fn main() -> ExitCode {
    Suite::new()
        .test("cpp", &[CXX], || {
            for flags in [&["-O1"][..], &["-O1", "-g"], &["-O2", "-fomit-frame-pointer", "-static"]] {
                let recorded = record("languages.cpp", flags, COMPLETE);
                // Functions local to one file have no parameters in their names, as their inlined copies have none.
                let names = [
                    concat!(
                        "Box<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, 3>",
                        "::method(unsigned long)"
                    ),
                    concat!(
                        "void Box<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, 3>",
                        "::nested<char const*>(char const*, unsigned long)"
                    ),
                    "Number::operator+(Number const&) const",
                    "tagged[abi:tag](unsigned long)",
                    "main::Local::member",
                    "(anonymous namespace)::hidden",
                ];
                recorded.assert_proportions(&names.map(|name| (name, 1)), ALLOWANCE);
                let named = recorded.names();
                assert!(named.iter().any(|name| name.contains("main::{lambda(unsigned long)#1}")), "{named:?}");
            }
        })
        .test("rust", &[CC], || {
            for mangling in ["legacy", "v0"] {
                for debug in ["0", "2"] {
                    let mangled = format!("-Csymbol-mangling-version={mangling}");
                    let debug = format!("-Cdebuginfo={debug}");
                    let flags = ["-Copt-level=2", "-Zunstable-options", &mangled, &debug];
                    let recorded = record("languages.rs", &flags, COMPLETE);
                    let names = recorded.names();
                    let named = |part: &str| {
                        let found = names.iter().any(|name| name.contains(part));
                        assert!(found, "{mangling}: no {part:?} in {names:#?}");
                    };
                    // The legacy mangling has no types of generic functions, and one name for all implementations.
                    match mangling {
                        "v0" => {
                            named("as languages::Shape>::area");
                            named("languages::inner::generic::<3");
                            named("languages::main::{closure#");
                        }
                        _ => {
                            named("languages::Shape>::area");
                            named("languages::inner::generic");
                            named("languages::main::{{closure}}");
                        }
                    }
                    for name in &names {
                        assert!(!name.contains("17h") && !name.starts_with("_R"), "{name} is mangled");
                    }
                    recorded.assert_only_caller("languages::main", "languages::through");
                }
            }
        })
        .test("fortran", &[FORTRAN], || {
            for flags in [&["-O1"][..], &["-O2", "-g", "-fomit-frame-pointer"]] {
                let recorded = record("languages.f90", &[flags, &["-fno-inline", "-fno-ipa-cp"]].concat(), COMPLETE);
                let parts = [("__shapes_MOD_deep", 1), ("__shapes_MOD_outer", 1), ("__shapes_MOD_arrays", 2)];
                recorded.assert_proportions(&parts, ALLOWANCE);
                for (caller, callee) in [("MAIN__", "__shapes_MOD_deep"), ("main", "MAIN__")] {
                    recorded.assert_only_caller(caller, callee);
                }
            }
        })
        .test("go", &[GO], || {
            go(&[]);
            go(&["-buildmode=pie"]);
        })
        .test("go_stripped", &[GO], || {
            go(&["-ldflags=-s -w"]);
        })
        .test("go_without_frame_descriptions", &[GO], || {
            go(&["-ldflags=-w"]);
        })
        .test("goroutines", &[GO], || {
            goroutines(&[]);
            goroutines(&["-ldflags=-s -w"]);
        })
        .run()
}

/// Maximum share of incomplete stacks.
const COMPLETE: f64 = 0.005;
/// The same for Go, whose goroutines switch to the thread's stack.
const SWITCHES: f64 = 0.01;
/// The same for stacks that grow and move: one in 250 for a release build (the benchmarks measure it); in a debug
/// build, slower than the program, up to one in four.
const MOVED: f64 = 0.5;

fn record(source: &str, flags: &[&str], incomplete: f64) -> Recorded {
    record_at("1999", source, flags, incomplete)
}

fn record_at(rate: &str, source: &str, flags: &[&str], incomplete: f64) -> Recorded {
    let recorded = RecordCommand::new(build(source, flags), &[]).options(&["-F", rate, "--user"]).run();
    recorded.assert_whole();
    let accounting = recorded.profile.accounting();
    let (truncated, all) = (accounting.truncated_total(), accounting.received);
    assert!(all >= 200, "only {all} samples: {accounting:?}");
    let rows = recorded.stacks();
    let cut = rows.rows.iter().map(|row| rows.text(row)).filter(|text| text.contains("[truncated"));
    assert!(
        truncated as f64 <= all as f64 * incomplete,
        "{truncated} of {all} are truncated: {:#?}",
        cut.take(10).collect::<Vec<_>>()
    );
    let unnamed = accounting.unsymbolised;
    assert!(unnamed * 200 <= all, "{unnamed} of {all} have no name");
    recorded
}

fn go(flags: &[&str]) {
    let recorded = record("languages.go", flags, SWITCHES);
    // The symbol table has a name for each shape of type; the runtime's table has one for all.
    let generic = recorded.names().into_iter().find(|name| name.starts_with("main.generic["));
    recorded.assert_proportions(
        &[
            ("main.(*shape).method", 1),
            ("main.makeClosure.func1", 2),
            (generic.as_deref().unwrap_or("main.generic"), 1),
            ("main.deep", 2),
            ("main.sorted", 1),
            ("main.goroutine", 2),
        ],
        ALLOWANCE,
    );
    assert!(recorded.through("main.sorted.func1", "main.burn") > 20, "{:?}", recorded.callers("main.burn"));
    // Every goroutine begins in the same function. (What `go` calls with arguments has a compiler-generated caller.)
    let begins = |function: &str| {
        let callers = recorded.callers(function);
        assert!(callers.iter().all(|(caller, _)| caller.starts_with("runtime.goexit")), "{function}: {callers:?}");
        assert_eq!(recorded.callers(&callers[0].0), []);
    };
    begins("runtime.main");
    let callers = recorded.callers("main.goroutine");
    assert!(!callers.is_empty());
    callers.iter().for_each(|(caller, _)| begins(caller));
}

/// Deep goroutines that collect garbage: the runtime's work for them on a thread's own stack counts as theirs.
fn goroutines(flags: &[&str]) {
    let recorded = record_at("499", "goroutines.go", flags, MOVED);
    let accounting = recorded.profile.accounting();
    // A fifth have frames missing, mostly one: where the collector's own goroutines begin, in Go up to 1.20.
    assert!(
        accounting.stacks.with_gap * 5 <= accounting.received * 2,
        "{} of {}",
        accounting.stacks.with_gap,
        accounting.received
    );
    let (rows, mut theirs, mut all) = (recorded.stacks(), 0, 0);
    for row in &rows.rows {
        let text = rows.text(row);
        if text.contains("runtime.systemstack") && text.contains("runtime.mallocgc") {
            all += row.samples;
            theirs += if text.contains("main.words") { row.samples } else { 0 };
        }
    }
    assert!(all > 0 && theirs * 10 >= all * 9, "{theirs} of {all}");
}
