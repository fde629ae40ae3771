//! What following the frames of a stack comes to: where it ends, why it stops, what it goes on from.

use crate::arch::FramehopRegs;
use ccsd_profile::TruncationReason;
use framehop::FrameAddress;

use super::frame::{Frame, MAX_FRAMES, Root};
use super::memory::BELOW_STACK;
use crate::arch::registers::{FP, RA, Registers, SP};
use crate::layers::Common;
use crate::perf::record::Sample;
use crate::process::images::ImageIndex;
use crate::process::mappings::Mappings;

/// A frame that has been found in the mappings.
pub enum Located {
    At(Frame),
    /// The address is not code of the process.
    Nowhere,
}

/// What framehop goes on from.
pub struct Pointers {
    pub at: FrameAddress,
    pub regs: FramehopRegs,
}

impl Pointers {
    /// Of a frame that waits for a call to return, or was interrupted; `None` where not all that it takes is known.
    pub fn of(registers: &Registers, called: bool) -> Option<Pointers> {
        let [ip, sp, bp] = [RA, SP, FP].map(|register| registers.get(register));
        let (ip, regs) = (ip?, FramehopRegs::new(ip?, sp?, bp?));
        let at = if called { FrameAddress::from_return_address(ip)? } else { FrameAddress::InstructionPointer(ip) };
        Some(Pointers { at, regs })
    }
}

/// How far a stack was followed with every register.
pub enum Careful {
    /// To its end.
    Ended(Root),
    /// To a frame from which on it may go faster.
    Left(Pointers),
}

/// Why unwinding stopped short of a root.
pub enum Stop {
    /// framehop cannot leave this frame.
    NeedsCare,
    /// The address is not code of the process.
    Nowhere,
    /// A value is needed that the copy of the stack does not hold.
    Unreadable(u64),
    Because(TruncationReason),
}

impl Stop {
    /// The address that was needed, if it is not among those that the sample copied.
    pub fn outside_copy(&self, sample: &Sample<'_>) -> Option<u64> {
        let Stop::Unreadable(address) = *self else { return None };
        let sp = sample.regs?.sp;
        let end = sp.checked_add(sample.stack.len() as u64)?;
        (address.checked_add(8)? > end || address < sp).then_some(address)
    }

    pub fn reason(&self, sample: &Sample<'_>) -> TruncationReason {
        match *self {
            Stop::NeedsCare => TruncationReason::BadUnwindInfo,
            Stop::Nowhere => TruncationReason::UnknownMapping,
            // The stack goes on where the copy ends.
            Stop::Unreadable(address) => match sample.regs.map_or(0, |regs| regs.sp) {
                sp if address >= sp => late_reason(sample),
                // Another stack.
                sp if address < sp.saturating_sub(BELOW_STACK) => TruncationReason::StackUnreadable,
                _ => TruncationReason::BadUnwindInfo,
            },
            Stop::Because(reason) => reason,
        }
    }
}

/// Why the copy of a stack does not hold what comes next.
pub fn late_reason(sample: &Sample<'_>) -> TruncationReason {
    if sample.stack_full { TruncationReason::StackCopyTooSmall } else { TruncationReason::StackUnreadable }
}

/// A stack that was followed to its root.
pub struct Found {
    pub root: Root,
    /// Where the thread's last stack goes on.
    pub common: Option<Common>,
    /// Whether the frames are such as the shadow stack knows.
    pub in_shadow: bool,
}

impl Found {
    /// Complete, found by framehop.
    pub const WHOLE: Found = Found { root: Root::Complete, common: None, in_shadow: true };
    /// Complete, found otherwise.
    pub const COMPLETE: Found = Found { root: Root::Complete, common: None, in_shadow: false };
}

/// Enters the frame of an address. An address that is no code can only be the first, a jump gone wrong: it is kept, as
/// unknown. One read from the stack says that the frame before was not unwound rightly, and is dropped.
#[inline]
pub fn locate(lookup: u64, mappings: &mut Mappings, frames: &mut Vec<Frame>) -> Result<Located, Stop> {
    let Some(mapping) = mappings.find(lookup) else {
        if frames.is_empty() {
            frames.push(Frame { image: ImageIndex::UNKNOWN, address: lookup });
        }
        return Ok(Located::Nowhere);
    };
    if frames.len() >= MAX_FRAMES {
        return Err(Stop::Because(TruncationReason::TooDeep));
    }
    let frame = Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) };
    frames.push(frame);
    Ok(Located::At(frame))
}
