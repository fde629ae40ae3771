//! A stack as the unwinder hands it on: its frames, where it ends, and where frames may be missing.

use ccsd_profile::TruncationReason;

use crate::process::images::ImageIndex;
use crate::stack_delta::Common;

/// Maximum frames of one stack: 8 MiB of stack at 16 bytes a frame, the least that compilers make. More is a loop.
pub const MAX_FRAMES: usize = 1 << 19;

/// Where one frame is executing: an address to look up in an image. For a return address the one before, inside the
/// call; nothing after this module subtracts one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The image.
    pub image: ImageIndex,
    /// SVMA in the image, or the address itself for `[kernel]`, `[anon]` and unknown memory.
    pub address: u64,
}

/// Where a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackRoot {
    /// At the frame that nothing called.
    Complete,
    /// Somewhere else, and why.
    Truncated(TruncationReason),
}

/// Where frames may be missing in a stack, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Frames that were found and are further out, beside those that are in common with the last stack.
    pub outer: u32,
    pub reason: TruncationReason,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    pub root: StackRoot,
    /// What it has in common with the thread's last one, outside the frames that were found.
    pub common: Common,
    /// Where frames may be missing.
    pub gap: Option<Gap>,
}
