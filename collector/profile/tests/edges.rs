//! Views and exports show only calls that happened, and gaps where recursion was squeezed out: against raw stacks.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::export::Format;
use ccsd_profile::view::{CyclesView, DiffTree, GraphArc, GraphView, Selection, StacksView, TreeView};
use ccsd_profile::{CostCentre, CostCentreId, History, Profile, ProfileLimits};
use common::readers::{self, Edges, calls, text};
use common::{Maker, session};
use proptest::prelude::*;

type Stack = Vec<u32>;

fn samples() -> impl Strategy<Value = Vec<(Stack, u64)>> {
    (2..6u32).prop_flat_map(|functions| {
        prop::collection::vec((prop::collection::vec(0..functions, 1..13), 1..1000u64), 1..12)
    })
}

fn name(function: u32) -> String {
    format!("f{function}")
}

fn made(samples: &[(Stack, u64)]) -> Maker {
    let mut maker = Maker::new();
    for (stack, weight) in samples {
        maker.charge(&stack.iter().map(|&it| name(it)).collect::<Vec<_>>().join(" "), *weight);
    }
    maker
}

/// The samples with every function as `map` says; `[root]` where nothing is left.
fn mapped(samples: &[(Stack, u64)], map: impl Fn(u32) -> Option<String>) -> Vec<(Vec<String>, u64)> {
    let stack = |stack: &Stack| {
        let mut names: Vec<String> = stack.iter().filter_map(|&it| map(it)).collect();
        names.dedup();
        if names.is_empty() { vec!["[root]".to_owned()] } else { names }
    };
    samples.iter().map(|(it, weight)| (stack(it), *weight)).collect()
}

fn edges_of(stacks: &[(Vec<String>, u64)]) -> Edges {
    stacks.iter().flat_map(|(stack, _)| stack.windows(2).map(|it| (it[0].clone(), it[1].clone()))).collect()
}

fn tree(view: &TreeView, upwards: bool, edges: &mut Edges) {
    for node in view.nodes.iter().filter(|node| !node.gap) {
        if let Some(parent) = node.parent {
            let (a, b) = (view.names[&view.nodes[parent].function].clone(), view.names[&node.function].clone());
            edges.insert(if upwards { (b, a) } else { (a, b) });
        }
    }
}

fn in_views(profile: &Profile, selection: &Selection) -> Edges {
    let mut edges = Edges::new();
    tree(&TreeView::new(profile, selection), false, &mut edges);
    tree(&TreeView::bottom_up(profile, selection, 0.0), true, &mut edges);
    let graph = GraphView::new(profile, selection);
    for node in &graph.nodes {
        tree(&TreeView::callees(profile, selection, node.function, 0.0), false, &mut edges);
        tree(&TreeView::callers(profile, selection, node.function, 0.0), true, &mut edges);
        edges.extend(node.callers.iter().map(|arc| (arc.name.clone(), node.name.clone())));
        edges.extend(node.callees.iter().map(|arc| (node.name.clone(), arc.name.clone())));
    }
    let stacks = StacksView::new(profile, selection);
    for row in &stacks.rows {
        for pair in row.entries.windows(2).filter(|pair| !pair[1].gap) {
            edges.insert((stacks.names[&pair[0].function].clone(), stacks.names[&pair[1].function].clone()));
        }
        let line = stacks.text(row).replace(['(', ')', '~', '<'], "");
        calls(line.split('>').next().unwrap().split(',').rev(), &mut edges);
    }
    let cycles = CyclesView::new(profile, selection);
    for cycle in &cycles.cycles {
        let names: Vec<&str> = cycle.functions.iter().map(|it| cycles.names[it].as_str()).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "each function once");
        assert!(cycle.functions.len() > 1 && cycle.functions.iter().min() == cycle.functions.first());
        calls(names.iter().copied().chain(names.first().copied()), &mut edges);
    }
    let diff = DiffTree::new((profile, selection), (profile, selection), 0.0);
    for node in diff.nodes.iter().filter(|node| !node.gap) {
        if let Some(parent) = node.parent {
            let name = |at: usize| diff.functions[at].name.clone();
            edges.insert((name(diff.nodes[parent].function), name(node.function)));
        }
    }
    edges
}

fn in_exports(profile: &Profile, selection: &Selection) -> Edges {
    let mut edges = Edges::new();
    for format in readers::OF_STACKS {
        edges.extend(readers::edges(&readers::stacks(format, &readers::export(profile, selection, format))));
    }
    edges.extend(readers::dot(&text(profile, selection, Format::Dot)).arcs.into_keys());
    edges.extend(readers::callgrind(&text(profile, selection, Format::Callgrind)).calls.into_keys());
    let gprof = readers::gprof(&text(profile, selection, Format::Gprof));
    edges.extend(gprof.callees.into_keys().chain(gprof.callers.into_keys()));
    edges
}

fn assert_real(profile: &Profile, selection: &Selection, stacks: &[(Vec<String>, u64)]) {
    let real = edges_of(stacks);
    for (what, shown) in [("views", in_views(profile, selection)), ("exports", in_exports(profile, selection))] {
        let wrong: Vec<_> = shown.difference(&real).collect();
        assert!(wrong.is_empty(), "{what} show calls that did not happen: {wrong:?} in {stacks:?}");
    }
}

/// Arcs that are not marked are those of the raw stacks: with their weights, and none is missing.
fn assert_marked(profile: &Profile, selection: &Selection, stacks: &[(Vec<String>, u64)]) {
    let mut raw = Maker::new();
    for (stack, weight) in stacks {
        raw.charge(&stack.join(" "), *weight);
    }
    let raw = GraphView::new(&raw.profile, &Selection::all());
    for node in GraphView::new(profile, selection).nodes {
        let expected = raw.nodes.iter().find(|it| it.name == node.name).unwrap();
        let weights = |arcs: &[GraphArc]| -> BTreeMap<String, (u64, u64)> {
            arcs.iter().map(|arc| (arc.name.clone(), (arc.self_weight, arc.child_weight))).collect()
        };
        if !node.root_approximate {
            assert_eq!(weights(&node.callers), weights(&expected.callers), "callers of {} in {stacks:?}", node.name);
            assert_eq!(node.root_self_weight, expected.root_self_weight);
            assert_eq!(node.root_child_weight, expected.root_child_weight);
        }
        if !node.callees.iter().any(|arc| arc.approximate) {
            assert_eq!(weights(&node.callees), weights(&expected.callees), "callees of {} in {stacks:?}", node.name);
        }
    }
}

fn ids(maker: &Maker, functions: &BTreeSet<u32>) -> Vec<CostCentreId> {
    let known = |it: &u32| maker.profile.cost_centres().iter().any(|centre| centre.linkage_name == Some(name(*it)));
    functions.iter().filter(|it| known(it)).map(|&it| maker.find(&name(it))).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn only_calls_that_happened(samples in samples()) {
        let maker = made(&samples);
        let stacks = mapped(&samples, |it| Some(name(it)));
        assert_real(&maker.profile, &Selection::all(), &stacks);
        assert_marked(&maker.profile, &Selection::all(), &stacks);
        let graph = GraphView::new(&maker.profile, &Selection::all());
        prop_assert!(graph.nodes.iter().all(|node| !node.root_approximate && node.callees.iter().all(|arc| !arc.approximate)));
    }

    #[test]
    fn only_calls_that_happened_with_hidden_functions(samples in samples(), hidden in prop::collection::btree_set(0..6u32, 1..4)) {
        let maker = made(&samples);
        let selection = Selection::all().hide(ids(&maker, &hidden));
        let stacks = mapped(&samples, |it| (!hidden.contains(&it)).then(|| name(it)));
        assert_real(&maker.profile, &selection, &stacks);
        assert_marked(&maker.profile, &selection, &stacks);
        let selected = maker.profile.selected(&selection);
        assert_real(&selected, &Selection::all(), &stacks);
        assert_marked(&selected, &Selection::all(), &stacks);
    }

    #[test]
    fn only_calls_that_happened_between_groups(samples in samples(), groups in prop::collection::vec(0..3u32, 6), hidden in prop::option::of(0..6u32)) {
        let maker = made(&samples);
        let group = |it: u32| format!("g{}", groups[it as usize]);
        let visible = |it: u32| Some(it) != hidden;
        let selected = maker.profile.selected(&Selection::all().hide(ids(&maker, &hidden.into_iter().collect())));
        let grouped = selected.regrouped(|_, centre| {
            let of = centre.linkage_name.as_deref().unwrap()[1..].parse().unwrap();
            CostCentre { linkage_name: Some(group(of)), ..centre.clone() }
        });
        let stacks = mapped(&samples, |it| visible(it).then(|| group(it)));
        assert_real(&grouped, &Selection::all(), &stacks);
        assert_marked(&grouped, &Selection::all(), &stacks);
        let mut merged = Profile::new(session(), ProfileLimits::default());
        merged.merge(&grouped).unwrap();
        assert_real(&merged, &Selection::all(), &stacks);
        assert_marked(&merged, &Selection::all(), &stacks);
    }

    #[test]
    fn only_calls_that_happened_above_a_minimum(samples in samples(), percent in 1..60u32) {
        let maker = made(&samples);
        let pruned = maker.profile.pruned(0, f64::from(percent));
        let kept: BTreeSet<String> = GraphView::new(&pruned.profile, &Selection::all()).nodes.into_iter().map(|it| it.name).collect();
        let other = pruned.other.map(|it| pruned.profile.name(it).into_owned());
        let one_word = |it: String| it.replace(' ', "_");
        let map = |it: u32| Some(if kept.contains(&name(it)) { name(it) } else { one_word(other.clone().unwrap()) });
        let stacks = mapped(&samples, map);
        let real = edges_of(&stacks);
        let shown = in_views(&pruned.profile, &Selection::all());
        prop_assert!(shown.into_iter().all(|(a, b)| real.contains(&(one_word(a), one_word(b)))));
    }
}

/// Every stack of a few functions: a pair is a gap exactly where a stack with the same history lacks the call.
#[test]
fn gaps_are_what_histories_do_not_know() {
    for (functions, depth) in [(2u32, 9u32), (3, 7), (4, 6)] {
        let mut always: BTreeMap<History, BTreeSet<(u32, u32)>> = BTreeMap::new();
        for length in 1..=depth {
            for number in 0..functions.pow(length) {
                let stack: Vec<u32> = (0..length).map(|i| number / functions.pow(i) % functions).collect();
                let history = History::of(stack.iter().map(|&it| CostCentreId::new(it)));
                let calls: BTreeSet<(u32, u32)> = stack.windows(2).map(|it| (it[0], it[1])).collect();
                always
                    .entry(history)
                    .and_modify(|known| *known = known.intersection(&calls).copied().collect())
                    .or_insert(calls);
            }
        }
        for (history, calls) in always {
            let gaps: Vec<usize> = history.gaps().collect();
            for (i, pair) in history.entries().windows(2).enumerate() {
                let call = (pair[0].function.get(), pair[1].function.get());
                if !gaps.contains(&(i + 1)) {
                    assert!(calls.contains(&call), "{history}: {call:?}");
                } else if history.len() < depth as usize {
                    // (The stack that lacks the call has one more function.)
                    assert!(
                        !calls.contains(&call)
                            || history
                                .entries()
                                .windows(2)
                                .filter(|it| (it[0].function.get(), it[1].function.get()) == call)
                                .count()
                                > 1,
                        "{history}: {call:?}"
                    );
                }
            }
        }
    }
}

fn cycles(stack: &str) -> Vec<String> {
    let mut maker = Maker::new();
    let names: Vec<String> = stack.chars().map(String::from).collect();
    maker.charge(&names.join(" "), 1);
    let view = CyclesView::new(&maker.profile, &Selection::all());
    let mut cycles: Vec<String> =
        view.cycles.iter().map(|it| it.functions.iter().map(|id| view.names[id].as_str()).collect()).collect();
    cycles.sort();
    cycles
}

#[test]
fn cycles_are_those_that_were_traversed() {
    assert_eq!(cycles("abcbca"), ["abc", "bc"], "a never called c");
    assert_eq!(cycles("abcacb"), ["abc", "ac", "bc"], "the running b closes one");
    assert_eq!(cycles("abcbab"), ["ab", "bc"], "each function once");
    assert_eq!(cycles("abcd"), [] as [&str; 0]);
    assert_eq!(cycles("aabb"), [] as [&str; 0]);
}

#[test]
fn a_squeezed_run_looks_like_one() {
    let mut maker = Maker::new();
    maker.charge("a b c b c a", 5);
    let all = Selection::all();
    let stacks = StacksView::new(&maker.profile, &all);
    assert_eq!(stacks.text(&stacks.rows[0]), "<a,c,b,(c),[...],(a)> 5");
    let folded = text(&maker.profile, &all, Format::Folded);
    assert!(folded.lines().any(|line| line == "a;[...];c;b;c;a 5"), "{folded}");
    let tree = TreeView::new(&maker.profile, &all);
    let labels: Vec<String> = tree.nodes.iter().map(|node| tree.label(node)).collect();
    assert_eq!(labels, ["(a)", "[...] (c)", "b", "c", "a"]);
}

/// A view of a view: what hiding made uncertain stays marked where the selection is a profile of its own.
#[test]
fn uncertain_edges_stay_uncertain() {
    let samples = vec![(vec![0, 2, 0, 1, 0, 2], 1), (vec![0, 1, 0, 2], 1)];
    let maker = made(&samples);
    let selection = Selection::all().hide([maker.find("f1")]);
    for (profile, selection) in [(&maker.profile, &selection), (&maker.profile.selected(&selection), &Selection::all())]
    {
        let graph = GraphView::new(profile, selection);
        assert!(graph.node(profile_function(profile, "f0")).unwrap().callers[0].approximate);
    }
}

fn profile_function(profile: &Profile, name: &str) -> CostCentreId {
    let at = profile.cost_centres().iter().position(|it| it.linkage_name.as_deref() == Some(name));
    CostCentreId::new(u32::try_from(at.unwrap()).unwrap())
}

#[test]
fn pprof_has_lines_in_their_own_file_and_the_mean_period() {
    let mut maker = Maker::new();
    let (own, included) = (maker.profile.add_line("demo.c", 10), maker.profile.add_line("body.inc", 2));
    maker.charge_at(7, "main f", own, 1_000);
    maker.charge_at(7, "main f", included, 2_000);
    let message = readers::read_pprof(&readers::export(&maker.profile, &Selection::all(), Format::Pprof));
    let lines: BTreeSet<(&str, &str, i64)> = message
        .location
        .iter()
        .flat_map(|it| &it.line)
        .map(|line| {
            let function = message.function.iter().find(|it| it.id == line.function).unwrap();
            let text = |at: i64| message.strings[at as usize].as_str();
            (text(function.name), text(function.file), line.line)
        })
        .collect();
    assert_eq!(lines, [("f", "body.inc", 2), ("f", "demo.c", 10), ("main", "demo.c", 0)].into());
    assert_eq!(message.period, 1_500);
}
