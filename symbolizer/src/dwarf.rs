//! Inlined functions and source lines, from DWARF 4 and 5.
//!
//! `addr2line` finds the unit, function, inlined functions and line of an address, and parses each unit when it is
//! first needed. Here the sections are read for it, within limits, and what it does not give is added: where a
//! function is declared. Not read: split DWARF (`.dwo`, `.dwp`), whose skeleton units only give lines; compression by
//! section name (`.zdebug_*`, obsolete since 2015); type units.

use std::sync::Arc;

use addr2line::{Context, Frame};
use gimli::{AttributeValue, Reader, Section as _, SectionId, UnitRef};
use hashbrown::{HashMap, HashSet};

use crate::elf::ElfFile;
use crate::limits;
use crate::meter::{self, Metered, Stopped};
use crate::names;
use crate::scopes::Scopes;
use crate::units::{Entry, Units};

/// The debug information of one image, ready for lookups.
pub(crate) struct Dwarf {
    context: Context<Metered>,
    units: Units,
    /// What of [`limits::MAX_DWARF_STEPS`] is left.
    steps: u64,
    files: HashSet<Arc<str>>,
    /// What was found out about functions, by offset in `.debug_info`.
    functions: HashMap<usize, Known>,
    scopes: Scopes,
    /// Bytes of debug sections held.
    size: u64,
    short_names: bool,
}

/// What `addr2line` does not give of a function.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Only for functions without a linkage name that need one.
    path: Option<Arc<str>>,
    declaration: Declaration,
    /// The linker left the function out of the image (`--gc-sections`) and its debug entry says address zero. If it
    /// is long it seems to lie over the functions at the beginning of the image.
    dropped: bool,
}

/// A function at an address, innermost first.
#[derive(Debug, Default)]
pub(crate) struct DwarfFrame {
    /// The linkage name if there is one, else the name.
    pub(crate) name: Option<String>,
    /// Where the address is in the source; for an outer function the call inlined there.
    pub(crate) file: Option<Arc<str>>,
    pub(crate) line: u32,
    pub(crate) declaration: Declaration,
}

/// Where a function is declared.
#[derive(Debug, Clone, Default)]
pub(crate) struct Declaration {
    pub(crate) file: Option<Arc<str>>,
    /// 0 if unknown.
    pub(crate) line: u32,
}

/// The sections lookups need. Locations of variables, types by signature and indexes for debuggers are left in the
/// file.
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

/// Whether a file has debug information at all.
pub(crate) fn is_in(file: &ElfFile) -> bool {
    file.section(b".debug_info").is_some_and(|section| file.section_size(section) > 0)
}

impl Dwarf {
    /// Reads the debug sections of `file`, and of `supplement`, the file that `dwz(1)` moved common parts to.
    ///
    /// # Errors
    ///
    /// Says, in words for the user, why the debug information cannot be used.
    pub(crate) fn load(file: &ElfFile, supplement: Option<&ElfFile>) -> Result<Dwarf, String> {
        let size = debug_size(file).saturating_add(supplement.map_or(0, debug_size));
        if size > limits::MAX_DEBUG_BYTES {
            let mib = |bytes: u64| bytes >> 20;
            let limit = mib(limits::MAX_DEBUG_BYTES);
            return Err(format!("debug information of {} MiB is above the limit of {limit} MiB", mib(size)));
        }
        let mut dwarf = read_sections(file)?;
        if let Some(supplement) = supplement {
            dwarf.set_sup(read_sections(supplement)?);
        }
        let mut steps = limits::MAX_DWARF_STEPS;
        let parsed = meter::run(&mut steps, limits::MAX_DWARF_STACK, || {
            let starts = check_units(&dwarf)?;
            if let Some(supplement) = dwarf.sup() {
                check_units(supplement)?;
            }
            // Where units share abbreviations they would otherwise be parsed for each.
            dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
            let dwarf = Arc::new(dwarf);
            let context = Context::from_arc_dwarf(Arc::clone(&dwarf));
            let context = context.map_err(|error| format!("damaged debug information: {error}"))?;
            Ok::<_, String>((context, Units::new(dwarf, starts)))
        });
        let (context, units) = parsed.map_err(describe)??;
        Ok(Dwarf {
            context,
            units,
            steps,
            files: HashSet::new(),
            functions: HashMap::new(),
            scopes: Scopes::default(),
            size,
            short_names: false,
        })
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
        let Dwarf { context, units, steps, files, functions, scopes, short_names, .. } = self;
        let result = meter::run(steps, limits::MAX_DWARF_STACK, || {
            let mut frames = context.find_frames(svma).skip_all_loads()?;
            let mut unit = None;
            let (mut dropped, mut rust) = (false, false);
            while let Some(frame) = frames.next()? {
                let unit = *unit.get_or_insert_with(|| context.find_dwarf_and_unit(svma).skip_all_loads());
                let known = match (unit, frame.dw_die_offset) {
                    (Some(unit), Some(offset)) => know(units, Entry { unit, offset }, &frame, files, functions, scopes),
                    _ => Known::default(),
                };
                dropped = known.dropped;
                rust |= language(&frame) == Some(gimli::DW_LANG_Rust);
                if out.len() >= limits::MAX_INLINE_DEPTH {
                    // Keep the outermost: it is the function that was really called.
                    out.pop();
                }
                out.push(convert(&frame, known, files));
            }
            if dropped {
                out.clear();
            }
            // The outermost has its full name in the symbol table.
            let mut inlined = out.iter().rev().skip(1).filter_map(|frame| frame.name.as_ref());
            *short_names |= rust && inlined.any(|name| !names::is_mangled(name.as_bytes()));
            Ok::<(), gimli::Error>(())
        });
        match result {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => {
                out.clear();
                Ok(())
            }
            Err(stopped) => {
                out.clear();
                Err(describe(stopped))
            }
        }
    }
}

impl Dwarf {
    /// Whether inlined Rust functions turned up without linkage names, as line tables alone (`debug =
    /// "line-tables-only"`) have none. Such a function has just its last name, `push`, and is another one than its
    /// copy out of line.
    pub(crate) fn has_short_names(&self) -> bool {
        self.short_names
    }

    /// About how many bytes this holds: the sections, and the index at its average size (see
    /// [`limits::MAX_DWARF_STEPS`]).
    pub(crate) fn held_bytes(&self) -> u64 {
        const INDEX_BYTES_PER_STEP: u64 = 7;
        self.size + (limits::MAX_DWARF_STEPS - self.steps) * INDEX_BYTES_PER_STEP
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

fn debug_size(file: &ElfFile) -> u64 {
    let sections = SECTIONS.iter().filter_map(|id| file.section(id.name().as_bytes()));
    sections.fold(0, |sum: u64, section| sum.saturating_add(file.section_size(section)))
}

fn read_sections(file: &ElfFile) -> Result<gimli::Dwarf<Metered>, String> {
    gimli::Dwarf::load(|id| {
        let section = Some(id).filter(|id| SECTIONS.contains(id));
        let bytes = match section.and_then(|id| file.section(id.name().as_bytes())) {
            Some(section) => file
                .section_data(section, limits::MAX_DEBUG_BYTES)
                .map_err(|error| format!("cannot use debug information, {}: {error}", id.name()))?,
            None => Arc::from(Vec::new()),
        };
        Ok(Metered::new(bytes))
    })
}

/// Refuses what would cost out of proportion to the bytes it is written in: very many units, each of which becomes an
/// index entry, and abbreviations with very many attributes, which a one-byte entry can refer to.
///
/// Returns where the units begin.
fn check_units(dwarf: &gimli::Dwarf<Metered>) -> Result<Vec<usize>, String> {
    let damaged = |error: gimli::Error| format!("damaged debug information: {error}");
    let mut tables = HashSet::new();
    let mut units = dwarf.units();
    let mut starts = Vec::new();
    while let Some(header) = units.next().map_err(damaged)? {
        starts.extend(header.debug_info_offset().map(|offset| offset.0));
        if starts.len() > limits::MAX_UNITS {
            return Err(format!("debug information has more than {} units", limits::MAX_UNITS));
        }
        if tables.insert(header.debug_abbrev_offset()) {
            check_abbreviations(dwarf.debug_abbrev.reader(), header.debug_abbrev_offset().0).map_err(damaged)?;
        }
    }
    Ok(starts)
}

/// Walks a table of abbreviations (DWARF 5, section 7.5.3) and looks at the number of attributes of each.
fn check_abbreviations(section: &Metered, offset: usize) -> gimli::Result<()> {
    let mut reader = section.clone();
    reader.skip(offset)?;
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
            if count >= limits::MAX_ATTRIBUTES {
                return Err(gimli::Error::UnsupportedAttributeForm(gimli::DW_FORM_null));
            }
        }
    }
    Ok(())
}

fn convert(frame: &Frame<'_, Metered>, known: Known, files: &mut HashSet<Arc<str>>) -> DwarfFrame {
    let location = frame.location.as_ref();
    DwarfFrame {
        name: known.path.map(|path| path.to_string()).or_else(|| raw_name(frame)),
        file: location.and_then(|location| location.file).map(|file| intern(files, file)),
        line: location.and_then(|location| location.line).unwrap_or(0),
        declaration: known.declaration,
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

/// What is to be known of the function whose entry, or inlined copy, is `at`; worked out once.
fn know<'a>(
    units: &'a Units,
    at: Entry<'a>,
    frame: &Frame<'_, Metered>,
    files: &mut HashSet<Arc<str>>,
    functions: &mut HashMap<usize, Known>,
    scopes: &mut Scopes,
) -> Known {
    let Some(gimli::DebugInfoOffset(key)) = at.offset.to_debug_info_offset(&at.unit.header) else {
        return Known::default();
    };
    if let Some(known) = functions.get(&key) {
        return known.clone();
    }
    let needs_path =
        language(frame).is_some_and(is_cpp) && raw_name(frame).is_some_and(|name| !names::is_mangled(name.as_bytes()));
    let path = if needs_path { scopes.path(units, at) } else { None };
    let low = at.unit.entry(at.offset).ok().and_then(|entry| entry.attr_value(gimli::DW_AT_low_pc));
    let known = Known {
        path: path.map(Arc::from),
        declaration: find_declaration(units, at, files).unwrap_or_default(),
        dropped: matches!(low, Some(AttributeValue::Addr(0))),
    };
    functions.insert(key, known.clone());
    known
}

fn language(frame: &Frame<'_, Metered>) -> Option<gimli::DwLang> {
    frame.function.as_ref()?.language
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

/// Where a function is declared. `DW_AT_decl_file` and `DW_AT_decl_line` are on the entry itself, on its abstract
/// origin, or on the declaration that one completes.
fn find_declaration<'a>(units: &'a Units, at: Entry<'a>, files: &mut HashSet<Arc<str>>) -> Option<Declaration> {
    let at = units.find(at, gimli::DW_AT_decl_line)?;
    let entry = at.unit.entry(at.offset).ok()?;
    let line = entry.attr(gimli::DW_AT_decl_line).and_then(|attribute| attribute.udata_value());
    let file = match entry.attr_value(gimli::DW_AT_decl_file) {
        Some(AttributeValue::FileIndex(index)) => path_of(at.unit, index),
        _ => None,
    };
    let file = file.map(|path| intern(files, &path));
    Some(Declaration { file, line: line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0) })
}

/// The path of a file in the unit's line table, put together as `addr2line` does it for lines.
fn path_of(unit: UnitRef<'_, Metered>, index: u64) -> Option<String> {
    let header = unit.line_program.as_ref()?.header();
    let file = header.file(index)?;
    let mut path = String::new();
    let mut push = |part: &str| {
        if part.starts_with('/') {
            path.clear();
        } else if !path.is_empty() && !path.ends_with('/') {
            path.push('/');
        }
        path.push_str(part);
    };
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
