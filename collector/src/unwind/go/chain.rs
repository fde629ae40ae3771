//! The chain of frame pointers that the kernel has followed when the sample was taken.
//!
//! It follows `rbp` wherever that leads: from one stack to another, beyond what is copied. Most code has no frame
//! pointers, and the chain is nonsense; it counts only from a known frame pointer on, whose place in the chain follows
//! from the copy.

use super::super::memory::UserStack;
use crate::perf::ring_buffer::Bytes;

#[derive(Clone, Copy, Debug)]
pub struct FrameChain<'a> {
    /// The instruction pointer, and return addresses.
    addresses: Bytes<'a>,
    /// Where it begins: `rbp`.
    bp: u64,
}

impl<'a> FrameChain<'a> {
    /// A chain as the kernel has written it.
    pub fn new(addresses: Bytes<'a>, bp: u64) -> FrameChain<'a> {
        FrameChain { addresses, bp }
    }

    fn get(&self, index: usize) -> Option<u64> {
        self.addresses.u64_at(index.checked_mul(8)?)
    }

    /// The return addresses from that above `frame_pointer` outwards; none if the chain does not certainly pass there.
    pub fn from(&self, frame_pointer: u64, stack: &UserStack<'_>) -> impl Iterator<Item = u64> + Clone + use<'a> {
        let chain = *self;
        let end = chain.addresses.len() / 8;
        let first = chain.position(frame_pointer, stack).unwrap_or(end);
        (first..end).filter_map(move |index| chain.get(index))
    }

    fn position(&self, frame_pointer: u64, stack: &UserStack<'_>) -> Option<usize> {
        let mut at = self.bp;
        for index in 1.. {
            let address = self.get(index)?;
            if at == frame_pointer {
                return Some(index);
            }
            if stack.copied(at.checked_add(8)?)? != address {
                return None;
            }
            at = stack.copied(at)?;
        }
        None
    }
}
