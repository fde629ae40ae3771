//! Leaving a frame with every register, where stack pointer and frame pointer are not enough.
//!
//! These are signal frames, functions while they realign their stack (afterwards [`realigned`](super::realigned) leaves
//! them), assembly with its frame in another register (lazy binding uses `rbx`), wrong or missing tables, and Go's
//! moves to another stack.
//!
//! Functions further in have saved the other registers. [`Carried`] therefore follows registers from the innermost
//! frame, or the last one left like this, through the frames in between, whose callers are known already.

use ccsd_profile::TruncationReason;

use super::StackUnwinder;
use super::carried::Carried;
use super::cfi;
use super::frame::Frame;
use super::go::{GoFrame, Moved};
use super::image_unwind::ImageUnwind;
use super::outcome::UnwindStop;
use super::walk::{FramePosition, StackWalk};
use crate::arch::registers::{RA, Registers, SP};
use crate::arch::step::{Caller, Stuck};
use crate::arch::{code, signal};

/// Limit on moves to another stack in one stack: a move follows no return address, so it may lead downwards. A
/// goroutine's stack is left for the thread's and for the signal stack.
pub const MAX_SWITCHES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Believed,
    /// It has led nowhere.
    Doubted,
}

impl StackUnwinder {
    /// Leaves the last frame. Returns its caller, or what a signal interrupted; `None` where the stack is whole.
    #[cold]
    pub(super) fn step_with_registers(
        &mut self,
        frame: Frame,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Option<FramePosition>, UnwindStop> {
        self.step_by_registers(frame, Rows::Believed, walk)
    }

    /// Leaves the last frame, whose row led nowhere, by its function's instructions. `None`, with nothing changed, if
    /// these do not lead to a return address either.
    #[cold]
    pub(super) fn step_against_row(&mut self, walk: &mut StackWalk<'_, '_>) -> Option<FramePosition> {
        let (frame, late_from) = (*walk.frames.last()?, self.late_from);
        let caller = self.step_by_registers(frame, Rows::Doubted, walk);
        if !matches!(caller, Ok(Some(_))) {
            (self.carried, self.late_from) = (Carried::default(), late_from);
        }
        caller.ok().flatten()
    }

    fn step_by_registers(
        &mut self,
        frame: Frame,
        rows: Rows,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Option<FramePosition>, UnwindStop> {
        self.allowance.start();
        let mut carried = std::mem::take(&mut self.carried);
        carried.begin(walk.start);
        self.carry(&mut carried, walk)?;
        let caller = self.leave(frame, rows, &mut carried, walk)?;
        self.known.clear();
        self.first_known = usize::MAX;
        self.carried = carried;
        Ok(caller)
    }

    fn carry(&mut self, carried: &mut Carried, walk: &StackWalk<'_, '_>) -> Result<(), UnwindStop> {
        let copied = self.known.iter().take_while(|known| known.is_copied(walk.stack)).count();
        if copied < self.known.len() {
            self.late_from = self.late_from.or(Some(self.first_known.saturating_add(copied)));
        }
        let first = self.first_known.saturating_sub(1);
        for position in 0..self.known.len() {
            if !self.allowance.step() {
                return Err(UnwindStop::Because(TruncationReason::TooDeep));
            }
            let (Some(&frame), Some(known)) = (walk.frames.get(first + position), self.known.get(position)) else {
                break;
            };
            let image = self.images.get(frame.image, walk.images);
            carried.follow(frame, known.state(), image, &mut self.generated, walk.stack);
        }
        Ok(())
    }

    /// Leaves a frame with known registers. In order: a move to another stack, the table's row, a signal's frame, a
    /// coroutine's or thread's beginning, the instructions, a doubtful row, the frame pointer.
    fn leave(
        &mut self,
        mut frame: Frame,
        rows: Rows,
        carried: &mut Carried,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Option<FramePosition>, UnwindStop> {
        if !self.allowance.step() {
            return Err(UnwindStop::Because(TruncationReason::TooDeep));
        }
        let (stack, images) = (walk.stack, walk.images);
        let read = |address: u64| stack.read(address);
        let (registers, called) = (&mut carried.registers, carried.called);
        let Some(image) = self.images.get(frame.image, images) else {
            return Err(UnwindStop::Because(TruncationReason::NoUnwindInfo));
        };
        if image.is_bare_entry(frame.address) {
            return Ok(None);
        }
        // (Of Go's functions each is taken to go on up to the next.)
        let restores = carried.switched && image.restores_signal(frame.address.wrapping_add(1));
        let switched = match image.go_frame(frame.address) {
            _ if restores => false,
            Some(GoFrame::Top) => return Ok(None),
            Some(GoFrame::Switch) => called,
            None => false,
        };
        carried.switches += usize::from(switched);
        if carried.switches > MAX_SWITCHES {
            return Err(UnwindStop::Because(TruncationReason::TooDeep));
        }
        let next = Frame { address: frame.address.wrapping_add(u64::from(called)), ..frame };
        let doubtful = !switched && (rows == Rows::Doubted || cfi::is_doubtful(image.tables(), frame.address));
        if let Some((callee, before)) = carried.callee.take().filter(|_| doubtful && called)
            && let Some(image) = self.images.get(callee.image, images)
            && let Some(row) = image.rows(callee.address).first()
        {
            row.keep(&before, registers);
        }
        let Some(image) = self.images.get(frame.image, images) else {
            return Err(UnwindStop::Because(TruncationReason::NoUnwindInfo));
        };
        carried.callee = Some((next, *registers));
        let left = if restores {
            Err(Stuck::NotCovered)
        } else if switched {
            match self.leave_switch(frame, carried, walk)? {
                Moved::Root => return Ok(None),
                Moved::Back(caller) => {
                    carried.move_to(caller);
                    return Ok(Some(carried.position()));
                }
                Moved::ByRegister(left) => left,
            }
        } else if doubtful {
            let believed = &mut |address| self.return_addresses.contains(address, walk.mappings, images);
            // What is below the stack pointer is not copied.
            leave_believed(image, frame.address, registers, &|address| stack.copied(address), believed)
        } else {
            cfi::leave(image.tables(), frame.address, registers, &read)
        };
        let Some(image) = self.images.get(frame.image, images) else {
            return Err(UnwindStop::Because(TruncationReason::NoUnwindInfo));
        };
        let registers = &mut carried.registers;
        let after_call = frame.address.wrapping_add(1);
        let left = match left {
            // A handler returns to an instruction that no call is before, mostly a function's first.
            Ok(Caller::Interrupted) if called && image.restores_signal(after_call) => {
                if let Some(frame) = walk.frames.last_mut() {
                    frame.address = after_call;
                }
                left
            }
            Err(Stuck::NotCovered) if called && image.restores_signal(after_call) => {
                if let Some(frame) = walk.frames.last_mut() {
                    frame.address = after_call;
                }
                signal::interrupted(registers, &read).map(|interrupted| {
                    *registers = interrupted;
                    Caller::Interrupted
                })
            }
            Err(Stuck::NotCovered) if called && image.begins(after_call) => {
                frame.address = after_call;
                walk.frames.pop();
                walk.frames.push(frame);
                let returns_to = |address| self.return_addresses.contains(address, walk.mappings, images);
                image.leave_beginning(frame.address, registers, &read, returns_to)
            }
            Err(Stuck::NotCovered) if called && image.begins_thread(after_call) => return Ok(None),
            // The behaviour of Go's functions is known: if a table covers them, their instructions are not tried.
            Err(stuck)
                if stuck == Stuck::NotCovered
                    || !switched && (doubtful || stuck == Stuck::Bad) && !image.is_go(frame.address) =>
            {
                self.leave_by_instructions((frame, next), (stuck, doubtful), called, registers, walk)
            }
            left => left,
        };
        (carried.called, carried.switched) = (left == Ok(Caller::Called), switched);
        match (left, self.images.get(frame.image, images)) {
            (Ok(Caller::Called | Caller::Interrupted), _) => {}
            (Err(Stuck::Unreadable(address)), _) => return Err(UnwindStop::Unreadable(address)),
            (Ok(Caller::None), Some(image)) => return image.judge(frame.address, stack.first_unsure()).map(|()| None),
            (_, Some(image)) => return Err(image.no_way(frame.address)),
            (_, None) => return Err(UnwindStop::Because(TruncationReason::NoUnwindInfo)),
        }
        if self.late_from.is_none() && stack.first_late().is_some() {
            // What comes now may be of another call.
            self.late_from = Some(walk.frames.len());
        }
        Ok(Some(carried.position()))
    }

    /// Leaves a frame by its instructions: from here (`next`) to the return, or from the function's beginning to here;
    /// else by a doubtful row; else, without a table, by its frame pointer. Errors: `stuck`, the table's error, unless
    /// the instructions give a more exact one.
    fn leave_by_instructions(
        &mut self,
        (frame, next): (Frame, Frame),
        (stuck, doubtful): (Stuck, bool),
        called: bool,
        registers: &mut Registers,
        walk: &mut StackWalk<'_, '_>,
    ) -> Result<Caller, Stuck> {
        let (stack, images) = (walk.stack, walk.images);
        let read = |address: u64| stack.read(address);
        let image = self.images.get(frame.image, images).ok_or(stuck)?;
        let is_long = image.generated || image.is_new(next.address, called);
        if is_long && !self.allowance.long_step() {
            return Err(stuck);
        }
        let known = &mut self.return_addresses;
        let mut believed = |address, start: Option<u64>| match start {
            None => known.contains(address, walk.mappings, images),
            Some(start) => known.follows_call_of(address, (frame.image, start), walk.mappings, images),
        };
        let generated = image
            .generated
            .then(|| self.generated.rows((frame.image, next.address), &|address, len| stack.code(address, len)));
        let rows = generated.as_deref().unwrap_or_else(|| image.rows(next.address));
        let bare = rows.is_empty();
        let mut left = code::leave(rows, registers, &read, |address| believed(address, None));
        if left.is_err()
            && let Some(entered) = image.entered(next.address, called)
        {
            for row in entered.rows() {
                let Ok(after) = row.apply_upwards(registers, &read) else { continue };
                if let [Some(ip), Some(sp)] = [RA, SP].map(|register| after.get(register))
                    && entered.allows(sp)
                    && believed(ip, Some(entered.start))
                {
                    *registers = after;
                    left = Ok(Caller::Called);
                    break;
                }
            }
        }
        if left.is_err() && doubtful {
            let believed = &mut |address| believed(address, None);
            left = leave_believed(image, frame.address, registers, &read, believed);
        }
        match left {
            Err(left) if stuck == Stuck::NotCovered => {
                let by_pointer = code::leave_by_frame_pointer(registers, &read, |address| believed(address, None));
                by_pointer.map_err(|by_pointer| if bare { by_pointer } else { left })
            }
            Err(_) if !doubtful => Err(stuck),
            left => left,
        }
    }
}

/// Leaves a frame by a doubtful row, if that leads to a return address.
fn leave_believed(
    image: &ImageUnwind,
    address: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    believed: &mut impl FnMut(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut after = *registers;
    match cfi::leave(image.tables(), address, &mut after, read) {
        Ok(Caller::Called) if after.get(RA).is_some_and(believed) => {
            *registers = after;
            Ok(Caller::Called)
        }
        Err(stuck) => Err(stuck),
        Ok(_) => Err(Stuck::Bad),
    }
}
