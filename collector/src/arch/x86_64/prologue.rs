//! Leaving a frame by what its function has done before: for functions that do not return.
//!
//! The instructions from the function's beginning to the frame tell where the return address and saved registers are.
//! Used where [`code`](super::code) finds no way out, and where a table names a register lost by realigning the stack.
//!
//! Without a table the beginning is a guess, believed only if
//!
//! - it is aligned as compilers align functions, and the code before it ends there;
//! - no register of the caller is used before it is saved, as the middle of a function would;
//! - nothing jumps back to it, as to the head of a loop;
//! - every return has the stack as it was at the beginning.
//!
//! The return address must be one (the unwinder's `ReturnAddresses`), and a direct call there must be one of this
//! function.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
};

use super::code::FrameLayout;
use super::path::{DWARF, GENERAL, NextInstruction, Path, RSP, SymbolicAddress, SymbolicValue, Text, general};
use super::registers::CALLEE_SAVED;

/// Bytes from a function's beginning to a frame in it: a beginning further away is not looked for.
const MAX_DISTANCE: u64 = 4096;
/// Bytes of a function that are looked at for what it does to the stack: what makes a frame stands at its beginning.
const MAX_FRAME_MAKING: u64 = 1024;
const ALIGNMENT: u64 = 16;
/// Beginnings that are tried for one frame.
const MAX_BEGINNINGS: usize = 8;
const MAX_INSTRUCTIONS: usize = 1024;
/// The same where it is sure: such functions are few, and unrolled by hand. (SHA-512 has 1,300.)
const MAX_INSTRUCTIONS_IF_SURE: usize = 4096;
/// Times that a loop may have moved the stack pointer. (SHA-512 does so 4 times, for 80 rounds.)
const MAX_TIMES: i64 = 16;
/// Instructions of one function that are followed for all its addresses at once. (OpenBLAS's largest kernel has some 4,000.)
const MAX_FUNCTION_INSTRUCTIONS: usize = 8192;
/// Bytes before a beginning that say whether the code there ends.
const LOOKED_AT_BEFORE: u64 = 32;
/// Instructions of a function that a call may lead to another through.
const MAX_LEADING: usize = 64;
/// Bytes that are looked at before a call for what makes it a thread's first.
const THREAD_START_BYTES: u64 = 32;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Of `exit`, the system call that ends a thread.
const EXIT: u64 = 60;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnteredFrame {
    pub row: FrameLayout,
    /// How far a loop moves the stack pointer each time: the row is that of the first time.
    step: Option<i64>,
    pub start: u64,
    pub guessed: bool,
}

impl EnteredFrame {
    pub fn rows(&self) -> impl Iterator<Item = FrameLayout> {
        let steps = self.step.filter(|_| !self.row.is_by_stack_pointer());
        let times = if steps.is_some() { MAX_TIMES } else { 1 };
        (0..times).map(move |time| self.row.moved(steps.unwrap_or(0).wrapping_mul(time)))
    }

    /// Whether a caller may have such a stack pointer: the psABI has it aligned where functions are called.
    pub fn allows(&self, caller_sp: u64) -> bool {
        !self.guessed || caller_sp.is_multiple_of(16)
    }
}

#[derive(Clone, Debug)]
pub struct FunctionFrames {
    start: u64,
    /// Ordered and without overlaps: stretches of code with one row.
    runs: Box<[(Range<u64>, FrameLayout)]>,
}

impl FunctionFrames {
    /// Follows the function at `start`. `None` if a loop moves the stack pointer: a frame then has several rows.
    pub fn read(start: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<FunctionFrames> {
        let mut text = Text::new(code);
        let mut information = InstructionInfoFactory::new();
        let mut paths = VecDeque::from([Path::begin(start)]);
        let mut stacks: HashMap<u64, Option<SymbolicAddress>> = HashMap::new();
        let mut runs: Vec<(Range<u64>, FrameLayout)> = Vec::new();
        while let Some(mut path) = paths.pop_front() {
            // The run that ends where the path is.
            let mut run: Option<usize> = None;
            loop {
                if let Some(&before) = stacks.get(&path.address) {
                    if moves(before, path.stack()) {
                        return None;
                    }
                    break;
                }
                if stacks.len() >= MAX_FUNCTION_INSTRUCTIONS {
                    break;
                }
                stacks.insert(path.address, path.stack());
                let instruction = text.decode(path.address);
                let from = path.address;
                let to = instruction.as_ref().map_or(from + 1, Instruction::next_ip);
                let row = inverted(&path);
                match (run.and_then(|run| runs.get_mut(run)), row) {
                    (Some((range, before)), Some(row)) if range.end == from && *before == row => range.end = to,
                    (_, Some(row)) => {
                        run = Some(runs.len());
                        runs.push((from..to, row));
                    }
                    (_, None) => run = None,
                }
                let Some(instruction) = instruction else { break };
                match path.follow(&instruction, &mut information) {
                    NextInstruction::Here => {}
                    NextInstruction::Branch(other) => paths.push_back(path.at(other)),
                    NextInstruction::Returns | NextInstruction::Lost => break,
                }
            }
        }
        runs.sort_unstable_by_key(|(range, _)| range.start);
        Some(FunctionFrames { start, runs: runs.into() })
    }

    pub fn entered(&self, address: u64) -> Option<EnteredFrame> {
        let after = self.runs.partition_point(|(range, _)| range.start <= address);
        let (range, row) = self.runs.get(after.checked_sub(1)?)?;
        let row = range.contains(&address).then(|| row.clone())?;
        Some(EnteredFrame { row, step: None, start: self.start, guessed: false })
    }

    pub fn len(&self) -> usize {
        self.runs.len()
    }
}

/// Whether a loop has moved the stack pointer, from what it is where an instruction is reached first and again.
fn moves(before: Option<SymbolicAddress>, after: Option<SymbolicAddress>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    (before.register, before.stored) == (after.register, after.stored) && before != after
}

/// How the function that begins at `start` has entered the frame at `address`; `None` where it cannot be told.
pub fn entered_from(start: u64, address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<EnteredFrame> {
    let PathToFrame { path, step } = way(start, address, code, false)?;
    Some(EnteredFrame { row: inverted(&path)?, step, start, guessed: false })
}

/// The same, where it is not known where the function begins. A call never returns to the beginning.
pub fn entered(address: u64, called: bool, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<EnteredFrame> {
    let first = address.checked_sub(u64::from(called))? / ALIGNMENT * ALIGNMENT;
    let lowest = address.saturating_sub(MAX_DISTANCE);
    // Read once, but where that begins outside the code.
    let from = lowest.saturating_sub(LOOKED_AT_BEFORE);
    let all = code(from, address - from);
    let ends_before = |&start: &u64| match (&all, start.checked_sub(LOOKED_AT_BEFORE)) {
        (_, None) => false,
        (None, Some(begin)) => code(begin, LOOKED_AT_BEFORE).is_some_and(|bytes| is_end(&bytes)),
        (Some(all), Some(begin)) => {
            let begin = usize::try_from(begin - from).unwrap_or(usize::MAX);
            all.get(begin..).and_then(|rest| rest.get(..LOOKED_AT_BEFORE as usize)).is_some_and(is_end)
        }
    };
    let starts =
        (0..).map_while(|i| first.checked_sub(i * ALIGNMENT)).take_while(|&start| start >= lowest && start > 0);
    let starts = starts.filter(ends_before).take(MAX_BEGINNINGS);
    let mut ways = starts.filter_map(|start| way(start, address, code, true).map(|way| (start, way)));
    ways.find_map(|(start, PathToFrame { path, step })| {
        // One that has lost its stack pointer may have done so anywhere.
        let row = inverted(&path).filter(|row| row.is_by_stack_pointer() && step.is_none())?;
        // The stack pointer is aligned where a function is called, and so was it where that calls another.
        if called && row.return_address.offset.rem_euclid(16) != 8 {
            return None;
        }
        Some(EnteredFrame { row, step, start, guessed: true })
    })
}

/// Whether the instructions of the function at `from` lead to `to` without a call: it jumps there, or has its address.
pub fn leads_to(from: u64, to: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    let mut text = Text::new(code);
    let mut information = InstructionInfoFactory::new();
    let mut path = Path::begin(from);
    for _ in 0..MAX_LEADING {
        if path.address == to {
            return true;
        }
        let Some(instruction) = text.decode(path.address) else { return false };
        if instruction.is_ip_rel_memory_operand() && instruction.ip_rel_memory_address() == to {
            return true;
        }
        match path.follow(&instruction, &mut information) {
            NextInstruction::Branch(other) if other == to => return true,
            NextInstruction::Here | NextInstruction::Branch(_) => {}
            NextInstruction::Returns | NextInstruction::Lost => return false,
        }
    }
    false
}

/// Whether a call returns to `address` that is a thread's first: before it `clone` returned and `rbp` was cleared
/// (psABI: outermost frame); behind it the thread exits.
pub fn begins_thread(address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    let exits = || {
        let mut text = Text::new(code);
        let (mut at, mut number) = (address, None);
        for _ in 0..8 {
            let Some(instruction) = text.decode(at) else { return false };
            match instruction.mnemonic() {
                Mnemonic::Syscall => return number == Some(EXIT),
                Mnemonic::Xor if clears(&instruction, 0) => number = Some(0),
                Mnemonic::Mov if full(&instruction) == Some(0) => {
                    let immediate = matches!(
                        instruction.op1_kind(),
                        OpKind::Immediate8 | OpKind::Immediate32 | OpKind::Immediate32to64
                    );
                    // The lowest byte alone, where the others are clear.
                    let whole = instruction.op0_register().size() >= 4 || number == Some(0);
                    number = (immediate && whole).then(|| instruction.immediate(1));
                }
                _ if instruction.flow_control() != FlowControl::Next => return false,
                _ => {}
            }
            at = instruction.next_ip();
        }
        false
    };
    let made = || {
        let start = address.checked_sub(THREAD_START_BYTES)?;
        let bytes = code(start, THREAD_START_BYTES).filter(|bytes| bytes.len() as u64 == THREAD_START_BYTES)?;
        let syscalls = (0..bytes.len()).filter(|&at| bytes[at..].starts_with(&SYSCALL));
        let starts_here = |from: u64| {
            let mut text = Text::new(code);
            let (mut at, mut cleared, mut last) = (from, false, FlowControl::Next);
            while at < address {
                let Some(instruction) = text.decode(at) else { return false };
                last = instruction.flow_control();
                let call = matches!(last, FlowControl::Call | FlowControl::IndirectCall);
                if call && instruction.next_ip() != address || matches!(last, FlowControl::Return) {
                    return false;
                }
                cleared |= clears(&instruction, 5);
                at = instruction.next_ip();
            }
            at == address && cleared && matches!(last, FlowControl::Call | FlowControl::IndirectCall)
        };
        syscalls.map(|at| start + at as u64 + SYSCALL.len() as u64).any(starts_here).then_some(())
    };
    exits() && made().is_some()
}

/// Whether the first instructions of a function move the stack pointer, other than by calls and returns.
pub fn moves_stack(range: Range<u64>, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> bool {
    let mut text = Text::new(code);
    let (mut at, end) = (range.start, range.end.min(range.start.saturating_add(MAX_FRAME_MAKING)));
    while at < end {
        let Some(instruction) = text.decode(at) else { return false };
        let is_flow = matches!(instruction.mnemonic(), Mnemonic::Call | Mnemonic::Ret);
        let is_compared = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test);
        let is_written =
            !is_compared && instruction.op0_kind() == OpKind::Register && instruction.op0_register() == Register::RSP;
        if !is_flow && (is_written || instruction.stack_pointer_increment() != 0) {
            return true;
        }
        at = instruction.next_ip();
    }
    false
}

/// Where the linear code from `entry` on ends, within so many bytes: with a jump that is always taken, a return or a halt.
pub fn end_of_entry(entry: u64, most: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> u64 {
    let mut text = Text::new(code);
    let (mut at, end) = (entry, entry.saturating_add(most));
    while at < end {
        let Some(instruction) = text.decode(at) else { break };
        at = instruction.next_ip();
        let ends = matches!(
            instruction.flow_control(),
            FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
        );
        if ends || instruction.mnemonic() == Mnemonic::Hlt {
            break;
        }
    }
    at.min(end)
}

/// The full register that an instruction names first, by the order of the encoding.
fn full(instruction: &Instruction) -> Option<usize> {
    general(instruction.op0_register().full_register())
}

fn clears(instruction: &Instruction, register: usize) -> bool {
    instruction.mnemonic() == Mnemonic::Xor
        && full(instruction) == Some(register)
        && instruction.op0_register().size() >= 4
        && instruction.op0_register() == instruction.op1_register()
}

/// Whether code ends with these bytes, [`LOOKED_AT_BEFORE`], but for padding.
fn is_end(bytes: &[u8]) -> bool {
    if bytes.len() as u64 != LOOKED_AT_BEFORE {
        return false;
    }
    // What could be an instruction that does not go on, with nothing but padding behind it.
    let ends = |end: usize| {
        let before = &bytes[..end];
        let tail = |length: usize| before.get(before.len().checked_sub(length)?..);
        matches!(tail(1), Some([0xc3 | 0xf4 | 0xcc]))
            || matches!(tail(2), Some([0xeb, _] | [0x0f, 0x0b] | [0xff, 0xe0..=0xe7]))
            // A call may be one that does not return. Behind another the stack pointer is not as where functions begin.
            || matches!(tail(5), Some([0xe9 | 0xe8, ..]))
    };
    let padded = |end: usize| {
        let padding = Decoder::new(64, &bytes[end..], DecoderOptions::NONE);
        padding.into_iter().all(|instruction| matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3))
    };
    (1..=bytes.len()).rev().take_while(|end| bytes.len() - end < ALIGNMENT as usize).any(|end| ends(end) && padded(end))
}

struct PathToFrame {
    path: Path,
    /// How far a loop moves the stack pointer each time.
    step: Option<i64>,
}

/// The nearest way from `start` to `address`. With `doubted`, the beginning must look like a function's.
fn way(start: u64, address: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>, doubted: bool) -> Option<PathToFrame> {
    let mut text = Text::new(code);
    let mut information = InstructionInfoFactory::new();
    // Each with whether it has come by the address: behind a call that does not return anything may be used.
    let mut paths = VecDeque::from([(Path::begin(start), false)]);
    // The stack pointer at each instruction.
    let mut seen: HashMap<u64, Option<SymbolicAddress>> = HashMap::new();
    let (mut found, mut step) = (None, None);
    let mut left = if doubted { MAX_INSTRUCTIONS } else { MAX_INSTRUCTIONS_IF_SURE };
    while let Some((mut path, mut passed)) = paths.pop_front() {
        while left > 0 && !seen.contains_key(&path.address) {
            seen.insert(path.address, path.stack());
            left -= 1;
            passed |= path.address == address;
            if path.address == address && found.is_none() {
                // Where the stack pointer is known no loop has moved it.
                if !doubted && path.stack().is_some_and(SymbolicAddress::is_known) {
                    return Some(PathToFrame { path, step });
                }
                found = Some(path.clone());
            }
            let Some(instruction) = text.decode(path.address) else { break };
            if doubted && !passed && uses_callers(&path, &instruction, &mut information) {
                return None;
            }
            let calls = instruction.mnemonic() == Mnemonic::Call;
            let to = match path.follow(&instruction, &mut information) {
                // A call that does not return ends a function: padding or the next function follows.
                NextInstruction::Here
                    if doubted && calls && path.address >= address && ends(path.address, &mut text) =>
                {
                    if path.address == address {
                        found = found.or(Some(path));
                    }
                    break;
                }
                NextInstruction::Here => path.address,
                NextInstruction::Branch(to) => {
                    paths.push_back((path.at(to), passed));
                    to
                }
                NextInstruction::Returns if doubted && path.stack() != Some(SymbolicAddress::of(RSP)) => return None,
                NextInstruction::Returns | NextInstruction::Lost => break,
            };
            // What is jumped back to is the head of a loop.
            if doubted && to == start {
                return None;
            }
            if let (Some(&Some(before)), Some(after)) = (seen.get(&to), path.stack())
                && moves(Some(before), Some(after))
            {
                step = step.or(Some(after.offset.wrapping_sub(before.offset)));
            }
        }
        if !doubted && found.is_some() && step.is_some() {
            break;
        }
    }
    found.map(|path| PathToFrame { path, step })
}

fn ends<C: Fn(u64, u64) -> Option<Arc<[u8]>>>(address: u64, text: &mut Text<'_, C>) -> bool {
    let padding = |instruction: Instruction| matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
    address.is_multiple_of(ALIGNMENT) || text.decode(address).is_none_or(padding)
}

/// Whether an instruction uses what a register of the caller holds, other than to save it.
fn uses_callers(path: &Path, instruction: &Instruction, information: &mut InstructionInfoFactory) -> bool {
    let saves = match instruction.mnemonic() {
        Mnemonic::Push | Mnemonic::Call | Mnemonic::Enter | Mnemonic::Ret | Mnemonic::Leave => true,
        Mnemonic::Mov => instruction.op0_kind() == OpKind::Memory && general(instruction.memory_base()) == Some(RSP),
        Mnemonic::Xor | Mnemonic::Sub => instruction.op0_register() == instruction.op1_register(),
        _ => false,
    };
    !saves
        && information.info(instruction).used_registers().iter().any(|used| {
            let reads = matches!(used.access(), OpAccess::Read | OpAccess::ReadWrite | OpAccess::CondRead);
            let register = general(used.register().full_register()).filter(|_| reads);
            register.is_some_and(|register| {
                CALLEE_SAVED.contains(&usize::from(DWARF[register]))
                    && path.registers[register] == SymbolicValue::Address(SymbolicAddress::of(register))
            })
        })
}

fn inverted(path: &Path) -> Option<FrameLayout> {
    let from_beginning = |value: SymbolicValue| match value {
        SymbolicValue::Address(SymbolicAddress { register: RSP, stored: None, offset }) => Some(offset),
        _ => None,
    };
    let stack = path.stack()?;
    // A distance from the stack pointer as it is now.
    let here = |place: SymbolicAddress| {
        let same = (place.register, place.stored) == (stack.register, stack.stored);
        same.then(|| place.offset.wrapping_sub(stack.offset))
    };
    // Where the stack pointer was at the beginning: the distance is known, or a register has the address, or the frame.
    let by_stack = from_beginning(SymbolicValue::Address(stack))
        .map(|offset| SymbolicAddress::of(RSP).plus(offset.wrapping_neg()));
    let by_frame = || {
        path.stores().iter().find_map(|&(place, value)| {
            let (slot, offset) = (here(place)?, from_beginning(value)?);
            Some(SymbolicAddress { register: RSP, stored: Some(slot), offset: offset.wrapping_neg() })
        })
    };
    let by_register = || {
        (0..GENERAL).find_map(|register| {
            Some(SymbolicAddress::of(register).plus(from_beginning(path.registers[register])?.wrapping_neg()))
        })
    };
    let return_address = by_stack.or_else(by_frame).or_else(by_register)?;
    let saved = CALLEE_SAVED.map(|number| {
        let Some(register) = DWARF.iter().position(|&dwarf| usize::from(dwarf) == number) else {
            return SymbolicValue::Unknown;
        };
        let unchanged = SymbolicValue::Address(SymbolicAddress::of(register));
        if path.registers[register] == unchanged {
            return unchanged;
        }
        let slot = path.stores().iter().find(|(_, value)| *value == unchanged).and_then(|&(place, _)| {
            let from_beginning =
                from_beginning(SymbolicValue::Address(place)).map(|offset| return_address.plus(offset));
            from_beginning.or_else(|| Some(SymbolicAddress::of(RSP).plus(here(place)?)))
        });
        slot.map_or(SymbolicValue::Unknown, SymbolicValue::Memory)
    });
    Some(FrameLayout { return_address, saved, kept: 0 })
}

#[cfg(test)]
#[path = "prologue_tests.rs"]
mod tests;
