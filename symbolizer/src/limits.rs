//! All limits of this crate, with their reasons.
//!
//! Images come from the profiled programs, so every size in them is untrusted. A limit is well above what real programs
//! have (the figure beside it) and well below what would harm the machine.

use std::time::Duration;

/// Program headers of one file. Real ones have 6 to 15; `e_phnum` is 16 bits wide and larger counts only exist in
/// cores.
pub const MAX_PROGRAM_HEADERS: usize = 1024;

/// Section headers of one file. Linked programs have 30 to 60; a kernel module or an image linked with
/// `--unique` a few thousand. 65,536 headers are 4 MiB.
pub const MAX_SECTIONS: usize = 65_536;

/// Bytes of the names of all sections of one file, held while it is open. 65,536 names of 64 bytes are 4 MiB.
pub const MAX_SECTION_NAMES: u64 = 8 << 20;

/// Bytes of one section outside the debug information (`.symtab`, `.strtab`, `.eh_frame` and similar), after
/// decompression. The largest known are `.strtab` of Chromium debug builds (about 200 MiB).
pub const MAX_SECTION_BYTES: u64 = 256 << 20;

/// Bytes of one section of unwind information. Chromium's release build has 25 MiB of `.eh_frame`, `rustc` 15 MiB.
pub const MAX_UNWIND_BYTES: u64 = 64 << 20;

/// Bytes of all debug sections (`.debug_info`, `.debug_line`, ...) of one image together, after decompression, and at most
/// two thirds of what the image may take ([`MAX_IMAGE_BYTES`], or what a session or worker allows: 256 MiB of sections in
/// the daemon's worker, 341 MiB in a session by itself). They are held in memory as long as the image. A full Chromium or a
/// `vmlinux` does not fit, and falls back to symbol tables with a note.
pub const MAX_DEBUG_BYTES: u64 = 512 << 20;

/// Maximum compression ratio of a section. zlib cannot exceed 1032:1 and debug information reaches 3:1 to 6:1; a higher
/// claim is a bomb, refused before anything is allocated.
pub const MAX_COMPRESSION_RATIO: u64 = 128;

/// Bytes of the small ELF file in `.gnu_debugdata`, decompressed. It has only function symbols; that of a large browser
/// takes 20 MiB.
pub const MAX_MINI_DEBUG: u64 = 64 << 20;

/// Memory for decompressing it, in KiB. `xz -9` uses a dictionary of 64 MiB, and some more.
pub const MAX_XZ_MEMORY_KIB: u32 = 66 << 10;

/// Symbols kept from one symbol table (16 bytes each). Chromium has about 3 million.
pub const MAX_SYMBOLS: usize = 8 << 20;

/// Symbols of a table that is read for unwinding (24 bytes each in the file, 16 in memory): for assembly without frame
/// descriptions, of which libraries have some thousand functions.
pub const MAX_UNWIND_SYMBOLS: usize = 256 << 10;

/// Frame descriptions kept when `.eh_frame` or `.debug_frame` has to be scanned because there is no sorted table
/// (16 bytes each). Programs with so many functions are linked with `.eh_frame_hdr`.
pub const MAX_FDES: usize = 1 << 20;

/// Bytes of a symbol's name, as stored. C++ expression templates reach 10 KiB and more; a name is kept whole up to here
/// because it identifies a function, and cut beyond.
pub const MAX_LINKAGE_NAME: usize = 16 << 10;

/// Bytes of a name as shown to users; longer names are cut and end in an ellipsis.
pub const MAX_DISPLAY_NAME: usize = 4 << 10;

/// Symbols examined backwards from an address to find one that covers it. Functions do not nest; a few labels with
/// sizes inside hand-written assembly do.
pub const MAX_SYMBOL_WALK: usize = 16;

/// Bytes of `.dynamic`: some 30 entries of 16 bytes, and one more for each library needed.
pub const MAX_DYNAMIC: u64 = 64 << 10;

/// Bytes of `.gnu_debuglink`: a file name (at most 255 bytes on Linux), padding and a checksum.
pub const MAX_DEBUGLINK: u64 = 512;

/// Bytes of a file whose checksum is computed to see whether it belongs to an image, if build ids do not decide: a
/// quarter of a second, also for a sparse file of that size.
pub const MAX_CHECKED_FILE: u64 = 256 << 20;

/// Bytes read of `/proc/kallsyms`. With many modules it reaches 20 MiB.
pub const MAX_KALLSYMS: u64 = 128 << 20;

/// Functions inlined into each other at one address that are reported. Real programs reach 40 (Rust iterators).
pub const MAX_INLINE_DEPTH: usize = 256;

/// Units of debug information in one image; each takes about 600 bytes once indexed. Chromium has about 30,000.
pub const MAX_UNITS: usize = 128 << 10;

/// Attributes of one kind of debug entry. Compilers use up to 30.
pub const MAX_ATTRIBUTES: usize = 256;

/// Values decoded from one image's debug information over the life of the image, beside those granted by size. Each
/// unit is parsed once, when first needed. Measured: finding the units of 12 MiB of Rust debug information takes 0.7
/// million, all of its functions another 3 million, all of glibc's 5 million; 20,000 addresses all over a program with
/// 60 MiB take 23 million. Decoding this many takes about half a second. The index takes up to 7 bytes for each on
/// average; hostile entries reach 70, which [`MAX_IMAGE_BYTES`] bounds.
pub const MAX_DWARF_STEPS: u64 = 64 << 20;

/// CPU time for reading one image's debug information over its life. Steps are what stops a parser as a rule; time bounds
/// what no step shows, such as sorting. An optimised build reads the largest programs measured in two seconds; others are
/// twenty times slower.
pub const MAX_DWARF_CPU: Duration = Duration::from_secs(if cfg!(debug_assertions) { 120 } else { 6 });

/// Steps for reading one image's symbols and linkage tables, and for finding functions in them, over its life. A symbol
/// takes three, and some more where several share an address; Chromium's 3 million are read in 20 million.
pub const MAX_TABLE_STEPS: u64 = 512 << 20;

/// The same in CPU time.
pub const MAX_TABLE_CPU: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 3 });

/// CPU time for reading the headers of a file, which takes less than a millisecond. Only a compressed `.debug_frame` may
/// take more.
pub const MAX_HEADERS_CPU: Duration = Duration::from_millis(if cfg!(debug_assertions) { 10_000 } else { 500 });

/// Bytes for the names of one image while they are read and afterwards, sections, symbols and indexes together, if no
/// other limit is given. The index of the largest program measured above takes 160 MiB.
pub const MAX_IMAGE_BYTES: u64 = 768 << 20;

/// Bytes that symbols may take where less is left for the whole image: without debug information they are all that there
/// is, and 64 MiB hold those of all but the largest programs.
pub const MIN_TABLE_BYTES: u64 = 64 << 20;

/// Bytes that reading an image may take without waiting for others; see [`MemoryGate`](crate::MemoryGate).
pub const SMALL_IMAGE_BYTES: u64 = 16 << 20;

/// Bytes of debug sections per additional value that may be decoded, so that the largest files can be used completely.
pub const DEBUG_BYTES_PER_STEP: u64 = 2;

/// Bytes of stack for parsing debug information: `addr2line` recurses for each level of inlining. Threads that resolve
/// need this much and some more; the 2 MiB of Rust's threads are enough.
pub const MAX_DWARF_STACK: usize = 512 << 10;

/// Bytes of a source path; PATH_MAX of Linux.
pub const MAX_PATH: usize = 4096;

/// Slots of the procedure linkage table whose names are kept (16 bytes each). Large C++ programs have 30,000.
pub const MAX_PLT_SLOTS: usize = 1 << 20;

/// Bytes of names compared where several symbols share an address. A whole string table is as long; only names that
/// overlap on purpose exceed it.
pub const MAX_ALIAS_BYTES: usize = 256 << 20;

/// Names kept for one address beside the chosen one. Functions have up to five; more are functions that the linker
/// folded because their code is identical.
pub const MAX_ALIASES: usize = 64;

/// Bytes of `.gnu_debugaltlink`: a path and a build id.
pub const MAX_ALTLINK: u64 = 8 << 10;

/// References followed from a copy of a function to the debug entry with its name: copy, abstract instance,
/// declaration. More would be a cycle.
pub const MAX_ORIGINS: usize = 8;

/// Scopes around a function in the path that names it.
pub const MAX_SCOPES: usize = 64;

/// Files held open for one image in another mount namespace. Its debug file, a package, and a shared file are three.
pub const MAX_HELD_FILES: usize = 8;

/// Notes about one image. Each of its units may refer to a damaged file; listing all has no use.
pub const MAX_NOTES: usize = 16;

/// Bytes of a build id. SHA-1 is 20 bytes and the longest in use 32; `--build-id=0x...` may be anything short.
pub const MAX_BUILD_ID: usize = 64;
