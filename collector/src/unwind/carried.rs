//! The registers beside stack pointer and frame pointer, followed lazily: only up to frames that need them.

use super::cfi;
use super::frame::Frame;
use super::generated::GeneratedRules;
use super::image_unwind::ImageUnwind;
use super::memory::UserStack;
use super::shadow::UnwindState;
use super::walk::FramePosition;
use crate::arch::code;
use crate::arch::registers::{FP, RA, Registers, SP};
use crate::arch::step::CallerPointers;
use crate::perf::record::UserRegs;

/// The registers at one frame of the stack that is followed: the last one up to which all have been.
#[derive(Debug, Default)]
pub struct Carried {
    begun: bool,
    pub registers: Registers,
    /// Whether the frame waits for a call to return.
    pub called: bool,
    /// The callee: its next instruction, and its registers.
    pub callee: Option<(Frame, Registers)>,
    pub switched: bool,
    pub switches: usize,
}

impl Carried {
    pub fn forget(&mut self) {
        self.begun = false;
    }

    /// Begins at the innermost frame, unless some have been followed.
    pub fn begin(&mut self, start: &UserRegs) {
        if !self.begun {
            *self = Carried { begun: true, ..Carried::default() };
            start.dwarf().for_each(|(register, value)| self.registers.set(register, value));
        }
    }

    /// The position of this frame. After a move to another stack, or with an unknown pointer, it needs all registers.
    pub fn position(&self) -> FramePosition {
        let [ip, sp, bp] = [RA, SP, FP].map(|register| self.registers.get(register));
        let full = self.switched || sp.is_none() || bp.is_none();
        let [ip, sp, bp] = [ip, sp, bp].map(|value| value.unwrap_or(0));
        FramePosition { pointers: CallerPointers { ip, sp, bp }, called: self.called, full }
    }

    /// Continues at `caller`, which called a frame on another stack.
    pub fn move_to(&mut self, caller: CallerPointers) {
        let switches = self.switches;
        *self = Carried { begun: true, registers: caller.registers(), called: true, switches, ..Carried::default() };
    }

    /// Follows the registers through a frame whose `caller` is known. If its row and instructions do not lead there,
    /// all registers but the pointers are lost.
    pub fn follow(
        &mut self,
        frame: Frame,
        caller: UnwindState,
        image: Option<&mut ImageUnwind>,
        generated: &mut GeneratedRules,
        stack: &UserStack<'_>,
    ) {
        let read = |address: u64| stack.read(address);
        let leads_there =
            |after: &Registers| after.get(RA) == Some(caller.return_address) && after.get(SP) == Some(caller.sp);
        let before = self.registers;
        let next = Frame { address: frame.address.wrapping_add(u64::from(self.called)), ..frame };
        let mut after = before;
        let found = image.and_then(|image| {
            if cfi::leave(image.tables(), frame.address, &mut after, &read).is_ok() && leads_there(&after) {
                return Some(after);
            }
            let mut apply = |row: &code::FrameLayout| row.apply(&before, &read).ok().filter(leads_there);
            if image.generated {
                let code = |address, len| stack.code(address, len);
                return generated.rows((frame.image, next.address), &code).iter().find_map(apply);
            }
            let by_way_out = image.rows(next.address).iter().find_map(&mut apply);
            by_way_out.or_else(|| image.entered(next.address, self.called)?.rows().find_map(|row| apply(&row)))
        });
        self.registers = found
            .unwrap_or_else(|| CallerPointers { ip: caller.return_address, sp: caller.sp, bp: caller.bp }.registers());
        (self.callee, self.called) = (Some((next, before)), true);
    }
}
