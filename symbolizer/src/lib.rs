//! Names for addresses: what `ccsd` knows about ELF images.
//!
//! [`ElfFile`] is one image, an executable, shared object or the vdso. It gives an unwinder its sections
//! ([`ElfFile::unwind_sections`]) and translates file offsets to addresses. [`Symbols`] names the functions that
//! contain an address, inlined ones too, with source lines. [`KernelSymbols`] does the same for the kernel.
//!
//! The caller owes: the right file, already open (this crate knows nothing of processes); stated addresses (SVMA),
//! after subtracting where the image is loaded; return addresses minus one. It gets: answers that do not depend on
//! how the program was optimised, as far as debug information allows: one logical function has one linkage name,
//! inlined or not, split or not.
//!
//! Images belong to the programs being profiled and may be hostile or change while they are read. They are read by
//! `pread(2)`, never mapped (a file truncated while mapped kills its reader with SIGBUS), sizes are checked against
//! [`limits`], and damage costs names, never the process.
#![forbid(unsafe_code)]

mod arch;
mod by_address;
mod by_unit;
mod compressed;
mod debugfile;
mod demangle;
mod door;
mod dwarf;
mod dwarf_frame;
mod elf;
mod error;
mod go;
mod headers;
pub mod jit;
mod kernel;
pub mod limits;
mod lookup;
mod meter;
mod names;
mod plt;
mod root;
mod scopes;
mod sections;
mod source;
mod split;
mod starts;
mod symbols;
mod symtab;
mod units;
mod unwind;

pub use debugfile::{DebugFileFinder, OpenFiles};
pub use door::{Door, ForUser};
pub use elf::{ElfFile, Segment};
pub use error::ImageError;
pub use go::{GoFunction, GoFunctions};
pub use headers::Headers;
pub use kernel::{KernelFunction, KernelSymbols, KernelSymbolsError};
pub use root::Root as FileRoot;
pub use symbols::{Function, Symbols};
pub use unwind::{UnwindSection, UnwindSections};

// The unwinder's thread and the resolver's share an image; names belong to whoever resolves.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<ElfFile>();
    shared::<KernelSymbols>();
    moved::<Symbols>();
};
