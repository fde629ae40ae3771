//! I8: the file format, whole, cut, damaged and hostile.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{Cursor, Read, Write};

use ccsd_profile::codec::VERSION;
use ccsd_profile::*;
use common::{Maker, session};
use proptest::prelude::*;

/// A session of a few updates, with everything in it, and the canonical form after each whole record.
fn demo() -> (Vec<u8>, Vec<(usize, merge_state::State)>) {
    demo_of(VERSION)
}

fn demo_of(version: u32) -> (Vec<u8>, Vec<(usize, merge_state::State)>) {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    // The reader of all generations of contexts.
    let mut whole = Profile::new(maker.profile.session().clone(), ProfileLimits::default());
    let mut states = vec![(encoder.get_ref().len(), merge_state::of(&maker.profile))];
    for round in 0..3u32 {
        let lines: Vec<_> = (0..3).map(|i| maker.profile.add_line("src/demo.c", 10 * round + i)).collect();
        for (i, stack) in ["main", "main f", "main f g f", "main f g f g", "start f x y z"].iter().enumerate() {
            let i = i as u32;
            maker.charge_at(round + i % 2, stack, lines[i as usize % 3], 1_001_001 + u64::from(i / 3));
        }
        let truncated = maker.profile.truncated_cost_centre(TruncationReason::StackCopyTooSmall);
        let context = maker.profile.contexts_mut().push(ContextId::ROOT, truncated);
        let thread = maker.thread(round);
        maker.profile.charge(thread, context, LineId::UNKNOWN, &[5]);
        let unnamed = maker.profile.add_cost_centre(CostCentre {
            image: maker.image,
            linkage_name: None,
            display_name: None,
            start: Some(u64::MAX - u64::from(round)),
            file: None,
            line: 0,
            local: false,
        });
        if version >= 2 {
            let main = maker.function("main");
            let context = maker.profile.contexts_mut().push(ContextId::ROOT, main);
            let context = maker.profile.contexts_mut().push(context, unnamed);
            maker.profile.charge(thread, context, LineId::UNKNOWN, &[7]);
            // Named in the interval in which it was met, and not at all.
            let function = maker.function("named later");
            if round > 0 {
                assert!(maker.profile.name_later(unnamed, function));
            }
        }
        if version >= 3 {
            // Calls from several lines, recursion among them.
            for line in 1..4 {
                maker.charge_sites(round, &[("main", 100 + line), ("f", 200 + round), ("g", 0)], 1_001_001);
                let stack = [("main", 101), ("f", 200 + line), ("g", 300), ("f", 201), ("g", 301 + line), ("h", 0)];
                maker.charge_sites(round, &stack, 1_001_001);
            }
            // Functions of one name, in two files and without a file; samples that differ in weight.
            for (file, start) in [(Some("a.c"), 1), (Some("b.c"), 2), (None, 3), (None, 4)] {
                let file = file.map(str::to_owned);
                let function = maker.profile.add_cost_centre(CostCentre {
                    start: Some(start),
                    file,
                    line: 7,
                    local: true,
                    ..CostCentre::named(maker.image, "walk")
                });
                let context = maker.profile.contexts_mut().push(ContextId::ROOT, function);
                for weight in [1_000, 500, 500 + start] {
                    maker.profile.charge(thread, context, LineId::UNKNOWN, &[weight]);
                }
            }
        }
        maker.profile.rename_thread(thread, "renamed ☂");
        maker.profile.rename_process(maker.process, &format!("exec {round}"));
        maker.profile.add_note(&format!("note {round}"));
        let accounting = maker.profile.accounting_mut();
        accounting.count_truncated(TruncationReason::StackCopyTooSmall);
        accounting.duration_ns += 1_000_000_000;
        accounting.expected = Some(20);
        let update = maker.profile.take_update();
        encoder.write(&update).unwrap();
        whole.apply(&update).unwrap();
        states.push((encoder.get_ref().len(), merge_state::of(&whole)));
        if version >= 3 && round == 1 {
            maker.profile.begin_generation();
        }
    }
    let file = encoder.finish().unwrap();
    states.push((file.len(), merge_state::of(&whole)));
    (file, states)
}

mod merge_state {
    use ccsd_profile::*;

    #[derive(Clone, Debug, PartialEq)]
    pub struct State {
        pub session: SessionInfo,
        pub canonical: Canonical,
        pub accounting: Accounting,
        pub cost_centres: Vec<CostCentre>,
        pub lines: Vec<Line>,
        pub processes: Vec<Process>,
        pub threads: Vec<Thread>,
        pub images: Vec<Image>,
    }

    pub fn of(profile: &Profile) -> State {
        State {
            session: profile.session().clone(),
            canonical: profile.canonical(),
            accounting: profile.accounting().clone(),
            cost_centres: profile.cost_centres().to_vec(),
            lines: profile.lines().to_vec(),
            processes: profile.processes().to_vec(),
            threads: profile.threads().to_vec(),
            images: profile.images().to_vec(),
        }
    }
}

fn state_at(states: &[(usize, merge_state::State)], bytes: usize) -> Option<&merge_state::State> {
    states.iter().rev().find(|(end, _)| *end <= bytes).map(|(_, state)| state)
}

#[test]
fn round_trip() {
    let (file, states) = demo();
    let loaded = read_profile(&file[..]).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole) && loaded.finished);
    assert_eq!((loaded.records, loaded.bytes), (5, file.len() as u64));
    assert_eq!(&merge_state::of(&loaded.profile), &states.last().unwrap().1);
}

#[test]
fn every_prefix_opens_up_to_its_last_whole_record() {
    let (file, states) = demo();
    for cut in 0..file.len() {
        let prefix = &file[..cut];
        match read_profile(prefix) {
            Err(DecodeError::Empty) => assert_eq!(cut, 0),
            Err(DecodeError::NoSession) => assert!(cut > 0 && cut < states[0].0, "{cut}"),
            Err(other) => panic!("{cut}: {other}"),
            Ok(loaded) => {
                assert!(!loaded.finished);
                let at_boundary = states.iter().any(|(end, _)| *end == cut);
                match loaded.recovery {
                    Recovery::Whole => assert!(at_boundary, "{cut}"),
                    Recovery::Cut { whole_records, bytes_used, bytes_discarded, why } => {
                        assert!(!at_boundary && matches!(why, DecodeError::CutOff { .. }), "{cut}: {why}");
                        assert_eq!(bytes_used + bytes_discarded, cut as u64);
                        assert!(states.iter().any(|(end, _)| *end as u64 == bytes_used));
                        assert_eq!(whole_records, states.iter().filter(|(end, _)| *end <= cut).count() as u64);
                    }
                }
                if cut >= states[1].0 {
                    assert_eq!(Some(&merge_state::of(&loaded.profile)), state_at(&states, cut), "{cut}");
                } else {
                    assert_eq!(loaded.profile.charge_count(), 0);
                }
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let (file, states) = demo();
    for bit in 0..file.len() * 8 {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        match read_profile(&damaged[..]) {
            Err(_) => assert!(bit / 8 < states[0].0, "byte {}", bit / 8),
            Ok(loaded) => {
                let Recovery::Cut { bytes_used, bytes_discarded, .. } = loaded.recovery else {
                    panic!("bit {bit} not noticed")
                };
                assert_eq!(bytes_used + bytes_discarded, file.len() as u64);
                // All before the record with the flipped bit, and nothing of it.
                let expected = states.iter().rev().find(|(end, _)| *end <= bit / 8).unwrap().0;
                assert_eq!(bytes_used, expected as u64, "bit {bit}");
                assert!(!loaded.finished);
            }
        }
    }
}

#[test]
fn records_that_are_lost_repeated_or_moved_are_noticed() {
    let (file, states) = demo();
    let [a, b, c] = [states[0].0, states[1].0, states[2].0];
    for damaged in [
        [&file[..a], &file[b..]].concat(),
        [&file[..b], &file[a..]].concat(),
        [&file[..a], &file[b..c], &file[a..b], &file[c..]].concat(),
    ] {
        let loaded = read_profile(&damaged[..]).unwrap();
        assert!(matches!(loaded.recovery, Recovery::Cut { why: DecodeError::Checksum { .. }, .. }));
    }
    let loaded = read_profile(&[&file[..], b"more"].concat()[..]).unwrap();
    assert!(loaded.finished && matches!(loaded.recovery, Recovery::Cut { .. }));
}

#[test]
fn other_files_are_refused_by_name() {
    assert!(matches!(read_profile(&b""[..]), Err(DecodeError::Empty)));
    assert!(matches!(read_profile(&b"\x7fELF..........."[..]), Err(DecodeError::NotAProfile)));
    assert!(matches!(read_profile(&b"x"[..]), Err(DecodeError::NotAProfile)));
    assert!(matches!(read_profile(&codec::MAGIC[..5]), Err(DecodeError::NoSession)));
    let (mut file, _) = demo();
    file[8] = 9;
    let error = read_profile(&file[..]).unwrap_err();
    assert_eq!(error.to_string(), "the profile has format version 9, this program reads up to version 3");
}

#[test]
fn intervals_can_be_left_out() {
    let (file, _) = demo();
    let loaded = read_profile_with(&file[..], ProfileLimits::reading(), |update| {
        if update.from_ns < 1_000_000_000 || update.to_ns > 2_000_000_000 {
            update.clear_charges();
        }
    })
    .unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole));
    let mut samples = 0;
    loaded.profile.for_each_charge(|charge| samples += charge.samples);
    assert_eq!(samples, 25);
}

fn record(number: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut header = Vec::new();
    if number == 0 {
        header.extend(codec::MAGIC);
        header.extend(codec::VERSION.to_le_bytes());
    }
    let mut length = Vec::new();
    let mut rest = payload.len();
    while rest >= 0x80 {
        length.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    length.push(rest as u8);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header);
    crc.update(&number.to_le_bytes());
    crc.update(&[kind]);
    crc.update(&length);
    crc.update(payload);
    [&header[..], &[kind], &length, payload, &crc.finalize().to_le_bytes()].concat()
}

fn inflated(payload: &[u8]) -> Vec<u8> {
    if payload[0] == 0 {
        return payload.to_vec();
    }
    let length = 2 + payload[1..].iter().position(|byte| byte & 0x80 == 0).unwrap();
    let mut body = vec![0];
    flate2::read::DeflateDecoder::new(&payload[length..]).read_to_end(&mut body).unwrap();
    body
}

/// The payloads of a file's records, with their types. Updates are not deflated.
fn payloads(file: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut rest = &file[12..];
    let mut payloads = Vec::new();
    while let Some((&kind, after)) = rest.split_first() {
        let bytes = after.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let length = after[..bytes].iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        let payload = &after[bytes..bytes + length];
        payloads.push((kind, if kind == 2 && file[8] >= 3 { inflated(payload) } else { payload.to_vec() }));
        rest = &after[bytes + length + 4..];
    }
    payloads
}

#[test]
fn unknown_optional_records_are_skipped() {
    let mut file = Encoder::new(Vec::new(), &session()).unwrap().get_ref().clone();
    file.extend(record(1, 200, b"from the future"));
    file.extend(record(2, 3, &payloads(&demo().0).last().unwrap().1));
    let loaded = read_profile(&file[..]).unwrap();
    assert!(loaded.finished && matches!(loaded.recovery, Recovery::Whole));
    let mut file = Encoder::new(Vec::new(), &session()).unwrap().get_ref().clone();
    file.extend(record(1, 100, b"from the future"));
    assert!(matches!(read_profile(&file[..]).unwrap().recovery, Recovery::Cut { .. }));
}

fn deflated(body: &[u8], length: usize) -> Vec<u8> {
    let mut payload = vec![1];
    let mut rest = length;
    while rest >= 0x80 {
        payload.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    payload.push(rest as u8);
    let mut encoder = flate2::write::DeflateEncoder::new(payload, flate2::Compression::best());
    encoder.write_all(body).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn bodies_are_what_they_say() {
    let mut maker = Maker::new();
    maker.charge("main f g", 1);
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let head = encoder.get_ref().clone();
    encoder.write(&maker.profile.take_update()).unwrap();
    let (_, plain) = payloads(encoder.get_ref()).remove(1);
    let body = &plain[1..];
    let read = |payload: &[u8]| {
        let file = [&head[..], &record(1, 2, payload)].concat();
        let loaded = read_profile(&file[..]).unwrap();
        match loaded.recovery {
            Recovery::Whole => Ok(loaded.profile.charge_count()),
            Recovery::Cut { why, .. } => Err(why.to_string()),
        }
    };
    assert_eq!(read(&plain), Ok(1));
    assert_eq!(read(&deflated(body, body.len())), Ok(1));
    let refused = |payload: &[u8], word: &str| {
        let why = read(payload).unwrap_err();
        assert!(why.contains(word), "{why}");
    };
    refused(&deflated(body, body.len() - 1), "as long as it says");
    refused(&deflated(body, body.len() + 1), "as long as it says");
    refused(&[&deflated(body, body.len())[..], b"more"].concat(), "as long as it says");
    refused(&deflated(body, body.len())[..40], "inflated");
    refused(&[1, 10, 0xff, 0xff, 0xff], "inflated");
    refused(&[2], "unknown way");
    refused(&[], "ends early");
    let bomb = vec![0; 20 << 20];
    refused(&deflated(&bomb, bomb.len()), "more than so many bytes");
    refused(&deflated(body, usize::MAX), "more than so many bytes");
    let mut maker = Maker::new();
    let mut update = maker.profile.take_update();
    update.notes = vec!["a".repeat(4_000); 50];
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    encoder.write(&update).unwrap();
    assert!((12_500..13_000).contains(&encoder.get_ref().len()), "{}", encoder.get_ref().len());
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    assert!(loaded.finished && loaded.profile.session().notes.contains(&"a".repeat(4_000)), "{:?}", loaded.recovery);
}

/// A function record with flags and fields of a later version, and a unit of one, as they would be written.
#[test]
fn records_of_later_versions_are_skipped() {
    let mut maker = Maker::new();
    maker.charge("main local", 4);
    let write = |maker: &Maker| {
        let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
        encoder.write(&maker.profile.snapshot()).unwrap();
        encoder.finish().unwrap()
    };
    let _ = maker.profile.take_update();
    let mut payloads = payloads(&write(&maker));
    let (_, session) = &mut payloads[0];
    let unit = session.windows(9).position(|it| it == b"cpu-clock").unwrap() + 9;
    // The event is called `cpu-clock:u`, and comes first.
    let unit = unit + session[unit..].windows(9).position(|it| it == b"cpu-clock").unwrap() + 9;
    assert_eq!(session[unit], 0);
    session[unit] = 77;
    let (_, update) = &mut payloads[1];
    let name = update.windows(5).position(|it| it == b"local").unwrap();
    // Before the name its length and the flags; after it the start (1 byte: no difference), the file and the line.
    assert_eq!(update[name - 2], 1 | 4 | 8);
    update[name - 2] |= 1 << 5 | 1 << 7;
    update.splice(name + 8..name + 8, *b"\x05later");
    let file: Vec<u8> = (0..).zip(&payloads).flat_map(|(i, (kind, payload))| record(i, *kind, payload)).collect();
    let loaded = read_profile(&file[..]).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
    assert_eq!(loaded.profile.session().metrics[0].unit, Unit::Unknown);
    assert_eq!(loaded.profile.cost_centres(), maker.profile.cost_centres());
}

#[test]
fn names_are_within_their_budget_when_they_are_read() {
    let mut maker = Maker::new();
    maker.charge("main f", 1);
    let update = maker.profile.take_update();
    let apply = |string_bytes| {
        Profile::new(session(), ProfileLimits { string_bytes, ..ProfileLimits::default() }).apply(&update)
    };
    assert!(matches!(apply(10), Err(UpdateError::TooMany { what: "bytes of names", limit: 10 })));
    apply(100).unwrap();
}

#[test]
fn a_bad_update_changes_nothing() {
    let mut maker = Maker::new();
    maker.charge("main f", 1);
    let good = maker.profile.take_update();
    let bad: [fn(&mut Update); 13] = [
        |update| update.base.contexts += 1,
        |update| update.base.images -= 1,
        |update| update.contexts[1].parent = ContextId::new(77),
        |update| update.contexts[1].function = CostCentreId::new(77),
        |update| update.contexts.push(update.contexts[1]),
        |update| update.contexts[1] = NewContext { parent: ContextId::new(2), function: CostCentreId::new(2) },
        |update| update.charges[0].thread = ThreadId::new(1),
        |update| update.charges[0].context = ContextId::new(4),
        |update| update.charges[0].line = LineId::new(1),
        |update| update.weights.push(1),
        |update| update.squares = vec![1, 1],
        |update| update.cost_centres.push(update.cost_centres[0].clone()),
        |update| update.threads[0].process = ProcessId::new(1),
    ];
    for (i, spoil) in bad.iter().enumerate() {
        let mut update = good.clone();
        spoil(&mut update);
        let mut profile = Profile::new(session(), ProfileLimits::default());
        assert!(profile.apply(&update).is_err(), "{i}");
        profile.apply(&good).unwrap();
        assert!(profile.apply(&good).is_err(), "twice");
        assert_eq!(profile.canonical(), maker.profile.canonical(), "{i}");
    }
}

#[test]
fn weights_at_the_edge_of_their_range() {
    let mut maker = Maker::new();
    for weight in [u64::MAX, 0, 1, u64::MAX / 2, u64::MAX] {
        maker.charge(&format!("f{weight}"), weight);
    }
    maker.charge("f0", u64::MAX);
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let update = maker.profile.take_update();
    encoder.write(&update).unwrap();
    let file = encoder.finish().unwrap();
    let mut decoder = Decoder::new(&file[..]).unwrap();
    assert_eq!(decoder.next_record().unwrap(), Some(Decoded::Update(Box::new(update))));
    // Saturated, not wrapped, and no panic.
    let view = view::FlatView::new(&maker.profile, &view::Selection::all());
    assert_eq!(view.total.weight, u64::MAX);
}

#[test]
fn the_golden_files_go_on_decoding() {
    (1..=VERSION).for_each(golden);
}

fn golden(version: u32) {
    let path = format!("{}/tests/data/golden-v{version}.profile", env!("CARGO_MANIFEST_DIR"));
    if version == VERSION && std::env::var_os("CCSD_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, demo().0).unwrap();
    }
    let golden = std::fs::read(&path).unwrap();
    let loaded = read_profile(&golden[..]).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole) && loaded.finished);
    let (file, states) = demo_of(version);
    let mut found = merge_state::of(&loaded.profile);
    let expected = &states.last().unwrap().1;
    // Memory is that of the machine that wrote the file.
    found.accounting.contexts.bytes = expected.accounting.contexts.bytes;
    assert_eq!(&found, expected);
    // The same session is still written in the same form.
    assert_eq!(payloads(&file).len(), payloads(&golden).len());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = read_profile(&bytes[..]);
        let file = [Encoder::new(Vec::new(), &session()).unwrap().get_ref().clone(), bytes].concat();
        let _ = read_profile(&file[..]);
    }

    /// Payloads of noise with good checksums, then one that is good.
    #[test]
    fn arbitrary_records_never_panic(kind in 0..5u8, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut file = Encoder::new(Vec::new(), &session()).unwrap().get_ref().clone();
        file.extend(record(1, kind, &bytes));
        let _ = read_profile(&file[..]);
        let _ = read_profile(&record(0, 1, &bytes)[..]);
    }

    /// Good payloads with bytes changed, inserted and deleted, and good checksums: what passes gives views without panic.
    #[test]
    fn spoilt_records_never_panic(spoil in prop::collection::vec((any::<usize>(), any::<u8>(), 0..3u8), 1..6)) {
        let (good, _) = demo();
        let mut payloads = payloads(&good);
        for (at, byte, how) in spoil {
            let which = at % payloads.len();
            let payload = &mut payloads[which].1;
            let at = (at / 7) % payload.len().max(1);
            match how {
                0 if at < payload.len() => payload[at] = byte,
                1 if at < payload.len() => { payload.remove(at); }
                _ => payload.insert(at.min(payload.len()), byte),
            }
        }
        let file: Vec<u8> = (0..).zip(&payloads).flat_map(|(i, (kind, payload))| record(i, *kind, payload)).collect();
        if let Ok(loaded) = read_profile(Cursor::new(file)) {
            let all = view::Selection::all();
            let _ = view::FlatView::new(&loaded.profile, &all);
            let _ = view::GraphView::new(&loaded.profile, &all);
            let _ = view::LinesView::new(&loaded.profile, &all);
            let _ = view::ThreadsView::new(&loaded.profile, &all);
            let _ = view::StatsView::new(&loaded.profile, None);
            let _ = loaded.profile.canonical();
        }
    }

    #[test]
    fn updates_come_back(
        charges in prop::collection::vec((0..4u32, any::<u32>(), any::<(u32, u32)>(), 0..u64::MAX / 4, any::<u64>(), any::<u64>()), 0..50),
        routes in prop::collection::vec(any::<[u32; 3]>(), 0..50),
        above in prop::collection::vec(prop_oneof![Just(0), 0..1_000u128, 0..u128::MAX / 2], 0..100),
        contexts in prop::collection::vec((any::<u32>(), any::<u32>()), 0..50),
        text in ".{0,40}",
    ) {
        let charges: Vec<_> = charges.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let metric = |name: &str| Metric { name: name.into(), unit: Unit::Cycles };
        let session = SessionInfo { metrics: vec![metric("a"), metric("b")], target: text.clone(), ..session() };
        let mut update = Update {
            from_ns: 5,
            to_ns: 3,
            notes: vec![text],
            contexts: contexts
                .iter()
                .map(|&(parent, function)| NewContext { parent: ContextId::new(parent), function: CostCentreId::new(function) })
                .collect(),
            routes: routes
                .iter()
                .map(|&[parent, function, line]| NewRoute {
                    parent: RouteId::new(parent & 0x7fff_fffe),
                    function: CostCentreId::new(function),
                    line: LineId::new(line),
                })
                .collect(),
            charges: charges
                .iter()
                .map(|&(thread, context, (line, route), samples, _, _)| ChargeDelta {
                    thread: ThreadId::new(thread),
                    context: ContextId::new(context),
                    line: LineId::new(line),
                    route: if route % 2 == 0 { RouteId::new(route >> 1) } else { RouteId::new(route >> 1).cut() },
                    samples,
                })
                .collect(),
            weights: charges.iter().flat_map(|&(_, _, _, _, a, b)| [a, b]).collect(),
            ..Update::default()
        };
        let samples = charges.iter().flat_map(|charge| [charge.3; 2]);
        let least: Vec<_> = samples.zip(&update.weights).map(|(samples, &weight)| equal_squares(samples, weight)).collect();
        if above.iter().take(least.len()).any(|&above| above > 0) {
            let above = above.into_iter().chain(std::iter::repeat(0));
            update.squares = least.into_iter().zip(above).map(|(least, above)| least.saturating_add(above)).collect();
        }
        let mut encoder = Encoder::new(Vec::new(), &session).unwrap();
        encoder.write(&update).unwrap();
        let file = encoder.finish().unwrap();
        let mut decoder = Decoder::new(&file[..]).unwrap();
        prop_assert_eq!(decoder.session(), &session);
        prop_assert_eq!(decoder.next_record().unwrap(), Some(Decoded::Update(Box::new(update))));
        prop_assert!(matches!(decoder.next_record().unwrap(), Some(Decoded::End(_))));
        prop_assert_eq!(decoder.next_record().unwrap(), None);
    }
}

#[test]
fn an_update_too_large_for_a_record_becomes_several() {
    let mut maker = Maker::new();
    let functions: Vec<_> = (0..70_000u32)
        .map(|i| maker.function(&format!("function {i} with a name of some length {}", "x".repeat(i as usize % 100))))
        .collect();
    let thread = maker.thread(1);
    for (i, &function) in functions.iter().enumerate() {
        let below = maker.profile.contexts_mut().push(ContextId::ROOT, functions[i / 300]);
        let context = maker.profile.contexts_mut().push(below, function);
        for line in 0..5 {
            let line = maker.profile.add_line("demo.c", line);
            maker.profile.charge(thread, context, line, &[i as u64]);
        }
    }
    maker.profile.accounting_mut().received = 5 * 70_000;
    maker.profile.add_note("large");
    let update = maker.profile.take_update();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    encoder.write(&update).unwrap();
    let file = encoder.finish().unwrap();
    let loaded = read_profile(&file[..]).unwrap();
    assert!(loaded.finished && matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
    assert!((4..8).contains(&loaded.records), "{}", loaded.records);
    let (found, expected) = (merge_state::of(&loaded.profile), merge_state::of(&maker.profile));
    assert!(found == expected);
}

fn crash(round: u32) -> Crash {
    let frame = |function: &str, file: Option<&str>, line: u32| FrameInfo {
        function: function.to_owned(),
        image: "demo".to_owned(),
        file: file.map(str::to_owned),
        line,
        inlined: line == 3,
        address: u64::MAX - u64::from(line),
        function_id: line,
    };
    Crash {
        unix_ns: 5_000 + u64::from(round),
        pid: 7,
        tid: 8 + round,
        process: "demo".to_owned(),
        thread: "worker".to_owned(),
        signal: 11,
        code: -6,
        frames: vec![frame("f", Some("demo.c"), 3), frame("main", None, 0)],
        stack: vec![0, 0, 1],
        left_out_after: 1,
        left_out: 1_000,
        truncated: (round == 1).then(|| "too deep".to_owned()),
        earlier: (round == 1).then(|| EarlierStack { age_ns: 1_234_567, stack: vec![0, 1, 1] }),
    }
}

#[test]
fn crashes_come_with_their_update_or_not_at_all() {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let mut ends = vec![(encoder.get_ref().len(), 0)];
    for round in 0..3 {
        maker.charge("main f", 1_001_001);
        if round < 2 {
            assert!(maker.profile.add_crash(crash(2 * round)) && maker.profile.add_crash(crash(2 * round + 1)));
        }
        let update = maker.profile.take_update();
        assert_eq!(update.crashes.len(), if round < 2 { 2 } else { 0 });
        encoder.write(&update).unwrap();
        ends.push((encoder.get_ref().len(), maker.profile.crashes().len()));
    }
    let file = encoder.finish().unwrap();
    let loaded = read_profile(&file[..]).unwrap();
    assert_eq!(loaded.profile.crashes(), maker.profile.crashes());
    assert_eq!(loaded.profile.crashes()[1], crash(1));
    for cut in ends[0].0..ends[3].0 {
        let loaded = read_profile(&file[..cut]).unwrap();
        let (end, crashes) = *ends.iter().rev().find(|(end, _)| *end <= cut).unwrap();
        assert_eq!(loaded.profile.crashes().len(), crashes, "{cut}");
        match loaded.recovery {
            Recovery::Whole => assert_eq!(cut, end),
            Recovery::Cut { bytes_used, .. } => assert_eq!(bytes_used, end as u64, "{cut}"),
        }
    }
    // A reader that begins late has them all, and one that is slow, too (I7).
    let mut late = Profile::new(maker.profile.session().clone(), ProfileLimits::reading());
    late.apply(&maker.profile.snapshot()).unwrap();
    assert_eq!(late.crashes(), maker.profile.crashes());
    let mut decoder = Decoder::new(&file[..]).unwrap();
    let mut merged: Option<Update> = None;
    while let Some(decoded) = decoder.next_record().unwrap() {
        let Decoded::Update(update) = decoded else { break };
        match &mut merged {
            Some(merged) => merged.merge(&update).unwrap(),
            None => merged = Some(*update),
        }
    }
    assert_eq!(merged.unwrap().crashes, maker.profile.crashes());
    // Merging and regrouping keep crashes; reading other intervals does not.
    let grouped = late.regrouped(|_, centre| centre.clone());
    assert_eq!(grouped.crashes(), late.crashes());
    late.merge(&grouped).unwrap();
    assert_eq!(late.crashes().len(), 8);
    let mut update = maker.profile.snapshot();
    update.clear_charges();
    assert!(update.crashes.is_empty());
}

#[test]
fn crashes_are_bounded() {
    let mut maker = Maker::new();
    let long = Crash { stack: vec![0; MAX_CRASH_INNER + MAX_CRASH_OUTER + 1], ..crash(0) };
    assert!(!maker.profile.add_crash(long));
    let earlier = Some(EarlierStack { age_ns: 1, stack: vec![0; MAX_CRASH_OUTER + 1] });
    assert!(!maker.profile.add_crash(Crash { earlier, ..crash(0) }));
    let many = (0..2_000).filter(|&round| maker.profile.add_crash(crash(round))).count();
    assert_eq!(many, 1 << 10);
    // The largest that there may be is one record.
    let frame = FrameInfo { function: "f".repeat(9_999), file: Some("x".repeat(999)), ..crash(0).frames[0].clone() };
    let stack = (0..(MAX_CRASH_INNER + MAX_CRASH_OUTER) as u32).map(|at| at % MAX_CRASH_FRAMES as u32).collect();
    let large = Crash { frames: vec![frame; MAX_CRASH_FRAMES], stack, ..crash(0) };
    let mut maker = Maker::new();
    assert!(maker.profile.add_crash(large));
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    encoder.write(&maker.profile.take_update()).unwrap();
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
    assert_eq!(loaded.profile.crashes(), maker.profile.crashes());
}
