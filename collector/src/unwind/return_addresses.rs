//! Which addresses calls return to: what proves a guess about a stack.

use hashbrown::HashMap;

use super::code;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;

/// Answers kept, 24 bytes each: the return addresses in and around code without unwind tables.
const MAX_ANSWERS: usize = 65_536;

/// What has been found out about addresses of images.
#[derive(Debug, Default)]
pub struct ReturnAddresses {
    known: HashMap<(ImageIndex, u64), bool>,
}

impl ReturnAddresses {
    /// Whether a call may return to an address of a process: it is mapped executable, and the instruction before it is a
    /// call, or it is in a function of Go that every stack begins with as if that had called. Code that is in no file
    /// cannot be looked at and is taken to be right.
    pub fn contains(&mut self, address: u64, mappings: &mut Mappings, images: &Images) -> bool {
        let Some(mapping) = address.checked_sub(1).and_then(|before| mappings.find(before)) else { return false };
        let Some(elf) = images.get(mapping.image).and_then(|image| image.elf.as_ref()) else { return true };
        let svma = address.wrapping_add(mapping.to_svma);
        if self.known.len() >= MAX_ANSWERS {
            self.known.clear();
        }
        *self.known.entry((mapping.image, svma)).or_insert_with(|| {
            let is_top = |at: u64| elf.known_go_functions()?.find(at).map(|function| function.is_top);
            let called = code::is_call_before(svma, &|address, len| elf.code(address, len));
            called || is_top(svma.wrapping_sub(1)).unwrap_or(false)
        })
    }

    /// Bytes that the answers take.
    pub fn bytes(&self) -> usize {
        self.known.allocation_size()
    }

    /// Forgets an image that is not mapped any more.
    pub fn forget(&mut self, image: ImageIndex) {
        self.known.retain(|&(of, _), _| of != image);
    }
}
