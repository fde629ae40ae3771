//! What the code of a Go program says of its stacks.
//!
//! A Go function with a frame saves its caller's `rbp` first, points `rbp` there, and uses the register for nothing
//! else. So where the chain of frame pointers leads into such a function behind a call, the chain's next return address
//! is that function's own. A function without a frame (`systemstack` up to Go 1.20) leaves `rbp`, so the next return
//! address is its caller's, which is then missing; but the direct call at that address names it, and its place if it
//! calls the other at one place only.

use std::sync::Arc;

use ccsd_symbolizer::{ElfFile, GoFunction, GoFunctions};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::arch::code;
use crate::arch::go::{CallTargets, Noted, find_calls, find_note, sets_frame_pointer};

/// Unmarked functions that stacks begin with: the one that parks a goroutine and goes on on the thread's stack (Go's
/// own tracebacks end there), and what the program's entry jumps to.
const TOPS: [&[u8]; 2] = [b"runtime.mcall", b"_rt0_amd64"];
/// What a function calls for more stack, on the thread's.
const MORESTACK: &[u8] = b"runtime.morestack";
/// What looks for another goroutine to run, when the last one has been put aside.
const SCHEDULE: &[u8] = b"runtime.schedule";
/// Functions that the kernel calls for a signal. They are marked as the beginning of a stack, and are on that of signals.
const SIGNAL_HANDLERS: [&[u8]; 3] = [b"runtime.sigtramp", b"runtime.cgoSigtramp", b"runtime.sigprofNonGoWrapper"];

/// Bytes of code in which a function sets its frame pointer: the check for more stack is before it.
const PROLOGUE_BYTES: u64 = 128;
/// Bytes of code in which a function goes back to the stack that it has left.
const RETURN_BYTES: u64 = 64;
const MAX_FUNCTION_BYTES: u64 = 256 << 10;
/// Answers kept of each kind, some 30 bytes each: one per function met.
const MAX_ANSWERS: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoFrame {
    /// The stack begins here.
    Top,
    /// What called it may be on another stack, whatever the tables say.
    Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowedChain {
    /// Return addresses that have been believed.
    pub count: usize,
    /// Whether the last is in a function that nothing calls.
    pub top: bool,
    /// How many had been entered when there was one whose caller is not known.
    pub gap: Option<usize>,
}

/// The code of one image. All addresses are SVMAs.
#[derive(Debug)]
pub struct GoCode {
    elf: Arc<ElfFile>,
    functions: Arc<GoFunctions>,
    frame_pointers: HashMap<u64, bool, FxBuildHasher>,
    calls: HashMap<(u64, u64), CallTargets, FxBuildHasher>,
    noted: HashMap<u64, Option<Noted>, FxBuildHasher>,
    before: HashMap<u64, PrecedingCall, FxBuildHasher>,
    frames: HashMap<u64, Option<GoFrame>, FxBuildHasher>,
}

#[derive(Clone, Copy, Debug)]
struct PrecedingCall {
    is_call: bool,
    /// Of what, if it is a direct one.
    target: Option<u64>,
}

impl GoCode {
    pub fn bytes(&self) -> usize {
        let (calls, noted, frames) = (&self.calls, &self.noted, &self.frames);
        let found = calls.allocation_size() + noted.allocation_size() + frames.allocation_size();
        found + self.frame_pointers.allocation_size() + self.before.allocation_size()
    }

    pub fn new(elf: &Arc<ElfFile>) -> Option<GoCode> {
        Some(GoCode {
            elf: Arc::clone(elf),
            functions: elf.go_functions()?,
            frame_pointers: HashMap::default(),
            calls: HashMap::default(),
            noted: HashMap::default(),
            before: HashMap::default(),
            frames: HashMap::default(),
        })
    }

    pub fn function(&self, address: u64) -> Option<GoFunction<'_>> {
        self.functions.find(address)
    }

    /// What is special about a frame. (Go's own table is asked, not the symbols: it is always there.)
    pub fn frame(&mut self, address: u64) -> Option<GoFrame> {
        if let Some(&known) = self.frames.get(&address) {
            return known;
        }
        let frame = self.find_frame(address);
        if self.frames.len() >= MAX_ANSWERS {
            self.frames.clear();
        }
        self.frames.insert(address, frame);
        frame
    }

    fn find_frame(&self, address: u64) -> Option<GoFrame> {
        let function = self.function(address)?;
        if SIGNAL_HANDLERS.contains(&function.name) {
            Some(GoFrame::Switch)
        } else if function.is_top || function.start == self.elf.entry() || TOPS.contains(&function.name) {
            Some(GoFrame::Top)
        } else {
            function.switches_stack.then_some(GoFrame::Switch)
        }
    }

    /// Whether the kernel calls the function at an address, on a stack for signals.
    pub fn handles_signals(&self, address: u64) -> bool {
        self.function(address).is_some_and(|function| SIGNAL_HANDLERS.contains(&function.name))
    }

    /// Whether a function that needs more stack has called the one at an address.
    pub fn grows_stack(&self, address: u64) -> bool {
        self.function(address).is_some_and(|function| function.name == MORESTACK)
    }

    /// Whether a frame looks for another goroutine to run.
    pub fn schedules(&self, address: u64) -> bool {
        self.function(address).is_some_and(|function| function.name == SCHEDULE)
    }

    /// Whether an address may be a return address: behind a call, or where a goroutine returns to without one.
    fn is_returned_to(&mut self, address: u64) -> bool {
        self.before(address).is_call || self.function(address.wrapping_sub(1)).is_some_and(|function| function.is_top)
    }

    /// Whether a function has set its frame pointer by the time that it calls others.
    fn keeps_frame_pointer(&mut self, start: u64) -> bool {
        if let Some(&known) = self.frame_pointers.get(&start) {
            return known;
        }
        let known = self.elf.code(start, PROLOGUE_BYTES).is_some_and(|code| sets_frame_pointer(&code, start));
        if self.frame_pointers.len() >= MAX_ANSWERS {
            self.frame_pointers.clear();
        }
        self.frame_pointers.insert(start, known);
        known
    }

    pub fn calls(&mut self, caller: u64, callee: u64) -> CallTargets {
        if let Some(&known) = self.calls.get(&(caller, callee)) {
            return known;
        }
        let end = self.function(caller).filter(|function| function.start == caller).map_or(caller, |it| it.end);
        let code = self.elf.code(caller, end.wrapping_sub(caller).min(MAX_FUNCTION_BYTES));
        let known = code.map_or(CallTargets::None, |code| find_calls(&code, caller, callee));
        if self.calls.len() >= MAX_ANSWERS {
            self.calls.clear();
        }
        self.calls.insert((caller, callee), known);
        known
    }

    /// What the function at a return address has noted of the stack that it has left, if it is one that has.
    pub fn noted(&mut self, address: u64) -> Option<Noted> {
        if let Some(&known) = self.noted.get(&address) {
            return known;
        }
        let noted = self.elf.code(address, RETURN_BYTES).and_then(|code| find_note(&code, address));
        if self.noted.len() >= MAX_ANSWERS {
            self.noted.clear();
        }
        self.noted.insert(address, noted);
        noted
    }

    /// Whether an address is behind a direct call of what begins at `callee`.
    pub fn is_call_of(&mut self, callee: u64, address: u64) -> bool {
        self.before(address).target == Some(callee)
    }

    fn before(&mut self, address: u64) -> PrecedingCall {
        // Most words of a stack are none, and nothing is kept of them.
        if self.function(address.wrapping_sub(1)).is_none() {
            return PrecedingCall { is_call: false, target: None };
        }
        if let Some(&known) = self.before.get(&address) {
            return known;
        }
        let code = |address: u64, len| self.elf.code(address, len);
        let is_call = code::is_call_before(address, &code);
        let before = PrecedingCall { is_call, target: code::call_target_before(address, &code) };
        if self.before.len() >= MAX_ANSWERS {
            self.before.clear();
        }
        self.before.insert(address, before);
        before
    }

    /// The function that is called directly before an address, if it keeps a frame pointer and calls `callee`.
    pub fn caller_between(&mut self, callee: u64, address: u64) -> Option<(u64, CallTargets)> {
        let target = self.before(address).target?;
        let begins = self.function(target).is_some_and(|function| function.start == target);
        if !begins || !self.keeps_frame_pointer(target) {
            return None;
        }
        match self.calls(target, callee) {
            CallTargets::None => None,
            calls => Some((target, calls)),
        }
    }

    /// Follows `addresses`, a chain's return addresses from a function that keeps its frame pointer on, while they are
    /// return addresses. One caller may be missing, if `gaps` says so.
    pub fn follow(
        &mut self,
        addresses: impl Iterator<Item = u64>,
        gaps: bool,
        mut enter: impl FnMut(u64),
    ) -> FollowedChain {
        let mut followed = FollowedChain { count: 0, top: false, gap: None };
        let mut entered = 0;
        let mut enter = |address| {
            entered += 1;
            enter(address);
            entered
        };
        // A function without a frame of its own, whose caller is not in the chain.
        let mut frameless = None;
        let mut last = 0;
        for address in addresses {
            let Some(function) = self.function(address.wrapping_sub(1)) else { break };
            let (start, top) = (function.start, function.is_top);
            if !self.is_returned_to(address) {
                break;
            }
            if let Some(callee) = frameless {
                match self.caller_between(callee, address) {
                    Some((_, CallTargets::One(place))) => _ = enter(place.wrapping_sub(1)),
                    Some((caller, _)) => _ = enter(caller),
                    None if gaps && followed.gap.is_none() => followed.gap = Some(last),
                    None => break,
                }
            }
            last = enter(address.wrapping_sub(1));
            followed.count += 1;
            if top {
                followed.top = true;
                break;
            }
            frameless = (!self.keeps_frame_pointer(start)).then_some(start);
        }
        followed
    }
}
