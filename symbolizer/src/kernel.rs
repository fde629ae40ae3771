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
    #[error("kernel addresses are hidden; run as root or set kernel.kptr_restrict to 0")]
    Hidden,
    /// The list has no functions at all.
    #[error("no kernel functions are listed")]
    Empty,
}

/// The functions of the running kernel and its modules, sorted by address.
#[derive(Debug)]
pub struct KernelSymbols {
    /// Address, and where the name is in `text`.
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
        let mut found: Vec<(u64, bool, u32)> = Vec::new();
        let mut text = Vec::new();
        let mut hidden = false;
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            if let Some((address, local, name, module)) = parse_line(&line) {
                hidden |= address == 0;
                if address != 0 {
                    let Ok(at) = u32::try_from(text.len()) else { break };
                    text.extend_from_slice(name.as_bytes());
                    text.push(0);
                    text.extend_from_slice(module.unwrap_or_default().as_bytes());
                    text.push(0);
                    found.push((address, local, at));
                }
            }
            line.clear();
        }
        if found.is_empty() {
            return Err(if hidden { KernelSymbolsError::Hidden } else { KernelSymbolsError::Empty });
        }
        // Stable, so that aliases keep the order of the list after the global one.
        found.sort_by_key(|&(address, local, _)| (address, local));
        found.dedup_by_key(|&mut (address, _, _)| address);
        let symbols = found.into_iter().map(|(address, _, at)| (address, at)).collect();
        text.shrink_to_fit();
        Ok(KernelSymbols { symbols, text })
    }

    /// The function that contains `address`: the nearest one before it, as the list has no sizes. `None` below the
    /// first function.
    #[must_use]
    pub fn lookup(&self, address: u64) -> Option<KernelFunction<'_>> {
        let after = self.symbols.partition_point(|&(start, _)| start <= address);
        let &(start, at) = self.symbols.get(after.checked_sub(1)?)?;
        let mut parts = self.text.get(at as usize..)?.split(|&byte| byte == 0);
        let mut next = || std::str::from_utf8(parts.next().unwrap_or_default()).ok();
        let name = next()?;
        let module = next()?;
        Some(KernelFunction { name, module: (!module.is_empty()).then_some(module), start })
    }

    /// How many functions are listed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.symbols.len()
    }

    /// Never true: [`KernelSymbols::read`] fails instead.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.symbols.is_empty()
    }
}

/// Address, whether local, name, module, of a line about code.
fn parse_line(line: &[u8]) -> Option<(u64, bool, &str, Option<&str>)> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.split_ascii_whitespace();
    let address = u64::from_str_radix(fields.next()?, 16).ok()?;
    let local = match fields.next()? {
        "t" => true,
        "T" | "w" | "W" => false,
        _ => return None,
    };
    let name = fields.next().filter(|name| name.len() <= limits::MAX_LINKAGE_NAME)?;
    let module = fields.next().and_then(|field| field.strip_prefix('[')?.strip_suffix(']'));
    Some((address, local, name, module))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
ffffffff81000000 T startup_64
ffffffff81000000 t startup_local
ffffffff81000000 T _stext
ffffffff81000100 t helper
ffffffff81000180 D some_data
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
        assert_eq!(lookup(0xffff_ffff_8100_0190), Some(("helper", None, 0xffff_ffff_8100_0100)));
        assert_eq!(lookup(0xffff_ffff_a000_1fff), Some(("ext4_read", Some("ext4"), 0xffff_ffff_a000_1000)));
        assert_eq!(lookup(u64::MAX), Some(("weak_one", Some("ext4"), 0xffff_ffff_a000_2000)));
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
