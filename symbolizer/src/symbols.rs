//! Maps an address to the functions that contain it.

use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;

use crate::arch;
use crate::compressed;
use crate::debugfile::{DebugFile, DebugFileFinder};
use crate::demangle::demangle;
use crate::dwarf::Dwarf;
use crate::dwarf_frame::DwarfFrame;
use crate::elf_file::ElfFile;
use crate::go::GoFunctions;
use crate::limits;
use crate::meter::{self, MemoryGate, ReadGrant};
use crate::names;
use crate::plt::Plt;
use crate::sections;
use crate::split::SplitFiles;
use crate::starts::FunctionStarts;
use crate::symtab::{FoundSymbol, SymbolTable};

/// One of the functions that contain an address, with a linkage name, a start, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The logical function's name: without clone suffixes and versions, equal for inlined copies. `None` in stripped
    /// programs.
    pub linkage_name: Option<Arc<str>>,
    /// Name as in the source; `None` if it equals the linkage name.
    pub display_name: Option<Arc<str>>,
    /// Start of the function (SVMA), which identifies it without a name. For a split part (`.cold`), the part's, or the
    /// whole function's if local. `None` if inlined, except for a local one without known declaration.
    pub start: Option<u64>,
    /// Source file of the declaration, if known.
    pub decl_file: Option<Arc<str>>,
    /// Line of the declaration; 0 if unknown.
    pub decl_line: u32,
    /// Whether only its unit sees it: file and line of the declaration, else `start`, distinguish it from namesakes.
    pub local: bool,
    /// Source file of the address looked up; for an outer function, of the inlined call.
    pub file: Option<Arc<str>>,
    /// Line in that file; 0 if unknown.
    pub line: u32,
    /// Whether this is a copy inlined into the next function of the result.
    pub inlined: bool,
}

/// The names of one image's functions, read when needed.
///
/// The first [`Symbols::resolve`] reads the tables (and finds a separate debug file); each unit is parsed when first
/// needed. After that a call takes microseconds; the caller memoises results. Equal names are the same `Arc`.
///
/// The resolving thread needs [`limits::MAX_DWARF_STACK`] bytes of stack and some more.
#[derive(Debug)]
pub struct Symbols {
    image: Arc<ElfFile>,
    finder: DebugFileFinder,
    tables: Option<NameTables>,
    names: DemangledNames,
    frames: Vec<DwarfFrame>,
    notes: Vec<String>,
    short_names_noted: bool,
    grant: ReadGrant,
    most: u64,
    symbols_only: bool,
    stop_noted: bool,
}

#[derive(Debug, Default)]
struct NameTables {
    symbols: SymbolTable,
    starts: FunctionStarts,
    plt: Plt,
    /// Functions of a Go program; read when a function has no symbol.
    go: OnceCell<Option<Arc<GoFunctions>>>,
    dwarf: Option<Dwarf>,
    entry: Option<Range<u64>>,
}

impl Symbols {
    /// Creates the names of `image`. Reads nothing yet.
    #[must_use]
    pub fn new(image: Arc<ElfFile>, debug: DebugFileFinder) -> Symbols {
        Symbols {
            finder: debug.accept_owners_for(&image),
            image,
            tables: None,
            names: DemangledNames::default(),
            frames: Vec::new(),
            notes: Vec::new(),
            short_names_noted: false,
            grant: ReadGrant {
                steps: limits::MAX_TABLE_STEPS,
                bytes: limits::MAX_IMAGE_BYTES,
                cpu: limits::MAX_TABLE_CPU,
                gate: None,
            },
            most: limits::MAX_IMAGE_BYTES,
            symbols_only: false,
            stop_noted: false,
        }
    }

    /// Limits the bytes of names. Beyond them functions are known by symbols alone, and beyond
    /// [`limits::MIN_TABLE_BYTES`], too, some are missing. A note says so.
    #[must_use]
    pub fn within(mut self, bytes: u64) -> Symbols {
        self.grant.bytes = bytes.max(limits::MIN_TABLE_BYTES);
        self.most = bytes;
        self
    }

    /// Enters `gate` before reading takes more than [`limits::SMALL_IMAGE_BYTES`].
    #[must_use]
    pub fn through(mut self, gate: Arc<dyn MemoryGate>) -> Symbols {
        self.grant.gate = Some(gate);
        self
    }

    /// Leaves debug information out: functions are known by the symbol table alone.
    #[must_use]
    pub fn symbols_only(self) -> Symbols {
        Symbols { symbols_only: true, ..self }
    }

    /// Finds the functions that contain the stated address `svma`, innermost first, last the one that was really
    /// called. Clears
    /// `out`, which stays empty if none is known. A return address is looked up at the address before it.
    ///
    /// A function has the same name everywhere:
    ///
    /// - The outermost one has its name from the symbol table, of several symbols the public one (`write`, not
    ///   `__write`); or the debug information's, if that is another of these symbols and mangled: identical functions
    ///   were folded, or aliased.
    /// - Inlined ones have the debug information's name, or the one chosen for an alias in the symbol table.
    /// - Both lose symbol versions and clone suffixes (`@GLIBC_2.2.5`, `.cold`), and constructor variants are unified.
    pub fn resolve(&mut self, svma: u64, out: &mut Vec<Function>) {
        out.clear();
        if self.tables.is_none() {
            self.tables = Some(self.load());
        }
        let Some(tables) = &mut self.tables else { return };
        self.frames.clear();
        // No unit covers the linker's stubs; searching all units to learn that would take long.
        if !tables.plt.contains(svma)
            && let Some(dwarf) = &mut tables.dwarf
            && let Err(why) = dwarf.frames(svma, &mut self.frames)
        {
            self.notes.push(why);
            tables.dwarf = None;
        }
        if let Some(dwarf) = &mut tables.dwarf {
            let room = limits::MAX_NOTES.saturating_sub(self.notes.len());
            self.notes.extend(dwarf.take_notes().into_iter().take(room));
        }
        if !self.short_names_noted && tables.dwarf.as_ref().is_some_and(Dwarf::has_short_names) {
            self.short_names_noted = true;
            self.notes.push(SHORT_NAMES.to_owned());
        }
        let (called, stop) =
            meter::run_partly(&mut self.grant, limits::MAX_DWARF_STACK, || tables.called(&self.image, svma));
        let called = called.unwrap_or_default();
        if stop.is_some() && !std::mem::replace(&mut self.stop_noted, true) {
            self.notes.push(COSTLY.to_owned());
        }
        // The last frame is the called function; without a name it is just a source line.
        let outermost = self.frames.pop();
        for frame in self.frames.drain(..) {
            let Some(name) = &frame.name else { continue };
            // A local alias such as `__GI___libc_write` is not among the symbols; the name without the prefix may be.
            let chosen = |name: &str| tables.symbols.chosen_for(name.as_bytes());
            let name = match chosen(name).or_else(|| chosen(names::without_internal_prefix(name))).map(str::from_utf8) {
                Some(Ok(chosen)) => chosen,
                _ => name,
            };
            let mut local = frame.local.unwrap_or(false) && names::may_be_local(name);
            let mut start = None;
            // Without a declaration, the out-of-line copy identifies the function.
            if frame.declaration.file.is_none()
                && names::may_be_local(name)
                && let Ok(Some(definition)) =
                    meter::run(&mut self.grant, limits::MAX_DWARF_STACK, || tables.symbols.definition_of(name))
            {
                local = definition.local;
                start = definition.local.then_some(definition.start);
            }
            out.push(Function { local, ..function(self.names.get(name), start, &frame, true) });
        }
        let known = outermost.as_ref().and_then(|frame| frame.name.as_deref());
        let name = match (called.name.as_deref(), known) {
            (Some(symbol), Some(known)) => Some(if tables.same_function(&called, known) { known } else { symbol }),
            (symbol, known) => symbol.or(known),
        };
        if name.is_none() && called.start.is_none() {
            // Without a called function, the functions found cannot be right.
            out.clear();
            return;
        }
        let nothing = DwarfFrame::default();
        let frame = outermost.as_ref().unwrap_or(&nothing);
        let local = name.filter(|name| names::may_be_local(name)).is_some_and(|name| match frame.local {
            // An alias visible to all units represents a function that is not.
            Some(true) => called.local || known.is_some_and(|known| names::logical(known) == names::logical(name)),
            // A function hidden from other images became local at link time.
            Some(false) => false,
            None => called.local,
        });
        let start = if local && frame.declaration.file.is_none() { called.definition } else { None };
        let named = name.map(|name| self.names.get(name)).unwrap_or_default();
        out.push(Function { local, ..function(named, start.or(called.start), frame, false) });
    }

    /// Reads the tables, and the debug information with what they leave of the bytes.
    fn load(&mut self) -> NameTables {
        let (before, granted) = (self.notes.len(), self.grant.bytes);
        let (image, finder, notes) = (&self.image, &self.finder, &mut self.notes);
        let read = || NameTables::read(image, finder, notes);
        let (tables, stop) = meter::run_partly(&mut self.grant, limits::MAX_DWARF_STACK, read);
        self.notes.truncate(before.max(limits::MAX_NOTES));
        let cut = tables.as_ref().is_some_and(|(tables, ..)| tables.symbols.cut);
        if cut || stop.is_some() {
            self.stop_noted = true;
            self.notes.push(COSTLY.to_owned());
        }
        let Some((mut tables, debug)) = tables else { return NameTables::default() };
        if self.symbols_only {
            return tables;
        }
        // What stops the tables does not stop the debug information, as far as there are bytes.
        let left = self.most.saturating_sub(granted - self.grant.bytes);
        let room = (left, self.grant.gate.clone());
        tables.dwarf = if sections::is_in(&self.image) {
            load_dwarf(&self.image, None, &self.finder, room, &mut self.notes)
        } else {
            let found = debug.as_ref().filter(|debug| sections::is_in(&debug.file));
            found.and_then(|debug| load_dwarf(&debug.file, Some(debug), &self.finder, room, &mut self.notes))
        };
        tables
    }

    /// Approximate bytes held for this image's names, including shared sections. Dropping the `Symbols` frees them.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let tables = self.tables.as_ref().map_or(0, |tables| {
            let dwarf = tables.dwarf.as_ref().map_or(0, Dwarf::held_bytes);
            let go = tables.go.get().and_then(Option::as_ref).map_or(0, |functions| functions.bytes());
            tables.symbols.held_bytes() + tables.starts.held_bytes() + go + dwarf
        });
        tables + self.names.held_bytes()
    }

    /// Notes for the user about what could not be used. Complete after the first resolve, except for later damage.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

const COSTLY: &str = "the symbols of this image exceed a limit; ccsd ignores some";

const SHORT_NAMES: &str = "debug information has line tables only: inlined functions are known by their last name";

/// Name of the function where linkers let programs start by default; often no symbol remains.
const ENTRY_NAME: &str = "_start";
/// Maximum size of that function without unwind information: smaller in every C library.
const ENTRY_BYTES: u64 = 64;

/// The function at the entry point: its frame description, or up to the next function or the final `hlt`. `None` if a
/// symbol names it, or it does not start there.
fn entry_function(image: &ElfFile, symbols: &SymbolTable, starts: &FunctionStarts) -> Option<Range<u64>> {
    let entry = Some(image.entry()).filter(|&entry| entry != 0 && is_program(image))?;
    if symbols.lookup(entry).is_some() {
        return None;
    }
    if let Some(described) = starts.lookup(entry) {
        return Some(described).filter(|described| described.start == entry);
    }
    let code = image.code(entry, ENTRY_BYTES)?;
    let most = entry.checked_add(code.len() as u64)?;
    let is_other = |&svma: &u64| starts.lookup(svma).is_some() || symbols.lookup(svma).is_some();
    let end = (entry..most).find(is_other).unwrap_or(most);
    Some(entry..arch::end_after_halt(&code).map_or(end, |bytes| end.min(entry + bytes as u64)))
}

/// Whether the file can be started: it has an interpreter, or needs no other file. A library's entry point has no
/// meaning.
fn is_program(image: &ElfFile) -> bool {
    const DT_NEEDED: u64 = 1;
    /// Size of an entry: tag and value.
    const ENTRY: usize = 16;
    if image.section(b".interp").is_some() {
        return true;
    }
    let Some(dynamic) = image.section(b".dynamic") else { return true };
    let Ok(dynamic) = image.section_data(dynamic, limits::MAX_DYNAMIC) else { return false };
    let mut tags = dynamic.chunks_exact(ENTRY).filter_map(|entry| entry.first_chunk().copied()).map(u64::from_le_bytes);
    !tags.any(|tag| tag == DT_NEEDED)
}

#[derive(Debug, Default)]
struct Called {
    name: Option<String>,
    start: Option<u64>,
    local: bool,
    definition: Option<u64>,
}

impl Called {
    fn new(name: Option<String>, start: Option<u64>) -> Called {
        Called { name, start, local: false, definition: None }
    }
}

impl NameTables {
    fn read(image: &ElfFile, finder: &DebugFileFinder, notes: &mut Vec<String>) -> (NameTables, Option<DebugFile>) {
        let has_dwarf = sections::is_in(image);
        // An image with both needs no debug file.
        let has_symbols = image.section(b".symtab").is_some();
        let debug = if has_dwarf && has_symbols { None } else { finder.find(image, notes) };
        let debug_file = debug.as_ref().map(|debug| &debug.file);
        let names_found = has_symbols || debug_file.is_some_and(|file| file.section(b".symtab").is_some());
        let mini = if names_found { None } else { mini_debug(image, notes) };
        let files: Vec<&ElfFile> = [Some(image), debug_file, mini.as_ref()].into_iter().flatten().collect();
        let symbols = SymbolTable::read(&files);
        let starts = FunctionStarts::new(image.unwind_sections());
        let entry = entry_function(image, &symbols, &starts);
        (NameTables { symbols, starts, plt: Plt::new(image), go: OnceCell::new(), dwarf: None, entry }, debug)
    }

    fn called(&mut self, image: &ElfFile, svma: u64) -> Called {
        let symbol = self.symbols.lookup(svma);
        if let Some(found) = symbol.filter(|found| found.sized) {
            return self.called_by_symbol(&found);
        }
        // Stubs precede frame descriptions, one of which covers all stubs.
        if self.plt.contains(svma) {
            if !self.plt.is_read() {
                self.plt.read_stubs(image);
            }
            if let Some((start, name)) = self.plt.lookup(svma, |resolver| self.symbols.chosen_by(resolver)) {
                return Called::new(Some(name), Some(start));
            }
        }
        // A stripped Go program has only this.
        if symbol.is_none()
            && let Some(functions) = self.go.get_or_init(|| image.go_functions())
            && let Some(found) = functions.find(svma)
        {
            return Called::new(text(found.name), Some(found.start));
        }
        match (symbol, self.starts.lookup(svma)) {
            // A symbol without a size ends where another function starts.
            (Some(found), Some(range)) if range.start > found.start => Called::new(None, Some(range.start)),
            (Some(found), _) => self.called_by_symbol(&found),
            (None, range) => {
                let start = range.map(|range| range.start);
                match self.entry.as_ref().filter(|entry| entry.contains(&svma)) {
                    Some(entry) => Called::new(Some(ENTRY_NAME.to_owned()), Some(entry.start)),
                    None => Called::new(None, start),
                }
            }
        }
    }

    fn called_by_symbol(&self, found: &FoundSymbol<'_>) -> Called {
        let definition = self.symbols.definition(found);
        let start = Some(definition.start);
        Called { local: definition.local, definition: start, ..Called::new(text(found.name), Some(found.start)) }
    }

    /// Whether debug information may name the called function: the name is mangled and one of its symbols.
    fn same_function(&self, called: &Called, known: &str) -> bool {
        let start = called.start.unwrap_or(0);
        names::is_mangled(known.as_bytes()) && self.symbols.has_alias(start, known.as_bytes())
    }
}

/// Reads the small ELF file in `.gnu_debugdata` ("MiniDebugInfo" in GDB's manual): symbols missing in `.dynsym`.
fn mini_debug(image: &ElfFile, notes: &mut Vec<String>) -> Option<ElfFile> {
    let section = image.section(b".gnu_debugdata")?;
    let data = image.section_data(section, limits::MAX_MINI_DEBUG);
    let file = data.and_then(|data| compressed::xz(&data, limits::MAX_MINI_DEBUG)).and_then(ElfFile::from_bytes);
    file.inspect_err(|error| notes.push(format!("cannot use the symbols in .gnu_debugdata: {error}"))).ok()
}

fn load_dwarf(
    file: &ElfFile,
    debug: Option<&DebugFile>,
    finder: &DebugFileFinder,
    room: (u64, Option<Arc<dyn MemoryGate>>),
    notes: &mut Vec<String>,
) -> Option<Dwarf> {
    let path = debug.and_then(|debug| debug.path.as_deref());
    let supplement = finder.find_supplement(file, path, notes);
    match Dwarf::load(file, supplement.as_ref(), SplitFiles::new(finder.clone(), path), room) {
        Ok(dwarf) => Some(dwarf),
        Err(why) => {
            notes.push(why);
            None
        }
    }
}

/// Names in symbol tables have no defined encoding; compilers write UTF-8.
fn text(name: &[u8]) -> Option<String> {
    std::str::from_utf8(name).ok().map(str::to_owned)
}

fn function(name: DemangledName, start: Option<u64>, frame: &DwarfFrame, inlined: bool) -> Function {
    Function {
        linkage_name: name.linkage,
        display_name: name.display,
        start,
        decl_file: frame.declaration.file.clone(),
        decl_line: frame.declaration.line,
        local: false,
        file: frame.file.clone(),
        line: frame.line,
        inlined,
    }
}

#[derive(Debug, Default)]
struct DemangledNames(HashMap<Box<str>, DemangledName>);

#[derive(Debug, Clone, Default)]
struct DemangledName {
    linkage: Option<Arc<str>>,
    display: Option<Arc<str>>,
}

impl DemangledNames {
    fn held_bytes(&self) -> u64 {
        // Names shared by several symbols are counted more than once.
        let shared: usize = self
            .0
            .iter()
            .map(|(raw, named)| {
                raw.len() + named.linkage.as_deref().map_or(0, str::len) + named.display.as_deref().map_or(0, str::len)
            })
            .sum();
        (shared + self.0.capacity() * size_of::<(Box<str>, DemangledName)>()) as u64
    }

    fn get(&mut self, raw: &str) -> DemangledName {
        if let Some(named) = self.0.get(raw) {
            return named.clone();
        }
        let logical = meter::catch_panic(|| names::logical(raw).into_owned()).unwrap_or_else(|| raw.to_owned());
        let named = match self.0.get(logical.as_str()) {
            Some(named) => named.clone(),
            None => {
                let display = meter::catch_panic(|| demangle(&logical)).flatten();
                let named =
                    DemangledName { linkage: Some(Arc::from(logical.as_str())), display: display.map(Arc::from) };
                self.0.insert(logical.as_str().into(), named.clone());
                named
            }
        };
        if logical != raw {
            self.0.insert(raw.into(), named.clone());
        }
        named
    }
}
