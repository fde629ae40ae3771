//! Inlined functions and source lines, from DWARF 4 and 5.
//!
//! `addr2line` finds the unit, function, inlined functions and line of an address, and parses each unit when it is
//! first needed. Here it is given the sections, within limits, and the files that were split off units, and what it
//! does not give is added: where a function is declared. Type units are not needed for that.

use std::sync::Arc;

use addr2line::{Context, Frame, LookupContinuation, LookupResult};
use gimli::{AttributeValue, Reader, UnitRef};
use hashbrown::{HashMap, HashSet};

use crate::elf::ElfFile;
use crate::limits;
use crate::meter::{self, Metered, Stopped};
use crate::names;
use crate::scopes::Scopes;
use crate::sections::{self, Budget};
use crate::split::SplitFiles;
use crate::units::{Entry, Part, Units};

/// The debug information of one image, ready for lookups.
pub(crate) struct Dwarf {
    context: Context<Metered>,
    units: Units,
    /// What is left of the steps granted, and how many were used.
    steps: u64,
    used_steps: u64,
    files: HashSet<Arc<str>>,
    /// What was found out about functions, by where their entries are.
    functions: HashMap<(Part, usize), Known>,
    scopes: Scopes,
    split: SplitFiles,
    budget: Budget,
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

impl Dwarf {
    /// Reads the debug sections of `file`, and of `supplement`, the file that `dwz(1)` moved common parts to. `split` finds
    /// what was split off.
    ///
    /// # Errors
    ///
    /// Says, in words for the user, why the debug information cannot be used.
    pub(crate) fn load(file: &ElfFile, supplement: Option<&ElfFile>, split: SplitFiles) -> Result<Dwarf, String> {
        let mut budget = Budget::new();
        let mut dwarf = sections::read(file, &mut budget)?;
        if let Some(supplement) = supplement {
            dwarf.set_sup(sections::read(supplement, &mut budget)?);
        }
        let granted = limits::MAX_DWARF_STEPS + budget.used() / limits::DEBUG_BYTES_PER_STEP;
        let mut steps = granted;
        let parsed = meter::run(&mut steps, limits::MAX_DWARF_STACK, || {
            let starts = sections::check_units(&dwarf)?;
            let of_supplement = dwarf.sup().map_or(Ok(Vec::new()), sections::check_units)?;
            // Where units share abbreviations they would otherwise be parsed for each.
            dwarf.populate_abbreviations_cache(gimli::AbbreviationsCacheStrategy::Duplicates);
            let dwarf = Arc::new(dwarf);
            let context = Context::from_arc_dwarf(Arc::clone(&dwarf));
            let context = context.map_err(|error| format!("damaged debug information: {error}"))?;
            Ok::<_, String>((context, Units::new(dwarf, starts, of_supplement)))
        });
        let (context, units) = parsed.map_err(describe)??;
        Ok(Dwarf {
            context,
            units,
            steps,
            used_steps: granted - steps,
            files: HashSet::new(),
            functions: HashMap::new(),
            scopes: Scopes::default(),
            split,
            budget,
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
        let Dwarf { context, units, steps, used_steps, files, functions, scopes, split, budget, short_names } = self;
        let (steps_before, bytes_before) = (*steps, budget.used());
        let result = meter::run(steps, limits::MAX_DWARF_STACK, || {
            let mut frames = finish(context.find_frames(svma), split, budget)?;
            let mut unit = None;
            let (mut dropped, mut rust) = (false, false);
            while let Some(frame) = frames.next()? {
                let unit = *unit.get_or_insert_with(|| finish(context.find_dwarf_and_unit(svma), split, budget));
                let entry = unit.zip(frame.dw_die_offset).map(|(unit, offset)| Entry::new(unit, offset));
                // A skeleton unit does not tell the language.
                let language = frame.function.as_ref().and_then(|function| function.language);
                let language = language.or_else(|| entry?.language());
                let known = match entry {
                    Some(entry) => know(units, entry, &frame, language, files, functions, scopes),
                    None => Known::default(),
                };
                dropped = known.dropped;
                rust |= language == Some(gimli::DW_LANG_Rust);
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
        *used_steps += steps_before - *steps;
        // For what was split off and has been read now.
        *steps += (budget.used() - bytes_before) / limits::DEBUG_BYTES_PER_STEP;
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

    /// About how many bytes this holds: the sections, and the index. Of that a step makes 7 bytes where there are line
    /// tables only, and 1 to 3 where types and variables are to be skipped.
    pub(crate) fn held_bytes(&self) -> u64 {
        const INDEX_BYTES_PER_STEP: u64 = 4;
        self.budget.used() + self.used_steps * INDEX_BYTES_PER_STEP
    }

    /// What is to be said about files that were split off, since the last call.
    pub(crate) fn take_notes(&mut self) -> Vec<String> {
        self.split.take_notes()
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

/// Brings a lookup to its end, with the files it asks for.
fn finish<L: LookupContinuation<Buf = Metered>>(
    mut lookup: LookupResult<L>,
    split: &mut SplitFiles,
    budget: &mut Budget,
) -> L::Output {
    loop {
        lookup = match lookup {
            LookupResult::Output(output) => return output,
            LookupResult::Load { load, continuation } => continuation.resume(split.load(&load, budget)),
        };
    }
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
    language: Option<gimli::DwLang>,
    files: &mut HashSet<Arc<str>>,
    functions: &mut HashMap<(Part, usize), Known>,
    scopes: &mut Scopes,
) -> Known {
    let Some(key) = at.key() else { return Known::default() };
    if let Some(known) = functions.get(&key) {
        return known.clone();
    }
    let needs_path =
        language.is_some_and(is_cpp) && raw_name(frame).is_some_and(|name| !names::is_mangled(name.as_bytes()));
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
        Some(AttributeValue::FileIndex(index)) => path_of(units.with_lines(at)?, index),
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
