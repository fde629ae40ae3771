//! Go: goroutines on stacks of their own, and a runtime that moves between these and the thread's stack.
//!
//! - An image may have [`GoCode`], which says of a frame whether it is a stack's first or has moved to another
//!   ([`GoFrame`]).
//! - [`stacks`] leaves a frame of the second kind, and goes on where the copy of a goroutine's stack ends.
//! - [`goroutines`] are remembered by process.

mod chain;
mod code;
pub mod goroutines;
mod stacks;
mod systemstack;

pub use chain::FrameChain;
pub use code::{GoCode, GoFrame};

use crate::arch::step::{Caller, CallerPointers, Stuck};

pub enum Moved {
    /// Nothing: the stack is whole.
    Root,
    Back(CallerPointers),
    /// As its instructions say, which keep the other stack in a register; the registers are the caller's.
    ByRegister(Result<Caller, Stuck>),
}
