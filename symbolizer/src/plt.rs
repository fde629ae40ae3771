//! Names of the stubs that call functions of other images (the procedure linkage table).
//!
//! Stubs have no symbols. Each jumps through a slot of the global offset table, and a relocation says which function
//! the slot is for (System V ABI for AMD64, "Procedure Linkage Table"). Of a function whose code is chosen when the program
//! starts (`STT_GNU_IFUNC`), it may say only where the function is that chooses (`R_X86_64_IRELATIVE`), as in static programs.

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::elf::{ElfFile, Section, string_at};
use crate::limits;
use crate::names;

/// The stubs of one image.
#[derive(Debug, Default)]
pub(crate) struct Plt {
    sections: Vec<Range<u64>>,
    /// Sorted by start.
    stubs: Vec<Stub>,
    strings: Arc<[u8]>,
    is_read: bool,
}

#[derive(Debug, Clone, Copy)]
struct Stub {
    start: u64,
    size: u8,
    callee: Callee,
}

/// The function that a stub leads to.
#[derive(Debug, Clone, Copy)]
enum Callee {
    /// Where its name is in the image's string table.
    Named(u32),
    /// The function that chooses it, by address.
    ChosenBy(u64),
}

/// The sections stubs are in: the classic one, the one used with indirect branch tracking, the one for
/// functions whose addresses are also taken, and LLD's for functions that are chosen when the program starts.
const SECTIONS: [&[u8]; 4] = [b".plt", b".plt.sec", b".plt.got", b".iplt"];

impl Plt {
    /// Only looks where the stubs are; they are read by [`Plt::read_stubs`] when the first address falls there.
    pub(crate) fn new(image: &ElfFile) -> Plt {
        let ranges = SECTIONS.iter().filter_map(|name| image.section(name)?.svma_range()).collect();
        Plt { sections: ranges, ..Plt::default() }
    }

    pub(crate) fn contains(&self, svma: u64) -> bool {
        self.sections.iter().any(|range| range.contains(&svma))
    }

    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    pub(crate) fn read_stubs(&mut self, image: &ElfFile) {
        self.is_read = true;
        let Some(slots) = read_slots(image) else { return };
        for name in SECTIONS {
            let Some(section) = image.section(name) else { continue };
            let Ok(code) = image.section_data(section, limits::MAX_SECTION_BYTES) else { continue };
            // 16 bytes on x86_64; 8 in `.plt.got` and, where linkers do not say so, in the `.plt` of static programs without
            // branch tracking: there the second jump begins behind the first.
            let is_short = section.entry_size == 8 || code.get(8..10).is_some_and(|second| second == [0xff, 0x25]);
            let size: u8 = if is_short { 8 } else { 16 };
            let stubs = code.chunks(size.into()).zip((section.svma..).step_by(size.into()));
            self.stubs.extend(stubs.filter_map(|(code, start)| {
                let callee = match target_of(code, start)? {
                    Target::Slot(slot) => *slots.by_address.get(&slot)?,
                    Target::Index(index) => (*slots.by_index.get(index)?)?,
                };
                Some(Stub { start, size, callee })
            }));
        }
        self.stubs.sort_unstable_by_key(|stub| stub.start);
        self.strings = slots.strings;
    }

    /// The stub at `svma`: its start and name. `chosen_by` names the function that the one at an address chooses.
    pub(crate) fn lookup<'a>(
        &'a self,
        svma: u64,
        chosen_by: impl FnOnce(u64) -> Option<&'a [u8]>,
    ) -> Option<(u64, String)> {
        let after = self.stubs.partition_point(|stub| stub.start <= svma);
        let &Stub { start, size, callee } = self.stubs.get(after.checked_sub(1)?)?;
        let name = match callee {
            Callee::Named(name) => string_at(&self.strings, name),
            Callee::ChosenBy(address) => chosen_by(address)?,
        };
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        (svma - start < size.into()).then(|| (start, format!("{name}{}", names::PLT_SUFFIX)))
    }
}

/// What a stub leads to.
enum Target {
    /// The address of the slot it jumps through.
    Slot(u64),
    /// The index into `.rela.plt` it pushes for the dynamic linker.
    Index(usize),
}

/// Reads the one or two instructions of a stub that say where it leads.
fn target_of(code: &[u8], start: u64) -> Option<Target> {
    const ENDBR64: &[u8] = &[0xf3, 0x0f, 0x1e, 0xfa];
    const BND: &[u8] = &[0xf2];
    let word = |bytes: &[u8]| -> Option<i32> { Some(i32::from_le_bytes(*bytes.first_chunk::<4>()?)) };
    let body = code.strip_prefix(ENDBR64).unwrap_or(code);
    let body = body.strip_prefix(BND).unwrap_or(body);
    if let Some(rest) = body.strip_prefix(&[0xff, 0x25]) {
        // jmp *displacement(%rip), relative to the end of the instruction.
        let end = code.len() - rest.len() + 4;
        let slot = start.checked_add(end as u64)?.checked_add_signed(i64::from(word(rest)?))?;
        return Some(Target::Slot(slot));
    }
    // push $index, then a jump to the first stub.
    let rest = body.strip_prefix(&[0x68])?;
    Some(Target::Index(usize::try_from(word(rest)?).ok()?))
}

/// The functions slots are for.
struct Slots {
    strings: Arc<[u8]>,
    by_address: HashMap<u64, Callee>,
    /// The same in the order of `.rela.plt`.
    by_index: Vec<Option<Callee>>,
}

fn read_slots(image: &ElfFile) -> Option<Slots> {
    let read = |section: &Section| image.section_data(section, limits::MAX_SECTION_BYTES).ok();
    // A static program has no dynamic symbols, and its slots name none.
    let section = image.sections().iter().find(|section| section.kind == elf::SHT_DYNSYM);
    let tables = section.and_then(|symbols| {
        let strings = image.sections().get(symbols.link as usize)?;
        Some((read(symbols)?, read(strings)?))
    });
    let (symbols, strings) = tables.unwrap_or_default();
    let count = symbols.len() / size_of::<elf::Sym64<LE>>();
    let (symbols, _) = pod::slice_from_bytes::<elf::Sym64<LE>>(&symbols, count).ok()?;
    let mut slots = Slots { strings, by_address: HashMap::new(), by_index: Vec::new() };
    for name in [b".rela.plt".as_slice(), b".rela.iplt", b".rela.dyn"] {
        let Some(bytes) = image.section(name).and_then(read) else { continue };
        let count = bytes.len() / size_of::<elf::Rela64<LE>>();
        let Ok((relocations, _)) = pod::slice_from_bytes::<elf::Rela64<LE>>(&bytes, count) else { continue };
        for relocation in relocations.iter().take(limits::MAX_PLT_SLOTS) {
            let symbol = || symbols.get(relocation.r_sym(LE, false) as usize).map_or(0, |it| it.st_name.get(LE));
            let callee = match relocation.r_type(LE, false) {
                // The first name of every string table is empty.
                elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                    Some(symbol()).filter(|&name| name != 0).map(Callee::Named)
                }
                elf::R_X86_64_IRELATIVE => u64::try_from(relocation.r_addend.get(LE)).ok().map(Callee::ChosenBy),
                _ => None,
            };
            if name == b".rela.plt" {
                slots.by_index.push(callee);
            }
            if let Some(callee) = callee {
                slots.by_address.insert(relocation.r_offset.get(LE), callee);
            }
        }
    }
    Some(slots)
}
