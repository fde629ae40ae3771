//! What following the frames of a stack comes to: where it ends, and why it stops.

use ccsd_profile::TruncationReason;

use super::frame::{Frame, MAX_FRAMES};
use super::memory::BELOW_STACK;
use crate::perf::record::Sample;
use crate::process::images::ImageIndex;
use crate::process::mappings::Mappings;
use crate::stack_delta::Common;

pub enum UnwindStop {
    /// The address is not code of the process.
    Nowhere,
    /// A value is needed that the copy of the stack does not hold.
    Unreadable(u64),
    Because(TruncationReason),
}

impl UnwindStop {
    /// The address that was needed, if it is not among those that the sample copied.
    pub fn outside_copy(&self, sample: &Sample<'_>) -> Option<u64> {
        let UnwindStop::Unreadable(address) = *self else { return None };
        let sp = sample.regs?.sp;
        let end = sp.checked_add(sample.stack.len() as u64)?;
        (address.checked_add(8)? > end || address < sp).then_some(address)
    }

    pub fn reason(&self, sample: &Sample<'_>) -> TruncationReason {
        match *self {
            UnwindStop::Nowhere => TruncationReason::UnknownMapping,
            // The stack goes on where the copy ends.
            UnwindStop::Unreadable(address) => match sample.regs.map_or(0, |regs| regs.sp) {
                sp if address >= sp => late_reason(sample),
                sp if address < sp.saturating_sub(BELOW_STACK) => TruncationReason::StackUnreadable,
                _ => TruncationReason::BadUnwindInfo,
            },
            UnwindStop::Because(reason) => reason,
        }
    }
}

/// Why the copy of a stack does not hold what comes next.
pub fn late_reason(sample: &Sample<'_>) -> TruncationReason {
    if sample.stack_full { TruncationReason::StackCopyTooSmall } else { TruncationReason::StackUnreadable }
}

pub struct CompleteStack {
    /// Where the thread's last stack goes on.
    pub common: Option<Common>,
    /// Whether the frames are such as the shadow stack knows.
    pub in_shadow: bool,
}

impl CompleteStack {
    /// By stack pointer and frame pointer, so that the shadow stack knows all that they depend on.
    pub const WHOLE: CompleteStack = CompleteStack { common: None, in_shadow: true };
    pub const COMPLETE: CompleteStack = CompleteStack { common: None, in_shadow: false };
}

/// The frame that a return address leads to, if it is code of the process.
pub fn frame_of_return(address: u64, mappings: &mut Mappings) -> Option<Frame> {
    let lookup = address.wrapping_sub(1);
    let mapping = mappings.find(lookup)?;
    Some(Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) })
}

/// Enters the frame of an address. A non-code address is kept as unknown if first, a jump gone wrong; later, the frame
/// before was unwound wrongly, and it is dropped.
#[inline]
pub fn locate(lookup: u64, mappings: &mut Mappings, frames: &mut Vec<Frame>) -> Result<Frame, UnwindStop> {
    let Some(mapping) = mappings.find(lookup) else {
        if frames.is_empty() {
            frames.push(Frame { image: ImageIndex::UNKNOWN, address: lookup });
        }
        return Err(UnwindStop::Nowhere);
    };
    if frames.len() >= MAX_FRAMES {
        return Err(UnwindStop::Because(TruncationReason::TooDeep));
    }
    let frame = Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) };
    frames.push(frame);
    Ok(frame)
}
