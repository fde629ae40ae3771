//! Reading other people's programs in a process that may do nothing else.
//!
//! The ELF files, debug information and names of generated code that a profiler reads belong to the programs that it looks
//! at, and the daemon has the right to look into all of them. A mistake in a parser must not give these rights to whoever
//! wrote such a file. So the daemon starts a *worker*, its own executable, which gives up all capabilities, lets its system
//! calls be filtered ([`sandbox`]) and then answers questions: what a file's headers say ([`open`]), and which functions are
//! at an address ([`Names`]). It opens nothing: the daemon opens the files, regular ones only, and passes them on. What it
//! holds of an image is there for all who ask; so sessions share it.
//!
//! Of a worker that has been taken over the daemon takes names that lie, and nothing else: messages are bounded and checked,
//! and the files that it asks for are given to it only where debug information of that image may be, and if they are ELF
//! files. One that dies, hangs or talks nonsense is killed and replaced; what cannot be had then goes without names.
//!
//! What the worker does *not* do: unwinding. Where unwind information is comes from it, but the daemon reads those bytes
//! (`.eh_frame`, `.eh_frame_hdr`, `.debug_frame` and Go's table of functions) and evaluates them for every sample, in Rust
//! without `unsafe` and within limits. A round trip for each frame of each sample would cost more than all the rest.
//!
//! A process that starts no worker reads images by itself, with its own user's rights: `ccsd record` and `ccsd attach`
//! without a daemon do.
//!
//! `unsafe` stands in five places, each a system call: closing inherited files, ignoring signals, being favoured and being
//! urgent, and taking files over from a message.

mod blame;
mod client;
mod images;
mod message;
mod reader;
pub mod sandbox;
mod serve;
mod wire;

pub use client::{Patience, Program, Usage, Worker};
pub use message::FileKey;
pub use reader::{
    Names, Opened, Told, forgive, is_elsewhere, open, open_debug, parse_code, read_in, worker_pid, worker_usage,
};
pub use serve::{ServeError, serve};
