//! Hostile images: nothing panics, hangs, overflows the stack or takes disproportionate memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use ccsd_symbolizer::{DebugFileFinder, ElfFile, KernelSymbols, Symbols};
use common::{Workshop, have, nm, resolve, run};
use proptest::prelude::*;

/// Time limit for one damaged image with all its addresses; a debug build is 20 times slower than a release build.
const PATIENCE: Duration = Duration::from_secs(60);

/// Opens `bytes` as an image and calls everything. Returns the notes.
fn exercise(bytes: Vec<u8>) -> Vec<String> {
    let begin = Instant::now();
    let mut notes = Vec::new();
    if let Ok(image) = ElfFile::from_bytes(bytes) {
        let image = Arc::new(image);
        let _ = (image.build_id(), image.base_svma(), image.has_unwind_info());
        let ends = image.segments().iter().flat_map(|s| [s.svma, s.svma.wrapping_add(s.mem_size)]);
        let mut addresses: Vec<u64> = ends.chain([0, 1, u64::MAX, 1 << 63]).collect();
        addresses.extend((0..0x3000).step_by(29).chain((0x40_1000..0x40_2000).step_by(97)));
        let mut symbols = Symbols::new(image.clone(), DebugFileFinder::none());
        for address in addresses {
            let _ = image.svma_of_file_offset(address);
            resolve(&mut symbols, address);
        }
        notes = symbols.notes().to_vec();
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    notes
}

/// Small programs with all kinds of sections; none without a compiler.
static SEEDS: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    if !have(&["cc", "c++", "objcopy"]) {
        return Vec::new();
    }
    let workshop = Workshop::new();
    let mut seeds = Vec::new();
    for (source, args) in [
        ("plain.c", "-g -O2"),
        ("plain.c", "-g -O2 -gz=zlib -no-pie"),
        ("plain.c", "-g -O2 -gdwarf-4"),
        ("classes.cpp", "-g -O2"),
        ("bare.c", "-g -O2 -static -nostdlib"),
    ] {
        let path = workshop.build(source, args, "seed");
        seeds.push(std::fs::read(&path).unwrap());
        seeds.push(std::fs::read(workshop.objcopy(&["--strip-all"], &path, "stripped")).unwrap());
    }
    seeds
});

#[derive(Debug, Clone)]
enum Damage {
    Byte(prop::sample::Index, u8),
    /// A word in the headers at the beginning or the end of the file, set to a value at a limit.
    Header(prop::sample::Index, u64),
    Word(prop::sample::Index, u64),
    Truncate(prop::sample::Index),
    Copy(prop::sample::Index, prop::sample::Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let word = prop_oneof![
        any::<u64>(),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| u64::MAX >> bit),
        0u64..0x8000,
    ];
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => (index(), any::<u8>()).prop_map(|(at, value)| Damage::Byte(at, value)),
        3 => (index(), word.clone()).prop_map(|(at, value)| Damage::Header(at, value)),
        2 => (index(), word).prop_map(|(at, value)| Damage::Word(at, value)),
        1 => index().prop_map(Damage::Truncate),
        1 => (index(), index(), 1usize..4096).prop_map(|(from, to, length)| Damage::Copy(from, to, length)),
    ]
}

fn apply(bytes: &mut Vec<u8>, damage: &Damage) {
    if bytes.len() < 8192 {
        return;
    }
    match damage {
        Damage::Byte(at, value) => {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        Damage::Header(at, value) => {
            // File and program headers are first, section headers last.
            let at = at.index(4096);
            let at = if at < 1024 { at } else { bytes.len() - at - 8 };
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Damage::Word(at, value) => {
            let at = at.index(bytes.len() - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        Damage::Truncate(at) => bytes.truncate(at.index(bytes.len())),
        Damage::Copy(from, to, length) => {
            let from = from.index(bytes.len() - length);
            let to = to.index(bytes.len() - length);
            bytes.copy_within(from..from + length, to);
        }
    }
}

proptest! {
    #[test]
    fn damaged_programs_do_no_harm(seed in any::<prop::sample::Index>(), damages in prop::collection::vec(damage(), 1..24)) {
        if !SEEDS.is_empty() {
            let mut bytes = SEEDS[seed.index(SEEDS.len())].clone();
            for damage in &damages {
                apply(&mut bytes, damage);
            }
            exercise(bytes);
        }
    }

    #[test]
    fn arbitrary_bytes_behind_a_valid_beginning_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 62, 0];
        file.extend(bytes);
        exercise(file);
    }

    #[test]
    fn arbitrary_kernel_symbols_do_no_harm(text in "([0-9a-f]{0,17}[ \t]?[tTwWdD]?[ \t]?[a-z_]{0,9}(\t\\[[a-z]{0,5}\\]?)?\n?){0,20}", address in any::<u64>()) {
        if let Ok(symbols) = KernelSymbols::read(text.as_bytes()) {
            prop_assert!(symbols.lookup(address).is_none_or(|found| found.start <= address));
        }
    }
}

#[test]
fn every_prefix_of_a_program_does_no_harm() {
    for seed in SEEDS.iter().take(2) {
        for length in (0..seed.len()).step_by(331) {
            exercise(seed[..length].to_vec());
        }
    }
}

/// A stripped program with added sections. Returns the file and the address of `work`.
fn with_sections(sections: &[(&str, Vec<u8>)]) -> Option<(Vec<u8>, u64)> {
    if !have(&["cc", "objcopy", "nm"]) {
        return None;
    }
    let workshop = Workshop::new();
    let path = workshop.build("bare.c", "-O2 -static -nostdlib", "bare");
    let (work, ..) = nm(&path).into_iter().find(|(_, _, name)| name == "work").unwrap();
    let mut objcopy = Command::new("objcopy");
    for (name, bytes) in sections {
        let part: PathBuf = workshop.path(&name[1..]);
        std::fs::write(&part, bytes).unwrap();
        objcopy.arg("--add-section").arg(format!("{name}={}", part.display()));
    }
    let out = workshop.path("out");
    run(objcopy.arg(&path).arg(&out));
    Some((std::fs::read(out).unwrap(), work))
}

/// Resolves one address. Returns the time taken, the result and the notes.
fn time(bytes: Vec<u8>, address: u64) -> (Duration, Vec<ccsd_symbolizer::Function>, Vec<String>) {
    let begin = Instant::now();
    let mut symbols = Symbols::new(Arc::new(ElfFile::from_bytes(bytes).unwrap()), DebugFileFinder::none());
    let found = resolve(&mut symbols, address);
    (begin.elapsed(), found, symbols.notes().to_vec())
}

fn uleb(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

type Attributes = [(gimli::DwAt, gimli::DwForm)];

/// A table of abbreviations: (code, tag, whether it has children, attributes as name and form).
fn abbreviations(kinds: &[(u64, gimli::DwTag, bool, &Attributes)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (code, tag, children, attributes) in kinds {
        uleb(&mut out, *code);
        uleb(&mut out, u64::from(tag.0));
        out.push(u8::from(*children));
        for (name, form) in *attributes {
            uleb(&mut out, u64::from(name.0));
            uleb(&mut out, u64::from(form.0));
        }
        out.extend([0, 0]);
    }
    out.push(0);
    out
}

fn unit(entries: &[u8]) -> Vec<u8> {
    let mut out = (entries.len() as u32 + 7).to_le_bytes().to_vec();
    out.extend([4, 0, 0, 0, 0, 0, 8]);
    out.extend(entries);
    out
}

const PLACE: &Attributes = &[(gimli::DW_AT_low_pc, gimli::DW_FORM_addr), (gimli::DW_AT_high_pc, gimli::DW_FORM_data4)];
const RANGES: &Attributes = &[(gimli::DW_AT_ranges, gimli::DW_FORM_sec_offset)];

fn place(code: u8, address: u64, size: u32) -> Vec<u8> {
    [&[code][..], &address.to_le_bytes(), &size.to_le_bytes()].concat()
}

#[test]
fn inlined_functions_nested_a_million_deep_do_not_overflow_the_stack() {
    let abbrev = abbreviations(&[
        (1, gimli::DW_TAG_compile_unit, true, PLACE),
        (2, gimli::DW_TAG_subprogram, true, PLACE),
        (3, gimli::DW_TAG_inlined_subroutine, true, PLACE),
    ]);
    let Some((_, work)) = with_sections(&[]) else { return };
    let mut entries = [place(1, work, 64), place(2, work, 64)].concat();
    for _ in 0..1_000_000 {
        entries.extend(place(3, work, 64));
    }
    let (bytes, work) = with_sections(&[(".debug_abbrev", abbrev), (".debug_info", unit(&entries))]).unwrap();
    // The smallest stack of a resolving thread.
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    let (elapsed, found, _) = thread.spawn(move || time(bytes, work)).unwrap().join().unwrap();
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found.len(), 1, "the symbol is still there");
}

#[test]
fn units_that_share_one_long_range_list_do_not_take_hours() {
    let abbrev = abbreviations(&[(1, gimli::DW_TAG_compile_unit, false, RANGES)]);
    let one: Vec<u8> = unit(&[1, 0, 0, 0, 0]);
    let info = one.repeat(100_000);
    let ranges: Vec<u8> =
        (1..200_000u64).flat_map(|at| [at * 16, at * 16 + 8]).flat_map(u64::to_le_bytes).chain([0; 16]).collect();
    let sections = [(".debug_abbrev", abbrev), (".debug_info", info), (".debug_ranges", ranges)];
    let Some((bytes, work)) = with_sections(&sections) else { return };
    let (elapsed, found, notes) = time(bytes, work);
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found.len(), 1);
    assert!(notes.iter().any(|note| note.contains("more work")), "{notes:?}");
}

#[test]
fn abbreviations_with_very_many_attributes_are_refused() {
    let many = vec![(gimli::DW_AT_prototyped, gimli::DW_FORM_flag_present); 1_000_000];
    let abbrev =
        abbreviations(&[(1, gimli::DW_TAG_compile_unit, true, PLACE), (2, gimli::DW_TAG_variable, false, &many)]);
    let Some((_, work)) = with_sections(&[]) else { return };
    let entries = [place(1, work, 64), vec![2; 1_000_000]].concat();
    let (bytes, work) = with_sections(&[(".debug_abbrev", abbrev), (".debug_info", unit(&entries))]).unwrap();
    let (elapsed, found, notes) = time(bytes, work);
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found.len(), 1);
    assert!(!notes.is_empty());
}

#[test]
fn very_many_units_are_refused() {
    let abbrev = abbreviations(&[(1, gimli::DW_TAG_compile_unit, false, &[])]);
    let info = unit(&[1]).repeat(1_000_000);
    let Some((bytes, work)) = with_sections(&[(".debug_abbrev", abbrev), (".debug_info", info)]) else { return };
    let (elapsed, found, notes) = time(bytes, work);
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found.len(), 1);
    assert!(notes.iter().any(|note| note.contains("units")), "{notes:?}");
}

#[test]
fn functions_whose_origins_form_a_circle_are_left_alone() {
    let origin = &[PLACE[0], PLACE[1], (gimli::DW_AT_abstract_origin, gimli::DW_FORM_ref4)];
    let abbrev =
        abbreviations(&[(1, gimli::DW_TAG_compile_unit, true, PLACE), (2, gimli::DW_TAG_subprogram, true, origin)]);
    let Some((_, work)) = with_sections(&[]) else { return };
    let at = 11 + 13;
    let entries = [place(1, work, 64), place(2, work, 64), vec![at, 0, 0, 0], vec![0, 0]].concat();
    let (bytes, work) = with_sections(&[(".debug_abbrev", abbrev), (".debug_info", unit(&entries))]).unwrap();
    let (elapsed, found, _) = time(bytes, work);
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found.len(), 1);
}

/// A compressed section: header (gABI, "Section Compression") and data.
fn compressed(method: u32, claimed: u64, data: &[u8]) -> Vec<u8> {
    [&method.to_le_bytes()[..], &[0; 4], &claimed.to_le_bytes(), &1u64.to_le_bytes(), data].concat()
}

/// Sets SHF_COMPRESSED on a section, which objcopy cannot do.
fn mark_compressed(bytes: &mut [u8], name: &str) {
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let half = |bytes: &[u8], at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()) as usize;
    let (table, count, names) = (word(bytes, 0x28), half(bytes, 0x3c), half(bytes, 0x3e));
    let strings = word(bytes, table + names * 64 + 0x18);
    for at in (0..count).map(|index| table + index * 64) {
        let offset = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        if bytes[strings + offset..].starts_with(name.as_bytes()) {
            bytes[at + 8..at + 16].copy_from_slice(&0x800u64.to_le_bytes());
        }
    }
}

#[test]
fn compressed_sections_that_lie_about_their_size_are_refused() {
    // 8 KiB that zlib expands to 8 MiB of zeros: 1000 to 1.
    let zeros = [0x78, 0x9c, 0xed, 0xc1, 0x01, 0x01].repeat(1000);
    for (method, claimed) in
        [(1, 1 << 60), (1, u64::MAX), (1, 100 << 20), (1, 5000), (2, 1 << 60), (2, 5000), (77, 5000)]
    {
        let section = compressed(method, claimed, &zeros);
        let sections = [(".debug_info", section.clone()), (".debug_abbrev", section)];
        let Some((mut bytes, work)) = with_sections(&sections) else { return };
        mark_compressed(&mut bytes, ".debug_info");
        mark_compressed(&mut bytes, ".debug_abbrev");
        let (elapsed, found, notes) = time(bytes, work);
        assert!(elapsed < PATIENCE, "{elapsed:?}");
        assert_eq!(found.len(), 1);
        assert!(!notes.is_empty(), "{method} {claimed:#x}");
    }
}

#[test]
fn names_made_to_blow_up_demanglers_do_no_harm() {
    if !have(&["cc"]) {
        return;
    }
    let workshop = Workshop::new();
    let nested = format!("_Z1f{}i{}", "N1aI".repeat(3000), "EE".repeat(3000));
    let pointers = format!("_Z1f{}i", "P".repeat(15_000));
    let doubling = format!("_Z1f1aI{}E", (0..60).map(|n| format!("S{}_S{}_", n % 9, n % 7)).collect::<String>());
    let packs = format!("_ZN1a{}C2Ev", "C2D0".repeat(1000));
    let rust = format!("_RNv{}C1a1f", "INvC1a1bB2_".repeat(200));
    let long = "a".repeat(100_000);
    let mut assembly = String::from(".text\n");
    let names = [nested, pointers, doubling, packs, rust, long];
    for (index, name) in names.iter().enumerate() {
        assembly += &format!(
            ".globl {name}\n.type {name}, @function\n{name}: .fill {}, 1, 0x90\n.size {name}, .-{name}\n",
            index + 1
        );
    }
    let source = workshop.path("names.s");
    std::fs::write(&source, assembly).unwrap();
    let path = workshop.path("names");
    run(Command::new("cc").args(["-shared", "-nostdlib", "-o"]).arg(&path).arg(&source));
    let begin = Instant::now();
    let mut symbols = common::symbols(&path);
    let mut seen = 0;
    for address in common::text_addresses(&path, 1) {
        for function in resolve(&mut symbols, address) {
            assert!(function.linkage_name.as_ref().is_some_and(|name| name.len() <= 16 << 10));
            assert!(function.display_name.as_ref().is_none_or(|name| name.len() <= 4 << 10));
            seen += 1;
        }
    }
    assert!(seen >= names.len());
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
}

#[test]
fn symbols_that_share_an_address_and_one_endless_name_take_seconds_at_most() {
    let Some((mut bytes, work)) = with_sections(&[]) else { return };
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let headers = word(&bytes, 0x28);
    let addresses = |at: usize| word(&bytes, at + 0x10)..word(&bytes, at + 0x10) + word(&bytes, at + 0x20);
    let code = (1..bytes[0x3c]).find(|&index| addresses(headers + usize::from(index) * 64).contains(&(work as usize)));
    let code = code.unwrap();
    // Overlapping names: each begins one byte after the previous, and none ends.
    let symbol = |index: u32, address: u64| -> Vec<u8> {
        [&(index + 1).to_le_bytes()[..], &[0x12, 0, code, 0], &address.to_le_bytes(), &8u64.to_le_bytes()].concat()
    };
    let count = 500_000;
    let table: Vec<u8> = (0..count).flat_map(|index| symbol(index, work)).collect();
    let strings = vec![b'x'; 2 << 20];
    let (table_at, strings_at) = (bytes.len(), bytes.len() + table.len());
    let (table_size, strings_size) = (table.len(), strings.len());
    bytes.extend(table);
    bytes.extend(strings);
    // Points the symbol table and its strings there.
    for index in 0..usize::from(bytes[0x3c]) {
        let at = headers + index * 64;
        if bytes[at + 4] == 2 {
            let link = usize::from(bytes[at + 0x28]);
            for (at, place, size) in [(at, table_at, table_size), (headers + link * 64, strings_at, strings_size)] {
                bytes[at + 0x18..at + 0x20].copy_from_slice(&(place as u64).to_le_bytes());
                bytes[at + 0x20..at + 0x28].copy_from_slice(&(size as u64).to_le_bytes());
            }
        }
    }
    let (elapsed, found, notes) = time(bytes, work);
    assert!(elapsed < PATIENCE, "{elapsed:?}");
    assert_eq!(found[0].start, Some(work));
    assert!(found[0].linkage_name.as_ref().is_some_and(|name| name.starts_with("xxxx")), "{found:?}");
    assert!(notes.iter().any(|note| note.contains("symbols")), "{notes:?}");
}
