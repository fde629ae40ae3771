//! Names, inlined functions and lines, compared with binutils on the same programs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use common::{Workshop, addr2line, have, linkage, nm, open, resolve, run, symbols, text_addresses};

/// Converts a name that binutils print as in the file to the logical name. Only as far as the fixtures need: the rules
/// have their own tests.
fn comparable(name: &str) -> String {
    let name = name.split('@').next().unwrap();
    let mut name = name.to_owned();
    for suffix in [".cold", ".part", ".isra", ".constprop", ".lto_priv", ".localalias", ".llvm"] {
        if let Some(at) = name.find(suffix) {
            name.truncate(at);
        }
    }
    for (variant, one) in [("C2E", "C1E"), ("C4E", "C1E"), ("D2E", "D1E"), ("D0E", "D1E"), ("D4E", "D1E")] {
        name = name.replace(variant, one);
    }
    name
}

/// Compares every `step`th address of a program. Returns the numbers of addresses compared and of those with inlined
/// functions.
fn compare(path: &Path, step: usize) -> (usize, usize) {
    let addresses = text_addresses(path, step);
    let oracle = addr2line(path, &addresses);
    let starts: BTreeMap<String, u64> = nm(path).into_iter().map(|(start, _, name)| (name, start)).collect();
    let mut symbols = symbols(path);
    let (mut compared, mut inlined) = (0, 0);
    for (&address, expected) in addresses.iter().zip(&oracle) {
        let found = resolve(&mut symbols, address);
        // Padding between functions: addr2line gives the function before, or nothing.
        if found.is_empty() || expected[0].0 == "??" {
            continue;
        }
        let context = || format!("{} {address:#x}\nfound {found:#?}\nexpected {expected:#?}", path.display());
        assert_eq!(found.len(), expected.len(), "{}", context());
        for (function, (name, file, line)) in found.iter().zip(expected) {
            if file != "??" && *line != 0 {
                let same = |a: &str| Path::new(a).file_name() == Path::new(file).file_name();
                // binutils 2.40 gives the unit's file with the header's line for some functions declared in a header.
                let in_header = function.file.is_some() && function.file == function.decl_file;
                // And `<artificial>` for the units of link-time optimisation.
                let made_up = file.ends_with("<artificial>");
                assert!(in_header || made_up || function.file.as_deref().is_some_and(same), "{}", context());
                assert_eq!(function.line, *line, "{}", context());
            }
            // C++ functions local to a file are known by their path; binutils print the symbol instead, and for inlined
            // copies that of the outer function. identity.rs tests such functions.
            let name = comparable(name);
            let in_cpp = path.ends_with("classes");
            if in_cpp && !linkage(function).starts_with("_Z") && linkage(function) != "main" {
                continue;
            }
            // The same applies to code with line tables only, as in this test program.
            if found.len() > 1 && path == std::env::current_exe().unwrap() {
                continue;
            }
            let alias = |symbol: &str| starts.get(symbol).is_some_and(|start| starts.get(name.as_str()) == Some(start));
            assert!(linkage(function) == name || alias(linkage(function)), "{}", context());
            // Link-time optimisation drops unused names, and with them the evidence that they are aliases.
            if name.contains("aliased") && !path.ends_with("plain-lto") {
                assert_eq!(linkage(function), "aliased", "{}", context());
            }
        }
        compared += 1;
        inlined += usize::from(found.len() > 1);
    }
    (compared, inlined)
}

#[test]
fn c_programs_agree_with_addr2line() {
    if !have(&["cc", "addr2line", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for (args, inlines) in [
        ("-g -O0", false),
        ("-g -O2", true),
        ("-g -O3 -gdwarf-4", true),
        ("-g1 -O2", true),
        ("-g -O2 -gz=zlib", true),
        ("-g -O2 -no-pie", true),
        ("-g -O2 -static", true),
        ("-g -O2 -static-pie", true),
        ("-g -O2 -flto", true),
        ("-g -O2 -ffunction-sections -Wl,--gc-sections", true),
    ] {
        let path = workshop.build("plain.c", args, if args.contains("-flto") { "plain-lto" } else { "plain" });
        let step = if args.contains("-static") { 997 } else { 1 };
        let (compared, inlined) = compare(&path, step);
        assert!(compared > 100, "{args}: {compared}");
        // With the C library linked in, the few tested addresses of the program itself may have none.
        assert!(step > 1 || inlines == (inlined > 0), "{args}: {inlined}");
    }
}

#[test]
fn cpp_programs_agree_with_addr2line() {
    if !have(&["c++", "addr2line", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-g -O0", "-g -O2", "-g -O2 -gdwarf-4", "-g -O3 -gz=zlib"] {
        let path = workshop.build("classes.cpp", args, "classes");
        let (compared, inlined) = compare(&path, 1);
        assert!(compared > 1000, "{args}: {compared}");
        assert_eq!(inlined > 100, !args.contains("-O0"), "{args}: {inlined}");
    }
}

#[test]
fn rust_programs_agree_with_addr2line() {
    if !have(&["rustc", "addr2line", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-g -O", "-g", "-g -O -Csymbol-mangling-version=v0"] {
        let path = workshop.build("shapes.rs", args, "shapes");
        let (compared, inlined) = compare(&path, 61);
        assert!(compared > 1000, "{args}: {compared}");
        assert!(inlined > 100, "{args}: {inlined}");
    }
}

#[test]
fn every_function_symbol_is_found_at_its_start_and_its_end() {
    if !have(&["cc", "c++", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    for (source, args) in
        [("plain.c", "-O2"), ("plain.c", "-O2 -static"), ("plain.c", "-O2 -static-pie"), ("classes.cpp", "-O2")]
    {
        let path = workshop.build(source, args, "program");
        let mut symbols = symbols(&path);
        let table = nm(&path);
        assert!(table.len() > 5);
        for (start, size, name) in &table {
            let (start, size) = (*start, *size);
            for address in [start, start + size - 1] {
                let found = resolve(&mut symbols, address);
                let last = found.last().unwrap_or_else(|| panic!("{args}: {name} {address:#x} is not found"));
                // Parts and clones of a function (`.cold`, `.part.0`) are known by the function's start.
                if let Some((whole, _)) = name.split_once('.') {
                    let is_kin = |(at, _, other): &(u64, u64, String)| {
                        last.start == Some(*at) && other.split('.').next() == Some(whole)
                    };
                    assert!(table.iter().any(is_kin), "{name}: {last:?}");
                    continue;
                }
                // Inside a larger function only where the table has overlapping functions.
                assert!(last.start.is_some_and(|at| at <= address), "{name}: {last:?}");
                if address == start {
                    assert_eq!(last.start, Some(start), "{name}: {last:?}");
                }
            }
        }
    }
}

#[test]
fn the_test_program_itself_agrees_with_addr2line() {
    if !have(&["addr2line", "readelf"]) {
        return;
    }
    let path = std::env::current_exe().unwrap();
    let (compared, inlined) = compare(&path, 10_007);
    assert!(compared > 50, "{compared}");
    assert!(inlined <= compared);
}

#[test]
fn stripped_programs_are_known_by_the_starts_of_functions() {
    if !have(&["cc", "objcopy", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-O2", "-O2 -no-pie", "-O2 -static-pie", "-O2 -Wl,--no-eh-frame-hdr", "-O2 -static"] {
        let path = workshop.build("plain.c", args, "plain");
        let stripped = workshop.objcopy(&["--strip-all"], &path, "stripped");
        let mut symbols = symbols(&stripped);
        for name in ["main", "may_fail", "recurse", "__aliased_internal"] {
            let (start, size, _) = nm(&path).into_iter().find(|(_, _, symbol)| symbol == name).unwrap();
            for address in [start, start + size / 2, start + size - 1] {
                let found = resolve(&mut symbols, address);
                assert_eq!(found.len(), 1, "{args}: {name}");
                assert_eq!(found[0].linkage_name, None, "{args}: {name}");
                assert_eq!(found[0].start, Some(start), "{args}: {name}");
            }
        }
    }
}

#[test]
fn stubs_are_named_after_the_functions_they_call() {
    if !have(&["cc", "objdump"]) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-O2", "-O2 -fcf-protection=full", "-O2 -Wl,-z,now", "-O2 -Wl,-z,lazy", "-O2 -no-pie -Wl,-z,lazy"] {
        let path = workshop.build("plain.c", args, "plain");
        let stripped = workshop.objcopy(&["--strip-all"], &path, "stripped");
        let listing = run(Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(&path));
        let mut symbols = symbols(&stripped);
        let mut count = 0;
        for line in listing.lines().filter(|line| line.ends_with("@plt>:")) {
            let (address, name) = line.split_once(" <").unwrap();
            let address = u64::from_str_radix(address, 16).unwrap();
            let name = name.trim_end_matches(">:");
            let found = resolve(&mut symbols, address + 3);
            assert_eq!(found.len(), 1, "{args}: {line}");
            assert_eq!(linkage(&found[0]), name, "{args}");
            assert_eq!(found[0].start, Some(address), "{args}: {line}");
            count += 1;
        }
        assert!(count >= 3, "{args}: {count}");
    }
}

const CHOSEN: &str = "static int one(int x) { return x + 1; }
static int two(int x) { return x + 2; }
static int (*pick(void))(int) { return __builtin_cpu_supports(\"avx2\") ? two : one; }
int work(int) __attribute__((ifunc(\"pick\")));
int main(int argc, char **argv) { (void)argv; return work(argc) + work(argc + 1); }
";

/// `objdump` prints the slot through which each stub jumps; `readelf` prints the resolver for that slot, and `nm` the
/// resolver's name.
#[test]
fn stubs_of_functions_chosen_at_the_start_are_named_after_them() {
    if !have(&["cc", "objdump", "readelf", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    let source = workshop.path("chosen.c");
    std::fs::write(&source, CHOSEN).unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    for (args, least) in [
        ("-O1", 1),
        ("-O1 -Wl,-z,now", 1),
        ("-O1 -no-pie", 1),
        ("-O1 -fcf-protection -Wl,-z,ibtplt", 1),
        ("-O1 -static", 10),
        ("-O1 -static-pie", 10),
    ] {
        let path = workshop.path("chosen");
        run(Command::new("cc").args(args.split_whitespace()).arg("-o").arg(&path).arg(&source));
        let names = nm(&path);
        let relocations = run(Command::new("readelf").arg("-rW").arg(&path));
        // Address of the resolver by slot.
        let slots: BTreeMap<u64, u64> = relocations
            .lines()
            .filter(|line| line.contains("R_X86_64_IRELATIV"))
            .filter_map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                Some((hex(words.first()?)?, hex(words.last()?)?))
            })
            .collect();
        let mut symbols = symbols(&path);
        let mut count = 0;
        for section in [".plt", ".plt.sec", ".plt.got"] {
            let listing = Command::new("objdump").args(["-d", "--no-show-raw-insn", "-j", section]).arg(&path).output();
            let listing = String::from_utf8(listing.unwrap().stdout).unwrap();
            for line in listing.lines().filter(|line| line.contains("jmp") && line.contains('#')) {
                let (at, rest) = line.trim_start().split_once(':').unwrap();
                let slot = rest.split_once("# ").unwrap().1.split_whitespace().next().unwrap();
                let Some(chooser) = slots.get(&hex(slot).unwrap()) else { continue };
                let found = resolve(&mut symbols, hex(at).unwrap());
                let name =
                    linkage(&found[0]).strip_suffix("@plt").unwrap_or_else(|| panic!("{args}: {line}: {found:?}"));
                let is_it = |(start, _, symbol): &(u64, u64, String)| start == chooser && symbol == name;
                assert!(names.iter().any(is_it), "{args}: {line}: {name} is not at {chooser:#x}");
                count += 1;
                // A function's own name is preferred to the resolver's.
                let of_program = names.iter().any(|(start, _, symbol)| start == chooser && symbol == "pick");
                assert!(!of_program || name == "work", "{args}: {line}: {name}");
            }
        }
        assert!(count >= least, "{args}: {count}");
    }
}

/// The C library calls its own functions by internal names.
#[test]
fn internal_names_of_the_c_library_are_the_public_ones() {
    if !have(&["cc", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    let source = workshop.path("internal.c");
    let text = "int sink;
int __libc_send(int x) { sink += x; return sink; }
extern __typeof(__libc_send) __send __attribute__((weak, alias(\"__libc_send\")));
extern __typeof(__libc_send) send_it __attribute__((weak, alias(\"__libc_send\")));
extern __typeof(__libc_send) __GI___libc_send __attribute__((visibility(\"hidden\"), alias(\"__libc_send\")));
__attribute__((visibility(\"hidden\"), noinline)) int __GI_alone(int x) { return sink ^= x; }
int main(int argc, char **argv) { (void)argv; return __GI___libc_send(argc) + __GI_alone(argc); }
";
    std::fs::write(&source, text).unwrap();
    for args in ["-O1", "-O1 -g"] {
        let path = workshop.path("internal");
        run(Command::new("cc").args(args.split_whitespace()).arg("-o").arg(&path).arg(&source));
        let mut symbols = symbols(&path);
        let listed = nm(&path);
        for (symbol, expected) in [("__GI___libc_send", "send_it"), ("__GI_alone", "alone")] {
            let (start, ..) = listed.iter().find(|it| it.2 == symbol).unwrap();
            assert_eq!(linkage(resolve(&mut symbols, *start).last().unwrap()), expected, "{args}");
        }
    }
}

#[test]
fn addresses_outside_of_functions_have_no_answer() {
    if !have(&["cc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    let path = workshop.build("plain.c", "-g -O2", "plain");
    let sections = common::sections(&path);
    let mut symbols = symbols(&path);
    for address in [0, 1, sections[".data"].0, sections[".rodata"].0, 1 << 40, u64::MAX - 1, u64::MAX] {
        assert!(resolve(&mut symbols, address).is_empty(), "{address:#x}");
    }
    assert!(symbols.notes().is_empty(), "{:?}", symbols.notes());
}

#[test]
fn declarations_are_where_the_source_has_them() {
    if !have(&["cc", "c++", "nm"]) {
        return;
    }
    let workshop = Workshop::new();
    for (source, definition) in [("plain.c", "unsigned long recurse("), ("classes.cpp", "int main(")] {
        let text = std::fs::read_to_string(common::fixture(source)).unwrap();
        let line = text.lines().position(|line| line.starts_with(definition)).unwrap() + 1;
        let path = workshop.build(source, "-g -O2", "program");
        let name = definition.trim_end_matches('(').rsplit(' ').next().unwrap();
        let (start, ..) = nm(&path).into_iter().find(|(_, _, symbol)| symbol == name).unwrap();
        let found = resolve(&mut symbols(&path), start);
        let function = found.last().unwrap();
        assert_eq!(function.decl_line as usize, line);
        assert!(function.decl_file.as_deref().is_some_and(|file| Path::new(file) == common::fixture(source)));
    }
}

#[test]
fn equal_names_are_shared() {
    if !have(&["cc", "readelf"]) {
        return;
    }
    let workshop = Workshop::new();
    let path = workshop.build("plain.c", "-g -O2", "plain");
    let mut symbols = symbols(&path);
    let mut seen: BTreeSet<(String, usize)> = BTreeSet::new();
    for address in text_addresses(&path, 1) {
        for function in resolve(&mut symbols, address) {
            if let Some(name) = &function.linkage_name {
                seen.insert((name.to_string(), name.as_ptr().addr()));
            }
        }
    }
    let names: BTreeSet<&String> = seen.iter().map(|(name, _)| name).collect();
    assert_eq!(names.len(), seen.len());
    assert!(open(&path).build_id().is_some_and(|id| id.len() == 20));
}
