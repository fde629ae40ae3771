//! What depends on the processor architecture: a folder for each.
//!
//! It says which registers a sample carries and what they are for ([`registers`], [`user_regs`]), what instructions do to
//! the stack ([`code`], [`prologue`]), what the kernel leaves there for a signal ([`signal`]), and what a stopped thread holds
//! ([`stopped`]). It imports nothing of the
//! collector.

mod x86_64;

pub use x86_64::{
    FramehopCache, FramehopRegs, FramehopUnwinder, NAME, PAGE, UNREADABLE, code, go, is_foreign_call, pointer_rule,
    prologue, registers, signal, step, stopped, system_calls, user_regs,
};
