//! The shadow stack against a model: words in this process's own memory; a sample copies a slice of them.

use super::*;
use crate::clock::now_ns;
use crate::perf::ring_buffer::Bytes;
use crate::unwind::memory::Memory;

const WORDS: usize = 1 << 14;

/// A thread of the model. Function `f` has a frame of `2 + f % 3` words above its return address; if `f` is odd it
/// saves its caller's frame pointer in the lowest and sets its own to that place. So frames need all three values to be
/// left.
struct ThreadModel {
    words: Vec<u64>,
    sp: usize,
    bp: u64,
    /// `(function, stack pointer and frame pointer before the call)`, outermost first.
    calls: Vec<(u64, usize, u64)>,
    shadow: ShadowStack,
    /// What another thread remembers of the stacks that it is sent, as the aggregator does.
    reader: LastStack<u64>,
    memory: Memory,
    time: u64,
    read_at: u64,
}

/// The one return address in a function. (One that calls from several places is several functions here.)
fn return_into(function: u64) -> u64 {
    0x40_0000 + 16 * function
}

fn frame_words(function: u64) -> usize {
    2 + (function % 3) as usize
}

impl ThreadModel {
    fn new() -> ThreadModel {
        let (words, sp) = (vec![0; WORDS], WORDS - 8);
        let (shadow, reader, memory) = (ShadowStack::default(), LastStack::default(), Memory::default());
        let mut model =
            ThreadModel { words, sp, bp: 0, calls: Vec::new(), shadow, reader, memory, time: 0, read_at: 0 };
        model.call(0);
        model
    }

    fn address(&self, index: usize) -> u64 {
        self.words.as_ptr() as u64 + 8 * index as u64
    }

    /// The innermost function calls `function`, which takes its frame.
    fn call(&mut self, function: u64) {
        let caller = self.calls.last().map_or(u64::MAX, |call| call.0);
        self.calls.push((function, self.sp, self.bp));
        self.sp -= 1;
        self.words[self.sp] = if caller == u64::MAX { 0 } else { return_into(caller) };
        self.sp -= frame_words(function);
        if function % 2 == 1 {
            self.words[self.sp] = self.bp;
            self.bp = self.address(self.sp);
        }
    }

    fn leave(&mut self) {
        if self.calls.len() > 1 {
            let (_, sp, bp) = self.calls.pop().unwrap();
            (self.sp, self.bp) = (sp, bp);
        }
    }

    /// A sample with a copy of `copied` words: the functions found, innermost first, with those in common, and how many
    /// were unwound. `None` if the copy ended early.
    fn sample(&mut self, copied: usize) -> Option<(Vec<u64>, usize)> {
        self.time = self.time.max(now_ns()) + 1_000_000;
        self.sample_of(self.time, copied)
    }

    /// The same with a sample that was taken at `time`.
    fn sample_of(&mut self, time: u64, copied: usize) -> Option<(Vec<u64>, usize)> {
        let end = (self.sp + copied).min(WORDS);
        let bytes: Vec<u8> = self.words[self.sp..end].iter().flat_map(|word| word.to_le_bytes()).collect();
        self.memory.begin(std::process::id(), time);
        let base = self.words.as_ptr() as u64;
        let stack = UserStack::new(Bytes::new(&bytes), base + 8 * self.sp as u64, &mut self.memory);
        let mut search = self.shadow.search(0);
        let mut function = self.calls.last()?.0;
        let (mut sp, mut bp) = (base + 8 * self.sp as u64, self.bp);
        let mut known = Vec::new();
        let mut functions = vec![function];
        let common = loop {
            let callee_sp = sp;
            let caller_bp = if function % 2 == 1 { stack.read(sp) } else { Some(bp) };
            let slot = sp + 8 * frame_words(function) as u64;
            let (Some(caller_bp), Some(return_address)) = (caller_bp, stack.read(slot)) else {
                self.shadow.interrupt();
                self.reader.begin(Common::default());
                functions.iter().rev().for_each(|&function| self.reader.push(function));
                self.reader.end(Common::default());
                return None;
            };
            if return_address == 0 {
                break Common::default();
            }
            (sp, bp) = (slot + 8, caller_bp);
            let state = UnwindState { return_address, sp, bp };
            let mut found = None;
            while let Some(common) = self.shadow.find(&mut search, &state) {
                if self.shadow.check(common, &mut search, &stack) {
                    found = Some(common);
                    break;
                }
            }
            if let Some(common) = found {
                break common;
            }
            known.push(ShadowFrame::new(state, callee_sp, stack.recent(), None));
            function = (return_address - 0x40_0000) / 16;
            functions.push(function);
        };
        let unwound = functions.len();
        let outside = common.shared as usize + common.own as usize;
        let shared: Vec<u64> = (0..outside)
            .rev()
            .map(|depth| (self.shadow.frame(common, depth).unwrap().state.return_address - 0x40_0000) / 16)
            .collect();
        functions.extend(shared);
        let common = self.shadow.remember(common, &known, &stack, 0, true);
        self.reader.begin(common);
        functions[..unwound].iter().rev().for_each(|&function| self.reader.push(function));
        let outer = self.reader.reserve().iter().take(self.reader.shared());
        assert!(outer.chain(self.reader.own()).eq(functions.iter().rev()), "{common:?}");
        self.reader.end(common);
        if stack.has_read() {
            self.read_at = stack.read_at();
        }
        Some((functions, unwound))
    }

    fn truth(&self) -> Vec<u64> {
        self.calls.iter().rev().map(|call| call.0).collect()
    }

    fn calls(&mut self, functions: &[u64]) {
        functions.iter().for_each(|&function| self.call(function));
    }

    fn leave_all(&mut self) {
        while self.calls.len() > 1 {
            self.leave();
        }
    }
}

/// A generator of numbers below `n`, the same ones each time.
fn random(seed: &mut u64, n: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % n
}

/// Leaves some functions and calls others, from few, so that equal frames often lie at equal places with other callers.
fn walk(model: &mut ThreadModel, seed: &mut u64, functions: u64) {
    for _ in 0..random(seed, 12) {
        model.leave();
    }
    for _ in 0..random(seed, 12) {
        model.call(random(seed, functions));
    }
}

#[test]
fn within_the_copy_sharing_is_exact() {
    for seed in 0..60 {
        let (mut model, mut seed) = (ThreadModel::new(), seed);
        let (mut unwound, mut depth) = (0, 0);
        for _ in 0..200 {
            walk(&mut model, &mut seed, 3);
            let (found, frames) = model.sample(WORDS).unwrap();
            assert_eq!(found, model.truth());
            (unwound, depth) = (unwound + frames, depth + found.len());
        }
        assert!(unwound <= depth);
    }
}

#[test]
fn cost_follows_what_changed() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 1000]);
    assert_eq!(model.sample(WORDS).unwrap().1, 1001);
    model.call(4);
    assert_eq!(model.sample(WORDS).unwrap().1, 2, "the new one, and the one that it returns to");
    model.leave();
    model.leave();
    assert_eq!(model.sample(WORDS).unwrap().1, 1);
}

/// A stack whose inner part is not known is joined with the outer part of the last one: that is no want of room.
#[test]
fn a_stack_that_goes_on_as_the_last_one_is_remembered_whole() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 220]);
    model.sample(WORDS).unwrap();
    let remembered = model.shadow.remembered();
    assert!(remembered > FEW_OWN, "{remembered}");
    for (room, expected) in [(true, remembered), (false, FEW_OWN)] {
        let address = model.shadow.outermost().last().unwrap().0;
        model.memory.begin(std::process::id(), now_ns() + 1_000_000);
        let stack = UserStack::new(Bytes::new(&[]), address, &mut model.memory);
        let joined = model.shadow.join(address, 0, true, &stack, |_, _| false).expect("it is there");
        let (common, _) = model.shadow.outside_gap(joined, true);
        assert_eq!(common.own as usize, remembered);
        let common = model.shadow.remember(common, &[], &stack, 0, room);
        assert_eq!((common.few, common.reserve), (!room, Reserve::Stays));
        assert_eq!(model.shadow.remembered(), expected);
    }
}

/// A sample of the whole stack, of which `copied` words are copied, without unwinding. Returns how much is sure.
fn learn(model: &mut ThreadModel, copied: usize, same_function: bool) -> Alike {
    model.time = model.time.max(now_ns()) + 1_000_000;
    learn_at(model, model.time, copied, same_function)
}

/// The same of a sample taken at `time`.
fn learn_at(model: &mut ThreadModel, time: u64, copied: usize, same_function: bool) -> Alike {
    let (mut search, base) = (model.shadow.search(0), model.words.as_ptr() as u64);
    let known = frames(model);
    model.memory.begin(std::process::id(), time);
    let words: Vec<u8> = model.words[model.sp..].iter().take(copied).flat_map(|word| word.to_le_bytes()).collect();
    let stack = UserStack::new(Bytes::new(&words), base + 8 * model.sp as u64, &mut model.memory);
    stack.peek(base);
    let (mut own, mut found) = (0, None);
    while found.is_none() && own < known.len() {
        match model.shadow.find(&mut search, &known[own].state) {
            Some(common) if model.shadow.check(common, &mut search, &stack) => found = Some(common),
            Some(_) => {}
            None => own += 1,
        }
    }
    let whole = WholeStack { common: found.unwrap_or_default(), frames: &known[..own] };
    let sure = model.shadow.learn(whole, 0, 0, &stack, |_, _| same_function);
    model.shadow.remember(whole.common, &known[..own], &stack, 0, true);
    sure
}

/// The frames behind return addresses, innermost first.
fn frames(model: &ThreadModel) -> Vec<ShadowFrame> {
    let at = |index: usize| model.address(index);
    let calls = model.calls.windows(2).rev();
    let frame = |calls: &[(u64, usize, u64)]| {
        let (caller, (_, sp, bp)) = (calls[0].0, calls[1]);
        let state = UnwindState { return_address: return_into(caller), sp: at(sp), bp };
        ShadowFrame::new(state, at(sp) - 64, [NOTHING_READ; 2], None)
    };
    calls.map(frame).collect()
}

/// Frames that stand outside of a gap after a thread was seen with `stacks` in turn, `times` times in all, each time
/// with the last one in memory still.
fn outside_gap(stacks: &[&[u64]], times: usize, same_function: bool) -> (usize, bool) {
    let mut model = ThreadModel::new();
    for calls in stacks.iter().cycle().take(times) {
        model.leave_all();
        model.calls(calls);
        learn(&mut model, WORDS, same_function);
    }
    let address = model.shadow.outermost().last().unwrap().0 - 64;
    model.time += 1_000_000;
    model.memory.begin(std::process::id(), model.time);
    let stack = UserStack::new(Bytes::new(&[]), address, &mut model.memory);
    let joined = model.shadow.join(address, 0, true, &stack, |_, _| same_function).expect("all is as it was");
    assert!(joined.gap);
    assert_eq!(joined.alike, Alike::new(model.calls.len() - 1, false));
    let (common, function) = model.shadow.outside_gap(joined, false);
    (common.shared as usize + common.own as usize, function.is_some())
}

/// Frames behind a return address: the outermost is 0's, which has called all.
#[test]
fn outside_a_gap_stands_what_changed_at_most_once() {
    let (a, b): (&[u64], &[u64]) = (&[3, 3, 3, 2, 2, 2, 2], &[3, 3, 3, 5, 5, 5, 5, 5]);
    assert_eq!(outside_gap(&[a], 10, true), (7, false));
    // 0, and 3 three times; then 2 and 5 have been called from the same place, and may be one function.
    assert_eq!(outside_gap(&[a, b], 10, false), (4, false));
    assert_eq!(outside_gap(&[a, b], 10, true), (4, true));
    // One that comes once differs from the one before and the one after. That counts for 64 to 128 stacks.
    for (stacks, expected) in [(60, 4), (200, 7)] {
        let mut others = vec![a; stacks];
        others[2] = b;
        assert_eq!(outside_gap(&others, stacks, false), (expected, false), "{stacks}");
    }
    // Without a call there is no frame behind a return address.
    assert_eq!(outside_gap(&[&[2, 2, 2], &[]], 5, false), (0, false));
}

/// The functions that were called, of which the fourth differs. Their frames have the same size.
const ONE: &[u64] = &[3, 3, 2, 4, 4, 4];
const OTHER: &[u64] = &[3, 3, 5, 4, 4, 4];

/// A stack whose outer part was another one at the look before may be either, and so may all that were taken before the
/// look that found the change.
#[test]
fn what_has_changed_between_two_looks_is_not_sure() {
    let mut model = ThreadModel::new();
    let mut sure = |calls: &[u64], before: bool, copied: usize| {
        model.leave_all();
        model.calls(calls);
        match before {
            true => learn_at(&mut model, 1_000_000, copied, false),
            false => learn(&mut model, copied, false),
        }
    };
    let changed = Alike::new(3, false);
    assert_eq!(sure(ONE, false, 4), Alike::ALL);
    assert_eq!(sure(OTHER, false, 4), changed);
    assert_eq!(sure(OTHER, true, 4), changed, "taken before it was found");
    assert_eq!(sure(OTHER, false, 4), Alike::ALL);
    assert_eq!(sure(ONE, false, WORDS), Alike::ALL, "copied");
    assert_eq!(sure(ONE, false, 4), changed, "since the last look");
    // Other frames in between lead elsewhere.
    assert_eq!(sure(&[3, 3, 5, 2, 4, 4, 4], false, 4), Alike::ALL);
}

/// Callers that take turns with each look, or with every third.
#[test]
fn callers_that_one_look_alone_has_found_do_not_last() {
    for (turn, expected) in [(1, Alike::new(3, false)), (3, Alike::ALL)] {
        let mut model = ThreadModel::new();
        for look in 0..99 {
            model.leave_all();
            model.calls(if look / turn % 2 == 0 { ONE } else { OTHER });
            learn(&mut model, 4, false);
        }
        model.time += 1_000_000;
        assert_eq!(learn(&mut model, 4, false), expected, "{turn}");
    }
}

#[test]
fn few_frames_beyond_the_copy_are_all_compared() {
    for seed in 0..60 {
        let (mut model, mut seed) = (ThreadModel::new(), seed);
        for _ in 0..200 {
            walk(&mut model, &mut seed, 3);
            while model.calls.len() > MAX_PROBES {
                model.leave();
            }
            // Enough for two frames: what lies beyond is read, and shared only after a look at each frame.
            let found = model.sample(16).map(|(found, _)| found);
            assert_eq!(found.as_ref(), Some(&model.truth()));
        }
    }
}

/// The stack is rebuilt, so that the frames in the copy are equal in all three values, but those outside of them are not.
#[test]
fn other_callers_of_equal_frames_are_seen() {
    // 2 and 5 have frames of equal size, and so have 1 and 4, of which only one saves the frame pointer.
    for (before, after) in [([2, 3, 3, 3], [5, 3, 3, 3]), ([1, 3, 3, 3], [4, 3, 3, 3]), ([3, 3, 2, 3], [3, 3, 5, 3])] {
        for copied in [8, 12, 16, WORDS] {
            let mut model = ThreadModel::new();
            for functions in [before, after, before] {
                model.leave_all();
                model.calls(&functions);
                assert_eq!(model.sample(copied).unwrap().0, model.truth(), "{functions:?} {copied}");
            }
        }
    }
    // The same at the bottom of a deep recursion, thousands of frames beyond the copy.
    let mut model = ThreadModel::new();
    for first in [2, 5, 2] {
        model.leave_all();
        model.call(first);
        model.calls(&[3; 3000]);
        assert_eq!(model.sample(64).unwrap().0, model.truth());
    }
}

#[test]
fn a_recursion_that_comes_and_goes_is_unwound_once() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 3000]);
    model.sample(64).unwrap();
    let mut seed = 7;
    for _ in 0..50 {
        model.leave_all();
        let depth = random(&mut seed, 3000) as usize;
        model.calls(&vec![3; depth]);
        let (found, unwound) = model.sample(64).unwrap();
        assert_eq!(found, model.truth());
        assert_eq!(unwound, 1);
    }
}

/// Samples that waited while others were looked at.
#[test]
fn frames_seen_since_are_not_read_again() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 3000]);
    model.sample(64).unwrap();
    model.sample(64).unwrap();
    let looked = model.read_at;
    assert_eq!(model.sample_of(looked, 64), Some((model.truth(), 1)));
    assert_eq!(model.read_at, looked);
    // The next two words of the copy are of a frame that has not been looked at, and of one that has been cut off.
    for (left, called) in [(30, 10), (10, 30), (40, 40)] {
        (0..left).for_each(|_| model.leave());
        model.calls(&vec![6; called]);
        let before = model.read_at;
        assert_eq!(model.sample_of(looked, 64).unwrap().0, model.truth());
        assert!(model.read_at > before, "{left} {called}");
        model.sample(64).unwrap();
    }
    // Those next to the copy then have been replaced since, beyond the reserve, too.
    model.leave_all();
    model.calls(&[3; 3100]);
    model.sample(64).unwrap();
    model.sample(64).unwrap();
    let looked = model.read_at;
    (0..50).for_each(|_| model.leave());
    model.calls(&[6; 50]);
    for _ in 0..50 {
        let before = model.read_at;
        assert_eq!(model.sample_of(looked, 64).unwrap().0, model.truth());
        assert!(model.read_at > before, "{}", model.calls.len());
        model.leave();
    }
    // After a look anything may have changed.
    for first in [2, 5] {
        model.leave_all();
        model.call(first);
        model.calls(&[3; 3000]);
        let time = model.read_at + 1;
        assert_eq!(model.sample_of(time, 64).unwrap().0, model.truth());
    }
}

/// A change in the middle of what is not looked at each time is found in the end, because each time others are.
#[test]
fn every_frame_is_looked_at_in_time() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 2000]);
    model.sample(64).unwrap();
    model.leave_all();
    model.calls(&[3; 1000]);
    // Of the same size as 3, and without a frame pointer of its own.
    model.call(6);
    model.calls(&[3; 999]);
    let truth = model.truth();
    let found = (0..2000).position(|_| model.sample(64).is_some_and(|(found, _)| found == truth));
    assert!(found.is_some(), "the changed frame was never seen");
}

#[test]
fn a_target_that_has_moved_on_gives_no_stack() {
    let mut model = ThreadModel::new();
    model.calls(&[3; 100]);
    let end = model.sp + 32;
    let copy: Vec<u8> = model.words[model.sp..end].iter().flat_map(|word| word.to_le_bytes()).collect();
    let base = model.words.as_ptr() as u64;
    let beyond = base + 8 * end as u64;
    for (changed, expected) in [(None, Some(model.words[end])), (Some(model.sp + 2), None)] {
        if let Some(changed) = changed {
            model.words[changed] ^= 1;
        }
        let mut memory = Memory::default();
        memory.begin(std::process::id(), 1_000_000_000_000);
        let stack = UserStack::new(Bytes::new(&copy), base + 8 * model.sp as u64, &mut memory);
        stack.read(base + 8 * (model.sp as u64 + 1));
        stack.read(base + 8 * (model.sp as u64 + 2));
        assert_eq!(stack.read(beyond), expected);
        assert_eq!(memory.refusals().moved_on, u64::from(changed.is_some()));
    }
}

#[test]
fn the_registers_of_a_realigned_frame_are_compared() {
    let mut words = vec![0u64; 64];
    let base = words.as_ptr() as u64;
    let at = |index: u64| base + 8 * index;
    // The outer frame was left by the words at 21 (the return address), 11 (rbp) and 12 (rsp).
    (words[5], words[21], words[11], words[12]) = (0x1111, 0x2222, 7, at(22));
    let inner =
        ShadowFrame::new(UnwindState { return_address: 0x1111, sp: at(6), bp: at(13) }, at(0), [NOTHING_READ; 2], None);
    let outer = UnwindState { return_address: 0x2222, sp: at(22), bp: 7 };
    let outer = ShadowFrame::new(outer, at(6), [(at(11), 7), (at(21), 0x2222)], Some(at(12)));
    for changed in [None, Some(21), Some(11), Some(12), Some(13)] {
        let mut memory = Memory::default();
        let mut shadow = ShadowStack::default();
        let mut words = words.clone();
        let copy = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
        let before = copy(&words);
        shadow.remember(
            Common::default(),
            &[inner, outer],
            &UserStack::new(Bytes::new(&before), base, &mut memory),
            0,
            true,
        );
        changed.iter().for_each(|&changed: &usize| words[changed] ^= 1);
        let now = copy(&words);
        let stack = UserStack::new(Bytes::new(&now), base, &mut memory);
        let mut search = shadow.search(0);
        let common = shadow.find(&mut search, &inner.state).unwrap();
        let same = shadow.check(common, &mut search, &stack);
        assert_eq!(same, changed.is_none_or(|changed| changed == 13), "{changed:?}");
    }
}
