//! What instructions do to registers and to the stack, as far as finding a frame needs.
//!
//! Only instructions that handle the stack are understood. Values are relative to the registers at the beginning of a
//! [`Path`], and to words in memory that they point to: functions that realign their stack keep its old address there.

use std::sync::Arc;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind};

/// Values in memory that are followed: pushed registers and those parked in the frame.
const MAX_STORES: usize = 64;
/// Bytes read of an image at a time: most functions are shorter.
const CHUNK: u64 = 1024;
const MAX_INSTRUCTION_BYTES: usize = 15;

pub const GENERAL: usize = 16;
pub const RSP: usize = 4;
pub const RBP: usize = 5;
/// DWARF's number of each (psABI for x86-64, figure 3.36).
pub const DWARF: [u16; GENERAL] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
/// What a call leaves unknown: rax, rcx, rdx, rsi, rdi, r8 to r11.
pub const CALLER_SAVED: [usize; 9] = [0, 1, 2, 6, 7, 8, 9, 10, 11];

/// An address: what a register holds at the beginning, or the word that is stored at a distance from there, and a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolicAddress {
    /// By the order of the encoding; from [`GENERAL`] on the stack pointers that say nothing of the one at the beginning.
    pub register: usize,
    /// Where the address is stored, from the register.
    pub stored: Option<i64>,
    pub offset: i64,
}

impl SymbolicAddress {
    pub fn of(register: usize) -> SymbolicAddress {
        SymbolicAddress { register, stored: None, offset: 0 }
    }

    pub fn plus(self, distance: i64) -> SymbolicAddress {
        SymbolicAddress { offset: self.offset.wrapping_add(distance), ..self }
    }

    pub fn is_known(self) -> bool {
        self.register < GENERAL
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SymbolicValue {
    Unknown,
    Address(SymbolicAddress),
    Memory(SymbolicAddress),
}

impl SymbolicValue {
    /// The value as an address. (A word that is found by another word that is found in memory is not followed.)
    fn address(self) -> Option<SymbolicAddress> {
        match self {
            SymbolicValue::Address(place) => Some(place),
            SymbolicValue::Memory(SymbolicAddress { register, stored: None, offset }) => {
                Some(SymbolicAddress { register, stored: Some(offset), offset: 0 })
            }
            _ => None,
        }
    }
}

pub struct Text<'a, C> {
    start: u64,
    bytes: Arc<[u8]>,
    code: &'a C,
}

impl<'a, C: Fn(u64, u64) -> Option<Arc<[u8]>>> Text<'a, C> {
    /// `code` reads an image: up to so many bytes at an address.
    pub fn new(code: &'a C) -> Self {
        Text { start: 0, bytes: Arc::new([]), code }
    }

    pub fn decode(&mut self, address: u64) -> Option<Instruction> {
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

pub enum NextInstruction {
    Here,
    /// There, and also elsewhere.
    Branch(u64),
    /// Nowhere: it returns, and the return address is where the stack pointer points.
    Returns,
    Lost,
}

#[derive(Clone)]
pub struct Path {
    pub address: u64,
    pub registers: [SymbolicValue; GENERAL],
    stores: Vec<(SymbolicAddress, SymbolicValue)>,
    /// Stack pointers so far that say nothing of those before.
    stacks: usize,
}

impl Path {
    pub fn begin(address: u64) -> Path {
        let registers = std::array::from_fn(|register| SymbolicValue::Address(SymbolicAddress::of(register)));
        Path { address, registers, stores: Vec::new(), stacks: 0 }
    }

    /// Moves the stack pointer to where it is not known to be. What is stored from there on can be found again from there.
    fn lose_stack(&mut self) {
        self.registers[RSP] = SymbolicValue::Address(SymbolicAddress::of(GENERAL + self.stacks));
        self.stacks += 1;
    }

    pub fn at(&self, address: u64) -> Path {
        Path { address, ..self.clone() }
    }

    pub fn load(&self, place: SymbolicAddress) -> SymbolicValue {
        let stored = self.stores.iter().rev().find(|(at, _)| *at == place);
        stored.map_or(SymbolicValue::Memory(place), |(_, value)| *value)
    }

    fn store(&mut self, place: SymbolicAddress, value: SymbolicValue) -> bool {
        if let Some((_, stored)) = self.stores.iter_mut().find(|(at, _)| *at == place) {
            *stored = value;
        } else if value == SymbolicValue::Unknown && place.is_known() && place.register != RSP && place.register != RBP
        {
            // What is computed and written somewhere, not to the stack.
        } else if self.stores.len() < MAX_STORES {
            self.stores.push((place, value));
        } else {
            return false;
        }
        true
    }

    pub fn stores(&self) -> &[(SymbolicAddress, SymbolicValue)] {
        &self.stores
    }

    pub fn stack(&self) -> Option<SymbolicAddress> {
        self.registers[RSP].address()
    }

    fn push(&mut self, value: SymbolicValue) -> Option<()> {
        let place = self.stack()?.plus(-8);
        self.registers[RSP] = SymbolicValue::Address(place);
        self.store(place, value).then_some(())
    }

    fn pop(&mut self) -> Option<SymbolicValue> {
        let place = self.stack()?;
        self.registers[RSP] = SymbolicValue::Address(place.plus(8));
        Some(self.load(place))
    }

    pub fn follow(&mut self, instruction: &Instruction, information: &mut InstructionInfoFactory) -> NextInstruction {
        self.address = instruction.next_ip();
        match instruction.flow_control() {
            FlowControl::Return => return NextInstruction::Returns,
            FlowControl::UnconditionalBranch => {
                self.address = instruction.near_branch_target();
                return NextInstruction::Here;
            }
            FlowControl::ConditionalBranch => return NextInstruction::Branch(instruction.near_branch_target()),
            // Through the image's own slot: a tail call into another image. Otherwise as likely a jump within the
            // function.
            FlowControl::IndirectBranch if instruction.is_ip_rel_memory_operand() => return NextInstruction::Returns,
            FlowControl::Call | FlowControl::IndirectCall if instruction.mnemonic() == Mnemonic::Call => {
                // The call of the next instruction is how code finds its own address.
                if instruction.is_call_near() && instruction.near_branch_target() == self.address {
                    return self.push(SymbolicValue::Unknown).map_or(NextInstruction::Lost, |()| NextInstruction::Here);
                }
                for register in CALLER_SAVED {
                    self.registers[register] = SymbolicValue::Unknown;
                }
                return NextInstruction::Here;
            }
            FlowControl::Next => {}
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => {}
            _ => return NextInstruction::Lost,
        }
        if self.run(instruction, information).is_none() { NextInstruction::Lost } else { NextInstruction::Here }
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
                    self.set(register, value);
                }
                return Some(());
            }
            (Mnemonic::Enter, ..) if instruction.immediate(1) == 0 => {
                self.push(self.registers[RBP])?;
                self.registers[RBP] = self.registers[RSP];
                let size = instruction.immediate(0).cast_signed();
                self.registers[RSP] = SymbolicValue::Address(self.stack()?.plus(size.wrapping_neg()));
                return Some(());
            }
            (Mnemonic::Leave, ..) => {
                self.set(RSP, self.registers[RBP]);
                self.registers[RBP] = self.pop()?;
                return Some(());
            }
            (Mnemonic::Mov, OpKind::Register, _) => {
                if let Some(register) = general(instruction.op0_register()) {
                    self.set(register, self.source(instruction, 1));
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
                    self.set(register, self.place(instruction).map_or(SymbolicValue::Unknown, SymbolicValue::Address));
                    return Some(());
                }
            }
            (Mnemonic::Add | Mnemonic::Sub, OpKind::Register, kind) if is_immediate(kind) => {
                if let Some(register) = general(instruction.op0_register())
                    && let Some(place) = self.registers[register].address()
                {
                    let distance = instruction.immediate(1).cast_signed();
                    let subtracts = instruction.mnemonic() == Mnemonic::Sub;
                    let distance = if subtracts { distance.wrapping_neg() } else { distance };
                    self.registers[register] = SymbolicValue::Address(place.plus(distance));
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
                self.set(register, SymbolicValue::Unknown);
            }
        }
        for used in used.used_memory() {
            let written = !matches!(used.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            if written
                && let Some(place) = self.place(instruction)
                && !self.store(place, SymbolicValue::Unknown)
            {
                return None;
            }
        }
        Some(())
    }

    fn set(&mut self, register: usize, value: SymbolicValue) {
        self.registers[register] = value;
        if register == RSP && value.address().is_none() {
            self.lose_stack();
        }
    }

    fn source(&self, instruction: &Instruction, operand: u32) -> SymbolicValue {
        match instruction.op_kind(operand) {
            OpKind::Register => general(instruction.op_register(operand))
                .map_or(SymbolicValue::Unknown, |register| self.registers[register]),
            OpKind::Memory if instruction.memory_size().size() == 8 => {
                self.place(instruction).map_or(SymbolicValue::Unknown, |place| self.load(place))
            }
            _ => SymbolicValue::Unknown,
        }
    }

    fn place(&self, instruction: &Instruction) -> Option<SymbolicAddress> {
        use iced_x86::Register;
        if instruction.memory_index() != Register::None || instruction.segment_prefix() != Register::None {
            return None;
        }
        let place = self.registers[general(instruction.memory_base())?].address()?;
        Some(place.plus(instruction.memory_displacement64().cast_signed()))
    }
}

pub fn general(register: iced_x86::Register) -> Option<usize> {
    register.is_gpr64().then(|| register.number()).filter(|&number| number < GENERAL)
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(kind, OpKind::Immediate8to64 | OpKind::Immediate32to64)
}
