//! The registers of a sample.

use super::registers::{FP, RA, SP};

/// General registers and instruction pointer: `PERF_REG_X86_AX` to `_IP` and `_R8` to `_R15` of `asm/perf_regs.h`.
/// Assembly may have its frame in any.
pub const SAMPLED: u64 = 0x1ff | 0xff << 16;

/// The registers that unwinding starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRegs {
    /// `rip`
    pub ip: u64,
    /// `rsp`
    pub sp: u64,
    /// `rbp`
    pub bp: u64,
    /// The other general registers, in the order of [`OTHERS`].
    pub others: [u64; OTHERS.len()],
}

/// DWARF's numbers of rax, rbx, rcx, rdx, rsi, rdi, r8 to r15 (psABI for x86-64, figure 3.36).
pub const OTHERS: [u16; 14] = [0, 3, 2, 1, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];

impl UserRegs {
    /// All of them by DWARF number.
    pub fn dwarf(&self) -> impl Iterator<Item = (gimli::Register, u64)> {
        let others = OTHERS.into_iter().map(gimli::Register).zip(self.others);
        [(RA, self.ip), (SP, self.sp), (FP, self.bp)].into_iter().chain(others)
    }

    /// The instruction pointer and the stack pointer; all others are `unknown`.
    pub fn from_pointers(ip: u64, sp: u64, unknown: u64) -> UserRegs {
        UserRegs { ip, sp, bp: unknown, others: [unknown; OTHERS.len()] }
    }

    /// From a recording, by numbers in `sample_regs_user` (`asm/perf_regs.h`). Registers that were not recorded are 0.
    pub fn from_perf(get: impl Fn(u64) -> Option<u64>) -> Option<UserRegs> {
        const NUMBERS: [u64; OTHERS.len()] = [0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23];
        let others = NUMBERS.map(|number| get(number).unwrap_or(0));
        Some(UserRegs { ip: get(8)?, sp: get(7)?, bp: get(6)?, others })
    }

    /// Reads those of [`SAMPLED`] in the order of their bits.
    pub fn read(mut next: impl FnMut() -> Option<u64>) -> Option<UserRegs> {
        let mut regs = UserRegs::default();
        let (first, last) = regs.others.split_at_mut(6);
        for register in first.iter_mut().chain([&mut regs.bp, &mut regs.sp, &mut regs.ip]).chain(last) {
            *register = next()?;
        }
        Some(regs)
    }
}

/// Of the general registers that a sample has, that in which Go keeps the goroutine's record; see [`OTHERS`].
pub const GOROUTINE: usize = 12;
const _: () = assert!(OTHERS[GOROUTINE] == 14);
