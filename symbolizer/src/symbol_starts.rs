//! Starts of functions, from symbol tables alone: for functions of assembly that have no frame description.

use std::sync::Arc;

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::elf::reader::ElfReader;
use crate::limits;

/// Sections with symbols. The first has all of the second, unless it was stripped.
pub(crate) const SECTIONS: [&str; 2] = [".symtab", ".dynsym"];

/// Symbols before an address that are looked at: functions may have labels with sizes inside.
const LOOKED_AT: usize = 8;

/// The functions of an image by their symbols, ordered by address.
#[derive(Debug)]
pub struct SymbolStarts {
    /// Start (SVMA) and size.
    functions: Box<[(u64, u32)]>,
}

impl SymbolStarts {
    /// Reads the tables. Those larger than [`limits::MAX_UNWIND_SYMBOLS`] are skipped.
    pub(crate) fn read(file: &ElfReader) -> SymbolStarts {
        let mut functions = Vec::new();
        for name in SECTIONS {
            let most = (limits::MAX_UNWIND_SYMBOLS * size_of::<elf::Sym64<LE>>()) as u64;
            let bytes: Option<Arc<[u8]>> =
                file.section(name.as_bytes()).and_then(|section| file.section_data(section, most).ok());
            let Some(bytes) = bytes else { continue };
            let count = bytes.len() / size_of::<elf::Sym64<LE>>();
            let Ok((symbols, _)) = pod::slice_from_bytes::<elf::Sym64<LE>>(&bytes, count) else { continue };
            functions.extend(symbols.iter().filter_map(|symbol| {
                let is_function = matches!(symbol.st_type(), elf::STT_FUNC | elf::STT_GNU_IFUNC);
                // (The file may be known by some of its headers only, so that the section's index leads nowhere.)
                let is_defined = symbol.st_shndx.get(LE).0 != elf::SHN_UNDEF.0;
                let (start, size) =
                    (symbol.st_value.get(LE), u32::try_from(symbol.st_size.get(LE)).unwrap_or(u32::MAX));
                (is_function && is_defined && start > 0 && size > 0).then_some((start, size))
            }));
        }
        functions.sort_unstable();
        functions.dedup_by_key(|function| function.0);
        SymbolStarts { functions: functions.into() }
    }

    /// Start of the innermost function that contains an address.
    #[must_use]
    pub fn find(&self, svma: u64) -> Option<u64> {
        let after = self.functions.partition_point(|&(start, _)| start <= svma);
        let before = self.functions.get(..after)?.iter().rev().take(LOOKED_AT);
        before.into_iter().find(|&&(start, size)| svma - start < u64::from(size)).map(|&(start, _)| start)
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of_val::<[_]>(&self.functions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_contains_an_address() {
        let starts = SymbolStarts { functions: Box::new([(0x10, 0x20), (0x18, 4), (0x40, 0x10), (0x50, 1)]) };
        let found = [0xf, 0x10, 0x18, 0x1c, 0x2f, 0x30, 0x4f, 0x50, 0x51].map(|svma| starts.find(svma));
        let expected = [None, Some(0x10), Some(0x18), Some(0x10), Some(0x10), None, Some(0x40), Some(0x50), None];
        assert_eq!(found, expected);
    }

    #[test]
    fn this_program_s_functions_are_known() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let elf = crate::ElfFile::open(file).unwrap();
        let starts = elf.symbol_starts();
        assert!(starts.bytes() > 16 * 1000);
        let (start, size) = starts.functions[starts.functions.len() / 2];
        assert_eq!(starts.find(start + u64::from(size) - 1), Some(start));
    }
}
