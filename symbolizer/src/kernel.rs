//! Names of kernel functions, from `/proc/kallsyms` (proc(5)).

use std::io::{self, BufRead, BufReader, Read};

use crate::limits;

/// Why kernel symbols are not available.
#[derive(Debug, thiserror::Error)]
pub enum KernelSymbolsError {
    /// Reading failed.
    #[error("cannot read kernel symbols: {0}")]
    Io(#[from] io::Error),
    /// All addresses are zero: the kernel hides them from this user.
    #[error("the kernel hides its addresses (kernel.kptr_restrict; those with CAP_SYSLOG see them)")]
    Hidden,
    /// The list has no functions at all.
    #[error("no kernel functions are listed")]
    Empty,
}

/// A function longer than this is none: what lies beyond has no name (a program of BPF's, say, between two modules).
const MAX_FUNCTION_BYTES: u64 = 1 << 20;
/// In place of a name: here begins what is no function.
const NO_FUNCTION: u32 = u32::MAX;

/// The functions of the running kernel and its modules, sorted by address.
#[derive(Debug)]
pub struct KernelSymbols {
    /// Address, and where the name is in `text`, or [`NO_FUNCTION`].
    symbols: Vec<(u64, u32)>,
    /// Names and modules, as `name\0module\0`.
    text: Vec<u8>,
}

/// A kernel function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelFunction<'a> {
    /// Its name.
    pub name: &'a str,
    /// The module it belongs to; `None` for the kernel proper.
    pub module: Option<&'a str>,
    /// Its address.
    pub start: u64,
}

impl KernelSymbols {
    /// Reads a list in the format of `/proc/kallsyms`: address, type letter, name, and the module in brackets.
    ///
    /// Lines that are not in this format are skipped. At most [`limits::MAX_KALLSYMS`] bytes are read.
    ///
    /// # Errors
    ///
    /// [`KernelSymbolsError::Hidden`] where all addresses are zero (`kptr_restrict`, or no CAP_SYSLOG).
    pub fn read(source: impl Read) -> Result<KernelSymbols, KernelSymbolsError> {
        let mut reader = BufReader::with_capacity(64 << 10, source.take(limits::MAX_KALLSYMS));
        let mut found: Vec<(u64, Kind, u32)> = Vec::new();
        let mut text = Vec::new();
        let mut hidden = false;
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            match parse_line(&line) {
                Some(Line { address: 0, kind: Kind::Global | Kind::Local, .. }) => hidden = true,
                Some(Line { address: 0, .. }) | None => {}
                // A marker is of use only after a function. (The list is nearly in order of address.)
                Some(Line { address, kind: Kind::Other, .. }) => {
                    if found.last().is_some_and(|&(_, kind, _)| kind != Kind::Other) {
                        found.push((address, Kind::Other, NO_FUNCTION));
                    }
                }
                Some(Line { address, kind, name, module }) => {
                    let Some(at) = u32::try_from(text.len()).ok().filter(|&at| at != NO_FUNCTION) else { break };
                    text.extend_from_slice(name);
                    text.push(0);
                    text.extend_from_slice(module);
                    text.push(0);
                    found.push((address, kind, at));
                }
            }
            line.clear();
        }
        if found.is_empty() {
            return Err(if hidden { KernelSymbolsError::Hidden } else { KernelSymbolsError::Empty });
        }
        // Stable, so that aliases keep the order of the list after the global one.
        found.sort_by_key(|&(address, kind, _)| (address, kind));
        found.dedup_by_key(|&mut (address, _, _)| address);
        // As long as it is, and no longer: this is kept.
        let mut symbols: Vec<(u64, u32)> = Vec::with_capacity(found.len());
        symbols.extend(found.into_iter().map(|(address, _, at)| (address, at)));
        text.shrink_to_fit();
        Ok(KernelSymbols { symbols, text })
    }

    /// The function that contains `address`: the nearest one before it, as the list has no sizes. `None` below the
    /// first function, and after the last of a section.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<KernelFunction<'_>> {
        let after = self.symbols.partition_point(|&(start, _)| start <= address);
        let &(start, at) = self.symbols.get(after.checked_sub(1)?)?;
        if at == NO_FUNCTION || address - start > MAX_FUNCTION_BYTES {
            return None;
        }
        let mut parts = self.text.get(at as usize..)?.split(|&byte| byte == 0);
        let mut next = || std::str::from_utf8(parts.next().unwrap_or_default()).ok();
        let name = next()?;
        let module = next()?;
        Some(KernelFunction { name, module: (!module.is_empty()).then_some(module), start })
    }

    /// How many functions are listed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.iter().filter(|&&(_, at)| at != NO_FUNCTION).count()
    }

    /// Never true: [`KernelSymbols::read`] fails instead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

/// What a line is about; where several begin at one address, the first of these is the one to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Global,
    Local,
    /// Data, or the end of a section of code.
    Other,
}

struct Line<'a> {
    address: u64,
    kind: Kind,
    name: &'a [u8],
    module: &'a [u8],
}

fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut fields = line.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
    let address = hexadecimal(fields.next()?)?;
    let kind = match fields.next()? {
        b"t" => Kind::Local,
        b"T" | b"w" | b"W" => Kind::Global,
        _ => Kind::Other,
    };
    let name = fields.next().filter(|name| name.len() <= limits::MAX_LINKAGE_NAME && is_text(name))?;
    let kind = if matches!(name, b"_etext" | b"_einittext") { Kind::Other } else { kind };
    let module = fields.next().and_then(|field| field.strip_prefix(b"[")?.strip_suffix(b"]"));
    Some(Line { address, kind, name, module: module.filter(|module| is_text(module)).unwrap_or_default() })
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok() && !bytes.contains(&0)
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
        // No name at all rather than that of whatever comes before.
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
