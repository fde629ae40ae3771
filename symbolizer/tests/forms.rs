//! Forms of names and debug information: whatever the form, an address has the same result.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Symbols};
use common::{Workshop, have, linkage, nm, open, resolve, run, sections, text_addresses};

fn answers(path: &Path, finder: DebugFileFinder) -> (Vec<Vec<Function>>, Vec<String>) {
    some_answers(path, finder, 7)
}

fn some_answers(path: &Path, finder: DebugFileFinder, step: usize) -> (Vec<Vec<Function>>, Vec<String>) {
    let mut symbols = Symbols::new(open(path), finder.image_path(path));
    let answers = text_addresses(path, step).into_iter().map(|svma| resolve(&mut symbols, svma)).collect();
    (answers, symbols.notes().to_vec())
}

/// Compiles `classes.cpp` in the workshop, so that relative paths are the same for all.
fn compile(workshop: &Workshop, args: &str, name: &str) -> PathBuf {
    let source = workshop.path("classes.cpp");
    std::fs::copy(common::fixture("classes.cpp"), &source).unwrap();
    let mut compiler = Command::new("c++");
    compiler.current_dir(workshop.dir.path()).args(args.split_whitespace()).args(["-o", name, "classes.cpp"]);
    run(&mut compiler);
    workshop.path(name)
}

#[track_caller]
fn assert_same(plain: &Path, other: &Path, what: &str) {
    let (expected, notes) = answers(plain, DebugFileFinder::none());
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(std::fs::metadata(plain).unwrap().is_file(), std::fs::metadata(other).unwrap().is_file());
    let inlined = expected.iter().filter(|functions| functions.len() > 1).count();
    let lines = expected.iter().filter(|functions| functions.iter().any(|f| f.line > 0 && f.decl_line > 0)).count();
    assert!(inlined > 50 && lines > 100, "the fixture has inlined functions and lines: {inlined}, {lines}");
    let (found, notes) = answers(other, DebugFileFinder::system());
    assert!(notes.is_empty(), "{what}: {notes:?}");
    for (address, (expected, found)) in text_addresses(plain, 7).into_iter().zip(expected.iter().zip(&found)) {
        assert_eq!(expected, found, "{what}, at {address:#x}");
    }
    assert_eq!(expected.len(), found.len(), "{what}");
}

const TOOLS: [&str; 5] = ["c++", "cc", "objcopy", "nm", "readelf"];

#[test]
fn compressed_sections() {
    if !have(&TOOLS) {
        return;
    }
    let workshop = Workshop::new();
    let plain = compile(&workshop, "-g -O2", "plain");
    for (how, prefix) in [("zlib", ".debug_"), ("zstd", ".debug_"), ("zlib-gnu", ".zdebug_")] {
        let other = workshop.objcopy(&[&format!("--compress-debug-sections={how}")], &plain, how);
        assert!(common::sections(&other).contains_key(&format!("{prefix}info")), "{how}");
        assert!(std::fs::metadata(&other).unwrap().len() < std::fs::metadata(&plain).unwrap().len(), "{how}");
        assert_same(&plain, &other, how);
    }
}

#[test]
fn types_in_units_of_their_own() {
    if !have(&TOOLS) {
        return;
    }
    for version in [4, 5] {
        let workshop = Workshop::new();
        let plain = compile(&workshop, &format!("-g -gdwarf-{version} -O2"), "plain");
        let other = compile(&workshop, &format!("-g -gdwarf-{version} -O2 -fdebug-types-section"), "types");
        assert_same(&plain, &other, &format!("DWARF {version}"));
    }
}

#[test]
fn split_off_into_files() {
    if !have(&TOOLS) {
        return;
    }
    for (version, args) in [(4, ""), (5, ""), (4, "-fdebug-types-section"), (5, "-fdebug-types-section"), (5, "-gz")] {
        let workshop = Workshop::new();
        let plain = compile(&workshop, &format!("-g -gdwarf-{version} -O2"), "plain");
        let split = format!("-g -gdwarf-{version} -O2 -gsplit-dwarf {args}");
        let other = compile(&workshop, &split, "split");
        let dwo = workshop.path("split-classes.dwo");
        assert_same(&plain, &other, &split);

        let moved = Workshop::new();
        for file in [&other, &dwo] {
            std::fs::rename(file, moved.path(file.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        assert_same(&plain, &moved.path("split"), &format!("{split}, moved"));

        // Without the file, the image's own symbols and lines remain.
        let dwo = moved.path("split-classes.dwo");
        std::fs::remove_file(&dwo).unwrap();
        let (found, notes) = answers(&moved.path("split"), DebugFileFinder::system());
        assert!(notes.len() == 1 && notes[0].contains("split debug information is missing"), "{notes:?}");
        assert!(found.iter().any(|functions| functions.last().is_some_and(|f| linkage(f) == "main" && f.line > 0)));

        // A file of another build is not used.
        let again = compile(&workshop, &split.replace("-O2", "-O1"), "split");
        assert!(again.exists());
        std::fs::rename(workshop.path("split-classes.dwo"), &dwo).unwrap();
        let (_, notes) = answers(&moved.path("split"), DebugFileFinder::system());
        assert!(notes.iter().any(|note| note.contains("another build")), "{notes:?}");
    }
}

#[test]
fn split_off_files_are_found_where_the_program_sees_them() {
    if !have(&TOOLS) {
        return;
    }
    let workshop = Workshop::new();
    let map = format!("-g -O2 -gsplit-dwarf -fdebug-prefix-map={}=/build/here", workshop.dir.path().display());
    let image = compile(&workshop, &map, "split");
    std::fs::create_dir_all(workshop.path("root/build/here")).unwrap();
    std::fs::rename(workshop.path("split-classes.dwo"), workshop.path("root/build/here/split-classes.dwo")).unwrap();
    let finder = DebugFileFinder::in_root(workshop.path("root")).unwrap();
    let mut symbols = Symbols::new(open(&image), finder.image_path("/usr/bin/split"));
    let found = text_addresses(&image, 3).into_iter().flat_map(|svma| resolve(&mut symbols, svma));
    assert!(found.filter(|function| function.inlined).count() > 50);
    assert!(symbols.notes().is_empty(), "{:?}", symbols.notes());
}

/// A package as `dwp` makes it of one DWARF 5 `.dwo` file (section 7.3.5.3). `dwp` of binutils 2.40 crashes on such
/// files.
fn package_v5(workshop: &Workshop, dwo: &Path, id: u64, damage: impl Fn(&mut Vec<u32>)) -> Vec<u32> {
    let sizes = common::sections(dwo);
    // Info, abbreviations, string offsets, range lists, by their DWARF numbers.
    let columns =
        [(1, ".debug_info.dwo"), (3, ".debug_abbrev.dwo"), (6, ".debug_str_offsets.dwo"), (8, ".debug_rnglists.dwo")];
    let mut index = vec![5, columns.len() as u32, 1, 2];
    let slot = (id & 1) as usize;
    let mut ids = [0u64; 2];
    ids[slot] = id;
    index.extend(ids.iter().flat_map(|id| [*id as u32, (id >> 32) as u32]));
    let mut rows = [0; 2];
    rows[slot] = 1;
    index.extend(rows);
    index.extend(columns.map(|(number, _)| number));
    index.extend(columns.map(|_| 0));
    index.extend(columns.map(|(_, name)| sizes[name].1 as u32));
    damage(&mut index);
    let bytes: Vec<u8> = index.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(workshop.path("index"), bytes).unwrap();
    let add = format!(".debug_cu_index={}", workshop.path("index").display());
    workshop.objcopy(&["--add-section", &add], dwo, "split.dwp");
    index
}

fn split_id(image: &Path) -> u64 {
    let dump = run(Command::new("readelf").args(["--debug-dump=info", "-wN"]).arg(image));
    let line = dump.lines().find(|line| line.contains("DWO ID:")).unwrap_or_else(|| panic!("{dump}"));
    u64::from_str_radix(line.rsplit("0x").next().unwrap().trim(), 16).unwrap()
}

#[test]
fn split_off_into_a_package() {
    if !have(&TOOLS) || !have(&["dwp"]) {
        return;
    }
    for args in ["-gdwarf-4", "-gdwarf-4 -fdebug-types-section", "-gdwarf-5"] {
        let workshop = Workshop::new();
        let plain = compile(&workshop, &format!("-g -O2 {args}"), "plain");
        let other = compile(&workshop, &format!("-g -O2 {args} -gsplit-dwarf"), "split");
        let dwo = workshop.path("split-classes.dwo");
        if args == "-gdwarf-5" {
            package_v5(&workshop, &dwo, split_id(&other), |_| ());
        } else {
            run(Command::new("dwp").current_dir(workshop.dir.path()).args(["-e", "split"]));
        }
        assert!(workshop.path("split.dwp").exists());
        std::fs::remove_file(dwo).unwrap();
        assert_same(&plain, &other, args);
    }
}

#[test]
fn made_common_by_dwz() {
    if !have(&TOOLS) || !have(&["dwz"]) {
        return;
    }
    for args in ["-g -gdwarf-4 -O2", "-g -gdwarf-5 -O2"] {
        let workshop = Workshop::new();
        let plain = compile(&workshop, args, "plain");
        let copy = |name: &str| {
            std::fs::copy(&plain, workshop.path(name)).unwrap();
            workshop.path(name)
        };
        let alone = copy("alone");
        run(Command::new("dwz").arg(&alone));
        assert_same(&plain, &alone, args);
        let (one, _) = (copy("one"), copy("two"));
        let mut dwz = Command::new("dwz");
        dwz.current_dir(workshop.dir.path()).args(["-m", "common", "one", "two"]);
        run(&mut dwz);
        assert!(common::sections(&one).contains_key(".gnu_debugaltlink"));
        assert_same(&plain, &one, &format!("{args}, with a common file"));
        // Without the shared file there is less information, and no error.
        std::fs::remove_file(workshop.path("common")).unwrap();
        let (found, notes) = answers(&one, DebugFileFinder::system());
        assert!(notes.len() == 1 && notes[0].contains("common"), "{notes:?}");
        assert!(found.iter().any(|functions| functions.last().is_some_and(|f| linkage(f) == "main")));
    }
}

/// Strips `plain` except for the names of its functions in `.gnu_debugdata`, as Fedora does.
fn with_mini_debug(workshop: &Workshop, plain: &Path, data: Option<Vec<u8>>) -> PathBuf {
    let only_names = workshop.objcopy(&["--only-keep-debug", "--strip-debug", "-R", ".comment"], plain, "mini");
    run(Command::new("xz").args(["-k", "-f"]).arg(&only_names));
    if let Some(data) = data {
        std::fs::write(workshop.path("mini.xz"), data).unwrap();
    }
    let add = format!(".gnu_debugdata={}", workshop.path("mini.xz").display());
    workshop.objcopy(&["--strip-all", "--add-section", &add], plain, "stripped")
}

#[test]
fn names_in_mini_debug_info() {
    if !have(&TOOLS) || !have(&["xz"]) {
        return;
    }
    let workshop = Workshop::new();
    let plain = workshop.build("plain.c", "-O2", "plain");
    let stripped = with_mini_debug(&workshop, &plain, None);
    let names = |path: &Path| answers(path, DebugFileFinder::none()).0;
    let (expected, found) = (names(&plain), names(&stripped));
    assert_eq!(expected, found);
    assert!(found.iter().any(|functions| functions.last().is_some_and(|f| linkage(f) == "main")));
}

#[test]
fn mini_debug_info_that_lies() {
    if !have(&TOOLS) || !have(&["xz"]) {
        return;
    }
    let workshop = Workshop::new();
    let plain = workshop.build("plain.c", "-O2", "plain");
    let bomb = workshop.path("zeros");
    // 256 MiB of zeros, in 40 kB.
    std::fs::File::create(&bomb).unwrap().set_len(256 << 20).unwrap();
    run(Command::new("xz").args(["-0", "-f"]).arg(&bomb));
    let bomb = std::fs::read(workshop.path("zeros.xz")).unwrap();
    assert!(bomb.len() < 1 << 20);
    // A dictionary of 4 GiB in the block header; its checksum is checked before or after, both refuse.
    let valid = {
        with_mini_debug(&workshop, &plain, None);
        std::fs::read(workshop.path("mini.xz")).unwrap()
    };
    let mut damaged = valid.clone();
    for byte in damaged.iter_mut().skip(40).step_by(7) {
        *byte ^= 0x55;
    }
    let truncated = valid[..valid.len() / 2].to_vec();
    for (what, data) in
        [("bomb", bomb), ("noise", damaged), ("cut", truncated), ("empty", vec![]), ("text", vec![b'x'; 4000])]
    {
        let stripped = with_mini_debug(&workshop, &plain, Some(data));
        let begin = Instant::now();
        let (found, notes) = answers(&stripped, DebugFileFinder::none());
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", begin.elapsed());
        assert!(notes.len() == 1 && notes[0].contains(".gnu_debugdata"), "{what}: {notes:?}");
        // Starts of functions are still known.
        let (main, ..) = nm(&plain).into_iter().find(|(.., name)| name == "main").unwrap();
        let main = |f: &Function| f.start == Some(main) && f.linkage_name.is_none();
        assert!(found.iter().any(|functions| functions.last().is_some_and(main)), "{what}");
    }
}

#[test]
fn split_files_that_lie() {
    if !have(&TOOLS) || !have(&["mkfifo"]) {
        return;
    }
    let workshop = Workshop::new();
    let image = compile(&workshop, "-g -gdwarf-5 -O2 -gsplit-dwarf", "split");
    let dwo = workshop.path("split-classes.dwo");
    let valid = std::fs::read(&dwo).unwrap();
    let outcome = |what: &str| {
        let begin = Instant::now();
        let (found, notes) = some_answers(&image, DebugFileFinder::system(), 17);
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}: {:?}", begin.elapsed());
        assert!(found.iter().any(|functions| functions.last().is_some_and(|f| linkage(f) == "main")), "{what}");
        let inlined = found.iter().filter(|functions| functions.len() > 1).count();
        (inlined, notes)
    };
    let (inlined, notes) = outcome("valid");
    assert!(inlined > 10 && notes.is_empty(), "{inlined}, {notes:?}");

    // The image itself: its units are skeletons, which refer to that file again.
    std::fs::copy(&image, &dwo).unwrap();
    assert!(outcome("itself").1[0].contains("another build"));
    std::fs::remove_file(&dwo).unwrap();
    std::os::unix::fs::symlink(&dwo, &dwo).unwrap();
    assert!(outcome("a link to itself").1[0].contains("missing"));
    std::fs::remove_file(&dwo).unwrap();
    run(Command::new("mkfifo").arg(&dwo));
    assert!(outcome("a FIFO").1[0].contains("missing"));
    std::fs::remove_file(&dwo).unwrap();

    for seed in 0..24usize {
        let mut bytes = valid.clone();
        for step in 0..200 {
            let at = (seed * 7919 + step * 104_729) % bytes.len();
            bytes[at] = bytes[at].wrapping_mul(31).wrapping_add(seed as u8);
        }
        bytes.truncate(if seed % 4 == 0 { valid.len() * seed / 24 } else { valid.len() });
        std::fs::write(&dwo, bytes).unwrap();
        outcome("noise");
    }

    // Packages with false indexes: positions of parts, their number, or the position of a unit.
    std::fs::write(&dwo, &valid).unwrap();
    let id = split_id(&image);
    let whole = package_v5(&workshop, &dwo, id, |_| ());
    let backup = workshop.path("valid.dwo");
    std::fs::rename(&dwo, &backup).unwrap();
    assert_eq!(outcome("a package").1, Vec::<String>::new());
    for word in 0..whole.len() {
        for value in [0, 7, u32::MAX] {
            package_v5(&workshop, &backup, id, |index| index[word] = value);
            outcome("a damaged package");
        }
    }
    // If a package is unusable, the file beside it is still used.
    package_v5(&workshop, &backup, id, |index| index[0] = 77);
    std::fs::rename(&backup, &dwo).unwrap();
    let (inlined, notes) = outcome("a package of another version");
    assert!(inlined > 10 && notes.len() == 1 && notes[0].contains("damaged index"), "{inlined}, {notes:?}");
}

/// Addresses outside all units (`_start`, stubs, padding) do not cause all units to be parsed.
#[test]
fn units_are_not_parsed_for_what_none_is_about() {
    if !have(&TOOLS) {
        return;
    }
    let workshop = Workshop::new();
    let cc = |args: &[&str]| run(Command::new("cc").current_dir(workshop.dir.path()).args(["-g", "-O1"]).args(args));
    let units: Vec<String> = (0..20).map(|unit| format!("unit{unit}.c")).collect();
    for (unit, file) in units.iter().enumerate() {
        let functions: String = (0..50).map(|f| format!("int f{unit}_{f}(int x) {{ return x * {f}; }}\n")).collect();
        std::fs::write(workshop.path(file), functions).unwrap();
    }
    std::fs::write(
        workshop.path("main.c"),
        "#include <stdio.h>\nextern int data[100], f7_7(int);\nint main(void) { return printf(\"%d\", f7_7(data[0])); }\n",
    )
    .unwrap();
    // A unit without code, as the compiler makes it, and without an entry in the list.
    std::fs::write(workshop.path("data.c"), "int data[100] = {1};\n").unwrap();
    cc(&["-c", "data.c"]);
    workshop.objcopy(&["-R", ".debug_aranges"], &workshop.path("data.o"), "unlisted.o");
    for data in ["data.o", "unlisted.o"] {
        let files: Vec<&str> = units.iter().map(String::as_str).chain(["main.c", data, "-o", "program"]).collect();
        cc(&files);
        let program = workshop.path("program");
        let functions = nm(&program);
        let address = |name: &str| functions.iter().find(|(.., known)| known == name).unwrap().0;
        let mut symbols = common::symbols(&program);
        assert_eq!(resolve(&mut symbols, address("main") + 1)[0].line, 3);
        let before = symbols.held_bytes();
        if data == "data.o" {
            assert_eq!(linkage(&resolve(&mut symbols, address("_start") + 1)[0]), "_start");
        }
        let (start, size) = sections(&program)[".plt"];
        assert!((start..start + size).step_by(16).any(|stub| !resolve(&mut symbols, stub).is_empty()));
        let taken = symbols.held_bytes() - before;
        assert!(taken < 1000, "{data}: {taken} bytes more");
        // All units take more than that, so parsing them would be noticed.
        (0..20).for_each(|unit| assert_eq!(resolve(&mut symbols, address(&format!("f{unit}_3")))[0].line, 4));
        let taken = symbols.held_bytes() - before;
        assert!(taken > 10_000, "{data}: {taken} bytes more");
    }
}

#[test]
fn names_of_stripped_libraries_come_from_the_dynamic_symbols() {
    if !have(&TOOLS) {
        return;
    }
    let workshop = Workshop::new();
    let plain = compile(&workshop, "-O2 -shared -fPIC", "lib.so");
    let stripped = workshop.objcopy(&["--strip-all"], &plain, "stripped.so");
    let exported = run(Command::new("nm").args(["-D", "-S", "--defined-only"]).arg(&stripped));
    let mut symbols = Symbols::new(open(&stripped), DebugFileFinder::none());
    let mut seen = 0;
    for line in exported.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [start, size, "T", name] = fields[..] else { continue };
        let hex = |text| u64::from_str_radix(text, 16).unwrap();
        let (start, size) = (hex(start), hex(size));
        for svma in [start, start + size - 1] {
            let found = resolve(&mut symbols, svma);
            // Variants of a constructor have one name.
            let name = name.replace("C2E", "C1E").replace("D2E", "D1E").replace("D0E", "D1E");
            assert_eq!((linkage(&found[0]), found[0].start), (name.as_str(), Some(start)));
        }
        seen += 1;
    }
    assert!(seen > 3, "{exported}");
    assert!(ElfFile::open(std::fs::File::open(&stripped).unwrap()).is_ok());
}

#[test]
fn the_entry_function_of_a_stripped_program_has_its_usual_name() {
    if !have(&TOOLS) {
        return;
    }
    let workshop = Workshop::new();
    for args in ["-O2", "-O2 -no-pie", "-O2 -static", "-O2 -static-pie"] {
        let plain = compile(&workshop, args, "entered");
        let stripped = workshop.objcopy(&["--strip-all"], &plain, "stripped");
        let image = open(&stripped);
        let entry = image.entry();
        let mut symbols = Symbols::new(image, DebugFileFinder::none());
        // `main` is passed as an argument within the function, so it is longer than this.
        for svma in [entry, entry + 16] {
            let found = resolve(&mut symbols, svma);
            assert_eq!((found.len(), linkage(&found[0]), found[0].start), (1, "_start", Some(entry)), "{args}");
        }
        let (_, size, _) = nm(&plain).into_iter().find(|(_, _, name)| name == "_start").unwrap();
        let bare = workshop.objcopy(&["-R", ".eh_frame", "-R", ".eh_frame_hdr"], &stripped, "bare");
        for path in [&plain, &stripped, &bare] {
            let mut symbols = Symbols::new(open(path), DebugFileFinder::none());
            let far = text_addresses(&plain, 64).into_iter().filter(|svma| !(entry..entry + size).contains(svma));
            let mut named = |svma: &u64| resolve(&mut symbols, *svma).iter().any(|f| linkage(f) == "_start");
            let taken: Vec<u64> =
                (entry + size..entry + 100).chain(entry - 64..entry).chain(far).filter(&mut named).collect();
            assert!(taken.is_empty(), "{args} {path:?}: {taken:x?}");
            assert!(named(&(entry + 16)), "{args} {path:?}");
        }
    }
    // A library has no entry function, whatever its header says.
    let text = sections(&compile(&workshop, "-O2 -shared -fPIC", "lib.so"))[".text"].0;
    let library = compile(&workshop, &format!("-O2 -shared -fPIC -Wl,-e,{text:#x}"), "entered.so");
    let image = open(&workshop.objcopy(&["--strip-all"], &library, "stripped.so"));
    assert_eq!(image.entry(), text);
    let found = resolve(&mut Symbols::new(image, DebugFileFinder::none()), text);
    assert!(found.iter().all(|function| linkage(function) != "_start"), "{found:?}");
}
