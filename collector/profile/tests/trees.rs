//! The trees: each has the weights of the flat view and the arcs of the graph, whatever is too light to be shown.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ccsd_profile::view::{CyclesView, DiffTree, DiffView, FlatView, GraphView, Selection, TreeView};
use ccsd_profile::{CostCentreId, Profile};
use common::{Maker, made, samples};
use proptest::prelude::*;

fn assert_sound(view: &TreeView, total: u64) {
    let roots: u64 = view.roots.iter().map(|&i| view.nodes[i].weight).sum();
    assert_eq!(roots + view.other.weight, total);
    for (i, node) in view.nodes.iter().enumerate() {
        let below: u64 = node.children.iter().map(|&child| view.nodes[child].weight).sum();
        assert_eq!(node.self_weight + below + node.other.weight, node.weight);
        assert!(node.children.iter().all(|&child| child > i && view.nodes[child].parent == Some(i)));
        assert!(node.children.iter().map(|&child| u64::MAX - view.nodes[child].weight).is_sorted());
        assert!(view.names.contains_key(&node.function));
    }
    assert_eq!(view.nodes.iter().filter(|node| node.parent.is_none()).count(), view.roots.len());
}

fn functions(profile: &Profile) -> Vec<CostCentreId> {
    FlatView::new(profile, &Selection::all()).rows.iter().map(|row| row.function).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn trees_agree_with_the_flat_view_and_the_graph(samples in samples(), hide in prop::option::of(0..6u32), percent in 0..40u32) {
        let maker = made(&samples);
        let profile = &maker.profile;
        let hidden = hide.filter(|it| samples.iter().any(|(stack, _)| stack.contains(it)));
        let all = Selection::all().hide(hidden.map(|it| maker.find(&format!("f{it}"))));
        let least = f64::from(percent) / 100.0;
        let flat = FlatView::new(profile, &all);
        let total = flat.total.weight;
        let whole = TreeView::new(profile, &all);
        assert_sound(&whole, total);
        let mut own: BTreeMap<CostCentreId, u64> = BTreeMap::new();
        let mut inherited = own.clone();
        for node in &whole.nodes {
            *own.entry(node.function).or_default() += node.self_weight;
            // Every stack has the marked entry of a function once.
            *inherited.entry(node.function).or_default() += if node.marked { node.weight } else { 0 };
        }
        let up = TreeView::bottom_up(profile, &all, 0.0);
        assert_sound(&up, total);
        for row in &flat.rows {
            prop_assert_eq!((own[&row.function], inherited[&row.function]), (row.self_weight, row.inherited_weight));
            let root = up.roots.iter().map(|&i| &up.nodes[i]).find(|node| node.function == row.function);
            prop_assert_eq!(root.map_or(0, |node| node.weight), row.self_weight);
        }
        let graph = GraphView::new(profile, &all);
        for node in &graph.nodes {
            let callers = TreeView::callers(profile, &all, node.function, 0.0);
            let callees = TreeView::callees(profile, &all, node.function, 0.0);
            for view in [&callers, &callees] {
                assert_sound(view, node.inherited_weight());
                prop_assert_eq!(view.roots.len(), 1);
            }
            prop_assert_eq!(callees.nodes[0].self_weight, node.self_weight);
            // Its arcs, whatever the marks of what is at their ends.
            let arcs = |view: &TreeView| {
                let mut arcs: BTreeMap<CostCentreId, u64> = BTreeMap::new();
                for &child in &view.nodes[view.roots[0]].children {
                    *arcs.entry(view.nodes[child].function).or_default() += view.nodes[child].weight;
                }
                arcs
            };
            let sum = |arcs: &[ccsd_profile::view::GraphArc]| -> BTreeMap<CostCentreId, u64> {
                arcs.iter().map(|arc| (arc.function, arc.self_weight + arc.child_weight)).collect()
            };
            prop_assert_eq!(arcs(&callees), sum(&node.callees));
            prop_assert_eq!(arcs(&callers), sum(&node.callers));
        }
        // What is too light is summed up where it would be, and all else is as in the whole tree.
        for view in [TreeView::top_down(profile, &all, least), TreeView::bottom_up(profile, &all, least)] {
            assert_sound(&view, total);
            prop_assert!(view.nodes.iter().all(|node| node.weight as f64 >= least * total as f64));
        }
        let heavy = whole.nodes.iter().filter(|node| node.weight as f64 / total as f64 >= least).count();
        prop_assert_eq!(TreeView::top_down(profile, &all, least).nodes.len(), heavy);
        let mut few = whole.clone();
        few.limit(5);
        assert_sound(&few, total);
        prop_assert_eq!(few.nodes.len(), whole.nodes.len().min(5));
        let heaviest = whole.nodes.iter().map(|node| node.weight).max();
        prop_assert_eq!(few.nodes.iter().map(|node| node.weight).max(), heaviest);
        // The heaviest chains: every next one no heavier, and together no node twice but at forks.
        let paths = whole.hot_paths(usize::MAX);
        let mut seen = vec![false; whole.nodes.len()];
        let mut last = u64::MAX;
        for path in paths {
            let new = path.iter().find(|&&i| !seen[i]).unwrap();
            prop_assert!(whole.nodes[*new].weight <= last);
            last = whole.nodes[*new].weight;
            path.iter().for_each(|&i| seen[i] = true);
        }
        prop_assert!(seen.iter().all(|&seen| seen));
    }
}

#[test]
fn a_function_that_is_not_there_has_no_tree() {
    let mut maker = made(&[(vec![0, 1], 5)]);
    let other = maker.function("other");
    let all = Selection::all();
    assert!(TreeView::callers(&maker.profile, &all, other, 0.0).nodes.is_empty());
    assert_eq!(functions(&maker.profile).len(), 2);
}

#[test]
fn recursion_is_seen_in_the_tree() {
    let mut maker = Maker::new();
    maker.charge("main p q p q p", 3);
    let view = TreeView::new(&maker.profile, &Selection::all());
    let labels: Vec<String> = view.nodes.iter().map(|node| view.label(node)).collect();
    assert_eq!(labels, ["main", "(p)", "q", "p"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// diff(A, A) is empty, diff(A, B) has the totals of both, and diff(A + B, B) is A.
    #[test]
    fn differences_are_those_of_the_weights(a in samples(), b in samples(), percent in 0..30u32) {
        let all = Selection::all();
        let (one, two) = (made(&a), made(&b));
        let (a, b) = ((&one.profile, &all), (&two.profile, &all));
        let least = f64::from(percent) / 100.0;
        let same = DiffTree::new(a, a, least);
        prop_assert!(same.nodes.iter().all(|node| node.before == node.after && node.change == 0.0));
        prop_assert!(same.nodes.iter().all(|node| !node.significant && !node.absolutely_significant));
        let same = DiffView::new(a, a);
        prop_assert!(same.rows.iter().all(|row| row.before == row.after && row.self_change == 0.0 && row.inherited_change == 0.0));
        prop_assert!(same.rows.iter().all(|row| !row.self_significant && !row.self_absolutely_significant));
        let tree = DiffTree::new(a, b, least);
        let roots = |side: fn(&ccsd_profile::view::DiffNode) -> u64| tree.roots.iter().map(|&i| side(&tree.nodes[i])).sum::<u64>();
        prop_assert_eq!(roots(|it| it.before.weight) + tree.other.before, tree.before.weight);
        prop_assert_eq!(roots(|it| it.after.weight) + tree.other.after, tree.after.weight);
        for node in &tree.nodes {
            let below = |side: fn(&ccsd_profile::view::DiffNode) -> u64| node.children.iter().map(|&i| side(&tree.nodes[i])).sum::<u64>();
            prop_assert_eq!(node.before.self_weight + below(|it| it.before.weight) + node.other.before, node.before.weight);
            prop_assert_eq!(node.after.self_weight + below(|it| it.after.weight) + node.other.after, node.after.weight);
        }
        // Each side by itself is its own tree.
        let whole = DiffTree::new(a, b, 0.0);
        let of = TreeView::new(&one.profile, &all);
        prop_assert_eq!(whole.nodes.iter().filter(|it| it.before.samples > 0).count(), of.nodes.len());
        let mut sum = made(&[]);
        sum.profile.merge(&one.profile).unwrap();
        sum.profile.merge(&two.profile).unwrap();
        let back = DiffTree::new((&sum.profile, &all), b, 0.0);
        let left: u64 = back.nodes.iter().map(|it| it.before.self_weight - it.after.self_weight).sum();
        prop_assert_eq!(left, of.total.weight);
        let flat: BTreeMap<String, u64> = FlatView::new(&one.profile, &all).rows.into_iter().map(|row| (row.name, row.self_weight)).collect();
        for row in DiffView::new((&sum.profile, &all), b).rows {
            let own = |side: Option<ccsd_profile::view::DiffSide>| side.map_or(0, |it| it.self_weight);
            prop_assert_eq!(own(row.before) - own(row.after), flat.get(&row.function.name).copied().unwrap_or(0));
        }
    }

    /// A cycle is in the list once, however it was entered; its self weight is that of its histories.
    #[test]
    fn cycles_are_listed_once(samples in samples()) {
        let maker = made(&samples);
        let view = CyclesView::new(&maker.profile, &Selection::all());
        let rotated = |cycle: &[CostCentreId]| {
            let mut cycle = cycle.to_vec();
            let lowest = (0..cycle.len()).min_by_key(|&at| cycle[at]).unwrap_or(0);
            cycle.rotate_left(lowest);
            cycle
        };
        let mut known: Vec<_> = view.cycles.iter().map(|it| rotated(&it.functions)).collect();
        prop_assert!(view.cycles.iter().all(|it| it.functions == rotated(&it.functions)));
        known.sort();
        let count = known.len();
        known.dedup();
        prop_assert_eq!(known.len(), count);
        let own: u64 = view.cycles.iter().map(|it| it.self_weight).sum();
        // A history may have squeezed out the earlier activation.
        prop_assert!(own >= view.rows.iter().map(|row| row.weight).sum::<u64>());
        for cycle in &view.cycles {
            prop_assert!(cycle.self_weight <= cycle.inherited_weight && cycle.inherited_weight <= view.total.weight);
        }
        for row in &view.rows {
            let members = rotated(&row.cycle[..row.cycle.len() - 1]);
            prop_assert!(view.cycles.iter().any(|it| it.functions == members));
        }
    }
}

#[test]
fn a_cycle_has_the_time_of_what_it_calls() {
    let mut maker = Maker::new();
    maker.charge("main p q p", 3);
    maker.charge("main q p q", 4);
    maker.charge("other p q p leaf", 5);
    maker.charge("main p q", 7);
    let view = CyclesView::new(&maker.profile, &Selection::all());
    let names: Vec<&str> = view.cycles[0].functions.iter().map(|id| view.names[id].as_str()).collect();
    assert_eq!((view.cycles.len(), names), (1, vec!["p", "q"]));
    assert_eq!((view.cycles[0].self_weight, view.cycles[0].inherited_weight), (7, 12));
}

#[test]
fn weights_that_differ_by_more_than_chance() {
    let all = Selection::all();
    let differs = |a: &[(usize, u32)], b: &[(usize, u32)]| {
        let [one, two] = [a, b].map(|parts| {
            let samples: Vec<_> = parts.iter().flat_map(|&(n, function)| vec![(vec![function], 10); n]).collect();
            made(&samples)
        });
        let view = DiffView::new((&one.profile, &all), (&two.profile, &all));
        view.rows.iter().find(|row| row.function.name == "f0").unwrap().self_absolutely_significant
    };
    assert!(
        differs(&[(500, 0), (500, 1)], &[(560, 0), (440, 1)]) && !differs(&[(500, 0), (500, 1)], &[(535, 0), (465, 1)])
    );
    assert!(differs(&[(10, 0), (90, 1)], &[(30, 0), (90, 1)]) && !differs(&[(1, 0), (99, 1)], &[(3, 0), (97, 1)]));
    // The total itself is no Poisson number: with a fixed period it is the CPU time, to a sample for each thread.
    assert!(differs(&[(1_000, 0)], &[(1_060, 0)]) && !differs(&[(1_000, 0)], &[(1_002, 0)]));
    assert!(differs(&[(10, 0)], &[(30, 0)]) && !differs(&[(1, 0)], &[(3, 0)]));
}
