//! Separate debug files: found by build id and by link, used only if they match.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use ccsd_symbolizer::{DebugFileFinder, Symbols};
use common::{Workshop, have, linkage, nm, open, resolve, run};

struct Split {
    workshop: Workshop,
    inside: PathBuf,
    main: u64,
}

impl Split {
    fn new(args: &str) -> Split {
        let workshop = Workshop::new();
        let whole = workshop.build("plain.c", args, "whole");
        let (main, ..) = nm(&whole).into_iter().find(|(_, _, name)| name == "main").unwrap();
        std::fs::create_dir_all(workshop.path("root/opt/app")).unwrap();
        workshop.objcopy(&["--only-keep-debug"], &whole, "program.debug");
        workshop.objcopy(&["--strip-all"], &whole, "root/opt/app/program");
        Split { workshop, inside: PathBuf::from("/opt/app/program"), main }
    }

    fn image(&self) -> PathBuf {
        self.workshop.path("root/opt/app/program")
    }

    fn debug(&self) -> PathBuf {
        self.workshop.path("program.debug")
    }

    /// Writes the name and checksum of the debug file into the program.
    fn link(&self) {
        let mut objcopy = Command::new("objcopy");
        objcopy.current_dir(self.workshop.dir.path()).arg("--add-gnu-debuglink=program.debug").arg(self.image());
        run(&mut objcopy);
    }

    fn install(&self, place: &str) -> PathBuf {
        let to = self.workshop.path("root").join(place);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(self.debug(), &to).unwrap();
        to
    }

    fn by_build_id(&self) -> String {
        let id: String = open(&self.image()).build_id().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..])
    }

    fn symbols(&self) -> Symbols {
        let finder = DebugFileFinder::in_root(self.workshop.path("root")).unwrap().image_path(&self.inside);
        Symbols::new(open(&self.image()), finder)
    }

    fn outcome(&self) -> (String, bool, Vec<String>) {
        let mut symbols = self.symbols();
        let found = resolve(&mut symbols, self.main);
        let last = found.last().unwrap();
        assert_eq!(last.start, Some(self.main));
        (linkage(last).to_owned(), last.line > 0, symbols.notes().to_vec())
    }
}

const TOOLS: [&str; 3] = ["cc", "objcopy", "nm"];

#[test]
fn without_a_debug_file_functions_have_no_names() {
    if have(&TOOLS) {
        let split = Split::new("-g -O2");
        assert_eq!(split.outcome(), ("?".to_owned(), false, vec![]));
    }
}

#[test]
fn found_by_build_id() {
    if !have(&TOOLS) {
        return;
    }
    for args in ["-g -O2", "-g -O2 -gz=zlib", "-g -O2 -no-pie", "-g -O2 -static-pie"] {
        let split = Split::new(args);
        split.install(&split.by_build_id());
        assert_eq!(split.outcome(), ("main".to_owned(), true, vec![]), "{args}");
    }
}

#[test]
fn found_by_link_in_three_places() {
    if !have(&TOOLS) {
        return;
    }
    for place in ["opt/app/program.debug", "opt/app/.debug/program.debug", "usr/lib/debug/opt/app/program.debug"] {
        let split = Split::new("-g -O2 -Wl,--build-id=none");
        assert!(open(&split.image()).build_id().is_none());
        split.link();
        split.install(place);
        assert_eq!(split.outcome(), ("main".to_owned(), true, vec![]), "{place}");
    }
}

#[test]
fn files_of_another_build_are_refused_and_noted() {
    if !have(&TOOLS) {
        return;
    }
    let split = Split::new("-g -O2");
    let other = Split::new("-g -O3");
    let place = split.workshop.path("root").join(split.by_build_id());
    std::fs::create_dir_all(place.parent().unwrap()).unwrap();
    std::fs::copy(other.debug(), &place).unwrap();
    let (name, line, notes) = split.outcome();
    assert_eq!((name.as_str(), line), ("?", false));
    assert!(notes.len() == 1 && notes[0].contains("another build"), "{notes:?}");

    let split = Split::new("-g -O2 -Wl,--build-id=none");
    split.link();
    let place = split.install("opt/app/program.debug");
    // One byte more changes the checksum.
    let mut bytes = std::fs::read(&place).unwrap();
    bytes.push(0);
    std::fs::write(&place, bytes).unwrap();
    let (name, line, notes) = split.outcome();
    assert_eq!((name.as_str(), line), ("?", false));
    assert!(notes.len() == 1 && notes[0].contains("another build"), "{notes:?}");
}

#[test]
fn only_regular_files_are_opened_and_nothing_waits() {
    if !have(&TOOLS) || !have(&["mkfifo"]) {
        return;
    }
    let split = Split::new("-g -O2");
    split.link();
    let by_id = split.workshop.path("root").join(split.by_build_id());
    std::fs::create_dir_all(by_id.parent().unwrap()).unwrap();
    for place in [by_id, split.workshop.path("root/opt/app/program.debug")] {
        run(Command::new("mkfifo").arg(&place));
    }
    std::fs::create_dir_all(split.workshop.path("root/opt/app/.debug/program.debug")).unwrap();
    assert_eq!(split.outcome(), ("?".to_owned(), false, vec![]));
}

#[test]
fn a_link_to_the_program_itself_or_out_of_the_directory_leads_nowhere() {
    if !have(&TOOLS) {
        return;
    }
    for name in ["program", "../app/program", "/opt/app/program", "", ".", ".."] {
        let split = Split::new("-g -O2 -Wl,--build-id=none");
        let mut link = name.as_bytes().to_vec();
        link.resize((name.len() + 1).next_multiple_of(4), 0);
        link.extend([1, 2, 3, 4]);
        let section = split.workshop.path("link");
        std::fs::write(&section, link).unwrap();
        let argument = format!(".gnu_debuglink={}", section.display());
        run(Command::new("objcopy").arg("--add-section").arg(argument).arg(split.image()));
        assert_eq!(split.outcome().0, "?", "{name}");
    }
}

#[test]
fn nothing_is_searched_without_a_root() {
    if !have(&TOOLS) {
        return;
    }
    let split = Split::new("-g -O2");
    split.install(&split.by_build_id());
    let mut symbols = Symbols::new(open(&split.image()), DebugFileFinder::none());
    assert_eq!(linkage(resolve(&mut symbols, split.main).last().unwrap()), "?");
    assert!(Path::new(&split.by_build_id()).is_relative());
}

#[test]
fn symbolic_links_are_followed_as_the_program_follows_them() {
    if !have(&TOOLS) {
        return;
    }
    let split = Split::new("-g -O2");
    let place = split.by_build_id();
    let inside = place.strip_prefix("usr/lib/debug").unwrap().trim_start_matches('/');
    // Debug files on another volume, by an absolute link.
    split.install(&format!("srv/debug/{inside}"));
    std::fs::create_dir_all(split.workshop.path("root/usr/lib")).unwrap();
    let link = split.workshop.path("root/usr/lib/debug");
    std::os::unix::fs::symlink("/srv/debug", &link).unwrap();
    assert_eq!(split.outcome(), ("main".to_owned(), true, vec![]));
    // The same directory by this process's path is outside of the program's root.
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(split.workshop.path("root/srv/debug"), &link).unwrap();
    assert_eq!(split.outcome(), ("?".to_owned(), false, vec![]));
    // Unless this machine is searched, too, by its own paths. It has no debug file for this program.
    let finder = DebugFileFinder::in_root(split.workshop.path("root")).unwrap().or_system();
    let mut symbols = Symbols::new(open(&split.image()), finder.image_path(&split.inside));
    assert_eq!(linkage(resolve(&mut symbols, split.main).last().unwrap()), "?");
    // In the other order, the other root's file is found.
    let other = tempfile::tempdir().unwrap();
    let finder = DebugFileFinder::in_root(other.path()).unwrap().or_system();
    let mut symbols = Symbols::new(open(&split.image()), finder.image_path(split.image()));
    split.link();
    let beside = split.workshop.path("root/opt/app/program.debug");
    std::fs::copy(split.debug(), beside).unwrap();
    assert_eq!(
        linkage(resolve(&mut symbols, split.main).last().unwrap()),
        "?",
        "the image was opened before it had a link"
    );
    let finder = DebugFileFinder::in_root(other.path()).unwrap().or_system();
    let mut symbols = Symbols::new(open(&split.image()), finder.image_path(split.image()));
    assert_eq!(linkage(resolve(&mut symbols, split.main).last().unwrap()), "main");
}

#[test]
fn a_root_that_is_not_there_is_an_error() {
    assert!(DebugFileFinder::in_root("/nonexistent").is_err());
    assert!(DebugFileFinder::in_root("/proc/self/exe").is_err(), "not a directory");
}

#[test]
fn large_files_are_not_read_for_a_checksum() {
    if !have(&TOOLS) {
        return;
    }
    for (args, expected) in [("-g -O2 -Wl,--build-id=none", "?"), ("-g -O2", "main")] {
        let split = Split::new(args);
        split.link();
        let place = split.install("opt/app/program.debug");
        // Sparse: takes no disk space, and seconds to read.
        std::fs::File::options().write(true).open(&place).unwrap().set_len(1_900_000_000).unwrap();
        let (name, _, notes) = split.outcome();
        assert_eq!(name, expected);
        // With build ids the checksum is not needed.
        let noted = notes.iter().any(|note| note.contains("above the limit for a checksum"));
        assert_eq!(noted, expected == "?", "{notes:?}");
    }
}

#[test]
fn files_that_are_held_may_go() {
    if !have(&TOOLS) {
        return;
    }
    for by_link in [false, true] {
        let split = Split::new("-g -O2");
        let place = if by_link { "opt/app/.debug/program.debug".to_owned() } else { split.by_build_id() };
        split.link();
        let place = split.install(&place);
        let image = open(&split.image());
        let finder = DebugFileFinder::in_root(split.workshop.path("root")).unwrap().image_path(&split.inside);
        let (held, not_held) =
            (finder.clone().hold(&image, |file| ccsd_symbolizer::ElfFile::open_debug(file).ok()), finder);
        std::fs::remove_file(place).unwrap();
        let name =
            |finder| linkage(resolve(&mut Symbols::new(image.clone(), finder), split.main).last().unwrap()).to_owned();
        assert_eq!((name(held).as_str(), name(not_held).as_str()), ("main", "?"));
    }
}
