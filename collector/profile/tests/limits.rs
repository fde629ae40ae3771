//! What happens beyond every limit: all weight stays, and is shown where it went (I1, I10).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;

use ccsd_profile::export::Format;
use ccsd_profile::query::Grouping;
use ccsd_profile::view::{FlatView, GraphView, LinesView, Selection, ThreadsView};
use ccsd_profile::*;
use common::{Maker, session};

const TIGHT: ProfileLimits = ProfileLimits {
    context_bytes: MIN_CONTEXT_BYTES,
    charge_bytes: 4 << 10,
    route_bytes: 4 << 10,
    string_bytes: 2 << 10,
    images: 5,
    cost_centres: 100,
    lines: 20,
    processes: 5,
    threads: 10,
};

#[test]
fn nothing_is_lost_beyond_the_limits() {
    let mut profile = Profile::new(session(), TIGHT);
    let mut total = 0;
    for i in 0..500u32 {
        let image = profile.add_image(Image { name: format!("/lib/lib{i}.so"), build_id: i.to_le_bytes().into() });
        let parent = Some(ProcessId::new(i));
        let process = profile.add_process(Process { parent, ..Process::new(i, 1, "p") });
        let thread = profile.add_thread(Thread { process, tid: i, name: format!("thread {i}") });
        let mut context = ContextId::ROOT;
        for frame in 0..10 {
            let function = profile.add_cost_centre(CostCentre {
                image,
                linkage_name: Some(format!("function_{i}_{frame}")),
                display_name: Some(format!("function::{i}::{frame}")),
                start: (frame % 2 == 0).then_some(u64::from(i)),
                file: Some(format!("src/{i}.c")),
                line: 1,
                local: false,
            });
            context = profile.contexts_mut().push(context, function);
        }
        let line = profile.add_line(&format!("src/{i}.c"), i);
        profile.charge(thread, context, line, &[u64::from(i)]);
        profile.accounting_mut().received += 1;
        total += u64::from(i);
    }
    assert!(profile.images().len() <= TIGHT.images);
    assert!(profile.cost_centres().len() <= TIGHT.cost_centres);
    assert!(profile.lines().len() <= TIGHT.lines);
    assert!(profile.processes().len() <= TIGHT.processes && profile.threads().len() <= TIGHT.threads);
    let most = TIGHT.context_bytes + TIGHT.charge_bytes + TIGHT.string_bytes + (40 << 10);
    assert!(profile.bytes() <= most, "{} of {most}", profile.bytes());
    let all = Selection::all();
    let view = FlatView::new(&profile, &all);
    assert_eq!((view.total.weight, view.total.samples), (total, 500));
    assert!(profile.accounting().elided > 0);
    // What had no room is counted by the table that had none. Contexts are counted when an update is taken.
    let shed = |profile: &Profile, table| profile.accounting().shed.get(table);
    for table in [Shed::Names, Shed::Functions, Shed::Images, Shed::Processes] {
        assert!(shed(&profile, table) > 0, "{}", table.key());
    }
    for table in [Shed::Queue, Shed::Stacks, Shed::UnwindTables, Shed::GeneratedCode, Shed::Addresses] {
        assert_eq!(shed(&profile, table), 0, "{}", table.key());
    }
    assert_eq!(ThreadsView::new(&profile, &all).processes.iter().map(|p| p.weight).sum::<u64>(), total);
    assert_eq!(LinesView::new(&profile, &all).functions.iter().map(|f| f.self_weight).sum::<u64>(), total);
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    assert_eq!(loaded.profile.canonical(), profile.canonical());
    assert_eq!(loaded.profile.accounting(), profile.accounting());
}

/// Each table alone is driven over its limit: that one and no other counts, all weight is there, and the named row has it.
#[test]
fn each_limit_alone_is_counted_and_sheds_to_its_row() {
    let wide = ProfileLimits::default();
    let cases = [
        (Shed::Contexts, ProfileLimits { context_bytes: MIN_CONTEXT_BYTES, ..wide.clone() }),
        (Shed::Charges, ProfileLimits { charge_bytes: 8 << 10, ..wide.clone() }),
        (Shed::Names, ProfileLimits { string_bytes: 4 << 10, ..wide.clone() }),
        (Shed::Functions, ProfileLimits { cost_centres: 64, ..wide.clone() }),
        (Shed::Lines, ProfileLimits { lines: 16, ..wide.clone() }),
        (Shed::Images, ProfileLimits { images: 4, ..wide.clone() }),
        (Shed::Processes, ProfileLimits { processes: 4, ..wide.clone() }),
        (Shed::Threads, ProfileLimits { threads: 8, ..wide.clone() }),
    ];
    for (table, limits) in cases {
        let mut profile = Profile::new(session(), limits.clone());
        for i in 0..2_000u32 {
            let image = profile.add_image(Image { name: format!("lib{}", i % 8), build_id: Vec::new() });
            let (process, parent) = (i % 8, None);
            let process = profile.add_process(Process { parent, ..Process::new(process, 1, "p") });
            let thread = profile.add_thread(Thread { process, tid: i % 16, name: "t".into() });
            let mut context = ContextId::ROOT;
            for frame in 0..8 {
                let number = i.wrapping_mul(2_654_435_761).rotate_left(5 * frame) % 200;
                let function = profile.add_cost_centre(CostCentre::named(image, format!("function_{number}")));
                context = profile.contexts_mut().push(context, function);
            }
            let line = profile.add_line("a.c", i % 32);
            profile.charge(thread, context, line, &[u64::from(i) + 1]);
        }
        let update = profile.take_update();
        let shed: Vec<&str> = update.accounting.shed.iter().map(|(table, _)| table.key()).collect();
        let expected = match table {
            Shed::Functions | Shed::Names => vec!["contexts", table.key()],
            _ => vec![table.key()],
        };
        assert_eq!(shed, expected);
        let view = FlatView::new(&profile, &Selection::all());
        assert_eq!((view.total.weight, view.total.samples), (2_000 * 2_001 / 2, 2_000), "{}", table.key());
        let elided = view.row(CostCentreId::ELIDED).map_or(0, |row| row.inherited_weight);
        let elides = matches!(table, Shed::Contexts | Shed::Charges | Shed::Names | Shed::Functions);
        assert_eq!(elided > 0, elides, "{}", table.key());
        let others = profile.images().iter().filter(|image| image.name == "[other]").count()
            + profile.processes().iter().filter(|process| process.is_grouped()).count()
            + profile.threads().iter().filter(|thread| thread.name == "[other]").count();
        assert_eq!(others > 0, matches!(table, Shed::Images | Shed::Processes | Shed::Threads), "{}", table.key());
        assert!(profile.contexts().bytes() <= limits.context_bytes, "{}", table.key());
        let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
        encoder.write(&update).unwrap();
        let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
        assert_eq!(loaded.profile.accounting(), profile.accounting());
    }
}

/// Of more processes than there is room for, those of one name and unit share an entry; where even names are too many, what
/// each belongs to is known still.
#[test]
fn processes_beyond_the_table_keep_name_and_unit() {
    let limits = ProfileLimits { processes: 64, ..ProfileLimits::default() };
    let mut profile = Profile::new(session(), limits);
    let charge = |profile: &mut Profile, pid, name: &str, unit: &str| {
        let membership = Membership { cgroup: format!("/system.slice/{unit}.service"), ..Membership::default() };
        let (name, membership) = (name.to_owned(), Some(Arc::new(membership)));
        let process = Process { pid, start_time: 1, exec_generation: 0, parent: None, name, membership };
        let process = profile.add_process(process);
        let thread = profile.add_thread(Thread { process, tid: pid, name: "worker".into() });
        profile.charge(thread, ContextId::ROOT, LineId::UNKNOWN, &[1]);
        (process, thread)
    };
    for pid in 1..=1_000 {
        charge(&mut profile, pid, "make", "a");
        charge(&mut profile, 10_000 + pid, "make", "b");
        charge(&mut profile, 20_000 + pid, "cc1", "b");
    }
    let sums = |profile: &Profile, by| {
        let grouped = profile.by(by);
        let view = FlatView::new(&grouped, &Selection::all());
        view.rows.iter().map(|row| (row.name.to_string(), row.self_weight)).collect::<Vec<_>>()
    };
    let mut many: Vec<_> = profile.processes().iter().filter(|it| it.is_grouped()).map(Process::label).collect();
    many.sort();
    assert_eq!(many, ["cc1 (many)", "make (many)", "make (many)"]);
    assert_eq!(sums(&profile, Grouping::Unit), [("b.service".to_owned(), 2_000), ("a.service".to_owned(), 1_000)]);
    // A process that changes its name does not take the others with it.
    let (before, thread) = charge(&mut profile, 5_000, "make", "a");
    let after = profile.rename_process(before, "cc1");
    assert_ne!(after, before);
    profile.rename_thread(thread, "cc1");
    assert_eq!(profile.thread(thread).map(|it| &*it.name), Some("make"));
    assert_eq!(profile.rename_process(before, "cc1"), after);

    for pid in 0..1_000 {
        charge(&mut profile, 30_000 + pid, &format!("name {pid}"), "c");
    }
    assert!(profile.processes().len() <= 64);
    assert_eq!(sums(&profile, Grouping::Unit)[..2], [("b.service".to_owned(), 2_000), ("a.service".to_owned(), 1_001)]);
    assert_eq!(sums(&profile, Grouping::Unit)[2], ("c.service".to_owned(), 1_000));

    // Readers of earlier versions tell them apart, too.
    let numbers = profile.processes().iter().map(|it| (it.pid, it.start_time, it.exec_generation));
    assert_eq!(numbers.collect::<std::collections::HashSet<_>>().len(), profile.processes().len());
    // Another profile's are the same by name and unit, and a file keeps them apart.
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    let mut read = read_profile(&encoder.finish().unwrap()[..]).unwrap().profile;
    assert_eq!(read.canonical(), profile.canonical());
    let entries = read.processes().len();
    read.merge(&profile).unwrap();
    assert_eq!(read.processes().len(), entries);
    assert_eq!(sums(&read, Grouping::Unit)[2], ("c.service".to_owned(), 2_000));
}

/// What a stack that was cut short is charged to must stay, however many functions there are.
#[test]
fn truncation_reasons_always_have_room() {
    let mut profile =
        Profile::new(session(), ProfileLimits { cost_centres: 3, string_bytes: 0, ..ProfileLimits::default() });
    let image = profile.add_image(Image { name: String::new(), build_id: vec![1] });
    for start in 0..9 {
        let bare = CostCentre {
            image,
            linkage_name: None,
            display_name: None,
            start: Some(start),
            file: None,
            line: 0,
            local: false,
        };
        profile.add_cost_centre(bare);
    }
    let truncated = profile.truncated_cost_centre(TruncationReason::TooDeep);
    let gap = profile.gap_cost_centre(TruncationReason::StackCopyTooSmall);
    assert!(truncated != CostCentreId::ELIDED && gap != CostCentreId::ELIDED && truncated != gap);
    assert_eq!(truncated, profile.truncated_cost_centre(TruncationReason::TooDeep));
}

#[test]
fn charges_to_what_does_not_exist_are_kept() {
    let mut maker = Maker::new();
    let thread = maker.thread(1);
    maker.profile.charge(ThreadId::new(99), ContextId::new(99), LineId::new(99), &[5]);
    maker.profile.charge(thread, ContextId::new(99), LineId::UNKNOWN, &[6]);
    maker.profile.charge(thread, ContextId::ROOT, LineId::new(99), &[]);
    maker.profile.charge(thread, ContextId::ROOT, LineId::UNKNOWN, &[7, 8, 9]);
    let view = FlatView::new(&maker.profile, &Selection::all());
    assert_eq!((view.total.weight, view.total.samples), (18, 4));
    // A sample with an empty stack has no function at all.
    assert_eq!(view.row(CostCentreId::ROOT).unwrap().self_weight, 7);
    assert_eq!(view.row(CostCentreId::ELIDED).unwrap().self_weight, 11);
}

#[test]
fn a_reader_with_less_room_refuses_and_stays_as_it_was() {
    let mut maker = Maker::new();
    for i in 0..300 {
        maker.charge(&format!("main f{i}"), 1);
    }
    let update = maker.profile.take_update();
    let mut reader = Profile::new(session(), TIGHT);
    assert!(matches!(reader.apply(&update), Err(UpdateError::TooMany { .. })));
    assert_eq!((reader.contexts().len(), reader.cost_centres().len(), reader.charge_count()), (2, 2, 0));
}

#[test]
fn profiles_of_different_rates_say_both() {
    let of = |rate_hz, duration_ns| {
        let mut maker = Maker::new();
        maker.charge("main f", 1);
        maker.profile.session_mut().rate_hz = rate_hz;
        maker.profile.accounting_mut().duration_ns = duration_ns;
        maker.profile
    };
    let mut merged = of(49, 3);
    for other in [of(49, 4), of(199, 5), of(49, 6)] {
        merged.merge(&other).unwrap();
    }
    let rates: Vec<(u32, u64)> =
        merged.accounting().pace.rates.iter().map(|span| (span.rate_hz, span.duration_ns)).collect();
    assert_eq!(rates, [(199, 5), (49, 13)]);
    let mut same = of(49, 3);
    same.merge(&of(49, 4)).unwrap();
    assert!(same.accounting().pace.rates.is_empty());
}

#[test]
fn profiles_of_different_metrics_do_not_merge() {
    let mut maker = Maker::new();
    maker.charge("main", 1);
    let mut cycles = session();
    cycles.metrics[0].name = "cycles".into();
    let mut other = Profile::new(cycles, ProfileLimits::default());
    let error = other.merge(&maker.profile).unwrap_err();
    assert_eq!(error.to_string(), "the profiles measure different things: cycles and cpu-clock");
    assert_eq!(other.charge_count(), 0);
}

#[test]
fn merging_adds_accounting_and_keeps_the_earlier_start() {
    let (mut a, mut b) = (Maker::new(), Maker::new());
    a.charge("main f", 1);
    b.charge("main g", 2);
    b.profile.session_mut().started_unix_ns = 5;
    b.profile.session_mut().pids.push(8);
    b.profile.add_note("another note");
    a.profile.accounting_mut().own.peak_rss_bytes = 10;
    b.profile.accounting_mut().own.peak_rss_bytes = 7;
    a.profile.accounting_mut().expected = Some(1);
    b.profile.accounting_mut().expected = Some(3);
    let mut merged = a.profile;
    merged.merge(&b.profile).unwrap();
    assert_eq!((merged.session().started_unix_ns, &merged.session().pids[..]), (5, &[7, 8][..]));
    assert_eq!(merged.session().notes.len(), 2);
    let accounting = merged.accounting();
    assert_eq!((accounting.received, accounting.own.peak_rss_bytes, accounting.expected), (2, 10, Some(4)));
}

/// What exceeds a reader's limits is `[elided]` in its accounting, too, in all of a file and in a part of its time.
#[test]
fn charges_elided_by_a_reader_are_counted() {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    for number in 0..2_000 {
        maker.charge(&format!("main f{number}"), 1);
        if number % 500 == 499 {
            maker.profile.accounting_mut().duration_ns += 1_000;
            encoder.write(&maker.profile.take_update()).unwrap();
        }
    }
    let file = encoder.finish().unwrap();
    let limits = ProfileLimits { charge_bytes: 64 << 10, ..ProfileLimits::reading() };
    let read = |limits: ProfileLimits| read_profile_with(&file[..], limits, |_| {}).unwrap().profile;
    assert_eq!(read(ProfileLimits::reading()).accounting().elided, 0);
    let profile = read(limits);
    let view = FlatView::new(&profile, &Selection::all());
    let elided = view.rows.iter().find(|row| row.name == "[elided]").unwrap().samples_self;
    assert!(elided > 100, "{elided}");
    assert_eq!(profile.accounting().elided, elided);
    assert!(profile.session().notes.iter().any(|note| note.contains("some count below [elided]")));
}

/// A program calls its functions of long names in ever new order, and what comes after it has its place in exports still.
#[test]
fn many_calls_of_long_names_leave_room_for_others() {
    const FUNCTIONS: u32 = 150;
    let mut profile = Profile::new(session(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/bin/p".to_owned(), build_id: Vec::new() });
    let mut function = |name: String| {
        let (linkage_name, file) = (Some(name), None);
        profile.add_cost_centre(CostCentre {
            image,
            linkage_name,
            display_name: None,
            start: None,
            file,
            line: 0,
            local: false,
        })
    };
    let long: Vec<_> = (0..FUNCTIONS).map(|i| function(format!("f{i}_{}", "x".repeat(4_000)))).collect();
    let other: Vec<_> = (0..45).map(|i| function(format!("other{i}_{}", "y".repeat(100)))).collect();
    let process = profile.add_process(Process::new(1, 1, "p"));
    let thread = profile.add_thread(Thread { process, tid: 1, name: "p".to_owned() });
    let mut charge = |stack: &mut dyn Iterator<Item = CostCentreId>| {
        let context = stack.fold(ContextId::ROOT, |context, it| profile.contexts_mut().push(context, it));
        profile.charge(thread, context, LineId::UNKNOWN, &[1]);
        profile.accounting_mut().received += 1;
    };
    for from in 0..FUNCTIONS as usize {
        for step in 1..8 {
            charge(&mut (0..FUNCTIONS as usize).map(|i| long[(from + i * step) % FUNCTIONS as usize]));
        }
    }
    charge(&mut other.iter().copied());
    let all = Selection::all();
    let folded = String::from_utf8(common::readers::export(&profile, &all, Format::Folded)).unwrap();
    assert!(folded.contains("[elided]") && folded.len() < 200 << 20, "{}", folded.len());
    let whole = folded.lines().find(|line| line.contains("other44")).unwrap();
    assert!((0..45).all(|i| whole.contains(&format!("other{i}_"))), "{whole}");
}

#[test]
fn names_of_many_arcs_are_cut() {
    const FUNCTIONS: u32 = 130;
    let mut profile = Profile::new(session(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/bin/p".to_owned(), build_id: Vec::new() });
    let functions: Vec<_> = (0..FUNCTIONS)
        .map(|i| {
            profile.add_cost_centre(CostCentre {
                image,
                linkage_name: Some(format!("f{i}_{}", "x".repeat(4_000))),
                display_name: None,
                start: None,
                file: None,
                line: 0,
                local: false,
            })
        })
        .collect();
    let process = profile.add_process(Process::new(1, 1, "p"));
    let thread = profile.add_thread(Thread { process, tid: 1, name: "p".to_owned() });
    for &caller in &functions {
        for &callee in &functions {
            let context = profile.contexts_mut().push(ContextId::ROOT, caller);
            let context = profile.contexts_mut().push(context, callee);
            profile.charge(thread, context, LineId::UNKNOWN, &[1]);
        }
    }
    let graph = GraphView::new(&profile, &Selection::all());
    assert!(graph.nodes.iter().all(|node| node.name.len() > 4_000));
    let arcs = || graph.nodes.iter().flat_map(|node| node.callers.iter().chain(&node.callees));
    let bytes: usize = arcs().map(|arc| arc.name.len()).sum();
    let room = ccsd_profile::view::room_for_names(&profile);
    assert!(arcs().count() > 30_000 && bytes <= room && bytes * 2 > room, "{bytes} of {room}");
    let (label, end) = ("y".repeat(5_000), " (file.c:12)");
    let in_arc = graph.in_arc(&format!("{label}{end}")).into_owned();
    assert!(in_arc.len() < 2_000 && in_arc.ends_with(end) && in_arc.contains('…'), "{in_arc}");
}
