//! Where a call may have led that has not returned: to the function called, or to one that it has jumped to.

use std::ops::Range;
use std::sync::Arc;

use iced_x86::{FlowControl, Mnemonic};

use super::path::Text;

/// Functions that are looked at for one call, one jumping to the next.
const MAX_FUNCTIONS: usize = 8;
/// Bytes of functions that are looked at for one call.
const MAX_BYTES: u64 = 16 << 10;
/// Jumps out of one function that are kept.
const MAX_JUMPS: usize = 64;

/// Whether a call of the function at `target` may be the last that led to one at `wanted`, or, without one, to another
/// image: it is that function, or jumps to it at its end (a tail call, a table of addresses, a part that is rarely run).
/// `function` is where the function at an address begins and ends. What cannot be told may be.
pub fn may_lead(
    target: u64,
    wanted: Option<u64>,
    function: &mut impl FnMut(u64) -> Option<Range<u64>>,
    code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>,
) -> bool {
    let (mut found, mut left) = (vec![target], MAX_BYTES);
    for position in 0..MAX_FUNCTIONS {
        let Some(&next) = found.get(position) else { return false };
        let Some(range) = function(next).filter(|range| range.contains(&next)) else { return true };
        if wanted == Some(next) || wanted == Some(range.start) {
            return true;
        }
        let Some(rest) = left.checked_sub(range.end - range.start) else { return true };
        left = rest;
        let Some(targets) = jumps_out(range, code) else { return true };
        for target in targets {
            if !found.contains(&target) {
                found.push(target);
            }
            if found.len() > MAX_FUNCTIONS {
                return true;
            }
        }
    }
    true
}

/// Where the address lies that a stub for calls into other images jumps to, if the code at `target` is one: an entry of a
/// procedure linkage table (System V ABI for x86-64, section 5.2).
pub fn jump_slot(target: u64, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<u64> {
    let mut text = Text::new(code);
    let mut instruction = text.decode(target)?;
    if instruction.mnemonic() == Mnemonic::Endbr64 {
        instruction = text.decode(instruction.next_ip())?;
    }
    let jumps = instruction.flow_control() == FlowControl::IndirectBranch && instruction.is_ip_rel_memory_operand();
    jumps.then(|| instruction.ip_rel_memory_address())
}

/// Where a function goes outside of itself without a call: by jumps, or at its end. `None` if that cannot be told, as where
/// it jumps by a register.
fn jumps_out(function: Range<u64>, code: &impl Fn(u64, u64) -> Option<Arc<[u8]>>) -> Option<Vec<u64>> {
    let mut text = Text::new(code);
    let mut targets = Vec::new();
    let mut address = function.start;
    let mut runs_on = false;
    while address < function.end {
        let instruction = text.decode(address)?;
        match instruction.flow_control() {
            FlowControl::IndirectBranch => return None,
            FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                let target = instruction.near_branch_target();
                if !function.contains(&target) && targets.last() != Some(&target) {
                    targets.push(target);
                }
                if targets.len() > MAX_JUMPS {
                    return None;
                }
            }
            _ => {}
        }
        runs_on = match instruction.flow_control() {
            FlowControl::Next => !matches!(instruction.mnemonic(), Mnemonic::Hlt | Mnemonic::Nop | Mnemonic::Int3),
            FlowControl::ConditionalBranch => true,
            _ => false,
        };
        address = instruction.next_ip();
    }
    if runs_on {
        targets.push(function.end);
    }
    Some(targets)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Functions of 16 bytes each, from 0x1000 on.
    fn leads(functions: &[&[u8]], target: usize, wanted: Option<usize>) -> bool {
        let address = |index: usize| 0x1000 + 16 * index as u64;
        let mut bytes: Vec<u8> = Vec::new();
        for function in functions {
            bytes.extend(*function);
            bytes.resize(bytes.len().next_multiple_of(16), 0x90);
        }
        let end = 0x1000 + bytes.len() as u64;
        let code = |at: u64, len: u64| {
            let rest = bytes.get(usize::try_from(at.checked_sub(0x1000)?).ok()?..)?;
            Some(rest.iter().copied().take(len as usize).collect())
        };
        let mut function = |at: u64| (0x1000..end).contains(&at).then(|| at / 16 * 16..at / 16 * 16 + 16);
        may_lead(address(target), wanted.map(address), &mut function, &code)
    }

    #[test]
    fn stubs_jump_by_their_slots() {
        let slot = |bytes: &'static [u8]| {
            let code = move |at: u64, len: u64| {
                let rest = bytes.get(usize::try_from(at.checked_sub(0x1000)?).ok()?..)?;
                Some(rest.iter().copied().take(len as usize).collect())
            };
            jump_slot(0x1000, &code)
        };
        // jmp [rip+0x2fe2]; bnd, behind endbr64; a jump elsewhere; by a register; another instruction first
        assert_eq!(slot(&[0xff, 0x25, 0xe2, 0x2f, 0, 0]), Some(0x3fe8));
        assert_eq!(slot(&[0xf3, 0x0f, 0x1e, 0xfa, 0xf2, 0xff, 0x25, 0xe2, 0x2f, 0, 0]), Some(0x3fed));
        assert_eq!(slot(&[0xe9, 0, 1, 0, 0]), None);
        assert_eq!(slot(&[0xff, 0xe0]), None);
        assert_eq!(slot(&[0x90, 0xff, 0x25, 0xe2, 0x2f, 0, 0]), None);
    }

    #[test]
    fn calls_lead_to_what_is_called_and_what_that_jumps_to() {
        // ret; jmp to the next but one; je into the middle of the next; jmp [rip]; a call of the next, ret
        let ret: &[u8] = &[0xc3];
        let jump: &[u8] = &[0xe9, 27, 0, 0, 0];
        let branch: &[u8] = &[0x74, 20, 0xc3];
        let by_table: &[u8] = &[0xff, 0x25, 0, 0, 0, 0];
        let call: &[u8] = &[0xe8, 11, 0, 0, 0, 0xc3];
        let functions = [jump, ret, branch, ret, call, ret, by_table];
        for (target, reached) in [(0, vec![0, 2, 3]), (1, vec![1]), (2, vec![2, 3]), (4, vec![4]), (5, vec![5])] {
            for wanted in 0..functions.len() {
                assert_eq!(leads(&functions, target, Some(wanted)), reached.contains(&wanted), "{target} {wanted}");
            }
            assert!(!leads(&functions, target, None), "{target}");
        }
        // By a table anything may be reached, elsewhere too.
        assert!(leads(&functions, 6, Some(1)) && leads(&functions, 6, None));
        // A function may run into the next.
        let over: &[u8] =
            &[0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0, 0x89, 0xc0];
        assert!(leads(&[over, ret], 0, Some(1)) && !leads(&[ret, ret], 0, Some(1)));
        // A circle ends; what is not known may be.
        let back: &[u8] = &[0xe9, 0xfb, 0xff, 0xff, 0xff];
        assert!(!leads(&[back, ret], 0, Some(1)));
        assert!(leads(&[&[0xe9, 0, 1, 0, 0], ret], 0, Some(1)));
    }
}
