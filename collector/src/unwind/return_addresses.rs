//! Which addresses calls return to: what proves a guess about a stack.

use hashbrown::HashMap;

use crate::arch::{code, prologue};
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;

/// Answers kept, 24 bytes each: the return addresses in and around code without unwind tables.
const MAX_ANSWERS: usize = 65_536;

#[derive(Debug, Default)]
pub struct ReturnAddresses {
    known: HashMap<(ImageIndex, u64), bool>,
    /// Whether the call before an address may be one of a function of its image, by both addresses.
    calls: HashMap<(ImageIndex, u64, u64), bool>,
}

impl ReturnAddresses {
    /// Whether a call may return to a process's address: executable, behind a call, or in a Go function that stacks
    /// begin with. Code in no file is taken to be right.
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

    /// Whether a call of the image's function at `start` may return to an address. A direct call within the image must
    /// lead there.
    pub fn follows_call_of(
        &mut self,
        address: u64,
        (image, start): (ImageIndex, u64),
        mappings: &mut Mappings,
        images: &Images,
    ) -> bool {
        if !self.contains(address, mappings, images) {
            return false;
        }
        let Some(mapping) = mappings.find(address.wrapping_sub(1)).filter(|mapping| mapping.image == image) else {
            return true;
        };
        let Some(elf) = images.get(image).and_then(|image| image.elf.as_ref()) else { return true };
        let svma = address.wrapping_add(mapping.to_svma);
        if self.calls.len() >= MAX_ANSWERS {
            self.calls.clear();
        }
        *self.calls.entry((image, svma, start)).or_insert_with(|| {
            let code = |address, len| elf.code(address, len);
            code::call_target_before(svma, &code).is_none_or(|target| prologue::leads_to(target, start, &code))
        })
    }

    pub fn bytes(&self) -> usize {
        self.known.allocation_size() + self.calls.allocation_size()
    }

    pub fn forget(&mut self, image: ImageIndex) {
        self.known.retain(|&(of, _), _| of != image);
        self.calls.retain(|&(of, ..), _| of != image);
    }
}
