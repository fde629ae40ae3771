//! I10: files that are made to take far more than they hold. What is read and shown of them is in proportion to their size.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::Read;

use ccsd_profile::export::{Export, Format};
use ccsd_profile::view::{CyclesView, DiffTree, DiffView, FlatView, LinesView, Selection, StacksView, TreeView};
use ccsd_profile::*;
use common::session;

/// A profile of one thread, `functions` functions, and these calls, each with one sample if it is charged.
fn file(functions: u32, calls: &[(u32, u32, bool)], lines: u32) -> Vec<u8> {
    named_file("f", functions, calls, lines)
}

fn named_file(name: &str, functions: u32, calls: &[(u32, u32, bool)], lines: u32) -> Vec<u8> {
    let mut profile = Profile::new(session(), ProfileLimits::reading());
    let image = profile.add_image(Image { name: "demo".into(), build_id: Vec::new() });
    let process = profile.add_process(Process::new(1, 1, "p"));
    profile.add_thread(Thread { process, tid: 1, name: "t".into() });
    for function in 0..functions {
        profile.add_cost_centre(CostCentre::named(image, format!("{name}{function}")));
    }
    for line in 1..=lines {
        profile.add_line("a.c", line);
    }
    let mut update = profile.take_update();
    let contexts = calls.iter().map(|&(parent, function, _)| (ContextId::new(parent), CostCentreId::new(function)));
    update.contexts = contexts.map(|(parent, function)| NewContext { parent, function }).collect();
    for (context, (.., charged)) in (2..).zip(calls) {
        let first = if lines > 0 { 1 } else { 0 };
        for line in (first..=lines).filter(|_| *charged) {
            let (thread, context, line) = (ThreadId::new(0), ContextId::new(context), LineId::new(line));
            update.charges.push(ChargeDelta { thread, context, line, route: RouteId::EMPTY, samples: 1 });
            update.weights.push(1_000);
        }
    }
    let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
    encoder.write(&update).unwrap();
    encoder.finish().unwrap()
}

const LONG_NAME: &str = "a_name_that_is_longer_than_most_";

/// Chains of calls, each so deep, and so many functions called by the innermost ones in turn.
fn below(chains: u32, depth: u32, leaves: u32) -> (u32, Vec<(u32, u32, bool)>) {
    let (mut calls, mut ends) = (Vec::new(), Vec::new());
    for chain in 0..chains {
        let mut at = 0;
        for level in 0..depth {
            calls.push((at, 2 + (level + chain) % depth, false));
            at = calls.len() as u32 + 1;
        }
        ends.push(at);
    }
    calls.extend((0..leaves).map(|leaf| (ends[(leaf % chains) as usize], 2 + depth + leaf, true)));
    (depth + leaves, calls)
}

/// Bytes of the views that list stacks and of an export of a file, by name; none of the weight is lost in any view.
fn shown(file: &[u8], format: Format) -> Vec<(&'static str, usize)> {
    let loaded = read_profile(file).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
    let (profile, all) = (&loaded.profile, Selection::all());
    let flat = FlatView::new(profile, &all);
    assert_eq!(flat.rows.iter().map(|row| row.self_weight).sum::<u64>(), flat.total.weight);
    let stacks = StacksView::new(profile, &all);
    let listed = stacks.rows.iter().map(|row| row.weight).sum::<u64>();
    assert_eq!(listed + stacks.other.weight, flat.total.weight);
    let cycles = CyclesView::new(profile, &all);
    let functions = |lists: Vec<usize>| lists.into_iter().sum::<usize>() * 8;
    let mut sizes = vec![
        ("stacks", functions(stacks.rows.iter().map(|row| row.entries.len()).collect())),
        ("cycles", functions(cycles.cycles.iter().map(|cycle| cycle.functions.len()).collect())),
    ];
    let mut out = Vec::new();
    Export::new(profile, &all).write(format, &mut out).unwrap();
    sizes.push((format.name(), out.len()));
    sizes
}

fn assert_bounded(file: &[u8], format: Format, fixed: usize, times: usize) {
    for (name, bytes) in shown(file, format) {
        let fixed = if name == "cycles" { fixed / 4 } else { fixed };
        assert!(bytes <= fixed + times * file.len(), "{name}: {bytes} of {}", file.len());
    }
}

#[test]
fn many_contexts_below_a_deep_one() {
    // What each has in full would be 4,000 * 2,040 entries: 65 MB of a list of stacks, and 300 MB of their names. Some are shown
    // whole, and of each other one 4 KiB: its callers, and the function that ran.
    let (functions, calls) = below(2, 2_040, 4_000);
    let bytes = named_file(LONG_NAME, functions, &calls, 0);
    assert_bounded(&bytes, Format::Folded, 56 << 20, 64);
    // Beyond so many, they are not even read in full.
    let (functions, calls) = below(2, 2_040, 9_500);
    let loaded = read_profile(&file(functions, &calls, 0)[..]).unwrap();
    let notes = &loaded.profile.session().notes;
    assert!(notes.iter().any(|note| note.contains("too deep to be shown in full")), "{notes:?}");
}

#[test]
fn histories_are_no_longer_than_a_profile_makes_them() {
    // Longer than any collector's: the inner part is elided, and nothing is lost.
    let (functions, calls) = below(1, 4_000, 3);
    let loaded = read_profile(&file(functions, &calls, 0)[..]).unwrap();
    let view = StacksView::new(&loaded.profile, &Selection::all());
    assert_eq!((view.rows.len(), view.rows[0].samples), (1, 3));
    assert_eq!(view.rows[0].entries.last().unwrap().function, CostCentreId::ELIDED);
    assert!(view.rows[0].entries.len() <= MAX_HISTORY_ENTRIES + 3);
}

#[test]
fn many_lines_of_a_deep_stack() {
    let (functions, calls) = below(1, 2_000, 1);
    assert_bounded(&file(functions, &calls, 6_000), Format::Json, 96 << 20, 512);
}

#[test]
fn many_long_cycles() {
    let (depth, leaves) = (500, 2_500);
    let (functions, mut calls) = below(1, depth, leaves);
    for leaf in 0..leaves {
        calls.push((2 + depth + leaf, 2 + leaf % depth, true));
    }
    // In full, the stacks would be 20 MB and the cycles 5.
    assert_bounded(&named_file(LONG_NAME, functions, &calls, 0), Format::Html, 8 << 20, 64);
}

/// What `diff`, `annotate` and `top` show.
#[test]
fn differences_lines_and_trees_of_deep_stacks() {
    let (functions, calls) = below(2, 1_000, 1_500);
    let loaded = read_profile(&named_file(LONG_NAME, functions, &calls, 0)[..]).unwrap();
    let (profile, all) = (&loaded.profile, Selection::all());
    let side = (profile, &all);
    let tree = DiffTree::new(side, side, 0.0);
    let places = profile.contexts().len() + profile.charge_count();
    assert!(tree.nodes.len() <= places && tree.functions.len() <= functions as usize + 2, "{}", tree.nodes.len());
    let own: u64 = tree.nodes.iter().map(|node| node.after.self_weight).sum();
    assert_eq!((own, tree.after.weight), (1_500_000, 1_500_000));
    let rows = DiffView::new(side, side).rows;
    assert_eq!(rows.iter().filter_map(|row| row.after).map(|it| it.self_weight).sum::<u64>(), 1_500_000);
    let lines = LinesView::new(profile, &all).functions;
    assert_eq!(lines.iter().map(|it| it.lines.len()).sum::<usize>(), 1_500);
    assert!(TreeView::new(profile, &all).nodes.len() <= places);
}

/// A stack so deep, with so many routes that each have another call site at their end, and a sample with each.
fn routes(depth: u32, count: u32) -> Vec<u8> {
    let (functions, mut calls) = below(1, depth, 0);
    calls.last_mut().unwrap().2 = true;
    let mut profile = Profile::new(session(), ProfileLimits::reading());
    let read = read_profile(&file(functions, &calls, 0)[..]).unwrap().profile;
    profile.merge(&read).unwrap();
    for line in 0..=count {
        profile.add_line("a.c", line + 1);
    }
    let mut update = profile.take_update();
    let (thread, samples) = (ThreadId::new(0), 1);
    let context = update.charges[0].context;
    let line = |number| LineId::new(number + 1);
    for site in 0..depth - 2 {
        let (parent, function) = (RouteId::new(site), CostCentreId::new(2 + site));
        update.routes.push(NewRoute { parent, function, line: line(0) });
    }
    let parent = RouteId::new(depth - 2);
    let (mut charges, mut weights) = (Vec::new(), Vec::new());
    for number in 0..count {
        update.routes.push(NewRoute { parent, function: CostCentreId::new(depth), line: line(number + 1) });
        let route = RouteId::new(depth - 1 + number);
        charges.push(ChargeDelta { thread, context, line: line(0), route, samples });
        weights.push(1_000);
    }
    (update.charges, update.weights, update.squares) = (charges, weights, Vec::new());
    let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
    encoder.write(&update).unwrap();
    encoder.finish().unwrap()
}

/// A small file with a stack of 2,000 call sites is shown with lines up to a limit; beyond it that is said, and no
/// weight is lost.
#[test]
fn many_routes_of_a_deep_stack() {
    for (count, is_known) in [(100, true), (6_000, false)] {
        let file = routes(2_000, count);
        let loaded = read_profile(&file[..]).unwrap();
        assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
        let (profile, all) = (&loaded.profile, Selection::all());
        assert_eq!(profile.routes().len(), 1_998 + 1 + count as usize);
        let lines = LinesView::new(profile, &all);
        let own: u64 = lines.functions.iter().map(|function| function.self_weight).sum();
        assert_eq!((own, lines.total.weight), (u64::from(count) * 1_000, u64::from(count) * 1_000));
        for format in [Format::Callgrind, Format::Pprof] {
            let mut out = Vec::new();
            Export::new(profile, &all).write(format, &mut out).unwrap();
            if format == Format::Pprof {
                let mut message = Vec::new();
                flate2::read::GzDecoder::new(&out[..]).read_to_end(&mut message).unwrap();
                out = message;
            }
            let text = String::from_utf8_lossy(&out);
            let says = ["they have too many call sites", "too long to be listed in full"].map(|it| text.contains(it));
            // A list of stacks has most of them in part only.
            let calls = !is_known && format == Format::Callgrind;
            assert_eq!(says, [calls, !is_known && !calls], "{count} {}", format.name());
            if format == Format::Callgrind {
                // The arc from the caller of the last function, by its lines.
                let id = text.split_once(") f1998\n").unwrap().0.rsplit_once('(').unwrap().1;
                let from = text.lines().skip_while(|line| !line.starts_with(&format!("fn=({id})")));
                let calls: Vec<_> = from.take_while(|line| !line.is_empty()).collect();
                let weight = |line: &&str| line.split(' ').nth(1).unwrap().parse::<u64>().unwrap();
                let arcs = calls.windows(2).filter(|pair| pair[0].starts_with("calls="));
                let (lines, sum) = arcs.fold((0, 0), |(lines, sum), pair| (lines + 1, sum + weight(&pair[1])));
                assert_eq!(sum, u64::from(count) * 1_000);
                assert!(lines > if is_known { count - 1 } else { 1_000 }, "{lines}");
            }
        }
    }
}

/// Routes of which no table makes any: of a parent that does not exist or is cut, known ones, deeper ones than there may be.
#[test]
fn routes_that_are_none_are_refused() {
    let bytes = routes(10, 3);
    let mut profile = Profile::new(session(), ProfileLimits::reading());
    let mut decoder = codec::Decoder::new(&bytes[..]).unwrap();
    let Some(codec::Decoded::Update(update)) = decoder.next_record().unwrap() else {
        unreachable!("there is an update")
    };
    let known = *update.routes.last().unwrap();
    let next = RouteId::new(u32::try_from(update.routes.len()).unwrap() + 1);
    for bad in [NewRoute { parent: next, ..known }, NewRoute { parent: known.parent.cut(), ..known }, known] {
        let mut update = update.clone();
        update.routes.push(bad);
        assert!(profile.apply(&update).is_err(), "{bad:?}");
        assert_eq!(profile.routes().len(), 1);
    }
    let mut deep = update.clone();
    for number in 0..3_000 {
        let parent = RouteId::new(u32::try_from(deep.routes.len()).unwrap());
        deep.routes.push(NewRoute { parent, line: LineId::new(1 + number % 4), ..known });
    }
    assert!(matches!(profile.apply(&deep), Err(UpdateError::BadRoute(_))));
    profile.apply(&update).unwrap();
}

#[test]
fn notes_without_end() {
    let mut profile = Profile::new(session(), ProfileLimits::reading());
    let mut update = profile.take_update();
    update.notes = (0..60_000).map(|note| format!("note {note}")).collect();
    let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
    encoder.write(&update).unwrap();
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    let notes = &loaded.profile.session().notes;
    assert_eq!((notes.len(), notes.last().unwrap().as_str()), (256, "more notes are left out"));
}

#[test]
fn file_names_without_end() {
    // An update of nothing but empty names of files.
    let names = 100_000u32;
    let mut payload = vec![0, 1, 0, 0, 1, 2, 1, 0, 0, 2, 1];
    payload.extend([names as u8 | 0x80, (names >> 7) as u8 | 0x80, (names >> 14) as u8]);
    payload.resize(payload.len() + names as usize, 0);
    // The other ten lists, usual weights and units, charges, places, runs, notes, and an accounting of nothing.
    payload.resize(payload.len() + 10, 0);
    session().metrics.iter().for_each(|_| payload.extend([0, 1]));
    payload.resize(payload.len() + 3 + 1 + 5, 0);
    let mut file = Encoder::new(Vec::new(), &session()).unwrap().get_ref().clone();
    for number in 1..=20u32 {
        let mut record = vec![2];
        let mut length = payload.len();
        while length >= 0x80 {
            record.push(length as u8 | 0x80);
            length >>= 7;
        }
        record.push(length as u8);
        record.extend(&payload);
        let crc = crc32fast::hash(&[&number.to_le_bytes()[..], &record].concat());
        file.extend(record);
        file.extend(crc.to_le_bytes());
    }
    let loaded = read_profile(&file[..]).unwrap();
    let Recovery::Cut { whole_records, why, .. } = loaded.recovery else { unreachable!("all of it was read") };
    assert_eq!(whole_records, 11);
    assert!(why.to_string().contains("more file names than a stream may have"), "{why}");
}

#[test]
fn renamed_threads_are_within_the_budget_of_names() {
    let mut profile = Profile::new(session(), ProfileLimits { string_bytes: 1_100, ..ProfileLimits::default() });
    let mut source = Profile::new(session(), ProfileLimits::default());
    let process = source.add_process(Process::new(1, 1, "p"));
    let thread = source.add_thread(Thread { process, tid: 1, name: "t".into() });
    profile.apply(&source.take_update()).unwrap();
    let others = profile.name_bytes() - 1;
    for name in ["a".repeat(900), "b".repeat(90), "c".repeat(800)] {
        source.rename_thread(thread, &name);
        profile.apply(&source.take_update()).unwrap();
        assert_eq!(profile.name_bytes(), name.len() + others);
    }
    source.rename_thread(thread, &"d".repeat(1_001));
    assert!(profile.apply(&source.take_update()).is_err());
}
