//! What became of the samples, and what collecting them cost.

use std::fmt;

use serde::Serialize;

use crate::causes::{ByCause, causes};
use crate::context::ContextStats;
use crate::not_sampled::NotSampled;
use crate::own_cpu::OwnCpu;
use crate::pace::SamplingRates;
use crate::shed::{Shed, ShedCounts};

causes! {
    /// Why an unwound stack does not reach its root.
    TruncationReason, zeros in JSON: false;
    /// The kernel copied fewer bytes of the stack than it holds.
    StackCopyTooSmall => "stack copy too small", "stack copy too small",
    /// No unwind information for the code at this address.
    NoUnwindInfo => "no unwind information", "no unwind information",
    /// There is unwind information and it cannot be followed.
    BadUnwindInfo => "bad unwind information", "bad unwind information",
    /// The stack could not be read.
    StackUnreadable => "stack unreadable", "stack unreadable",
    /// More frames than are followed, or than there was time for.
    TooDeep => "too deep", "too deep",
    /// The address is in no known mapping.
    UnknownMapping => "unknown mapping", "unknown mapping",
    /// The stack pointer is not in a user stack.
    NotUserStack => "not a user stack", "not a user stack",
    /// Code generated at run time, without a map.
    JitWithoutMap => "generated code without a map", "generated code without a map",
    /// The sample carries no registers or no stack.
    NoUserRegisters => "no user registers", "no user registers",
    /// Any other reason.
    Other => "other reason", "other reason",
    /// Another profiler followed the stack, and its outermost function is none that begins a process or thread.
    NoEntry => "no entry point", "no entry point",
}

impl fmt::Display for TruncationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Samples whose stack does not reach its root, by reason.
pub type Truncations = ByCause<TruncationReason, { TruncationReason::COUNT }>;

/// Stacks of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StackCounts {
    /// Samples whose stack does not reach its root.
    #[serde(rename = "truncated_by_reason")]
    pub truncated: Truncations,
    /// Samples whose stack reaches its root and may lack frames in the middle.
    pub with_gap: u64,
    /// Samples whose stack goes on beyond what was copied, as the target's memory had it a moment later.
    pub read_late: u64,
    /// Frames of all raw stacks.
    pub frames: u64,
    /// Frames of the deepest raw stack.
    #[serde(rename = "max_stack_depth")]
    pub max_depth: u64,
}

/// What collecting cost, and what it held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct OwnCost {
    /// CPU time of the profiler, nanoseconds.
    #[serde(rename = "own_cpu_ns")]
    pub cpu_ns: u64,
    /// The same by what it was spent for. `None` before the session's end, and where it is not known.
    #[serde(rename = "own_cpu_by_phase_ns")]
    pub by_phase: Option<OwnCpu>,
    /// Largest resident set of the profiler, bytes.
    #[serde(rename = "own_peak_rss_bytes")]
    pub peak_rss_bytes: u64,
    /// Bytes that the session's tables held at the last update, about.
    pub held_bytes: u64,
    /// What the session may hold, bytes; 0 if that is not known.
    pub memory_bytes: u64,
    /// Bytes written so far to the file of this session, if any.
    pub file_bytes: u64,
}

/// Absolute values so far. A merge adds them up and takes the larger peak and maximum. JSON uses the names below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Time collected, nanoseconds.
    pub duration_ns: u64,
    /// Samples that should have arrived, if known (of a merge: of all that have samples): `received + lost + throttled + dropped + undelivered`.
    pub expected: Option<u64>,
    /// Samples charged.
    pub received: u64,
    /// Samples that the kernel says it lost.
    pub lost: u64,
    /// Samples that throttling kept from being taken, estimated.
    pub throttled: u64,
    /// Times that the kernel throttled.
    pub throttle_events: u64,
    /// Samples dropped by the profiler because it could not keep up.
    #[serde(rename = "dropped")]
    pub dropped_by_us: u64,
    /// Samples whose leaf has no name.
    pub unsymbolised: u64,
    /// Samples charged to `[elided]`.
    pub elided: u64,
    /// Stacks.
    #[serde(flatten)]
    pub stacks: StackCounts,
    /// CPU time of the target over the session, nanoseconds.
    pub target_cpu_ns: Option<u64>,
    /// The part of `target_cpu_ns` charged to `[not sampled]`, by cause. `None` if the target's CPU time is not exact.
    #[serde(rename = "not_sampled_ns")]
    pub not_sampled: Option<NotSampled>,
    /// The profiler.
    #[serde(flatten)]
    pub own: OwnCost,
    /// Calls of `ContextTable::push`. Kept up by `Profile::take_update`.
    pub pushes: u64,
    /// What had no room, by the table that was full.
    pub shed: ShedCounts,
    /// What the collector's table of contexts did and holds. Kept up by `Profile::take_update`.
    pub contexts: ContextStats,
    /// At which rates samples were taken, and what they cost where that was to stay within a budget.
    pub pace: SamplingRates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fold {
    /// Summed; between two points of a stream the difference counts.
    Sum,
    /// The larger one stays.
    Largest,
}

/// A new field must be listed in `numbers!` or handled by name in `since`, `merge` and the codec.
const _: fn(&Accounting) = |accounting| {
    let Accounting {
        duration_ns: _,
        expected: _,
        received: _,
        lost: _,
        throttled: _,
        throttle_events: _,
        dropped_by_us: _,
        unsymbolised: _,
        elided: _,
        stacks,
        target_cpu_ns: _,
        not_sampled: _,
        own,
        pushes: _,
        shed: _,
        contexts: _,
        pace: _,
    } = accounting;
    let StackCounts { truncated: _, with_gap: _, read_late: _, frames: _, max_depth: _ } = stacks;
    let OwnCost { cpu_ns: _, by_phase: _, peak_rss_bytes: _, held_bytes: _, memory_bytes: _, file_bytes: _ } = own;
};

macro_rules! numbers {
    ($($($name:ident).+: $fold:ident,)*) => {
        impl Accounting {
            pub(crate) const NUMBERS: usize = Self::FOLDS.len();

            /// The plain numbers, in the order of the file format.
            pub(crate) const fn numbers(&self) -> [u64; Self::NUMBERS] {
                [$(self.$($name).+),*]
            }

            pub(crate) const fn numbers_mut(&mut self) -> [&mut u64; Self::NUMBERS] {
                [$(&mut self.$($name).+),*]
            }

            const FOLDS: &'static [Fold] = &[$(Fold::$fold),*];
        }
    };
}

// The order is part of the file format; the codec puts other numbers after these 18.
numbers! {
    duration_ns: Sum,
    received: Sum,
    lost: Sum,
    throttled: Sum,
    throttle_events: Sum,
    unsymbolised: Sum,
    elided: Sum,
    own.cpu_ns: Sum,
    own.peak_rss_bytes: Largest,
    pushes: Sum,
    stacks.frames: Sum,
    stacks.max_depth: Largest,
    dropped_by_us: Sum,
    own.file_bytes: Sum,
    stacks.with_gap: Sum,
    stacks.read_late: Sum,
    own.held_bytes: Largest,
    own.memory_bytes: Largest,
}

impl Accounting {
    /// Samples known to be missing: lost by the kernel, throttled, or dropped by ccsd.
    #[must_use]
    pub fn known_missing(&self) -> u64 {
        self.lost.saturating_add(self.throttled).saturating_add(self.dropped_by_us)
    }

    /// Samples that should have arrived and are accounted for by no other cause.
    #[must_use]
    pub fn undelivered(&self) -> u64 {
        let known = self.received.saturating_add(self.known_missing());
        self.expected.map_or(0, |expected| expected.saturating_sub(known))
    }

    /// Samples expected and not received, by all causes.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.known_missing().saturating_add(self.undelivered())
    }

    /// Samples whose stack does not reach its root, whatever the reason.
    #[must_use]
    pub fn truncated_total(&self) -> u64 {
        self.stacks.truncated.total()
    }

    /// Counts something that had no room.
    #[cold]
    pub fn count_shed(&mut self, table: Shed) {
        self.shed.add(table, 1);
    }

    /// Counts one truncated sample.
    pub fn count_truncated(&mut self, reason: TruncationReason) {
        self.stacks.truncated.add(reason, 1);
    }

    /// What was counted since an earlier point of the stream. The peak, the maximum and the context table's sizes stay.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = self.clone();
        let less_known = |from: &mut Option<u64>, earlier: Option<u64>| {
            *from = from.map(|from| from.saturating_sub(earlier.unwrap_or(0)));
        };
        less_known(&mut later.expected, earlier.expected);
        less_known(&mut later.target_cpu_ns, earlier.target_cpu_ns);
        later.stacks.truncated = self.stacks.truncated.since(&earlier.stacks.truncated);
        later.shed = self.shed.since(&earlier.shed);
        if let (Some(later), Some(earlier)) = (&mut later.not_sampled, &earlier.not_sampled) {
            *later = later.since(earlier);
        }
        if earlier.own.cpu_ns > 0 {
            let phases = self.own.by_phase.zip(earlier.own.by_phase);
            later.own.by_phase = phases.map(|(later, earlier)| later.since(&earlier));
        }
        later.pace = self.pace.since(&earlier.pace);
        for ((from, earlier), fold) in later.numbers_mut().into_iter().zip(earlier.numbers()).zip(Self::FOLDS) {
            if *fold == Fold::Sum {
                *from = from.saturating_sub(earlier);
            }
        }
        later
    }

    fn has_samples(&self) -> bool {
        [self.received, self.lost, self.throttled, self.dropped_by_us].into_iter().any(|samples| samples > 0)
    }

    /// Adds another session's (I7).
    pub fn merge(&mut self, other: &Self) {
        let add = |to: &mut u64, more: u64| *to = to.saturating_add(more);
        // What one does not know, the sum does not: a part would stand beside the samples of both.
        let has_samples = [self.has_samples(), other.has_samples()];
        let add_known = |to: &mut Option<u64>, more: Option<u64>| {
            *to = match (*to, more) {
                (Some(a), Some(b)) => Some(a.saturating_add(b)),
                (Some(known), None) if !has_samples[1] => Some(known),
                (None, Some(known)) if !has_samples[0] => Some(known),
                _ => None,
            };
        };
        add_known(&mut self.expected, other.expected);
        add_known(&mut self.target_cpu_ns, other.target_cpu_ns);
        self.stacks.truncated.merge(&other.stacks.truncated);
        self.shed.merge(&other.shed);
        if let Some(more) = &other.not_sampled {
            self.not_sampled.get_or_insert_default().merge(more);
        }
        self.own.by_phase = match (self.own.by_phase, other.own.by_phase) {
            (Some(mut sum), Some(more)) => {
                sum.merge(&more);
                Some(sum)
            }
            (Some(known), None) if other.own.cpu_ns == 0 => Some(known),
            (None, Some(known)) if self.own.cpu_ns == 0 => Some(known),
            _ => None,
        };
        self.contexts.merge(&other.contexts);
        self.pace.merge(&other.pace);
        for ((to, more), fold) in self.numbers_mut().into_iter().zip(other.numbers()).zip(Self::FOLDS) {
            match fold {
                Fold::Sum => add(to, more),
                Fold::Largest => *to = (*to).max(more),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_does_not_know_the_sum_does_not() {
        let of =
            |received, expected| Accounting { received, expected, target_cpu_ns: expected, ..Accounting::default() };
        for (one, other, sum) in [
            (of(7, Some(8)), of(3, Some(4)), Some(12)),
            (of(56, Some(56)), of(600, None), None),
            // Who has no samples keeps nothing from being known.
            (of(56, Some(56)), of(0, None), Some(56)),
            (of(0, None), of(0, None), None),
        ] {
            let merged = |one: &Accounting, other: &Accounting| {
                let mut sum = one.clone();
                sum.merge(other);
                (sum.received, sum.expected, sum.target_cpu_ns)
            };
            assert_eq!(merged(&one, &other), (one.received + other.received, sum, sum));
            assert_eq!(merged(&one, &other), merged(&other, &one));
        }
    }
}
