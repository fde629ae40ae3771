//! All limits of this crate, with their reasons. Every size in an image is untrusted; a limit is well above what real
//! programs have and well below what would harm the machine.

use std::time::Duration;

/// Program headers of one file. Real ones have 6 to 15; larger counts than `e_phnum`'s 16 bits only exist in cores.
pub const MAX_PROGRAM_HEADERS: usize = 1024;

/// Section headers of one file. Linked programs have 30 to 60, kernel modules a few thousand. 65,536 headers are 4 MiB.
pub const MAX_SECTIONS: usize = 65_536;

/// Bytes of the names of all sections of one file, held while it is open. 65,536 names of 64 bytes are 4 MiB.
pub const MAX_SECTION_NAMES: u64 = 8 << 20;

/// Bytes of one section outside the debug information, decompressed: `.strtab` of Chromium debug builds has about 200
/// MiB.
pub const MAX_SECTION_BYTES: u64 = 256 << 20;

/// Bytes of one section of unwind information. Chromium's release build has 25 MiB of `.eh_frame`, `rustc` 15 MiB.
pub const MAX_UNWIND_BYTES: u64 = 64 << 20;

/// Bytes of all debug sections of one image, decompressed, at most two thirds of what the image may take
/// ([`MAX_IMAGE_BYTES`], or 256 MiB in the daemon's worker, 341 MiB in a session). Held as long as the image. A full
/// Chromium or `vmlinux` falls back to symbol tables with a note.
pub const MAX_DEBUG_BYTES: u64 = 512 << 20;

/// Maximum compression ratio of a section: debug information reaches 6:1; a higher claim is a bomb.
pub const MAX_COMPRESSION_RATIO: u64 = 128;

/// Bytes of the ELF file in `.gnu_debugdata`, decompressed: function symbols, 20 MiB for a large browser.
pub const MAX_MINI_DEBUG: u64 = 64 << 20;

/// Memory for decompressing it, in KiB. `xz -9` uses a dictionary of 64 MiB, and some more.
pub const MAX_XZ_MEMORY_KIB: u32 = 66 << 10;

/// Symbols kept from one symbol table (16 bytes each). Chromium has about 3 million.
pub const MAX_SYMBOLS: usize = 8 << 20;

/// Symbols read for unwinding (24 bytes in the file, 16 in memory): for assembly without frame descriptions.
pub const MAX_UNWIND_SYMBOLS: usize = 256 << 10;

/// Frame descriptions kept when there is no sorted table (16 bytes each). Larger programs have `.eh_frame_hdr`.
pub const MAX_FDES: usize = 1 << 20;

/// Bytes of a symbol's name, kept whole up to here as it identifies a function. C++ expression templates reach 10 KiB.
pub const MAX_LINKAGE_NAME: usize = 16 << 10;

/// Bytes of a name as shown to users; longer names are cut and end in an ellipsis.
pub const MAX_DISPLAY_NAME: usize = 4 << 10;

/// Symbols examined backwards from an address: functions do not nest; a few labels in assembly do.
pub const MAX_SYMBOL_WALK: usize = 16;

/// Bytes of `.dynamic`: some 30 entries of 16 bytes, and one more for each library needed.
pub const MAX_DYNAMIC: u64 = 64 << 10;

/// Bytes of `.gnu_debuglink`: a file name (at most 255 bytes on Linux), padding and a checksum.
pub const MAX_DEBUGLINK: u64 = 512;

/// Bytes of a file whose checksum is computed, if build ids do not decide: a quarter of a second.
pub const MAX_CHECKED_FILE: u64 = 256 << 20;

/// Bytes read of `/proc/kallsyms`. With many modules it reaches 20 MiB.
pub const MAX_KALLSYMS: u64 = 128 << 20;

/// Functions inlined into each other at one address that are reported. Real programs reach 40 (Rust iterators).
pub const MAX_INLINE_DEPTH: usize = 256;

/// Units of debug information in one image; each takes about 600 bytes once indexed. Chromium has about 30,000.
pub const MAX_UNITS: usize = 128 << 10;

/// Attributes of one kind of debug entry. Compilers use up to 30.
pub const MAX_ATTRIBUTES: usize = 256;

/// Values decoded from one image's debug information over its life, beside those granted by size. Measured: all
/// functions in 12 MiB of Rust debug information 3.7 million, all of glibc's 5 million; 20,000 addresses over a program
/// with 60 MiB 23 million. This many take about half a second. The index takes up to 7 bytes for each; hostile ones 70,
/// bounded by [`MAX_IMAGE_BYTES`].
pub const MAX_DWARF_STEPS: u64 = 64 << 20;

/// CPU time for one image's debug information over its life: bounds what no step shows, such as sorting. The largest
/// programs take two seconds, unoptimised builds twenty times as long.
pub const MAX_DWARF_CPU: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 6 });

/// Steps for one image's symbols and linkage tables over its life, about three for a symbol; Chromium's 3 million take
/// 20 million.
pub const MAX_TABLE_STEPS: u64 = 512 << 20;

/// The same in CPU time.
pub const MAX_TABLE_CPU: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 3 });

/// CPU time for reading the headers of a file, less than a millisecond unless `.debug_frame` is compressed.
pub const MAX_HEADERS_CPU: Duration = Duration::from_millis(if cfg!(debug_assertions) { 10_000 } else { 500 });

/// Bytes for the names of one image, sections, symbols and indexes together, by default. The largest index measured
/// takes 160 MiB.
pub const MAX_IMAGE_BYTES: u64 = 768 << 20;

/// Bytes that symbols may take where less is left for the image: 64 MiB hold those of all but the largest programs.
pub const MIN_TABLE_BYTES: u64 = 64 << 20;

/// Bytes that reading an image may take without waiting for others; see [`MemoryGate`](crate::MemoryGate).
pub const SMALL_IMAGE_BYTES: u64 = 16 << 20;

/// Bytes of debug sections per additional value that may be decoded, so that the largest files can be used completely.
pub const DEBUG_BYTES_PER_STEP: u64 = 2;

/// Bytes of stack for parsing debug information: `addr2line` recurses for each level of inlining. Rust's 2 MiB are
/// enough.
pub const MAX_DWARF_STACK: usize = 512 << 10;

/// Bytes of a source path; PATH_MAX of Linux.
pub const MAX_PATH: usize = 4096;

/// Slots of the procedure linkage table whose names are kept (16 bytes each). Large C++ programs have 30,000.
pub const MAX_PLT_SLOTS: usize = 1 << 20;

/// Bytes of names compared where several symbols share an address: only names that overlap on purpose exceed it.
pub const MAX_ALIAS_BYTES: usize = 256 << 20;

/// Names kept for one address beside the chosen one. Functions have up to five; identical code may be folded.
pub const MAX_ALIASES: usize = 64;

/// Bytes of `.gnu_debugaltlink`: a path and a build id.
pub const MAX_ALTLINK: u64 = 8 << 10;

/// References followed from a copy to the debug entry with its name: copy, abstract instance, declaration.
pub const MAX_ORIGINS: usize = 8;

/// Scopes around a function in the path that names it.
pub const MAX_SCOPES: usize = 64;

/// Files held open for one image in another mount namespace. Its debug file, a package, and a shared file are three.
pub const MAX_HELD_FILES: usize = 8;

/// Notes about one image. Each of its units may refer to a damaged file; listing all has no use.
pub const MAX_NOTES: usize = 16;

/// Bytes of a build id. SHA-1 is 20 bytes and the longest in use 32; `--build-id=0x...` may be anything short.
pub const MAX_BUILD_ID: usize = 64;
