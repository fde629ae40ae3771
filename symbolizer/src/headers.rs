//! ELF headers as plain data.
//!
//! A privileged process should not parse other users' files. A process without rights reads the [`Headers`], which
//! become an [`ElfFile`] with the positions of all that an unwinder needs, checked against the file's size and
//! [`limits`]. False headers lead to other bytes of the same file, which its author could choose anyway.

use std::fs::File;
use std::sync::Arc;

use object::elf;
use serde::{Deserialize, Serialize};

use crate::elf::links::Links;
use crate::elf::{DecodedHeaders, Section, Segment};
use crate::elf_file::ElfFile;
use crate::error::ImageError;
use crate::go::SECTIONS as GO_SECTIONS;
use crate::limits;
use crate::meter::{self, ReadGrant};
use crate::symbol_starts::SECTIONS as SYMBOL_SECTIONS;

/// Sections looked up in an image besides those of Go and of symbols. Only the last may be compressed.
const SECTIONS: [&str; 5] = [".text", ".got", ".eh_frame", ".eh_frame_hdr", DEBUG_FRAME];
const DEBUG_FRAME: &str = ".debug_frame";
/// Bytes that reading the headers of a file may take: a compressed section, the same decompressed, and a copy to be sent.
const MAX_BYTES: u64 = 3 * limits::MAX_UNWIND_BYTES;

/// The headers that an unwinder and a table of mappings need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headers {
    entry: u64,
    build_id: Option<Vec<u8>>,
    segments: Vec<Segment>,
    eh_frame_hdr_segment: Option<Segment>,
    sections: Vec<NamedSection>,
    links: Links,
    has_names: bool,
    is_complete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NamedSection {
    name: String,
    kind: u32,
    flags: u64,
    svma: u64,
    offset: u64,
    size: u64,
    /// Bytes of a section that is compressed in the file.
    bytes: Option<Vec<u8>>,
}

impl Headers {
    /// Maximum sections whose bytes come with the headers.
    pub const MOST_SECTIONS: u64 = (SECTIONS.len() + GO_SECTIONS.len()) as u64;

    /// Reads the headers of a file, or debug file, within limits of memory and time; with the sections' bytes, if the
    /// other process is not to read the file.
    ///
    /// # Errors
    /// Those of [`ElfFile::open`]; [`ImageError::Spent`].
    pub fn read(file: File, is_debug: bool, with_contents: bool) -> Result<Headers, ImageError> {
        let mut grant = ReadGrant { steps: u64::MAX, bytes: MAX_BYTES, cpu: limits::MAX_HEADERS_CPU, gate: None };
        let read = || {
            let elf = if is_debug { ElfFile::open_debug(file)? } else { ElfFile::open(file)? };
            let mut headers = Headers::of(&elf);
            if with_contents {
                headers.add_contents(&elf);
            }
            Ok(headers)
        };
        meter::run_partly(&mut grant, limits::MAX_DWARF_STACK, read).0.unwrap_or(Err(ImageError::Spent))
    }

    /// Reads the headers of a file.
    #[must_use]
    pub fn of(file: &ElfFile) -> Headers {
        let go = GO_SECTIONS.iter().filter_map(|name| str::from_utf8(name).ok());
        let named = SECTIONS.into_iter().chain(go).chain(SYMBOL_SECTIONS).filter_map(|name| {
            let section = file.debug_section(name)?;
            let packed = name == DEBUG_FRAME && file.is_compressed(section);
            let bytes = packed.then(|| file.section_data(section, limits::MAX_UNWIND_BYTES).ok().map(|b| b.to_vec()));
            Some(NamedSection {
                name: name.to_owned(),
                kind: section.kind.0,
                flags: if packed { section.flags & !elf::SHF_COMPRESSED.0 } else { section.flags },
                svma: section.svma,
                offset: section.offset,
                size: section.size,
                bytes: match bytes {
                    // Damaged: treated as missing.
                    Some(None) => return None,
                    bytes => bytes.flatten(),
                },
            })
        });
        Headers {
            entry: file.entry(),
            build_id: file.build_id().map(<[u8]>::to_vec),
            segments: file.segments().to_vec(),
            eh_frame_hdr_segment: file.eh_frame_hdr_segment().cloned(),
            sections: named.collect(),
            links: file.links(),
            has_names: file.has_names(),
            is_complete: false,
        }
    }

    /// Adds the bytes of the sections that an unwinder reads. Those that cannot be read are left out.
    fn add_contents(&mut self, file: &ElfFile) {
        self.sections.retain_mut(|named| {
            if SYMBOL_SECTIONS.contains(&named.name.as_str()) {
                // Too large to be sent for the few stacks that need them.
                return false;
            }
            let is_read = !matches!(named.name.as_str(), ".text" | ".got");
            if is_read && named.bytes.is_none() {
                let section = file.debug_section(&named.name);
                let data = section.and_then(|section| file.section_data(section, limits::MAX_UNWIND_BYTES).ok());
                named.bytes = data.map(|data| data.to_vec());
            }
            !is_read || named.bytes.is_some()
        });
        self.eh_frame_hdr_segment = None;
        self.is_complete = true;
    }

    /// Creates a file with these headers, only with sections that an unwinder needs, and symbol tables for function
    /// starts: names must be requested from another process.
    ///
    /// # Errors
    /// [`ImageError::NotRegular`]; [`ImageError::Malformed`] if something exceeds [`limits`].
    pub fn apply(self, file: File) -> Result<ElfFile, ImageError> {
        let Headers { entry, build_id, segments, eh_frame_hdr_segment, sections: named, links, has_names, is_complete } =
            self;
        let too_many_sections = named.len() > SECTIONS.len() + GO_SECTIONS.len() + SYMBOL_SECTIONS.len();
        if segments.len() > limits::MAX_PROGRAM_HEADERS || too_many_sections {
            return Err(ImageError::Malformed("more headers than there may be"));
        }
        if build_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > limits::MAX_BUILD_ID) {
            return Err(ImageError::Malformed("build id"));
        }
        let mut names = Vec::new();
        let mut sections = Vec::with_capacity(named.len());
        for section in named {
            let bytes: Option<Arc<[u8]>> = section.bytes.map(Arc::from);
            sections.push(Section {
                name: names.len() as u32,
                kind: elf::SectionType(section.kind),
                // Compressed sections come with their decompressed bytes.
                flags: section.flags & !elf::SHF_COMPRESSED.0,
                svma: section.svma,
                offset: section.offset,
                size: section.size,
                link: 0,
                entry_size: 0,
                bytes,
            });
            names.extend(section.name.bytes().take_while(|&byte| byte != 0));
            names.push(0);
        }
        let section_names = Arc::from(names);
        ElfFile::from_parts(
            file,
            DecodedHeaders { segments, sections, section_names, eh_frame_hdr_segment, build_id, entry, is_complete },
            links,
            has_names,
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn own() -> File {
        File::open(std::env::current_exe().unwrap()).unwrap()
    }

    #[test]
    fn a_file_by_its_headers_is_the_file() {
        let file = ElfFile::open(own()).unwrap();
        let again = Headers::of(&file).apply(own()).unwrap();
        assert_eq!(file.unwind_sections(), again.unwind_sections());
        assert!(file.has_unwind_info());
        assert_eq!((file.segments(), file.build_id()), (again.segments(), again.build_id()));
        assert_eq!((file.entry(), file.base_svma()), (again.entry(), again.base_svma()));
        assert_eq!(file.code(file.entry(), 64), again.code(file.entry(), 64));
        assert!(file.code(file.entry(), 64).is_some());
        assert_eq!(Headers::of(&again), Headers::of(&file));
        // The starts of functions are read from symbols; what names and lines are read from does not come along.
        assert!(again.section(b".symtab").is_some() && again.debug_section(".debug_info").is_none());
        assert!(file.debug_section(".debug_info").is_some());
        assert_eq!(file.symbol_starts().bytes(), again.symbol_starts().bytes());
        assert!(again.symbol_starts().bytes() > 0);
        assert!(file.has_names() && again.has_names());
    }

    #[test]
    fn a_file_with_its_contents_is_not_read() {
        let file = ElfFile::open(own()).unwrap();
        let headers = Headers::read(own(), false, true).unwrap();
        let again = headers.apply(tempfile::tempfile().unwrap()).unwrap();
        assert_eq!(file.unwind_sections(), again.unwind_sections());
        assert!(again.has_unwind_info() && again.code(file.entry(), 64).is_none());
    }

    #[test]
    fn headers_that_lie_are_refused_or_lead_nowhere() {
        let headers = Headers::of(&ElfFile::open(own()).unwrap());
        let segment = headers.segments.first().unwrap().clone();
        let many = Headers { segments: vec![segment; limits::MAX_PROGRAM_HEADERS + 1], ..headers.clone() };
        assert!(many.apply(own()).is_err());
        let section = headers.sections.first().unwrap().clone();
        let many = Headers { sections: vec![section; 100], ..headers.clone() };
        assert!(many.apply(own()).is_err());
        let id = Headers { build_id: Some(vec![1; limits::MAX_BUILD_ID + 1]), ..headers.clone() };
        assert!(id.apply(own()).is_err());
        let mut outside = headers;
        for section in &mut outside.sections {
            (section.offset, section.size) = (u64::MAX - 5, 1 << 40);
        }
        outside.eh_frame_hdr_segment = None;
        let file = outside.apply(own()).unwrap();
        assert!(!file.has_unwind_info() && file.go_functions().is_none());
    }
}
