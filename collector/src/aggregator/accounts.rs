//! The accounting of a session, and what is said of it at the end.

use ccsd_profile::{Accounting, OwnCpu, Phase, Shed, notes};
use nix::unistd::geteuid;

use super::Aggregator;
use crate::batch::{BatchCounts, part_of};
use crate::perf::attr::Event;
use crate::perf::counters::EventCounts;
use crate::perf::layout::EventLayout;
use crate::usage::{self, Aside};

impl Aggregator {
    pub(super) fn account(&mut self, counts: &BatchCounts, last: bool) {
        let spec = self.spec;
        let named_later = self.resolver.take_named_later();
        let (own_cpu_ns, own_cpu) = self.own_cpu(counts);
        let uncounted_ns = self.exact_cpu_ns(counts).map_or(0, |_| counts.target.uncounted_ns);
        let threads = counts.tracker.ended_threads.saturating_add(self.profile.threads().len() as u64);
        let accounting: &mut Accounting = self.profile.accounting_mut();
        accounting.unsymbolised = accounting.unsymbolised.saturating_sub(named_later);
        accounting.duration_ns = counts.sampler.duration_ns;
        accounting.received = counts.samples.received;
        accounting.dropped_by_us = counts.samples.dropped;
        accounting.shed.add(Shed::Images, counts.images.left_out.saturating_sub(self.images_left_out));
        self.images_left_out = counts.images.left_out;
        accounting.shed.set(Shed::Queue, counts.samples.dropped_by_queue);
        accounting.shed.set(Shed::Stacks, counts.samples.cut_memories);
        accounting.shed.set(Shed::UnwindTables, counts.unwind.refused_images);
        accounting.shed.set(Shed::UnwindRules, counts.unwind.forgotten_rules);
        accounting.shed.set(Shed::LiveThreads, counts.tracker.not_followed.threads);
        accounting.shed.set(Shed::Mappings, counts.tracker.not_followed.mappings);
        accounting.throttled = own_part(counts.rings.throttled, counts);
        accounting.stacks.read_late = counts.unwind.read_late;
        accounting.throttle_events = counts.rings.throttle_events;
        accounting.pace = self.rates.pace(counts.sampler.duration_ns, counts.sampler.cost);
        accounting.own.cpu_ns = own_cpu_ns;
        // Until the end it would only be one more thing that changes.
        accounting.own.by_phase = last.then_some(own_cpu);
        accounting.own.peak_rss_bytes = usage::own_peak_rss_bytes();
        if !matches!(spec.event, Event::Cycles { .. }) {
            let used = counts.target.counted.map(|counted| counted.used);
            let period = (accounting.pace.changes == 0).then(|| spec.period_ns());
            let expected = match spec.event {
                Event::Tick { .. } => counts.target.counted.map(|counted| counted.ticks),
                _ => expected(
                    spec.kernel,
                    counts.target.counted.map(|counted| due_milli(counted, uncounted_ns, period)),
                    counts.target.user_share,
                ),
            };
            let grouped = counts.target.grouped;
            let of_groups = |all: u64| if all == 0 { 0 } else { grouped.judged.own_part(all) };
            let used_by_groups = of_groups(grouped.counted.used);
            let expected_of_groups = of_groups(
                self::expected(spec.kernel, Some(grouped.counted.due_milli), counts.target.user_share).unwrap_or(0),
            );
            // The events count the time of processes that do not fit the filter, too.
            let own = |all: u64| match self.layout {
                EventLayout::Cpus => counts.judged().minus(grouped.judged).own_part(all),
                EventLayout::Threads | EventLayout::Compact => {
                    let expected = expected.unwrap_or(0);
                    part_of(all, expected.saturating_sub(counts.tracker.filtered).into(), expected.into())
                }
            };
            accounting.target_cpu_ns = used.map(own).map(|ns| ns.saturating_add(used_by_groups));
            accounting.expected = expected.map(own).map(|samples| samples.saturating_add(expected_of_groups));
        }
        accounting.lost = lost_samples(counts, accounting.expected);
        if !spec.kernel {
            // The estimate can be below the samples taken.
            let taken = accounting.received.saturating_add(accounting.known_missing());
            accounting.expected = accounting.expected.map(|expected| expected.max(taken));
        }
        let charged = self.charge_unseen(counts, last);
        if last {
            let accounting = self.profile.accounting();
            let unseen = match (accounting.not_sampled, spec.event) {
                (Some(_), _) => charged,
                (None, Event::Tick { .. }) => None,
                (None, _) => {
                    let sets = accounting.pace.changes.saturating_add(1);
                    let leftovers = threads.saturating_mul(self.cpus).saturating_mul(sets);
                    unseen(accounting, self.layout, leftovers, self.more_samples)
                }
            };
            let slow = (counts.sampler.waits_its_turn && counts.rings.lost > 0).then(slow);
            let left_out = self.crashes_left_out.saturating_add(counts.samples.deaths_left_out);
            let crashes =
                (left_out > 0).then(|| format!("{left_out} more processes died of signals: their stacks are not kept"));
            let notes: Vec<String> = crashes
                .into_iter()
                .chain(unseen)
                .chain(slow)
                .chain(other_rights(counts.tracker.gained_rights))
                .chain(troubles(counts))
                .chain(self.resolver.notes())
                .collect();
            let more = notes.len().saturating_sub(MAX_NOTES);
            notes.iter().take(MAX_NOTES).for_each(|note| self.profile.add_note(note));
            if more > 0 {
                self.profile.add_note(&format!("and {more} more notes like these"));
            }
        }
    }
}

impl Aggregator {
    /// The session's CPU time by purpose. A session that shares its process counts its two threads and the image
    /// reader.
    fn own_cpu(&self, counts: &BatchCounts) -> (u64, OwnCpu) {
        let worker = self.resolver.worker_cpu_ns();
        let here = usage::thread_work_ns();
        let total = match self.own_process {
            true => usage::own_cpu_ns(),
            false => counts.sampler.cpu_ns.saturating_add(here).saturating_add(worker),
        };
        let (images, names) = (usage::aside_ns(Aside::Images), usage::aside_ns(Aside::KernelNames));
        let (start, kernel, worker) = match self.own_process {
            true => (self.started_ns.0, self.started_ns.1.saturating_add(self.resolver.kernel_names_beside_ns()), 0),
            false => (0, 0, worker),
        };
        let parts = [
            (Phase::Start, start),
            (Phase::KernelNames, kernel.saturating_add(names)),
            (Phase::Images, images.saturating_add(counts.sampler.images_ns).saturating_add(worker)),
            (Phase::Sampling, counts.sampler.cpu_ns.saturating_sub(counts.sampler.images_ns)),
            (Phase::Aggregating, here.saturating_sub(images).saturating_sub(names)),
        ];
        (total, OwnCpu::split(total, &parts))
    }
}

fn slow() -> String {
    let remedy = match geteuid().is_root() {
        true => "its control group may be limited (`cpu.max`), or it may have no real-time priority (`LimitRTPRIO=`)",
        false => "it would not as root, or where it may have real-time priority (`ulimit -r 1`)",
    };
    format!("samples were lost because ccsd had to wait for the CPU; {remedy}")
}

/// How many lost samples were probably the target's, where others are sampled too: the kernel does not say.
fn own_part(lost: u64, counts: &BatchCounts) -> u64 {
    let (own, all) =
        (u128::from(counts.samples.received), u128::from(counts.samples.received) + u128::from(counts.tracker.others));
    part_of(lost, own, all)
}

/// Lost samples of the target. Where rings lose other records too, an estimate, at most those expected and missing.
fn lost_samples(counts: &BatchCounts, expected: Option<u64>) -> u64 {
    let lost = own_part(counts.lost_samples(), counts);
    let here = counts.samples.received.saturating_add(counts.rings.throttled).saturating_add(counts.samples.dropped);
    let most =
        expected.filter(|_| counts.rings.beside_samples > 0).map_or(u64::MAX, |expected| expected.saturating_sub(here));
    lost.min(most)
}

/// Notes about a session's end that are kept: what is wrong with hundreds of images need not be said of each.
const MAX_NOTES: usize = 10;
/// Share of the expected samples that may be missing without a word, beyond those lost for a known reason.
const UNSEEN_PERCENT: u64 = 5;

/// Warns where much CPU time fell between samples: shares then leave out short-lived threads. `leftovers` bounds the
/// rests.
fn unseen(accounting: &Accounting, layout: EventLayout, leftovers: u64, more_samples: &str) -> Option<String> {
    let (undelivered, expected) = (accounting.undelivered(), accounting.expected?);
    let short = format!(
        "it was spent by threads that live for about a sampling period or less; shares are of what was sampled, and \
         {more_samples} sees more"
    );
    let (chance, why) = match layout {
        // A CPU's timer meets a thread by chance: three standard deviations.
        EventLayout::Cpus => {
            (3.0 * (expected as f64).sqrt(), "its samples did not arrive; shares are of those that did")
        }
        // A timer that comes after several periods gives one sample. With few threads, nothing else loses so many.
        EventLayout::Threads | EventLayout::Compact if undelivered > leftovers => (
            24.0,
            "timers came late, one for several samples (a busy machine, or a virtual one whose host is busy); shares are of \
             what was sampled",
        ),
        // Two dozen samples are within what chance does to a short run.
        EventLayout::Threads | EventLayout::Compact => (24.0, short.as_str()),
    };
    let much = undelivered.saturating_mul(100) > expected.saturating_mul(UNSEEN_PERCENT);
    (much && undelivered as f64 > chance).then(|| {
        format!("{}% of the CPU time was not sampled: {why}", undelivered.saturating_mul(100) / expected.max(1))
    })
}

/// Says that programs were not sampled because they had other rights than the one that executed them.
fn other_rights(programs: u64) -> Option<String> {
    let (programs, their) = match programs {
        0 => return None,
        1 => ("a program that got".to_owned(), "its"),
        many => (format!("{many} programs that got"), "their"),
    };
    Some(format!(
        "{} in {programs} other rights when executed (setuid, setgid, capabilities, or an unreadable file): {their} CPU \
         time is in no sample; as root, --per-cpu or -a sees it",
        notes::OTHER_RIGHTS
    ))
}

fn troubles(counts: &BatchCounts) -> impl Iterator<Item = String> {
    let line = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
    [
        line(
            counts.rings.lost_tracking.saturating_add(counts.rings.lost.saturating_sub(counts.lost_samples())),
            "records about mappings and threads were lost by the kernel; all processes were looked at anew",
        ),
        line(
            counts.tracker.not_followed.late,
            "processes of other users were known late, because reading their mappings takes long or is held up: until then \
             some of their code is [unknown]",
        ),
        line(counts.tracker.others, "samples of other programs were taken and dropped"),
        line(counts.tracker.unjudged, "samples were dropped before ccsd knew whether to sample their processes"),
        line(counts.tracker.withheld, "samples were dropped, because ccsd did not know whether this user may see their processes"),
        line(counts.rings.malformed, "records of the kernel made no sense and were left out"),
        line(counts.rings.late, "records came out of order"),
        line(
            counts.unwind.memory.not_permitted,
            "stacks were deeper than the copied 63 KiB, and the rest may not be read: that takes the right to trace the \
             program (root, CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0)",
        ),
        line(counts.unwind.memory.over_budget, "deep stacks or those of generated code were not read to their root: reading memory took too long"),
        line(counts.unwind.cut_stacks, "stacks were not followed to their root: unwinding them took too long (\"too deep\")"),
        line(
            counts.images.unread,
            "images could not be read when they were first seen, because no process that reads images could be asked (it had \
             failed, or was busy): until one could, stacks in them had no names and may be cut short",
        ),
        line(
            counts.images.without_file,
            "mappings are of files that were not read, because no more may be open (`ulimit -Hn`; a user's share of a \
             daemon's files): stacks in them have no names and may be cut short",
        ),
        line(counts.unwind.refused_images, "images were not unwound: too much unwind information"),
    ]
    .into_iter()
    .flatten()
}

/// Thousandths of samples that should come of what the events counted, and of the CPU time that they missed: one each
/// `period`, or if there were several periods, at the mean rate. (When that time was is not known.)
fn due_milli(counted: EventCounts, uncounted_ns: u64, period: Option<u64>) -> u64 {
    let (due_milli, ns) = period.map_or((counted.due_milli, counted.used), |period| (1000, period));
    counted.due_milli.saturating_add(part_of(due_milli, uncounted_ns.into(), ns.into()))
}

/// Samples that a clock event should have given, of `due_milli` thousandths. Where only user code is sampled, the
/// kernel's accounts say which part of the clock's time that was.
fn expected(kernel: bool, due_milli: Option<u64>, user_share: Option<(u64, u64)>) -> Option<u64> {
    let all = due_milli?;
    let sampled = match (kernel, user_share) {
        (true, _) => all,
        (false, Some((user, total))) if total > 0 => {
            u64::try_from(u128::from(all) * u128::from(user) / u128::from(total)).ok()?
        }
        (false, _) => return None,
    };
    Some(sampled.saturating_add(500) / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{RingStats, SampleStats};
    use crate::tracker::TrackerStats;
    use crate::unwind::UnwindStats;
    use crate::unwind::memory::MemoryRefusals;

    #[test]
    fn failures_are_noted() {
        assert_eq!(troubles(&BatchCounts::default()).count(), 0);
        let memory = MemoryRefusals { not_permitted: 5, over_budget: 6, moved_on: 7 };
        let counts = BatchCounts {
            rings: RingStats { lost_tracking: 1, malformed: 3, late: 4, ..RingStats::default() },
            tracker: TrackerStats { others: 2, ..TrackerStats::default() },
            unwind: UnwindStats { memory, cut_stacks: 8, refused_images: 9, ..UnwindStats::default() },
            ..BatchCounts::default()
        };
        let notes: Vec<String> = troubles(&counts).collect();
        // That a stack had moved on is said by the stack.
        let numbers: Vec<&str> = notes.iter().map(|note| note.split(' ').next().unwrap()).collect();
        assert_eq!(numbers, ["1", "2", "3", "4", "5", "6", "8", "9"]);
    }

    #[test]
    fn what_events_missed_is_expected_too() {
        let counted = EventCounts { used: 400, ticks: 0, due_milli: 2_000 };
        assert_eq!(due_milli(counted, 0, Some(100)), 2_000);
        assert_eq!(due_milli(counted, 50, Some(100)), 2_500);
        assert_eq!(due_milli(counted, 50, None), 2_250);
    }

    #[test]
    fn programs_with_other_rights_are_noted() {
        assert_eq!(other_rights(0), None);
        let notes = [1, 2].map(|programs| other_rights(programs).unwrap());
        assert!(notes.iter().all(|note| note.starts_with(notes::OTHER_RIGHTS)), "{notes:?}");
        assert!(notes[0].contains("a program that") && notes[1].contains("2 programs that"), "{notes:?}");
    }

    #[test]
    fn other_lost_records_are_not_samples() {
        let samples = SampleStats { received: 800, ..SampleStats::default() };
        let rings = RingStats { lost: 1000, ..RingStats::default() };
        let counts = BatchCounts { samples, rings, ..BatchCounts::default() };
        assert_eq!(lost_samples(&counts, Some(900)), 1000, "nothing else is in these rings");
        let beside = BatchCounts { rings: RingStats { beside_samples: 200, ..rings }, ..counts };
        assert_eq!((lost_samples(&beside, None), beside.rings.lost - beside.lost_samples()), (800, 200));
        assert_eq!(lost_samples(&beside, Some(2_000)), 800);
        assert_eq!(troubles(&beside).next().map(|note| note.starts_with("200 records")), Some(true));
        // No more than were expected: but for those that were throttled and dropped, and fifty more, they are here.
        let short = BatchCounts {
            samples: SampleStats { dropped: 30, ..samples },
            rings: RingStats { throttled: 20, ..beside.rings },
            ..beside
        };
        assert_eq!((lost_samples(&short, Some(900)), lost_samples(&short, Some(700))), (50, 0));
        // Where all CPUs are sampled, others' samples are lost as well.
        let samples = SampleStats { received: 400, ..samples };
        let tracker = TrackerStats { others: 400, ..TrackerStats::default() };
        assert_eq!(lost_samples(&BatchCounts { samples, tracker, ..counts }, None), 500);
    }

    #[test]
    fn samples_dropped_unjudged_are_expected_if_they_turn_out_to_be_own() {
        let of = |received, filtered, unjudged_own| {
            let unjudged = unjudged_own * 2;
            let tracker =
                TrackerStats { filtered, unjudged, unjudged_own, others: filtered, ..TrackerStats::default() };
            let samples = SampleStats { received, ..SampleStats::default() };
            BatchCounts { samples, tracker, ..BatchCounts::default() }.judged().own_part(1_000)
        };
        assert_eq!(of(900, 0, 0), 1_000, "all is the target's");
        assert_eq!((of(450, 450, 0), of(0, 900, 0)), (500, 0));
        assert_eq!((of(400, 500, 0), of(400, 500, 50)), (445, 500));
    }

    #[test]
    fn why_time_was_not_sampled() {
        let missing =
            |undelivered: u64| Accounting { expected: Some(300), received: 300 - undelivered, ..Accounting::default() };
        let why = |undelivered, leftovers| {
            unseen(&missing(undelivered), EventLayout::Threads, leftovers, "-F").unwrap_or_default()
        };
        assert_eq!(why(15, 4), "");
        assert!(why(40, 4).starts_with("13% of the CPU time was not sampled: timers came late"), "{}", why(40, 4));
        assert!(why(40, 40).contains("threads that live for about a sampling period"), "{}", why(40, 40));
    }
}
