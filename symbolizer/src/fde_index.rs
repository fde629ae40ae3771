//! Where a section keeps its frame description entries (FDEs), by address.
//!
//! `.debug_frame` never has a search table, and searching it for every new address took as much CPU as the target. So
//! the section is read once, when first needed.

use std::ops::Range;

use gimli::{
    BaseAddresses, CieOrFde, CommonInformationEntry, EndianSlice, Error, FrameDescriptionEntry, LittleEndian,
    UnwindOffset, UnwindSection,
};
use hashbrown::HashMap;

use crate::limits::MAX_FDES;
use crate::meter;

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Bytes of a section read for its index, in a fraction of a second: about [`MAX_FDES`] of a compiler's smallest
/// entries.
const MAX_WALKED_BYTES: usize = 64 << 20;
/// Smallest possible entry: its length, where its CIE is, and a byte each for address and length.
const MIN_FDE_BYTES: usize = 10;
/// Bytes of one entry, all of which may be run for each row; compilers' entries are below a page.
pub const MAX_ENTRY_BYTES: usize = 1 << 17;
/// Steps that decoding an entry takes, for [`meter::spend`].
const STEPS_PER_ENTRY: u64 = 8;
/// CIEs remembered while a section is read. `.eh_frame` has a handful; `.debug_frame` one per object file, before its
/// functions.
const MAX_CIES: usize = 4096;

/// The functions that a section describes, sorted by address.
#[derive(Debug, Default)]
pub struct FdeIndex {
    fdes: Box<[Fde]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fde {
    start: u64,
    /// Where it is in the section; 32 bits, because of [`MAX_WALKED_BYTES`].
    offset: u32,
    length: u32,
}

impl FdeIndex {
    /// Upper bound on the index of a section with this many bytes.
    pub fn most_bytes(section: usize) -> u64 {
        let fdes = (section.min(MAX_WALKED_BYTES) / MIN_FDE_BYTES).min(MAX_FDES);
        (fdes * size_of::<Fde>()) as u64
    }

    /// Reads the section from its beginning to its end, to the first entry that cannot be read, or to a limit.
    pub fn build<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses) -> FdeIndex {
        let mut fdes = Vec::new();
        // An entry refers to an earlier one, others are skipped: no byte is read as a CIE more than once.
        let mut cies: HashMap<usize, CommonInformationEntry<Slice<'a>>> = HashMap::new();
        let mut entries = section.entries(bases);
        while let Ok(Some(entry)) = entries.next() {
            if meter::spend(STEPS_PER_ENTRY).is_err() {
                break;
            }
            match entry {
                CieOrFde::Cie(cie) => {
                    if cie.offset() >= MAX_WALKED_BYTES {
                        break;
                    }
                    if cie.entry_len() <= MAX_ENTRY_BYTES {
                        if cies.len() >= MAX_CIES {
                            cies.clear();
                        }
                        cies.insert(cie.offset(), cie);
                    }
                }
                CieOrFde::Fde(partial) => {
                    if partial.offset() >= MAX_WALKED_BYTES || fdes.len() >= MAX_FDES {
                        break;
                    }
                    if partial.entry_len() > MAX_ENTRY_BYTES {
                        continue;
                    }
                    let parsed = partial.parse(|_, _, offset| {
                        let offset: usize = UnwindOffset::into(offset);
                        cies.get(&offset).cloned().ok_or(Error::NoEntryAtGivenOffset(offset as u64))
                    });
                    if let Ok(fde) = parsed {
                        fdes.extend(Fde::new(&fde));
                    }
                }
            }
        }
        fdes.sort_unstable();
        // Of entries for the same function the first of the section stands.
        fdes.dedup_by_key(|fde| fde.start);
        FdeIndex { fdes: fdes.into_boxed_slice() }
    }

    /// The entry that covers an address; of overlapping ones the one that starts later, as with `.eh_frame_hdr`.
    pub fn find<'a, S: UnwindSection<Slice<'a>>>(
        &self,
        section: &S,
        bases: &BaseAddresses,
        address: u64,
    ) -> Option<FrameDescriptionEntry<Slice<'a>>> {
        let found = self.fdes.get(self.count_up_to(address).checked_sub(1)?)?;
        if address - found.start >= u64::from(found.length) {
            return None;
        }
        section.fde_from_offset(bases, S::Offset::from(found.offset as usize), S::cie_from_offset).ok()
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.fdes)
    }

    pub(crate) fn len(&self) -> usize {
        self.fdes.len()
    }

    pub(crate) fn range(&self, index: usize) -> Option<Range<u64>> {
        self.fdes.get(index).map(|fde| fde.start..fde.start.saturating_add(fde.length.into()))
    }

    pub(crate) fn count_up_to(&self, address: u64) -> usize {
        self.fdes.partition_point(|fde| fde.start <= address)
    }
}

impl Fde {
    /// `None` for what describes no code.
    fn new(fde: &FrameDescriptionEntry<Slice<'_>>) -> Option<Fde> {
        let start = fde.initial_address();
        // A linker that drops a function leaves its entry in `.debug_frame`, for address 0 or for the last one.
        if start == 0 || fde.len() == 0 || start.checked_add(fde.len()).is_none() {
            return None;
        }
        Some(Fde {
            start,
            offset: u32::try_from(fde.offset()).ok()?,
            length: u32::try_from(fde.len()).unwrap_or(u32::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gimli::{DebugFrame, EhFrame};

    /// Adds an entry: its length, then its bytes padded with `DW_CFA_nop`. Returns where it is.
    pub fn push(section: &mut Vec<u8>, body: &[u8]) -> u32 {
        let at = section.len();
        let padded = body.len().next_multiple_of(8) + 4;
        section.extend((padded as u32).to_le_bytes());
        section.extend(body);
        section.resize(at + 4 + padded, 0);
        at as u32
    }

    /// Adds a CIE to a `.debug_frame`: the frame is at `rsp` + 8, the return address just below it.
    pub fn push_cie(section: &mut Vec<u8>) -> u32 {
        // id, version 1, no augmentation, code alignment 1, data alignment -8, return address in 16
        push(section, &[0xff, 0xff, 0xff, 0xff, 1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1])
    }

    pub fn push_fde(section: &mut Vec<u8>, cie: u32, start: u64, length: u64, instructions: &[u8]) -> u32 {
        let mut body = cie.to_le_bytes().to_vec();
        body.extend(start.to_le_bytes());
        body.extend(length.to_le_bytes());
        body.extend(instructions);
        push(section, &body)
    }

    fn debug_frame(data: &[u8]) -> DebugFrame<Slice<'_>> {
        let mut section = DebugFrame::new(data, LittleEndian);
        section.set_address_size(8);
        section
    }

    fn build(data: &[u8]) -> FdeIndex {
        FdeIndex::build(&debug_frame(data), &BaseAddresses::default())
    }

    fn find(index: &FdeIndex, data: &[u8], address: u64) -> Option<u32> {
        let found = index.find(&debug_frame(data), &BaseAddresses::default(), address);
        found.map(|fde| fde.offset() as u32)
    }

    #[test]
    fn finds_what_a_scan_finds() {
        const FILES: u64 = 64;
        let mut data = Vec::new();
        // Object files in no order, each with a CIE of its own, and gaps between some functions.
        for file in 0..FILES {
            let cie = push_cie(&mut data);
            let base = 0x1000 + (file * 37 % FILES) * 0x100;
            for (start, length) in [(0x40, 0x20), (0, 0x40), (0x80, 0x80)] {
                push_fde(&mut data, cie, base + start, length, &[]);
            }
        }
        let section = debug_frame(&data);
        let bases = BaseAddresses::default();
        let index = build(&data);
        assert_eq!(index.fdes.len() as u64, 3 * FILES);
        for address in (0xff0..0x1000 + FILES * 0x100 + 0x10).step_by(8).flat_map(|a| [a - 1, a]) {
            let scanned = section.fde_for_address(&bases, address, DebugFrame::cie_from_offset).ok();
            assert_eq!(index.find(&section, &bases, address), scanned, "{address:#x}");
        }
    }

    #[test]
    fn agrees_with_the_search_table_of_a_linker() {
        let own = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let sections = crate::ElfFile::open(own).unwrap().unwind_sections();
        let (Some(data), Some(header)) = (&sections.eh_frame, &sections.eh_frame_hdr) else { return };
        let bases = sections.bases();
        let section = EhFrame::new(&data.data, LittleEndian);
        let index = FdeIndex::build(&section, &bases);
        let header = gimli::EhFrameHdr::new(&header.data, LittleEndian).parse(&bases, 8).unwrap();
        let table = header.table().unwrap();
        assert!(index.fdes.len() > 100);
        for fde in &index.fdes {
            let end = fde.start + u64::from(fde.length);
            for address in [fde.start - 1, fde.start, end - 1, end] {
                let expected = table.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).ok();
                assert_eq!(index.find(&section, &bases, address), expected, "{address:#x}");
            }
        }
    }

    #[test]
    fn entries_for_no_code_are_left_out() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        push_fde(&mut data, cie, 0, 0x10_0000, &[]);
        push_fde(&mut data, cie, u64::MAX, 0x10, &[]);
        push_fde(&mut data, cie, 0x1000, 0, &[]);
        let kept = push_fde(&mut data, cie, 0x1000, 0x10, &[]);
        push_fde(&mut data, cie, 0x1000, 0x20, &[]);
        let index = build(&data);
        assert_eq!(index.fdes.len(), 1);
        assert_eq!(find(&index, &data, 0xfff), None);
        assert_eq!(find(&index, &data, 0x1000), Some(kept));
        assert_eq!(find(&index, &data, 0x1010), None);
    }

    #[test]
    fn the_inner_of_two_entries_is_found() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        let outer = push_fde(&mut data, cie, 0x1000, 0x1000, &[]);
        let inner = push_fde(&mut data, cie, 0x1800, 0x800, &[]);
        let index = build(&data);
        assert_eq!(find(&index, &data, 0x17ff), Some(outer));
        assert_eq!(find(&index, &data, 0x1800), Some(inner));
    }

    #[test]
    fn damage_ends_the_index_and_nothing_else() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        let good = push_fde(&mut data, cie, 0x1000, 0x10, &[]);
        // One that refers into the middle of another entry.
        push_fde(&mut data, good + 4, 0x2000, 0x10, &[]);
        let last = push_fde(&mut data, cie, 0x3000, 0x10, &[]);
        let index = build(&data);
        assert_eq!(index.fdes.len(), 2);
        assert_eq!(find(&index, &data, 0x3000), Some(last));
        for end in 0..data.len() {
            let index = build(&data[..end]);
            assert!(index.fdes.len() < 2);
            assert_eq!(
                find(&index, &data[..end], 0x1000).is_some(),
                end > last as usize - 40 && !index.fdes.is_empty()
            );
        }
        assert!(build(&[0xff; 64]).fdes.is_empty());
    }

    #[test]
    fn more_object_files_than_are_remembered() {
        let mut data = Vec::new();
        for file in 1..=2 * MAX_CIES as u64 {
            let cie = push_cie(&mut data);
            push_fde(&mut data, cie, file * 0x10, 0x10, &[]);
        }
        assert_eq!(build(&data).fdes.len(), 2 * MAX_CIES);
    }

    #[test]
    fn limits() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        push_fde(&mut data, cie, 0x1000, 0x10, &vec![0; MAX_ENTRY_BYTES]);
        push_fde(&mut data, cie, 0x2000, 0x10, &[]);
        assert_eq!(build(&data).fdes.len(), 1);
        for i in 0..MAX_FDES as u64 + 10 {
            push_fde(&mut data, cie, 0x10_0000 + i * 16, 16, &[]);
        }
        let index = build(&data);
        assert_eq!(index.fdes.len(), MAX_FDES);
        assert!(size_of_val::<[Fde]>(&index.fdes) as u64 <= FdeIndex::most_bytes(data.len()));
    }
}
