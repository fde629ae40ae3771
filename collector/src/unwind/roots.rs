//! When a stack is whole.
//!
//! framehop ends a stack for three reasons that it does not tell apart: the unwind information says that the frame has
//! no caller (the return address is *undefined*: `_start`, `clone`), the return address read is 0, or the frame pointer
//! of code without unwind information is 0. Only the first is proof. The second is believed where unwind information
//! led to the slot, because thread libraries and runtimes end their stacks so. The third is believed only near the
//! program's entry point, where the psABI has `rbp` cleared "to mark the deepest stack frame"; anywhere else `rbp` is a
//! register like all others and happens to be 0.

use std::sync::Arc;

use ccsd_profile::TruncationReason;
use ccsd_symbolizer::{ElfFile, UnwindSections};
use gimli::{
    BaseAddresses, CieOrFde, DebugFrame, EhFrame, EhFrameHdr, EndianSlice, LittleEndian, RegisterRule, UnwindContext,
    UnwindSection, X86_64,
};
use hashbrown::HashMap;

use super::{Frame, Root};
use crate::process::images::{ImageIndex, Images};

/// Size taken for the entry function of a file that has no unwind information: `_start` and the C function it calls
/// are far smaller in every C library.
const ENTRY_BYTES: u64 = 512;
/// Answers kept: a program has a handful of outermost frames; beyond this it is a hostile one, and memory matters more.
const MAX_ANSWERS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Covered {
    /// Unwind information covers the address and says that nothing called the function.
    NoCaller,
    /// Unwind information covers the address.
    Yes,
    /// None does.
    No,
}

/// Judges outermost frames. Answers are remembered per address.
#[derive(Default)]
pub struct Roots {
    sections: HashMap<ImageIndex, UnwindSections>,
    answers: HashMap<Frame, Covered>,
}

impl Roots {
    /// Notes an image's unwind sections, which are shared with the unwinder, not copied.
    pub fn add(&mut self, image: ImageIndex, sections: UnwindSections) {
        self.sections.insert(image, sections);
    }

    /// Whether a stack that ends at `frame` is whole.
    pub fn judge(&mut self, frame: Frame, images: &Images) -> Root {
        match self.covered(frame) {
            Covered::NoCaller | Covered::Yes => Root::Complete,
            Covered::No => match images.get(frame.image).and_then(|image| image.elf.as_ref()) {
                Some(elf) if at_entry(elf, frame.address) => Root::Complete,
                _ => Root::Truncated(TruncationReason::NoUnwindInfo),
            },
        }
    }

    /// Whether unwind information covers the frame.
    pub fn has_unwind_info(&mut self, frame: Frame, _images: &Images) -> bool {
        self.covered(frame) != Covered::No
    }

    fn covered(&mut self, frame: Frame) -> Covered {
        if let Some(&answer) = self.answers.get(&frame) {
            return answer;
        }
        let answer = self.sections.get(&frame.image).map_or(Covered::No, |sections| look_up(sections, frame.address));
        if self.answers.len() >= MAX_ANSWERS {
            self.answers.clear();
        }
        self.answers.insert(frame, answer);
        answer
    }
}

fn at_entry(elf: &Arc<ElfFile>, address: u64) -> bool {
    let entry = elf.entry();
    entry != 0 && (entry..entry.saturating_add(ENTRY_BYTES)).contains(&address)
}

fn look_up(sections: &UnwindSections, address: u64) -> Covered {
    let bases = sections.bases();
    if let Some(eh_frame) = &sections.eh_frame {
        let section = EhFrame::new(&eh_frame.data, LittleEndian);
        if let Some(header) = &sections.eh_frame_hdr {
            let parsed = EhFrameHdr::new(&header.data, LittleEndian).parse(&bases, 8).ok();
            let fde = parsed
                .as_ref()
                .and_then(|parsed| parsed.table())
                .and_then(|table| table.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).ok());
            return fde.map_or(Covered::No, |fde| row(&section, &bases, &fde, address));
        }
        return scan(&section, &bases, address);
    }
    match &sections.debug_frame {
        Some(data) => scan(&DebugFrame::new(data, LittleEndian), &bases, address),
        None => Covered::No,
    }
}

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Without an index: entry by entry. It runs once per outermost address.
fn scan<'a, S: UnwindSection<Slice<'a>>>(section: &S, bases: &BaseAddresses, address: u64) -> Covered {
    let mut entries = section.entries(bases);
    while let Ok(Some(entry)) = entries.next() {
        if let CieOrFde::Fde(partial) = entry
            && let Ok(fde) = partial.parse(S::cie_from_offset)
            && fde.contains(address)
        {
            return row(section, bases, &fde, address);
        }
    }
    Covered::No
}

fn row<'a, S: UnwindSection<Slice<'a>>>(
    section: &S,
    bases: &BaseAddresses,
    fde: &gimli::FrameDescriptionEntry<Slice<'a>>,
    address: u64,
) -> Covered {
    let mut context = UnwindContext::new();
    match fde.unwind_info_for_address(section, bases, &mut context, address) {
        Ok(row) => match row.register(X86_64::RA) {
            None | Some(RegisterRule::Undefined) => Covered::NoCaller,
            Some(_) => Covered::Yes,
        },
        Err(_) => Covered::No,
    }
}
