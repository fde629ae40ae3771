//! References from one debug entry to another, also across units.
//!
//! Link-time optimisation puts copies of functions in one unit and what they are copies of in another. `addr2line`
//! follows such references for names; for everything else they are followed here.

use std::cell::OnceCell;
use std::sync::Arc;

use gimli::{AttributeValue, DebugInfoOffset, Reader, Unit, UnitOffset, UnitRef};

use crate::limits;
use crate::meter::Metered;

/// A debug entry: the unit it is in, and where.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'a> {
    pub(crate) unit: UnitRef<'a, Metered>,
    pub(crate) offset: UnitOffset,
}

/// The units of an image, parsed when a reference leads into them.
pub(crate) struct Units {
    dwarf: Arc<gimli::Dwarf<Metered>>,
    /// Offsets in `.debug_info`, in order.
    starts: Vec<usize>,
    parsed: Vec<OnceCell<Option<Box<Unit<Metered>>>>>,
}

impl Units {
    pub(crate) fn new(dwarf: Arc<gimli::Dwarf<Metered>>, starts: Vec<usize>) -> Units {
        let parsed = starts.iter().map(|_| OnceCell::new()).collect();
        Units { dwarf, starts, parsed }
    }

    /// The entry with the name of a function: copies refer to their abstract instance and definitions to their
    /// declaration.
    pub(crate) fn named<'a>(&'a self, from: Entry<'a>) -> Option<Entry<'a>> {
        self.find(from, gimli::DW_AT_name)
    }

    /// The first entry with the attribute `wanted`, from a copy to what it is a copy of.
    pub(crate) fn find<'a>(&'a self, mut at: Entry<'a>, wanted: gimli::DwAt) -> Option<Entry<'a>> {
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

    fn follow<'a>(&'a self, from: Entry<'a>, reference: AttributeValue<Metered>) -> Option<Entry<'a>> {
        match reference {
            AttributeValue::UnitRef(offset) => Some(Entry { offset, ..from }),
            AttributeValue::DebugInfoRef(target) => {
                let index = self.starts.partition_point(|&start| start <= target.0).checked_sub(1)?;
                let unit = self.parsed.get(index)?.get_or_init(|| self.parse(index).map(Box::new)).as_deref()?;
                let offset = target.to_unit_offset(&unit.header)?;
                Some(Entry { unit: UnitRef::new(&self.dwarf, unit), offset })
            }
            // In a file of `dwz`, or in a type unit.
            _ => None,
        }
    }

    fn parse(&self, index: usize) -> Option<Unit<Metered>> {
        let start = DebugInfoOffset(*self.starts.get(index)?);
        self.dwarf.unit(self.dwarf.debug_info.header_from_offset(start).ok()?).ok()
    }
}

impl Entry<'_> {
    /// Its name (`DW_AT_name`).
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

    /// Where the unit begins in `.debug_info`.
    pub(crate) fn unit_start(&self) -> Option<usize> {
        Some(self.unit.header.debug_info_offset()?.0)
    }
}
