//! Following a stack by rules of two pointers: nearly all frames of nearly all stacks.

use std::sync::Arc;

use crate::arch::{FramehopCache, FramehopRegs, FramehopUnwinder};
use ccsd_profile::TruncationReason;
use framehop::{FrameAddress, Unwinder};

use super::StackUnwinder;
use super::frame::Frame;
use super::loaded::DEBUG_FRAME_SPAN;
use super::memory::UserStack;
use super::outcome::{Found, Located, Pointers, Stop, locate};
use super::rule::FrameRule;
use super::shadow::{Check, Known, ShadowStack, State};
use super::tables::{Table, Way};
use crate::arch::step::CallerPointers;
use crate::process::images::Images;
use crate::process::mappings::Mappings;

impl StackUnwinder {
    /// Follows a stack up to where it ends, goes on as the thread's last one, or comes to a frame that takes more.
    pub(super) fn fast(
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
                let called = matches!(at, FrameAddress::ReturnAddress(_));
                let next = frame.address.wrapping_add(u64::from(called));
                let (known, read) = (&mut self.return_addresses, |address: u64| stack.read(address));
                let mut believed = |address, start: Option<u64>| match start {
                    None => known.contains(address, mappings, images),
                    Some(start) => known.follows_call_of(address, (frame.image, start), mappings, images),
                };
                let pointers = (regs.sp(), regs.bp());
                let caller = if image.generated {
                    let code = |address, len| stack.code(address, len);
                    let left = self
                        .generated
                        .leave((frame.image, next), pointers, &read, &code, |address| believed(address, None));
                    left.map_err(|address| address.map_or_else(|| image.no_way(frame.address), Stop::Unreadable))?
                } else {
                    image.roots.leave_plainly((next, called), pointers, &read, believed).ok_or(Stop::NeedsCare)?
                };
                regs = FramehopRegs::new(caller.ip, caller.sp, caller.bp);
                caller.ip
            } else if needs_care {
                let realigned = image.roots.realigned(frame.address).ok_or(Stop::NeedsCare)?;
                let left = realigned.leave(regs.sp(), regs.bp(), &|address: u64| stack.read(address));
                let (caller, slot) = left.map_err(|address| address.map_or(Stop::NeedsCare, Stop::Unreadable))?;
                if caller.ip == 0 {
                    return image.judge(frame.address).map(|root| Found { root, ..Found::WHOLE });
                }
                cfa_slot = Some(slot);
                regs = FramehopRegs::new(caller.ip, caller.sp, caller.bp);
                caller.ip
            } else {
                let Some(mut own) = image.own(frame.address) else { return Err(Stop::NeedsCare) };
                if image.roots.table(frame.address) == Table::DebugFrame {
                    own = own.wrapping_add(DEBUG_FRAME_SPAN);
                }
                let innermost = matches!(at, FrameAddress::InstructionPointer(_));
                let (rule, new) = match self.rules.find(own) {
                    Some(rule) => (rule, false),
                    // framehop falls back to the frame pointer silently, so what is new is looked at first.
                    None => match image.roots.examine(frame.address, &mut self.row_context) {
                        Way::Careful => return Err(Stop::NeedsCare),
                        Way::Plain(rule, function) => {
                            self.rules.insert(own, rule);
                            let last =
                                function.as_ref().and_then(|function| image.own(function.range.end.wrapping_sub(1)));
                            if let (Some(function), Some(_)) = (function, last) {
                                self.rules.insert_function(&function.moved(own.wrapping_sub(frame.address)));
                            }
                            (rule, true)
                        }
                    },
                };
                let left = match rule {
                    FrameRule::AskFramehop => {
                        let hits = self.cache.stats().hits();
                        let left =
                            ask_framehop(&mut self.unwinder, &mut self.cache, (own, innermost), &mut regs, stack);
                        if self.cache.stats().hits() == hits && !new && !self.allowance.step() {
                            return Err(Stop::Because(TruncationReason::TooDeep));
                        }
                        left
                    }
                    rule => rule.leave(innermost, (regs.sp(), regs.bp()), |address| stack.read(address)),
                };
                if new && !self.allowance.step() {
                    return Err(Stop::Because(TruncationReason::TooDeep));
                }
                match left {
                    Ok(Some(caller)) => {
                        regs = FramehopRegs::new(caller.ip, caller.sp, caller.bp);
                        caller.ip
                    }
                    Ok(None) => return image.judge(frame.address).map(|root| Found { root, ..Found::WHOLE }),
                    Err(Some(address)) => return Err(Stop::Unreadable(address)),
                    Err(None) => return Err(image.no_way(frame.address)),
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
}

/// Leaves a frame by framehop, as [`FrameRule::leave`] does by a rule.
#[cold]
fn ask_framehop(
    unwinder: &mut FramehopUnwinder<Arc<[u8]>>,
    cache: &mut FramehopCache,
    (own, innermost): (u64, bool),
    regs: &mut FramehopRegs,
    stack: &UserStack<'_>,
) -> Result<Option<CallerPointers>, Option<u64>> {
    let at = if innermost {
        FrameAddress::InstructionPointer(own)
    } else {
        FrameAddress::from_return_address(own.wrapping_add(1)).ok_or(None)?
    };
    match unwinder.unwind_frame(at, regs, cache, &mut |address| stack.read(address).ok_or(())) {
        Ok(caller) => Ok(caller.map(|ip| CallerPointers { ip, sp: regs.sp(), bp: regs.bp() })),
        Err(framehop::Error::CouldNotReadStack(address)) => Err(Some(address)),
        Err(_) => Err(None),
    }
}
