//! What depends on the processor architecture: a folder for each. Imports nothing of the collector.
//!
//! Registers of a sample ([`registers`], [`user_regs`]), instructions' effects on the stack ([`code`], [`prologue`]),
//! signal frames ([`signal`]), stopped threads ([`stopped`]).

mod x86_64;

pub use x86_64::{
    FramehopCache, FramehopRegs, FramehopUnwinder, NAME, PAGE, UNREADABLE, calls, code, go, is_foreign_call,
    pointer_rule, prologue, registers, signal, step, stopped, system_calls, user_regs,
};
