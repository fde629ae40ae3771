//! What the records of the rings change: the process table, and the batch that is being filled.
//!
//! Samples are unwound here, and mappings, forks and names entered, in the order in which they happened.

mod followed;
mod handing_on;

use std::sync::Arc;

use ccsd_profile::MAX_SESSION_CRASHES;
use hashbrown::{HashMap, HashSet};

use super::doubts::Doubts;
use super::throttling::Throttling;
use crate::batch::{Batch, Counts, Death, Item, MAX_METRICS};
use crate::budget::Budget;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::Layout;
use crate::perf::record::{Change, Record, Sample};
use crate::process::filter::Filter;
use crate::process::images::Images;
use crate::process::owner::Owner;
use crate::process::{NEVER, ProcessTable};
use crate::seldom::Seldom;
use crate::unwind::{Frame, Root, StackUnwinder, Target, Unwound};
use handing_on::announce;

/// Longest time from the point in `clone(2)` where events are inherited to the record that tells of it; a fork takes
/// some 100 us.
pub const FORK_NS: u64 = 5_000_000;

/// Events that take, or have taken, the place of others.
pub struct Next {
    /// From when on; [`NEVER`](crate::process::NEVER) as long as they are being prepared.
    pub at: u64,
    /// Attributes.
    pub spec: EventSpec,
    /// Threads on which they were opened while these may have inherited them already.
    pub doubts: Doubts,
}

/// What handling a record touches: apart from the rings, so that both can be borrowed.
pub struct State {
    pub table: ProcessTable,
    /// Whose processes are followed, and no others. `None` for everybody's.
    owner: Option<Owner>,
    /// What a process must fit. `None` where all are kept.
    filter: Option<Arc<dyn Filter>>,
    /// Processes that are withheld until the filter has judged them.
    unjudged: HashSet<u32>,
    judging: Seldom,
    /// When all processes are judged anew: no record tells of another user or control group.
    review_at: u64,
    pub images: Images,
    announced_images: usize,
    pub unwinder: StackUnwinder,
    frames: Vec<Frame>,
    /// Frames of the threads' stacks that are remembered; too many by those of ended threads, until it is counted anew.
    pub remembered: usize,
    /// The most that it may be; by default that is ten stacks of 100,000.
    most_remembered: usize,
    pub batch: Batch,
    /// The largest that it may grow while the aggregator is busy, bytes. By default, at depth 24 and 999 Hz, that is 40 s of
    /// one CPU.
    most_batch: usize,
    pub counts: Counts,
    metrics: usize,
    /// Whether samples weigh what is read with them.
    by_tick: bool,
    inherit: bool,
    layout: Layout,
    /// A child that is still ccsd, and no target before it has called `execve`. (Events on threads wait for that
    /// themselves.)
    pub waiting_child: Option<u32>,
    period: u64,
    /// How often the events have been replaced by others of another rate, and the next ones, until a sample of them comes.
    generation: u32,
    pub next: Option<Next>,
    throttling: Throttling,
    /// Threads that were opened while they may already have inherited events.
    pub doubts: Doubts,
    /// Events found to sample what others sample, too. They are closed after the round.
    pub redundant: Vec<u64>,
    /// Threads that a record said were forked by a traced thread: which, and when. Only while attaching.
    pub forked: HashMap<u32, (u32, u64)>,
    pub scanning: bool,
    pub queue_full: bool,
    /// Records about mappings, forks or names were lost since the processes were last looked at.
    pub tracking_lost: bool,
    reread: Seldom,
    /// Samples that records of the rings say were lost. (What the events say of the same, and of more, is in the counts.)
    lost_by_records: u64,
    /// Processes that signals have killed.
    deaths: usize,
    /// One has just been: somebody will want to know at once.
    pub died: bool,
    /// CPU ticks, user and system, of the processes that were there at the beginning.
    pub cpu_before: HashMap<u32, (u64, u64)>,
    /// User time and all time of the target, in the same unit, as last known.
    pub user_share: Option<(u64, u64)>,
}

impl State {
    /// Nothing has happened yet. There are so many rings.
    pub fn new(spec: &EventSpec, layout: Layout, rings: usize, owner: Option<Owner>, budget: &Budget) -> State {
        // Where samples have one weight, no values of counters are kept.
        let by_tick = matches!(spec.event, Event::Tick { .. });
        let rings = if by_tick || spec.metrics() > 1 { rings } else { 0 };
        let table = ProcessTable::within(budget.live, rings);
        let metrics = spec.metrics();
        let period = period_of(spec);
        State {
            table: if owner.is_some() { table.restricted() } else { table },
            owner,
            filter: None,
            unjudged: HashSet::new(),
            judging: Seldom::default(),
            review_at: 0,
            images: Images::within(budget.images).of(owner),
            announced_images: 0,
            unwinder: StackUnwinder::within(budget.unwind_tables, budget.unwind_rules),
            frames: Vec::new(),
            remembered: 0,
            most_remembered: budget.stack_frames,
            batch: Batch::default(),
            most_batch: budget.batch,
            counts: Counts::default(),
            metrics,
            by_tick,
            inherit: spec.inherit,
            layout,
            waiting_child: None,
            period,
            generation: 0,
            next: None,
            throttling: Throttling::default(),
            doubts: Doubts::default(),
            redundant: Vec::new(),
            forked: HashMap::new(),
            scanning: false,
            queue_full: false,
            tracking_lost: false,
            reread: Seldom::default(),
            lost_by_records: 0,
            deaths: 0,
            died: false,
            cpu_before: HashMap::new(),
            user_share: None,
        }
    }

    /// Tells the aggregator which threads are no more.
    fn tell_ended(&mut self) {
        self.batch.items.extend(self.table.take_ended().map(Item::ThreadEnd));
    }

    /// The events say that so many samples were lost. A record tells of the same, but not before the next one that finds room
    /// in its ring: of what is lost last, never.
    pub fn told_lost(&mut self, lost: u64) {
        if lost > self.counts.lost {
            self.counts.lost = lost;
            self.tracking_lost |= self.layout == Layout::Compact;
        }
    }

    /// Samples that throttling has kept back.
    pub fn throttled(&self) -> u64 {
        self.throttling.samples()
    }

    /// Whether what threads start is followed.
    pub fn inherits(&self) -> bool {
        self.inherit
    }

    /// Other events are being prepared. What is told of forks and exits meanwhile is told of them, too.
    pub fn expect(&mut self, next: Next) {
        // There is none that waits: those rings have been read since.
        self.begin_next();
        self.next = Some(next);
    }

    #[cold]
    fn begin_next(&mut self) {
        if let Some(Next { at, spec, doubts }) = self.next.take() {
            // Those were throttled at their own rate.
            self.throttling.end_all(at, self.period);
            self.generation = self.generation.wrapping_add(1);
            self.period = period_of(&spec);
            self.doubts = doubts;
        }
    }

    pub fn handle(&mut self, ring: usize, record: Record<'_>) {
        if let (Some(next), Record::Sample(sample)) = (&self.next, &record)
            && sample.time >= next.at
        {
            self.begin_next();
        }
        match record {
            Record::Sample(sample) if self.is_foreign(sample.pid, sample.tid) => self.counts.others += 1,
            Record::Sample(sample) => self.sample(ring, &sample, None),
            Record::Fatal { sample, signal, code } => self.fatal(ring, &sample, (signal, code)),
            Record::Change { change, .. } if self.is_about_others(&change) => {}
            Record::Change { time, change, .. } => {
                let is_beside = self.layout == Layout::Compact && !matches!(change, Change::Lost { .. });
                self.counts.beside_samples += u64::from(is_beside);
                self.change(ring, time, change);
            }
            Record::Other => {}
            Record::Malformed => self.counts.malformed += 1,
        }
    }

    /// Whether a thread is not the target's. Only where whole CPUs are observed are there others.
    #[inline]
    fn is_foreign(&self, pid: u32, tid: u32) -> bool {
        if self.layout != Layout::Cpus {
            return false;
        }
        let known = if self.inherit { self.table.knows_process(pid) } else { self.table.knows_thread(tid) };
        !known || self.waiting_child == Some(pid)
    }

    /// Whether a record tells of what is not the target's. (A process is the target's from the fork on.)
    fn is_about_others(&self, change: &Change) -> bool {
        match change {
            Change::Mmap(mmap) => self.is_foreign_process(mmap.pid),
            Change::Fork { parent_pid, .. } => self.is_foreign_process(*parent_pid),
            Change::Exit { pid, .. } | Change::Comm { pid, .. } => self.is_foreign_process(*pid),
            Change::Lost { .. } | Change::Throttle { .. } => false,
        }
    }

    fn is_foreign_process(&self, pid: u32) -> bool {
        self.layout == Layout::Cpus && !self.table.knows_process(pid)
    }

    /// A signal has killed a process, of the target or any other.
    #[cold]
    fn fatal(&mut self, ring: usize, sample: &Sample<'_>, signal: (u32, i32)) {
        let known = match self.inherit {
            true => self.table.knows_process(sample.pid),
            false => self.table.knows_thread(sample.tid),
        };
        if known && self.waiting_child != Some(sample.pid) {
            self.died |= self.deaths < MAX_SESSION_CRASHES;
            self.deaths += 1;
            self.sample(ring, sample, Some(signal));
        }
    }

    /// A sample or, with a signal, the stack of a thread that dies of it.
    #[inline]
    fn sample(&mut self, ring: usize, sample: &Sample<'_>, fatal: Option<(u32, i32)>) {
        if fatal.is_none()
            && let Some(redundant) = self.doubts.redundant(sample.tid, ring, sample.id)
        {
            if self.redundant.last() != Some(&redundant) {
                self.redundant.push(redundant);
            }
            return;
        }
        if self.batch.bytes() >= self.most_batch {
            self.counts.dropped += 1;
            self.counts.dropped_by_queue += 1;
            return;
        }
        if self.is_restricted() && !self.table.knows_process(sample.pid) {
            // That it was forked was not told, so neither is by whom.
            self.withhold(sample.pid);
            return;
        }
        let Some((thread, process)) = self.table.thread(sample.pid, sample.tid, &mut self.images) else {
            // A thread that is in no process: nothing to charge it to.
            self.counts.dropped += 1;
            return;
        };
        if sample.time < process.permitted_from {
            // What it has used until now is not the next sample's.
            thread.group_values.begin(self.generation);
            if let Some(value) = sample.group_value {
                let _ = thread.group_values.advance(ring, value);
            }
            self.count_withheld();
            return;
        }
        self.counts.received += u64::from(fatal.is_none());
        self.counts.in_kernel += u64::from(fatal.is_none() && !sample.kernel_chain.is_empty());
        let mut weights = [0; MAX_METRICS];
        thread.group_values.begin(self.generation);
        // Each thread has a counter of its own: what one of many has gained is not known.
        let value = sample.group_value.filter(|_| !thread.is_others);
        let gained = value.map_or(0, |value| thread.group_values.advance(ring, value));
        match self.metrics {
            // By the tick: what the thread has run since the last one.
            1 if self.by_tick => weights[0] = gained,
            1 => weights[0] = sample.period,
            _ => (weights[0], weights[1]) = (sample.period, gained),
        }
        let room = self.remembered < self.most_remembered && !thread.is_others;
        let remembered = thread.shadow.remembered();
        let target =
            Target { mappings: &mut process.mappings, goroutines: &mut process.goroutines, images: &self.images };
        let shadow = &mut thread.shadow;
        let unwound = self.unwinder.unwind(sample, target, shadow, room, &mut self.frames);
        let Unwound { root, common, mut gap } = unwound;
        if fatal.is_some() && sample.stack.is_empty() && matches!(root, Root::Truncated(_)) && gap.is_none() {
            let (mappings, images) = (&mut process.mappings, &self.images);
            gap = self.unwinder.follow_pointers(sample, mappings, images, &mut self.frames);
        }
        self.remembered = (self.remembered + thread.shadow.remembered()).saturating_sub(remembered);
        // That threads which are not followed share one stack is counted as that.
        self.counts.cut_memories += u64::from(common.few && !thread.is_others);

        let items = &mut self.batch.items;
        for index in self.images.take_reopened() {
            if let Some(image) = self.images.get(index).filter(|image| image.elf.is_some()) {
                items.push(Item::ImageReopened(index, image.clone()));
            }
        }
        if self.announced_images < self.images.len() || self.images.jit.has_events() {
            announce(&mut self.images, &mut self.announced_images, items);
        }
        if !process.announced {
            process.announced = true;
            items.push(Item::Process {
                key: process.key,
                parent: process.parent,
                pid: sample.pid,
                start_time: process.start_time,
                exec_generation: process.exec_generation,
                name: process.name.clone(),
            });
        }
        if !thread.announced {
            thread.announced = true;
            items.push(Item::Thread {
                key: thread.key,
                process: process.key,
                tid: if thread.is_others { 0 } else { sample.tid },
                name: thread.name.clone(),
            });
        }
        self.batch.frames.extend_from_slice(&self.frames);
        // MAX_FRAMES and the kernel's chain limit are far below 2^32.
        let frames = self.frames.len() as u32;
        let (key, time) = (thread.key, sample.time);
        let Some((signal, code)) = fatal else {
            items.push(Item::Sample { thread: key, time, frames, common, gap, root, weights });
            return;
        };
        let (process, thread) = (process.name.clone(), thread.name.clone());
        let death = Box::new(Death { pid: sample.pid, tid: sample.tid, process, thread, signal, code });
        items.push(Item::Crash { death, thread: key, time, frames, common, gap, root });
    }

    fn change(&mut self, ring: usize, time: u64, change: Change) {
        match change {
            // Mapped anew when it is permitted.
            Change::Mmap(mmap) if self.table.is_withheld(mmap.pid, time) => {}
            Change::Mmap(mmap) => self.table.mmap(&mmap, &mut self.images),
            // Without inheritance there is no event on the new one, and no record will tell of its end.
            Change::Fork { .. } if !self.inherit => {}
            Change::Fork { pid, tid, parent_pid, parent_tid } => {
                if self.scanning {
                    self.forked.insert(tid, (parent_tid, time));
                }
                // It has inherited from all of its parent's events, and its own children will from all of its.
                self.doubts.fork(tid, parent_tid);
                // Those that have yet to sample, as well.
                if let Some(next) = &mut self.next {
                    next.doubts.fork(tid, parent_tid);
                }
                self.table.fork(pid, tid, parent_pid, parent_tid, time);
            }
            Change::Exit { pid, tid } => {
                self.counts.ended_threads += 1;
                self.counts.ended_unsampled += u64::from(self.table.is_unsampled(tid));
                self.table.exit(pid, tid);
                self.doubts.exit(tid);
                if let Some(next) = &mut self.next {
                    next.doubts.exit(tid);
                }
            }
            Change::Comm { pid, tid, exec: true, name } => {
                self.waiting_child = self.waiting_child.filter(|&child| child != pid);
                self.table.exec(pid, tid, &name);
                if self.filter.is_some() {
                    self.table.permit(pid, NEVER);
                    self.unjudged.insert(pid);
                }
            }
            Change::Comm { pid, tid, exec: false, name } => {
                if pid == tid {
                    self.judge_name(pid, &name);
                }
                if let Some((thread, process)) = self.table.rename(pid, tid, &name)
                    && thread.announced
                    // The name under which its samples were kept stays.
                    && process.permitted_from != NEVER
                {
                    let process = (pid == tid && process.announced).then_some(process.key);
                    self.batch.items.push(Item::ThreadName { key: thread.key, process, name });
                }
            }
            // Even rings carry samples, odd ones everything else; see `EventSet`.
            Change::Lost { count } if ring.is_multiple_of(2) => {
                self.lost_by_records = self.lost_by_records.saturating_add(count);
                self.counts.lost = self.counts.lost.max(self.lost_by_records);
                self.tracking_lost |= self.layout == Layout::Compact;
            }
            Change::Lost { count } => {
                self.counts.lost_tracking += count;
                self.tracking_lost = true;
            }
            Change::Throttle { stopped: true, stream } => {
                self.counts.throttle_events += 1;
                self.throttling.stop(stream, time);
            }
            Change::Throttle { stopped: false, stream } => {
                self.throttling.go_on(stream, time, self.period);
            }
        }
    }
}

/// Nanoseconds between two samples; 0 where it is cycles that are counted.
fn period_of(spec: &EventSpec) -> u64 {
    if matches!(spec.event, Event::Cycles { .. }) { 0 } else { spec.period_ns() }
}

// A root is part of every sample item; if it grew, batches would.
const _: () = assert!(size_of::<Root>() <= 2);
