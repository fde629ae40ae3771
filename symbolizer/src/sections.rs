//! Debug sections, read within limits and checked before any parser sees them.

use std::convert::Infallible;

use gimli::{DwarfFileType, SectionId};
use hashbrown::HashSet;

use crate::elf::Section;
use crate::elf_file::ElfFile;
use crate::limits;
use crate::meter::Metered;

/// Sections needed for lookups. Locations of variables, types by signature and indexes for debuggers are not read.
const SECTIONS: [SectionId; 10] = [
    SectionId::DebugAbbrev,
    SectionId::DebugAddr,
    SectionId::DebugAranges,
    SectionId::DebugInfo,
    SectionId::DebugLine,
    SectionId::DebugLineStr,
    SectionId::DebugRanges,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
];

/// The subset in files with split DWARF, and the index of packages.
const SPLIT_SECTIONS: [SectionId; 6] = [
    SectionId::DebugAbbrev,
    SectionId::DebugInfo,
    SectionId::DebugRngLists,
    SectionId::DebugStr,
    SectionId::DebugStrOffsets,
    SectionId::DebugCuIndex,
];

pub(crate) fn is_in(file: &ElfFile) -> bool {
    file.debug_section(".debug_info").is_some_and(|section| file.section_size(section) > 0)
}

#[derive(Debug)]
pub(crate) struct ReadBudget {
    left: u64,
    all: u64,
}

impl ReadBudget {
    /// A budget of `bytes`, at most [`limits::MAX_DEBUG_BYTES`].
    pub(crate) fn new(bytes: u64) -> ReadBudget {
        let all = bytes.min(limits::MAX_DEBUG_BYTES);
        ReadBudget { left: all, all }
    }

    pub(crate) fn used(&self) -> u64 {
        self.all - self.left
    }

    /// Takes the bytes of sections from the budget, before they are read.
    fn take<'a>(&mut self, file: &ElfFile, sections: impl Iterator<Item = &'a Section>) -> Result<(), String> {
        let size = sections.fold(0, |sum: u64, section| sum.saturating_add(file.section_size(section)));
        let (mib, limit) = (size.saturating_add(self.used()) >> 20, self.all >> 20);
        let left = self.left.checked_sub(size);
        self.left = left.ok_or(format!("debug information of {mib} MiB is above the limit of {limit} MiB"))?;
        Ok(())
    }
}

pub(crate) struct DebugSections {
    sections: Vec<(SectionId, Metered)>,
}

impl DebugSections {
    pub(crate) fn read(file: &ElfFile, budget: &mut ReadBudget) -> Result<DebugSections, String> {
        budget.take(file, SECTIONS.iter().filter_map(|id| file.debug_section(id.name())))?;
        let section = |id: SectionId| Ok((id, reader(file, id.name(), file.debug_section(id.name()))?));
        Ok(DebugSections { sections: SECTIONS.into_iter().map(section).collect::<Result<_, String>>()? })
    }

    pub(crate) fn dwarf(&self) -> gimli::Dwarf<Metered> {
        gimli::Dwarf::load(|id| Ok::<_, Infallible>(self.section(id))).unwrap_or_else(|never| match never {})
    }

    /// Only the units in `info`, which is a part of `.debug_info`.
    pub(crate) fn dwarf_of(&self, info: Metered) -> gimli::Dwarf<Metered> {
        let mut dwarf = self.dwarf();
        dwarf.debug_info = gimli::DebugInfo::from(info);
        dwarf.debug_aranges = gimli::DebugAranges::from(Metered::empty_section());
        dwarf
    }

    pub(crate) fn info(&self) -> Metered {
        self.section(SectionId::DebugInfo)
    }

    fn section(&self, wanted: SectionId) -> Metered {
        let found = self.sections.iter().find(|(id, _)| *id == wanted);
        found.map_or_else(Metered::empty_section, |(_, section)| section.clone())
    }
}

/// Reads the part of a `.dwo` file for the unit `id`, as `select` finds it: type units have sections of the same name.
pub(crate) fn read_split(
    file: &ElfFile,
    budget: &mut ReadBudget,
    select: impl Fn(&mut gimli::Dwarf<Metered>) -> bool,
) -> Result<Option<gimli::Dwarf<Metered>>, String> {
    let info = SectionId::DebugInfo.dwo_name().unwrap_or_default();
    let sections = || SPLIT_SECTIONS.iter().filter_map(|id| Some((id, file.debug_section(id.dwo_name()?)?)));
    let units = || file.sections_named(info.as_bytes());
    let others = sections().filter(|(id, _)| **id != SectionId::DebugInfo).map(|(_, section)| section);
    budget.take(file, others.chain(units()))?;
    let mut dwarf = gimli::Dwarf::load(|id| {
        let section = sections().find(|(wanted, _)| **wanted == id).map(|(_, section)| section);
        reader(file, id.dwo_name().unwrap_or_default(), section)
    })?;
    dwarf.file_type = DwarfFileType::Dwo;
    // The compilation unit comes last.
    for section in units().collect::<Vec<_>>().into_iter().rev() {
        dwarf.debug_info = gimli::DebugInfo::from(reader(file, info, Some(section))?);
        if select(&mut dwarf) {
            return Ok(Some(dwarf));
        }
    }
    Ok(None)
}

/// A package of split DWARF: an index of units by id, and sections with their parts.
pub(crate) struct SplitDwarfPackage {
    index: gimli::UnitIndex<Metered>,
    sections: Vec<(SectionId, Metered)>,
}

impl SplitDwarfPackage {
    pub(crate) fn read(file: &ElfFile, budget: &mut ReadBudget) -> Result<SplitDwarfPackage, String> {
        let named = |id: SectionId| id.dwo_name().unwrap_or(id.name());
        budget.take(file, SPLIT_SECTIONS.iter().filter_map(|id| file.debug_section(named(*id))))?;
        let index = reader(file, named(SectionId::DebugCuIndex), file.debug_section(named(SectionId::DebugCuIndex)))?;
        let index = gimli::DebugCuIndex::from(index).index();
        let index = index.map_err(|error| format!("damaged index of a package of debug information: {error}"))?;
        let section = |id: SectionId| Ok::<_, String>((id, reader(file, named(id), file.debug_section(named(id)))?));
        Ok(SplitDwarfPackage { index, sections: SPLIT_SECTIONS.into_iter().map(section).collect::<Result<_, _>>()? })
    }

    /// The parts of the unit `id`. (`gimli::DwarfPackage` does the same, but needs all sections.)
    pub(crate) fn find(&self, id: gimli::DwoId) -> gimli::Result<Option<gimli::Dwarf<Metered>>> {
        use gimli::Reader as _;
        let Some(row) = self.index.find(id.0) else { return Ok(None) };
        let parts: Vec<_> = self.index.sections(row)?.collect();
        let mut dwarf = gimli::Dwarf::load(|id| {
            let Some((_, section)) = self.sections.iter().find(|(section, _)| *section == id) else {
                return Ok(Metered::empty_section());
            };
            match parts.iter().find(|part| part.section.section_id() == id) {
                Some(part) => {
                    let mut bytes = section.clone();
                    bytes.skip(part.offset as usize)?;
                    bytes.split(part.size as usize)
                }
                // Strings are shared by all units.
                None if id == SectionId::DebugStr => Ok(section.clone()),
                None => Ok(Metered::empty_section()),
            }
        })?;
        dwarf.file_type = DwarfFileType::Dwo;
        Ok(Some(dwarf))
    }
}

impl std::fmt::Debug for SplitDwarfPackage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Package").field("units", &self.index.unit_count()).finish_non_exhaustive()
    }
}

fn reader(file: &ElfFile, name: &str, section: Option<&Section>) -> Result<Metered, String> {
    let bytes = match section {
        Some(section) => file
            .section_data(section, limits::MAX_DEBUG_BYTES)
            .map_err(|error| format!("cannot use debug information, {name}: {error}"))?,
        None => return Ok(Metered::empty_section()),
    };
    Ok(Metered::new(bytes))
}

pub(crate) fn damaged(error: gimli::Error) -> String {
    format!("damaged debug information: {error}")
}

/// Reads the starts of the units. Refuses too many units, each of which becomes an index entry.
pub(crate) fn unit_starts(dwarf: &gimli::Dwarf<Metered>) -> Result<Vec<usize>, String> {
    walk_units(dwarf, |_| Ok(()))
}

/// As [`unit_starts`], and refuses abbreviations with very many attributes: one-byte entries could refer to them.
pub(crate) fn check_units(dwarf: &gimli::Dwarf<Metered>) -> Result<Vec<usize>, String> {
    let mut tables = HashSet::new();
    walk_units(dwarf, |header| {
        let table = header.debug_abbrev_offset();
        if tables.insert(table) {
            check_abbreviations(&dwarf.debug_abbrev, table.0).map_err(damaged)?;
        }
        Ok(())
    })
}

fn walk_units(
    dwarf: &gimli::Dwarf<Metered>,
    mut look: impl FnMut(&gimli::UnitHeader<Metered>) -> Result<(), String>,
) -> Result<Vec<usize>, String> {
    let mut units = dwarf.units();
    let mut starts = Vec::new();
    while let Some(header) = units.next().map_err(damaged)? {
        starts.extend(header.debug_info_offset().map(|offset| offset.0));
        if starts.len() > limits::MAX_UNITS {
            return Err(format!("debug information has more than {} units", limits::MAX_UNITS));
        }
        look(&header)?;
    }
    Ok(starts)
}

pub(crate) struct Abbreviations {
    /// Whether no attribute refers to other units or files.
    pub(crate) stand_alone: bool,
}

/// Checks a table of abbreviations (DWARF 5, section 7.5.3), in particular their numbers of attributes.
pub(crate) fn check_abbreviations(
    section: &gimli::DebugAbbrev<Metered>,
    offset: usize,
) -> gimli::Result<Abbreviations> {
    use gimli::{Reader as _, Section as _};
    let mut reader = section.reader().clone();
    reader.skip(offset)?;
    let mut stand_alone = true;
    while reader.read_uleb128()? != 0 {
        let _tag = reader.read_uleb128()?;
        let _has_children = reader.read_u8()?;
        for count in 0.. {
            let (name, form) = (reader.read_uleb128()?, reader.read_uleb128()?);
            if form == u64::from(gimli::DW_FORM_implicit_const.0) {
                reader.skip_leb128()?;
            }
            if (name, form) == (0, 0) {
                break;
            }
            stand_alone &= !(leads_elsewhere(form) || names_split_file(name));
            if count >= limits::MAX_ATTRIBUTES {
                return Err(gimli::Error::UnsupportedAttributeForm(gimli::DW_FORM_null));
            }
        }
    }
    Ok(Abbreviations { stand_alone })
}

/// Whether a value of this form may refer to an entry of another unit or file. (One of unknown form may be anything.)
fn leads_elsewhere(form: u64) -> bool {
    [
        gimli::DW_FORM_ref_addr,
        gimli::DW_FORM_ref_sup4,
        gimli::DW_FORM_ref_sup8,
        gimli::DW_FORM_GNU_ref_alt,
        gimli::DW_FORM_strp_sup,
        gimli::DW_FORM_GNU_strp_alt,
        gimli::DW_FORM_indirect,
    ]
    .iter()
    .any(|other| u64::from(other.0) == form)
}

/// Whether an attribute of this name marks a split unit.
fn names_split_file(name: u64) -> bool {
    [gimli::DW_AT_dwo_name, gimli::DW_AT_GNU_dwo_name, gimli::DW_AT_GNU_dwo_id].iter().any(|at| u64::from(at.0) == name)
}
