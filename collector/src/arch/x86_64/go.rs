//! What the instructions of Go's functions say of its stacks.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind, Register};

/// Instructions within which a function sets its frame pointer: the check for more stack is before it.
const PROLOGUE: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTargets {
    None,
    /// At one place, which returns to this address.
    One(u64),
    Many,
}

/// What a function on the thread's stack has noted to find back. Distances are from the stack pointer after its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noted {
    StackPointer(i64),
    /// How far the stack pointer was from the end of the goroutine's stack: that may be moved, should C call Go.
    Depth {
        /// Where the address of the goroutine's record is.
        record: i64,
        end: i64,
        depth: i64,
    },
}

/// Whether code begins by setting the frame pointer, before it calls anything.
pub fn sets_frame_pointer(code: &[u8], address: u64) -> bool {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    for instruction in decoder.into_iter().take(PROLOGUE) {
        if !matches!(instruction.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch) {
            return false;
        }
        if instruction.op_count() == 2
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register() == Register::RBP
        {
            return match instruction.mnemonic() {
                Mnemonic::Mov => {
                    instruction.op1_kind() == OpKind::Register && instruction.op1_register() == Register::RSP
                }
                Mnemonic::Lea => {
                    instruction.memory_base() == Register::RSP && instruction.memory_index() == Register::None
                }
                _ => false,
            };
        }
    }
    false
}

/// What the code behind a call finds back by: `mov rdi, [rsp + 48]; mov rsi, [rdi + 8]; sub rsi, [rsp + 40]; mov rsp,
/// rsi; ret` as in `asmcgocall`, or `mov rsi, [rsp + 40]; mov rsp, rsi; ret`.
pub fn find_note(code: &[u8], address: u64) -> Option<Noted> {
    #[derive(Clone, Copy)]
    enum GoValue {
        Unknown,
        Slot(i64),
        Field(i64, i64),
        Note(Noted),
    }
    let mut values = [GoValue::Unknown; 16];
    let mut found = None;
    for instruction in Decoder::with_ip(64, code, address, DecoderOptions::NONE) {
        match instruction.flow_control() {
            FlowControl::Next => {}
            FlowControl::Return => return found,
            _ => return None,
        }
        let (to, from) = (instruction.op0_register(), instruction.memory_base());
        if instruction.op0_kind() != OpKind::Register {
            continue;
        }
        let loads = instruction.op1_kind() == OpKind::Memory
            && instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None;
        let distance = instruction.memory_displacement64().cast_signed();
        let base = values.get(from.number()).copied().filter(|_| from.is_gpr64()).unwrap_or(GoValue::Unknown);
        let old = values.get(to.number()).copied().filter(|_| to.is_gpr64()).unwrap_or(GoValue::Unknown);
        let new = match (instruction.mnemonic(), base, old) {
            (Mnemonic::Mov, ..) if loads && from == Register::RSP => GoValue::Slot(distance),
            (Mnemonic::Mov, GoValue::Slot(record), _) if loads => GoValue::Field(record, distance),
            (Mnemonic::Sub, _, GoValue::Field(record, end)) if loads && from == Register::RSP => {
                GoValue::Note(Noted::Depth { record, end, depth: distance })
            }
            _ => GoValue::Unknown,
        };
        if to == Register::RSP {
            let source = instruction.op1_register();
            let moved = instruction.mnemonic() == Mnemonic::Mov && source.is_gpr64() && found.is_none();
            found = match values.get(source.number()).filter(|_| moved)? {
                GoValue::Slot(slot) => Some(Noted::StackPointer(*slot)),
                GoValue::Note(noted) => Some(*noted),
                GoValue::Unknown | GoValue::Field(..) => return None,
            };
        } else if let Some(value) = values.get_mut(to.full_register().number()).filter(|_| to.is_gpr()) {
            *value = new;
        }
    }
    None
}

/// The direct calls of `callee` in a function's code. (Any five bytes that look like one count.)
pub fn find_calls(code: &[u8], start: u64, callee: u64) -> CallTargets {
    let mut calls = CallTargets::None;
    for (at, bytes) in code.windows(5).enumerate() {
        let &[0xe8, a, b, c, d] = bytes else { continue };
        let next = start.wrapping_add(at as u64 + 5);
        if next.wrapping_add_signed(i32::from_le_bytes([a, b, c, d]).into()) == callee {
            calls = if calls == CallTargets::None { CallTargets::One(next) } else { CallTargets::Many };
        }
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prologues() {
        // cmp rsp, [r14 + 16]; jbe; push rbp; mov rbp, rsp; sub rsp, 8
        let now: &[u8] = &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x20, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x08];
        // ...; sub rsp, 24; mov [rsp + 16], rbp; lea rbp, [rsp + 16]: up to Go 1.20
        let then: &[u8] = &[
            0x49, 0x3b, 0x66, 0x10, 0x76, 0x20, 0x48, 0x83, 0xec, 24, 0x48, 0x89, 0x6c, 0x24, 16, 0x48, 0x8d, 0x6c,
            0x24, 16,
        ];
        assert!(sets_frame_pointer(now, 0x1000) && sets_frame_pointer(then, 0x1000));
        // It is cut off; something else is put there; or first there is a call, or a return.
        assert!(!sets_frame_pointer(&then[..15], 0x1000));
        assert!(!sets_frame_pointer(&[0x48, 0x89, 0xc5, 0x48, 0x89, 0xe5], 0x1000));
        assert!(!sets_frame_pointer(&[&[0xe8, 0, 0, 0, 0], now].concat(), 0x1000));
        assert!(!sets_frame_pointer(&[&[0xc3], now].concat(), 0x1000));
        assert!(!sets_frame_pointer(&[0x90; 128], 0x1000));
    }

    #[test]
    fn notes_of_the_stack_that_was_left() {
        // mov rdi, [rsp + 48]; mov rsi, [rdi + 8]; sub rsi, [rsp + 40]; mov fs:[-8], rdi; mov rsp, rsi; mov [rsp + 24],
        // eax; ret: asmcgocall of Go 1.19, for a goroutine
        let depth: &[u8] = &[
            0x48, 0x8b, 0x7c, 0x24, 0x30, 0x48, 0x8b, 0x77, 0x08, 0x48, 0x2b, 0x74, 0x24, 0x28, 0x64, 0x48, 0x89, 0x3c,
            0x25, 0xf8, 0xff, 0xff, 0xff, 0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x18, 0xc3,
        ];
        assert_eq!(find_note(depth, 0x1000), Some(Noted::Depth { record: 48, end: 8, depth: 40 }));
        let plain: &[u8] = &[0x48, 0x8b, 0x74, 0x24, 0x28, 0x48, 0x89, 0xf4, 0x89, 0x44, 0x24, 0x18, 0xc3];
        assert_eq!(find_note(plain, 0x1000), Some(Noted::StackPointer(40)));
        // Cut off before it returns; a call on the way; rsp from somewhere else; pop rsp.
        assert!((0..depth.len()).all(|end| find_note(&depth[..end], 0x1000).is_none()));
        assert_eq!(find_note(&[&[0xe8, 0, 0, 0, 0], depth].concat(), 0x1000), None);
        assert_eq!(find_note(&depth[5..], 0x1000), None);
        assert_eq!(find_note(&[0x5c, 0xc3], 0x1000), None);
        assert_eq!(find_note(&[0xc3], 0x1000), None);
    }

    #[test]
    fn calls_of_a_function() {
        let call = |at: u64| [&[0xe8][..], &(0x2000u64.wrapping_sub(at + 5) as i32).to_le_bytes()].concat();
        let one = [&[0x90][..], &call(0x1001), &[0xc3]].concat();
        assert_eq!(find_calls(&one, 0x1000, 0x2000), CallTargets::One(0x1006));
        assert_eq!(find_calls(&one, 0x1000, 0x2001), CallTargets::None);
        assert_eq!(find_calls(&[one, call(0x1007)].concat(), 0x1000, 0x2000), CallTargets::Many);
        assert_eq!(find_calls(&[0xe8, 0, 0], 0x1000, 0x2000), CallTargets::None);
    }
}
