//! Functions that share a name in one image are distinguished by their definition, and parts of one function stay
//! together (invariant I12).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use ccsd_symbolizer::Function;
use common::{Workshop, fixture, have, linkage, nm, resolve, run, symbols, text_addresses};

/// Identity of a function in its image: its name, and for a local one its definition.
type FunctionIdentity = (String, Option<String>);

fn identity(function: &Function) -> FunctionIdentity {
    let definition = match &function.decl_file {
        Some(file) => format!("{}:{}", file.rsplit('/').next().unwrap(), function.decl_line),
        None => format!("{:#x}", function.start.unwrap_or(0)),
    };
    (linkage(function).to_owned(), function.local.then_some(definition))
}

/// The functions at every address, innermost first.
fn answers(path: &Path) -> BTreeMap<u64, Vec<FunctionIdentity>> {
    let mut symbols = symbols(path);
    let known = text_addresses(path, 1).into_iter();
    known.map(|svma| (svma, resolve(&mut symbols, svma).iter().map(identity).collect())).collect()
}

fn build(workshop: &Workshop, of_each: [&str; 2], linking: &str) -> PathBuf {
    let mut objects = Vec::new();
    for (args, file) in of_each.into_iter().zip(["a", "b"]) {
        let object = workshop.path(&format!("{file}.o"));
        let source = fixture(&format!("namesakes_{file}.c"));
        run(Command::new("cc").args(args.split_whitespace()).arg("-c").arg(source).arg("-o").arg(&object));
        objects.push(object);
    }
    let out = workshop.path("program");
    run(Command::new("cc").args(linking.split_whitespace()).args(objects).arg("-o").arg(&out));
    out
}

fn definitions(answers: &BTreeMap<u64, Vec<FunctionIdentity>>, name: &str) -> BTreeSet<Option<String>> {
    let all = answers.values().flatten().filter(|it| it.0 == name);
    all.map(|it| it.1.clone()).collect()
}

const OPTIMISED: &str = "-O2 -fipa-cp-clone -freorder-blocks-and-partition";

#[test]
fn local_functions_of_one_name_are_several() {
    if !have(&["cc", "readelf", "nm", "objcopy"]) {
        return;
    }
    let workshop = Workshop::new();
    for more in ["", "-ffunction-sections", "-fPIC", "-O3", "-flto -flto-partition=one", "-O0", "-Os"] {
        let args = format!("-g {OPTIMISED} {more}");
        let program = build(&workshop, [&args, &args], &args);
        let debugged = answers(&program);
        for name in ["walk", "turn", "hop"] {
            let found = definitions(&debugged, name);
            let files: Vec<_> = found.iter().flatten().map(|it| it.split(':').next().unwrap()).collect();
            assert_eq!(files, ["namesakes_a.c", "namesakes_b.c"], "{args}: {name}: {found:?}");
            assert_eq!(found.len(), 2, "{args}: {name}: {found:?}");
        }
        for name in ["shared_step", "hidden", "run_b"] {
            assert_eq!(definitions(&debugged, name).len(), 1, "{args}: {name}");
        }
        assert_eq!(definitions(&debugged, "run_b"), BTreeSet::from([None]));

        // The same code without debug information, and without file symbols: the same functions are distinguished,
        // except for a header's function.
        let stripped = workshop.objcopy(&["--strip-debug"], &program, "stripped");
        let bare = args.replace("-g ", "");
        for other in [stripped, build(&workshop, [&bare, &bare], &bare)] {
            let bare = answers(&other);
            let mut pairs: BTreeSet<(&FunctionIdentity, &FunctionIdentity)> = BTreeSet::new();
            for (with, without) in debugged.values().zip(bare.values()) {
                if let (Some(with), Some(without)) = (with.last(), without.last()) {
                    pairs.insert((with, without));
                }
            }
            for (with, without) in &pairs {
                let same = |other: &&(&FunctionIdentity, &FunctionIdentity)| other.0 == *with || other.1 == *without;
                let count = pairs.iter().filter(same).count();
                assert!(count == 1 || with.0 == "shared_step", "{args}: {with:?} is {without:?}, too: {pairs:#?}");
            }
            assert!(pairs.len() > 6, "{pairs:?}");
        }
    }
}

#[test]
fn cold_parts_and_clones_are_of_their_own_function() {
    if !have(&["cc", "readelf", "nm", "objcopy"]) {
        return;
    }
    let workshop = Workshop::new();
    let args = format!("-g {OPTIMISED}");
    let program = build(&workshop, [&args, &args], "");
    let stripped = workshop.objcopy(&["--strip-debug"], &program, "stripped");
    let listed = nm(&program);
    let parts = |name: &str, suffix: &str| listed.iter().filter(|it| it.2 == format!("{name}{suffix}")).count();
    assert_eq!((parts("walk", ".cold"), parts("hidden", ".cold")), (2, 1), "{listed:?}");
    assert!(parts("turn", ".constprop.0") + parts("turn", ".isra.0") >= 1, "{listed:?}");
    for path in [&program, &stripped] {
        let mut symbols = symbols(path);
        for name in ["walk", "hidden"] {
            // Hot and cold parts by name, ordered by address: both parts in a file are one function.
            let mut of = |suffix: &str| -> Vec<FunctionIdentity> {
                let parts = listed.iter().filter(|it| it.2 == format!("{name}{suffix}"));
                parts.map(|&(start, ..)| identity(resolve(&mut symbols, start).last().unwrap())).collect()
            };
            let (hot, cold): (BTreeSet<_>, BTreeSet<_>) =
                (of("").into_iter().collect(), of(".cold").into_iter().collect());
            assert_eq!(hot, cold, "{name} in {}", path.display());
            assert_eq!(hot.len(), if name == "walk" { 2 } else { 1 });
        }
    }
}

#[test]
fn debug_information_of_one_file_alone() {
    if !have(&["cc", "readelf", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    for (a, b) in [("-g", ""), ("", "-g"), ("-g1", ""), ("-g", "-g1")] {
        let [a, b] = [a, b].map(|debug| format!("{debug} {OPTIMISED}"));
        let found = answers(&build(&workshop, [&a, &b], ""));
        for name in ["walk", "turn", "hop"] {
            assert_eq!(definitions(&found, name).len(), 2, "{a}, {b}: {name}: {:?}", definitions(&found, name));
        }
        assert_eq!(definitions(&found, "hidden").len(), 1, "{a}, {b}: {:?}", definitions(&found, "hidden"));
    }
}

#[test]
fn functions_renamed_by_lto_are_told_apart_without_debug_information() {
    if !have(&["cc", "readelf", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    let args = format!("{OPTIMISED} -flto");
    let program = build(&workshop, [&args, &args], &format!("{args} -flto-partition=one"));
    let renamed = nm(&program).iter().filter(|it| it.2.starts_with("walk.lto_priv.")).count();
    assert!(renamed > 0, "{:?}", nm(&program));
    let found = answers(&program);
    assert_eq!(definitions(&found, "walk").len(), 2, "{:?}", definitions(&found, "walk"));
}

/// Compilers omit from a definition what its declaration states, such as the file.
#[test]
fn definitions_outside_their_class_have_a_file() {
    if !have(&["c++", "readelf", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    let source = workshop.path("main.cpp");
    let text = "struct Later { long n; __attribute__((noinline)) long step(long); };\n\
                long Later::step(long m) { return n += m; }\n\
                int main(int argc, char **) { Later it{1}; return it.step(argc); }\n";
    std::fs::write(&source, text).unwrap();
    for args in ["-g -O2", "-g -O2 -gdwarf-4", "-g -O0"] {
        let out = workshop.path("later");
        run(Command::new("c++").args(args.split_whitespace()).arg("-o").arg(&out).arg(&source));
        let (start, ..) = nm(&out).into_iter().find(|it| it.2 == "_ZN5Later4stepEl").unwrap();
        let function = resolve(&mut symbols(&out), start).pop().unwrap();
        let file = function.decl_file.as_deref().unwrap_or("none");
        assert!(file.ends_with("/main.cpp"), "{args}: it is declared in {file}");
        assert!(function.decl_line > 0 && !function.local, "{function:?}");
    }
}
