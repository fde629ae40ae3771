//! Leaves frames of functions that realign their stack by the frame pointer, as fast as framehop.
//!
//! With larger alignment and a frame of variable size, or `force_align_arg_pointer`, GCC keeps the frame's address in
//! the frame: CFA and the caller's `rbp` are stored at distances from `rbp`. framehop has no such rule. Other saved
//! registers matter only to [`full_registers`](super::full_registers).

use gimli::{CfaRule, Operation, RegisterRule, UnwindExpression};

use super::tables::{ImageTables, TableKind, expression, with_row};
use crate::arch::registers::{FP, RA};
use crate::arch::step::CallerPointers;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Realigned {
    /// Where the frame's address is stored, from `rbp`.
    cfa: i64,
    bp: Option<i64>,
}

impl Realigned {
    /// What the tables say of the frame at `address` (an SVMA, inside the call for a caller), if it is such a one.
    pub fn find(tables: &ImageTables, address: u64) -> Option<Realigned> {
        let found = with_row(tables, address, |row, found| {
            let CfaRule::Expression(cfa) = row.cfa() else { return None };
            let cfa = distance(tables, found.table, cfa, true)?;
            let bp = match row.register(FP) {
                None | Some(RegisterRule::SameValue) => None,
                Some(RegisterRule::Expression(bp)) => Some(distance(tables, found.table, &bp, false)?),
                Some(_) => return None,
            };
            // Elsewhere the shadow stack would not look for it.
            let usual = row.register(RA) == Some(RegisterRule::Offset(-8)) && !found.signal;
            usual.then_some(Realigned { cfa, bp })
        });
        found.ok().flatten()
    }

    /// The caller's pointers, and where the frame's address was stored. Errors: the address of the stack that was
    /// needed and cannot be read; `None` where this does not lead outwards.
    pub fn leave(
        self,
        (sp, bp): (u64, u64),
        read: &impl Fn(u64) -> Option<u64>,
    ) -> Result<(CallerPointers, u64), Option<u64>> {
        let load = |address: u64| read(address).ok_or(Some(address));
        let slot = bp.wrapping_add_signed(self.cfa);
        let cfa = load(slot)?;
        let bp_slot = self.bp.map(|distance| bp.wrapping_add_signed(distance));
        // All that is read lies in the frame, where the shadow stack looks for it.
        let frame = sp..cfa.saturating_sub(8);
        if !frame.contains(&slot) || bp_slot.is_some_and(|slot| !frame.contains(&slot)) {
            return Err(None);
        }
        let ip = load(cfa - 8)?;
        let bp = bp_slot.map_or(Ok(bp), load)?;
        Ok((CallerPointers { ip, sp: cfa, bp }, slot))
    }
}

/// The distance from `rbp` of an expression that is that address, or with `stored` what is stored there.
fn distance(tables: &ImageTables, table: TableKind, expr: &UnwindExpression<usize>, stored: bool) -> Option<i64> {
    let (expression, encoding) = expression(tables, table, expr)?;
    let mut operations = expression.operations(encoding);
    let Ok(Some(Operation::RegisterOffset { register: FP, offset, .. })) = operations.next() else {
        return None;
    };
    if stored && !matches!(operations.next(), Ok(Some(Operation::Deref { size: 8, space: false, .. }))) {
        return None;
    }
    matches!(operations.next(), Ok(None)).then_some(offset)
}
