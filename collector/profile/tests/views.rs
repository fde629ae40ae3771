//! The worked cases of `data/views.json`: weights, arcs, cycles, contexts, hidden functions; and further examples of
//! the papers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;

use ccsd_profile::LineId;
use ccsd_profile::view::{
    CyclesView, DiffView, FlatView, GraphView, LinesView, Selection, StackEntry, StacksView, StatsView, ThreadsView,
    TreeView,
};
use common::Maker;
use serde_json::Value;

fn numbers(value: &Value) -> BTreeMap<String, u64> {
    value.as_object().unwrap().iter().map(|(name, number)| (name.clone(), number.as_u64().unwrap())).collect()
}

fn pairs(value: &Value) -> BTreeMap<String, (u64, u64)> {
    let pair = |value: &Value| (value[0].as_u64().unwrap(), value[1].as_u64().unwrap());
    value.as_object().unwrap().iter().map(|(name, numbers)| (name.clone(), pair(numbers))).collect()
}

fn own(view: &FlatView) -> BTreeMap<String, u64> {
    view.rows.iter().filter(|row| row.self_weight > 0).map(|row| (row.name.clone(), row.self_weight)).collect()
}

fn inherited(view: &FlatView) -> BTreeMap<String, u64> {
    view.rows.iter().map(|row| (row.name.clone(), row.inherited_weight)).collect()
}

fn text(maker: &Maker, entries: &[StackEntry]) -> String {
    let name = |entry: &StackEntry| {
        let name = maker.profile.name(entry.function);
        if entry.marked { name.into_owned() } else { format!("({name})") }
    };
    entries.iter().map(name).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_case() {
    let data: Value = serde_json::from_str(include_str!("data/views.json")).unwrap();
    let cases = data["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 46);
    for case in cases {
        let note = case["note"].as_str().unwrap_or_default();
        let mut maker = Maker::new();
        for sample in case["samples"].as_array().unwrap() {
            maker.charge(sample[0].as_str().unwrap(), sample[1].as_u64().unwrap());
        }
        let expect = &case["expect"];
        let all = Selection::all();
        let flat = FlatView::new(&maker.profile, &all);
        assert_eq!(flat.total.weight, expect["total"].as_u64().unwrap(), "{note}");
        assert_eq!(own(&flat), numbers(&expect["self"]), "{note}");
        assert_eq!(inherited(&flat), numbers(&expect["inherited"]), "{note}");

        let graph = GraphView::new(&maker.profile, &all);
        let (mut outgoing, mut incoming) = (BTreeMap::new(), BTreeMap::new());
        for node in &graph.nodes {
            for arc in &node.callees {
                outgoing.insert(format!("{} {}", node.name, arc.name), (arc.self_weight, arc.child_weight));
            }
            for arc in &node.callers {
                incoming.insert(format!("{} {}", arc.name, node.name), (arc.self_weight, arc.child_weight));
            }
        }
        assert_eq!(outgoing, pairs(&expect["outgoing"]), "{note}");
        assert_eq!(incoming, pairs(&expect["incoming"]), "{note}");

        let cycles = CyclesView::new(&maker.profile, &all);
        let found: BTreeMap<_, _> = cycles.rows.iter().map(|row| (text(&maker, &row.entries), row.weight)).collect();
        assert_eq!(found, numbers(&expect["cycles"]), "{note}");
        let stacks = StacksView::new(&maker.profile, &all);
        let found: BTreeMap<_, _> = stacks.rows.iter().map(|row| (text(&maker, &row.entries), row.weight)).collect();
        assert_eq!(found, numbers(&expect["contexts"]), "{note}");

        for hidden in case["hidden"].as_array().into_iter().flatten() {
            let functions = hidden["hide"].as_array().unwrap().iter().map(|name| maker.find(name.as_str().unwrap()));
            let selection = Selection::all().hide(functions);
            let flat = FlatView::new(&maker.profile, &selection);
            assert_eq!(own(&flat), numbers(&hidden["self"]), "{note}: {hidden}");
            assert_eq!(inherited(&flat), numbers(&hidden["inherited"]), "{note}: {hidden}");
        }
    }
}

#[test]
fn stacks_are_listed_leaf_first() {
    let mut maker = Maker::new();
    for (stack, weight) in [("a b", 10), ("a", 20), ("a c", 10), ("a b c", 50)] {
        maker.charge(stack, weight);
    }
    let view = StacksView::new(&maker.profile, &Selection::all());
    let lines: Vec<_> = view.rows.iter().map(|row| view.text(row)).collect();
    assert_eq!(lines, ["<c,b,a> 50", "<a> 20", "<b,a> 10", "<c,a> 10"]);
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(json["total"]["weight"], 90);
}

#[test]
fn names_are_made_safe() {
    let mut maker = Maker::new();
    maker.charge("evil\x1b[2J\u{202e}name", 1);
    let view = StacksView::new(&maker.profile, &Selection::all());
    assert_eq!(view.text(&view.rows[0]), "<evil\\u{1b}[2J\\u{202e}name> 1");
}

#[test]
fn focus_takes_only_stacks_with_the_function() {
    let mut maker = Maker::new();
    for (stack, weight) in [("main f h i", 90), ("main g h i", 10)] {
        maker.charge(stack, weight);
    }
    let view = FlatView::new(&maker.profile, &Selection::all().focus([maker.find("g")]));
    assert_eq!((view.total.weight, view.total.whole_weight), (10, 100));
    assert_eq!(inherited(&view), [("main", 10), ("g", 10), ("h", 10), ("i", 10)].map(|(n, w)| (n.into(), w)).into());
    let only = FlatView::new(&maker.profile, &Selection::all().only([maker.find("f"), maker.find("i")]));
    assert_eq!(own(&only), [("i".to_owned(), 100)].into());
    assert_eq!(inherited(&only), [("f".to_owned(), 90), ("i".to_owned(), 100)].into());
}

#[test]
fn lines_and_threads_add_up() {
    let mut maker = Maker::new();
    let (l1, l2) = (maker.profile.add_line("demo.c", 10), maker.profile.add_line("demo.c", 11));
    maker.charge_at(1, "main f", l1, 5);
    maker.charge_at(1, "main f", l2, 7);
    maker.charge_at(2, "main f", l2, 1);
    maker.charge_at(2, "main", LineId::UNKNOWN, 2);
    let lines = LinesView::new(&maker.profile, &Selection::all());
    let f = &lines.functions[0];
    assert_eq!((f.name.as_str(), f.self_weight, f.samples), ("f", 13, 3));
    assert_eq!(f.lines.iter().map(|line| (line.line, line.weight)).collect::<Vec<_>>(), [(11, 8), (10, 5)]);
    // A hidden function's weight keeps no line: the caller did not run on it.
    let hidden = LinesView::new(&maker.profile, &Selection::all().hide([maker.find("f")]));
    assert_eq!(hidden.functions[0].lines.iter().map(|line| (line.line, line.weight)).collect::<Vec<_>>(), [(0, 15)]);
    let threads = ThreadsView::new(&maker.profile, &Selection::all());
    assert_eq!(threads.processes[0].weight, 15);
    assert_eq!(
        threads.processes[0].threads.iter().map(|thread| (thread.tid, thread.weight)).collect::<Vec<_>>(),
        [(1, 12), (2, 3)]
    );
    let one = FlatView::new(&maker.profile, &Selection::all().threads([threads.processes[0].threads[1].id]));
    assert_eq!((one.total.weight, one.total.whole_weight), (3, 15));
}

#[test]
fn stats_of_the_papers_figure_2() {
    let mut maker = Maker::new();
    for stack in ["M", "M P", "M P Q", "M P Q R", "M P Q R P", "M P Q R P Q", "M P Q R P Q R", "M P Q R P Q R P S"] {
        maker.charge(stack, 1);
    }
    maker.profile.take_update();
    let stats = StatsView::new(&maker.profile, Some(1234));
    // C0 to C6 of figure 2, and S below C4: eight states with 1 + 2 + 3 + 4 + 5 + 6 + 6 + 6 entries.
    assert_eq!((stats.samples, stats.functions, stats.states, stats.depth_maximum), (8, 5, 8, 6));
    assert!((stats.depth_average - 33.0 / 8.0).abs() < 1e-9, "{stats:?}");
    // One transition for each state, and the one from C6 back to C4.
    assert_eq!((stats.transitions, stats.file_bytes), (9, Some(1234)));
}

#[test]
fn rows_cut_off_are_counted_as_other() {
    let mut maker = Maker::new();
    for (stack, weight) in [("a", 900), ("b", 60), ("c", 30), ("d", 10)] {
        maker.charge(stack, weight);
    }
    let mut view = FlatView::new(&maker.profile, &Selection::all());
    view.cut(0.05);
    view.limit(1);
    let other = view.other.unwrap();
    assert_eq!((view.rows.len(), other.functions, other.self_weight, other.samples_self), (1, 3, 100, 3));
}

#[test]
fn unnamed_functions_are_named_by_image_and_address() {
    let mut maker = Maker::new();
    let image = maker.image;
    let id = maker.profile.add_cost_centre(ccsd_profile::CostCentre {
        image,
        linkage_name: None,
        display_name: None,
        start: Some(0x1234),
        file: None,
        line: 0,
        local: false,
    });
    assert_eq!(maker.profile.name(id), "demo+0x1234");
}

/// Morgan and Jarvis' figure 7.
fn figure_7() -> Maker {
    let mut maker = Maker::new();
    for (stack, weight) in [
        ("main a c f h j rev", 1181),
        ("main a b e g j rev", 16),
        ("main a b e g rev", 10),
        ("main a c f i rev", 7),
        ("main a b d g rev", 11),
        ("main a b d g j rev", 12),
    ] {
        maker.charge(stack, weight);
    }
    maker
}

#[test]
fn shares_of_morgan_and_jarvis_figure_7() {
    let maker = figure_7();
    let view = FlatView::new(&maker.profile, &Selection::all());
    let percent = |name: &str| view.row(maker.find(name)).unwrap().inherited_share.fraction * 100.0;
    for (name, expected) in [("f", 96.0), ("j", 97.7), ("h", 95.5)] {
        assert!((percent(name) - expected).abs() < 0.05, "{name} {}", percent(name));
    }
    let rev = view.row(maker.find("rev")).unwrap();
    assert!((rev.self_share.fraction - 1.0).abs() < f64::EPSILON && (rev.self_share.high - 1.0).abs() < f64::EPSILON);
    // And j called from h is the cause.
    let graph = GraphView::new(&maker.profile, &Selection::all());
    let j = graph.node(maker.find("j")).unwrap();
    assert_eq!((j.callers[0].name.as_str(), j.callers[0].child_weight), ("h", 1181));
}

#[test]
fn a_callee_whose_cost_depends_on_its_caller() {
    let mut maker = Maker::new();
    maker.charge("main f h i", 90);
    maker.charge("main g h i", 10);
    let graph = GraphView::new(&maker.profile, &Selection::all());
    let h = graph.node(maker.find("h")).unwrap();
    let callers: Vec<_> = h.callers.iter().map(|arc| (arc.name.as_str(), arc.self_weight, arc.child_weight)).collect();
    assert_eq!(callers, [("f", 0, 90), ("g", 0, 10)]);
}

#[test]
fn all_views_of_an_empty_profile() {
    let maker = Maker::new();
    let all = Selection::all();
    assert!(FlatView::new(&maker.profile, &all).rows.is_empty());
    assert!(GraphView::new(&maker.profile, &all).nodes.is_empty());
    assert!(StacksView::new(&maker.profile, &all).rows.is_empty());
    assert!(CyclesView::new(&maker.profile, &all).rows.is_empty());
    assert!(LinesView::new(&maker.profile, &all).functions.is_empty());
    assert_eq!(ThreadsView::new(&maker.profile, &all).processes.len(), 1);
    assert_eq!(StatsView::new(&maker.profile, None).states, 0);
    let json = serde_json::to_string(&FlatView::new(&maker.profile, &all)).unwrap();
    assert_eq!(json, r#"{"total":{"weight":0,"samples":0,"whole_weight":0,"whole_samples":0},"rows":[],"other":null}"#);
}

#[test]
fn the_most_expensive_arm_of_morgan_and_jarvis_figure_7() {
    let maker = figure_7();
    let view = TreeView::new(&maker.profile, &Selection::all());
    let text = |path: &[usize]| {
        path.iter().map(|&i| view.names[&view.nodes[i].function].as_str()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(text(&view.hot_path()), "main a c f h j rev");
    let arms: Vec<_> = view.hot_paths(3).iter().map(|path| text(path)).collect();
    assert_eq!(arms, ["main a c f h j rev", "main a b e g j rev", "main a b d g j rev"]);
    assert_eq!(view.roots.iter().map(|&i| view.nodes[i].weight).sum::<u64>(), view.total.weight);
    assert_eq!(view.nodes.iter().map(|node| node.self_weight).sum::<u64>(), view.total.weight);
    for node in &view.nodes {
        let children: u64 = node.children.iter().map(|&i| view.nodes[i].weight).sum();
        assert_eq!(node.self_weight + children, node.weight);
    }
}

#[test]
fn a_difference_that_matters_and_one_that_does_not() {
    let (mut before, mut after) = (Maker::new(), Maker::new());
    for _ in 0..1_000 {
        before.charge("main f", 1);
        after.charge("main f", 1);
    }
    for i in 0..500 {
        before.charge("main slow", 1);
        before.charge(if i < 20 { "main noise" } else { "main f" }, 1);
        after.charge(if i < 100 { "main slow" } else { "main f" }, 1);
        after.charge(if i < 24 { "main noise" } else { "main f" }, 1);
    }
    before.charge("main old", 1);
    let all = Selection::all();
    let view = DiffView::new((&before.profile, &all), (&after.profile, &all));
    let row = |name: &str| view.rows.iter().find(|row| row.function.name == name).unwrap();
    assert!(row("slow").self_significant && row("slow").self_change < -0.19);
    assert!(!row("noise").self_significant && row("noise").self_change > 0.0);
    assert!(row("old").after.is_none() && !row("old").self_significant);
    assert!(!row("main").inherited_significant);
    let same = DiffView::new((&before.profile, &all), (&before.profile, &all));
    assert!(same.rows.iter().all(|row| row.self_change == 0.0 && row.inherited_change == 0.0));
}
