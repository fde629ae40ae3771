//! Lookups in the debug information of a whole image or of one unit.

use std::sync::Arc;

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::{AttributeValue, Reader, UnitRef};
use hashbrown::{HashMap, HashSet};

use crate::dwarf_frame::{Declaration, DwarfFrame};
use crate::limits;
use crate::meter::Metered;
use crate::names;
use crate::scopes::Scopes;
use crate::sections::ReadBudget;
use crate::split::SplitFiles;
use crate::units::{DebugEntry, DebugPart, DebugUnits};

pub(crate) struct UnitLookup {
    context: Context<Metered>,
    units: DebugUnits,
    functions: HashMap<(DebugPart, usize), FunctionDetails>,
    scopes: Scopes,
}

pub(crate) struct LookupContext {
    pub(crate) files: HashSet<Arc<str>>,
    pub(crate) split: SplitFiles,
    pub(crate) budget: ReadBudget,
    /// Whether inlined Rust functions without linkage names were found.
    pub(crate) short_names: bool,
}

#[derive(Debug, Clone, Default)]
struct FunctionDetails {
    /// Only for functions without a linkage name that need a path.
    path: Option<Arc<str>>,
    declaration: Declaration,
    local: Option<bool>,
    /// Whether the linker dropped the function (`--gc-sections`): its entry at address zero seems to overlap the
    /// image's start.
    dropped: bool,
}

impl UnitLookup {
    /// Loads the units of `dwarf`, which begin at `starts`, and of its supplement. Errors: damaged debug information.
    pub(crate) fn new(
        mut dwarf: gimli::Dwarf<Metered>,
        starts: Vec<usize>,
        of_supplement: Vec<usize>,
    ) -> gimli::Result<UnitLookup> {
        if starts.len() > 1 {
            // Otherwise abbreviations shared by several units would be parsed for each.
            dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
        }
        let dwarf = Arc::new(dwarf);
        let context = Context::from_arc_dwarf(Arc::clone(&dwarf))?;
        let units = DebugUnits::new(dwarf, starts, of_supplement);
        Ok(UnitLookup { context, units, functions: HashMap::new(), scopes: Scopes::default() })
    }

    /// Appends the functions at `svma` to the empty `out`, innermost first; none if these units have no answer, or only
    /// a dropped function. Errors: debug information that is damaged there.
    pub(crate) fn frames(
        &mut self,
        svma: u64,
        shared: &mut LookupContext,
        out: &mut Vec<DwarfFrame>,
    ) -> gimli::Result<()> {
        let UnitLookup { context, units, functions, scopes } = self;
        let LookupContext { files, split, budget, short_names } = shared;
        let mut frames = finish(context.find_frames(svma), split, budget)?;
        let mut unit = None;
        let (mut dropped, mut rust) = (false, false);
        while let Some(frame) = frames.next()? {
            let unit = *unit.get_or_insert_with(|| finish(context.find_dwarf_and_unit(svma), split, budget));
            let entry = unit.zip(frame.dw_die_offset).map(|(unit, offset)| DebugEntry::new(unit, offset));
            // A skeleton unit does not state the language.
            let language = frame.function.as_ref().and_then(|function| function.language);
            let language = language.or_else(|| entry?.language());
            let known = match entry {
                Some(entry) => function_details(units, entry, &frame, language, files, functions, scopes),
                None => FunctionDetails::default(),
            };
            dropped = known.dropped;
            rust |= language == Some(gimli::DW_LANG_Rust);
            if out.len() >= limits::MAX_INLINE_DEPTH {
                // Keep the outermost: the function that was really called.
                out.pop();
            }
            out.push(convert(&frame, known, files));
        }
        if dropped {
            out.clear();
        }
        // The outermost function has its full name in the symbol table.
        let mut inlined = out.iter().rev().skip(1).filter_map(|frame| frame.name.as_ref());
        *short_names |= rust && inlined.any(|name| !names::is_mangled(name.as_bytes()));
        Ok(())
    }
}

/// Completes a lookup with the split files that it requests.
fn finish<L: LookupContinuation<Buf = Metered>>(
    mut lookup: LookupResult<L>,
    split: &mut SplitFiles,
    budget: &mut ReadBudget,
) -> L::Output {
    loop {
        lookup = match lookup {
            LookupResult::Output(output) => return output,
            LookupResult::Load { load, continuation } => {
                let loaded = split.load(&load, budget);
                continuation.resume(loaded)
            }
        };
    }
}

fn convert(frame: &Frame<'_, Metered>, known: FunctionDetails, files: &mut HashSet<Arc<str>>) -> DwarfFrame {
    let location = frame.location.as_ref();
    DwarfFrame {
        name: known.path.map(|path| path.to_string()).or_else(|| raw_name(frame)),
        file: location.and_then(|location| location.file).map(|file| intern(files, file)),
        line: location.and_then(|location| location.line).unwrap_or(0),
        declaration: known.declaration,
        local: known.local,
    }
}

fn raw_name(frame: &Frame<'_, Metered>) -> Option<String> {
    let mut name = frame.function.as_ref()?.raw_name().ok()?.into_owned();
    name.truncate(name.floor_char_boundary(limits::MAX_LINKAGE_NAME));
    (!name.is_empty()).then_some(name)
}

fn intern(files: &mut HashSet<Arc<str>>, file: &str) -> Arc<str> {
    let file = file.get(..file.floor_char_boundary(limits::MAX_PATH)).unwrap_or_default();
    files.get_or_insert_with(file, |file| Arc::from(file)).clone()
}

/// Properties of the function whose entry, or inlined copy, is `at`; computed once.
fn function_details<'a>(
    units: &'a DebugUnits,
    at: DebugEntry<'a>,
    frame: &Frame<'_, Metered>,
    language: Option<gimli::DwLang>,
    files: &mut HashSet<Arc<str>>,
    functions: &mut HashMap<(DebugPart, usize), FunctionDetails>,
    scopes: &mut Scopes,
) -> FunctionDetails {
    let Some(key) = at.key() else { return FunctionDetails::default() };
    if let Some(known) = functions.get(&key) {
        return known.clone();
    }
    let needs_path =
        language.is_some_and(is_cpp) && raw_name(frame).is_some_and(|name| !names::is_mangled(name.as_bytes()));
    let path = if needs_path { scopes.path(units, at) } else { None };
    let low = at.unit.entry(at.offset).ok().and_then(|entry| entry.attr_value(gimli::DW_AT_low_pc));
    let declaration = find_declaration(units, at, files);
    // Line tables alone have entries with only a name.
    let tells = declaration.file.is_some();
    let known = FunctionDetails {
        path: path.map(Arc::from),
        local: tells.then(|| units.find(at, gimli::DW_AT_external).is_none_or(|at| !at.flag(gimli::DW_AT_external))),
        declaration,
        dropped: matches!(low, Some(AttributeValue::Addr(0))),
    };
    functions.insert(key, known.clone());
    known
}

fn is_cpp(language: gimli::DwLang) -> bool {
    matches!(
        language,
        gimli::DW_LANG_C_plus_plus
            | gimli::DW_LANG_C_plus_plus_03
            | gimli::DW_LANG_C_plus_plus_11
            | gimli::DW_LANG_C_plus_plus_14
            | gimli::DW_LANG_C_plus_plus_17
            | gimli::DW_LANG_C_plus_plus_20
    )
}

/// Where a function is declared: on the entry, its abstract origin, or the declaration it completes, searched for each
/// attribute, as a definition omits what its declaration states.
fn find_declaration<'a>(units: &'a DebugUnits, at: DebugEntry<'a>, files: &mut HashSet<Arc<str>>) -> Declaration {
    let value = |wanted| {
        let at = units.find(at, wanted)?;
        Some((at, at.unit.entry(at.offset).ok()?.attr(wanted)?.clone()))
    };
    let line = value(gimli::DW_AT_decl_line).and_then(|(_, line)| u32::try_from(line.udata_value()?).ok());
    // File numbers belong to the unit that states them.
    let file = value(gimli::DW_AT_decl_file).and_then(|(at, file)| match file.value() {
        AttributeValue::FileIndex(index) => path_of(units.with_lines(at)?, index),
        _ => None,
    });
    Declaration { file: file.map(|path| intern(files, &path)), line: line.unwrap_or(0) }
}

/// Appends a part of a path; an absolute one replaces what there is.
pub(crate) fn append_path(path: &mut String, part: &str) {
    if part.starts_with('/') {
        path.clear();
    } else if !path.is_empty() && !path.ends_with('/') {
        path.push('/');
    }
    path.push_str(part);
}

fn path_of(unit: UnitRef<'_, Metered>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let mut path = String::new();
    let mut push = |part: &str| append_path(&mut path, part);
    if let Some(directory) = &unit.comp_dir {
        push(&directory.to_string_lossy().ok()?);
    }
    // Directory 0 is the unit's own.
    if file.directory_index() != 0
        && let Some(directory) = file.directory(header)
    {
        push(&unit.attr_string(directory).ok()?.to_string_lossy().ok()?);
    }
    push(&unit.attr_string(file.path_name()).ok()?.to_string_lossy().ok()?);
    Some(path)
}
