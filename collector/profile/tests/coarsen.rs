//! A coarsened stream is the same profile (I8), in longer intervals whose limits are true.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::io::{self, Write};

use ccsd_profile::codec::{CoarsenError, Written, coarsen, compact, read_timeline};
use ccsd_profile::*;
use common::{Maker, session};
use proptest::prelude::*;

/// What is charged in an interval: thread, functions, weight.
type Samples = Vec<(u32, Vec<u32>, u64)>;
/// Samples, length of the interval, and which other things happen in it.
type Step = (Samples, u64, [bool; 4]);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sample = (0..4u32, prop::collection::vec(0..9u32, 1..8), 1..1000u64);
    let length = prop_oneof![Just(0), Just(1_000), 1_000..1_100u64, Just(9_000)];
    prop::collection::vec((prop::collection::vec(sample, 0..6), length, any::<[bool; 4]>()), 1..16)
}

struct CoarsenedRecording {
    maker: Maker,
    encoder: Encoder<Vec<u8>>,
    written: Written,
    updates: Vec<usize>,
}

impl CoarsenedRecording {
    fn new() -> Self {
        let maker = Maker::with(SessionInfo { notes: Vec::new(), ..session() }, ProfileLimits::default());
        let encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
        Self { maker, encoder, written: Written::default(), updates: Vec::new() }
    }

    fn step(&mut self, (samples, length, [name, rename, note, crash]): &Step) {
        let Self { maker, encoder, written, updates } = self;
        let number = updates.len() as u32;
        for (tid, stack, weight) in samples {
            let line = maker.profile.add_line(&format!("{}.c", stack[0]), *tid);
            let names: Vec<String> = stack.iter().map(|function| format!("f{function}")).collect();
            maker.charge_at(*tid, &names.join(" "), line, *weight);
        }
        if *name {
            let unnamed = maker.profile.add_cost_centre(CostCentre {
                image: maker.image,
                linkage_name: None,
                display_name: None,
                start: Some(u64::from(number / 2)),
                file: None,
                line: 0,
                local: false,
            });
            let context = maker.profile.contexts_mut().push(ContextId::ROOT, unnamed);
            let thread = maker.thread(1);
            maker.profile.charge(thread, context, LineId::UNKNOWN, &[5]);
            if number % 2 == 1 {
                let function = maker.function("later");
                maker.profile.name_later(unnamed, function);
            }
        }
        if *rename {
            let thread = maker.thread(number % 3);
            maker.profile.rename_thread(thread, &format!("renamed {number}"));
            maker.profile.rename_process(maker.process, &format!("exec {number}"));
        }
        if *note {
            maker.profile.add_note(&format!("note {number}"));
        }
        if *crash {
            assert!(maker.profile.add_crash(Crash {
                unix_ns: u64::from(number),
                pid: 7,
                tid: number,
                process: "demo".to_owned(),
                thread: "worker".to_owned(),
                signal: 11,
                code: 1,
                frames: Vec::new(),
                stack: Vec::new(),
                left_out_after: 0,
                left_out: 0,
                truncated: None,
                earlier: None,
            }));
        }
        let accounting = maker.profile.accounting_mut();
        accounting.duration_ns += length;
        accounting.expected = Some(u64::from(number));
        let update = maker.profile.take_update();
        encoder.write(&update).unwrap();
        written.add(&update, encoder);
        updates.push(encoder.get_ref().len());
    }

    fn coarsen(&self, most: usize) -> Result<(Encoder<Vec<u8>>, Written), CoarsenError> {
        coarsen(&self.encoder.get_ref()[..], Vec::new(), &self.written, most)
    }
}

fn intervals(stream: &[u8]) -> Vec<(u64, u64)> {
    let mut list = Vec::new();
    read_profile_with(stream, ProfileLimits::reading(), |update| list.push((update.from_ns, update.to_ns))).unwrap();
    list
}

fn state(profile: &Profile) -> impl PartialEq + std::fmt::Debug + use<> {
    (
        profile.canonical(),
        profile.session().clone(),
        profile.accounting().clone(),
        (profile.images().to_vec(), profile.cost_centres().to_vec(), profile.lines().to_vec()),
        (profile.processes().to_vec(), profile.threads().to_vec()),
        profile.crashes().to_vec(),
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_profile_and_its_parts_are_the_same(early in steps(), late in steps(), most in 1..9usize) {
        let mut recording = CoarsenedRecording::new();
        early.iter().for_each(|step| recording.step(step));
        let (encoder, written) = recording.coarsen(most).unwrap();
        let whole = recording.encoder.get_ref().clone();
        let mut coarser = CoarsenedRecording { encoder, written, ..recording };
        let mut original = CoarsenedRecording::new();
        early.iter().chain(&late).for_each(|step| original.step(step));
        prop_assert!(coarser.written.len() <= most);
        prop_assert_eq!(coarser.encoder.bytes_written(), coarser.encoder.get_ref().len() as u64);
        let list = intervals(coarser.encoder.get_ref());
        prop_assert_eq!(list.len(), coarser.written.len());
        late.iter().for_each(|step| coarser.step(step));
        let read = |stream: &[u8]| read_profile(stream).unwrap();
        prop_assert!(original.encoder.get_ref().starts_with(&whole));
        let (expected, found) = (read(original.encoder.get_ref()), read(coarser.encoder.get_ref()));
        prop_assert!(matches!(found.recovery, Recovery::Whole), "{:?}", found.recovery);
        prop_assert_eq!(state(&found.profile), state(&expected.profile));
        prop_assert_eq!(found.profile.session().notes.clone(), original.maker.profile.session().notes.clone());

        // Windows that begin and end where intervals do have the same in them; the limits of others are told as they are.
        for (at, &(from_ns, _)) in list.iter().enumerate() {
            let until_ns = list[(at + at % 3).min(list.len() - 1)].1;
            let window = TimeWindow { from_ns, until_ns };
            let (coarse, of_coarse) = read_window(&coarser.encoder.get_ref()[..], window).unwrap();
            let (fine, of_fine) = read_window(&original.encoder.get_ref()[..], window).unwrap();
            if until_ns > from_ns {
                prop_assert_eq!((of_coarse.from_ns, of_coarse.to_ns), (of_fine.from_ns, of_fine.to_ns));
                prop_assert_eq!(state(&coarse.profile), state(&fine.profile));
            }
        }
        let stretches: Vec<_> = list.iter().copied().filter(|(from, to)| to > from).collect();
        for timeline in [1, 3].map(|most| Timeline::of_intervals(&stretches, 1, most)) {
            let coarse = read_timeline(&coarser.encoder.get_ref()[..], 0, &timeline).unwrap();
            let fine = read_timeline(&original.encoder.get_ref()[..], 0, &timeline).unwrap();
            prop_assert_eq!(coarse.profile.canonical(), fine.profile.canonical());
        }
    }

    #[test]
    fn a_compacted_file_is_the_same(steps in steps(), end in 0..9u64) {
        let mut recording = CoarsenedRecording::new();
        steps.iter().for_each(|step| recording.step(step));
        let CoarsenedRecording { encoder, written, .. } = recording;
        let accounting = Accounting { received: end, expected: Some(end), ..Accounting::default() };
        let original = encoder.finish_with(&accounting).unwrap();
        let mut compacted = Vec::new();
        compact(&original[..], &mut compacted, &written).unwrap();
        prop_assert_eq!(intervals(&compacted), intervals(&original));
        let list = intervals(&original);
        for (at, &(from_ns, _)) in list.iter().enumerate() {
            let window = TimeWindow { from_ns, until_ns: list[(at + at % 3).min(list.len() - 1)].1 };
            let (found, expected) = (read_window(&compacted[..], window).unwrap(), read_window(&original[..], window).unwrap());
            prop_assert_eq!(found.1, expected.1);
            prop_assert_eq!(state(&found.0.profile), state(&expected.0.profile));
        }
        let (found, expected) = (read_profile(&compacted[..]).unwrap(), read_profile(&original[..]).unwrap());
        prop_assert!(found.finished && matches!(found.recovery, Recovery::Whole), "{:?}", found.recovery);
        prop_assert_eq!(state(&found.profile), state(&expected.profile));
        prop_assert_eq!(found.bytes, compacted.len() as u64);
        // Crashes come with the first interval of a record.
        let crashes = steps.iter().filter(|step| step.2[3]).count() as u64;
        prop_assert!(found.records <= 3 + 2 * crashes, "{} {}", found.records, crashes);
        // Cut off, it is what the record before has.
        let cut = read_profile(&compacted[..compacted.len() - 1]).unwrap();
        let Recovery::Cut { whole_records, bytes_used, .. } = cut.recovery else { panic!() };
        prop_assert_eq!((whole_records, bytes_used < found.bytes), (found.records - 1, true));
    }

    #[test]
    fn coarsening_twice_changes_nothing_either(steps in steps(), most in 1..10usize) {
        let mut recording = CoarsenedRecording::new();
        for step in &steps {
            if recording.written.len() >= 2 * most {
                let (encoder, written) = recording.coarsen(most).unwrap();
                (recording.encoder, recording.written) = (encoder, written);
            }
            recording.step(step);
            prop_assert!(recording.written.len() <= 2 * most);
        }
        let mut original = CoarsenedRecording::new();
        steps.iter().for_each(|step| original.step(step));
        let read = |recording: &CoarsenedRecording| read_profile(&recording.encoder.get_ref()[..]).unwrap().profile;
        prop_assert_eq!(state(&read(&recording)), state(&read(&original)));
    }
}

#[derive(Debug)]
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_that_is_not_what_was_written_is_left_alone() {
    let mut recording = CoarsenedRecording::new();
    for weight in 1..6 {
        recording.step(&(vec![(1, vec![1, 2], weight)], 1_000, [true; 4]));
    }
    let (stream, ends) = (recording.encoder.get_ref(), &recording.updates);
    let (coarser, _) = recording.coarsen(2).unwrap();
    let of = |stream: &[u8]| coarsen(stream, io::sink(), &recording.written, 2);
    assert!(of(stream).is_ok());
    // Shorter, longer, damaged, ended.
    for cut in 0..stream.len() {
        assert!(of(&stream[..cut]).is_err(), "{cut}");
    }
    assert!(matches!(of(coarser.get_ref()), Err(CoarsenError::Changed)));
    let mut longer = CoarsenedRecording::new();
    for weight in 1..7 {
        longer.step(&(vec![(1, vec![1, 2], weight)], 1_000, [true; 4]));
    }
    assert!(matches!(of(longer.encoder.get_ref()), Err(CoarsenError::Changed)));
    let mut damaged = stream.clone();
    damaged[ends[2] - 1] ^= 1;
    assert!(matches!(of(&damaged), Err(CoarsenError::Read(DecodeError::Checksum { .. }))));
    let ended = coarser.finish().unwrap();
    assert!(of(&ended).is_err());
    let room = recording.coarsen(2).unwrap().0.get_ref().len();
    for room in 0..room {
        let failed = coarsen(&stream[..], FullDisk(room), &recording.written, 2);
        assert!(matches!(failed, Err(CoarsenError::Write(_))), "{room}");
    }
}

/// Few intervals of a session that always charges the same are worth their bytes; of one that always changes, all.
#[test]
fn a_compacted_file_has_the_intervals_that_are_worth_it() {
    for (repeats, left, shorter) in [(true, 50, 3), (false, 100, 1)] {
        let mut recording = CoarsenedRecording::new();
        for second in 0..100u32 {
            let stack = |which: u32| vec![1, if repeats { which } else { 40 * second + which }];
            let samples = (0..40).map(|which| (1, stack(which), 1_000)).collect();
            recording.step(&(samples, 1_000, [false; 4]));
        }
        let CoarsenedRecording { encoder, written, maker, .. } = recording;
        let original = encoder.finish().unwrap();
        let mut compacted = Vec::new();
        compact(&original[..], &mut compacted, &written).unwrap();
        assert_eq!(intervals(&compacted).len(), left);
        assert_eq!(state(&read_profile(&compacted[..]).unwrap().profile), state(&maker.profile));
        assert!(shorter * compacted.len() < original.len(), "{} {}", compacted.len(), original.len());
    }
}

#[test]
fn only_finished_streams_as_written_are_compacted() {
    let mut recording = CoarsenedRecording::new();
    for weight in 1..6 {
        recording.step(&(vec![(1, vec![1, 2], weight)], 1_000, [true; 4]));
    }
    let CoarsenedRecording { encoder, written, .. } = recording;
    let of = |stream: &[u8], room| compact(stream, FullDisk(room), &written);
    assert!(matches!(of(encoder.get_ref(), 100_000), Err(CoarsenError::Changed)));
    let stream = encoder.finish().unwrap();
    assert!(of(&stream, 100_000).is_ok());
    for cut in 0..stream.len() {
        assert!(of(&stream[..cut], 100_000).is_err(), "{cut}");
        assert!(of(&stream, cut / 4).is_err(), "{cut}");
    }
}

#[test]
fn updates_too_large_to_merge_keep_their_interval() {
    // A hundred bytes of each name, so that a few updates are beyond what is merged.
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let mut written = Written::default();
    for second in 0..12u32 {
        for function in 0..10_000 {
            maker.function(&format!("{second} {function} {}", "x".repeat(100)));
        }
        maker.charge("main", 1);
        maker.profile.accounting_mut().duration_ns += 1_000;
        let update = maker.profile.take_update();
        encoder.write(&update).unwrap();
        written.add(&update, &encoder);
    }
    let (coarser, now) = coarsen(&encoder.get_ref()[..], Vec::new(), &written, 1).unwrap();
    assert_eq!(now.len(), 1);
    let list = intervals(coarser.get_ref());
    assert!(list.len() > 1 && list.len() < 12 && list.iter().all(|&it| it == (0, 12_000)), "{list:?}");
    let read = read_window(&coarser.get_ref()[..], TimeWindow::ALL).unwrap();
    assert_eq!((read.1.all, read.1.longest_ns), (1, 12_000));
    assert_eq!(state(&read.0.profile), state(&maker.profile));
}
