//! Functions that are named later than they are charged.
//!
//! Programs that generate code say late how it is called: V8 keeps up to 2 MiB of names in its buffer, Java writes them
//! when it is asked to or at its end. Until then a sample is charged to a cost centre without a name. When the name is
//! known, the profile gets a *naming*: that cost centre was this function all along. Contexts and charges stay as they
//! are, because readers of the stream have them already; whatever looks at the profile sees it [`Named`].

use hashbrown::HashMap;

use crate::context::ContextTable;
use crate::ids::{ContextId, CostCentreId, ImageId};
use crate::profile::Profile;

/// Which cost centres are which functions in truth. No function is given to one that was itself given a function, so one
/// step leads to the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namings {
    list: Vec<(CostCentreId, CostCentreId)>,
    real: HashMap<u32, u32>,
    /// How many were named after each.
    functions: HashMap<u32, u32>,
}

impl Namings {
    /// All of them, in order of arrival.
    pub(crate) fn list(&self) -> &[(CostCentreId, CostCentreId)] {
        &self.list
    }

    /// What a cost centre is in truth.
    pub(crate) fn real(&self, id: CostCentreId) -> CostCentreId {
        self.real.get(&id.0).map_or(id, |&real| CostCentreId(real))
    }

    /// Whether a naming keeps to one step: neither end may have one already, and what others were named after must stay.
    fn fits(&self, unnamed: CostCentreId, function: CostCentreId) -> bool {
        unnamed != function
            && !self.real.contains_key(&unnamed.0)
            && !self.functions.contains_key(&unnamed.0)
            && !self.real.contains_key(&function.0)
    }

    /// Adds one; false, with nothing changed, if it does not fit.
    pub(crate) fn add(&mut self, unnamed: CostCentreId, function: CostCentreId) -> bool {
        let fits = self.fits(unnamed, function);
        if fits {
            self.list.push((unnamed, function));
            self.real.insert(unnamed.0, function.0);
            *self.functions.entry(function.0).or_default() += 1;
        }
        fits
    }

    /// Forgets those from number `len` on.
    pub(crate) fn truncate(&mut self, len: usize) {
        for (unnamed, function) in self.list.drain(len.min(self.list.len())..) {
            self.real.remove(&unnamed.0);
            if let Some(count) = self.functions.get_mut(&function.0) {
                *count -= 1;
                if *count == 0 {
                    self.functions.remove(&function.0);
                }
            }
        }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<(CostCentreId, CostCentreId)>()
            + self.real.allocation_size()
            + self.functions.allocation_size()
    }
}

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
