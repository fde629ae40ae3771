//! Signal frames that no table describes.

use super::registers::{Registers, SP};
use super::step::Stuck;

/// `mov $15, %eax; syscall`, also with `%rax`: a signal handler's return (`rt_sigreturn`). C libraries describe the
/// frame in tables; Go does not.
pub const RESTORERS: [&[u8]; 2] = [&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]];
pub const RESTORER_BYTES: u64 = 9;
/// The interrupted registers by DWARF number, above the handler's return address: `uc_mcontext` of `struct ucontext`,
/// in the order of `struct sigcontext_64` (`asm/sigcontext.h`).
const SIGNAL_FRAME: [u16; 17] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, 16];
const SIGNAL_FRAME_OFFSET: u64 = 40;

/// Whether code begins as the return from a signal handler does.
pub fn is_restorer(code: &[u8]) -> bool {
    RESTORERS.iter().any(|restorer| code.starts_with(restorer))
}

/// The registers that a signal interrupted, where the stack pointer is as the handler has left it. Errors: the address
/// that cannot be read.
pub fn interrupted(registers: &Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Registers, Stuck> {
    let sp = registers.get(SP).ok_or(Stuck::Bad)?;
    let mut before = Registers::default();
    for (slot, number) in (SIGNAL_FRAME_OFFSET..).step_by(8).zip(SIGNAL_FRAME) {
        let slot = sp.wrapping_add(slot);
        before.set(gimli::Register(number), read(slot).ok_or(Stuck::Unreadable(slot))?);
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use gimli::X86_64 as R;

    use super::*;

    fn registers(values: &[(gimli::Register, u64)]) -> Registers {
        let mut registers = Registers::default();
        values.iter().for_each(|&(register, value)| registers.set(register, value));
        registers
    }

    #[test]
    fn registers_of_what_was_interrupted() {
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
