//! Everything known of one image's frames: tables, functions of Go, and what single addresses turned out to be.
//!
//! A stack ends where unwind information says that the frame has no caller (the return address is *undefined*:
//! `_start`, `clone`), where the return address read is 0, or where the frame pointer of code without unwind
//! information is 0. The first is proof. The second is believed where unwind information led to the slot, because
//! thread libraries and runtimes end stacks so. The third is believed only near the program's entry point, where the
//! psABI has `rbp` cleared "to mark the deepest stack frame"; elsewhere `rbp` is a register like others.
//!
//! A stack may also begin with a return address that no call has put there, of a function's first instruction, as
//! `makecontext` does: see [`ImageUnwind::leave_beginning`].

use std::cell::OnceCell;
use std::sync::Arc;

use ccsd_profile::TruncationReason;
use ccsd_symbolizer::{ElfFile, SymbolStarts, UnwindSections};
use ccsd_worker::Principal;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::cfi;
use super::framehop_rows::IMAGE_SPACE;
use super::go::{GoCode, GoFrame};
use super::known_rules::{FunctionRules, KnownRules};
use super::outcome::UnwindStop;
use super::realigned::Realigned;
use super::rule::FrameRule;
use super::tables::{self, ImageTables, RowContext, TableKind, UnwindMethod};
use crate::arch::code::{self, FrameLayout};
use crate::arch::pointer_rule::PointerRule;
use crate::arch::prologue::{self, EnteredFrame, FunctionFrames};
use crate::arch::registers::{RA, Registers};
use crate::arch::signal;
use crate::arch::step::CallerPointers;
use crate::arch::step::{Caller, Stuck};

/// Maximum size of an entry function without unwind information: `_start` is far smaller in every C library.
const ENTRY_BYTES: u64 = 256;
/// Answers about outermost frames kept per image: a program has a handful, unless it is hostile.
const MAX_ANSWERS: usize = 4096;
/// Addresses kept per image that no rule leaves, 40 bytes each: a few dozen, but for programs without unwind tables.
const MAX_SPECIAL: usize = 65_536;
/// Addresses of a function whose rows are compared.
const LOOKS: u64 = 8;
/// Addresses kept per image whose instructions have been followed, about 200 bytes each.
const MAX_FOLLOWED: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covered {
    /// A table covers the address and says that nothing called the function.
    NoCaller(TableKind),
    Yes(TableKind),
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleSource {
    Rule(FrameRule),
    /// A row that says that the function leaves the stack alone, which its instructions contradict.
    Doubtful(FrameRule),
    /// framehop follows the frame pointer; the frame's address in ccsd's own space.
    Framehop(u64),
    /// The frame itself, in which its function has kept the address of the frame.
    Realigned(Realigned),
    /// The instructions of a file's code, because no table covers the address.
    Instructions,
    Generated,
    /// Nothing called the frame.
    Top,
    /// What takes more registers than stack pointer and frame pointer.
    Registers,
}

#[derive(Debug, Default)]
pub struct ImageUnwind {
    /// What is added to an SVMA to get an address in ccsd's own space, wrapping; and where the image's part of that begins.
    to_own: u64,
    base: u64,
    /// Whether it is memory that a program writes its own code into.
    pub generated: bool,
    pub bytes: u64,
    /// Who pays for them.
    pub payer: Principal,
    tables: ImageTables,
    entry: u64,
    /// Where its code ends, when that has been looked up.
    entry_end: Option<u64>,
    /// Where it can be read: what its instructions say of frames that no table covers.
    elf: Option<Arc<ElfFile>>,
    /// Its functions by their symbols, read when an address is met that no table covers.
    symbols: OnceCell<SymbolStarts>,
    go: Option<GoCode>,
    covered: HashMap<u64, Covered, FxBuildHasher>,
    special: HashMap<u64, RuleSource, FxBuildHasher>,
    rows: HashMap<u64, Box<[FrameLayout]>, FxBuildHasher>,
    row_count: usize,
    /// What the instructions before say of some frames.
    entered: HashMap<(u64, bool), Option<EnteredFrame>, FxBuildHasher>,
    /// The functions of these whose beginning is known, by that. `None` for those that each frame has to be followed in.
    functions: HashMap<u64, Option<FunctionFrames>, FxBuildHasher>,
    function_rows: usize,
}

impl ImageUnwind {
    pub fn bare(base: u64, generated: bool) -> ImageUnwind {
        ImageUnwind { generated, ..ImageUnwind::at(base, 0) }
    }

    /// One that stands at `base` with what has the address `base_svma`.
    pub fn at(base: u64, base_svma: u64) -> ImageUnwind {
        ImageUnwind { to_own: base.wrapping_sub(base_svma), base, ..ImageUnwind::default() }
    }

    /// An image at `base` with so many bytes of unwind information, for whose room somebody pays.
    pub fn new(
        base: u64,
        (bytes, payer): (u64, Principal),
        elf: &Arc<ElfFile>,
        sections: Arc<UnwindSections>,
    ) -> ImageUnwind {
        let base_svma = sections.base_svma;
        ImageUnwind {
            bytes,
            payer,
            tables: ImageTables::new(sections),
            entry: elf.entry(),
            elf: Some(Arc::clone(elf)),
            go: GoCode::new(elf),
            ..ImageUnwind::at(base, base_svma)
        }
    }

    /// Builds the indexes that are otherwise built when they are first needed.
    pub fn build_indexes(&self) {
        self.tables.build_indexes();
    }

    #[inline]
    pub fn own(&self, address: u64) -> Option<u64> {
        let own = address.wrapping_add(self.to_own);
        (own.wrapping_sub(self.base) < IMAGE_SPACE).then_some(own)
    }

    /// How the frame at an address is left. `rules` has known addresses; the address is `new` if it is not among them.
    #[inline]
    pub fn source(
        &mut self,
        address: u64,
        rules: &mut KnownRules,
        context: &mut RowContext,
        new: &mut bool,
    ) -> RuleSource {
        if self.is_bare_entry(address) {
            return RuleSource::Top;
        }
        if self.generated {
            return RuleSource::Generated;
        }
        if !self.special.is_empty()
            && let Some(&special) = self.special.get(&address)
        {
            return special;
        }
        let Some(own) = self.own(address) else { return RuleSource::Registers };
        let rule = match rules.find(own) {
            Some(rule) => rule,
            None => {
                *new = true;
                match self.examine(address, own, rules, context) {
                    Ok(rule) => rule,
                    Err(special) => return special,
                }
            }
        };
        match rule {
            FrameRule::AskFramehop => RuleSource::Framehop(own),
            rule => RuleSource::Rule(rule),
        }
    }

    /// Bytes that the answers take, beside the unwind information itself and its indexes.
    pub fn remembered(&self) -> usize {
        let maps = self.covered.allocation_size() + self.special.allocation_size();
        let kept = self.rows.allocation_size() + self.entered.allocation_size() + self.functions.allocation_size();
        let rows = kept + (self.row_count + self.function_rows) * size_of::<FrameLayout>() + self.tables.row_bytes();
        let symbols = self.symbols.get().map_or(0, SymbolStarts::bytes);
        maps + rows + symbols + self.go.as_ref().map_or(0, GoCode::bytes)
    }

    pub fn tables(&self) -> &ImageTables {
        &self.tables
    }

    /// Whether the frame is in an entry function without unwind information: the dynamic linker's `_start`, or a C
    /// library's. Nothing calls it.
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

    pub fn go(&mut self) -> Option<&mut GoCode> {
        self.go.as_mut()
    }

    pub fn with_go<T>(&mut self, ask: impl FnOnce(&mut GoCode, &mut ImageUnwind) -> T) -> Option<T> {
        // For as long as both are asked.
        let mut go = self.go.take()?;
        let answer = ask(&mut go, self);
        self.go = Some(go);
        Some(answer)
    }

    /// Whether a frame is in a function of Go, whose stack ends in others than those that nothing calls only by mistake.
    pub fn is_go(&self, address: u64) -> bool {
        self.go.as_ref().is_some_and(|go| go.function(address).is_some())
    }

    pub fn go_frame(&mut self, address: u64) -> Option<GoFrame> {
        self.go.as_mut()?.frame(address)
    }

    /// Finds out how a frame is left that is met for the first time, and remembers that; `Err` if it is by no rule.
    #[cold]
    fn examine(
        &mut self,
        address: u64,
        own: u64,
        rules: &mut KnownRules,
        context: &mut RowContext,
    ) -> Result<FrameRule, RuleSource> {
        let go_frame = self.go_frame(address);
        let way = match self.elf {
            Some(_) => tables::way(&self.tables, address, context),
            // Without its bytes there is only the frame pointer, and framehop follows it.
            None => UnwindMethod::Plain(FrameRule::AskFramehop, None),
        };
        let special = match way {
            UnwindMethod::Plain(rule, function) if self.is_contradicted(address, rule, function.as_ref()) => {
                RuleSource::Doubtful(rule)
            }
            // What is special about functions of Go is not in the tables.
            UnwindMethod::Plain(rule, function) if go_frame.is_none() => {
                rules.insert(own, rule);
                let last = function.as_ref().and_then(|function| self.own(function.range.end.wrapping_sub(1)));
                if let (Some(function), Some(_)) = (function.filter(|_| self.go.is_none()), last) {
                    rules.insert_function(&function.moved(own.wrapping_sub(address)));
                }
                return Ok(rule);
            }
            _ => self.examine_special(address, go_frame),
        };
        if self.special.len() >= MAX_SPECIAL {
            // Whatever is met again is examined again.
            self.special.clear();
        }
        self.special.insert(address, special);
        Err(special)
    }

    /// Whether a function's rows know of no frame and its instructions make one, as in assembly. (Go's assembler writes
    /// right tables.)
    fn is_contradicted(&self, address: u64, rule: FrameRule, function: Option<&FunctionRules>) -> bool {
        if rule != FrameRule::ONLY_RETURN_ADDRESS || self.is_go(address) {
            return false;
        }
        let range = match function {
            Some(function) if function.rows.iter().any(|(_, row)| *row != Some(rule)) => return false,
            Some(function) => Some(function.range.clone()),
            None => {
                // Of a table without an index not all rows are at hand: some show whether there are others.
                let range = tables::entry_range(&self.tables, address);
                range.filter(|range| {
                    let length = range.end.saturating_sub(range.start);
                    let mut some = (0..LOOKS).map(|part| range.start.wrapping_add(length / LOOKS * part));
                    some.all(|at| tables::has_rule(&self.tables, at, rule))
                })
            }
        };
        let Some((range, elf)) = range.zip(self.elf.as_ref()) else { return false };
        prologue::moves_stack(range, &|address, len| elf.code(address, len))
    }

    fn examine_special(&mut self, address: u64, go_frame: Option<GoFrame>) -> RuleSource {
        let next = address.wrapping_add(1);
        match go_frame {
            Some(GoFrame::Top) => RuleSource::Top,
            Some(GoFrame::Switch) => RuleSource::Registers,
            None if self.covered(address) != Covered::No => {
                Realigned::find(&self.tables, address).map_or(RuleSource::Registers, RuleSource::Realigned)
            }
            None if self.begins_thread(next) => RuleSource::Top,
            None if self.begins(next) || self.restores_signal(next) => RuleSource::Registers,
            None => RuleSource::Instructions,
        }
    }

    /// Leaves a frame without table by two registers, if its instructions from `address` (for a caller, after the call)
    /// allow it and `believed` accepts the result.
    pub fn leave_by_instructions(
        &mut self,
        (address, called): (u64, bool),
        (sp, bp): (u64, u64),
        read: &impl Fn(u64) -> Option<u64>,
        mut believed: impl FnMut(u64, Option<u64>) -> bool,
    ) -> Option<CallerPointers> {
        // From a beginning that is known, then to a return, then from a beginning that is guessed.
        for guessed in [false, true] {
            if let Some(entered) = self.entered(address, called).filter(|entered| entered.guessed == guessed) {
                match entered.row.plain()?.apply(sp, bp, read) {
                    Ok(caller) if entered.allows(caller.sp) && believed(caller.ip, Some(entered.start)) => {
                        return Some(caller);
                    }
                    Err(Some(_)) => return None,
                    _ => {}
                }
            }
            for row in self.rows(address).iter().filter(|_| !guessed) {
                match row.plain()?.apply(sp, bp, read) {
                    Ok(caller) if believed(caller.ip, None) => return Some(caller),
                    Err(Some(_)) => return None,
                    _ => {}
                }
            }
        }
        PointerRule::FRAME_POINTER.apply(sp, bp, read).ok().filter(|caller| believed(caller.ip, None))
    }

    /// Whether a call returns to an address that is the first of a thread.
    pub fn begins_thread(&self, next: u64) -> bool {
        let Some(elf) = &self.elf else { return false };
        let address = next.wrapping_sub(1);
        !self.is_go(address)
            && self.tables.with_kept_row(address, |_| Ok(())).is_err()
            && prologue::begins_thread(next, &|address, len| elf.code(address, len))
    }

    /// Whether the instructions of a frame's function have not been followed yet, up to `next` (for a caller, after the call):
    /// that may take a millisecond.
    pub fn is_new(&self, next: u64, called: bool) -> bool {
        !self.rows.contains_key(&next) && !self.entered.contains_key(&(next, called))
    }

    /// How the frame's function has entered it, by its instructions up to `next` (for a caller, after the call).
    pub fn entered(&mut self, next: u64, called: bool) -> Option<&EnteredFrame> {
        let key = (next, called);
        if self.entered.len() >= MAX_FOLLOWED && !self.entered.contains_key(&key) {
            self.entered.clear();
        }
        let address = next.wrapping_sub(u64::from(called));
        let (tables, elf, symbols) = (&self.tables, &self.elf, &self.symbols);
        let go = self.go.as_ref();
        let (functions, function_rows) = (&mut self.functions, &mut self.function_rows);
        let find = || {
            let elf = elf.as_ref()?;
            let code = |address, len| elf.code(address, len);
            let mut entered_from = |start: u64| {
                if *function_rows >= MAX_FOLLOWED || functions.len() >= MAX_FOLLOWED {
                    functions.clear();
                    *function_rows = 0;
                }
                let function = functions.entry(start).or_insert_with(|| {
                    let function = FunctionFrames::read(start, &code);
                    *function_rows += function.as_ref().map_or(0, FunctionFrames::len);
                    function
                });
                match function {
                    Some(function) => function.entered(next),
                    None => prologue::entered_from(start, next, &code),
                }
            };
            match tables.with_kept_row(address, |row| Ok(row.found.start)) {
                Ok(start) => entered_from(start),
                Err(_) if called && prologue::begins_thread(next, &code) => None,
                Err(_) => {
                    // A stripped program of Go has neither tables nor symbols, and a list of its functions.
                    let start = go.and_then(|go| Some(go.function(address)?.start));
                    let start = start.or_else(|| symbols.get_or_init(|| elf.symbol_starts()).find(address));
                    let entered = start.and_then(entered_from);
                    entered.or_else(|| prologue::entered(next, called, &code))
                }
            }
        };
        self.entered.entry(key).or_insert_with(find).as_ref()
    }

    /// How the instructions from an address on, which no table covers, leave their frame; none where that cannot be told.
    pub fn rows(&mut self, address: u64) -> &[FrameLayout] {
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

    /// Whether an address is a function's first instruction that no call returns to: covered from here on, and not
    /// before. (Behind a call that does not return, another function may begin.)
    pub fn begins(&mut self, address: u64) -> bool {
        let Some(elf) = self.elf.clone() else { return false };
        self.covered(address.wrapping_sub(1)) == Covered::No
            && self.covered(address) != Covered::No
            && !code::is_call_before(address, &|address, len| elf.code(address, len))
    }

    /// Whether a handler that returns to an address gives the kernel its signal frame back; for addresses whose
    /// predecessor has no table.
    pub fn restores_signal(&self, address: u64) -> bool {
        let code = self.elf.as_ref().and_then(|elf| elf.code(address, signal::RESTORER_BYTES));
        code.is_some_and(|code| signal::is_restorer(&code))
    }

    /// Whether such code ends at an address.
    pub fn ends_restoring(&self, address: u64) -> bool {
        signal::RESTORERS.iter().any(|restorer| {
            let len = restorer.len() as u64;
            let code = self.elf.as_ref().and_then(|elf| elf.code(address.checked_sub(len)?, len));
            code.is_some_and(|code| signal::is_restorer(&code))
        })
    }

    pub fn covered(&mut self, address: u64) -> Covered {
        if let Some(&answer) = self.covered.get(&address) {
            return answer;
        }
        let answer = match tables::covers(&self.tables, address) {
            Some((table, true)) => Covered::NoCaller(table),
            Some((table, false)) => Covered::Yes(table),
            None => Covered::No,
        };
        if self.covered.len() >= MAX_ANSWERS {
            self.covered.clear();
        }
        self.covered.insert(address, answer);
        answer
    }

    /// Leaves a frame returned to at its first instruction. There may be a return address above, as if it had been
    /// called; otherwise nothing is above.
    pub fn leave_beginning(
        &self,
        address: u64,
        registers: &mut Registers,
        read: &impl Fn(u64) -> Option<u64>,
        returns_to: impl FnOnce(u64) -> bool,
    ) -> Result<Caller, Stuck> {
        let mut after = *registers;
        let caller = cfi::leave(&self.tables, address, &mut after, read)?;
        if caller == Caller::Called && after.get(RA).is_some_and(returns_to) {
            *registers = after;
            return Ok(caller);
        }
        Ok(Caller::None)
    }

    /// Whether a stack that ends at a frame is whole. (A frame pointer of 0 at the entry has been dealt with.) Where it has
    /// been read late, from `late` on, a 0 may have taken the place of a return address.
    pub fn judge(&mut self, address: u64, late: Option<u64>) -> Result<(), UnwindStop> {
        match self.covered(address) {
            // Memory that holds no stack any more is often zero, and Go has other ways to say so.
            Covered::Yes(_) if self.is_go(address) => Err(UnwindStop::Nowhere),
            Covered::NoCaller(_) => Ok(()),
            Covered::Yes(_) => late.map_or(Ok(()), |late| Err(UnwindStop::Unreadable(late))),
            Covered::No => Err(self.no_way(address)),
        }
    }

    /// Why there is no way on from a frame.
    pub fn no_way(&mut self, address: u64) -> UnwindStop {
        UnwindStop::Because(match self.covered(address) {
            Covered::No if self.generated => TruncationReason::JitWithoutMap,
            Covered::No => TruncationReason::NoUnwindInfo,
            Covered::Yes(_) | Covered::NoCaller(_) => TruncationReason::BadUnwindInfo,
        })
    }
}
