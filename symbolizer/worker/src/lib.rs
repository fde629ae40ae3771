//! Reads other users' programs in a process without rights.
//!
//! The ELF files, debug information and names of generated code that a profiler reads belong to the profiled programs,
//! and the daemon may read all of them. A bug in a parser must not give these rights to the author of such a file. So
//! the daemon starts *workers*, its own executable, which gives up all capabilities, installs a system call filter
//! ([`sandbox`]) and then answers questions: a file's headers ([`open`]), and the functions at addresses ([`Names`]).
//! The worker opens nothing: the daemon opens the files, regular ones only, and passes them on. The worker's images
//! serve all questions, so sessions share them.
//!
//! Each [`Principal`] has a worker of its own, started with its first file and ended when it is idle; at most two besides
//! that of this machine's own files run at once, and who waits for a place gets it after a second. A worker holds files of
//! its principal, and installed debug files that all users may read, so its author learns nothing from them that the
//! author could not read.
//!
//! What a compromised worker can do: give false answers about its principal's images, which are names, positions of unwind
//! information (so that stacks through these images are wrong or end early) and generated code; and use the CPU time and
//! memory that a worker may have. It can ask the daemon for files, and gets only ELF files at places where debug information
//! of that image may be, which are its principal's or public. Messages are bounded and checked. A worker that dies, hangs or
//! sends invalid answers is killed and replaced; a principal whose files kill several has no names for some time, and others
//! do not notice. The system call filter is no proof against faults of the kernel itself.
//!
//! What reading may cost is limited twice: parsers count steps, bytes and CPU time and stop at an image's share
//! (`ccsd_symbolizer::limits`), and the kernel limits the process's memory, which ends it.
//!
//! The worker does *not* unwind, and unwinding does not depend on a worker that a stranger can kill longer than for the
//! headers of the stranger's own file. The worker reports the position of unwind information, but the daemon reads those
//! bytes (`.eh_frame`, `.eh_frame_hdr`, `.debug_frame` and Go's table of functions) and evaluates them for every sample, in
//! Rust without `unsafe` and within limits. A round trip for each frame of each sample would cost more than everything else.
//! Reading a file that another machine or a user's program serves (NFS, FUSE) may take for ever: of such files of others the
//! worker reads the bytes, too, and the daemon none. The sampling thread waits at most some milliseconds for others' headers.
//!
//! A process that starts no worker reads images itself, with its user's rights: `ccsd record` and `ccsd attach` without
//! a daemon do.
//!
//! `unsafe` stands in system calls (closing inherited files, ignoring signals, raising the priority, receiving files
//! with a message) and in the [`Allocator`], which passes every call on to the system's.

mod allocator;
mod blame;
mod client;
mod images;
mod message;
mod principal;
mod reader;
pub mod sandbox;
mod serve;
mod slots;
mod wire;
mod workers;

pub use allocator::Allocator;
pub use client::{Patience, Usage, WorkerProgram};
pub use message::FileKey;
pub use principal::{FileLocation, Principal, SubordinateIds};
pub use reader::{
    ImageNames, OpenedImage, Opening, Told, end_idle, file_key, forgive, has_worker, open, open_debug,
    own_worker_usage, parse_code, principal_of, principal_of_process, read_in, worker_pid, worker_usage,
};
pub use serve::{ServeError, serve};
pub use workers::Workers;
