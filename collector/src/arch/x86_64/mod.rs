//! x86_64.

pub mod calls;
pub mod code;
pub mod go;
mod path;
pub mod pointer_rule;
pub mod prologue;
pub mod registers;
pub mod signal;
pub mod step;
pub mod stopped;
pub mod system_calls;
pub mod user_regs;

pub use framehop::x86_64::{
    CacheX86_64 as FramehopCache, UnwindRegsX86_64 as FramehopRegs, UnwinderX86_64 as FramehopUnwinder,
};

pub const NAME: &str = "x86_64";

pub const PAGE: usize = 4096;

/// An address that no program can have memory at: it is not canonical.
pub const UNREADABLE: u64 = 0x7fff_ffff_ffff_f000;

/// Whether the system call was `int $0x80`: its number is one of i386 then. (The kernel returns from `sysenter` and
/// 32-bit `syscall` to behind an `int $0x80` as well, `arch/x86/entry/vdso/vdso32`.)
pub const fn is_foreign_call(code: [u8; 2]) -> bool {
    matches!(code, [0xcd, 0x80])
}
