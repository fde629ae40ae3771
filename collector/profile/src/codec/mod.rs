//! The file and stream format: a header and a sequence of records. `docs/file-format.md` in this crate says all that a
//! reader needs.
//!
//! ```text
//! header   89 'c' 'c' 's' 'd' 0d 0a 1a | version, u32 little-endian
//! record   type, u8 | length, LEB128 | payload | CRC-32, u32 little-endian
//! ```
//!
//! The checksum covers the record's number in the stream (u32 little-endian), type, length and payload, and for record 0 the
//! header before all that; so a flipped bit, a lost record and a record moved elsewhere are all noticed. Record 0 is
//! the session (type 1), then come updates (2), and at the end of a finished session its final accounting (3). Types
//! from 128 on may be added within a version: readers skip those they do not know.
//!
//! One update is one record (but for the very large, see [`Encoder::write`]), so what is read of a cut file is always the profile at the end of some interval: no charge
//! without its context, no accounting without its charges. Numbers are LEB128 varints, signed ones zigzag first. File
//! names are kept in a store that grows from record to record; other strings occur once anyway. Contexts and routes are written
//! as distance to their parent and what was pushed, charges column by column ([`charges`]); the weight of a charge is left out
//! where it is its number of samples times the usual weight of one, as with every fixed-period event, and its sum of squared
//! weights where its samples weigh the same. What is written of an update is deflated ([`body`]).
//!
//! A death by a signal is a record of its own (128), before that of the update that it belongs to; so is what new processes
//! belong to (130).
//!
//! The number of updates in a file is bounded, however long the recording is: from [`MAX_INTERVALS`] on, neighbouring updates
//! are merged ([`coarsen()`]), and the shorter file replaces the longer one. It decodes to the same profile, with coarser
//! times.

mod body;
mod charges;
mod coarsen;
mod columns;
mod crash;
mod decode;
mod encode;
mod format;
mod join;
mod membership;
mod records;
mod split;
mod window;
mod wire;

pub use coarsen::{CoarsenError, Written, coarsen, compact};
pub use columns::read_timeline;
pub use decode::{Decoded, Decoder, Loaded, Recovery, read_profile, read_profile_with};
pub use encode::Encoder;
pub use format::{MAGIC, MAX_INTERVALS, VERSION};
pub use window::{Intervals, TimeWindow, read_window, read_window_with};
