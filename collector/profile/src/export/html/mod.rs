//! One HTML file that needs nothing else: flame graph, functions, callers and callees, hot path, source and timeline of
//! one profile or of two, with filters.
//!
//! Names come into the page as JSON in an element that is not executed, with `<`, `>` and `&` escaped, and from there
//! only as text, never as markup; a content security policy forbids every request.

mod cells;
mod packed;
mod stacks;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use hashbrown::{HashMap, HashSet};
use serde::Serialize;

use super::package::{PackageKind, script_package};
use super::palette::{ColourPair, Palette};
use super::request::{Export, unit_name};
use super::source::SourceExcerpt;
use crate::ids::CostCentreId;
use crate::model::CostCentre;
use crate::name::image_file_name;
use crate::numbers::count;
use crate::origin::is_generated;
use crate::profile::Profile;
use crate::text::sanitise;
use crate::view::{DiffFunction, DiffTree, DiffView, Matching, TreeView};

use cells::{Cells, PackedCells};
use packed::{pack, pack_ascending};
use stacks::Stacks;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// In the order in which they need each other.
const SCRIPTS: [&str; 14] = [
    include_str!("packed.js"),
    include_str!("patterns.js"),
    include_str!("model.js"),
    include_str!("palette.js"),
    include_str!("address.js"),
    include_str!("search.js"),
    include_str!("flame.js"),
    include_str!("overview.js"),
    include_str!("rows.js"),
    include_str!("sandwich.js"),
    include_str!("graph.js"),
    include_str!("times.js"),
    include_str!("source.js"),
    include_str!("page.js"),
];
/// A timeline with more columns is made coarser before source, threads and stacks are reduced.
const FEWEST_COLUMNS: usize = 20;
/// Divisor of the size: threads that take more than this part are left out before stacks are summed up.
const LARGEST_PART_OF_THREADS: usize = 3;
const THREADS_LEFT_OUT: &str = "threads are left out for the size of this file; --max-size allows more";

/// Functions that the page knows by number: these are 0 and 1 in every page.
const FIXED: [&str; 2] = ["[elided]", "[root]"];
const PRUNED: &str = "[pruned]";
const OWN_IMAGE: &str = "[ccsd]";

struct Contents<'a> {
    title: String,
    facts: String,
    remarks: Vec<String>,
    /// Metrics; or the profile after and the one before.
    layers: Vec<LayerName>,
    is_difference: bool,
    stacks: Stacks,
    /// Columns of time that the export has; the page may have fewer.
    all_columns: usize,
    cells: Cells,
    describe: Box<dyn Fn(u32) -> FunctionText + 'a>,
    /// Empty in a difference, where colours say what changed.
    palette: Palette,
    fixed: [Option<u32>; 2],
    startup: Vec<u32>,
    sources: Vec<PageSource<'a>>,
    /// Functions whose change of the share of self and of total time, and of the weights, chance hardly explains.
    significant: [HashSet<u32>; 4],
    max_bytes: usize,
}

struct PageSource<'a> {
    function: u32,
    excerpt: &'a SourceExcerpt,
    layer: usize,
    /// Both profiles of a difference have the same program, so that a line is the same line in both.
    is_same_program: bool,
}

#[derive(Clone, Serialize)]
struct LayerName {
    name: String,
    unit: &'static str,
}

struct FunctionText {
    name: String,
    /// As the profile has it, if that is another.
    full_name: Option<String>,
    image: String,
    path: String,
    /// Of a script's function, which has no image.
    module: Option<String>,
    file: Option<String>,
    line: u32,
}

#[derive(Serialize)]
#[serde(untagged)]
enum FullName {
    Text(String),
    /// Length of the full name in UTF-16 units. The name in the page begins with it and ends with a distinguishing part.
    Beginning(usize),
}

impl FullName {
    fn of(full: String, shown: &str) -> Self {
        if shown.starts_with(&full) { Self::Beginning(full.encode_utf16().count()) } else { Self::Text(full) }
    }
}

/// See `packed.js` and `model.js`, which read it. Lists of numbers are packed.
#[derive(Serialize)]
struct Data<'a> {
    facts: &'a str,
    remarks: Vec<String>,
    layers: &'a [LayerName],
    difference: bool,
    images: Vec<(String, String)>,
    files: Vec<String>,
    /// Name, image, file of the declaration or -1, its line.
    functions: Vec<(String, usize, i64, u32)>,
    /// Names as the profile has them, by number of the function, where the page shows others.
    full_names: BTreeMap<u32, FullName>,
    /// Packages of functions of scripts, by number of the function.
    modules: BTreeMap<u32, String>,
    palette: PackedPalette<'a>,
    /// The functions that only start the program or its threads: the page folds them until it is asked for them.
    startup: Vec<u32>,
    /// How deep each node of the tree of stacks is: it is called by the nearest one before it that is less deep.
    depths: String,
    /// Its function * 2, + 1 if the entry is marked.
    entries: String,
    /// The nodes that their parent may not have called: recursion was squeezed out between the two.
    gaps: String,
    /// The nodes whose call by their parent may be another in part, because functions are hidden or merged.
    unsure: String,
    cells: PackedCells,
    sources: Vec<FunctionSource<'a>>,
    significant: [Vec<u32>; 4],
}

#[derive(Serialize)]
struct PackedPalette<'a> {
    tones: Vec<[String; 2]>,
    packages: Vec<PackedPackage<'a>>,
    /// For each function: number of its package + 1, of its tone, and of the tone in its package; zeros if it has none.
    functions: String,
}

#[derive(Serialize)]
struct PackedPackage<'a> {
    name: Cow<'a, str>,
    kind: PackageKind,
    tones: Vec<usize>,
}

impl<'a> PackedPalette<'a> {
    /// Of functions by their numbers in the page; `ids` are those in the profile.
    fn of(palette: &'a Palette, ids: &[Option<u32>]) -> Self {
        let mut known: HashMap<ColourPair, usize> = HashMap::new();
        let mut tones = Vec::new();
        let mut number = |tone: ColourPair| {
            *known.entry(tone).or_insert_with(|| {
                tones.push([tone.light.hex(), tone.dark.hex()]);
                tones.len() - 1
            })
        };
        let packages = palette.packages.iter().map(|it| PackedPackage {
            name: sanitise(&it.name),
            kind: it.kind,
            tones: it.tones.iter().map(|&tone| number(tone)).collect(),
        });
        let packages: Vec<PackedPackage<'_>> = packages.collect();
        let shades = ids.iter().flat_map(|id| {
            let known = id.and_then(|id| palette.get(CostCentreId::new(id)));
            known.map_or([0; 3], |it| [it.package as u64 + 1, number(it.tone) as u64, it.hue as u64])
        });
        let functions = pack(shades.collect::<Vec<u64>>());
        Self { tones, packages, functions }
    }
}

#[derive(Serialize)]
struct FunctionSource<'a> {
    function: u32,
    layer: usize,
    same: bool,
    files: Vec<PageSourceFile<'a>>,
}

#[derive(Serialize)]
struct PageSourceFile<'a> {
    path: Cow<'a, str>,
    remarks: &'a [String],
    /// Number, self and inherited weight, text.
    lines: Vec<(u32, u64, u64, Option<&'a str>)>,
}

pub(super) fn write(export: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let exports: Vec<&Export<'_>> = std::iter::once(export).chain(export.other_metrics).collect();
    let trees: Vec<TreeView> = exports.iter().map(|it| TreeView::new(it.profile, it.selection)).collect();
    let mut stacks = Stacks::default();
    trees.iter().for_each(|tree| stacks.add_tree(tree));
    let cells = Cells::from_metrics(&exports, &mut stacks);
    let profile = export.profile;
    let samples = trees.first().map_or(0, |tree| tree.total.samples);
    let labels = profile.labels();
    let describe = move |number: u32| {
        let id = CostCentreId::new(number);
        let centre = profile.cost_centre(id);
        let path = centre.and_then(|it| profile.image(it.image)).map_or("", |image| image.name.as_str());
        let (name, full_name) = (sanitise(&labels.label(id)).into_owned(), sanitise(&profile.name(id)).into_owned());
        FunctionText {
            full_name: (full_name != name).then_some(full_name),
            name,
            image: sanitise(&profile.image_name(id)).into_owned(),
            path: sanitise(path).into_owned(),
            module: script_module(&profile.image_name(id), &profile.name(id)),
            file: centre.and_then(|it| it.file.as_deref()).map(|it| sanitise(it).into_owned()),
            line: centre.map_or(0, |it| it.line),
        }
    };
    let contents = Contents {
        title: export.title(),
        facts: facts(export, samples),
        remarks: export.remarks(),
        layers: exports.iter().map(|it| layer(it, None)).collect(),
        is_difference: false,
        stacks,
        all_columns: export.timeline.columns().len(),
        cells,
        describe: Box::new(describe),
        palette: trees.first().map_or_else(Palette::default, |tree| Palette::of(profile, tree)),
        fixed: [Some(CostCentreId::ELIDED.0), Some(CostCentreId::ROOT.0)],
        startup: profile.startup_functions().iter().map(|id| id.0).collect(),
        sources: export
            .sources
            .iter()
            .map(|excerpt| PageSource { function: excerpt.function.0, excerpt, layer: 0, is_same_program: false })
            .collect(),
        significant: Default::default(),
        max_bytes: export.max_bytes,
    };
    contents.write(out)
}

pub(super) fn write_difference(before: &Export<'_>, after: &Export<'_>, out: &mut impl Write) -> io::Result<()> {
    let (was, is) = ((before.profile, before.selection), (after.profile, after.selection));
    let tree = DiffTree::new(was, is, 0.0);
    let matching = Matching::of([before.profile, after.profile]);
    let numbers: HashMap<&DiffFunction, u32> = tree.functions.iter().zip(0..).collect();
    let number = |profile: &Profile, id| numbers.get(&matching.function(profile, id)).copied();
    let mut declared: HashMap<u32, (Option<String>, u32, String)> = HashMap::new();
    for profile in [before.profile, after.profile] {
        for (id, centre) in (0..).map(CostCentreId::new).zip(profile.cost_centres()) {
            let path = profile.image(centre.image).map_or("", |image| image.name.as_str());
            if let Some(number) = number(profile, id) {
                declared.insert(number, (centre.file.clone(), centre.line, path.to_owned()));
            }
        }
    }
    // Shown in both if they are in either.
    let startup = [before.profile, after.profile].into_iter().flat_map(|profile| {
        let functions = profile.startup_functions().into_iter();
        functions.filter_map(|id| number(profile, id)).collect::<Vec<_>>()
    });
    let rows = DiffView::new(was, is).rows;
    let significant = |is_significant: fn(&crate::view::DiffRow) -> bool| {
        rows.iter().filter(|row| is_significant(row)).filter_map(|row| numbers.get(&row.function).copied()).collect()
    };
    let describe = |number: u32| {
        let function = tree.functions.get(number as usize);
        let (file, line, path) = declared.get(&number).cloned().unwrap_or_default();
        let name = tree.labels.get(number as usize).map_or("[unknown]", String::as_str);
        let (name, full) = (sanitise(name).into_owned(), function.map(|it| sanitise(&it.name).into_owned()));
        FunctionText {
            full_name: full.filter(|full| *full != name),
            name,
            image: sanitise(function.map_or("", |it| &it.image)).into_owned(),
            path: sanitise(&path).into_owned(),
            module: function.and_then(|it| script_module(&it.image, &it.name)),
            file: file.map(|file| sanitise(&file).into_owned()),
            line,
        }
    };
    let fixed = FIXED.map(|name| {
        let is_it = |it: &DiffFunction| it.name == name && it.image == OWN_IMAGE;
        tree.functions.iter().position(is_it).and_then(|at| u32::try_from(at).ok())
    });
    let builds = |profile: &Profile| -> HashMap<u32, Vec<u8>> {
        let build = |(id, centre): (CostCentreId, &CostCentre)| {
            let build = profile.image(centre.image).map(|image| image.build_id.clone()).filter(|id| !id.is_empty())?;
            Some((number(profile, id)?, build))
        };
        (0..).map(CostCentreId::new).zip(profile.cost_centres()).filter_map(build).collect()
    };
    let builds = [before, after].map(|export| builds(export.profile));
    let is_same_program = |number: u32| {
        let [was, is] = builds.each_ref().map(|builds| builds.get(&number));
        was.is_some() && was == is
    };
    let sources = [after, before].into_iter().enumerate().flat_map(|(layer, export)| {
        export
            .sources
            .iter()
            .filter_map(move |excerpt| Some((layer, number(export.profile, excerpt.function)?, excerpt)))
    });
    let sources = sources.map(|(layer, function, excerpt)| PageSource {
        function,
        excerpt,
        layer,
        is_same_program: is_same_program(function),
    });
    let mut stacks = Stacks::from_difference(&tree);
    let cells = Cells::from_difference(&tree, &mut stacks, &matching, [after, before]);
    let (old, new) = (facts(before, tree.before.samples), facts(after, tree.after.samples));
    let contents = Contents {
        title: difference_title(&before.title(), &after.title()),
        facts: format!("before: {old}. After: {new}"),
        remarks: [("after", after), ("before", before)]
            .into_iter()
            .flat_map(|(which, export)| export.remarks().into_iter().map(move |remark| format!("{which}: {remark}")))
            .collect(),
        layers: vec![layer(after, Some("after")), layer(before, Some("before"))],
        is_difference: true,
        stacks,
        all_columns: 0,
        cells,
        describe: Box::new(describe),
        palette: Palette::default(),
        fixed,
        startup: startup.collect::<HashSet<u32>>().into_iter().collect(),
        sources: sources.collect(),
        significant: [
            significant(|row| row.self_significant),
            significant(|row| row.inherited_significant),
            significant(|row| row.self_absolutely_significant),
            significant(|row| row.inherited_absolutely_significant),
        ],
        max_bytes: after.max_bytes,
    };
    contents.write(out)
}

/// What was compared: both runs, where they differ.
fn difference_title(before: &str, after: &str) -> String {
    if before == after { format!("{after}, before and after") } else { format!("{before} \u{2192} {after}") }
}

fn script_module(image: &str, name: &str) -> Option<String> {
    is_generated(image).then(|| script_package(name)).flatten().map(|package| sanitise(&package).into_owned())
}

fn layer(export: &Export<'_>, name: Option<&str>) -> LayerName {
    let metric = export.metric();
    LayerName {
        name: name.map_or_else(|| sanitise(&metric.name).into_owned(), str::to_owned),
        unit: unit_name(metric.unit),
    }
}

fn facts(export: &Export<'_>, samples: u64) -> String {
    let (session, accounting) = (export.profile.session(), export.profile.accounting());
    let dropped = match accounting.dropped_by_us {
        0 => String::new(),
        dropped => format!(", {} dropped", count(dropped)),
    };
    format!(
        "{} samples of {} at {} Hz in {:.2} s; {} lost{dropped}, {} truncated",
        count(samples),
        sanitise(&export.metric().name),
        count(session.rate_hz.into()),
        accounting.duration_ns as f64 / 1e9,
        count(accounting.lost),
        count(accounting.truncated_total()),
    )
}

impl Contents<'_> {
    fn write(mut self, out: &mut impl Write) -> io::Result<()> {
        let title = escape(&self.title);
        let frame = PAGE.len() + STYLE.len() + SCRIPTS.iter().map(|it| it.len()).sum::<usize>() + 2 * title.len();
        let most = self.max_bytes.saturating_sub(frame);
        let mut nodes = self.stacks.nodes.len();
        let mut threads_are_weighed = false;
        let json = loop {
            let json = self.data(nodes)?;
            if json.len() <= most || (nodes == 0 && !self.cells.has_parts()) {
                break json;
            }
            if self.cells.columns() > FEWEST_COLUMNS {
                self.cells = self.cells.coarser();
            } else if !self.sources.is_empty() {
                self.sources = Vec::new();
                self.remarks.push("source is left out for the size of this file; --max-size allows more".to_owned());
            } else if !threads_are_weighed {
                // Threads are a list and parts of time that remain however few stacks there are.
                threads_are_weighed = true;
                if self.cells.has_threads() && self.size_of_threads()? > most / LARGEST_PART_OF_THREADS {
                    self.cells = self.cells.without_threads();
                    self.remarks.push(THREADS_LEFT_OUT.to_owned());
                }
            } else if nodes == 0 {
                if self.cells.has_threads() {
                    self.remarks.push(THREADS_LEFT_OUT.to_owned());
                }
                self.cells = self.cells.whole();
                nodes = self.stacks.nodes.len();
            } else {
                // Names are not in proportion to nodes, so more than one round may be needed.
                nodes = (nodes as u64 * most as u64 * 9 / (json.len() as u64 * 10).max(1)) as usize;
            }
        };
        if json.len() > most {
            let least = frame.saturating_add(json.len());
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("a page takes at least {least} bytes, and {} are allowed", self.max_bytes),
            ));
        }
        let script = SCRIPTS.concat();
        // One pass, so that nothing that is put in is looked at for placeholders.
        let mut rest = PAGE;
        while let Some((before, after)) = rest.split_once("{{") {
            let Some((name, after)) = after.split_once("}}") else { break };
            out.write_all(before.as_bytes())?;
            let text = match name {
                "title" => title.as_str(),
                "style" => STYLE,
                "data" => json.as_str(),
                _ => script.as_str(),
            };
            out.write_all(text.as_bytes())?;
            rest = after;
        }
        out.write_all(rest.as_bytes())
    }

    fn size_of_threads(&mut self) -> io::Result<usize> {
        let with = self.data(0)?.len();
        let without = self.cells.clone().without_threads();
        let cells = std::mem::replace(&mut self.cells, without);
        let without = self.data(0).map(|json| json.len());
        self.cells = cells;
        Ok(with.saturating_sub(without?))
    }

    fn data(&self, most: usize) -> io::Result<String> {
        let kept = self.stacks.heaviest(most);
        let is_kept = |node: usize| kept.get(node) == Some(&true);
        let order = self.stacks.in_depth(&kept);
        let mut numbers = Numbers::new(self);
        // The nearest caller that is kept, which for a node that is kept is the node itself. Callers come before callees.
        let mut callers: Vec<Option<usize>> = Vec::with_capacity(self.stacks.nodes.len());
        for (at, node) in self.stacks.nodes.iter().enumerate() {
            let caller = node.parent.and_then(|parent| callers.get(parent).copied().flatten());
            callers.push(if is_kept(at) { Some(at) } else { caller });
        }
        let left_out = order.len() < self.stacks.nodes.len();
        let (pruned, left_out_share) = if left_out { self.cells.own(|node| !is_kept(node)) } else { (Vec::new(), 0.0) };
        let with_pruned: HashSet<Option<usize>> =
            pruned.into_iter().map(|node| callers.get(node).copied().flatten()).collect();
        let mut places: HashMap<usize, usize> = HashMap::with_capacity(order.len());
        let mut pruned_places: HashMap<Option<usize>, usize> = HashMap::new();
        let (mut depths, mut entries) = (Vec::new(), Vec::new());
        let (mut gaps, mut unsure) = (Vec::new(), Vec::new());
        if with_pruned.contains(&None) {
            pruned_places.insert(None, 0);
            depths.push(0);
            entries.push(u64::from(numbers.pruned()) * 2 + 1);
        }
        for (at, depth) in order {
            let Some(node) = self.stacks.nodes.get(at) else { continue };
            let place = depths.len();
            places.insert(at, place);
            gaps.extend(node.gap.then_some(place as u64));
            unsure.extend(node.approximate.then_some(place as u64));
            depths.push(depth);
            entries.push(u64::from(numbers.function(node.function)) * 2 + u64::from(node.marked));
            if with_pruned.contains(&Some(at)) {
                pruned_places.insert(Some(at), depths.len());
                depths.push(depth + 1);
                entries.push(u64::from(numbers.pruned()) * 2 + 1);
            }
        }
        let place = |node: usize| match places.get(&node) {
            Some(&place) => Some(place),
            None => pruned_places.get(&callers.get(node).copied().flatten()).copied(),
        };
        let mut remarks = self.remarks.clone();
        if left_out {
            let all = self.stacks.nodes.len();
            remarks.push(format!(
                "{}{} of {all} stacks, {:.2}% of the weight, are too many for this file and stand as {PRUNED} in their callers; \
                 --max-size allows more, up to a million",
                if self.stacks.has_beyond() { "at least " } else { "" },
                all - places.len(),
                100.0 * left_out_share,
            ));
        }
        let all = self.all_columns;
        match self.cells.columns() {
            0 if all >= 2 => {
                remarks.push("the timeline is left out for the size of this file; --max-size allows more".to_owned());
            }
            columns if columns < all => remarks.push(format!(
                "the timeline has {columns} parts of at most {:.3} s: {all} are too many for this file; --max-size allows more",
                self.cells.longest_ns() as f64 / 1e9,
            )),
            _ => {}
        }
        let cells = self.cells.packed(place);
        let sources = self.sources.iter().filter_map(|it| numbers.source(it)).collect();
        let known = |ids: &mut dyn Iterator<Item = &u32>| {
            let mut known: Vec<u32> = ids.filter_map(|id| numbers.known.get(id).copied()).collect();
            known.sort_unstable();
            known
        };
        let (startup, significant) =
            (known(&mut self.startup.iter()), self.significant.each_ref().map(|ids| known(&mut ids.iter())));
        let data = Data {
            facts: &self.facts,
            remarks,
            layers: &self.layers,
            difference: self.is_difference,
            startup,
            significant,
            images: numbers.images,
            files: numbers.files,
            functions: numbers.functions,
            full_names: numbers.full_names,
            modules: numbers.modules,
            palette: PackedPalette::of(&self.palette, &numbers.ids),
            depths: pack(depths),
            entries: pack(entries),
            gaps: pack_ascending(gaps),
            unsure: pack_ascending(unsure),
            cells,
            sources,
        };
        Ok(serde_json::to_string(&data)
            .map_err(io::Error::from)?
            .replace('<', "\\u003c")
            .replace('>', "\\u003e")
            .replace('&', "\\u0026"))
    }
}

struct Numbers<'a> {
    contents: &'a Contents<'a>,
    functions: Vec<(String, usize, i64, u32)>,
    full_names: BTreeMap<u32, FullName>,
    modules: BTreeMap<u32, String>,
    ids: Vec<Option<u32>>,
    known: HashMap<u32, u32>,
    images: Vec<(String, String)>,
    known_images: HashMap<(String, String), usize>,
    files: Vec<String>,
    known_files: HashMap<String, i64>,
    pruned: Option<u32>,
}

impl<'a> Numbers<'a> {
    fn new(contents: &'a Contents<'a>) -> Self {
        let mut numbers = Self {
            contents,
            functions: Vec::new(),
            full_names: BTreeMap::new(),
            modules: BTreeMap::new(),
            ids: Vec::new(),
            known: HashMap::new(),
            images: Vec::new(),
            known_images: HashMap::new(),
            files: Vec::new(),
            known_files: HashMap::new(),
            pruned: None,
        };
        for (name, id) in FIXED.into_iter().zip(contents.fixed) {
            let number = numbers.special(name);
            if let Some(id) = id {
                numbers.known.insert(id, number);
                numbers.ids.last_mut().into_iter().for_each(|it| *it = Some(id));
            }
        }
        numbers
    }

    fn function(&mut self, id: u32) -> u32 {
        if let Some(&number) = self.known.get(&id) {
            return number;
        }
        let FunctionText { name, full_name, image, path, module, file, line } = (self.contents.describe)(id);
        // The file name is the end of the path, but for programs that count as one in a difference.
        let path = if image_file_name(&path) == image { path } else { image.clone() };
        let image = self.image(image, path);
        let file = file.map_or(-1, |file| self.file(file));
        let number = self.functions.len() as u32;
        self.full_names.extend(full_name.map(|full| (number, FullName::of(full, &name))));
        self.functions.push((name, image, file, line));
        self.modules.extend(module.map(|module| (number, module)));
        self.ids.push(Some(id));
        self.known.insert(id, number);
        number
    }

    fn pruned(&mut self) -> u32 {
        if let Some(number) = self.pruned {
            return number;
        }
        let number = self.special(PRUNED);
        self.pruned = Some(number);
        number
    }

    fn special(&mut self, name: &str) -> u32 {
        let image = self.image(OWN_IMAGE.to_owned(), OWN_IMAGE.to_owned());
        let number = self.functions.len() as u32;
        self.functions.push((name.to_owned(), image, -1, 0));
        self.ids.push(None);
        number
    }

    fn image(&mut self, name: String, path: String) -> usize {
        let next = self.images.len();
        let number = *self.known_images.entry((name.clone(), path.clone())).or_insert(next);
        if number == next {
            self.images.push((name, path));
        }
        number
    }

    fn file(&mut self, path: String) -> i64 {
        let next = self.files.len() as i64;
        let number = *self.known_files.entry_ref(&path).or_insert(next);
        if number == next {
            self.files.push(path);
        }
        number
    }

    fn source<'s>(&self, source: &PageSource<'s>) -> Option<FunctionSource<'s>> {
        let file = |file: &'s super::source::ExcerptFile| PageSourceFile {
            path: sanitise(&file.path),
            remarks: &file.remarks,
            lines: file
                .lines
                .iter()
                .map(|line| (line.number, line.self_weight, line.inherited_weight, line.text.as_deref()))
                .collect(),
        };
        Some(FunctionSource {
            function: self.known.get(&source.function).copied()?,
            layer: source.layer,
            same: source.is_same_program,
            files: source.excerpt.files.iter().map(file).collect(),
        })
    }
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let entity: Cow<'_, str> = match c {
            '&' => "&amp;".into(),
            '<' => "&lt;".into(),
            '>' => "&gt;".into(),
            '"' => "&quot;".into(),
            '\'' => "&#39;".into(),
            c => c.to_string().into(),
        };
        safe.push_str(&entity);
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{ContextId, LineId};
    use crate::limits::ProfileLimits;
    use crate::model::{CostCentre, Image, Metric, Process, SessionInfo, Thread, Unit};
    use crate::timeline::{TimeColumn, Timeline};
    use crate::view::Selection;

    fn profile(metrics: usize, threads: u32) -> Profile {
        let metric = |i: usize| Metric { name: format!("metric {i}"), unit: Unit::Nanoseconds };
        let session = SessionInfo { metrics: (0..metrics).map(metric).collect(), ..SessionInfo::default() };
        let mut profile = Profile::new(session, ProfileLimits::default());
        let image = profile.add_image(Image { name: "/usr/bin/demo".into(), build_id: Vec::new() });
        let process = Process::new(1, 1, "demo");
        let process = profile.add_process(process);
        for tid in 1..=threads {
            let function = profile.add_cost_centre(CostCentre::named(image, format!("f{}", tid % 200)));
            let context = profile.contexts_mut().push(ContextId::ROOT, function);
            let thread = profile.add_thread(Thread { process, tid, name: format!("worker of request {tid}") });
            profile.charge(thread, context, LineId::UNKNOWN, &vec![7; metrics]);
        }
        profile
    }

    fn page(export: &Export<'_>) -> String {
        let mut out = Vec::new();
        write(export, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn threads_are_left_out_before_stacks() {
        let (profile, all) = (profile(1, 4000), Selection::all());
        let export = Export::new(&profile, &all);
        let whole = page(&export);
        assert!(whole.contains("worker of request 4000") && !whole.contains(THREADS_LEFT_OUT));
        // Of 4000 threads, the names alone take 100 kB.
        let small = page(&Export { max_bytes: whole.len() - 60_000, ..export });
        assert!(small.contains(THREADS_LEFT_OUT) && !small.contains("worker of"));
        assert!(!small.contains("are too many for this file") && small.contains("\"f199\""));
    }

    #[test]
    fn columns_of_another_metric_are_no_more_than_those_of_the_first() {
        let (first, second, all) = (profile(4, 20), profile(6, 20), Selection::all());
        let timeline: Timeline = (0..3).map(|i| TimeColumn { from_ns: i, to_ns: i + 1 }).collect();
        let others = [Export { timeline: &timeline, ..Export::new(&second, &all) }];
        let export = Export { timeline: &timeline, other_metrics: &others, ..Export::new(&first, &all) };
        let data = page(&export);
        let data = data.split("\"cells\":").nth(1).unwrap();
        // Each thread has a cell in each column, by both metrics.
        let ones = pack([1; 60]);
        assert_eq!(data.matches(&format!("\"unit\":7,\"weights\":\"{ones}\"")).count(), 2, "{data}");
    }
}
