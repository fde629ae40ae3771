//! Naming later is as good as having known the name from the start: I5, I7, I8 and I9.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ccsd_profile::view::{FlatView, GraphArc, GraphView, LinesView, Selection, StacksView, ThreadsView, TreeView};
use ccsd_profile::*;
use common::{Maker, session};
use proptest::prelude::*;

/// Functions 0 to 5, each with three addresses; an entry is an address, known by name or not.
type NamedEntry = (u32, u32, bool);
type NamedSample = (Vec<NamedEntry>, u64);

fn samples() -> impl Strategy<Value = Vec<NamedSample>> {
    let entry = (0..6u32, 0..3u32, any::<bool>());
    prop::collection::vec((prop::collection::vec(entry, 1..12), 1..1000u64), 1..30)
}

/// Stacks without mutual recursion: functions in order.
fn straight() -> impl Strategy<Value = Vec<NamedSample>> {
    samples().prop_map(|mut samples| {
        samples.iter_mut().for_each(|(stack, _)| stack.sort_unstable());
        samples
    })
}

fn unnamed(maker: &mut Maker, function: u32, address: u32) -> CostCentreId {
    let (image, start) = (maker.image, Some(u64::from(0x1000 * function + address)));
    let none = CostCentre { image, linkage_name: None, display_name: None, start, file: None, line: 0, local: false };
    maker.profile.add_cost_centre(none)
}

fn charge(maker: &mut Maker, (stack, weight): &NamedSample, names_known: bool) {
    let mut context = ContextId::ROOT;
    for &(function, address, named) in stack {
        let centre = match named || names_known {
            true => maker.function(&format!("f{function}")),
            false => unnamed(maker, function, address),
        };
        context = maker.profile.contexts_mut().push(context, centre);
    }
    let thread = maker.thread(7);
    let line = maker.profile.add_line("a.js", stack.len() as u32 % 3);
    maker.profile.charge(thread, context, line, &[*weight]);
    maker.profile.accounting_mut().received += 1;
}

fn name_all(maker: &mut Maker) {
    for id in (2u32..).map(CostCentreId::new).take(maker.profile.cost_centres().len() - 2) {
        let centre = maker.profile.cost_centre(id).unwrap();
        if let (None, Some(start)) = (&centre.linkage_name, centre.start)
            && maker.profile.real(id) == id
        {
            let function = maker.function(&format!("f{}", start / 0x1000));
            assert!(maker.profile.name_later(id, function));
        }
    }
}

fn known(samples: &[NamedSample]) -> Maker {
    let mut maker = Maker::new();
    samples.iter().for_each(|sample| charge(&mut maker, sample, true));
    maker
}

fn later(samples: &[NamedSample]) -> Maker {
    let mut maker = Maker::new();
    samples.iter().for_each(|sample| charge(&mut maker, sample, false));
    name_all(&mut maker);
    maker
}

fn flat(profile: &Profile, selection: &Selection) -> BTreeMap<String, [u64; 4]> {
    let rows = FlatView::new(profile, selection).rows.into_iter();
    rows.map(|row| (row.name, [row.self_weight, row.inherited_weight, row.samples_self, row.samples_inherited]))
        .collect()
}

type Arcs = Vec<(String, u64, u64)>;

fn arcs(profile: &Profile) -> BTreeMap<String, (Arcs, Arcs)> {
    let list = |arcs: &[GraphArc]| {
        let mut list: Vec<_> = arcs.iter().map(|arc| (arc.name.clone(), arc.self_weight, arc.child_weight)).collect();
        list.sort();
        list
    };
    let nodes = GraphView::new(profile, &Selection::all()).nodes.into_iter();
    nodes.map(|node| (node.name, (list(&node.callers), list(&node.callees)))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// I5: self and inherited weights, with hidden functions too.
    #[test]
    fn named_later_is_known_from_the_start(samples in samples(), hidden in 0..6u32) {
        let (known, later) = (known(&samples), later(&samples));
        prop_assert_eq!(flat(&known.profile, &Selection::all()), flat(&later.profile, &Selection::all()));
        let hide = |maker: &Maker| {
            let name = format!("f{hidden}");
            let found = maker.profile.cost_centres().iter().position(|it| it.linkage_name.as_deref() == Some(&name));
            Selection::all().hide(found.map(|i| CostCentreId::new(i as u32)))
        };
        prop_assert_eq!(flat(&known.profile, &hide(&known)), flat(&later.profile, &hide(&later)));
        // A selection may also speak of what has been named since.
        let first = (2..later.profile.cost_centres().len() as u32).map(CostCentreId::new)
            .find(|&id| later.profile.real(id) != id);
        if let Some(id) = first {
            let by_either = [id, later.profile.real(id)].map(|id| flat(&later.profile, &Selection::all().focus([id])));
            prop_assert_eq!(&by_either[0], &by_either[1]);
            prop_assert!(!by_either[0].is_empty());
            prop_assert!(!Selection::all().hide([id]).shows(id));
        }
        let total: u64 = samples.iter().map(|(_, weight)| weight).sum();
        let all = Selection::all();
        prop_assert_eq!(LinesView::new(&later.profile, &all).functions.iter().map(|f| f.self_weight).sum::<u64>(), total);
        prop_assert_eq!(ThreadsView::new(&later.profile, &all).processes[0].weight, total);
        prop_assert_eq!(StacksView::new(&later.profile, &all).rows.iter().map(|row| row.weight).sum::<u64>(), total);
        prop_assert_eq!(TreeView::new(&later.profile, &all).nodes.iter().map(|node| node.self_weight).sum::<u64>(), total);
    }

    /// Contexts, and with them all views, where there is no mutual recursion. Direct recursion folds.
    #[test]
    fn without_mutual_recursion_nothing_tells_them_apart(samples in straight()) {
        let (known, later) = (known(&samples), later(&samples));
        prop_assert_eq!(known.profile.canonical(), later.profile.canonical());
        prop_assert_eq!(arcs(&known.profile), arcs(&later.profile));
    }

    /// I9 holds of the named.
    #[test]
    fn i9_arcs_add_up(samples in samples()) {
        let sum = |arcs: &[GraphArc]| arcs.iter().map(|arc| arc.self_weight + arc.child_weight).sum::<u64>();
        for node in GraphView::new(&later(&samples).profile, &Selection::all()).nodes {
            prop_assert_eq!(node.child_weight, sum(&node.callees));
            let as_root = node.root_self_weight + node.root_child_weight;
            prop_assert_eq!(sum(&node.callers) + as_root, node.inherited_weight());
        }
    }

    /// I7 and I8: a reader of the stream, of the file, and one who joins late see the same; names may come in any interval.
    #[test]
    fn i7_i8_streams(intervals in prop::collection::vec((samples(), any::<bool>()), 1..4), joined in 0..4usize) {
        let mut maker = Maker::new();
        let mut reader = Profile::new(session(), ProfileLimits::default());
        let mut late: Option<Profile> = None;
        let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
        for (i, (samples, name)) in intervals.iter().enumerate() {
            samples.iter().for_each(|sample| charge(&mut maker, sample, false));
            if *name {
                name_all(&mut maker);
            }
            if i == joined.min(intervals.len() - 1) {
                let mut profile = Profile::new(session(), ProfileLimits::default());
                profile.apply(&maker.profile.snapshot()).unwrap();
                late = Some(profile);
            }
            let update = maker.profile.take_update();
            reader.apply(&update).unwrap();
            if let Some(late) = &mut late {
                late.apply(&update).unwrap();
            }
            encoder.write(&update).unwrap();
        }
        let file = read_profile(&encoder.finish().unwrap()[..]).unwrap().profile;
        let expected = maker.profile.canonical();
        for profile in [&reader, &late.unwrap(), &file] {
            prop_assert_eq!(&profile.canonical(), &expected);
        }
        prop_assert!(maker.profile.take_update().is_empty());
    }

    #[test]
    fn i7_merge(a in samples(), b in samples()) {
        let mut first = Maker::new();
        a.iter().for_each(|sample| charge(&mut first, sample, false));
        let mut second = Maker::new();
        b.iter().for_each(|sample| charge(&mut second, sample, false));
        // The second half also hears the names of what only the first met.
        for (function, address, _) in a.iter().flat_map(|(stack, _)| stack) {
            unnamed(&mut second, *function, *address);
        }
        name_all(&mut second);
        let merged = |parts: [&Profile; 2]| {
            let mut sum = Profile::new(session(), ProfileLimits::default());
            parts.iter().for_each(|part| sum.merge(part).unwrap());
            sum
        };
        let ab = merged([&first.profile, &second.profile]);
        let ba = merged([&second.profile, &first.profile]);
        let whole = known(&[a, b].concat());
        let all = Selection::all();
        prop_assert_eq!(flat(&ab, &all), flat(&whole.profile, &all));
        prop_assert_eq!(flat(&ba, &all), flat(&whole.profile, &all));
        prop_assert_eq!(ab.canonical().charges.values().map(|sums| sums.samples).sum::<u64>(),
            ba.canonical().charges.values().map(|sums| sums.samples).sum::<u64>());
    }

    /// Regrouping is of the named functions.
    #[test]
    fn regrouping(samples in samples()) {
        let group = |_, function: &CostCentre| {
            let number: u32 = function.linkage_name.as_deref().unwrap()[1..].parse().unwrap();
            CostCentre { linkage_name: Some(format!("f{}", number / 2)), ..function.clone() }
        };
        let (known, later) = (known(&samples).profile.regrouped(group), later(&samples).profile.regrouped(group));
        prop_assert_eq!(flat(&known, &Selection::all()), flat(&later, &Selection::all()));
    }
}

#[test]
fn only_the_nameless_are_named_and_only_once() {
    let mut maker = Maker::new();
    let (a, b) = (unnamed(&mut maker, 1, 0), unnamed(&mut maker, 1, 1));
    let (f, g) = (maker.function("f"), maker.function("g"));
    let profile = &mut maker.profile;
    assert!(!profile.name_later(f, g), "it has a name");
    assert!(!profile.name_later(a, a) && !profile.name_later(a, CostCentreId::new(99)));
    assert!(!profile.name_later(CostCentreId::ELIDED, f) && !profile.name_later(CostCentreId::ROOT, f));
    assert!(profile.name_later(a, b), "a catch-all may be nameless");
    assert!(!profile.name_later(b, f), "others were named after it");
    assert!(!profile.name_later(a, f), "it has been named");
    assert_eq!((profile.real(a), profile.real(b), profile.real(f)), (b, b, f));
    assert_eq!(profile.take_update().namings, [(a, b)]);
}

#[test]
fn a_reader_refuses_what_no_writer_says() {
    let mut maker = Maker::new();
    let ids = [unnamed(&mut maker, 1, 0), unnamed(&mut maker, 1, 1), maker.function("f"), CostCentreId::new(99)];
    let definitions = maker.profile.take_update();
    let mut reader = Profile::new(session(), ProfileLimits::default());
    let before = reader.canonical();
    let [a, b, f, missing] = ids;
    for namings in [
        vec![(f, a)],
        vec![(a, missing)],
        vec![(missing, f)],
        vec![(a, a)],
        vec![(CostCentreId::ROOT, f)],
        vec![(a, f), (a, f)],
        vec![(a, b), (b, f)],
        vec![(b, f), (a, b)],
    ] {
        let update = Update { namings: namings.clone(), ..definitions.clone() };
        assert!(reader.apply(&update).is_err(), "{namings:?}");
        assert_eq!(reader.canonical(), before);
        assert_eq!(reader.cost_centres().len(), 2, "nothing of it was applied");
    }
    // After all that the good one is taken, and nothing of the bad ones is left.
    reader.apply(&Update { namings: vec![(a, f)], ..definitions }).unwrap();
    assert_eq!((reader.real(a), reader.real(b)), (f, b));
}
