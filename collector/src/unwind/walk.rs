//! A stack on its way from registers to frames.

use super::frame::Frame;
use super::go::FrameChain;
use super::memory::UserStack;
use crate::arch::step::CallerPointers;
use crate::perf::record::UserRegs;
use crate::process::images::Images;
use crate::process::mappings::Mappings;

pub struct StackWalk<'a, 's> {
    pub start: &'a UserRegs,
    /// The chain of frame pointers that the kernel has followed.
    pub chain: FrameChain<'a>,
    pub stack: &'a UserStack<'s>,
    pub mappings: &'a mut Mappings,
    pub images: &'a Images,
    pub frames: &'a mut Vec<Frame>,
}

#[derive(Clone, Copy)]
pub struct FramePosition {
    /// Its registers. Stack pointer and frame pointer mean nothing where `full` says so.
    pub pointers: CallerPointers,
    /// Whether it waits for a call to return; else it is executing, or was interrupted.
    pub called: bool,
    pub full: bool,
}

impl FramePosition {
    /// The address to look up: for a caller that in its call.
    pub fn lookup(&self) -> u64 {
        self.pointers.ip.wrapping_sub(u64::from(self.called))
    }
}
