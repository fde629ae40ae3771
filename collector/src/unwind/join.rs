//! How a stack ends that was not followed to its root.

use ccsd_profile::TruncationReason;

use super::frame::{Frame, Gap, StackRoot, Unwound};
use super::memory::UserStack;
use super::outcome::{UnwindStop, late_reason};
use super::shadow::{ShadowFrame, ShadowJoin, ShadowStack};
use super::{StackUnwinder, UnwindTarget};
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
        let joined = joined.and_then(|ShadowJoin { common, gap, return_address }| {
            // Of two gaps all that is between them is left out.
            let inner = self.gap.unwrap_or(sure);
            let gap = gap || self.gap.is_some() || {
                let inner = frames.get(..inner).unwrap_or_default();
                !self.may_have_called_last(return_address, inner, stack, mappings, images)
            };
            // A thread dies once: no later stack will show how it had come there.
            let common = if gap && !self.dying { shadow.outside_gap(common)? } else { common };
            Some((common, gap.then_some(Gap { outer: 0, reason }), inner))
        });
        match joined {
            Some((common, gap, inner)) => {
                frames.truncate(inner);
                let common = shadow.remember(common, &[], stack, generation, self.room);
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

    /// Cuts what lies beyond the copy from a whole stack if two looks disagree about it: it may belong to an earlier or a
    /// later call. `None` if none do.
    #[inline]
    pub(super) fn cut_where_looks_disagree(
        &mut self,
        common: Common,
        sample: &Sample<'_>,
        stack: &UserStack<'_>,
        (mappings, images): (&mut Mappings, &Images),
        shadow: &mut ShadowStack,
        frames: &mut Vec<Frame>,
    ) -> Option<Unwound> {
        let in_common = common.shared as usize + common.own as usize;
        if self.dying || self.changed.is_none() && !shadow.has_looked() {
            return None;
        }
        let (known, changed) = (std::mem::take(&mut self.known), self.changed);
        let at = |shadow: &ShadowStack, depth: usize| {
            let frame = match depth.checked_sub(in_common) {
                None => shadow.frame(common, depth),
                Some(inner) => known.iter().rev().nth(inner),
            };
            frame.filter(|frame| !frame.is_copied(stack)).map(ShadowFrame::return_slot)
        };
        let same_function = |before, now| self.are_in_one_function(before, now, mappings, images);
        let agreed = shadow.agreed_frames(changed, at, same_function, stack);
        self.known = known;
        // A frame that has changed further out than was looked at is not on the last stack; its function may be there.
        let sure = if changed.is_some() { agreed?.min(in_common + 1) } else { agreed? };
        let late = self.known.iter().rev().take_while(|known| !known.is_copied(stack)).count();
        let beyond = if late > 0 { in_common + late } else { shadow.uncopied(common, stack) };
        if sure >= beyond {
            return None;
        }
        self.disagreed += 1;
        // Those that the last stack had not are sent, outside the gap.
        let (kept, outer) = (sure.min(in_common), sure.saturating_sub(in_common).min(late));
        let end = frames.len().saturating_sub(outer);
        frames.drain(end.saturating_sub(late - outer)..end);
        for address in shadow.return_addresses(common, beyond.min(in_common)..in_common) {
            let lookup = address.wrapping_sub(1);
            let Some(mapping) = mappings.find(lookup) else { break };
            frames.push(Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) });
        }
        let reason = late_reason(sample);
        if kept + outer == 0 {
            shadow.interrupt();
            return Some(Unwound { root: StackRoot::Truncated(reason), common: Common::default(), gap: None });
        }
        let (common, generation) = (common.outermost(kept), mappings.generation());
        let known = self.known.get(self.known.len() - outer..).unwrap_or_default();
        let common = shadow.remember(common, known, stack, generation, self.room);
        Some(Unwound { root: StackRoot::Complete, common, gap: Some(Gap { outer: outer as u32, reason }) })
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
            let lookup = address.wrapping_sub(1);
            let Some(mapping) = mappings.find(lookup) else { break };
            frames.push(Frame { image: mapping.image, address: lookup.wrapping_add(mapping.to_svma) });
        }
        let outer = u32::try_from(frames.len() - before).ok().filter(|&outer| outer > 0)?;
        Some(Gap { outer, reason: TruncationReason::StackUnreadable })
    }

    pub(super) fn gap(&self, frames: &[Frame]) -> Option<Gap> {
        let outer = frames.len().saturating_sub(self.gap?);
        Some(Gap { outer: u32::try_from(outer).unwrap_or(u32::MAX), reason: TruncationReason::StackUnreadable })
    }
}
