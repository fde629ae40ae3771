//! The sampling thread: rings in, batches of unwound stacks out.
//!
//! Owns the rings, the process table and the unwinder. Stacks are unwound in the ring, as their bytes are gone
//! afterwards; names and contexts are the aggregator's. If that falls behind, the batch grows to a limit, then samples
//! are dropped and counted; mappings, forks and names never are.

mod active_events;
mod attach;
mod channels;
mod clock_check;
mod clocks;
mod duplicate_events;
mod group_events;
mod hurry;
mod kept_deaths;
mod left_out_pids;
mod pipeline;
mod rate;
mod sleep;
mod source;
mod target_time;
mod throttling;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ccsd_profile::notes;
use ccsd_symbolizer::Door;
use crossbeam_channel::TryRecvError;

use crate::batch::{Mark, TargetStats};
use crate::budget::Budget;
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::other_process;
use crate::pace::RateController;
use crate::perf::counters::EventCounts;
use crate::perf::files::FileShare;
use crate::perf::set::{EventSet, OpenOutcome};
use crate::perf::sorter::{EventSorter, MARGIN_NS};
use crate::process::filter::ProcessFilter;
use crate::process::owner::Owner;
use crate::procfs;
use crate::sched_priority::{Urgency, become_favoured, become_ordinary, become_urgent};
use crate::tracker::round::Round;
use crate::usage::{Aside, aside_ns, thread_work_ns};
use attach::{RefusedPids, refusal};
use clock_check::ClockCheck;
use group_events::GroupEvents;
use hurry::{Hurry, LateReads};
use pipeline::Pipeline;
use rate::RateControl;
use sleep::Sleep;
use source::{BETWEEN_READS, RecordSource, close_elsewhere};
use target_time::TargetTime;

pub use channels::{Channels, SamplerCommand};
pub use left_out_pids::LeftOutPids;

/// The first update comes after this time, in nanoseconds, however long the interval is.
const FIRST_INTERVAL_NS: u64 = 60_000_000;
/// Threads whose CPU time is read at once at most.
const MAX_THREAD_TIMES: usize = 512;
/// Nanoseconds between two such readings, and for each thread that was read, which takes some 4 us.
const THREAD_TIMES_NS: u64 = 200_000_000;
const THREAD_TIME_NS: u64 = 4_000_000;
/// The time between two looks at the target's processes in /proc: so many times what the last one took, and at most so many
/// nanoseconds.
const LOOK_SHARE: u64 = 200;
const MAX_LOOK_NS: u64 = 1_000_000_000;
/// Time after which no more of other users' processes are looked at before sampling of the machine begins, nanoseconds.
const MAX_FIRST_LOOK_NS: u64 = 500_000_000;
/// Longest sleep between two looks at the rings.
const MAX_SLEEP_MS: u16 = 100;

/// The sampling thread: its source of records and when it does what.
pub struct Sampler {
    source: RecordSource,
    sleep: Sleep,
    interval: Duration,
    exits: bool,
    /// Attached, not spawned: there is no `wait4` usage for the target.
    attached: bool,
    /// Whether the session ends with its last process. The one who waits for a child says so himself.
    ends_with_target: bool,
    observes_machine: bool,
    owner: Option<Owner>,
    is_ordinary: bool,
    /// When the first event was opened, if that was before [`Sampler::run`].
    started: Option<u64>,
    ended_threads: u64,
    hurry: Hurry,
    rate: RateControl,
    groups: GroupEvents,
    clock_check: ClockCheck,
    /// Other users' processes that were there at the beginning and have not been looked at.
    unread: Round<u32>,
}

pub struct Schedule {
    urgency: Urgency,
    started: u64,
    interval: u64,
    next_interval: u64,
    next_look: u64,
    next_thread_times: u64,
}

impl Sampler {
    pub fn door(&self) -> &Door {
        self.source.pipeline.tracker.images.door()
    }

    /// A sampler for `events`, whose rings are `sorter`, of all processes or an owner's. An update is due every
    /// `interval`. `pace` has the current rate and decides its changes. Errors: [`Error::OpenFiles`]
    pub fn new(
        events: EventSet,
        sorter: EventSorter,
        channels: Channels,
        interval: Duration,
        owner: Option<Owner>,
        budget: &Budget,
        pace: RateController,
    ) -> Result<Sampler> {
        let sleep = Sleep::new(sorter.rings(), &channels.wake)?;
        let mut pipeline = Pipeline::new(events.spec(), events.layout(), sorter.rings().len(), owner, budget);
        let rate = RateControl::new(pace, now_ns());
        pipeline.sampler.cost = rate.cost();
        Ok(Sampler {
            source: RecordSource { events, sorter, channels, pipeline, time: TargetTime::default() },
            sleep,
            interval,
            exits: false,
            attached: false,
            ends_with_target: false,
            observes_machine: false,
            owner,
            is_ordinary: false,
            started: None,
            ended_threads: 0,
            hurry: Hurry::default(),
            rate,
            groups: GroupEvents::default(),
            clock_check: ClockCheck::default(),
            unread: Round::default(),
        })
    }

    /// The process ends with the session: what takes long to close is left to a child, see [`EventSet::close_at_exit`].
    pub fn exits_with_process(&mut self) {
        self.exits = true;
    }

    pub fn is_ordinary(&mut self) {
        self.is_ordinary = true;
    }

    /// Bounds the files of images from now on.
    pub fn share_files(&mut self, share: Arc<dyn FileShare>) {
        self.source.pipeline.tracker.images.share_files(share);
    }

    /// Keeps samples of processes only while these fit a filter, if there is one. To be called before any is followed.
    pub fn keep_only(&mut self, filter: Option<Arc<dyn ProcessFilter>>) {
        self.source.pipeline.tracker.keep_only(filter);
    }

    /// Opens the events of a process that has yet to call `execve`. Errors: those of [`EventSet::open_thread`];
    /// [`Error::NotPermitted`] if it is not the owner's.
    pub fn prepare_child(&mut self, pid: u32) -> Result<()> {
        let RecordSource { events, pipeline, time, .. } = &mut self.source;
        events.begin_cpus();
        pipeline.tracker.may_follow(pid).map_err(|denied| refusal(denied, pid))?;
        if events.open_thread(pid, false)? == OpenOutcome::Gone {
            return Err(Error::DiedDuringAttach(pid));
        }
        time.begin_child(pid);
        pipeline.tracker.enter_waiting_child(pid).map_err(|denied| refusal(denied, pid))
    }

    /// Opens the events of every thread of `pids`, and with `children` of all descendants, until a scan of /proc finds
    /// no thread that is neither open nor inherited. Errors: [`Error::DiedDuringAttach`] if all are gone before any
    /// could be opened, [`Error::NotPermitted`], [`Error::TooManyFiles`].
    pub fn attach(&mut self, pids: &[u32], children: bool) -> Result<()> {
        self.attached = true;
        self.ends_with_target = true;
        self.started = Some(now_ns());
        self.source.events.begin_cpus();
        // The rings fill from the first thread on.
        let urgent = if self.is_ordinary { Ok(false) } else { become_urgent() };
        let attached = attach::open_all(&mut self.source, pids, children, &mut RefusedPids::Never);
        if matches!(urgent, Ok(true)) {
            let _ = become_ordinary();
        }
        match pids.first() {
            Some(&pid) if attached? == 0 => Err(Error::DiedDuringAttach(pid)),
            _ => Ok(()),
        }
    }

    /// Follows more processes and their descendants; followed ones stay as they are.
    ///
    /// # Errors
    /// [`Error::TooManyFiles`]; some processes or threads may be followed then.
    pub fn add(&mut self, pids: &[u32]) -> Result<LeftOutPids> {
        self.attached = true;
        self.started = self.started.or_else(|| Some(now_ns()));
        self.source.events.begin_cpus();
        let mut refused = RefusedPids::These(LeftOutPids::default());
        attach::open_all(&mut self.source, pids, true, &mut refused)?;
        match refused {
            RefusedPids::These(pids) => Ok(pids),
            RefusedPids::Never => Ok(LeftOutPids::default()),
        }
    }

    /// Takes all that runs for the target, as far as it fits the filter. The events sample whole CPUs already.
    pub fn observe_machine(&mut self) {
        self.observes_machine = true;
        self.source.pipeline.tracker.observe_machine();
        // Other users' processes come last, and only for so long: however many of them sleep, sampling begins. Those that are left
        // are read later, a portion at a time, or when they are sampled or fork.
        let (others, own): (Vec<u32>, Vec<u32>) =
            procfs::processes().into_iter().partition(|&pid| other_process::user(pid).is_some());
        for (looked_at, pid) in own.into_iter().enumerate() {
            if looked_at % BETWEEN_READS == 0 {
                self.source.read_recent();
            }
            self.source.enter_found(pid);
        }
        self.unread = Round::of(others);
        let began = now_ns();
        while self.unread.is_going_on() && now_ns().saturating_sub(began) < MAX_FIRST_LOOK_NS {
            self.source.read_recent();
            self.unread.portion(now_ns(), |pid| self.source.enter_found(pid));
        }
        self.source.drain();
        self.started = Some(now_ns());
        self.source.events.count_machine();
        if self.source.pipeline.tracker.is_restricted() {
            self.groups = GroupEvents::begin();
            self.review_groups();
        }
        self.source.events.begin_cpus();
    }

    /// Samples until told to stop or, after [`Sampler::attach`], until no process of the target is left.
    /// Samples until the session ends. Returns the CPU time of this thread that the last batch reports, nanoseconds; after that it
    /// frees its memory.
    pub fn run(mut self) -> u64 {
        other_process::wait_no_longer_than_samples(self.owner.map(|owner| owner.uid));
        let mut schedule = self.begin();
        while self.turn(&mut schedule) {}
        self.finish()
    }

    /// The time when sampling begins, and when what is due next.
    pub fn begin(&mut self) -> Schedule {
        let mut urgency = Urgency::default();
        // For as long as it is not urgent, because it has taken too much: a hundred ordinary threads would leave it too little.
        if !self.is_ordinary {
            become_favoured();
            self.source.pipeline.sampler.waits_its_turn = urgency.begin(now_ns()).is_err();
        }
        let started = self.started.unwrap_or_else(now_ns);
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        // A user who has just asked wants to see something.
        let next_interval = now_ns().saturating_add(interval.min(FIRST_INTERVAL_NS));
        Schedule { urgency, started, interval, next_interval, next_look: 0, next_thread_times: next_interval }
    }

    /// One turn of the loop: sleeps, handles commands, and reads the rings. Returns whether the session goes on.
    pub fn turn(&mut self, schedule: &mut Schedule) -> bool {
        self.source.channels.watchdog.beat();
        let now = now_ns();
        let usual = if self.source.pipeline.tracker.is_rereading() { 0 } else { MAX_SLEEP_MS };
        let most = self.hurry.sleep_ms(now, usual);
        let until_interval = schedule.next_interval.saturating_sub(now).div_ceil(1_000_000);
        self.sleep.for_ms(u16::try_from(until_interval).unwrap_or(most).min(most));
        let command = match self.source.channels.commands.try_recv() {
            Ok(command) => Some(command),
            // The session's handle is gone.
            Err(TryRecvError::Disconnected) => Some(SamplerCommand::Stop { target_cpu_ns: None }),
            Err(TryRecvError::Empty) => None,
        };
        let now = now_ns();
        schedule.urgency.review(now);
        self.rate.review(&mut self.source, now);
        self.source.pipeline.sampler.duration_ns = now.saturating_sub(schedule.started);
        match command {
            Some(SamplerCommand::Stop { target_cpu_ns }) => {
                // Of the whole machine a program is but a part.
                if !self.observes_machine {
                    self.source.time.end_child(target_cpu_ns);
                }
                return false;
            }
            Some(SamplerCommand::Add { pids, answer }) => {
                // Once for each command; the next sleep would else be none.
                let _ = nix::unistd::read(&self.source.channels.wake, &mut [0]);
                let added = self.add(&pids);
                // Who has asked may have gone.
                let _ = answer.send(added);
            }
            None => {}
        }
        self.round(now.saturating_sub(MARGIN_NS));
        self.source.pipeline.tracker.judge(now_ns());
        self.source.pipeline.tracker.review_memberships(now_ns());
        // A portion a turn, with the usual sleep: this thread comes before those that look for processes of other watches.
        self.unread.portion(now_ns(), |pid| self.source.enter_found(pid));
        self.review_groups();
        if self.observes_machine {
            self.compare_clocks(now_ns());
        }
        if self.ends_with_target && self.source.pipeline.tracker.is_empty() {
            return false;
        }
        // A batch that found no room at an interval's end has got more samples since: the counters are read again for these.
        let has_room_at_last = self.source.pipeline.batch.is_marked() && !self.source.channels.batches.is_full();
        let is_due = now >= schedule.next_interval || has_room_at_last || self.source.pipeline.take_died();
        if is_due {
            // Intervals that were slept through are not made up for.
            schedule.next_interval = now.saturating_add(schedule.interval);
            self.read_counters_and_look(&mut schedule.next_look);
            self.source.pipeline.batch.mark(Mark::Interval);
        }
        if now >= schedule.next_thread_times {
            schedule.next_thread_times = now.saturating_add(self.read_thread_times());
        }
        if is_due || !self.source.pipeline.batch.is_marked() {
            self.hand_on(false);
        }
        true
    }

    /// Before all processes are known, it is not known in which groups those are that are sampled.
    fn review_groups(&mut self) {
        if !self.unread.is_going_on() {
            self.groups.review(&mut self.source, &self.sleep, now_ns());
        }
    }

    /// Compares processes' samples with their CPU clocks. Not while groups are sampled: processes that come and go in others have no
    /// samples.
    fn compare_clocks(&mut self, now: u64) {
        let RecordSource { events, pipeline, channels, .. } = &mut self.source;
        if !events.groups().is_empty() {
            return self.clock_check.begin_anew();
        }
        if channels.watchdog.has_generations() {
            self.clock_check.renew(now);
        }
        self.clock_check.review(pipeline, (events.spec(), events.cpus()), now);
    }

    fn finish(mut self) -> u64 {
        // Clocks of a target that goes on cannot be compared with events that have been stopped.
        self.read_counters_and_look(&mut 0);
        let _ = self.read_thread_times();
        self.source.events.stop();
        self.note_idle_time();
        self.round(u64::MAX);
        self.read_counters();
        self.source.pipeline.batch.mark(Mark::End);
        if self.exits {
            // Before anybody is told to leave.
            self.source.events.close_at_exit();
        }
        self.hand_on(true);
        self.source.pipeline.sampler.cpu_ns
    }

    fn note_idle_time(&mut self) {
        let Some(times) = self.source.events.machine_times().filter(|times| times.busy + times.idle > 0) else {
            return;
        };
        let idle = times.idle as f64 / (times.busy + times.idle) as f64 * 100.0;
        let cpus = self.source.events.cpus();
        let plural = if cpus == 1 { "" } else { "s" };
        self.source.pipeline.batch.note(format!("{}: {cpus} CPU{plural}, idle {idle:.1}% of the time", notes::MACHINE));
    }

    /// Reads what the events counted, and how the kernel splits the live processes' time in user and system.
    fn read_counters(&mut self) {
        let RecordSource { events, pipeline, time, .. } = &mut self.source;
        pipeline.sampler.cpu_ns = thread_work_ns();
        pipeline.sampler.images_ns = aside_ns(Aside::Images);
        pipeline.sampler.held_bytes = pipeline.unwinding.held_bytes().saturating_add(pipeline.tracker.held_bytes());
        pipeline.tracker.count_live();
        events.tell_threads(pipeline.tracker.stats().live_threads);
        let ended = pipeline.tracker.stats().ended_threads;
        let has_ended = std::mem::replace(&mut self.ended_threads, ended) != ended;
        let closing = if has_ended { events.take_ended() } else { Vec::new() };
        let totals = events.read_counters();
        time.count(totals.counted);
        pipeline.raise_lost(totals.lost);
        if self.observes_machine {
            pipeline.tracker.forget_ended();
            time.set_user_share(events.machine_times().map(|times| (times.user, times.busy)));
            time.count_grouped(self.groups.stats(events, &pipeline.counts()));
        }
        pipeline.target = time.stats();
        if has_ended {
            close_elsewhere(closing);
            self.source.read_recent();
        }
    }

    /// The same, and, if it is time for that, what /proc says of the target's processes: which have ended, and what they
    /// spent beyond the events' counts, by their clocks. That is unknown without inheritance.
    fn read_counters_and_look(&mut self, next_look: &mut u64) {
        let began = now_ns();
        if self.observes_machine || began < *next_look {
            return self.read_counters();
        }
        let inherits = self.source.pipeline.tracker.inherits();
        let spent_by = |source: &mut TargetTime, pids: &[u32]| if inherits { source.read_clocks(pids) } else { 0 };
        // Before the events, so that the difference is not too large.
        let pids = self.source.pipeline.tracker.pids();
        let spent = spent_by(&mut self.source.time, &pids);
        self.read_counters();
        let RecordSource { pipeline, time, .. } = &mut self.source;
        if self.attached {
            pipeline.tracker.forget_the_dead();
            time.read_ticks(&pipeline.tracker.pids());
        }
        time.compare(spent, |time| spent_by(time, &pipeline.tracker.pids()));
        pipeline.target = time.stats();
        let ended = now_ns();
        let took = ended.saturating_sub(began);
        *next_look = ended.saturating_add(took.saturating_mul(LOOK_SHARE).min(MAX_LOOK_NS));
    }

    /// Reads threads' CPU time where much of the target's is in no sample, to charge the right ones. Returns
    /// nanoseconds until the next time.
    fn read_thread_times(&mut self) -> u64 {
        let received = self.source.pipeline.counts().samples.received;
        let Pipeline { tracker, batch, target, .. } = &mut self.source.pipeline;
        let TargetStats { counted, uncounted_ns, .. } = *target;
        let Some(EventCounts { used, due_milli, .. }) = counted else { return THREAD_TIMES_NS };
        if uncounted_ns <= used / 100 && received.saturating_mul(1000) >= due_milli / 100 * 99 {
            return THREAD_TIMES_NS;
        }
        let mut read = 0;
        for (pid, tid, key) in tracker.sampled_threads().take(MAX_THREAD_TIMES) {
            if let Some(ns) = procfs::thread_cpu_ns(pid, tid) {
                batch.thread_time(key, ns, !self.attached);
            }
            read += 1;
        }
        THREAD_TIMES_NS.max(read * THREAD_TIME_NS)
    }

    fn round(&mut self, horizon: u64) {
        self.source.read_rings(horizon);
        let RecordSource { events, sorter, pipeline, .. } = &mut self.source;
        let closing: Vec<OwnedFd> = pipeline.events.take_redundant().flat_map(|id| events.take_late(id)).collect();
        close_elsewhere(closing);
        let counts = pipeline.counts();
        let (samples, unwinding) = (counts.samples.received, &pipeline.unwinding);
        let (in_time, missed) = (unwinding.read_anew(), unwinding.read_too_late());
        let reads = LateReads { samples, in_time, missed, disagreed: unwinding.disagreed() };
        self.hurry.review(now_ns(), reads);
        pipeline.end_round(sorter.late(), horizon == u64::MAX);
    }

    fn hand_on(&mut self, wait: bool) {
        let RecordSource { pipeline, channels, .. } = &mut self.source;
        if pipeline.batch.take_due() {
            pipeline.send(channels, wait);
        }
    }
}
