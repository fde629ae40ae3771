//! Names for functions that had none when they were sampled, and lines for those that stripped libraries export, from debug
//! files found later.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;

use ccsd_profile::{CostCentre, CostCentreId, Image, ImageId, LaterNames, NamedSite, Profile};
use ccsd_symbolizer::{DebugFileFinder, ElfFile, Function, ImageError, Symbols, limits};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::function_names::cost_centre;

/// The result of [`find_names`]. `E` says why no debug file of an image was found.
#[derive(Debug)]
pub struct NamedLater<E> {
    /// Functions that have got a name.
    pub functions: usize,
    /// Functions that had a name and have got lines.
    pub with_lines: usize,
    /// Places in functions whose inlined functions and lines were left out, because there were too many.
    pub left_out: u64,
    /// Images with functions that have no name, or no lines, still.
    pub nameless: Vec<NamelessImage<E>>,
}

/// An image with functions that have no name, or no lines, still.
#[derive(Debug)]
pub struct NamelessImage<E> {
    /// The image's name.
    pub image: String,
    /// How many of its functions have no name.
    pub functions: usize,
    /// How many of its functions have a name and no lines, where debug information that was not read may have them.
    pub without_lines: usize,
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

/// Finds names for the functions without names of all images that have a build id, and the functions that were inlined and
/// the lines at the offsets that the profile keeps. `find` opens the debug file of an image, or the image itself with its
/// symbols; only a file with the image's build id is used.
pub fn find_names<E>(
    profile: &Profile,
    mut find: impl FnMut(&Image) -> Result<File, E>,
) -> (LaterNames, NamedLater<E>) {
    let (mut names, mut nameless) = (LaterNames::default(), Vec::new());
    let mut by_image: BTreeMap<ImageId, Vec<AddressQuestion>> = BTreeMap::new();
    for (id, offsets) in profile.stripped_functions() {
        let Some((image, question)) = question(profile, id, offsets) else { continue };
        by_image.entry(image).or_default().push(question);
    }
    let (mut functions, mut with_lines) = (0, 0);
    for (image_id, asked) in by_image {
        let Some(image) = profile.image(image_id).cloned() else { continue };
        let elf = find(&image).map_err(WhyNameless::NotFound);
        let elf = elf.and_then(|file| ElfFile::open(file).map_err(WhyNameless::Unreadable));
        let is_same_build = |elf: &ElfFile| elf.build_id() == Some(image.build_id.as_slice());
        let elf = elf.and_then(|elf| if is_same_build(&elf) { Ok(elf) } else { Err(WhyNameless::OtherBuild) });
        let nameless_before = asked.iter().filter(|asked| asked.name.is_none()).count();
        let named_before = asked.len() - nameless_before;
        let (of_image, why) = match elf {
            Ok(elf) => {
                let (names, problem) = resolve(elf, image_id, asked);
                (names, WhyNameless::NotInFile { problem })
            }
            Err(why) => (NamesOfImage::default(), why),
        };
        functions += of_image.functions;
        with_lines += of_image.with_lines;
        names.extend(of_image.names);
        let without_lines = match why {
            // Its assembly, for example.
            WhyNameless::NotInFile { problem: None } => 0,
            _ => named_before.saturating_sub(of_image.with_lines),
        };
        let still = nameless_before.saturating_sub(of_image.functions);
        if still > 0 || without_lines > 0 {
            nameless.push(NamelessImage { image: image.name, functions: still, without_lines, why });
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
        without_lines: 0,
        why: WhyNameless::NoBuildId,
    }));
    let named = NamedLater { functions, with_lines, left_out: names.left_out(), nameless };
    (names, named)
}

/// A function of a stripped image.
struct AddressQuestion {
    id: CostCentreId,
    start: u64,
    name: Option<String>,
    offsets: BTreeSet<u32>,
}

fn question(profile: &Profile, id: CostCentreId, offsets: BTreeSet<u32>) -> Option<(ImageId, AddressQuestion)> {
    let CostCentre { image, linkage_name, start, .. } = profile.cost_centre(id)?;
    Some((*image, AddressQuestion { id, start: (*start)?, name: linkage_name.clone(), offsets }))
}

/// Functions of an image as its debug information has them.
#[derive(Default)]
struct NamesOfImage {
    names: LaterNames,
    functions: usize,
    with_lines: usize,
}

/// Stack of a thread that looks for names: debug information is nested as deeply as its writer likes.
pub const NAMING_STACK_BYTES: usize = limits::MAX_DWARF_STACK + (1 << 20);

/// The names of these functions of an image, and what could not be read of its debug file.
fn resolve(elf: ElfFile, image: ImageId, asked: Vec<AddressQuestion>) -> (NamesOfImage, Option<String>) {
    let look = move || {
        let mut symbols = Symbols::new(Arc::new(elf), DebugFileFinder::system());
        let mut names = NamesOfImage::default();
        for asked in asked {
            let had_name = asked.name.is_some();
            let is_told = look_up(&mut symbols, image, asked, &mut names.names);
            *(if had_name { &mut names.with_lines } else { &mut names.functions }) += usize::from(is_told);
        }
        (names, symbols.notes().first().cloned())
    };
    let thread = std::thread::Builder::new().stack_size(NAMING_STACK_BYTES).spawn(look);
    // Whatever ends the thread early leaves the functions without names.
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Adds the name of a function, if it has one, and the functions at its offsets. Returns whether there is anything new: of a
/// function that has a name, lines. Such a function keeps its name, so that an offset where another function is called so
/// gets none.
fn look_up(symbols: &mut Symbols, image: ImageId, asked: AddressQuestion, names: &mut LaterNames) -> bool {
    let AddressQuestion { id, start, name: known, offsets } = asked;
    let mut found = Vec::new();
    let mut named = |address| {
        symbols.resolve(address, &mut found);
        let name = found.last().and_then(|outer| outer.linkage_name.as_deref());
        let is_it = name.is_some_and(|name| known.as_deref().is_none_or(|known| known == name));
        if is_it { std::mem::take(&mut found) } else { Vec::new() }
    };
    let Some(function) = named(start).pop() else { return false };
    let mut is_new = known.is_none();
    let mut sites = Vec::new();
    for offset in offsets {
        let Some(address) = start.checked_add(u64::from(offset)) else { continue };
        let at = named(address);
        is_new |= at.iter().any(|function| function.file.is_some());
        sites.push((offset, at));
    }
    if !is_new {
        return false;
    }
    names.name(id, cost_centre(image, &function));
    let site = |function: &Function| NamedSite {
        function: cost_centre(image, function),
        file: function.file.clone().unwrap_or_default(),
        line: function.line,
    };
    for (offset, functions) in sites {
        names.add_site(id, offset, functions.iter().rev().map(site).collect());
    }
    true
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
        for (id, offsets) in profile.stripped_functions() {
            let Some((image_id, asked)) = question(profile, id, offsets) else { continue };
            let Some(image) = profile.image(image_id) else { continue };
            let is_new = !self.asked.contains_key(&id);
            let before = self.asked.entry(id).or_default();
            let offsets: BTreeSet<u32> = asked.offsets.into_iter().filter(|offset| before.insert(*offset)).collect();
            if !is_new && offsets.is_empty() {
                continue;
            }
            let symbols = self.images.entry(image_id).or_insert_with(|| {
                let elf = ElfFile::open((self.find)(image)?).ok()?;
                let is_it = elf.build_id() == Some(image.build_id.as_slice());
                is_it.then(|| Symbols::new(Arc::new(elf), DebugFileFinder::system()))
            });
            if let Some(symbols) = symbols {
                look_up(symbols, image_id, AddressQuestion { offsets, ..asked }, &mut names);
            }
        }
        names
    }
}
