//! The shadow stack: what a thread's last stack looked like, so that the next is unwound only as far as it differs.
//!
//! framehop leaves a frame by three values (return address, stack pointer, frame pointer) and reads two words of the
//! stack: the caller's return address and possibly its frame pointer; a [`realigned`](super::realigned) frame also has
//! its stack pointer there. For each frame of the last stack behind a return address, the three values and the words'
//! places are remembered.
//!
//! If a new sample comes to a frame with the same three values, the rest is the same *if the words that were read on
//! the way are the same*, by induction to the root. So the words of every frame further out are compared:
//!
//! - those in the copy, each and every one. Within the copy sharing is therefore exact. The three values alone would
//!   not do: a frame of the same function can lie at the same place with other callers.
//! - those beyond the copy, by reading some from the target's memory ([`memory`](super::memory)): next to the copy,
//!   next to the root, some between at doubling distances; and every time two others. To change one, the program must
//!   have returned from all frames between it and the copy and called again, each function from the same place with a
//!   frame at the same address; a stack rebuilt to the same shape but for a few frames is recognised as soon as one of
//!   those is read.
//!
//! What the memory holds now is true of every earlier sample of the thread: frames looked at since a sample was taken
//! are not looked at again for it, but for the words next to the copy if that ends elsewhere.
//!
//! Where a word differs, only what lies further out can be shared, and unwinding goes on to there. Samples between two
//! looks that disagree may have had either stack ([`ShadowStack::learn`]). Which frames may be shown where they
//! change often, [`steady`](super::steady) says.
//!
//! A stack beyond the copy is kept in reserve ([`LastStack`]) when the thread returns out of it: recursion comes again,
//! and reading megabytes for each sample would cost too much. Its words are compared before use.

use std::cmp::Ordering;
use std::ops::Range;

use crate::clock::now_ns;
use crate::stack_delta::{Common, FEW_OWN, LastStack, Reserve};
use crate::unwind::memory::{MAX_PROBES, NOTHING_READ, Now, STACK_BYTES, StackWord, UserStack};
use crate::unwind::steady::{Alike, LastingFrames, SteadyFrames};

/// Samples in a row that make no use of the reserve before it is given up: 10 s of CPU time at the usual rate.
const MAX_IDLE: u32 = 10_000;
/// Frames beyond the reserve from which on they are added to it. To unwind fewer again for each sample costs little.
const MANY_OWN: usize = 256;
/// Probes next to the root; next to the copy; anywhere.
const NEAR_ROOT: usize = 6;
const NEAR_COPY: usize = 8;
const ANYWHERE: usize = MAX_PROBES - NEAR_ROOT - NEAR_COPY;
/// Probes next to the copy repeated where the copy ends elsewhere, and by how many frames. They reach the next one that
/// is not repeated.
const NEAREST: usize = 4;
const NOT_FAR: usize = distance(NEAREST) - distance(NEAREST - 1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnwindState {
    /// Where the callee returns to (AVMA).
    pub return_address: u64,
    pub sp: u64,
    pub bp: u64,
}

/// A frame that a return address led to.
#[derive(Clone, Copy, Debug)]
pub struct ShadowFrame {
    state: UnwindState,
    /// Where `rbp` and `rsp` were restored from, in bytes below `rsp`; 0 if not saved. (Capped: as good as not copied.)
    bp_below: u32,
    sp_below: u32,
}

impl ShadowFrame {
    /// The state after a callee with stack pointer `callee_sp` had read `recent`, and before that the caller's stack
    /// pointer from `sp_slot`.
    #[inline]
    pub fn new(state: UnwindState, callee_sp: u64, recent: [StackWord; 2], sp_slot: Option<u64>) -> ShadowFrame {
        let places = callee_sp..state.sp.wrapping_sub(8);
        let saved = recent.into_iter().find(|slot| places.contains(&slot.0) && slot.1 == state.bp);
        let below = |slot: u64| u32::try_from(state.sp.wrapping_sub(slot)).unwrap_or(u32::MAX);
        let bp_below = saved.map_or(0, |slot| below(slot.0));
        ShadowFrame { state, bp_below, sp_below: sp_slot.map_or(0, below) }
    }

    /// Where `rbp` and `rsp` were restored from, if they were, and what was there.
    #[inline]
    fn saved(&self) -> impl Iterator<Item = StackWord> {
        let slot = |below: u32, word| (below != 0).then(|| (self.state.sp.wrapping_sub(below.into()), word));
        [slot(self.bp_below, self.state.bp), slot(self.sp_below, self.state.sp)].into_iter().flatten()
    }

    /// The frame of its function that waits for a call which is not known: the one that returns to `calls`, or this one's.
    /// No stack goes on as from it, because no frame has its frame pointer.
    pub fn of_another_call(&self, calls: Option<u64>) -> ShadowFrame {
        let return_address = calls.unwrap_or(self.state.return_address);
        let state = UnwindState { return_address, bp: u64::MAX, ..self.state };
        ShadowFrame { state, bp_below: 0, sp_below: 0 }
    }

    fn is_of_another_call(&self) -> bool {
        self.state.bp == u64::MAX
    }

    pub fn state(&self) -> UnwindState {
        self.state
    }

    /// Where its return address lies. All of framehop's rules for x86_64 take it from below the caller's stack pointer.
    pub fn return_slot(&self) -> StackWord {
        (self.state.sp.wrapping_sub(8), self.state.return_address)
    }

    /// Whether the sample has copied that.
    pub fn is_copied(&self, stack: &UserStack<'_>) -> bool {
        stack.copied(self.return_slot().0).is_some()
    }
}

/// The last stack of a thread.
#[derive(Clone, Debug, Default)]
pub struct ShadowStack {
    last: LastStack<ShadowFrame>,
    /// Samples since the reserve was last of use.
    idle: u32,
    /// Goes on with every check, so that each tries other frames.
    turn: u32,
    /// What was looked at in the target's memory last.
    seen: Seen,
    generation: u32,
    steady: SteadyFrames,
    lasting: LastingFrames,
    /// The last look at memory that found something else than the one before.
    look: Option<Look>,
}

/// Frames that the target's memory has been asked about, by all probes, and that were there as they are remembered.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// When, or a little before (nanoseconds).
    at: u64,
    /// How many, from the root: of the reserve, and beyond it.
    reserve: usize,
    own: usize,
    /// How many more there were, innermost, that are remembered no more.
    cut: usize,
}

/// How far into the last stack a new one has been compared.
#[derive(Clone, Copy, Debug)]
pub struct Search {
    own: usize,
    reserve: usize,
}

/// A look at the target's memory that found a frame other than the look before.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The depth, from the root, of the innermost frame beyond the copy, and where its return address lay. The look counts for
    /// stacks that have one at the same place.
    boundary: (usize, u64),
    /// The depth of the frame that differed, its return address, and the place and the return address of the next.
    depth: usize,
    word: u64,
    callee: Option<StackWord>,
    /// How far both looks were alike.
    alike: Alike,
    /// When it was (nanoseconds).
    at: u64,
    /// Whether another look has found the same.
    again: bool,
}

/// A whole stack.
#[derive(Clone, Copy)]
pub struct WholeStack<'a> {
    /// The outer frames, which the last stack has, too.
    pub common: Common,
    /// The other frames, innermost first.
    pub frames: &'a [ShadowFrame],
}

impl ShadowStack {
    /// Begins to compare a new stack under the mappings of `generation`.
    pub fn search(&mut self, generation: u32) -> Search {
        if self.generation != generation {
            return Search { own: 0, reserve: 0 };
        }
        Search { own: self.last.own().len(), reserve: self.last.reserve().len() }
    }

    /// Whether the new stack, now in `state`, goes on as the remembered one does. Words are not compared yet.
    #[inline]
    pub fn find(&self, search: &mut Search, state: &UnwindState) -> Option<Common> {
        let own = self.last.own();
        while let Some(known) = search.own.checked_sub(1).and_then(|last| own.get(last)) {
            if known.state.sp > state.sp {
                break;
            }
            if known.state == *state {
                let shared = self.last.shared() as u32;
                return Some(Common { shared, own: search.own as u32, reserve: Reserve::Stays, few: false });
            }
            search.own -= 1;
        }
        if search.reserve == 0 {
            return None;
        }
        self.find_in_reserve(search, state)
    }

    #[cold]
    fn find_in_reserve(&self, search: &mut Search, state: &UnwindState) -> Option<Common> {
        let reserve = self.last.reserve().get(..search.reserve)?;
        // Frame by frame outwards it is next to where the search has come to.
        let mut near = 1;
        while reserve.len().checked_sub(near).is_some_and(|at| reserve[at].state.sp < state.sp) {
            near *= 2;
        }
        let outer = reserve.len().saturating_sub(near);
        search.reserve = outer + reserve.get(outer..)?.partition_point(|known| known.state.sp >= state.sp);
        let known = reserve.get(search.reserve.checked_sub(1)?)?;
        let found = Common { shared: search.reserve as u32, own: 0, reserve: Reserve::Stays, few: false };
        (known.state == *state).then_some(found)
    }

    /// A frame of what is common, counted from the root.
    pub fn frame(&self, common: Common, depth: usize) -> Option<&ShadowFrame> {
        match depth.checked_sub(common.shared as usize) {
            None => self.last.reserve().get(depth),
            Some(depth) => self.last.own().get(depth),
        }
    }

    /// Compares the words of what was found with the sample's copy and the target's memory. Whether all of it that was looked
    /// at is the same; else what has been searched is now less.
    pub fn check(&mut self, common: Common, search: &mut Search, stack: &UserStack<'_>) -> bool {
        // The innermost has been found by its values; its own slots have just been read.
        let (left, same) =
            self.compare_copied(common, (common.shared as usize + common.own as usize).saturating_sub(1), stack);
        if !same {
            limit(search, common, left.saturating_sub(1));
            return false;
        }
        if left == 0 {
            return true;
        }
        let reserve = left.min(common.shared as usize);
        let own = left - reserve;
        let (depths, all) = match self.seen.distance(reserve, own).filter(|_| self.seen.at >= stack.time()) {
            Some(0) => return true,
            Some(..=NOT_FAR) => (nearest_to_copy(left), false),
            _ => {
                self.turn = self.turn.wrapping_add(1);
                (probes(left, self.turn, self.look.map_or(0, |look| look.depth)), true)
            }
        };
        let slots = depths.map(|depth| self.frame(common, depth).map_or(NOTHING_READ, ShadowFrame::return_slot));
        match stack.compare(&slots) {
            Now::Same => {
                if all {
                    self.seen = Seen { at: stack.read_at(), reserve, own, cut: 0 };
                }
                return true;
            }
            // Further in than this it is another stack.
            Now::Changed(changed) => limit(search, common, depths.get(changed).copied().unwrap_or(0)),
            Now::Gone | Now::Unknown => limit(search, common, 0),
        }
        false
    }

    /// A frame of a whole stack, counted from the root.
    pub fn frame_of<'a>(&'a self, stack: WholeStack<'a>, depth: usize) -> Option<&'a ShadowFrame> {
        match depth.checked_sub(stack.common.shared as usize + stack.common.own as usize) {
            None => self.frame(stack.common, depth),
            Some(inner) => stack.frames.iter().rev().nth(inner),
        }
    }

    /// How many of a whole stack's outermost frames lie beyond the copy.
    #[inline]
    pub fn beyond(&self, whole: WholeStack<'_>, stack: &UserStack<'_>) -> usize {
        if self.frame_of(whole, 0).is_none_or(|known| known.is_copied(stack)) {
            return 0;
        }
        let (mut beyond, mut copied) =
            (0, whole.common.shared as usize + whole.common.own as usize + whole.frames.len());
        while beyond < copied {
            let middle = beyond.midpoint(copied);
            match self.frame_of(whole, middle) {
                Some(known) if !known.is_copied(stack) => beyond = middle + 1,
                _ => copied = middle,
            }
        }
        beyond
    }

    /// Where the frames of what is common return to, from one depth to another, innermost first.
    pub fn return_addresses(&self, common: Common, depths: Range<usize>) -> impl Iterator<Item = u64> {
        depths.rev().filter_map(move |depth| self.frame(common, depth)).map(|known| known.state.return_address)
    }

    /// Compares the outermost `left` frames with the copy, innermost first. Returns how many are left and whether all
    /// were the same; if not, the innermost that is left is not.
    fn compare_copied(&self, common: Common, mut left: usize, stack: &UserStack<'_>) -> (usize, bool) {
        let shared = common.shared as usize;
        let own = self.last.own().get(..left.saturating_sub(shared)).unwrap_or_default();
        let same = same_in_piece(own, stack);
        left -= same;
        if same == own.len() {
            left -= same_in_piece(self.last.reserve().get(..left).unwrap_or_default(), stack);
        }
        // What is left has changed, or lies beyond the copy, or in the other piece of it.
        while let Some(known) = left.checked_sub(1).and_then(|depth| self.frame(common, depth)) {
            let (slot, word) = known.return_slot();
            let Some(copied) = stack.copied(slot) else { break };
            let same = |(slot, word)| stack.copied(slot).is_none_or(|copied| copied == word);
            if copied != word || !known.saved().all(same) {
                return (left, false);
            }
            left -= 1;
        }
        (left, true)
    }

    /// Where the copy ends: the last stack's outer part that was there before the sample and is now, as far as probed.
    /// If the stack cannot be read, what was there before has to do. Other frames may lie between it and the copy, unless the
    /// word at `address` is a return address of the last stack; only then can a thread with several stacks (`one_stack`
    /// false), or whose last stack lies elsewhere, be joined. `same_function`: whether two return addresses are of one.
    pub fn join(
        &mut self,
        address: u64,
        generation: u32,
        one_stack: bool,
        stack: &UserStack<'_>,
        same_function: impl FnOnce(u64, u64) -> bool,
    ) -> Option<ShadowJoin> {
        if self.generation != generation {
            return None;
        }
        let further = |known: &ShadowFrame| known.return_slot().0 >= address;
        let all = self.last.reserve().get(..self.last.shared())?;
        let count = match self.last.own().partition_point(further) {
            0 => all.partition_point(further),
            own => all.len() + own,
        };
        if count == 0 {
            return None;
        }
        let depths = nearest(count);
        let common = self.outer(count);
        let slots = depths.map(|depth| self.frame(common, depth).map_or(NOTHING_READ, ShadowFrame::return_slot));
        let mut calls = None;
        let (alike, sure) = match stack.compare(&slots) {
            Now::Same => {
                self.steady.advance();
                (Alike::new(count, false), true)
            }
            Now::Changed(changed) => {
                let depth = *depths.get(changed)?;
                let (slot, before) = *slots.get(changed)?;
                let now = stack.peek(slot).map(|[now, _]| now).filter(|&now| same_function(before, now));
                let alike = Alike::new(depth, now.is_some());
                self.steady.limit(alike);
                self.steady.advance();
                calls = now;
                (alike, now.is_none())
            }
            // The last samples of a thread are looked at when it has ended; and reading has a budget.
            Now::Gone | Now::Unknown => (Alike::new(count, false), false),
        };
        self.lasting.advance();
        let innermost = self.frame(common, alike.functions().checked_sub(1)?)?;
        let distance = innermost.return_slot().0.checked_sub(address)?;
        let gap = !sure || distance != 0 || innermost.is_of_another_call();
        let return_address = innermost.return_slot().1;
        (!gap || one_stack && distance <= STACK_BYTES).then_some(ShadowJoin { alike, gap, return_address, calls })
    }

    /// The last stack's `count` outermost frames.
    fn outer(&self, count: usize) -> Common {
        let own = self.last.own().len() as u32;
        Common { shared: self.last.shared() as u32, own, ..Common::default() }.outermost(count)
    }

    /// What may stand outside a gap.
    pub fn steady(&self) -> Alike {
        self.steady.get()
    }

    /// What of the last stack may stand outside a gap: its [steady](super::steady) frames, and the function further in that
    /// has called another since; or `all` that were joined.
    pub fn outside_gap(&self, joined: ShadowJoin, all: bool) -> (Common, Option<ShadowFrame>) {
        if all {
            return (self.outer(joined.alike.functions()), None);
        }
        let alike = joined.alike.min(self.steady.get());
        let frames = alike.frames as usize;
        let function = self.last_frame(frames).filter(|_| alike.function);
        let calls = joined.calls.filter(|_| alike.frames == joined.alike.frames);
        (self.outer(frames), function.map(|known| known.of_another_call(calls)))
    }

    /// Learns from a whole stack how its frames change, before it is remembered. `next` is where the innermost function goes
    /// on, `same_function` as for [`join`](ShadowStack::join). Returns how much of the stack is sure.
    #[inline]
    pub fn learn(
        &mut self,
        whole: WholeStack<'_>,
        next: u64,
        generation: u32,
        stack: &UserStack<'_>,
        mut same_function: impl FnMut(u64, u64) -> bool,
    ) -> Alike {
        let (common, shared) = (whole.common, self.last.shared());
        // The stack may share more of the reserve than the last one did.
        let mut count = match (common.shared as usize).cmp(&shared) {
            Ordering::Equal => shared + common.own as usize,
            Ordering::Less => common.shared as usize,
            Ordering::Greater => shared,
        };
        let beyond = self.beyond(whole, stack);
        let mut changed = None;
        if self.generation == generation && self.last.depth() > 0 {
            if beyond > 0 || self.steady.is_new(count) {
                let slot = |known: Option<&ShadowFrame>| known.map(ShadowFrame::return_slot);
                // Frames that differ in a saved register alone are the same here, and so is one of which no more than the
                // function was known.
                while let Some(before) = slot(self.last_frame(count)) {
                    let now = slot(self.frame_of(whole, count));
                    if now != Some(before) {
                        let alike = Alike::new(count, same_function(before.1, now.map_or(next, |now| now.1)));
                        self.steady.limit(alike);
                        changed = now.map(|now| (alike, now.1));
                        break;
                    }
                    count += 1;
                }
            }
            self.steady.advance();
        }
        if beyond == 0 { Alike::ALL } else { self.sure(whole, beyond, changed, stack, same_function) }
    }

    /// How much of a whole stack is sure, of which `beyond` frames lie beyond the copy. `changed`: how far the last
    /// stack is like it, and the return address of the first frame that is not.
    ///
    /// Every sample taken between two looks that disagree may have had either stack.
    #[cold]
    fn sure(
        &mut self,
        whole: WholeStack<'_>,
        beyond: usize,
        changed: Option<(Alike, u64)>,
        stack: &UserStack<'_>,
        mut same_function: impl FnMut(u64, u64) -> bool,
    ) -> Alike {
        let innermost = beyond.saturating_sub(1);
        let place = |known: Option<&ShadowFrame>| known.map(|known| known.return_slot().0);
        let boundary = place(self.frame_of(whole, innermost));
        let is_beyond = |&(alike, _): &(Alike, u64)| (alike.frames as usize) < beyond;
        let changed = changed.filter(is_beyond).filter(|_| place(self.last_frame(innermost)) == boundary);
        let look = self.look.filter(|look| place(self.frame_of(whole, look.boundary.0)) == Some(look.boundary.1));
        let differs = look.and_then(|look| {
            let now = self.frame_of(whole, look.depth).map(|known| known.state.return_address);
            let now = now.filter(|&now| now != look.word)?;
            Some((Alike::new(look.depth, same_function(look.word, now)), now))
        });
        let changed = changed.into_iter().chain(differs.filter(is_beyond)).min();
        self.lasting.advance();
        let before = look.filter(|look| stack.time() < look.at).map_or(Alike::ALL, |look| look.alike);
        let sure = match (changed, look) {
            (Some((alike, word)), _) => {
                let depth = alike.frames as usize;
                let callee = self.frame_of(whole, depth + 1).map(ShadowFrame::return_slot);
                // A function that has called the same one from another place is sure enough.
                let is_other = |look: &Look| !(alike.function && look.depth == depth && look.callee == callee);
                if let Some(look) = look.filter(|look| !look.again && is_other(look)) {
                    self.lasting.limit(alike.max(look.alike));
                }
                let (boundary, alike) = ((innermost, boundary.unwrap_or(0)), alike.min(before));
                self.look = Some(Look { boundary, depth, word, callee, alike, at: now_ns(), again: false });
                alike
            }
            (None, Some(look)) => {
                let in_common = whole.common.shared as usize + whole.common.own as usize;
                let has_looked = stack.has_read() && (look.depth >= in_common || self.seen.at == stack.read_at());
                let again = look.again || has_looked && stack.time() >= look.at;
                self.look = Some(Look { again, ..look });
                before
            }
            (None, None) => Alike::ALL,
        };
        sure.min(self.lasting.get())
    }

    /// A frame of the last stack, counted from the root.
    fn last_frame(&self, depth: usize) -> Option<&ShadowFrame> {
        self.frame(self.outer(self.last.depth()), depth).filter(|_| depth < self.last.depth())
    }

    /// Remembers a whole stack: what it has in `common` with the one before, and its other frames, innermost first.
    /// Without `room` only with few frames beyond the reserve. Returns what followers of this thread's stacks have to
    /// do. A stack without own frames adds nothing to the reserve: inner ones may follow a gap.
    pub fn remember(
        &mut self,
        mut common: Common,
        frames: &[ShadowFrame],
        stack: &UserStack<'_>,
        generation: u32,
        room: bool,
    ) -> Common {
        self.idle = if common.shared > 0 { 0 } else { self.idle.saturating_add(1) };
        let stale = self.generation != generation || self.idle > MAX_IDLE;
        self.generation = generation;
        let own = common.own as usize + frames.len();
        let outermost = self.frame(common, 0).filter(|_| common != Common::default()).or(frames.last());
        let deep = outermost.is_some_and(|known| !known.is_copied(stack));
        let is_new = frames.iter().any(|known| !known.is_of_another_call());
        if deep && own > MANY_OWN && room && is_new {
            common.reserve = Reserve::Replaced;
        } else if stale && common.shared == 0 && !self.last.reserve().is_empty() {
            common.reserve = Reserve::Dropped;
        }
        self.seen.keep(if common.shared as usize == self.last.shared() { common.own as usize } else { 0 });
        if common.reserve != Reserve::Stays {
            self.seen = Seen::default();
        }
        common.few = !room && own > FEW_OWN;
        if self.last.write(common, frames.iter().rev().copied()) {
            self.seen.keep(FEW_OWN);
        }
        common
    }

    /// Forgets the last stack, but not the reserve, because a stack has come that is not whole.
    pub fn interrupt(&mut self) {
        self.seen = Seen::default();
        self.last.interrupt();
    }

    /// Where the frames of the last stack return to, outermost first.
    pub fn outermost(&self) -> impl Iterator<Item = StackWord> {
        let reserve = self.last.reserve().iter().take(self.last.shared());
        reserve.chain(self.last.own()).map(ShadowFrame::return_slot)
    }

    /// Bytes allocated.
    #[cfg(feature = "internals")]
    pub fn bytes(&self) -> usize {
        self.last.bytes()
    }

    /// Frames remembered, in reserve and beyond.
    pub fn remembered(&self) -> usize {
        self.last.reserve().len() + self.last.own().len()
    }
}

impl Seen {
    /// How many frames further in or out than those others end; `None` where they are not of the same stack.
    fn distance(&self, reserve: usize, own: usize) -> Option<usize> {
        let same = self.own == 0 && own == 0 || self.reserve == reserve;
        same.then(|| self.reserve.abs_diff(reserve) + self.own.abs_diff(own) + self.cut)
    }

    /// Only so many frames beyond the reserve are remembered further on.
    fn keep(&mut self, own: usize) {
        self.cut += self.own.saturating_sub(own);
        self.own = self.own.min(own);
    }
}

/// How many innermost frames are the same in the copy's first piece, mostly all of it. The copy's words come from
/// another CPU's cache: the main cost of a deep stack.
#[inline]
fn same_in_piece(frames: &[ShadowFrame], stack: &UserStack<'_>) -> usize {
    let (base, piece) = stack.piece();
    let holds = |address: u64, word: u64| {
        let offset = address.wrapping_sub(base) as usize;
        piece.get(offset..).and_then(<[u8]>::first_chunk).is_some_and(|held| u64::from_le_bytes(*held) == word)
    };
    let same = |known: &&ShadowFrame| {
        let (slot, word) = known.return_slot();
        holds(slot, word) && known.saved().all(|(slot, word)| holds(slot, word))
    };
    frames.iter().rev().take_while(same).count()
}

/// How the last stack goes on where a copy ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShadowJoin {
    pub alike: Alike,
    /// Whether there may be frames between it and the copy.
    pub gap: bool,
    /// To where the frame before returns in it.
    pub return_address: u64,
    /// To where the function that has called another since is to return.
    calls: Option<u64>,
}

/// The depths to look at among `count` frames to find the innermost unchanged ones: mostly innermost, all if few,
/// innermost first, with duplicates.
fn nearest(count: usize) -> [usize; MAX_PROBES] {
    let mut depths = [0; MAX_PROBES];
    for (i, depth) in depths.iter_mut().enumerate() {
        *depth = match i.checked_sub(MAX_PROBES - NEAR_ROOT) {
            None => count.saturating_sub(i + 1),
            Some(i) => (NEAR_ROOT - 1 - i).min(count.saturating_sub(1)),
        };
    }
    depths.sort_unstable_by(|a, b| b.cmp(a));
    depths
}

/// Leaves only frames further out than `depth`, counted from the root.
fn limit(search: &mut Search, common: Common, depth: usize) {
    match depth.checked_sub(common.shared as usize) {
        Some(own) => search.own = search.own.min(own),
        None => *search = Search { own: 0, reserve: depth },
    }
}

/// How many frames further out than the one next to the copy a probe is made.
const fn distance(probe: usize) -> usize {
    (1 << (2 * probe)) - 1
}

/// The depths next to the copy, innermost first, of `count` frames beyond it. There are some twice.
fn nearest_to_copy(count: usize) -> [usize; MAX_PROBES] {
    let last = count.saturating_sub(1);
    std::array::from_fn(|i| last.saturating_sub(distance(i.min(NEAREST - 1))))
}

/// The depths to look at among `count` frames beyond the copy, from the root, innermost first; all if few, with
/// duplicates. `again`: one that is looked at each time.
fn probes(count: usize, turn: u32, again: usize) -> [usize; MAX_PROBES] {
    let last = count.saturating_sub(1);
    let mut depths = [last; MAX_PROBES];
    for (i, depth) in depths.iter_mut().enumerate() {
        *depth = if i < NEAR_ROOT || count <= MAX_PROBES {
            last.min(i)
        } else if i < NEAR_ROOT + NEAR_COPY {
            last.saturating_sub(distance(i - NEAR_ROOT))
        } else if i == MAX_PROBES - 1 && (NEAR_ROOT..count).contains(&again) {
            again
        } else {
            // The fractional parts of the multiples of the golden ratio visit everything evenly.
            let fraction = turn.wrapping_mul(ANYWHERE as u32).wrapping_add(i as u32).wrapping_mul(0x9e37_79b9);
            ((u64::from(fraction) * count as u64) >> 32) as usize
        };
    }
    depths.sort_unstable_by(|a, b| b.cmp(a));
    depths
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
