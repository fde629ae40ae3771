//! Looks for processes whose CPU clocks contradict their samples, where CPUs are sampled.

use ccsd_profile::notes;
use ccsd_worker::Principal;
use hashbrown::HashMap;

use super::clocks::cpu_ns;
use super::pipeline::Pipeline;
use crate::batch::BatchCounts;
use crate::clock::now_ns;
use crate::perf::attr::{Event, EventSpec};
use crate::process::sampled_time::{Contradiction, TOLD_AGAIN_NS};
use crate::tracker::round::Round;

/// Minimum time between two looks at all clocks, nanoseconds, and the part of the time that looks take, one in so many.
const LOOK_NS: u64 = 1_000_000_000;
const LOOK_SHARE: u64 = 100;
/// Processes of each user of which a session tells in an hour, and users.
const MOST_OF_USER: u32 = 4;
const MOST_USERS: usize = 16;

/// Compares processes in rounds.
#[derive(Default)]
pub struct ClockCheck {
    round: Round<u32>,
    next: u64,
    /// How many of each user's processes have been told of in this hour.
    told: HashMap<Option<Principal>, u32>,
    hour_began: u64,
}

impl ClockCheck {
    /// Goes on with a round, or begins one if it is time to. To be called at every turn, after the rings were read.
    pub fn review(&mut self, pipeline: &mut Pipeline, spec: &EventSpec, now: u64) {
        self.review_by(pipeline, spec, now, cpu_ns);
    }

    fn review_by(&mut self, pipeline: &mut Pipeline, spec: &EventSpec, now: u64, cpu_ns: impl Fn(u32) -> Option<u64>) {
        if now.saturating_sub(self.hour_began) >= TOLD_AGAIN_NS {
            self.told.clear();
            self.hour_began = now;
        }
        if !is_comparable(spec) {
            return;
        }
        if !self.round.is_going_on() {
            if now < self.next {
                return;
            }
            self.round = Round::of(pipeline.tracker.pids());
        }
        let delivered = delivered(&pipeline.counts());
        let told = &mut self.told;
        let took = self.round.portion(now, |pid| {
            let Some(process) = pipeline.tracker.kept_at(pid, now) else { return };
            let Some(clock) = cpu_ns(pid) else { return };
            let Some(found) = process.sampled_time.compare(now, clock, spec.period_ns(), delivered) else { return };
            let user = process.payer();
            if told.len() >= MOST_USERS && !told.contains_key(&user) {
                return;
            }
            let nth = told.entry(user).or_default();
            *nth += 1;
            if *nth <= MOST_OF_USER {
                let note = note_of(&process.name, pid, found);
                pipeline.batch.note(note);
            }
        });
        if let Some(took) = took {
            self.next = now_ns().saturating_add(took.saturating_mul(LOOK_SHARE).max(LOOK_NS));
        }
    }
}

/// Whether samples stand for all of the CPU time that the kernel counts.
fn is_comparable(spec: &EventSpec) -> bool {
    spec.kernel && matches!(spec.event, Event::CpuClock | Event::CpuClockTsc { .. })
}

/// The part of the samples that CPUs should have given which was delivered, whosever they are.
fn delivered(counts: &BatchCounts) -> f64 {
    // Events on groups give the samples of these alone, and what they lack is not known here.
    let is_grouped = counts.target.grouped.counted.used > 0;
    let due = counts.target.counted.filter(|_| !is_grouped).map_or(0, |counted| counted.due_milli);
    let kept = counts.samples.received.saturating_add(counts.samples.dropped_own);
    let came = kept.saturating_add(counts.tracker.others).saturating_add(counts.tracker.withheld);
    if due == 0 { 1.0 } else { came as f64 * 1000.0 / due as f64 }
}

fn note_of(name: &str, pid: u32, found: Contradiction) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let Contradiction { used_ns, sampled_ns } = found;
    // Who is in step is not known: it, or another that takes its place whenever a sample is due.
    let why = match sampled_ns < used_ns {
        true => "samples came when it did not run: it, or others on its CPU, run in step with them",
        false => "samples came when it ran: it, or others on its CPU, run in step with them",
    };
    let (used, sampled) = (seconds(used_ns), seconds(sampled_ns));
    format!(
        "{}: {name} (process {pid}) used {used:.1} s of CPU time and has samples for {sampled:.1} s; {why}",
        notes::IN_STEP
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Batch, BatchItem};
    use crate::budget::Budget;
    use crate::perf::counters::EventCounts;
    use crate::perf::layout::EventLayout;
    use crate::perf::record::{Fork, TargetChange};

    const SPEC: EventSpec = EventSpec { kernel: true, ..EventSpec::CLOCK };
    const S: u64 = 1_000_000_000;

    struct Machine {
        pipeline: Pipeline,
        check: ClockCheck,
        now: u64,
    }

    impl Machine {
        fn with(pids: std::ops::Range<u32>) -> Machine {
            let mut pipeline = Pipeline::new(&SPEC, EventLayout::Cpus, 2, None, &Budget::of(Budget::MIN_MEMORY));
            pipeline.tracker.observe_machine();
            let forks = pids.map(|pid| Fork { pid, tid: pid, parent_pid: 1, parent_tid: 1 });
            forks.for_each(|fork| drop(pipeline.tracker.apply(TargetChange::Fork(fork), now_ns())));
            Machine { pipeline, check: ClockCheck::default(), now: now_ns() }
        }

        /// What is noted of processes whose clocks show so much, and whose samples have shown so much more since the last time.
        fn notes(&mut self, spec: &EventSpec, clock: impl Fn(u32) -> u64, sampled: impl Fn(u32) -> u64) -> Vec<String> {
            for pid in self.pipeline.tracker.pids() {
                self.pipeline.tracker.kept_at(pid, self.now).unwrap().sampled_time.add(sampled(pid));
            }
            self.now = self.now.max(self.check.next) + 1;
            while {
                self.check.review_by(&mut self.pipeline, spec, self.now, |pid| Some(clock(pid)));
                self.check.round.is_going_on()
            } {}
            let batch = self.pipeline.batch.take(BatchCounts::default(), Batch::default());
            let notes = batch.items.into_iter().filter_map(|item| match item {
                BatchItem::Note(note) => Some(note),
                _ => None,
            });
            notes.collect()
        }
    }

    #[test]
    fn who_runs_between_samples_is_told_and_who_pays_for_it() {
        let clock = |pid| if pid == 1_000_003 { 4 * S } else { 2 * S };
        for spec in [EventSpec::CLOCK, SPEC] {
            let mut machine = Machine::with(1_000_001..1_000_004);
            assert_eq!(machine.notes(&spec, |_| 0, |_| 0), [""; 0]);
            let notes = machine.notes(&spec, clock, |pid| if pid == 1_000_003 { S / 10 } else { 2 * S });
            // Where the kernel is not sampled, its time is in no sample.
            assert_eq!(notes.len(), usize::from(spec.kernel), "{notes:?}");
            assert!(notes.iter().all(|note| {
                note.starts_with(notes::IN_STEP)
                    && note.contains("1000003")
                    && note.contains("used 4.0 s of CPU time and has samples for 0.1 s")
            }));
            let more = machine.notes(&spec, |_| 6 * S, |pid| if pid == 1_000_001 { 9 * S } else { 4 * S });
            assert!(more.len() == notes.len() && more.iter().all(|note| note.contains("1000001")), "{more:?}");
        }
    }

    #[test]
    fn one_user_s_processes_leave_others_their_notes() {
        let mut machine = Machine::with(1_000_001..1_000_013);
        assert_eq!(machine.notes(&SPEC, |_| 0, |_| 0), [""; 0]);
        let of = |pid| if pid > 1_000_010 { Principal::Own } else { Principal::User(7) };
        for pid in machine.pipeline.tracker.pids() {
            machine.pipeline.tracker.kept_at(pid, machine.now).unwrap().user = Some(of(pid));
        }
        let notes = machine.notes(&SPEC, |_| 3 * S, |_| 0);
        let of_own = notes.iter().filter(|note| note.contains("1000011") || note.contains("1000012")).count();
        assert_eq!((notes.len(), of_own), (MOST_OF_USER as usize + 2, 2), "{notes:?}");
        // Each has been told of, or left out.
        assert_eq!(machine.notes(&SPEC, |_| 6 * S, |_| 0), [""; 0]);
        machine.check.next += TOLD_AGAIN_NS;
        assert_eq!(machine.notes(&SPEC, |_| 9 * S, |_| 0), [""; 0], "begins anew");
        assert_eq!(machine.notes(&SPEC, |_| 12 * S, |_| 0).len(), MOST_OF_USER as usize + 2);
    }

    #[test]
    fn where_all_lack_samples_none_is_told() {
        let mut machine = Machine::with(1_000_001..1_000_004);
        assert_eq!(machine.notes(&SPEC, |_| 0, |_| 0), [""; 0]);
        machine.pipeline.target.counted = Some(EventCounts { used: 6 * S, ticks: 0, due_milli: 6_000_000 });
        assert_eq!(machine.notes(&SPEC, |_| 2 * S, |_| S), [""; 0]);
    }
}
