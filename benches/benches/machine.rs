//! Simulates a large machine: samples of this process are fed through unwinding and aggregation as if from 128 CPUs,
//! 10,000 threads and 5,000 processes.
//!
//! cargo bench -p ccsd-benches --bench machine [-- CPUS THREADS PROCESSES]

#![allow(clippy::expect_used, clippy::panic, reason = "a benchmark that cannot be set up says so and ends")]

use std::hint::black_box;

use ccsd_collector::internals::{
    Aggregator, Batch, BatchItem, Bytes, Frame, GoroutineTable, ImageIndex, Images, LayoutChoice, ProcessKey,
    ProcessTable, Record, SampleLayout, ShadowStack, StackUnwinder, ThreadKey, UnwindTarget, parse, ring_pages,
};
use ccsd_collector::usage::thread_cpu_ns;
use ccsd_collector::{Budget, EventChoice, EventLayout, EventSet, EventSpec, Scope, choose};
use ccsd_profile::{Metric, Profile, SessionInfo, Unit};

const RECORDED: usize = 64;
const FED: usize = 60_000;
const PAGE: usize = 4096;
/// Polls of the rings per second without wake-ups.
const LOOKS: f64 = 10.0;

#[inline(never)]
fn recurse(depth: u32, work: &mut dyn FnMut()) {
    if depth == 0 {
        work();
    } else if depth.is_multiple_of(3) {
        other(black_box(depth - 1), work);
    } else {
        recurse(black_box(depth - 1), work);
    }
    black_box(depth);
}

#[inline(never)]
fn other(depth: u32, work: &mut dyn FnMut()) {
    recurse(depth, work);
    black_box(depth);
}

/// Records samples of this thread at depths of 8 to 40 calls.
fn record() -> (Vec<Vec<u8>>, SampleLayout, EventSpec) {
    let choice = choose(EventChoice::CpuClock, Scope::User, 4_999, false).expect("perf events");
    let (mut events, mut sorter) =
        EventSet::new(choice.spec, EventLayout::Threads, 32 << 20, &mut Vec::new()).expect("rings");
    let layout = SampleLayout::default();
    events.open_thread(std::process::id(), false).expect("events on this process");
    let mut found: Vec<Vec<u8>> = Vec::new();
    for depth in (8..40).cycle() {
        if found.len() >= RECORDED {
            break;
        }
        let before = found.len();
        recurse(depth, &mut || {
            while found.len() == before {
                black_box((0..100_000u64).fold(0, |sum: u64, i| black_box(sum ^ i)));
                sorter.drain_raw(u64::MAX, |_, bytes| {
                    if let Record::Sample(sample) = parse(bytes, layout)
                        && sample.regs.is_some()
                        && found.len() == before
                    {
                        found.push(bytes.concat());
                    }
                });
            }
        });
    }
    events.stop();
    (found, layout, choice.spec)
}

#[derive(Clone, Copy)]
struct Machine {
    cpus: usize,
    threads: usize,
    processes: usize,
}

fn main() {
    let numbers: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let machine = match numbers[..] {
        [cpus, threads, processes] if cpus * threads * processes > 0 => Machine { cpus, threads, processes },
        _ => Machine { cpus: 128, threads: 10_000, processes: 5_000 },
    };
    let (recorded, layout, spec) = record();
    let bytes = recorded.iter().map(Vec::len).sum::<usize>() / recorded.len().max(1);
    let Machine { cpus, threads, processes } = machine;
    println!(
        "{cpus} CPUs, {threads} threads, {processes} processes, all CPUs busy; samples of {bytes} bytes on average"
    );
    for rate_hz in [49, 999] {
        let spec = EventSpec { rate_hz, ..spec };
        println!("\n{rate_hz} Hz of CPU time, {} samples a second", rate_hz as usize * cpus);
        layouts(machine, &spec);
        rings(machine, &spec, bytes);
        fed(machine, &spec, &recorded, layout);
    }
}

fn layouts(machine: Machine, spec: &EventSpec) {
    for (file_limit, whole_machine, who) in [
        (1 << 19, true, "root, 524,288 files"),
        (1 << 19, false, "a user, 524,288 files"),
        (1_024, false, "a user, 1,024 files"),
    ] {
        let (threads, cpus) = (machine.threads as u64, machine.cpus as u64);
        let choice = LayoutChoice { threads, cpus, file_limit, whole_machine };
        let candidates = choice.candidates(spec, false);
        let (chosen, _) = candidates.first().expect("a layout");
        let files = choice.files(*chosen, spec);
        let refused = if files > choice.room() { ", which is refused with a word about the limit" } else { "" };
        println!("  {who}: {chosen:?}, {files} descriptors of events{refused}");
    }
}

fn rings(machine: Machine, spec: &EventSpec, bytes: usize) {
    let budget = Budget::default();
    let (sample_pages, tracking_pages) = ring_pages(budget.rings, machine.cpus, spec.rate_hz);
    let all = (sample_pages + tracking_pages) * PAGE * machine.cpus;
    let ring = sample_pages * PAGE;
    // A ring wakes the thread when a quarter of it is full, but each poll empties all rings.
    let full = f64::from(spec.rate_hz) * bytes as f64 / (ring as f64 / 4.0);
    let wake_ups = full.max(LOOKS);
    println!(
        "  rings: {} KiB a CPU for samples, {} KiB for the rest, {} MiB in all; full after {:.1} s",
        ring >> 10,
        (tracking_pages * PAGE) >> 10,
        all >> 20,
        ring as f64 / (f64::from(spec.rate_hz) * bytes as f64)
    );
    let least = wake_ups.min(f64::from(spec.rate_hz) * machine.cpus as f64);
    println!(
        "  wake-ups of the sampling thread: about {least:.0} a second if rings fill at once, of the other at least 5"
    );
}

fn fed(machine: Machine, spec: &EventSpec, recorded: &[Vec<u8>], layout: SampleLayout) {
    let budget = Budget::default();
    let (mut images, mut table) = (Images::within(budget.images), ProcessTable::default());
    let pid = std::process::id();
    table.read_process(pid, &mut images);
    let mappings = table.thread(pid, pid, &mut images).expect("this process").1.mappings.clone();
    let mut processes = vec![mappings; machine.processes];
    let mut goroutines = GoroutineTable::default();
    let mut shadows = vec![ShadowStack::default(); machine.threads];
    let mut unwinder = StackUnwinder::within(budget.unwind_tables, budget.unwind_rules);
    let metrics = vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }];
    let session = SessionInfo { metrics, ..SessionInfo::default() };
    let profile = Profile::new(session, budget.profile.clone());
    let mut aggregator = Aggregator::new(profile, *spec, EventLayout::Cpus, true, &budget);
    let mut batch = Batch::default();
    let image = |index| images.get(ImageIndex(index)).expect("an image").clone();
    batch.items.extend((0..images.count() as u32).map(|index| BatchItem::Image(image(index))));
    let process_of = |thread: usize| thread % machine.processes;
    batch.items.extend((0..machine.processes as u32).map(|pid| {
        let key = ProcessKey(pid);
        BatchItem::Process {
            key,
            parent: None,
            pid,
            start_time: 1,
            exec_generation: 0,
            name: format!("process {pid}"),
            membership: None,
        }
    }));
    batch.items.extend((0..machine.threads as u32).map(|tid| {
        let process = ProcessKey(process_of(tid as usize) as u32);
        BatchItem::Thread { key: ThreadKey(tid), process, tid, name: format!("thread {tid}") }
    }));
    aggregator.absorb(&mut batch);
    let mut frames: Vec<Frame> = Vec::new();
    let mut remembered = 0;
    let (mut first, mut seed, mut sampling, mut aggregating, mut largest) = (true, 1u64, 0, 0, 0);
    let mut counted = 0;
    for fed in 0..FED + recorded.len() {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The thread on a CPU changes every time: the worst case for per-thread caches.
        let thread = (seed >> 33) as usize % machine.threads;
        let bytes = &recorded[if first { fed } else { (seed >> 20) as usize % recorded.len() }];
        let before = thread_cpu_ns();
        let Record::Sample(sample) = parse(Bytes::new(bytes), layout) else { panic!("not a sample") };
        let process = process_of(thread);
        let shadow = &mut shadows[thread];
        remembered -= shadow.remembered();
        let target = UnwindTarget {
            mappings: &mut processes[process],
            process: ProcessKey(process as u32),
            owner: None,
            goroutines: &mut goroutines,
            images: &images,
        };
        let unwound = unwinder.unwind(&sample, target, shadow, remembered < budget.stack_frames, &mut frames);
        remembered += shadow.remembered();
        batch.frames.extend_from_slice(&frames);
        batch.items.push(BatchItem::Sample {
            thread: ThreadKey(thread as u32),
            time: sample.time,
            frames: frames.len() as u32,
            common: unwound.common,
            gap: unwound.gap,
            root: unwound.root,
            weights: [spec.period_ns(), 0],
        });
        sampling += thread_cpu_ns() - before;
        largest = largest.max(batch.bytes());
        if batch.bytes() >= 64 << 10 || fed + 1 == recorded.len() {
            let before = thread_cpu_ns();
            aggregator.absorb(&mut batch);
            batch.clear();
            aggregating += thread_cpu_ns() - before;
        }
        if fed + 1 == recorded.len() {
            (first, sampling, aggregating) = (false, 0, 0);
        } else if !first {
            counted += 1;
        }
    }
    aggregator.absorb(&mut batch);
    let per_1000 = |ns: u64| ns as f64 / counted as f64 / 1000.0;
    let (sampling, aggregating) = (per_1000(sampling), per_1000(aggregating));
    let all = f64::from(spec.rate_hz) * machine.cpus as f64 / 1000.0;
    println!(
        "  CPU for 1,000 samples: {sampling:.2} ms sampling, {aggregating:.2} ms aggregating; of one CPU that is {:.1}% and \
         {:.1}% (each thread can have one)",
        sampling * all / 10.0,
        aggregating * all / 10.0
    );
    let held = aggregator.held_bytes();
    let profile = aggregator.profile_mut();
    let total = counted as u64 + recorded.len() as u64;
    let mut charged = 0;
    profile.for_each_charge(|charge| charged += charge.samples);
    assert_eq!(charged, total, "a sample was lost");
    let stats = profile.contexts().stats();
    let shadows_bytes: usize = shadows.iter().map(ShadowStack::bytes).sum();
    // Two words for each ring on which a thread was seen.
    let counters = machine.threads * machine.cpus * 2 * size_of::<Option<u64>>();
    println!(
        "  tables after {total} samples: {:.1} MiB, of these profile {:.1} ({} contexts of {:.1} bytes, {} charges); last stacks \
         {remembered} frames, {:.1} MiB in the sampling thread; counters of a second event, where one is read, up to {} MiB",
        held as f64 / f64::from(1 << 20),
        profile.bytes() as f64 / f64::from(1 << 20),
        stats.contexts,
        stats.bytes as f64 / stats.contexts as f64,
        profile.charge_count(),
        shadows_bytes as f64 / f64::from(1 << 20),
        counters >> 20,
    );
    println!("  not in the budgets' count: {} KiB of one batch", largest >> 10);
}
