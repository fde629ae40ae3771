//! What ccsd was started with, noted before Rust's runtime changes it: recorded programs find it unchanged.

use ccsd_collector::child::note_surroundings;

// SAFETY: the dynamic linker (or, in a static program, libc) calls what stands in .init_array as a function before `main`,
// on the only thread there is. `note_surroundings` needs nothing that is not there by then: it makes three kinds of system
// calls, and the OnceLock that it sets neither allocates nor needs the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note_surroundings;
