//! From registers and stack bytes to a stack of frames.
//!
//! One loop follows a stack from its innermost frame outwards ([`step`]). It leaves each frame by the first source that
//! can say how:
//!
//! | source | what it says | registers |
//! |---|---|---|
//! | [`known_rules`], [`rule`] | the rules of rows that stack pointer and frame pointer are enough for: nearly every frame | two |
//! | [`framehop_rows`] | the frame pointer, where an image's bytes are not there | two |
//! | [`realigned`] | what GCC keeps in a frame that it has realigned | two |
//! | [`generated`], [`arch::code`](crate::arch::code) | the instructions where no table is | two |
//! | [`cfi`] | any row, as gimli evaluates it | all |
//! | [`arch::signal`](crate::arch::signal) | the frame that the kernel has made for a signal | all |
//! | [`go`] | where Go has come from to this stack | all |
//! | [`arch::code`](crate::arch::code), [`arch::prologue`](crate::arch::prologue) | the instructions, where no table is or the table lies | all |
//!
//! [`image_unwind`] chooses the source for an address. Other registers than the two are followed only for a frame that
//! needs them ([`full_registers`]).
//!
//! - Every image stands once in an address space of ccsd's own, and frames are looked up there. Unwind rules are then
//!   shared by all processes that map the image, and no `fork`, `exec` or `munmap` ever invalidates them. Only code
//!   addresses are translated.
//! - All rows of a function are read with its first address, and kept: most samples are at a new address of a known
//!   function.
//!
//! A root is `Complete` only if the unwind information says that nothing called the outermost frame; see
//! [`image_unwind`].

mod allowance;
mod carried;
mod cfi;
mod frame;
mod framehop_rows;
mod full_registers;
mod generated;
pub mod go;
mod image_unwind;
mod join;
mod known_rules;
mod loaded;
pub mod memory;
mod outcome;
mod pages;
mod realigned;
#[cfg(test)]
mod recorded;
mod return_addresses;
mod rule;
pub mod shadow;
mod steady;
mod step;
#[cfg(test)]
mod table_bytes;
mod tables;
mod walk;

use std::time::Instant;

use ccsd_profile::TruncationReason;

use crate::budget::Budget;
use crate::perf::record::Sample;
use crate::perf::ring_buffer::Bytes;
use crate::process::ProcessKey;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;
use crate::stack_delta::Common;
use crate::time_budget::Owner;
use allowance::Allowance;
use carried::Carried;
use generated::GeneratedRules;
use go::FrameChain;
use go::goroutines::GoroutineTable;
use known_rules::KnownRules;
use loaded::LoadedImages;
use memory::{Memory, MemoryRefusals, UserStack};
use outcome::{CompleteStack, UnwindStop};
use return_addresses::ReturnAddresses;
use shadow::{ShadowFrame, ShadowStack, WholeStack};
use steady::Alike;
use tables::RowContext;
use walk::StackWalk;

pub use frame::{Frame, Gap, StackRoot, Unwound};

/// Kernel addresses from here on are context markers (`PERF_CONTEXT_MAX`), not code.
const CONTEXT_MARKERS: u64 = -4095i64 as u64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnwindStats {
    /// Images whose unwind information was not read, because there was too much already.
    pub refused_images: u64,
    /// Times that what was remembered of all addresses for unwinding was forgotten, because there was too much.
    pub forgotten_rules: u64,
    /// Whole stacks that go on beyond what was copied, as the target's memory says later than the sample.
    pub read_late: u64,
    /// Stacks that were not followed to their root because they took too long.
    pub cut_stacks: u64,
    /// Why memory beyond the copied stack was not read, in samples.
    pub memory: MemoryRefusals,
}

/// Unwinds samples. Owns the unwind information of all images, read when the first frame falls into them.
pub struct StackUnwinder {
    rules: KnownRules,
    row_context: RowContext,
    images: LoadedImages,
    return_addresses: ReturnAddresses,
    generated: GeneratedRules,
    /// The most bytes that are to be remembered of single addresses.
    unwind_rules: u64,
    /// After how many more frames it is looked how many these are, and how often they were too many.
    frames_to_look: usize,
    forgotten: u64,
    memory: Memory,
    /// The next sample is of a thread that does not run again.
    dying: bool,
    allowance: Allowance,
    /// The frames of the stack being unwound that a return address led to, innermost first.
    known: Vec<ShadowFrame>,
    /// Which of the stack's frames the first of them is.
    first_known: usize,
    /// The other registers, as far as they were needed.
    carried: Carried,
    /// How many frames there were before one was found by what was read late, if that is not among the known ones.
    late_from: Option<usize>,
    room: bool,
    /// After how many of its frames some are missing.
    gap: Option<usize>,
    /// The goroutine that has called C code, if it has noted that: the address of its record, and one of its stack.
    goroutine: Option<(u64, u64)>,
    read_late: u64,
    read_too_late: u64,
    read_anew: u64,
    disagreed: u64,
}

/// What is known of a process beside its threads' stacks.
pub struct UnwindTarget<'a> {
    /// Its code.
    pub mappings: &'a mut Mappings,
    /// Its identity.
    pub process: ProcessKey,
    /// Who answers for it, as far as that is known: what its stacks take leaves some for others'.
    pub owner: Owner,
    /// The goroutines of all processes.
    pub goroutines: &'a mut GoroutineTable,
    /// All images.
    pub images: &'a Images,
}

impl Default for StackUnwinder {
    fn default() -> Self {
        let budget = Budget::default();
        StackUnwinder::within(budget.unwind_tables, budget.unwind_rules)
    }
}

impl StackUnwinder {
    /// Bounds unwind tables, and what is remembered of single addresses (but for a few stacks' worth), bytes.
    pub fn within(unwind_tables: u64, unwind_rules: u64) -> StackUnwinder {
        StackUnwinder {
            unwind_rules,
            frames_to_look: 0,
            forgotten: 0,
            rules: KnownRules::within(unwind_rules),
            row_context: RowContext::new(),
            images: LoadedImages::within(unwind_tables),
            return_addresses: ReturnAddresses::default(),
            generated: GeneratedRules::default(),
            memory: Memory::default(),
            dying: false,
            allowance: Allowance::default(),
            known: Vec::new(),
            first_known: 0,
            carried: Carried::default(),
            late_from: None,
            room: true,
            gap: None,
            goroutine: None,
            read_late: 0,
            read_too_late: 0,
            read_anew: 0,
            disagreed: 0,
        }
    }

    /// Replaces `frames` by the sample's stack, innermost first: kernel, then user, out to what it shares with the
    /// thread's last one, `shadow`. `room`: another deep stack may be remembered.
    #[inline]
    pub fn unwind(
        &mut self,
        sample: &Sample<'_>,
        target: UnwindTarget<'_>,
        shadow: &mut ShadowStack,
        room: bool,
        frames: &mut Vec<Frame>,
    ) -> Unwound {
        let UnwindTarget { mappings, process, owner, goroutines, images } = target;
        frames.clear();
        self.known.clear();
        self.carried.forget();
        self.late_from = None;
        self.room = room;
        self.gap = None;
        self.goroutine = None;
        self.generated.begin(sample.pid, sample.time);
        // Taken out for the time of this call, because the stack borrows it beside all else.
        let mut memory = std::mem::take(&mut self.memory);
        memory.begin(sample.pid, sample.time);
        memory.set_process(process, owner);
        if self.dying {
            memory.set_dying();
        }
        self.allowance.begin(sample.time, owner);
        let sp = sample.regs.map_or(0, |regs| regs.sp);
        let stack = UserStack::new(sample.stack, sp, &mut memory);
        stack.touch(shadow.outermost().next().map_or(0, |slot| slot.0));
        let unwound = match self.find_root(sample, &stack, mappings, images, shadow, frames) {
            Ok(CompleteStack { common, in_shadow: true }) if self.gap.is_none() => {
                let common = common.unwrap_or_default();
                let next = sample.regs.map_or(0, |regs| regs.ip.saturating_add(1));
                let known = std::mem::take(&mut self.known);
                let (whole, generation) = (WholeStack { common, frames: &known }, mappings.generation());
                let sure = shadow.learn(whole, next, generation, &stack, |before, now| {
                    self.are_in_one_function(before, now, mappings, images)
                });
                let beyond = if sure == Alike::ALL || self.dying { 0 } else { shadow.beyond(whole, &stack) };
                self.known = known;
                if sure.functions() < beyond {
                    self.disagreed += 1;
                    self.cut((common, sure), sample, &stack, (mappings, images), shadow, frames)
                } else {
                    let of_last = shadow.frame(common, 0).filter(|_| common != Common::default());
                    let is_late = |known: &ShadowFrame| !known.is_copied(&stack);
                    self.read_anew += u64::from(self.known.last().is_some_and(is_late));
                    self.read_late += u64::from(of_last.or(self.known.last()).is_some_and(is_late));
                    let common = shadow.remember(common, &self.known, &stack, generation, room);
                    let target = UnwindTarget { mappings, process, owner, goroutines, images };
                    self.remember_goroutine(sample, &stack, target, shadow, frames);
                    Unwound { root: StackRoot::Complete, common, gap: None }
                }
            }
            Ok(_) => {
                // What has left that stack for another depends on more than the shadow stack knows.
                shadow.interrupt();
                Unwound { root: StackRoot::Complete, common: Common::default(), gap: self.gap(frames) }
            }
            Err(stop) => {
                let target = UnwindTarget { mappings, process, owner, goroutines, images };
                self.join(&stop, sample, &stack, target, shadow, frames)
            }
        };
        self.memory = memory;
        self.allowance.end();
        match self.frames_to_look.checked_sub(frames.len()) {
            Some(left) => self.frames_to_look = left,
            None => self.bound_rules(),
        }
        unwound
    }

    /// For a session of this user.
    pub fn set_user(&mut self, user: u32) {
        self.memory.set_user(user);
    }

    /// Says whether the next sample's thread was killed by a signal and does not run again: its memory stays as it was.
    #[inline]
    pub fn set_dying(&mut self, dying: bool) {
        self.dying = dying;
    }

    /// Forgets what is remembered of addresses if it is too much.
    #[cold]
    fn bound_rules(&mut self) {
        // Not every frame is at a new address, and those that are take some 500 bytes; rules have bounds of their own.
        self.frames_to_look = usize::try_from(self.unwind_rules / 4096).unwrap_or(usize::MAX).max(64);
        if self.images.retry_late(Instant::now()) {
            self.rules.clear();
            self.return_addresses = Default::default();
        }
        if self.rule_bytes() <= self.unwind_rules {
            return;
        }
        self.forgotten += 1;
        // What is soonest found out again goes first.
        self.rules.clear();
        if self.rule_bytes() > self.unwind_rules {
            self.images.drop_all();
            (self.return_addresses, self.generated) = Default::default();
        }
    }

    fn rule_bytes(&self) -> u64 {
        let frames = self.images.remembered() + self.rules.bytes();
        (frames + self.return_addresses.bytes() + self.generated.bytes()) as u64
    }

    /// Bytes that unwind tables take, and what is remembered of addresses.
    pub fn held_bytes(&self) -> u64 {
        self.images.held() + self.rule_bytes()
    }

    /// What has been counted.
    pub fn stats(&self) -> UnwindStats {
        UnwindStats {
            refused_images: self.images.refused(),
            forgotten_rules: self.forgotten,
            read_late: self.read_late,
            cut_stacks: self.allowance.refusals(),
            memory: self.memory.refusals(),
        }
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
    ) -> Result<CompleteStack, UnwindStop> {
        kernel_frames(sample.kernel_chain, frames);
        let in_kernel = !frames.is_empty();
        let Some(start) = &sample.regs else {
            // A kernel thread, or one in the middle of exec or exit, has no user stack, so the kernel's is whole.
            let whole = in_kernel && !sample.has_user_state;
            return if whole {
                Ok(CompleteStack::COMPLETE)
            } else {
                Err(UnwindStop::Because(TruncationReason::NoUserRegisters))
            };
        };
        if in_kernel && sample.stack.is_empty() && mappings.find(start.ip).is_none() {
            // In the middle of exec the registers are those of a program whose memory is gone.
            return Ok(CompleteStack::COMPLETE);
        }
        let chain = FrameChain::new(sample.user_chain, start.bp);
        self.follow(&mut StackWalk { start, chain, stack, mappings, images, frames }, shadow)
    }

    /// Whole stacks whose part beyond what was copied was not on the thread's last stack.
    pub fn read_anew(&self) -> u64 {
        self.read_anew
    }

    /// Stacks whose part beyond the copy is not sure.
    pub fn disagreed(&self) -> u64 {
        self.disagreed
    }

    /// Stacks whose outer part lies beyond what was copied, and was not there any more when it was read.
    pub fn read_too_late(&self) -> u64 {
        self.read_too_late
    }

    /// Frees what is kept of an image that is not mapped any more.
    pub fn drop_image(&mut self, index: ImageIndex) {
        if self.images.drop_image(index) {
            self.rules.clear();
            self.return_addresses.forget(index);
            self.generated.forget(index);
        }
    }
}

fn kernel_frames(chain: Bytes<'_>, frames: &mut Vec<Frame>) {
    for i in 0..chain.len() / 8 {
        let Some(address) = chain.u64_at(i * 8).filter(|&address| address < CONTEXT_MARKERS) else { continue };
        // The innermost is where the kernel was interrupted, all others are return addresses.
        let address = if frames.is_empty() { address } else { address.wrapping_sub(1) };
        frames.push(Frame { image: ImageIndex::KERNEL, address });
    }
}
