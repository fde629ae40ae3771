//! Rules that leave a frame by the stack pointer and the frame pointer alone, where no unwind table covers it.

use super::step::CallerPointers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointerOffset {
    Sp(i64),
    Bp(i64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saved {
    Lost,
    Address(PointerOffset),
    Memory(PointerOffset),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerRule {
    pub return_address: PointerOffset,
    pub bp: Saved,
}

impl PointerRule {
    pub const FRAME_POINTER: PointerRule =
        PointerRule { return_address: PointerOffset::Bp(8), bp: Saved::Memory(PointerOffset::Bp(0)) };

    /// The caller's registers, if the stack holds them and goes outwards; else the unreadable address, if that is why.
    pub fn apply(self, sp: u64, bp: u64, read: &impl Fn(u64) -> Option<u64>) -> Result<CallerPointers, Option<u64>> {
        let at = |place| match place {
            PointerOffset::Sp(offset) => sp.wrapping_add_signed(offset),
            PointerOffset::Bp(offset) => bp.wrapping_add_signed(offset),
        };
        let slot = at(self.return_address);
        if slot < sp || slot > u64::MAX - 16 {
            return Err(None);
        }
        let ip = read(slot).ok_or(Some(slot))?;
        let bp = match self.bp {
            Saved::Lost => 0,
            Saved::Address(place) => at(place),
            Saved::Memory(place) => read(at(place)).unwrap_or(0),
        };
        Ok(CallerPointers { ip, sp: slot + 8, bp })
    }
}
