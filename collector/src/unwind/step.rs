//! The loop that follows a stack outwards; each frame is left by the first source that can say how.
//!
//! Nearly all frames need only stack pointer and frame pointer ([`full_registers`](super::full_registers) has the
//! others).

use ccsd_profile::TruncationReason;

use super::StackUnwinder;
use super::frame::Frame;
use super::image_unwind::RuleSource;
use super::memory::{STACK_BYTES, UserStack};
use super::outcome::{CompleteStack, UnwindStop, frame_of_return, locate};
use super::rule::FrameRule;
use super::shadow::{ShadowFrame, ShadowStack, UnwindState};
use super::tables;
use super::walk::{FramePosition, StackWalk};
use crate::arch::step::CallerPointers;
use crate::perf::record::UserRegs;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;

enum PointerStep {
    Root,
    /// The caller, and where the frame's own address was stored if that was needed.
    Caller(CallerPointers, Option<u64>),
    /// The caller, or none, by a row that may be wrong.
    Doubtful(Option<CallerPointers>),
    NeedsRegisters,
}

enum LeaveResult {
    Root(CompleteStack),
    ByPointers(CallerPointers, Option<u64>),
    /// The caller, for which all registers were needed.
    ByRegisters(FramePosition),
}

impl StackUnwinder {
    /// Follows a stack to its end, or to the frame from which on it equals the thread's last stack.
    pub(super) fn follow(
        &mut self,
        walk: &mut StackWalk<'_, '_>,
        shadow: &mut ShadowStack,
    ) -> Result<CompleteStack, UnwindStop> {
        let UserRegs { ip, sp, bp, .. } = *walk.start;
        let mut at = FramePosition { pointers: CallerPointers { ip, sp, bp }, called: false, full: false };
        self.first_known = walk.frames.len() + 1;
        let mut search = shadow.search(walk.mappings.generation());
        let mut by_pointers = false;
        loop {
            let leaving = match locate(at.lookup(), walk.mappings, walk.frames) {
                Ok(frame) => match self.leave_frame(frame, &at, walk) {
                    Err(_) if self.is_in_sigreturn(frame, &at, walk) => {
                        walk.frames.pop();
                        at.pointers.ip = at.pointers.ip.wrapping_sub(1);
                        continue;
                    }
                    leaving => leaving?,
                },
                // The row of the frame before has led to what is no code.
                Err(stop) if by_pointers => LeaveResult::ByRegisters(self.leave_last_again(walk).ok_or(stop)?),
                Err(stop) => return Err(stop),
            };
            match leaving {
                LeaveResult::Root(found) => return Ok(found),
                LeaveResult::ByPointers(caller, cfa_slot) => {
                    // Words that calls have left behind, and later ones have not overwritten, may look like a chain.
                    if walk.stack.first_unsure().is_some() && !self.allowance.step() {
                        return Err(UnwindStop::Because(TruncationReason::TooDeep));
                    }
                    if let Some(late) = walk.stack.first_unsure()
                        && !self.may_have_called_last(caller.ip, walk.frames, walk.stack, walk.mappings, walk.images)
                    {
                        return Err(UnwindStop::Unreadable(late));
                    }
                    let state = UnwindState { return_address: caller.ip, sp: caller.sp, bp: caller.bp };
                    // Behind a gap no frame is known to be where it was.
                    while self.gap.is_none()
                        && let Some(common) = shadow.find(&mut search, &state)
                    {
                        if shadow.check(common, &mut search, walk.stack) {
                            return Ok(CompleteStack { common: Some(common), ..CompleteStack::WHOLE });
                        }
                        // What has been searched is now less; the same state may be in the reserve too.
                    }
                    self.known.push(ShadowFrame::new(state, at.pointers.sp, walk.stack.recent(), cfa_slot));
                    (at, by_pointers) = (FramePosition { pointers: caller, called: true, full: false }, true);
                }
                LeaveResult::ByRegisters(caller) => {
                    (at, by_pointers) = (caller, false);
                    // A frame left with all registers depends on more than the shadow stack records.
                    self.first_known = walk.frames.len() + 1;
                    search = shadow.search(walk.mappings.generation());
                }
            }
        }
    }

    /// Whether a frame is in the kernel to end a signal's handler: it is to go on behind its code, where no table is.
    #[cold]
    fn is_in_sigreturn(&mut self, frame: Frame, at: &FramePosition, walk: &StackWalk<'_, '_>) -> bool {
        let in_kernel = walk.frames.first().is_some_and(|first| first.image == ImageIndex::KERNEL);
        !at.called
            && in_kernel
            && self.images.get(frame.image, walk.images).is_some_and(|image| image.ends_restoring(frame.address))
    }

    /// Whether the last frame may have been called by what returns to an address.
    #[cold]
    pub(super) fn may_have_called_last(
        &mut self,
        address: u64,
        frames: &[Frame],
        stack: &UserStack<'_>,
        mappings: &mut Mappings,
        images: &Images,
    ) -> bool {
        // Code behind a new word may have to be followed.
        let allowance = &mut self.allowance;
        let word = |address: u64| allowance.has_time().then(|| stack.peek(address))?.map(|[word, _]| word);
        self.return_addresses.may_have_called(address, frames, mappings, (&mut self.images, images), word)
    }

    /// Leaves the frame at a position, by the first source that says how.
    #[inline]
    fn leave_frame(
        &mut self,
        frame: Frame,
        at: &FramePosition,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<LeaveResult, UnwindStop> {
        if !at.full {
            let step = match self.step(frame, at, walk) {
                Err(UnwindStop::Unreadable(_)) if self.calls_another(frame, at, walk) => self.step(frame, at, walk),
                step => step,
            };
            match step {
                Ok(PointerStep::Root) => return Ok(LeaveResult::Root(CompleteStack::WHOLE)),
                Ok(PointerStep::Caller(caller, cfa_slot)) => return Ok(LeaveResult::ByPointers(caller, cfa_slot)),
                Ok(PointerStep::Doubtful(caller)) => return self.leave_doubtful(frame, caller, walk),
                Ok(PointerStep::NeedsRegisters) => {}
                Err(stop) if is_row_wrong(&stop, at) => {
                    return self.step_against_row(walk).map(LeaveResult::ByRegisters).ok_or(stop);
                }
                Err(stop) => return Err(stop),
            }
        }
        Ok(match self.step_with_registers(frame, walk)? {
            Some(caller) => LeaveResult::ByRegisters(caller),
            None => LeaveResult::Root(CompleteStack::COMPLETE),
        })
    }

    #[cold]
    fn leave_doubtful(
        &mut self,
        frame: Frame,
        by_row: Option<CallerPointers>,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<LeaveResult, UnwindStop> {
        let by_instructions = self.step_against_row(walk).map(LeaveResult::ByRegisters);
        if let Some(leaving) = by_instructions.or(by_row.map(|caller| LeaveResult::ByPointers(caller, None))) {
            return Ok(leaving);
        }
        match self.images.get(frame.image, walk.images) {
            Some(image) => {
                image.judge(frame.address, walk.stack.first_unsure()).map(|()| LeaveResult::Root(CompleteStack::WHOLE))
            }
            None => Err(UnwindStop::Because(TruncationReason::NoUnwindInfo)),
        }
    }

    /// Leaves the last frame once more, but not by its row.
    #[cold]
    fn leave_last_again(&mut self, walk: &mut StackWalk<'_, '_>) -> Option<FramePosition> {
        let caller = self.known.pop();
        let again = self.step_against_row(walk);
        if again.is_none() {
            self.known.extend(caller);
        }
        again
    }

    /// Whether a frame that waited for a call, and is not copied whole, now waits for another call of the same
    /// function. If so, reads beyond the copy are believed while that lasts.
    #[cold]
    fn calls_another(&mut self, frame: Frame, at: &FramePosition, walk: &mut StackWalk<'_, '_>) -> bool {
        let slot = at.pointers.sp.wrapping_sub(8);
        let Some(now) = walk.stack.word_now(slot).filter(|_| at.called) else { return false };
        let Some(now_in) = frame_of_return(now, walk.mappings) else { return false };
        let is_same = self.is_one_function(frame, now_in, walk.images)
            && self.return_addresses.contains(now, walk.mappings, walk.images);
        if is_same {
            walk.stack.anchor_now((slot, now));
        }
        is_same
    }

    #[cold]
    fn is_one_function(&mut self, a: Frame, b: Frame, images: &Images) -> bool {
        let Some(image) = self.images.get(a.image, images).filter(|_| a.image == b.image) else { return false };
        let start = |address: u64| tables::entry_range(image.tables(), address).map(|range| range.start);
        let is_same = || start(a.address).is_some_and(|function| start(b.address) == Some(function));
        self.return_addresses.is_one_function(a, b.address, is_same)
    }

    /// Whether two addresses are of one function, the next instructions there or what calls return to.
    #[cold]
    pub(super) fn are_in_one_function(&mut self, a: u64, b: u64, mappings: &mut Mappings, images: &Images) -> bool {
        let frames = frame_of_return(a, mappings).zip(frame_of_return(b, mappings));
        frames.is_some_and(|(a, b)| self.is_one_function(a, b, images))
    }

    #[inline]
    fn step(
        &mut self,
        frame: Frame,
        at: &FramePosition,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<PointerStep, UnwindStop> {
        let stack = walk.stack;
        let read = |address: u64| stack.read(address);
        let pointers = (at.pointers.sp, at.pointers.bp);
        // The next instruction; of a caller it comes after the call.
        let next = frame.address.wrapping_add(u64::from(at.called));
        let Some((image, framehop)) = self.images.with_framehop(frame.image, walk.images) else {
            return Err(UnwindStop::Because(TruncationReason::NoUnwindInfo));
        };
        let mut slow = false;
        let source = image.source(frame.address, &mut self.rules, &mut self.row_context, &mut slow);
        if slow && !self.allowance.step() {
            return Err(UnwindStop::Because(TruncationReason::TooDeep));
        }
        let mut is_looked_up = false;
        let mut returns_to = |address, start: Option<u64>| match start {
            None => self.return_addresses.contains(address, walk.mappings, walk.images),
            Some(start) => {
                self.return_addresses.follows_call_of(address, (frame.image, start), walk.mappings, walk.images)
            }
        };
        let left = match source {
            RuleSource::Rule(rule) => rule.leave(!at.called, pointers, read),
            RuleSource::Framehop(own) => {
                let (left, looked_up) = framehop.leave(own, at.called, at.pointers, read);
                is_looked_up = looked_up;
                left
            }
            RuleSource::Top => return Ok(PointerStep::Root),
            RuleSource::Doubtful(rule) => {
                return Ok(PointerStep::Doubtful(rule.leave(!at.called, pointers, read).ok().flatten()));
            }
            RuleSource::Realigned(realigned) => match realigned.leave(pointers, &read) {
                Ok((caller, slot)) if caller.ip != 0 => return Ok(PointerStep::Caller(caller, Some(slot))),
                Ok(_) => Ok(None),
                Err(None) => return Ok(PointerStep::NeedsRegisters),
                Err(address) => Err(address),
            },
            RuleSource::Generated => {
                if self.generated.is_due((frame.image, next)) && !self.allowance.has_time() {
                    self.generated.look_no_more();
                }
                let code = |address, len| stack.code(address, len);
                let returns_to = |address| returns_to(address, None);
                self.generated.leave((frame.image, next), pointers, &read, &code, returns_to).map(Some)
            }
            RuleSource::Instructions => {
                if image.is_new(next, at.called) && !self.allowance.long_step() {
                    return Err(UnwindStop::Because(TruncationReason::TooDeep));
                }
                match image.leave_by_instructions((next, at.called), pointers, &read, &mut returns_to) {
                    Some(caller) => Ok(Some(caller)),
                    None => return Ok(PointerStep::NeedsRegisters),
                }
            }
            RuleSource::Registers => return Ok(PointerStep::NeedsRegisters),
        };
        if is_looked_up && !slow && !self.allowance.step() {
            return Err(UnwindStop::Because(TruncationReason::TooDeep));
        }
        match left {
            Ok(Some(caller)) => Ok(PointerStep::Caller(caller, None)),
            // Where the program is, a frame pointer of 0 may be any register.
            Ok(None) if !at.called && source == RuleSource::Rule(FrameRule::FramePointer) => {
                Ok(PointerStep::Doubtful(None))
            }
            Ok(None) => image.judge(frame.address, stack.first_unsure()).map(|()| PointerStep::Root),
            Err(Some(address)) => Err(UnwindStop::Unreadable(address)),
            Err(None) => Err(image.no_way(frame.address)),
        }
    }
}

/// Whether a frame may have been left by a row that is wrong: it leads further away than a stack is long.
fn is_row_wrong(stop: &UnwindStop, at: &FramePosition) -> bool {
    match stop {
        UnwindStop::Unreadable(address) => address.wrapping_sub(at.pointers.sp) >= STACK_BYTES,
        UnwindStop::Because(reason) => *reason == TruncationReason::BadUnwindInfo,
        UnwindStop::Nowhere => false,
    }
}
