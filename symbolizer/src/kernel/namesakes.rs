//! Kernel functions that share a name, of several files or one module: distinguished by their offset from the start of
//! the kernel or module, the same in every boot.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::table::{KernelTable, NO_FUNCTION};
use crate::names;

#[derive(Debug, Default)]
pub(super) struct KernelNamesakes {
    /// For functions that share their name, and their parts and clones: the function's start by the part's.
    definitions: HashMap<u64, u64>,
    modules: HashMap<Box<str>, u64>,
}

/// Words of the bits that hashes of names are marked in: 2^21 bits, 256 KiB.
const HASH_WORDS: usize = 1 << 15;

/// Scope of unique names: the core kernel, code freed after boot, or a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum KernelScope<'a> {
    Proper,
    Other,
    Module(&'a str),
}

impl KernelNamesakes {
    pub(super) fn of(symbols: &KernelTable) -> KernelNamesakes {
        let hasher = DefaultHashBuilder::default();
        let function = |index: u32| {
            let &(start, at) = symbols.symbols.get(index as usize).filter(|&&(_, at)| at != NO_FUNCTION)?;
            let (name, module) = symbols.name_at(at)?;
            let scope = match module {
                Some(module) => KernelScope::Module(module),
                None if symbols.is_proper(start) => KernelScope::Proper,
                None => KernelScope::Other,
            };
            Some((start, name, scope))
        };
        let mut found = KernelNamesakes::default();
        // Hashes only: there are more than 150,000 names, and few duplicates. Only hashes that share a bit are sorted.
        let mut all: Vec<(u64, u32)> = Vec::with_capacity(symbols.symbols.len());
        let (mut once, mut twice) = (vec![0u64; HASH_WORDS], vec![0u64; HASH_WORDS]);
        let place = |hash: u64| ((hash >> 6) as usize % HASH_WORDS, 1u64 << (hash & 63));
        for index in 0..symbols.symbols.len() as u32 {
            let Some((start, name, scope)) = function(index) else { continue };
            if let KernelScope::Module(module) = scope
                && !found.modules.contains_key(module)
            {
                found.modules.insert(module.into(), start);
            }
            let hash = hasher.hash_one((scope, names::without_suffixes(name)));
            let (word, bit) = place(hash);
            twice[word] |= once[word] & bit;
            once[word] |= bit;
            all.push((hash, index));
        }
        let may_repeat = |&&(hash, _): &&(u64, u32)| {
            let (word, bit) = place(hash);
            twice[word] & bit != 0
        };
        let mut hashes: Vec<(u64, u32)> = all.iter().filter(may_repeat).copied().collect();
        hashes.sort_unstable();
        for group in hashes.chunk_by(|a, b| a.0 == b.0).filter(|group| group.len() > 1) {
            let mut families: BTreeMap<(KernelScope<'_>, &str), Family<'_>> = BTreeMap::new();
            for (start, name, scope) in group.iter().filter_map(|&(_, index)| function(index)) {
                let family = families.entry((scope, names::without_suffixes(name))).or_default();
                family.entry(name).or_default().push(start);
            }
            for family in families.values().filter(|family| is_several(family)) {
                define(family, &mut found.definitions);
            }
        }
        found
    }

    /// Start of the function that begins at `start` or has a part or clone there; `None` if its name is unique.
    pub(super) fn definition(&self, start: u64) -> Option<u64> {
        self.definitions.get(&start).copied()
    }

    pub(super) fn module(&self, name: &str) -> Option<u64> {
        self.modules.get(name).copied()
    }
}

/// Functions with the same name except for suffixes: ordered starts by name with suffixes.
type Family<'a> = BTreeMap<&'a str, Vec<u64>>;

/// Whether a family has several functions, and not just parts and clones of one.
fn is_several(family: &Family<'_>) -> bool {
    let twice = family.values().any(|starts| starts.len() > 1);
    let mut units: Vec<&str> = family.keys().map(|name| names::without_clone_suffixes(name)).collect();
    units.dedup();
    twice || units.len() > 1 && units.iter().any(|unit| names::is_of_unit(unit))
}

/// Determines for each entry of a family the function that it is, or is a part or clone of.
fn define(family: &Family<'_>, definitions: &mut HashMap<u64, u64>) {
    // A name is ordered after its forms with fewer suffixes.
    for (&name, starts) in family {
        let whole = std::iter::successors(names::without_clone_suffix(name), |&name| names::without_clone_suffix(name))
            .find_map(|shorter| family.get(shorter));
        for (nth, &start) in starts.iter().enumerate() {
            let of = whole.and_then(|whole| match name.rsplit_once(".cold") {
                // Cold parts are far from all functions, in the same order as the functions.
                Some((_, number)) if number.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()) => {
                    whole.get(nth).filter(|_| whole.len() == starts.len())
                }
                // Other parts are near.
                _ => whole.iter().min_by_key(|whole| whole.abs_diff(start)),
            });
            let definition = of.and_then(|of| definitions.get(of).copied()).unwrap_or(start);
            definitions.insert(start, definition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::KernelSymbols;

    const LIST: &str = "\
ffffffff81000000 T _stext
ffffffff81000100 t once
ffffffff81000200 t reset
ffffffff81000300 t reset.isra.0
ffffffff81000400 t show
ffffffff81000500 t once.part.0
ffffffff81001000 t reset
ffffffff81001100 t clone.constprop.0
ffffffff81001200 t clone.isra.0
ffffffff81001300 t twice.isra.0
ffffffff81001400 t twice.isra.0
ffffffff81001500 t walk.llvm.1
ffffffff81001600 t walk.llvm.2
ffffffff81001680 t walk.llvm.2.cold
ffffffff81001800 t once.cold
ffffffff81001900 t reset.cold
ffffffff81001a00 t reset.cold
ffffffff81001b00 t reset.isra.0.cold
ffffffff81002000 T _etext
ffffffff81003000 t once
ffffffffa0001000 t show\t[ext4]
ffffffffa0001100 t ext4_read\t[ext4]
ffffffffa0001200 t show\t[ext4]
ffffffffa0002000 t show\t[xfs]
";

    fn lookup(symbols: &KernelSymbols, address: u64) -> (&str, Option<&str>, u64, Option<u64>) {
        let found = symbols.lookup(address).unwrap();
        (found.name, found.module, found.offset, found.definition)
    }

    #[test]
    fn functions_of_one_name_are_told_apart_by_their_start() {
        let symbols = KernelSymbols::read(LIST.as_bytes()).unwrap();
        // The same kernel at other addresses, as after each boot.
        let moved = LIST.replace("ffffffff810", "ffffffff9a0").replace("ffffffffa000", "ffffffffc0de");
        let moved = KernelSymbols::read(moved.as_bytes()).unwrap();
        for (offset, name, definition) in [
            (0x100, "once", None),
            (0x510, "once", None),
            (0x1800, "once", None),
            (0x210, "reset", Some(0x200)),
            (0x300, "reset", Some(0x200)),
            (0x1000, "reset", Some(0x1000)),
            (0x1900, "reset", Some(0x200)),
            (0x1a00, "reset", Some(0x1000)),
            (0x1b00, "reset", Some(0x200)),
            (0x1100, "clone", None),
            (0x1200, "clone", None),
            (0x1300, "twice", Some(0x1300)),
            (0x1400, "twice", Some(0x1400)),
            (0x1500, "walk", Some(0x1500)),
            (0x1600, "walk", Some(0x1600)),
            (0x1680, "walk", Some(0x1600)),
            (0x400, "show", None),
            (0x3000, "once", None),
        ] {
            let expected = (name, None, offset & !0xff | offset & 0x80, definition);
            assert_eq!(lookup(&symbols, 0xffff_ffff_8100_0000 + offset), expected);
            assert_eq!(lookup(&moved, 0xffff_ffff_9a00_0000 + offset), expected);
        }
        for (address, module, offset, definition) in
            [(0x1000, "ext4", 0, Some(0)), (0x1210, "ext4", 0x200, Some(0x200)), (0x2000, "xfs", 0, None)]
        {
            let expected = ("show", Some(module), offset, definition);
            assert_eq!(lookup(&symbols, 0xffff_ffff_a000_0000 + address), expected);
            assert_eq!(lookup(&moved, 0xffff_ffff_c0de_0000 + address), expected);
        }
    }
}
