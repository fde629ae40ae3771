//! The aggregating thread: batches of stacks in, updates of a profile out.
//!
//! It owns the profile, the resolver, and per thread the stack of its last sample with the context reached at every
//! frame. A new stack is compared with it from the root; only what differs is resolved and pushed.

use ccsd_profile::{
    Accounting, ContextId, LineId, MAX_SESSION_CRASHES, Process, ProcessId, Profile, Shed, Thread, ThreadId,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use hashbrown::HashMap;
use rustc_hash::FxBuildHasher;

use crate::batch::{Batch, Counts, Death, Item, MAX_METRICS, Mark, part_of};
use crate::budget::Budget;
use crate::crash::{self, WholeStack};
use crate::give_back::give_back;
use crate::layers::{Common, Layers, Reserve};
use crate::pace::Overhead;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::Layout;
use crate::process::{ProcessKey, ThreadKey};
use crate::pulse::{LOOK, Pulse, Watch};
use crate::rates::Rates;
use crate::resolve::Resolver;
use crate::session_event::{Held, SessionEvent};
use crate::unwind::{Frame, Gap, Root};
use crate::{system, usage};

/// One frame of a thread's last stack.
#[derive(Clone, Copy, Debug)]
struct Step {
    frame: Frame,
    /// The context after the frame's cost centres have been pushed.
    context: ContextId,
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
            let resolved = resolver.resolve(profile, step.frame, time);
            *until = (*until).min(resolved.until);
            let mut context = outer.map_or(ContextId::ROOT, |outer| outer.context);
            for &centre in resolver.cost_centres(resolved) {
                context = profile.contexts_mut().push(context, centre);
            }
            step.context = context;
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
    metrics: usize,
    /// Processes that died and of which no stack is kept.
    crashes_left_out: u64,
    /// Sum of the samples' first weights.
    weighed: u64,
    rates: Rates,
    processes: HashMap<ProcessKey, ProcessId, FxBuildHasher>,
    /// As many as the profile can tell apart. Those that have ended stay: their children name them.
    most_processes: usize,
    /// Images that the sampler had no room for, as far as they are counted.
    images_left_out: u64,
    /// The process that those share which there is no room for.
    other_process: Option<ProcessId>,
    threads: HashMap<ThreadKey, ThreadState, FxBuildHasher>,
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
        profile.accounting_mut().memory_bytes = budget.memory;
        Aggregator {
            most_processes: profile.limits().processes,
            other_process: None,
            images_left_out: 0,
            profile,
            resolver: Resolver::new(spec.kernel, budget),
            spec,
            layout,
            own_process,
            metrics,
            crashes_left_out: 0,
            weighed: 0,
            rates: Rates::new(spec.rate_hz, None),
            processes: HashMap::default(),
            threads: HashMap::default(),
        }
    }

    /// The same where sampling is to stay within a budget of overhead.
    pub fn within(mut self, overhead: Option<Overhead>) -> Aggregator {
        self.rates = Rates::new(self.spec.rate_hz, overhead);
        self
    }

    /// Works until the sampler says that the session is over, or hangs when it should; sends an update per interval and one
    /// at the end.
    pub fn run(
        mut self,
        batches: &Receiver<Batch>,
        empty: &Sender<Batch>,
        events: &Sender<SessionEvent>,
        pulse: &Pulse,
        held: &Held,
    ) {
        let mut watch = Watch::default();
        let mut counts = Counts::default();
        let trouble = loop {
            let mut batch = match batches.recv_timeout(LOOK) {
                Ok(batch) => batch,
                Err(RecvTimeoutError::Timeout) if pulse.end_asked() && watch.hangs(pulse) => break HANGS,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break PANICKED,
            };
            self.absorb(&mut batch);
            pulse.tell_cpu(usage::thread_cpu_ns());
            counts = batch.counts;
            if batch.mark != Mark::None {
                match batch.mark {
                    Mark::End => self.resolver.finish_names(&mut self.profile),
                    _ => self.resolver.look_for_names(&mut self.profile),
                }
                self.account(&batch.counts, batch.mark == Mark::End);
                let held_bytes = self.held_bytes().saturating_add(batch.counts.held_bytes);
                self.profile.accounting_mut().held_bytes = held_bytes;
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
        pulse.give_up();
        self.resolver.finish_names(&mut self.profile);
        self.account(&counts, true);
        self.profile.add_note(trouble);
        let update = self.profile.take_update();
        let _ = events.send(SessionEvent::Update(Box::new(update)));
        self.finish(events);
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
        self.resolver.begin_batch(&batch.frames);
        let mut frames = batch.frames.as_slice();
        for item in batch.items.drain(..) {
            match item {
                Item::Sample { thread, time, frames: count, common, gap, root, weights } => {
                    let (stack, rest) = frames.split_at(frames.len().min(count as usize));
                    frames = rest;
                    self.sample(thread, time, stack, Outside { root, common, gap }, &weights);
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
                Item::ThreadEnd(key) => drop(self.threads.remove(&key)),
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
        weights: &[u64; MAX_METRICS],
    ) {
        let Some(at) = self.follow(thread, time, stack, outside) else { return };
        let Outside { root, gap, .. } = outside;
        self.weighed = self.weighed.saturating_add(weights[0]);
        self.profile.charge(at.thread, at.context, at.line, &weights[..self.metrics]);

        let accounting = self.profile.accounting_mut();
        accounting.frames += at.depth;
        accounting.max_stack_depth = accounting.max_stack_depth.max(at.depth);
        accounting.unsymbolised += u64::from(!at.named);
        accounting.with_gap += u64::from(gap.is_some());
        if !at.named
            && let Some(&leaf) = stack.first()
        {
            self.resolver.count_nameless_leaf(leaf);
        }
        if let Root::Truncated(reason) = root {
            accounting.count_truncated(reason);
        }
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
        let reserve = state.steps.reserve().iter().take(common.shared as usize);
        let outer: Vec<Frame> =
            reserve.chain(state.steps.own().iter().take(common.own as usize)).map(|step| step.frame).collect();
        let frames: Vec<Frame> = stack.iter().chain(outer.iter().rev()).copied().collect();
        let gap = gap.map(|gap| (stack.len().saturating_sub(gap.outer as usize).max(1), gap.reason));
        // The stacks that follow may have something in common with this one.
        let _ = self.follow(thread, time, stack, outside);
        self.resolver.look_for_names(&mut self.profile);
        let crash = crash::tell(death, WholeStack { frames, gap, root }, time, &mut self.profile, &mut self.resolver);
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
        let mut context = match thread.steps.last() {
            Some(step) => step.context,
            None => match root {
                Root::Complete => ContextId::ROOT,
                Root::Truncated(reason) => {
                    let centre = self.profile.truncated_cost_centre(reason);
                    self.profile.contexts_mut().push(ContextId::ROOT, centre)
                }
            },
        };
        let gap_at = gap.map(|gap| (gap.outer as usize).min(stack.len().saturating_sub(1)));
        for (position, &frame) in stack.iter().rev().enumerate().skip(more) {
            if let Some(gap) = gap.filter(|_| gap_at == Some(position)) {
                let centre = self.profile.gap_cost_centre(gap.reason);
                context = self.profile.contexts_mut().push(context, centre);
            }
            let resolved = self.resolver.resolve(&mut self.profile, frame, time);
            thread.until = thread.until.min(resolved.until);
            let contexts = self.profile.contexts_mut();
            for &centre in self.resolver.cost_centres(resolved) {
                context = contexts.push(context, centre);
            }
            thread.steps.push(Step { frame, context });
        }
        let depth = thread.steps.depth() as u64;
        thread.steps.settle(common);
        if common.reserve != Reserve::Stays {
            // It has only frames of this stack now, or none.
            thread.resolved = usize::MAX;
        }
        thread.cut_short = thread.steps.bound(common);
        if leaf_changed && let Some(&leaf) = stack.first() {
            let resolved = self.resolver.resolve(&mut self.profile, leaf, time);
            (thread.line, thread.named) = (resolved.line, resolved.named);
        }
        Some(Place { thread: thread.id, context, line: thread.line, named: thread.named, depth })
    }

    fn account(&mut self, counts: &Counts, last: bool) {
        let spec = self.spec;
        let named_later = self.resolver.take_named_later();
        let threads = counts.ended_threads.saturating_add(self.profile.threads().len() as u64);
        let accounting: &mut Accounting = self.profile.accounting_mut();
        accounting.unsymbolised = accounting.unsymbolised.saturating_sub(named_later);
        accounting.duration_ns = counts.duration_ns;
        accounting.received = counts.received;
        accounting.dropped_by_us = counts.dropped;
        accounting.shed.add(Shed::Images, counts.images_left_out.saturating_sub(self.images_left_out));
        self.images_left_out = counts.images_left_out;
        accounting.shed.set(Shed::Queue, counts.dropped_by_queue);
        accounting.shed.set(Shed::Stacks, counts.cut_memories);
        accounting.shed.set(Shed::UnwindTables, counts.refused_images);
        accounting.shed.set(Shed::UnwindRules, counts.forgotten_rules);
        accounting.shed.set(Shed::LiveThreads, counts.not_followed.threads);
        accounting.shed.set(Shed::Mappings, counts.not_followed.mappings);
        accounting.throttled = own_part(counts.throttled, counts);
        accounting.read_late = counts.read_late;
        accounting.throttle_events = counts.throttle_events;
        accounting.pace = self.rates.pace(counts.duration_ns, counts.cost);
        accounting.own_cpu_ns = match self.own_process {
            true => usage::own_cpu_ns(),
            false => {
                let own = counts.sampler_cpu_ns.saturating_add(usage::thread_cpu_ns());
                own.saturating_add(self.resolver.worker_cpu_ns())
            }
        };
        accounting.own_peak_rss_bytes = usage::own_peak_rss_bytes();
        if !matches!(spec.event, Event::Cycles { .. }) {
            let used = counts.counted.map(|counted| counted.used);
            accounting.target_cpu_ns = used;
            accounting.expected = match spec.event {
                Event::Tick { .. } => counts.counted.map(|counted| counted.ticks),
                _ => expected(spec.kernel, counts.counted.map(|counted| counted.due_milli), counts.user_share),
            };
        }
        accounting.lost = lost_samples(counts, accounting.expected);
        if last {
            let unseen = match spec.event {
                Event::Tick { .. } => between_ticks(accounting, self.weighed),
                _ => {
                    let cpus = system::online_cpus().len() as u64;
                    let sets = accounting.pace.changes.saturating_add(1);
                    unseen(accounting, self.layout, threads.saturating_mul(cpus).saturating_mul(sets))
                }
            };
            let slow = (counts.waits_its_turn && counts.lost > 0).then(|| SLOW.to_owned());
            let left_out = self.crashes_left_out;
            let crashes =
                (left_out > 0).then(|| format!("{left_out} more processes died of signals: their stacks are not kept"));
            let notes: Vec<String> = crashes
                .into_iter()
                .chain(unseen)
                .chain(slow)
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

/// Of a target that was sampled by the tick, how much of its CPU time no sample has, if that is worth a word.
fn between_ticks(accounting: &Accounting, weighed: u64) -> Option<String> {
    let used = accounting.target_cpu_ns.filter(|&used| used > 0)?;
    let missing = used.saturating_sub(weighed);
    let percent = u128::from(missing) * 100 / u128::from(used);
    (percent >= UNSEEN_PERCENT.into()).then(|| {
        format!(
            "{percent}% of the CPU time is in no sample: the threads that spent it ended, or went to another CPU, before \
             the next tick; -e cpu-clock sees more"
        )
    })
}

/// Where the sampling thread has gone without a word.
const PANICKED: &str = "the sampling thread failed: the profile ends early";
/// Where it was asked for the end and did not answer.
const HANGS: &str = "the sampling thread hangs, in a file or memory of the target that somebody else has to serve: the profile \
                     ends early";
/// Where samples were lost.
const SLOW: &str = "samples were lost because ccsd had to wait for the CPU; it would not as root, or where it may have \
                    real-time priority (`ulimit -r 1`)";

/// How many of the samples that the kernel lost were probably the target's, where others are sampled, too: it does not say
/// whose they were.
fn own_part(lost: u64, counts: &Counts) -> u64 {
    let (own, all) = (u128::from(counts.received), u128::from(counts.received) + u128::from(counts.others));
    part_of(lost, own, all)
}

/// Samples of the target that the kernel lost. Where it loses other records from the same rings, how many of them were
/// samples is an estimate, but no more than those that were expected and have not come.
fn lost_samples(counts: &Counts, expected: Option<u64>) -> u64 {
    let lost = own_part(counts.lost_samples(), counts);
    let here = counts.received.saturating_add(counts.throttled).saturating_add(counts.dropped);
    let most =
        expected.filter(|_| counts.beside_samples > 0).map_or(u64::MAX, |expected| expected.saturating_sub(here));
    lost.min(most)
}

/// Notes about a session's end that are kept: what is wrong with hundreds of images need not be said of each.
const MAX_NOTES: usize = 10;
/// Share of the expected samples that may be missing without a word, beyond those lost for a known reason.
const UNSEEN_PERCENT: u64 = 5;

/// A warning where much of the CPU time fell between samples, because shares then leave out short-lived threads. Of
/// `leftovers`, a thread's time since its last sample on one CPU, there were so many at most.
fn unseen(accounting: &Accounting, layout: Layout, leftovers: u64) -> Option<String> {
    let (undelivered, expected) = (accounting.undelivered(), accounting.expected?);
    let (chance, why) = match layout {
        // A CPU's timer meets a thread by chance: three standard deviations.
        Layout::Cpus => (3.0 * (expected as f64).sqrt(), "its samples did not arrive; shares are of those that did"),
        // A timer that comes after several periods gives one sample. Of few threads nothing else misses so many.
        Layout::Threads | Layout::Compact if undelivered > leftovers => (
            24.0,
            "timers came late, one for several samples (a busy machine, or a virtual one whose host is busy); shares are of \
             what was sampled",
        ),
        // Two dozen samples are within what chance does to a short run.
        Layout::Threads | Layout::Compact => (
            24.0,
            "it was spent by threads that live for about a sampling period or less; shares are of what was sampled, and a \
             higher rate (-F), or --per-cpu as root, sees more",
        ),
    };
    let much = undelivered.saturating_mul(100) > expected.saturating_mul(UNSEEN_PERCENT);
    (much && undelivered as f64 > chance).then(|| {
        format!("{}% of the CPU time was not sampled: {why}", undelivered.saturating_mul(100) / expected.max(1))
    })
}

/// What went wrong and has no place of its own in the accounting, a line each.
fn troubles(counts: &Counts) -> impl Iterator<Item = String> {
    let line = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
    [
        line(
            counts.lost_tracking.saturating_add(counts.lost.saturating_sub(counts.lost_samples())),
            "records about mappings and threads were lost by the kernel; all processes were looked at anew",
        ),
        line(counts.others, "samples of other programs were taken and dropped"),
        line(counts.withheld, "samples were of processes that were not known to be for this user, and dropped"),
        line(counts.malformed, "records of the kernel made no sense and were left out"),
        line(counts.late, "records came out of order"),
        line(
            counts.memory.not_permitted,
            "stacks were deeper than the copied 63 KiB, and the rest may not be read: that takes the right to trace the \
             program (root, CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0)",
        ),
        line(counts.memory.over_budget, "deep stacks or those of generated code were not read to their root: reading memory took too long"),
        line(counts.cut_stacks, "stacks were not followed to their root: unwinding them took too long (\"too deep\")"),
        line(
            counts.unread_images,
            "images could not be read when they were first seen, because the process that reads images had failed too often: \
             until it was back, stacks in them had no names and may be cut short",
        ),
        line(counts.refused_images, "images were not unwound: too much unwind information"),
    ]
    .into_iter()
    .flatten()
}

/// Samples that a clock event should have given, of `due_milli` thousandths by the CPU time that it counted at the rates of
/// that time. The clock counts kernel time too; where only user code is sampled, the kernel's own accounts say which part
/// of it was that.
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
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use ccsd_profile::{Limits, Session};
    use crossbeam_channel::bounded;

    use super::*;
    use crate::unwind::memory::Refusals;

    #[test]
    fn what_went_wrong_is_noted() {
        assert_eq!(troubles(&Counts::default()).count(), 0);
        let memory = Refusals { not_permitted: 5, over_budget: 6, moved_on: 7 };
        let counts = Counts {
            lost_tracking: 1,
            others: 2,
            malformed: 3,
            late: 4,
            memory,
            cut_stacks: 8,
            refused_images: 9,
            ..Counts::default()
        };
        let notes: Vec<String> = troubles(&counts).collect();
        // That a stack had moved on is said by the stack.
        let numbers: Vec<&str> = notes.iter().map(|note| note.split(' ').next().unwrap()).collect();
        assert_eq!(numbers, ["1", "2", "3", "4", "5", "6", "8", "9"]);
    }

    #[test]
    fn what_was_lost_beside_samples_is_not_samples() {
        let counts = Counts { received: 800, lost: 1000, ..Counts::default() };
        assert_eq!(lost_samples(&counts, Some(900)), 1000, "nothing else is in these rings");
        let beside = Counts { beside_samples: 200, ..counts };
        assert_eq!((lost_samples(&beside, None), beside.lost - beside.lost_samples()), (800, 200));
        assert_eq!(lost_samples(&beside, Some(2_000)), 800);
        assert_eq!(troubles(&beside).next().map(|note| note.starts_with("200 records")), Some(true));
        // No more than were expected: but for those that were throttled and dropped, and fifty more, they are here.
        let short = Counts { throttled: 20, dropped: 30, ..beside };
        assert_eq!((lost_samples(&short, Some(900)), lost_samples(&short, Some(700))), (50, 0));
        // Where all CPUs are sampled, others' samples are lost as well.
        assert_eq!(lost_samples(&Counts { received: 400, others: 400, ..counts }, None), 500);
    }

    #[test]
    fn why_time_was_not_sampled() {
        let missing =
            |undelivered: u64| Accounting { expected: Some(300), received: 300 - undelivered, ..Accounting::default() };
        let why =
            |undelivered, leftovers| unseen(&missing(undelivered), Layout::Threads, leftovers).unwrap_or_default();
        assert_eq!(why(15, 4), "");
        assert!(why(40, 4).starts_with("13% of the CPU time was not sampled: timers came late"), "{}", why(40, 4));
        assert!(why(40, 40).contains("threads that live for about a sampling period"), "{}", why(40, 40));
    }

    #[test]
    fn a_sampler_that_hangs_is_not_waited_for() {
        // Where this thread itself is kept from a CPU for so long that it would seem to hang, nothing is learnt.
        assert!((0..50).any(|_| is_not_waited_for()));
    }

    /// Whether the sampler, which is this thread, was on time as long as it was to be.
    fn is_not_waited_for() -> bool {
        let spec = EventSpec {
            event: Event::CpuClock,
            rate_hz: 999,
            kernel: false,
            inherit: true,
            enable_on_exec: false,
            stack_bytes: 0,
            tells_lost: false,
        };
        let pulse = Arc::new(Pulse::default());
        let (batches, batch_receiver) = bounded(1);
        let (empty, _empty_receiver) = bounded(1);
        let (events, event_receiver) = bounded(2);
        let watched = pulse.clone();
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
        pulse.ask_for_end();
        // As long as it does something, the end may take its time.
        let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
        for received in 0..30 {
            pulse.beat();
            let batch = Batch { counts: Counts { received, ..Counts::default() }, ..Batch::default() };
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
        assert!(!pulse.is_given_up());
        // The channel stays open: it has not ended.
        assert!(matches!(event_receiver.recv(), Ok(SessionEvent::Update(_))));
        let Ok(SessionEvent::Finished(profile)) = event_receiver.recv() else { panic!("no end") };
        assert!(pulse.is_given_up());
        assert!(profile.session().notes.iter().any(|note| note == HANGS), "{:?}", profile.session().notes);
        assert_eq!(profile.accounting().received, 29);
        aggregate.join().unwrap();
        true
    }
}
