//! Looks for processes whose CPU clocks contradict their samples, where CPUs are sampled.

use ccsd_profile::notes;
use ccsd_profile::own_names::of_program;
use ccsd_worker::Principal;
use hashbrown::HashMap;

use super::clocks::cpu_ns;
use super::pipeline::Pipeline;
use crate::batch::{BatchCounts, SampleStats};
use crate::clock::now_ns;
use crate::perf::attr::{Event, EventSpec};
use crate::process::sampled_time::{Contradiction, NOTED_AGAIN_NS, Sampling};
use crate::tracker::round::Round;

/// Minimum time between two looks at all clocks, nanoseconds, and the part of the time that looks take, one in so many.
const LOOK_NS: u64 = 1_000_000_000;
const LOOK_SHARE: u64 = 100;
/// Processes of each user that are noted, and users; in a watch in each hour.
const MOST_OF_USER: u32 = 4;
const MOST_USERS: usize = 16;

/// Compares processes in rounds.
#[derive(Default)]
pub struct ClockCheck {
    round: Round<u32>,
    next: u64,
    /// How many of each user's processes have been noted.
    noted: HashMap<Principal, u32>,
    hour_began: u64,
    /// Changes of what is sampled.
    changes: u64,
}

impl ClockCheck {
    /// What is sampled is changing: nothing is compared now, and then all anew.
    pub fn begin_anew(&mut self) {
        self.round = Round::default();
        self.changes += 1;
    }

    /// Notes may be made anew each hour, as what is collected is handed on meanwhile.
    pub fn renew(&mut self, now: u64) {
        if now.saturating_sub(self.hour_began) >= NOTED_AGAIN_NS {
            self.noted.clear();
            self.hour_began = now;
        }
    }

    /// Goes on with a round, or begins one if it is time to. To be called at every turn, after the rings were read.
    pub fn review(&mut self, pipeline: &mut Pipeline, (spec, cpus): (&EventSpec, usize), now: u64) {
        self.review_by(pipeline, (spec, cpus), now, cpu_ns);
    }

    fn review_by(
        &mut self,
        pipeline: &mut Pipeline,
        (spec, cpus): (&EventSpec, usize),
        now: u64,
        cpu_ns: impl Fn(u32) -> Option<u64>,
    ) {
        if !is_comparable(spec) {
            return;
        }
        if !self.round.is_going_on() {
            if now < self.next {
                return;
            }
            self.round = Round::of(pipeline.tracker.pids());
        }
        let sampling = Sampling { cpus, changes: self.changes, ..sampling(spec, &pipeline.counts()) };
        let noted = &mut self.noted;
        let took = self.round.portion(now, |pid| {
            let Some(process) = pipeline.tracker.kept_at(pid, now) else { return };
            let Some(clock) = cpu_ns(pid) else { return };
            let Some(found) = process.sampled_time.compare(now, clock, sampling) else { return };
            let name = of_program(&process.name).into_owned();
            let user = pipeline.tracker.look_up_user(pid);
            let note = match (noted.contains_key(&user), noted.len()) {
                // However many users there are, root's processes are noted.
                (false, MOST_USERS..) if user != Principal::Own => {
                    format!("{} of processes of more users", notes::IN_STEP)
                }
                _ => {
                    let nth = noted.entry(user).or_default();
                    *nth += 1;
                    match *nth {
                        ..=MOST_OF_USER => note_of(&name, pid, found),
                        _ => format!("{} of more processes {user}", notes::IN_STEP),
                    }
                }
            };
            pipeline.batch.note(note);
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

fn sampling(spec: &EventSpec, counts: &BatchCounts) -> Sampling {
    let SampleStats { received, dropped, dropped_own, .. } = counts.samples;
    let came = received
        .saturating_add(dropped_own)
        .saturating_add(counts.tracker.others)
        .saturating_add(counts.tracker.withheld);
    // Counted at the last interval, so that rather too few are taken to be due.
    let due = counts.target.counted.map_or(0, |counted| counted.due_milli);
    Sampling {
        period_ns: spec.period_ns(),
        delivered: if due == 0 { 1.0 } else { came as f64 * 1000.0 / due as f64 },
        // Those of a process that is known are its own.
        lost: counts
            .rings
            .lost
            .saturating_add(counts.rings.throttled)
            .saturating_add(dropped.saturating_sub(dropped_own)),
        ..Sampling::default()
    }
}

fn note_of(name: &str, pid: u32, found: Contradiction) -> String {
    let seconds = |ns: u64| ns as f64 / 1e9;
    let Contradiction { used_ns, sampled_ns } = found;
    // Who is in step is not known: it, or another that takes its place whenever a sample is due.
    let why = match sampled_ns < used_ns {
        true => "samples came when it did not run",
        false => "samples came when it ran",
    };
    let (used, sampled) = (seconds(used_ns), seconds(sampled_ns));
    format!(
        "{}: {name} (process {pid}) used {used:.1} s of CPU time and has samples for {sampled:.1} s; {why}: it, or others on its CPU, may run in step with them, or interrupts or the host of this machine take the time",
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
                self.check.review_by(&mut self.pipeline, (spec, 2), self.now, |pid| Some(clock(pid)));
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
        let clock = |pid| if pid == 4_000_000_003 { 4 * S } else { 2 * S };
        for spec in [EventSpec::CLOCK, SPEC] {
            let mut machine = Machine::with(4_000_000_001..4_000_000_004);
            assert_eq!(machine.notes(&spec, |_| 0, |_| 0), [""; 0]);
            let notes = machine.notes(&spec, clock, |pid| if pid == 4_000_000_003 { S / 10 } else { 2 * S });
            // Where the kernel is not sampled, its time is in no sample.
            assert_eq!(notes.len(), usize::from(spec.kernel), "{notes:?}");
            assert!(
                notes.iter().all(|note| {
                    note.starts_with(notes::IN_STEP)
                        && note.contains("4000000003")
                        && note.contains("used 4.0 s of CPU time and has samples for 0.1 s")
                }),
                "{notes:?}"
            );
            let more = machine.notes(&spec, |_| 6 * S, |pid| if pid == 4_000_000_001 { 9 * S } else { 4 * S });
            assert!(more.len() == notes.len() && more.iter().all(|note| note.contains("4000000001")), "{more:?}");
        }
    }

    #[test]
    fn one_user_s_processes_leave_others_their_notes() {
        let mut machine = Machine::with(4_000_000_001..4_000_000_013);
        assert_eq!(machine.notes(&SPEC, |_| 0, |_| 0), [""; 0]);
        let of = |pid| if pid > 4_000_000_010 { Principal::Own } else { Principal::User(7) };
        for pid in machine.pipeline.tracker.pids() {
            machine.pipeline.tracker.kept_at(pid, machine.now).unwrap().user = Some(of(pid));
        }
        // Notes on processes of the user, on root's, and of how many kinds others are.
        let of_all = |notes: &[String]| {
            let (more, single): (Vec<&String>, Vec<&String>) = notes.iter().partition(|note| note.contains("of more"));
            let own = single.iter().filter(|note| note.contains("4000000011") || note.contains("4000000012")).count();
            (single.len() - own, own, more.iter().collect::<std::collections::HashSet<_>>().len())
        };
        let notes = machine.notes(&SPEC, |_| 3 * S, |_| 0);
        assert_eq!(of_all(&notes), (MOST_OF_USER as usize, 2, 1), "{notes:?}");
        // Each has been noted, or counted with others.
        assert_eq!(machine.notes(&SPEC, |_| 6 * S, |_| 0), [""; 0]);
        machine.check.next += NOTED_AGAIN_NS;
        machine.check.renew(machine.check.next);
        assert_eq!(machine.notes(&SPEC, |_| 9 * S, |_| 0), [""; 0], "begins anew");
        assert_eq!(of_all(&machine.notes(&SPEC, |_| 12 * S, |_| 0)), (MOST_OF_USER as usize, 2, 1));
    }

    #[test]
    fn where_all_lack_samples_only_one_that_lacks_more_is_noted() {
        let mut machine = Machine::with(4_000_000_001..4_000_000_004);
        assert_eq!(machine.notes(&SPEC, |_| 0, |_| 0), [""; 0]);
        machine.pipeline.target.counted = Some(EventCounts { used: 8 * S, ticks: 0, due_milli: 8_000_000 });
        let clock = |_| 4 * S;
        let idle = |pid| if pid == 4_000_000_003 { S / 10 } else { 2 * S };
        // Of 8,000 samples half came.
        machine.pipeline.samples_came(4_000);
        let notes = machine.notes(&SPEC, clock, idle);
        assert!(notes.len() == 1 && notes[0].contains("4000000003"), "{notes:?}");
    }
}
