//! Differences of profiles: the weights are those of the raw stacks, and chance is called a change as seldom as is said.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::view::{DiffRow, DiffTree, DiffView, Run, Selection, TreeView};
use ccsd_profile::{ContextId, CostCentre, Image, LineId, Profile, ProfileLimits};
use common::{Maker, Random, session};
use proptest::prelude::*;

const TRIALS: u32 = 400;
/// Most of them that may flag anything where nothing has changed: 5%, and 4 standard deviations of a binomial number.
const MOST: u32 = 20 + 18;

/// A function of a printed name; instances of one name differ in their linkage name or in the build of their image.
fn instance(maker: &mut Maker, name: u32, instance: u32) -> ccsd_profile::CostCentreId {
    let image = Image { name: "/usr/demo".to_owned(), build_id: vec![instance as u8] };
    let image = maker.profile.add_image(image);
    maker.profile.add_cost_centre(CostCentre {
        image,
        linkage_name: Some(format!("_f{name}_{}", instance % 2)),
        display_name: Some(format!("f{name}")),
        ..maker.profile.cost_centres()[maker.find("template").index()].clone()
    })
}

fn made(samples: &[(Vec<(u32, u32)>, u64)]) -> Profile {
    let mut maker = Maker::new();
    maker.function("template");
    let thread = maker.thread(7);
    for (stack, weight) in samples {
        let mut context = ContextId::ROOT;
        for &(name, number) in stack {
            let function = instance(&mut maker, name, number);
            context = maker.profile.contexts_mut().push(context, function);
        }
        maker.profile.charge(thread, context, LineId::UNKNOWN, &[*weight]);
    }
    maker.profile
}

fn samples() -> impl Strategy<Value = Vec<(Vec<(u32, u32)>, u64)>> {
    prop::collection::vec((prop::collection::vec((0..4u32, 0..3u32), 1..8), 1..1000u64), 1..30)
}

/// Self and inherited weight by printed name, of the raw stacks without what is hidden; hidden leaves count for their callers.
fn expected(samples: &[(Vec<(u32, u32)>, u64)], hidden: Option<u32>) -> BTreeMap<String, (u64, u64)> {
    let mut sums: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for (stack, weight) in samples {
        let mut names: Vec<String> =
            stack.iter().filter(|it| Some(it.0) != hidden).map(|(name, _)| format!("f{name}")).collect();
        if names.is_empty() {
            names.push("[root]".to_owned());
        }
        sums.entry(names.last().unwrap().clone()).or_default().0 += weight;
        for name in names.into_iter().collect::<BTreeSet<_>>() {
            sums.entry(name).or_default().1 += weight;
        }
    }
    sums
}

/// With instances merged, recursion may have squeezed out the true neighbour: the tree marks that.
#[test]
fn calls_that_may_be_others_are_marked_where_instances_are_one() {
    let mut random = Random::new(7);
    let mut marked = 0;
    for _ in 0..50 {
        let mut maker = Maker::new();
        let thread = maker.thread(7);
        for _ in 0..10 {
            let mut context = ContextId::ROOT;
            for _ in 0..8 {
                let (name, number) = (random.below(3), random.below(2));
                let function = maker.function(&format!("_f{name}_{number}"));
                let centre = maker.profile.cost_centres()[function.index()].clone();
                let centre = CostCentre {
                    linkage_name: Some(format!("_g{name}_{number}")),
                    display_name: Some(format!("g{name}")),
                    ..centre
                };
                let function = maker.profile.add_cost_centre(centre);
                context = maker.profile.contexts_mut().push(context, function);
            }
            maker.profile.charge(thread, context, LineId::UNKNOWN, &[100]);
        }
        let grouped = maker.profile.regrouped(|_, centre| CostCentre {
            linkage_name: centre.display_name.clone().or_else(|| centre.linkage_name.clone()),
            ..centre.clone()
        });
        let tree = TreeView::new(&grouped, &Selection::all());
        let expected: BTreeSet<(String, bool, u64)> =
            tree.nodes.iter().map(|node| (tree.label(node), node.approximate, node.weight)).collect();
        let all = Selection::all();
        let diff = DiffTree::new((&maker.profile, &all), (&maker.profile, &all), 0.0);
        let found: BTreeSet<(String, bool, u64)> =
            diff.nodes.iter().map(|node| (diff.label(node), node.approximate, node.after.weight)).collect();
        assert_eq!(found, expected);
        marked += expected.iter().filter(|(_, approximate, _)| *approximate).count();
    }
    assert!(marked > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every sample counts once for a name, however many instances are on its stack.
    #[test]
    fn weights_are_those_of_raw_stacks(a in samples(), b in samples(), hidden in prop::option::of(0..4u32)) {
        let profiles = [made(&a), made(&b)];
        let selections = profiles.each_ref().map(|profile| {
            let hide = |name: u32| {
                let ids = (0u32..).map(ccsd_profile::CostCentreId::new).take(profile.cost_centres().len());
                ids.filter(|&id| profile.name(id) == format!("f{name}")).collect::<Vec<_>>()
            };
            Selection::all().hide(hidden.map(hide).unwrap_or_default())
        });
        let (before, after) = ((&profiles[0], &selections[0]), (&profiles[1], &selections[1]));
        let view = DiffView::new(before, after);
        let sums = [expected(&a, hidden), expected(&b, hidden)];
        let totals = [&a, &b].map(|it| it.iter().map(|(_, weight)| weight).sum::<u64>());
        prop_assert_eq!((view.before.weight, view.after.weight), (totals[0], totals[1]));
        for (side, sums) in sums.iter().enumerate() {
            let found: BTreeMap<String, (u64, u64)> = view
                .rows
                .iter()
                .filter_map(|row| Some((row, if side == 0 { row.before } else { row.after }?)))
                .map(|(row, it)| (row.function.name.clone(), (it.self_weight, it.inherited_weight)))
                .collect();
            prop_assert_eq!(&found, sums);
        }
        for row in &view.rows {
            let share = |side: usize| sums[side].get(&row.function.name).map_or(0.0, |it| it.1 as f64 / totals[side] as f64);
            prop_assert!((row.inherited_change - (share(1) - share(0))).abs() < 1e-9);
        }
        let thrice = DiffView::from_runs(&[before; 3], &[after; 3]);
        prop_assert_eq!(thrice.rows.len(), view.rows.len());
        for row in &thrice.rows {
            let once = view.rows.iter().find(|it| it.function.name == row.function.name).unwrap();
            let weights = |row: &DiffRow| [row.before, row.after].map(|it| it.map(|it| (it.self_weight, it.inherited_weight)));
            prop_assert_eq!(weights(row), weights(once));
        }
        let tree = DiffTree::new(before, after, 0.0);
        let own: u64 = tree.nodes.iter().map(|it| it.after.self_weight).sum();
        prop_assert_eq!(own, totals[1]);
        let thrice = DiffTree::from_runs(&[before; 3], &[after; 3], 0.0);
        let weights = |tree: &DiffTree| tree.nodes.iter().map(|it| it.after.weight).collect::<BTreeSet<_>>();
        prop_assert_eq!(weights(&thrice), weights(&tree));
    }
}

#[test]
fn instances_of_one_name_inherit_each_sample_once() {
    // main calls f<A>, which calls f<B>: 748 of 1,000 samples.
    let (f, main) = ((1, 0), (0, 0));
    let samples = [(vec![main, f, (1, 1)], 600), (vec![main, f], 148), (vec![main], 252)];
    let profile = made(&samples);
    let all = Selection::all();
    let view = DiffView::new((&profile, &all), (&profile, &all));
    let row = view.rows.iter().find(|row| row.function.name == "f1").unwrap();
    assert_eq!(row.after.unwrap().inherited_weight, 748);
    assert!((row.after.unwrap().inherited_share.fraction - 0.748).abs() < 1e-9);
    assert_eq!(row.after.unwrap().self_weight, 748);
}

#[test]
fn programs_of_one_name_that_run_beside_each_other_are_several() {
    let profile = |images: &[(&str, u64)]| {
        let mut maker = Maker::new();
        let thread = maker.thread(7);
        for &(path, weight) in images {
            let image = maker.profile.add_image(Image { name: path.to_owned(), build_id: Vec::new() });
            let function = maker.profile.add_cost_centre(CostCentre { image, ..CostCentre::named(image, "work") });
            let context = maker.profile.contexts_mut().push(ContextId::ROOT, function);
            maker.profile.charge(thread, context, LineId::UNKNOWN, &[weight]);
        }
        maker.profile
    };
    let rows = |before: &[(&str, u64)], after: &[(&str, u64)]| {
        let (before, after, all) = (profile(before), profile(after), Selection::all());
        let view = DiffView::new((&before, &all), (&after, &all));
        let weight = |it: Option<ccsd_profile::view::DiffSide>| it.map_or(0, |it| it.self_weight);
        let row = |row: DiffRow| (row.function.image.clone(), weight(row.before), weight(row.after));
        view.rows.into_iter().map(row).collect::<BTreeSet<_>>()
    };
    let row = |image: &str, before, after| (image.to_owned(), before, after);
    // One that is built anew elsewhere is the same.
    assert_eq!(rows(&[("/a/srv", 5)], &[("/b/srv", 3)]), [row("srv", 5, 3)].into());
    assert_eq!(rows(&[("/a1/srv", 5), ("/a2/srv", 1)], &[("/b1/srv", 3)]), [row("srv", 6, 3)].into());
    // One that appears beside another is none of it.
    let beside = rows(&[("/a/srv", 5)], &[("/a/srv", 3), ("/home/x/srv", 4)]);
    assert_eq!(beside, [row("/a/srv", 5, 3), row("srv", 0, 4)].into());
    // What a user shows at a path is not what is there.
    let shown = rows(&[("/a/srv", 5)], &[("/a/srv", 3), ("user 7:/a/srv", 4)]);
    assert_eq!(shown, [row("srv", 5, 3), row("user 7:srv", 0, 4)].into());
}

fn drawn(random: &mut Random, shares: &[f64], samples: u32) -> Profile {
    let mut ends: Vec<f64> = Vec::new();
    for share in shares {
        ends.push(ends.last().unwrap_or(&0.0) + share);
    }
    let sum = *ends.last().unwrap();
    let mut counts = vec![0u64; shares.len()];
    for _ in 0..samples {
        let at = random.fraction() * sum;
        counts[ends.partition_point(|&end| end <= at).min(shares.len() - 1)] += 1;
    }
    let mut maker = Maker::with(session(), ProfileLimits::default());
    let main = maker.function("main");
    let thread = maker.thread(7);
    let root = maker.profile.contexts_mut().push(ContextId::ROOT, main);
    for (i, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let function = maker.function(&format!("f{i}"));
        let context = maker.profile.contexts_mut().push(root, function);
        maker.profile.charge_many(thread, context, LineId::UNKNOWN, count, &[count * 1_001_001]);
    }
    maker.profile
}

fn shares() -> Vec<f64> {
    (0..40).map(|i| 0.85f64.powi(i)).collect()
}

/// How the shares of one run differ from those of another.
fn draw_run(random: &mut Random, shares: &[f64], spread: f64) -> Vec<f64> {
    // Of twelve uniform numbers the sum is about normal.
    let mut normal = || (0..12).map(|_| random.fraction()).sum::<f64>() - 6.0;
    shares.iter().map(|share| share * (spread * normal()).exp()).collect()
}

/// Compares runs of the given numbers of samples, `TRIALS` times, and says in how many a row is flagged by `flag`.
fn flagged(seed: u64, sides: [&[u32]; 2], after: &[f64], spread: f64, flag: impl Fn(&DiffRow) -> bool) -> u32 {
    let mut random = Random::new(seed);
    let all = Selection::all();
    let mut trials = 0;
    for _ in 0..TRIALS {
        let [old, new] = [(sides[0], &shares()[..]), (sides[1], after)].map(|(runs, shares)| {
            let one = |&samples: &u32| {
                let shares = draw_run(&mut random, shares, spread);
                drawn(&mut random, &shares, samples)
            };
            runs.iter().map(one).collect::<Vec<Profile>>()
        });
        fn runs<'a>(profiles: &'a [Profile], all: &'a Selection) -> Vec<Run<'a>> {
            profiles.iter().map(|it| (it, all)).collect()
        }
        trials += u32::from(DiffView::from_runs(&runs(&old, &all), &runs(&new, &all)).rows.iter().any(&flag));
    }
    trials
}

fn any(row: &DiffRow) -> bool {
    row.self_significant
}

#[test]
fn nothing_is_flagged_where_nothing_changed() {
    let same = shares();
    for (seed, sides) in [(1, [500, 500]), (2, [100, 10_000]), (3, [10_000, 100]), (4, [5_000, 5_000])] {
        let found = flagged(seed, [&sides[..1], &sides[1..]], &same, 0.0, any);
        assert!(found <= MOST, "{sides:?}: {found} of {TRIALS}");
    }
}

#[test]
fn how_runs_differ_is_no_change() {
    let same = shares();
    for (seed, sides, spread) in [
        (5, [&[800; 3][..], &[800; 3][..]], 0.0),
        (6, [&[800; 3][..], &[800; 3][..]], 0.3),
        (7, [&[500, 1_000, 2_000, 700, 900], &[800, 1_000]], 0.2),
        (8, [&[1_000], &[1_000; 4]], 0.2),
    ] {
        let found = flagged(seed, sides, &same, spread, any);
        assert!(found <= MOST, "{sides:?} {spread}: {found} of {TRIALS}");
    }
    assert!(flagged(9, [&[5_000], &[5_000]], &same, 0.3, any) > TRIALS / 2);
}

#[test]
fn changed_functions_are_found() {
    // The fourth function, of 9%, takes twice the time; the others' shares shrink by 8%.
    let mut grown = shares();
    grown[3] *= 2.0;
    let found = |row: &DiffRow| row.self_significant && row.self_change > 0.0 && row.function.name == "f3";
    for (seed, sides, spread, least) in [
        (10, [&[1_000][..], &[1_000][..]], 0.0, 95),
        (11, [&[300], &[30_000]], 0.0, 60),
        (12, [&[1_000; 5], &[1_000; 5]], 0.1, 80),
        (13, [&[2_000; 3], &[2_000; 3]], 0.05, 50),
    ] {
        let of = flagged(seed, sides, &grown, spread, found) * 100 / TRIALS;
        assert!(of >= least, "{sides:?}: found in {of}%");
    }
}

#[test]
fn many_flags_have_few_false_ones() {
    // Ten of forty changed: of what is flagged at most 5% may be others. (Factors keep the sum of all as it is.)
    let mut random = Random::new(14);
    let all = Selection::all();
    let same = shares();
    let mut changed = same.clone();
    for i in (0..20).step_by(4) {
        let moved = changed[i] * 0.5;
        changed[i] -= moved;
        changed[i + 1] += moved;
    }
    let (mut parts, mut true_ones) = (0.0, 0u32);
    for _ in 0..TRIALS {
        let (old, new) = (drawn(&mut random, &same, 3_000), drawn(&mut random, &changed, 3_000));
        let view = DiffView::new((&old, &all), (&new, &all));
        let flagged = view.rows.iter().filter(|row| row.self_significant);
        let is_true = |row: &&DiffRow| row.function.name[1..].parse::<usize>().is_ok_and(|i| i < 20 && i % 4 < 2);
        let (right, wrong): (Vec<_>, Vec<_>) = flagged.partition(is_true);
        parts += wrong.len() as f64 / (right.len() + wrong.len()).max(1) as f64;
        true_ones += right.len() as u32;
    }
    let part = parts / f64::from(TRIALS);
    assert!(part <= 0.05, "{part}");
    assert!(true_ones >= TRIALS * 6, "{true_ones}");
}

fn program_profile(name: &str, others: &[&str]) -> Profile {
    let session = ccsd_profile::SessionInfo { command: vec![format!("./{name}")], ..session() };
    let mut maker = Maker::with(session, ProfileLimits::default());
    let template = maker.function("template");
    let thread = maker.thread(7);
    for image in [&[name], others].concat() {
        let image = maker.profile.add_image(Image { name: format!("/srv/{image}"), build_id: Vec::new() });
        let template = maker.profile.cost_centres()[template.index()].clone();
        let centre = CostCentre { image, linkage_name: Some("f".to_owned()), ..template };
        let function = maker.profile.add_cost_centre(centre);
        let context = maker.profile.contexts_mut().push(ContextId::ROOT, function);
        maker.profile.charge(thread, context, LineId::UNKNOWN, &[1]);
    }
    maker.profile
}

/// Two builds of a program count as one image whatever their files are called, unless one ran beside the other.
#[test]
fn programs_of_other_file_names_are_compared() {
    let all = Selection::all();
    let images = |before: &Profile, after: &Profile| -> Vec<String> {
        let view = DiffView::new((before, &all), (after, &all));
        let mut images: Vec<String> = view.rows.iter().map(|row| row.function.image.clone()).collect();
        images.sort();
        images
    };
    let (before, after) = (program_profile("prog1", &["libx.so"]), program_profile("prog2", &["libx.so"]));
    assert_eq!(images(&before, &after), ["libx.so", "prog2"]);
    let beside = program_profile("prog2", &["prog1"]);
    assert_eq!(images(&program_profile("prog1", &[]), &beside), ["prog1", "prog2"]);
}
