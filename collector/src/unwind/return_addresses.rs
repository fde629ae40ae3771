//! Which addresses calls return to: what proves a guess about a stack.

use hashbrown::HashMap;

use super::frame::Frame;
use super::loaded::LoadedImages;
use super::tables;
use crate::arch::{calls, code, prologue};
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;

/// Answers kept of each kind, 24 to 40 bytes each: return addresses around code without unwind tables, and those read late.
const MAX_ANSWERS: usize = 65_536;

#[derive(Debug, Default)]
pub struct ReturnAddresses {
    known: HashMap<(ImageIndex, u64), bool>,
    /// Whether the call before an address may be one of a function of its image, by both addresses.
    calls: HashMap<(ImageIndex, u64, u64), bool>,
    /// Whether a frame may have been called from where it is to return to.
    callers: HashMap<(Frame, Frame), bool>,
    /// Whether a call that enters an image at one address may reach the function at another.
    leads: HashMap<(ImageIndex, u64, u64), bool>,
    /// Whether two addresses of an image are of one function.
    functions: HashMap<(Frame, u64), bool>,
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

    /// Whether the call that returns to `address` may have entered the outermost of `frames`: by a direct call, by jumps of
    /// other functions, or in a way that the code does not show. Needed where the two may have been read at different
    /// times. `word` reads the process's memory, where the slots for calls into other images are.
    pub fn may_have_called(
        &mut self,
        address: u64,
        frames: &[Frame],
        mappings: &mut Mappings,
        (loaded, images): (&mut LoadedImages, &Images),
        word: impl FnOnce(u64) -> Option<u64>,
    ) -> bool {
        let Some(&callee) = frames.last() else { return true };
        let Some(mapping) = address.checked_sub(1).and_then(|before| mappings.find(before)) else { return false };
        let caller = Frame { image: mapping.image, address: address.wrapping_add(mapping.to_svma) };
        let may = match self.callers.get(&(callee, caller)) {
            Some(&known) => known,
            None => {
                if self.callers.len() >= MAX_ANSWERS {
                    self.callers.clear();
                }
                let restores =
                    loaded.get(caller.image, images).is_some_and(|image| image.restores_signal(caller.address));
                let may = restores
                    || self.contains(address, mappings, images)
                        && may_call(caller, callee, loaded, images).unwrap_or(true);
                self.callers.insert((callee, caller), may);
                may
            }
        };
        may && (callee.image == caller.image
            || self.leads_there(caller, mapping.to_svma, callee, mappings, (loaded, images), word).unwrap_or(true))
    }

    /// Whether the slot of a call into another image leads to the function of `callee`; `None` where that cannot be told.
    /// Slots are not kept: each process has its own.
    fn leads_there(
        &mut self,
        caller: Frame,
        to_svma: u64,
        callee: Frame,
        mappings: &mut Mappings,
        (loaded, images): (&mut LoadedImages, &Images),
        word: impl FnOnce(u64) -> Option<u64>,
    ) -> Option<bool> {
        let elf = images.get(caller.image)?.elf.as_ref()?;
        let code = |address: u64, len: u64| elf.code(address, len);
        let restores = loaded.get(caller.image, images)?.restores_signal(caller.address);
        if restores || code::is_indirect_call_before(caller.address, &code) {
            return None;
        }
        let slot = calls::jump_slot(code::call_target_before(caller.address, &code)?, &code)?;
        let called = word(slot.wrapping_sub(to_svma))?;
        // Until it is called for the first time, a slot leads to what looks the function up.
        let mapping = mappings.find(called).filter(|mapping| mapping.image == callee.image)?;
        let called = called.wrapping_add(mapping.to_svma);
        let elf = images.get(callee.image)?.elf.as_ref()?;
        let image = loaded.get(callee.image, images)?;
        let wanted = tables::entry_range(image.tables(), callee.address)?.start;
        if self.leads.len() >= MAX_ANSWERS {
            self.leads.clear();
        }
        Some(*self.leads.entry((callee.image, called, wanted)).or_insert_with(|| {
            let code = |address: u64, len: u64| elf.code(address, len);
            calls::may_lead(called, Some(wanted), &mut |at| tables::entry_range(image.tables(), at), &code)
        }))
    }

    /// Whether an address of a frame's image is of the frame's function. `find` is asked once for each pair.
    pub fn is_one_function(&mut self, frame: Frame, other: u64, find: impl FnOnce() -> bool) -> bool {
        if self.functions.len() >= MAX_ANSWERS {
            self.functions.clear();
        }
        *self.functions.entry((frame, other)).or_insert_with(find)
    }

    pub fn bytes(&self) -> usize {
        let answers = self.known.allocation_size() + self.calls.allocation_size();
        answers + self.callers.allocation_size() + self.leads.allocation_size() + self.functions.allocation_size()
    }

    pub fn forget(&mut self, image: ImageIndex) {
        self.known.retain(|&(of, _), _| of != image);
        self.calls.retain(|&(of, ..), _| of != image);
        self.leads.retain(|&(of, ..), _| of != image);
        self.functions.retain(|(frame, _), _| frame.image != image);
        self.callers.retain(|(callee, caller), _| callee.image != image && caller.image != image);
    }
}

/// Whether the call before `caller` may have led to the function of `callee`; `None` where that cannot be told.
fn may_call(caller: Frame, callee: Frame, loaded: &mut LoadedImages, images: &Images) -> Option<bool> {
    let elf = images.get(caller.image)?.elf.as_ref()?;
    let code = |address: u64, len: u64| elf.code(address, len);
    if code::is_indirect_call_before(caller.address, &code) {
        return None;
    }
    let target = code::call_target_before(caller.address, &code)?;
    let wanted = match callee.image == caller.image {
        true => Some(tables::entry_range(loaded.get(callee.image, images)?.tables(), callee.address)?.start),
        false => None,
    };
    let own = loaded.get(caller.image, images)?;
    Some(calls::may_lead(target, wanted, &mut |address| tables::entry_range(own.tables(), address), &code))
}
