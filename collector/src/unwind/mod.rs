//! From registers and stack bytes to a stack of frames.
//!
//! framehop does the work, rule by rule. Two things are arranged around it:
//!
//! - Every image stands once in an address space of ccsd's own, at a base given by its index, and frames are looked up
//!   there instead of at the addresses of the process. Unwind rules are then shared by all processes that map the
//!   image, and no `fork`, `exec` or `munmap` ever invalidates them. Only code addresses are translated; the stack
//!   pointer and the frame pointer stay the target's own. (The one rule that looks at the instruction pointer's value,
//!   that of the PLT, uses its low four bits, and those are the target's too.)
//! - framehop caches 509 rules; a compiler has tens of thousands of return addresses. A set of caches, chosen by bits
//!   of the address, keeps the hit rate near one.
//!
//! A root is `Complete` only if the unwind information says that nothing called the outermost frame; see [`roots`].

mod roots;

use std::sync::Arc;

use ccsd_profile::TruncationReason;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};

use crate::perf::record::Sample;
use crate::perf::ring::Bytes;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;
use roots::Roots;

/// Frames of one stack at most: what 64 KiB of stack can hold at 8 bytes a frame. More is a loop in the unwind data.
pub const MAX_FRAMES: usize = 8192;
/// Rule caches; 64 x 509 rules of 16 bytes are 0.5 MiB and hold every return address of a compiler run.
const CACHES: usize = 64;
/// Distance of two images in ccsd's address space. framehop's offsets in a module are 32 bits wide.
const IMAGE_SPAN: u64 = 1 << 33;
/// Kernel addresses from here on are context markers (`PERF_CONTEXT_MAX`), not code.
const CONTEXT_MARKERS: u64 = -4095i64 as u64;

/// Where one frame is executing: an address to look up in an image. For a return address this is the address before it,
/// inside the call; nothing after this module subtracts one again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// The image.
    pub image: ImageIndex,
    /// SVMA in the image, or the address itself for `[kernel]`, `[anon]` and unknown memory.
    pub address: u64,
}

/// Where a stack ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// At the frame that nothing called.
    Complete,
    /// Somewhere else, and why.
    Truncated(TruncationReason),
}

/// Unwinds samples. Owns the unwind information of all images, read when the first frame falls into them.
pub struct StackUnwinder {
    unwinder: UnwinderX86_64<Arc<[u8]>>,
    caches: Vec<CacheX86_64>,
    /// Per image, whether its unwind sections have been looked for.
    loaded: Vec<bool>,
    roots: Roots,
}

impl Default for StackUnwinder {
    fn default() -> Self {
        StackUnwinder {
            unwinder: UnwinderX86_64::new(),
            caches: (0..CACHES).map(|_| CacheX86_64::new()).collect(),
            loaded: Vec::new(),
            roots: Roots::default(),
        }
    }
}

impl StackUnwinder {
    /// Replaces `frames` by the sample's stack, innermost first: the kernel's part, then the user's.
    #[inline]
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        mappings: &mut Mappings,
        images: &Images,
        frames: &mut Vec<Frame>,
    ) -> Root {
        frames.clear();
        kernel_frames(sample.kernel_chain, frames);
        if sample.regs.is_none() {
            // In exec, exit, or a kernel thread there is no user stack, so the kernel's is whole.
            let in_kernel = !frames.is_empty();
            return if in_kernel { Root::Complete } else { Root::Truncated(TruncationReason::NoUserRegisters) };
        }
        self.user_frames(sample, mappings, images, frames)
    }

    fn user_frames(
        &mut self,
        sample: &Sample<'_>,
        mappings: &mut Mappings,
        images: &Images,
        frames: &mut Vec<Frame>,
    ) -> Root {
        let Some(start) = sample.regs else { return Root::Truncated(TruncationReason::NoUserRegisters) };
        let stack = StackBytes { bytes: sample.stack, sp: start.sp };
        let mut read_stack = |address: u64| stack.read(address).ok_or(());
        let mut regs = UnwindRegsX86_64::new(start.ip, start.sp, start.bp);
        let mut at = FrameAddress::InstructionPointer(start.ip);
        let mut is_return_address = false;
        loop {
            let lookup = at.address_for_lookup();
            let Some(mapping) = mappings.find(lookup) else {
                if is_return_address {
                    // What was read from the stack is no code: the frame before was not unwound rightly.
                    return Root::Truncated(TruncationReason::UnknownMapping);
                }
                frames.push(Frame { image: ImageIndex::UNKNOWN, address: lookup });
                return Root::Truncated(TruncationReason::UnknownMapping);
            };
            let frame = Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) };
            if frames.len() >= MAX_FRAMES {
                return Root::Truncated(TruncationReason::TooDeep);
            }
            frames.push(frame);
            let here = self.own_address(frame, images);
            let here = match is_return_address {
                true => FrameAddress::from_return_address(here.wrapping_add(1)),
                false => Some(FrameAddress::InstructionPointer(here)),
            };
            let Some(here) = here else { return Root::Truncated(TruncationReason::BadUnwindInfo) };
            let cache = &mut self.caches[cache_of(frame.address)];
            match self.unwinder.unwind_frame(here, &mut regs, cache, &mut read_stack) {
                Ok(Some(address)) => {
                    let Some(next) = FrameAddress::from_return_address(address) else {
                        return Root::Truncated(TruncationReason::BadUnwindInfo);
                    };
                    (at, is_return_address) = (next, true);
                }
                Ok(None) => return self.roots.judge(frame, images),
                Err(framehop::Error::CouldNotReadStack(address)) => {
                    let past_the_end = address.wrapping_sub(start.sp) >= sample.stack.len() as u64;
                    return Root::Truncated(match (past_the_end && address >= start.sp, sample.stack_full) {
                        (true, true) => TruncationReason::StackCopyTooSmall,
                        (true, false) => TruncationReason::StackUnreadable,
                        (false, _) => TruncationReason::BadUnwindInfo,
                    });
                }
                Err(_) if self.roots.has_unwind_info(frame, images) => {
                    return Root::Truncated(TruncationReason::BadUnwindInfo);
                }
                Err(_) => return Root::Truncated(TruncationReason::NoUnwindInfo),
            }
        }
    }

    /// The frame's address in ccsd's own address space; its image's unwind information is loaded on the way.
    #[inline]
    fn own_address(&mut self, frame: Frame, images: &Images) -> u64 {
        let index = frame.image.0 as usize;
        if !self.loaded.get(index).copied().unwrap_or(false) {
            self.load(frame.image, images);
        }
        let base = IMAGE_SPAN.wrapping_mul(u64::from(frame.image.0) + 1);
        let elf = images.get(frame.image).and_then(|image| image.elf.as_deref());
        base.wrapping_add(elf.map_or(frame.address, |elf| frame.address.wrapping_sub(elf.base_svma())) % IMAGE_SPAN)
    }

    #[cold]
    fn load(&mut self, index: ImageIndex, images: &Images) {
        let position = index.0 as usize;
        if self.loaded.len() <= position {
            self.loaded.resize(position + 1, false);
        }
        self.loaded[position] = true;
        let Some(image) = images.get(index) else { return };
        let Some(elf) = &image.elf else { return };
        let sections = elf.unwind_sections();
        let info = ExplicitModuleSectionInfo {
            base_svma: sections.base_svma,
            text_svma: sections.text_svma.clone(),
            got_svma: sections.got_svma.clone(),
            eh_frame_svma: sections.eh_frame.as_ref().map(|s| s.svma.clone()),
            eh_frame: sections.eh_frame.as_ref().map(|s| Arc::clone(&s.data)),
            eh_frame_hdr_svma: sections.eh_frame_hdr.as_ref().map(|s| s.svma.clone()),
            eh_frame_hdr: sections.eh_frame_hdr.as_ref().map(|s| Arc::clone(&s.data)),
            debug_frame: sections.debug_frame.clone(),
            ..Default::default()
        };
        let base = IMAGE_SPAN * (u64::from(index.0) + 1);
        // A 32-bit offset is all that framehop has; larger images lose their unwind information beyond it.
        self.unwinder.add_module(Module::new(image.name.clone(), base..base + (1 << 32), base, info));
        self.roots.add(index, sections);
    }
}

/// The cache that holds an address's rule. Neighbouring return addresses should spread, so the low bits are mixed in.
#[inline]
fn cache_of(address: u64) -> usize {
    ((address ^ (address >> 9) ^ (address >> 17)) as usize) % CACHES
}

fn kernel_frames(chain: Bytes<'_>, frames: &mut Vec<Frame>) {
    for i in 0..chain.len() / 8 {
        let Some(address) = chain.u64_at(i * 8).filter(|&address| address < CONTEXT_MARKERS) else { continue };
        // The innermost is where the kernel was interrupted, all others are return addresses.
        let address = if frames.is_empty() { address } else { address.wrapping_sub(1) };
        frames.push(Frame { image: ImageIndex::KERNEL, address });
    }
}

struct StackBytes<'a> {
    bytes: Bytes<'a>,
    sp: u64,
}

impl StackBytes<'_> {
    #[inline]
    fn read(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.sp)?).ok()?;
        self.bytes.u64_at(offset)
    }
}
