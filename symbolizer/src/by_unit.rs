//! Parses debug information one unit at a time.
//!
//! To find an address, `addr2line` parses the headers of all units, for glibc's 1,700 three times as long as
//! decompressing them. GCC and the assembler write a list of each unit's ranges (`.debug_aranges`; DWARF 5, section
//! 6.1.2), so that only units of interest are given to `addr2line`, each as if it were alone.
//!
//! All units are loaded if a unit refers to others (link-time optimisation, `dwz(1)`) or has split parts, and for an
//! address that is not listed while some units are not.

use gimli::{Reader as _, Section as _};
use hashbrown::HashMap;

use crate::dwarf_frame::DwarfFrame;
use crate::limits;
use crate::lookup::{LookupContext, UnitLookup};
use crate::meter;
use crate::sections::{self, DebugSections, damaged};

/// Maximum units tried for one address: ranges of dropped functions seem to overlap others at the image's start.
const MAX_CLAIMS: usize = 16;

/// Maximum ranges examined: one that spans many others would make the list useless.
const MAX_LOOKED_AT: usize = 256;
/// Maximum ranges kept, in total and per unit. (A unit has one for each section with code.)
const MAX_RANGES: usize = 4096;
const MAX_RANGES_OF_UNIT: usize = 64;

pub(crate) struct ByUnit {
    /// Ordered by start.
    ranges: Vec<Range>,
    /// Ordered starts of the units in `.debug_info`.
    starts: Vec<usize>,
    /// Whether some units are not in the list. (They may have no code.)
    others: bool,
    open: HashMap<u32, UnitLookup>,
}

struct Range {
    begin: u64,
    end: u64,
    /// The largest `end` of this and all earlier ranges.
    reach: u64,
    unit: u32,
}

pub(crate) enum UnitAnswer {
    Answer(gimli::Result<()>),
    /// All units must be searched.
    NeedsAll,
}

impl ByUnit {
    /// Reads the list; `None` if it is missing or omits most units.
    pub(crate) fn new(sections: &DebugSections) -> Result<Option<ByUnit>, String> {
        let dwarf = sections.dwarf();
        if dwarf.debug_aranges.reader().is_empty() {
            return Ok(None);
        }
        let starts = sections::unit_starts(&dwarf)?;
        let mut ranges = Vec::new();
        let (mut listed, mut with_code) = (vec![None; starts.len()], vec![false; starts.len()]);
        let mut headers = dwarf.debug_aranges.headers();
        while let Some(header) = headers.next().map_err(damaged)? {
            let Ok(unit) = starts.binary_search(&header.debug_info_offset().0) else { continue };
            let mut entries = header.entries();
            let mut whole = true;
            while let Some(entry) = entries.next().transpose() {
                // Its end exceeds the address space; the next entry may be valid.
                let Ok(entry) = entry else {
                    whole = false;
                    continue;
                };
                let (begin, end) = (entry.address(), entry.range().end);
                if ranges.len() >= MAX_RANGES.saturating_add(starts.len().saturating_mul(MAX_RANGES_OF_UNIT)) {
                    return Ok(None);
                }
                if begin < end {
                    ranges.push(Range { begin, end, reach: end, unit: unit as u32 });
                    with_code[unit] = true;
                }
            }
            // An empty list means that the unit has no code: data, or types.
            listed[unit] = Some(whole && listed[unit] != Some(false));
        }
        if with_code.iter().filter(|&&has| has).count() * 2 < starts.len() {
            return Ok(None);
        }
        meter::spend(meter::steps_of_sort(ranges.len())).map_err(|meter::Spent| damaged(gimli::Error::Io))?;
        ranges.sort_unstable_by_key(|range| (range.begin, range.unit));
        let mut reach = 0;
        for range in &mut ranges {
            reach = reach.max(range.end);
            range.reach = reach;
        }
        Ok(Some(ByUnit {
            ranges,
            others: !listed.iter().all(|&whole| whole == Some(true)),
            starts,
            open: HashMap::new(),
        }))
    }

    /// The functions at `svma`, as [`UnitLookup::frames`].
    pub(crate) fn frames(
        &mut self,
        svma: u64,
        sections: &DebugSections,
        shared: &mut LookupContext,
        out: &mut Vec<DwarfFrame>,
    ) -> Result<UnitAnswer, String> {
        let Some(units) = self.claiming_units(svma) else { return Ok(UnitAnswer::NeedsAll) };
        if units.is_empty() && self.others {
            return Ok(UnitAnswer::NeedsAll);
        }
        let mut answer = Ok(());
        for unit in units {
            if !self.open.contains_key(&unit) {
                let Some(lookup) = self.open(unit, sections)? else { return Ok(UnitAnswer::NeedsAll) };
                self.open.insert(unit, lookup);
            }
            let Some(lookup) = self.open.get_mut(&unit) else { continue };
            out.clear();
            answer = lookup.frames(svma, shared, out);
            if answer.is_ok() && out.first().is_some_and(|frame| frame.name.is_some()) {
                break;
            }
        }
        Ok(UnitAnswer::Answer(answer))
    }

    pub(crate) fn bytes(&self) -> usize {
        self.ranges.capacity() * size_of::<Range>()
    }

    /// The units that claim an address, by the distance of their range's start. `None` if there are too many ranges.
    fn claiming_units(&self, svma: u64) -> Option<Vec<u32>> {
        let after = self.ranges.partition_point(|range| range.begin <= svma);
        let before = self.ranges.get(..after).unwrap_or_default().iter().rev();
        let mut units = Vec::new();
        for (looked_at, range) in before.take_while(|range| range.reach > svma).enumerate() {
            if looked_at >= MAX_LOOKED_AT {
                return None;
            }
            if range.end > svma && !units.contains(&range.unit) {
                units.push(range.unit);
            }
            if units.len() == MAX_CLAIMS {
                break;
            }
        }
        Some(units)
    }

    /// Loads one unit, if it has no references to others.
    fn open(&self, unit: u32, sections: &DebugSections) -> Result<Option<UnitLookup>, String> {
        let Some(&start) = self.starts.get(unit as usize) else { return Ok(None) };
        let end = self.starts.get(unit as usize + 1).copied();
        let mut info = sections.info();
        info.skip(start).map_err(damaged)?;
        if let Some(length) = end.and_then(|end| end.checked_sub(start)) {
            info.truncate(length).map_err(damaged)?;
        }
        let dwarf = sections.dwarf_of(info);
        let Some(header) = dwarf.units().next().map_err(damaged)? else { return Ok(None) };
        let abbreviations = sections::check_abbreviations(&dwarf.debug_abbrev, header.debug_abbrev_offset().0);
        if !abbreviations.map_err(damaged)?.stand_alone {
            return Ok(None);
        }
        UnitLookup::new(dwarf, vec![0], Vec::new()).map(Some).map_err(damaged)
    }
}

const _: () = assert!(limits::MAX_UNITS <= u32::MAX as usize);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(ranges: &[(u64, u64, u32)]) -> ByUnit {
        let mut reach = 0;
        let ranges = ranges.iter().map(|&(begin, end, unit)| {
            reach = reach.max(end);
            Range { begin, end, reach, unit }
        });
        ByUnit { ranges: ranges.collect(), starts: Vec::new(), others: false, open: HashMap::new() }
    }

    #[test]
    fn the_nearest_claim_comes_first() {
        // Unit 9 claims everything from zero on, like a function that the linker dropped.
        let units = of(&[(0, 0x5000, 9), (0x1000, 0x2000, 1), (0x1800, 0x1900, 2), (0x3000, 0x4000, 1)]);
        let claiming_units = |address| units.claiming_units(address).unwrap();
        assert_eq!(claiming_units(0x0fff), [9]);
        assert_eq!(claiming_units(0x1000), [1, 9]);
        assert_eq!(claiming_units(0x1850), [2, 1, 9]);
        assert_eq!(claiming_units(0x1900), [1, 9]);
        assert_eq!(claiming_units(0x3fff), [1, 9]);
        assert_eq!(claiming_units(0x5000), [0u32; 0]);
        assert_eq!(of(&[]).claiming_units(7).unwrap(), [0u32; 0]);
    }

    #[test]
    fn claims_without_end_are_cut() {
        let many: Vec<(u64, u64, u32)> = (0..1000).map(|unit| (u64::from(unit), 1 << 20, unit)).collect();
        assert_eq!(of(&many).claiming_units(5000).unwrap().len(), MAX_CLAIMS);
        // A range that spans too many others: the search stops.
        let over: Vec<(u64, u64, u32)> =
            (0..1000u64).map(|at| (at, if at == 0 { 1 << 20 } else { at + 1 }, (at > 0).into())).collect();
        assert_eq!(of(&over).claiming_units(5000), None);
        assert_eq!(of(&over).claiming_units(100).unwrap(), [1, 0]);
    }
}
