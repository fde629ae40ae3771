//! Holds back events about generated code until a sampled stack runs through that code. A program can map such code and end,
//! thousands of times a second; its events then take no room from samples.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::jit::MAX_DUMPS;
use crate::process::images::ImageIndex;
use crate::process::jit_code::JitEvent;
use crate::unwind::Frame;

/// The events held back, by image: the beginning of the code, then its jitdumps.
#[derive(Debug, Default)]
pub struct UnmetCode(HashMap<ImageIndex, Vec<JitEvent>, FxBuildHasher>);

impl UnmetCode {
    /// Holds an event back, or returns it if the aggregator has to have it now.
    pub fn keep(&mut self, event: JitEvent) -> Option<JitEvent> {
        match event {
            JitEvent::Begin(index, _) => {
                self.0.insert(index, vec![event]);
                None
            }
            JitEvent::Dump(index, ref file) => {
                let Some(events) = self.0.get_mut(&index) else { return Some(event) };
                let is_same = |known: &JitEvent| matches!(known, JitEvent::Dump(_, known) if is_same_file(known, file));
                // One more than are read, of which a note tells.
                if events.len() <= MAX_DUMPS + 1 && !events.iter().any(is_same) {
                    events.push(event);
                }
                None
            }
            JitEvent::End(index) => self.0.remove(&index).is_none().then_some(event),
        }
    }

    /// Hands on the events of the code that these frames are in. Code that a process inherited comes first: its names are used.
    #[inline]
    pub fn meet(&mut self, frames: &[Frame], mut tell: impl FnMut(JitEvent)) {
        if !self.0.is_empty() {
            frames.iter().for_each(|frame| self.meet_image(frame.image, &mut tell));
        }
    }

    fn meet_image(&mut self, image: ImageIndex, tell: &mut impl FnMut(JitEvent)) {
        let (mut met, mut next) = (Vec::new(), Some(image));
        while let Some(events) = next.and_then(|image| self.0.remove(&image)) {
            next = match events.first() {
                Some(JitEvent::Begin(_, source)) => source.inherited,
                _ => None,
            };
            met.push(events);
        }
        met.into_iter().rev().flatten().for_each(tell);
    }
}

fn is_same_file(one: &File, other: &File) -> bool {
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else { return false };
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}

#[cfg(test)]
mod tests {
    use ccsd_symbolizer::Door;

    use super::*;
    use crate::process::jit_code::JitSource;

    fn begin(index: u32, inherited: Option<u32>) -> JitEvent {
        let source = JitSource {
            pid: 1,
            own_pid: 1,
            user: None,
            other_user: None,
            tmp: None,
            door: Door::default(),
            start_time: 0,
            ahead_ns: 0,
            inherited: inherited.map(ImageIndex),
        };
        JitEvent::Begin(ImageIndex(index), Box::new(source))
    }

    fn text(event: &JitEvent) -> String {
        match event {
            JitEvent::Begin(index, _) => format!("begin {}", index.0),
            JitEvent::Dump(index, _) => format!("dump {}", index.0),
            JitEvent::End(index) => format!("end {}", index.0),
        }
    }

    #[test]
    fn code_is_told_of_when_a_stack_meets_it_and_only_then() {
        let mut unmet = UnmetCode::default();
        let dump = |index| JitEvent::Dump(ImageIndex(index), tempfile::tempfile().unwrap());
        let end = |index| JitEvent::End(ImageIndex(index));
        // Code that comes and goes.
        for event in [begin(1, None), dump(1), end(1)] {
            assert!(unmet.keep(event).is_none());
        }
        // A child's code, whose parent's and grandparent's has not been met either.
        for event in [begin(2, None), begin(3, Some(2)), dump(3), begin(4, Some(3)), begin(5, None)] {
            assert!(unmet.keep(event).is_none());
        }
        let mut told = Vec::new();
        let frames = |images: &[u32]| -> Vec<Frame> {
            images.iter().map(|&image| Frame { image: ImageIndex(image), address: 0 }).collect()
        };
        unmet.meet(&frames(&[0, 4, 4, 1]), |event| told.push(text(&event)));
        assert_eq!(told, ["begin 2", "begin 3", "dump 3", "begin 4"]);
        // Later events of that code are handed on at once.
        for event in [dump(3), end(4), end(2)] {
            assert!(unmet.keep(event).is_some());
        }
        // The number may be another's again.
        assert!(unmet.keep(begin(4, None)).is_none());
        (0..100).for_each(|_| assert!(unmet.keep(dump(4)).is_none()));
        told.clear();
        unmet.meet(&frames(&[4]), |event| told.push(text(&event)));
        assert_eq!((told.len(), told[0].as_str()), (2 + MAX_DUMPS, "begin 4"));
        // Each once, however often it is mapped.
        assert!(unmet.keep(begin(6, None)).is_none());
        let file = tempfile::tempfile().unwrap();
        (0..9).for_each(|_| assert!(unmet.keep(JitEvent::Dump(ImageIndex(6), file.try_clone().unwrap())).is_none()));
        told.clear();
        unmet.meet(&frames(&[6]), |event| told.push(text(&event)));
        assert_eq!(told, ["begin 6", "dump 6"]);
        assert!(unmet.keep(end(5)).is_none() && unmet.0.is_empty());
    }
}
