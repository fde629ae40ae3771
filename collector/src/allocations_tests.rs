//! What a sample costs in the steady state is counted: no allocation, and one push for each frame that has changed.

use std::alloc::{GlobalAlloc, Layout as Memory, System};
use std::cell::Cell;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use crate::Budget;
use crate::aggregator::Aggregator;
use crate::batch::{Batch, BatchItem};
use crate::pace::RateController;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::choice::{EventChoice, Scope, choose};
use crate::perf::layout::EventLayout;
use crate::perf::record::{Sample, UserRegs};
use crate::perf::ring_buffer::Bytes;
use crate::perf::set::EventSet;
use crate::process::images::{ImageIndex, Images, MappedImage};
use crate::process::{ProcessKey, ProcessTable, ThreadKey};
use crate::sampler::{Channels, Sampler};
use crate::stack_delta::Common;
use crate::system::perf_max_sample_rate;
use crate::unwind::go::goroutines::GoroutineTable;
use crate::unwind::shadow::ShadowStack;
use crate::unwind::{Frame, StackRoot, StackUnwinder, UnwindTarget};
use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{Profile, SessionInfo, Shed};
use crossbeam_channel::bounded;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

/// The system's allocator, which counts. All tests of this library use it.
struct CountingAllocator;

// SAFETY: the system's allocator does all; counting allocates nothing, as the cell is constant and needs no destructor.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Memory) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    // The default would write to fresh pages, which a test of pages expects to be absent.
    unsafe fn alloc_zeroed(&self, layout: Memory) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Memory) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Memory, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

const SPEC: EventSpec = EventSpec {
    event: Event::CpuClock,
    rate_hz: 999,
    kernel: false,
    inherit: true,
    enable_on_exec: false,
    stack_bytes: 0,
    tells_lost: false,
    user_chain: false,
};

fn aggregator(budget: &Budget) -> Aggregator {
    let metrics = vec![ccsd_profile::Metric { name: "cpu-clock".into(), unit: ccsd_profile::Unit::Nanoseconds }];
    let session = SessionInfo { metrics, ..SessionInfo::default() };
    Aggregator::new(Profile::new(session, budget.profile.clone()), SPEC, EventLayout::Threads, true, budget)
}

/// What comes before the samples of so many threads of one process. Addresses of "the kernel" are functions by themselves.
fn beginning(threads: u32) -> Batch {
    let image = |name: &str| BatchItem::Image(MappedImage::new(name, None, ccsd_worker::Principal::Own));
    let key = ProcessKey(0);
    let process = BatchItem::Process {
        key,
        parent: None,
        pid: 1,
        start_time: 1,
        exec_generation: 0,
        name: "p".into(),
        membership: None,
    };
    let threads =
        (0..threads).map(|tid| BatchItem::Thread { key: ThreadKey(tid), process: key, tid, name: "t".into() });
    let items = [image("[unknown]"), image("[kernel]"), process].into_iter().chain(threads).collect();
    Batch { items, ..Batch::default() }
}

/// A sample with these inner functions, innermost first, and `own` outer frames of the one before.
fn push(batch: &mut Batch, thread: u32, own: u32, functions: impl Iterator<Item = u64>) {
    let before = batch.frames.len();
    batch.frames.extend(functions.map(|address| Frame { image: ImageIndex::KERNEL, address }));
    let frames = (batch.frames.len() - before) as u32;
    let common = Common { own, ..Common::default() };
    let (thread, weights) = (ThreadKey(thread), [7, 0]);
    batch.items.push(BatchItem::Sample {
        thread,
        time: 1,
        frames,
        common,
        gap: None,
        root: StackRoot::Complete,
        weights,
    });
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

fn samples(count: u32) -> Batch {
    let mut batch = Batch::default();
    let (mut seed, mut depths) = (1, [0u32; 4]);
    for i in 0..count {
        let thread = (i % 4) as usize;
        let kept = random(&mut seed, u64::from(depths[thread]) + 1) as u32;
        let new = random(&mut seed, 24) as u32 + 1;
        let frames: Vec<u64> = (0..new).map(|_| random(&mut seed, 200)).collect();
        push(&mut batch, i % 4, kept, frames.into_iter());
        depths[thread] = (kept + new).min(40);
        if kept + new > 40 {
            // A thread that starts again.
            push(&mut batch, i % 4, 0, [0].into_iter());
            depths[thread] = 1;
        }
    }
    batch
}

#[test]
fn a_sample_seen_before_allocates_nothing() {
    let mut aggregator = aggregator(&Budget::default());
    aggregator.absorb(&mut beginning(4));
    let first = allocations(|| aggregator.absorb(&mut samples(5_000)));
    assert!(first > 100, "{first}: nothing is counted");
    // An interval is over; that may allocate, but what comes after may not.
    let _ = aggregator.profile_mut().take_update();
    let mut again = samples(5_000);
    assert_eq!(allocations(|| aggregator.absorb(&mut again)), 0);
    let _ = aggregator.profile_mut().take_update();
    let mut again = samples(5_000);
    assert_eq!(allocations(|| aggregator.absorb(&mut again)), 0);
}

#[test]
fn a_sample_costs_pushes_for_changed_frames_only() {
    let mut aggregator = aggregator(&Budget::default());
    aggregator.absorb(&mut beginning(2));
    let mut pushes = |own: u32, functions: &[u64]| {
        let before = aggregator.profile_mut().contexts().stats().pushes();
        let mut batch = Batch::default();
        push(&mut batch, 0, own, functions.iter().copied());
        aggregator.absorb(&mut batch);
        aggregator.profile_mut().contexts().stats().pushes() - before
    };
    let whole: Vec<u64> = (0..30).rev().collect();
    assert_eq!(pushes(0, &whole), 30);
    assert_eq!(pushes(0, &whole), 0);
    assert_eq!(pushes(30, &[]), 0);
    assert_eq!(pushes(29, &[100]), 1);
    assert_eq!(pushes(27, &[103, 102, 101]), 3);
    assert_eq!(pushes(25, &[]), 0);
    assert_eq!(pushes(25, &[29, 28, 27, 26, 25]), 5);
    let changed: Vec<u64> = [200, 201].into_iter().chain((0..28).rev()).collect();
    assert_eq!(pushes(0, &changed), 2);
    // What was cut away is not shared.
    assert_eq!(pushes(0, &[1]), 1);
}

#[test]
fn addresses_beyond_the_budget_are_forgotten_and_found_again() {
    let budget = Budget { addresses: 64, ..Budget::of(0) };
    let mut aggregator = aggregator(&budget);
    aggregator.absorb(&mut beginning(1));
    let mut batch = Batch::default();
    let mut seed = 3;
    for _ in 0..20_000 {
        let frames: Vec<u64> = (0..8).map(|_| random(&mut seed, 100_000)).collect();
        push(&mut batch, 0, 0, frames.into_iter());
    }
    aggregator.absorb(&mut batch);
    let held = aggregator.held_bytes();
    let profile = aggregator.profile_mut();
    let view = FlatView::new(profile, &Selection::all());
    assert_eq!((view.total.samples, view.total.weight), (20_000, 7 * 20_000));
    let update = profile.take_update();
    let shed = update.accounting.shed;
    assert!(
        shed.get(Shed::Addresses) > 100 && shed.get(Shed::Functions) > 0 && shed.get(Shed::Contexts) > 0,
        "{shed:?}"
    );
    assert!(held <= budget.memory && profile.cost_centres().len() <= budget.profile.cost_centres, "{held}");
}

/// Processes that come and go: those beyond the budget share an entry, with the threads that they have.
#[test]
fn processes_beyond_the_budget_share_a_row() {
    let budget = Budget::of(0);
    let mut aggregator = aggregator(&budget);
    aggregator.absorb(&mut beginning(0));
    let count = 4 * budget.profile.processes as u32;
    let mut batch = Batch::default();
    for pid in 10..10 + count {
        let (key, parent) = (ProcessKey(pid), Some(ProcessKey(pid - 1)));
        batch.items.push(BatchItem::Process {
            key,
            parent,
            pid,
            start_time: 1,
            exec_generation: 0,
            name: "q".into(),
            membership: None,
        });
        batch.items.push(BatchItem::Thread { key: ThreadKey(pid), process: key, tid: pid, name: "q".into() });
        push(&mut batch, pid, 0, [u64::from(pid % 7)].into_iter());
        batch.items.push(BatchItem::ThreadEnd(ThreadKey(pid)));
        batch.items.push(BatchItem::ProcessEnd(key));
    }
    aggregator.absorb(&mut batch);
    let held = aggregator.held_bytes();
    let profile = aggregator.profile_mut();
    let view = ccsd_profile::view::ThreadsView::new(profile, &Selection::all());
    assert_eq!(view.processes.iter().map(|process| process.weight).sum::<u64>(), 7 * u64::from(count));
    let other = view.processes.iter().find(|process| process.pid == 0).unwrap();
    assert_eq!(other.name, "q");
    assert!(other.weight >= 7 * u64::from(count) / 2, "{other:?}");
    assert!(profile.processes().len() <= budget.profile.processes && held <= budget.memory / 4, "{held}");
    assert!(profile.accounting().shed.get(Shed::Processes) > 0);
}

#[inline(never)]
fn recurse(depth: u32, work: &mut dyn FnMut()) {
    if depth == 0 {
        work();
    } else {
        recurse(std::hint::black_box(depth - 1), work);
    }
    std::hint::black_box(depth);
}

/// The registers of this very thread, and a copy of its stack from there on.
#[inline(always)]
fn own_stack() -> (UserRegs, Vec<u8>) {
    let mut bytes = vec![0; 48 << 10];
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads three registers and changes nothing.
    unsafe {
        std::arch::asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) bp,
            options(nomem, nostack, preserves_flags));
    }
    let read = std::os::unix::fs::FileExt::read_at(&memory, &mut bytes, sp).unwrap();
    bytes.truncate(read);
    (UserRegs { ip, sp, bp, others: [0; 14] }, bytes)
}

fn sample(regs: UserRegs, stack: &[u8], round: u64) -> Sample<'_> {
    Sample {
        id: 0,
        pid: std::process::id(),
        tid: 1,
        time: 1_000_000_000 + round,
        period: 1,
        group_value: None,
        kernel_chain: Bytes::new(&[]),
        user_chain: Bytes::new(&[]),
        regs: Some(regs),
        has_user_state: true,
        stack: Bytes::new(stack),
        stack_full: true,
    }
}

#[test]
fn unwinding_a_stack_seen_before_allocates_nothing() {
    let (mut images, mut table) = (Images::default(), ProcessTable::default());
    let pid = std::process::id();
    table.read_process(pid, &mut images);
    let mut unwinder = StackUnwinder::default();
    let (mut shadow, mut goroutines, mut frames) = (ShadowStack::default(), GoroutineTable::default(), Vec::new());
    let mut found = Vec::new();
    recurse(20, &mut || {
        let (regs, stack) = own_stack();
        for round in 0..5 {
            let (_, process) = table.thread(pid, pid, &mut images).unwrap();
            let target = UnwindTarget {
                mappings: &mut process.mappings,
                process: process.key,
                owner: None,
                goroutines: &mut goroutines,
                images: &images,
            };
            let mut new = ShadowStack::default();
            let shadow = if round % 2 == 0 { &mut new } else { &mut shadow };
            let one = sample(regs, &stack, round);
            let mut root = StackRoot::Complete;
            let count = allocations(|| root = unwinder.unwind(&one, target, shadow, true, &mut frames).root);
            found.push((root, frames.len(), count));
        }
    });
    assert!(found[0].1 > 20 && found[0].2 > 0 && found.iter().all(|found| found.0 == StackRoot::Complete), "{found:?}");
    // A thread's stack is remembered, which takes memory when it is first seen or has grown.
    assert!(found[2].2 == found[4].2 && found[2].2 <= 8, "{found:?}");
    assert_eq!(found[3].2, 0, "{found:?}");
}

struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

/// The sampling thread is kept from sleeping: each look at the rings finds one sample or none.
#[test]
fn looking_at_the_rings_allocates_nothing() {
    // In one function nearly all the time, and in few others else.
    let target = Program(Command::new("sha256sum").arg("/dev/zero").stdout(Stdio::null()).spawn().unwrap());
    let spec = match choose(EventChoice::CpuClock, Scope::User, perf_max_sample_rate().min(4999), false) {
        Ok(choice) => choice.spec,
        Err(error) => return eprintln!("nothing is counted: {error}"),
    };
    let budget = Budget::default();
    let (events, sorter) = EventSet::new(spec, EventLayout::Threads, budget.rings, &mut Vec::new()).unwrap();
    let (batches, full) = bounded(16);
    let (returned, empty) = bounded(16);
    for _ in 0..16 {
        let (items, frames) = (Vec::with_capacity(512), Vec::with_capacity(2048));
        returned.send(Batch { items, frames, ..Batch::default() }).unwrap();
    }
    let (_command, commands) = bounded(1);
    let (wake, mut waker) = std::io::pipe().unwrap();
    waker.write_all(b"!").unwrap();
    let channels = Channels { batches, empty, commands, wake: wake.into(), watchdog: Arc::default() };
    let (interval, pace) = (Duration::from_secs(3600), RateController::at(spec.rate_hz, false));
    let mut sampler = Sampler::new(events, sorter, channels, interval, None, &budget, pace).unwrap();
    sampler.attach(&[target.0.id()], false).unwrap();
    let mut schedule = sampler.begin();
    let (mut received, mut turns) = (0, 0u64);
    // Takes turns in this thread, so that what is counted is of these turns alone.
    let mut until = |samples: u64| {
        while received < samples {
            assert!(sampler.turn(&mut schedule), "the target has ended");
            turns += 1;
            if let Ok(mut batch) = full.try_recv() {
                received = batch.counts.samples.received;
                batch.clear();
                let _ = returned.try_send(batch);
            }
        }
        (ALLOCATIONS.get(), turns)
    };
    let begun = ALLOCATIONS.get();
    let first = until(300);
    assert!(first.0 - begun > 20, "{first:?}: nothing is counted");
    // An interrupt or a long window may allocate once: one window without, or with very many looks, is enough.
    let is_little = |(allocated, turns): (u64, u64)| allocated < 50 || allocated.saturating_mul(500) < turns;
    let mut before = first;
    let mut windows = Vec::new();
    while windows.len() < 5 && !windows.last().is_some_and(|&window| is_little(window)) {
        let after = until(800 + windows.len() as u64 * 500);
        windows.push((after.0 - before.0, after.1 - before.1));
        before = after;
    }
    assert!(windows.last().is_some_and(|&window| is_little(window) && window.1 > 100), "{windows:?}");
}
