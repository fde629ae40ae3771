//! Threads and their last stacks with the context reached at every frame. Only what differs from the last stack,
//! compared from the root, is resolved and pushed.

use ccsd_profile::{ContextId, CostCentreId, LineId, Profile, RouteId, ThreadId};

use super::cycles::CycleRest;
use super::thread_time::ThreadTime;
use super::tick_time::TickTime;
use crate::resolve::Resolver;
use crate::stack_delta::{Common, LastStack, Reserve};
use crate::unwind::{Frame, Gap, StackRoot};

#[derive(Clone, Copy, Debug)]
pub(super) struct LastFrame {
    pub(super) frame: Frame,
    /// The context after the frame's cost centres have been pushed.
    pub(super) context: ContextId,
    /// The call sites of all that is further out than its innermost function: the route of a sample that ends here.
    pub(super) route: RouteId,
}

/// Pushes a frame's cost centres to the context, and to the route those that call another. `called` is the innermost
/// function of the frame further out.
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
pub(super) struct ThreadState {
    pub(super) id: ThreadId,
    pub(super) root: Option<StackRoot>,
    pub(super) steps: LastStack<LastFrame>,
    /// Whether `steps` ends before the leaf; see [`LastStack::end`].
    pub(super) cut_short: bool,
    /// Frames of the reserve that `until` and `generation` speak of; those beyond are resolved when they are shared.
    pub(super) resolved: usize,
    pub(super) line: LineId,
    pub(super) named: bool,
    /// Until when its steps are right, nanoseconds, and by which names; see [`Resolver::generation`].
    pub(super) until: u64,
    pub(super) generation: u32,
    /// When the last sample was taken whose stack was found whole, nanoseconds; 0 if there was none.
    pub(super) whole_at: u64,
    /// CPU time that samples do not stand for.
    pub(super) unsampled: ThreadTime,
    /// Of a thread that ticks sample, the time that samples stand for.
    pub(super) tick: TickTime,
    /// TSC cycles that no sample has yet.
    pub(super) cycles: CycleRest,
}

impl ThreadState {
    pub(super) fn new(id: ThreadId) -> ThreadState {
        ThreadState {
            id,
            root: None,
            steps: LastStack::default(),
            cut_short: false,
            resolved: usize::MAX,
            line: LineId::UNKNOWN,
            named: true,
            until: u64::MAX,
            generation: 0,
            whole_at: 0,
            unsampled: ThreadTime::default(),
            tick: TickTime::default(),
            cycles: CycleRest::default(),
        }
    }

    /// Bytes that its last stack takes.
    pub(super) fn stack_bytes(&self) -> usize {
        self.steps.bytes()
    }

    /// Whether its last stack was found whole, and one from `outside` is not.
    #[inline]
    pub(super) fn will_be_cut(&self, outside: Outside) -> bool {
        self.root == Some(StackRoot::Complete) && (outside.root != StackRoot::Complete || outside.gap.is_some())
    }

    /// The frames of its last stack, outermost first.
    pub(super) fn last_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        self.first_frames(self.steps.shared(), usize::MAX)
    }

    /// The frames of its last stack that are `shared` and then `own`; see [`Common`].
    pub(super) fn first_frames(&self, shared: usize, own: usize) -> impl Iterator<Item = Frame> + '_ {
        self.steps.reserve().iter().take(shared).chain(self.steps.own().iter().take(own)).map(|step| step.frame)
    }

    /// Finds the contexts of the remembered frames again: of the last stack, and of the `shared` frames of the reserve.
    #[cold]
    fn resolve_again(&mut self, profile: &mut Profile, resolver: &mut Resolver, shared: usize, time: u64) {
        self.resolved = shared.max(self.steps.shared());
        (self.until, self.generation) = (u64::MAX, resolver.generation());
        let until = &mut self.until;
        self.steps.each_with_outer(self.resolved, |outer: Option<&LastFrame>, step| {
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

    #[inline]
    pub(super) fn follow(
        &mut self,
        profile: &mut Profile,
        resolver: &mut Resolver,
        time: u64,
        stack: &[Frame],
        outside: Outside,
    ) -> ChargeTarget {
        let Outside { root, common, gap } = outside;
        let mut comparable = gap.is_none() && self.root == Some(root);
        let shared = common.shared as usize;
        let unresolved = shared > self.resolved;
        if time >= self.until || self.generation != resolver.generation() || unresolved {
            // Generated code may have been replaced, or named.
            self.resolve_again(profile, resolver, shared, time);
            comparable = false;
        }
        let more = match comparable && common.shared as usize == self.steps.shared() {
            true => {
                let steps = self.steps.own().iter().skip(common.own as usize);
                steps.zip(stack.iter().rev()).take_while(|(step, frame)| step.frame == **frame).count()
            }
            false => 0,
        };
        let kept = common.own as usize + more;
        let leaf_changed = more < stack.len() || kept < self.steps.own().len() || self.cut_short;
        // What comes after a gap is not in the place that its position says.
        self.root = gap.is_none().then_some(root);
        self.steps.begin(Common { own: common.own + more as u32, ..common });
        let (mut context, mut route) = match self.steps.last() {
            Some(step) => (step.context, step.route),
            None => match root {
                StackRoot::Complete => (ContextId::ROOT, RouteId::EMPTY),
                StackRoot::Truncated(reason) => {
                    let centre = profile.truncated_cost_centre(reason);
                    (profile.contexts_mut().descend(ContextId::ROOT, centre), RouteId::EMPTY)
                }
            },
        };
        // The innermost function of what is kept calls the next one now.
        let mut called = match self.steps.last() {
            Some(step) if more < stack.len() => {
                let resolved = resolver.resolve(profile, step.frame, time);
                resolver.sites(&resolved).last()
            }
            _ => None,
        };
        let gap_at = gap.map(|gap| (gap.outer as usize).min(stack.len().saturating_sub(1)));
        let mut last = None;
        for (position, &frame) in stack.iter().rev().enumerate().skip(more) {
            if let Some(gap) = gap.filter(|_| gap_at == Some(position)) {
                let centre = profile.gap_cost_centre(gap.reason);
                context = profile.contexts_mut().descend(context, centre);
            }
            let resolved = resolver.resolve(profile, frame, time);
            self.until = self.until.min(resolved.until);
            let sites = resolver.sites(&resolved);
            ((context, route), called) = push_frame((context, route), called, sites, profile);
            self.steps.push(LastFrame { frame, context, route });
            last = Some(resolved);
        }
        let depth = self.steps.depth() as u64;
        if common.reserve != Reserve::Stays {
            // It has only frames of this stack now, or none.
            self.resolved = usize::MAX;
        }
        self.cut_short = self.steps.end(common);
        if leaf_changed && let Some(&leaf) = stack.first() {
            let resolved = last.unwrap_or_else(|| resolver.resolve(profile, leaf, time));
            (self.line, self.named) = (resolved.line, resolved.named);
        }
        if profile.contexts().is_elided(context)
            && let Some(&leaf) = stack.first()
        {
            let resolved = last.unwrap_or_else(|| resolver.resolve(profile, leaf, time));
            if let Some(&leaf) = resolver.cost_centres(&resolved).last() {
                context = profile.contexts_mut().push(context, leaf);
            }
        }
        ChargeTarget { thread: self.id, context, line: self.line, route, named: self.named, depth }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Outside {
    pub(super) root: StackRoot,
    pub(super) common: Common,
    pub(super) gap: Option<Gap>,
}

pub(super) struct ChargeTarget {
    pub(super) thread: ThreadId,
    pub(super) context: ContextId,
    pub(super) line: LineId,
    pub(super) route: RouteId,
    pub(super) named: bool,
    pub(super) depth: u64,
}
