//! Decodes the headers of an ELF file within bounds.

use std::ops::Range;
use std::sync::Arc;

use object::LittleEndian as LE;
use object::elf;
use object::pod;
use serde::{Deserialize, Serialize};

use crate::arch::MACHINE;
use crate::error::ImageError;
use crate::limits;
use crate::source::ImageSource;

pub(crate) const LINKED: [elf::FileType; 2] = [elf::ET_EXEC, elf::ET_DYN];
/// File types that can have debug information.
pub(crate) const WITH_OBJECTS: [elf::FileType; 3] = [elf::ET_EXEC, elf::ET_DYN, elf::ET_REL];

/// A segment that is mapped into memory (PT_LOAD). All values in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Offset of its start in the file.
    pub file_offset: u64,
    /// Bytes in the file; the rest of `mem_size` is zero.
    pub file_size: u64,
    /// Stated address (SVMA).
    pub svma: u64,
    /// Size in memory.
    pub mem_size: u64,
    /// Whether it is mapped executable.
    pub executable: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Section {
    pub(crate) name: u32,
    pub(crate) kind: elf::SectionType,
    pub(crate) flags: u64,
    pub(crate) svma: u64,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    /// Index of the linked section, for example the strings of a symbol table (`sh_link`).
    pub(crate) link: u32,
    pub(crate) entry_size: u64,
    /// Its bytes, if another process has decompressed them.
    pub(crate) bytes: Option<Arc<[u8]>>,
}

impl Section {
    pub(crate) fn svma_range(&self) -> Option<Range<u64>> {
        Some(self.svma..self.svma.checked_add(self.size)?)
    }

    pub(crate) fn is_code(&self) -> bool {
        let code = elf::SHF_ALLOC.0 | elf::SHF_EXECINSTR.0;
        self.flags & code == code
    }
}

pub(super) struct FileHeader {
    entry: u64,
    program_headers: u64,
    program_header_count: usize,
    section_headers: u64,
    section_count: usize,
    section_names: u32,
}

impl FileHeader {
    pub(super) fn read(source: &ImageSource, kinds: &[elf::FileType]) -> Result<FileHeader, ImageError> {
        let header_size = size_of::<elf::FileHeader64<LE>>() as u64;
        if source.len() < header_size {
            return Err(ImageError::NotElf);
        }
        let bytes = source.read("file header", 0, header_size, header_size)?;
        FileHeader::decode(&bytes, kinds)
    }

    pub(super) fn entry(&self) -> u64 {
        self.entry
    }

    fn decode(bytes: &[u8], kinds: &[elf::FileType]) -> Result<FileHeader, ImageError> {
        let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(bytes).map_err(|()| ImageError::NotElf)?;
        let ident = &header.e_ident;
        if ident.magic != elf::ELFMAG {
            return Err(ImageError::NotElf);
        }
        let unsupported = |what: &str, value: u32| Err(ImageError::Unsupported(format!("{what} {value}")));
        if ident.class != elf::ELFCLASS64 {
            return unsupported("class", u32::from(ident.class.0));
        }
        if ident.data != elf::ELFDATA2LSB {
            return unsupported("byte order", u32::from(ident.data.0));
        }
        let machine = header.e_machine.get(LE);
        if machine != MACHINE {
            return unsupported("machine", u32::from(machine.0));
        }
        let kind = header.e_type.get(LE);
        if !kinds.contains(&kind) {
            return unsupported("type", u32::from(kind.0));
        }
        let program_header_count = usize::from(header.e_phnum.get(LE));
        if program_header_count > limits::MAX_PROGRAM_HEADERS {
            return Err(ImageError::Malformed("program header count"));
        }
        let entry = usize::from(header.e_phentsize.get(LE));
        if program_header_count > 0 && entry != size_of::<elf::ProgramHeader64<LE>>() {
            return Err(ImageError::Malformed("program header size"));
        }
        let section_entry = usize::from(header.e_shentsize.get(LE));
        let section_headers = match header.e_shoff.get(LE) {
            offset if section_entry == size_of::<elf::SectionHeader64<LE>>() => offset,
            _ => 0,
        };
        Ok(FileHeader {
            entry: header.e_entry.get(LE),
            program_headers: header.e_phoff.get(LE),
            program_header_count,
            section_headers,
            section_count: usize::from(header.e_shnum.get(LE)),
            section_names: u32::from(header.e_shstrndx.get(LE).0),
        })
    }
}

pub(super) fn read_program_headers(
    source: &ImageSource,
    header: &FileHeader,
) -> Result<Vec<(elf::ProgramType, Segment)>, ImageError> {
    let count = header.program_header_count;
    let size = (count * size_of::<elf::ProgramHeader64<LE>>()) as u64;
    let bytes = source.read("program headers", header.program_headers, size, size)?;
    let (headers, _) = pod::slice_from_bytes::<elf::ProgramHeader64<LE>>(&bytes, count)
        .map_err(|()| ImageError::Malformed("program headers"))?;
    Ok(headers
        .iter()
        .map(|header| {
            let segment = Segment {
                file_offset: header.p_offset.get(LE),
                file_size: header.p_filesz.get(LE),
                svma: header.p_vaddr.get(LE),
                mem_size: header.p_memsz.get(LE),
                executable: header.p_flags.get(LE).0 & elf::PF_X.0 != 0,
            };
            (header.p_type.get(LE), segment)
        })
        .collect())
}

pub(super) fn read_sections(
    source: &ImageSource,
    header: &FileHeader,
) -> Result<(Vec<Section>, Arc<[u8]>), ImageError> {
    type Header = elf::SectionHeader64<LE>;
    if header.section_headers == 0 {
        return Err(ImageError::Malformed("no section headers"));
    }
    let read = |count: usize| -> Result<Vec<Section>, ImageError> {
        let size = (count * size_of::<Header>()) as u64;
        let bytes = source.read("section headers", header.section_headers, size, size)?;
        let (headers, _) =
            pod::slice_from_bytes::<Header>(&bytes, count).map_err(|()| ImageError::Malformed("section headers"))?;
        Ok(headers.iter().map(decode_section).collect())
    };
    // Counts that do not fit their 16 bits are in the otherwise unused section 0 (gABI, "Special Sections").
    let first = read(1)?;
    let first = first.first().ok_or(ImageError::Malformed("section headers"))?;
    let count = match header.section_count {
        0 => usize::try_from(first.size).unwrap_or(usize::MAX),
        count => count,
    };
    if count > limits::MAX_SECTIONS {
        return Err(ImageError::Malformed("section header count"));
    }
    let names = if header.section_names == u32::from(elf::SHN_XINDEX.0) { first.link } else { header.section_names };
    let sections = read(count)?;
    let names = sections.get(names as usize).ok_or(ImageError::Malformed("section names"))?;
    let names = source.read("section names", names.offset, names.size, limits::MAX_SECTION_NAMES)?;
    Ok((sections, names))
}

fn decode_section(header: &elf::SectionHeader64<LE>) -> Section {
    Section {
        name: header.sh_name.get(LE),
        kind: header.sh_type.get(LE),
        flags: header.sh_flags.get(LE).0,
        svma: header.sh_addr.get(LE),
        offset: header.sh_offset.get(LE),
        size: header.sh_size.get(LE),
        link: header.sh_link.get(LE),
        entry_size: header.sh_entsize.get(LE),
        bytes: None,
    }
}

/// Finds the NT_GNU_BUILD_ID note of owner "GNU" (gABI, "Note Section": three words, name and descriptor, padded to
/// four bytes).
pub(super) fn find_build_id(mut notes: &[u8]) -> Option<Vec<u8>> {
    loop {
        let (header, rest) = notes.split_at_checked(12)?;
        let word = |at: usize| -> Option<usize> {
            let bytes = header.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_le_bytes(bytes)).ok()
        };
        let (name_size, id_size, kind) = (word(0)?, word(4)?, word(8)?);
        let (name, rest) = rest.split_at_checked(name_size.checked_next_multiple_of(4)?)?;
        let id = rest.get(..id_size)?;
        if kind == elf::NT_GNU_BUILD_ID.0 as usize && name.starts_with(b"GNU\0") && id_size <= limits::MAX_BUILD_ID {
            return (!id.is_empty()).then(|| id.to_vec());
        }
        notes = rest.get(id_size.checked_next_multiple_of(4)?..)?;
    }
}
