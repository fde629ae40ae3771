//! A profile's contexts as views see them: functions under their final names (see [`naming`](crate::naming)), without
//! those that a selection hides.

use std::borrow::Cow;
use std::cell::OnceCell;

use hashbrown::HashMap;

use crate::context::ContextTable;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, RouteId};
use crate::profile::{Charge, Profile};
use crate::uncertain::Uncertain;
use crate::view::selection::Selection;

impl Profile {
    /// Says that a cost centre without a name was `function` all along: from now on every view counts its charges for
    /// that one.
    ///
    /// Self and inherited weights are those of a profile that knew the name from the start (I5), and so are the arcs
    /// where there is no mutual recursion. With it, a history does not say what was squeezed out between two functions that
    /// are now one; such arcs are marked as approximate.
    ///
    /// False, and nothing happens, if `unnamed` has a name or has been named, is what another was named after, or if
    /// `function` has itself been named later, or if one of them does not exist.
    pub fn name_later(&mut self, unnamed: CostCentreId, function: CostCentreId) -> bool {
        self.may_be_named(unnamed, function) && self.namings.add(unnamed, function)
    }

    /// What is asked of a naming's ends by themselves.
    fn may_be_named(&self, unnamed: CostCentreId, function: CostCentreId) -> bool {
        let nameless =
            self.cost_centre(unnamed).is_some_and(|it| it.linkage_name.is_none() && it.image != ImageId::CCSD);
        nameless && self.cost_centre(function).is_some()
    }

    /// What a cost centre is in truth: the function that it was later named after, else itself.
    #[must_use]
    pub fn real(&self, id: CostCentreId) -> CostCentreId {
        self.namings.real(id)
    }

    /// Of each context, whether anything was charged to it.
    pub(crate) fn charged(&self) -> Vec<bool> {
        self.charged_as(self.contexts.len(), |id| id)
    }

    /// The same of so many other contexts, each of these being `place` there.
    fn charged_as(&self, contexts: usize, place: impl Fn(ContextId) -> ContextId) -> Vec<bool> {
        let mut charged = vec![false; contexts];
        self.for_each_charge(|charge| {
            if let Some(charged) = charged.get_mut(place(charge.context).index()) {
                *charged = true;
            }
        });
        charged
    }

    /// The contexts, with every function under the name that it got in the end.
    pub(crate) fn named(&self) -> Shown<'_> {
        self.shown(&Selection::all())
    }

    /// The contexts that a selection shows.
    ///
    /// Hidden functions are left out of the calls that made each context. Every call that is left was made in a stack that
    /// was recorded: where a context stands for several stacks, it shows the first of them.
    pub(crate) fn shown(&self, selection: &Selection) -> Shown<'_> {
        let counts = selection.counts(self);
        let visible = selection.visible(self);
        if self.namings.list().is_empty() && visible.is_none() {
            let uncertain = Cow::Borrowed(&self.uncertain);
            return Shown { profile: self, made: None, counts, uncertain, call_lines: OnceCell::new() };
        }
        let function = |id: CostCentreId| {
            let real = self.real(id);
            let shows = visible.as_ref().is_none_or(|visible| visible.get(real.index()).copied().unwrap_or(false));
            shows.then_some(real)
        };
        // The budget held for the contexts as they are; there cannot be more of them with fewer functions.
        let mut table = ContextTable::new(self.limits.context_bytes.saturating_mul(2));
        let elided = Place { context: ContextId::ELIDED, leaf: true };
        let root = Place { context: ContextId::ROOT, leaf: true };
        let places = self.contexts.replay(root, elided, |_, parent, leaf| match function(leaf) {
            Some(leaf) => Place { context: table.graft(parent.context, leaf), leaf: true },
            None => Place { leaf: false, ..parent },
        });
        let place = |id: ContextId| places.get(id.index()).map_or(ContextId::ELIDED, |place| place.context);
        let uncertain = Uncertain::of(&self.contexts, &self.uncertain, &self.charged(), place, function);
        let uncertain = Cow::Owned(uncertain);
        Shown { profile: self, made: Some((table, places)), counts, uncertain, call_lines: OnceCell::new() }
    }
}

/// Where a context of the profile stands among those that are shown.
#[derive(Clone, Copy)]
struct Place {
    context: ContextId,
    /// Its running function is shown.
    leaf: bool,
}

/// The contexts of a profile that a selection shows.
pub(crate) struct Shown<'a> {
    profile: &'a Profile,
    /// `None` where nothing is renamed or hidden.
    made: Option<(ContextTable, Vec<Place>)>,
    /// Of each context of the profile, whether it counts; `None` if all do.
    counts: Option<Vec<bool>>,
    uncertain: Cow<'a, Uncertain>,
    /// The lines from which functions called hidden ones that ran, by route.
    call_lines: OnceCell<HashMap<(RouteId, CostCentreId), LineId>>,
}

impl Shown<'_> {
    /// Their table.
    pub(crate) fn contexts(&self) -> &ContextTable {
        self.made.as_ref().map_or(&self.profile.contexts, |(table, _)| table)
    }

    /// Creates these contexts in `new` with their functions replaced by `function`, and marks there the calls that have
    /// become uncertain. Returns the new id of each context.
    pub(crate) fn remap(&self, new: &mut Profile, function: impl Fn(CostCentreId) -> CostCentreId) -> Vec<ContextId> {
        let contexts = new.contexts_mut();
        let push = |_, parent, leaf| contexts.graft(parent, function(leaf));
        let places = self.contexts().replay(ContextId::ROOT, ContextId::ELIDED, push);
        let place = |id: ContextId| places.get(id.index()).copied().unwrap_or(ContextId::ELIDED);
        new.uncertain =
            Uncertain::of(self.contexts(), &self.uncertain, &self.charged(), place, |id| Some(function(id)));
        places
    }

    /// Of each of these contexts, whether anything was charged to it.
    pub(crate) fn charged(&self) -> Vec<bool> {
        self.profile.charged_as(self.contexts().len(), |id| self.context(id))
    }

    /// Their uncertain callers and callees.
    pub(crate) fn uncertain(&self) -> &Uncertain {
        &self.uncertain
    }

    /// What a context of the profile is in that table.
    pub(crate) fn context(&self, id: ContextId) -> ContextId {
        match &self.made {
            Some((_, places)) => places.get(id.index()).map_or(ContextId::ELIDED, |place| place.context),
            None => id,
        }
    }

    /// Whether the running function of a context of the profile is shown.
    pub(crate) fn shows_leaf(&self, id: ContextId) -> bool {
        self.made.as_ref().is_none_or(|(_, places)| places.get(id.index()).is_some_and(|place| place.leaf))
    }

    /// The line where the innermost visible function ran: that of the charge, or where a hidden function it called counts.
    pub(crate) fn line(&self, charge: &Charge<'_>) -> LineId {
        if self.shows_leaf(charge.context) {
            return charge.line;
        }
        let caller = |context: ContextId| self.contexts().leaf(self.context(context));
        let lines = self.call_lines.get_or_init(|| {
            let mut asked = Vec::new();
            self.profile.for_each_charge(|charge| {
                if !self.shows_leaf(charge.context) {
                    asked.extend(caller(charge.context).map(|caller| (charge.route, caller)));
                }
            });
            self.profile.latest_lines(asked.into_iter())
        });
        let line = caller(charge.context).and_then(|caller| lines.get(&(charge.route, caller)).copied());
        line.unwrap_or(LineId::UNKNOWN)
    }

    /// Whether what is charged to a context of the profile counts.
    pub(crate) fn counts(&self, id: ContextId) -> bool {
        self.counts.as_ref().is_none_or(|counts| counts.get(id.index()).copied().unwrap_or(false))
    }
}
