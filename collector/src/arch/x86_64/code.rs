//! Leaves a frame without unwind table by what its instructions are about to do.
//!
//! Hand-written assembly, and whole programs, have no tables. Such a function still returns, so the instructions from
//! the frame's address on are followed until one returns; the stack pointer and registers there give a row as of an
//! unwind table. Nothing is assumed of prologues or frame pointers. Only instructions that handle the stack are
//! understood; calls are taken to return with the stack as it was.
//!
//! The result is a guess: a call may never return, a path never be taken. So there may be several, the nearest first,
//! each used only if its return address is [where a call returns to](is_call_before).

use std::sync::Arc;

use gimli::X86_64;
use hashbrown::HashSet;
use iced_x86::InstructionInfoFactory;

use super::path::{CALLER_SAVED, DWARF, NextInstruction, Path, RBP, RSP, SymbolicAddress, SymbolicValue, Text};
use super::pointer_rule::{self, PointerRule};
use super::registers::{CALLEE_SAVED, Registers};
use super::step::{Caller, Stuck, follow_frame_pointer};

/// Instructions followed for one address: `__gmpn_mul_basecase`, unrolled by hand, has 500. A thousand take some 50 us.
const MAX_INSTRUCTIONS: usize = 1024;
/// Instructions followed beyond the first way that was found: for another, should it turn out to lead nowhere.
const MORE_INSTRUCTIONS: usize = 256;
/// Ways to leave one frame that are kept. More than one is rare, and comes of code behind calls that do not return.
const MAX_ROWS: usize = 3;
/// Bytes of the longest call, without a prefix: `ff /2` with a SIB byte and a displacement of four bytes.
const LONGEST_CALL: u64 = 7;
/// Bytes of a direct call: `e8` and a distance.
const DIRECT_CALL: u64 = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameLayout {
    pub return_address: SymbolicAddress,
    /// What is then in the registers of the caller, in the order of [`CALLEE_SAVED`].
    pub saved: [SymbolicValue; CALLEE_SAVED.len()],
    /// Those of [`CALLER_SAVED`] that are then as they were, a bit for each by the order of the encoding.
    pub kept: u16,
}

impl FrameLayout {
    fn of(path: &Path) -> Option<FrameLayout> {
        let return_address = path.stack().filter(|place| place.is_known())?;
        // A return to what was pushed here is a jump in disguise.
        if path.load(return_address) != SymbolicValue::Memory(return_address) {
            return None;
        }
        let saved = CALLEE_SAVED.map(|number| {
            let register = DWARF.iter().position(|&dwarf| usize::from(dwarf) == number);
            match register.map_or(SymbolicValue::Unknown, |register| path.registers[register]) {
                SymbolicValue::Address(place) | SymbolicValue::Memory(place) if !place.is_known() => {
                    SymbolicValue::Unknown
                }
                value => value,
            }
        });
        let is_kept =
            |&register: &usize| path.registers[register] == SymbolicValue::Address(SymbolicAddress::of(register));
        let kept = CALLER_SAVED.into_iter().filter(is_kept).fold(0, |kept, register| kept | 1 << register);
        Some(FrameLayout { return_address, saved, kept })
    }

    /// The caller's registers. Errors: see [`Stuck`].
    pub fn apply(&self, before: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
        let at = |place: SymbolicAddress| {
            let number = DWARF.get(place.register).ok_or(Stuck::Bad)?;
            let base = before.get(gimli::Register(*number)).ok_or(Stuck::Bad)?;
            let base = match place.stored.map(|distance| base.wrapping_add_signed(distance)) {
                Some(slot) => read(slot).ok_or(Stuck::Unreadable(slot))?,
                None => base,
            };
            Ok(base.wrapping_add_signed(place.offset))
        };
        let slot = at(self.return_address)?;
        let address = read(slot).ok_or(Stuck::Unreadable(slot))?;
        let mut after = Registers::default();
        for (&number, value) in CALLEE_SAVED.iter().zip(self.saved) {
            let value = match value {
                SymbolicValue::Unknown => None,
                SymbolicValue::Address(place) => at(place).ok(),
                SymbolicValue::Memory(place) => at(place).ok().and_then(read),
            };
            if let Some(value) = value {
                after.set(gimli::Register(number as u16), value);
            }
        }
        after.set(X86_64::RSP, slot.wrapping_add(8));
        after.set(X86_64::RA, address);
        Ok(after)
    }

    /// The same, where the caller's stack goes on above.
    pub fn apply_upwards(&self, before: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
        let after = self.apply(before, read)?;
        let aligned = after.get(X86_64::RSP).is_some_and(|sp| sp.is_multiple_of(8));
        // Of what only tells where the stack goes on any word may have been taken for it.
        let sure = self.is_by_stack_pointer() || aligned;
        if !sure || after.get(X86_64::RSP) <= before.get(X86_64::RSP) { Err(Stuck::Bad) } else { Ok(after) }
    }

    /// Whether the way back is by another register than the stack pointer: a function that moves to another stack.
    pub fn is_kept_elsewhere(&self) -> bool {
        self.return_address.register != RSP
    }

    pub fn is_by_stack_pointer(&self) -> bool {
        self.return_address.register == RSP && self.return_address.stored.is_none()
    }

    #[must_use]
    pub fn moved(&self, distance: i64) -> FrameLayout {
        let moved = |place: SymbolicAddress| match place {
            SymbolicAddress { register: RSP, stored: Some(slot), .. } => {
                SymbolicAddress { stored: Some(slot.wrapping_sub(distance)), ..place }
            }
            SymbolicAddress { register: RSP, stored: None, .. } => place.plus(distance.wrapping_neg()),
            place => place,
        };
        let saved = self.saved.map(|value| match value {
            SymbolicValue::Memory(place) => SymbolicValue::Memory(moved(place)),
            SymbolicValue::Address(place) => SymbolicValue::Address(moved(place)),
            SymbolicValue::Unknown => SymbolicValue::Unknown,
        });
        FrameLayout { return_address: moved(self.return_address), saved, kept: self.kept }
    }

    /// Takes over what is known of the registers that are then as they were, though calls need not keep them.
    pub fn keep(&self, before: &Registers, after: &mut Registers) {
        for register in CALLER_SAVED.into_iter().filter(|register| self.kept >> register & 1 == 1) {
            after.copy(usize::from(DWARF[register]), before);
        }
    }

    /// The same by stack pointer and frame pointer alone, if it takes no more.
    pub fn plain(&self) -> Option<PointerRule> {
        let plain = |place: SymbolicAddress| match (place.register, place.stored) {
            (RSP, None) => Some(pointer_rule::PointerOffset::Sp(place.offset)),
            (RBP, None) => Some(pointer_rule::PointerOffset::Bp(place.offset)),
            _ => None,
        };
        let bp = CALLEE_SAVED.iter().position(|&number| number == usize::from(DWARF[RBP]));
        let bp = match bp.and_then(|at| self.saved.get(at)) {
            Some(SymbolicValue::Address(place)) => pointer_rule::Saved::Address(plain(*place)?),
            Some(SymbolicValue::Memory(place)) => pointer_rule::Saved::Memory(plain(*place)?),
            _ => pointer_rule::Saved::Lost,
        };
        Some(PointerRule { return_address: plain(self.return_address)?, bp })
    }
}

/// The nearest way in which the instructions from `address` on leave their frame, if found within so many.
pub fn nearest(
    address: u64,
    code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>,
    instructions: usize,
) -> Option<FrameLayout> {
    rows_within(address, code, instructions, 1).into_iter().next()
}

/// How the instructions from `address` on leave their frame, the nearest way first. `code` reads up to so many bytes at
/// an address.
pub fn rows(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Vec<FrameLayout> {
    rows_within(address, code, MAX_INSTRUCTIONS, MAX_ROWS)
}

fn rows_within(
    address: u64,
    code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>,
    instructions: usize,
    most: usize,
) -> Vec<FrameLayout> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut paths = std::collections::VecDeque::from([Path::begin(address)]);
    let mut text = Text::new(code);
    let mut information = InstructionInfoFactory::new();
    let mut left = instructions;
    while let Some(mut path) = paths.pop_front() {
        while left > 0 && found.len() < most && seen.insert(path.address) {
            left -= 1;
            let Some(instruction) = text.decode(path.address) else { break };
            match path.follow(&instruction, &mut information) {
                NextInstruction::Here => {}
                NextInstruction::Branch(other) => paths.push_back(path.at(other)),
                NextInstruction::Returns => {
                    found.extend(FrameLayout::of(&path).filter(|row| !found.contains(row)));
                    if !found.is_empty() {
                        left = left.min(MORE_INSTRUCTIONS);
                    }
                    break;
                }
                NextInstruction::Lost => break,
            }
        }
    }
    found
}

/// Leaves a frame by the first of its rows that leads to a return address, as `returns_to` knows them. Errors: see
/// [`Stuck`]; the registers are then as before.
pub fn leave(
    rows: &[FrameLayout],
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    mut returns_to: impl FnMut(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut stuck = Stuck::NotCovered;
    for row in rows {
        match row.apply_upwards(registers, read) {
            Ok(after) if after.get(X86_64::RA).is_some_and(&mut returns_to) => {
                *registers = after;
                return Ok(Caller::Called);
            }
            // What the nearest way needs is worth telling.
            Err(Stuck::Unreadable(address)) if stuck == Stuck::NotCovered => stuck = Stuck::Unreadable(address),
            _ => {}
        }
    }
    Err(stuck)
}

/// The same by its frame pointer. Errors: see [`Stuck`]; the registers are then as before.
pub fn leave_by_frame_pointer(
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    returns_to: impl FnOnce(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut after = *registers;
    match follow_frame_pointer(&mut after, read)? {
        Caller::Called if after.get(X86_64::RA).is_some_and(returns_to) => {
            *registers = after;
            Ok(Caller::Called)
        }
        _ => Err(Stuck::NotCovered),
    }
}

/// Whether the instruction before an address is a call. `code` reads the image that the address is in.
pub fn is_call_before(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    call_target_before(address, code).is_some() || is_indirect_call_before(address, code)
}

/// Whether it may be a call by a register or an address in memory.
pub fn is_indirect_call_before(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    let Some(start) = address.checked_sub(LONGEST_CALL) else { return false };
    let Some(bytes) = code(start, LONGEST_CALL).filter(|bytes| bytes.len() as u64 == LONGEST_CALL) else {
        return false;
    };
    // `ff /2` with SIB byte and displacement by its ModRM byte. Prefixes change nothing.
    let byte = |from_end: usize| bytes[bytes.len() - from_end];
    (2..=bytes.len()).any(|length| {
        let modrm = byte(length - 1);
        let (mode, operand) = (modrm >> 6, modrm & 7);
        let has_sib = mode != 3 && operand == 4;
        let has_base = !has_sib || byte(length.saturating_sub(2).max(1)) & 7 != 5;
        let displacement = match mode {
            0 if operand == 5 || !has_base => 4,
            1 => 1,
            2 => 4,
            _ => 0,
        };
        byte(length) == 0xff && modrm >> 3 & 7 == 2 && length == 2 + usize::from(has_sib) + displacement
    })
}

/// What it calls, if it is a direct call. (Any five bytes that would be one are taken for one.)
pub fn call_target_before(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<u64> {
    let bytes = code(address.checked_sub(DIRECT_CALL)?, DIRECT_CALL)?;
    let &[0xe8, a, b, c, d] = &*bytes else { return None };
    Some(address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
}

#[cfg(test)]
#[path = "code_tests.rs"]
mod tests;
