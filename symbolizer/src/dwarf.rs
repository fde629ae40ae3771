//! Inlined functions and source lines from DWARF 4 and 5.
//!
//! `addr2line` finds unit, functions and line of an address, and parses units when needed ([`lookup`](crate::lookup)).
//! This module provides sections within limits, and split files, and uses the list of units' ranges
//! ([`by_unit`](crate::by_unit)). Type units are not needed.

use std::sync::Arc;

use hashbrown::HashSet;

use crate::by_unit::{ByUnit, UnitAnswer};
use crate::dwarf_frame::DwarfFrame;
use crate::elf_file::ElfFile;
use crate::limits;
use crate::lookup::{LookupContext, UnitLookup};
use crate::meter::{self, MemoryGate, MeterStop, ReadGrant};
use crate::sections::{self, DebugSections, ReadBudget};
use crate::split::SplitFiles;

pub(crate) struct Dwarf {
    sections: DebugSections,
    index: UnitIndex,
    grant: ReadGrant,
    most: u64,
    used_steps: u64,
    shared: LookupContext,
}

enum UnitIndex {
    ByUnit(Box<ByUnit>),
    Whole(Box<UnitLookup>),
}

impl Dwarf {
    /// Reads the debug sections of `file` and its `supplement` from `dwz(1)`; `split` finds split files. At most `most`
    /// bytes, two thirds of it sections; more than a small image's only inside the `gate`.
    pub(crate) fn load(
        file: &ElfFile,
        supplement: Option<&ElfFile>,
        split: SplitFiles,
        (most, gate): (u64, Option<Arc<dyn MemoryGate>>),
    ) -> Result<Dwarf, String> {
        let mut budget = ReadBudget::new(most / 3 * 2);
        let mut grant = ReadGrant { steps: limits::MAX_DWARF_STEPS, bytes: most, cpu: limits::MAX_DWARF_CPU, gate };
        let read = meter::run(&mut grant, limits::MAX_DWARF_STACK, || {
            let sections = DebugSections::read(file, &mut budget)?;
            let supplement = supplement.map(|supplement| DebugSections::read(supplement, &mut budget)).transpose()?;
            Ok::<_, String>((sections, supplement))
        });
        let (sections, supplement) = read.map_err(describe)??;
        let granted = limits::MAX_DWARF_STEPS + budget.used() / limits::DEBUG_BYTES_PER_STEP;
        grant.steps = granted;
        let parsed = meter::run(&mut grant, limits::MAX_DWARF_STACK, || {
            if supplement.is_none()
                && let Some(units) = ByUnit::new(&sections)?
            {
                return Ok(UnitIndex::ByUnit(Box::new(units)));
            }
            whole(&sections, supplement.as_ref())
        });
        let index = parsed.map_err(describe)??;
        let shared = LookupContext { files: HashSet::new(), split, budget, short_names: false };
        Ok(Dwarf { sections, index, most, used_steps: granted - grant.steps, grant, shared })
    }

    /// The functions at `svma`, innermost first; none if there is no answer or damage. A single frame without name and
    /// declaration has only the line.
    pub(crate) fn frames(&mut self, svma: u64, out: &mut Vec<DwarfFrame>) -> Result<(), String> {
        out.clear();
        // `addr2line` adds one to the address, which would overflow. Nothing is mapped there.
        if svma == u64::MAX {
            return Ok(());
        }
        let Dwarf { sections, index, grant, used_steps, shared, .. } = self;
        let (steps_before, bytes_before) = (grant.steps, shared.budget.used());
        let result = meter::run(grant, limits::MAX_DWARF_STACK, || {
            if let UnitIndex::ByUnit(units) = index {
                match units.frames(svma, sections, shared, out)? {
                    UnitAnswer::Answer(answer) => return Ok(answer),
                    UnitAnswer::NeedsAll => *index = whole(sections, None)?,
                }
            }
            let UnitIndex::Whole(lookup) = index else { return Ok(Ok(())) };
            Ok::<_, String>(lookup.frames(svma, shared, out))
        });
        *used_steps += steps_before - grant.steps;
        // Grants steps for split files that were read.
        grant.steps += (shared.budget.used() - bytes_before) / limits::DEBUG_BYTES_PER_STEP;
        match result {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(_))) => {
                out.clear();
                Ok(())
            }
            Ok(Err(why)) => {
                out.clear();
                Err(why)
            }
            Err(stopped) => {
                out.clear();
                Err(describe(stopped))
            }
        }
    }
}

fn whole(sections: &DebugSections, supplement: Option<&DebugSections>) -> Result<UnitIndex, String> {
    let mut dwarf = sections.dwarf();
    if let Some(supplement) = supplement {
        dwarf.set_sup(supplement.dwarf());
    }
    let starts = sections::check_units(&dwarf)?;
    let of_supplement = dwarf.sup().map_or(Ok(Vec::new()), sections::check_units)?;
    let lookup = UnitLookup::new(dwarf, starts, of_supplement).map_err(sections::damaged)?;
    Ok(UnitIndex::Whole(Box::new(lookup)))
}

impl Dwarf {
    /// Whether inlined Rust functions had no linkage names (`debug = "line-tables-only"`): they have only a last name,
    /// `push`, and differ from out-of-line copies.
    pub(crate) fn has_short_names(&self) -> bool {
        self.shared.short_names
    }

    /// Approximate bytes held: sections and index. A step adds 7 bytes of index with line tables only, else 1 to 3.
    pub(crate) fn held_bytes(&self) -> u64 {
        const INDEX_BYTES_PER_STEP: u64 = 4;
        let list = if let UnitIndex::ByUnit(units) = &self.index { units.bytes() } else { 0 };
        let estimate = self.used_steps * INDEX_BYTES_PER_STEP + list as u64;
        // Zero where the program's allocator reports nothing.
        let reported = self.most.saturating_sub(self.grant.bytes);
        (self.shared.budget.used() + estimate).max(reported)
    }

    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.shared.split.take_notes()
    }
}

impl std::fmt::Debug for Dwarf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dwarf").field("grant", &self.grant).finish_non_exhaustive()
    }
}

fn describe(stopped: MeterStop) -> String {
    match stopped {
        MeterStop::OutOfBytes => "debug information takes more memory than the limit allows".to_owned(),
        MeterStop::OutOfTime => "debug information takes more time than the limit allows".to_owned(),
        MeterStop::OutOfSteps => "debug information takes more work than the limit allows".to_owned(),
        MeterStop::Panicked => "debug information made its parser fail".to_owned(),
    }
}
