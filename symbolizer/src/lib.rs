//! Names for addresses: everything that `ccsd` knows about ELF images.
//!
//! [`ElfFile`] is an image: an executable, a shared object or the vdso, with sections for an unwinder
//! ([`ElfFile::unwind_sections`]). [`Symbols`] names the functions at an address, inlined ones too, with source lines.
//! [`KernelSymbols`] does the same for the kernel.
//!
//! The caller provides the open file; stated addresses (SVMAs), after subtracting the load address; and return
//! addresses minus one. One logical function has one linkage name, inlined or not, split or not, as far as debug
//! information allows.
//!
//! Images may be hostile or change while they are read. They are read with `pread(2)`, never mapped (truncating a
//! mapped file
//! kills its reader with SIGBUS), sizes are checked against [`limits`], and damage costs names, never the process.
#![forbid(unsafe_code)]

pub mod allocation;
mod arch;
mod by_address;
mod by_unit;
mod bytes;
mod compressed;
mod debugfile;
pub mod debuginfod;
mod demangle;
mod door;
mod dwarf;
mod dwarf_frame;
mod eh_frame;
mod elf;
mod elf_file;
mod error;
mod fde_index;
mod go;
mod headers;
pub mod jit;
mod kernel;
pub mod limits;
mod lookup;
mod meter;
mod mounts;
mod names;
mod plt;
mod root;
mod scopes;
mod sections;
mod source;
mod source_files;
mod split;
mod starts;
mod symbol_starts;
mod symbols;
mod symtab;
mod units;
mod unwind;

pub use debugfile::{DebugFileFinder, OpenFiles};
pub use door::{Authors, Door, ForUser};
pub use eh_frame::{EhFrameIndex, section as eh_frame};
pub use elf::Segment;
pub use elf_file::ElfFile;
pub use error::ImageError;
pub use fde_index::{FdeIndex, MAX_ENTRY_BYTES};
pub use go::{GoFunction, GoFunctions};
pub use headers::Headers;
pub use kernel::{KernelFunction, KernelSymbols, KernelSymbolsError};
pub use meter::MemoryGate;
pub use mounts::{Mount, MountTable, mount_id};
pub use names::is_stub;
pub use root::{DirectoryPath, FileIdentity, FileRoot};
pub use source_files::source_files;
pub use symbol_starts::SymbolStarts;
pub use symbols::{Function, Symbols};
pub use unwind::{UnwindSection, UnwindSections};

// The unwinder and the resolver share an image across threads; names belong to the resolver.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<ElfFile>();
    shared::<KernelSymbols>();
    moved::<Symbols>();
};
