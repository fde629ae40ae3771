//! The sections that an unwinder needs.

use std::ops::Range;
use std::sync::Arc;

use gimli::{BaseAddresses, EhFrameHdr, EndianSlice, LittleEndian};

use crate::elf::reader::{ElfReader, Section};
use crate::limits;

/// A section's bytes and stated addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnwindSection {
    /// Address range of the section (SVMA).
    pub svma: Range<u64>,
    /// Its bytes, decompressed.
    pub data: Arc<[u8]>,
}

/// The fields of `framehop::ExplicitModuleSectionInfo`. Addresses are SVMAs. Formats: Linux Standard Base, "Exception
/// Frames" (`.eh_frame`, `.eh_frame_hdr`); DWARF 5, section 6.4 (`.debug_frame`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnwindSections {
    /// See [`ElfReader::base_svma`].
    pub base_svma: u64,
    /// `.text`, a possible base of pointers in unwind information.
    pub text_svma: Option<Range<u64>>,
    /// `.got`, another such base.
    pub got_svma: Option<Range<u64>>,
    /// `.eh_frame_hdr`, only with a usable search table and `eh_frame`; otherwise an unwinder indexes `.eh_frame`.
    pub eh_frame_hdr: Option<UnwindSection>,
    /// `.eh_frame`.
    pub eh_frame: Option<UnwindSection>,
    /// `.debug_frame`, for what `.eh_frame` does not cover: some of that always comes from the C library's start-up
    /// code.
    pub debug_frame: Option<Arc<[u8]>>,
}

impl UnwindSections {
    pub(crate) fn read(file: &ElfReader) -> UnwindSections {
        let range = |name: &[u8]| file.section(name).and_then(Section::svma_range);
        let mut sections = UnwindSections {
            base_svma: file.base_svma(),
            text_svma: range(b".text"),
            got_svma: range(b".got"),
            eh_frame_hdr: read_section(file, ".eh_frame_hdr").or_else(|| read_header_segment(file)),
            eh_frame: read_section(file, ".eh_frame"),
            debug_frame: read_section(file, ".debug_frame").map(|section| section.data),
        };
        if sections.eh_frame.is_none() {
            sections.eh_frame = sections.eh_frame_pointer().and_then(|svma| {
                // Only the section header has its size; it ends with a zero word, and the segment bounds it.
                let data = file.data_at_svma(svma, limits::MAX_UNWIND_BYTES).ok()?;
                let svma = svma..svma.checked_add(data.len() as u64)?;
                Some(UnwindSection { svma, data })
            });
        }
        if sections.eh_frame.is_none() || sections.eh_frame_pointer().is_none() {
            sections.eh_frame_hdr = None;
        }
        sections
    }

    /// Maximum of [`UnwindSections::bytes`], from the headers.
    pub(crate) fn most_bytes(file: &ElfReader) -> u64 {
        // Larger sections are omitted.
        let fitting = |size: u64| if size <= limits::MAX_UNWIND_BYTES { size } else { 0 };
        let section = |name| file.debug_section(name).map(|section| fitting(file.section_size(section)));
        let header = match section(".eh_frame_hdr") {
            Some(size) if size > 0 => size,
            _ => file.eh_frame_hdr_segment().map_or(0, |segment| fitting(segment.file_size)),
        };
        let eh_frame = match section(".eh_frame") {
            Some(size) if size > 0 => size,
            // If only the search table locates the section, the end of the segment bounds its size.
            _ if header > 0 => {
                let segments = file.segments().iter().map(|segment| segment.file_size);
                segments.max().unwrap_or(0).min(limits::MAX_UNWIND_BYTES)
            }
            _ => 0,
        };
        header.saturating_add(eh_frame).saturating_add(section(".debug_frame").unwrap_or(0))
    }

    /// Bytes held by all sections together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let section = |section: &Option<UnwindSection>| section.as_ref().map_or(0, |section| section.data.len());
        let debug_frame = self.debug_frame.as_ref().map_or(0, |data| data.len());
        (section(&self.eh_frame_hdr) + section(&self.eh_frame) + debug_frame) as u64
    }

    /// Bases of relative pointers in `.eh_frame_hdr` and `.eh_frame`.
    #[must_use]
    pub fn bases(&self) -> BaseAddresses {
        let mut bases = BaseAddresses::default();
        if let Some(section) = &self.eh_frame_hdr {
            bases = bases.set_eh_frame_hdr(section.svma.start);
        }
        if let Some(section) = &self.eh_frame {
            bases = bases.set_eh_frame(section.svma.start);
        }
        if let Some(range) = &self.text_svma {
            bases = bases.set_text(range.start);
        }
        if let Some(range) = &self.got_svma {
            bases = bases.set_got(range.start);
        }
        bases
    }

    /// Address of `.eh_frame` according to `.eh_frame_hdr`; `None` if it cannot be parsed or has no search table.
    fn eh_frame_pointer(&self) -> Option<u64> {
        let header = self.eh_frame_hdr.as_ref()?;
        let parsed = EhFrameHdr::new(&header.data, LittleEndian).parse(&self.bases(), 8).ok()?;
        let _: gimli::EhHdrTable<'_, EndianSlice<'_, LittleEndian>> = parsed.table()?;
        match parsed.eh_frame_ptr() {
            gimli::Pointer::Direct(svma) => Some(svma),
            gimli::Pointer::Indirect(_) => None,
        }
    }
}

fn read_section(file: &ElfReader, name: &str) -> Option<UnwindSection> {
    let section = file.debug_section(name)?;
    let data = file.section_data(section, limits::MAX_UNWIND_BYTES).ok()?;
    let svma = section.svma..section.svma.checked_add(data.len() as u64)?;
    (!data.is_empty()).then_some(UnwindSection { svma, data })
}

fn read_header_segment(file: &ElfReader) -> Option<UnwindSection> {
    let segment = file.eh_frame_hdr_segment()?;
    let data =
        file.source().read("PT_GNU_EH_FRAME", segment.file_offset, segment.file_size, limits::MAX_UNWIND_BYTES).ok()?;
    let svma = segment.svma..segment.svma.checked_add(data.len() as u64)?;
    (!data.is_empty()).then_some(UnwindSection { svma, data })
}
