//! How a stack ends that was not followed to its root.

use ccsd_profile::TruncationReason;

use super::frame::{Frame, Gap, StackRoot, Unwound};
use super::memory::UserStack;
use super::outcome::{UnwindStop, frame_of_return, late_reason};
use super::shadow::{ShadowFrame, ShadowStack, WholeStack};
use super::steady::Alike;
use super::{StackUnwinder, UnwindTarget, tables};
use crate::perf::record::Sample;
use crate::process::images::Images;
use crate::process::mappings::Mappings;
use crate::stack_delta::Common;

impl StackUnwinder {
    /// Ends a stack without root: with the frames by frame pointers, or the outer part of the thread's last one if that
    /// goes on where the copy ends.
    #[cold]
    pub(super) fn join(
        &mut self,
        stop: &UnwindStop,
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        target: UnwindTarget<'_>,
        shadow: &mut ShadowStack,
        frames: &mut Vec<Frame>,
    ) -> Unwound {
        let UnwindTarget { mappings, process, owner, goroutines, images } = target;
        let mut reason = stop.reason(sample);
        let mut wanted = stop.outside_copy(sample);
        // What was read late has led nowhere: it was of another call.
        let copied = self.known.iter().take_while(|known| known.is_copied(stack)).count();
        let (sure, late) = match self.late_from {
            Some(sure) => (sure, stack.first_late()),
            None => {
                let late = self.known.get(copied).map(|known| known.return_slot().0);
                let late = late.or_else(|| stack.first_late().filter(|_| self.known.is_empty()));
                (self.first_known.saturating_add(copied), late)
            }
        };
        let sure = sure.min(frames.len());
        if let Some(late) = late {
            wanted = Some(late);
            if matches!(stop, UnwindStop::Nowhere | UnwindStop::Unreadable(_)) {
                reason = late_reason(sample);
                frames.truncate(sure);
            }
        }
        self.read_too_late += u64::from(wanted.is_some());
        let in_go = self.is_in_go(frames.get(..sure).unwrap_or_default(), images);
        if let Some(slot) = wanted.filter(|_| in_go)
            && self.follow_chain(slot, sure, sample, stack, (mappings, images), frames)
        {
            shadow.interrupt();
            return Unwound { root: StackRoot::Complete, common: Common::default(), gap: self.gap(frames) };
        }
        // Goroutines' stacks lie side by side: one that ends at an address need not be the one that goes on there.
        let one_stack = !in_go;
        let generation = mappings.generation();
        let joined = wanted.and_then(|address| {
            let same_function = |before, now| self.are_in_one_function(before, now, mappings, images);
            shadow.join(address, generation, one_stack, stack, same_function)
        });
        let joined = joined.and_then(|joined| {
            // Of two gaps all that is between them is left out.
            let inner = self.gap.unwrap_or(sure);
            let gap = joined.gap || self.gap.is_some() || {
                let inner = frames.get(..inner).unwrap_or_default();
                !self.may_have_called_last(joined.return_address, inner, stack, mappings, images)
            };
            // A thread dies once: no later stack will show how it had come there.
            let (common, function) = shadow.outside_gap(joined, !gap || self.dying);
            let function = function.and_then(|known| Some((known, self.function_of(&known, mappings, images)?)));
            (common != Common::default() || function.is_some()).then_some((common, function, gap, inner))
        });
        match joined {
            Some((common, function, gap, inner)) => {
                frames.truncate(inner);
                frames.extend(function.map(|(_, frame)| frame));
                let gap = gap.then_some(Gap { outer: u32::from(function.is_some()), reason });
                let function = function.map(|(known, _)| known);
                let common = shadow.remember(common, function.as_slice(), stack, generation, self.room);
                Unwound { root: StackRoot::Complete, common, gap }
            }
            None => {
                shadow.interrupt();
                let target = UnwindTarget { mappings, process, owner, goroutines, images };
                let whole = wanted.is_some_and(|slot| in_go && self.end_goroutine(slot, sure, stack, target, frames));
                let root = if whole { StackRoot::Complete } else { StackRoot::Truncated(reason) };
                let gap = self.gap(frames).map(|gap| Gap { reason, ..gap });
                Unwound { root, common: Common::default(), gap }
            }
        }
    }

    /// Cuts what is not sure from a whole stack of which something is not. Outside the gap stand steady frames.
    #[cold]
    pub(super) fn cut(
        &mut self,
        (common, sure): (Common, Alike),
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        (mappings, images): (&mut Mappings, &Images),
        shadow: &mut ShadowStack,
        frames: &mut Vec<Frame>,
    ) -> Unwound {
        let sure = sure.min(shadow.steady());
        let whole = WholeStack { common, frames: &self.known };
        let beyond = shadow.beyond(whole, stack);
        let function = shadow.frame_of(whole, sure.frames as usize).filter(|_| sure.function);
        let function = function.map(|known| known.of_another_call(None));
        let function = function.and_then(|known| Some((known, self.function_of(&known, mappings, images)?)));
        let in_common = common.shared as usize + common.own as usize;
        // Those that the last stack had not are sent, outside the gap.
        let (kept, outer) = ((sure.frames as usize).min(in_common), (sure.frames as usize).saturating_sub(in_common));
        let end = frames.len().saturating_sub(outer);
        frames.drain(end.saturating_sub(beyond.saturating_sub(in_common + outer))..end);
        for address in shadow.return_addresses(common, beyond.min(in_common)..in_common) {
            let Some(frame) = frame_of_return(address, mappings) else { break };
            frames.push(frame);
        }
        frames.splice(frames.len() - outer..frames.len() - outer, function.map(|(_, frame)| frame));
        let reason = late_reason(sample);
        if kept + outer == 0 && function.is_none() {
            shadow.interrupt();
            return Unwound { root: StackRoot::Truncated(reason), common: Common::default(), gap: None };
        }
        self.known.drain(..self.known.len().saturating_sub(outer));
        self.known.splice(..0, function.map(|(known, _)| known));
        let generation = mappings.generation();
        let common = shadow.remember(common.outermost(kept), &self.known, stack, generation, self.room);
        let outer = self.known.len() as u32;
        Unwound { root: StackRoot::Complete, common, gap: Some(Gap { outer, reason }) }
    }

    /// The function of a frame of which no more is known: where it begins.
    #[cold]
    fn function_of(&mut self, known: &ShadowFrame, mappings: &mut Mappings, images: &Images) -> Option<Frame> {
        let frame = frame_of_return(known.return_slot().1, mappings)?;
        let tables = self.images.get(frame.image, images)?.tables();
        Some(Frame { address: tables::entry_range(tables, frame.address)?.start, ..frame })
    }

    /// For a thread that dies with its stack pointer beyond its stack, nothing can be read. The kernel's chain is taken
    /// as far as it has return addresses, after a gap: the innermost function may keep no frame pointer.
    #[cold]
    pub fn follow_pointers(
        &mut self,
        sample: &Sample<'_>,
        mappings: &mut Mappings,
        images: &Images,
        frames: &mut Vec<Frame>,
    ) -> Option<Gap> {
        let before = frames.len();
        for index in 1..sample.user_chain.len() / 8 {
            let address = sample.user_chain.u64_at(index * 8)?;
            if !self.return_addresses.contains(address, mappings, images) {
                break;
            }
            let Some(frame) = frame_of_return(address, mappings) else { break };
            frames.push(frame);
        }
        let outer = u32::try_from(frames.len() - before).ok().filter(|&outer| outer > 0)?;
        Some(Gap { outer, reason: TruncationReason::StackUnreadable })
    }

    pub(super) fn gap(&self, frames: &[Frame]) -> Option<Gap> {
        let outer = frames.len().saturating_sub(self.gap?);
        Some(Gap { outer: u32::try_from(outer).unwrap_or(u32::MAX), reason: TruncationReason::StackUnreadable })
    }
}
