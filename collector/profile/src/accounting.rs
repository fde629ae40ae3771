//! What became of the samples, and what collecting them cost.

use std::fmt;

use serde::Serialize;

use crate::context::ContextStats;
use crate::not_sampled::NotSampled;
use crate::own_cpu::OwnCpu;
use crate::pace::Pace;
use crate::shed::{Shed, ShedCounts};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident => $text:literal,)*) => {
        /// Why an unwound stack does not reach its root.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[non_exhaustive]
        pub enum TruncationReason {
            $($(#[$doc])* $name,)*
        }

        impl TruncationReason {
            /// All reasons, in the order in which [`Accounting::truncated`] counts them. New ones are added at the end: the
            /// order is part of the file format.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];
            /// Number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// In words.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// Position in [`Self::ALL`].
            #[must_use]
            pub const fn index(self) -> usize {
                self as usize
            }
        }
    };
}

reasons! {
    /// The kernel copied fewer bytes of the stack than it holds.
    StackCopyTooSmall => "stack copy too small",
    /// No unwind information for the code at this address.
    NoUnwindInfo => "no unwind information",
    /// There is unwind information and it cannot be followed.
    BadUnwindInfo => "bad unwind information",
    /// The stack could not be read.
    StackUnreadable => "stack unreadable",
    /// More frames than are followed, or than there was time for.
    TooDeep => "too deep",
    /// The address is in no known mapping.
    UnknownMapping => "unknown mapping",
    /// The stack pointer is not in a user stack.
    NotUserStack => "not a user stack",
    /// Code generated at run time, without a map.
    JitWithoutMap => "generated code without a map",
    /// The sample carries no registers or no stack.
    NoUserRegisters => "no user registers",
    /// Any other reason.
    Other => "other reason",
    /// Another profiler followed the stack, and its outermost function is none that begins a process or thread.
    NoEntry => "no entry point",
}

impl fmt::Display for TruncationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Absolute values so far. Within one stream the last update's hold; a merge adds them up (and takes the larger peak
/// and maximum).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Time collected, nanoseconds.
    pub duration_ns: u64,
    /// Samples that should have arrived, as far as that is known. `expected = received + lost + throttled + dropped +
    /// undelivered`.
    pub expected: Option<u64>,
    /// Samples charged.
    pub received: u64,
    /// Samples that the kernel says it lost.
    pub lost: u64,
    /// Samples that throttling kept from being taken, estimated.
    pub throttled: u64,
    /// Times that the kernel throttled.
    pub throttle_events: u64,
    /// Samples whose stack does not reach its root, by reason ([`TruncationReason::index`]).
    pub truncated: [u64; TruncationReason::COUNT],
    /// Samples whose stack reaches its root and may lack frames in the middle.
    pub with_gap: u64,
    /// Samples whose stack was completed with what was read from the target's memory a moment later.
    pub read_late: u64,
    /// Samples whose leaf has no name.
    pub unsymbolised: u64,
    /// Samples charged to `[elided]`.
    pub elided: u64,
    /// CPU time of the target over the session, nanoseconds.
    pub target_cpu_ns: Option<u64>,
    /// What of `target_cpu_ns` is in no sample and charged to `[not sampled]`, by cause. `None` where the target's CPU time
    /// is not known as exactly as that takes.
    pub not_sampled: Option<NotSampled>,
    /// CPU time of the profiler, nanoseconds.
    pub own_cpu_ns: u64,
    /// The same by what it was spent for. `None` before the session's end, and where it is not known.
    pub own_cpu: Option<OwnCpu>,
    /// Largest resident set of the profiler, bytes.
    pub own_peak_rss_bytes: u64,
    /// Calls of `ContextTable::push`. Kept up by `Profile::take_update`.
    pub pushes: u64,
    /// Frames of all raw stacks.
    pub frames: u64,
    /// Frames of the deepest raw stack.
    pub max_stack_depth: u64,
    /// Samples dropped by the profiler because it could not keep up.
    pub dropped_by_us: u64,
    /// Bytes written so far to the file of this session, if any.
    pub file_bytes: u64,
    /// What had no room, by the table that was full.
    pub shed: ShedCounts,
    /// Bytes that the session's tables held at the last update, about.
    pub held_bytes: u64,
    /// What the session may hold, bytes; 0 if that is not known.
    pub memory_bytes: u64,
    /// What the collector's table of contexts did and holds. Kept up by `Profile::take_update`.
    pub contexts: ContextStats,
    /// At which rates samples were taken, and what they cost where that was to stay within a budget.
    pub pace: Pace,
}

impl Accounting {
    /// Samples that should have arrived and are accounted for by no other cause.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        let known =
            [self.lost, self.throttled, self.dropped_by_us].into_iter().fold(self.received, u64::saturating_add);
        self.expected.map_or(0, |expected| expected.saturating_sub(known))
    }

    /// Samples expected and not received, by all causes.
    #[must_use]
    pub fn missing(&self) -> u64 {
        let causes = [self.lost, self.throttled, self.dropped_by_us, self.undelivered()];
        causes.into_iter().fold(0, u64::saturating_add)
    }

    /// Samples whose stack does not reach its root, whatever the reason.
    #[must_use]
    pub fn truncated_total(&self) -> u64 {
        self.truncated.iter().copied().fold(0, u64::saturating_add)
    }

    /// Counts something that had no room.
    #[cold]
    pub fn count_shed(&mut self, table: Shed) {
        self.shed.add(table, 1);
    }

    /// Counts one truncated sample.
    pub fn count_truncated(&mut self, reason: TruncationReason) {
        if let Some(count) = self.truncated.get_mut(reason.index()) {
            *count = count.saturating_add(1);
        }
    }

    /// What was counted after an earlier point of the same stream. The peak, the maximum and the sizes of the table of
    /// contexts, which are no sums, stay; all other numbers, added to the earlier ones, are these again.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let Self {
            duration_ns,
            expected,
            received,
            lost,
            throttled,
            throttle_events,
            truncated,
            with_gap,
            read_late,
            unsymbolised,
            elided,
            target_cpu_ns,
            not_sampled,
            own_cpu_ns,
            own_cpu,
            own_peak_rss_bytes: _,
            pushes,
            frames,
            max_stack_depth: _,
            dropped_by_us,
            file_bytes,
            shed,
            held_bytes: _,
            memory_bytes: _,
            contexts: _,
            pace,
        } = earlier;
        let mut later = self.clone();
        let less = |from: &mut u64, earlier: &u64| *from = from.saturating_sub(*earlier);
        let less_known = |from: &mut Option<u64>, earlier: &Option<u64>| {
            *from = from.map(|from| from.saturating_sub(earlier.unwrap_or(0)));
        };
        less(&mut later.duration_ns, duration_ns);
        less_known(&mut later.expected, expected);
        less(&mut later.received, received);
        less(&mut later.lost, lost);
        less(&mut later.throttled, throttled);
        less(&mut later.throttle_events, throttle_events);
        for (from, earlier) in later.truncated.iter_mut().zip(truncated) {
            less(from, earlier);
        }
        less(&mut later.with_gap, with_gap);
        less(&mut later.read_late, read_late);
        less(&mut later.unsymbolised, unsymbolised);
        less(&mut later.elided, elided);
        less_known(&mut later.target_cpu_ns, target_cpu_ns);
        if let (Some(later), Some(earlier)) = (&mut later.not_sampled, not_sampled) {
            for (from, earlier) in later.numbers_mut().iter_mut().zip(earlier.numbers()) {
                less(from, earlier);
            }
        }
        less(&mut later.own_cpu_ns, own_cpu_ns);
        if *own_cpu_ns > 0 {
            later.own_cpu = match (later.own_cpu, own_cpu) {
                (Some(mut later), Some(earlier)) => {
                    for (from, earlier) in later.numbers_mut().iter_mut().zip(earlier.numbers()) {
                        less(from, earlier);
                    }
                    Some(later)
                }
                _ => None,
            };
        }
        less(&mut later.pushes, pushes);
        less(&mut later.frames, frames);
        less(&mut later.dropped_by_us, dropped_by_us);
        less(&mut later.file_bytes, file_bytes);
        for (from, earlier) in later.shed.numbers_mut().iter_mut().zip(shed.numbers()) {
            less(from, earlier);
        }
        later.pace = self.pace.since(pace);
        later
    }

    /// Adds another session's (I7).
    pub fn merge(&mut self, other: &Self) {
        let Self {
            duration_ns,
            expected,
            received,
            lost,
            throttled,
            throttle_events,
            truncated,
            with_gap,
            read_late,
            unsymbolised,
            elided,
            target_cpu_ns,
            not_sampled,
            own_cpu_ns,
            own_cpu,
            own_peak_rss_bytes,
            pushes,
            frames,
            max_stack_depth,
            dropped_by_us,
            file_bytes,
            shed,
            held_bytes,
            memory_bytes,
            contexts,
            pace,
        } = other;
        let add = |to: &mut u64, more: &u64| *to = to.saturating_add(*more);
        let add_known = |to: &mut Option<u64>, more: &Option<u64>| {
            *to = match (*to, *more) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (a, b) => a.or(b),
            };
        };
        add(&mut self.duration_ns, duration_ns);
        add_known(&mut self.expected, expected);
        add(&mut self.received, received);
        add(&mut self.lost, lost);
        add(&mut self.throttled, throttled);
        add(&mut self.throttle_events, throttle_events);
        for (to, more) in self.truncated.iter_mut().zip(truncated) {
            add(to, more);
        }
        add(&mut self.with_gap, with_gap);
        add(&mut self.read_late, read_late);
        add(&mut self.unsymbolised, unsymbolised);
        add(&mut self.elided, elided);
        add_known(&mut self.target_cpu_ns, target_cpu_ns);
        if let Some(more) = not_sampled {
            let sum = self.not_sampled.get_or_insert_default();
            for (to, more) in sum.numbers_mut().iter_mut().zip(more.numbers()) {
                add(to, more);
            }
        }
        self.own_cpu = match (self.own_cpu, own_cpu) {
            (Some(mut sum), Some(more)) => {
                for (to, more) in sum.numbers_mut().iter_mut().zip(more.numbers()) {
                    add(to, more);
                }
                Some(sum)
            }
            (Some(known), None) if *own_cpu_ns == 0 => Some(known),
            (None, Some(known)) if self.own_cpu_ns == 0 => Some(*known),
            _ => None,
        };
        add(&mut self.own_cpu_ns, own_cpu_ns);
        self.own_peak_rss_bytes = self.own_peak_rss_bytes.max(*own_peak_rss_bytes);
        add(&mut self.pushes, pushes);
        add(&mut self.frames, frames);
        self.max_stack_depth = self.max_stack_depth.max(*max_stack_depth);
        add(&mut self.dropped_by_us, dropped_by_us);
        add(&mut self.file_bytes, file_bytes);
        for (to, more) in self.shed.numbers_mut().iter_mut().zip(shed.numbers()) {
            add(to, more);
        }
        self.held_bytes = self.held_bytes.max(*held_bytes);
        self.memory_bytes = self.memory_bytes.max(*memory_bytes);
        self.contexts.merge(contexts);
        self.pace.merge(pace);
    }
}
