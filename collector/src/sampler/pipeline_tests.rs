//! Records go through a pipeline that no kernel feeds.

use std::collections::HashSet;
use std::fs::File;
use std::sync::{Arc, Mutex};

use ccsd_profile::view::{FlatView, Selection};
use ccsd_profile::{Metric, Process, Profile, SessionInfo, Shed, Unit};
use crossbeam_channel::bounded;

use super::*;
use crate::aggregator::Aggregator;
use crate::batch::{Batch, BatchCounts, BatchItem, Mark};
use crate::perf::record::{Fork, Mmap};
use crate::perf::ring_buffer::Bytes;
use crate::process::filter::ProcessFilter;
use crate::session_event::{Held, SessionEvent};
use crate::watchdog::Watchdog;

const SPEC: EventSpec = EventSpec::CLOCK;

/// A sample of a process's main thread without registers.
fn sample(pid: u32, time: u64, kernel_chain: Bytes<'_>) -> Sample<'_> {
    let no = || Bytes::new(&[]);
    Sample {
        id: 1,
        pid,
        tid: pid,
        time,
        period: SPEC.period_ns(),
        group_value: None,
        kernel_chain,
        user_chain: no(),
        regs: None,
        has_user_state: false,
        stack: no(),
        stack_full: false,
    }
}

/// A process that has ended.
const ENDED: u32 = u32::MAX - 9;

fn mapped(pid: u32) -> Mmap {
    let (start, len, prot) = (0x1000, 0x1000, libc::PROT_EXEC as u32);
    Mmap { pid, start, len, file_offset: 0, device: (0, 0), inode: 0, build_id: Vec::new(), prot, path: b"x".to_vec() }
}

/// Keeps the processes of a set, and names that begin with `a`.
#[derive(Debug, Default)]
struct These(Mutex<HashSet<u32>>);

impl These {
    fn set(&self, pids: &[u32]) {
        *self.0.lock().unwrap() = pids.iter().copied().collect();
    }
}

impl ProcessFilter for These {
    fn keeps(&self, pid: u32) -> Option<bool> {
        (pid != ENDED).then(|| self.0.lock().unwrap().contains(&pid))
    }

    fn keeps_name(&self, name: &str) -> bool {
        name.starts_with('a')
    }
}

struct Filtered {
    pipeline: Pipeline,
    these: Arc<These>,
    time: u64,
}

impl Filtered {
    fn new() -> Filtered {
        Filtered::with(EventLayout::Threads)
    }

    fn with(layout: EventLayout) -> Filtered {
        let mut pipeline = Pipeline::new(&SPEC, layout, 2, None, &Budget::of(Budget::MIN_MEMORY));
        let these = Arc::new(These::default());
        these.set(&[own_pid()]);
        pipeline.tracker.keep_only(Some(Arc::<These>::clone(&these)));
        let mut filtered = Filtered { pipeline, these, time: 0 };
        filtered.pipeline.tracker.enter(own_pid()).unwrap();
        filtered.time = now_ns() + 1;
        filtered
    }

    fn tell(&mut self, change: TargetChange) {
        self.time += 1;
        self.pipeline.handle(1, Record::Change { time: self.time, id: 0, change });
    }

    fn keeps(&mut self, pid: u32) -> bool {
        self.time = self.time.max(now_ns()) + 1;
        let received = self.pipeline.samples.received;
        let sample = sample(pid, self.time, Bytes::new(&[]));
        self.pipeline.handle(0, Record::Sample(sample));
        self.pipeline.samples.received > received
    }

    fn judge(&mut self, all: bool) {
        self.pipeline.tracker.set_next_review(if all { 0 } else { u64::MAX });
        self.pipeline.tracker.judge(now_ns());
    }
}

fn own_pid() -> u32 {
    std::process::id()
}

fn comm(pid: u32, exec: bool, name: &str) -> TargetChange {
    TargetChange::Comm { pid, tid: pid, exec, name: name.to_owned() }
}

#[test]
fn a_process_is_judged_at_exec_before_its_samples_are_kept() {
    let own = own_pid();
    let mut filtered = Filtered::new();
    assert!(filtered.keeps(own));
    filtered.tell(comm(own, true, "other"));
    assert!(!filtered.keeps(own), "until it is judged");
    filtered.judge(false);
    assert!(filtered.keeps(own));
    filtered.these.set(&[]);
    filtered.tell(comm(own, true, "third"));
    assert!(!filtered.keeps(own), "until it is judged");
    let counts = filtered.pipeline.counts();
    assert_eq!((counts.tracker.unjudged, counts.tracker.unjudged_own), (2, 1), "the first was its own");
    filtered.judge(true);
    assert!(!filtered.keeps(own));
    let counts = filtered.pipeline.counts();
    let BatchCounts { samples, tracker, .. } = counts;
    assert_eq!((samples.received, tracker.filtered, tracker.others, tracker.withheld), (2, 3, 3, 0));
    assert_eq!((tracker.unjudged, tracker.unjudged_own), (1, 1), "the second was not");
    assert_eq!((counts.judged().own, counts.judged().all), (3, 5));
}

#[test]
fn samples_of_what_ends_before_it_is_judged_are_nobodys() {
    let (own, child) = (own_pid(), ENDED);
    let mut filtered = Filtered::new();
    filtered.tell(comm(own, true, "other"));
    filtered.tell(TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: own, parent_tid: own }));
    assert!(!filtered.keeps(child) && !filtered.keeps(own), "it is not known what its parent is");
    filtered.tell(TargetChange::Exit { pid: child, tid: child });
    filtered.judge(false);
    assert!(filtered.keeps(own));
    let counts = filtered.pipeline.counts();
    assert_eq!((counts.tracker.unjudged, counts.tracker.unjudged_own), (2, 1));
    assert_eq!((counts.judged().own, counts.judged().all), (2, 3));
}

#[test]
fn another_name_counts_from_its_record_on() {
    let own = own_pid();
    let mut filtered = Filtered::new();
    filtered.tell(comm(own, false, "b"));
    assert!(!filtered.keeps(own));
    filtered.judge(false);
    assert!(!filtered.keeps(own));
    filtered.tell(comm(own, false, "a2"));
    filtered.judge(false);
    assert!(filtered.keeps(own));
    filtered.tell(TargetChange::Comm { pid: own, tid: own + 1, exec: false, name: "b".to_owned() });
    assert!(filtered.keeps(own));
}

#[test]
fn processes_without_records_are_found_at_the_next_scan() {
    let (own, child) = (own_pid(), u32::MAX - 7);
    let mut filtered = Filtered::new();
    filtered.tell(TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: own, parent_tid: own }));
    assert!(filtered.keeps(child), "it is what its parent is");
    filtered.judge(true);
    assert!(filtered.keeps(own) && !filtered.keeps(child));
    filtered.these.set(&[child]);
    filtered.judge(true);
    assert!(!filtered.keeps(own) && filtered.keeps(child));
    // Its children belong to it; the other process is unknown.
    filtered.tell(TargetChange::Fork(Fork { pid: child + 1, tid: child + 1, parent_pid: own, parent_tid: own }));
    assert!(!filtered.keeps(child + 1) && !filtered.keeps(child + 2));
}

#[test]
fn what_is_at_its_very_end_has_no_number() {
    let own = own_pid();
    let (batches, taken) = bounded(2);
    let (_returned, empty) = bounded(2);
    let (_told, commands) = bounded(1);
    let wake = File::open("/dev/null").unwrap().into();
    let channels = Channels { batches, empty, commands, wake, watchdog: Arc::new(Watchdog::default()) };
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Threads, 2, None, &Budget::of(Budget::MIN_MEMORY));
    for (time, pid) in [(1, own), (2, u32::MAX)] {
        let sample = Sample { tid: u32::MAX, ..sample(pid, time, Bytes::new(&[])) };
        pipeline.handle(0, Record::Sample(sample));
    }
    pipeline.send(&channels, true);
    let (mut processes, mut threads) = (Vec::new(), Vec::new());
    for item in taken.try_iter().flat_map(|batch| batch.items) {
        match item {
            BatchItem::Process { pid, exec_generation, name, .. } if pid != own => {
                processes.push(Process { exec_generation, ..Process::new(pid, 0, name) }.label());
            }
            BatchItem::Thread { tid, name, .. } => threads.push((tid, name)),
            _ => {}
        }
    }
    assert_eq!(processes, ["[ended] (many)"]);
    assert_eq!(threads, [(0, "[ended]".to_owned()), (0, "[ended]".to_owned())]);
}

/// A process that goes on until its input ends.
fn going_on() -> std::process::Child {
    std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_program_that_execve_has_killed_is_gone() {
    let (own, child) = (own_pid(), u32::MAX - 7);
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Cpus, 2, None, &Budget::of(Budget::MIN_MEMORY));
    pipeline.tracker.enter(own).unwrap();
    for change in [
        TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: own, parent_tid: own }),
        comm(child, true, "bad"),
        TargetChange::Exit { pid: child, tid: child },
    ] {
        pipeline.handle(1, Record::Change { time: now_ns(), id: 0, change });
    }
    // Until it is looked at, it may be one with other rights.
    assert!(pipeline.tracker.is_known(child, child));
    pipeline.tracker.forget_ended();
    assert!(!pipeline.tracker.is_known(child, child));
    assert_eq!(pipeline.counts().tracker.gained_rights, 0);
}

/// Records of a program that gets other rights when it is executed: the kernel writes that it ended, and it goes on.
#[test]
fn a_program_that_gets_other_rights_goes_on_where_cpus_are_sampled() {
    let mut running = going_on();
    let (parent, child) = (own_pid(), running.id());
    let exit = || TargetChange::Exit { pid: child, tid: child };
    for layout in [EventLayout::Cpus, EventLayout::Threads] {
        let mut pipeline = Pipeline::new(&SPEC, layout, 2, None, &Budget::of(Budget::MIN_MEMORY));
        pipeline.tracker.enter(parent).unwrap();
        let mut time = now_ns();
        let mut tell = |pipeline: &mut Pipeline, change| {
            time += 1;
            pipeline.handle(1, Record::Change { time, id: 0, change });
        };
        tell(
            &mut pipeline,
            TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: parent, parent_tid: parent }),
        );
        tell(&mut pipeline, comm(child, true, "suid"));
        tell(&mut pipeline, exit());
        let goes_on = layout == EventLayout::Cpus;
        assert_eq!(pipeline.tracker.is_known(child, child), goes_on);
        assert_eq!(pipeline.counts().tracker.gained_rights, u64::from(!goes_on));
        tell(&mut pipeline, exit());
        assert!(!pipeline.tracker.is_known(child, child), "this time it has ended");
        // An ordinary program has mapped something before it ends.
        tell(
            &mut pipeline,
            TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: parent, parent_tid: parent }),
        );
        tell(&mut pipeline, comm(child, true, "plain"));
        tell(&mut pipeline, TargetChange::Mmap(mapped(child)));
        tell(&mut pipeline, exit());
        assert!(!pipeline.tracker.is_known(child, child));
        assert_eq!(pipeline.counts().tracker.gained_rights, u64::from(!goes_on));
    }
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn a_program_that_gets_other_rights_is_not_followed_for_a_user_or_a_rule() {
    let mut filtered = Filtered::with(EventLayout::Cpus);
    let mut running = going_on();
    let (own, child) = (own_pid(), running.id());
    filtered.tell(TargetChange::Fork(Fork { pid: child, tid: child, parent_pid: own, parent_tid: own }));
    filtered.tell(comm(child, true, "a"));
    filtered.tell(TargetChange::Exit { pid: child, tid: child });
    assert!(!filtered.pipeline.tracker.is_known(child, child));
    assert_eq!(filtered.pipeline.counts().tracker.gained_rights, 1);
    drop(running.stdin.take());
    running.wait().unwrap();
}

/// The aggregator does not come to take anything for 20,000 samples, where a few thousand have room.
#[test]
fn samples_that_the_queue_has_no_room_for_are_dropped_and_counted() {
    const SAMPLES: u64 = 20_000;
    let budget = Budget::of(Budget::MIN_MEMORY);
    let (batches, taken) = bounded(2);
    let (_returned, empty) = bounded(2);
    let (_told, commands) = bounded(1);
    let wake = File::open("/dev/null").unwrap().into();
    let watchdog = Arc::new(Watchdog::default());
    let channels = Channels { batches, empty, commands, wake, watchdog: Arc::clone(&watchdog) };
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Threads, 2, None, &budget);
    let pid = std::process::id();
    let chain: Vec<u8> = (0..20u64).flat_map(|i| (0xffff_ffff_8100_0000 + i * 16).to_le_bytes()).collect();
    for time in 1..=SAMPLES {
        pipeline.handle(0, Record::Sample(sample(pid, time, Bytes::new(&chain))));
        if pipeline.batch.is_large() {
            pipeline.send(&channels, false);
        }
        assert!(pipeline.batch.bytes() <= budget.batch + (8 << 10), "{}", pipeline.batch.bytes());
    }
    let counts = pipeline.counts().samples;
    assert!(counts.dropped_by_queue > SAMPLES / 4 && counts.received > 200, "{counts:?}");
    assert_eq!((counts.dropped, counts.received + counts.dropped), (counts.dropped_by_queue, SAMPLES));
    // Of those that had room none is lost, and the profile says how many are missing.
    let (forward, received) = bounded(8);
    taken.try_iter().for_each(|batch| forward.send(batch).unwrap());
    pipeline.batch.mark(Mark::End);
    pipeline.send(&channels, true);
    taken.try_iter().for_each(|batch| forward.send(batch).unwrap());
    let metrics = vec![Metric { name: "cpu-clock".into(), unit: Unit::Nanoseconds }];
    let profile = Profile::new(SessionInfo { metrics, ..SessionInfo::default() }, budget.profile.clone());
    let (events, told) = bounded(8);
    let aggregator = Aggregator::new(profile, SPEC, EventLayout::Threads, true, &budget);
    aggregator.run(&received, &bounded(8).0, &events, &watchdog, &Held::new(0));
    let finished = told.try_iter().find_map(|event| match event {
        SessionEvent::Finished(profile) => Some(profile),
        _ => None,
    });
    let profile = finished.expect("the end was told");
    let accounting = profile.accounting();
    assert_eq!((accounting.received, accounting.dropped_by_us), (counts.received, counts.dropped));
    assert_eq!(accounting.shed.get(Shed::Queue), counts.dropped);
    let total = FlatView::new(&profile, &Selection::all()).total;
    assert_eq!((total.samples, total.weight), (counts.received, counts.received * SPEC.period_ns()));
}

#[test]
fn one_user_s_stacks_leave_room_for_others_where_much_waits() {
    let budget = Budget::of(Budget::MIN_MEMORY);
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Threads, 2, None, &budget);
    let chain: Vec<u8> = (0..20u64).flat_map(|i| (0xffff_ffff_8100_0000 + i * 16).to_le_bytes()).collect();
    let mut time = 0;
    let mut received = |pipeline: &mut Pipeline, pid: u32, samples: u64| {
        let before = pipeline.counts().samples.received;
        for _ in 0..samples {
            time += 1;
            pipeline.handle(0, Record::Sample(sample(pid, time, Bytes::new(&chain))));
        }
        pipeline.counts().samples.received - before
    };
    // Whose a process was that is no more is not known.
    let others = received(&mut pipeline, u32::MAX - 30_000, 20_000);
    assert!(others > 50 && pipeline.counts().samples.dropped_by_queue == 20_000 - others, "{others}");
    assert_eq!(received(&mut pipeline, own_pid(), others), others);
    let batch = pipeline.batch.take(BatchCounts::default(), Batch::default());
    let notes = batch.items.iter().filter(|item| matches!(item, BatchItem::Note(note) if note.contains("dropped")));
    assert_eq!(notes.count(), 1);
    pipeline.batch.was_taken();
    assert_eq!(received(&mut pipeline, u32::MAX - 30_000, others), others);
}

/// What the pipeline would send of processes: whether it is known what each belongs to.
fn memberships_told(pipeline: &mut Pipeline) -> Vec<bool> {
    let batch = pipeline.batch.take(BatchCounts::default(), Batch::default());
    let told = |item: &BatchItem| match item {
        BatchItem::Process { membership, .. } => Some(membership.is_some()),
        _ => None,
    };
    batch.items.iter().filter_map(told).collect()
}

#[test]
fn a_process_whose_fork_was_lost_belongs_to_its_user_all_the_same() {
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Cpus, 2, None, &Budget::of(Budget::MIN_MEMORY));
    pipeline.tracker.observe_machine();
    let mut running = going_on();
    pipeline.handle(0, Record::Sample(sample(running.id(), now_ns(), Bytes::new(&[]))));
    assert_eq!(memberships_told(&mut pipeline), [true]);
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn who_has_the_number_of_a_process_whose_end_was_lost_is_another() {
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Cpus, 2, None, &Budget::of(Budget::MIN_MEMORY));
    pipeline.tracker.observe_machine();
    let mut running = going_on();
    let (parent, pid) = (own_pid(), running.id());
    pipeline.tracker.enter(parent).unwrap();
    // It began a second after the machine, long before the one that runs.
    let fork = TargetChange::Fork(Fork { pid, tid: pid, parent_pid: parent, parent_tid: parent });
    pipeline.handle(1, Record::Change { time: 1_000_000_000, id: 0, change: fork });
    pipeline.handle(0, Record::Sample(sample(pid, now_ns(), Bytes::new(&[]))));
    assert_eq!(memberships_told(&mut pipeline).len(), 1);
    pipeline.tracker.records_were_lost();
    pipeline.tracker.read_missed(true);
    pipeline.handle(0, Record::Sample(sample(pid, now_ns(), Bytes::new(&[]))));
    assert_eq!(memberships_told(&mut pipeline), [true]);
    drop(running.stdin.take());
    running.wait().unwrap();
}

#[test]
fn a_thread_has_one_new_name_a_batch_however_often_it_changes_it() {
    let mut pipeline = Pipeline::new(&SPEC, EventLayout::Threads, 2, None, &Budget::of(Budget::MIN_MEMORY));
    let pid = own_pid();
    pipeline.handle(0, Record::Sample(sample(pid, now_ns(), Bytes::new(&[]))));
    for round in 0..2 {
        for number in 0..10_000 {
            let change = comm(pid, false, &format!("{round} {number}"));
            pipeline.handle(1, Record::Change { time: now_ns(), id: 0, change });
        }
        let batch = pipeline.batch.take(BatchCounts::default(), Batch::default());
        let names = batch.items.iter().filter_map(|item| match item {
            BatchItem::ThreadName { name, process, .. } => Some((name.as_str(), process.is_some())),
            _ => None,
        });
        assert_eq!(names.collect::<Vec<_>>(), [(format!("{round} 9999").as_str(), true)]);
    }
}
