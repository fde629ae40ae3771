//! Which sections of a file hold code: only symbols of these are functions.

use object::LittleEndian as LE;
use object::elf;

use super::decode::Section;

/// For each section of one file: whether it is allocated and executable.
///
/// A symbol's value is an address only in an allocated section. GCC's link-time optimisation leaves symbols of
/// `.debug_info`, whose values are offsets that look like addresses of code; absolute symbols (SHN_ABS) are any number.
#[derive(Debug)]
pub(crate) struct CodeSections(Box<[bool]>);

impl CodeSections {
    pub(crate) fn of(sections: &[Section]) -> CodeSections {
        CodeSections(sections.iter().map(Section::is_code).collect())
    }

    /// Whether a symbol is defined in code, as far as its section index says.
    #[inline]
    pub(crate) fn have(&self, symbol: &elf::Sym64<LE>) -> bool {
        match symbol.st_shndx.get(LE) {
            // The index is too large for the field. Linked files with so many sections are rare; the address decides.
            elf::SHN_XINDEX => true,
            // The other reserved indexes (absolute, common) are beyond any section's.
            index if index.0 >= elf::SHN_LORESERVE => false,
            index => self.0.get(usize::from(index.0)).copied().unwrap_or(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_symbols_of_code_count() {
        let (alloc, code) = (elf::SHF_ALLOC.0, elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0);
        let section = |flags: u64| Section {
            name: 0,
            kind: elf::SHT_PROGBITS,
            flags,
            svma: 0x1000,
            offset: 0,
            size: 0x1000,
            link: 0,
            entry_size: 0,
            bytes: None,
        };
        let sections = CodeSections::of(&[section(0), section(code), section(alloc), section(0)]);
        let have = |index: u16| {
            let mut symbol: elf::Sym64<LE> = object::pod::from_bytes(&[0; 24]).map(|(symbol, _)| *symbol).unwrap();
            symbol.st_shndx = elf::SymbolSection(index).into();
            sections.have(&symbol)
        };
        let indexes = [elf::SHN_UNDEF.0, 1, 2, 3, 4, elf::SHN_ABS.0, elf::SHN_COMMON.0, elf::SHN_LORESERVE];
        assert_eq!(indexes.map(have), [false, true, false, false, false, false, false, false]);
        assert!(have(elf::SHN_XINDEX.0));
    }
}
