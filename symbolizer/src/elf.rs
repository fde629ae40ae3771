//! One ELF file: headers, segments, sections, build id.
//!
//! Layouts are those of the System V gABI, chapters 4 and 5, for ELF64 little endian on x86_64.

mod decode;

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use object::elf;

use crate::arch::PAGE;
use crate::compressed;
use crate::error::ImageError;
use crate::go::GoFunctions;
use crate::headers::Links;
use crate::limits;
use crate::source::ImageSource;
use crate::unwind::UnwindSections;
use decode::{FileHeader, LINKED, WITH_OBJECTS, find_build_id, read_program_headers, read_sections};

pub(crate) use decode::Section;
pub use decode::Segment;

/// One ELF file, open for reading.
///
/// The file is read by `pread`, never mapped (see the crate's documentation), and only the headers are read when
/// it is opened; sections are read whole when they are asked for. It can be shared between threads.
#[derive(Debug)]
pub struct ElfFile {
    source: ImageSource,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    section_names: Arc<[u8]>,
    /// PT_GNU_EH_FRAME, where the `.eh_frame_hdr` is even when there are no section headers.
    eh_frame_hdr_segment: Option<Segment>,
    build_id: Option<Vec<u8>>,
    entry: u64,
    /// What the file says of others, if another process has read it.
    links: Option<Links>,
    /// As long as somebody has them.
    unwind: Mutex<Weak<UnwindSections>>,
    /// Likewise.
    go: Mutex<Weak<GoFunctions>>,
}

/// What makes an [`ElfFile`] of an open file.
pub(crate) struct Parts {
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    pub(crate) section_names: Arc<[u8]>,
    pub(crate) eh_frame_hdr_segment: Option<Segment>,
    pub(crate) build_id: Option<Vec<u8>>,
    pub(crate) entry: u64,
    pub(crate) links: Links,
}

impl ElfFile {
    /// Opens an image. The caller has chosen the file; only regular files are accepted.
    ///
    /// # Errors
    ///
    /// [`ImageError::NotRegular`], [`ImageError::NotElf`]; [`ImageError::Unsupported`] for anything but an executable
    /// or shared object for x86_64; [`ImageError::Malformed`] if the program headers lie outside the file. Broken
    /// section headers are not an error: the file is then read like one that has none.
    pub fn open(file: File) -> Result<ElfFile, ImageError> {
        ElfFile::parse(ImageSource::from_file(file)?, &LINKED)
    }

    /// Opens a file that only has debug information: `.dwo` and `.dwp` files are object files.
    ///
    /// # Errors
    ///
    /// As [`ElfFile::open`].
    pub fn open_debug(file: File) -> Result<ElfFile, ImageError> {
        ElfFile::parse(ImageSource::from_file(file)?, &WITH_OBJECTS)
    }

    /// An image from memory, for the vdso, which is in no file.
    ///
    /// # Errors
    ///
    /// As [`ElfFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<ElfFile, ImageError> {
        ElfFile::parse(ImageSource::Bytes(bytes.into()), &LINKED)
    }

    fn parse(source: ImageSource, kinds: &[elf::FileType]) -> Result<ElfFile, ImageError> {
        let header = FileHeader::read(&source, kinds)?;
        let program_headers = read_program_headers(&source, &header)?;
        let segments = program_headers
            .iter()
            .filter(|(kind, _)| *kind == elf::PT_LOAD)
            .map(|(_, segment)| segment.clone())
            .collect();
        let eh_frame_hdr_segment =
            program_headers.iter().find(|(kind, _)| *kind == elf::PT_GNU_EH_FRAME).map(|(_, segment)| segment.clone());
        // A file whose section headers are damaged still runs, so it is still worth unwinding.
        let (sections, section_names) =
            read_sections(&source, &header).unwrap_or_else(|_| (Vec::new(), Arc::from(Vec::new())));
        let mut file = ElfFile {
            source,
            segments,
            sections,
            section_names,
            eh_frame_hdr_segment,
            build_id: None,
            entry: header.entry(),
            links: None,
            unwind: Mutex::default(),
            go: Mutex::default(),
        };
        file.build_id = file.read_build_id(&program_headers);
        Ok(file)
    }

    /// A file whose headers have been read already; see [`Headers`](crate::Headers).
    pub(crate) fn from_parts(file: File, parts: Parts) -> Result<ElfFile, ImageError> {
        let Parts { segments, sections, section_names, eh_frame_hdr_segment, build_id, entry, links } = parts;
        Ok(ElfFile {
            source: ImageSource::from_file(file)?,
            segments,
            sections,
            section_names,
            eh_frame_hdr_segment,
            build_id,
            entry,
            links: Some(links),
            unwind: Mutex::default(),
            go: Mutex::default(),
        })
    }

    /// The file itself, if it is one.
    #[must_use]
    pub fn file(&self) -> Option<&File> {
        match &self.source {
            ImageSource::File(file, _) => Some(file),
            ImageSource::Bytes(_) => None,
        }
    }

    /// What the file says of others.
    pub(crate) fn links(&self) -> Links {
        self.links.clone().unwrap_or_else(|| Links::read(self))
    }

    /// The program's entry point (SVMA; `e_entry`), 0 where there is none.
    #[must_use]
    pub fn entry(&self) -> u64 {
        self.entry
    }

    /// The GNU build id: the linker's hash of the contents, 20 bytes as a rule. `None` if the file has none.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        self.build_id.as_deref()
    }

    /// The size of the file in bytes when it was opened.
    #[must_use]
    pub fn file_size(&self) -> u64 {
        self.source.len()
    }

    /// Bytes that are held as long as it is open: its headers, the names of its sections, and those sections that another
    /// process has decompressed. 4 KiB as a rule.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let headers = self.sections.capacity() * size_of::<Section>() + self.segments.capacity() * size_of::<Segment>();
        let unpacked = self.sections.iter().filter_map(|section| section.bytes.as_deref()).map(<[u8]>::len);
        headers + self.section_names.len() + unpacked.sum::<usize>()
    }

    /// The PT_LOAD segments, in the order of the file.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The stated address of the image's beginning: that of the first PT_LOAD, rounded down to a page. Zero for
    /// position-independent images; `framehop` wants it as `base_svma`.
    #[must_use]
    pub fn base_svma(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.svma & !(PAGE - 1))
    }

    /// The stated address of a byte of the file, given its file offset in bytes, as far as a segment maps it.
    ///
    /// A mapping of a process says which file offset is at which address. Mappings begin at page boundaries and
    /// segments need not, so the bytes before a segment's beginning and after its end, up to the page
    /// boundary, belong to it too. Where two segments share a page of the file, one that really contains the byte is
    /// preferred, then the executable one: addresses come from code.
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

    /// Everything an unwinder needs. It is read once for all who have it at the same time, and not kept for those to come.
    ///
    /// Sections that are missing, damaged or too large are left out. Works without section headers too, through the
    /// PT_GNU_EH_FRAME program header.
    pub fn unwind_sections(&self) -> Arc<UnwindSections> {
        let mut shared = self.unwind.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let read = Arc::new(UnwindSections::read(self));
            *shared = Arc::downgrade(&read);
            read
        })
    }

    /// The most bytes that [`ElfFile::unwind_sections`] and [`ElfFile::go_functions`] together may take; by the headers,
    /// without reading either.
    pub fn unwind_size(&self) -> u64 {
        UnwindSections::most_bytes(self).saturating_add(GoFunctions::most_bytes(self))
    }

    /// The functions of a program written in Go; read once for all who have them at the same time, as
    /// [`ElfFile::unwind_sections`] are.
    pub fn go_functions(&self) -> Option<Arc<GoFunctions>> {
        let mut shared = self.go.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().or_else(|| {
            let read = Arc::new(GoFunctions::read(self)?);
            *shared = Arc::downgrade(&read);
            Some(read)
        })
    }

    /// The same, if somebody has them.
    pub fn known_go_functions(&self) -> Option<Arc<GoFunctions>> {
        self.go.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    /// Whether there is any unwind information. Reads it, as [`ElfFile::unwind_sections`] does.
    pub fn has_unwind_info(&self) -> bool {
        let sections = self.unwind_sections();
        sections.eh_frame.is_some() || sections.debug_frame.is_some()
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

    /// All sections of a name; object files may have several.
    pub(crate) fn sections_named(&self, name: &[u8]) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| {
            self.section_name(section).strip_prefix(name).is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// A section with debug information by its name (`.debug_info`), also if it is compressed in the old way
    /// (`.zdebug_info`).
    pub(crate) fn debug_section(&self, name: &str) -> Option<&Section> {
        self.section(name.as_bytes()).or_else(|| {
            let legacy = [compressed::LEGACY_PREFIX, name.strip_prefix(".debug_")?.as_bytes()].concat();
            self.section(&legacy)
        })
    }

    /// The name and all that follows it in the table.
    fn section_name(&self, section: &Section) -> &[u8] {
        self.section_names.get(section.name as usize..).unwrap_or_default()
    }

    /// Whether its bytes in the file are not those that it has.
    pub(crate) fn is_compressed(&self, section: &Section) -> bool {
        section.flags & elf::SHF_COMPRESSED.0 != 0 || self.is_legacy_compressed(section)
    }

    fn is_legacy_compressed(&self, section: &Section) -> bool {
        self.section_name(section).starts_with(compressed::LEGACY_PREFIX)
    }

    /// The bytes of a section that has any in this file, decompressed, if they are at most `limit` bytes.
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

    /// The size a section takes once it is read: the size stated by its compression header if it has one.
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

    /// The bytes of the file that are mapped at `svma`, up to the end of the segment that maps them.
    pub(crate) fn data_at_svma(&self, svma: u64, limit: u64) -> Result<Arc<[u8]>, ImageError> {
        let missing = ImageError::Malformed("address outside every segment");
        let Some(segment) =
            self.segments.iter().find(|segment| svma >= segment.svma && svma - segment.svma < segment.file_size)
        else {
            return Err(missing);
        };
        let skip = svma - segment.svma;
        let offset = segment.file_offset.checked_add(skip).ok_or(missing)?;
        // A truncated file still has the beginning of the segment.
        let size = (segment.file_size - skip).min(self.source.len().saturating_sub(offset));
        self.source.read("segment", offset, size.min(limit), limit)
    }

    /// Up to `len` bytes of the program at `svma`, fewer at the end of the segment; `None` where nothing of the file is.
    #[must_use]
    pub fn code(&self, svma: u64, len: u64) -> Option<Arc<[u8]>> {
        self.data_at_svma(svma, len).ok().filter(|bytes| !bytes.is_empty())
    }

    /// Reads `size` bytes of the file at `offset`, for callers that bound `size` themselves.
    pub(crate) fn source(&self) -> &ImageSource {
        &self.source
    }

    /// Looks in PT_NOTE segments first (they survive the loss of section headers), then in `.note.gnu.build-id`
    /// (files of debug information keep the section but their segments have no bytes).
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

/// The bytes of a string table from `offset` to the next NUL, or the first [`limits::MAX_LINKAGE_NAME`] of them: a
/// table without NULs would otherwise be searched to its end for every name in it.
pub(crate) fn string_at(table: &[u8], offset: u32) -> &[u8] {
    let rest = table.get(offset as usize..).unwrap_or_default();
    let rest = rest.get(..limits::MAX_LINKAGE_NAME).unwrap_or(rest);
    let end = rest.iter().position(|&byte| byte == 0).unwrap_or(rest.len());
    rest.get(..end).unwrap_or_default()
}
