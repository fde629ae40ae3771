//! Starts of functions, from unwind information alone.
//!
//! Compilers emit a frame description (FDE) with first address and size for every function, also in stripped programs.
//! `.eh_frame_hdr` has a table of them sorted by address for binary search; it is searched in place, so opening an
//! image costs little more than reading the two sections.

use std::ops::Range;
use std::sync::Arc;

use gimli::{DebugFrame, EhFrame, EhFrameOffset, EndianSlice, LittleEndian, UnwindSection as _};

use crate::by_address::ByAddress;
use crate::fde_index::FdeIndex;
use crate::meter;
use crate::unwind::{UnwindSection, UnwindSections};

type SectionReader<'a> = EndianSlice<'a, LittleEndian>;

/// The functions with a frame description.
#[derive(Debug, Default)]
pub(crate) struct FunctionStarts {
    sections: Arc<UnwindSections>,
    index: StartIndex,
    by_address: ByAddress,
}

#[derive(Debug)]
enum StartIndex {
    /// The search table inside `.eh_frame_hdr`: byte offset of its first entry and number of entries.
    Table { offset: usize, count: usize },
    /// Entries sorted by start, for files without a usable table.
    Scanned(FdeIndex),
}

impl Default for StartIndex {
    fn default() -> StartIndex {
        StartIndex::Scanned(FdeIndex::default())
    }
}

/// Size of an entry of the search table: two 32-bit offsets from the start of `.eh_frame_hdr`, to the function and to
/// its FDE.
const ENTRY: usize = 8;

impl FunctionStarts {
    pub(crate) fn new(sections: Arc<UnwindSections>) -> FunctionStarts {
        let index = match sections.eh_frame_hdr.as_ref().and_then(|header| find_table(&header.data)) {
            Some((offset, count)) => StartIndex::Table { offset, count },
            None => StartIndex::Scanned(scan(&sections)),
        };
        let mut starts = FunctionStarts { sections, index, by_address: ByAddress::default() };
        let count = match &starts.index {
            StartIndex::Table { count, .. } => *count,
            StartIndex::Scanned(fdes) => fdes.len(),
        };
        if meter::spend(count as u64).is_err() {
            return FunctionStarts::default();
        }
        starts.by_address = ByAddress::new(count, |index| starts.beginning(index));
        starts
    }

    /// Bytes held, including sections that an unwinder may share.
    pub(crate) fn held_bytes(&self) -> u64 {
        let scanned = match &self.index {
            StartIndex::Table { .. } => 0,
            StartIndex::Scanned(fdes) => fdes.bytes(),
        };
        self.sections.bytes() + (scanned + self.by_address.bytes()) as u64
    }

    /// The address range of the function whose frame description covers `svma`. A lookup parses one FDE: about 0.2 us.
    pub(crate) fn lookup(&self, svma: u64) -> Option<Range<u64>> {
        // As in the kernel's and libgcc's readers, the linker is trusted to have sorted its table; in an unsorted one,
        // the FDE found does not cover the address, and the answer is "unknown".
        let found = self.by_address.count_up_to(svma, |index| self.beginning(index)).checked_sub(1)?;
        match &self.index {
            StartIndex::Table { offset, .. } => {
                let (start, fde) = self.table_entry(*offset, found)?;
                let eh_frame = self.sections.eh_frame.as_ref()?;
                let size = fde_size(&self.sections, eh_frame, fde, start)?;
                cover(start, size, svma)
            }
            StartIndex::Scanned(fdes) => fdes.range(found).filter(|range| range.contains(&svma)),
        }
    }

    /// Start of the function at `index`; none beyond the last one.
    fn beginning(&self, index: usize) -> u64 {
        let begins = match &self.index {
            StartIndex::Table { offset, .. } => self.table_entry(*offset, index).map(|(start, _)| start),
            StartIndex::Scanned(fdes) => fdes.range(index).map(|range| range.start),
        };
        begins.unwrap_or(u64::MAX)
    }

    /// An entry of the search table: addresses of the function and of its FDE.
    fn table_entry(&self, offset: usize, index: usize) -> Option<(u64, u64)> {
        let header = self.sections.eh_frame_hdr.as_ref()?;
        let bytes = header.data.get(offset.checked_add(index.checked_mul(ENTRY)?)?..)?.first_chunk::<ENTRY>()?;
        let word = |bytes: [u8; 4]| header.svma.start.wrapping_add_signed(i32::from_le_bytes(bytes).into());
        let [a, b, c, d, rest @ ..] = *bytes;
        Some((word([a, b, c, d]), word(rest)))
    }
}

fn cover(start: u64, size: u64, svma: u64) -> Option<Range<u64>> {
    (svma.checked_sub(start)? < size).then(|| start..start.saturating_add(size))
}

/// Finds the search table if it has the encoding that linkers write: version 1, a 4-byte pointer to `.eh_frame`, a
/// 4-byte count, entries of two signed 32-bit offsets relative to the section. With any other table the section is scanned.
fn find_table(header: &[u8]) -> Option<(usize, usize)> {
    // DW_EH_PE_sdata4 | DW_EH_PE_datarel, and DW_EH_PE_udata4 (Linux Standard Base, "DWARF Exception Header
    // Encoding").
    const DATAREL_SDATA4: u8 = 0x3b;
    const UDATA4: u8 = 0x03;
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

/// The number of bytes that an FDE covers, if it is the FDE of the function at `start`.
fn fde_size(sections: &UnwindSections, section: &UnwindSection, fde: u64, start: u64) -> Option<u64> {
    let offset = usize::try_from(fde.checked_sub(section.svma.start)?).ok()?;
    let mut eh_frame = EhFrame::new(&section.data, LittleEndian);
    eh_frame.set_address_size(8);
    let entry = eh_frame
        .fde_from_offset(&sections.bases(), EhFrameOffset(offset), |frame, bases, cie| {
            frame.cie_from_offset(bases, cie)
        })
        .ok()?;
    (entry.initial_address() == start).then(|| entry.len())
}

fn scan(sections: &UnwindSections) -> FdeIndex {
    let bases = sections.bases();
    if let Some(section) = &sections.eh_frame {
        let mut eh_frame: EhFrame<SectionReader<'_>> = EhFrame::new(&section.data, LittleEndian);
        eh_frame.set_address_size(8);
        FdeIndex::build(&eh_frame, &bases)
    } else if let Some(data) = &sections.debug_frame {
        let mut debug_frame: DebugFrame<SectionReader<'_>> = DebugFrame::new(data, LittleEndian);
        debug_frame.set_address_size(8);
        FdeIndex::build(&debug_frame, &bases)
    } else {
        FdeIndex::default()
    }
}
