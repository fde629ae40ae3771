//! What parsing an image may take, with the allocator that reports it.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::sync::Arc;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Symbols};
use nix::sys::resource::{UsageWho, getrusage};

#[global_allocator]
static ALLOCATOR: ccsd_worker::Allocator = ccsd_worker::Allocator;

/// Functions in the hostile unit, of ten bytes each. Their index takes more than 140 bytes each.
const FUNCTIONS: usize = 8_000_000;

/// This test's program with one unit of functions without end as its only debug information.
fn hostile() -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let (abbrev, info, out) = (dir.path().join("abbrev"), dir.path().join("info"), dir.path().join("out"));
    // 1: unit with low_pc and high_pc (data4) and children; 2: subprogram with low_pc and high_pc (data1).
    std::fs::write(&abbrev, [1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0, 2, 0x2e, 0, 0x11, 1, 0x12, 0x0b, 0, 0, 0]).unwrap();
    let entries = 13 + FUNCTIONS * 10;
    let mut unit = Vec::with_capacity(entries + 11);
    unit.extend((entries as u32 + 7).to_le_bytes());
    unit.extend([4, 0, 0, 0, 0, 0, 8, 1]);
    unit.extend(0x1000u64.to_le_bytes());
    unit.extend(u32::MAX.to_le_bytes());
    for number in 0..FUNCTIONS as u64 {
        unit.push(2);
        unit.extend((0x1000 + number).to_le_bytes());
        unit.push(1);
    }
    std::fs::write(&info, unit).unwrap();
    let source = dir.path().join("program.c");
    std::fs::write(&source, "int main(void) { return 0; }").unwrap();
    let program = dir.path().join("program");
    let built = Command::new("cc").arg("-o").args([&program, &source]).status().is_ok_and(|status| status.success());
    if !built {
        return None;
    }
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-debug");
    for (name, part) in [(".debug_abbrev", abbrev), (".debug_info", info)] {
        objcopy.arg("--add-section").arg(format!("{name}={}", part.display()));
    }
    assert!(objcopy.arg(&program).arg(&out).status().unwrap().success());
    Some(std::fs::read(out).unwrap())
}

fn peak_bytes() -> i64 {
    getrusage(UsageWho::RUSAGE_SELF).unwrap().max_rss() * 1024
}

/// Fails without the limit: the index takes 1.5 GiB, and the process that reads images dies of it.
#[test]
fn an_index_stops_at_its_limit_and_the_symbol_table_stays() {
    let Some(bytes) = hostile() else { return };
    let image = Arc::new(ElfFile::from_bytes(bytes).unwrap());
    let entry = image.entry();
    let before = peak_bytes();
    let mut symbols = Symbols::new(image, DebugFileFinder::none());
    let mut functions = Vec::new();
    symbols.resolve(entry, &mut functions);
    assert!(symbols.notes().iter().any(|note| note.contains("more memory")), "{:?}", symbols.notes());
    assert_eq!(functions.first().and_then(|function| function.linkage_name.as_deref()), Some("_start"));
    // Sections, and an index that was doubled once beyond its limit.
    let taken = peak_bytes() - before;
    assert!(taken < 1 << 30, "{taken}");
    assert!(symbols.held_bytes() < 64 << 20, "{}", symbols.held_bytes());
}
