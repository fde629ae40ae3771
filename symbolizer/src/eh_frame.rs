//! The functions that `.eh_frame` describes, by address.
//!
//! `.eh_frame_hdr`'s sorted table (Linux Standard Base, "DWARF Exception Header Encoding") is searched in place, so
//! opening an image costs little. Without one, the section is read once for an [`FdeIndex`].

use std::ops::Range;

use gimli::{EhFrame, EhFrameOffset, EndianSlice, FrameDescriptionEntry, LittleEndian, UnwindSection as _};

use crate::fde_index::FdeIndex;
use crate::unwind::UnwindSections;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Size of an entry: 32-bit offsets of function and FDE from the start of `.eh_frame_hdr`.
const ENTRY: usize = 8;

/// How an entry of `.eh_frame` is found. Every call takes the sections that it was made for.
#[derive(Debug)]
pub enum EhFrameIndex {
    /// The search table inside `.eh_frame_hdr`: byte offset of its first entry, and number of entries.
    Table {
        /// Where the table begins in the section.
        offset: usize,
        /// How many entries it has.
        count: usize,
    },
    /// Entries sorted by start, for files without a usable table.
    Scanned(FdeIndex),
}

impl EhFrameIndex {
    /// Finds the search table, or reads `.eh_frame` once.
    #[must_use]
    pub fn new(sections: &UnwindSections) -> EhFrameIndex {
        match (find_table(sections), section(sections)) {
            (Some((offset, count)), _) => EhFrameIndex::Table { offset, count },
            (None, Some(eh_frame)) => EhFrameIndex::Scanned(FdeIndex::build(&eh_frame, &sections.bases())),
            (None, None) => EhFrameIndex::Scanned(FdeIndex::default()),
        }
    }

    /// The most bytes that an index of these sections takes.
    #[must_use]
    pub fn most_bytes(sections: &UnwindSections) -> u64 {
        let scanned = sections.eh_frame.as_ref().filter(|_| find_table(sections).is_none());
        scanned.map_or(0, |eh_frame| FdeIndex::most_bytes(eh_frame.data.len()))
    }

    /// Bytes held beside the sections.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            EhFrameIndex::Table { .. } => 0,
            EhFrameIndex::Scanned(fdes) => fdes.bytes(),
        }
    }

    /// Number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            EhFrameIndex::Table { count, .. } => *count,
            EhFrameIndex::Scanned(fdes) => fdes.len(),
        }
    }

    /// Whether no function is described.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Start of the function of the entry at `index`; the last address if there is no such entry.
    #[must_use]
    pub fn beginning(&self, sections: &UnwindSections, index: usize) -> u64 {
        let begins = match self {
            EhFrameIndex::Table { offset, .. } => table_entry(sections, *offset, index).map(|(start, _)| start),
            EhFrameIndex::Scanned(fdes) => fdes.range(index).map(|range| range.start),
        };
        begins.unwrap_or(u64::MAX)
    }

    /// Number of entries that begin at `svma` or before. The linker is trusted to have sorted its table, as in the
    /// kernel and libgcc.
    #[must_use]
    pub fn count_up_to(&self, sections: &UnwindSections, svma: u64) -> usize {
        let EhFrameIndex::Table { offset, count } = self else {
            let EhFrameIndex::Scanned(fdes) = self else { return 0 };
            return fdes.count_up_to(svma);
        };
        let (mut low, mut high) = (0, *count);
        while low < high {
            let middle = low + (high - low) / 2;
            match table_entry(sections, *offset, middle) {
                Some((start, _)) if start <= svma => low = middle + 1,
                _ => high = middle,
            }
        }
        low
    }

    /// The code that the entry at `index` covers. Of a search table it parses the entry: about 0.2 us.
    #[must_use]
    pub fn range(&self, sections: &UnwindSections, index: usize) -> Option<Range<u64>> {
        match self {
            EhFrameIndex::Table { offset, .. } => {
                let (start, fde) = table_entry(sections, *offset, index)?;
                let entry = entry_at(sections, fde).filter(|entry| entry.initial_address() == start)?;
                Some(start..start.saturating_add(entry.len()))
            }
            EhFrameIndex::Scanned(fdes) => fdes.range(index),
        }
    }

    /// The entry that covers an address. Where two overlap it is the one that starts later.
    #[must_use]
    pub fn find<'a>(&self, sections: &'a UnwindSections, svma: u64) -> Option<FrameDescriptionEntry<Slice<'a>>> {
        match self {
            EhFrameIndex::Table { offset, .. } => {
                let index = self.count_up_to(sections, svma).checked_sub(1)?;
                let (_, fde) = table_entry(sections, *offset, index)?;
                entry_at(sections, fde).filter(|entry| entry.contains(svma))
            }
            EhFrameIndex::Scanned(fdes) => fdes.find(&section(sections)?, &sections.bases(), svma),
        }
    }

    /// Whether no entry begins after `start` and up to `last`.
    #[must_use]
    pub fn begins_none(&self, sections: &UnwindSections, start: u64, last: u64) -> bool {
        self.count_up_to(sections, start) == self.count_up_to(sections, last)
    }
}

/// `.eh_frame`, for gimli.
#[must_use]
pub fn section(sections: &UnwindSections) -> Option<EhFrame<Slice<'_>>> {
    let mut eh_frame = EhFrame::new(&sections.eh_frame.as_ref()?.data, LittleEndian);
    eh_frame.set_address_size(8);
    Some(eh_frame)
}

fn entry_at(sections: &UnwindSections, fde: u64) -> Option<FrameDescriptionEntry<Slice<'_>>> {
    let start = sections.eh_frame.as_ref()?.svma.start;
    let offset = EhFrameOffset(usize::try_from(fde.checked_sub(start)?).ok()?);
    section(sections)?.fde_from_offset(&sections.bases(), offset, EhFrame::cie_from_offset).ok()
}

/// Finds the search table if linkers' encoding is used: version 1, 4-byte pointer to `.eh_frame`, 4-byte count, entries
/// of two signed 32-bit offsets. Otherwise the section is scanned.
fn find_table(sections: &UnwindSections) -> Option<(usize, usize)> {
    // DW_EH_PE_sdata4 | DW_EH_PE_datarel, and DW_EH_PE_udata4.
    const DATAREL_SDATA4: u8 = 0x3b;
    const UDATA4: u8 = 0x03;
    sections.eh_frame.as_ref()?;
    let header = &sections.eh_frame_hdr.as_ref()?.data;
    let &[version, pointer_encoding, count_encoding, table_encoding] = header.first_chunk::<4>()?;
    // The pointer's format is in the low nibble: 4 bytes unsigned or signed.
    let four_bytes = matches!(pointer_encoding & 0x0f, 0x03 | 0x0b);
    if version != 1 || !four_bytes || count_encoding != UDATA4 || table_encoding != DATAREL_SDATA4 {
        return None;
    }
    let count = u32::from_le_bytes(header.get(8..12)?.try_into().ok()?);
    let offset = 12;
    let fits = (header.len() - offset) / ENTRY;
    Some((offset, usize::try_from(count).ok()?.min(fits)))
}

#[inline]
fn table_entry(sections: &UnwindSections, offset: usize, index: usize) -> Option<(u64, u64)> {
    let header = sections.eh_frame_hdr.as_ref()?;
    let bytes = header.data.get(offset.checked_add(index.checked_mul(ENTRY)?)?..)?.first_chunk::<ENTRY>()?;
    let word = |bytes: [u8; 4]| header.svma.start.wrapping_add_signed(i32::from_le_bytes(bytes).into());
    let [a, b, c, d, rest @ ..] = *bytes;
    Some((word([a, b, c, d]), word(rest)))
}
