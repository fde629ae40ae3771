//! Names of the stubs that call functions of other images (the procedure linkage table).
//!
//! Stubs have no symbols. A relocation names the function of the slot that each jumps through (System V ABI for AMD64,
//! "Procedure Linkage Table"), or, for ifuncs of static programs, only the resolver's address (`R_X86_64_IRELATIVE`).

use std::ops::Range;
use std::sync::Arc;

use hashbrown::HashMap;
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::arch::{self, Relocation, StubTarget};
use crate::elf::{Section, string_at};
use crate::elf_file::ElfFile;
use crate::limits;
use crate::meter;
use crate::names;

#[derive(Debug, Default)]
pub(crate) struct Plt {
    sections: Vec<Range<u64>>,
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

#[derive(Debug, Clone, Copy)]
enum Callee {
    /// Position of its name in the image's string table.
    Named(u32),
    /// Address of the resolver that chooses the function.
    ChosenBy(u64),
}

/// The sections with stubs: classic, with branch tracking, for functions whose addresses are taken, and LLD's for
/// ifuncs.
const SECTIONS: [&[u8]; 4] = [b".plt", b".plt.sec", b".plt.got", b".iplt"];

impl Plt {
    /// Finds the sections; [`Plt::read_stubs`] reads the stubs when first needed.
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
            let size = arch::stub_size(section.entry_size, &code);
            let stubs = code.chunks(size.into()).zip((section.svma..).step_by(size.into()));
            let stubs = stubs.take_while(|_| meter::spend(4).is_ok()).take(limits::MAX_PLT_SLOTS);
            self.stubs.extend(stubs.filter_map(|(code, start)| {
                let callee = match arch::stub_target(code, start)? {
                    StubTarget::Slot(slot) => *slots.by_address.get(&slot)?,
                    StubTarget::Index(index) => (*slots.by_index.get(index)?)?,
                };
                Some(Stub { start, size, callee })
            }));
        }
        if meter::spend(meter::steps_of_sort(self.stubs.len())).is_err() {
            self.stubs.clear();
        }
        self.stubs.sort_unstable_by_key(|stub| stub.start);
        self.strings = slots.strings;
    }

    /// Start and name of the stub at `svma`. `chosen_by` names the function of the resolver at an address.
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

struct PltSlots {
    strings: Arc<[u8]>,
    by_address: HashMap<u64, Callee>,
    /// Functions in the order of `.rela.plt`.
    by_index: Vec<Option<Callee>>,
}

fn read_slots(image: &ElfFile) -> Option<PltSlots> {
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
    let mut slots = PltSlots { strings, by_address: HashMap::new(), by_index: Vec::new() };
    for name in [b".rela.plt".as_slice(), b".rela.iplt", b".rela.dyn"] {
        let Some(bytes) = image.section(name).and_then(read) else { continue };
        let count = bytes.len() / size_of::<elf::Rela64<LE>>();
        let Ok((relocations, _)) = pod::slice_from_bytes::<elf::Rela64<LE>>(&bytes, count) else { continue };
        for relocation in relocations.iter().take(limits::MAX_PLT_SLOTS) {
            if meter::spend(2).is_err() {
                return None;
            }
            let symbol = || symbols.get(relocation.r_sym(LE, false) as usize).map_or(0, |it| it.st_name.get(LE));
            let callee = match arch::relocation_of(relocation.r_type(LE, false)) {
                // The first name of every string table is empty.
                Some(Relocation::Function) => Some(symbol()).filter(|&name| name != 0).map(Callee::Named),
                Some(Relocation::Chosen) => u64::try_from(relocation.r_addend.get(LE)).ok().map(Callee::ChosenBy),
                None => None,
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
