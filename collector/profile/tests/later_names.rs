//! Names found later are as good as names known from the start: functions that were inlined, lines and call sites.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use ccsd_profile::view::{FlatView, LinesView, Selection};
use ccsd_profile::*;
use common::{Maker, session};

/// A frame: one of the image's functions, and an offset in it.
type NamedFrame = (u64, u32);

const IMAGE: ImageId = ImageId::new(1);

fn named(name: &str) -> CostCentre {
    CostCentre { file: Some("a.c".to_owned()), line: 1, ..CostCentre::named(IMAGE, name) }
}

fn unnamed(function: u64) -> CostCentre {
    CostCentre { linkage_name: None, file: None, line: 0, start: Some(0x1000 * function), ..named("") }
}

/// What debug information says: at offset 0 nothing is inlined, at others some functions are, which several share.
fn chain((function, offset): NamedFrame) -> Vec<NamedSite> {
    let site = |name: String, line: u32| NamedSite { function: named(&name), file: Arc::from("a.c"), line };
    let inlined = (1..=offset % 3).map(|depth| site(format!("inlined{}", (offset + depth) % 5), 50 * depth + offset));
    std::iter::once(site(format!("f{function}"), 10 + offset)).chain(inlined).collect()
}

/// One that a stripped library exports, so that it has a name from the start.
const EXPORTED: u64 = 8;

fn exported() -> CostCentre {
    CostCentre { linkage_name: Some(format!("f{EXPORTED}")), ..unnamed(EXPORTED) }
}

/// One that has a name from the start, and no debug information.
const KNOWN: u64 = 9;

fn known() -> CostCentre {
    CostCentre { file: None, ..named("known") }
}

fn push(profile: &mut Profile, stack: &[Vec<(CostCentre, LineId)>], weight: u64) {
    let process = profile.add_process(Process::new(7, 100, "demo"));
    let thread = profile.add_thread(Thread { process, tid: 7, name: "demo".into() });
    let (mut context, mut route) = (ContextId::ROOT, RouteId::EMPTY);
    let mut caller = None;
    for (function, line) in stack.iter().flatten() {
        let function = profile.add_cost_centre(function.clone());
        if let Some((function, line)) = caller.replace((function, *line)) {
            route = profile.push_site(route, function, line);
        }
        context = profile.contexts_mut().push(context, function);
    }
    let line = caller.map_or(LineId::UNKNOWN, |(_, line)| line);
    profile.charge_route(thread, context, line, route, &[weight]);
    let is_nameless = stack.last().and_then(|frame| frame.last()).is_some_and(|(it, _)| it.linkage_name.is_none());
    let accounting = profile.accounting_mut();
    accounting.received += 1;
    accounting.unsymbolised += u64::from(is_nameless);
}

/// As a collector without names pushes a stack.
fn push_unnamed(profile: &mut Profile, stack: &[NamedFrame], weight: u64) {
    let mut frame = |&(function, offset): &NamedFrame| match function {
        KNOWN => vec![(known(), LineId::UNKNOWN)],
        EXPORTED => vec![(exported(), profile.add_offset(u64::from(offset)))],
        _ => vec![(unnamed(function), profile.add_offset(u64::from(offset)))],
    };
    let stack: Vec<_> = stack.iter().map(&mut frame).collect();
    push(profile, &stack, weight);
}

/// As one with names does.
fn push_named(profile: &mut Profile, stack: &[NamedFrame], weight: u64) {
    let mut frame = |&frame: &NamedFrame| match frame.0 {
        KNOWN => vec![(known(), LineId::UNKNOWN)],
        _ => chain(frame).into_iter().map(|it| (it.function, profile.add_line(&it.file, it.line))).collect(),
    };
    let stack: Vec<_> = stack.iter().map(&mut frame).collect();
    push(profile, &stack, weight);
}

fn names(profile: &Profile) -> LaterNames {
    let mut names = LaterNames::default();
    for (id, offsets) in profile.stripped_functions() {
        let function = profile.cost_centre(id).unwrap().start.unwrap() / 0x1000;
        names.name(id, named(&format!("f{function}")));
        offsets.into_iter().for_each(|offset| names.add_site(id, offset, chain((function, offset))));
    }
    names
}

fn generator(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Stacks of up to so many frames, each function at most once if they are not `recursive`.
fn stacks(seed: u64, recursive: bool) -> Vec<Vec<NamedFrame>> {
    let mut random = generator(seed);
    let mut stack = || {
        let mut stack: Vec<NamedFrame> = Vec::new();
        for _ in 0..=random(7) {
            let function = random(10);
            if recursive || !stack.iter().any(|(it, _)| *it == function) {
                stack.push((function, random(6) as u32));
            }
        }
        stack
    };
    (0..300).map(|_| stack()).collect()
}

fn profiles(stacks: &[Vec<NamedFrame>]) -> (Profile, Profile) {
    let (mut without, mut with) = (Maker::new().profile, Maker::new().profile);
    for (i, stack) in stacks.iter().enumerate() {
        push_unnamed(&mut without, stack, 1 + i as u64 % 3);
        push_named(&mut with, stack, 1 + i as u64 % 3);
    }
    (without, with)
}

fn sums(profile: &Profile) -> BTreeMap<String, (u64, u64)> {
    let view = FlatView::new(profile, &Selection::all());
    let name = |id| profile.name(id).into_owned();
    view.rows.iter().map(|row| (name(row.function), (row.self_weight, row.inherited_weight))).collect()
}

fn lines(profile: &Profile) -> BTreeMap<(String, String, u32), (u64, u64)> {
    let view = LinesView::new(profile, &Selection::all());
    let lines = view.functions.iter().flat_map(|function| {
        function.lines.iter().map(|line| {
            let place = (function.name.clone(), line.file.clone(), line.line);
            (place, (line.weight, line.inherited_weight))
        })
    });
    lines.collect()
}

#[test]
fn without_recursion_all_is_as_if_the_names_had_been_known() {
    for seed in 0..20 {
        let stacks = stacks(seed, false);
        // Functions inlined at several places of a stack are recursion, too; these are few.
        let is_plain = |stack: &&Vec<NamedFrame>| {
            let mut all: Vec<_> = stack
                .iter()
                .filter(|it| it.0 != KNOWN)
                .flat_map(|it| chain(*it))
                .map(|it| it.function.linkage_name)
                .collect();
            let len = all.len();
            all.sort();
            all.dedup();
            all.len() == len
        };
        let stacks: Vec<Vec<NamedFrame>> = stacks.iter().filter(is_plain).cloned().collect();
        assert!(stacks.len() > 50);
        let (without, with) = profiles(&stacks);
        assert!(without.accounting().unsymbolised > 0);
        let later = without.with_later_names(&names(&without));
        assert_eq!(later.canonical(), with.canonical());
        assert_eq!(later.accounting().unsymbolised, 0);
    }
}

#[test]
fn with_recursion_functions_and_lines_have_their_weights() {
    for seed in 0..50 {
        let (without, with) = profiles(&stacks(seed, true));
        let later = without.with_later_names(&names(&without));
        assert_eq!(sums(&later), sums(&with), "seed {seed}");
        assert_eq!(lines(&later), lines(&with), "seed {seed}");
    }
}

#[test]
fn a_stream_gets_the_same_names_interval_by_interval() {
    let all = stacks(3, true);
    let (mut without, mut updates) = (Maker::new().profile, Vec::new());
    for (i, part) in all.chunks(40).enumerate() {
        part.iter().for_each(|stack| push_unnamed(&mut without, stack, 2));
        without.accounting_mut().duration_ns = 1_000 * (i as u64 + 1);
        // As a collector does that has no more room.
        let begins = i == 3;
        updates.push(without.take_update());
        if begins {
            without.begin_generation();
        }
    }
    let mut whole = Profile::new(session(), ProfileLimits::reading());
    updates.iter().for_each(|update| whole.apply(update).unwrap());
    let names = names(&whole);
    let mut stream = RenamedStream::new(&session(), &names);
    let mut reader = Profile::new(session(), ProfileLimits::reading());
    let mut expected = Maker::new().profile;
    for (part, update) in all.chunks(40).zip(&updates) {
        let new = stream.rename(update).unwrap();
        assert_eq!((new.from_ns, new.to_ns), (update.from_ns, update.to_ns));
        let weight = |update: &Update| update.weights.iter().sum::<u64>();
        assert_eq!(weight(&new), weight(update));
        reader.apply(&new).unwrap();
        part.iter().for_each(|stack| push_named(&mut expected, stack, 2));
        assert_eq!(sums(&reader), sums(&expected));
    }
    assert_eq!(lines(&reader), lines(&expected));
    assert_eq!(reader.accounting().unsymbolised, 0);
    assert_eq!(reader.accounting().received, 300);
}

#[test]
fn nameless_frames_keep_their_offsets_for_the_next_time() {
    let (without, with) = profiles(&stacks(1, false));
    let mut some = LaterNames::default();
    let unnamed = without.stripped_functions();
    let first = *unnamed.keys().next().unwrap();
    let start = without.cost_centre(first).unwrap().start.unwrap();
    some.name(first, named(&format!("f{}", start / 0x1000)));
    let offsets = &unnamed[&first];
    assert!(offsets.len() > 1);
    offsets.iter().for_each(|&offset| some.add_site(first, offset, chain((start / 0x1000, offset))));
    let part = without.with_later_names(&some);
    assert_eq!(part.stripped_functions().len(), unnamed.len() - 1);
    let whole = part.with_later_names(&names(&part));
    assert_eq!(sums(&whole), sums(&with));
    assert_eq!(lines(&whole), lines(&with));
}

#[test]
fn lines_of_a_function_with_a_name_name_no_sample() {
    let stacks = stacks(4, false);
    let (without, with) = profiles(&stacks);
    let of_exported = |stack: &&Vec<NamedFrame>| stack.last().is_some_and(|frame| frame.0 == EXPORTED);
    assert!(stacks.iter().filter(of_exported).count() > 10);
    let (id, offsets) = without.stripped_functions().into_iter().find(|(id, _)| without.name(*id) == "f8").unwrap();
    let mut lines_alone = LaterNames::default();
    lines_alone.name(id, named("f8"));
    offsets.into_iter().for_each(|offset| lines_alone.add_site(id, offset, chain((EXPORTED, offset))));
    let later = without.with_later_names(&lines_alone);
    assert_eq!(later.accounting().unsymbolised, without.accounting().unsymbolised);
    let of_it = |profile: &Profile| {
        let mut lines = lines(profile);
        lines.retain(|(name, ..), _| name == "f8");
        lines
    };
    assert!(of_it(&later).len() > 3);
    assert_eq!(of_it(&later), of_it(&with));
}

#[test]
fn offsets_are_no_lines_in_any_view() {
    let (without, _) = profiles(&stacks(2, true));
    assert!(!without.has_call_sites());
    assert!(lines(&without).keys().all(|(_, file, line)| file.is_empty() && *line == 0));
    let text = format!("{:?}", LinesView::new(&without, &Selection::all()));
    assert!(!text.contains("[offset]"), "{text}");
}

#[test]
fn offsets_go_first_where_memory_is_short() {
    let limits = ProfileLimits { lines: 16, route_bytes: 4 << 10, charge_bytes: 16 << 10, ..ProfileLimits::default() };
    let mut profile = Maker::with(session(), limits.clone()).profile;
    let mut with_room = Maker::new().profile;
    let mut random = generator(5);
    for _ in 0..2_000 {
        let stack = [(); 2].map(|()| (random(3), random(64) as u32));
        push_unnamed(&mut profile, &stack, 1);
        push_unnamed(&mut with_room, &stack, 1);
    }
    assert!(with_room.charge_count() > 1_000);
    let shed = profile.accounting().shed;
    assert!(shed.get(Shed::Offsets) > 0);
    // What takes their place are the functions: nothing is elided, no line of source code is lost.
    assert_eq!((shed.get(Shed::Charges), shed.get(Shed::Routes), shed.get(Shed::Lines)), (0, 0, 0));
    assert_eq!(sums(&profile), sums(&with_room));
    assert_eq!(with_room.accounting().shed.get(Shed::Offsets), 0);
    assert!(profile.routes().bytes() <= limits.route_bytes);
}
