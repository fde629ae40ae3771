//! From an address to the functions that contain it.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::debugfile::DebugFileFinder;
use crate::demangle::demangle;
use crate::elf::ElfFile;
use crate::names;
use crate::starts::FunctionStarts;
use crate::symtab::SymbolTable;

/// One of the functions that contain an address.
///
/// It always has a linkage name or a start, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name of the logical function: without clone suffixes and symbol versions, and the same for inlined and
    /// out-of-line copies. `None` if only its address is known (a stripped program).
    pub linkage_name: Option<Arc<str>>,
    /// The name as in the source; `None` if it is the same as the linkage name.
    pub display_name: Option<Arc<str>>,
    /// Where the function begins (SVMA): what identifies it if it has no name. For a part that was split off
    /// (`.cold`), the beginning of the part. `None` for an inlined function.
    pub start: Option<u64>,
    /// The source file the function is declared in, if known.
    pub decl_file: Option<Arc<str>>,
    /// The line it is declared at; 0 if unknown.
    pub decl_line: u32,
    /// The source file of the address looked up; for an outer function, of the inlined call.
    pub file: Option<Arc<str>>,
    /// The line there; 0 if unknown.
    pub line: u32,
    /// Whether this is a copy inlined into the next function of the result.
    pub inlined: bool,
}

/// The names of one image's functions, read from it as they are needed.
///
/// Belongs to one thread at a time; results are not kept, so the caller memoises them by address.
#[derive(Debug)]
pub struct Symbols {
    image: Arc<ElfFile>,
    finder: DebugFileFinder,
    tables: Option<Tables>,
    names: HashMap<Box<str>, (Arc<str>, Option<Arc<str>>)>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Tables {
    symbols: SymbolTable,
    starts: FunctionStarts,
}

impl Symbols {
    /// Names for the addresses of `image`. Reads nothing yet.
    #[must_use]
    pub fn new(image: Arc<ElfFile>, debug: DebugFileFinder) -> Symbols {
        Symbols { image, finder: debug, tables: None, names: HashMap::new(), notes: Vec::new() }
    }

    /// Finds the functions that contain the stated address `svma`: inlined ones first, from the innermost out,
    /// and last the function that was really called. `out` is cleared first, and stays empty if no function is
    /// known to contain the address.
    ///
    /// A return address is looked up at the address before it; that is the caller's business.
    pub fn resolve(&mut self, svma: u64, out: &mut Vec<Function>) {
        out.clear();
        let Tables { symbols, starts } =
            self.tables.get_or_insert_with(|| load(&self.image, &self.finder, &mut self.notes));
        let symbol = symbols.lookup(svma);
        let described = match symbol {
            Some(found) if found.sized => None,
            _ => starts.lookup(svma),
        };
        let (name, start) = match (symbol, described) {
            // A symbol without a size ends where another function begins.
            (Some(found), Some(range)) if range.start > found.start => (None, range.start),
            (Some(found), _) => (std::str::from_utf8(found.name).ok(), found.start),
            (None, Some(range)) => (None, range.start),
            (None, None) => return,
        };
        let (linkage_name, display_name) = match name {
            Some(name) => {
                let (linkage, display) = intern(&mut self.names, names::logical(name));
                (Some(linkage), display)
            }
            None => (None, None),
        };
        out.push(Function {
            linkage_name,
            display_name,
            start: Some(start),
            decl_file: None,
            decl_line: 0,
            file: None,
            line: 0,
            inlined: false,
        });
    }

    /// What could not be used and why, in words for the user; empty as a rule. Complete after the first resolve.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

fn load(image: &ElfFile, finder: &DebugFileFinder, notes: &mut Vec<String>) -> Tables {
    let debug = finder.find(image);
    let mut files = vec![image];
    files.extend(debug.as_ref().map(|(file, _)| file));
    let symbols = SymbolTable::read(&files);
    if symbols.cut {
        notes.push(format!("only the first {} symbols are used", symbols.len()));
    }
    Tables { symbols, starts: FunctionStarts::new(image.unwind_sections()) }
}

fn intern(names: &mut HashMap<Box<str>, (Arc<str>, Option<Arc<str>>)>, name: &str) -> (Arc<str>, Option<Arc<str>>) {
    if let Some(known) = names.get(name) {
        return known.clone();
    }
    let entry = (Arc::from(name), demangle(name).map(Arc::from));
    names.insert(name.into(), entry.clone());
    entry
}
