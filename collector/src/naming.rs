//! Names for functions that had none when they were sampled, from debug files found later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use ccsd_profile::{CostCentre, CostCentreId, Image, ImageId, LaterNames, NamedSite, Profile};
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, ImageError, Symbols, limits};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

/// The result of [`find_names`]. `E` says why no debug file of an image was found.
#[derive(Debug)]
pub struct NamedLater<E> {
    /// Functions that have got a name.
    pub functions: usize,
    /// Places in functions that have got a name whose inlined functions and lines were left out, because there were too many.
    pub left_out: u64,
    /// Images with functions that have no name still.
    pub nameless: Vec<NamelessImage<E>>,
}

/// An image with functions that have no name still.
#[derive(Debug)]
pub struct NamelessImage<E> {
    /// The image's name.
    pub image: String,
    /// How many of its functions have none.
    pub functions: usize,
    /// Why.
    pub why: WhyNameless<E>,
}

/// Why functions of an image have no name still.
#[derive(Debug)]
pub enum WhyNameless<E> {
    /// The image has no build id, by which its debug file would be known.
    NoBuildId,
    /// No debug file was found.
    NotFound(E),
    /// The debug file cannot be read.
    Unreadable(ImageError),
    /// The debug file has another build id.
    OtherBuild,
    /// The debug file was read as far as it can be, and has no name for them.
    NotInFile {
        /// What could not be read of it.
        problem: Option<String>,
    },
}

/// Finds names for the functions without names of all images that have a build id, with the functions that were inlined and
/// the lines at the offsets that the profile keeps. `find` opens the debug file of an image, or the image itself with its
/// symbols; only a file with the image's build id is used.
pub fn find_names<E>(
    profile: &Profile,
    mut find: impl FnMut(&Image) -> Result<File, E>,
) -> (LaterNames, NamedLater<E>) {
    let (mut names, mut nameless) = (LaterNames::default(), Vec::new());
    let mut by_image: BTreeMap<ImageId, Vec<AddressQuestion>> = BTreeMap::new();
    for (id, offsets) in profile.unnamed_functions() {
        let Some((image, start)) = profile.cost_centre(id).and_then(|it| Some((it.image, it.start?))) else { continue };
        by_image.entry(image).or_default().push(AddressQuestion { id, start, offsets });
    }
    for (image_id, asked) in by_image {
        let Some(image) = profile.image(image_id).cloned() else { continue };
        let elf = find(&image).map_err(WhyNameless::NotFound);
        let elf = elf.and_then(|file| ElfFile::open(file).map_err(WhyNameless::Unreadable));
        let is_same_build = |elf: &ElfFile| elf.build_id() == Some(image.build_id.as_slice());
        let elf = elf.and_then(|elf| if is_same_build(&elf) { Ok(elf) } else { Err(WhyNameless::OtherBuild) });
        let count = asked.len();
        let (of_image, why) = match elf {
            Ok(elf) => {
                let (names, problem) = resolve(elf, image_id, asked);
                (names, WhyNameless::NotInFile { problem })
            }
            Err(why) => (LaterNames::default(), why),
        };
        let functions = count.saturating_sub(of_image.len());
        names.extend(of_image);
        if functions > 0 {
            nameless.push(NamelessImage { image: image.name, functions, why });
        }
    }
    let mut without_build_id: BTreeMap<&str, usize> = BTreeMap::new();
    let is_nameless = |it: &&CostCentre| it.linkage_name.is_none() && it.start.is_some();
    for it in profile.cost_centres().iter().filter(is_nameless) {
        if let Some(image) = profile.image(it.image).filter(|image| image.build_id.is_empty()) {
            *without_build_id.entry(&image.name).or_default() += 1;
        }
    }
    nameless.extend(without_build_id.into_iter().map(|(image, functions)| NamelessImage {
        image: image.to_owned(),
        functions,
        why: WhyNameless::NoBuildId,
    }));
    let named = NamedLater { functions: names.len(), left_out: names.left_out(), nameless };
    (names, named)
}

/// A function without a name.
struct AddressQuestion {
    id: CostCentreId,
    start: u64,
    offsets: BTreeSet<u32>,
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

/// Stack of a thread that looks for names: debug information is nested as deeply as its writer likes.
pub const NAMING_STACK_BYTES: usize = limits::MAX_DWARF_STACK + (1 << 20);

/// The names of these functions of an image, and what could not be read of its debug file.
fn resolve(elf: ElfFile, image: ImageId, asked: Vec<AddressQuestion>) -> (LaterNames, Option<String>) {
    let look = move || {
        let mut symbols = Symbols::new(Arc::new(elf), DebugFileFinder::system());
        let mut names = LaterNames::default();
        asked.into_iter().for_each(|asked| look_up(&mut symbols, image, asked, &mut names));
        (names, symbols.notes().first().cloned())
    };
    let thread = std::thread::Builder::new().stack_size(NAMING_STACK_BYTES).spawn(look);
    // Whatever ends the thread early leaves the functions without names.
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Adds the name of a function, if it has one, and the functions at its offsets.
fn look_up(symbols: &mut Symbols, image: ImageId, asked: AddressQuestion, names: &mut LaterNames) {
    let mut found = Vec::new();
    let mut named = |address| {
        symbols.resolve(address, &mut found);
        let is_named = found.last().is_some_and(|outer| outer.linkage_name.is_some());
        if is_named { std::mem::take(&mut found) } else { Vec::new() }
    };
    let AddressQuestion { id, start, offsets } = asked;
    let Some(function) = named(start).pop() else { return };
    names.name(id, cost_centre(image, &function));
    for offset in offsets {
        let Some(address) = start.checked_add(u64::from(offset)) else { continue };
        let site = |function: &Function| NamedSite {
            function: cost_centre(image, function),
            file: function.file.clone().unwrap_or_default(),
            line: function.line,
        };
        names.add_site(id, offset, named(address).iter().rev().map(site).collect());
    }
}

/// Finds names for a profile that grows. Looks for each function and offset once, and keeps images open. The thread needs
/// [`NAMING_STACK_BYTES`] of stack.
pub struct NameFinder<F> {
    find: F,
    images: HashMap<ImageId, Option<Symbols>, FxBuildHasher>,
    asked: HashMap<CostCentreId, BTreeSet<u32>, FxBuildHasher>,
}

impl<F: FnMut(&Image) -> Option<File>> NameFinder<F> {
    /// A finder for one profile; `find` as in [`find_names`].
    pub fn new(find: F) -> NameFinder<F> {
        NameFinder { find, images: HashMap::default(), asked: HashMap::default() }
    }

    /// The names of functions, and the functions at offsets, that the profile has for the first time.
    pub fn find_new(&mut self, profile: &Profile) -> LaterNames {
        let mut names = LaterNames::default();
        for (id, offsets) in profile.unnamed_functions() {
            let Some(centre) = profile.cost_centre(id) else { continue };
            let (Some(start), Some(image)) = (centre.start, profile.image(centre.image)) else { continue };
            let is_new = !self.asked.contains_key(&id);
            let asked = self.asked.entry(id).or_default();
            let offsets: BTreeSet<u32> = offsets.into_iter().filter(|offset| asked.insert(*offset)).collect();
            if !is_new && offsets.is_empty() {
                continue;
            }
            let symbols = self.images.entry(centre.image).or_insert_with(|| {
                let elf = ElfFile::open((self.find)(image)?).ok()?;
                let is_it = elf.build_id() == Some(image.build_id.as_slice());
                is_it.then(|| Symbols::new(Arc::new(elf), DebugFileFinder::system()))
            });
            if let Some(symbols) = symbols {
                look_up(symbols, centre.image, AddressQuestion { id, start, offsets }, &mut names);
            }
        }
        names
    }
}
