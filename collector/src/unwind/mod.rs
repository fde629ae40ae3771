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
//! Where framehop's rules do not reach, the stack is unwound again, up to beyond that frame, by [`careful`], and by [`code`]
//! where no table does. A root is `Complete` only if the unwind information says that nothing called the outermost frame; see [`roots`].

mod allowance;
mod careful;
mod chain;
mod code;
mod fde_index;
mod go;
mod goroutine;
pub mod goroutines;
mod join;
mod loaded;
pub mod memory;
mod pages;
mod plain;
mod realigned;
#[cfg(test)]
mod recorded;
mod return_addresses;
mod roots;
pub mod shadow;
mod switch;

use std::sync::Arc;

use ccsd_profile::TruncationReason;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{FrameAddress, Unwinder};
use gimli::X86_64;

use crate::layers::Common;
use crate::perf::record::{Sample, UserRegs};
use crate::perf::ring_buffer::Bytes;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;
use allowance::Allowance;
use careful::{Caller, Registers, Stuck, Table};
use chain::FrameChain;
use go::GoFrame;
use goroutine::Switch;
use goroutines::Goroutines;
use loaded::{DEBUG_FRAME_SPAN, LoadedImages};
use memory::{BELOW_STACK, Memory, Refusals, UserStack};
use plain::GeneratedRules;
use return_addresses::ReturnAddresses;
use shadow::{Check, Known, ShadowStack, State};

/// Frames of one stack at most: what the usual 8 MiB of stack can hold at 16 bytes a frame, the least that compilers
/// make. More is taken for a loop.
pub const MAX_FRAMES: usize = 1 << 19;
/// Rule caches; 64 x 509 rules of 16 bytes are 0.5 MiB and hold every return address of a compiler run.
const CACHES: usize = 64;
/// Times that a stack is begun anew for a frame that framehop cannot leave. Signal frames and the like come one or two to a
/// stack; where there are more, all that is left is unwound with every register.
const MAX_PASSES: usize = 4;
/// Times that one stack may move to another by what is no return address, and so downwards. Goroutines are left for the
/// thread's stack and the signals' stack.
const MAX_SWITCHES: usize = 16;
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
    images: LoadedImages,
    return_addresses: ReturnAddresses,
    generated: GeneratedRules,
    memory: Memory,
    allowance: Allowance,
    /// The frames of the stack being unwound that a return address led to, innermost first.
    known: Vec<Known>,
    /// Which of the stack's frames the first of them is.
    first_known: usize,
    /// After how many of its frames some are missing.
    gap: Option<usize>,
    read_late: u64,
    read_too_late: u64,
}

/// What is known of a process beside its threads' stacks.
pub struct Target<'a> {
    /// Its code.
    pub mappings: &'a mut Mappings,
    /// Its goroutines.
    pub goroutines: &'a mut Goroutines,
    /// All images.
    pub images: &'a Images,
}

/// Where frames may be missing in a stack, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Frames that were found and are further out, beside those that are in common with the last stack.
    pub outer: u32,
    /// Why it is not known what comes in between.
    pub reason: TruncationReason,
}

/// One stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// Where it ends.
    pub root: Root,
    /// What it has in common with the thread's last one, outside the frames that were found.
    pub common: Common,
    /// Where frames may be missing.
    pub gap: Option<Gap>,
}

/// A frame that has been found in the mappings.
enum Located {
    At(Frame),
    /// The address is not code of the process.
    Nowhere,
}

impl Default for StackUnwinder {
    fn default() -> Self {
        StackUnwinder {
            unwinder: UnwinderX86_64::new(),
            caches: (0..CACHES).map(|_| CacheX86_64::new()).collect(),
            images: LoadedImages::default(),
            return_addresses: ReturnAddresses::default(),
            generated: GeneratedRules::default(),
            memory: Memory::default(),
            allowance: Allowance::default(),
            known: Vec::new(),
            first_known: 0,
            gap: None,
            read_late: 0,
            read_too_late: 0,
        }
    }
}

impl StackUnwinder {
    /// Replaces `frames` by the sample's stack, innermost first: the kernel's part, then the user's, out to where it has
    /// the rest in common with the thread's last one, which is `shadow`. `may_reserve` says that there is room to keep
    /// another deep stack.
    #[inline]
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        target: Target<'_>,
        shadow: &mut ShadowStack,
        may_reserve: bool,
        frames: &mut Vec<Frame>,
    ) -> Unwound {
        let Target { mappings, goroutines, images } = target;
        frames.clear();
        self.known.clear();
        self.gap = None;
        self.generated.begin(sample.pid, sample.time);
        // Taken out for the time of this call, because the stack borrows it beside all else.
        let mut memory = std::mem::take(&mut self.memory);
        memory.begin(sample.pid, sample.time);
        self.allowance.begin(sample.time);
        let sp = sample.regs.map_or(0, |regs| regs.sp);
        let stack = UserStack::new(sample.stack, sp, &mut memory);
        let unwound = match self.find_root(sample, &stack, mappings, images, shadow, frames) {
            Ok(Found { root: Root::Complete, common, in_shadow: true }) if self.gap.is_none() => {
                self.read_late += u64::from(self.known.last().is_some_and(|known| !known.is_copied(&stack)));
                let common = common.unwrap_or_default();
                let common = shadow.remember(common, &self.known, &stack, mappings.generation(), may_reserve);
                if self.is_in_go(frames, images) {
                    goroutines.remember(shadow.outermost(), sample, mappings.generation(), &stack);
                }
                Unwound { root: Root::Complete, common, gap: None }
            }
            Ok(found) => {
                // What has left that stack for another depends on more than the shadow stack knows.
                shadow.interrupt();
                Unwound { root: found.root, common: Common::default(), gap: self.gap(frames) }
            }
            Err(stop) => {
                let target = Target { mappings, goroutines, images };
                self.join(&stop, sample, &stack, target, shadow, frames)
            }
        };
        self.memory = memory;
        self.allowance.end();
        unwound
    }

    /// Whether the outermost frame that was found is of a Go program.
    #[inline]
    fn is_in_go(&mut self, frames: &[Frame], images: &Images) -> bool {
        let image = frames.last().and_then(|frame| self.images.get(&mut self.unwinder, frame.image, images));
        image.is_some_and(|image| image.roots.go().is_some())
    }

    /// Stacks that were completed with what was read from the target's memory, later than the sample.
    pub fn read_late(&self) -> u64 {
        self.read_late
    }

    #[inline]
    fn find_root(
        &mut self,
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        mappings: &mut Mappings,
        images: &Images,
        shadow: &mut ShadowStack,
        frames: &mut Vec<Frame>,
    ) -> Result<Found, Stop> {
        kernel_frames(sample.kernel_chain, frames);
        let kernel_part = frames.len();
        let in_kernel = kernel_part > 0;
        let Some(regs) = sample.regs else {
            // A kernel thread, or one in the middle of exec or exit, has no user stack, so the kernel's is whole.
            let whole = in_kernel && !sample.has_user_state;
            return if whole { Ok(Found::COMPLETE) } else { Err(Stop::Because(TruncationReason::NoUserRegisters)) };
        };
        if in_kernel && sample.stack.is_empty() && mappings.find(regs.ip).is_none() {
            // In the middle of exec the registers are those of a program whose memory is gone.
            return Ok(Found::COMPLETE);
        }
        let mut from = Pointers {
            at: FrameAddress::InstructionPointer(regs.ip),
            regs: UnwindRegsX86_64::new(regs.ip, regs.sp, regs.bp),
        };
        let mut passes = 0;
        loop {
            match self.fast(from, stack, mappings, images, shadow, frames) {
                Err(Stop::NeedsCare) => {}
                end => return end,
            }
            // The other registers have to be followed from the first frame up to this one, and no further: deep stacks
            // are common, and two such frames in one are not.
            passes += 1;
            let met = if passes < MAX_PASSES { frames.len() } else { usize::MAX };
            frames.truncate(kernel_part);
            // What has been left like that depends on more than the shadow stack knows.
            self.known.clear();
            self.first_known = usize::MAX;
            self.gap = None;
            let chain = FrameChain::new(sample.user_chain, regs.bp);
            match self.careful((&regs, chain), met, stack, mappings, images, frames)? {
                Careful::Ended(root) => return Ok(Found { root, ..Found::COMPLETE }),
                Careful::Left(pointers) => from = pointers,
            }
        }
    }

    /// Stacks whose outer part lies beyond what was copied, and was not there any more when it was read.
    pub fn read_too_late(&self) -> u64 {
        self.read_too_late
    }

    /// Why the memory of targets was not read where it would have been needed, in samples.
    pub fn memory_refusals(&self) -> Refusals {
        self.memory.refusals()
    }

    /// Stacks that were not followed to their root because they took too long.
    pub fn cut_stacks(&self) -> u64 {
        self.allowance.refusals()
    }

    /// Images whose unwind information was not read, because there was too much already.
    pub fn refused_images(&self) -> u64 {
        self.images.refused()
    }

    /// Frees what is kept of an image that is not mapped any more.
    pub fn drop_image(&mut self, index: ImageIndex) {
        if self.images.drop_image(&mut self.unwinder, index) {
            self.return_addresses.forget(index);
            self.generated.forget(index);
        }
    }

    /// With framehop and its caches.
    fn fast(
        &mut self,
        from: Pointers,
        stack: &UserStack<'_>,
        mappings: &mut Mappings,
        images: &Images,
        shadow: &mut ShadowStack,
        frames: &mut Vec<Frame>,
    ) -> Result<Found, Stop> {
        self.first_known = frames.len() + 1;
        let mut search = shadow.search(mappings.generation());
        let mut read_stack = |address: u64| stack.read(address).ok_or(());
        let Pointers { mut at, mut regs } = from;
        loop {
            let frame = match locate(at.address_for_lookup(), mappings, frames)? {
                Located::At(frame) => frame,
                Located::Nowhere => return Err(Stop::Nowhere),
            };
            let Some(image) = self.images.get(&mut self.unwinder, frame.image, images) else {
                return Err(Stop::Because(TruncationReason::NoUnwindInfo));
            };
            if image.roots.is_bare_entry(frame.address) {
                return Ok(Found::WHOLE);
            }
            let callee_sp = regs.sp();
            let needs_care = image.roots.needs_care(frame.address);
            if needs_care && image.roots.is_top(frame.address) {
                return Ok(Found::WHOLE);
            }
            // Where the frame's own address was stored.
            let mut cfa_slot = None;
            let return_address = if image.generated || needs_care && image.roots.is_plainly_uncovered(frame.address) {
                // The next instruction; of a caller it comes after the call.
                let next = frame.address.wrapping_add(u64::from(matches!(at, FrameAddress::ReturnAddress(_))));
                let (known, read) = (&mut self.return_addresses, |address: u64| stack.read(address));
                let believed = |address| known.contains(address, mappings, images);
                let pointers = (regs.sp(), regs.bp());
                let caller = if image.generated {
                    let code = |address, len| stack.code(address, len);
                    let left = self.generated.leave((frame.image, next), pointers, &read, &code, believed);
                    left.map_err(|address| address.map_or_else(|| image.no_way(frame.address), Stop::Unreadable))?
                } else {
                    image.roots.leave_plainly(next, pointers, &read, believed).ok_or(Stop::NeedsCare)?
                };
                regs = UnwindRegsX86_64::new(caller.ip, caller.sp, caller.bp);
                caller.ip
            } else if needs_care {
                let realigned = image.roots.realigned(frame.address).ok_or(Stop::NeedsCare)?;
                let left = realigned.leave(regs.sp(), regs.bp(), &|address: u64| stack.read(address));
                let (caller, slot) = left.map_err(|address| address.map_or(Stop::NeedsCare, Stop::Unreadable))?;
                if caller.ip == 0 {
                    return image.judge(frame.address).map(|root| Found { root, ..Found::WHOLE });
                }
                cfa_slot = Some(slot);
                regs = UnwindRegsX86_64::new(caller.ip, caller.sp, caller.bp);
                caller.ip
            } else {
                let mut own = frame.address.wrapping_add(image.to_own);
                if image.roots.table(frame.address) == Table::DebugFrame {
                    own = own.wrapping_add(DEBUG_FRAME_SPAN);
                }
                let here = match at {
                    FrameAddress::InstructionPointer(_) => Some(FrameAddress::InstructionPointer(own)),
                    FrameAddress::ReturnAddress(_) => FrameAddress::from_return_address(own.wrapping_add(1)),
                };
                let here = here.ok_or(Stop::Because(TruncationReason::BadUnwindInfo))?;
                let cache = &mut self.caches[cache_of(frame.address)];
                let hits = cache.stats().hits();
                let result = self.unwinder.unwind_frame(here, &mut regs, cache, &mut read_stack);
                // A rule that was not in the cache may be a guess: framehop falls back to the frame pointer silently.
                if cache.stats().hits() == hits {
                    if image.roots.examine(frame.address) {
                        return Err(Stop::NeedsCare);
                    }
                    if !self.allowance.step() {
                        return Err(Stop::Because(TruncationReason::TooDeep));
                    }
                }
                match result {
                    Ok(Some(address)) => address,
                    Ok(None) => return image.judge(frame.address).map(|root| Found { root, ..Found::WHOLE }),
                    Err(framehop::Error::CouldNotReadStack(address)) => return Err(Stop::Unreadable(address)),
                    Err(_) => return Err(image.no_way(frame.address)),
                }
            };
            let state = State { return_address, sp: regs.sp(), bp: regs.bp() };
            while let Some(common) = shadow.find(&mut search, &state) {
                match shadow.check(common, &mut search, stack) {
                    Check::Same => return Ok(Found { common: Some(common), ..Found::WHOLE }),
                    // What has been searched is now less; the same state may be in the reserve too.
                    Check::Changed => {}
                }
            }
            self.known.push(Known::new(state, callee_sp, stack.recent(), cfa_slot));
            at = FrameAddress::from_return_address(return_address)
                .ok_or(Stop::Because(TruncationReason::BadUnwindInfo))?;
        }
    }

    /// With every register, frame by frame, until `met` frames have been left.
    #[cold]
    fn careful(
        &mut self,
        (start, chain): (&UserRegs, FrameChain<'_>),
        met: usize,
        stack: &UserStack<'_>,
        mappings: &mut Mappings,
        images: &Images,
        frames: &mut Vec<Frame>,
    ) -> Result<Careful, Stop> {
        let read = |address: u64| stack.read(address);
        let mut registers = Registers::default();
        for (register, value) in start.dwarf() {
            registers.set(register, value);
        }
        let mut lookup = start.ip;
        let mut called = false;
        // The last frame was one that had moved to another stack.
        let mut switched = false;
        let mut switches = 0;
        let mut late = false;
        stack.begin_late();
        self.allowance.start();
        loop {
            if !self.allowance.step() {
                return Err(Stop::Because(TruncationReason::TooDeep));
            }
            let mut frame = match locate(lookup, mappings, frames)? {
                Located::At(frame) => frame,
                Located::Nowhere => return Err(Stop::Nowhere),
            };
            let Some(image) = self.images.get(&mut self.unwinder, frame.image, images) else {
                return Err(Stop::Because(TruncationReason::NoUnwindInfo));
            };
            if image.roots.is_bare_entry(frame.address) {
                return Ok(Careful::Ended(Root::Complete));
            }
            // (Of Go's functions each is taken to go on up to the next.)
            let restores = switched && image.roots.restores_signal(frame.address.wrapping_add(1));
            switched = match image.roots.go_frame(frame.address) {
                _ if restores => false,
                Some(GoFrame::Top) => return Ok(Careful::Ended(Root::Complete)),
                Some(GoFrame::Switch) => called,
                None => false,
            };
            switches += usize::from(switched);
            if switches > MAX_SWITCHES {
                return Err(Stop::Because(TruncationReason::BadUnwindInfo));
            }
            let table = match switched {
                _ if restores => Err(Stuck::NotCovered),
                false => careful::leave(image.roots.unwind(), frame.address, &mut registers, &read),
                true => {
                    let to_svma = frame.address.wrapping_sub(lookup);
                    let known = &mut self.return_addresses;
                    let returns_to = |address| known.contains(address, mappings, images);
                    match image.roots.leave_switch(frame.address, to_svma, &mut registers, &read, returns_to) {
                        Err(Stuck::NotCovered) => {
                            let sp = registers.get(X86_64::RSP).unwrap_or(0);
                            let switch = Switch { frame, to_svma, sp, chain };
                            return self.leave_thread(&switch, &registers, stack, images, frames);
                        }
                        left => left,
                    }
                }
            };
            let caller = match table {
                Err(Stuck::NotCovered) if called && image.roots.restores_signal(frame.address.wrapping_add(1)) => {
                    if let Some(frame) = frames.last_mut() {
                        frame.address = frame.address.wrapping_add(1);
                    }
                    switch::interrupted(&registers, &read).map(|interrupted| {
                        registers = interrupted;
                        Caller::Interrupted
                    })
                }
                Err(Stuck::NotCovered) if called && image.roots.begins(frame.address.wrapping_add(1)) => {
                    frame.address = frame.address.wrapping_add(1);
                    frames.pop();
                    frames.push(frame);
                    let known = &mut self.return_addresses;
                    let returns_to = |address| known.contains(address, mappings, images);
                    roots::leave_beginning(&image.roots, frame.address, &mut registers, &read, returns_to)
                }
                Err(Stuck::NotCovered) => {
                    let known = &mut self.return_addresses;
                    let next = frame.address.wrapping_add(u64::from(called));
                    let generated = image
                        .generated
                        .then(|| self.generated.rows((frame.image, next), &|address, len| stack.code(address, len)));
                    let rows = generated.as_deref().unwrap_or_else(|| image.roots.rows(next));
                    code::leave(rows, &mut registers, &read, |address| known.contains(address, mappings, images))
                }
                result => result,
            };
            let pc = registers.get(X86_64::RA).unwrap_or(0);
            called = caller == Ok(Caller::Called);
            lookup = match caller {
                Ok(Caller::Called) => pc.wrapping_sub(1),
                Ok(Caller::Interrupted) => pc,
                Ok(Caller::None) => return image.judge(frame.address).map(Careful::Ended),
                Err(Stuck::Unreadable(address)) => return Err(Stop::Unreadable(address)),
                Err(_) => return Err(image.no_way(frame.address)),
            };
            if !late && stack.first_late().is_some() {
                // What comes now may be of another call.
                (late, self.first_known) = (true, frames.len());
            }
            // What has moved to another stack is told from the frame after it, too.
            if frames.len() >= met
                && !switched
                && let Some(pointers) = Pointers::of(&registers, called)
            {
                return Ok(Careful::Left(pointers));
            }
        }
    }
}

/// What framehop goes on from.
struct Pointers {
    at: FrameAddress,
    regs: UnwindRegsX86_64,
}

impl Pointers {
    /// Of a frame that waits for a call to return, or was interrupted; `None` where not all that it takes is known.
    fn of(registers: &Registers, called: bool) -> Option<Pointers> {
        let [ip, sp, bp] = [X86_64::RA, X86_64::RSP, X86_64::RBP].map(|register| registers.get(register));
        let (ip, regs) = (ip?, UnwindRegsX86_64::new(ip?, sp?, bp?));
        let at = if called { FrameAddress::from_return_address(ip)? } else { FrameAddress::InstructionPointer(ip) };
        Some(Pointers { at, regs })
    }
}

/// How far a stack was followed with every register.
enum Careful {
    /// To its end.
    Ended(Root),
    /// To a frame from which on it may go faster.
    Left(Pointers),
}

/// Why unwinding stopped short of a root.
enum Stop {
    /// framehop cannot leave this frame.
    NeedsCare,
    /// The address is not code of the process.
    Nowhere,
    /// A value is needed that the copy of the stack does not hold.
    Unreadable(u64),
    Because(TruncationReason),
}

impl Stop {
    /// The address that was needed, if it is not among those that the sample copied.
    fn outside_copy(&self, sample: &Sample<'_>) -> Option<u64> {
        let Stop::Unreadable(address) = *self else { return None };
        let sp = sample.regs?.sp;
        let end = sp.checked_add(sample.stack.len() as u64)?;
        (address.checked_add(8)? > end || address < sp).then_some(address)
    }

    fn reason(&self, sample: &Sample<'_>) -> TruncationReason {
        match *self {
            Stop::NeedsCare => TruncationReason::BadUnwindInfo,
            Stop::Nowhere => TruncationReason::UnknownMapping,
            // The stack goes on where the copy ends.
            Stop::Unreadable(address) => match sample.regs.map_or(0, |regs| regs.sp) {
                sp if address >= sp => late_reason(sample),
                // Another stack.
                sp if address < sp.saturating_sub(BELOW_STACK) => TruncationReason::StackUnreadable,
                _ => TruncationReason::BadUnwindInfo,
            },
            Stop::Because(reason) => reason,
        }
    }
}

/// Why the copy of a stack does not hold what comes next.
fn late_reason(sample: &Sample<'_>) -> TruncationReason {
    if sample.stack_full { TruncationReason::StackCopyTooSmall } else { TruncationReason::StackUnreadable }
}

/// A stack that was followed to its root.
struct Found {
    root: Root,
    /// Where the thread's last stack goes on.
    common: Option<Common>,
    /// Whether the frames are such as the shadow stack knows.
    in_shadow: bool,
}

impl Found {
    /// Complete, found by framehop.
    const WHOLE: Found = Found { root: Root::Complete, common: None, in_shadow: true };
    /// Complete, found otherwise.
    const COMPLETE: Found = Found { root: Root::Complete, common: None, in_shadow: false };
}

/// Enters the frame of an address. An address that is no code can only be the first, a jump gone wrong: it is kept, as
/// unknown. One read from the stack says that the frame before was not unwound rightly, and is dropped.
#[inline]
fn locate(lookup: u64, mappings: &mut Mappings, frames: &mut Vec<Frame>) -> Result<Located, Stop> {
    let Some(mapping) = mappings.find(lookup) else {
        if frames.is_empty() {
            frames.push(Frame { image: ImageIndex::UNKNOWN, address: lookup });
        }
        return Ok(Located::Nowhere);
    };
    if frames.len() >= MAX_FRAMES {
        return Err(Stop::Because(TruncationReason::TooDeep));
    }
    let frame = Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) };
    frames.push(frame);
    Ok(Located::At(frame))
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
