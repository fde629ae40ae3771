//! The unwind tables of an image: which row is for an address, and what rules its rows are.

use std::cell::{Cell, OnceCell, RefCell};
use std::ops::Range;
use std::sync::Arc;

use ccsd_symbolizer::{EhFrameIndex, FdeIndex, MAX_ENTRY_BYTES, UnwindSections, eh_frame};
use gimli::{
    BaseAddresses, CfaRule, DebugFrame, Encoding, EndianSlice, Evaluation, EvaluationResult, Expression,
    FrameDescriptionEntry, LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression,
    UnwindSection, UnwindTableRow, Value,
};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use super::known_rules::FunctionRules;
use super::rule::FrameRule;
use crate::arch::registers::{CALLEE_SAVED, FP, RA, REGISTERS, SP};
use crate::arch::step::Stuck;

pub type Slice<'a> = EndianSlice<'a, LittleEndian>;

/// Requests for memory or registers that one expression may make; real ones make two.
pub const MAX_EVALUATION_STEPS: usize = 64;
/// Operations that one expression may take; real ones take some ten.
const MAX_OPERATIONS: u32 = 128;
/// Rows remembered per image, some 300 bytes each: one for each address that a frame was left at with every register.
const MAX_ROWS: usize = 16_384;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    EhFrame,
    /// `.debug_frame`, asked for what the other does not cover.
    DebugFrame,
}

/// Room to run an entry's instructions in, some 30 KiB.
pub type RowContext = UnwindContext<usize>;

/// The tables of one image, and indexes for those without one, built at first use.
#[derive(Debug, Default)]
pub struct ImageTables {
    sections: Arc<UnwindSections>,
    eh_frame: OnceCell<EhFrameIndex>,
    debug_frame: OnceCell<FdeIndex>,
    /// How frames have been left, by address.
    rows: RefCell<HashMap<u64, Result<UnwindRow, Stuck>, FxBuildHasher>>,
    rule_bytes: Cell<usize>,
}

#[derive(Debug)]
pub struct UnwindRow {
    pub found: RowOrigin,
    pub cfa: CfaRule<usize>,
    /// Where the caller's registers are, in the order of their numbers. A register without a rule is as in [`CALLEE_SAVED`].
    pub rules: Box<[(Register, RegisterRule<usize>)]>,
}

impl UnwindRow {
    fn new(row: &UnwindTableRow<usize>, found: RowOrigin) -> UnwindRow {
        let followed = row.registers().filter(|(register, _)| usize::from(register.0) < REGISTERS);
        let mut rules: Box<[_]> = followed.map(|(register, rule)| (*register, rule.clone())).collect();
        rules.sort_unstable_by_key(|(register, _)| register.0);
        UnwindRow { found, cfa: row.cfa().clone(), rules }
    }

    /// Whether the return address is undefined. (Its number is the highest.)
    pub fn has_no_caller(&self) -> bool {
        !matches!(self.rules.last(), Some((RA, rule)) if *rule != RegisterRule::Undefined)
    }

    /// Whether the return address is in a scratch register: only an innermost or interrupted frame can have it there.
    pub fn returns_by_scratch_register(&self) -> bool {
        matches!(
            self.rules.last(),
            Some((RA, RegisterRule::Register(other))) if !CALLEE_SAVED.contains(&usize::from(other.0))
        )
    }
}

impl ImageTables {
    pub fn new(sections: impl Into<Arc<UnwindSections>>) -> ImageTables {
        ImageTables { sections: sections.into(), ..ImageTables::default() }
    }

    pub fn most_index_bytes(sections: &UnwindSections) -> u64 {
        let debug_frame = sections.debug_frame.as_ref().map_or(0, |data| FdeIndex::most_bytes(data.len()));
        EhFrameIndex::most_bytes(sections).saturating_add(debug_frame)
    }

    pub fn row_bytes(&self) -> usize {
        self.rows.borrow().allocation_size() + self.rule_bytes.get()
    }

    fn eh_frame_index(&self) -> &EhFrameIndex {
        self.eh_frame.get_or_init(|| EhFrameIndex::new(&self.sections))
    }

    /// Builds both.
    pub fn build_indexes(&self) {
        self.eh_frame_index();
        if let Some(data) = self.sections.debug_frame.as_deref() {
            self.debug_frame_index(&debug_frame(data), &self.sections.bases());
        }
    }

    fn debug_frame_index(&self, section: &DebugFrame<Slice<'_>>, bases: &BaseAddresses) -> &FdeIndex {
        self.debug_frame.get_or_init(|| FdeIndex::build(section, bases))
    }

    #[cfg(test)]
    pub fn sections(&self) -> &UnwindSections {
        &self.sections
    }

    /// Gives the row for an address to `then`, and remembers it. Errors: those of [`with_row`], and of `then`.
    pub fn with_kept_row<T>(
        &self,
        address: u64,
        then: impl FnOnce(&UnwindRow) -> Result<T, Stuck>,
    ) -> Result<T, Stuck> {
        let mut rows = self.rows.borrow_mut();
        if rows.len() >= MAX_ROWS && !rows.contains_key(&address) {
            rows.clear();
            self.rule_bytes.set(0);
        }
        let row = rows.entry(address).or_insert_with(|| {
            let row = with_row(self, address, UnwindRow::new);
            let rules = row.as_ref().map_or(0, |row| size_of_val::<[_]>(&row.rules));
            self.rule_bytes.set(self.rule_bytes.get() + rules);
            row
        });
        row.as_ref().map_err(|stuck| *stuck).and_then(then)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnwindMethod {
    /// By a rule. The other rows of its function, if these have been read, too.
    Plain(FrameRule, Option<FunctionRules>),
    /// With every register.
    Careful,
}

pub fn way(tables: &ImageTables, address: u64, context: &mut RowContext) -> UnwindMethod {
    if let Some(function) = function(tables, address, context) {
        let rules = &function.rows;
        let distance = u32::try_from(address - function.range.start).unwrap_or(u32::MAX);
        let row = rules.partition_point(|(start, _)| *start <= distance).checked_sub(1).and_then(|row| rules.get(row));
        if let Some(rule) = row.and_then(|row| row.1) {
            return UnwindMethod::Plain(rule, Some(function));
        }
    }
    let rule = with_row_in(context, tables, address, |row, found| {
        FrameRule::of(row).or_else(|| rule_by_expression(tables, found.table, row, address))
    });
    rule.ok().flatten().map_or(UnwindMethod::Careful, |rule| UnwindMethod::Plain(rule, None))
}

/// The rule at one address of a row that says by an expression of address and stack pointer where the frame begins, as that
/// of a procedure linkage table does.
fn rule_by_expression(
    tables: &ImageTables,
    table: TableKind,
    row: &UnwindTableRow<usize>,
    address: u64,
) -> Option<FrameRule> {
    const ANYWHERE: [u64; 2] = [0x7ffe_0000_1000, 0x5555_0000_4fe8];
    let CfaRule::Expression(expression) = row.cfa() else { return None };
    let keeps_bp = matches!(row.register(FP), None | Some(RegisterRule::Undefined | RegisterRule::SameValue));
    if row.register(RA) != Some(RegisterRule::Offset(-8)) || !keeps_bp {
        return None;
    }
    let bytes = |sp: u64| {
        let mut evaluation = evaluation(tables, table, expression)?;
        let mut state = evaluation.evaluate().ok()?;
        for _ in 0..MAX_EVALUATION_STEPS {
            let register = match state {
                EvaluationResult::Complete => break,
                EvaluationResult::RequiresRegister { register, .. } => register,
                _ => return None,
            };
            let value = [(SP, sp), (RA, address)].into_iter().find(|(known, _)| *known == register)?.1;
            state = evaluation.resume_with_register(Value::Generic(value)).ok()?;
        }
        match evaluation.as_result().first().map(|piece| &piece.location) {
            Some(Location::Address { address }) => address.checked_sub(sp),
            _ => None,
        }
    };
    let [one, other] = ANYWHERE.map(bytes);
    let bytes = one.filter(|bytes| Some(*bytes) == other && *bytes > 0 && bytes.is_multiple_of(8))?;
    Some(FrameRule::StackPointer { words: u32::try_from(bytes / 8).ok()? })
}

/// All rows of the entry of `.eh_frame` for an address, if they are not too many, and stand for all of its addresses.
fn function(tables: &ImageTables, address: u64, context: &mut RowContext) -> Option<FunctionRules> {
    let section = eh_frame(&tables.sections)?;
    let bases = tables.sections.bases();
    let index = tables.eh_frame_index();
    let fde = index.find(&tables.sections, address)?;
    let range = fde.initial_address()..fde.end_address();
    if !range.contains(&address) || fde.entry_len().max(fde.cie().entry_len()) > MAX_ENTRY_BYTES {
        return None;
    }
    // What begins inside another stands for a part of its addresses.
    if !index.begins_none(&tables.sections, range.start, range.end.checked_sub(1)?) {
        return None;
    }
    let mut rows = Vec::new();
    let mut table = fde.rows(&section, &bases, context).ok()?;
    // The instructions of the entry may go on beyond its end.
    while let Some(row) = table.next_row().ok()?.filter(|row| row.start_address() < range.end) {
        if rows.len() >= FunctionRules::MAX_ROWS {
            return None;
        }
        let start = u32::try_from(row.start_address().checked_sub(range.start)?).ok()?;
        rows.push((start, FrameRule::of(row)));
    }
    Some(FunctionRules { range, rows })
}

/// Which table covers the address, and whether it says that the function has no caller.
pub fn covers(tables: &ImageTables, address: u64) -> Option<(TableKind, bool)> {
    with_row(tables, address, |row, found| {
        (found.table, matches!(row.register(RA), None | Some(RegisterRule::Undefined)))
    })
    .ok()
}

pub fn evaluation<'a>(
    tables: &'a ImageTables,
    table: TableKind,
    expression: &UnwindExpression<usize>,
) -> Option<Evaluation<Slice<'a>>> {
    let (expression, encoding) = self::expression(tables, table, expression)?;
    let mut evaluation = expression.evaluation(encoding);
    evaluation.set_max_iterations(MAX_OPERATIONS);
    Some(evaluation)
}

pub fn expression<'a>(
    tables: &'a ImageTables,
    table: TableKind,
    expression: &UnwindExpression<usize>,
) -> Option<(Expression<Slice<'a>>, Encoding)> {
    let encoding = Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let expression = match table {
        TableKind::EhFrame => expression.get(&eh_frame(&tables.sections)?),
        TableKind::DebugFrame => expression.get(&debug_frame(tables.sections.debug_frame.as_deref()?)),
    };
    Some((expression.ok()?, encoding))
}

fn debug_frame(data: &[u8]) -> DebugFrame<Slice<'_>> {
    let mut section = DebugFrame::new(data, LittleEndian);
    section.set_address_size(8);
    section
}

#[derive(Clone, Copy, Debug)]
pub struct RowOrigin {
    pub table: TableKind,
    pub signal: bool,
    /// Where the entry's code begins and ends.
    pub start: u64,
    pub end: u64,
}

/// Finds the row of the unwind tables for an address. Errors: [`Stuck::NotCovered`], and [`Stuck::Bad`] where the table
/// makes no sense.
pub fn with_row<T>(
    tables: &ImageTables,
    address: u64,
    then: impl FnOnce(&UnwindTableRow<usize>, RowOrigin) -> T,
) -> Result<T, Stuck> {
    with_row_in(&mut RowContext::new(), tables, address, then)
}

pub fn has_rule(tables: &ImageTables, address: u64, rule: FrameRule) -> bool {
    with_row(tables, address, |row, _| FrameRule::of(row) == Some(rule)).unwrap_or(false)
}

pub fn entry_range(tables: &ImageTables, address: u64) -> Option<Range<u64>> {
    with_row(tables, address, |_, found| found.start..found.end).ok()
}

fn with_row_in<T>(
    context: &mut RowContext,
    tables: &ImageTables,
    address: u64,
    then: impl FnOnce(&UnwindTableRow<usize>, RowOrigin) -> T,
) -> Result<T, Stuck> {
    let sections = &tables.sections;
    let bases = sections.bases();
    if let Some(section) = eh_frame(sections)
        && let Some(fde) = tables.eh_frame_index().find(sections, address)
    {
        return row(context, &section, &bases, TableKind::EhFrame, &fde, address, then);
    }
    let section = debug_frame(tables.sections.debug_frame.as_deref().ok_or(Stuck::NotCovered)?);
    let index = tables.debug_frame_index(&section, &bases);
    let fde = index.find(&section, &bases, address).ok_or(Stuck::NotCovered)?;
    row(context, &section, &bases, TableKind::DebugFrame, &fde, address, then)
}

fn row<'a, S: UnwindSection<Slice<'a>>, T>(
    context: &mut RowContext,
    section: &S,
    bases: &BaseAddresses,
    table: TableKind,
    fde: &FrameDescriptionEntry<Slice<'a>>,
    address: u64,
    then: impl FnOnce(&UnwindTableRow<usize>, RowOrigin) -> T,
) -> Result<T, Stuck> {
    // To run it would take long: it counts as missing.
    if fde.entry_len().max(fde.cie().entry_len()) > MAX_ENTRY_BYTES {
        return Err(Stuck::NotCovered);
    }
    let row = fde.unwind_info_for_address(section, bases, context, address).map_err(|_| Stuck::Bad)?;
    let (start, end) = (fde.initial_address(), fde.end_address());
    Ok(then(row, RowOrigin { table, signal: fde.is_signal_trampoline(), start, end }))
}

#[cfg(test)]
pub mod tests {
    use super::super::cfi::leave;
    use super::super::table_bytes::{push, push_cie, push_fde};
    use super::*;
    use crate::arch::registers::Registers;
    use crate::arch::step::Caller;
    use ccsd_symbolizer::UnwindSection as Bytes;

    /// A plain function at 0x1000, one at 0x2000 that keeps its frame in `rbx`, and the outermost at 0x3000.
    pub fn tables() -> ImageTables {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        // rbx saved at CFA - 16, and the CFA moved on by that push
        push_fde(&mut data, cie, 0x1000, 0x100, &[0x0e, 16, 0x83, 2]);
        // DW_CFA_def_cfa rbx, 16
        push_fde(&mut data, cie, 0x2000, 0x100, &[0x0c, 3, 16]);
        // DW_CFA_undefined 16
        push_fde(&mut data, cie, 0x3000, 0x100, &[0x07, 16]);
        ImageTables::new(UnwindSections { debug_frame: Some(data.into()), ..UnwindSections::default() })
    }

    #[test]
    fn rows_are_remembered() {
        let tables = tables();
        let read = |address: u64| Some(address);
        let mut now = Registers::default();
        now.set(SP, 0x7000);
        now.set(gimli::X86_64::RBX, 0x7100);
        let after = |address| {
            let mut now = now;
            leave(&tables, address, &mut now, &read).map(|_| now)
        };
        let first = [0x1010, 0x2010, 0x4010].map(after);
        assert_eq!(first.each_ref().map(Result::is_ok), [true, true, false]);
        assert_eq!([0x1010, 0x2010, 0x4010].map(after), first);
        assert_eq!(tables.rows.borrow().len(), 3);
        for address in 0x5000..0x5000 + MAX_ROWS as u64 {
            assert_eq!(after(address), Err(Stuck::NotCovered));
        }
        assert!(tables.rows.borrow().len() <= MAX_ROWS);
        assert_eq!([0x1010, 0x2010, 0x4010].map(after), first);
    }

    #[test]
    fn entries_that_take_long_are_refused() {
        // Of .eh_frame with a search table nothing else limits them.
        for (padding, expected) in [(0, Ok(Caller::Called)), (MAX_ENTRY_BYTES, Err(Stuck::NotCovered))] {
            let mut data = Vec::new();
            let cie = push_cie(&mut data);
            push_fde(&mut data, cie, 0x1000, 0x100, &vec![0; padding]);
            let section = debug_frame(&data);
            let bases = BaseAddresses::default();
            let fde = section.fde_for_address(&bases, 0x1010, DebugFrame::cie_from_offset).unwrap();
            let found = row(&mut RowContext::new(), &section, &bases, TableKind::DebugFrame, &fde, 0x1010, |_, _| {
                Caller::Called
            });
            assert_eq!(found, expected);
        }
    }

    /// `.eh_frame` with a function of two rows at 0x1000, another inside it at 0x1800, and one of its own at 0x3000.
    fn nested(header: bool) -> ImageTables {
        let mut data = Vec::new();
        let mut push = |body: &[u8]| u64::from(push(&mut data, body));
        // CIE: version 1, "zR" with absolute addresses of 8 bytes, the frame at `rsp` + 8, the return address below it.
        let cie = push(&[0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 4, 0x0c, 7, 8, 0x90, 1]);
        let mut found = Vec::new();
        // DW_CFA_advance_loc4 0x400, DW_CFA_def_cfa_offset 16
        let two_rows: &[u8] = &[0x04, 0, 4, 0, 0, 0x0e, 16];
        let mut at = cie + 32;
        for (start, length, code) in [(0x1000u64, 0x1000u64, two_rows), (0x1800, 0x100, &[]), (0x3000, 0x800, two_rows)]
        {
            let mut body = ((at + 4 - cie) as u32).to_le_bytes().to_vec();
            body.extend(start.to_le_bytes());
            body.extend(length.to_le_bytes());
            body.push(0);
            body.extend(code);
            let offset = push(&body);
            assert_eq!(offset, at);
            found.push((start, offset));
            at = offset + 4 + body.len().next_multiple_of(8) as u64 + 4;
        }
        // As linkers write it: version 1, no pointer to the section worth reading, the count, and offsets from itself.
        let mut table = vec![1, 0x1b, 3, 0x3b, 0, 0, 0, 0];
        table.extend((found.len() as u32).to_le_bytes());
        for (start, offset) in found {
            let relative = |address: u64| (address.wrapping_sub(2 * SECTION) as u32).to_le_bytes();
            table.extend(relative(start));
            table.extend(relative(SECTION + offset));
        }
        let section = |svma: u64, data: Vec<u8>| Bytes { svma: svma..svma + data.len() as u64, data: data.into() };
        let eh_frame = Some(section(SECTION, data));
        let eh_frame_hdr = header.then(|| section(2 * SECTION, table));
        ImageTables::new(UnwindSections { eh_frame, eh_frame_hdr, ..UnwindSections::default() })
    }

    const SECTION: u64 = 0x10_0000;

    #[test]
    fn rows_stand_for_all_of_their_addresses_but_where_another_entry_begins() {
        let rule = |words| Some(FrameRule::StackPointer { words });
        for header in [true, false] {
            let tables = nested(header);
            let mut context = RowContext::new();
            for (address, words, function) in [
                // In the second row there is another function.
                (0x1000, 1, None),
                (0x13ff, 1, None),
                (0x1400, 2, None),
                (0x1800, 1, Some((0x1800..0x1900, vec![(0, rule(1))]))),
                (0x3000, 1, Some((0x3000..0x3800, vec![(0, rule(1)), (0x400, rule(2))]))),
                (0x37ff, 2, Some((0x3000..0x3800, vec![(0, rule(1)), (0x400, rule(2))]))),
                // What the search finds is the entry that begins last, and it does not reach that far.
                (0x1900, 0, None),
            ] {
                let function = function.map(|(range, rows)| FunctionRules { range, rows });
                let expected = rule(words)
                    .filter(|_| words > 0)
                    .map_or(UnwindMethod::Careful, |rule| UnwindMethod::Plain(rule, function));
                assert_eq!(way(&tables, address, &mut context), expected, "{address:#x}, header: {header}");
            }
        }
    }

    #[test]
    fn rows_that_need_all_registers() {
        let tables = tables();
        let way = |address| way(&tables, address, &mut RowContext::new());
        assert_eq!(way(0x1010), UnwindMethod::Plain(FrameRule::StackPointer { words: 2 }, None));
        assert_eq!(way(0x2010), UnwindMethod::Careful);
        assert_eq!(way(0x3010), UnwindMethod::Plain(FrameRule::Outermost, None));
        assert_eq!(way(0x4010), UnwindMethod::Careful);
        assert_eq!(covers(&tables, 0x1010), Some((TableKind::DebugFrame, false)));
        assert_eq!(covers(&tables, 0x3010), Some((TableKind::DebugFrame, true)));
        assert_eq!(covers(&tables, 0x4010), None);
    }
}
