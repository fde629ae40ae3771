//! Lines of callers against raw stacks: what a line has is the weight of the stacks that have a frame there.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use ccsd_profile::export::{Export, Format};
use ccsd_profile::view::{LinesView, Selection};
use ccsd_profile::*;
use common::{Maker, session};
use proptest::prelude::*;

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Thread, frames from the root on (function, line or 0), weight.
type SiteStack = (u32, Vec<(usize, u32)>, u64);
/// By function and line: self and inherited weight.
type LineWeights = BTreeMap<(String, u32), (u64, u64)>;
type Calls = BTreeMap<(String, u32, String), u64>;

fn stacks() -> impl Strategy<Value = Vec<SiteStack>> {
    let frame = (0..NAMES.len(), 0..4u32);
    prop::collection::vec((1..3u32, prop::collection::vec(frame, 1..12), 1..100u64), 1..40)
}

fn charge(maker: &mut Maker, (thread, frames, weight): &SiteStack) {
    let frames: Vec<(&str, u32)> =
        frames.iter().map(|&(function, line)| (NAMES[function], line_of(function, line))).collect();
    maker.charge_sites(*thread, &frames, *weight);
}

/// The last function has no lines, the others lack one here and there.
fn line_of(function: usize, line: u32) -> u32 {
    if function + 1 == NAMES.len() || line == 0 { 0 } else { 10 * function as u32 + line + 11 }
}

fn profile_of(stacks: &[SiteStack]) -> Profile {
    let mut maker = Maker::new();
    stacks.iter().for_each(|stack| charge(&mut maker, stack));
    maker.profile
}

fn raw_lines(stacks: &[SiteStack], hidden: &[usize], thread: Option<u32>) -> LineWeights {
    let mut lines = LineWeights::new();
    for (of, frames, weight) in stacks {
        if thread.is_some_and(|thread| thread != *of) {
            continue;
        }
        let visible = frames.iter().filter(|(function, _)| !hidden.contains(function));
        let places: Vec<_> =
            visible.map(|&(function, line)| (NAMES[function].to_owned(), line_of(function, line))).collect();
        let Some(leaf) = places.last() else {
            lines.entry(("[root]".to_owned(), 0)).or_default().0 += weight;
            continue;
        };
        lines.entry(leaf.clone()).or_default().0 += weight;
        for place in places.iter().collect::<BTreeSet<_>>() {
            lines.entry(place.clone()).or_default().1 += weight;
        }
    }
    lines.retain(|(_, line), (own, _)| *line > 0 || *own > 0);
    lines.iter_mut().filter(|((_, line), _)| *line == 0).for_each(|(_, (own, all))| *all = *own);
    lines
}

fn shown_lines(profile: &Profile, selection: &Selection) -> LineWeights {
    let functions = LinesView::new(profile, selection).functions;
    let rows = functions.iter().flat_map(|it| it.lines.iter().map(|line| (it.name.clone(), line)));
    rows.map(|(name, row)| ((name, row.line), (row.weight, row.inherited_weight))).collect()
}

fn raw_calls(stacks: &[SiteStack]) -> Calls {
    let mut calls = Calls::new();
    for (_, frames, weight) in stacks {
        let functions: BTreeSet<usize> = frames.iter().map(|frame| frame.0).collect();
        for function in functions {
            let latest = frames.iter().rposition(|frame| frame.0 == function).unwrap();
            if let Some(callee) = frames.get(latest + 1) {
                let line = line_of(function, frames[latest].1);
                *calls.entry((NAMES[function].to_owned(), line, NAMES[callee.0].to_owned())).or_default() += weight;
            }
        }
    }
    calls
}

fn callgrind_calls(profile: &Profile) -> Calls {
    let mut text = Vec::new();
    Export::new(profile, &Selection::all()).write(Format::Callgrind, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut name = |text: &str| match text.split_once(' ') {
        Some((number, name)) => {
            names.insert(number.to_owned(), name.to_owned());
            name.to_owned()
        }
        None => names[text].clone(),
    };
    let (mut caller, mut callee, mut is_call) = (String::new(), String::new(), false);
    let mut calls = Calls::new();
    for line in text.lines() {
        if let Some(text) = line.strip_prefix("fn=") {
            caller = name(text);
        } else if let Some(text) = line.strip_prefix("cfn=") {
            callee = name(text);
        } else if std::mem::replace(&mut is_call, line.starts_with("calls=")) {
            let (line, weight) = line.split_once(' ').unwrap();
            let line: u32 = line.parse().unwrap();
            // Calls without a line stand where the function is declared.
            let line = if line == 3 { 0 } else { line };
            *calls.entry((caller.clone(), line, callee.clone())).or_default() += weight.parse::<u64>().unwrap();
        }
    }
    calls
}

/// The calls of latest activations in a profile for Firefox: the last frame of a function on a stack and the one after it.
fn firefox_calls(profile: &Profile) -> Calls {
    let mut text = Vec::new();
    Export::new(profile, &Selection::all()).write(Format::Firefox, &mut text).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let shared = &document["shared"];
    let number = |table: &str, column: &str, row: usize| shared[table][column][row].as_u64().map(|it| it as usize);
    let mut calls = Calls::new();
    for thread in document["threads"].as_array().unwrap() {
        let samples = &thread["samples"];
        for (stack, weight) in samples["stack"].as_array().unwrap().iter().zip(samples["weight"].as_array().unwrap()) {
            let (mut row, mut frames) = (stack.as_u64().unwrap() as usize, Vec::new());
            loop {
                let frame = number("stackTable", "frame", row).unwrap();
                let name = number("funcTable", "name", number("frameTable", "func", frame).unwrap()).unwrap();
                let line = number("frameTable", "line", frame).unwrap_or(0) as u32;
                frames.push((shared["stringArray"][name].as_str().unwrap().to_owned(), line));
                match number("stackTable", "prefixOffset", row).unwrap() {
                    0 => break,
                    offset => row -= offset,
                }
            }
            // Innermost first: the first of a function is its latest activation.
            let mut seen: BTreeSet<&str> = frames.first().map(|(name, _)| name.as_str()).into_iter().collect();
            for pair in frames.windows(2) {
                let [(callee, _), (caller, line)] = pair else { continue };
                if caller != "[...]" && seen.insert(caller) {
                    let call = (caller.clone(), *line, callee.clone());
                    *calls.entry(call).or_default() += (weight.as_f64().unwrap() * 1e6).round() as u64;
                }
            }
        }
    }
    calls
}

proptest! {
    #[test]
    fn a_line_has_the_stacks_with_a_frame_there(stacks in stacks(), hidden in prop::collection::vec(0..NAMES.len(), 0..3)) {
        let profile = profile_of(&stacks);
        prop_assert_eq!(shown_lines(&profile, &Selection::all()), raw_lines(&stacks, &[], None));
        let thread = profile.threads().iter().position(|thread| thread.tid == 1);
        if let Some(thread) = thread {
            let one = Selection::all().threads([ThreadId::new(thread as u32)]);
            prop_assert_eq!(shown_lines(&profile, &one), raw_lines(&stacks, &[], Some(1)));
        }
        let id = |name: &str| profile.cost_centres().iter().position(|it| it.linkage_name.as_deref() == Some(name));
        let ids: Vec<_> = hidden.iter().filter_map(|&it| id(NAMES[it])).map(|id| CostCentreId::new(id as u32)).collect();
        let hiding = Selection::all().hide(ids);
        let expected = raw_lines(&stacks, &hidden, None);
        let shown: LineWeights = shown_lines(&profile, &hiding);
        let with_root = |lines: &LineWeights| lines.iter().filter(|((name, _), _)| name != "[root]").map(|(a, b)| (a.clone(), *b)).collect::<LineWeights>();
        prop_assert_eq!(with_root(&shown), with_root(&expected));
        prop_assert_eq!(with_root(&shown_lines(&profile.selected(&hiding), &Selection::all())), with_root(&expected));
    }

    #[test]
    fn a_call_has_its_line(stacks in stacks()) {
        let profile = profile_of(&stacks);
        prop_assert_eq!(callgrind_calls(&profile), raw_calls(&stacks));
        prop_assert_eq!(firefox_calls(&profile), raw_calls(&stacks));
    }

    #[test]
    fn streams_generations_and_halves_have_the_same_lines(stacks in stacks(), cut in 0..40usize, generation in any::<bool>()) {
        let whole = profile_of(&stacks);
        let (early, late) = stacks.split_at(cut.min(stacks.len()));
        let mut maker = Maker::new();
        let mut reader = Profile::new(session(), ProfileLimits::reading());
        let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
        for part in [early, late] {
            part.iter().for_each(|stack| charge(&mut maker, stack));
            let update = maker.profile.take_update();
            encoder.write(&update).unwrap();
            reader.apply(&update).unwrap();
            if generation {
                maker.profile.begin_generation();
            }
        }
        let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
        prop_assert!(matches!(loaded.recovery, Recovery::Whole));
        let mut merged = profile_of(late);
        merged.merge(&profile_of(early)).unwrap();
        let mut copy = Profile::new(session(), ProfileLimits::reading());
        copy.apply(&reader.snapshot()).unwrap();
        for profile in [&reader, &loaded.profile, &merged, &copy] {
            prop_assert_eq!(profile.canonical(), whole.canonical());
            prop_assert_eq!(shown_lines(profile, &Selection::all()), raw_lines(&stacks, &[], None));
            prop_assert_eq!(callgrind_calls(profile), raw_calls(&stacks));
        }
    }

    #[test]
    fn routes_without_room_are_missing_and_counted(stacks in stacks(), route_bytes in 0..6_000usize) {
        let mut maker = Maker::with(session(), ProfileLimits { route_bytes, ..ProfileLimits::default() });
        stacks.iter().for_each(|stack| charge(&mut maker, stack));
        let profile = maker.profile;
        prop_assert!(profile.routes().bytes() <= route_bytes.max(64), "{} of {route_bytes}", profile.routes().bytes());
        let (shown, raw) = (shown_lines(&profile, &Selection::all()), raw_lines(&stacks, &[], None));
        let total = |lines: &LineWeights| lines.values().map(|line| line.0).sum::<u64>();
        prop_assert_eq!(total(&shown), total(&raw));
        for (place, (own, all)) in &shown {
            prop_assert!(raw.get(place).is_some_and(|raw| raw.0 == *own && raw.1 >= *all), "{place:?}");
        }
        let cut = LinesView::new(&profile, &Selection::all()).cut_weight;
        let missing = profile.accounting().shed.get(Shed::Routes);
        prop_assert_eq!(cut > 0, missing > 0);
        if missing == 0 {
            prop_assert_eq!(shown, raw);
        }
        // Calls whose line is not sure have none.
        let raw = raw_calls(&stacks);
        for ((caller, line, callee), weight) in callgrind_calls(&profile) {
            prop_assert!(line == 0 || raw.get(&(caller, line, callee)).is_some_and(|raw| *raw >= weight));
        }
    }
}

#[test]
fn recursion_makes_no_more_routes() {
    let mut maker = Maker::new();
    for depth in 1..200 {
        let mut stack = vec![("main", 1)];
        stack.extend((0..depth).map(|at| (["even", "odd"][at % 2], 10 + at as u32 % 4)));
        maker.charge_sites(1, &stack, 1);
    }
    // The empty one, main's, and those of four sites, of which each is the latest of its function in turn.
    assert!(maker.profile.routes().len() <= 16, "{}", maker.profile.routes().len());
}

/// A call from a place without a line does not pass for one from an earlier activation's line.
#[test]
fn the_latest_call_may_have_no_line() {
    let mut maker = Maker::new();
    maker.charge_sites(1, &[("main", 1), ("f", 10), ("g", 20), ("f", 0), ("h", 30)], 5);
    maker.charge_sites(1, &[("main", 1), ("f", 0), ("g", 20), ("f", 10), ("h", 30)], 7);
    let calls = callgrind_calls(&maker.profile);
    let weight = |line: u32| calls.get(&("f".to_owned(), line, "h".to_owned())).copied();
    assert_eq!((weight(10), weight(0)), (Some(7), Some(5)), "{calls:?}");
    let hidden = Selection::all().hide([maker.find("h")]);
    let view = LinesView::new(&maker.profile, &hidden);
    let f = view.functions.iter().find(|it| it.name == "f").unwrap();
    let own = |line: u32| f.lines.iter().filter(|it| it.line == line).map(|it| it.weight).sum::<u64>();
    assert_eq!((own(10), own(0)), (7, 5));
}

/// What is elided may hold the latest call of a function: none of them has a line then.
#[test]
fn elision_hides_the_latest_call() {
    let mut maker = Maker::with(session(), ProfileLimits { context_bytes: 1, ..ProfileLimits::default() });
    for i in 0..20_000 {
        maker.charge_sites(1, &[("v", 10), ("a", 20), (NAMES[i % 6], 30), (&format!("f{i}"), 40)], 1);
    }
    maker.charge_sites(1, &[("v", 10), ("a", 20), ("new", 30), ("v", 40), ("leaf", 50)], 5);
    let flat = view::FlatView::new(&maker.profile, &Selection::all());
    assert!(flat.rows.iter().any(|row| row.name == "[elided]") && flat.rows.iter().all(|row| row.name != "leaf"));
    let calls = callgrind_calls(&maker.profile);
    let weight = |line: u32| calls.get(&("v".to_owned(), line, "a".to_owned())).copied().unwrap_or(0);
    // The last stack is among those without a line.
    assert!(weight(40) == 0 && weight(10) + weight(0) == 20_005 && weight(0) >= 5, "{calls:?}");
}
