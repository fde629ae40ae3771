//! What framehop does: it follows the frame pointer through images whose bytes are not there.
//!
//! It is given no unwind tables. Those of any user's programs are read here, within limits that framehop does not have: it
//! would run an expression that never ends. In tests it has them, and the rules of [`rule`](super::rule) are compared with its own.

use std::cell::Cell;
use std::sync::Arc;

#[cfg(test)]
use ccsd_symbolizer::UnwindSections;
#[cfg(test)]
use framehop::{ExplicitModuleSectionInfo, Module};
use framehop::{FrameAddress, Unwinder};

use crate::arch::step::CallerPointers;
use crate::arch::{FramehopCache, FramehopRegs, FramehopUnwinder};

/// What an image takes of ccsd's address space. framehop's offsets are 32 bits wide.
pub const IMAGE_SPACE: u64 = 1 << 32;

#[derive(Default)]
pub struct FramehopRows {
    unwinder: FramehopUnwinder<Arc<[u8]>>,
    cache: FramehopCache,
}

impl FramehopRows {
    /// Adds the tables of an image that stands at `base`.
    #[cfg(test)]
    pub fn add(&mut self, name: &str, base: u64, sections: &UnwindSections) {
        let info = || ExplicitModuleSectionInfo {
            base_svma: sections.base_svma,
            text_svma: sections.text_svma.clone(),
            ..Default::default()
        };
        let mut add = |base: u64, info| {
            self.unwinder.add_module(Module::new(name.to_owned(), base..base + IMAGE_SPACE, base, info));
        };
        add(
            base,
            ExplicitModuleSectionInfo {
                got_svma: sections.got_svma.clone(),
                eh_frame_svma: sections.eh_frame.as_ref().map(|s| s.svma.clone()),
                eh_frame: sections.eh_frame.as_ref().map(|s| Arc::clone(&s.data)),
                eh_frame_hdr_svma: sections.eh_frame_hdr.as_ref().map(|s| s.svma.clone()),
                eh_frame_hdr: sections.eh_frame_hdr.as_ref().map(|s| Arc::clone(&s.data)),
                ..info()
            },
        );
        if let Some(debug_frame) = &sections.debug_frame {
            let debug_frame = Some(Arc::clone(debug_frame));
            add(base + IMAGE_SPACE, ExplicitModuleSectionInfo { debug_frame, ..info() });
        }
    }

    #[cfg(test)]
    pub fn remove(&mut self, base: u64) {
        self.unwinder.remove_module(base);
        self.unwinder.remove_module(base + IMAGE_SPACE);
    }

    /// Leaves the frame at `own`, an address of ccsd's own space, as
    /// [`FrameRule::leave`](super::rule::FrameRule::leave) does.
    /// Also returns whether the row had to be looked up, some microseconds.
    ///
    /// For an unreadable word, framehop would go on by the frame pointer and remember that; here the frame is not left.
    #[cold]
    pub fn leave(
        &mut self,
        own: u64,
        called: bool,
        before: CallerPointers,
        read: impl Fn(u64) -> Option<u64>,
    ) -> (Result<Option<CallerPointers>, Option<u64>>, bool) {
        let at = match called {
            true => FrameAddress::from_return_address(own.wrapping_add(1)),
            false => Some(FrameAddress::InstructionPointer(own)),
        };
        let Some(at) = at else { return (Err(None), false) };
        let hits = self.cache.stats().hits();
        let mut regs = FramehopRegs::new(before.ip, before.sp, before.bp);
        let unreadable = Cell::new(None);
        let left = self.unwinder.unwind_frame(at, &mut regs, &mut self.cache, &mut |address| {
            // At a function's end `rbp` has been popped, though the tables need not say so.
            let is_popped = !called && address < before.sp;
            read(address).ok_or_else(|| unreadable.set(unreadable.get().or((!is_popped).then_some(address))))
        });
        let was_cached = self.cache.stats().hits() != hits;
        if let Some(address) = unreadable.get() {
            if !was_cached {
                self.cache = FramehopCache::default();
            }
            return (Err(Some(address)), !was_cached);
        }
        let left = match left {
            Ok(caller) => Ok(caller.map(|ip| CallerPointers { ip, sp: regs.sp(), bp: regs.bp() })),
            Err(framehop::Error::CouldNotReadStack(address)) => Err(Some(address)),
            Err(_) => Err(None),
        };
        (left, !was_cached)
    }
}
