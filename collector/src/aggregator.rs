//! The aggregating thread: batches of stacks in, updates of a profile out.
//!
//! It owns the profile, the resolver, and per thread the stack of its last sample with the context reached at every
//! frame. A new stack is compared with it from the root; only what differs is resolved and pushed.

mod accounts;
mod cycles;
mod unseen;

use ccsd_profile::origin::begins_at_entry;
use ccsd_profile::{
    ContextId, CostCentreId, LineId, MAX_SESSION_CRASHES, Process, ProcessId, Profile, RouteId, Thread, ThreadId,
    TruncationReason,
};
use ccsd_symbolizer::Door;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::batch::{Batch, Counts, Death, Item, MAX_METRICS, Mark};
use crate::budget::Budget;
use crate::crash::{self, WholeStack};
use crate::give_back::give_back;
use crate::layers::{Common, Layers, Reserve};
use crate::pace::Overhead;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::Layout;
use crate::process::{ProcessKey, ThreadKey};
use crate::rate_history::RateHistory;
use crate::resolve::Resolver;
use crate::session_event::{Held, SessionEvent};
use crate::unwind::{Frame, Gap, Root};
use crate::usage::Aside;
use crate::watchdog::{LOOK, Watch, Watchdog};
use crate::{system, usage};
use cycles::CycleRest;
use unseen::{TickTime, UnseenTime};

/// One frame of a thread's last stack.
#[derive(Clone, Copy, Debug)]
struct Step {
    frame: Frame,
    /// The context after the frame's cost centres have been pushed.
    context: ContextId,
    /// The call sites of all that is further out than its innermost function: the route of a sample that ends here.
    route: RouteId,
}

/// Pushes what a frame adds: its cost centres to the context, and to the route those that called another of them. `called`
/// is the innermost of the frame further out, which is now known to have called this one.
#[inline]
fn push_frame(
    (mut context, mut route): (ContextId, RouteId),
    called: Option<(CostCentreId, LineId)>,
    sites: impl Iterator<Item = (CostCentreId, LineId)>,
    profile: &mut Profile,
) -> ((ContextId, RouteId), Option<(CostCentreId, LineId)>) {
    let mut caller = called;
    for (centre, line) in sites {
        if let Some((centre, line)) = caller.replace((centre, line)) {
            route = profile.push_site(route, centre, line);
        }
        context = profile.contexts_mut().descend(context, centre);
    }
    ((context, route), caller)
}

/// A thread as the profile knows it, and its last stack, root first.
struct ThreadState {
    id: ThreadId,
    root: Option<Root>,
    steps: Layers<Step>,
    /// Whether `steps` ends before the leaf; see [`Layers::bound`].
    cut_short: bool,
    /// Frames of the reserve that `until` and `generation` speak of; those beyond are resolved when they are shared.
    resolved: usize,
    line: LineId,
    named: bool,
    /// Until when its steps are right, nanoseconds, and by which names; see [`Resolver::generation`].
    until: u64,
    generation: u32,
    /// When the last sample was taken whose stack was found whole, nanoseconds; 0 if there was none.
    whole_at: u64,
    /// Of a thread that ticks sample, the time that samples stand for.
    tick: TickTime,
    /// TSC cycles that no sample has yet.
    cycles: CycleRest,
}

impl ThreadState {
    /// Finds the contexts of the remembered frames anew: of the last stack, and of `shared` of the reserve, which the next
    /// one has. They are those of whole stacks: the root is a real one.
    #[cold]
    fn resolve_again(&mut self, profile: &mut Profile, resolver: &mut Resolver, shared: usize, time: u64) {
        self.resolved = shared.max(self.steps.shared());
        (self.until, self.generation) = (u64::MAX, resolver.generation());
        let until = &mut self.until;
        self.steps.each_with_outer(self.resolved, |outer: Option<&Step>, step| {
            let called = outer.and_then(|outer| {
                let resolved = resolver.resolve(profile, outer.frame, time);
                resolver.sites(&resolved).last()
            });
            let resolved = resolver.resolve(profile, step.frame, time);
            *until = (*until).min(resolved.until);
            let outer = outer.map_or((ContextId::ROOT, RouteId::EMPTY), |outer| (outer.context, outer.route));
            (step.context, step.route) = push_frame(outer, called, resolver.sites(&resolved), profile).0;
        });
    }
}

/// What comes outside of the frames that a sample brings.
#[derive(Clone, Copy)]
struct Outside {
    root: Root,
    common: Common,
    gap: Option<Gap>,
}

/// Where a sample is charged.
struct Place {
    thread: ThreadId,
    context: ContextId,
    line: LineId,
    route: RouteId,
    /// Whether the innermost function has a name.
    named: bool,
    /// Frames of the stack.
    depth: u64,
}

/// The state of the aggregating thread.
pub struct Aggregator {
    profile: Profile,
    resolver: Resolver,
    spec: EventSpec,
    layout: Layout,
    own_process: bool,
    /// CPU time of the process before sampling began, without the kernel's names, and what these took, nanoseconds.
    started_ns: (u64, u64),
    metrics: usize,
    /// Processes that died and of which no stack is kept.
    crashes_left_out: u64,
    /// Sum of the samples' first weights.
    weighed: u64,
    /// What no sample stands for.
    unseen: UnseenTime,
    /// CPUs that are online: each has timers, or ticks, of its own.
    cpus: u64,
    rates: RateHistory,
    processes: HashMap<ProcessKey, ProcessId, FxBuildHasher>,
    /// As many as the profile can tell apart. Those that have ended stay: their children name them.
    most_processes: usize,
    /// Images that the sampler had no room for, as far as they are counted.
    images_left_out: u64,
    /// The process that those share which there is no room for.
    other_process: Option<ProcessId>,
    threads: HashMap<ThreadKey, ThreadState, FxBuildHasher>,
    /// Whether contexts and charges have got room that other tables do not use.
    lent: bool,
}

impl Aggregator {
    /// An aggregator for an empty profile. `own_process` says whether what the process costs is what the session costs. What
    /// it remembers keeps to `budget`.
    pub fn new(
        mut profile: Profile,
        spec: EventSpec,
        layout: Layout,
        own_process: bool,
        budget: &Budget,
    ) -> Aggregator {
        let metrics = spec.metrics();
        profile.accounting_mut().own.memory_bytes = budget.memory;
        Aggregator {
            most_processes: profile.limits().processes,
            other_process: None,
            images_left_out: 0,
            profile,
            resolver: Resolver::new(spec.kernel, budget),
            spec,
            layout,
            own_process,
            started_ns: (0, 0),
            metrics,
            crashes_left_out: 0,
            weighed: 0,
            unseen: UnseenTime::default(),
            cpus: system::online_cpus().len() as u64,
            rates: RateHistory::new(spec.rate_hz, None),
            processes: HashMap::default(),
            threads: HashMap::default(),
            lent: false,
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

    /// Says that sampling begins. To be called by the thread that has made everything ready.
    pub fn begin(&mut self) {
        let kernel = usage::aside_ns(Aside::KernelNames);
        // Another thread may be reading the kernel's names already.
        let beside = self.resolver.kernel_names_beside_ns();
        self.started_ns = (usage::own_cpu_ns().saturating_sub(kernel).saturating_sub(beside), kernel);
    }

    /// Works until the sampler says that the session is over, or hangs when it should; sends an update per interval and one
    /// at the end.
    pub fn run(
        mut self,
        batches: &Receiver<Batch>,
        empty: &Sender<Batch>,
        events: &Sender<SessionEvent>,
        watchdog: &Watchdog,
        held: &Held,
    ) {
        let mut watch = Watch::default();
        let mut counts = Counts::default();
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
            watchdog.tell_cpu(usage::thread_cpu_ns());
            counts = batch.counts;
            if batch.mark != Mark::None {
                match batch.mark {
                    Mark::End => self.resolver.finish_names(&mut self.profile),
                    _ => self.resolver.look_for_names(&mut self.profile),
                }
                self.account(&batch.counts, batch.mark == Mark::End);
                let held_bytes = self.held_bytes().saturating_add(batch.counts.sampler.held_bytes);
                self.profile.accounting_mut().own.held_bytes = held_bytes;
                let update = self.profile.take_update();
                held.tell(held_bytes);
                // A reader that has gone away needs no more updates; the session is stopped by its handle's drop.
                let _ = events.send(SessionEvent::Update(Box::new(update)));
            }
            let ended = batch.mark == Mark::End;
            let _ = empty.try_send(batch);
            if ended {
                self.finish(events);
                return;
            }
        };
        // What there is stays good.
        watchdog.give_up();
        self.resolver.finish_names(&mut self.profile);
        self.account(&counts, true);
        self.profile.add_note(trouble);
        let update = self.profile.take_update();
        let _ = events.send(SessionEvent::Update(Box::new(update)));
        self.finish(events);
    }

    /// Whether the next stack may find no room for its contexts or its charge.
    fn is_full(&self) -> bool {
        let depth = usize::try_from(self.profile.accounting().stacks.max_depth).unwrap_or(usize::MAX);
        self.profile.needs_generation(depth.saturating_mul(2).clamp(LEAST_CONTEXTS, MOST_CONTEXTS))
    }

    /// Hands on what there is, as of a batch with these counts at its end and so many samples still to come, and begins a
    /// new generation. The threads' last stacks have contexts of the one before.
    #[cold]
    fn begin_generation(&mut self, counts: &Counts, samples_left: u64, events: &Sender<SessionEvent>) {
        // The counters of events and clocks are of the last interval's end.
        let accounting = self.profile.accounting_mut();
        accounting.duration_ns = counts.sampler.duration_ns;
        accounting.received = counts.samples.received.saturating_sub(samples_left);
        let update = self.profile.take_update();
        let _ = events.send(SessionEvent::Update(Box::new(update)));
        self.profile.begin_generation();
        self.threads.values_mut().for_each(|thread| thread.until = 0);
    }

    /// Hands the profile over, and gives back the rest.
    fn finish(self, events: &Sender<SessionEvent>) {
        let Aggregator { profile, resolver, threads, own_process, .. } = self;
        let _ = events.send(SessionEvent::Finished(Box::new(profile)));
        give_back((resolver, threads), own_process);
    }

    /// What the profile, the resolver and the threads' last stacks take, bytes, about.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let stacks: usize = self.threads.values().map(|thread| thread.steps.bytes()).sum();
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

    /// The same, with what is to be done before each sample, given how many are left.
    fn absorb_with(&mut self, batch: &mut Batch, mut before_sample: impl FnMut(&mut Aggregator, u64)) {
        let mut samples_left = batch.items.iter().filter(|item| matches!(item, Item::Sample { .. })).count() as u64;
        self.resolver.begin_batch(&mut self.profile, &batch.frames);
        let mut frames = batch.frames.as_slice();
        let mut further_weights = batch.further_weights.as_slice();
        for item in batch.items.drain(..) {
            match item {
                Item::Sample { thread, time, frames: count, common, gap, root, weights } => {
                    let (stack, rest) = frames.split_at(frames.len().min(count as usize));
                    frames = rest;
                    before_sample(self, samples_left);
                    samples_left -= 1;
                    let count = self.metrics.saturating_sub(MAX_METRICS).min(further_weights.len());
                    let (further, rest) = further_weights.split_at(count);
                    further_weights = rest;
                    self.sample(thread, time, stack, Outside { root, common, gap }, (&weights, further));
                }
                Item::Crash { death, thread, time, frames: count, common, gap, root } => {
                    let (stack, rest) = frames.split_at(frames.len().min(count as usize));
                    frames = rest;
                    self.crash(*death, thread, time, stack, Outside { root, common, gap });
                }
                Item::Jit(event) => self.resolver.jit_event(&mut self.profile, event),
                Item::Image(image) => self.resolver.add_image(&mut self.profile, image),
                Item::ImageClosed(index) => self.resolver.close(index),
                Item::ImageReopened(index, image) => self.resolver.reopen(&mut self.profile, index, image),
                Item::Note(note) => self.profile.add_note(&note),
                Item::Rate { at, change } => {
                    if let Some(note) = self.rates.change(at, &change) {
                        self.profile.add_note(&note);
                    }
                }
                Item::Process { key, parent, pid, start_time, exec_generation, name } => {
                    let parent = parent.and_then(|parent| self.processes.get(&parent).copied());
                    let process = Process { pid, start_time, exec_generation, parent, name };
                    let id = self.profile.add_process(process);
                    match self.processes.len() < self.most_processes {
                        true => drop(self.processes.insert(key, id)),
                        false => self.other_process = Some(id),
                    }
                }
                Item::Thread { key, process, tid, name } => {
                    let known = self.processes.get(&process).copied().or(self.other_process);
                    let Some(process) = known else { continue };
                    let id = self.profile.add_thread(Thread { process, tid, name });
                    let state = ThreadState {
                        id,
                        root: None,
                        steps: Layers::default(),
                        cut_short: false,
                        resolved: usize::MAX,
                        line: LineId::UNKNOWN,
                        named: true,
                        until: u64::MAX,
                        generation: 0,
                        whole_at: 0,
                        tick: TickTime::default(),
                        cycles: CycleRest::default(),
                    };
                    self.threads.insert(key, state);
                }
                Item::ThreadName { key, process, name } => {
                    if let Some(&process) = process.as_ref().and_then(|process| self.processes.get(process)) {
                        self.profile.rename_process(process, &name);
                    }
                    if let Some(thread) = self.threads.get(&key) {
                        self.profile.rename_thread(thread.id, &name);
                    }
                }
                Item::ThreadEnd(key) => {
                    if let Some(thread) = self.threads.remove(&key) {
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
        if root == Root::Complete
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
        if let Root::Truncated(reason) = root {
            accounting.count_truncated(reason);
        }
    }

    /// Says whether a stack that another profiler has followed is complete, which its functions' names tell.
    #[inline]
    fn judge_root(&mut self, time: u64, stack: &[Frame], outside: Outside) -> Outside {
        if outside.root != Root::Truncated(TruncationReason::NoEntry) {
            return outside;
        }
        let (profile, resolver) = (&mut self.profile, &mut self.resolver);
        let outermost = stack.iter().rev().take(ENTRY_FRAMES).flat_map(|&frame| {
            let resolved = resolver.resolve(profile, frame, time);
            resolver.cost_centres(&resolved).to_vec()
        });
        let outermost: Vec<CostCentreId> = outermost.collect();
        let root = if begins_at_entry(profile, outermost) { Root::Complete } else { outside.root };
        Outside { root, ..outside }
    }

    /// Tells of a process that has died. It is charged nothing for that.
    #[cold]
    fn crash(&mut self, death: Death, thread: ThreadKey, time: u64, stack: &[Frame], outside: Outside) {
        let Outside { root, common, gap } = outside;
        let Some(state) = self.threads.get(&thread) else { return };
        if self.profile.crashes().len() >= MAX_SESSION_CRASHES {
            self.crashes_left_out += 1;
            // What follows may have something in common with it all the same.
            let _ = self.follow(thread, time, stack, outside);
            return;
        }
        let last = |shared: usize, own: usize| -> Vec<Frame> {
            let reserve = state.steps.reserve().iter().take(shared);
            reserve.chain(state.steps.own().iter().take(own)).map(|step| step.frame).collect()
        };
        let outer = last(common.shared as usize, common.own as usize);
        let age_ns = time.saturating_sub(state.whole_at);
        let is_last_whole = state.root == Some(Root::Complete);
        let place = |gap: Gap| (stack.len().saturating_sub(gap.outer as usize).max(1), gap.reason);
        let (frames, gap) = (stack.to_vec(), gap.map(|gap| (gap, place(gap))));
        let mut found = WholeStack { frames, gap: gap.map(|(_, place)| place), root, earlier: Vec::new(), age_ns };
        match (root, gap) {
            (Root::Complete, None) => found.frames.extend(outer.iter().rev()),
            // What was found ends where the last stack was taken to go on.
            (Root::Complete, Some((gap, place))) if !outer.is_empty() => {
                found.root = Root::Truncated(gap.reason);
                found.gap = (gap.outer > 0).then_some(place);
                found.earlier = outer;
            }
            (Root::Truncated(_), _) if is_last_whole => {
                found.earlier = last(state.steps.shared(), state.steps.own().len());
            }
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

    /// Makes `stack` the thread's, and finds its context.
    #[inline]
    fn follow(&mut self, thread: ThreadKey, time: u64, stack: &[Frame], outside: Outside) -> Option<Place> {
        let Outside { root, common, gap } = outside;
        let thread = self.threads.get_mut(&thread)?;
        let mut comparable = gap.is_none() && thread.root == Some(root);
        let shared = common.shared as usize;
        let unresolved = shared > thread.resolved;
        if time >= thread.until || thread.generation != self.resolver.generation() || unresolved {
            // Generated code may have been replaced, or named.
            thread.resolve_again(&mut self.profile, &mut self.resolver, shared, time);
            comparable = false;
        }
        // Beyond what the sampler knew to be in common there may be more.
        let more = match comparable && common.shared as usize == thread.steps.shared() {
            true => {
                let steps = thread.steps.own().iter().skip(common.own as usize);
                steps.zip(stack.iter().rev()).take_while(|(step, frame)| step.frame == **frame).count()
            }
            false => 0,
        };
        let kept = common.own as usize + more;
        let leaf_changed = more < stack.len() || kept < thread.steps.own().len() || thread.cut_short;
        // What comes after a gap is not in the place that its position says.
        thread.root = gap.is_none().then_some(root);
        thread.steps.cut(Common { own: common.own + more as u32, ..common });
        let (mut context, mut route) = match thread.steps.last() {
            Some(step) => (step.context, step.route),
            None => match root {
                Root::Complete => (ContextId::ROOT, RouteId::EMPTY),
                Root::Truncated(reason) => {
                    let centre = self.profile.truncated_cost_centre(reason);
                    (self.profile.contexts_mut().descend(ContextId::ROOT, centre), RouteId::EMPTY)
                }
            },
        };
        // The innermost function of what is kept calls the next one now.
        let mut called = match thread.steps.last() {
            Some(step) if more < stack.len() => {
                let resolved = self.resolver.resolve(&mut self.profile, step.frame, time);
                self.resolver.sites(&resolved).last()
            }
            _ => None,
        };
        let gap_at = gap.map(|gap| (gap.outer as usize).min(stack.len().saturating_sub(1)));
        let mut last = None;
        for (position, &frame) in stack.iter().rev().enumerate().skip(more) {
            if let Some(gap) = gap.filter(|_| gap_at == Some(position)) {
                let centre = self.profile.gap_cost_centre(gap.reason);
                context = self.profile.contexts_mut().descend(context, centre);
            }
            let resolved = self.resolver.resolve(&mut self.profile, frame, time);
            thread.until = thread.until.min(resolved.until);
            let sites = self.resolver.sites(&resolved);
            ((context, route), called) = push_frame((context, route), called, sites, &mut self.profile);
            thread.steps.push(Step { frame, context, route });
            last = Some(resolved);
        }
        let depth = thread.steps.depth() as u64;
        thread.steps.settle(common);
        if common.reserve != Reserve::Stays {
            // It has only frames of this stack now, or none.
            thread.resolved = usize::MAX;
        }
        thread.cut_short = thread.steps.bound(common);
        if leaf_changed && let Some(&leaf) = stack.first() {
            let resolved = last.unwrap_or_else(|| self.resolver.resolve(&mut self.profile, leaf, time));
            (thread.line, thread.named) = (resolved.line, resolved.named);
        }
        if self.profile.contexts().is_elided(context)
            && let Some(&leaf) = stack.first()
        {
            let resolved = last.unwrap_or_else(|| self.resolver.resolve(&mut self.profile, leaf, time));
            if let Some(&leaf) = self.resolver.cost_centres(&resolved).last() {
                context = self.profile.contexts_mut().push(context, leaf);
            }
        }
        Some(Place { thread: thread.id, context, line: thread.line, route, named: thread.named, depth })
    }
}

/// Outermost frames of an imported stack whose names tell whether it is complete.
const ENTRY_FRAMES: usize = 3;

/// New contexts of one stack that there has to be room for: twice as many as the deepest so far had frames, within limits.
const LEAST_CONTEXTS: usize = 64;
const MOST_CONTEXTS: usize = 4096;

/// Where the sampling thread has gone without a word.
const PANICKED: &str = "the sampling thread failed: the profile ends early";
/// Where it was asked for the end and did not answer.
const HANGS: &str = "the sampling thread hangs, in a file or memory of the target that somebody else has to serve: the profile \
                     ends early";
#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use ccsd_profile::{Limits, Session};
    use crossbeam_channel::bounded;

    use super::*;

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
            let profile = Profile::new(Session::default(), Limits::default());
            Aggregator::new(profile, spec, Layout::Threads, true, &Budget::default()).run(
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
