//! Cost of the profile's core: `cargo bench -p ccsd-benches --bench profile`. The profile has the proportions of `cc1
//! -O2` at 999 Hz: 24 frames on average and about 1.3 contexts per sample.
#![allow(missing_docs, reason = "criterion's macros make public functions")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;

use ccsd_profile::view::{CyclesView, FlatView, GraphView, LinesView, Selection, StacksView, TreeView};
use ccsd_profile::{
    ContextId, ContextTable, CostCentre, CostCentreId, Encoder, Image, LineId, Metric, Process, Profile, ProfileLimits,
    SessionInfo, Thread, Unit, read_profile,
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};

const FUNCTIONS: u32 = 2_000;
const CONTEXTS: usize = 50_000;

struct BenchRandom(u64);

impl BenchRandom {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

/// A stack of 24 frames on average. A function mostly calls its first callee, and one call in 150 is recursive.
fn stack(random: &mut BenchRandom, stack: &mut Vec<u32>) {
    stack.clear();
    stack.push(0);
    let depth = 12 + random.below(24);
    while stack.len() < depth as usize {
        let last = stack.last().copied().unwrap_or(0);
        let next = if random.below(150) == 0 {
            stack[random.below(stack.len() as u32) as usize]
        } else {
            let callee = if random.below(16) > 0 { 0 } else { 1 + random.below(5) };
            (last.wrapping_mul(31) + 17 + callee * 7) % FUNCTIONS
        };
        stack.push(next);
    }
}

fn session() -> SessionInfo {
    SessionInfo {
        metrics: vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }],
        ..SessionInfo::default()
    }
}

fn id(function: u32) -> CostCentreId {
    CostCentreId::new(function + 2)
}

fn profile() -> Profile {
    let mut profile = Profile::new(session(), ProfileLimits::default());
    let image = profile.add_image(Image { name: "/usr/bin/cc1".into(), build_id: vec![7; 20] });
    for i in 0..FUNCTIONS {
        profile.add_cost_centre(CostCentre {
            image,
            linkage_name: Some(format!("_ZN3foo{i}function_of_usual_lengthEv")),
            display_name: Some(format!("foo::{i}::function_of_usual_length()")),
            start: Some(0x40_0000 + u64::from(i) * 160),
            file: Some(format!("src/part{}.cc", i / 40)),
            line: i % 900,
            local: false,
        });
    }
    let lines: Vec<LineId> =
        (0..8_000).map(|i| profile.add_line(&format!("src/part{}.cc", i / 160), i % 900)).collect();
    let process = profile.add_process(Process::new(1, 1, "cc1"));
    let threads: Vec<_> = (1..=4).map(|tid| profile.add_thread(Thread { process, tid, name: "cc1".into() })).collect();
    let mut random = BenchRandom(1);
    let mut frames = Vec::new();
    while profile.contexts().len() < CONTEXTS {
        stack(&mut random, &mut frames);
        let context = frames.iter().fold(ContextId::ROOT, |c, &f| profile.contexts_mut().push(c, id(f)));
        let leaf = frames.last().copied().unwrap_or(0);
        let line = lines[(leaf * 4 + random.below(4)) as usize % lines.len()];
        profile.charge(threads[random.below(4) as usize], context, line, &[1_001_001]);
        profile.accounting_mut().received += 1;
    }
    profile
}

fn encoded(profile: &Profile) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new(), profile.session()).unwrap();
    encoder.write(&profile.snapshot()).unwrap();
    encoder.finish().unwrap()
}

fn stacks(count: usize) -> Vec<Vec<u32>> {
    let mut random = BenchRandom(1);
    (0..count)
        .map(|_| {
            let mut frames = Vec::new();
            stack(&mut random, &mut frames);
            frames
        })
        .collect()
}

fn push_all(table: &mut ContextTable, stacks: &[Vec<u32>]) {
    for frames in stacks {
        black_box(frames.iter().fold(ContextId::ROOT, |c, &f| table.push(c, id(f))));
    }
}

fn contexts(c: &mut Criterion) {
    let few = stacks(100);
    let pushes: usize = few.iter().map(Vec::len).sum();
    let mut table = ContextTable::new(64 << 20);
    push_all(&mut table, &few);
    println!("few: {pushes} pushes make {} contexts", table.len());
    let mut group = c.benchmark_group("push");
    group.throughput(criterion::Throughput::Elements(pushes as u64));
    group.bench_function("hit", |b| b.iter(|| push_all(&mut table, &few)));

    let many = stacks(4_000);
    let mut table = ContextTable::new(64 << 20);
    push_all(&mut table, &many);
    let stats = table.stats();
    println!("many: {} pushes, {} misses, {} of them B2", stats.pushes(), stats.new_contexts, stats.known_contexts);
    group.throughput(criterion::Throughput::Elements(stats.pushes()));
    group.bench_function("hits and misses", |b| {
        b.iter_batched(|| ContextTable::new(64 << 20), |mut table| push_all(&mut table, &many), BatchSize::LargeInput);
    });
    let deep: Vec<Vec<u32>> =
        (0..1_000).map(|i| (0..24u32).map(|frame| if frame == 0 { 0 } else { 1 + i * 24 + frame }).collect()).collect();
    group.throughput(criterion::Throughput::Elements(23_001));
    group.bench_function("miss", |b| {
        b.iter_batched(|| ContextTable::new(64 << 20), |mut table| push_all(&mut table, &deep), BatchSize::LargeInput);
    });
    // 20,000 frames of 100 functions: every push creates a context with a history of about 130 entries.
    let mut random = BenchRandom(3);
    let recursion: Vec<Vec<u32>> = vec![(0..20_000).map(|_| random.below(100)).collect()];
    group.throughput(criterion::Throughput::Elements(20_000));
    group.bench_function("miss in a recursion of 100 functions", |b| {
        b.iter_batched(
            || ContextTable::new(64 << 20),
            |mut table| push_all(&mut table, &recursion),
            BatchSize::LargeInput,
        );
    });
    let mut table = ContextTable::new(64 << 20);
    push_all(&mut table, &recursion);
    println!("recursion: {:?}", table.stats());
    group.finish();

    // The same hits in a large table: 50,000 contexts, far more than the first-level cache holds.
    let mut profile = profile();
    let stats = profile.contexts().stats();
    println!("{stats:?}: {} bytes a context", stats.bytes / stats.contexts);
    let mut group = c.benchmark_group("large table");
    let many = stacks(profile.accounting().received as usize);
    let pushes: usize = many.iter().map(Vec::len).sum();
    group.throughput(criterion::Throughput::Elements(pushes as u64));
    group.bench_function("hit", |b| {
        b.iter(|| push_all(profile.contexts_mut(), &many));
    });
    let mut next = 0;
    group.throughput(criterion::Throughput::Elements(1));
    group.bench_function("history", |b| {
        b.iter(|| {
            next = (next + 7_919) % CONTEXTS as u32;
            black_box(profile.contexts().history(ContextId::new(next)))
        });
    });
    group.finish();
}

fn charges(c: &mut Criterion) {
    let mut profile = profile();
    let mut keys = Vec::new();
    profile.for_each_charge(|charge| keys.push((charge.thread, charge.context, charge.line)));
    println!("{} charges", keys.len());
    let mut random = BenchRandom(5);
    let order: Vec<_> = (0..4_096).map(|_| keys[random.below(keys.len() as u32) as usize]).collect();
    let mut at = 0;
    c.bench_function("charge", |b| {
        b.iter(|| {
            at = (at + 1) % order.len();
            let (thread, context, line) = order[at];
            profile.charge(thread, context, line, &[1_001_001]);
        });
    });
}

fn codec(c: &mut Criterion) {
    let mut profile = profile();
    let update = profile.take_update();
    let file = encoded(&profile);
    let mut bare = update.clone();
    bare.contexts.clear();
    bare.charges.clear();
    bare.weights.clear();
    let size = |update: &ccsd_profile::Update| {
        let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
        encoder.write(update).unwrap();
        encoder.bytes_written()
    };
    let rest = size(&bare);
    bare.contexts.clone_from(&update.contexts);
    let contexts = size(&bare) - rest;
    let charges = size(&update) - rest - contexts;
    println!(
        "file of {} bytes: {:.2} a context, {:.2} a charge",
        file.len(),
        contexts as f64 / update.contexts.len() as f64,
        charges as f64 / update.charges.len() as f64
    );
    let mut group = c.benchmark_group("codec");
    group.throughput(criterion::Throughput::Bytes(file.len() as u64));
    group.bench_function("encode", |b| {
        b.iter(|| {
            let mut encoder = Encoder::new(Vec::new(), &session()).unwrap();
            encoder.write(black_box(&update)).unwrap();
            encoder.finish().unwrap()
        });
    });
    group.bench_function("decode", |b| b.iter(|| read_profile(black_box(&file[..])).unwrap()));
    group.finish();
}

fn views(c: &mut Criterion) {
    // All contexts are charged, although in practice half of them are only prefixes of others.
    let mut profile = profile();
    let contexts: Vec<_> = (2..profile.contexts().len()).map(|i| ContextId::new(i as u32)).collect();
    for context in contexts {
        profile.charge(ccsd_profile::ThreadId::new(0), context, LineId::UNKNOWN, &[1_001_001]);
    }
    println!("views of {} charges", profile.charge_count());
    let all = Selection::all();
    let some = Selection::all().hide((0..FUNCTIONS / 2).map(id));
    let mut group = c.benchmark_group("view");
    group.sample_size(20);
    group.bench_function("flat", |b| b.iter(|| FlatView::new(black_box(&profile), &all)));
    group.bench_function("flat, half of the functions hidden", |b| {
        b.iter(|| FlatView::new(black_box(&profile), &some));
    });
    group.bench_function("graph", |b| b.iter(|| GraphView::new(black_box(&profile), &all)));
    group.bench_function("stacks", |b| b.iter(|| StacksView::new(black_box(&profile), &all)));
    group.bench_function("cycles", |b| b.iter(|| CyclesView::new(black_box(&profile), &all)));
    group.bench_function("tree", |b| b.iter(|| TreeView::new(black_box(&profile), &all)));
    group.bench_function("tree, 0.5% and more", |b| b.iter(|| TreeView::top_down(black_box(&profile), &all, 0.005)));
    group.bench_function("bottom-up, 0.5% and more", |b| {
        b.iter(|| TreeView::bottom_up(black_box(&profile), &all, 0.005));
    });
    group.bench_function("bottom-up, 0.01% and more", |b| {
        b.iter(|| TreeView::bottom_up(black_box(&profile), &all, 0.0001));
    });
    group.bench_function("least share", |b| b.iter(|| black_box(&profile).pruned(0, 0.5)));
    group.bench_function("lines", |b| b.iter(|| LinesView::new(black_box(&profile), &all)));
    group.finish();
}

criterion_group!(benches, contexts, charges, codec, views);
criterion_main!(benches);
