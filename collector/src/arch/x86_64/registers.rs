//! The registers that are followed from frame to frame.

use gimli::{Register, X86_64};

pub const RA: Register = X86_64::RA;
pub const SP: Register = X86_64::RSP;
pub const FP: Register = X86_64::RBP;

/// DWARF numbers 0 to 15 are general registers, 16 is the return address; psABI for x86-64, figure 3.36.
pub const REGISTERS: usize = 17;
/// Registers that a function preserves: rbx, rbp, r12 to r15. The caller's too, unless the table says otherwise.
pub const CALLEE_SAVED: [usize; 6] = [3, 6, 12, 13, 14, 15];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Registers {
    values: [Option<u64>; REGISTERS],
}

impl Registers {
    pub fn get(&self, register: Register) -> Option<u64> {
        self.values.get(usize::from(register.0)).copied().flatten()
    }

    /// Sets a register; untracked ones are ignored.
    ///
    /// All ones in a callee-saved register leave it unknown: the kernel reports that after a non-maskable interrupt in
    /// a system call, for registers its entry has not saved (`perf_get_regs_user` in arch/x86/kernel/perf_regs.c).
    pub fn set(&mut self, register: Register, value: u64) {
        let number = usize::from(register.0);
        if let Some(slot) = self.values.get_mut(number) {
            *slot = (value != u64::MAX || !CALLEE_SAVED.contains(&number)).then_some(value);
        }
    }

    pub fn copy(&mut self, number: usize, from: &Registers) {
        if let (Some(slot), Some(value)) = (self.values.get_mut(number), from.values.get(number)) {
            *slot = *value;
        }
    }

    pub fn forget(&mut self, register: Register) {
        if let Some(slot) = self.values.get_mut(usize::from(register.0)) {
            *slot = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use gimli::X86_64 as R;

    use super::*;

    #[test]
    fn all_ones_are_what_a_system_call_has_not_saved() {
        let mut registers = Registers::default();
        for register in [R::RBX, R::RA] {
            registers.set(register, u64::MAX);
        }
        assert_eq!([R::RBX, R::RA].map(|register| registers.get(register)), [None, Some(u64::MAX)]);
        registers.set(gimli::Register(17), 1);
        assert_eq!(registers.get(gimli::Register(17)), None);
    }
}
