//! Names of C++ functions without linkage names.
//!
//! GCC writes none for functions local to a file (`static`, unnamed namespaces, lambdas), although out-of-line copies
//! have mangled symbols. They are identified by their path of scopes, `(anonymous namespace)::helper`:
//! [`names::logical`](crate::names::logical) derives it from the symbol, this module from the debug entries.

use gimli::{AttributeValue, UnitOffset, UnitRef};
use hashbrown::HashMap;

use crate::limits;
use crate::meter::Metered;
use crate::units::{DebugEntry, DebugPart, DebugUnits};

const UNNAMED_NAMESPACE: &str = "(anonymous namespace)";

/// Prefix of the name of a lambda's class, if it has one.
const LAMBDA: &str = "<lambda";

#[derive(Debug, Default)]
pub(crate) struct Scopes {
    units: HashMap<(DebugPart, usize), Box<[NameScope]>>,
}

#[derive(Debug, Clone, Copy)]
struct NameScope {
    /// Byte offset in the unit. Units longer than 4 GiB exceed the limit for debug information.
    offset: u32,
    /// Index of the enclosing scope; its own index at the top.
    parent: u32,
}

impl Scopes {
    /// The path of the function whose entry, or inlined copy, is `at`, if it is C++, local to its file and without
    /// linkage name.
    pub(crate) fn path<'a>(&mut self, units: &'a DebugUnits, at: DebugEntry<'a>) -> Option<String> {
        let mut at = units.named(at)?;
        // A function visible to other files has a linkage name unless it is `extern "C"`; then its name is complete.
        if at.flag(gimli::DW_AT_external) {
            return None;
        }
        let mut parts = Vec::new();
        for _ in 0..limits::MAX_SCOPES {
            let scopes = self.of(at)?;
            let index = find(scopes, at.offset)?;
            parts.push(part(scopes, at, index)?);
            let parent = scopes.get(index)?.parent as usize;
            if parent == index {
                break;
            }
            let around = DebugEntry { offset: scopes.get(parent)?.offset(), ..at };
            // An enclosing function may be a copy, or a definition outside its declaration.
            at = units.named(around).unwrap_or(around);
        }
        parts.reverse();
        Some(parts.join("::"))
    }

    fn of(&mut self, at: DebugEntry<'_>) -> Option<&[NameScope]> {
        let key = at.unit_key()?;
        Some(self.units.entry(key).or_insert_with(|| read(at.unit).unwrap_or_default()))
    }
}

impl NameScope {
    fn offset(self) -> UnitOffset {
        UnitOffset(self.offset as usize)
    }
}

fn read(unit: UnitRef<'_, Metered>) -> gimli::Result<Box<[NameScope]>> {
    let mut scopes: Vec<NameScope> = Vec::new();
    // Scopes around the next entry: depth, and index in `scopes`.
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
        scopes.push(NameScope { offset, parent: open.last().map_or(index, |&(_, parent)| parent) });
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

fn find(scopes: &[NameScope], offset: UnitOffset) -> Option<usize> {
    scopes.binary_search_by_key(&offset.0, |scope| scope.offset as usize).ok()
}

fn part(scopes: &[NameScope], at: DebugEntry<'_>, index: usize) -> Option<String> {
    let tag = at.tag()?;
    match at.name() {
        // Compilers differ in whether the class of a lambda has a name, and the name never identifies it.
        Some(name) if is_class(tag) && name.starts_with(LAMBDA) => lambda(scopes, at, index),
        Some(name) => Some(name),
        None if tag == gimli::DW_TAG_namespace => Some(UNNAMED_NAMESPACE.to_owned()),
        None if is_class(tag) => lambda(scopes, at, index),
        None => None,
    }
}

/// Numbers the lambdas of one function in order, those with the same parameters together (Itanium C++ ABI, 5.1.8).
fn lambda(scopes: &[NameScope], at: DebugEntry<'_>, index: usize) -> Option<String> {
    let parent = scopes.get(index)?.parent;
    let parameters = call_parameters(scopes, at, index)?;
    let siblings =
        scopes.iter().enumerate().take(index).skip(parent as usize).filter(|(_, scope)| scope.parent == parent);
    let alike = siblings.filter(|(sibling, scope)| {
        let sibling_at = DebugEntry { offset: scope.offset(), ..at };
        call_parameters(scopes, sibling_at, *sibling).as_ref() == Some(&parameters)
    });
    Some(format!("{{lambda#{}}}", alike.count() + 1))
}

/// The types of the parameters of a lambda's `operator()`; `None` if the class is not a lambda's.
fn call_parameters(scopes: &[NameScope], class: DebugEntry<'_>, index: usize) -> Option<Vec<UnitOffset>> {
    if !is_class(class.tag()?) || class.name().is_some_and(|name| !name.starts_with(LAMBDA)) {
        return None;
    }
    let members = scopes.iter().skip(index + 1).take_while(|scope| scope.parent as usize >= index);
    let call = members
        .filter(|scope| scope.parent as usize == index)
        .map(|scope| DebugEntry { offset: scope.offset(), ..class })
        .find(|member| member.name().as_deref() == Some("operator()"))?;
    let unit = call.unit;
    let mut parameters = Vec::new();
    let mut entries = unit.entries_raw(Some(call.offset)).ok()?;
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
