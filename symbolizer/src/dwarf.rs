//! Inlined functions and source lines, from DWARF 4 and 5.
//!
//! `addr2line` finds the unit, function, inlined functions and line of an address, and parses each unit when it is
//! first needed; see [`lookup`](crate::lookup). Here it is given the sections, within limits, and the files that were split
//! off units. Where a list of addresses says which unit is about which, it is given one unit at a time; see
//! [`by_unit`](crate::by_unit). Type units are not needed.

use hashbrown::HashSet;

use crate::by_unit::{ByUnit, UnitAnswer};
use crate::dwarf_frame::DwarfFrame;
use crate::elf::ElfFile;
use crate::limits;
use crate::lookup::{Lookup, LookupContext};
use crate::meter::{self, Stopped};
use crate::sections::{self, Budget, Sections};
use crate::split::SplitFiles;

/// The debug information of one image, ready for lookups.
pub(crate) struct Dwarf {
    sections: Sections,
    index: Index,
    /// What is left of the steps granted, and how many were used.
    steps: u64,
    used_steps: u64,
    shared: LookupContext,
}

/// How the unit of an address is found.
enum Index {
    /// By the list of addresses.
    ByUnit(Box<ByUnit>),
    /// By a look at every unit.
    Whole(Box<Lookup>),
}

impl Dwarf {
    /// Reads the debug sections of `file`, and of `supplement`, the file that `dwz(1)` moved common parts to. `split` finds
    /// what was split off. At most `most` bytes are read.
    ///
    /// # Errors
    ///
    /// Says, in words for the user, why the debug information cannot be used.
    pub(crate) fn load(
        file: &ElfFile,
        supplement: Option<&ElfFile>,
        split: SplitFiles,
        most: u64,
    ) -> Result<Dwarf, String> {
        let mut budget = Budget::new(most);
        let sections = Sections::read(file, &mut budget)?;
        let supplement = supplement.map(|supplement| Sections::read(supplement, &mut budget)).transpose()?;
        let granted = limits::MAX_DWARF_STEPS + budget.used() / limits::DEBUG_BYTES_PER_STEP;
        let mut steps = granted;
        let parsed = meter::run(&mut steps, limits::MAX_DWARF_STACK, || {
            if supplement.is_none()
                && let Some(units) = ByUnit::new(&sections)?
            {
                return Ok(Index::ByUnit(Box::new(units)));
            }
            whole(&sections, supplement.as_ref())
        });
        let index = parsed.map_err(describe)??;
        let shared = LookupContext { files: HashSet::new(), split, budget, short_names: false };
        Ok(Dwarf { sections, index, steps, used_steps: granted - steps, shared })
    }

    /// The functions at `svma`, innermost first; none if the debug information knows nothing about it, or is
    /// damaged there. A frame without a name and declaration, alone, says the line only.
    ///
    /// # Errors
    ///
    /// If the debug information must not be used again; says why, in words for the user.
    pub(crate) fn frames(&mut self, svma: u64, out: &mut Vec<DwarfFrame>) -> Result<(), String> {
        out.clear();
        // The last address cannot be looked up: `addr2line` adds one to it. Nothing is mapped there.
        if svma == u64::MAX {
            return Ok(());
        }
        let Dwarf { sections, index, steps, used_steps, shared } = self;
        let (steps_before, bytes_before) = (*steps, shared.budget.used());
        let result = meter::run(steps, limits::MAX_DWARF_STACK, || {
            if let Index::ByUnit(units) = index {
                match units.frames(svma, sections, shared, out)? {
                    UnitAnswer::Answer(answer) => return Ok(answer),
                    UnitAnswer::NeedsAll => *index = whole(sections, None)?,
                }
            }
            let Index::Whole(lookup) = index else { return Ok(Ok(())) };
            Ok::<_, String>(lookup.frames(svma, shared, out))
        });
        *used_steps += steps_before - *steps;
        // For what was split off and has been read now.
        *steps += (shared.budget.used() - bytes_before) / limits::DEBUG_BYTES_PER_STEP;
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

/// All units at once.
fn whole(sections: &Sections, supplement: Option<&Sections>) -> Result<Index, String> {
    let mut dwarf = sections.dwarf();
    if let Some(supplement) = supplement {
        dwarf.set_sup(supplement.dwarf());
    }
    let starts = sections::check_units(&dwarf)?;
    let of_supplement = dwarf.sup().map_or(Ok(Vec::new()), sections::check_units)?;
    let lookup = Lookup::new(dwarf, starts, of_supplement).map_err(sections::damaged)?;
    Ok(Index::Whole(Box::new(lookup)))
}

impl Dwarf {
    /// Whether inlined Rust functions turned up without linkage names, as line tables alone (`debug =
    /// "line-tables-only"`) have none. Such a function has just its last name, `push`, and is another one than its
    /// copy out of line.
    pub(crate) fn has_short_names(&self) -> bool {
        self.shared.short_names
    }

    /// About how many bytes this holds: the sections, and the index. Of that a step makes 7 bytes where there are line
    /// tables only, and 1 to 3 where types and variables are to be skipped.
    pub(crate) fn held_bytes(&self) -> u64 {
        const INDEX_BYTES_PER_STEP: u64 = 4;
        let list = if let Index::ByUnit(units) = &self.index { units.bytes() } else { 0 };
        self.shared.budget.used() + self.used_steps * INDEX_BYTES_PER_STEP + list as u64
    }

    /// What is to be said about files that were split off, since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.shared.split.take_notes()
    }
}

impl std::fmt::Debug for Dwarf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dwarf").field("steps", &self.steps).finish_non_exhaustive()
    }
}

fn describe(stopped: Stopped) -> String {
    match stopped {
        Stopped::OutOfSteps => "debug information takes more work than the limit allows".to_owned(),
        Stopped::Panicked => "debug information made its parser fail".to_owned(),
    }
}
