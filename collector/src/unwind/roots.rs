//! What is remembered of single frames: whether unwind information covers them, and how.
//!
//! framehop ends a stack for three reasons that it does not tell apart: the unwind information says that the frame has
//! no caller (the return address is *undefined*: `_start`, `clone`), the return address read is 0, or the frame pointer
//! of code without unwind information is 0. Only the first is proof. The second is believed where unwind information
//! led to the slot, because thread libraries and runtimes end their stacks so. The third is believed only near the
//! program's entry point, where the psABI has `rbp` cleared "to mark the deepest stack frame"; anywhere else `rbp` is a
//! register like all others and happens to be 0.
//!
//! A stack may also begin with a return address that no call has put there, that of a function's first instruction:
//! `makecontext` has its coroutines return so. [`leave_beginning`] tells these.

use std::sync::Arc;

use ccsd_symbolizer::{ElfFile, UnwindSections};
use hashbrown::{HashMap, HashSet};

use super::careful;
use super::go::{GoCode, GoFrame};
use super::realigned::Realigned;
use super::rule::FrameRule;
use super::switch;
use super::tables::{self, RowContext, Table, Tables, Way};
use crate::arch::code::{self, Row};
use crate::arch::pointer_rule::Plain;
use crate::arch::prologue::{self, Entered};
use crate::arch::registers::{RA, Registers, SP};
use crate::arch::signal;
use crate::arch::step::CallerPointers;
use crate::arch::step::{Caller, Stuck};

/// Largest size taken for the entry function of a file where no unwind information covers it: `_start` and what it falls
/// through to are far smaller in every C library.
const ENTRY_BYTES: u64 = 256;
/// Answers kept per image about outermost frames: a program has a handful. Beyond this it is a hostile one, and memory
/// matters more.
const MAX_ANSWERS: usize = 4096;
/// Addresses kept per image that need care, 8 bytes each: a few dozen, but for programs without unwind tables.
const MAX_CAREFUL: usize = 65_536;
/// Addresses kept per image whose instructions have been followed, about 200 bytes each.
const MAX_FOLLOWED: usize = 16_384;

/// Answers kept about tables: one per return address of the program, 16 bytes each.
const MAX_TABLE_ANSWERS: usize = 65_536;

/// What unwind information says of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// It covers the address and says that nothing called the function.
    NoCaller,
    /// It covers the address.
    Yes,
    /// It does not.
    No,
}

/// What is known of a frame from what its function has done.
#[derive(Clone, Debug, Default)]
struct History {
    entered: Option<Entered>,
    /// Whether it is the first of a thread.
    begins_thread: bool,
}

/// The unwind information of one image, and what has been found out about its addresses.
#[derive(Debug, Default)]
pub struct ImageRoots {
    unwind: Tables,
    entry: u64,
    /// Where its code ends, when that has been looked up.
    entry_end: Option<u64>,
    covered: HashMap<u64, Covered>,
    careful: HashSet<u64>,
    /// Those among them that no table covers, and about which nothing else is special.
    uncovered: HashSet<u64>,
    /// Those among them that the frame pointer is enough for.
    realigned: HashMap<u64, Realigned>,
    /// And those in functions of Go that every stack begins with.
    tops: HashSet<u64>,
    /// Where it can be read: what its instructions say of frames that no table covers.
    elf: Option<Arc<ElfFile>>,
    /// What its functions say, if it is a Go program or library.
    go: Option<GoCode>,
    rows: HashMap<u64, Box<[Row]>>,
    /// How many rows that are.
    row_count: usize,
    /// What the instructions before say of some frames.
    histories: HashMap<(u64, bool), History>,
    /// For an image with two tables: the addresses that only `.debug_frame` covers, and those that it need not be asked
    /// for.
    tables: HashMap<u64, Table>,
}

impl ImageRoots {
    /// The sections are shared with the unwinder, not copied.
    pub fn new(elf: &Arc<ElfFile>, sections: Arc<UnwindSections>) -> ImageRoots {
        let entry = elf.entry();
        let (unwind, elf, go) = (Tables::new(sections), Some(Arc::clone(elf)), GoCode::new(elf));
        ImageRoots { unwind, entry, elf, go, ..ImageRoots::default() }
    }

    /// Bytes that the answers take, beside the unwind information itself and its indexes.
    pub fn bytes(&self) -> usize {
        let sets = self.careful.allocation_size() + self.uncovered.allocation_size() + self.tops.allocation_size();
        let maps = self.covered.allocation_size() + self.realigned.allocation_size() + self.tables.allocation_size();
        let kept = self.rows.allocation_size() + self.histories.allocation_size();
        let rows = kept + self.row_count * size_of::<Row>() + self.unwind.row_bytes();
        sets + maps + rows + self.go.as_ref().map_or(0, GoCode::bytes)
    }

    /// The unwind information, to leave a frame with.
    pub fn unwind(&self) -> &Tables {
        &self.unwind
    }

    /// Whether the frame is in the entry function of an image whose unwind information does not cover it: the dynamic
    /// linker's `_start`, or that of a C library without unwind information. Nothing calls it.
    #[inline]
    pub fn is_bare_entry(&mut self, address: u64) -> bool {
        address.wrapping_sub(self.entry) < ENTRY_BYTES
            && self.entry != 0
            && address < self.entry_end()
            && self.covered(address) == Covered::No
    }

    fn entry_end(&mut self) -> u64 {
        *self.entry_end.get_or_insert_with(|| match &self.elf {
            Some(elf) => prologue::end_of_entry(self.entry, ENTRY_BYTES, &|address, len| elf.code(address, len)),
            None => 0,
        })
    }

    /// Whether neither a rule nor framehop can leave the frame.
    #[inline]
    pub fn needs_care(&self, address: u64) -> bool {
        !self.careful.is_empty() && self.careful.contains(&address)
    }

    /// What is known of its functions, if it is a Go program or library.
    pub fn go(&mut self) -> Option<&mut GoCode> {
        self.go.as_mut()
    }

    /// Whether a frame is in a function of Go, whose stack ends in others than those that nothing calls only by mistake.
    pub fn is_go(&self, address: u64) -> bool {
        self.go.as_ref().is_some_and(|go| go.function(address).is_some())
    }

    /// What is special about a frame of a Go program.
    pub fn go_frame(&mut self, address: u64) -> Option<GoFrame> {
        self.go.as_mut()?.frame(address)
    }

    /// Finds out how a frame is left that is met for the first time. It is remembered if that takes care.
    pub fn examine(&mut self, address: u64, context: &mut RowContext) -> Way {
        // Without its bytes there is only the frame pointer, and framehop follows it.
        if self.elf.is_none() {
            return Way::Plain(FrameRule::AskFramehop, None);
        }
        let go_frame = self.go_frame(address);
        match tables::way(&self.unwind, address, context) {
            // What is special about functions of Go is not in the tables.
            Way::Plain(rule, function) if go_frame.is_none() => {
                return Way::Plain(rule, function.filter(|_| self.go.is_none()));
            }
            _ => {}
        }
        if self.careful.len() >= MAX_CAREFUL {
            // Whatever is met again is examined again.
            self.careful.clear();
            self.uncovered.clear();
            self.tops.clear();
            self.realigned.clear();
        }
        self.careful.insert(address);
        if go_frame.is_none()
            && let Some(realigned) = Realigned::find(&self.unwind, address)
        {
            self.realigned.insert(address, realigned);
        }
        let uncovered = go_frame.is_none() && self.covered(address) == Covered::No;
        if go_frame == Some(GoFrame::Top) || uncovered && self.begins_thread(address.wrapping_add(1)) {
            self.tops.insert(address);
        }
        if uncovered && !self.begins(address.wrapping_add(1)) && !self.restores_signal(address.wrapping_add(1)) {
            self.uncovered.insert(address);
        }
        Way::Careful
    }

    /// Whether a frame that needs care is in code that no table covers, and nothing else is special about it.
    pub fn is_plainly_uncovered(&self, address: u64) -> bool {
        self.uncovered.contains(&address)
    }

    /// How to leave a frame that needs care, where its function has realigned its stack.
    pub fn realigned(&self, address: u64) -> Option<Realigned> {
        self.realigned.get(&address).copied()
    }

    /// Whether a frame that needs care is one that nothing called: of Go, or the first of a thread.
    pub fn is_top(&self, address: u64) -> bool {
        self.tops.contains(&address)
    }

    /// Leaves a frame that no table covers by stack pointer and frame pointer, if its instructions (from `address` on,
    /// which comes after the call for a caller) say that these are enough, and `believed` believes where it leads.
    pub fn leave_plainly(
        &mut self,
        (address, called): (u64, bool),
        (sp, bp): (u64, u64),
        read: &impl Fn(u64) -> Option<u64>,
        mut believed: impl FnMut(u64, Option<u64>) -> bool,
    ) -> Option<CallerPointers> {
        for row in self.rows(address) {
            match row.plain()?.apply(sp, bp, read) {
                Ok(caller) if believed(caller.ip, None) => return Some(caller),
                Err(Some(_)) => return None,
                _ => {}
            }
        }
        if let Some(entered) = self.entered(address, called) {
            match entered.row.plain()?.apply(sp, bp, read) {
                Ok(caller) if entered.allows(caller.sp) && believed(caller.ip, Some(entered.start)) => {
                    return Some(caller);
                }
                Err(Some(_)) => return None,
                _ => {}
            }
        }
        Plain::FRAME_POINTER.apply(sp, bp, read).ok().filter(|caller| believed(caller.ip, None))
    }

    /// How the function of a frame has entered it, from its instructions up to `next`, which comes after the call for a
    /// caller.
    pub fn entered(&mut self, next: u64, called: bool) -> Option<&Entered> {
        self.history(next, called).entered.as_ref()
    }

    /// Whether a call returns to an address that is the first of a thread.
    pub fn begins_thread(&mut self, next: u64) -> bool {
        self.history(next, true).begins_thread
    }

    fn history(&mut self, next: u64, called: bool) -> &History {
        let key = (next, called);
        if self.histories.len() >= MAX_FOLLOWED && !self.histories.contains_key(&key) {
            self.histories.clear();
        }
        let address = next.wrapping_sub(u64::from(called));
        let (unwind, elf) = (&self.unwind, &self.elf);
        self.histories.entry(key).or_insert_with(|| {
            let Some(elf) = elf else { return History::default() };
            let code = |address, len| elf.code(address, len);
            match unwind.with_kept_row(address, |row| Ok(row.found.start)) {
                Ok(start) => History { entered: prologue::entered_from(start, next, &code), begins_thread: false },
                Err(_) => {
                    let begins_thread = called && prologue::begins_thread(next, &code);
                    let entered = (!begins_thread).then(|| prologue::entered(next, called, &code));
                    History { entered: entered.flatten(), begins_thread }
                }
            }
        })
    }

    /// How the instructions from an address on, which no table covers, leave their frame; none where that cannot be told.
    pub fn rows(&mut self, address: u64) -> &[Row] {
        let Some(elf) = &self.elf else { return &[] };
        if self.rows.len() >= MAX_FOLLOWED && !self.rows.contains_key(&address) {
            self.rows.clear();
            self.row_count = 0;
        }
        self.rows.entry(address).or_insert_with(|| {
            let rows = code::rows(address, &|address, len| elf.code(address, len)).into_boxed_slice();
            self.row_count += rows.len();
            rows
        })
    }

    /// Which table covers an address. An image that has only one is not searched.
    #[inline]
    pub fn table(&mut self, address: u64) -> Table {
        let sections = self.unwind.sections();
        match (&sections.eh_frame, &sections.debug_frame) {
            (Some(_), Some(_)) => self.find_table(address),
            (None, Some(_)) => Table::DebugFrame,
            (_, None) => Table::EhFrame,
        }
    }

    fn find_table(&mut self, address: u64) -> Table {
        if let Some(&table) = self.tables.get(&address) {
            return table;
        }
        let table = tables::covers(&self.unwind, address).map_or(Table::EhFrame, |(table, _)| table);
        if self.tables.len() >= MAX_TABLE_ANSWERS {
            self.tables.clear();
        }
        self.tables.insert(address, table);
        table
    }

    /// Whether an address is that of a function's first instruction, and no call returns to it: what is covered from here
    /// on, and is not before. (Behind a call that does not return, another function may begin.)
    pub fn begins(&mut self, address: u64) -> bool {
        let Some(elf) = self.elf.clone() else { return false };
        self.covered(address.wrapping_sub(1)) == Covered::No
            && self.covered(address) != Covered::No
            && !code::is_call_before(address, &|address, len| elf.code(address, len))
    }

    /// Whether a handler that returns to an address gives the kernel its signal frame back; asked where no table covers
    /// what is before.
    pub fn restores_signal(&self, address: u64) -> bool {
        let code = self.elf.as_ref().and_then(|elf| elf.code(address, signal::RESTORER_BYTES));
        code.is_some_and(|code| signal::is_restorer(&code))
    }

    /// Leaves a frame of Go's runtime that has moved to this stack from another, and has kept in a register where it was;
    /// or one that was called by the kernel for a signal. `to_own` is added to an address of the process to get one of the
    /// image, and `returns_to` knows what calls return to.
    ///
    /// # Errors
    /// [`Stuck::Unreadable`] where the other stack is not to be read, [`Stuck::NotCovered`] where it cannot be found.
    pub fn leave_switch(
        &mut self,
        address: u64,
        to_own: u64,
        registers: &mut Registers,
        read: &impl Fn(u64) -> Option<u64>,
        mut returns_to: impl FnMut(u64) -> bool,
    ) -> Result<Caller, Stuck> {
        let handles_signals = self.go.as_ref().is_some_and(|go| go.handles_signals(address));
        let rows = self.rows(address.wrapping_add(1)).to_vec();
        // Where the stack pointer is now is the other stack, whatever comes behind a call that does not return.
        let rows = rows.iter().filter(|row| handles_signals || row.is_kept_elsewhere());
        let mut stuck = Stuck::NotCovered;
        for row in rows {
            match row.apply(registers, read) {
                Ok(caller) => {
                    let address = caller.get(RA).unwrap_or(0);
                    // A handler of signals is called by the kernel.
                    if returns_to(address) || self.restores_signal(address.wrapping_add(to_own)) {
                        *registers = caller;
                        return Ok(Caller::Called);
                    }
                }
                Err(Stuck::Unreadable(address)) if stuck == Stuck::NotCovered => stuck = Stuck::Unreadable(address),
                Err(_) => {}
            }
        }
        Err(stuck)
    }

    /// The registers of what called the function at `start`, which has moved to another stack; `saved_bp` is the caller's
    /// frame pointer. See [`switch::caller_of_systemstack`].
    pub fn caller_of_switch(
        &mut self,
        start: u64,
        to_own: u64,
        saved_bp: u64,
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Option<Registers> {
        // For as long as both are asked.
        let mut go = self.go.take()?;
        let calls = |address: u64| go.is_call_of(start, address.wrapping_add(to_own));
        let frame_end = |caller: &Registers| {
            let own = caller.get(RA)?.wrapping_add(to_own);
            let mut after = *caller;
            match careful::leave(&self.unwind, own.wrapping_sub(1), &mut after, read) {
                Err(Stuck::NotCovered) => self.rows(own).first()?.apply(caller, read).ok()?.get(SP),
                Ok(_) => after.get(SP),
                Err(_) => None,
            }
        };
        let caller = switch::caller_of_systemstack(saved_bp, read, calls, frame_end);
        self.go = Some(go);
        caller
    }

    /// What unwind information says of an address.
    pub fn covered(&mut self, address: u64) -> Covered {
        if let Some(&answer) = self.covered.get(&address) {
            return answer;
        }
        let answer = match tables::covers(&self.unwind, address) {
            Some((_, true)) => Covered::NoCaller,
            Some((_, false)) => Covered::Yes,
            None => Covered::No,
        };
        if self.covered.len() >= MAX_ANSWERS {
            self.covered.clear();
        }
        self.covered.insert(address, answer);
        answer
    }
}

/// Leaves the frame of a function that was returned to at its first instruction. It may have been made to look as if it
/// had been called, and then there is a return address above, as `returns_to` knows them. Otherwise nothing is above.
///
/// # Errors
/// As of [`careful::leave`]; the registers are then as before.
pub fn leave_beginning(
    roots: &ImageRoots,
    address: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
    returns_to: impl FnOnce(u64) -> bool,
) -> Result<Caller, Stuck> {
    let mut after = *registers;
    let caller = careful::leave(&roots.unwind, address, &mut after, read)?;
    if caller == Caller::Called && after.get(RA).is_some_and(returns_to) {
        *registers = after;
        return Ok(caller);
    }
    Ok(Caller::None)
}
