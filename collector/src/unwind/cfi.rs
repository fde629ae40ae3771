//! Leaving a frame by an unwind table's row with every register, by gimli. Finding a row takes microseconds, so rows
//! are remembered by address; leaving by one takes some 100 ns.

use gimli::{CfaRule, EvaluationResult, Location, Operation, RegisterRule, UnwindExpression, Value};

use super::tables::{ImageTables, MAX_EVALUATION_STEPS, TableKind, UnwindRow, evaluation, expression};
use crate::arch::registers::{CALLEE_SAVED, RA, Registers, SP};
use crate::arch::step::{Caller, Stuck};

/// Leaves the frame at `address` (an SVMA, already inside the call for a caller). Errors: see [`Stuck`]; the registers
/// are then as before.
pub fn leave(
    tables: &ImageTables,
    address: u64,
    registers: &mut Registers,
    read: &impl Fn(u64) -> Option<u64>,
) -> Result<Caller, Stuck> {
    let before = *registers;
    tables.with_kept_row(address, |row| {
        let Some(after) = apply(tables, row, &before, read)? else { return Ok(Caller::None) };
        let (inner, outer) = (before.get(SP), after.get(SP));
        // `vfork` takes its return address off the stack, where its child would overwrite it.
        let outwards = outer > inner || outer == inner && row.returns_by_scratch_register();
        match after.get(RA) {
            // In a register that has been lost.
            None => Err(Stuck::Bad),
            Some(0) => Ok(Caller::None),
            Some(_) if !outwards && !row.found.signal => Err(Stuck::Bad),
            Some(_) => {
                *registers = after;
                Ok(if row.found.signal { Caller::Interrupted } else { Caller::Called })
            }
        }
    })
}

/// Whether a table's row may be wrong: it finds the frame by a register that any call changes, as only assembly does.
pub fn is_doubtful(tables: &ImageTables, address: u64) -> bool {
    let by_scratch = |row: &UnwindRow| {
        Ok(match &row.cfa {
            CfaRule::RegisterAndOffset { register, .. } => {
                *register != SP && !CALLEE_SAVED.contains(&usize::from(register.0))
            }
            CfaRule::Expression(expression) => {
                !row.found.signal && is_kept_in_frame(tables, row.found.table, expression)
            }
        })
    };
    tables.with_kept_row(address, by_scratch).unwrap_or(false)
}

fn is_kept_in_frame(tables: &ImageTables, table: TableKind, expr: &UnwindExpression<usize>) -> bool {
    let Some((expression, encoding)) = expression(tables, table, expr) else { return false };
    let mut operations = expression.operations(encoding);
    let by_stack = matches!(operations.next(), Ok(Some(Operation::RegisterOffset { register: SP, .. })));
    by_stack && matches!(operations.next(), Ok(Some(Operation::Deref { .. })))
}

/// The caller's registers; `None` where the return address is undefined.
fn apply(
    tables: &ImageTables,
    row: &UnwindRow,
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
    after.set(SP, cfa);
    for number in CALLEE_SAVED {
        after.copy(number, before);
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
                    Err(_) if register != RA && before.get(SP).is_some_and(|sp| slot < sp) => before.get(register),
                    // A register that may not be needed is not worth the stack.
                    Err(_) if register != RA => None,
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
    tables: &ImageTables,
    table: TableKind,
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

#[cfg(test)]
mod tests {
    use ccsd_symbolizer::UnwindSections;
    use gimli::Register;
    use gimli::X86_64;

    use super::super::rule::FrameRule;
    use super::super::table_bytes::{push_cie, push_fde};
    use super::super::tables::tests::tables;
    use super::super::tables::{RowContext, UnwindMethod, way};
    use super::*;

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
    fn a_popped_value_is_in_its_register() {
        let mut data = Vec::new();
        let cie = push_cie(&mut data);
        // rbp saved at CFA - 16 while the CFA is rsp + 8: its slot has been left
        push_fde(&mut data, cie, 0x1000, 0x100, &[0x86, 2]);
        let tables = ImageTables::new(UnwindSections { debug_frame: Some(data.into()), ..UnwindSections::default() });
        let mut now = registers(&[(X86_64::RSP, 0x7000), (X86_64::RBP, 6)]);
        let read = |address: u64| (address == 0x7000).then_some(0x2010);
        assert_eq!(leave(&tables, 0x1010, &mut now, &read), Ok(Caller::Called));
        assert_eq!(now.get(X86_64::RBP), Some(6));
    }

    /// No expression may hold the sampling thread up.
    #[test]
    fn expressions_end() {
        // DW_OP_breg7 8; one like that of the PLT; one that jumps back to itself; and one that is long.
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        let long: Vec<u8> = [0x77, 8].into_iter().chain([0x96; 1000]).collect();
        let back = [0x77, 8, 0x2f, 0xfd, 0xff];
        let rule = |words| Some(FrameRule::StackPointer { words });
        for (expression, rule) in [(&[0x77, 8][..], rule(1)), (&plt, rule(1)), (&back, None), (&long, None)] {
            let mut data = Vec::new();
            let cie = push_cie(&mut data);
            // DW_CFA_def_cfa_expression
            let mut instructions = vec![0x0f];
            leb128(&mut instructions, expression.len());
            instructions.extend(expression);
            push_fde(&mut data, cie, 0x1000, 0x100, &instructions);
            let sections = UnwindSections { debug_frame: Some(data.into()), ..UnwindSections::default() };
            let tables = ImageTables::new(sections);
            let way = way(&tables, 0x1010, &mut RowContext::new());
            assert_eq!(way, rule.map_or(UnwindMethod::Careful, |rule| UnwindMethod::Plain(rule, None)));
            let mut now = registers(&[(X86_64::RSP, 0x7000), (X86_64::RA, 0x1010)]);
            let left = leave(&tables, 0x1010, &mut now, &|_| Some(0x2010));
            assert_eq!(left, if rule.is_some() { Ok(Caller::Called) } else { Err(Stuck::Bad) }, "{expression:x?}");
        }
    }

    fn leb128(out: &mut Vec<u8>, mut number: usize) {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    }
}
