//! What leaving one frame comes to, whatever says how the frame is left.

use super::registers::{FP, RA, Registers, SP};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The tables say that there is none.
    None,
    /// The registers are now the caller's; it waits for a call to return.
    Called,
    /// The registers are now those of code that was interrupted by a signal.
    Interrupted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No table covers the address.
    NotCovered,
    /// A value is needed from this address of the stack, which cannot be read.
    Unreadable(u64),
    /// The table makes no sense, or needs a register that is not known.
    Bad,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallerPointers {
    pub ip: u64,
    /// The stack pointer after the return.
    pub sp: u64,
    /// The frame pointer, 0 where it is lost.
    pub bp: u64,
}

impl CallerPointers {
    pub fn of(registers: &Registers) -> Option<CallerPointers> {
        let [ip, sp, bp] = [RA, SP, FP].map(|register| registers.get(register));
        Some(CallerPointers { ip: ip.filter(|&ip| ip != 0)?, sp: sp?, bp: bp? })
    }

    pub fn registers(&self) -> Registers {
        let mut registers = Registers::default();
        for (register, value) in [(RA, self.ip), (SP, self.sp), (FP, self.bp)] {
            registers.set(register, value);
        }
        registers
    }
}

/// Leaves a frame by frame pointer: `rbp` points to the caller's `rbp`, above it is the return address. 0 ends the
/// stack. Errors: see [`Stuck`].
pub fn follow_frame_pointer(registers: &mut Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Caller, Stuck> {
    let bp = registers.get(FP).ok_or(Stuck::Bad)?;
    if bp == 0 {
        return Ok(Caller::None);
    }
    let sp = bp.checked_add(16).ok_or(Stuck::Bad)?;
    if registers.get(SP).is_some_and(|old| sp <= old) {
        return Err(Stuck::Bad);
    }
    let caller_bp = read(bp).ok_or(Stuck::Unreadable(bp))?;
    let address = read(bp + 8).ok_or(Stuck::Unreadable(bp + 8))?;
    *registers = CallerPointers { ip: address, sp, bp: caller_bp }.registers();
    Ok(if address == 0 { Caller::None } else { Caller::Called })
}
