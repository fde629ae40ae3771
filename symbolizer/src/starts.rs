//! Starts of functions from unwind information: compilers emit a frame description (FDE) for every function, also in
//! stripped programs.

use std::ops::Range;
use std::sync::Arc;

use gimli::{DebugFrame, LittleEndian};

use crate::by_address::ByAddress;
use crate::eh_frame::EhFrameIndex;
use crate::fde_index::FdeIndex;
use crate::meter;
use crate::unwind::UnwindSections;

#[derive(Debug)]
pub(crate) struct FunctionStarts {
    sections: Arc<UnwindSections>,
    index: EhFrameIndex,
    by_address: ByAddress,
}

impl Default for FunctionStarts {
    fn default() -> FunctionStarts {
        let index = EhFrameIndex::Scanned(FdeIndex::default());
        FunctionStarts { sections: Arc::default(), index, by_address: ByAddress::default() }
    }
}

impl FunctionStarts {
    pub(crate) fn new(sections: Arc<UnwindSections>) -> FunctionStarts {
        let index = match (&sections.eh_frame, &sections.debug_frame) {
            (None, Some(data)) => {
                let mut debug_frame = DebugFrame::new(data, LittleEndian);
                debug_frame.set_address_size(8);
                EhFrameIndex::Scanned(FdeIndex::build(&debug_frame, &sections.bases()))
            }
            _ => EhFrameIndex::new(&sections),
        };
        if meter::spend(index.len() as u64).is_err() {
            return FunctionStarts::default();
        }
        let by_address = ByAddress::new(index.len(), |at| index.beginning(&sections, at));
        FunctionStarts { sections, index, by_address }
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.sections.bytes() + (self.index.bytes() + self.by_address.bytes()) as u64
    }

    /// The address range of the function whose frame description covers `svma`.
    pub(crate) fn lookup(&self, svma: u64) -> Option<Range<u64>> {
        let after = self.by_address.count_up_to(svma, |index| self.index.beginning(&self.sections, index));
        self.index.range(&self.sections, after.checked_sub(1)?).filter(|range| range.contains(&svma))
    }
}
