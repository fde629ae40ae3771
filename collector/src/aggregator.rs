//! The aggregating thread: batches of stacks in, updates of a profile out. Owns the profile, the resolver and the
//! threads' last stacks ([`thread_stack`]).

mod accounts;
mod cycles;
mod thread_stack;
mod thread_time;
mod tick_time;
mod unseen;
mod whole_stacks;

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::Arc;

use ccsd_profile::cgroup;
use ccsd_profile::origin::begins_at_entry;
use ccsd_profile::{CostCentreId, Membership, Payer, Process, ProcessId, Profile, Thread, TruncationReason};
use ccsd_symbolizer::Door;
use ccsd_worker::Principal;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::batch::{Batch, BatchCounts, BatchItem, Death, MAX_METRICS, Mark};
use crate::budget::Budget;
use crate::crash::{self, WholeStack};
use crate::host::container_names::ContainerNames;
use crate::pace::Overhead;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::EventLayout;
use crate::process::{ProcessKey, ThreadKey};
use crate::rate_history::RateHistory;
use crate::resolve::Resolver;
use crate::session_event::{Held, SessionEvent};
use crate::unwind::{Frame, Gap, StackRoot};
use crate::usage::Aside;
use crate::watchdog::{LOOK, Watchdog, WatchdogWait};
use crate::{system, usage};
use thread_stack::{ChargeTarget, Outside, ThreadState};
use tick_time::UnseenTime;
use whole_stacks::WholeStacks;

/// The state of the aggregating thread.
pub struct Aggregator {
    profile: Profile,
    resolver: Resolver,
    spec: EventSpec,
    layout: EventLayout,
    own_process: bool,
    /// What a user can do to see more of short threads; see [`Options::more_samples`](crate::Options::more_samples).
    more_samples: &'static str,
    /// CPU time of the process before sampling began, without the kernel's names, and what these took, nanoseconds.
    started_ns: (u64, u64),
    metrics: usize,
    crashes_left_out: u64,
    /// Sum of the samples' first weights.
    weighed: u64,
    unseen: UnseenTime,
    /// CPUs that are online: each has timers, or ticks, of its own.
    cpus: u64,
    rates: RateHistory,
    /// Their entries, and who pays for these.
    processes: HashMap<ProcessKey, (ProcessId, Option<Payer>), FxBuildHasher>,
    /// Those of `processes` that have ended, oldest first. As long as there is room they stay: their children name them.
    ended_processes: VecDeque<ProcessKey>,
    /// Images that the sampler had no room for, as far as they are counted.
    images_left_out: u64,
    threads: HashMap<ThreadKey, ThreadState, FxBuildHasher>,
    whole_stacks: WholeStacks,
    /// Names of containers, where they may be known.
    containers: Option<ContainerNames>,
    /// Whether contexts and charges have got room that other tables do not use.
    lent: bool,
}

impl Aggregator {
    /// An aggregator for an empty profile, within `budget`. `own_process`: the process's cost is the session's.
    pub fn new(
        mut profile: Profile,
        spec: EventSpec,
        layout: EventLayout,
        own_process: bool,
        budget: &Budget,
    ) -> Aggregator {
        let metrics = spec.metrics();
        profile.accounting_mut().own.memory_bytes = budget.memory;
        Aggregator {
            ended_processes: VecDeque::new(),
            images_left_out: 0,
            profile,
            resolver: Resolver::new(spec.kernel, budget),
            spec,
            layout,
            own_process,
            more_samples: "a higher rate",
            started_ns: (0, 0),
            metrics,
            crashes_left_out: 0,
            weighed: 0,
            unseen: UnseenTime::default(),
            cpus: system::online_cpus().len() as u64,
            rates: RateHistory::new(spec.rate_hz, None),
            processes: HashMap::default(),
            threads: HashMap::default(),
            whole_stacks: WholeStacks::default(),
            containers: None,
            lent: false,
        }
    }

    /// The same with the names of containers by these files.
    #[must_use]
    pub fn naming_containers(mut self, containers: Option<ContainerNames>) -> Aggregator {
        self.containers = containers;
        self
    }

    /// What a process belongs to, with the name of its container.
    fn with_container_name(&mut self, membership: Arc<Membership>) -> Arc<Membership> {
        let Some(names) = &mut self.containers else { return membership };
        // Names of containers are those of root's.
        let container = cgroup::container(&membership.cgroup).filter(|container| container.within.is_none());
        let name = container.map_or_else(String::new, |container| names.name(&container.id).to_owned());
        if name.is_empty() {
            return membership;
        }
        Arc::new(Membership { container_name: name, ..Membership::clone(&membership) })
    }

    /// Who pays for the entries of processes: their user, or the container of one that is root there. Where it was not looked
    /// what they belong to, all are the session's own.
    fn payer(&self, membership: &Membership) -> Option<Payer> {
        let user = ccsd_worker::principal_of(membership.uid?);
        match cgroup::container(&membership.cgroup) {
            Some(container) if user == Principal::Own => Some(Payer(FxBuildHasher.hash_one(container.id))),
            _ => self.resolver.payer(user),
        }
    }

    /// Says through which door the session opens files; see [`Resolver::through`].
    #[must_use]
    pub fn through(mut self, door: Door) -> Aggregator {
        self.resolver = self.resolver.through(door);
        self
    }

    /// The same for samples of so many metrics.
    #[must_use]
    pub fn with_metrics(mut self, metrics: usize) -> Aggregator {
        self.metrics = metrics;
        self
    }

    /// The same where sampling is to stay within a budget of overhead.
    pub fn within(mut self, overhead: Option<Overhead>) -> Aggregator {
        self.rates = RateHistory::new(self.spec.rate_hz, overhead);
        self
    }

    /// The same with this advice where threads live too short to be sampled.
    #[must_use]
    pub fn advising(mut self, more_samples: &'static str) -> Aggregator {
        self.more_samples = more_samples;
        self
    }

    /// Says that sampling begins. To be called by the thread that has made everything ready.
    pub fn begin(&mut self) {
        let kernel = usage::aside_ns(Aside::KernelNames);
        // Another thread may be reading the kernel's names already.
        let beside = self.resolver.kernel_names_beside_ns();
        self.resolver.begin();
        self.started_ns = (usage::own_cpu_ns().saturating_sub(kernel).saturating_sub(beside), kernel);
    }

    /// Works until the session is over, or the sampler hangs; sends an update per interval and one at the end. Returns this
    /// thread's CPU time that was reported, nanoseconds.
    pub fn run(
        mut self,
        batches: &Receiver<Batch>,
        empty: &Sender<Batch>,
        events: &Sender<SessionEvent>,
        watchdog: &Watchdog,
        held: &Held,
    ) -> u64 {
        let mut watch = WatchdogWait::default();
        let (mut counts, mut reported_ns) = (BatchCounts::default(), 0);
        let trouble = loop {
            let mut batch = match batches.recv_timeout(LOOK) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) if watchdog.end_asked() && watch.hangs(watchdog) => break HANGS,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break PANICKED,
            };
            let counts_at_end = batch.counts;
            self.absorb_with(&mut batch, |aggregator, samples_left| {
                if watchdog.has_generations() && aggregator.is_full() {
                    aggregator.begin_generation(&counts_at_end, samples_left, events);
                }
            });
            watchdog.tell_cpu(usage::thread_work_ns());
            counts = batch.counts;
            if batch.mark != Mark::None {
                match batch.mark {
                    Mark::End => self.resolver.finish_names(&mut self.profile),
                    _ => self.resolver.look_for_names(&mut self.profile),
                }
                self.account(&batch.counts, batch.mark == Mark::End);
                reported_ns = usage::thread_work_ns();
                let held_bytes = self.held_bytes().saturating_add(batch.counts.sampler.held_bytes);
                self.profile.accounting_mut().own.held_bytes = held_bytes;
                let update = self.profile.take_update();
                if watchdog.has_generations() {
                    // Who keeps every update has them.
                    self.profile.make_room_for_crashes();
                }
                held.tell(held_bytes);
                // A reader that has gone away needs no more updates; the session is stopped by its handle's drop.
                let _ = events.send(SessionEvent::Update(Box::new(update)));
            }
            let ended = batch.mark == Mark::End;
            let _ = empty.try_send(batch);
            if ended {
                self.finish(events);
                return reported_ns;
            }
        };
        watchdog.give_up();
        self.resolver.finish_names(&mut self.profile);
        self.account(&counts, true);
        let reported_ns = usage::thread_work_ns();
        self.profile.add_note(trouble);
        let update = self.profile.take_update();
        let _ = events.send(SessionEvent::Update(Box::new(update)));
        self.finish(events);
        reported_ns
    }

    fn is_full(&self) -> bool {
        let depth = usize::try_from(self.profile.accounting().stacks.max_depth).unwrap_or(usize::MAX);
        self.profile.needs_generation(depth.saturating_mul(2).clamp(LEAST_CONTEXTS, MOST_CONTEXTS))
    }

    /// Sends the pending update and begins a new generation; the threads' last stacks have contexts of the old one.
    #[cold]
    fn begin_generation(&mut self, counts: &BatchCounts, samples_left: u64, events: &Sender<SessionEvent>) {
        // The counters of events and clocks are of the last interval's end.
        let accounting = self.profile.accounting_mut();
        accounting.duration_ns = counts.sampler.duration_ns;
        accounting.received = counts.samples.received.saturating_sub(samples_left);
        let update = self.profile.take_update();
        let _ = events.send(SessionEvent::Update(Box::new(update)));
        self.profile.begin_generation();
        self.threads.values_mut().for_each(|thread| thread.until = 0);
    }

    /// Hands the profile over, before the rest is freed.
    fn finish(self, events: &Sender<SessionEvent>) {
        let _ = events.send(SessionEvent::Finished(Box::new(self.profile)));
    }

    /// What the profile, the resolver and the threads' last stacks take, bytes, about.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let stacks: usize = self.threads.values().map(ThreadState::stack_bytes).sum();
        let tables = self.threads.allocation_size() + self.processes.allocation_size();
        let own = self.profile.bytes() + stacks + tables;
        self.resolver.held_bytes().saturating_add(own as u64)
    }

    /// The profile so far.
    pub fn profile_mut(&mut self) -> &mut Profile {
        &mut self.profile
    }

    /// Names what can be named now that all is there.
    pub fn finish_names(&mut self) {
        self.resolver.finish_names(&mut self.profile);
        let named_later = self.resolver.take_named_later();
        let accounting = self.profile.accounting_mut();
        accounting.unsymbolised = accounting.unsymbolised.saturating_sub(named_later);
        for note in self.resolver.notes() {
            self.profile.add_note(&note);
        }
    }

    /// The profile; nothing more comes.
    pub fn into_profile(self) -> Profile {
        self.profile
    }

    /// Takes a batch in.
    pub fn absorb(&mut self, batch: &mut Batch) {
        self.absorb_with(batch, |_, _| {});
    }

    fn absorb_with(&mut self, batch: &mut Batch, mut before_sample: impl FnMut(&mut Aggregator, u64)) {
        let mut samples_left =
            batch.items.iter().filter(|item| matches!(item, BatchItem::Sample { .. })).count() as u64;
        self.resolver.begin_batch(&mut self.profile, &batch.frames);
        let mut frames = batch.frames.as_slice();
        let mut further_weights = batch.further_weights.as_slice();
        for item in batch.items.drain(..) {
            match item {
                BatchItem::Sample { thread, time, frames: count, common, gap, root, weights } => {
                    let (stack, rest) = frames.split_at(frames.len().min(count as usize));
                    frames = rest;
                    before_sample(self, samples_left);
                    samples_left -= 1;
                    let count = self.metrics.saturating_sub(MAX_METRICS).min(further_weights.len());
                    let (further, rest) = further_weights.split_at(count);
                    further_weights = rest;
                    self.sample(thread, time, stack, Outside { root, common, gap }, (&weights, further));
                    if let Some(thread) = self.threads.get_mut(&thread) {
                        thread.unsampled.weigh(weights[0]);
                    }
                }
                BatchItem::Crash { death, thread, time, frames: count, common, gap, root } => {
                    let (stack, rest) = frames.split_at(frames.len().min(count as usize));
                    frames = rest;
                    self.crash(*death, thread, time, stack, Outside { root, common, gap });
                }
                BatchItem::Jit(event) => self.resolver.jit_event(&mut self.profile, event),
                BatchItem::Image(image) => self.resolver.add_image(&mut self.profile, image),
                BatchItem::ImageClosed(index) => self.resolver.close(index),
                BatchItem::ImageReopened(index, image) => self.resolver.reopen(&mut self.profile, index, image),
                BatchItem::Note(note) => self.profile.add_note(&note),
                BatchItem::Rate { at, change } => {
                    if let Some(note) = self.rates.change(at, &change) {
                        self.profile.add_note(&note);
                    }
                }
                BatchItem::Process { key, parent, pid, start_time, exec_generation, name, membership } => {
                    let parent = parent.and_then(|parent| Some(self.processes.get(&parent)?.0));
                    let membership = membership.map(|membership| self.with_container_name(membership));
                    let process = Process { pid, start_time, exec_generation, parent, name, membership };
                    let payer = process.membership.as_ref().and_then(|membership| self.payer(membership));
                    let id = self.profile.paid_by(payer, |profile| profile.add_process(process));
                    self.processes.insert(key, (id, payer));
                }
                BatchItem::ProcessEnd(key) => {
                    self.ended_processes.push_back(key);
                    if self.ended_processes.len() > self.profile.limits().processes / 2
                        && let Some(oldest) = self.ended_processes.pop_front()
                    {
                        self.processes.remove(&oldest);
                    }
                }
                BatchItem::Thread { key, process, tid, name } => {
                    let Some(&(process, payer)) = self.processes.get(&process) else { continue };
                    let thread = Thread { process, tid, name };
                    let id = self.profile.paid_by(payer, |profile| profile.add_thread(thread));
                    self.threads.insert(key, ThreadState::new(id));
                }
                BatchItem::ThreadName { key, process, name } => {
                    let known = process.as_ref().and_then(|process| self.processes.get_mut(process));
                    let (thread, mut moved) = (self.threads.get_mut(&key), None);
                    let mut payer = None;
                    if let Some((process, of)) = known {
                        payer = *of;
                        let renamed = self.profile.paid_by(payer, |profile| profile.rename_process(*process, &name));
                        let before = std::mem::replace(process, renamed);
                        moved = Some(*process).filter(|&process| process != before);
                    }
                    match (thread, moved) {
                        (Some(thread), Some(process)) => {
                            let shared = Thread { process, tid: 0, name };
                            thread.id = self.profile.paid_by(payer, |profile| profile.add_thread(shared));
                        }
                        (Some(thread), None) => self.profile.rename_thread(thread.id, &name),
                        (None, _) => {}
                    }
                }
                BatchItem::ThreadTime { key, ns, is_whole } => {
                    if let Some(thread) = self.threads.get_mut(&key) {
                        thread.unsampled.read(ns, is_whole);
                    }
                }
                BatchItem::ThreadEnd(key) => {
                    self.whole_stacks.end(key);
                    if let Some(thread) = self.threads.remove(&key) {
                        self.unseen.end_thread(thread.id, thread.unsampled);
                        self.charge_ended(thread.tick, thread.id);
                    }
                }
            }
        }
    }

    /// Charges one sample; `stack` is innermost first, without what it has in common with the thread's last one.
    #[inline]
    fn sample(
        &mut self,
        thread: ThreadKey,
        time: u64,
        stack: &[Frame],
        outside: Outside,
        (weights, further): (&[u64; MAX_METRICS], &[u64]),
    ) {
        if !self.lent && self.profile.is_tight() {
            self.lent = true;
            let limits = self.resolver.lend(&self.profile);
            self.profile.set_limits(limits);
        }
        let outside = self.judge_root(time, stack, outside);
        let Some(at) = self.follow(thread, time, stack, outside) else { return };
        let Outside { root, gap, .. } = outside;
        if root == StackRoot::Complete
            && gap.is_none()
            && let Some(thread) = self.threads.get_mut(&thread)
        {
            thread.whole_at = time;
        }
        let mut weights = *weights;
        if matches!(self.spec.event, Event::Tick { .. })
            && let Some(thread) = self.threads.get_mut(&thread)
        {
            weights[0] = thread.tick.weigh(weights[0], self.spec.period_ns());
        }
        if matches!(self.spec.event, Event::CpuClockTsc { .. })
            && let Some(thread) = self.threads.get_mut(&thread)
        {
            weights[1] = thread.cycles.round(weights[1], cycles::unit(self.spec.period_ns()));
        }
        self.weighed = self.weighed.saturating_add(weights[0]);
        if further.is_empty() {
            self.profile.charge_route(
                at.thread,
                at.context,
                at.line,
                at.route,
                &weights[..self.metrics.min(MAX_METRICS)],
            );
        } else {
            self.profile.charge_route(
                at.thread,
                at.context,
                at.line,
                at.route,
                &[weights.as_slice(), further].concat(),
            );
        }

        let accounting = self.profile.accounting_mut();
        accounting.stacks.frames += at.depth;
        accounting.stacks.max_depth = accounting.stacks.max_depth.max(at.depth);
        accounting.unsymbolised += u64::from(!at.named);
        accounting.stacks.with_gap += u64::from(gap.is_some());
        if !at.named
            && let Some(&leaf) = stack.first()
        {
            self.resolver.count_nameless_leaf(leaf);
        }
        if let StackRoot::Truncated(reason) = root {
            accounting.count_truncated(reason);
        }
    }

    /// Says whether a stack that another profiler has followed is complete, which its functions' names tell.
    #[inline]
    fn judge_root(&mut self, time: u64, stack: &[Frame], outside: Outside) -> Outside {
        if outside.root != StackRoot::Truncated(TruncationReason::NoEntry) {
            return outside;
        }
        let (profile, resolver) = (&mut self.profile, &mut self.resolver);
        let outermost = stack.iter().rev().take(ENTRY_FRAMES).flat_map(|&frame| {
            let resolved = resolver.resolve(profile, frame, time);
            resolver.cost_centres(&resolved).to_vec()
        });
        let outermost: Vec<CostCentreId> = outermost.collect();
        let root = if begins_at_entry(profile, outermost) { StackRoot::Complete } else { outside.root };
        Outside { root, ..outside }
    }

    #[cold]
    fn crash(&mut self, death: Death, thread: ThreadKey, time: u64, stack: &[Frame], outside: Outside) {
        let Outside { root, common, gap } = outside;
        let Some(state) = self.threads.get(&thread) else { return };
        let outer: Vec<Frame> = state.first_frames(common.shared as usize, common.own as usize).collect();
        let age_ns = time.saturating_sub(state.whole_at);
        let is_last_whole = state.root == Some(StackRoot::Complete);
        let place = |gap: Gap| (stack.len().saturating_sub(gap.outer as usize).max(1), gap.reason);
        let (frames, gap) = (stack.to_vec(), gap.map(|gap| (gap, place(gap))));
        let mut found = WholeStack { frames, gap: gap.map(|(_, place)| place), root, earlier: Vec::new(), age_ns };
        match (root, gap) {
            (StackRoot::Complete, None) => found.frames.extend(outer.iter().rev()),
            // What was found ends where the last stack was taken to go on.
            (StackRoot::Complete, Some((gap, place))) if !outer.is_empty() => {
                found.root = StackRoot::Truncated(gap.reason);
                found.gap = (gap.outer > 0).then_some(place);
                // The last whole stack says more than what is left of it outside later gaps, where of the innermost frame only
                // the function may be known.
                let whole = self.whole_stacks.of(thread);
                let goes_on = outer.split_last().is_some_and(|(&innermost, others)| {
                    whole.starts_with(others)
                        && whole.get(others.len()).is_some_and(|&at| self.resolver.is_one_function(innermost, at))
                });
                found.earlier = if goes_on { whole.to_vec() } else { outer };
            }
            (StackRoot::Truncated(_), _) if is_last_whole => found.earlier = state.last_frames().collect(),
            (StackRoot::Truncated(_), _) => found.earlier = self.whole_stacks.of(thread).to_vec(),
            _ => {}
        }
        // The stacks that follow may have something in common with this one.
        let _ = self.follow(thread, time, stack, outside);
        self.resolver.look_for_names(&mut self.profile);
        let crash = crash::tell(death, found, time, &mut self.profile, &mut self.resolver);
        if !self.profile.add_crash(crash) {
            self.crashes_left_out += 1;
        }
    }

    #[inline]
    fn follow(&mut self, thread: ThreadKey, time: u64, stack: &[Frame], outside: Outside) -> Option<ChargeTarget> {
        let state = self.threads.get_mut(&thread)?;
        if state.will_be_cut(outside) {
            self.whole_stacks.keep(thread, state.last_frames());
        }
        Some(state.follow(&mut self.profile, &mut self.resolver, time, stack, outside))
    }
}

/// Outermost frames of an imported stack whose names tell whether it is complete.
const ENTRY_FRAMES: usize = 3;

/// New contexts of one stack that there has to be room for: twice as many as the deepest so far had frames, within limits.
const LEAST_CONTEXTS: usize = 64;
const MOST_CONTEXTS: usize = 4096;

const PANICKED: &str = "the sampling thread failed: the profile ends early";
const HANGS: &str = "the sampling thread hangs, in a file or memory of the target that somebody else has to serve: the profile \
                     ends early";
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use ccsd_profile::{ProfileLimits, SessionInfo};
    use crossbeam_channel::bounded;

    use super::*;
    use crate::host::membership::ProcessGroups;
    use crate::host::selection::ProcessSelection;

    #[test]
    fn processes_of_containers_have_the_container_s_name() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("only root's files count");
            return;
        }
        let id = "0123456789abcdef".repeat(4);
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join(format!("var/lib/docker/containers/{id}"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("config.v2.json"), r#"{"Name":"/web"}"#).unwrap();
        let names = || ContainerNames::below(ccsd_symbolizer::FileRoot::at(root.path()).unwrap());
        let profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
        let aggregator = Aggregator::new(profile, EventSpec::CLOCK, EventLayout::Cpus, true, &Budget::default());
        let mut aggregator = aggregator.naming_containers(Some(names()));
        let of = |cgroup: &str| Membership { cgroup: cgroup.to_owned(), uid: Some(0), ..Membership::default() };
        let inside = of(&format!("/system.slice/docker-{id}.scope"));
        let mut name =
            |membership: &Membership| aggregator.with_container_name(Arc::new(membership.clone())).container();
        assert_eq!(name(&inside), "docker 0123456789ab (web)");
        assert_eq!(name(&of("/system.slice/nginx.service")), "[no container]");
        aggregator.containers = None;
        assert_eq!(aggregator.with_container_name(Arc::new(inside)).container(), "docker 0123456789ab");
        // The same files say what is selected by the name.
        let selection = ProcessSelection { containers: vec!["web".to_owned()], ..ProcessSelection::default() };
        let inside = ProcessGroups { cgroups: vec![format!("/docker/{id}")], ..ProcessGroups::default() };
        assert!(!selection.selects(&inside));
        let selection = selection.with_named_containers(&names());
        assert!(selection.selects(&inside) && selection.describe() == "container web");
    }

    #[test]
    fn a_sampler_that_hangs_is_not_waited_for() {
        // Where this thread itself is kept from a CPU for so long that it would seem to hang, nothing is learnt.
        assert!((0..50).any(|_| is_not_waited_for()));
    }

    /// Whether the sampler, which is this thread, was on time as long as it was to be.
    fn is_not_waited_for() -> bool {
        let spec = EventSpec::CLOCK;
        let watchdog = Arc::new(Watchdog::default());
        let (batches, batch_receiver) = bounded(1);
        let (empty, _empty_receiver) = bounded(1);
        let (events, event_receiver) = bounded(2);
        let watched = watchdog.clone();
        let aggregate = std::thread::spawn(move || {
            let profile = Profile::new(SessionInfo::default(), ProfileLimits::default());
            Aggregator::new(profile, spec, EventLayout::Threads, true, &Budget::default()).run(
                &batch_receiver,
                &empty,
                &events,
                &watched,
                &Held::new(0),
            );
        });
        watchdog.ask_for_end();
        // As long as it does something, the end may take its time.
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        for received in 0..30 {
            watchdog.beat();
            let mut batch = Batch::default();
            batch.counts.samples.received = received;
            let sent = batches.send(batch).is_ok();
            std::thread::sleep(LOOK);
            longest = longest.max(last.elapsed());
            last = Instant::now();
            if longest > 5 * LOOK {
                drop(batches);
                aggregate.join().unwrap();
                return false;
            }
            assert!(sent && event_receiver.is_empty());
        }
        assert!(!watchdog.is_given_up());
        // The channel stays open: it has not ended.
        assert!(matches!(event_receiver.recv(), Ok(SessionEvent::Update(_))));
        let Ok(SessionEvent::Finished(profile)) = event_receiver.recv() else { panic!("no end") };
        assert!(watchdog.is_given_up());
        assert!(profile.session().notes.iter().any(|note| note == HANGS), "{:?}", profile.session().notes);
        assert_eq!(profile.accounting().received, 29);
        aggregate.join().unwrap();
        true
    }
}
