//! From the thread's own stack back to that of the goroutine which runs there, by the chain of frame pointers.
//!
//! Where Go's runtime goes on on the thread's stack (`systemstack`, `morestack`), the function called first saves the
//! goroutine's frame pointer, and the kernel has followed it: the [chain](FrameChain) tells what the goroutine had
//! called, although its stack is not copied.
//!
//! - The place in the chain is sure: the frame pointers up to the saved one are in the copy, each return address above
//!   them is the chain's, and the last of them is the one that unwinding has come to.
//! - From there on each return address must be in Go code behind a call, in a function that keeps its frame pointer
//!   ([`GoCode::follow`]), up to one that nothing calls.
//! - A function without a frame is known by the direct call of it; if it is not, there is a gap.
//!
//! C code on the thread's stack keeps no frame pointers. If it leaves the register alone, the chain begins on the
//! goroutine's stack. Otherwise `asmcgocall` has noted beside its return address whose stack it left, and how far from
//! its end ([`Noted`]). The goroutine waits there, its stack does not move, and what is read is believed while the note
//! is the same and it begins with a return address of a call of that function.
//!
//! The kernel's chain ends after 127 frames. If the goroutine's memory holds the same chain now, link by link,
//! unwinding goes on from its end.

use ccsd_profile::TruncationReason;

use super::super::carried::Carried;
use super::super::cfi;
use super::super::frame::Frame;
use super::super::image_unwind::ImageUnwind;
use super::super::memory::UserStack;
use super::super::outcome::UnwindStop;
use super::super::shadow::ShadowStack;
use super::super::walk::StackWalk;
use super::super::{StackUnwinder, UnwindTarget};
use super::Moved;
use super::chain::FrameChain;
use super::code::GoCode;
use super::systemstack;
use crate::arch::go::{CallTargets, Noted};
use crate::arch::registers::{FP, RA, Registers, SP};
use crate::arch::step::{Caller, CallerPointers, Stuck};
use crate::arch::user_regs::GOROUTINE;
use crate::perf::record::Sample;
use crate::process::images::{ImageIndex, Images};
use crate::process::mappings::Mappings;

/// A function that was called on a goroutine's stack and goes on on another.
struct Switch<'a> {
    frame: Frame,
    /// What is added to an address of the process to get one of the image.
    to_svma: u64,
    /// The stack pointer there, as what it called has left it.
    sp: u64,
    chain: FrameChain<'a>,
}

enum FollowedTo {
    Root,
    /// To a caller with these registers, which has yet to be entered.
    On(CallerPointers),
    /// To where the chain ends; the rest could not be read. Its innermost frame pointer.
    Lost(u64),
}

impl Switch<'_> {
    /// The caller's frame pointer, the chain from there on, and whether that is sure. `bp` is the register as the
    /// callee left it.
    fn caller_in_chain(
        &self,
        bp: Option<u64>,
        stack: &UserStack<'_>,
    ) -> Option<(u64, impl Iterator<Item = u64> + Clone + use<'_>, bool)> {
        // A function of Go has saved the register first.
        let saved = self.sp.checked_sub(16).and_then(|slot| {
            let saved_bp = stack.copied(slot)?;
            let mut addresses = self.chain.from(slot, stack);
            let behind = self.frame.address.wrapping_add(1);
            (addresses.next()?.wrapping_add(self.to_svma) == behind).then_some((saved_bp, addresses, true))
        });
        // One of C may have left it alone.
        saved.or_else(|| bp.map(|bp| (bp, self.chain.from(bp, stack), false)))
    }

    /// Follows the goroutine's stack outwards and enters its frames. `gap` becomes the number of frames before the
    /// missing ones. `None` if the chain says nothing.
    fn follow(
        &self,
        bp: Option<u64>,
        image: &mut ImageUnwind,
        stack: &UserStack<'_>,
        frames: &mut Vec<Frame>,
        gap: &mut Option<usize>,
    ) -> Option<FollowedTo> {
        let (saved_bp, addresses, sure) = self.caller_in_chain(bp, stack)?;
        let before = frames.len();
        let first = addresses.clone().next()?;
        stack.expect((saved_bp.checked_add(8)?, first));
        let known = self.enter_caller(image, first, saved_bp, stack, frames)?;
        if !known && !sure {
            // Nothing says that the two belong together.
            return None;
        }
        *gap = (!known).then_some(before);
        let index = self.frame.image;
        let own = addresses.clone().map(|address| address.wrapping_add(self.to_svma));
        let inner = frames.len();
        let followed = image.go()?.follow(own, gap.is_none(), |address| frames.push(Frame { image: index, address }));
        *gap = gap.or(followed.gap.map(|gap| inner + gap));
        if followed.top {
            return Some(FollowedTo::Root);
        }
        if followed.count == 0 {
            frames.truncate(before);
            *gap = None;
            return None;
        }
        let on = walk(saved_bp, addresses.take(followed.count), stack);
        Some(on.map_or(FollowedTo::Lost(saved_bp), |caller| {
            frames.pop();
            FollowedTo::On(caller)
        }))
    }

    /// Where on the goroutine's stack the function returns to, by its note, and the record if noted. (Only what does
    /// not change while the goroutine waits is read.)
    fn noted_slot(&self, noted: Noted, stack: &UserStack<'_>) -> Option<(u64, Option<u64>)> {
        let word = |distance: i64| stack.read(self.sp.checked_add_signed(distance)?);
        match noted {
            Noted::StackPointer(slot) => Some((word(slot)?, None)),
            Noted::Depth { record, end, depth } => {
                // What is read later is believed if these two are still the same.
                let (record, depth) = (word(record)?, word(depth)?);
                let [end, _] = stack.peek(record.checked_add_signed(end)?)?;
                Some((end.checked_sub(depth)?, Some(record)))
            }
        }
    }

    /// The registers of what called the function, which returns to what is in `slot`. `bp` is as above.
    fn by_note(&self, slot: u64, bp: Option<u64>, go: &mut GoCode, stack: &UserStack<'_>) -> Option<CallerPointers> {
        let address = stack.read(slot)?;
        let start = go.function(self.frame.address)?.start;
        if !go.is_call_of(start, address.wrapping_add(self.to_svma)) {
            return None;
        }
        Some(CallerPointers { ip: address, sp: slot.checked_add(8)?, bp: bp? })
    }

    /// Enters the function's caller, with frame pointer `saved_bp` and return address `first`. Whether all is known.
    fn enter_caller(
        &self,
        image: &mut ImageUnwind,
        first: u64,
        saved_bp: u64,
        stack: &UserStack<'_>,
        frames: &mut Vec<Frame>,
    ) -> Option<bool> {
        let go = image.go()?;
        let callee = go.function(self.frame.address)?.start;
        let own = first.wrapping_add(self.to_svma);
        if go.is_call_of(callee, own) {
            // From Go 1.21 on `systemstack` has a frame, and this is where it returns to.
            return Some(true);
        }
        let between = go.caller_between(callee, own);
        let mut enter = |address| frames.push(Frame { image: self.frame.image, address });
        if let Some((_, CallTargets::One(place))) = between {
            enter(place.wrapping_sub(1));
            return Some(true);
        }
        let read = |address: u64| stack.read(address);
        let late = caller_of_systemstack(image, callee, self.to_svma, saved_bp, &read);
        let late = late.map(|caller| caller.ip.wrapping_add(self.to_svma));
        match (between, late) {
            (None, Some(address)) => enter(address.wrapping_sub(1)),
            (Some((start, _)), Some(address)) if image.go()?.function(address)?.start == start => {
                enter(address.wrapping_sub(1));
            }
            // The place in it is not known, so it stands with its beginning.
            (Some((start, _)), _) => enter(start),
            (None, None) => return Some(false),
        }
        Some(true)
    }
}

/// Follows a goroutine's stack by `addresses`, a chain from a frame in `image` on, the last of the first `sure` frames,
/// replacing the frames after it. Changes nothing unless it leads to a root.
fn follow_from(
    (image, to_svma): (ImageIndex, u64),
    go: &mut GoCode,
    addresses: impl Iterator<Item = u64> + Clone,
    sure: usize,
    frames: &mut Vec<Frame>,
    gap: &mut Option<usize>,
) -> bool {
    let own = addresses.map(|address| address.wrapping_add(to_svma));
    let gaps = gap.is_none();
    let followed = go.follow(own.clone(), gaps, |_| {});
    if followed.top {
        frames.truncate(sure);
        go.follow(own, gaps, |address| frames.push(Frame { image, address }));
        *gap = gap.or(followed.gap.map(|gap| sure + gap));
    }
    followed.top
}

/// The pointers of what the last of a chain returns to, if memory holds the same chain now.
fn walk(frame_pointer: u64, addresses: impl Iterator<Item = u64>, stack: &UserStack<'_>) -> Option<CallerPointers> {
    let mut next = frame_pointer;
    let mut last = None;
    for address in addresses {
        let at = next;
        if stack.read(at.checked_add(8)?)? != address {
            return None;
        }
        next = stack.read(at)?;
        last = Some(CallerPointers { ip: address, sp: at.checked_add(16)?, bp: next });
    }
    last.filter(|caller| caller.ip != 0)
}

/// Leaves a frame that kept the other stack in a register, or was called by the kernel for a signal. `to_svma`
/// translates the process's addresses to the image's, and `returns_to` knows return addresses. Errors:
/// [`Stuck::Unreadable`] where the other stack is not to be read, [`Stuck::NotCovered`] where it cannot be found.
fn leave_by_register(
    image: &mut ImageUnwind,
    address: u64,
    to_svma: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    mut returns_to: impl FnMut(u64) -> bool,
) -> Result<Caller, Stuck> {
    let handles_signals = image.go().is_some_and(|go| go.handles_signals(address));
    let rows = image.rows(address.wrapping_add(1)).to_vec();
    // Where the stack pointer is now is the other stack, whatever comes behind a call that does not return.
    let rows = rows.iter().filter(|row| handles_signals || row.is_kept_elsewhere());
    let mut stuck = Stuck::NotCovered;
    for row in rows {
        match row.apply(registers, read) {
            Ok(caller) => {
                let address = caller.get(RA).unwrap_or(0);
                // A handler of signals is called by the kernel.
                if returns_to(address) || image.restores_signal(address.wrapping_add(to_svma)) {
                    *registers = caller;
                    return Ok(Caller::Called);
                }
            }
            Err(Stuck::Unreadable(address)) if stuck == Stuck::NotCovered => stuck = Stuck::Unreadable(address),
            Err(_) => {}
        }
    }
    Err(stuck)
}

/// The caller of the function at `start`, which has moved to another stack; `saved_bp` is the caller's frame pointer.
/// See [`systemstack`].
fn caller_of_systemstack(
    image: &mut ImageUnwind,
    start: u64,
    to_svma: u64,
    saved_bp: u64,
    read: &impl Fn(u64) -> Option<u64>,
) -> Option<CallerPointers> {
    let caller = image.with_go(|go, image| {
        let calls = |address: u64| go.is_call_of(start, address.wrapping_add(to_svma));
        let frame_end = |caller: &Registers| {
            let own = caller.get(RA)?.wrapping_add(to_svma);
            let mut after = *caller;
            match cfi::leave(image.tables(), own.wrapping_sub(1), &mut after, read) {
                Err(Stuck::NotCovered) => image.rows(own).first()?.apply(caller, read).ok()?.get(SP),
                Ok(_) => after.get(SP),
                Err(_) => None,
            }
        };
        systemstack::caller(saved_bp, read, calls, frame_end)
    });
    CallerPointers::of(&caller??)
}

impl StackUnwinder {
    /// Whether the outermost frame that was found is of a Go program.
    #[inline]
    pub(in super::super) fn is_in_go(&mut self, frames: &[Frame], images: &Images) -> bool {
        let image = frames.last().and_then(|frame| self.images.get(frame.image, images));
        image.is_some_and(|image| image.go().is_some())
    }

    #[inline]
    pub(in super::super) fn remember_goroutine(
        &mut self,
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        target: UnwindTarget<'_>,
        shadow: &ShadowStack,
        frames: &[Frame],
    ) {
        if !self.is_in_go(frames, target.images) {
            return;
        }
        let by_register = || sample.regs.map(|regs| (regs.others[GOROUTINE], regs.sp));
        if let Some(goroutine) = self.goroutine.or_else(by_register) {
            let generation = target.mappings.generation();
            target.goroutines.of(target.process).remember(
                shadow.outermost(),
                goroutine,
                sample.time,
                generation,
                stack,
            );
        }
    }

    pub(in super::super) fn leave_switch(
        &mut self,
        frame: Frame,
        carried: &mut Carried,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Moved, UnwindStop> {
        let registers = &mut carried.registers;
        let at = registers.get(RA).unwrap_or(0).wrapping_sub(u64::from(carried.called));
        let to_svma = frame.address.wrapping_sub(at);
        let unreadable = || UnwindStop::Because(TruncationReason::StackUnreadable);
        let image = self.images.get(frame.image, walk.images).ok_or_else(unreadable)?;
        let read = |address: u64| walk.stack.read(address);
        let returns_to = |address| self.return_addresses.contains(address, walk.mappings, walk.images);
        match leave_by_register(image, frame.address, to_svma, registers, &read, returns_to) {
            Err(Stuck::NotCovered) => {
                let switch = Switch { frame, to_svma, sp: registers.get(SP).unwrap_or(0), chain: walk.chain };
                let caller = self.leave_thread(&switch, registers.get(FP), walk)?;
                Ok(caller.map_or(Moved::Root, Moved::Back))
            }
            left => Ok(Moved::ByRegister(left)),
        }
    }

    /// Follows the kernel's chain from the return address at `slot`, the last of the first `sure` frames. Whether to a
    /// root.
    pub(in super::super) fn follow_chain(
        &mut self,
        slot: u64,
        sure: usize,
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        (mappings, images): (&Mappings, &Images),
        frames: &mut Vec<Frame>,
    ) -> bool {
        let Some(&Frame { image, address }) = sure.checked_sub(1).and_then(|last| frames.get(last)) else {
            return false;
        };
        let Some(to_svma) = mappings.to_svma(image) else { return false };
        let Some(loaded) = self.images.get(image, images) else { return false };
        let Some(go) = loaded.go().filter(|go| go.function(address).is_some()) else { return false };
        let chain = FrameChain::new(sample.user_chain, sample.regs.map_or(0, |regs| regs.bp));
        let addresses = chain.from(slot.wrapping_sub(8), stack);
        follow_from((image, to_svma), go, addresses, sure, frames, &mut self.gap)
    }

    /// Enters the known outermost frames of the goroutine with `slot`, after the first `sure` and a gap. Whether there
    /// are any.
    pub(in super::super) fn end_goroutine(
        &mut self,
        slot: u64,
        sure: usize,
        stack: &UserStack<'_>,
        target: UnwindTarget<'_>,
        frames: &mut Vec<Frame>,
    ) -> bool {
        let UnwindTarget { mappings, process, goroutines, .. } = target;
        let outside = goroutines.of(process).outside(slot, mappings.generation(), stack);
        let mut gap = None;
        for address in outside.map(|address| address.wrapping_sub(1)) {
            let Some(mapping) = mappings.find(address) else { break };
            if gap.is_none() {
                // Of two gaps all that is between them is left out.
                frames.truncate(self.gap.unwrap_or(sure));
                gap = Some(frames.len());
            }
            frames.push(Frame { image: mapping.image, address: address.wrapping_add(mapping.to_svma) });
        }
        self.gap = gap.or(self.gap);
        gap.is_some()
    }

    /// Leaves the thread's stack for that of its goroutine. Returns the registers of the first caller yet to be
    /// entered; `None` if the stack is whole. `bp` is the frame pointer there.
    fn leave_thread(
        &mut self,
        switch: &Switch<'_>,
        bp: Option<u64>,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Option<CallerPointers>, UnwindStop> {
        let (stack, frames) = (walk.stack, &mut *walk.frames);
        let unreadable = || UnwindStop::Because(TruncationReason::StackUnreadable);
        let address = switch.frame.address;
        let image = self.images.get(switch.frame.image, walk.images);
        let image = image.ok_or_else(unreadable)?;
        let go = image.go().ok_or_else(unreadable)?;
        // From Go 1.23 on `morestack` clears the frame pointer, "as caller may execute on another M".
        let cleared = || stack.copied(switch.sp.wrapping_sub(16)) == Some(0);
        let scheduled = |frames: &[Frame]| {
            frames.iter().any(|frame| frame.image == switch.frame.image && go.schedules(frame.address))
        };
        if go.grows_stack(address) && (cleared() || scheduled(frames)) {
            // The goroutine has been put aside, and may run elsewhere: the thread's own stack ends here.
            return Ok(None);
        }
        let start = go.function(address).map_or(0, |function| function.start);
        let noted = go.noted(address.wrapping_add(1));
        let inner_gap = self.gap.take();
        let followed = switch.follow(bp, image, stack, frames, &mut self.gap);
        if let Some(inner) = inner_gap {
            // Of two gaps all that is between them is left out.
            if let Some(outer) = self.gap.filter(|outer| (inner..=frames.len()).contains(outer)) {
                frames.drain(inner..outer);
            }
            self.gap = inner_gap;
        }
        let caller = match followed {
            Some(FollowedTo::Root) => return Ok(None),
            Some(FollowedTo::Lost(address)) => {
                stack.begin_late();
                self.late_from = None;
                return Err(UnwindStop::Unreadable(address));
            }
            Some(FollowedTo::On(caller)) => {
                // What was read is as it was at the time of the sample.
                stack.begin_late();
                self.late_from = None;
                return Ok(Some(caller));
            }
            None => match (noted, image.go()) {
                (Some(noted), Some(go)) => {
                    let (slot, record) = switch.noted_slot(noted, stack).ok_or_else(unreadable)?;
                    self.goroutine = record.map(|record| (record, slot));
                    let caller = switch.by_note(slot, bp, go, stack);
                    // What is further out may be known.
                    Some(caller.ok_or(UnwindStop::Unreadable(slot))?)
                }
                _ => {
                    // What a function of C has found in the register, and left there; or what one of Go has saved first.
                    let saved = stack.read(switch.sp.wrapping_sub(16));
                    let read = |address: u64| stack.read(address);
                    [saved, bp]
                        .into_iter()
                        .flatten()
                        .find_map(|saved_bp| caller_of_systemstack(image, start, switch.to_svma, saved_bp, &read))
                }
            },
        };
        caller.filter(|caller| caller.ip != 0).map(Some).ok_or_else(unreadable)
    }
}
