//! Code that depends on the processor architecture. No other module names an instruction or a relocation.

mod x86_64;

pub(crate) use x86_64::{MACHINE, PAGE, Relocation, StubTarget, end_after_halt, relocation_of, stub_size, stub_target};
