//! How a frame is left that no unwind table covers, from what its instructions are about to do.
//!
//! Hand-written assembly often has no unwind tables, and whole programs are compiled without. Such a function still
//! returns, so it knows where its return address is: the instructions from the frame's address on are followed, with
//! what they do to the registers and to the stack, until one returns. What is then known of the stack pointer and of the
//! registers that belong to the caller is a row such as an unwind table would have. Nothing is assumed of prologues or of
//! frame pointers, and only the instructions that handle the stack are understood: what any other writes is unknown from
//! there on. Calls are taken to return with the stack as it was.
//!
//! The result is a guess: a call that never returns is followed into the bytes behind it, and a path may be one that is
//! never taken. So there may be several, the nearest first, and a frame is left by one only if the return address that it
//! leads to is [where a call returns to](is_call_before).

use std::sync::Arc;

use gimli::X86_64;
use hashbrown::HashSet;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

use super::careful::{Caller, Stuck, follow_frame_pointer};
use super::plain::{self, Plain};
use super::registers::{CALLEE_SAVED, Registers};

/// Instructions followed for one address. `__gmpn_mul_basecase`, unrolled by hand, has 500; one of a compiler may have
/// more, but its exits are not far apart. A thousand take some 50 us.
const MAX_INSTRUCTIONS: usize = 1024;
/// Instructions followed beyond the first way that was found: for another, should it turn out to lead nowhere.
const MORE_INSTRUCTIONS: usize = 256;
/// Ways to leave one frame that are kept. More than one is rare, and comes of code behind calls that do not return.
const MAX_ROWS: usize = 3;
/// Values in memory that are followed: pushed registers and those parked in the frame.
const MAX_STORES: usize = 64;
/// Bytes read of an image at a time: most functions are shorter.
const CHUNK: u64 = 1024;
/// Bytes of the longest instruction.
const MAX_INSTRUCTION_BYTES: usize = 15;
/// Bytes of the longest call, without a prefix: `ff /2` with a SIB byte and a displacement of four bytes.
const LONGEST_CALL: u64 = 7;
/// Bytes of a direct call: `e8` and a distance.
const DIRECT_CALL: u64 = 5;

/// General registers, in the order of their encoding.
const GENERAL: usize = 16;
const RSP: usize = 4;
const RBP: usize = 5;
/// DWARF's number of each (psABI for x86-64, figure 3.36).
const DWARF: [u16; GENERAL] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
/// What a call leaves unknown: rax, rcx, rdx, rsi, rdi, r8 to r11.
const CALLER_SAVED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// An address: what a register holds at the frame, and a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// By the order of the encoding.
    register: usize,
    offset: i64,
}

impl Place {
    fn plus(self, distance: i64) -> Place {
        Place { register: self.register, offset: self.offset.wrapping_add(distance) }
    }
}

/// What is known of a value while instructions are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Unknown,
    Address(Place),
    /// What memory holds at the frame.
    Memory(Place),
}

/// How a frame is left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Where the return address is; the caller's stack begins above it.
    return_address: Place,
    /// What is then in the registers of the caller, in the order of [`CALLEE_SAVED`].
    saved: [Value; CALLEE_SAVED.len()],
}

impl Row {
    /// The caller's registers.
    ///
    /// # Errors
    /// See [`Stuck`].
    pub fn apply(&self, before: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
        let at = |place: Place| {
            let base = before.get(gimli::Register(DWARF[place.register])).ok_or(Stuck::Bad)?;
            Ok(base.wrapping_add_signed(place.offset))
        };
        let slot = at(self.return_address)?;
        let address = read(slot).ok_or(Stuck::Unreadable(slot))?;
        let mut after = Registers::default();
        for (&number, value) in CALLEE_SAVED.iter().zip(self.saved) {
            let value = match value {
                Value::Unknown => None,
                Value::Address(place) => at(place).ok(),
                Value::Memory(place) => at(place).ok().and_then(read),
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
    fn apply_upwards(&self, before: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
        let after = self.apply(before, read)?;
        if after.get(X86_64::RSP) <= before.get(X86_64::RSP) { Err(Stuck::Bad) } else { Ok(after) }
    }

    /// Whether the way back is by a register that is not the stack pointer: what a function has kept that moves to another
    /// stack and returns.
    pub fn is_kept_elsewhere(&self) -> bool {
        self.return_address.register != RSP
    }

    /// The same by stack pointer and frame pointer alone, if it takes no more.
    pub fn plain(&self) -> Option<Plain> {
        let plain = |place: Place| match place.register {
            RSP => Some(plain::Place::Sp(place.offset)),
            RBP => Some(plain::Place::Bp(place.offset)),
            _ => None,
        };
        let bp = CALLEE_SAVED.iter().position(|&number| number == usize::from(DWARF[RBP]));
        let bp = match bp.and_then(|at| self.saved.get(at)) {
            Some(Value::Address(place)) => plain::Saved::Address(plain(*place)?),
            Some(Value::Memory(place)) => plain::Saved::Memory(plain(*place)?),
            _ => plain::Saved::Lost,
        };
        Some(Plain { return_address: plain(self.return_address)?, bp })
    }
}

/// The nearest way in which the instructions from `address` on leave their frame, if it is to be found within so many.
pub fn nearest(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>, instructions: usize) -> Option<Row> {
    rows_within(address, code, instructions, 1).into_iter().next()
}

/// The ways in which the instructions from `address` on leave their frame, the nearest first; none where they are not
/// understood. `code` reads an image: up to so many bytes at an address.
pub fn rows(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Vec<Row> {
    rows_within(address, code, MAX_INSTRUCTIONS, MAX_ROWS)
}

fn rows_within(
    address: u64,
    code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>,
    instructions: usize,
    most: usize,
) -> Vec<Row> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut paths = std::collections::VecDeque::from([Path::begin(address)]);
    let mut text = Text { start: 0, bytes: Arc::new([]), code };
    let mut information = InstructionInfoFactory::new();
    let mut left = instructions;
    while let Some(mut path) = paths.pop_front() {
        while left > 0 && found.len() < most && seen.insert(path.address) {
            left -= 1;
            let Some(instruction) = text.decode(path.address) else { break };
            match path.follow(&instruction, &mut information) {
                Next::Here => {}
                Next::Branch(other) => paths.push_back(Path { address: other, ..path.clone() }),
                Next::Returns => {
                    found.extend(path.row().filter(|row| !found.contains(row)));
                    if !found.is_empty() {
                        left = left.min(MORE_INSTRUCTIONS);
                    }
                    break;
                }
                Next::Lost => break,
            }
        }
    }
    found
}

/// Leaves a frame by the first of its rows, or else by its frame pointer, that leads to a return address, as
/// `returns_to` knows them.
///
/// # Errors
/// See [`Stuck`]; the registers are then as before.
pub fn leave(
    rows: &[Row],
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    mut returns_to: impl FnMut(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut stuck = Stuck::NotCovered;
    let mut believed = |after: Registers| after.get(X86_64::RA).filter(|&address| returns_to(address)).map(|_| after);
    for row in rows {
        match row.apply_upwards(registers, read).map(&mut believed) {
            Ok(Some(after)) => {
                *registers = after;
                return Ok(Caller::Called);
            }
            // What the nearest way needs is worth telling.
            Err(Stuck::Unreadable(address)) if stuck == Stuck::NotCovered => stuck = Stuck::Unreadable(address),
            _ => {}
        }
    }
    let mut after = *registers;
    match follow_frame_pointer(&mut after, read) {
        Ok(Caller::Called) if believed(after).is_some() => {
            *registers = after;
            Ok(Caller::Called)
        }
        Err(Stuck::Unreadable(address)) if rows.is_empty() => Err(Stuck::Unreadable(address)),
        _ => Err(stuck),
    }
}

/// Whether the instruction before an address is a call. `code` reads the image that the address is in.
pub fn is_call_before(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    let Some(start) = address.checked_sub(LONGEST_CALL) else { return false };
    let Some(bytes) = code(start, LONGEST_CALL).filter(|bytes| bytes.len() as u64 == LONGEST_CALL) else {
        return false;
    };
    (2..=bytes.len()).any(|length| {
        let tail = bytes.get(bytes.len() - length..).unwrap_or_default();
        let mut decoder = Decoder::with_ip(64, tail, address - length as u64, DecoderOptions::NONE);
        let instruction = decoder.decode();
        let call = matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
        call && instruction.mnemonic() == Mnemonic::Call && instruction.len() == length
    })
}

/// What it calls, if it is a direct call. (Any five bytes that would be one are taken for one.)
pub fn call_target_before(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<u64> {
    let bytes = code(address.checked_sub(DIRECT_CALL)?, DIRECT_CALL)?;
    let &[0xe8, a, b, c, d] = &*bytes else { return None };
    Some(address.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()))
}

/// The instructions of an image, read piece by piece.
struct Text<'a, C> {
    start: u64,
    bytes: Arc<[u8]>,
    code: &'a C,
}

impl<C: Fn(u64, u64) -> Option<Arc<[u8]>>> Text<'_, C> {
    fn decode(&mut self, address: u64) -> Option<Instruction> {
        let inside = |start: u64, bytes: &[u8]| {
            address.checked_sub(start).filter(|&at| at < bytes.len() as u64).map(|at| at as usize)
        };
        let whole = |at: usize, bytes: &[u8]| bytes.len() - at >= MAX_INSTRUCTION_BYTES;
        if !inside(self.start, &self.bytes).is_some_and(|at| whole(at, &self.bytes)) {
            self.bytes = (self.code)(address, CHUNK)?;
            self.start = address;
        }
        let at = inside(self.start, &self.bytes)?;
        let instruction = Decoder::with_ip(64, &self.bytes[at..], address, DecoderOptions::NONE).decode();
        (!instruction.is_invalid()).then_some(instruction)
    }
}

/// Where to go on after an instruction.
enum Next {
    /// At the path's address.
    Here,
    /// There, and also elsewhere.
    Branch(u64),
    /// Nowhere: it returns, and the return address is where the stack pointer points.
    Returns,
    /// Nowhere that is known.
    Lost,
}

/// What is known when the instructions of one path have been run.
#[derive(Clone)]
struct Path {
    address: u64,
    registers: [Value; GENERAL],
    stores: Vec<(Place, Value)>,
}

impl Path {
    fn begin(address: u64) -> Path {
        let registers = std::array::from_fn(|register| Value::Address(Place { register, offset: 0 }));
        Path { address, registers, stores: Vec::new() }
    }

    fn load(&self, place: Place) -> Value {
        let stored = self.stores.iter().rev().find(|(at, _)| *at == place);
        stored.map_or(Value::Memory(place), |(_, value)| *value)
    }

    /// Whether it could be remembered.
    fn store(&mut self, place: Place, value: Value) -> bool {
        if let Some((_, stored)) = self.stores.iter_mut().find(|(at, _)| *at == place) {
            *stored = value;
        } else if self.stores.len() < MAX_STORES {
            self.stores.push((place, value));
        } else {
            return false;
        }
        true
    }

    fn stack(&self) -> Option<Place> {
        match self.registers[RSP] {
            Value::Address(place) => Some(place),
            _ => None,
        }
    }

    fn push(&mut self, value: Value) -> Option<()> {
        let place = self.stack()?.plus(-8);
        self.registers[RSP] = Value::Address(place);
        self.store(place, value).then_some(())
    }

    fn pop(&mut self) -> Option<Value> {
        let place = self.stack()?;
        self.registers[RSP] = Value::Address(place.plus(8));
        Some(self.load(place))
    }

    /// What the frame is left by, here where it returns.
    fn row(&self) -> Option<Row> {
        let return_address = self.stack()?;
        // A return to what was pushed here is a jump in disguise.
        if self.load(return_address) != Value::Memory(return_address) {
            return None;
        }
        let saved = CALLEE_SAVED.map(|number| {
            let register = DWARF.iter().position(|&dwarf| usize::from(dwarf) == number);
            register.map_or(Value::Unknown, |register| self.registers[register])
        });
        Some(Row { return_address, saved })
    }

    /// Runs one instruction.
    fn follow(&mut self, instruction: &Instruction, information: &mut InstructionInfoFactory) -> Next {
        self.address = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Return => return Next::Returns,
            FlowControl::UnconditionalBranch => {
                self.address = instruction.near_branch_target();
                return Next::Here;
            }
            FlowControl::ConditionalBranch => return Next::Branch(instruction.near_branch_target()),
            // Through a slot of the image's own: a call in tail position, of a function in another image. Through
            // anything else: as likely a jump within the function.
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => return Next::Returns,
            FlowControl::Call | FlowControl::IndirectCall if instruction.mnemonic() == Mnemonic::Call => {
                // The call of the next instruction is how code finds its own address.
                if instruction.is_call_near() && instruction.near_branch_target() == self.address {
                    return self.push(Value::Unknown).map_or(Next::Lost, |()| Next::Here);
                }
                for register in CALLER_SAVED {
                    self.registers[register] = Value::Unknown;
                }
                return Next::Here;
            }
            FlowControl::Next => {}
            // A system call.
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => {}
            _ => return Next::Lost,
        }
        if self.run(instruction, information).is_none() { Next::Lost } else { Next::Here }
    }

    /// Runs an instruction that goes on to the next. `None` where nothing is known of the stack any more.
    fn run(&mut self, instruction: &Instruction, information: &mut InstructionInfoFactory) -> Option<()> {
        match (instruction.mnemonic(), instruction.op0_kind(), instruction.op1_kind()) {
            (Mnemonic::Push, ..) => {
                let value = self.source(instruction, 0);
                return self.push(value);
            }
            (Mnemonic::Pop, OpKind::Register, _) => {
                let value = self.pop()?;
                if let Some(register) = general(instruction.op0_register()) {
                    self.registers[register] = value;
                }
                return Some(());
            }
            (Mnemonic::Leave, ..) => {
                self.registers[RSP] = self.registers[RBP];
                self.registers[RBP] = self.pop()?;
                return Some(());
            }
            (Mnemonic::Mov, OpKind::Register, _) => {
                if let Some(register) = general(instruction.op0_register()) {
                    self.registers[register] = self.source(instruction, 1);
                    return Some(());
                }
            }
            (Mnemonic::Mov, OpKind::Memory, _) if instruction.memory_size().size() == 8 => {
                if let Some(place) = self.place(instruction) {
                    let value = self.source(instruction, 1);
                    return self.store(place, value).then_some(());
                }
            }
            (Mnemonic::Lea, OpKind::Register, _) => {
                if let Some(register) = general(instruction.op0_register()) {
                    self.registers[register] = self.place(instruction).map_or(Value::Unknown, Value::Address);
                    return Some(());
                }
            }
            (Mnemonic::Add | Mnemonic::Sub, OpKind::Register, kind) if is_immediate(kind) => {
                if let Some(register) = general(instruction.op0_register())
                    && let Value::Address(place) = self.registers[register]
                {
                    let distance = instruction.immediate(1).cast_signed();
                    let subtracts = instruction.mnemonic() == Mnemonic::Sub;
                    let distance = if subtracts { distance.wrapping_neg() } else { distance };
                    self.registers[register] = Value::Address(place.plus(distance));
                    return Some(());
                }
            }
            _ => {}
        }
        let used = information.info(instruction);
        for used in used.used_registers() {
            let written = matches!(
                used.access(),
                OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
            );
            if let Some(register) = general(used.register().full_register()).filter(|_| written) {
                self.registers[register] = Value::Unknown;
            }
        }
        for used in used.used_memory() {
            let written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if written
                && let Some(place) = self.place(instruction)
                && !self.store(place, Value::Unknown)
            {
                return None;
            }
        }
        Some(())
    }

    /// The value of an operand.
    fn source(&self, instruction: &Instruction, operand: u32) -> Value {
        match instruction.op_kind(operand) {
            OpKind::Register => {
                general(instruction.op_register(operand)).map_or(Value::Unknown, |register| self.registers[register])
            }
            OpKind::Memory if instruction.memory_size().size() == 8 => {
                self.place(instruction).map_or(Value::Unknown, |place| self.load(place))
            }
            _ => Value::Unknown,
        }
    }

    /// The address of the memory operand, where it is known.
    fn place(&self, instruction: &Instruction) -> Option<Place> {
        use iced_x86::Register;
        if instruction.memory_index() != Register::None || instruction.segment_prefix() != Register::None {
            return None;
        }
        match self.registers[general(instruction.memory_base())?] {
            Value::Address(place) => Some(place.plus(instruction.memory_displacement64().cast_signed())),
            _ => None,
        }
    }
}

/// The number of a 64-bit general register.
fn general(register: iced_x86::Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number()).filter(|&number| number < GENERAL)
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64)
}

#[cfg(test)]
#[path = "code_tests.rs"]
mod tests;
