//! Cost of one sample after the kernel has written it: parsing, unwinding, resolving. The sample is a real one of this
//! process in a recursion of 24 frames.

#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark that cannot be set up says so and ends")]

use std::hint::black_box;

use ccsd_collector::internals::{
    Bytes, Frame, GoroutineTable, ImageIndex, Images, ProcessKey, ProcessTable, Record, Resolver, SampleLayout,
    ShadowStack, StackRoot, StackUnwinder, UnwindTarget, parse,
};
use ccsd_collector::{Budget, EventChoice, EventLayout, EventSet, Scope, choose};
use ccsd_profile::{Profile, ProfileLimits, SessionInfo};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

#[inline(never)]
fn recurse(depth: u32, work: &mut dyn FnMut()) {
    if depth == 0 {
        work();
    } else {
        recurse(black_box(depth - 1), work);
    }
    black_box(depth);
}

fn one_sample() -> (Vec<u8>, SampleLayout) {
    let choice = choose(EventChoice::CpuClock, Scope::User, 9_999, false).expect("perf events");
    let (mut events, mut sorter) =
        EventSet::new(choice.spec, EventLayout::Threads, 128 << 20, &mut Vec::new()).expect("rings");
    let layout = SampleLayout::default();
    events.open_thread(std::process::id(), false).expect("events on this process");
    let mut found = None;
    recurse(24, &mut || {
        while found.is_none() {
            black_box((0..1_000_000u64).fold(0, |sum: u64, i| black_box(sum ^ i)));
            sorter.drain_raw(u64::MAX, |_, bytes| {
                if let Record::Sample(sample) = parse(bytes, layout)
                    && sample.regs.is_some()
                {
                    found = Some(bytes.concat());
                }
            });
        }
    });
    events.stop();
    (found.unwrap_or_default(), layout)
}

fn bench(c: &mut Criterion) {
    let mut images = Images::default();
    let mut table = ProcessTable::default();
    let pid = std::process::id();
    table.read_process(pid, &mut images);
    let mut mappings = table.thread(pid, pid, &mut images).expect("this process").1.mappings.clone();
    let mut goroutines = GoroutineTable::default();
    let mut unwinder = StackUnwinder::default();
    let mut frames: Vec<Frame> = Vec::new();
    macro_rules! target {
        () => {
            UnwindTarget {
                mappings: &mut mappings,
                process: ProcessKey(0),
                owner: None,
                goroutines: &mut goroutines,
                images: &images,
            }
        };
    }
    // One in some hundred samples ends early because a stack page is not resident.
    let whole = (0..10).map(|_| one_sample()).find(|(bytes, layout)| match parse(Bytes::new(bytes), *layout) {
        Record::Sample(sample) => {
            let mut new = ShadowStack::default();
            unwinder.unwind(&sample, target!(), &mut new, true, &mut frames).root == StackRoot::Complete
        }
        _ => false,
    });
    let (bytes, layout) = whole.expect("a whole stack");
    let Record::Sample(sample) = parse(Bytes::new(&bytes), layout) else { panic!("not a sample") };
    println!("the sample: {} frames, {} bytes of stack", frames.len(), sample.stack.len());

    c.bench_function("parse a sample", |b| b.iter(|| black_box(parse(Bytes::new(black_box(&bytes)), layout))));

    let mut group = c.benchmark_group("unwind");
    group.throughput(Throughput::Elements(frames.len() as u64));
    group.bench_function("a real stack, warm", |b| {
        b.iter(|| {
            let mut new = ShadowStack::default();
            unwinder.unwind(black_box(&sample), target!(), &mut new, true, &mut frames)
        });
    });
    group.bench_function("a real stack, nothing cached", |b| {
        b.iter_batched_ref(
            StackUnwinder::default,
            |unwinder| {
                let mut new = ShadowStack::default();
                unwinder.unwind(black_box(&sample), target!(), &mut new, true, &mut frames)
            },
            criterion::BatchSize::LargeInput,
        );
    });
    group.bench_function("a real stack like the thread's last", |b| {
        let (mut last, mut new_frames) = (ShadowStack::default(), Vec::new());
        b.iter(|| unwinder.unwind(black_box(&sample), target!(), &mut last, true, &mut new_frames));
    });
    group.finish();

    let resolver = |profile: &mut Profile| {
        let mut resolver = Resolver::new(false, &Budget::default());
        for index in 0..images.count() as u32 {
            let image = images.get(ImageIndex(index)).expect("an image").clone();
            resolver.add_image(profile, image);
        }
        resolver
    };
    let new_profile = || Profile::new(SessionInfo::default(), ProfileLimits::default());
    let mut group = c.benchmark_group("resolve");
    group.throughput(Throughput::Elements(frames.len() as u64));
    let mut profile = new_profile();
    let mut warm = resolver(&mut profile);
    group.bench_function("a real stack, known", |b| {
        b.iter(|| frames.iter().map(|&frame| warm.resolve(&mut profile, frame, 0).line.index()).max());
    });
    group.sample_size(10);
    group.bench_function("a real stack, first time (symbols and DWARF read)", |b| {
        b.iter_batched(
            || {
                let mut profile = new_profile();
                let resolver = resolver(&mut profile);
                (profile, resolver)
            },
            |(mut profile, mut resolver)| {
                frames.iter().map(|&frame| resolver.resolve(&mut profile, frame, 0).line.index()).max()
            },
            criterion::BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
