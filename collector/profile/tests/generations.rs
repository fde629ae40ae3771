//! Generations of the table of contexts do not change what a reader gets (I2, I7, I8), within its limits (I1, I10).
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use ccsd_profile::codec::{Written, coarsen};
use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::*;
use common::{Maker, Random, session};
use proptest::prelude::*;

/// What is charged in an interval: thread, functions, line.
type Samples = Vec<(u32, Vec<u32>, u32)>;
/// An interval, and whether a generation begins after it.
type Interval = (Samples, bool);

fn intervals() -> impl Strategy<Value = Vec<Interval>> {
    let sample = (0..3u32, prop::collection::vec(0..7u32, 0..9), 0..3u32);
    prop::collection::vec((prop::collection::vec(sample, 0..8), any::<bool>()), 1..12)
}

struct GenerationRecording {
    updates: Vec<Update>,
    whole: Maker,
    info: SessionInfo,
}

fn record(intervals: &[Interval]) -> GenerationRecording {
    let make = || Maker::with(session(), ProfileLimits::default());
    let (mut maker, mut whole) = (make(), make());
    let mut updates = Vec::new();
    for (number, (samples, begins)) in (1..).zip(intervals) {
        for maker in [&mut maker, &mut whole] {
            for (tid, stack, line) in samples {
                let names: Vec<String> = stack.iter().map(|function| format!("f{function}")).collect();
                let line = maker.profile.add_line("demo.c", *line);
                maker.charge_at(*tid, &names.join(" "), line, 1_000 + number);
            }
            maker.profile.accounting_mut().duration_ns = number * 1_000;
        }
        updates.push(maker.profile.take_update());
        if *begins {
            maker.profile.begin_generation();
        }
    }
    GenerationRecording { updates, whole, info: session() }
}

fn fresh() -> Profile {
    Profile::new(session(), ProfileLimits::reading())
}

fn histories(profile: &Profile) -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    profile.for_each_charge(|charge| {
        let history = profile.contexts().history(charge.context);
        rows.push((format!("{:?}", history.entries()), charge.weights[0]));
    });
    rows.sort();
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// I8: a file of generations is the profile without them, and so is each prefix of it up to its last whole record.
    #[test]
    fn i8_every_prefix_is_the_profile_up_to_it(intervals in intervals(), cut in any::<prop::sample::Index>()) {
        let GenerationRecording { updates, whole, info } = record(&intervals);
        let mut encoder = Encoder::new(Vec::new(), &info).unwrap();
        let mut ends = vec![(encoder.get_ref().len(), fresh().canonical())];
        for (number, update) in updates.iter().enumerate() {
            encoder.write(update).unwrap();
            ends.push((encoder.get_ref().len(), record(&intervals[..=number]).whole.profile.canonical()));
        }
        let file = encoder.finish().unwrap();
        let loaded = read_profile(&file[..]).unwrap();
        prop_assert!(loaded.finished && matches!(loaded.recovery, Recovery::Whole));
        prop_assert_eq!(loaded.profile.canonical(), whole.profile.canonical());
        let cut = ends[0].0 + cut.index(file.len() - ends[0].0);
        let loaded = read_profile(&file[..cut]).unwrap();
        let (_, expected) = ends.iter().rev().find(|(end, _)| *end <= cut).unwrap();
        prop_assert_eq!(&loaded.profile.canonical(), expected);
    }

    /// I2: a context is a function of the stack alone, in which generation it is met or in how many.
    #[test]
    fn i2_contexts_are_functions_of_the_stack(intervals in intervals()) {
        let GenerationRecording { updates, whole, .. } = record(&intervals);
        let mut joined = fresh();
        updates.iter().for_each(|update| joined.apply(update).unwrap());
        // Equal paths are one context, so there are no more than paths.
        prop_assert_eq!(joined.canonical(), whole.profile.canonical());
        let mut paths = std::collections::BTreeSet::from([Vec::new()]);
        for (_, stack, _) in intervals.iter().flat_map(|(samples, _)| samples) {
            (1..=stack.len()).for_each(|end| paths.extend([stack[..end].to_vec()]));
        }
        prop_assert!(joined.contexts().len() <= 1 + paths.len());
        let of_whole: Vec<_> = histories(&whole.profile);
        let sum = |rows: &[(String, u64)]| rows.iter().map(|(_, weight)| weight).sum::<u64>();
        prop_assert_eq!(sum(&histories(&joined)), sum(&of_whole));
        let kinds = |rows: &[(String, u64)]| {
            let mut kinds: Vec<String> = rows.iter().map(|(history, _)| history.clone()).collect();
            kinds.dedup();
            kinds
        };
        prop_assert_eq!(kinds(&histories(&joined)), kinds(&of_whole));
    }

    /// I7: a snapshot at any time and what follows it, merged as far as it can be, is the whole.
    #[test]
    fn i7_snapshots_and_merged_updates(intervals in intervals(), at in any::<prop::sample::Index>(), groups in 1..4usize) {
        let GenerationRecording { updates, whole, .. } = record(&intervals);
        let at = at.index(updates.len() + 1);
        let mut replica = fresh();
        updates[..at].iter().for_each(|update| replica.apply(update).unwrap());
        let mut late = fresh();
        late.apply(&replica.snapshot()).unwrap();
        replica.snapshot_generation().iter().for_each(|update| late.apply(update).unwrap());
        prop_assert_eq!(late.canonical(), replica.canonical());
        // A snapshot of what began with a snapshot is one, too.
        let mut later = fresh();
        later.apply(&late.snapshot()).unwrap();
        late.snapshot_generation().iter().for_each(|update| later.apply(update).unwrap());
        for group in updates[at..].chunks(groups) {
            let mut merged = Updates::default();
            group.iter().for_each(|update| merged.add(update).unwrap());
            for update in merged {
                late.apply(&update).unwrap();
                later.apply(&update).unwrap();
            }
        }
        prop_assert_eq!(late.canonical(), whole.profile.canonical());
        prop_assert_eq!(later.canonical(), whole.profile.canonical());
        prop_assert_eq!(late.accounting(), later.accounting());
        // One who goes on with the stream can say something in it.
        late.add_note("the last word");
        later.apply(&late.take_update()).unwrap();
        prop_assert!(later.session().notes.iter().any(|note| note == "the last word"));
    }

    /// Intervals of several generations are merged in a file as others are, again and again, and what came after is read.
    #[test]
    fn a_file_of_generations_is_coarsened(rounds in prop::collection::vec(intervals(), 1..4), most in 1..5usize) {
        let GenerationRecording { updates, whole, info } = record(&rounds.concat());
        let mut encoder = Encoder::new(Vec::new(), &info).unwrap();
        let mut written = Written::default();
        let mut updates = updates.into_iter();
        for round in &rounds {
            if !written.is_empty() {
                let file = encoder.get_ref().clone();
                (encoder, written) = coarsen(&file[..], Vec::new(), &written, most).unwrap();
                prop_assert!(written.len() <= most);
            }
            for update in updates.by_ref().take(round.len()) {
                encoder.write(&update).unwrap();
                written.add(&update, &encoder);
            }
        }
        let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
        prop_assert!(matches!(loaded.recovery, Recovery::Whole), "{:?}", loaded.recovery);
        prop_assert_eq!(loaded.profile.canonical(), whole.profile.canonical());
    }
}

/// A program with more stacks than a generation has room for, but not more and more: its file stops growing.
#[test]
fn generations_that_repeat_each_other_are_put_together() {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let mut written = Written::default();
    let mut random = Random::new(3);
    let mut sizes = Vec::new();
    for number in 1..=600u64 {
        for _ in 0..20 {
            let stack: Vec<String> = (0..3).map(|_| format!("f{}", random.below(9))).collect();
            maker.charge(&format!("main {}", stack.join(" ")), 1);
        }
        maker.profile.accounting_mut().duration_ns += 1_000;
        let update = maker.profile.take_update();
        encoder.write(&update).unwrap();
        written.add(&update, &encoder);
        // Not always where a file is coarsened.
        if number % 7 == 0 {
            maker.profile.begin_generation();
        }
        if number % 60 == 0 {
            let file = encoder.get_ref().clone();
            (encoder, written) = coarsen(&file[..], Vec::new(), &written, 10).unwrap();
            sizes.push(encoder.get_ref().len());
        }
    }
    let loaded = read_profile(&encoder.finish().unwrap()[..]).unwrap();
    let mut samples = 0;
    loaded.profile.for_each_charge(|charge| samples += charge.samples);
    assert_eq!(samples, 600 * 20);
    assert!(sizes[9] * 2 <= sizes[0] * 5, "{sizes:?}");
}

/// A collector of random recursion that begins generations when it must. Returns the stream, their number, and the
/// total weight.
fn random_recursion(samples: u64) -> (Vec<u8>, u64, u64, u64) {
    let limits = ProfileLimits { context_bytes: 256 << 10, charge_bytes: 256 << 10, ..ProfileLimits::default() };
    let mut maker = Maker::with(session(), limits);
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    let mut random = Random::new(7);
    let (mut generations, mut total, mut elided) = (1, 0, 0);
    for sample in 1..=samples {
        let stack: Vec<String> = (0..60).map(|_| format!("f{}", random.below(40))).collect();
        let context = maker.charge(&format!("main {}", stack.join(" ")), sample);
        elided += u64::from(maker.profile.contexts().is_elided(context));
        total += sample;
        if maker.profile.needs_generation(128) {
            maker.profile.accounting_mut().duration_ns += 1_000;
            encoder.write(&maker.profile.take_update()).unwrap();
            maker.profile.begin_generation();
            generations += 1;
        }
        assert!(maker.profile.contexts().bytes() <= 256 << 10);
    }
    encoder.write(&maker.profile.take_update()).unwrap();
    let stats = maker.profile.accounting().contexts;
    assert_eq!((stats.elided, maker.profile.accounting().elided), (0, 0));
    assert!(stats.new_contexts > 30 * samples, "{stats:?}");
    (encoder.finish().unwrap(), generations, total, elided)
}

/// I1, I10: nothing is elided while it is collected; a reader with little room elides below the callers that it knows.
#[test]
fn readers_keep_their_limits() {
    let (file, generations, total, elided) = random_recursion(2_000);
    assert!(generations > 10 && elided == 0, "{generations} generations, {elided} elided");
    let read = |limits| read_profile_with(&file[..], limits, |_| {}).unwrap().profile;
    let inherited = |profile: &Profile, name: &str| {
        let view = FlatView::new(profile, &Selection::all());
        view.rows.iter().find(|row| row.name == name).map_or(0, |row| row.inherited_weight)
    };
    let noted = |profile: &Profile| profile.session().notes.iter().any(|note| note.contains("in reading it"));
    let whole = read(ProfileLimits::reading());
    assert_eq!((inherited(&whole, "main"), inherited(&whole, "[elided]")), (total, 0));
    assert!(!noted(&whole));
    let small = read(ProfileLimits { context_bytes: 512 << 10, charge_bytes: 512 << 10, ..ProfileLimits::reading() });
    assert!(small.contexts().bytes() <= 512 << 10);
    let share = inherited(&small, "[elided]") as f64 / total as f64;
    assert!((0.5..1.0).contains(&share), "{share}");
    assert_eq!((inherited(&small, "main"), FlatView::new(&small, &Selection::all()).total.weight), (total, total));
    assert!(noted(&small));
}

/// A generation for every few bytes of a hostile file takes the memory of one.
#[test]
fn many_generations_take_no_more_than_one() {
    let mut maker = Maker::new();
    let mut encoder = Encoder::new(Vec::new(), maker.profile.session()).unwrap();
    for number in 0..20_000u64 {
        maker.charge(["main f", "main g f"][usize::try_from(number % 2).unwrap()], 1);
        encoder.write(&maker.profile.take_update()).unwrap();
        maker.profile.begin_generation();
    }
    let file = encoder.finish().unwrap();
    let profile = read_profile(&file[..]).unwrap().profile;
    assert_eq!((profile.contexts().len(), profile.charge_count()), (2 + 4, 2));
    assert!(profile.bytes() < 64 << 10, "{}", profile.bytes());
    let mut total = 0;
    profile.for_each_charge(|charge| total += charge.weights[0]);
    assert_eq!(total, 20_000);
}
