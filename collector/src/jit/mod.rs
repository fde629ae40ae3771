//! Names for the code that processes generate, from the files that their runtimes write.
//!
//! # When a name is known
//!
//! A runtime names its code when it pleases: Python at once, V8 when its buffer of 2 MiB is full, Java when it is asked to
//! or at its end. So a frame that is met before its name is charged to a cost centre of its own, by address, and waits.
//! Files are read on when a frame without a name is met (at most once for each batch of samples), at every interval, when
//! the process ends and when the session does; jitdumps, which may say that an address has other code now, before each
//! batch is charged, too. Then what waits and has a name now is *named later*
//! ([`ccsd_profile::Profile::name_later`]). What never gets a name becomes one nameless cost centre in the end, because
//! thousands of addresses tell nobody anything.
//!
//! # Which name holds
//!
//! Jitdumps have times on the clock of the samples: a frame is named by the code that was there at the time of its
//! sample, also after the address was used again. A frame that waited and was met both before and after such a change
//! stays nameless. What a runtime says of code that was replaced after samples there were charged comes too late for
//! these; a note says at how many addresses. Perf maps have no times: the latest line that covers an address names all
//! samples from when it was read, and all that wait.
//!
//! # What is believed
//!
//! Files are opened inside the process's root directory, through the session's door ([`ccsd_symbolizer::Door`]), and only
//! those that belong to the process's user, or to root (as perf has it) if everybody may read them, and that were written to
//! since the process started. They may hold anything: what is read of one, and kept, has limits.

mod files;
mod names;

pub use names::{JitFrameName, JitNames};
