//! The batch being filled: what the aggregator is told, in order of time.

use ccsd_profile::own_names::of_program;
use ccsd_worker::Principal;

use crate::batch::{Batch, BatchCounts, BatchItem, Death, MAX_METRICS, Mark};
use crate::clock::now_ns;
use crate::pace::RateChange;
use crate::process::images::{ImageIndex, Images};
use crate::process::jit_code::JitEvent;
use crate::process::shared_room::SharedRoom;
use crate::process::{LiveProcess, LiveThread, OTHER_PROCESS, ThreadKey};
use crate::time_budget::Owner;
use crate::tracker::{ThreadRename, Tracker};
use crate::unmet_code::UnmetCode;
use crate::unwind::{Frame, Unwound};
use crate::unwinding::Unwinding;

/// A batch is handed on when it has grown to this, even in the middle of a round: 64 KiB of frames are some 150 stacks.
const BATCH_BYTES: usize = 64 << 10;
/// A smaller batch waits this long, nanoseconds, so that the aggregator wakes a few times a second.
const BATCH_NS: u64 = 200_000_000;

/// Users of whom a note says that their samples were dropped.
const MAX_NOTED: usize = 8;

/// The number that the kernel gives for a thread or process at its very end (`perf_event_pid` in kernel/events/core.c).
const ENDING: u32 = u32::MAX;

/// Tells the entry of processes that are at their very end from others without a number.
const ENDED_PROCESSES: u32 = u32::MAX - 2;

/// Whether a number is one of a single process or thread.
const fn is_numbered(id: u32) -> bool {
    id != ENDING && id != OTHER_PROCESS
}

pub struct BatchBuilder {
    batch: Batch,
    /// Limit while the aggregator is busy, bytes. By default 40 s of one CPU at depth 24 and 999 Hz.
    most_bytes: usize,
    /// Images that the aggregator knows.
    announced_images: usize,
    unmet: UnmetCode,
    /// Generated code that has ended since [`BatchBuilder::take_ended_code`].
    ended_code: Vec<ImageIndex>,
    queue_full: bool,
    /// Bytes of stacks by whose processes they are of.
    room: SharedRoom,
    /// Users of whom a note says that their samples were dropped.
    noted: Vec<Principal>,
    /// When the last batch was due, `CLOCK_MONOTONIC` nanoseconds.
    handed_on: u64,
}

impl BatchBuilder {
    /// Empty, and never larger than so many bytes and a stack.
    pub fn within(most_bytes: usize) -> BatchBuilder {
        BatchBuilder {
            batch: Batch::default(),
            most_bytes,
            announced_images: 0,
            unmet: UnmetCode::default(),
            ended_code: Vec::new(),
            queue_full: false,
            room: SharedRoom::new(most_bytes as u64),
            noted: Vec::new(),
            handed_on: 0,
        }
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.batch.bytes() >= self.most_bytes
    }

    /// For a session of this user's.
    pub fn set_user(&mut self, user: u32) {
        self.room.set_user(user);
    }

    /// Whether there is room for a stack of a process of this user, if that is known: where the aggregator is late, users leave
    /// each other room.
    #[inline]
    pub fn has_room(&self, owner: Owner) -> bool {
        owner.is_none_or(|owner| self.room.left(owner) > 0)
    }

    /// Says of whom samples are dropped, once for each of the first users.
    #[cold]
    pub fn note_dropped(&mut self, owner: Owner) {
        let Some(owner) = owner.filter(|owner| !self.noted.contains(owner) && self.noted.len() < MAX_NOTED) else {
            return;
        };
        self.noted.push(owner);
        let note = "come faster than ccsd adds them up: some are dropped, so that others' are not";
        self.note(match owner {
            Principal::Elsewhere { namespace: 0, .. } => format!("samples of processes of unknown users {note}"),
            owner => format!("samples of processes {owner} {note}"),
        });
    }

    /// Whether it is to be sent within a round. One that is marked waits for the round's end, when the counters are read.
    #[inline]
    pub fn is_large(&self) -> bool {
        self.batch.bytes() >= BATCH_BYTES && !self.queue_full && !self.is_marked()
    }

    /// Says that the batch is sent now, after a round, if it is marked or has waited long enough. Returns whether it is.
    pub fn take_due(&mut self) -> bool {
        let now = now_ns();
        let waited = now.saturating_sub(self.handed_on) >= BATCH_NS && !self.batch.items.is_empty();
        let due = self.is_marked() || waited;
        if due {
            self.handed_on = now;
        }
        due
    }

    /// Whether what was read waits to be taken: a batch that finds room is sent long before it is so large.
    pub fn is_behind(&self) -> bool {
        self.batch.bytes() > (self.most_bytes / 4).max(8 * BATCH_BYTES)
    }

    pub fn retry_queue(&mut self) {
        self.queue_full = false;
    }

    /// Whether it was marked and has not been sent since.
    pub fn is_marked(&self) -> bool {
        self.batch.mark != Mark::None
    }

    pub fn mark(&mut self, mark: Mark) {
        self.batch.mark = mark;
    }

    pub fn note(&mut self, note: String) {
        self.batch.items.push(BatchItem::Note(note));
    }

    /// Samples are taken at another rate, `at` nanoseconds since sampling began.
    pub fn announce_rate(&mut self, at: u64, change: RateChange) {
        self.batch.items.push(BatchItem::Rate { at, change });
    }

    /// Tells of images that are new or opened again, and of what has happened to generated code.
    #[inline]
    pub fn announce_images(&mut self, images: &mut Images) {
        for index in images.take_reopened() {
            if let Some(image) = images.get(index).filter(|image| image.elf.is_some()) {
                self.batch.items.push(BatchItem::ImageReopened(index, image.clone()));
            }
        }
        if self.announced_images < images.count() || images.jit.has_events() {
            self.announce_new(images);
        }
    }

    #[cold]
    fn announce_new(&mut self, images: &mut Images) {
        for index in self.announced_images..images.count() {
            if let Some(image) = images.get(ImageIndex(index as u32)) {
                self.batch.items.push(BatchItem::Image(image.clone()));
            }
        }
        self.announced_images = images.count();
        for event in images.jit.take_events() {
            if let JitEvent::End(index) = event {
                self.ended_code.push(index);
            }
            self.batch.items.extend(self.unmet.keep(event).map(BatchItem::Jit));
        }
    }

    /// The images of generated code of which it was announced since the last call that they are no more.
    pub fn take_ended_code(&mut self) -> Vec<ImageIndex> {
        std::mem::take(&mut self.ended_code)
    }

    pub fn close_image(&mut self, index: ImageIndex) {
        self.batch.items.push(BatchItem::ImageClosed(index));
    }

    /// Tells of a process and a thread that are about to have their first sample.
    #[inline]
    pub fn announce(&mut self, process: &mut LiveProcess, thread: &mut LiveThread, tid: u32) {
        if !process.announced {
            process.announced = true;
            self.batch.items.push(BatchItem::Process {
                key: process.key,
                parent: process.parent,
                // What stands for many processes has no number.
                pid: if is_numbered(thread.pid) { thread.pid } else { 0 },
                start_time: process.start_time,
                exec_generation: if thread.pid == ENDING { ENDED_PROCESSES } else { process.exec_generation },
                name: if is_numbered(thread.pid) {
                    of_program(&process.name).into_owned()
                } else {
                    process.name.clone()
                },
                membership: process.membership.clone(),
            });
        }
        if !thread.announced {
            thread.announced = true;
            let has_number = !thread.is_others && is_numbered(tid);
            let is_nameless = tid == ENDING && thread.name.is_empty();
            let name = match (is_nameless, has_number) {
                (true, _) => "[ended]".to_owned(),
                (false, true) => of_program(&thread.name).into_owned(),
                // It stands for several.
                (false, false) => thread.name.clone(),
            };
            self.batch.items.push(BatchItem::Thread {
                key: thread.key,
                process: process.key,
                tid: if has_number { tid } else { 0 },
                name,
            });
        }
    }

    /// Tells a thread's last name in this batch.
    pub fn rename(&mut self, renamed: ThreadRename) {
        let ThreadRename { thread: key, process, name } = renamed;
        let name = of_program(&name).into_owned();
        let Batch { items, renames, .. } = &mut self.batch;
        let known = renames.get(&key).and_then(|&at| items.get_mut(at));
        if let Some(BatchItem::ThreadName { name: last, .. }) = known {
            *last = name;
            return;
        }
        renames.insert(key, items.len());
        items.push(BatchItem::ThreadName { key, process, name });
    }

    /// Adds the ends of announced threads, and removes their and ended processes' unwinding state.
    pub fn end_threads(&mut self, tracker: &mut Tracker, unwinding: &mut Unwinding) {
        for thread in tracker.take_ended() {
            unwinding.remove_thread(thread);
            self.batch.items.push(BatchItem::ThreadEnd(thread));
        }
        for process in tracker.take_ended_processes() {
            unwinding.remove_process(process);
            self.batch.items.push(BatchItem::ProcessEnd(process));
        }
    }

    pub fn thread_time(&mut self, key: ThreadKey, ns: u64, is_whole: bool) {
        self.batch.items.push(BatchItem::ThreadTime { key, ns, is_whole });
    }

    #[inline]
    pub fn stack(
        &mut self,
        (thread, owner): (ThreadKey, Owner),
        time: u64,
        unwound: Unwound,
        frames: &[Frame],
        weights: [u64; MAX_METRICS],
    ) {
        self.charge(owner, frames);
        let (Unwound { root, common, gap }, frames) = (unwound, self.push_frames(frames));
        self.batch.items.push(BatchItem::Sample { thread, time, frames, common, gap, root, weights });
    }

    #[cold]
    pub fn crash(
        &mut self,
        (thread, owner): (ThreadKey, Owner),
        time: u64,
        unwound: Unwound,
        frames: &[Frame],
        death: Death,
    ) {
        self.charge(owner, frames);
        let (Unwound { root, common, gap }, frames) = (unwound, self.push_frames(frames));
        let death = Box::new(death);
        self.batch.items.push(BatchItem::Crash { death, thread, time, frames, common, gap, root });
    }

    #[inline]
    fn charge(&mut self, owner: Owner, frames: &[Frame]) {
        if let Some(owner) = owner {
            self.room.add(owner, (size_of::<BatchItem>() + size_of_val(frames)) as u64);
        }
    }

    #[inline]
    fn push_frames(&mut self, frames: &[Frame]) -> u32 {
        self.unmet.meet(frames, |event| self.batch.items.push(BatchItem::Jit(event)));
        self.batch.frames.extend_from_slice(frames);
        // MAX_FRAMES and the kernel's chain limit are far below 2^32.
        frames.len() as u32
    }

    /// The weights of the last stack by the metrics after the first [`MAX_METRICS`].
    pub fn further_weights(&mut self, weights: &[u64]) {
        self.batch.further_weights.extend_from_slice(weights);
    }

    /// Gives the batch away, with `counts`, and fills `next` from now on, which has been used before or is new.
    pub fn take(&mut self, counts: BatchCounts, mut next: Batch) -> Batch {
        self.batch.counts = counts;
        next.clear();
        std::mem::replace(&mut self.batch, next)
    }

    /// The batch that was given away has been taken.
    pub fn was_taken(&mut self) {
        self.room.clear();
    }

    pub fn put_back(&mut self, full: Batch) {
        self.batch = full;
        self.queue_full = true;
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.batch.bytes()
    }
}
