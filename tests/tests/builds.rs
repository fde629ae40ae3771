//! Programs built in different ways: stacks are complete, functions are named, and shares are right.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use ccsd_tests::ccsd::RecordCommand;
use ccsd_tests::fixture::build;
use ccsd_tests::suite::{CC, CXX, Need, Suite};

/// For forty turns each, on a busy machine.
const ALLOWANCE: f64 = 0.15;

struct Language {
    name: &'static str,
    needs: &'static [Need],
    source: &'static str,
    base: &'static [&'static str],
    debug: &'static str,
    frame_pointers: [(&'static str, &'static str); 2],
    position: [(&'static str, &'static [&'static str]); 2],
    proportions: &'static [(&'static str, u64)],
    arcs: &'static [(&'static str, &'static str)],
}

const GCC_FRAME_POINTERS: [(&str, &str); 2] =
    [("without_frame_pointer", "-fomit-frame-pointer"), ("with_frame_pointer", "-fno-omit-frame-pointer")];
const GCC_POSITION: [(&str, &[&str]); 2] = [("pie", &["-fPIE", "-pie"]), ("no_pie", &["-fno-pie", "-no-pie"])];

const LANGUAGES: [Language; 3] = [
    Language {
        name: "c",
        needs: &[CC],
        source: "builds.c",
        base: &["-O2"],
        debug: "-g",
        frame_pointers: GCC_FRAME_POINTERS,
        position: GCC_POSITION,
        proportions: &[("direct_work", 2), ("pointer_work", 4), ("compare_work", 3), ("variable_frame_work", 8)],
        arcs: &[("direct", "direct_work"), ("pointer", "pointer_work"), ("main", "variable_frame_work")],
    },
    Language {
        name: "cpp",
        needs: &[CXX],
        source: "builds.cpp",
        base: &["-O2"],
        debug: "-g",
        frame_pointers: GCC_FRAME_POINTERS,
        position: GCC_POSITION,
        proportions: &[("virtual_work", 1), ("template_work", 2), ("handler_work", 3), ("predicate_work", 4)],
        arcs: &[("catcher", "handler_work"), ("main", "virtual_work"), ("main", "template_work")],
    },
    Language {
        name: "rust",
        needs: &[CC],
        source: "builds.rs",
        base: &["-Copt-level=2"],
        debug: "-Cdebuginfo=2",
        frame_pointers: [
            ("without_frame_pointer", "-Cforce-frame-pointers=no"),
            ("with_frame_pointer", "-Cforce-frame-pointers=yes"),
        ],
        position: [("pie", &["-Crelocation-model=pie"]), ("no_pie", &["-Crelocation-model=static"])],
        proportions: &[("object_work", 1), ("generic_work", 2), ("panic_work", 3), ("closure_work", 4)],
        arcs: &[("unwound", "panic_work"), ("builds::main", "object_work"), ("builds::main", "generic_work")],
    },
];

fn main() -> ExitCode {
    let mut suite = Suite::new();
    for language in LANGUAGES {
        for debug in [true, false] {
            for (frame_name, frame_flag) in language.frame_pointers {
                for (position_name, position_flags) in language.position {
                    let debug_name = if debug { "debug" } else { "no_debug" };
                    let name = format!("{}_{debug_name}_{frame_name}_{position_name}", language.name);
                    let mut flags = language.base.to_vec();
                    flags.push(frame_flag);
                    flags.extend(position_flags);
                    flags.extend(debug.then_some(language.debug));
                    let (source, proportions, arcs) = (language.source, language.proportions, language.arcs);
                    suite = suite.test(name, language.needs, move || check(source, &flags, proportions, arcs));
                }
            }
        }
    }
    suite.run()
}

fn check(source: &str, flags: &[&str], proportions: &[(&str, u64)], arcs: &[(&str, &str)]) {
    let recorded = RecordCommand::new(build(source, flags), &[]).options(&["-F", "1999"]).run();
    recorded.assert_whole().assert_complete();
    recorded.assert_proportions(proportions, ALLOWANCE);
    for (caller, callee) in arcs {
        recorded.assert_only_caller(caller, callee);
    }
    let unnamed = recorded.profile.accounting().unsymbolised;
    assert!(unnamed * 100 <= recorded.total(), "{unnamed} of {} samples have no name", recorded.total());
}
