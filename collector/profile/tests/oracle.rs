//! Every view and every export of a recorded profile against the raw stacks.
//!
//! The profile is written in two updates and read back; exports are read by `common/readers.rs`, and expected values
//! come from `common/raw.rs`. A whole stack is its history by the paper's steps, with a gap wherever [`History::gaps`]
//! has one; `edges.rs` shows that gaps are right. Real readers are tested end to end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::export::Format;
use ccsd_profile::view::{
    CyclesView, DiffView, FlatView, GraphView, LinesView, Selection, StacksView, SummaryView, ThreadsView, Total,
    TreeView,
};
use ccsd_profile::{
    ContextId, CostCentre, CostCentreId, Encoder, History, LineId, Metric, Profile, SessionInfo, Unit, read_profile,
};
use common::raw::{self, RawSample};
use common::readers::{self, Edges, GAP, Row, Weights};
use common::{Maker, session};
use proptest::prelude::*;

/// A sample as it is recorded: thread, functions from the root on, line (0 if unknown), weights.
type RecordedSample = (u32, Vec<u32>, u32, [u64; 2]);

fn recorded() -> impl Strategy<Value = Vec<RecordedSample>> {
    (2..7u32).prop_flat_map(|functions| {
        let stack = prop::collection::vec(0..functions, 1..13);
        // Weights of whole hundredths of a second, which gprof's text prints exactly; the other metric is often 0.
        let weights = (1..1_000u64, 0..4u64).prop_map(|(time, count)| [time * 10_000_000, count]);
        prop::collection::vec((1..4u32, stack, 0..4u32, weights), 1..14)
    })
}

fn name(function: u32) -> String {
    format!("f{function}")
}

fn profile(recorded: &[RecordedSample]) -> Profile {
    let metrics = vec![
        Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds },
        Metric { name: "faults".into(), unit: Unit::Count },
    ];
    let session = SessionInfo { metrics, ..session() };
    let mut maker = Maker::with(session.clone(), ccsd_profile::ProfileLimits::default());
    let mut encoder = Encoder::new(Vec::new(), &session).unwrap();
    for half in [&recorded[..recorded.len() / 2], &recorded[recorded.len() / 2..]] {
        for (tid, stack, line, weights) in half {
            let thread = maker.thread(*tid);
            let line = if *line == 0 { LineId::UNKNOWN } else { maker.profile.add_line("demo.c", *line) };
            let context = stack.iter().fold(ContextId::ROOT, |context, function| {
                let function = maker.function(&name(*function));
                maker.profile.contexts_mut().push(context, function)
            });
            maker.profile.charge(thread, context, line, weights);
            maker.profile.accounting_mut().received += 1;
        }
        encoder.write(&maker.profile.take_update()).unwrap();
    }
    read_profile(&encoder.finish().unwrap()[..]).unwrap().profile
}

/// The samples that count, with the functions that are shown, as `name` says.
fn shown(
    recorded: &[RecordedSample],
    counts: impl Fn(&RecordedSample) -> bool,
    name: impl Fn(u32) -> Option<String>,
) -> Vec<RawSample> {
    let sample = |(tid, stack, line, weights): &RecordedSample| {
        let mut names: Vec<String> = stack.iter().filter_map(|&it| name(it)).collect();
        names.dedup();
        // The line is that of the innermost function, if that is shown.
        let line = Some(u64::from(*line)).filter(|line| *line > 0 && name(*stack.last().unwrap()).is_some());
        if names.is_empty() {
            names.push("[root]".to_owned());
        }
        RawSample { tid: u64::from(*tid), stack: names, line, weights: *weights }
    };
    recorded.iter().filter(|it| counts(it)).map(sample).collect()
}

fn all_of(recorded: &[RecordedSample]) -> Vec<RawSample> {
    shown(recorded, |_| true, |it| Some(name(it)))
}

fn find(profile: &Profile, function: u32) -> CostCentreId {
    let at = profile.cost_centres().iter().position(|it| it.linkage_name == Some(name(function)));
    CostCentreId::new(u32::try_from(at.unwrap()).unwrap())
}

/// Without functions that have no weight: formats differ in whether they list them.
fn with_weight(weights: Weights) -> Weights {
    weights.into_iter().filter(|(_, weights)| *weights != (0, 0)).collect()
}

/// An entry of a history: the function, whether it is its latest activation, and whether it is behind a gap.
type ChainEntry = (String, bool, bool);

fn history(stack: &[String]) -> Vec<ChainEntry> {
    let number = |name: &String| CostCentreId::new(name[1..].parse().unwrap());
    let history = History::of(stack.iter().map(number));
    let gaps: BTreeSet<usize> = history.gaps().collect();
    let entries = history.entries().iter().enumerate();
    entries.map(|(at, it)| (name(it.function.get()), it.marked, gaps.contains(&at))).collect()
}

fn frames(entries: &[ChainEntry]) -> Vec<String> {
    let frames = entries.iter().flat_map(|(name, _, gap)| [gap.then(|| GAP.to_owned()), Some(name.clone())]);
    frames.flatten().collect()
}

/// Own weight and weight with all that goes on from there, by chain.
type ChainWeights = BTreeMap<Vec<ChainEntry>, (u64, u64)>;

/// The chains of a tree of these histories: each part of a history from its outer end on, as `chain` cuts and turns it.
fn chains(
    samples: &[RawSample],
    metric: usize,
    chain: impl Fn(&[ChainEntry]) -> Option<Vec<ChainEntry>>,
) -> ChainWeights {
    let mut chains = ChainWeights::new();
    for sample in samples {
        let Some(entries) = chain(&history(&sample.stack)) else { continue };
        for end in 1..=entries.len() {
            let sums = chains.entry(entries[..end].to_vec()).or_default();
            sums.1 += sample.weights[metric];
            sums.0 += if end == entries.len() { sample.weights[metric] } else { 0 };
        }
    }
    chains
}

/// From the entry at a position to the root: a gap stays with the call.
fn upwards(entries: &[ChainEntry], from: usize) -> Vec<ChainEntry> {
    let gap = |at: usize| at < from && entries[at + 1].2;
    (0..=from).rev().map(|at| (entries[at].0.clone(), entries[at].1, gap(at))).collect()
}

fn downwards(entries: &[ChainEntry], from: usize) -> Vec<ChainEntry> {
    let mut entries = entries[from..].to_vec();
    entries[0].2 = false;
    entries
}

fn latest(entries: &[ChainEntry], function: &str) -> Option<usize> {
    entries.iter().position(|(name, marked, _)| name == function && *marked)
}

fn chains_of(view: &TreeView) -> ChainWeights {
    let entry = |at: usize| {
        let node = &view.nodes[at];
        assert!(!node.approximate);
        (view.names[&node.function].clone(), node.marked, node.gap)
    };
    let chain = |at: usize| view.path_to(at).into_iter().map(entry).collect();
    view.nodes.iter().enumerate().map(|(at, node)| (chain(at), (node.self_weight, node.weight))).collect()
}

fn assert_exports(profile: &Profile, selection: &Selection, samples: &[RawSample], whole: bool) {
    let metric = selection.metric_index();
    let weights = with_weight(raw::weights(samples, metric));
    let (edges, total) = (raw::edges(samples), raw::total(samples, metric));
    for format in readers::OF_STACKS {
        if total == 0 && format == Format::Svg {
            continue;
        }
        let rows = readers::stacks(format, &readers::export(profile, selection, format));
        let has_all = matches!(format, Format::Json | Format::Pprof);
        let at = if has_all { metric } else { 0 };
        assert_eq!(with_weight(readers::weights(&rows, at)), weights, "{}", format.name());
        let wrong: Vec<_> = readers::edges(&rows).difference(&edges).cloned().collect();
        assert!(wrong.is_empty(), "{} shows calls that did not happen: {wrong:?}", format.name());
        if rows.iter().any(|row| row.tid.is_some()) {
            let mut threads: BTreeMap<u64, u64> = BTreeMap::new();
            rows.iter().for_each(|row| *threads.entry(row.tid.unwrap()).or_default() += row.weights[at]);
            threads.retain(|_, weight| *weight > 0);
            let mut expected = raw::by_thread(samples, metric);
            expected.retain(|_, weight| *weight > 0);
            assert_eq!(threads, expected, "{}", format.name());
        }
        if has_all {
            assert_eq!(rows.iter().map(|row| row.samples.unwrap()).sum::<u64>(), samples.len() as u64);
        }
        if whole {
            assert_eq!(summed(rows, at), summed(expected_rows(format, samples, metric), at), "{}", format.name());
        }
    }
    assert_callgrind(profile, selection, samples, whole);
    assert_dot(profile, selection, samples, whole);
    if whole {
        assert_gprof(profile, selection, samples);
    }
    let (counts, csv) = (raw::counts(samples), readers::csv(&readers::text(profile, selection, Format::Csv)));
    let expected: BTreeMap<String, [u64; 4]> = raw::weights(samples, metric)
        .into_iter()
        .map(|(name, (own, inherited))| (name.clone(), [own, inherited, counts[&name].0, counts[&name].1]))
        .collect();
    assert_eq!(csv, expected);
}

/// Rows without weights and samples, and the sums of both. What weighs nothing is not in all formats.
fn summed(rows: Vec<Row>, metric: usize) -> BTreeMap<Row, (u64, u64)> {
    let mut sums: BTreeMap<Row, (u64, u64)> = BTreeMap::new();
    for row in rows.into_iter().filter(|row| row.weights[metric] > 0) {
        let sum = sums.entry(Row { samples: None, weights: Vec::new(), ..row.clone() }).or_default();
        (sum.0, sum.1) = (sum.0 + row.weights[metric], sum.1 + row.samples.unwrap_or(0));
    }
    sums
}

/// The rows that a format lists, one for each thread, line and history as far as it tells those apart.
fn expected_rows(format: Format, samples: &[RawSample], metric: usize) -> Vec<Row> {
    let has_threads = !matches!(format, Format::Folded | Format::Html | Format::Svg);
    let has_lines = matches!(format, Format::Json | Format::Pprof | Format::Firefox);
    let has_all = matches!(format, Format::Json | Format::Pprof);
    let mut rows: BTreeMap<Row, ([u64; 2], u64)> = BTreeMap::new();
    for sample in samples {
        let row = Row {
            tid: Some(sample.tid).filter(|_| has_threads),
            frames: frames(&history(&sample.stack)),
            line: sample.line.filter(|_| has_lines),
            ..Row::default()
        };
        let sums = rows.entry(row).or_default();
        sums.0.iter_mut().zip(sample.weights).for_each(|(sum, weight)| *sum += weight);
        sums.1 += 1;
    }
    let row = |(row, (weights, samples)): (Row, ([u64; 2], u64))| Row {
        samples: Some(samples).filter(|_| has_all),
        weights: if has_all { weights.to_vec() } else { vec![weights[metric]] },
        ..row
    };
    rows.into_iter().map(row).collect()
}

fn assert_callgrind(profile: &Profile, selection: &Selection, samples: &[RawSample], whole: bool) {
    let metric = selection.metric_index();
    let found = readers::callgrind(&readers::text(profile, selection, Format::Callgrind));
    assert_eq!(with_weight(found.weights), with_weight(raw::weights(samples, metric)));
    assert_eq!(found.total, raw::total(samples, metric));
    let edges = raw::edges(samples);
    assert!(found.calls.keys().all(|call| edges.contains(call)), "{:?}", found.calls);
    // Where the line is not known, that of the declaration stands.
    let mut lines: BTreeMap<(String, u64), u64> = BTreeMap::new();
    for ((name, line), weight) in raw::by_line(samples, metric) {
        let declared = if name.starts_with('[') { 0 } else { 3 };
        *lines.entry((name, if line == 0 { declared } else { line })).or_default() += weight;
    }
    lines.retain(|_, weight| *weight > 0);
    let mut found_lines = found.lines;
    found_lines.retain(|_, weight| *weight > 0);
    assert_eq!(found_lines, lines);
    if whole {
        let arcs = raw::arcs(samples, metric).outgoing;
        let expected: BTreeMap<_, _> =
            arcs.into_iter().map(|(call, (own, child, samples))| (call, (own + child, samples))).collect();
        assert_eq!(found.calls, expected);
    }
}

fn assert_dot(profile: &Profile, selection: &Selection, samples: &[RawSample], whole: bool) {
    let metric = selection.metric_index();
    let total = raw::total(samples, metric);
    let found = readers::dot(&readers::text(profile, selection, Format::Dot));
    let (mut drawn, rest): (Weights, Weights) = raw::weights(samples, metric)
        .into_iter()
        .partition(|(_, (_, inherited))| total > 0 && inherited * 200 >= total);
    drawn.retain(|_, weights| *weights != (0, 0));
    assert_eq!(with_weight(found.weights), drawn);
    assert_eq!(found.other, rest.values().map(|(own, _)| own).sum::<u64>());
    let edges = raw::edges(samples);
    assert!(found.arcs.keys().all(|arc| edges.contains(arc)), "{:?}", found.arcs);
    if !whole || total == 0 {
        return;
    }
    let arcs = raw::arcs(samples, metric);
    let both = |caller: &String, callee: &String| {
        let outgoing = arcs.outgoing.get(&(caller.clone(), callee.clone())).map_or(0, |it| it.0 + it.1);
        let incoming = arcs.incoming.get(&(Some(caller.clone()), callee.clone())).map_or(0, |it| it.0 + it.1);
        (outgoing, incoming)
    };
    let percent = |weight: u64| format!("{:.2}", 100.0 * (weight as f64 / total as f64));
    let is_drawn = |(caller, callee): &(String, String)| {
        let (outgoing, incoming) = both(caller, callee);
        drawn.contains_key(caller) && drawn.contains_key(callee) && outgoing.max(incoming) * 200 >= total
    };
    let expected: BTreeMap<_, _> = edges
        .into_iter()
        .filter(is_drawn)
        .map(|(caller, callee)| {
            let (outgoing, incoming) = both(&caller, &callee);
            let all = vec![percent(outgoing), percent(incoming)];
            let label = if outgoing == incoming { all[..1].to_vec() } else { all };
            ((caller, callee), (label, false))
        })
        .collect();
    assert_eq!(found.arcs, expected);
}

fn assert_gprof(profile: &Profile, selection: &Selection, samples: &[RawSample]) {
    let metric = selection.metric_index();
    let found = readers::gprof(&readers::text(profile, selection, Format::Gprof));
    let print = |weight: u64| format!("{:.2}", weight as f64 / if metric == 0 { 1e9 } else { 1.0 });
    let weights = raw::weights(samples, metric);
    let own: BTreeMap<_, _> = weights.iter().map(|(name, (own, _))| (name.clone(), print(*own))).collect();
    assert_eq!(found.own, own);
    let both = |(name, (own, inherited)): (String, (u64, u64))| (name, (print(own), print(inherited - own)));
    assert_eq!(found.both, weights.into_iter().map(both).collect());
    let arcs = raw::arcs(samples, metric);
    let arc = |(own, child, samples): raw::Arc| (print(own), print(child), samples);
    assert_eq!(found.callees, arcs.outgoing.into_iter().map(|(call, it)| (call, arc(it))).collect());
    let incoming = arcs.incoming.into_iter().filter_map(|((caller, callee), it)| Some(((caller?, callee), arc(it))));
    assert_eq!(found.callers, incoming.collect());
}

fn assert_sums(profile: &Profile, selection: &Selection, samples: &[RawSample]) {
    let metric = selection.metric_index();
    let (weights, counts) = (raw::weights(samples, metric), raw::counts(samples));
    let total = Total::of(profile, selection);
    assert_eq!((total.weight, total.samples), (raw::total(samples, metric), samples.len() as u64));
    let flat = FlatView::new(profile, selection);
    assert_eq!(flat.total, total);
    let rows = |rows: &[ccsd_profile::view::FlatRow]| -> (Weights, Weights) {
        let weights = |it: &ccsd_profile::view::FlatRow| (it.name.clone(), (it.self_weight, it.inherited_weight));
        let samples = |it: &ccsd_profile::view::FlatRow| (it.name.clone(), (it.samples_self, it.samples_inherited));
        (rows.iter().map(weights).collect(), rows.iter().map(samples).collect())
    };
    assert_eq!(rows(&flat.rows), (weights.clone(), counts.clone()));
    let summary = SummaryView::new(profile, selection);
    assert_eq!(summary.total, total);
    assert_eq!(rows(&[summary.own, summary.others].concat()), (weights.clone(), counts.clone()));
    let lines = LinesView::new(profile, selection);
    let found: BTreeMap<_, _> = lines
        .functions
        .iter()
        .flat_map(|it| it.lines.iter().map(|line| ((it.name.clone(), u64::from(line.line)), line.weight)))
        .collect();
    assert_eq!((found, lines.total), (raw::by_line(samples, metric), total));
    for function in &lines.functions {
        assert_eq!((function.self_weight, function.samples), (weights[&function.name].0, counts[&function.name].0));
    }
    let threads = ThreadsView::new(profile, selection);
    let found: BTreeMap<u64, u64> = threads
        .processes
        .iter()
        .flat_map(|it| &it.threads)
        .filter(|it| it.samples > 0)
        .map(|it| (u64::from(it.tid), it.weight))
        .collect();
    assert_eq!((found, threads.total), (raw::by_thread(samples, metric), total));
}

/// Every tree, graph and list of stacks and cycles.
fn assert_views(profile: &Profile, selection: &Selection, samples: &[RawSample]) {
    let metric = selection.metric_index();
    let tree = TreeView::new(profile, selection);
    let expected = chains(samples, metric, |entries| Some(entries.to_vec()));
    assert_eq!(chains_of(&tree), expected);
    let up = TreeView::bottom_up(profile, selection, 0.0);
    assert_eq!(chains_of(&up), chains(samples, metric, |it| Some(upwards(it, it.len() - 1))));
    assert_hot(&tree, &expected);
    let summary = SummaryView::new(profile, selection);
    let mut path: Vec<&str> = Vec::new();
    for step in &summary.chain {
        path.push(&step.name);
        let is_path = |entries: &[ChainEntry]| entries.iter().map(|it| it.0.as_str()).eq(path.iter().copied());
        let at = |(entries, (own, all)): (&Vec<ChainEntry>, &(u64, u64))| {
            is_path(entries)
                && (*own, *all) == (step.self_weight, step.weight)
                && step.uncertain == entries.last().unwrap().2
        };
        assert!(step.folded == 0 && expected.iter().any(at), "{step:?} in {expected:?}");
    }

    let graph = GraphView::new(profile, selection);
    let mut arcs = raw::RawArcs::default();
    for node in &graph.nodes {
        let arc = |it: &ccsd_profile::view::GraphArc| {
            assert!(!it.approximate && !node.root_approximate);
            (it.self_weight, it.child_weight, it.samples)
        };
        arcs.outgoing.extend(node.callees.iter().map(|it| ((node.name.clone(), it.name.clone()), arc(it))));
        arcs.incoming.extend(node.callers.iter().map(|it| ((Some(it.name.clone()), node.name.clone()), arc(it))));
        // Of a root the view has no samples.
        let as_root = node.samples - node.callers.iter().map(|it| it.samples).sum::<u64>();
        if as_root > 0 {
            arcs.incoming.insert((None, node.name.clone()), (node.root_self_weight, node.root_child_weight, as_root));
        }
        for (view, chain) in [
            (TreeView::callees(profile, selection, node.function, 0.0), downwards as fn(&[ChainEntry], usize) -> _),
            (TreeView::callers(profile, selection, node.function, 0.0), upwards),
        ] {
            let expected = chains(samples, metric, |it| latest(it, &node.name).map(|at| chain(it, at)));
            assert_eq!(chains_of(&view), expected);
        }
    }
    assert_eq!(arcs, raw::arcs(samples, metric));

    let stacks = StacksView::new(profile, selection);
    let entry = |names: &ccsd_profile::view::FunctionNames, it: &ccsd_profile::view::StackEntry| {
        assert!(!it.approximate);
        (names[&it.function].clone(), it.marked, it.gap)
    };
    let mut found: BTreeMap<Vec<ChainEntry>, (u64, u64)> = BTreeMap::new();
    for row in &stacks.rows {
        let entries = row.entries.iter().map(|it| entry(&stacks.names, it)).collect();
        assert_eq!(found.insert(entries, (row.weight, row.samples)), None);
    }
    let mut expected: BTreeMap<Vec<ChainEntry>, (u64, u64)> = BTreeMap::new();
    for sample in samples {
        let sums = expected.entry(history(&sample.stack)).or_default();
        (sums.0, sums.1) = (sums.0 + sample.weights[metric], sums.1 + 1);
    }
    assert_eq!(found, expected);
    assert_cycles(profile, selection, samples, &expected);
}

/// The hot path goes on to the heaviest callee while that is no lighter than what the caller spent itself.
fn assert_hot(tree: &TreeView, expected: &ChainWeights) {
    let mut path: Vec<ChainEntry> = Vec::new();
    let mut own = 0;
    for at in tree.hot_path() {
        let node = &tree.nodes[at];
        let below = |chain: &Vec<ChainEntry>| chain.len() == path.len() + 1 && chain.starts_with(&path);
        let heaviest = expected.iter().filter(|(chain, _)| below(chain)).map(|(_, (_, all))| *all).max();
        assert_eq!(Some(node.weight), heaviest);
        assert!(node.weight >= own);
        path.push((tree.names[&node.function].clone(), node.marked, node.gap));
        own = node.self_weight;
        assert_eq!(expected[&path], (own, node.weight));
    }
    let below = |chain: &Vec<ChainEntry>| chain.len() == path.len() + 1 && chain.starts_with(&path);
    assert!(expected.iter().filter(|(chain, _)| below(chain)).all(|(_, (_, all))| *all < own));
}

fn assert_cycles(
    profile: &Profile,
    selection: &Selection,
    samples: &[RawSample],
    histories: &BTreeMap<Vec<ChainEntry>, (u64, u64)>,
) {
    let metric = selection.metric_index();
    let view = CyclesView::new(profile, selection);
    // Where the running function stands earlier as well.
    let closing = |entries: &Vec<ChainEntry>| {
        let (leaf, rest) = entries.split_last().unwrap();
        rest.iter().any(|it| it.0 == leaf.0)
    };
    let entry = |it: &ccsd_profile::view::StackEntry| (view.names[&it.function].clone(), it.marked, it.gap);
    let rows: BTreeMap<Vec<ChainEntry>, (u64, u64)> =
        view.rows.iter().map(|row| (row.entries.iter().map(entry).collect(), (row.weight, row.samples))).collect();
    let expected: BTreeMap<_, _> = histories.clone().into_iter().filter(|(entries, _)| closing(entries)).collect();
    assert_eq!(rows, expected);

    let mut raw: BTreeMap<Vec<String>, (u64, u64)> = BTreeMap::new();
    // How each history was reached: where there are several ways, its context stands for the first.
    let mut ways: BTreeMap<Vec<ChainEntry>, BTreeSet<Vec<ChainEntry>>> = BTreeMap::new();
    for RawSample { stack, weights, .. } in samples {
        for (cycle, closed) in raw::cycles(stack) {
            let sums = raw.entry(cycle).or_default();
            (sums.0, sums.1) = (sums.0 + if closed { weights[metric] } else { 0 }, sums.1 + weights[metric]);
        }
        for end in 1..=stack.len() {
            ways.entry(history(&stack[..end])).or_default().insert(history(&stack[..end - 1]));
        }
    }
    let found: BTreeMap<Vec<String>, (u64, u64)> = view
        .cycles
        .iter()
        .map(|it| {
            assert!(!it.approximate);
            let mut names: Vec<String> = it.functions.iter().map(|id| view.names[id].clone()).collect();
            let lowest = (0..names.len()).min_by_key(|&at| &names[at]).unwrap();
            names.rotate_left(lowest);
            (names, (it.self_weight, it.inherited_weight))
        })
        .collect();
    if ways.values().all(|ways| ways.len() == 1) {
        assert_eq!(found, raw);
    } else {
        assert!(found.keys().all(|cycle| raw.contains_key(cycle)), "{found:?} are not all of {raw:?}");
        assert_eq!(found.is_empty(), raw.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn all_is_what_the_raw_stacks_say(recorded in recorded(), metric in 0..2usize) {
        let profile = profile(&recorded);
        let (samples, selection) = (all_of(&recorded), Selection::all().metric(metric));
        assert_sums(&profile, &selection, &samples);
        assert_views(&profile, &selection, &samples);
        assert_exports(&profile, &selection, &samples, true);
    }

    #[test]
    fn a_part_is_what_is_left_of_the_raw_stacks(
        recorded in recorded(),
        metric in 0..2usize,
        hidden in prop::collection::btree_set(0..7u32, 0..3),
        focus in prop::option::of(0..7u32),
        ignored in prop::option::of(0..7u32),
        ignored_thread in prop::option::of(1..4u32),
    ) {
        let profile = profile(&recorded);
        let known: BTreeSet<u32> = recorded.iter().flat_map(|it| it.1.iter().copied()).collect();
        let [focus, ignored] = [focus, ignored].map(|it| it.filter(|it| known.contains(it)));
        let id = |it: &u32| find(&profile, *it);
        let mut selection = Selection::all().metric(metric).hide(hidden.intersection(&known).map(id));
        if let Some(focus) = &focus {
            selection = selection.focus([id(focus)]);
        }
        selection = selection.ignore(ignored.iter().map(id));
        let of_thread = |tid: u32| (0u32..).zip(profile.threads()).find(|(_, it)| it.tid == tid);
        let thread = ignored_thread.and_then(of_thread).map(|(at, _)| ccsd_profile::ThreadId::new(at));
        selection = selection.ignore_threads(thread);
        let counts = |(tid, stack, ..): &RecordedSample| {
            focus.is_none_or(|it| stack.contains(&it)) && !ignored.is_some_and(|it| stack.contains(&it))
                && Some(*tid) != ignored_thread
        };
        let samples = shown(&recorded, counts, |it| (!hidden.contains(&it)).then(|| name(it)));
        assert_sums(&profile, &selection, &samples);
        if !samples.is_empty() {
            assert_exports(&profile, &selection, &samples, false);
        }
    }

    #[test]
    fn groups_are_those_of_the_raw_stacks(recorded in recorded(), metric in 0..2usize, groups in prop::collection::vec(0..3u32, 7)) {
        let grouped = profile(&recorded).regrouped(|_, centre| {
            let of: usize = centre.linkage_name.as_deref().unwrap()[1..].parse().unwrap();
            CostCentre { linkage_name: Some(name(groups[of])), ..centre.clone() }
        });
        let samples = shown(&recorded, |_| true, |it| Some(name(groups[it as usize])));
        let selection = Selection::all().metric(metric);
        assert_sums(&grouped, &selection, &samples);
        assert_exports(&grouped, &selection, &samples, false);
    }

    #[test]
    fn a_difference_has_the_raw_stacks_of_both_sides(before in recorded(), after in recorded(), metric in 0..2usize) {
        let (old, new) = (profile(&before), profile(&after));
        let selection = Selection::all().metric(metric);
        let view = DiffView::new((&old, &selection), (&new, &selection));
        let side = |side: fn(&ccsd_profile::view::DiffRow) -> Option<ccsd_profile::view::DiffSide>| -> Weights {
            let weights = |it: ccsd_profile::view::DiffSide| (it.self_weight, it.inherited_weight);
            view.rows.iter().filter_map(|row| Some((row.function.name.clone(), weights(side(row)?)))).collect()
        };
        prop_assert_eq!(side(|row| row.before), raw::weights(&all_of(&before), metric));
        prop_assert_eq!(side(|row| row.after), raw::weights(&all_of(&after), metric));
        let tree = ccsd_profile::view::DiffTree::new((&old, &selection), (&new, &selection), 0.0);
        let mut found = Edges::new();
        for node in tree.nodes.iter().filter(|node| !node.gap) {
            let Some(parent) = node.parent else { continue };
            let name = |at: usize| tree.functions[at].name.clone();
            found.insert((name(tree.nodes[parent].function), name(node.function)));
        }
        let real: Edges = raw::edges(&all_of(&before)).union(&raw::edges(&all_of(&after))).cloned().collect();
        prop_assert!(found.is_subset(&real), "{:?}", found.difference(&real).collect::<Vec<_>>());
    }
}
