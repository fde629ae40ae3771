//! One logical function has one linkage name, however it was compiled (invariant I12 for names).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Workshop, have, linkage, resolve, symbols, text_addresses};

/// The linkage names of all functions in a program that `belongs` selects.
fn names(path: &Path, belongs: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let mut symbols = symbols(path);
    let mut names = BTreeSet::new();
    for address in text_addresses(path, 1) {
        for function in resolve(&mut symbols, address) {
            if belongs(linkage(&function)) {
                names.insert(linkage(&function).to_owned());
            }
        }
    }
    names
}

/// Asserts that `found` has all of `expected`, and nothing that a build without inlining lacks.
fn check(args: &str, found: &BTreeSet<String>, without: &BTreeSet<String>, expected: &[&str]) {
    for name in expected {
        assert!(found.contains(*name), "{args}: {name} is not in {found:#?}");
        assert!(without.contains(*name), "without inlining: {name} is not in {without:#?}");
    }
    let strange: Vec<_> = found.difference(without).collect();
    assert!(strange.is_empty(), "{args}: only with inlining: {strange:#?}");
}

#[test]
fn c_functions_have_the_same_names_with_and_without_inlining() {
    if !have(&["cc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    let ours = ["square", "sum_of_squares", "may_fail", "scaled", "recurse", "aliased", "by_hand", "untyped", "main"];
    // Also without debug information: nothing is inlined, so the symbols suffice.
    for without in ["-g -O2 -fno-inline -fno-ipa-cp", "-O0", "-O2 -fno-inline"] {
        let plain = workshop.build("plain.c", without, "without");
        let without = names(&plain, |_| true);
        for args in ["-g -O2", "-g -O3", "-g1 -O2", "-g -O2 -gdwarf-4", "-g -O2 -flto", "-g -O2 -fno-reorder-functions"]
        {
            let path = workshop.build("plain.c", args, "with");
            // Link-time optimisation drops unused aliases: the one name in the source remains.
            let lto = args.contains("-flto");
            let expected: Vec<&str> = ours.into_iter().filter(|name| !(lto && *name == "aliased")).collect();
            check(args, &names(&path, |name| !(lto && name.contains("aliased"))), &without, &expected);
        }
    }
}

#[test]
fn cpp_functions_have_the_same_names_with_and_without_inlining() {
    if !have(&["c++", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    let ours = [
        "_ZN6shapes4BaseC1Em",
        "_ZN6shapes4BaseD1Ev",
        "_ZN6shapes6SquareC1Em",
        "_ZN6shapes6SquareD1Ev",
        "_ZN6shapes5SmallC1Em",
        "_ZNK6shapes6Square4areaEv",
        "_ZNK6shapes5Small4areaEv",
        "_ZN6shapes3mixEm",
        "_ZN6shapes5StackImE4pushEm",
        "_ZN6shapes5StackIdE4pushEd",
        "_ZNK6shapes5StackImEclEm",
        "_ZN6shapes5powerImLi3EEET_S1_",
        "_ZN6shapes5powerImLi5EEET_S1_",
        "(anonymous namespace)::hidden",
        "local_to_file",
        "local_to_file::{lambda#1}::operator()",
        "main",
    ];
    // The standard library's functions vary with the optimisation level by more than inlining.
    let belongs = |name: &str| {
        name.contains("6shapes") && !name.starts_with("_ZSt") && !name.starts_with("_ZNSt") || ours.contains(&name)
    };
    for without in ["-g -O2 -fno-inline", "-O2 -fno-inline", "-O0"] {
        let plain = workshop.build("classes.cpp", without, "without");
        let without = names(&plain, belongs);
        for args in ["-g -O2", "-g -O3", "-g -O2 -gdwarf-4", "-g -O2 -flto"] {
            let path = workshop.build("classes.cpp", args, "with");
            let found = names(&path, belongs);
            for name in ours {
                assert!(found.contains(name), "{args}: {name} is not in {found:#?}");
                assert!(without.contains(name), "without inlining: {name} is not in {without:#?}");
            }
        }
    }
}

#[test]
fn rust_functions_have_the_same_names_with_and_without_inlining() {
    if !have(&["rustc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for mangling in ["", "-Csymbol-mangling-version=v0"] {
        let common = format!("-g -Ccodegen-units=1 {mangling}");
        let with = workshop.build("shapes.rs", &format!("{common} -Copt-level=2"), "with");
        let never = "-Copt-level=1 -Cllvm-args=-inline-threshold=-10000";
        let without = workshop.build("shapes.rs", &format!("{common} {never}"), "without");
        let belongs = |name: &str| name.contains("shapes") && !name.contains("4core") && !name.contains("5alloc");
        let (with, without) = (names(&with, belongs), names(&without, belongs));
        // `mix` is inlined everywhere in one build and nowhere in the other.
        for part in ["3mix", "4fold", "4main", "5inner4deep", "5inner6deeper", "4area", "5total"] {
            let of = |names: &BTreeSet<String>| -> BTreeSet<String> {
                names.iter().filter(|name| name.contains(part)).cloned().collect()
            };
            assert!(!of(&with).is_empty(), "{mangling}: {part} is not in {with:#?}");
            assert!(of(&with).is_subset(&of(&without)), "{mangling}: {:#?} and {:#?}", of(&with), of(&without));
        }
    }
}

#[test]
fn the_names_of_the_c_library_do_not_depend_on_its_debug_information() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    if !path.exists() || !have(&["nm"]) {
        return;
    }
    let mut plain = symbols(path);
    let finder = ccsd_symbolizer::DebugFileFinder::system().image_path(path);
    let mut full = ccsd_symbolizer::Symbols::new(common::open(path), finder);
    let listing = common::run(std::process::Command::new("nm").args(["-D", "-S", "--defined-only"]).arg(path));
    let mut checked = 0;
    for line in listing.lines().filter(|line| line.contains(" W ") || line.contains(" T ")).step_by(7) {
        let start = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
        let name = |found: Vec<ccsd_symbolizer::Function>| found.last().map(|f| linkage(f).to_owned());
        let (plain, full) = (name(resolve(&mut plain, start)), name(resolve(&mut full, start)));
        assert_eq!(plain, full, "{start:#x}");
        checked += 1;
    }
    assert!(checked > 100, "{checked}");
}

#[test]
fn line_tables_alone_are_used_with_a_note() {
    if !have(&["rustc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for (args, noted) in [("-O -g", false), ("-O -Cdebuginfo=line-tables-only", true)] {
        // Only the program's own functions; the standard library has its own debug information.
        let path = workshop.build("shapes.rs", args, "shapes");
        let main = common::nm(&path).into_iter().find(|(.., name)| name.contains("6shapes4main")).unwrap();
        let mut symbols = symbols(&path);
        assert_eq!(symbols.held_bytes(), 0);
        let lines = (main.0..main.0 + main.1).filter(|&address| resolve(&mut symbols, address)[0].line > 0).count();
        assert!(lines > 100, "{args}: {lines}");
        assert_eq!(symbols.notes().iter().any(|note| note.contains("line tables only")), noted, "{args}");
        assert!(symbols.held_bytes() > 100_000, "{}", symbols.held_bytes());
    }
}
