//! What a thread holds that ptrace(2) has stopped.

use super::user_regs::UserRegs;

pub type RawRegisters = libc::user_regs_struct;

/// The code segment of 64-bit programs (`__USER_CS` of the kernel); 0x23 is that of 32-bit ones.
const CS_64: u64 = 0x33;
/// Of the kernel's `include/linux/errno.h`: a system call that is made again unless a handler of a signal runs.
const ERESTARTNOHAND: i64 = 514;

pub fn user_regs(r: &RawRegisters) -> Option<UserRegs> {
    // In the order of `OTHERS`: rax, rbx, rcx, rdx, rsi, rdi, r8 to r15.
    let others = [r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15];
    (r.cs == CS_64).then_some(UserRegs { ip: r.rip, sp: r.rsp, bp: r.rbp, others })
}

pub fn stack_pointer(registers: &RawRegisters) -> u64 {
    registers.rsp
}

/// The system call that has just ended with EINTR, if one has.
pub fn interrupted_call(registers: &RawRegisters) -> Option<i64> {
    let interrupted = registers.rax.cast_signed() == -i64::from(libc::EINTR);
    Some(registers.orig_rax.cast_signed()).filter(|&call| interrupted && call >= 0)
}

pub fn with_call_again(registers: &RawRegisters) -> RawRegisters {
    RawRegisters { rax: (-ERESTARTNOHAND).cast_unsigned(), ..*registers }
}
