//! Reads headers, segments, sections and build id of an ELF file.
//!
//! Layouts follow the System V gABI, chapters 4 and 5, for ELF64 little endian on x86_64.

use std::fs::File;
use std::sync::Arc;

use object::elf;

use super::decode::{FileHeader, find_build_id, read_program_headers, read_sections};
pub(crate) use super::decode::{Section, Segment};
use crate::arch::PAGE;
use crate::compressed;
use crate::error::ImageError;
use crate::limits;
use crate::source::ImageSource;

/// The headers and sections of an open ELF file, read with `pread`, never mapped. Opening reads only the headers;
/// sections are read whole on request. Can be shared between threads.
#[derive(Debug)]
pub struct ElfReader {
    source: ImageSource,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    section_names: Arc<[u8]>,
    /// PT_GNU_EH_FRAME, which locates `.eh_frame_hdr` even without section headers.
    eh_frame_hdr_segment: Option<Segment>,
    build_id: Option<Vec<u8>>,
    entry: u64,
}

pub(crate) struct DecodedHeaders {
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    pub(crate) section_names: Arc<[u8]>,
    pub(crate) eh_frame_hdr_segment: Option<Segment>,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) entry: u64,
    /// Whether the file itself is not to be read.
    pub(crate) is_complete: bool,
}

impl ElfReader {
    pub(crate) fn parse(source: ImageSource, kinds: &[elf::FileType]) -> Result<ElfReader, ImageError> {
        let header = FileHeader::read(&source, kinds)?;
        let program_headers = read_program_headers(&source, &header)?;
        let segments = program_headers
            .iter()
            .filter(|(kind, _)| *kind == elf::PT_LOAD)
            .map(|(_, segment)| segment.clone())
            .collect();
        let eh_frame_hdr_segment =
            program_headers.iter().find(|(kind, _)| *kind == elf::PT_GNU_EH_FRAME).map(|(_, segment)| segment.clone());
        // A file with damaged section headers still runs and can be unwound.
        let (sections, section_names) =
            read_sections(&source, &header).unwrap_or_else(|_| (Vec::new(), Arc::from(Vec::new())));
        let mut file = ElfReader {
            source,
            segments,
            sections,
            section_names,
            eh_frame_hdr_segment,
            build_id: None,
            entry: header.entry(),
        };
        file.build_id = file.read_build_id(&program_headers);
        Ok(file)
    }

    pub(crate) fn from_parts(file: File, parts: DecodedHeaders) -> Result<ElfReader, ImageError> {
        let DecodedHeaders { segments, sections, section_names, eh_frame_hdr_segment, build_id, entry, is_complete } =
            parts;
        Ok(ElfReader {
            source: if is_complete { ImageSource::Handle(file) } else { ImageSource::from_file(file)? },
            segments,
            sections,
            section_names,
            eh_frame_hdr_segment,
            build_id,
            entry,
        })
    }

    #[must_use]
    pub fn file(&self) -> Option<&File> {
        match &self.source {
            ImageSource::File(file, _) | ImageSource::Handle(file) => Some(file),
            ImageSource::Bytes(_) => None,
        }
    }

    /// The program's entry point (SVMA; `e_entry`), 0 if there is none.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// The GNU build id: the linker's hash of the contents, usually 20 bytes. `None` if the file has none.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.source.len()
    }

    /// Bytes held while the file is open, usually 4 KiB: headers, names, sections decompressed elsewhere.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let headers = self.sections.capacity() * size_of::<Section>() + self.segments.capacity() * size_of::<Segment>();
        let unpacked = self.sections.iter().filter_map(|section| section.bytes.as_deref()).map(<[u8]>::len);
        headers + self.section_names.len() + unpacked.sum::<usize>()
    }

    /// The PT_LOAD segments, in file order.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Stated address of the image's start: the first PT_LOAD, rounded down to a page; `framehop`'s `base_svma`.
    #[must_use]
    pub fn base_svma(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.svma & !(PAGE - 1))
    }

    /// The stated address of the byte at file offset `off`, if a segment maps it.
    ///
    /// Mappings begin at page boundaries, so the bytes around a segment up to these count as part of it. If two
    /// segments share a
    /// page, the one that contains the byte is preferred, then the executable one, because addresses come from code.
    #[must_use]
    pub fn svma_of_file_offset(&self, off: u64) -> Option<u64> {
        let translate = |segment: &Segment| segment.svma.checked_add(off)?.checked_sub(segment.file_offset);
        let inside = |segment: &&Segment| off >= segment.file_offset && off - segment.file_offset < segment.file_size;
        let in_pages = |segment: &&Segment| {
            let start = segment.file_offset & !(PAGE - 1);
            let end = segment.file_offset.saturating_add(segment.file_size).saturating_add(PAGE - 1) & !(PAGE - 1);
            segment.file_size > 0 && (start..end).contains(&off)
        };
        let best = |candidates: Vec<&Segment>| candidates.iter().copied().max_by_key(|s| s.executable).cloned();
        best(self.segments.iter().filter(inside).collect())
            .or_else(|| best(self.segments.iter().filter(in_pages).collect()))
            .and_then(|segment| translate(&segment))
    }

    pub(crate) fn eh_frame_hdr_segment(&self) -> Option<&Segment> {
        self.eh_frame_hdr_segment.as_ref()
    }

    pub(crate) fn sections(&self) -> &[Section] {
        &self.sections
    }

    pub(crate) fn section(&self, name: &[u8]) -> Option<&Section> {
        self.sections_named(name).next()
    }

    pub(crate) fn sections_named(&self, name: &[u8]) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| {
            self.section_name(section).strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// A debug section by its name (`.debug_info`), including the older compressed form (`.zdebug_info`).
    pub(crate) fn debug_section(&self, name: &str) -> Option<&Section> {
        self.section(name.as_bytes()).or_else(|| {
            let legacy = [compressed::LEGACY_PREFIX, name.strip_prefix(".debug_")?.as_bytes()].concat();
            self.section(&legacy)
        })
    }

    fn section_name(&self, section: &Section) -> &[u8] {
        self.section_names.get(section.name as usize..).unwrap_or_default()
    }

    pub(crate) fn is_compressed(&self, section: &Section) -> bool {
        section.flags & elf::SHF_COMPRESSED.0 != 0 || self.is_legacy_compressed(section)
    }

    fn is_legacy_compressed(&self, section: &Section) -> bool {
        self.section_name(section).starts_with(compressed::LEGACY_PREFIX)
    }

    /// The decompressed bytes of a section, if at most `limit` bytes.
    pub(crate) fn section_data(&self, section: &Section, limit: u64) -> Result<Arc<[u8]>, ImageError> {
        if section.kind == elf::SHT_NOBITS {
            return Err(ImageError::Malformed("section has no bytes in the file"));
        }
        if let Some(bytes) = &section.bytes {
            return Ok(Arc::clone(bytes));
        }
        let raw = self.source.read("section", section.offset, section.size, limit)?;
        if section.flags & elf::SHF_COMPRESSED.0 != 0 {
            compressed::section(&raw, limit)
        } else if self.is_legacy_compressed(section) {
            compressed::legacy_section(raw, limit)
        } else {
            Ok(raw)
        }
    }

    /// The decompressed size of a section, as stated by its compression header.
    pub(crate) fn section_size(&self, section: &Section) -> u64 {
        if section.kind == elf::SHT_NOBITS {
            return 0;
        }
        let header = |size| self.source.read("compression header", section.offset, size, size).ok();
        if section.flags & elf::SHF_COMPRESSED.0 != 0 {
            header(compressed::HEADER).and_then(|bytes| compressed::stated_size(&bytes)).unwrap_or(u64::MAX)
        } else if self.is_legacy_compressed(section) {
            let stated = header(compressed::LEGACY_HEADER).and_then(|bytes| compressed::legacy_stated_size(&bytes));
            stated.unwrap_or(section.size)
        } else {
            section.size
        }
    }

    pub(crate) fn data_at_svma(&self, svma: u64, limit: u64) -> Result<Arc<[u8]>, ImageError> {
        let missing = ImageError::Malformed("address outside every segment");
        let Some(segment) =
            self.segments.iter().find(|segment| svma >= segment.svma && svma - segment.svma < segment.file_size)
        else {
            return Err(missing);
        };
        let skip = svma - segment.svma;
        let offset = segment.file_offset.checked_add(skip).ok_or(missing)?;
        // A truncated file may still have the start of the segment.
        let size = (segment.file_size - skip).min(self.source.len().saturating_sub(offset));
        self.source.read("segment", offset, size.min(limit), limit)
    }

    /// Up to `len` bytes of the program at `svma`, fewer at the end of the segment; `None` outside the file's segments.
    #[must_use]
    pub fn code(&self, svma: u64, len: u64) -> Option<Arc<[u8]>> {
        self.data_at_svma(svma, len).ok().filter(|bytes| !bytes.is_empty())
    }

    pub(crate) fn source(&self) -> &ImageSource {
        &self.source
    }

    /// Reads PT_NOTE segments first (section headers may be lost), then `.note.gnu.build-id` (debug files lack the
    /// segments' bytes).
    fn read_build_id(&self, program_headers: &[(elf::ProgramType, Segment)]) -> Option<Vec<u8>> {
        // Notes are a few hundred bytes; core files, whose notes are large, are not read here.
        const MAX_NOTES: u64 = 64 << 10;
        let from_segments = program_headers
            .iter()
            .filter(|(kind, _)| *kind == elf::PT_NOTE)
            .filter_map(|(_, note)| self.source.read("notes", note.file_offset, note.file_size, MAX_NOTES).ok())
            .find_map(|notes| find_build_id(&notes));
        from_segments.or_else(|| {
            let section = self.section(b".note.gnu.build-id")?;
            find_build_id(&self.section_data(section, MAX_NOTES).ok()?)
        })
    }
}

/// The bytes from `offset` to the next NUL, at most [`limits::MAX_LINKAGE_NAME`]: a hostile table may have no NUL.
pub(crate) fn string_at(table: &[u8], offset: u32) -> &[u8] {
    let rest = table.get(offset as usize..).unwrap_or_default();
    let rest = rest.get(..limits::MAX_LINKAGE_NAME).unwrap_or(rest);
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}
