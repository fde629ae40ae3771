//! Notes closed streams, SIGPIPE and blocked signals before Rust's runtime changes them: recorded programs inherit the
//! originals.

use ccsd_collector::child::note_surroundings;

// SAFETY: the dynamic linker (or libc in a static program) calls functions in .init_array before `main`, on the only
// thread. `note_surroundings` makes three kinds of system calls and sets a OnceLock: no allocation, no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note_surroundings;
