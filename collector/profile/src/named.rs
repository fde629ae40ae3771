//! A profile whose functions have the names that they got in the end; see [`naming`](crate::naming).

use crate::context::ContextTable;
use crate::ids::{ContextId, CostCentreId, ImageId};
use crate::profile::Profile;

impl Profile {
    /// Says that a cost centre without a name was `function` all along: from now on every view counts its charges for
    /// that one, and recursion through both is folded as if the name had been known from the start.
    ///
    /// Self and inherited weights are those of a profile that knew the name from the start (I5), and so are the arcs
    /// where there is no mutual recursion; with it a squeezed-out entry may be another one.
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

    /// The contexts, with every function under the name that it got in the end.
    pub(crate) fn named(&self) -> Named<'_> {
        if self.namings.list().is_empty() {
            return Named { profile: self, later: None };
        }
        // The budget held for the contexts as they are; there cannot be more of them under fewer names. (Twice, because
        // the order in which they come decides how much is stored in full.)
        let mut table = ContextTable::new(self.limits.context_bytes.saturating_mul(2));
        let mut contexts: Vec<ContextId> = vec![ContextId::ROOT];
        for id in (1..self.contexts.len()).map(ContextId::at) {
            let parent = self.contexts.parent(id).and_then(|parent| contexts.get(parent.index()).copied());
            contexts.push(match (parent, self.contexts.leaf(id)) {
                (Some(ContextId::ROOT), Some(CostCentreId::ELIDED)) | (None, _) | (_, None) => ContextId::ELIDED,
                (Some(parent), Some(leaf)) => table.push(parent, self.real(leaf)),
            });
        }
        Named { profile: self, later: Some((table, contexts)) }
    }
}

/// The contexts of a profile, every function under the name that it got in the end.
pub(crate) struct Named<'a> {
    profile: &'a Profile,
    later: Option<(ContextTable, Vec<ContextId>)>,
}

impl Named<'_> {
    /// Their table.
    pub(crate) fn contexts(&self) -> &ContextTable {
        self.later.as_ref().map_or(&self.profile.contexts, |(table, _)| table)
    }

    /// What a context of the profile is in that table.
    pub(crate) fn context(&self, id: ContextId) -> ContextId {
        match &self.later {
            Some((_, contexts)) => contexts.get(id.index()).copied().unwrap_or(ContextId::ELIDED),
            None => id,
        }
    }
}
