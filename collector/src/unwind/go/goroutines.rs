//! The outer ends of goroutines' stacks, for stacks that could not be followed to there.
//!
//! A goroutine changes threads, and its stack moves when it grows. But the runtime has a record of each, which begins
//! with the bounds of its stack (`stack.lo` and `stack.hi` of `g` in runtime2.go, "known to runtime/cgo"), and whose
//! address is in `r14` while its code runs. So the outermost frames of a deep stack are kept with the record and its
//! bounds.
//!
//! A later stack cut off at an address within these bounds is the same goroutine's, if the record holds the same bounds
//! now: no other can have had it in between (unless it was freed and taken back between two looks). Outermost frames
//! that are unchanged now, each word compared, were there at the sample, too. What lies between them and the copy is
//! unknown.
//!
//! Other bounds mean that the stack was moved. Return addresses keep their distance from its end, where they are
//! compared. Should the record serve another goroutine, its frames differ, or are the same.

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::super::memory::{MAX_PROBES, NOTHING_READ, Now, StackWord, UserStack};
use crate::process::ProcessKey;

/// Frames kept of each: all can be compared at once, with the two words of the record.
const FRAMES: usize = MAX_PROBES - 2;
/// Goroutines remembered of a process, some 300 bytes each.
const MAX_GOROUTINES: usize = 1024;
/// Nanoseconds after which the frames of a goroutine are read again.
const FRESH_NS: u64 = 10_000_000;
/// Goroutines checked for a moved stack, for one sample: a microsecond each.
const MAX_LOOKS: usize = 64;
/// Bytes of the largest stack that Go allows.
const MAX_STACK: u64 = 1 << 30;
/// Bytes above the outermost return address that belong to no frame.
const MAX_ABOVE: u64 = 4096;

/// The remembered goroutines of all processes.
#[derive(Debug, Default)]
pub struct GoroutineTable(HashMap<ProcessKey, Goroutines, FxBuildHasher>);

impl GoroutineTable {
    /// Those of one process.
    pub fn of(&mut self, process: ProcessKey) -> &mut Goroutines {
        self.0.entry(process).or_default()
    }

    /// Removes those of a process that has ended.
    pub fn remove(&mut self, process: ProcessKey) {
        self.0.remove(&process);
    }
}

#[derive(Debug, Default)]
pub struct Goroutines {
    /// By the address of the record.
    known: HashMap<u64, Goroutine, FxBuildHasher>,
    /// Of the mappings that their frames are found in.
    generation: u32,
}

#[derive(Clone, Copy, Debug)]
struct Goroutine {
    /// When its frames were as remembered, nanoseconds.
    time: u64,
    bounds: (u64, u64),
    /// Innermost first; the first few may be [`NOTHING_READ`].
    outermost: [StackWord; FRAMES],
}

impl Goroutine {
    fn has(&self, address: u64) -> bool {
        (self.bounds.0..self.bounds.1).contains(&address)
    }

    fn moved(mut self, bounds: (u64, u64)) -> Goroutine {
        let distance = bounds.1.wrapping_sub(self.bounds.1);
        self.bounds = bounds;
        for slot in self.outermost.iter_mut().filter(|slot| **slot != NOTHING_READ) {
            slot.0 = slot.0.wrapping_add(distance);
        }
        self
    }

    /// The slots further out than `address`, from the first unchanged one on; see [`Goroutines::outside`].
    fn unchanged(&self, record: u64, address: u64, stack: &UserStack<'_>) -> Option<usize> {
        let from = self.outermost.partition_point(|&(slot, _)| slot < address);
        let mut slots = [(record, self.bounds.0); MAX_PROBES];
        for (probe, slot) in slots.iter_mut().zip(self.outermost.iter().skip(from)) {
            *probe = *slot;
        }
        slots[MAX_PROBES - 1] = (record.wrapping_add(8), self.bounds.1);
        let frames = FRAMES.checked_sub(from)?;
        let same = match stack.compare(&slots) {
            Now::Same => 0,
            // If the process has ended, what was there before has to do. (Memory that is not used is given back, too.)
            Now::Gone if stack.peek(record).is_none() => 0,
            Now::Changed(last) if last < frames => last + 1,
            Now::Changed(_) | Now::Gone | Now::Unknown => return None,
        };
        (same < frames).then_some(from + same)
    }
}

impl Goroutines {
    /// Remembers a goroutine's outermost frames: `slots` are their return addresses, outermost first. The goroutine is
    /// given by its (possible) record's address and one of its stack.
    #[inline]
    pub fn remember(
        &mut self,
        slots: impl Iterator<Item = StackWord>,
        (record, sp): (u64, u64),
        time: u64,
        generation: u32,
        stack: &UserStack<'_>,
    ) {
        let fresh = |known: &Goroutine| time.saturating_sub(known.time) < FRESH_NS && known.has(sp);
        if self.generation != generation || !self.known.get(&record).is_some_and(fresh) {
            self.renew(slots, record, (sp, time), generation, stack);
        }
    }

    #[cold]
    fn renew(
        &mut self,
        slots: impl Iterator<Item = StackWord>,
        record: u64,
        (sp, time): (u64, u64),
        generation: u32,
        stack: &UserStack<'_>,
    ) {
        let mut outermost = [NOTHING_READ; FRAMES];
        outermost.iter_mut().rev().zip(slots).for_each(|(kept, slot)| *kept = slot);
        let Some(&(root, _)) = outermost.last() else { return };
        if self.generation != generation || self.known.len() >= MAX_GOROUTINES {
            self.known.clear();
            self.generation = generation;
        }
        if let Some(known) = self.known.get_mut(&record).filter(|known| known.has(root) && known.has(sp)) {
            (known.outermost, known.time) = (outermost, time);
            return;
        }
        // An address, and one where a record can lie.
        let bounds = if record.is_multiple_of(8) && record >= 4096 { stack.peek(record) } else { None };
        let fits = |&[low, high]: &[u64; 2]| {
            low <= sp && sp <= root && root < high && high - root <= MAX_ABOVE && high - low <= MAX_STACK
        };
        if let Some([low, high]) = bounds.filter(fits) {
            self.known.insert(record, Goroutine { time, bounds: (low, high), outermost });
        }
    }

    /// The return addresses of the outermost frames further out than `address`, innermost first; none if unknown.
    pub fn outside(
        &mut self,
        address: u64,
        generation: u32,
        stack: &UserStack<'_>,
    ) -> impl Iterator<Item = u64> + use<> {
        let found = self.find(address, generation, stack);
        let found = found.and_then(|(record, known)| Some((known.outermost, known.unchanged(record, address, stack)?)));
        let (slots, from) = found.unwrap_or(([NOTHING_READ; FRAMES], FRAMES));
        slots.into_iter().skip(from).map(|(_, word)| word)
    }

    fn find(&mut self, address: u64, generation: u32, stack: &UserStack<'_>) -> Option<(u64, Goroutine)> {
        if self.generation != generation {
            return None;
        }
        let now = |record: u64| stack.peek(record).map(|[low, high]| (low, high));
        let known = self.known.iter().find(|(_, known)| known.has(address));
        if let Some((&record, &known)) = known
            && now(record).is_none_or(|bounds| bounds == known.bounds)
        {
            return Some((record, known));
        }
        for (&record, known) in self.known.iter_mut().take(MAX_LOOKS) {
            if let Some(bounds) = now(record).filter(|&bounds| bounds != known.bounds) {
                *known = known.moved(bounds);
            }
            if known.has(address) {
                return Some((record, *known));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::memory::Memory;
    use super::*;
    use crate::perf::ring_buffer::Bytes;

    /// Words of a goroutine's stack that are looked at: every second one is a return address.
    const WORDS: usize = 64;

    /// A goroutine in this test's own memory: its record, and its stack, full of return addresses.
    struct GoroutineModel {
        record: Box<[u64; 2]>,
        stack: Box<[u64; WORDS]>,
    }

    impl GoroutineModel {
        fn new(base: u64) -> GoroutineModel {
            let stack: Box<[u64; WORDS]> = Box::new(std::array::from_fn(|i| base + i as u64));
            let record = Box::new(bounds(&stack));
            GoroutineModel { record, stack }
        }

        fn record(&self) -> u64 {
            self.record.as_ptr() as u64
        }

        fn address(&self, word: usize) -> u64 {
            self.stack.as_ptr() as u64 + 8 * word as u64
        }

        /// Every second word, outermost first.
        fn slots(&self) -> impl Iterator<Item = StackWord> {
            (0..WORDS).rev().step_by(2).map(|word| (self.address(word), self.stack[word]))
        }

        fn remember(&self, goroutines: &mut Goroutines, time: u64) {
            with_memory(|stack| {
                goroutines.remember(self.slots(), (self.record(), self.address(1)), time, 1, stack);
            });
        }
    }

    fn bounds(stack: &[u64; WORDS]) -> [u64; 2] {
        let low = stack.as_ptr() as u64;
        [low, low + 8 * WORDS as u64]
    }

    fn with_memory<T>(then: impl FnOnce(&UserStack<'_>) -> T) -> T {
        let mut memory = Memory::default();
        memory.begin(std::process::id(), 1_000_000_000_000);
        then(&UserStack::new(Bytes::new(&[]), 0, &mut memory))
    }

    fn outside(goroutines: &mut Goroutines, address: u64) -> Vec<u64> {
        with_memory(|stack| goroutines.outside(address, 1, stack).collect())
    }

    fn words(model: &GoroutineModel, from: usize) -> Vec<u64> {
        let mut words: Vec<u64> = model
            .slots()
            .take(FRAMES)
            .filter(|slot| slot.0 >= model.address(from))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|slot| slot.1)
            .collect();
        words.reverse();
        words
    }

    #[test]
    fn the_outer_end_is_what_is_the_same_before_and_after() {
        let (mut model, mut goroutines) = (GoroutineModel::new(1000), Goroutines::default());
        model.remember(&mut goroutines, 0);
        assert_eq!(outside(&mut goroutines, model.address(2)), words(&model, 0));
        assert_eq!(outside(&mut goroutines, model.address(50)), words(&model, 50));
        assert_eq!(outside(&mut goroutines, model.address(WORDS)), [0u64; 0]);
        assert_eq!(with_memory(|stack| goroutines.outside(model.address(2), 2, stack).count()), 0, "other mappings");
        // Something in it has changed, and what is further in need not have been there.
        model.stack[55] += 1;
        assert_eq!(outside(&mut goroutines, model.address(2)), words(&model, 56));
        model.stack[WORDS - 1] += 1;
        assert_eq!(outside(&mut goroutines, model.address(2)), [0u64; 0]);
    }

    #[test]
    fn memory_that_another_stack_has_taken_says_nothing() {
        // The words are all there still, but the goroutine has another stack: what is cut off here is not its.
        let (mut model, mut goroutines) = (GoroutineModel::new(1000), Goroutines::default());
        model.remember(&mut goroutines, 0);
        for bounds in [[0, 0], [0x1000, 0x2000], [model.record[0], model.record[1] - 64]] {
            let before = *model.record;
            *model.record = bounds;
            assert_eq!(outside(&mut goroutines, model.address(2)), [0u64; 0], "{bounds:x?}");
            *model.record = before;
        }
    }

    #[test]
    fn a_stack_that_was_moved_is_found() {
        let (mut model, mut goroutines) = (GoroutineModel::new(1000), Goroutines::default());
        model.remember(&mut goroutines, 0);
        let mut other = Box::new(*model.stack);
        *model.record = bounds(&other);
        std::mem::swap(&mut model.stack, &mut other);
        assert_eq!(outside(&mut goroutines, model.address(2)), words(&model, 0));
        assert_eq!(outside(&mut goroutines, other.as_ptr() as u64 + 16), [0u64; 0], "where it was");
        model.stack[55] += 1;
        assert_eq!(outside(&mut goroutines, model.address(2)), words(&model, 56));
    }

    #[test]
    fn only_records_of_goroutines_are_believed() {
        let (model, mut goroutines) = (GoroutineModel::new(1000), Goroutines::default());
        let believed = |goroutines: &mut Goroutines, record: u64, sp: u64| {
            with_memory(|stack| {
                goroutines.remember(model.slots(), (record, sp), 0, 1, stack);
            });
            !goroutines.known.is_empty()
        };
        // Nothing is there; words of something else; the stack pointer is on another stack.
        for (record, sp) in
            [(0, 1), (8, 1), (u64::MAX, 1), (model.address(0), 1), (model.record(), WORDS), (model.record() + 1, 1)]
        {
            assert!(!believed(&mut goroutines, record, model.address(sp)), "{record:x} {sp}");
        }
        assert!(believed(&mut goroutines, model.record(), model.address(1)));
    }

    #[test]
    fn goroutines_without_end_take_no_memory() {
        let mut goroutines = Goroutines::default();
        let models: Vec<GoroutineModel> =
            (0..MAX_GOROUTINES as u64 + 10).map(|i| GoroutineModel::new(1000 * i)).collect();
        models.iter().for_each(|model| model.remember(&mut goroutines, 0));
        assert!((1..=MAX_GOROUTINES).contains(&goroutines.known.len()));
        let last = models.last().unwrap();
        assert_eq!(outside(&mut goroutines, last.address(2)), words(last, 0));
    }
}
