//! Parts of a profile: below a least share, and of a part of the time. Totals survive, and the parts add up to the
//! whole.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ccsd_profile::codec::read_timeline;
use ccsd_profile::export::{Export, Format};
use ccsd_profile::query::Grouping;
use ccsd_profile::view::{FlatView, LinesView, Selection, StacksView, TimelineView, ViewColumn};
use ccsd_profile::{CostCentreId, Encoder, LineId, Profile, TimeWindow, Timeline, read_window};
use common::Maker;
use proptest::prelude::*;

type Samples = Vec<(Vec<u32>, u64)>;

fn samples() -> impl Strategy<Value = Samples> {
    prop::collection::vec((prop::collection::vec(0..9u32, 1..12), 1..1000u64), 1..40)
}

fn charge(maker: &mut Maker, samples: &[(Vec<u32>, u64)]) {
    let line = maker.profile.add_line("demo.c", 5);
    for (stack, weight) in samples {
        let names: Vec<String> = stack.iter().map(|function| format!("f{function}")).collect();
        maker.charge_at(7, &names.join(" "), line, *weight);
    }
}

fn weights(profile: &Profile) -> BTreeMap<String, (u64, u64)> {
    let rows = FlatView::new(profile, &Selection::all()).rows;
    rows.into_iter().map(|row| (row.name, (row.self_weight, row.inherited_weight))).collect()
}

/// The sum of two functions' weights is more than a number can hold, as a damaged or hostile file may say.
#[test]
fn a_timeline_of_weights_without_bounds() {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let mut list = Vec::new();
    for second in 1..3 {
        for name in ["f1", "f2"] {
            maker.charge(name, u64::MAX);
        }
        maker.profile.accounting_mut().duration_ns = second * 1_000;
        let update = maker.profile.take_update();
        list.push((update.from_ns, update.to_ns));
        encoder.write(&update).unwrap();
    }
    let file = encoder.finish().unwrap();
    let timeline = Timeline::of_intervals(&list, 2, 2);
    let read = read_timeline(&file[..], 0, &timeline).unwrap();
    let view = TimelineView::new(&read.profile, &Selection::all(), &timeline, false, usize::MAX, |_| true);
    assert_eq!(view.weights, [u64::MAX; 2]);
    assert_eq!(view.other, Some(vec![0; 2]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Pruned + other = total, and what is kept is as it was, in every view and export alike; against the raw stacks.
    #[test]
    fn functions_below_the_least_share_are_one(samples in samples(), percent in 0..60u32) {
        let mut maker = Maker::new();
        charge(&mut maker, &samples);
        let fraction = f64::from(percent) / 100.0;
        let pruned = maker.profile.pruned(0, f64::from(percent));
        let all = weights(&maker.profile);
        let total: u64 = samples.iter().map(|it| it.1).sum();
        let is_small = |name: &str| (all[name].1 as f64) / (total as f64) < fraction;
        let mut expected: BTreeMap<String, (u64, u64)> =
            all.iter().filter(|(name, _)| !is_small(name)).map(|(name, it)| (name.clone(), *it)).collect();
        let small = all.keys().filter(|name| is_small(name)).count();
        prop_assert_eq!(pruned.functions, small);
        if small > 0 {
            let on = |stack: &[u32]| stack.iter().any(|it| is_small(&format!("f{it}")));
            let inherited = samples.iter().filter(|(stack, _)| on(stack)).map(|it| it.1).sum();
            let own = samples.iter().filter(|(stack, _)| on(&stack[stack.len() - 1..])).map(|it| it.1).sum();
            expected.insert(format!("[other: {small} below {percent}%]"), (own, inherited));
        }
        prop_assert_eq!(weights(&pruned.profile), expected.clone());
        let stacks = StacksView::new(&pruned.profile, &Selection::all());
        prop_assert_eq!(stacks.rows.iter().map(|row| row.weight).sum::<u64>(), total);
        let mut folded = Vec::new();
        let all = Selection::all();
        Export { comments: false, ..Export::new(&pruned.profile, &all) }.write(Format::Folded, &mut folded).unwrap();
        let mut own: BTreeMap<String, u64> = BTreeMap::new();
        for line in String::from_utf8(folded).unwrap().lines() {
            let (stack, weight) = line.rsplit_once(' ').unwrap();
            *own.entry(stack.rsplit(';').next().unwrap().to_owned()).or_default() += weight.parse::<u64>().unwrap();
        }
        let expected_own: BTreeMap<_, _> = expected.into_iter().map(|(name, it)| (name, it.0)).filter(|it| it.1 > 0).collect();
        prop_assert_eq!(own, expected_own);
    }

    /// Every way to cut the time in two gives parts that merge to the whole, accounting included.
    #[test]
    fn parts_of_the_time_add_up(intervals in prop::collection::vec(samples(), 1..6), at in 0..7u64, inside in 0..2u64) {
        let mut maker = Maker::new();
        let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
        for (samples, second) in intervals.iter().zip(1..) {
            charge(&mut maker, samples);
            maker.profile.accounting_mut().duration_ns = second * 1_000;
            encoder.write(&maker.profile.take_update()).unwrap();
        }
        let file = encoder.finish().unwrap();
        let read = |from_ns, until_ns| read_window(&file[..], TimeWindow { from_ns, until_ns }).unwrap();
        let cut = at * 1_000 + 300 * inside;
        let (early, of_early) = read(0, cut);
        let (late, of_late) = read(cut, u64::MAX);
        prop_assert_eq!(of_early.taken + of_late.taken, intervals.len() as u64);
        prop_assert_eq!((of_early.all, of_early.longest_ns), (intervals.len() as u64, 1_000));
        prop_assert_eq!(of_early.taken, at.min(intervals.len() as u64));
        if of_late.taken > 0 {
            prop_assert_eq!((of_late.from_ns, of_late.to_ns), (at * 1_000, intervals.len() as u64 * 1_000));
        }
        let received = early.profile.accounting().received + late.profile.accounting().received;
        prop_assert_eq!(received, maker.profile.accounting().received);
        prop_assert_eq!(late.profile.accounting().duration_ns, of_late.taken * 1_000);
        let mut both = early.profile;
        both.merge(&late.profile).unwrap();
        prop_assert_eq!(both.canonical(), maker.profile.canonical());
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// A timeline has each function's weight by interval, also with hidden functions, other cost centres and few
    /// columns.
    #[test]
    fn a_timeline_is_the_flat_views_of_its_columns(
        intervals in prop::collection::vec(samples(), 1..9),
        most in 1..12usize,
        inherited: bool,
        hide in prop::option::of(0..9u32),
    ) {
        let mut maker = Maker::new();
        let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
        let mut list = Vec::new();
        for (samples, second) in intervals.iter().zip(1..) {
            charge(&mut maker, samples);
            maker.profile.accounting_mut().duration_ns = second * 1_000;
            let update = maker.profile.take_update();
            list.push((update.from_ns, update.to_ns));
            encoder.write(&update).unwrap();
        }
        let file = encoder.finish().unwrap();
        let timeline = Timeline::of_intervals(&list, maker.profile.charge_count(), most);
        let columns = timeline.columns();
        prop_assert!(columns.len() <= most && columns.len() == most.min(list.len()), "{:?}", columns);
        prop_assert_eq!((columns[0].from_ns, columns[columns.len() - 1].to_ns), (0, list.len() as u64 * 1_000));
        prop_assert!(columns.windows(2).all(|it| it[0].to_ns == it[1].from_ns));
        let read = read_timeline(&file[..], 0, &timeline).unwrap();
        let hidden = |profile: &Profile| {
            let name = hide.map(|it| format!("f{it}"));
            let at = profile.cost_centres().iter().position(|it| it.linkage_name == name);
            Selection::all().hide(at.map(|at| CostCentreId::new(at as u32)))
        };
        let lexical = read.profile.selected(&hidden(&read.profile)).by(Grouping::Lexical);
        for profile in [&read.profile, &lexical] {
            let view = TimelineView::new(profile, &hidden(profile), &timeline, inherited, usize::MAX, |_| true);
            prop_assert_eq!(view.weights.iter().sum::<u64>(), view.total.weight);
            for (at, column) in columns.iter().enumerate() {
                let window = TimeWindow { from_ns: column.from_ns, until_ns: column.to_ns };
                let part = read_window(&file[..], window).unwrap().0.profile;
                let flat = FlatView::new(&part, &hidden(&part));
                prop_assert_eq!(view.weights[at], flat.total.weight);
                let found: BTreeMap<String, u64> = view.bands.iter().map(|it| (it.name.clone(), it.weights[at])).filter(|it| it.1 > 0).collect();
                let weight = |row: &ccsd_profile::view::FlatRow| if inherited { row.inherited_weight } else { row.self_weight };
                let expected: BTreeMap<String, u64> = flat.rows.iter().map(|row| (row.name.clone(), weight(row))).filter(|it| it.1 > 0).collect();
                prop_assert_eq!(found, expected);
            }
            let few = TimelineView::new(profile, &hidden(profile), &timeline, false, 2, |_| true);
            let other = few.other.clone().unwrap();
            for (at, other) in other.iter().enumerate() {
                prop_assert_eq!(few.bands.iter().map(|it| it.weights[at]).sum::<u64>() + other, few.weights[at]);
            }
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn sorting_only_sorts(samples in samples()) {
        let mut maker = Maker::new();
        charge(&mut maker, &samples);
        let usual = FlatView::new(&maker.profile, &Selection::all());
        for &column in FlatView::COLUMNS {
            let mut sorted = usual.clone();
            sorted.sort(column);
            let keys: Vec<_> = sorted.rows.iter().map(|row| match column {
                ViewColumn::Inherited => u64::MAX - row.inherited_weight,
                ViewColumn::Child => u64::MAX - row.child_weight(),
                ViewColumn::Samples => u64::MAX - row.samples_self,
                ViewColumn::Own => u64::MAX - row.self_weight,
                _ => 0,
            }).collect();
            prop_assert!(keys.is_sorted(), "{:?}", column);
            if column == ViewColumn::Name {
                prop_assert!(sorted.rows.iter().map(|row| &row.name).is_sorted());
            }
            sorted.sort(ViewColumn::Own);
            let mut again = usual.clone();
            again.rows.sort_by(|a, b| (&a.name, a.function).cmp(&(&b.name, b.function)));
            sorted.rows.sort_by(|a, b| (&a.name, a.function).cmp(&(&b.name, b.function)));
            prop_assert_eq!(&again.rows, &sorted.rows);
        }
    }
}

#[test]
fn the_lines_of_what_is_summed_up_are_gone() {
    let mut maker = Maker::new();
    let line = maker.profile.add_line("small.c", 3);
    maker.charge_at(7, "main small", line, 1);
    maker.charge_at(7, "main", LineId::UNKNOWN, 99);
    let pruned = maker.profile.pruned(0, 2.0);
    let lines = LinesView::new(&pruned.profile, &Selection::all());
    assert!(lines.functions.iter().flat_map(|it| &it.lines).all(|line| line.file.is_empty()), "{lines:?}");
}
