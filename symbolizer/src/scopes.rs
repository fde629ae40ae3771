//! Names of C++ functions that have no linkage name.
//!
//! GCC writes no linkage name for a function that is local to its file (`static`, in an unnamed namespace, a
//! lambda), although a copy of it out of line has a mangled symbol. Such a function is identified by its path of scopes instead,
//! `(anonymous namespace)::helper`, which both can be brought to: the symbol by [`names::logical`](crate::names::logical),
//! the debug entry here, from the entries around it.

use gimli::{AttributeValue, Reader, UnitOffset, UnitRef};
use hashbrown::HashMap;

use crate::limits;
use crate::meter::Metered;

/// How a path names an unnamed namespace; as C++ demanglers do.
const UNNAMED_NAMESPACE: &str = "(anonymous namespace)";

/// Which entries lie inside which, for the units that were needed so far.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    /// By the unit's offset in `.debug_info`.
    units: HashMap<usize, Box<[Scope]>>,
}

/// An entry that gives a name to those inside it, in the order of the unit.
#[derive(Debug, Clone, Copy)]
struct Scope {
    /// In the unit, in bytes. Units longer than 4 GiB are above the limit for debug information.
    offset: u32,
    /// Index of the scope around it; its own at the top.
    parent: u32,
}

impl Scopes {
    /// The path of the function whose entry, or inlined copy, is at `offset`, if it is a C++ function without a
    /// linkage name that only its file sees.
    pub(crate) fn path(&mut self, unit: UnitRef<'_, Metered>, offset: UnitOffset) -> Option<String> {
        let offset = named_entry(unit, offset)?;
        // A function others see too has a linkage name unless it is declared `extern "C"`; then its name is the whole name.
        if flag(unit, offset, gimli::DW_AT_external)? {
            return None;
        }
        let key = unit.header.debug_info_offset()?.0;
        let scopes = self.units.entry(key).or_insert_with(|| read(unit).unwrap_or_default());
        path(scopes, unit, offset)
    }
}

/// Follows a copy to its abstract instance and a definition to its declaration: the entry with the name.
fn named_entry(unit: UnitRef<'_, Metered>, mut offset: UnitOffset) -> Option<UnitOffset> {
    for _ in 0..limits::MAX_ORIGINS {
        let entry = unit.entry(offset).ok()?;
        if entry.attr(gimli::DW_AT_name).is_some() {
            return Some(offset);
        }
        let origin =
            entry.attr_value(gimli::DW_AT_abstract_origin).or_else(|| entry.attr_value(gimli::DW_AT_specification))?;
        let AttributeValue::UnitRef(next) = origin else { return None };
        offset = next;
    }
    None
}

fn flag(unit: UnitRef<'_, Metered>, offset: UnitOffset, name: gimli::DwAt) -> Option<bool> {
    let entry = unit.entry(offset).ok()?;
    Some(matches!(entry.attr_value(name), Some(AttributeValue::Flag(true))))
}

fn name(unit: UnitRef<'_, Metered>, offset: UnitOffset) -> Option<String> {
    let value = unit.entry(offset).ok()?.attr_value(gimli::DW_AT_name)?;
    let name = unit.attr_string(value).ok()?;
    let name = name.to_string_lossy().ok()?.into_owned();
    (!name.is_empty()).then_some(name)
}

/// Walks the unit once and keeps the namespaces, classes and functions.
fn read(unit: UnitRef<'_, Metered>) -> gimli::Result<Box<[Scope]>> {
    let mut scopes: Vec<Scope> = Vec::new();
    // The scopes around the next entry: depth, and index in `scopes`.
    let mut open: Vec<(isize, u32)> = Vec::new();
    let mut entries = unit.entries_raw(None)?;
    while !entries.is_empty() {
        let offset = entries.next_offset();
        let depth = entries.next_depth();
        let Some(abbreviation) = entries.read_abbreviation()? else { continue };
        entries.skip_attributes(abbreviation.attributes())?;
        if !is_scope(abbreviation.tag()) {
            continue;
        }
        while open.last().is_some_and(|&(outer, _)| outer >= depth) {
            open.pop();
        }
        let (Ok(offset), Ok(index)) = (u32::try_from(offset.0), u32::try_from(scopes.len())) else { break };
        scopes.push(Scope { offset, parent: open.last().map_or(index, |&(_, parent)| parent) });
        if abbreviation.has_children() {
            open.push((depth, index));
        }
    }
    Ok(scopes.into())
}

fn is_scope(tag: gimli::DwTag) -> bool {
    is_class(tag) || matches!(tag, gimli::DW_TAG_namespace | gimli::DW_TAG_subprogram)
}

fn is_class(tag: gimli::DwTag) -> bool {
    matches!(tag, gimli::DW_TAG_structure_type | gimli::DW_TAG_class_type | gimli::DW_TAG_union_type)
}

fn path(scopes: &[Scope], unit: UnitRef<'_, Metered>, offset: UnitOffset) -> Option<String> {
    let mut parts = Vec::new();
    let mut index = find(scopes, offset)?;
    // Bounded: a scope's parent comes before it.
    for _ in 0..limits::MAX_SCOPES {
        parts.push(part(scopes, unit, index)?);
        let parent = scopes.get(index)?.parent as usize;
        if parent == index {
            break;
        }
        index = parent;
        // A function inside is the abstract or concrete copy of one whose declaration knows its own place.
        let at = UnitOffset(scopes.get(index)?.offset as usize);
        index = named_entry(unit, at).and_then(|named| find(scopes, named)).unwrap_or(index);
    }
    parts.reverse();
    Some(parts.join("::"))
}

fn find(scopes: &[Scope], offset: UnitOffset) -> Option<usize> {
    scopes.binary_search_by_key(&offset.0, |scope| scope.offset as usize).ok()
}

fn part(scopes: &[Scope], unit: UnitRef<'_, Metered>, index: usize) -> Option<String> {
    let offset = UnitOffset(scopes.get(index)?.offset as usize);
    let tag = unit.entry(offset).ok()?.tag();
    match name(unit, offset) {
        // Compilers differ in whether the class of a lambda has a name, and never give it one that identifies it.
        Some(name) if is_class(tag) && name.starts_with("<lambda") => lambda(scopes, unit, index),
        Some(name) => Some(name),
        None if tag == gimli::DW_TAG_namespace => Some(UNNAMED_NAMESPACE.to_owned()),
        None if is_class(tag) => lambda(scopes, unit, index),
        None => None,
    }
}

/// Lambdas of one function are numbered in order, those with the same parameters together (Itanium C++ ABI, 5.1.8).
fn lambda(scopes: &[Scope], unit: UnitRef<'_, Metered>, index: usize) -> Option<String> {
    let parent = scopes.get(index)?.parent;
    let parameters = call_parameters(scopes, unit, index)?;
    let mut number = 1;
    for (sibling, scope) in scopes.iter().enumerate().take(index).skip(parent as usize) {
        if scope.parent == parent && call_parameters(scopes, unit, sibling).as_ref() == Some(&parameters) {
            number += 1;
        }
    }
    Some(format!("{{lambda#{number}}}"))
}

/// The types of the parameters of a lambda's `operator()`; `None` if the class is not a lambda's.
fn call_parameters(scopes: &[Scope], unit: UnitRef<'_, Metered>, index: usize) -> Option<Vec<UnitOffset>> {
    let class = UnitOffset(scopes.get(index)?.offset as usize);
    if !is_class(unit.entry(class).ok()?.tag()) || name(unit, class).is_some_and(|name| !name.starts_with("<lambda")) {
        return None;
    }
    let members = scopes.iter().enumerate().skip(index + 1).take_while(|(_, scope)| scope.parent as usize >= index);
    let call = members
        .filter(|(_, scope)| scope.parent as usize == index)
        .map(|(_, scope)| UnitOffset(scope.offset as usize))
        .find(|&member| name(unit, member).as_deref() == Some("operator()"))?;
    let mut parameters = Vec::new();
    let mut entries = unit.entries_raw(Some(call)).ok()?;
    let depth = entries.next_depth();
    let abbreviation = entries.read_abbreviation().ok()??;
    entries.skip_attributes(abbreviation.attributes()).ok()?;
    while entries.next_depth() > depth {
        let at = entries.next_offset();
        let child_depth = entries.next_depth();
        let Some(abbreviation) = entries.read_abbreviation().ok()? else { continue };
        entries.skip_attributes(abbreviation.attributes()).ok()?;
        if abbreviation.tag() == gimli::DW_TAG_formal_parameter && child_depth == depth + 1 {
            let parameter = unit.entry(at).ok()?;
            if parameter.attr(gimli::DW_AT_artificial).is_none()
                && let Some(AttributeValue::UnitRef(kind)) = parameter.attr_value(gimli::DW_AT_type)
            {
                parameters.push(kind);
            }
        }
    }
    Some(parameters)
}
