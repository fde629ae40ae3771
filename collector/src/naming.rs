//! Names for functions that had none when they were sampled, from debug files found later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{CostCentre, CostCentreId, Image, ImageId, Profile};
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, Symbols, limits};

/// The result of [`name_functions`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NamedLater {
    /// Functions that have got a name.
    pub functions: usize,
    /// Functions that have none still.
    pub nameless: usize,
    /// Names of images of which no debug file was found, or one that does not help.
    pub without: BTreeSet<String>,
}

/// Names the nameless functions of all images that have a build id. `find` opens the debug file of an image, or the
/// image
/// itself; only a file with the build id is used.
///
/// The function at the address is named, without inlining and lines: the profile has no addresses within functions.
pub fn name_functions(profile: &mut Profile, mut find: impl FnMut(&Image) -> Option<File>) -> NamedLater {
    let mut result = NamedLater::default();
    let mut asked: BTreeMap<ImageId, Vec<(CostCentreId, u64)>> = BTreeMap::new();
    for (number, it) in (0u32..).zip(profile.cost_centres()) {
        let id = CostCentreId::new(number);
        if it.linkage_name.is_none()
            && profile.real(id) == id
            && it.image != ImageId::CCSD
            && let Some(start) = it.start
        {
            asked.entry(it.image).or_default().push((id, start));
        }
    }
    let view = FlatView::new(profile, &Selection::all());
    let samples: BTreeMap<CostCentreId, u64> = view.rows.iter().map(|row| (row.function, row.samples_self)).collect();
    for (image_id, functions) in asked {
        let Some(image) = profile.image(image_id).cloned() else { continue };
        let file = (!image.build_id.is_empty()).then(|| find(&image)).flatten();
        let elf = file.and_then(|file| ElfFile::open(file).ok());
        let elf = elf.filter(|elf| elf.build_id() == Some(image.build_id.as_slice()));
        let addresses: Vec<u64> = functions.iter().map(|&(_, start)| start).collect();
        let answers = elf.map(|elf| resolve(elf, addresses)).unwrap_or_default();
        let before = result.functions;
        for (i, (id, _)) in functions.iter().enumerate() {
            let Some(Some(function)) = answers.get(i) else { continue };
            let named = profile.add_cost_centre(cost_centre(image_id, function));
            if profile.name_later(*id, named) {
                result.functions += 1;
                let samples = samples.get(id).copied().unwrap_or(0);
                let unsymbolised = &mut profile.accounting_mut().unsymbolised;
                *unsymbolised = unsymbolised.saturating_sub(samples);
            }
        }
        let nameless = functions.len() - (result.functions - before);
        result.nameless += nameless;
        if nameless > 0 {
            result.without.insert(image.name);
        }
    }
    result
}

fn cost_centre(image: ImageId, function: &Function) -> CostCentre {
    let text = |name: &Option<Arc<str>>| name.as_deref().map(str::to_owned);
    CostCentre {
        image,
        linkage_name: text(&function.linkage_name),
        display_name: text(&function.display_name),
        start: function.start,
        file: text(&function.decl_file),
        line: function.decl_line,
        local: function.local,
    }
}

/// The named functions at these addresses, outer ones, not those inlined there.
fn resolve(elf: ElfFile, addresses: Vec<u64>) -> Vec<Option<Function>> {
    let look = move || {
        let mut symbols = Symbols::new(Arc::new(elf), DebugFileFinder::system());
        let mut found = Vec::new();
        let outer = |address| {
            symbols.resolve(address, &mut found);
            found.pop().filter(|function| function.linkage_name.is_some())
        };
        addresses.into_iter().map(outer).collect()
    };
    // Debug information is nested as deeply as its writer likes.
    let thread = std::thread::Builder::new().stack_size(limits::MAX_DWARF_STACK + (1 << 20)).spawn(look);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}
