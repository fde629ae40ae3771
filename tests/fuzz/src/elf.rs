//! ELF files with symbols, DWARF and tables of Go.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use ccsd_symbolizer::{DebugFileFinder, ElfFile, Headers, Symbols};

/// Addresses whose names are asked for, spread over a file's code.
const ASKED: u64 = 16;

pub fn run(data: &[u8]) {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(data).expect("it can be written");
    let again = || file.try_clone().expect("a descriptor");
    let _ = ElfFile::open_debug(again());
    let Ok(elf) = ElfFile::open(again()) else { return };
    by_headers(&elf, again());
    let _ = elf.unwind_sections().bytes();
    let elf = Arc::new(elf);
    let starts = elf.symbol_starts();
    let mut names = Symbols::new(Arc::clone(&elf), DebugFileFinder::none());
    let mut functions = Vec::new();
    for segment in elf.segments().iter().take(4) {
        for step in 0..ASKED {
            let address = segment.svma.wrapping_add(segment.mem_size / ASKED * step);
            functions.clear();
            names.resolve(address, &mut functions);
            let _ = starts.find(address);
            let _ = elf.code(address, 64);
        }
    }
    let _ = names.held_bytes();
    if let Some(go) = elf.go_functions() {
        let _ = go.find(elf.entry());
    }
}

/// What was read by another process is the same image.
fn by_headers(elf: &ElfFile, file: File) {
    let Ok(again) = Headers::of(elf).apply(file) else { return };
    assert_eq!((elf.entry(), elf.segments()), (again.entry(), again.segments()));
}
