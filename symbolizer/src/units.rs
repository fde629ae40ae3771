//! References between debug entries, also across units and files: link-time optimisation and `dwz(1)` separate copies
//! from originals. `addr2line` follows them for names; this module for everything else.

use std::cell::OnceCell;
use std::sync::Arc;

use gimli::{AttributeValue, DebugInfoOffset, DwarfFileType, DwoId, Reader, Unit, UnitOffset, UnitRef, UnitType};
use hashbrown::HashMap;

use crate::limits;
use crate::meter::Metered;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DebugPart {
    Main,
    Supplement,
    /// The split file of one unit.
    Split(u64),
}

#[derive(Clone, Copy)]
pub(crate) struct DebugEntry<'a> {
    pub(crate) part: DebugPart,
    pub(crate) unit: UnitRef<'a, Metered>,
    pub(crate) offset: UnitOffset,
}

/// The units of an image, parsed when a reference leads into them.
pub(crate) struct DebugUnits {
    main: FileUnits,
    supplement: Option<FileUnits>,
    /// Positions in `main` of units with a split part.
    skeletons: OnceCell<HashMap<u64, usize>>,
}

struct FileUnits {
    dwarf: Arc<gimli::Dwarf<Metered>>,
    /// Ordered offsets in `.debug_info`.
    starts: Vec<usize>,
    parsed: Vec<OnceCell<Option<Box<Unit<Metered>>>>>,
}

impl DebugUnits {
    pub(crate) fn new(dwarf: Arc<gimli::Dwarf<Metered>>, starts: Vec<usize>, of_supplement: Vec<usize>) -> DebugUnits {
        let supplement = dwarf.sup.clone().map(|dwarf| FileUnits::new(dwarf, of_supplement));
        DebugUnits { main: FileUnits::new(dwarf, starts), supplement, skeletons: OnceCell::new() }
    }

    /// The entry with a function's name: copies refer to their abstract instance, definitions to their declaration.
    pub(crate) fn named<'a>(&'a self, from: DebugEntry<'a>) -> Option<DebugEntry<'a>> {
        self.find(from, gimli::DW_AT_name)
    }

    /// The first entry with the attribute `wanted`, following copies to their originals.
    pub(crate) fn find<'a>(&'a self, mut at: DebugEntry<'a>, wanted: gimli::DwAt) -> Option<DebugEntry<'a>> {
        for _ in 0..limits::MAX_ORIGINS {
            let entry = at.unit.entry(at.offset).ok()?;
            if entry.attr(wanted).is_some() {
                return Some(at);
            }
            let origin = entry
                .attr_value(gimli::DW_AT_abstract_origin)
                .or_else(|| entry.attr_value(gimli::DW_AT_specification))?;
            at = self.follow(at, origin)?;
        }
        None
    }

    fn follow<'a>(&'a self, from: DebugEntry<'a>, reference: AttributeValue<Metered>) -> Option<DebugEntry<'a>> {
        match (reference, from.part) {
            (AttributeValue::UnitRef(offset), _) => Some(DebugEntry { offset, ..from }),
            (AttributeValue::DebugInfoRef(target), DebugPart::Main) => self.main.at(target, DebugPart::Main),
            (AttributeValue::DebugInfoRef(target), DebugPart::Supplement)
            | (AttributeValue::DebugInfoRefSup(target), _) => {
                self.supplement.as_ref()?.at(target, DebugPart::Supplement)
            }
            // In a type unit. A split file has one unit, which refers to no other.
            _ => None,
        }
    }

    /// The unit with the line table of an entry: a split unit uses that of its skeleton.
    pub(crate) fn with_lines<'a>(&'a self, at: DebugEntry<'a>) -> Option<UnitRef<'a, Metered>> {
        let DebugPart::Split(id) = at.part else { return Some(at.unit) };
        let skeletons = self.skeletons.get_or_init(|| {
            let ids = (0..self.main.starts.len()).filter_map(|index| Some((self.main.split_id(index)?.0, index)));
            ids.collect()
        });
        self.main.unit(*skeletons.get(&id)?)
    }
}

impl FileUnits {
    fn new(dwarf: Arc<gimli::Dwarf<Metered>>, starts: Vec<usize>) -> FileUnits {
        let parsed = starts.iter().map(|_| OnceCell::new()).collect();
        FileUnits { dwarf, starts, parsed }
    }

    fn at(&self, target: DebugInfoOffset, part: DebugPart) -> Option<DebugEntry<'_>> {
        let index = self.starts.partition_point(|&start| start <= target.0).checked_sub(1)?;
        let unit = self.unit(index)?;
        Some(DebugEntry { part, unit, offset: target.to_unit_offset(&unit.header)? })
    }

    fn unit(&self, index: usize) -> Option<UnitRef<'_, Metered>> {
        let parsed = self.parsed.get(index)?.get_or_init(|| self.parse(index).map(Box::new));
        Some(UnitRef::new(&self.dwarf, parsed.as_deref()?))
    }

    fn parse(&self, index: usize) -> Option<Unit<Metered>> {
        self.dwarf.unit(self.header(index)?).ok()
    }

    fn header(&self, index: usize) -> Option<gimli::UnitHeader<Metered>> {
        self.dwarf.debug_info.header_from_offset(DebugInfoOffset(*self.starts.get(index)?)).ok()
    }

    fn split_id(&self, index: usize) -> Option<DwoId> {
        match self.header(index)?.type_() {
            UnitType::Skeleton(id) => Some(id),
            // DWARF 4 has it in an attribute.
            UnitType::Compilation => self.parse(index)?.dwo_id,
            _ => None,
        }
    }
}

impl<'a> DebugEntry<'a> {
    /// Creates an entry from the unit and offset that `addr2line` gives.
    pub(crate) fn new(unit: UnitRef<'a, Metered>, offset: UnitOffset) -> DebugEntry<'a> {
        let part = match unit.unit.dwo_id {
            Some(id) if unit.dwarf.file_type == DwarfFileType::Dwo => DebugPart::Split(id.0),
            _ => DebugPart::Main,
        };
        DebugEntry { part, unit, offset }
    }

    pub(crate) fn key(&self) -> Option<(DebugPart, usize)> {
        Some((self.part, self.offset.to_debug_info_offset(&self.unit.header)?.0))
    }

    pub(crate) fn unit_key(&self) -> Option<(DebugPart, usize)> {
        Some((self.part, self.unit.header.debug_info_offset()?.0))
    }

    pub(crate) fn name(&self) -> Option<String> {
        let value = self.unit.entry(self.offset).ok()?.attr_value(gimli::DW_AT_name)?;
        let name = self.unit.attr_string(value).ok()?;
        let name = name.to_string_lossy().ok()?.into_owned();
        (!name.is_empty()).then_some(name)
    }

    pub(crate) fn flag(&self, name: gimli::DwAt) -> bool {
        let entry = self.unit.entry(self.offset);
        entry.is_ok_and(|entry| matches!(entry.attr_value(name), Some(AttributeValue::Flag(true))))
    }

    pub(crate) fn tag(&self) -> Option<gimli::DwTag> {
        Some(self.unit.entry(self.offset).ok()?.tag())
    }

    pub(crate) fn language(&self) -> Option<gimli::DwLang> {
        let mut entries = self.unit.entries();
        entries.next_entry().ok()?;
        match entries.current()?.attr_value(gimli::DW_AT_language)? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }
}
