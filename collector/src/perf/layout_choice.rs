//! Which [`EventLayout`] a machine and a target leave room for.

use super::attr::{Event, EventSpec};
use super::layout::EventLayout;

/// Files beside events: images (256 and more; see [`crate::process::images`]), the profile, pipes.
const OTHER_FILES: u64 = 400;
/// Events beyond which another layout is better: each is some 2 KiB of kernel memory and 10 us to open, and new threads
/// inherit them.
const MANY_EVENTS: u64 = 32_768;

/// What a layout is chosen by.
#[derive(Clone, Copy, Debug)]
pub struct LayoutChoice {
    /// Threads that the target has.
    pub threads: u64,
    /// CPUs that are online.
    pub cpus: u64,
    /// `RLIMIT_NOFILE`.
    pub file_limit: u64,
    /// Whether the whole machine may be observed.
    pub whole_machine: bool,
}

impl LayoutChoice {
    /// Descriptors that may be events: the limit without what ccsd itself will need, half of it where it is very small.
    pub fn room(&self) -> u64 {
        room(self.file_limit)
    }

    /// Descriptors that a layout takes, those of the rings included.
    pub fn files(&self, layout: EventLayout, spec: &EventSpec) -> u64 {
        let per_cpu = files_per_target(layout, spec);
        // Two for the owner of each ring: it is duplicated for redirecting events to it.
        let targets = if layout == EventLayout::Cpus { 1 } else { self.threads };
        per_cpu.saturating_mul(targets).saturating_add(4).saturating_mul(self.cpus)
    }

    /// The layouts to try, the best first; the last is tried even if it should not fit. `asked_for`: the user named the
    /// event, so no other will do.
    pub fn candidates(&self, spec: &EventSpec, asked_for: bool) -> Vec<(EventLayout, EventSpec)> {
        let fits = |layout, spec, most: u64| self.files(layout, spec) <= most.min(self.room());
        let mut candidates = Vec::new();
        if fits(EventLayout::Threads, spec, MANY_EVENTS) {
            candidates.push((EventLayout::Threads, *spec));
        }
        let mut plain = *spec;
        if spec.reads_group() && !asked_for {
            plain.event = Event::CpuClock;
        }
        if self.whole_machine && can_be_per_cpu(&plain) {
            candidates.push((EventLayout::Cpus, plain));
        }
        candidates.push((EventLayout::Compact, plain));
        candidates
    }
}

/// Descriptors that may be events, of `limit` in all.
pub fn room(limit: u64) -> u64 {
    limit.saturating_sub(OTHER_FILES).max(limit / 2)
}

/// Events for one CPU and, except for [`EventLayout::Cpus`], thread.
pub fn files_per_target(layout: EventLayout, spec: &EventSpec) -> u64 {
    match layout {
        EventLayout::Threads => 2 + u64::from(spec.reads_group()),
        EventLayout::Compact => 1 + u64::from(spec.reads_group()),
        EventLayout::Cpus => 2,
    }
}

/// Whether an event makes sense on a CPU: a TSC or clock read at a sample covers the time since the last one there,
/// which may be another program's.
pub fn can_be_per_cpu(spec: &EventSpec) -> bool {
    !spec.reads_group()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: EventSpec = EventSpec::CLOCK;

    fn candidates(threads: u64, cpus: u64, file_limit: u64, whole_machine: bool) -> Vec<EventLayout> {
        let machine = LayoutChoice { threads, cpus, file_limit, whole_machine };
        machine.candidates(&SPEC, false).into_iter().map(|(layout, _)| layout).collect()
    }

    #[test]
    fn few_threads_are_followed_each() {
        for whole_machine in [false, true] {
            assert_eq!(candidates(1, 2, 1_024, whole_machine)[0], EventLayout::Threads);
            assert_eq!(candidates(100, 64, 524_288, whole_machine)[0], EventLayout::Threads);
        }
    }

    #[test]
    fn many_threads_are_not() {
        use EventLayout::{Compact, Cpus};
        // 4,008 files; 624 are to be had.
        assert_eq!(candidates(1_000, 2, 1_024, true), [Cpus, Compact]);
        assert_eq!(candidates(1_000, 2, 1_024, false), [Compact]);
        // A limit that is no limit is not made use of to the full.
        assert_eq!(candidates(100_000, 64, 1 << 30, true), [Cpus, Compact]);
    }

    #[test]
    fn the_tsc_goes_before_the_layout_does() {
        let tsc = EventSpec { event: Event::CpuClockTsc { pmu_type: 1, config: 0 }, ..SPEC };
        let machine = LayoutChoice { threads: 1_000, cpus: 2, file_limit: 1_024, whole_machine: true };
        assert_eq!(machine.candidates(&tsc, false), [(EventLayout::Cpus, SPEC), (EventLayout::Compact, SPEC)]);
        assert_eq!(machine.candidates(&tsc, true), [(EventLayout::Compact, tsc)]);
    }

    #[test]
    fn nothing_overflows() {
        let all =
            LayoutChoice { threads: u64::MAX / 8_192 / 8, cpus: 8_192, file_limit: u64::MAX, whole_machine: false };
        assert_eq!(all.candidates(&SPEC, false), [(EventLayout::Compact, SPEC)]);
        assert_eq!(room(0), 0);
        assert_eq!(room(64), 32);
    }
}
