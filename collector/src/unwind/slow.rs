//! Following a stack frame by frame with every register, for the part of it that framehop cannot follow.

use ccsd_profile::TruncationReason;

use super::careful;
use super::chain::FrameChain;
use super::frame::{Frame, Root};
use super::go::GoFrame;
use super::goroutine::Switch;
use super::memory::UserStack;
use super::outcome::{Careful, Located, Pointers, Stop, locate};
use super::roots::ImageRoots;
use super::{StackUnwinder, roots};
use crate::arch::registers::{RA, Registers, SP};
use crate::arch::step::{Caller, Stuck};
use crate::arch::{code, signal};
use crate::perf::record::UserRegs;
use crate::process::images::Images;
use crate::process::mappings::Mappings;

/// Times that one stack may move to another by what is no return address, and so downwards. Goroutines are left for the
/// thread's stack and the signals' stack.
pub const MAX_SWITCHES: usize = 16;
/// Frames that are followed with every register behind one that had moved to another stack: where C and Go call each other
/// there are several of the kind, close together, and behind them goroutines of hundreds of others.
const NEAR: usize = 8;

impl StackUnwinder {
    /// With every register, frame by frame, until `met` frames have been left.
    #[cold]
    pub(super) fn careful(
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
        let (mut switches, mut near) = (0, 0);
        let mut late = false;
        // The frame before: its next instruction, and its registers.
        let mut callee: Option<(Frame, Registers)> = None;
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
                return Err(Stop::Because(TruncationReason::TooDeep));
            }
            let next = Frame { address: frame.address.wrapping_add(u64::from(called)), ..frame };
            let doubtful = !switched && careful::is_doubtful(image.roots.unwind(), frame.address);
            if let Some((callee, before)) = callee.take().filter(|_| doubtful && called)
                && let Some(image) = self.images.get(&mut self.unwinder, callee.image, images)
                && let Some(row) = image.roots.rows(callee.address).first()
            {
                row.keep(&before, &mut registers);
            }
            let Some(image) = self.images.get(&mut self.unwinder, frame.image, images) else {
                return Err(Stop::Because(TruncationReason::NoUnwindInfo));
            };
            callee = Some((next, registers));
            let table = match switched {
                _ if restores => Err(Stuck::NotCovered),
                false if doubtful => {
                    let known = &mut self.return_addresses;
                    let mut believed = |address| known.contains(address, mappings, images);
                    // What is below the stack pointer is not copied.
                    let copied = |address| stack.copied(address);
                    leave_believed(&image.roots, frame.address, &mut registers, &copied, &mut believed)
                }
                false => careful::leave(image.roots.unwind(), frame.address, &mut registers, &read),
                true => {
                    let to_svma = frame.address.wrapping_sub(lookup);
                    let known = &mut self.return_addresses;
                    let returns_to = |address| known.contains(address, mappings, images);
                    match image.roots.leave_switch(frame.address, to_svma, &mut registers, &read, returns_to) {
                        Err(Stuck::NotCovered) => {
                            let sp = registers.get(SP).unwrap_or(0);
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
                    signal::interrupted(&registers, &read).map(|interrupted| {
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
                Err(Stuck::NotCovered) if called && image.roots.begins_thread(next.address) => {
                    return Ok(Careful::Ended(Root::Complete));
                }
                // Of Go's functions it is known what they do.
                Err(stuck)
                    if stuck == Stuck::NotCovered
                        || !switched && (doubtful || stuck == Stuck::Bad) && !image.roots.is_go(frame.address) =>
                {
                    let known = &mut self.return_addresses;
                    let mut believed = |address, start: Option<u64>| match start {
                        None => known.contains(address, mappings, images),
                        Some(start) => known.follows_call_of(address, (frame.image, start), mappings, images),
                    };
                    let generated = image.generated.then(|| {
                        self.generated.rows((frame.image, next.address), &|address, len| stack.code(address, len))
                    });
                    let rows = generated.as_deref().unwrap_or_else(|| image.roots.rows(next.address));
                    let bare = rows.is_empty();
                    let mut left = code::leave(rows, &mut registers, &read, |address| believed(address, None));
                    if left.is_err()
                        && let Some(entered) = image.roots.entered(next.address, called)
                    {
                        for row in entered.rows() {
                            let Ok(after) = row.apply_upwards(&registers, &read) else { continue };
                            if let [Some(ip), Some(sp)] = [RA, SP].map(|register| after.get(register))
                                && entered.allows(sp)
                                && believed(ip, Some(entered.start))
                            {
                                registers = after;
                                left = Ok(Caller::Called);
                                break;
                            }
                        }
                    }
                    if left.is_err() && doubtful {
                        let believed = &mut |address| believed(address, None);
                        left = leave_believed(&image.roots, frame.address, &mut registers, &read, believed);
                    }
                    match left {
                        Err(left) if stuck == Stuck::NotCovered => {
                            let by_pointer =
                                code::leave_by_frame_pointer(&mut registers, &read, |address| believed(address, None));
                            by_pointer.map_err(|by_pointer| if bare { by_pointer } else { left })
                        }
                        Err(_) if !doubtful => Err(stuck),
                        left => left,
                    }
                }
                result => result,
            };
            let pc = registers.get(RA).unwrap_or(0);
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
            if switched {
                near = frames.len() + NEAR;
            }
            // What has moved to another stack is told from the frame after it, too.
            if frames.len() >= met.max(near)
                && !switched
                && let Some(pointers) = Pointers::of(&registers, called)
            {
                return Ok(Careful::Left(pointers));
            }
        }
    }
}

/// Leaves a frame by a row that may be wrong, if that leads to a return address, as `believed` knows them.
///
/// # Errors
/// As of [`careful::leave`]; the registers are then as before.
fn leave_believed(
    roots: &ImageRoots,
    address: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    believed: &mut impl FnMut(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut after = *registers;
    match careful::leave(roots.unwind(), address, &mut after, read) {
        Ok(Caller::Called) if after.get(RA).is_some_and(believed) => {
            *registers = after;
            Ok(Caller::Called)
        }
        Err(stuck) => Err(stuck),
        Ok(_) => Err(Stuck::Bad),
    }
}
