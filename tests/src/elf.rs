//! Programs with other sections than a compiler makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixture::copy_program;

#[derive(Clone, Debug, Default)]
pub struct CraftedSection {
    pub name: &'static str,
    pub kind: u32,
    pub flags: u64,
    /// First address and size, if it is not what `bytes` says.
    pub range: Option<(u64, u64)>,
    pub bytes: Vec<u8>,
    /// Index of the linked section; the first is 1.
    pub link: u32,
}

/// `SHT_SYMTAB`, `SHT_STRTAB`, `SHT_NOBITS`.
pub const SYMTAB: u32 = 2;
pub const STRTAB: u32 = 3;
pub const NOBITS: u32 = 8;
/// `SHF_ALLOC` and `SHF_EXECINSTR`.
pub const CODE: u64 = 2 | 4;

const HEADER: usize = 64;

/// Writes a copy of a program that has these sections, and no others. What is loaded of it stays the same.
pub fn with_sections(program: &Path, sections: &[CraftedSection], to: &Path) {
    let mut file = fs::read(program).unwrap();
    let mut names = vec![0u8];
    let mut headers = vec![0u8; HEADER];
    let mut header = |name: u32, kind: u32, flags: u64, address: u64, offset: u64, size: u64, link: u32| {
        headers.extend(name.to_le_bytes().into_iter().chain(kind.to_le_bytes()));
        [flags, address, offset, size].iter().for_each(|word| headers.extend(word.to_le_bytes()));
        headers.extend(link.to_le_bytes().into_iter().chain([0; 4]));
        let entry: u64 = if kind == SYMTAB { 24 } else { 0 };
        [1, entry].iter().for_each(|word| headers.extend(word.to_le_bytes()));
    };
    for section in sections {
        let at = names.len() as u32;
        names.extend(section.name.bytes().chain([0]));
        let (address, size) = section.range.unwrap_or((0, section.bytes.len() as u64));
        header(at, section.kind, section.flags, address, file.len() as u64, size, section.link);
        file.extend(&section.bytes);
    }
    header(0, STRTAB, 0, 0, file.len() as u64, names.len() as u64, 0);
    file.extend(&names);
    let start = file.len() as u64;
    let count = sections.len() + 2;
    file.extend(&headers);
    file[40..48].copy_from_slice(&start.to_le_bytes());
    file[58..60].copy_from_slice(&(HEADER as u16).to_le_bytes());
    // More than fit into 16 bits would stand in the first header.
    assert!(count < 0xff00, "{count}");
    file[60..62].copy_from_slice(&(count as u16).to_le_bytes());
    file[62..64].copy_from_slice(&(count as u16 - 1).to_le_bytes());
    let data = to.with_extension("data");
    fs::write(&data, file).unwrap();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o755)).unwrap();
    copy_program(&data, to);
    fs::remove_file(&data).unwrap();
}

/// An entry of a symbol table: a function, seen by all units or by its own, or a source file.
#[must_use]
pub fn symbol(name: u32, address: u64, size: u64, kind: ElfSymbolKind) -> [u8; 24] {
    let info = match kind {
        ElfSymbolKind::Global => 0x12,
        ElfSymbolKind::Local => 0x02,
        ElfSymbolKind::File => 0x04,
    };
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&name.to_le_bytes());
    bytes[4] = info;
    // Its section, behind the names and the symbols.
    bytes[6] = 3;
    bytes[8..16].copy_from_slice(&address.to_le_bytes());
    bytes[16..24].copy_from_slice(&size.to_le_bytes());
    bytes
}

#[derive(Clone, Copy, Debug)]
pub enum ElfSymbolKind {
    Global,
    Local,
    File,
}

/// Writes sections of debug information: one unit of so many functions of ten bytes. Each takes more than 140 bytes in an
/// index.
fn endless_unit(functions: u32, dir: &Path) -> [(&'static str, PathBuf); 2] {
    let (abbreviations, unit) = (dir.join("abbreviations"), dir.join("unit"));
    // 1: a unit with low_pc and high_pc (data4), and children; 2: a subprogram with low_pc and high_pc (data1).
    let kinds = [1, 0x11, 1, 0x11, 1, 0x12, 6, 0, 0, 2, 0x2e, 0, 0x11, 1, 0x12, 0x0b, 0, 0, 0];
    fs::write(&abbreviations, kinds).unwrap();
    let mut bytes = (functions * 10 + 20).to_le_bytes().to_vec();
    bytes.extend([4, 0, 0, 0, 0, 0, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]);
    for number in 0..u64::from(functions) {
        bytes.push(2);
        bytes.extend((0x1000 + number).to_le_bytes());
        bytes.push(1);
    }
    fs::write(&unit, bytes).unwrap();
    [(".debug_abbrev", abbreviations), (".debug_info", unit)]
}

/// The same program with debug information that would take gigabytes of an index, as any user may make it. Written to `dir`.
pub fn exhausting_program(program: &Path, functions: u32, dir: &Path) -> PathBuf {
    let hostile = dir.join("hostile");
    let mut objcopy = Command::new("objcopy");
    objcopy.arg("--strip-debug");
    for (name, part) in endless_unit(functions, dir) {
        objcopy.arg("--add-section").arg(format!("{name}={}", part.display()));
    }
    assert!(objcopy.arg(program).arg(&hostile).status().unwrap().success());
    hostile
}
