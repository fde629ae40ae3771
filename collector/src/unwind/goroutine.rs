//! From the thread's own stack back to that of the goroutine which runs there, by the chain of frame pointers.
//!
//! Where Go's runtime goes on on the thread's stack (`systemstack`, `morestack`), the function called there first has saved
//! the goroutine's frame pointer, and the kernel has followed it when the sample was taken: so the [chain](FrameChain)
//! tells what the goroutine had called at that moment, although none of its stack is copied, and it may be another's
//! when it can be read. What is taken from it:
//!
//! - The place in the chain is sure: the frame pointers up to the saved one are in the copy, each return address above them
//!   is the chain's, and the last of them is the one that unwinding has come to.
//! - From there on each return address is in code of Go behind a call, in a function that keeps its frame pointer, so that
//!   the next is its own ([`GoCode::follow`](super::go::GoCode::follow)); up to one that nothing calls.
//! - A function without a frame is known by the direct call of it; if it is not, there is a gap.
//!
//! The kernel's chain ends after 127 frames. If the goroutine's memory holds the same chain now, link by link, unwinding
//! goes on from its end.

use ccsd_profile::TruncationReason;
use gimli::X86_64 as R;

use super::careful::Registers;
use super::chain::FrameChain;
use super::go::{Calls, GoCode};
use super::memory::UserStack;
use super::roots::ImageRoots;
use super::{Careful, Frame, Pointers, Root, StackUnwinder, Stop};
use crate::process::images::{ImageIndex, Images};

/// A function that was called on a goroutine's stack and goes on on another.
pub struct Switch<'a> {
    /// Its frame.
    pub frame: Frame,
    /// What is added to an address of the process to get one of the image.
    pub to_svma: u64,
    /// The stack pointer there, as what it called has left it.
    pub sp: u64,
    /// The sample's chain.
    pub chain: FrameChain<'a>,
}

/// Where a goroutine's stack was followed to.
pub enum Way {
    /// To its root.
    Root,
    /// To a caller with these registers, which has yet to be entered.
    On(Pointers),
    /// To where the chain ends; the rest could not be read. Its innermost frame pointer.
    Lost(u64),
}

impl Switch<'_> {
    /// Follows the goroutine's stack outwards and enters its frames. `gap` becomes the number of those before the place where
    /// some are missing. `None` if the chain says nothing.
    pub fn follow(
        &self,
        roots: &mut ImageRoots,
        stack: &UserStack<'_>,
        frames: &mut Vec<Frame>,
        gap: &mut Option<usize>,
    ) -> Option<Way> {
        let slot = self.sp.checked_sub(16)?;
        let saved_bp = stack.copied(slot)?;
        let mut addresses = self.chain.from(slot, stack);
        // That which has been left.
        if addresses.next()?.wrapping_add(self.to_svma) != self.frame.address.wrapping_add(1) {
            return None;
        }
        let before = frames.len();
        let first = addresses.clone().next()?;
        stack.expect((saved_bp.checked_add(8)?, first));
        *gap = (!self.enter_caller(roots, first, saved_bp, stack, frames)?).then_some(before);
        let image = self.frame.image;
        let own = addresses.clone().map(|address| address.wrapping_add(self.to_svma));
        let inner = frames.len();
        let followed = roots.go()?.follow(own, gap.is_none(), |address| frames.push(Frame { image, address }));
        *gap = gap.or(followed.gap.map(|gap| inner + gap));
        if followed.top {
            return Some(Way::Root);
        }
        if followed.count == 0 {
            frames.truncate(before);
            *gap = None;
            return None;
        }
        let on = walk(saved_bp, addresses.take(followed.count), stack);
        let on = on.and_then(|registers| Pointers::of(&registers, true));
        Some(on.map_or(Way::Lost(saved_bp), |pointers| {
            // It is entered once more.
            frames.pop();
            Way::On(pointers)
        }))
    }

    /// Enters what called the function, which has `saved_bp` for its frame pointer and returns to `first`. Whether all is
    /// known.
    fn enter_caller(
        &self,
        roots: &mut ImageRoots,
        first: u64,
        saved_bp: u64,
        stack: &UserStack<'_>,
        frames: &mut Vec<Frame>,
    ) -> Option<bool> {
        let go = roots.go()?;
        let callee = go.function(self.frame.address)?.start;
        let own = first.wrapping_add(self.to_svma);
        if go.is_call_of(callee, own) {
            // From Go 1.21 on `systemstack` has a frame, and this is where it returns to.
            return Some(true);
        }
        let between = go.caller_between(callee, own);
        let mut enter = |address| frames.push(Frame { image: self.frame.image, address });
        if let Some((_, Calls::One(place))) = between {
            enter(place.wrapping_sub(1));
            return Some(true);
        }
        let read = |address: u64| stack.read(address);
        let late = roots.caller_of_switch(callee, self.to_svma, saved_bp, &read);
        let late = late.and_then(|registers| registers.get(R::RA)).map(|address| address.wrapping_add(self.to_svma));
        match (between, late) {
            (None, Some(address)) => enter(address.wrapping_sub(1)),
            (Some((start, _)), Some(address)) if roots.go()?.function(address)?.start == start => {
                enter(address.wrapping_sub(1));
            }
            // The place in it is not known, so it stands with its beginning.
            (Some((start, _)), _) => enter(start),
            (None, None) => return Some(false),
        }
        Some(true)
    }
}

/// Follows the stack of a goroutine by `addresses`, those of a chain from the frame of a function in `image` on, which is
/// the last of the first `sure` frames, and enters the frames outside of it instead of those that come after it. Whether
/// that led to a root; if not, nothing is changed.
pub fn follow_from(
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

/// Whether memory holds the same chain now; and the registers of what the last of it returns to.
fn walk(frame_pointer: u64, addresses: impl Iterator<Item = u64>, stack: &UserStack<'_>) -> Option<Registers> {
    let mut next = frame_pointer;
    let mut registers = Registers::default();
    for address in addresses {
        let at = next;
        if stack.read(at.checked_add(8)?)? != address {
            return None;
        }
        next = stack.read(at)?;
        for (register, value) in [(R::RA, address), (R::RSP, at.checked_add(16)?), (R::RBP, next)] {
            registers.set(register, value);
        }
    }
    Some(registers)
}

impl StackUnwinder {
    /// Leaves the thread's own stack for that of the goroutine which runs there.
    pub(super) fn leave_thread(
        &mut self,
        switch: &Switch<'_>,
        registers: &Registers,
        stack: &UserStack<'_>,
        images: &Images,
        frames: &mut Vec<Frame>,
    ) -> Result<Careful, Stop> {
        let unreadable = Stop::Because(TruncationReason::StackUnreadable);
        let address = switch.frame.address;
        let image = self.images.get(&mut self.unwinder, switch.frame.image, images);
        let Some(image) = image else { return Err(unreadable) };
        let Some(go) = image.roots.go() else { return Err(unreadable) };
        // From Go 1.23 on `morestack` clears the frame pointer, "as caller may execute on another M".
        let cleared = || stack.copied(switch.sp.wrapping_sub(16)) == Some(0);
        let scheduled = |frames: &[Frame]| {
            frames.iter().any(|frame| frame.image == switch.frame.image && go.schedules(frame.address))
        };
        if go.grows_stack(address) && (cleared() || scheduled(frames)) {
            // The goroutine has been put aside, and may run elsewhere: the thread's own stack ends here.
            return Ok(Careful::Ended(Root::Complete));
        }
        let start = go.function(address).map_or(0, |function| function.start);
        let registers = match switch.follow(&mut image.roots, stack, frames, &mut self.gap) {
            Some(Way::Root) => return Ok(Careful::Ended(Root::Complete)),
            Some(Way::Lost(address)) => {
                stack.begin_late();
                return Err(Stop::Unreadable(address));
            }
            Some(Way::On(pointers)) => {
                // What was read is as it was at the time of the sample.
                stack.begin_late();
                return Ok(Careful::Left(pointers));
            }
            None => {
                // What a function of C has found in the register, and left there; or what one of Go has saved first.
                let saved = stack.read(switch.sp.wrapping_sub(16));
                let read = |address: u64| stack.read(address);
                [saved, registers.get(R::RBP)]
                    .into_iter()
                    .flatten()
                    .find_map(|saved_bp| image.roots.caller_of_switch(start, switch.to_svma, saved_bp, &read))
            }
        };
        registers.and_then(|registers| Pointers::of(&registers, true)).map(Careful::Left).ok_or(unreadable)
    }
}
