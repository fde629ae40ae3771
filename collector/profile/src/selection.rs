//! Which part of a profile to look at.

use std::collections::HashSet;

use crate::ids::{CostCentreId, ThreadId};
use crate::profile::Profile;

/// What a view shows: which functions are visible, which stacks and threads count, which metric.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    hidden: HashSet<CostCentreId>,
    only: Option<HashSet<CostCentreId>>,
    focus: Option<HashSet<CostCentreId>>,
    ignored: HashSet<CostCentreId>,
    threads: Option<HashSet<ThreadId>>,
    ignored_threads: HashSet<ThreadId>,
    metric: usize,
}

impl Selection {
    /// Everything, by the first metric.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// Hides functions (I6): what they spend themselves counts for their innermost visible callers.
    #[must_use]
    pub fn hide(mut self, functions: impl IntoIterator<Item = CostCentreId>) -> Self {
        self.hidden.extend(functions);
        self
    }

    /// Hides all functions but these.
    #[must_use]
    pub fn only(mut self, functions: impl IntoIterator<Item = CostCentreId>) -> Self {
        self.only.get_or_insert_default().extend(functions);
        self
    }

    /// Takes only stacks on which one of these functions is active (Spivey, end of "Presenting the results").
    #[must_use]
    pub fn focus(mut self, functions: impl IntoIterator<Item = CostCentreId>) -> Self {
        self.focus.get_or_insert_default().extend(functions);
        self
    }

    /// Leaves out the stacks on which one of these functions is active.
    #[must_use]
    pub fn ignore(mut self, functions: impl IntoIterator<Item = CostCentreId>) -> Self {
        self.ignored.extend(functions);
        self
    }

    /// Takes only what these threads did.
    #[must_use]
    pub fn threads(mut self, threads: impl IntoIterator<Item = ThreadId>) -> Self {
        self.threads.get_or_insert_default().extend(threads);
        self
    }

    /// Leaves out what these threads did.
    #[must_use]
    pub fn ignore_threads(mut self, threads: impl IntoIterator<Item = ThreadId>) -> Self {
        self.ignored_threads.extend(threads);
        self
    }

    /// Weighs by the metric of this number. One that does not exist weighs everything 0.
    #[must_use]
    pub const fn metric(mut self, metric: usize) -> Self {
        self.metric = metric;
        self
    }

    /// Number of the metric.
    #[must_use]
    pub const fn metric_index(&self) -> usize {
        self.metric
    }

    /// Whether a function is visible. `[elided]` is hidden like any other.
    #[must_use]
    pub fn shows(&self, function: CostCentreId) -> bool {
        !self.hidden.contains(&function) && self.only.as_ref().is_none_or(|only| only.contains(&function))
    }

    pub(super) fn hides(&self) -> bool {
        !self.hidden.is_empty() || self.only.is_some()
    }

    pub(crate) fn takes_thread(&self, thread: ThreadId) -> bool {
        self.threads.as_ref().is_none_or(|threads| threads.contains(&thread)) && !self.ignored_threads.contains(&thread)
    }

    /// Visibility by number of cost centre, of those that the profile names later by what they are in truth; `None` if nothing is hidden.
    pub(crate) fn visible(&self, profile: &Profile) -> Option<Vec<bool>> {
        if !self.hides() {
            return None;
        }
        let real = |ids: &HashSet<CostCentreId>| ids.iter().map(|&id| profile.real(id)).collect::<HashSet<_>>();
        let (hidden, only) = (real(&self.hidden), self.only.as_ref().map(real));
        let shows = |id| !hidden.contains(&id) && only.as_ref().is_none_or(|only| only.contains(&id));
        Some((0..profile.cost_centres().len()).map(|i| shows(CostCentreId::new(i as u32))).collect())
    }

    /// Whether each context of a profile counts: a focussed function is on its stack, and no ignored one; `None` if all do.
    pub(crate) fn counts(&self, profile: &Profile) -> Option<Vec<bool>> {
        if self.focus.is_none() && self.ignored.is_empty() {
            return None;
        }
        let focus = self.focus.as_ref().map(|focus| by_number(profile, focus));
        let ignored = by_number(profile, &self.ignored);
        let holds = |set: &[bool], id: CostCentreId| set.get(profile.real(id).index()).copied().unwrap_or(false);
        let focussed = |id| focus.as_ref().is_some_and(|focus| holds(focus, id));
        let root = (focus.is_none(), false);
        let on_stack = |_, (above, ignores): (bool, bool), id| (above || focussed(id), ignores || holds(&ignored, id));
        let stacks = profile.contexts().replay(root, root, on_stack);
        Some(stacks.into_iter().map(|(focussed, ignores)| focussed && !ignores).collect())
    }
}

/// A set by number of cost centre, of those that the profile names later by what they are in truth.
fn by_number(profile: &Profile, set: &HashSet<CostCentreId>) -> Vec<bool> {
    let real: HashSet<_> = set.iter().map(|&id| profile.real(id)).collect();
    (0..profile.cost_centres().len()).map(|i| real.contains(&CostCentreId::new(i as u32))).collect()
}
