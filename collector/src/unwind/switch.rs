//! Frames whose caller is on another stack: signal frames that no table describes, and those of Go's runtime.
//!
//! Go runs goroutines on stacks of their own, and parts of its runtime on the thread's. Where it moves from the one to
//! the other no table is right, because the new stack pointer comes from memory. `nanotime1` and its like keep the old one
//! in a register, which their instructions tell. `systemstack` does not; but the function that it calls has saved the
//! goroutine's frame pointer, and below that is a return address of a call of `systemstack`, at the one place from
//! where the frame of its caller ends just where the frame pointer says.

use gimli::X86_64 as R;

use super::registers::Registers;
use super::step::Stuck;

/// `mov $15, %eax; syscall` and the same with `%rax`: how a signal handler's return address gives the kernel its frame
/// back (`rt_sigreturn`). C libraries describe the frame in tables, with exceptions; Go does not.
const RESTORERS: [&[u8]; 2] = [&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]];
/// Bytes of the longer.
pub const RESTORER_BYTES: u64 = 9;
/// Where the kernel keeps the interrupted registers, by DWARF number, above the handler's return address: from
/// `uc_mcontext` of `struct ucontext` on, in the order of `struct sigcontext_64` (`asm/sigcontext.h`).
const SIGNAL_FRAME: [u16; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];
const SIGNAL_FRAME_OFFSET: u64 = 40;

/// Bytes of the largest frame of a function of Go's runtime that calls `systemstack`; the largest that is known has 400.
const LARGEST_CALLER: u64 = 4096;

/// Whether code begins as the return from a signal handler does.
pub fn is_restorer(code: &[u8]) -> bool {
    RESTORERS.iter().any(|restorer| code.starts_with(restorer))
}

/// The registers that a signal interrupted, where the stack pointer is as the handler has left it.
///
/// # Errors
/// The address that cannot be read.
pub fn interrupted(registers: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
    let sp = registers.get(R::RSP).ok_or(Stuck::Bad)?;
    let mut before = Registers::default();
    for (slot, number) in (SIGNAL_FRAME_OFFSET..).step_by(8).zip(SIGNAL_FRAME) {
        let slot = sp.wrapping_add(slot);
        before.set(gimli::Register(number), read(slot).ok_or(Stuck::Unreadable(slot))?);
    }
    Ok(before)
}

/// The registers of what called Go's `systemstack`, by its frame pointer. `calls` says whether an address is behind a call
/// of this function, and `frame_end` where the frame of a caller with such registers ends, just above its return address.
pub fn caller_of_systemstack(
    saved_bp: u64,
    read: &impl Fn(u64) -> Option<u64>,
    mut calls: impl FnMut(u64) -> bool,
    mut frame_end: impl FnMut(&Registers) -> Option<u64>,
) -> Option<Registers> {
    if !saved_bp.is_multiple_of(8) {
        return None;
    }
    let end = saved_bp.checked_add(16)?;
    // From the lowest on, because memory is read in pieces from there upwards.
    let mut found = None;
    for slot in (saved_bp.checked_sub(LARGEST_CALLER)?..saved_bp).step_by(8) {
        let Some(address) = read(slot).filter(|&address| calls(address)) else { continue };
        let mut caller = Registers::default();
        for (register, value) in [(R::RA, address), (R::RSP, slot.wrapping_add(8)), (R::RBP, saved_bp)] {
            caller.set(register, value);
        }
        if frame_end(&caller) == Some(end) {
            // Two would leave it open which is the one.
            if found.replace(caller).is_some() {
                return None;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(values: &[(gimli::Register, u64)]) -> Registers {
        let mut registers = Registers::default();
        values.iter().for_each(|&(register, value)| registers.set(register, value));
        registers
    }

    #[test]
    fn systemstack_is_left_for_the_goroutine() {
        const BP: u64 = 0xc000_2000;
        // The caller's frame is of 64 bytes; further down an old call has left its return address, and another address.
        let words = [(BP - 56, 0x1005), (BP - 200, 0x1005), (BP - 8, 0x2000)];
        let read = |address: u64| match words.iter().find(|word| word.0 == address) {
            Some(&(_, word)) => Some(word),
            None => (BP - 5000..BP + 100).contains(&address).then_some(0),
        };
        let calls = |address| address == 0x1005;
        let end = |size: u64| move |caller: &Registers| Some(caller.get(R::RSP)? + size);
        let caller = caller_of_systemstack(BP, &read, calls, end(64)).unwrap();
        assert_eq!([R::RA, R::RSP, R::RBP].map(|r| caller.get(r)), [0x1005, BP - 48, BP].map(Some));
        // Of another size, nowhere called, or not to be read: not found.
        assert!(caller_of_systemstack(BP, &read, calls, end(80)).is_none());
        assert!(caller_of_systemstack(BP, &read, |_| false, end(64)).is_none());
        assert!(caller_of_systemstack(BP, &|_| None, calls, end(64)).is_none());
        // More than one that fits: nobody knows.
        assert!(caller_of_systemstack(BP, &read, calls, |_| Some(BP + 16)).is_none());
        for odd in [0, 8, BP + 4, u64::MAX - 7] {
            assert!(caller_of_systemstack(odd, &|_| Some(u64::MAX), |_| true, end(64)).is_none());
        }
    }

    #[test]
    fn registers_of_what_was_interrupted() {
        // Each word is its own distance from the stack pointer.
        let now = registers(&[(R::RSP, 0x7000)]);
        let before = interrupted(&now, &|address: u64| address.checked_sub(0x7000)).unwrap();
        let expected = [(R::R8, 40), (R::R15, 96), (R::RBP, 120), (R::RBX, 128), (R::RSP, 160), (R::RA, 168)];
        expected.iter().for_each(|&(register, value)| assert_eq!(before.get(register), Some(value)));
        for sp in [0, u64::MAX - 60, u64::MAX] {
            let now = registers(&[(R::RSP, sp)]);
            assert!(interrupted(&now, &|_| None).is_err());
            assert!(interrupted(&now, &|_| Some(sp)).is_ok());
        }
    }

    #[test]
    fn restorers() {
        assert!(is_restorer(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]));
        assert!(is_restorer(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xc3]));
        assert!(!is_restorer(&[0xb8, 0x0e, 0, 0, 0, 0x0f, 0x05]));
        assert!(!is_restorer(&[]));
        assert!(RESTORERS.iter().all(|restorer| restorer.len() as u64 <= RESTORER_BYTES));
    }
}
