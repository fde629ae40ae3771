//! Names for the code that processes generate, from the files that their runtimes write.
//!
//! # When a name is known
//!
//! Python names code at once, V8 when its buffer of 2 MiB is full, Java on request or at its end. So a frame without a
//! name is charged to a cost centre of its own, by address, and waits. Files are read on when such a frame is met (at
//! most once a batch), at every interval, and at the end of the process and the session; jitdumps also before each
//! batch, as they may say that code was replaced. Waiting frames are then *named later*
//! ([`ccsd_profile::Profile::name_later`]). What never gets a name becomes one nameless cost centre in the end.
//!
//! # Which name holds
//!
//! Jitdumps have times on the clock of the samples: a frame is named by the code at the time of its sample. A frame
//! that waited and was met both before and after a change stays nameless. A replacement reported after samples were
//! charged comes too late for these; a note says at how many addresses. Perf maps have no times: the latest line that
//! covers an address names all samples from when it was read, and all that wait.
//!
//! # What is believed
//!
//! Files are opened inside the process's root directory, through the session's door ([`ccsd_symbolizer::Door`]), and
//! only if they belong to the process's user, or to root and are readable by all, and were written since the process
//! started. Their content is untrusted: what is read and kept has limits.

mod files;
mod names;

pub use names::{JitFrameName, JitNames, MAX_DUMPS};
