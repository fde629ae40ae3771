//! The text of `perf script` as a profile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use ccsd_profile::import::{Passed, perf_script};
use ccsd_profile::view::{FlatView, Selection, ThreadsView};
use ccsd_profile::{Encoder, Profile, SessionInfo, TruncationReason, Unit, read_profile};
use proptest::prelude::*;

const TEXT: &str = "\
# ========
# hostname : vm
# perf version : 6.1
# cmdline : /usr/bin/perf record -g ./demo
# event : name = cpu-clock:ppp, , id = { 1 }, type = 1, { sample_period, sample_freq } = 999, freq = 1
# event : name = sched:sched_switch, , id = { 2 }, type = 2, { sample_period, sample_freq } = 1
# sample duration :   2000.000 ms
# ========
#
a demo 7/8 100.000001:    1001001 cpu-clock:ppp: 
\t            1140 parse(int, char (*)[2]) (/usr/bin/demo)
\t            11c5 main (/usr/bin/demo)
\t           27304 __libc_start_main@@GLIBC_2.34 (/usr/lib/libc.so.6)

a demo 7/7 101.500000:    1001001 cpu-clock:ppp: 
\tffffffff81000000 [unknown] ([kernel.kallsyms])
\t            11c5 main (/usr/bin/demo)

a demo 7/7 101.500001:          3 sched:sched_switch:      1140 main (/usr/bin/demo)
a demo 7/7 101.600000: PERF_RECORD_LOST lost 12
nonsense
a demo 7/7 101.700000:          5 other:event: 
\t            11c5 main (/usr/bin/demo)

";

fn read(text: &str) -> Result<(Profile, Passed, Vec<u8>), std::io::Error> {
    let mut encoder: Option<Encoder<Vec<u8>>> = None;
    let session = SessionInfo { started_unix_ns: 5_000_000_000, ..SessionInfo::default() };
    let (profile, passed) = perf_script(text.as_bytes(), session, None, |session, update| {
        match (update, &mut encoder) {
            (None, _) => encoder = Some(Encoder::new(Vec::new(), session).unwrap()),
            (Some(update), Some(encoder)) => encoder.write(update).unwrap(),
            _ => unreachable!(),
        }
        Ok(())
    })?;
    Ok((profile, passed, encoder.unwrap().finish().unwrap()))
}

#[test]
fn the_kernel_is_one_image() {
    for image in ["[kernel.kallsyms]", "[kernel.kallsyms]_text", "[kernel]"] {
        let sample = format!("a 7/7 100.5: 10 cycles: \n\tffffffff81000000 ksys_read ({image})\n\n");
        let (profile, ..) = read(&sample).unwrap();
        let rows = FlatView::new(&profile, &Selection::all()).rows;
        let row = rows.iter().find(|row| row.name == "ksys_read").unwrap();
        assert_eq!(row.image, "[kernel]", "{image}");
    }
}

#[test]
fn samples_with_few_fields() {
    // As perf prints them with one or the other choice, and as old versions and other tools do.
    for (head, weight) in [
        ("a demo 7", 1),
        ("a demo 7/7 ", 1),
        ("          a demo     7 [003]", 1),
        ("a demo 7/7 [003] 100.5: ", 1),
        ("a demo 7 100.5: cpu-clock: ", 1),
        ("a demo 7 [003] cycles: ", 1),
        ("a demo 7 500 cycles: ", 500),
        ("a demo 7 100.5: 500 cycles:u: ", 500),
    ] {
        let frames = "\t    1140 leaf+0x10 (/usr/bin/demo)\n\t   11c5 main\n";
        let text = format!("{head}\n{frames}\n{head}\n{frames}\n{head}\n\nnonsense\n");
        let (profile, passed, _) = read(&text).unwrap();
        let rows = weights(&profile, 0);
        assert_eq!(rows["leaf"], (2 * weight, 2 * weight), "{head}");
        assert_eq!(rows["main"], (0, 2 * weight), "{head}");
        // What has neither event, time nor stack is no sample.
        let bare = !head.contains(':');
        assert_eq!(profile.accounting().received, if bare { 2 } else { 3 }, "{head}");
        assert_eq!(passed.lines, if bare { 2 } else { 1 }, "{head}");
    }
}

#[test]
fn one_event_of_several() {
    let read = |event| {
        perf_script(TEXT.as_bytes(), SessionInfo::default(), Some(event), |_, _| Ok(())).map(|(profile, _)| profile)
    };
    let profile = read("sched:sched_switch").unwrap();
    assert_eq!((profile.session().metrics.len(), profile.accounting().received), (1, 1));
    assert_eq!(weights(&profile, 0)["main"], (3, 3));
    assert_eq!(read("cpu-clock").unwrap().accounting().received, 2);
    assert!(read("nothing").is_err());
}

#[test]
fn stacks_that_begin_at_no_entry_are_truncated() {
    let stack = |frames: &str| format!("a 7/7 100.5: 10 cycles: \n{frames}\n");
    let whole = [
        "f (/p)|main (/p)|[unknown] (/lib/libc.so.6)",
        "g (/p)|start_thread (/lib/libc.so.6)|__clone3 (/lib/libc.so.6)",
    ];
    let cut = ["f (/p)", "f (/p)|qsort_r (/lib/libc.so.6)", "f (/p)|[unknown] (/p)", "ksys_read ([kernel.kallsyms])"];
    let text: String = whole
        .iter()
        .chain(&cut)
        .map(|frames| frames.split('|').map(|frame| format!("\t 1140 {frame}\n")).collect::<String>())
        .map(|frames| stack(&frames))
        .collect();
    let (profile, ..) = read(&text).unwrap();
    let accounting = profile.accounting();
    assert_eq!(accounting.stacks.truncated.get(TruncationReason::NoEntry), cut.len() as u64);
    assert_eq!((accounting.received, accounting.truncated_total()), (6, cut.len() as u64));
    let rows = weights(&profile, 0);
    assert_eq!(rows["[truncated: no entry point]"], (0, 40));
    assert_eq!((rows["f"], rows["main"]), ((40, 40), (0, 10)));
}

fn weights(profile: &Profile, metric: usize) -> BTreeMap<String, (u64, u64)> {
    let rows = FlatView::new(profile, &Selection::all().metric(metric)).rows;
    rows.into_iter().map(|row| (row.name, (row.self_weight, row.inherited_weight))).filter(|it| it.1.1 > 0).collect()
}

#[test]
fn reads_the_output_of_perf_script() {
    let (profile, passed, file) = read(TEXT).unwrap();
    let session = profile.session();
    assert_eq!((session.target.as_str(), session.host.as_str(), session.rate_hz), ("a demo", "vm", 999));
    assert_eq!((session.version.as_str(), session.started_unix_ns), ("perf 6.1", 3_000_000_000));
    assert!(session.notes[0].ends_with("/usr/bin/perf record -g ./demo"), "{:?}", session.notes);
    let metrics: Vec<_> = session.metrics.iter().map(|it| (it.name.as_str(), it.unit)).collect();
    assert_eq!(metrics, [("cpu-clock", Unit::Nanoseconds), ("sched:sched_switch", Unit::Count)]);
    let row = |name: &str, own, inherited| (name.to_owned(), (own, inherited));
    assert_eq!(
        weights(&profile, 0),
        [
            row("parse(int, char (*)[2])", 1_001_001, 1_001_001),
            row("main", 0, 2_002_002),
            row("__libc_start_main", 0, 1_001_001),
            row("[unknown]", 1_001_001, 1_001_001),
        ]
        .into()
    );
    assert_eq!(weights(&profile, 1), [row("main", 3, 3)].into());
    let accounting = profile.accounting();
    assert_eq!((accounting.received, accounting.lost, accounting.unsymbolised, accounting.expected), (3, 12, 1, None));
    assert_eq!((accounting.duration_ns, accounting.stacks.max_depth), (1_699_999_000, 3));
    assert_eq!(passed, Passed { lines: 1, samples: 1 });
    let threads = ThreadsView::new(&profile, &Selection::all());
    assert_eq!((threads.processes.len(), threads.processes[0].threads.len()), (1, 2));
    assert_eq!(read_profile(&file[..]).unwrap().profile.canonical(), profile.canonical());
}

/// Rows as (image, name, weight) of what ran.
fn running(text: &str) -> (Profile, Vec<(String, String, u64)>) {
    let (profile, ..) = read(text).unwrap();
    let rows = FlatView::new(&profile, &Selection::all()).rows;
    let rows = rows.into_iter().filter(|row| row.self_weight > 0);
    let rows = rows.map(|row| (row.image, row.name, row.self_weight)).collect();
    (profile, rows)
}

#[test]
fn files_and_functions_take_no_other_s_names() {
    for (frame, image, name) in [
        ("f (/tmp/x ([ccsd])", "[unknown]", "f (/tmp/x ([ccsd])"),
        ("[not sampled]@@ (/tmp/x ([ccsd])", "[unknown]", "\"[not sampled]\""),
        ("do_idle (/tmp/x ([kernel.kallsyms])", "[unknown]", "do_idle (/tmp/x ([kernel.kallsyms])"),
        ("execute_command@@ (/tmp/x (/usr/bin/bash)", "[unknown]", "execute_command"),
        ("memcpy@@ (/tmp/x (libc.so.6)", "x (libc.so.6", "memcpy"),
        ("f (/opt/my (copy)/x)", "x", "f"),
        ("a 1/1 1.5: 999999 cycles: (/tmp/x)", "x", "a 1/1 1.5: 999999 cycles:"),
        ("[not sampled] (/tmp/x)", "x", "\"[not sampled]\""),
        // Those of C++ and Rust are names still.
        ("call<([u8; 4], f (*)[2])>(A, ([u8], B)) (/tmp/x)", "x", "call<([u8; 4], f (*)[2])>(A, ([u8], B))"),
        ("[unknown] ([vdso])", "[vdso]", "[unknown]"),
        ("f (/tmp/x (deleted))", "x", "f"),
    ] {
        let (profile, rows) = running(&format!("a 7/7 100.5: 10 cycles: \n\t 1140 {frame}\n\n"));
        assert_eq!(rows, [(image.to_owned(), name.to_owned(), 10)], "{frame}");
        let is_noted = profile.session().notes.iter().any(|note| note.contains("a path begins: 1"));
        assert_eq!(is_noted, image == "[unknown]", "{frame}");
    }
}

/// Each place that looks like the beginning of an image is looked at for a few bytes, or time would grow with the square of a
/// line's length.
#[test]
fn a_line_of_brackets_is_a_frame() {
    let name = " ([".repeat(80_000);
    let stack = format!("\t 1140 f{name} (/tmp/x)\n").repeat(20);
    let (profile, _) = running(&format!("a 7/7 100.5: 10 cycles: \n{stack}\n"));
    assert_eq!(profile.accounting().stacks.max_depth, 20);
}

#[test]
fn a_process_that_executes_another_program_is_that() {
    let sample = |comm: &str, tid| format!("{comm} 7/{tid} 100.5: 10 cycles: \n\t 1140 main (/p)\n\n");
    let text = sample("worker", 8) + &sample("env", 7) + &sample("env", 7) + &sample("t", 7) + &sample("worker", 8);
    let (profile, ..) = read(&text).unwrap();
    let threads = ThreadsView::new(&profile, &Selection::all());
    let weight = |name: &str| threads.processes.iter().find(|process| process.name == name).map(|it| it.weight);
    assert_eq!((threads.processes.len(), weight("env"), weight("t")), (2, Some(30), Some(20)));
    // One that takes turns is two.
    let text: String = (0..100).map(|nth| sample(["one", "two"][nth % 2], 7)).collect();
    let (profile, ..) = read(&text).unwrap();
    assert_eq!(ThreadsView::new(&profile, &Selection::all()).processes.len(), 2);
    // One that changes its name without end is not as many processes.
    let text: String = (0..100).map(|nth| sample(&format!("n{nth}"), 7)).collect();
    let (profile, ..) = read(&text).unwrap();
    assert_eq!(ThreadsView::new(&profile, &Selection::all()).processes.len(), 16);
    let (profile, ..) = read(&sample("[not sampled]", 7)).unwrap();
    assert_eq!(ThreadsView::new(&profile, &Selection::all()).processes[0].name, "\"[not sampled]\"");
}

#[test]
fn where_one_event_has_no_period_each_sample_counts_as_one() {
    let (profile, rows) = running(
        "a 7/7 1.5: sched:x: \n\t 1140 main (/p)\n\na 7/7 1.6: sched:x: \n\t 1140 f (/p)\n\n\
         a 7/7 1.7: 1999 sched:x: \n\t 1140 f (/p)\n\na 7/7 1.8: 9 other: \n\t 1140 f (/p)\n\n",
    );
    assert_eq!(
        rows.iter().map(|(_, name, weight)| (name.as_str(), *weight)).collect::<Vec<_>>(),
        [("f", 2), ("main", 1)]
    );
    let notes = profile.session().notes.join("\n");
    assert!(notes.contains("each counts as one") && notes.contains("samples of other events left out: 1"), "{notes}");
}

#[test]
fn nothing_to_import() {
    for text in
        ["", "# hostname : x\n", "int main(void) {}\n", "a 1/2 3: 4 x:\n", "a 1/2 99999999999999999999.1: 4 x:\n"]
    {
        assert_eq!(read(text).map(|_| ()).unwrap_err().kind(), std::io::ErrorKind::InvalidData, "{text}");
    }
}

proptest! {
    /// Whatever the text is, it is read to its end, and every sample in it counts.
    #[test]
    fn any_text(lines in prop::collection::vec("[ \t]?[a-f0-9 ():/.#é]{0,30}", 0..20), samples in 1..5u64) {
        let mut text = String::new();
        for number in 0..samples {
            text.push_str(&format!("x 1/1 {number}.5: 10 e:\n\t 12 f (g)\n\n"));
            text.push_str(&lines.join("\n"));
            text.push('\n');
        }
        let (profile, ..) = read(&text).unwrap();
        prop_assert!(profile.accounting().received >= samples);
        prop_assert_eq!(FlatView::new(&profile, &Selection::all()).total.samples, profile.accounting().received);
    }
}
