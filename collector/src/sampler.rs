//! The sampling thread: rings in, batches of unwound stacks out.
//!
//! It owns the rings, the process table and the unwinder. Stacks are unwound where they lie in the ring, because their
//! bytes are gone once the room is given back; everything that can wait (names, contexts) is the aggregator's. If the
//! aggregator falls behind, the batch grows to a limit and then samples are dropped and counted; mappings, forks and
//! names never are.

mod attach;
mod clocks;
mod doubts;
mod rate;
mod records;
mod sleep;
mod throttling;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use ccsd_symbolizer::Door;
use crossbeam_channel::{Receiver, Sender, TryRecvError};

use crate::batch::{Batch, Item, Mark};
use crate::budget::Budget;
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::give_back::give_back;
use crate::pace::Pace;
use crate::perf::set::{EventSet, Opened};
use crate::perf::sorter::{EventSorter, MARGIN_NS};
use crate::process::filter::Filter;
use crate::process::jit_code::JitEvent;
use crate::process::owner::{Denied, Owner};
use crate::procfs;
use crate::promptness::Urgency;
use crate::pulse::Pulse;
use crate::usage::{Aside, aside_ns, thread_cpu_ns};
use clocks::ProcessClocks;
use rate::RateControl;
use records::State;
use sleep::Sleep;

/// A batch is handed on when it has grown to this, even in the middle of a round: 64 KiB of frames are some 150 stacks.
const BATCH_BYTES: usize = 64 << 10;
/// A batch that is smaller than that waits this long, in nanoseconds, so that the aggregator wakes a few times a second
/// and not at every look at the rings.
const BATCH_NS: u64 = 200_000_000;
/// The first update comes after this time, in nanoseconds, however long the interval is.
const FIRST_INTERVAL_NS: u64 = 60_000_000;
/// Longest sleep between two looks at the rings.
const MAX_SLEEP_MS: u16 = 100;

/// The same while stacks are missed that change before they are read, and for how long, nanoseconds, after one was: the
/// rings wake ccsd when they are a quarter full, which deep stacks of a busy CPU take 16 ms for. A program whose stacks are
/// deep all the time misses one in this time again and again; one that misses a few a second (a compiler) would have ccsd
/// wake up for nothing: with 100 ms it did so 290 times a second.
const HURRIED_SLEEP_MS: u16 = 1;
const HURRY_NS: u64 = 20_000_000;

/// Threads whose events are opened between two looks at the rings, so that these do not run full.
const BETWEEN_READS: usize = 64;

/// How often it is tried again to read what nobody could be asked for, nanoseconds.
const ASK_AGAIN_NS: u64 = 1_000_000_000;

/// What the sampler is told.
#[derive(Clone, Debug)]
pub enum Command {
    /// Follow these processes, too, with all that descend from them. Those already followed stay as they are. Which are
    /// refused is answered.
    Add {
        /// Processes.
        pids: Vec<u32>,
        /// Where the answer goes.
        answer: Sender<Result<Vec<u32>>>,
    },
    /// End the collection in order. The target's CPU time, user and in all, in nanoseconds, if the caller knows it.
    Stop {
        /// `(user, user + system)`
        target_cpu_ns: Option<(u64, u64)>,
    },
}

/// The channels of a sampler.
pub struct Channels {
    /// Where batches go.
    pub batches: Sender<Batch>,
    /// Where empty ones come back.
    pub empty: Receiver<Batch>,
    /// What to do.
    pub commands: Receiver<Command>,
    /// Becomes readable with every command, to end a sleep.
    pub wake: OwnedFd,
    /// Shows that the sampler is at work.
    pub pulse: Arc<Pulse>,
}

/// The state of the sampling thread.
pub struct Sampler {
    events: EventSet,
    sorter: EventSorter,
    channels: Channels,
    sleep: Sleep,
    interval: Duration,
    /// Whether the process ends with the session.
    exits: bool,
    /// Whether the target ran before: nobody waits for its end and says how much CPU time it used.
    attached: bool,
    /// Whether the session ends with its last process. The one who waits for a child says so himself.
    ends_with_target: bool,
    /// When the first event was opened, if that was before [`Sampler::run`].
    started: Option<u64>,
    /// When the last batch was handed on.
    handed_on: u64,
    /// Until when it looks at the rings as often as it can.
    hurry_until: u64,
    /// When images were last asked for that could not be read.
    asked_again: u64,
    rate: RateControl,
    /// Of all processes that are followed.
    clocks: ProcessClocks,
    /// How much the clocks were ahead of the events at the first look.
    clock_lead: Option<u64>,
    /// What a recorded program has spent with all that it waited for, once it has ended.
    child_ns: u64,
    state: State,
}

impl Sampler {
    /// Through which files are opened for the session.
    pub fn door(&self) -> &Door {
        self.state.images.door()
    }

    /// A sampler for `events`, whose rings are `sorter`, of all processes or of an owner's alone. An update is due every
    /// `interval`. What it remembers keeps to `budget`. `pace` has the rate that they have, and says when they are to have
    /// another.
    ///
    /// # Errors
    /// [`Error::OpenFiles`]
    pub fn new(
        events: EventSet,
        sorter: EventSorter,
        channels: Channels,
        interval: Duration,
        owner: Option<Owner>,
        budget: &Budget,
        pace: Pace,
    ) -> Result<Sampler> {
        let sleep = Sleep::new(sorter.rings(), &channels.wake)?;
        let mut state = State::new(events.spec(), events.layout(), sorter.rings().len(), owner, budget);
        let rate = RateControl::new(pace, now_ns());
        state.counts.cost = rate.cost();
        Ok(Sampler {
            events,
            sorter,
            channels,
            sleep,
            interval,
            exits: false,
            attached: false,
            ends_with_target: false,
            started: None,
            handed_on: 0,
            hurry_until: 0,
            asked_again: 0,
            rate,
            clocks: ProcessClocks::default(),
            clock_lead: None,
            child_ns: 0,
            state,
        })
    }

    /// Nothing comes after it: see [`give_back`].
    pub fn exits_with_process(&mut self) {
        self.exits = true;
    }

    /// Keeps samples of processes only while these fit a filter, if there is one. To be called before any is followed.
    pub fn keep_only(&mut self, filter: Option<Arc<dyn Filter>>) {
        self.state.keep_only(filter);
    }

    /// Opens the events of a process that has yet to call `execve`.
    ///
    /// # Errors
    /// Those of [`EventSet::open_thread`]; [`Error::NotPermitted`] if it is not the owner's.
    pub fn prepare_child(&mut self, pid: u32) -> Result<()> {
        self.state.may_follow(pid).map_err(|denied| refusal(denied, pid))?;
        if self.events.open_thread(pid, false)? == Opened::Gone {
            return Err(Error::DiedDuringAttach(pid));
        }
        self.clocks.begin_child(pid);
        self.state.waiting_child = Some(pid);
        self.state.enter(pid).map_err(|denied| refusal(denied, pid))?;
        self.state.table.add_thread(pid, pid, String::new());
        Ok(())
    }

    /// Samples until told to stop or, after [`Sampler::attach`], until no process of the target is left.
    pub fn run(mut self) {
        let mut urgency = Urgency::default();
        self.state.counts.waits_its_turn = urgency.begin(now_ns()).is_err();
        let started = self.started.unwrap_or_else(now_ns);
        let interval = u64::try_from(self.interval.as_nanos()).unwrap_or(u64::MAX).max(1);
        // Whoever has just asked wants to see something.
        let mut next_interval = now_ns().saturating_add(interval.min(FIRST_INTERVAL_NS));
        loop {
            self.channels.pulse.beat();
            let now = now_ns();
            let most = if now < self.hurry_until { HURRIED_SLEEP_MS } else { MAX_SLEEP_MS };
            let until_interval = next_interval.saturating_sub(now).div_ceil(1_000_000);
            self.sleep.for_ms(u16::try_from(until_interval).unwrap_or(most).min(most));
            let command = match self.channels.commands.try_recv() {
                Ok(command) => Some(command),
                // Nobody is left who could want the result.
                Err(TryRecvError::Disconnected) => Some(Command::Stop { target_cpu_ns: None }),
                Err(TryRecvError::Empty) => None,
            };
            let now = now_ns();
            urgency.review(now);
            self.review_rate(now);
            self.state.counts.duration_ns = now.saturating_sub(started);
            match command {
                Some(Command::Stop { target_cpu_ns }) => {
                    self.state.user_share = target_cpu_ns.or(self.state.user_share);
                    let child = target_cpu_ns.map_or(0, |(_, all)| all);
                    self.child_ns = child.saturating_sub(self.clocks.before_exec());
                    break;
                }
                Some(Command::Add { pids, answer }) => {
                    // Once for each command; the next sleep would else be none.
                    let _ = nix::unistd::read(&self.channels.wake, &mut [0]);
                    let added = self.add(&pids);
                    // Who has asked may have gone.
                    let _ = answer.send(added);
                }
                None => {}
            }
            self.round(now.saturating_sub(MARGIN_NS));
            self.state.judge(now_ns());
            if self.ends_with_target && self.state.table.is_empty() {
                break;
            }
            if now >= next_interval || std::mem::take(&mut self.state.died) {
                // Intervals that were slept through are not made up for.
                next_interval = now.saturating_add(interval);
                self.read_counters_and_clocks();
                self.state.remembered = self.state.table.remembered_frames();
                self.state.batch.mark = Mark::Interval;
            }
            self.hand_on(false);
        }
        self.finish();
    }

    fn finish(mut self) {
        // Clocks of a target that goes on cannot be compared with events that have been stopped.
        self.read_counters_and_clocks();
        self.events.stop();
        self.round(u64::MAX);
        self.read_counters();
        self.state.batch.mark = Mark::End;
        if self.exits {
            // Before anybody is told to leave.
            self.events.close_at_exit();
        }
        self.hand_on(true);
        // The events go in any case: a target that runs on would hand them down to all that it starts.
        let Sampler { state, exits, .. } = self;
        give_back(state, exits);
    }

    /// Reads what the events counted, and how the kernel splits the live processes' time in user and system.
    fn read_counters(&mut self) {
        self.state.counts.sampler_cpu_ns = thread_cpu_ns();
        self.state.counts.sampler_images_ns = aside_ns(Aside::Images);
        let live = self.state.table.held_bytes() as u64;
        self.state.counts.live_threads = self.state.table.live_threads();
        (self.state.counts.threads, self.state.counts.processes) = self.state.table.ever();
        self.state.counts.held_bytes = self.state.unwinder.held_bytes().saturating_add(live);
        let told = self.events.told();
        self.state.counts.counted = told.counted;
        self.state.told_lost(told.lost);
        if self.attached {
            let mut sum = (0u64, 0u64);
            self.state.forget_the_dead();
            for pid in self.state.table.pids() {
                let Ok(stat) = procfs::stat(pid) else { continue };
                let before = self.state.cpu_before.get(&pid).copied().unwrap_or_default();
                let user = stat.cpu_ticks.0.saturating_sub(before.0);
                sum.0 += user;
                sum.1 += user + stat.cpu_ticks.1.saturating_sub(before.1);
            }
            if sum.1 > 0 {
                self.state.user_share = Some(sum);
            }
        }
        self.state.counts.user_share = self.state.user_share;
    }

    /// The same, and finds out what the target has spent beyond what the events counted, as far as the clocks of its
    /// processes know. What these are ahead at the first look is `execve` itself, or was spent before the events were there.
    fn read_counters_and_clocks(&mut self) {
        // Before the events, so that the difference is not too large.
        let spent = self.read_clocks();
        self.read_counters();
        let Some(used) = self.state.counts.counted.map(|counted| counted.used) else { return };
        match self.clock_lead {
            // After the events: what is left out here must not be less than it is.
            None => {
                let spent = self.read_clocks();
                self.clock_lead = Some(spent.saturating_sub(used));
            }
            Some(lead) => {
                let uncounted = spent.saturating_sub(lead).saturating_sub(used);
                // What processes spent between the last look and their end is missing in `spent` alone.
                self.state.counts.uncounted_ns = self.state.counts.uncounted_ns.max(uncounted);
            }
        }
    }

    /// What the target has spent by the clocks of its processes, or somewhat less. Without inheritance, what a process starts
    /// is not the session's, and nothing is known.
    fn read_clocks(&mut self) -> u64 {
        if !self.state.inherits() {
            return 0;
        }
        self.clocks.read(&self.state.table.pids()).max(self.child_ns)
    }

    /// Handles every record of the rings that is older than `horizon`.
    fn read_rings(&mut self, horizon: u64) {
        let (sorter, state, channels) = (&mut self.sorter, &mut self.state, &self.channels);
        sorter.drain(horizon, |ring, record| {
            channels.pulse.beat();
            state.handle(ring, record);
            if state.batch.bytes() >= BATCH_BYTES && !state.queue_full {
                state.send(channels, false);
            }
        });
    }

    fn round(&mut self, horizon: u64) {
        let too_late = self.state.unwinder.read_too_late();
        self.read_rings(horizon);
        let (sorter, state) = (&self.sorter, &mut self.state);
        let events = &mut self.events;
        let closing: Vec<OwnedFd> = state.redundant.drain(..).flat_map(|id| events.take_late(id)).collect();
        close_elsewhere(closing);
        if state.unwinder.read_too_late() > too_late {
            self.hurry_until = now_ns().saturating_add(HURRY_NS);
        }
        state.counts.late = sorter.late();
        state.counts.refused_images = state.unwinder.refused_images();
        state.counts.not_followed = state.table.left_out();
        state.counts.forgotten_rules = state.unwinder.forgotten_rules();
        state.counts.images_left_out = state.images.left_out();
        state.counts.memory = state.unwinder.memory_refusals();
        state.counts.read_late = state.unwinder.read_late();
        state.counts.cut_stacks = state.unwinder.cut_stacks();
        state.queue_full = false;
        if state.tracking_lost {
            state.reread_processes(horizon == u64::MAX);
        }
        state.table.read_missed(&mut state.images);
        if state.images.jit.sweep() {
            state.announce();
            let ended = |item: &Item| if let Item::Jit(JitEvent::End(index)) = item { Some(*index) } else { None };
            state.batch.items.iter().filter_map(ended).for_each(|index| state.unwinder.drop_image(index));
        }
        if state.images.is_awaiting() && now_ns().saturating_sub(self.asked_again) >= ASK_AGAIN_NS {
            self.asked_again = now_ns();
            for index in state.images.retry() {
                state.unwinder.drop_image(index);
                state.table.translate(index, &state.images);
            }
        }
        state.counts.unread_images = state.images.unread();
        state.counts.images_without_file = state.images.without_file();
        state.images.forget_recent();
        if let Some(gone) = state.images.sweep(|| state.table.mapped_images()) {
            for index in gone {
                state.unwinder.drop_image(index);
                state.batch.items.push(Item::ImageClosed(index));
            }
        }
    }

    fn hand_on(&mut self, wait: bool) {
        let now = now_ns();
        let due = self.state.batch.mark != Mark::None || now.saturating_sub(self.handed_on) >= BATCH_NS;
        if due && !(self.state.batch.items.is_empty() && self.state.batch.mark == Mark::None) {
            self.handed_on = now;
            self.state.send(&self.channels, wait);
        }
    }
}

/// Closes events. That waits for locks that threads of the target hold while they start and end.
fn close_elsewhere(events: Vec<OwnedFd>) {
    if !events.is_empty() {
        let _ = std::thread::Builder::new().name("ccsd-close".to_owned()).spawn(move || drop(events));
    }
}

/// Why a process that was asked for is not followed.
fn refusal(denied: Denied, pid: u32) -> Error {
    match denied {
        Denied::Gone => Error::DiedDuringAttach(pid),
        Denied::Forbidden(_) => Error::NotPermitted { pid, owner: procfs::owner_name(pid) },
    }
}
