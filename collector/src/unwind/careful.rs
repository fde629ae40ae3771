//! One frame at a time with every register, straight from the unwind tables.
//!
//! framehop follows `rip`, `rsp` and `rbp`, and knows no rule that reads memory to find the frame. That leaves out signal
//! frames, functions that realign their stack (while they do so; afterwards [`realigned`](super::realigned) knows how), and
//! assembly that keeps its frame in another register (the dynamic linker's lazy binding keeps it in `rbx`). A stack that
//! meets such a frame is unwound by this module instead, from its first frame up to this one, because the other registers
//! have to be followed through the callees. Finding a row in the tables takes microseconds, so rows are remembered by
//! address; leaving a frame by one takes some 100 ns.

use std::cell::{OnceCell, RefCell};

use ccsd_symbolizer::UnwindSections;
use gimli::{
    BaseAddresses, CfaRule, DebugFrame, EhFrame, EhFrameHdr, Encoding, EndianSlice, Evaluation, EvaluationResult,
    Expression, FrameDescriptionEntry, LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, UnwindTableRow, Value, X86_64,
};

use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::fde_index::{FdeIndex, MAX_ENTRY_BYTES};

type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// DWARF numbers 0 to 15 are general registers, 16 is the return address; psABI for x86-64, figure 3.36.
const REGISTERS: usize = 17;
/// Registers that a function leaves as it found them: rbx, rbp, r12 to r15. Unless the table says otherwise these, and
/// only these, are the caller's too.
pub const CALLEE_SAVED: [usize; 6] = [3, 6, 12, 13, 14, 15];
/// Requests for memory or registers that one expression may make; real ones make two.
const MAX_EVALUATION_STEPS: usize = 64;
/// Rows remembered per image, some 300 bytes each: one for each address that a frame was left at with every register.
const MAX_ROWS: usize = 16_384;

/// Register values by DWARF number, as far as they are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Registers {
    values: [Option<u64>; REGISTERS],
}

impl Registers {
    /// The value of a register.
    pub fn get(&self, register: Register) -> Option<u64> {
        self.values.get(usize::from(register.0)).copied().flatten()
    }

    /// Sets a register; one that is not followed is ignored.
    ///
    /// All ones in a callee-saved register leave it unknown: that is what the kernel reports where a non-maskable
    /// interrupt found the thread in a system call, for registers that the system call's entry has not saved
    /// (`perf_get_regs_user` in arch/x86/kernel/perf_regs.c). Should a program hold the value itself, nothing is lost,
    /// because no frame is there.
    pub fn set(&mut self, register: Register, value: u64) {
        let number = usize::from(register.0);
        if let Some(slot) = self.values.get_mut(number) {
            *slot = (value != u64::MAX || !CALLEE_SAVED.contains(&number)).then_some(value);
        }
    }

    fn forget(&mut self, register: Register) {
        if let Some(slot) = self.values.get_mut(usize::from(register.0)) {
            *slot = None;
        }
    }
}

/// What is known of the caller of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The tables say that there is none.
    None,
    /// The registers are now the caller's; it waits for a call to return.
    Called,
    /// The registers are now those of code that was interrupted by a signal.
    Interrupted,
}

/// Why a frame could not be left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// No table covers the address.
    NotCovered,
    /// A value is needed from this address of the stack, which is not there.
    Unreadable(u64),
    /// The table makes no sense, or needs a register that is not known.
    Bad,
}

/// One of an image's two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// `.eh_frame`
    EhFrame,
    /// `.debug_frame`, asked for what the other does not cover.
    DebugFrame,
}

/// The tables of one image, and the indexes of those that come without one. An index is built when its table is first
/// asked for an address.
#[derive(Debug, Default)]
pub struct Tables {
    sections: UnwindSections,
    /// Of `.eh_frame`, used only where there is no `.eh_frame_hdr`.
    eh_frame: OnceCell<FdeIndex>,
    debug_frame: OnceCell<FdeIndex>,
    /// How frames have been left, by address.
    rows: RefCell<HashMap<u64, Result<Row, Stuck>, FxBuildHasher>>,
}

/// A row of the tables: what it takes to leave a frame.
#[derive(Debug)]
struct Row {
    found: Found,
    cfa: CfaRule<usize>,
    /// In the order of their numbers. A register without a rule is as in [`CALLEE_SAVED`].
    rules: Box<[(Register, RegisterRule<usize>)]>,
}

impl Row {
    fn new(row: &UnwindTableRow<usize>, found: Found) -> Row {
        let followed = row.registers().filter(|(register, _)| usize::from(register.0) < REGISTERS);
        let mut rules: Box<[_]> = followed.map(|(register, rule)| (*register, rule.clone())).collect();
        rules.sort_unstable_by_key(|(register, _)| register.0);
        Row { found, cfa: row.cfa().clone(), rules }
    }

    /// Whether the return address is undefined. (Its number is the highest.)
    fn has_no_caller(&self) -> bool {
        !matches!(self.rules.last(), Some((X86_64::RA, rule)) if *rule != RegisterRule::Undefined)
    }
}

impl Tables {
    /// Reads nothing yet.
    pub fn new(sections: UnwindSections) -> Tables {
        Tables { sections, ..Tables::default() }
    }

    /// Where they are read from.
    pub fn sections(&self) -> &UnwindSections {
        &self.sections
    }
}

/// Whether framehop cannot leave the frame at `address`.
pub fn needs_care(tables: &Tables, address: u64) -> bool {
    let simple = with_row(tables, address, |row, found| {
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, .. } => *register == X86_64::RSP || *register == X86_64::RBP,
            // That of the PLT reads no memory, and framehop evaluates it.
            CfaRule::Expression(expression) => !reads_memory(tables, found.table, expression),
        };
        let plain = |rule: Option<RegisterRule<usize>>| {
            matches!(rule, None | Some(RegisterRule::Undefined | RegisterRule::SameValue | RegisterRule::Offset(_)))
        };
        cfa && plain(row.register(X86_64::RA)) && plain(row.register(X86_64::RBP))
    });
    // Of what no table covers framehop makes guesses of its own.
    matches!(simple, Ok(false) | Err(Stuck::NotCovered))
}

/// Which table covers the address, and whether it says that the function has no caller.
pub fn covers(tables: &Tables, address: u64) -> Option<(Table, bool)> {
    with_row(tables, address, |row, found| {
        (found.table, matches!(row.register(X86_64::RA), None | Some(RegisterRule::Undefined)))
    })
    .ok()
}

/// Leaves the frame at `address` (an SVMA, already inside the call for a caller).
///
/// # Errors
/// See [`Stuck`]; the registers are then as before.
pub fn leave(
    tables: &Tables,
    address: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<Caller, Stuck> {
    let before = *registers;
    let mut rows = tables.rows.borrow_mut();
    if rows.len() >= MAX_ROWS && !rows.contains_key(&address) {
        rows.clear();
    }
    let row = match rows.entry(address).or_insert_with(|| with_row(tables, address, Row::new)) {
        Ok(row) => row,
        Err(stuck) => return Err(*stuck),
    };
    let Some(after) = apply(tables, row, &before, read)? else { return Ok(Caller::None) };
    let signal = row.found.signal;
    match after.get(X86_64::RA) {
        None | Some(0) => Ok(Caller::None),
        Some(_) if after.get(X86_64::RSP) <= before.get(X86_64::RSP) && !signal => Err(Stuck::Bad),
        Some(_) => {
            *registers = after;
            Ok(if signal { Caller::Interrupted } else { Caller::Called })
        }
    }
}

/// Leaves a frame that no table covers, as code compiled with frame pointers is left: `rbp` points to the caller's `rbp`,
/// and above it is the return address. A frame pointer of 0 ends the stack.
///
/// # Errors
/// See [`Stuck`].
pub fn follow_frame_pointer(registers: &mut Registers, read: &impl Fn(u64) -> Option<u64>) -> Result<Caller, Stuck> {
    let bp = registers.get(X86_64::RBP).ok_or(Stuck::Bad)?;
    if bp == 0 {
        return Ok(Caller::None);
    }
    let sp = bp.checked_add(16).ok_or(Stuck::Bad)?;
    if registers.get(X86_64::RSP).is_some_and(|old| sp <= old) {
        return Err(Stuck::Bad);
    }
    let caller_bp = read(bp).ok_or(Stuck::Unreadable(bp))?;
    let address = read(bp + 8).ok_or(Stuck::Unreadable(bp + 8))?;
    *registers = Registers::default();
    registers.set(X86_64::RBP, caller_bp);
    registers.set(X86_64::RSP, sp);
    registers.set(X86_64::RA, address);
    Ok(if address == 0 { Caller::None } else { Caller::Called })
}

/// The caller's registers; `None` where the return address is undefined.
fn apply(
    tables: &Tables,
    row: &Row,
    before: &Registers,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<Option<Registers>, Stuck> {
    let table = row.found.table;
    let cfa = match &row.cfa {
        CfaRule::RegisterAndOffset { register, offset } => {
            before.get(*register).ok_or(Stuck::Bad)?.wrapping_add_signed(*offset)
        }
        CfaRule::Expression(expression) => evaluate(tables, table, expression, before, None, read)?,
    };
    let load = |address: u64| read(address).ok_or(Stuck::Unreadable(address));
    let mut after = Registers::default();
    after.set(X86_64::RSP, cfa);
    for number in CALLEE_SAVED {
        after.values[number] = before.values[number];
    }
    for (register, rule) in &row.rules {
        let register = *register;
        let value = match rule {
            RegisterRule::SameValue => before.get(register),
            RegisterRule::Offset(offset) => {
                let slot = cfa.wrapping_add_signed(*offset);
                match load(slot) {
                    Ok(value) => Some(value),
                    // Where an epilogue has popped it already, and the table does not say so.
                    Err(_) if register != X86_64::RA && before.get(X86_64::RSP).is_some_and(|sp| slot < sp) => {
                        before.get(register)
                    }
                    // A register that nobody may need is not worth the stack.
                    Err(_) if register != X86_64::RA => None,
                    Err(stuck) => return Err(stuck),
                }
            }
            RegisterRule::ValOffset(offset) => Some(cfa.wrapping_add_signed(*offset)),
            RegisterRule::Register(other) => before.get(*other),
            RegisterRule::Expression(expression) => {
                Some(load(evaluate(tables, table, expression, before, Some(cfa), read)?)?)
            }
            RegisterRule::ValExpression(expression) => {
                Some(evaluate(tables, table, expression, before, Some(cfa), read)?)
            }
            // Undefined, and those that mean nothing here.
            _ => None,
        };
        after.forget(register);
        if let Some(value) = value {
            after.set(register, value);
        }
    }
    Ok(if row.has_no_caller() { None } else { Some(after) })
}

fn evaluate(
    tables: &Tables,
    table: Table,
    expression: &UnwindExpression<usize>,
    registers: &Registers,
    cfa: Option<u64>,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<u64, Stuck> {
    let mut evaluation = evaluation(tables, table, expression).ok_or(Stuck::Bad)?;
    if let Some(cfa) = cfa {
        // Register expressions start with the frame's address on their stack (DWARF 5, 6.4.2.3).
        evaluation.set_initial_value(cfa);
    }
    let mut state = evaluation.evaluate().map_err(|_| Stuck::Bad)?;
    for _ in 0..MAX_EVALUATION_STEPS {
        state = match state {
            EvaluationResult::Complete => {
                return match evaluation.result().first().map(|piece| &piece.location) {
                    Some(Location::Address { address }) => Ok(*address),
                    Some(Location::Value { value: Value::Generic(value) }) => Ok(*value),
                    _ => Err(Stuck::Bad),
                };
            }
            EvaluationResult::RequiresMemory { address, size: 8, .. } => {
                let value = read(address).ok_or(Stuck::Unreadable(address))?;
                evaluation.resume_with_memory(Value::Generic(value))
            }
            EvaluationResult::RequiresRegister { register, .. } => {
                evaluation.resume_with_register(Value::Generic(registers.get(register).ok_or(Stuck::Bad)?))
            }
            _ => return Err(Stuck::Bad),
        }
        .map_err(|_| Stuck::Bad)?;
    }
    Err(Stuck::Bad)
}

fn reads_memory(tables: &Tables, table: Table, expression: &UnwindExpression<usize>) -> bool {
    let Some(mut evaluation) = evaluation(tables, table, expression) else { return false };
    let mut state = evaluation.evaluate();
    for _ in 0..MAX_EVALUATION_STEPS {
        state = match state {
            Ok(EvaluationResult::RequiresMemory { .. }) => return true,
            // Any value will do: what counts is what it is used for.
            Ok(EvaluationResult::RequiresRegister { .. }) => evaluation.resume_with_register(Value::Generic(16)),
            _ => return false,
        };
    }
    false
}

fn evaluation<'a>(
    tables: &'a Tables,
    table: Table,
    expression: &UnwindExpression<usize>,
) -> Option<Evaluation<Slice<'a>>> {
    let (expression, encoding) = self::expression(tables, table, expression)?;
    Some(expression.evaluation(encoding))
}

/// An expression of a table, and how it is encoded.
pub fn expression<'a>(
    tables: &'a Tables,
    table: Table,
    expression: &UnwindExpression<usize>,
) -> Option<(Expression<Slice<'a>>, Encoding)> {
    let encoding = Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let expression = match table {
        Table::EhFrame => expression.get(&EhFrame::new(&tables.sections.eh_frame.as_ref()?.data, LittleEndian)),
        Table::DebugFrame => expression.get(&debug_frame(tables.sections.debug_frame.as_deref()?)),
    };
    Some((expression.ok()?, encoding))
}

fn debug_frame(data: &[u8]) -> DebugFrame<Slice<'_>> {
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(8);
    section
}

/// Where a row was found.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// In which table.
    pub table: Table,
    /// Whether it belongs to a signal trampoline.
    pub signal: bool,
}

/// Finds the row of the unwind tables for an address.
///
/// # Errors
/// [`Stuck::NotCovered`], and [`Stuck::Bad`] where the table makes no sense.
pub fn with_row<T>(
    tables: &Tables,
    address: u64,
    then: impl FnOnce(&UnwindTableRow<usize>, Found) -> T,
) -> Result<T, Stuck> {
    let sections = &tables.sections;
    let bases = sections.bases();
    if let Some(eh_frame) = &sections.eh_frame {
        let section = EhFrame::new(&eh_frame.data, LittleEndian);
        let fde = match &sections.eh_frame_hdr {
            Some(header) => {
                let parsed = EhFrameHdr::new(&header.data, LittleEndian).parse(&bases, 8).ok();
                parsed
                    .as_ref()
                    .and_then(|parsed| parsed.table())
                    .and_then(|table| table.fde_for_address(&section, &bases, address, EhFrame::cie_from_offset).ok())
            }
            None => {
                let index = tables.eh_frame.get_or_init(|| FdeIndex::build(&section, &bases));
                index.find(&section, &bases, address)
            }
        };
        if let Some(fde) = fde {
            return row(&section, &bases, Table::EhFrame, &fde, address, then);
        }
    }
    let section = debug_frame(tables.sections.debug_frame.as_deref().ok_or(Stuck::NotCovered)?);
    let index = tables.debug_frame.get_or_init(|| FdeIndex::build(&section, &bases));
    let fde = index.find(&section, &bases, address).ok_or(Stuck::NotCovered)?;
    row(&section, &bases, Table::DebugFrame, &fde, address, then)
}

fn row<'a, S: UnwindSection<Slice<'a>>, T>(
    section: &S,
    bases: &BaseAddresses,
    table: Table,
    fde: &FrameDescriptionEntry<Slice<'a>>,
    address: u64,
    then: impl FnOnce(&UnwindTableRow<usize>, Found) -> T,
) -> Result<T, Stuck> {
    // All of it may be run.
    if fde.entry_len().max(fde.cie().entry_len()) > MAX_ENTRY_BYTES {
        return Err(Stuck::Bad);
    }
    let mut context = UnwindContext::new();
    let row = fde.unwind_info_for_address(section, bases, &mut context, address).map_err(|_| Stuck::Bad)?;
    Ok(then(row, Found { table, signal: fde.is_signal_trampoline() }))
}

#[cfg(test)]
mod tests {
    use super::super::fde_index::tests::{push_cie, push_fde};
    use super::*;

    /// A plain function at 0x1000, one at 0x2000 that keeps its frame in `rbx`, and the outermost at 0x3000.
    fn tables() -> Tables {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        // rbx saved at CFA - 16, and the CFA moved on by that push
        push_fde(&mut data, cie, 0x1000, 0x100, &[0x0e, 16, 0x83, 2]);
        // DW_CFA_def_cfa rbx, 16
        push_fde(&mut data, cie, 0x2000, 0x100, &[0x0c, 3, 16]);
        // DW_CFA_undefined 16
        push_fde(&mut data, cie, 0x3000, 0x100, &[0x07, 16]);
        Tables::new(UnwindSections { debug_frame: Some(data.into()), ..UnwindSections::default() })
    }

    fn registers(values: &[(Register, u64)]) -> Registers {
        let mut registers = Registers::default();
        values.iter().for_each(|&(register, value)| registers.set(register, value));
        registers
    }

    #[test]
    fn follows_the_registers_of_callers() {
        let tables = tables();
        let read = |address: u64| match address {
            0x7000 => Some(0x7100), // rbx
            0x7008 => Some(0x2010),
            0x7108 => Some(0x3010),
            _ => None,
        };
        let mut now = registers(&[(X86_64::RA, 0x1010), (X86_64::RSP, 0x7000), (X86_64::R12, 12)]);
        assert_eq!(leave(&tables, 0x1010, &mut now, &read), Ok(Caller::Called));
        assert_eq!([X86_64::RA, X86_64::RSP, X86_64::RBX].map(|r| now.get(r)), [0x2010, 0x7010, 0x7100].map(Some));
        assert_eq!(leave(&tables, 0x200f, &mut now, &read), Ok(Caller::Called));
        assert_eq!([X86_64::RA, X86_64::RSP, X86_64::R12].map(|r| now.get(r)), [0x3010, 0x7110, 12].map(Some));
        assert_eq!(leave(&tables, 0x300f, &mut now, &read), Ok(Caller::None));
        assert_eq!(leave(&tables, 0x400f, &mut now, &read), Err(Stuck::NotCovered));
    }

    #[test]
    fn a_frame_needs_what_is_known() {
        let tables = tables();
        let mut now = registers(&[(X86_64::RSP, 0x7000), (X86_64::RBX, 0x7100)]);
        assert_eq!(leave(&tables, 0x2010, &mut now, &|_| None), Err(Stuck::Unreadable(0x7108)));
        // Not saved by the system call's entry.
        now.set(X86_64::RBX, u64::MAX);
        assert_eq!(now.get(X86_64::RBX), None);
        assert_eq!(leave(&tables, 0x2010, &mut now, &|_| Some(0x3010)), Err(Stuck::Bad));
        assert_eq!(now.get(X86_64::RSP), Some(0x7000));
        now.set(X86_64::RA, u64::MAX);
        assert_eq!(now.get(X86_64::RA), Some(u64::MAX));
    }

    #[test]
    fn what_has_been_popped_is_in_its_register() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        // rbp saved at CFA - 16 while the CFA is rsp + 8: its slot has been left
        push_fde(&mut data, cie, 0x1000, 0x100, &[0x86, 2]);
        let tables = Tables::new(UnwindSections { debug_frame: Some(data.into()), ..UnwindSections::default() });
        let mut now = registers(&[(X86_64::RSP, 0x7000), (X86_64::RBP, 6)]);
        let read = |address: u64| (address == 0x7000).then_some(0x2010);
        assert_eq!(leave(&tables, 0x1010, &mut now, &read), Ok(Caller::Called));
        assert_eq!(now.get(X86_64::RBP), Some(6));
    }

    #[test]
    fn rows_are_remembered() {
        let tables = tables();
        let read = |address: u64| Some(address);
        let now = registers(&[(X86_64::RSP, 0x7000), (X86_64::RBX, 0x7100)]);
        let after = |address| {
            let mut now = now;
            leave(&tables, address, &mut now, &read).map(|_| now.values)
        };
        let first = [0x1010, 0x2010, 0x4010].map(after);
        assert_eq!(first.each_ref().map(Result::is_ok), [true, true, false]);
        assert_eq!([0x1010, 0x2010, 0x4010].map(after), first);
        assert_eq!(tables.rows.borrow().len(), 3);
        // Not without end.
        for address in 0x5000..0x5000 + MAX_ROWS as u64 {
            assert_eq!(after(address), Err(Stuck::NotCovered));
        }
        assert!(tables.rows.borrow().len() <= MAX_ROWS);
        assert_eq!([0x1010, 0x2010, 0x4010].map(after), first);
    }

    #[test]
    fn entries_that_take_long_are_refused() {
        // Of .eh_frame with a search table nothing else limits them.
        for (padding, expected) in [(0, Ok(Caller::Called)), (MAX_ENTRY_BYTES, Err(Stuck::Bad))] {
            let mut data = Vec::new();
            let cie = push_cie(&mut data);
            push_fde(&mut data, cie, 0x1000, 0x100, &vec![0; padding]);
            let section = debug_frame(&data);
            let bases = BaseAddresses::default();
            let fde = section.fde_for_address(&bases, 0x1010, DebugFrame::cie_from_offset).unwrap();
            let found = row(&section, &bases, Table::DebugFrame, &fde, 0x1010, |_, _| Caller::Called);
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_needs_care() {
        let tables = tables();
        assert!(!needs_care(&tables, 0x1010));
        assert!(needs_care(&tables, 0x2010));
        assert!(needs_care(&tables, 0x4010));
        assert_eq!(covers(&tables, 0x1010), Some((Table::DebugFrame, false)));
        assert_eq!(covers(&tables, 0x3010), Some((Table::DebugFrame, true)));
        assert_eq!(covers(&tables, 0x4010), None);
    }
}
