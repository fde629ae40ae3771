//! Names of kernel functions from `/proc/kallsyms` (proc(5)).

mod namesakes;
mod proper;
mod table;

use std::io::{self, Read};
use std::sync::OnceLock;

use crate::{limits, names};
use namesakes::KernelNamesakes;
use table::{KernelTable, NO_FUNCTION};

/// Why kernel symbols are not available.
#[derive(Debug, thiserror::Error)]
pub enum KernelSymbolsError {
    /// Reading failed.
    #[error("cannot read kernel symbols: {0}")]
    Io(#[from] io::Error),
    /// The kernel hides its addresses from this user: all are zero.
    #[error("the kernel hides its addresses (kernel.kptr_restrict; those with CAP_SYSLOG see them)")]
    Hidden,
    /// The list has no functions.
    #[error("no kernel functions are listed")]
    Empty,
}

/// Maximum size of a function: what lies beyond has no name (for example a BPF program between two modules).
const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// Bytes read at once, far more than a line.
const BUFFER: usize = 64 << 10;
/// The functions of the running kernel and its modules, sorted by address.
#[derive(Debug)]
pub struct KernelSymbols {
    table: KernelTable,
    /// Functions that share a name; computed at the first lookup.
    namesakes: OnceLock<KernelNamesakes>,
}

/// A kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// Name without the suffixes of clones and parts.
    pub name: &'a str,
    /// Module of the function; `None` for the core kernel.
    pub module: Option<&'a str>,
    /// Address of the function.
    pub start: u64,
    /// Distance from the first function of the kernel or the module: the same in every boot.
    pub offset: u64,
    /// If other functions share the name: the offset of the function, or of the one that it is a part or clone of.
    pub definition: Option<u64>,
}

impl KernelSymbols {
    /// Reads a list in the format of `/proc/kallsyms`: address, type letter, name, `[module]`. Skips other lines; at
    /// most [`limits::MAX_KALLSYMS`] bytes.
    ///
    /// # Errors
    /// [`KernelSymbolsError::Hidden`] if all addresses are zero (`kptr_restrict`, or no CAP_SYSLOG).
    pub fn read(source: impl Read) -> Result<KernelSymbols, KernelSymbolsError> {
        let mut source = source.take(limits::MAX_KALLSYMS);
        let mut list = KallsymsList::default();
        // Each read returns at most about a page; the incomplete last line is completed by the next read.
        let mut buffer = vec![0; BUFFER];
        let mut filled = 0;
        loop {
            let room = buffer.get_mut(filled..).unwrap_or_default();
            let read = match source.read(room) {
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            filled += read;
            let bytes = buffer.get(..filled).unwrap_or_default();
            let whole = match bytes.iter().rposition(|&byte| byte == b'\n') {
                Some(end) => end + 1,
                // The last line, or one without an end.
                None if read == 0 || filled == buffer.len() => filled,
                None => continue,
            };
            if !list.lines(bytes.get(..whole).unwrap_or_default()) {
                break;
            }
            buffer.copy_within(whole..filled, 0);
            filled -= whole;
            if read == 0 && filled == 0 {
                break;
            }
        }
        let KallsymsList { mut found, mut text, hidden, proper_end } = list;
        if found.is_empty() {
            return Err(if hidden { KernelSymbolsError::Hidden } else { KernelSymbolsError::Empty });
        }
        // Stable, so that aliases keep the order of the list after the global one.
        found.sort_by_key(|&(address, kind, _)| (address, kind));
        found.dedup_by_key(|&mut (address, _, _)| address);
        // Without spare capacity, because the table is kept.
        let mut symbols: Vec<(u64, u32)> = Vec::with_capacity(found.len());
        symbols.extend(found.into_iter().map(|(address, _, at)| (address, at)));
        text.shrink_to_fit();
        Ok(KernelSymbols::of(KernelTable { symbols, text, modules: true, proper_end }))
    }

    fn of(table: KernelTable) -> KernelSymbols {
        KernelSymbols { table, namesakes: OnceLock::new() }
    }

    /// The function at `address`: the nearest before it. `None` below the first, and after the last of a section.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<KernelFunction<'_>> {
        let after = self.table.symbols.partition_point(|&(start, _)| start <= address);
        let &(start, at) = self.table.symbols.get(after.checked_sub(1)?)?;
        if address - start > MAX_FUNCTION_BYTES {
            return None;
        }
        let (name, module) = self.table.name_at(at)?;
        let namesakes = self.namesakes.get_or_init(|| KernelNamesakes::of(&self.table));
        let first = self.table.symbols.first().map_or(0, |&(first, _)| first);
        let base = module.and_then(|module| namesakes.module(module)).unwrap_or(first);
        let offset = |start: u64| start.saturating_sub(base);
        Some(KernelFunction {
            name: names::without_suffixes(name),
            module,
            start,
            offset: offset(start),
            definition: namesakes.definition(start).map(offset),
        })
    }

    /// Address and name of the first function.
    #[must_use]
    pub fn first(&self) -> Option<(u64, &str)> {
        self.table.symbols.first().and_then(|&(start, at)| Some((start, self.table.name_at(at)?.0)))
    }

    /// Number of functions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.table.symbols.iter().filter(|&&(_, at)| at != NO_FUNCTION).count()
    }

    /// Never true: [`KernelSymbols::read`] fails instead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.symbols.is_empty()
    }
}

/// The kind of a symbol, ordered by preference among symbols at one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SymbolKind {
    Global,
    Local,
    Other,
}

struct KallsymsLine<'a> {
    address: u64,
    kind: SymbolKind,
    name: &'a [u8],
    module: &'a [u8],
}

#[derive(Default)]
struct KallsymsList {
    found: Vec<(u64, SymbolKind, u32)>,
    text: Vec<u8>,
    /// Whether a function at address zero was seen; then all addresses are hidden.
    hidden: bool,
    proper_end: u64,
}

impl KallsymsList {
    /// Parses whole lines; false if no further lines are useful.
    fn lines(&mut self, lines: &[u8]) -> bool {
        for line in lines.split(|&byte| byte == b'\n') {
            match parse_line(line) {
                Some(KallsymsLine { address: 0, kind: SymbolKind::Global | SymbolKind::Local, .. }) => {
                    self.hidden = true
                }
                Some(KallsymsLine { address: 0, .. }) | None => {}
                Some(KallsymsLine { address, kind: SymbolKind::Other, name, module }) => {
                    if name == b"_etext" && module.is_empty() {
                        self.proper_end = address;
                    }
                    // A marker is useful only after a function. (The list is almost ordered by address.)
                    if self.found.last().is_some_and(|&(_, kind, _)| kind != SymbolKind::Other) {
                        self.found.push((address, SymbolKind::Other, NO_FUNCTION));
                    }
                }
                Some(KallsymsLine { address, kind, name, module }) => {
                    let Some(at) = u32::try_from(self.text.len()).ok().filter(|&at| at != NO_FUNCTION) else {
                        return false;
                    };
                    for part in [name, module] {
                        self.text.extend_from_slice(part);
                        self.text.push(0);
                    }
                    self.found.push((address, kind, at));
                }
            }
        }
        // A list that starts with hidden addresses has no others.
        !(self.hidden && self.found.is_empty())
    }
}

/// `ffffffff81000000 T name`, with a tab and `[module]` for a module.
fn parse_line(line: &[u8]) -> Option<KallsymsLine<'_>> {
    let (address, rest) = line.split_at_checked(line.iter().position(|&byte| byte == b' ')?)?;
    let address = hexadecimal(address)?;
    let (&[b' ', letter, b' '], rest) = rest.split_first_chunk::<3>()? else { return None };
    let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
    let (name, rest) = rest.split_at_checked(end)?;
    if name.is_empty() || name.len() > limits::MAX_LINKAGE_NAME || !is_text(name) {
        return None;
    }
    let kind = match letter {
        _ if matches!(name, b"_etext" | b"_einittext") => SymbolKind::Other,
        b't' => SymbolKind::Local,
        b'T' | b'w' | b'W' => SymbolKind::Global,
        _ => SymbolKind::Other,
    };
    let module = rest.trim_ascii().strip_prefix(b"[").and_then(|module| module.strip_suffix(b"]"));
    Some(KallsymsLine { address, kind, name, module: module.filter(|module| is_text(module)).unwrap_or_default() })
}

fn is_text(bytes: &[u8]) -> bool {
    !bytes.contains(&0) && (bytes.is_ascii() || std::str::from_utf8(bytes).is_ok())
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 16 {
        return None;
    }
    digits.iter().try_fold(0, |number, &digit| Some(number << 4 | u64::from(char::from(digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
ffffffff81000000 T startup_64
ffffffff81000000 t startup_local
ffffffff81000000 T _stext
ffffffff81000100 t helper
ffffffff81000180 T _etext
ffffffff81000200 D some_data
ffffffffa0001000 t ext4_read\t[ext4]
ffffffffa0002000 W weak_one\t[ext4]
garbage
zz T not_an_address
";

    #[test]
    fn finds_the_function_before_an_address() {
        let symbols = KernelSymbols::read(LIST.as_bytes()).unwrap();
        let lookup = |address| symbols.lookup(address).map(|f| (f.name, f.module, f.start));
        assert_eq!(symbols.len(), 4);
        assert_eq!(lookup(0xffff_ffff_80ff_ffff), None);
        assert_eq!(lookup(0xffff_ffff_8100_0000), Some(("startup_64", None, 0xffff_ffff_8100_0000)));
        assert_eq!(lookup(0xffff_ffff_8100_017f), Some(("helper", None, 0xffff_ffff_8100_0100)));
        assert_eq!(lookup(0xffff_ffff_8100_0180), None);
        assert_eq!(lookup(0xffff_ffff_8100_0300), None);
        assert_eq!(lookup(0xffff_ffff_a000_1fff), Some(("ext4_read", Some("ext4"), 0xffff_ffff_a000_1000)));
        assert_eq!(lookup(0xffff_ffff_a000_2fff), Some(("weak_one", Some("ext4"), 0xffff_ffff_a000_2000)));
        // Beyond the last function there is no name, rather than the last function's.
        assert_eq!(lookup(u64::MAX), None);
    }

    #[test]
    fn hidden_addresses_are_told_apart_from_an_empty_list() {
        let hidden = "0000000000000000 T startup_64\n0000000000000000 t helper\n";
        assert!(matches!(KernelSymbols::read(hidden.as_bytes()), Err(KernelSymbolsError::Hidden)));
        assert!(matches!(KernelSymbols::read("".as_bytes()), Err(KernelSymbolsError::Empty)));
        assert!(matches!(KernelSymbols::read("0000000000000000 D data\n".as_bytes()), Err(KernelSymbolsError::Empty)));
    }

    #[test]
    fn damaged_lists_do_no_harm() {
        for list in ["\0\0\0", "ffffffff81000000", "ffffffff81000000 T", "\u{fffd} T x", "ffffffffffffffffff T x"] {
            assert!(KernelSymbols::read(list.as_bytes()).is_err(), "{list:?}");
        }
        assert!(KernelSymbols::read(&b"ffffffff81000000 T \xff\n"[..]).is_err());
    }
}
