//! Functions of the kernel that have one name: local functions of several files, and of one module.
//!
//! The list does not say which file a function is of. Of two functions of one name each is told by where it begins, which is
//! the same in every boot if it is counted from the beginning of the kernel, or of the module.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashMap};

use super::{KernelSymbols, NO_FUNCTION};
use crate::names;

/// What the names alone do not tell.
#[derive(Debug, Default)]
pub(super) struct Namesakes {
    /// Of functions whose name others have, and of their parts and clones: where the function begins, by where they do.
    definitions: HashMap<u64, u64>,
    /// The first function of each module.
    modules: HashMap<Box<str>, u64>,
}

/// Where a function may have namesakes: in the kernel proper, in what is freed after boot, or in a module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum KernelScope<'a> {
    Proper,
    Other,
    Module(&'a str),
}

impl Namesakes {
    pub(super) fn of(symbols: &KernelSymbols) -> Namesakes {
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
        let mut found = Namesakes::default();
        // Hashes alone: there are 150,000 names and more, few of them twice.
        let mut hashes: Vec<(u64, u32)> = Vec::with_capacity(symbols.symbols.len());
        for index in 0..symbols.symbols.len() as u32 {
            let Some((start, name, scope)) = function(index) else { continue };
            if let KernelScope::Module(module) = scope
                && !found.modules.contains_key(module)
            {
                found.modules.insert(module.into(), start);
            }
            hashes.push((hasher.hash_one((scope, names::without_suffixes(name))), index));
        }
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

    /// Where the function begins that begins at `start`, or of which a part or clone does; `None` where its name tells.
    pub(super) fn definition(&self, start: u64) -> Option<u64> {
        self.definitions.get(&start).copied()
    }

    /// Where a module begins.
    pub(super) fn module(&self, name: &str) -> Option<u64> {
        self.modules.get(name).copied()
    }
}

/// The functions that have one name but for suffixes: where each begins, in order, by its name with suffixes.
type Family<'a> = BTreeMap<&'a str, Vec<u64>>;

/// Whether they are several functions, and not the parts and clones of one.
fn is_several(family: &Family<'_>) -> bool {
    let twice = family.values().any(|starts| starts.len() > 1);
    let mut units: Vec<&str> = family.keys().map(|name| names::without_clone_suffixes(name)).collect();
    units.dedup();
    twice || units.len() > 1 && units.iter().any(|unit| names::is_of_unit(unit))
}

/// Finds of each which function it is, or is a part or clone of.
fn define(family: &Family<'_>, definitions: &mut HashMap<u64, u64>) {
    // A name comes after what it is with fewer suffixes.
    for (&name, starts) in family {
        let whole = std::iter::successors(names::without_clone_suffix(name), |&name| names::without_clone_suffix(name))
            .find_map(|shorter| family.get(shorter));
        for (nth, &start) in starts.iter().enumerate() {
            let of = whole.and_then(|whole| match name.rsplit_once(".cold") {
                // Cold parts are far away from all functions, in the order of these.
                Some((_, number)) if number.bytes().all(|byte| byte == b'.' || byte.is_ascii_digit()) => {
                    whole.get(nth).filter(|_| whole.len() == starts.len())
                }
                // Others are near.
                _ => whole.iter().min_by_key(|whole| whole.abs_diff(start)),
            });
            let definition = of.and_then(|of| definitions.get(of).copied()).unwrap_or(start);
            definitions.insert(start, definition);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Name, module, and in what a function begins: the offset of it, if its name does not tell.
    fn lookup(symbols: &KernelSymbols, address: u64) -> (&str, Option<&str>, u64, Option<u64>) {
        let found = symbols.lookup(address).unwrap();
        (found.name, found.module, found.offset, found.definition)
    }

    #[test]
    fn functions_of_one_name_are_told_apart_by_their_start() {
        let symbols = KernelSymbols::read(LIST.as_bytes()).unwrap();
        // The same kernel elsewhere, as with each boot.
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
