//! What the sampling thread tells the aggregating thread.
//!
//! A batch is a stretch of the session in order of time. Its buffers are reused: the steady state allocates nothing.

use std::sync::Arc;

use ccsd_profile::Membership;
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::pace::{RateChange, SampleCost};
use crate::perf::counters::EventCounts;
use crate::process::images::{ImageIndex, ImageStats, MappedImage};
use crate::process::jit_code::JitEvent;
use crate::process::{ProcessKey, ThreadKey};
use crate::stack_delta::Common;
use crate::tracker::TrackerStats;
use crate::unwind::{Frame, Gap, StackRoot, UnwindStats};

/// Metrics that ccsd's own samples have: the event's own, and the TSC cycles where they are read.
pub const MAX_METRICS: usize = 2;

/// Bytes that each buffer of an empty batch keeps at most: a stack of 50,000 frames fits.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// One thing that happened.
#[derive(Debug)]
pub enum BatchItem {
    /// The next image, in order of [`ImageIndex`].
    Image(MappedImage),
    /// No process has the image mapped any more; its file is closed.
    ImageClosed(ImageIndex),
    /// A closed image is mapped again.
    ImageReopened(ImageIndex, MappedImage),
    /// Something about an image of generated code that has been announced.
    Jit(JitEvent),
    /// Something that readers of the profile should know.
    Note(String),
    /// From now on samples are taken at another rate.
    Rate {
        /// Nanoseconds since sampling began.
        at: u64,
        /// The change.
        change: RateChange,
    },
    /// A process that is about to get its first sample.
    Process {
        /// Identity.
        key: ProcessKey,
        /// Parent, if that has been announced.
        parent: Option<ProcessKey>,
        /// Process id.
        pid: u32,
        /// Clock ticks since boot.
        start_time: u64,
        /// Count of `execve` calls.
        exec_generation: u32,
        /// Name.
        name: String,
        /// What it belongs to, if that is known.
        membership: Option<Arc<Membership>>,
    },
    /// A thread that is about to get its first sample.
    Thread {
        /// Identity.
        key: ThreadKey,
        /// Its process.
        process: ProcessKey,
        /// Thread id.
        tid: u32,
        /// Name.
        name: String,
    },
    /// An announced thread has a new name.
    ThreadName {
        /// The thread.
        key: ThreadKey,
        /// Its process, if the name is the process's too.
        process: Option<ProcessKey>,
        /// The name.
        name: String,
    },
    /// CPU time of an announced thread, as the kernel accounts for it.
    ThreadTime {
        /// The thread.
        key: ThreadKey,
        /// All of it, nanoseconds.
        ns: u64,
        /// Whether the thread began within the session: no part of it was before.
        is_whole: bool,
    },
    /// An announced thread has ended.
    ThreadEnd(ThreadKey),
    /// An announced process has ended, or goes on as another one.
    ProcessEnd(ProcessKey),
    /// A signal has killed a process: the stack of the thread that it was delivered to.
    Crash {
        /// What happened to whom.
        death: Box<Death>,
        /// The thread.
        thread: ThreadKey,
        /// When: `CLOCK_MONOTONIC`, nanoseconds.
        time: u64,
        /// How many of the batch's frames are its own, taken in order.
        frames: u32,
        /// What comes outside of these, from the thread's last stack.
        common: Common,
        /// Where frames may be missing.
        gap: Option<Gap>,
        /// Where the stack ends.
        root: StackRoot,
    },
    /// A stack.
    Sample {
        /// Whose.
        thread: ThreadKey,
        /// When: `CLOCK_MONOTONIC`, nanoseconds.
        time: u64,
        /// How many of the batch's frames are its own, taken in order.
        frames: u32,
        /// What comes outside of these, from the thread's last stack.
        common: Common,
        /// Where frames may be missing.
        gap: Option<Gap>,
        /// Where the stack ends.
        root: StackRoot,
        /// Weight by each of the first metrics; see [`Batch::further_weights`].
        weights: [u64; MAX_METRICS],
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Death {
    pub pid: u32,
    /// The thread that the signal was delivered to.
    pub tid: u32,
    pub process: String,
    pub thread: String,
    pub signal: u32,
    pub code: i32,
}

/// What has been counted, absolute values since the session began, by the part of the sampler that counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    pub samples: SampleStats,
    pub rings: RingStats,
    pub tracker: TrackerStats,
    pub images: ImageStats,
    pub unwind: UnwindStats,
    pub sampler: SamplerStats,
    pub target: TargetStats,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleStats {
    pub received: u64,
    /// Samples that found the kernel at work.
    pub in_kernel: u64,
    pub dropped: u64,
    /// Of these, samples that did not fit the queue.
    pub dropped_by_queue: u64,
    /// Of these, samples of processes that fit the filter, if there is one.
    pub dropped_own: u64,
    /// Processes killed by signals whose stacks are not kept.
    pub deaths_left_out: u64,
    /// Stacks remembered only in part, because there was no room.
    pub cut_memories: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingStats {
    /// Records the kernel dropped because a ring of samples was full. See [`BatchCounts::lost_samples`].
    pub lost: u64,
    /// Records about mappings, forks and names that the kernel dropped.
    pub lost_tracking: u64,
    /// Records about mappings, forks and names that were taken out of rings of samples; only where both are in one.
    pub beside_samples: u64,
    /// Times the kernel stopped an event that fired too often.
    pub throttle_events: u64,
    /// Samples missing because of that: rate times the time stopped.
    pub throttled: u64,
    pub malformed: u64,
    pub late: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SamplerStats {
    /// Nanoseconds since sampling began.
    pub duration_ns: u64,
    /// CPU time of the sampling thread, nanoseconds.
    pub cpu_ns: u64,
    /// What of it images took, nanoseconds.
    pub images_ns: u64,
    /// Whether it is scheduled like any other, because it may not be urgent.
    pub waits_its_turn: bool,
    /// Bytes of the unwinder's tables and of the table of live processes.
    pub held_bytes: u64,
    pub cost: Option<SampleCost>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetStats {
    pub counted: Option<EventCounts>,
    /// CPU time of the target that the events did not count, by the clocks of its processes, or somewhat less, nanoseconds.
    pub uncounted_ns: u64,
    /// User time and all time of the target, in the same unit, as the kernel accounts for them, where known.
    pub user_share: Option<(u64, u64)>,
    /// What control groups used while they alone were sampled; `counted` is without it.
    pub grouped: GroupedStats,
}

/// What was counted of control groups while they alone were sampled, and what became of their samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupedStats {
    pub counted: EventCounts,
    pub judged: JudgedSamples,
}

/// What became of samples where a filter decides which are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgedSamples {
    /// Of processes that are known to fit, received or not.
    pub own: u64,
    /// Of all processes, with those of which it is not known whether they fit.
    pub all: u64,
}

impl JudgedSamples {
    pub fn minus(self, before: JudgedSamples) -> JudgedSamples {
        JudgedSamples { own: self.own.saturating_sub(before.own), all: self.all.saturating_sub(before.all) }
    }

    pub fn plus(self, more: JudgedSamples) -> JudgedSamples {
        JudgedSamples { own: self.own.saturating_add(more.own), all: self.all.saturating_add(more.all) }
    }

    /// The part of a number that is known to belong to processes of the filter. Missing samples are taken to divide like
    /// the others.
    #[must_use]
    pub fn own_part(self, number: u64) -> u64 {
        part_of(number, self.own.into(), self.all.into())
    }
}

impl BatchCounts {
    /// What became of all samples by the filter.
    #[must_use]
    pub fn judged(&self) -> JudgedSamples {
        let fit = self.samples.received.saturating_add(self.samples.dropped_own);
        JudgedSamples {
            own: fit.saturating_add(self.tracker.unjudged_own),
            all: fit.saturating_add(self.tracker.filtered),
        }
    }

    /// How many of the records lost were probably samples; see [`BatchCounts::samples_of`].
    #[must_use]
    pub fn lost_samples(&self) -> u64 {
        self.samples_of(self.rings.lost)
    }

    /// Estimates how many of `lost` records were samples. The kernel gives no types, so the observed mix is used.
    #[must_use]
    pub fn samples_of(&self, lost: u64) -> u64 {
        let SampleStats { received, dropped, .. } = self.samples;
        let samples = u128::from(received) + u128::from(self.tracker.others) + u128::from(dropped);
        part_of(lost, samples, samples + u128::from(self.rings.beside_samples))
    }
}

/// `own` of `all` parts of a number; the whole of it where there are no parts.
#[must_use]
pub fn part_of(number: u64, own: u128, all: u128) -> u64 {
    if all == 0 { number } else { u64::try_from((u128::from(number) * own).div_ceil(all)).unwrap_or(number) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// It was a round's worth.
    #[default]
    None,
    /// An interval is over: an update is due.
    Interval,
    End,
}

/// A stretch of the session.
#[derive(Debug, Default)]
pub struct Batch {
    /// What happened, in order.
    pub items: Vec<BatchItem>,
    /// Where the items give new names to threads. There is one a thread, however often it changes its name.
    pub renames: HashMap<ThreadKey, usize, FxBuildHasher>,
    /// The frames of all its samples, one after the other, each stack innermost first.
    pub frames: Vec<Frame>,
    /// Weights by the metrics after the first [`MAX_METRICS`], sample by sample. Only imports have them.
    pub further_weights: Vec<u64>,
    /// Counts at its end; what takes system calls to know, as of the last interval.
    pub counts: BatchCounts,
    /// Whether it ends an interval.
    pub mark: Mark,
}

impl Batch {
    /// Empties it, keeping the buffers, but not what they had to grow to while the aggregator was busy.
    pub fn clear(&mut self) {
        self.items.clear();
        self.renames.clear();
        self.frames.clear();
        self.further_weights.clear();
        self.items.shrink_to(MAX_KEPT_BYTES / size_of::<BatchItem>());
        self.renames.shrink_to(MAX_KEPT_BYTES / size_of::<(ThreadKey, usize)>());
        self.frames.shrink_to(MAX_KEPT_BYTES / size_of::<Frame>());
        self.mark = Mark::None;
    }

    /// Bytes in its buffers' used part.
    pub fn bytes(&self) -> usize {
        self.items.len() * size_of::<BatchItem>() + self.frames.len() * size_of::<Frame>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_batches_keep_little() {
        let mut batch = Batch::default();
        let frame = Frame { image: ImageIndex(0), address: 0 };
        let mut kept = |frames: usize| {
            batch.frames.extend(std::iter::repeat_n(frame, frames));
            batch.items.resize_with(frames, || BatchItem::Note(String::new()));
            batch.clear();
            (batch.frames.capacity() * size_of::<Frame>(), batch.items.capacity() * size_of::<BatchItem>())
        };
        let (frames, items) = kept(1 << 20);
        assert!(frames <= MAX_KEPT_BYTES && items <= MAX_KEPT_BYTES, "{frames} {items}");
        assert_eq!(kept(1000), (frames, items));
    }
}
