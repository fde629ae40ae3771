//! Exports: names, remarks, sizes and time. (`oracle.rs` has stacks; end-to-end tests have real readers.)
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use ccsd_profile::export::{DEFAULT_MAX_BYTES, Export, Format};
use ccsd_profile::view::Selection;
use ccsd_profile::{
    ContextId, CostCentre, Encoder, Image, LineId, Membership, Metric, Process, Profile, ProfileLimits, SessionInfo,
    Thread, Timeline, Unit, read_profile,
};
use common::Maker;
use common::readers::{cells, page, text};
use serde_json::Value;

#[test]
fn hostile_names_are_inert() {
    let mut maker = Maker::new();
    let evil = "<script>alert(1)</script>\"];x;\x1b[31m\u{202e}=cmd|'/c'!A1\u{7},\\";
    let mut stack = evil.replace(' ', "_");
    stack.push_str(" leaf");
    maker.charge(&stack, 5);
    maker.charge(&"<b>".repeat(33_334), 1);
    for format in Format::ALL.into_iter().filter(|format| format.is_text()) {
        let text = text(&maker.profile, &Selection::all(), format);
        assert!(!text.contains('\x1b') && !text.contains('\u{202e}'), "{}: {text}", format.name());
        if matches!(format, Format::Svg | Format::Html) {
            assert!(!text.contains("<script>alert") && !text.contains("<b><b>"), "{text}");
        }
    }
    let folded = text(&maker.profile, &Selection::all(), Format::Folded);
    let stacks: Vec<&str> = folded.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!((stacks.len(), folded.matches(';').count()), (2, 1), "{folded}");
    let dot = text(&maker.profile, &Selection::all(), Format::Dot);
    // A quote that ends a string is not preceded by an odd number of backslashes.
    assert!(dot.contains("</script>\\\"];x;"), "{dot}");
    let csv = text(&maker.profile, &Selection::all(), Format::Csv);
    assert_eq!(csv.lines().filter(|line| !line.starts_with('#')).count(), 4, "{csv}");
}

/// All that a file says beside its functions. Once as somebody who writes a file has it, and once as it is in memory, as after
/// an import.
#[test]
fn no_text_of_a_profile_is_raw() {
    let evil = "<script>alert(1)</script>--&\x1b[31m\u{9b}2J\u{202e}\r\nfn=evil\n\n\"'\u{0};]]>";
    let text_of = || evil.to_owned();
    let session = SessionInfo {
        target: text_of(),
        command: Vec::new(),
        pids: vec![7],
        event: text_of(),
        rate_hz: 999,
        host: text_of(),
        started_unix_ns: 1_000,
        metrics: vec![Metric { name: text_of(), unit: Unit::Nanoseconds }],
        notes: vec![text_of()],
        version: text_of(),
    };
    let mut profile = Profile::new(session, ProfileLimits::default());
    let membership = Membership { cgroup: text_of(), uid: Some(7), user: text_of(), container_name: text_of() };
    let process = Process { membership: Some(membership.into()), ..Process::new(7, 100, evil) };
    let process = profile.add_process(process);
    let thread = profile.add_thread(Thread { process, tid: 7, name: text_of() });
    let image = profile.add_image(Image { name: text_of(), build_id: vec![1] });
    let function = profile.add_cost_centre(CostCentre {
        display_name: Some(text_of()),
        file: Some(text_of()),
        line: 3,
        ..CostCentre::named(image, evil)
    });
    let line = profile.add_line(evil, 4);
    let context = profile.contexts_mut().push(ContextId::ROOT, function);
    profile.charge(thread, context, line, &[5]);
    profile.accounting_mut().received += 1;
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    encoder.write(&profile.take_update()).unwrap();
    let file = encoder.finish().unwrap();
    let read = read_profile(&file[..]).unwrap().profile;
    let words = read.session();
    for word in [&words.event, &words.host, &words.version, &words.metrics[0].name] {
        assert!(!word.chars().any(char::is_control), "{word:?}");
    }
    for profile in [&profile, &read] {
        for format in Format::ALL.into_iter().filter(|format| format.is_text()) {
            let text = text(profile, &Selection::all(), format);
            // gprof's tables begin with a form feed.
            let is_bad = |c: char| c == '\u{202e}' || c.is_control() && !matches!(c, '\n' | '\r' | '\t' | '\u{c}');
            assert_eq!(text.find(is_bad), None, "{}: {text:?}", format.name());
            assert!(!text.lines().any(|line| line.starts_with("fn=evil")), "{}: {text}", format.name());
            if matches!(format, Format::Svg | Format::Html) {
                assert!(!text.contains("<script>alert"), "{}: {text}", format.name());
            }
        }
    }
    let svg = text(&read, &Selection::all(), Format::Svg);
    let comments = svg.match_indices("<!--").filter_map(|(at, _)| svg[at + 4..].split_once("-->"));
    assert!(comments.clone().count() > 0 && comments.into_iter().all(|(text, _)| !text.contains("--")), "{svg}");
}

#[test]
fn remarks_are_rows_that_weigh_nothing() {
    let mut maker = Maker::new();
    maker.charge("#main f", 5);
    maker.profile.add_note("a, \"b\"; c");
    let all = Selection::all();
    let folded = text(&maker.profile, &all, Format::Folded);
    let remarks = Export::new(&maker.profile, &all).remarks().len();
    assert_eq!(folded.lines().filter(|line| line.starts_with("# ") && line.ends_with(" 0")).count(), remarks);
    assert!(folded.starts_with("# ccsd 0: ") && folded.ends_with("\n# a, \"b\", c 0\n#main;f 5\n"), "{folded}");
    // To inferno, a remark has no width.
    let (mut svg, mut options) = (Vec::new(), inferno::flamegraph::Options::default());
    inferno::flamegraph::from_lines(&mut options, folded.lines(), &mut svg).unwrap();
    assert_eq!(String::from_utf8(svg).unwrap().matches("<title>").count(), ["all", "#main", "f"].len());
    let csv = text(&maker.profile, &all, Format::Csv);
    assert!(csv.starts_with("function,") && csv.ends_with("\r\n# a; 'b'; c,,0,0,0,0\r\n"), "{csv}");
    assert!(csv.contains("\r\n\"#main\",demo,0,5,0,1\r\n"), "{csv}");
    for format in [Format::Folded, Format::Csv] {
        let mut without = Vec::new();
        Export { comments: false, ..Export::new(&maker.profile, &all) }.write(format, &mut without).unwrap();
        assert!(!String::from_utf8(without).unwrap().contains("# "));
    }
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

#[test]
fn a_page_keeps_to_its_size_and_its_total() {
    let mut maker = Maker::new();
    for i in 0..3000 {
        maker.charge(&format!("main f{} g{} h{i}", i % 7, i % 83), 1 + i);
    }
    let sum = |html: &str| cells(&page(html)).into_iter().map(|(_, weight)| weight).sum::<u64>();
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
    let mut maker = Maker::with(session, ProfileLimits::default());
    // The context that comes first in the table ran last.
    for (stack, weights) in [("main late", [9, 0, 9]), ("main early", [5, 5, 0]), ("main", [2, 1, 1])] {
        let context = stack.split(' ').fold(ContextId::ROOT, |at, name| {
            let function = maker.function(name);
            maker.profile.contexts_mut().push(at, function)
        });
        let thread = maker.thread(1);
        maker.profile.charge(thread, context, LineId::UNKNOWN, &weights);
    }
    let timeline = Timeline::of_intervals(&[(0, 10), (10, 20)], 1, 2);
    let all = Selection::all();
    let made = |timeline| -> Value {
        let mut out = Vec::new();
        Export { timeline, ..Export::new(&maker.profile, &all) }.write(Format::Speedscope, &mut out).unwrap();
        serde_json::from_slice(&out).unwrap()
    };
    let timed = made(&timeline);
    let leaf = |at: usize| {
        let stack = timed["profiles"][0]["samples"][at].as_array().unwrap();
        timed["shared"]["frames"][stack.last().unwrap().as_u64().unwrap() as usize]["name"].as_str().unwrap()
    };
    assert_eq!([0, 1, 2, 3].map(leaf), ["main", "early", "main", "late"]);
    assert_eq!(timed["profiles"][0]["weights"], serde_json::json!([1, 5, 1, 9]));
    let untimed = made(Timeline::none());
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
