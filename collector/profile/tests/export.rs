//! Exports: what a consumer that counts every function once for each stack makes of them is what ccsd says. (What real
//! consumers make of them is tested end to end.)
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::codec::TimeColumn;
use ccsd_profile::export::{DEFAULT_MAX_BYTES, Export, Format};
use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{ContextId, Limits, LineId, Metric, Profile, Unit};
use common::Maker;
use proptest::prelude::*;
use serde_json::Value;

fn export(profile: &Profile, selection: &Selection, format: Format) -> Vec<u8> {
    let mut out = Vec::new();
    Export::new(profile, selection).write(format, &mut out).unwrap();
    out
}

fn text(profile: &Profile, selection: &Selection, format: Format) -> String {
    String::from_utf8(export(profile, selection, format)).unwrap()
}

/// Self and inherited by name.
type Weights = BTreeMap<String, (u64, u64)>;

fn expected(profile: &Profile, selection: &Selection) -> Weights {
    let rows = FlatView::new(profile, selection).rows;
    rows.into_iter().map(|row| (row.name, (row.self_weight, row.inherited_weight))).collect()
}

fn add(weights: &mut Weights, stack: &[&str], weight: u64) {
    weights.entry((*stack.last().unwrap()).to_owned()).or_default().0 += weight;
    // A gap is no function.
    for name in stack.iter().filter(|name| **name != "[...]").collect::<BTreeSet<_>>() {
        weights.entry((*name).to_owned()).or_default().1 += weight;
    }
}

fn folded(text: &str) -> Weights {
    let mut weights = Weights::new();
    for line in text.lines() {
        let (stack, weight) = line.rsplit_once(' ').unwrap();
        add(&mut weights, &stack.split(';').collect::<Vec<_>>(), weight.parse().unwrap());
    }
    weights
}

fn speedscope(text: &str) -> Weights {
    let file: Value = serde_json::from_str(text).unwrap();
    let mut weights = Weights::new();
    for profile in file["profiles"].as_array().unwrap() {
        let mut sum = 0;
        for (sample, weight) in
            profile["samples"].as_array().unwrap().iter().zip(profile["weights"].as_array().unwrap())
        {
            let frame = |at: &Value| file["shared"]["frames"][at.as_u64().unwrap() as usize]["name"].as_str().unwrap();
            add(
                &mut weights,
                &sample.as_array().unwrap().iter().map(frame).collect::<Vec<_>>(),
                weight.as_u64().unwrap(),
            );
            sum += weight.as_u64().unwrap();
        }
        assert_eq!(profile["endValue"], sum);
    }
    weights
}

/// As the Firefox Profiler counts: a stack is a row that names its caller's, a function counts once for each sample.
fn firefox(text: &str) -> Weights {
    let document: Value = serde_json::from_str(text).unwrap();
    let shared = &document["shared"];
    let number = |table: &str, column: &str, at: u64| shared[table][column][at as usize].as_u64().unwrap();
    let mut weights = Weights::new();
    for thread in document["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        for at in 0..samples["length"].as_u64().unwrap() as usize {
            let mut functions = Vec::new();
            let mut row = samples["stack"][at].as_u64().unwrap();
            loop {
                let function = number("frameTable", "func", number("stackTable", "frame", row));
                let name = number("funcTable", "name", function) as usize;
                functions.insert(0, shared["stringArray"][name].as_str().unwrap());
                match number("stackTable", "prefixOffset", row) {
                    0 => break,
                    offset => row -= offset,
                }
            }
            let scale = if samples["weightType"] == "tracing-ms" { 1e6 } else { 1.0 };
            add(&mut weights, &functions, (samples["weight"][at].as_f64().unwrap() * scale).round() as u64);
        }
    }
    weights
}

fn json(text: &str) -> Weights {
    let document: Value = serde_json::from_str(text).unwrap();
    let mut weights = Weights::new();
    for stack in document["stacks"].as_array().unwrap() {
        let name = |at: &Value| document["functions"][at.as_u64().unwrap() as usize]["name"].as_str().unwrap();
        let names: Vec<_> = stack["functions"].as_array().unwrap().iter().map(name).collect();
        add(&mut weights, &names, stack["weights"][0].as_u64().unwrap());
    }
    weights
}

/// Own cost, and own cost with that of the calls.
fn callgrind(text: &str) -> Weights {
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut weights = Weights::new();
    let (mut function, mut call) = (String::new(), false);
    for line in text.lines().skip_while(|line| !line.starts_with("summary:")).skip(1) {
        if let Some((key, value)) = line.split_once('=') {
            if let Some((number, name)) = value.split_once(' ').filter(|_| matches!(key, "fn" | "cfn")) {
                names.insert(number.to_owned(), name.to_owned());
            }
            match key {
                "fn" => function = names[value.split(' ').next().unwrap()].clone(),
                "calls" => call = true,
                _ => {}
            }
        } else if let Some((_, cost)) = line.split_once(' ').filter(|_| line.starts_with(|c: char| c.is_ascii_digit()))
        {
            let cost: u64 = cost.parse().unwrap();
            let weight = weights.entry(function.clone()).or_default();
            weight.0 += if std::mem::take(&mut call) { 0 } else { cost };
            weight.1 += cost;
        }
    }
    weights
}

fn csv(text: &str) -> Weights {
    let rows = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    rows.map(|row| (row[0].to_owned(), (row[2].parse().unwrap(), row[3].parse().unwrap()))).collect()
}

fn samples() -> impl Strategy<Value = Vec<(Vec<u32>, u64)>> {
    prop::collection::vec((prop::collection::vec(0..6u32, 1..12), 1..1000u64), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// I5 in every format that has stacks or costs, with recursion of all kinds and with functions hidden.
    #[test]
    fn consumers_count_as_ccsd_does(samples in samples(), hide in prop::option::of(0..6u32)) {
        let mut maker = Maker::new();
        for (i, (stack, weight)) in samples.iter().enumerate() {
            let names: Vec<String> = stack.iter().map(|function| format!("f{function}")).collect();
            maker.charge_at(7 + i as u32 % 3, &names.join(" "), LineId::UNKNOWN, *weight);
        }
        let profile = &maker.profile;
        let hidden = hide.map(|it| format!("f{it}"));
        let hidden = profile.cost_centres().iter().position(|it| it.linkage_name == hidden);
        let hidden = hidden.map(|at| ccsd_profile::CostCentreId::new(at as u32));
        let selection = Selection::all().hide(hidden);
        let expected = expected(profile, &selection);
        prop_assert_eq!(&folded(&text(profile, &selection, Format::Folded)), &expected);
        prop_assert_eq!(&speedscope(&text(profile, &selection, Format::Speedscope)), &expected);
        prop_assert_eq!(&firefox(&text(profile, &selection, Format::Firefox)), &expected);
        prop_assert_eq!(&json(&text(profile, &selection, Format::Json)), &expected);
        prop_assert_eq!(&callgrind(&text(profile, &selection, Format::Callgrind)), &expected);
        prop_assert_eq!(&csv(&text(profile, &selection, Format::Csv)), &expected);
        // The others have no such numbers, or not in text; they are made all the same.
        for format in [Format::Pprof, Format::Dot, Format::Gprof, Format::Svg] {
            prop_assert!(!export(profile, &selection, format).is_empty());
        }
    }
}

#[test]
fn hostile_names_are_inert() {
    let mut maker = Maker::new();
    let evil = "<script>alert(1)</script>\"];x;\x1b[31m\u{202e}=cmd|'/c'!A1\u{7},\\";
    let mut stack = evil.replace(' ', "_");
    stack.push_str(" leaf");
    maker.charge(&stack, 5);
    // And one of 100 kB.
    maker.charge(&"<b>".repeat(33_334), 1);
    for format in Format::ALL.into_iter().filter(|format| format.is_text()) {
        let text = text(&maker.profile, &Selection::all(), format);
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{}: {text}", format.name());
        if matches!(format, Format::Svg | Format::Html) {
            assert!(!text.contains("<script>alert") && !text.contains("<b><b>"), "{text}");
        }
    }
    let folded = text(&maker.profile, &Selection::all(), Format::Folded);
    assert_eq!((folded.lines().count(), folded.matches(';').count()), (2, 1), "{folded}");
    let dot = text(&maker.profile, &Selection::all(), Format::Dot);
    // A quote that ends a string is not preceded by an odd number of backslashes.
    assert!(dot.contains("</script>\\\"];x;"), "{dot}");
    let csv = text(&maker.profile, &Selection::all(), Format::Csv);
    assert_eq!(csv.lines().count(), 4, "{csv}");
}

#[test]
fn formulas_are_text_in_tables_for_spreadsheets() {
    let mut maker = Maker::new();
    maker.charge("=1+1 -x @y +z a,b say\"hi\"", 1);
    let plain = text(&maker.profile, &Selection::all(), Format::Csv);
    assert!(plain.contains("\r\n=1+1,") && plain.contains("\r\n-x,") && !plain.contains('\''), "{plain}");
    let all = Selection::all();
    let mut csv = Vec::new();
    let export = Export { spreadsheet: true, ..Export::new(&maker.profile, &all) };
    export.write(Format::Csv, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    for cell in ["\"'=1+1\"", "\"'-x\"", "\"'@y\"", "\"'+z\"", "\"a,b\"", "\"say\"\"hi\"\"\""] {
        assert!(csv.contains(cell), "{cell}: {csv}");
    }
}

/// The data of a page.
fn page(html: &str) -> Value {
    let data = html.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(data).unwrap()
}

#[test]
fn a_page_keeps_to_its_size_and_its_total() {
    let mut maker = Maker::new();
    for i in 0..3000 {
        maker.charge(&format!("main f{} g{} h{i}", i % 7, i % 83), 1 + i);
    }
    let sum = |html: &str| page(html)["weights"].as_array().unwrap().iter().map(|it| it.as_u64().unwrap()).sum::<u64>();
    let made = |max_bytes| {
        let mut out = Vec::new();
        let all = Selection::all();
        let export = Export { max_bytes, ..Export::new(&maker.profile, &all) };
        export.write(Format::Html, &mut out).map(|()| String::from_utf8(out).unwrap())
    };
    let total = (1..=3000).sum::<u64>();
    let whole = made(DEFAULT_MAX_BYTES).unwrap();
    assert_eq!(sum(&whole), total);
    assert!(!whole.contains("[pruned]"));
    let frame = whole.len() - serde_json::to_string(&page(&whole)).unwrap().len();
    for most in [frame + 4_000, frame + 20_000, frame + 60_000] {
        let small = made(most).unwrap();
        assert!(small.len() <= most, "{} > {most}", small.len());
        assert_eq!(sum(&small), total, "{most}");
        assert!(small.contains("[pruned]") && small.contains("are too many for this file"));
    }
    assert_eq!(made(1000).unwrap_err().kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn nothing() {
    let maker = Maker::new();
    for format in Format::ALL {
        let mut out = Vec::new();
        let written = Export::new(&maker.profile, &Selection::all()).write(format, &mut out);
        assert_eq!(written.is_err(), format == Format::Svg, "{}", format.name());
    }
}

/// A body that a function includes from another file has its lines there.
#[test]
fn lines_are_those_of_their_own_file() {
    let mut maker = Maker::new();
    let (own, included) = (maker.profile.add_line("demo.c", 10), maker.profile.add_line("body.inc", 2));
    maker.charge_at(7, "main f", own, 5);
    maker.charge_at(7, "main f", included, 7);
    let callgrind = text(&maker.profile, &Selection::all(), Format::Callgrind);
    assert!(callgrind.contains("fi=body.inc\n2 7\nfe=demo.c\n"), "{callgrind}");
    assert!(callgrind.contains("\n10 5\n"), "{callgrind}");
}

#[test]
fn speedscope_knows_the_order_of_intervals_or_says_that_it_does_not() {
    let mut session = common::session();
    let column = |name: &str| Metric { name: name.into(), unit: Unit::Nanoseconds };
    session.metrics.extend([column("0"), column("1")]);
    let mut maker = Maker::with(session, Limits::default());
    // The context that comes first in the table ran last.
    for (stack, weights) in [("main late", [9, 0, 9]), ("main early", [5, 5, 0]), ("main", [2, 1, 1])] {
        let context = stack.split(' ').fold(ContextId::ROOT, |at, name| {
            let function = maker.function(name);
            maker.profile.contexts_mut().push(at, function)
        });
        let thread = maker.thread(1);
        maker.profile.charge(thread, context, LineId::UNKNOWN, &weights);
    }
    let columns = [TimeColumn { from_ns: 0, to_ns: 10 }, TimeColumn { from_ns: 10, to_ns: 20 }];
    let all = Selection::all();
    let made = |columns| -> Value {
        let mut out = Vec::new();
        Export { columns, ..Export::new(&maker.profile, &all) }.write(Format::Speedscope, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    };
    let timed = made(&columns);
    let leaf = |at: usize| {
        let stack = timed["profiles"][0]["samples"][at].as_array().unwrap();
        timed["shared"]["frames"][stack.last().unwrap().as_u64().unwrap() as usize]["name"].as_str().unwrap()
    };
    assert_eq!([0, 1, 2, 3].map(leaf), ["main", "early", "main", "late"]);
    assert_eq!(timed["profiles"][0]["weights"], serde_json::json!([1, 5, 1, 9]));
    let untimed = made(&[]);
    assert!(untimed["profiles"][0]["name"].as_str().unwrap().contains("not in order of time"));
}

#[test]
fn the_drawn_graph_adds_up_and_shows_the_hot_chain() {
    let mut maker = Maker::new();
    maker.charge("main hot leaf", 1_000_000);
    for i in 0..20 {
        maker.charge(&format!("main small{i}"), 100);
    }
    let dot = text(&maker.profile, &Selection::all(), Format::Dot);
    assert!(dot.contains("[other: 20 functions]") && dot.contains("2000 nanoseconds self"), "{dot}");
    assert_eq!(dot.matches("class=\"hot\"").count(), 2, "{dot}");
}
