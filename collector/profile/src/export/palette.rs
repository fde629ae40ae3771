//! Colours of functions, the same in the SVG flame graph, the page and Graphviz' call graph.
//!
//! The hue is the package's. The program's own code is saturated, libraries are muted; the kernel and generated code
//! have colours of their own. Hues go to the packages with the most self and total time; the parts of a dominant
//! package share the hues that are left.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use super::package::{LegendPlace, PackageKind, Places};
use crate::ids::CostCentreId;
use crate::profile::Profile;
use crate::view::TreeView;

/// A colour on light and on dark ground. Text on both has a contrast of at least 4.5.
///
/// [`OWN`] on light ground is Paul Tol's "light" scheme. The others keep the least `OKLab` distance large, also for
/// people who do not see red, green or blue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ColourPair {
    pub(super) light: Colour,
    pub(super) dark: Colour,
}

const fn tone(light: u32, dark: u32) -> ColourPair {
    ColourPair { light: Colour::of(light), dark: Colour::of(dark) }
}

const OWN: [ColourPair; 8] = [
    tone(0x77_aa_dd, 0x00_7e_af),
    tone(0xee_88_66, 0x7d_41_0b),
    tone(0x44_bb_99, 0x32_74_69),
    tone(0xee_dd_88, 0x88_56_00),
    tone(0xff_aa_bb, 0x64_00_23),
    tone(0xbb_cc_33, 0x5b_82_19),
    tone(0x99_dd_ff, 0x00_38_6f),
    tone(0xaa_aa_00, 0x54_38_00),
];
const LIBRARIES: [ColourPair; 5] = [
    tone(0xdf_ce_af, 0x68_65_46),
    tone(0xac_a6_c3, 0x46_3f_57),
    tone(0xd2_e5_cd, 0x3d_62_58),
    tone(0xbd_e7_f0, 0x1e_2f_45),
    tone(0xc9_a3_a8, 0x3b_29_2d),
];
const OTHER_OWN: ColourPair = tone(0xaa_c9_d9, 0x45_51_5e);
const OTHER_LIBRARIES: ColourPair = tone(0xd2_d6_d2, 0x37_3a_3d);
const KERNEL: ColourPair = tone(0xbb_b0_ff, 0x66_47_8b);
const GENERATED: ColourPair = tone(0xb1_90_7f, 0x66_46_35);
pub(super) const NEUTRAL: ColourPair = tone(0xe4_e6_e8, 0x2b_2f_35);

/// Shades of a hue, which tell its functions apart. Each shade is paler (on a light page) or darker (on a dark one) by `SHADE`.
const SHADES: u32 = 4;
const SHADE: f64 = 0.06;

/// Least self time, and total time, for a colour of one's own. A part of a program needs the self time.
const LEAST_SELF: f64 = 0.01;
const LEAST_TOTAL: f64 = 0.1;
/// Parts of programs that have a hue and a name in the legend, at most.
const MOST_PARTS: usize = 6;
/// Part of all self, or total, time from which on the program's heaviest package has all remaining hues.
const DOMINANT: f64 = 0.3;
const DOMINANT_TOTAL: f64 = 0.5;
const PARTS_BESIDE_DOMINANT: usize = 2;
/// How much total time counts beside self time.
const TOTAL_WEIGHT: f64 = 0.1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Colour(pub(super) u8, pub(super) u8, pub(super) u8);

impl Colour {
    const fn of(rgb: u32) -> Self {
        let [_, red, green, blue] = rgb.to_be_bytes();
        Self(red, green, blue)
    }

    fn mix(self, other: Self, part: f64) -> Self {
        let channel = |a: u8, b: u8| (f64::from(a) * (1.0 - part) + f64::from(b) * part).round() as u8;
        Self(channel(self.0, other.0), channel(self.1, other.1), channel(self.2, other.2))
    }

    pub(super) fn hex(self) -> String {
        format!("#{:02x}{:02x}{:02x}", self.0, self.1, self.2)
    }
}

impl ColourPair {
    fn shade(self, number: u32) -> Self {
        let part = f64::from(number) * SHADE;
        Self {
            light: self.light.mix(Colour(0xff, 0xff, 0xff), part),
            dark: self.dark.mix(Colour(0x14, 0x17, 0x1b), part),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct LegendPackage {
    pub(super) name: String,
    pub(super) kind: PackageKind,
    /// Its hues, the first one for most of it.
    pub(super) tones: Vec<ColourPair>,
}

#[derive(Debug, Default)]
pub(super) struct Palette {
    /// The most important first, by kind.
    pub(super) packages: Vec<LegendPackage>,
    of: HashMap<CostCentreId, Shade>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shade {
    /// Its package, as in [`Palette::packages`], and its hue there.
    pub(super) package: usize,
    pub(super) hue: usize,
    pub(super) tone: ColourPair,
}

#[derive(Clone, Copy, Debug, Default)]
struct CostShares {
    own: f64,
    total: f64,
}

impl CostShares {
    fn score(self) -> f64 {
        self.own + TOTAL_WEIGHT * self.total
    }

    fn add(&mut self, other: CostShares) {
        self.own += other.own;
        // Of several packages, the stacks of one may be those of another.
        self.total = self.total.max(other.total);
    }

    fn is_seen(self) -> bool {
        self.own >= LEAST_SELF || self.total >= LEAST_TOTAL
    }
}

impl Palette {
    pub(super) fn of(profile: &Profile, tree: &TreeView) -> Self {
        let places = Places::of(profile);
        let mut numbers: HashMap<CostCentreId, usize> = HashMap::new();
        let mut functions: Vec<(CostCentreId, LegendPlace)> = Vec::new();
        for node in &tree.nodes {
            numbers.entry(node.function).or_insert_with(|| {
                functions.push((node.function, places.place(node.function)));
                functions.len() - 1
            });
        }
        let mut groups: BTreeMap<&LegendPlace, usize> = functions.iter().map(|(_, place)| (place, 0)).collect();
        groups.values_mut().zip(0..).for_each(|(number, next)| *number = next);
        let group_of: Vec<usize> = functions.iter().filter_map(|(_, place)| groups.get(place).copied()).collect();
        // A page folds these: what they spend counts for their callers.
        let folded = |id: CostCentreId| places.is_folded(id);
        let (of_functions, of_groups) = costs(tree, &numbers, &group_of, folded);
        let hues = Hues::of(groups.keys().zip(&of_groups).map(|(place, cost)| (*place, *cost)));
        // What shares the hues of a package: functions in the order of their weight, so that the heaviest differ.
        let mut order: Vec<usize> = (0..functions.len()).collect();
        let cost = |at: usize| of_functions.get(at).copied().unwrap_or_default();
        let name = |at: usize| functions.get(at).map_or(CostCentreId::ROOT, |it| it.0);
        order.sort_by(|&a, &b| cost(b).score().total_cmp(&cost(a).score()).then_with(|| name(a).cmp(&name(b))));
        let mut loads: Vec<Vec<f64>> = hues.packages.iter().map(|package| vec![0.0; package.tones.len()]).collect();
        let mut details: HashMap<(usize, String), usize> = HashMap::new();
        let mut detail_costs: BTreeMap<(usize, String), f64> = BTreeMap::new();
        let detail_of = |at: usize| -> Option<(usize, String)> {
            let (id, place) = functions.get(at)?;
            let package = hues.package(place)?;
            let is_shared = hues.packages.get(package).is_some_and(|it| it.tones.len() > 1);
            let is_part = hues.is_named(place);
            is_shared.then(|| (package, places.detail(*id, place, is_part)))
        };
        for &at in &order {
            if let Some(detail) = detail_of(at) {
                *detail_costs.entry(detail).or_default() += cost(at).score();
            }
        }
        let mut heaviest: Vec<_> = detail_costs.into_iter().collect();
        heaviest.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        for (detail, weight) in heaviest {
            let Some(loads) = loads.get_mut(detail.0) else { continue };
            let least = loads.iter().copied().enumerate().min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
            let Some((hue, _)) = least else { continue };
            if let Some(load) = loads.get_mut(hue) {
                *load += weight.max(f64::MIN_POSITIVE);
            }
            details.insert(detail, hue);
        }
        let mut of = HashMap::with_capacity(functions.len());
        for (at, (id, place)) in functions.iter().enumerate() {
            let Some(package) = hues.package(place) else { continue };
            let hue = detail_of(at).and_then(|detail| details.get(&detail)).copied().unwrap_or(0);
            let tone = hues.packages.get(package).and_then(|it| it.tones.get(hue)).copied().unwrap_or(NEUTRAL);
            let shade = profile.name(*id).chars().fold(0u32, |hash, c| hash.wrapping_mul(33).wrapping_add(c as u32));
            of.insert(*id, Shade { package, hue, tone: tone.shade(shade % SHADES) });
        }
        Self { packages: hues.packages, of }
    }

    pub(super) fn get(&self, function: CostCentreId) -> Option<Shade> {
        self.of.get(&function).copied()
    }

    pub(super) fn colours(&self) -> impl Iterator<Item = (CostCentreId, Colour)> + '_ {
        self.of.iter().map(|(&id, shade)| (id, shade.tone.light))
    }
}

/// Cost of each function and group; folded functions count for their callers, and each counts once for a stack.
fn costs(
    tree: &TreeView,
    numbers: &HashMap<CostCentreId, usize>,
    group_of: &[usize],
    is_folded: impl Fn(CostCentreId) -> bool,
) -> (Vec<CostShares>, Vec<CostShares>) {
    let groups = group_of.iter().max().map_or(0, |most| most + 1);
    let (mut of_functions, mut of_groups) =
        (vec![CostShares::default(); numbers.len()], vec![CostShares::default(); groups]);
    let (mut functions_above, mut groups_above) = (vec![0u32; numbers.len()], vec![0u32; groups]);
    let whole = tree.total.weight.max(1) as f64;
    // A step enters a node, with the nearest caller that is not folded, or leaves it.
    enum LegendVisit {
        Enter(usize, Option<usize>),
        Leave(usize),
    }
    let mut steps: Vec<LegendVisit> = tree.roots.iter().map(|&root| LegendVisit::Enter(root, None)).collect();
    while let Some(step) = steps.pop() {
        let (LegendVisit::Enter(at, _) | LegendVisit::Leave(at)) = step;
        let Some(node) = tree.nodes.get(at) else { continue };
        let Some(&function) = numbers.get(&node.function) else { continue };
        let Some(&group) = group_of.get(function) else { continue };
        let (Some(function_above), Some(group_above)) =
            (functions_above.get_mut(function), groups_above.get_mut(group))
        else {
            continue;
        };
        match step {
            LegendVisit::Leave(_) => {
                *function_above -= 1;
                *group_above -= 1;
            }
            LegendVisit::Enter(_, caller) => {
                let total = node.weight as f64 / whole;
                let folded = is_folded(node.function);
                if !folded {
                    if *function_above == 0 {
                        of_functions.iter_mut().skip(function).take(1).for_each(|cost| cost.total += total);
                    }
                    if *group_above == 0 {
                        of_groups.iter_mut().skip(group).take(1).for_each(|cost| cost.total += total);
                    }
                }
                *function_above += 1;
                *group_above += 1;
                let visible = if folded { caller } else { Some(function) }.unwrap_or(function);
                let own = node.self_weight as f64 / whole;
                if let Some(cost) = of_functions.get_mut(visible) {
                    cost.own += own;
                }
                if let Some(cost) = group_of.get(visible).and_then(|&group| of_groups.get_mut(group)) {
                    cost.own += own;
                }
                steps.push(LegendVisit::Leave(at));
                let below = if folded { caller } else { Some(function) };
                steps.extend(node.children.iter().map(|&callee| LegendVisit::Enter(callee, below)));
            }
        }
    }
    (of_functions, of_groups)
}

struct Hues {
    packages: Vec<LegendPackage>,
    parts: HashMap<LegendPlace, usize>,
    wholes: HashMap<(PackageKind, String), usize>,
}

impl Hues {
    fn of<'a>(groups: impl Iterator<Item = (&'a LegendPlace, CostShares)>) -> Self {
        let groups: Vec<(&LegendPlace, CostShares)> = groups.collect();
        let mut parts: Vec<(&LegendPlace, CostShares)> = groups
            .iter()
            .filter(|(place, cost)| place.kind == PackageKind::Own && place.part.is_some() && cost.own >= LEAST_SELF)
            .copied()
            .collect();
        parts.sort_by(|a, b| b.1.score().total_cmp(&a.1.score()).then_with(|| a.0.cmp(b.0)));
        parts.truncate(MOST_PARTS);
        let rest = |parts: &[(&LegendPlace, CostShares)]| {
            let mut rest: BTreeMap<(PackageKind, &str), CostShares> = BTreeMap::new();
            for (place, cost) in groups.iter().filter(|(place, _)| !parts.iter().any(|it| it.0 == *place)) {
                rest.entry((place.kind, &place.package)).or_default().add(*cost);
            }
            rest
        };
        let mut wholes = rest(&parts);
        if wholes.iter().any(|((kind, _), cost)| *kind == PackageKind::Own && cost.own >= DOMINANT) {
            parts.truncate(PARTS_BESIDE_DOMINANT);
            wholes = rest(&parts);
        }
        let of_parts = parts.iter().map(|&(place, cost)| LegendEntry {
            kind: place.kind,
            package: &place.package,
            part: Some(place),
            cost,
        });
        let of_wholes = wholes.iter().map(|(&(kind, package), &cost)| LegendEntry { kind, package, part: None, cost });
        let mut entries: Vec<LegendEntry<'_>> = of_parts.chain(of_wholes).collect();
        entries.sort_by(LegendEntry::order);
        let mut hues = Self { packages: Vec::new(), parts: HashMap::new(), wholes: HashMap::new() };
        let (mut own, mut libraries) = (OWN.iter().copied(), LIBRARIES.iter().copied());
        // The program's heaviest package.
        let mut dominant: Option<(usize, CostShares)> = None;
        for entry in entries {
            let hue = match entry.kind {
                PackageKind::Own if entry.cost.is_seen() => own.next(),
                PackageKind::Library if entry.cost.is_seen() => libraries.next(),
                _ => None,
            };
            let number = hues.number(&entry, hue);
            let is_heavier = |(_, most): (usize, CostShares)| entry.cost.own > most.own;
            if entry.kind == PackageKind::Own && hue.is_some() && dominant.is_none_or(is_heavier) {
                dominant = Some((number, entry.cost));
            }
        }
        if let Some((number, _)) = dominant.filter(|(_, it)| it.own >= DOMINANT || it.total >= DOMINANT_TOTAL)
            && let Some(package) = hues.packages.get_mut(number)
        {
            package.tones.extend(own);
        }
        hues
    }

    fn number(&mut self, entry: &LegendEntry<'_>, hue: Option<ColourPair>) -> usize {
        let own_name = entry.part.and_then(|place| place.part.as_deref()).unwrap_or(entry.package);
        let (name, tone) = match (entry.kind, hue) {
            (_, Some(hue)) => (own_name, hue),
            (PackageKind::Own, None) => ("other own code", OTHER_OWN),
            (PackageKind::Library, None) => ("other libraries", OTHER_LIBRARIES),
            (PackageKind::Kernel, None) => ("kernel", KERNEL),
            (PackageKind::Generated, None) => ("generated code", GENERATED),
            (PackageKind::Mark, None) => ("ccsd's marks", NEUTRAL),
        };
        let is_known = |it: &LegendPackage| hue.is_none() && it.kind == entry.kind && it.name == name;
        let number = self.packages.iter().position(is_known).unwrap_or(self.packages.len());
        if number == self.packages.len() {
            self.packages.push(LegendPackage { name: name.to_owned(), kind: entry.kind, tones: vec![tone] });
        }
        match entry.part {
            Some(part) => self.parts.insert(part.clone(), number),
            None => self.wholes.insert((entry.kind, entry.package.to_owned()), number),
        };
        number
    }

    fn is_named(&self, place: &LegendPlace) -> bool {
        self.parts.contains_key(place)
    }

    fn package(&self, place: &LegendPlace) -> Option<usize> {
        self.parts.get(place).or_else(|| self.wholes.get(&(place.kind, place.package.clone()))).copied()
    }
}

struct LegendEntry<'a> {
    kind: PackageKind,
    package: &'a str,
    part: Option<&'a LegendPlace>,
    cost: CostShares,
}

impl LegendEntry<'_> {
    /// By kind, then the most important first.
    fn order(&self, other: &Self) -> Ordering {
        let name = |it: &Self| (it.package.to_owned(), it.part.cloned());
        let score = other.cost.score().total_cmp(&self.cost.score());
        self.kind.cmp(&other.kind).then(score).then_with(|| name(self).cmp(&name(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::package::tests::{number, profile};
    use crate::view::Selection;

    fn palette(profile: &Profile) -> Palette {
        Palette::of(profile, &TreeView::new(profile, &Selection::all()))
    }

    fn legend(palette: &Palette) -> Vec<(&str, PackageKind, usize)> {
        palette.packages.iter().map(|it| (it.name.as_str(), it.kind, it.tones.len())).collect()
    }

    #[test]
    fn hues_go_to_what_runs_and_not_to_what_calls() {
        let profile = profile(&[
            (&["/b/prog main", "/b/prog pass::run", "/b/prog ira::colour"], 60),
            (&["/b/prog main", "/b/prog pass::run", "/b/prog bitmap_set"], 20),
            (&["/b/prog main", "/b/prog pass::run", "/b/libc.so.6 qsort"], 20),
        ]);
        let palette = palette(&profile);
        // `pass::` is on all stacks and runs never; it belongs to the rest of the program.
        assert_eq!(
            legend(&palette),
            [
                ("ira::", PackageKind::Own, 6),
                ("bitmap_*", PackageKind::Own, 1),
                ("prog", PackageKind::Own, 1),
                ("libc.so.6", PackageKind::Library, 1)
            ]
        );
    }

    #[test]
    fn a_program_without_names_has_several_hues_and_one_line_in_the_legend() {
        let names: Vec<String> = (0..64).map(|i| format!("/b/cc1 +0x{:x}", i << 16)).collect();
        let stacks: Vec<Vec<&str>> = names.iter().map(|name| vec![name.as_str()]).collect();
        let stacks: Vec<(&[&str], u64)> = stacks.iter().map(|stack| (&stack[..], 10)).collect();
        let profile = profile(&stacks);
        let palette = palette(&profile);
        assert_eq!(legend(&palette), [("cc1", PackageKind::Own, 8)]);
        // Each hue has about the same weight, and what is linked together has the same.
        let mut hues = [0; 8];
        for id in 0..64 {
            hues[palette.get(number(&profile, &format!("cc1+{:#x}", id << 16))).unwrap().hue] += 1;
        }
        assert!(hues.iter().all(|functions| (7..=9).contains(functions)), "{hues:?}");
        let near = |a: &str, b: &str| {
            let profile = crate::export::package::tests::profile(&[(&[a, b], 5), (&["/b/cc1 +0x900000"], 5)]);
            let palette = super::tests::palette(&profile);
            let hue = |name: &str| palette.get(number(&profile, &name.replace("/b/cc1 ", "cc1"))).unwrap().hue;
            hue(a) == hue(b)
        };
        assert!(near("/b/cc1 +0x10000", "/b/cc1 +0x1fff0") && !near("/b/cc1 +0x10000", "/b/cc1 +0x20000"));
    }

    #[test]
    fn interpreter_time_belongs_to_callers() {
        let frame = "/usr/bin/python3.13 _PyEval_EvalFrameDefault";
        let script = profile(&[
            (&["[jit] py::f:/srv/app.py", frame], 70),
            (&["[jit] py::f:/srv/app.py", frame, "[jit] py::dumps:/usr/lib/python3.13/json/__init__.py", frame], 30),
        ]);
        let named = palette(&script);
        assert_eq!(legend(&named)[..2], [("app.py", PackageKind::Own, 8), ("json", PackageKind::Library, 1)]);
        // Where scripts have no names, the interpreter is what runs.
        let bare = profile(&[(&[frame], 70), (&["/usr/bin/python3.13 dict_merge"], 30)]);
        assert!(legend(&palette(&bare)).iter().all(|it| it.1 == PackageKind::Own), "{:?}", legend(&palette(&bare)));
    }

    /// In `OKLab`: as seen by all, and by people who do not see red, green or blue (Machado and others, 2009).
    fn seen(colour: Colour) -> [[f64; 3]; 4] {
        let linear = |channel: u8| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        let times = |matrix: [[f64; 3]; 3], v: [f64; 3]| matrix.map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum());
        let rgb = [linear(colour.0), linear(colour.1), linear(colour.2)];
        [
            [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
        ]
        .map(|eye| {
            let [r, g, b] = times(eye, rgb).map(|c: f64| c.clamp(0.0, 1.0));
            let lms = times(
                [
                    [0.4122214708, 0.5363325363, 0.0514459929],
                    [0.2119034982, 0.6806995451, 0.1073969566],
                    [0.0883024619, 0.2817188376, 0.6299787005],
                ],
                [r, g, b],
            );
            times(
                [
                    [0.2104542553, 0.7936177850, -0.0040720468],
                    [1.9779984951, -2.4285922050, 0.4505937099],
                    [0.0259040371, 0.7827717662, -0.8086757660],
                ],
                lms.map(f64::cbrt),
            )
        })
    }

    #[test]
    fn everybody_can_tell_colours_apart() {
        let rest = [OTHER_OWN, OTHER_LIBRARIES, KERNEL, GENERATED];
        let all: Vec<ColourPair> = OWN.into_iter().chain(LIBRARIES).chain(rest).collect();
        for ground in [|tone: &ColourPair| tone.light, |tone: &ColourPair| tone.dark] {
            let seen: Vec<_> = all.iter().map(|tone| seen(ground(tone))).collect();
            for (at, one) in seen.iter().enumerate() {
                for other in &seen[..at] {
                    for (a, b) in one.iter().zip(other) {
                        let distance = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
                        // About 0.02 is the least that is seen in colours side by side.
                        assert!(distance > 0.025, "{distance} between {:?} and another", ground(&all[at]));
                    }
                }
            }
        }
    }
}
