//! The part of the resolver that deals with generated code; see [`crate::jit`].

use super::{Resolved, Resolver};
use crate::jit::{JitFrameName, JitNames};
use crate::process::images::ImageIndex;
use crate::process::jit_code::JitEvent;
use crate::process::shared_room::SharedRoom;
use crate::unwind::Frame;
use ccsd_profile::{Profile, Shed};

impl Resolver {
    /// What the sampler says of generated code.
    pub fn jit_event(&mut self, profile: &mut Profile, event: JitEvent) {
        match event {
            JitEvent::Begin(index, source) => {
                // The number may have been another's.
                self.end_jit(profile, index);
                if let Some(image) = self.images.get_mut(index.0 as usize) {
                    image.jit = Some(Box::new(JitNames::new(*source)));
                    self.jit_images.push(index);
                }
            }
            JitEvent::Dump(index, file) => {
                if let Some(mut names) = self.take_jit(index) {
                    names.add_dump(file, &mut self.deadline);
                    self.put_jit(index, names);
                }
            }
            JitEvent::End(index) => self.end_jit(profile, index),
        }
    }

    /// A new batch begins: reads jitdumps before samples are charged, as a known name may have been replaced.
    pub(super) fn begin_jit_batch(&mut self, profile: &mut Profile) {
        self.begin_round();
        for i in 0..self.jit_images.len() {
            let index = self.jit_images[i];
            let Some(names) = self.jit_mut(index) else { continue };
            names.begin_batch();
            if names.may_replace()
                && let Some(mut names) = self.take_jit(index)
            {
                self.look(profile, &mut names);
                self.put_jit(index, names);
            }
        }
    }

    /// Reads on in all files of names, and names what waits.
    pub fn look_for_names(&mut self, profile: &mut Profile) {
        self.begin_round();
        for i in 0..self.jit_images.len() {
            let index = self.jit_images[i];
            if let Some(mut names) = self.take_jit(index) {
                self.look(profile, &mut names);
                self.put_jit(index, names);
            }
        }
    }

    /// A round of looks has a limit: each begins with another process, so that all have their turn.
    fn begin_round(&mut self) {
        self.reading_time.begin_round();
        if !self.jit_images.is_empty() {
            self.jit_images.rotate_left(1);
            self.count_all_generated();
        }
    }

    /// The session is over: the last look at all files.
    pub fn finish_names(&mut self, profile: &mut Profile) {
        self.reading_time.begin_end();
        for index in std::mem::take(&mut self.jit_images) {
            self.end_jit(profile, index);
        }
    }

    /// Changes whenever an answer about generated code may have become another.
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Samples counted as nameless that have got a name since the last call.
    pub fn take_named_later(&mut self) -> u64 {
        std::mem::take(&mut self.named_later)
    }

    /// Counts a sample that ended in a frame without a name.
    pub fn count_nameless_leaf(&mut self, leaf: Frame) {
        if let Some(names) = self.jit_mut(leaf.image) {
            names.count_leaf(leaf.address);
        }
    }

    #[cold]
    pub(super) fn resolve_jit(&mut self, profile: &mut Profile, frame: Frame, time: u64) -> Resolved {
        let Some(mut names) = self.take_jit(frame.image) else { return self.resolve_new(profile, frame, time) };
        let payer = self.payer(names.payer());
        let answer = profile.paid_by(payer, |profile| self.answer(profile, &mut names, frame.address, time));
        self.put_jit(frame.image, names);
        Resolved::one(answer.centre, answer.named, answer.until)
    }

    fn answer(&mut self, profile: &mut Profile, names: &mut JitNames, address: u64, time: u64) -> JitFrameName {
        if let Some(answer) = names.known(address, time).filter(|answer| answer.named) {
            return answer;
        }
        for look in [false, true] {
            if look && !(names.may_look() && self.look(profile, names)) {
                break;
            }
            let inherited = names.inherited().and_then(|parent| self.jit(parent));
            if let Some(answer) = names.enter(profile, inherited, address, time) {
                return answer;
            }
        }
        names.known(address, time).unwrap_or_else(|| names.wait(profile, address, time))
    }

    fn look(&mut self, profile: &mut Profile, names: &mut JitNames) -> bool {
        let Some(slice) = self.reading_time.slice(names.user()) else {
            names.pass();
            return false;
        };
        let (bytes, left_out) = (self.generated_room(names), names.left_out());
        let grown = names.look(slice.until, bytes, &mut self.deadline);
        self.count_generated(names);
        let left_out = names.left_out().saturating_sub(left_out);
        profile.accounting_mut().shed.add(Shed::GeneratedCode, left_out);
        if grown {
            let inherited = names.inherited().and_then(|parent| self.jit(parent));
            let payer = self.payer(names.payer());
            let named = profile.paid_by(payer, |profile| names.name_waiting(profile, inherited));
            self.named_later += named;
            self.generation = self.generation.wrapping_add(1);
        }
        self.reading_time.spend(slice);
        grown
    }

    /// Bytes that the names of generated code take, of all processes but one whose names are being looked at.
    pub(super) fn generated_bytes(&self) -> usize {
        self.jit_images.iter().filter_map(|&index| self.jit(index)).map(JitNames::bytes).sum()
    }

    /// Bytes that there are for the names of the code of a process that is being looked at, in its user's share. What it takes
    /// is given back until [`Resolver::count_generated`].
    fn generated_room(&mut self, names: &mut JitNames) -> usize {
        self.generated.give(names.payer(), std::mem::take(&mut names.counted_bytes));
        usize::try_from(self.generated.left(names.payer())).unwrap_or(usize::MAX)
    }

    fn count_generated(&mut self, names: &mut JitNames) {
        names.counted_bytes = names.bytes() as u64;
        self.generated.add(names.payer(), names.counted_bytes);
    }

    /// Counts what the names of all processes take now, with what was looked up since the last round.
    fn count_all_generated(&mut self) {
        self.generated = SharedRoom::new(self.budget.generated_code as u64);
        for i in 0..self.jit_images.len() {
            let index = self.jit_images[i];
            if let Some(mut names) = self.take_jit(index) {
                self.count_generated(&mut names);
                self.put_jit(index, names);
            }
        }
    }

    fn end_jit(&mut self, profile: &mut Profile, index: ImageIndex) {
        let Some(mut names) = self.take_jit(index) else { return };
        let (bytes, left_out) = (self.generated_room(&mut names), names.left_out());
        self.jit_images.retain(|&other| other != index);
        if names.is_unasked() {
            // No answer becomes another.
            return;
        }
        let slice = self.reading_time.last_slice(names.user());
        let payer = self.payer(names.payer());
        let mut deadline = std::mem::take(&mut self.deadline);
        let inherited = names.inherited().and_then(|parent| self.jit(parent));
        let look = slice.map(|slice| (slice.until, bytes));
        let named = profile.paid_by(payer, |profile| names.finish(profile, inherited, look, &mut deadline));
        self.deadline = deadline;
        self.reading_time.unread += u64::from(names.is_unread());
        if let Some(slice) = slice {
            self.reading_time.spend(slice);
        }
        self.named_later += named;
        profile.accounting_mut().shed.add(Shed::GeneratedCode, names.left_out().saturating_sub(left_out));
        self.left.add_notes(names.take_notes());
        self.generation = self.generation.wrapping_add(1);
    }

    fn jit(&self, index: ImageIndex) -> Option<&JitNames> {
        self.images.get(index.0 as usize)?.jit.as_deref()
    }

    fn jit_mut(&mut self, index: ImageIndex) -> Option<&mut JitNames> {
        self.images.get_mut(index.0 as usize)?.jit.as_deref_mut()
    }

    fn take_jit(&mut self, index: ImageIndex) -> Option<Box<JitNames>> {
        self.images.get_mut(index.0 as usize)?.jit.take()
    }

    fn put_jit(&mut self, index: ImageIndex, names: Box<JitNames>) {
        if let Some(image) = self.images.get_mut(index.0 as usize) {
            image.jit = Some(names);
        }
    }
}

#[cfg(test)]
#[path = "generated_tests.rs"]
mod tests;
