//! One walk over a selection's contexts and charges, under final names (see [`naming`](crate::naming)).

use std::borrow::Cow;
use std::cell::OnceCell;

use hashbrown::HashMap;

use crate::context::ContextTable;
use crate::ids::{ContextId, CostCentreId, LineId, RouteId};
use crate::limits::ProfileLimits;
use crate::profile::{Charge, Profile};
use crate::remap::{Contexts, Remapped, remap};
use crate::selection::Selection;
use crate::uncertain::Uncertain;

pub(crate) struct SelectionWalk<'a> {
    profile: &'a Profile,
    selection: &'a Selection,
    /// The contexts with other functions, and each context's place there; `None` if nothing is renamed or hidden.
    remapped: Option<(ContextTable, Vec<Remapped>)>,
    /// Whether a context of the profile counts, by its number; `None` if all do.
    counts: Option<Vec<bool>>,
    /// Whether a function is visible, by its number; `None` if all are.
    visible: Option<Vec<bool>>,
    uncertain: Cow<'a, Uncertain>,
    /// The lines from which functions called hidden ones that ran, by route.
    call_lines: OnceCell<HashMap<(RouteId, CostCentreId), LineId>>,
}

impl Profile {
    pub(crate) fn walk<'a>(&'a self, selection: &'a Selection) -> SelectionWalk<'a> {
        let counts = selection.counts(self);
        let visible = selection.visible(self);
        let mut walk = SelectionWalk {
            profile: self,
            selection,
            remapped: None,
            counts,
            visible,
            uncertain: Cow::Borrowed(&self.uncertain),
            call_lines: OnceCell::new(),
        };
        if !self.namings.list().is_empty() || walk.visible.is_some() {
            // The budget held for the contexts as they are; there cannot be more of them with fewer functions.
            let mut table = ContextTable::new(self.limits.context_bytes.saturating_mul(2));
            let (places, uncertain) = remap(&self.recorded_contexts(), &mut table, |id| walk.shown_function(id));
            walk.remapped = Some((table, places));
            walk.uncertain = Cow::Owned(uncertain);
        }
        walk
    }

    pub(crate) fn recorded_contexts(&self) -> Contexts<'_> {
        let mut charged = vec![false; self.contexts.len()];
        self.for_each_charge(|charge| set(&mut charged, charge.context));
        let functions = self.cost_centres().len();
        Contexts { table: &self.contexts, uncertain: &self.uncertain, charged, functions }
    }

    /// Number of contexts with charges whose histories are too long to be shown in full.
    pub(crate) fn shortened_contexts(&self) -> u64 {
        let Contexts { charged, .. } = self.recorded_contexts();
        self.contexts.visit_of(|id| is_set(&charged, id), |_, _| {})
    }

    /// A profile of the same session, processes, threads and images, under the same ids, without functions and charges.
    pub(crate) fn emptied(&self) -> Profile {
        let mut new = Profile::with_all_metrics(self.session.clone(), ProfileLimits::reading());
        new.copy_runners(self.processes(), self.threads());
        for image in self.images() {
            new.add_image(image.clone());
        }
        new
    }
}

fn is_set(places: &[bool], context: ContextId) -> bool {
    places.get(context.index()).copied().unwrap_or(false)
}

fn set(places: &mut [bool], context: ContextId) {
    if let Some(place) = places.get_mut(context.index()) {
        *place = true;
    }
}

impl<'a> SelectionWalk<'a> {
    pub(crate) const fn profile(&self) -> &'a Profile {
        self.profile
    }

    pub(crate) const fn selection(&self) -> &'a Selection {
        self.selection
    }

    pub(crate) fn table(&self) -> &ContextTable {
        self.remapped.as_ref().map_or(&self.profile.contexts, |(table, _)| table)
    }

    pub(crate) fn uncertain(&self) -> &Uncertain {
        &self.uncertain
    }

    pub(crate) fn context(&self, id: ContextId) -> ContextId {
        match &self.remapped {
            Some((_, places)) => places.get(id.index()).map_or(ContextId::ELIDED, |place| place.context),
            None => id,
        }
    }

    /// What a function of the profile is called in the end; `None` if it is hidden.
    fn shown_function(&self, id: CostCentreId) -> Option<CostCentreId> {
        let real = self.profile.real(id);
        let is_shown = |visible: &Vec<bool>| visible.get(real.index()).copied().unwrap_or(false);
        self.visible.as_ref().is_none_or(is_shown).then_some(real)
    }

    fn shows_leaf(&self, id: ContextId) -> bool {
        self.remapped.as_ref().is_none_or(|(_, places)| places.get(id.index()).is_some_and(|place| place.shows_leaf))
    }

    /// The line where the innermost visible function ran: that of the charge, or where a hidden function it called counts.
    pub(crate) fn line(&self, charge: &Charge<'_>) -> LineId {
        if self.shows_leaf(charge.context) {
            return self.profile.source_line(charge.line);
        }
        let caller = |context: ContextId| self.table().leaf(self.context(context));
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

    /// Calls `visit` with every charge that counts and its context as shown, in order of first occurrence.
    pub(crate) fn charges(&self, mut visit: impl FnMut(ContextId, Charge<'_>)) {
        self.profile.for_each_charge(|charge| {
            let counts = |counts: &Vec<bool>| counts.get(charge.context.index()).copied().unwrap_or(false);
            if self.selection.takes_thread(charge.thread) && self.counts.as_ref().is_none_or(counts) {
                visit(self.context(charge.context), charge);
            }
        });
    }

    pub(crate) fn contexts(&self) -> Contexts<'_> {
        let mut charged = vec![false; self.table().len()];
        self.profile.for_each_charge(|charge| set(&mut charged, self.context(charge.context)));
        let functions = self.profile.cost_centres().len();
        Contexts { table: self.table(), uncertain: &self.uncertain, charged, functions }
    }

    /// Fills `new`, from [`Profile::emptied`]. Charges to `other` have no lines: they belong to different functions.
    pub(crate) fn remap(
        &self,
        mut new: Profile,
        function: impl Fn(CostCentreId) -> CostCentreId,
        other: Option<CostCentreId>,
    ) -> Profile {
        let (contexts, uncertain) = remap(&self.contexts(), &mut new.contexts, |id| Some(function(id)));
        new.uncertain = uncertain;
        let is_other = |function: CostCentreId| other == Some(function);
        let site = |id| self.shown_function(id).map(&function).filter(|&new| !is_other(new));
        let routes = self.profile.copied_routes(&mut new, site);
        new.flags.merges_functions |= self.profile.flags.merges_functions;
        let root = new.contexts.push(ContextId::ROOT, CostCentreId::ROOT);
        self.charge_to(new, |new, context, charge| {
            let is_other = self.table().leaf(context).is_some_and(|leaf| is_other(function(leaf)));
            let line = if is_other { LineId::UNKNOWN } else { self.profile.copied_line(new, self.line(charge)) };
            let context = contexts.get(context.index())?.context;
            Some((if context == ContextId::ROOT { root } else { context }, line, routes.of(charge.route)))
        })
    }

    /// Charges everything shown to `new`; `place` chooses context, line and route. The accounting stays.
    pub(crate) fn charge_to(
        &self,
        mut new: Profile,
        mut place: impl FnMut(&mut Profile, ContextId, &Charge<'_>) -> Option<(ContextId, LineId, RouteId)>,
    ) -> Profile {
        self.charges(|context, charge| {
            let Some((context, line, route)) = place(&mut new, context, &charge) else { return };
            new.charge_sums((charge.thread, context, line, route), &charge);
        });
        new.accounting = self.profile.accounting.clone();
        new.crashes.clone_from(&self.profile.crashes);
        new.flags.collecting = false;
        new
    }
}
