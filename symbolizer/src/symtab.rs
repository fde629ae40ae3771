//! Function symbols of one image, sorted by address (gABI, "Symbol Table"). 16 bytes each: names stay in the string
//! table.

use std::cell::{OnceCell, RefCell};
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashMap, HashSet};
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::by_address::ByAddress;
use crate::elf::{CodeSections, string_at};
use crate::elf_file::ElfFile;
use crate::error::ImageError;
use crate::limits;
use crate::meter;
use crate::names;

#[derive(Debug, Default)]
pub(crate) struct SymbolTable {
    strings: Vec<Arc<[u8]>>,
    symbols: Vec<Symbol>,
    /// For each symbol, the compilation unit that alone sees it, or [`GLOBAL`].
    units: Vec<u32>,
    /// Symbols with a compilation unit, ordered by it.
    by_unit: OnceCell<Vec<(u32, u32)>>,
    by_name: OnceCell<HashMap<u64, Owners>>,
    hasher: DefaultHashBuilder,
    clones: RefCell<HashMap<usize, SymbolDefinition>>,
    by_address: ByAddress,
    /// Ordered ranges where a function may extend beyond the next symbol. Elsewhere only the symbol before can match,
    /// which bounds the search.
    overlaps: Vec<Range<u64>>,
    /// Ranges of code: sections, or segments if the image has no section headers.
    code: Vec<Range<u64>>,
    /// Names that were not chosen for their address; a function with aliases has a few.
    aliases: HashMap<u64, Vec<NameRef>>,
    /// For visible, unmangled names among those: the name that was chosen instead.
    chosen: HashMap<Box<[u8]>, NameRef>,
    /// Functions whose code is chosen at program start (ifuncs), by the address of the resolver.
    chosen_at_start: HashMap<u64, NameRef>,
    /// Whether a limit truncated the table.
    pub(crate) cut: bool,
}

// A large image has a million symbols.
const _: () = assert!(size_of::<Symbol>() == 16);

#[derive(Debug, Clone, Copy)]
struct Symbol {
    svma: u64,
    size: u32,
    name: NameRef,
}

/// Instead of a compilation unit: a symbol visible to other units.
const GLOBAL: u32 = u32::MAX;
/// Flag with the position in the table: a local symbol of unknown file. Hidden symbols become such, and `strip
/// --strip-debug` removes file symbols.
const OF_NO_FILE: u32 = 1 << 31;
const _: () = assert!(limits::MAX_SYMBOLS < OF_NO_FILE as usize);

/// The position in the table of a local symbol of unknown file.
fn position_of_no_file(unit: u32) -> Option<u32> {
    (unit != GLOBAL && unit & OF_NO_FILE != 0).then_some(unit)
}

#[derive(Debug, Clone, Copy, Default)]
struct Owners {
    shared: Option<u32>,
    counts: [u32; 2],
    local: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SymbolDefinition {
    pub(crate) local: bool,
    /// Start of the function that a symbol is a clone or a part of.
    pub(crate) start: u64,
}

/// Position of a name: string table in the top two bits, offset in the rest ([`limits::MAX_SECTION_BYTES`] fits).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NameRef(u32);

const NAME_OFFSET_BITS: u32 = 30;
const _: () = assert!(limits::MAX_SECTION_BYTES <= 1 << NAME_OFFSET_BITS);

impl NameRef {
    fn new(table: usize, offset: u32) -> Option<NameRef> {
        let table = u32::try_from(table).ok().filter(|table| *table < 4)?;
        (offset >> NAME_OFFSET_BITS == 0).then_some(NameRef(table << NAME_OFFSET_BITS | offset))
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FoundSymbol<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) start: u64,
    /// Whether the symbol states a size that covers the address; otherwise it is the nearest one before.
    pub(crate) sized: bool,
    index: usize,
}

#[derive(Debug, Clone, Copy)]
struct SymbolCandidate {
    svma: u64,
    size: u32,
    name: NameRef,
    unit: u32,
    local: bool,
    weak: bool,
    /// Whether it has no type: of hand-written assembly, and names for places inside functions.
    label: bool,
    /// Whether its address is that of an ifunc resolver (STT_GNU_IFUNC).
    chooses: bool,
}

// They are held beside the strings.
const _: () = assert!(size_of::<SymbolCandidate>() == 24);

impl SymbolTable {
    pub(crate) fn read(files: &[&ElfFile]) -> SymbolTable {
        let mut table = SymbolTable::default();
        let Some(image) = files.first() else { return table };
        let code: Vec<Range<u64>> =
            image.sections().iter().filter(|s| s.is_code()).filter_map(|s| s.svma_range()).collect();
        let segments: Vec<Range<u64>> = image
            .segments()
            .iter()
            .filter(|segment| segment.executable)
            .map(|segment| segment.svma..segment.svma.saturating_add(segment.mem_size))
            .collect();
        // Without section headers only the segments distinguish code from data.
        let code = disjoint(if code.is_empty() { segments } else { code });
        let mut candidates = Vec::new();
        for file in files {
            table.read_file(file, &code, &mut candidates);
        }
        table.choose(candidates);
        table.code = code;
        table
    }

    fn read_file(&mut self, file: &ElfFile, code: &[Range<u64>], candidates: &mut Vec<SymbolCandidate>) {
        let first = candidates.len();
        let code_sections = CodeSections::of(file.sections());
        // Units of different files are distinct.
        let mut unit =
            candidates.iter().map(|it: &SymbolCandidate| it.unit).filter(|&unit| unit < OF_NO_FILE).max().unwrap_or(0);
        for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
            let Some(section) = file.sections().iter().find(|section| section.kind == kind) else { continue };
            let Some(strings) = file.sections().get(section.link as usize) else { continue };
            let bytes = match file.section_data(section, limits::MAX_SECTION_BYTES) {
                Ok(bytes) => bytes,
                Err(error) => {
                    self.cut |= is_limit(&error);
                    continue;
                }
            };
            let count = bytes.len() / size_of::<elf::Sym64<LE>>();
            // Linkers repeat all of `.dynsym` in `.symtab`; only `strip` with special options leaves fewer there.
            if kind == elf::SHT_DYNSYM && candidates.len() - first >= count {
                continue;
            }
            let strings = match file.section_data(strings, limits::MAX_SECTION_BYTES) {
                Ok(strings) => strings,
                Err(error) => {
                    self.cut |= is_limit(&error);
                    continue;
                }
            };
            let Ok((symbols, _)) = pod::slice_from_bytes::<elf::Sym64<LE>>(&bytes, count) else { continue };
            let index = self.strings.len();
            let before = candidates.len();
            // Local symbols follow the symbol of their file (gABI, "Symbol Table"); an empty one precedes those
            // without.
            let mut file = None;
            for symbol in symbols {
                if symbol.st_type() == elf::STT_FILE {
                    unit = unit.saturating_add(1).min(OF_NO_FILE - 1);
                    let nameless = strings.get(symbol.st_name.get(LE) as usize).is_none_or(|&byte| byte == 0);
                    file = (!nameless).then_some(unit);
                    continue;
                }
                if candidates.len() >= limits::MAX_SYMBOLS || meter::spend(1).is_err() {
                    self.cut = true;
                    break;
                }
                let local = file.unwrap_or(OF_NO_FILE | candidates.len() as u32);
                if code_sections.have(symbol) {
                    candidates.extend(candidate(symbol, index, &strings, code, local));
                }
            }
            if candidates.len() > before {
                self.strings.push(strings);
            }
        }
    }

    /// Keeps one symbol for each address, by [`names::AliasRank`], with the largest stated size.
    fn choose(&mut self, mut candidates: Vec<SymbolCandidate>) {
        let strings = std::mem::take(&mut self.strings);
        let text = |name: NameRef| name_in(&strings, name);
        if meter::spend(meter::steps_of_sort(candidates.len())).is_err() {
            self.cut = true;
            return;
        }
        candidates.sort_unstable_by_key(|candidate| (candidate.svma, candidate.label));
        drop_covered_labels(&mut candidates);
        // Names are read only where symbols share an address: string tables are many times larger than the table.
        let mut budget = limits::MAX_ALIAS_BYTES;
        for group in candidates.chunk_by_mut(|a, b| a.svma == b.svma).filter(|group| group.len() > 1) {
            let bytes = |group: &[SymbolCandidate]| group.iter().map(|c| text(c.name).len() + 1).sum::<usize>();
            // Measured in parts, because measuring is the expensive step.
            for part in group.chunks(1024) {
                let bytes = bytes(part);
                budget = budget.saturating_sub(bytes);
                if budget == 0 || meter::spend(4 * (part.len() as u64 + meter::steps_of(bytes))).is_err() {
                    budget = 0;
                    break;
                }
            }
            if budget == 0 {
                self.cut = true;
                break;
            }
            group.sort_by_cached_key(|c| (c.label, names::alias_rank(text(c.name), c.local, c.weak), text(c.name)));
        }
        let mut symbols: Vec<Symbol> = Vec::new();
        let mut units: Vec<u32> = Vec::new();
        let mut aliases: HashMap<u64, Vec<NameRef>> = HashMap::new();
        let mut chosen = HashMap::new();
        let mut chosen_at_start = HashMap::new();
        for candidate in candidates {
            if meter::spend(1).is_err() {
                self.cut = true;
                break;
            }
            if candidate.chooses {
                chosen_at_start.entry(candidate.svma).or_insert(candidate.name);
            }
            let size = candidate.size;
            match symbols.last_mut() {
                Some(last) if last.svma == candidate.svma => {
                    last.size = last.size.max(size);
                    if !self.cut && text(last.name) != text(candidate.name) {
                        let names = aliases.entry(candidate.svma).or_default();
                        if names.len() < limits::MAX_ALIASES
                            && names.last().is_none_or(|&name| text(name) != text(candidate.name))
                        {
                            names.push(candidate.name);
                        }
                        let alias = text(candidate.name);
                        // Local names are not unique in an image.
                        if !candidate.local && !names::is_mangled(alias) {
                            chosen.insert(alias.into(), last.name);
                        }
                    }
                }
                _ => {
                    symbols.push(Symbol { svma: candidate.svma, size, name: candidate.name });
                    units.push(candidate.unit);
                }
            }
        }
        symbols.shrink_to_fit();
        units.shrink_to_fit();
        self.units = units;
        self.overlaps = overlaps(&symbols);
        self.by_address = index(&symbols);
        self.symbols = symbols;
        self.aliases = aliases;
        self.chosen = chosen;
        self.chosen_at_start = chosen_at_start;
        self.strings = strings;
    }

    /// The symbol whose function contains `svma`: by stated size, else the nearest before without size, up to the next
    /// symbol or section end.
    pub(crate) fn lookup(&self, svma: u64) -> Option<FoundSymbol<'_>> {
        let after = self.by_address.count_up_to(svma, |index| beginning(&self.symbols, index));
        let before = self.symbols.get(..after)?;
        let after_overlap = self.overlaps.partition_point(|range| range.start <= svma);
        let overlap = after_overlap.checked_sub(1).and_then(|at| self.overlaps.get(at));
        let overlapped = overlap.is_some_and(|overlap| overlap.contains(&svma));
        let most = if overlapped { limits::MAX_SYMBOL_WALK } else { 1 };
        let found = |symbol: &Symbol, sized, steps| {
            let index = after.saturating_sub(steps + 1);
            FoundSymbol { name: self.text(symbol.name), start: symbol.svma, sized, index }
        };
        for (steps, symbol) in before.iter().rev().take(most).enumerate() {
            if svma - symbol.svma < u64::from(symbol.size) {
                return Some(found(symbol, true, steps));
            }
            let together = || range_of(&self.code, svma).is_some_and(|range| range.contains(&symbol.svma));
            if steps == 0 && symbol.size == 0 && together() {
                return Some(found(symbol, false, steps));
            }
        }
        None
    }

    /// The function that a symbol is, or is a clone or part of: of its unit, with the name without the suffix, or its
    /// lowest clone. If the unit has none, a visible function of that name, as these are not listed with their unit.
    pub(crate) fn definition(&self, found: &FoundSymbol<'_>) -> SymbolDefinition {
        let own = SymbolDefinition { local: false, start: found.start };
        let unit = self.units.get(found.index).copied().unwrap_or(GLOBAL);
        let Ok(name) = str::from_utf8(found.name) else { return SymbolDefinition { local: unit != GLOBAL, ..own } };
        let local = unit != GLOBAL || names::is_of_unit(name);
        let whole = names::without_clone_suffixes(name);
        if whole.len() == name.len() || !local {
            return SymbolDefinition { local, ..own };
        }
        if let Some(known) = self.clones.borrow().get(&found.index) {
            return *known;
        }
        if let Some(position) = position_of_no_file(unit) {
            let definition = self.nearest_whole(name, position).or_else(|| self.shared(whole));
            let definition = definition.unwrap_or(SymbolDefinition { local, ..own });
            self.clones.borrow_mut().insert(found.index, definition);
            return definition;
        }
        let of_unit = |symbol: &&Symbol| {
            let other = str::from_utf8(self.text(symbol.name)).unwrap_or_default();
            other.starts_with(whole) && names::without_clone_suffixes(other) == whole
        };
        let family = self.symbols_of_unit(unit).take_while(|symbol| self.pay_for(symbol)).filter(of_unit);
        let starts = family.map(|symbol| (self.text(symbol.name).len() != whole.len(), symbol.svma));
        let (is_clone, lowest) = starts.min().unwrap_or((true, found.start));
        let definition = if is_clone { self.shared(whole) } else { None };
        let definition = definition.unwrap_or(SymbolDefinition { local, start: lowest });
        self.clones.borrow_mut().insert(found.index, definition);
        definition
    }

    fn symbols_of_unit(&self, unit: u32) -> impl Iterator<Item = &Symbol> {
        let by_unit = self.by_unit.get_or_init(|| {
            let mut by_unit: Vec<(u32, u32)> = Vec::new();
            let of_units = self.units.iter().zip(0u32..).filter(|(unit, _)| **unit < OF_NO_FILE);
            for (&unit, index) in of_units {
                if meter::spend(1).is_err() {
                    return Vec::new();
                }
                by_unit.push((unit, index));
            }
            if meter::spend(meter::steps_of_sort(by_unit.len())).is_err() {
                return Vec::new();
            }
            by_unit.sort_unstable();
            by_unit
        });
        let first = by_unit.partition_point(|(other, _)| *other < unit);
        let symbols = by_unit.get(first..).unwrap_or_default().iter().take_while(move |(other, _)| *other == unit);
        symbols.filter_map(|(_, index)| self.symbols.get(*index as usize))
    }

    /// Counts looking at a symbol's name. False if that is not granted any more.
    fn pay_for(&self, symbol: &Symbol) -> bool {
        meter::spend(1 + meter::steps_of(self.text(symbol.name).len())).is_ok()
    }

    /// The one function of a name without a unit.
    fn shared(&self, name: &str) -> Option<SymbolDefinition> {
        match self.owners(name.as_bytes()) {
            Owners { shared: Some(shared), counts: [1, _], .. } => self.definition_at(shared),
            _ => None,
        }
    }

    /// The function of which `name` is a clone or part, without file symbols: the nearest in the table, as linkers keep
    /// units together.
    fn nearest_whole(&self, name: &str, position: u32) -> Option<SymbolDefinition> {
        // One pass over the table for all of them: a name may have thousands of suffixes.
        let wholes: HashSet<usize> =
            std::iter::successors(names::without_clone_suffix(name), |shorter| names::without_clone_suffix(shorter))
                .map(str::len)
                .collect();
        let of_no_file = self.symbols.iter().zip(&self.units);
        let of_no_file = of_no_file.filter_map(|(symbol, &unit)| Some((symbol, position_of_no_file(unit)?)));
        let nearest = of_no_file
            .map(|(symbol, other)| (symbol, self.text(symbol.name), other))
            .take_while(|(_, text, _)| meter::spend(1 + meter::steps_of(text.len())).is_ok())
            .filter(|(_, text, _)| wholes.contains(&text.len()) && name.as_bytes().starts_with(text))
            .min_by_key(|(_, text, other)| (text.len(), other.abs_diff(position)));
        nearest.map(|(symbol, ..)| SymbolDefinition { local: true, start: symbol.svma })
    }

    fn definition_at(&self, index: u32) -> Option<SymbolDefinition> {
        let (symbol, unit) = self.symbols.get(index as usize).zip(self.units.get(index as usize))?;
        Some(SymbolDefinition { local: *unit != GLOBAL, start: symbol.svma })
    }

    /// The function of a name, as far as the name determines it: one visible to all units, or the only one.
    pub(crate) fn definition_of(&self, name: &str) -> Option<SymbolDefinition> {
        match self.owners(name.as_bytes()) {
            Owners { local: Some(index), counts: [0, 1], .. } | Owners { shared: Some(index), counts: [1, 0], .. } => {
                self.definition_at(index)
            }
            _ => None,
        }
    }

    fn owners(&self, name: &[u8]) -> Owners {
        let by_name = self.by_name.get_or_init(|| {
            let mut by_name: HashMap<u64, Owners> = HashMap::new();
            for ((symbol, unit), index) in self.symbols.iter().zip(&self.units).zip(0u32..) {
                // A part of it would give wrong answers.
                if !self.pay_for(symbol) {
                    return HashMap::new();
                }
                let owners = by_name.entry(self.hasher.hash_one(self.text(symbol.name))).or_default();
                let of_unit = *unit < OF_NO_FILE;
                *(if of_unit { &mut owners.local } else { &mut owners.shared }) = Some(index);
                owners.counts[usize::from(of_unit)] += 1;
            }
            by_name
        });
        by_name.get(&self.hasher.hash_one(name)).copied().unwrap_or_default()
    }

    pub(crate) fn has_alias(&self, start: u64, name: &[u8]) -> bool {
        self.aliases.get(&start).is_some_and(|names| names.iter().any(|&alias| self.text(alias) == name))
    }

    /// The name chosen for the function with the alias `name`, if any.
    pub(crate) fn chosen_for(&self, name: &[u8]) -> Option<&[u8]> {
        self.chosen.get(name).map(|&name| self.text(name))
    }

    pub(crate) fn chosen_by(&self, svma: u64) -> Option<&[u8]> {
        let known = self.chosen_at_start.get(&svma).map(|&name| self.text(name));
        known.or_else(|| self.lookup(svma).filter(|found| found.start == svma).map(|found| found.name))
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        let strings: usize = self.strings.iter().map(|strings| strings.len()).sum();
        let overlaps = self.overlaps.capacity() * size_of::<Range<u64>>();
        let units = self.units.capacity() * size_of::<u32>();
        let names = self.by_name.get().map_or(0, |names| names.capacity() * size_of::<(u64, Owners)>());
        let units = units + self.by_unit.get().map_or(0, |by_unit| by_unit.capacity() * size_of::<(u32, u32)>());
        let aliases: usize = self.aliases.values().map(|names| names.capacity() * size_of::<NameRef>() + 48).sum();
        let chosen: usize = self.chosen.keys().map(|name| name.len() + 48).sum();
        (strings
            + overlaps
            + units
            + names
            + aliases
            + chosen
            + self.by_address.bytes()
            + self.symbols.capacity() * size_of::<Symbol>()) as u64
    }

    fn text(&self, name: NameRef) -> &[u8] {
        name_in(&self.strings, name)
    }
}

/// Removes labels within functions of a stated size, from candidates ordered by address, functions before labels. A label
/// begins a function only where nothing else says what the code is.
fn drop_covered_labels(candidates: &mut Vec<SymbolCandidate>) {
    let mut reach = 0;
    candidates.retain(|candidate| {
        if candidate.label {
            return candidate.svma >= reach;
        }
        reach = reach.max(candidate.svma.saturating_add(u64::from(candidate.size)));
        true
    });
}

fn beginning(symbols: &[Symbol], index: usize) -> u64 {
    symbols.get(index).map_or(u64::MAX, |symbol| symbol.svma)
}

fn index(symbols: &[Symbol]) -> ByAddress {
    ByAddress::new(symbols.len(), |index| beginning(symbols, index))
}

fn overlaps(symbols: &[Symbol]) -> Vec<Range<u64>> {
    let mut overlaps: Vec<Range<u64>> = Vec::new();
    let mut reach = 0;
    for symbol in symbols {
        if reach > symbol.svma {
            match overlaps.last_mut() {
                Some(last) if last.end >= symbol.svma => last.end = last.end.max(reach),
                _ => overlaps.push(symbol.svma..reach),
            }
        }
        reach = reach.max(symbol.svma.saturating_add(u64::from(symbol.size)));
    }
    overlaps.shrink_to_fit();
    overlaps
}

fn name_in(strings: &[Arc<[u8]>], name: NameRef) -> &[u8] {
    let table = (name.0 >> NAME_OFFSET_BITS) as usize;
    let offset = name.0 & ((1 << NAME_OFFSET_BITS) - 1);
    strings.get(table).map_or(&[], |strings| string_at(strings, offset))
}

fn is_limit(error: &ImageError) -> bool {
    matches!(error, ImageError::Spent | ImageError::TooLarge { .. })
}

/// Sorts ranges, and cuts each where the next one begins. (Those of real files do not overlap.)
fn disjoint(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let nexts: Vec<u64> = ranges.iter().skip(1).map(|range| range.start).chain([u64::MAX]).collect();
    for (range, next) in ranges.iter_mut().zip(nexts) {
        range.end = range.end.min(next);
    }
    ranges
}

fn range_of(ranges: &[Range<u64>], svma: u64) -> Option<&Range<u64>> {
    let after = ranges.partition_point(|range| range.start <= svma);
    ranges.get(after.checked_sub(1)?).filter(|range| range.contains(&svma))
}

/// A symbol is a function if it has that type (STT_FUNC, STT_GNU_IFUNC), or is untyped but lies in code and has a size
/// or is global, as in assembly. (Its section is code: see [`CodeSections`].)
fn candidate(
    symbol: &elf::Sym64<LE>,
    table: usize,
    strings: &[u8],
    code: &[Range<u64>],
    local_unit: u32,
) -> Option<SymbolCandidate> {
    let (svma, size) = (symbol.st_value.get(LE), symbol.st_size.get(LE));
    if svma == 0 {
        return None;
    }
    let local = symbol.st_bind() == elf::STB_LOCAL;
    let label = match symbol.st_type() {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => false,
        elf::STT_NOTYPE if size > 0 || !local => true,
        _ => return None,
    };
    range_of(code, svma)?;
    let offset = symbol.st_name.get(LE);
    // The name is empty or outside the table.
    if strings.get(offset as usize).is_none_or(|&byte| byte == 0) {
        return None;
    }
    let weak = symbol.st_bind() == elf::STB_WEAK;
    let unit = if local { local_unit } else { GLOBAL };
    let chooses = symbol.st_type() == elf::STT_GNU_IFUNC;
    let size = u32::try_from(size).unwrap_or(u32::MAX);
    Some(SymbolCandidate { svma, size, name: NameRef::new(table, offset)?, unit, local, weak, label, chooses })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_symbol_that_covers_an_address_is_found() {
        // Nested functions, labels inside of them, gaps, and a label between two, compared with a linear search.
        let sizes: &[&[(u64, u32)]] = &[
            &[],
            &[(0x10, 0x10)],
            &[(0x10, 0x40), (0x18, 8), (0x20, 0), (0x30, 0x60), (0x38, 4), (0x80, 0), (0xa0, 0x10)],
            &[(0x10, 0), (0x20, 0x100), (0x30, 0), (0x40, 0), (0x50, 0x10), (0x130, 8)],
            &[(0, 8), (4, 8), (8, 8), (0xc, 8), (0x40, 0x10), (0x4f, 2), (0x50, 1)],
            &[(u64::MAX - 8, u32::MAX), (u64::MAX - 4, 0)],
        ];
        for sizes in sizes {
            let symbol = |&(svma, size): &(u64, u32)| Symbol { svma, size, name: NameRef(0) };
            let symbols: Vec<Symbol> = sizes.iter().map(symbol).collect();
            let (overlaps, by_address) = (overlaps(&symbols), index(&symbols));
            let table = SymbolTable { overlaps, by_address, symbols, ..SymbolTable::default() };
            for svma in (0..0x150).chain(u64::MAX - 16..u64::MAX) {
                let before = sizes.iter().rev().filter(|(start, _)| *start <= svma);
                let covering = before.clone().find(|(start, size)| svma - start < u64::from(*size));
                let found = table.lookup(svma).map(|found| found.start);
                assert_eq!(found, covering.map(|(start, _)| *start), "{sizes:x?} at {svma:#x}");
            }
        }
    }

    /// The start of the function at an address, by definition: the last to begin there or before. A label counts only where
    /// no sized function covers its start, and what has a size ends with it.
    fn function_at(candidates: &[SymbolCandidate], svma: u64) -> Option<u64> {
        let covers = |c: &SymbolCandidate, at: u64| c.svma <= at && at - c.svma < u64::from(c.size);
        let is_covered =
            |label: &SymbolCandidate| candidates.iter().any(|other| !other.label && covers(other, label.svma));
        let kept: Vec<_> = candidates.iter().filter(|c| !c.label || !is_covered(c)).collect();
        let covering = kept.iter().filter(|c| covers(c, svma)).map(|c| c.svma).max();
        // What has no size ends where anything else begins.
        let nearest = kept.iter().map(|c| c.svma).filter(|&start| start <= svma).max();
        let is_sized = |start: u64| kept.iter().any(|c| c.svma == start && c.size > 0);
        nearest.filter(|&start| !is_sized(start)).or(covering)
    }

    fn table_of(strings: &str, candidates: Vec<SymbolCandidate>) -> SymbolTable {
        let strings: Arc<[u8]> = strings.as_bytes().into();
        let mut table = SymbolTable { strings: vec![strings], ..SymbolTable::default() };
        table.choose(candidates);
        let everywhere = 0..u64::MAX;
        SymbolTable { code: vec![everywhere], ..table }
    }

    fn candidate_of(svma: u64, size: u32, label: bool, name: u32) -> SymbolCandidate {
        let name = NameRef::new(0, name).unwrap();
        SymbolCandidate { svma, size, name, unit: GLOBAL, local: false, weak: false, label, chooses: false }
    }

    proptest::proptest! {
        #[test]
        fn labels_count_only_outside_of_sized_functions(
            symbols in proptest::collection::vec((1u64..200, 0u32..40, proptest::bool::ANY, 0u32..3), 0..24),
        ) {
            // A third has no size.
            let size = |size: u32, name: u32| if name == 0 { 0 } else { size };
            let candidates: Vec<SymbolCandidate> = symbols
                .iter()
                .map(|&(svma, sized, label, name)| candidate_of(svma, size(sized, name), label, 1 + 2 * name))
                .collect();
            let table = table_of("\0a\0b\0c\0", candidates.clone());
            for svma in 0..256 {
                let found = table.lookup(svma).map(|found| found.start);
                proptest::prop_assert_eq!(found, function_at(&candidates, svma), "at {}", svma);
            }
        }
    }

    #[test]
    fn a_function_goes_before_a_label_at_its_start() {
        for size in [0, 8] {
            let table =
                table_of("\0label\0_function\0", vec![candidate_of(16, 0, true, 1), candidate_of(16, size, false, 7)]);
            assert_eq!(table.lookup(17).map(|found| found.name), Some(b"_function".as_slice()), "{size}");
        }
    }

    #[test]
    fn a_name_of_many_suffixes_costs_one_look_at_the_table() {
        // All local and of unknown file: one whole function, its part with 3,000 suffixes, and many others.
        let part = format!("walk{}", ".cold".repeat(3_000));
        let strings: Arc<[u8]> = format!("walk\0other\0{part}\0").into_bytes().into();
        let symbol = |svma: u64, at: u32| Symbol { svma, size: 1, name: NameRef::new(0, at).unwrap() };
        let others = (1..200_000).map(|i| symbol(i * 16, 5));
        let symbols: Vec<Symbol> = others.chain([symbol(1 << 30, 0), symbol(1 << 31, 11)]).collect();
        let units = (0..symbols.len() as u32).map(|i| OF_NO_FILE | i).collect();
        let index = symbols.len() - 1;
        let table = SymbolTable { strings: vec![strings], symbols, units, ..SymbolTable::default() };
        let began = std::time::Instant::now();
        for _ in 0..1_000 {
            let found = FoundSymbol { name: part.as_bytes(), start: 1 << 31, sized: true, index };
            assert_eq!(table.definition(&found), SymbolDefinition { local: true, start: 1 << 30 });
        }
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }
}
