//! The functions of a Go program, from its runtime's own table (`.gopclntab`), which stripped programs have, too.
//! Layout: `debug/gosym/pclntab.go` and `runtime/symtab.go` of Go 1.16 to 1.25; older versions rely on symbols.

use std::sync::Arc;

use crate::bytes::{u32_at, u64_at};
use crate::elf::reader::{ElfReader, string_at};
use crate::limits;

/// Names of the section; the second in position-independent programs.
pub(crate) const SECTIONS: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];

/// Bits of a function's flags (`funcFlag_TOPFRAME`, `funcFlag_SPWRITE`).
const TOP_FRAME: u8 = 1;
const WRITES_SP: u8 = 2;

/// Layout of a version. Offsets are in bytes, into the header or into a function's record.
#[derive(Debug, Clone, Copy)]
struct Version {
    magic: u32,
    /// Header offset of the start of the code, to which entries are relative.
    text_start: Option<usize>,
    /// Header offsets of the positions of names and functions.
    names: usize,
    functions: usize,
    /// Bytes of each of the two numbers of an entry in the sorted list of functions.
    entry_field: usize,
    /// Record offsets of the name and the flags.
    name: usize,
    flags: usize,
}

const VERSIONS: [Version; 3] = [
    Version { magic: 0xffff_fff1, text_start: Some(24), names: 32, functions: 64, entry_field: 4, name: 4, flags: 41 },
    Version { magic: 0xffff_fff0, text_start: Some(24), names: 32, functions: 64, entry_field: 4, name: 4, flags: 37 },
    Version { magic: 0xffff_fffa, text_start: None, names: 24, functions: 56, entry_field: 8, name: 8, flags: 41 },
];

/// The functions of a Go program, ordered by address.
#[derive(Debug)]
pub struct GoFunctions {
    bytes: Arc<[u8]>,
    version: Version,
    /// Base of the entries (SVMA).
    text_start: u64,
    count: usize,
    names: usize,
    functions: usize,
}

/// A function of a Go program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoFunction<'a> {
    /// First address (SVMA).
    pub start: u64,
    /// One past its last address.
    pub end: u64,
    /// Full name, `main.(*T).method`.
    pub name: &'a [u8],
    /// Whether the function has no caller: a stack begins here.
    pub is_top: bool,
    /// Whether the function switches to another stack.
    pub switches_stack: bool,
}

impl GoFunctions {
    pub(crate) fn read(file: &ElfReader) -> Option<GoFunctions> {
        let section = SECTIONS.iter().find_map(|name| file.section(name))?;
        let bytes = file.section_data(section, limits::MAX_SECTION_BYTES).ok()?;
        let text = file.section(b".text").and_then(|section| Some(section.svma_range()?.start));
        GoFunctions::parse(bytes, text)
    }

    /// Maximum of [`GoFunctions::bytes`], from the headers.
    pub(crate) fn most_bytes(file: &ElfReader) -> u64 {
        let size = SECTIONS.iter().find_map(|name| file.section(name)).map_or(0, |section| file.section_size(section));
        if size <= limits::MAX_SECTION_BYTES { size } else { 0 }
    }

    fn parse(bytes: Arc<[u8]>, text: Option<u64>) -> Option<GoFunctions> {
        let magic = u32_at(&bytes, 0)?;
        let version = *VERSIONS.iter().find(|version| version.magic == magic)?;
        if bytes.get(4..8)? != [0, 0, 1, 8] {
            return None;
        }
        let word = |at: usize| u64_at(&bytes, at).and_then(|value| usize::try_from(value).ok());
        let text_start = match version.text_start {
            // In a position-independent program, the value may be filled in only when the program is loaded.
            Some(at) => u64_at(&bytes, at).filter(|&start| start != 0).or(text)?,
            None => 0,
        };
        let (count, names, functions) = (word(8)?, word(version.names)?, word(version.functions)?);
        let list = count.checked_mul(2)?.checked_add(1)?.checked_mul(version.entry_field)?;
        if count == 0 || names > bytes.len() || functions.checked_add(list)? > bytes.len() {
            return None;
        }
        Some(GoFunctions { bytes, version, text_start, count, names, functions })
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// The function that contains an address. A binary search in the raw table: about 100 ns.
    #[must_use]
    pub fn find(&self, svma: u64) -> Option<GoFunction<'_>> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.start(middle)? <= svma {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let index = low.checked_sub(1)?;
        // After the last function comes the end of the code.
        let (start, end) = (self.start(index)?, self.start(index + 1)?);
        let record = self.functions.checked_add(usize::try_from(self.field(2 * index + 1)?).ok()?)?;
        let name = u32_at(&self.bytes, record.checked_add(self.version.name)?)?;
        let name = string_at(self.bytes.get(self.names..)?, name);
        let flags = *self.bytes.get(record.checked_add(self.version.flags)?)?;
        (start..end).contains(&svma).then_some(GoFunction {
            start,
            end,
            name,
            is_top: flags & TOP_FRAME != 0,
            switches_stack: flags & WRITES_SP != 0,
        })
    }

    fn start(&self, index: usize) -> Option<u64> {
        self.field(2 * index)?.checked_add(self.text_start)
    }

    fn field(&self, index: usize) -> Option<u64> {
        let at = self.functions.checked_add(index.checked_mul(self.version.entry_field)?)?;
        if self.version.entry_field == 8 { u64_at(&self.bytes, at) } else { u32_at(&self.bytes, at).map(u64::from) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::elf::links::Links;
    use crate::elf::{DecodedHeaders, Section};
    use crate::elf_file::ElfFile;

    /// A table of version 1.20 with `main.main` at 0x1000 and `runtime.goexit` at 0x1040, up to 0x1050.
    fn table() -> Vec<u8> {
        let mut bytes = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
        // functions, files, start of the code, names, units, files, values, functions
        for word in [2u64, 0, 0x1000, 72, 0, 0, 0, 112] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(b"\0main.main\0runtime.goexit\0");
        bytes.resize(112, 0);
        for word in [0u32, 20, 0x40, 64, 0x50] {
            bytes.extend(word.to_le_bytes());
        }
        for (name, flags) in [(1u32, 0u8), (11, TOP_FRAME)] {
            let record = bytes.len();
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(name.to_le_bytes());
            bytes.resize(record + 41, 0);
            bytes.push(flags);
            bytes.resize(record + 44, 0);
        }
        bytes
    }

    #[test]
    fn functions_have_names_and_flags() {
        let functions = GoFunctions::parse(table().into(), None).unwrap();
        let main = GoFunction { start: 0x1000, end: 0x1040, name: b"main.main", is_top: false, switches_stack: false };
        let exit = GoFunction { start: 0x1040, end: 0x1050, name: b"runtime.goexit", is_top: true, ..main };
        for (address, expected) in [
            (0xfff, None),
            (0x1000, Some(main)),
            (0x103f, Some(main)),
            (0x1040, Some(exit)),
            (0x104f, Some(exit)),
            (0x1050, None),
        ] {
            assert_eq!(functions.find(address), expected, "{address:x}");
        }
    }

    #[test]
    fn the_table_is_kept_as_long_as_somebody_has_it() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&table()).unwrap();
        let section = Section {
            name: 0,
            kind: object::elf::SHT_PROGBITS,
            flags: 0,
            svma: 0,
            offset: 0,
            size: table().len() as u64,
            link: 0,
            entry_size: 0,
            bytes: None,
        };
        let parts = DecodedHeaders {
            segments: Vec::new(),
            sections: vec![section],
            section_names: (*b".gopclntab\0").into(),
            eh_frame_hdr_segment: None,
            build_id: None,
            entry: 0,
            is_complete: false,
        };
        let elf = ElfFile::from_parts(file, parts, Links::default(), false).unwrap();
        assert!(elf.known_go_functions().is_none());
        let (one, other) = (elf.go_functions().unwrap(), elf.go_functions().unwrap());
        assert!(Arc::ptr_eq(&one, &other) && one.find(0x1000).is_some());
        drop(one);
        assert!(elf.known_go_functions().is_some_and(|known| Arc::ptr_eq(&known, &other)));
        drop(other);
        assert!(elf.known_go_functions().is_none());
        assert!(elf.go_functions().is_some());
    }

    #[test]
    fn damage_is_not_read() {
        let whole = table();
        for len in 0..whole.len() {
            if let Some(functions) = GoFunctions::parse(whole[..len].into(), None) {
                let _ = (functions.find(0x1000), functions.find(0x1040));
            }
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            if let Some(functions) = GoFunctions::parse(bytes.into(), None) {
                let _ = (functions.find(0x1000), functions.find(0x1040), functions.find(u64::MAX));
            }
        }
    }
}
