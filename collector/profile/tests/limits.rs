//! What happens beyond every limit: all weight stays, and is shown where it went (I1, I10).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use ccsd_profile::view::{FlatView, LinesView, Selection, ThreadsView};
use ccsd_profile::*;
use common::{Maker, session};

const TIGHT: Limits = Limits {
    context_bytes: MIN_CONTEXT_BYTES,
    charge_bytes: 4 << 10,
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
        let process =
            profile.add_process(Process { pid: i, start_time: 1, exec_generation: 0, parent, name: "p".into() });
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
    assert_eq!(ThreadsView::new(&profile, &all).processes.iter().map(|p| p.weight).sum::<u64>(), total);
    assert_eq!(LinesView::new(&profile, &all).functions.iter().map(|f| f.self_weight).sum::<u64>(), total);
    // And all of that can be written and read.
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    assert_eq!(loaded.profile.canonical(), profile.canonical());
    assert_eq!(loaded.profile.accounting(), profile.accounting());
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
fn profiles_of_different_metrics_do_not_merge() {
    let mut maker = Maker::new();
    maker.charge("main", 1);
    let mut cycles = session();
    cycles.metrics[0].name = "cycles".into();
    let mut other = Profile::new(cycles, Limits::default());
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
    a.profile.accounting_mut().own_peak_rss_bytes = 10;
    b.profile.accounting_mut().own_peak_rss_bytes = 7;
    b.profile.accounting_mut().expected = Some(3);
    let mut merged = a.profile;
    merged.merge(&b.profile).unwrap();
    assert_eq!((merged.session().started_unix_ns, &merged.session().pids[..]), (5, &[7, 8][..]));
    assert_eq!(merged.session().notes.len(), 2);
    let accounting = merged.accounting();
    assert_eq!((accounting.received, accounting.own_peak_rss_bytes, accounting.expected), (2, 10, Some(3)));
}
