//! Names that functions get later: see [`naming`](crate::naming).

use crate::ids::{CostCentreId, ImageId};
use crate::profile::Profile;

impl Profile {
    /// Says that a cost centre without a name was `function` all along: from now on every view counts its charges for
    /// that one.
    ///
    /// Self and inherited weights, and arcs without mutual recursion, are as if the name had been known from the start
    /// (I5); other arcs may be marked as approximate. False, with nothing changed, if `unnamed` has a name or was named
    /// after, if `function` has itself been named later, or if either does not exist.
    pub fn name_later(&mut self, unnamed: CostCentreId, function: CostCentreId) -> bool {
        self.may_be_named(unnamed, function) && self.namings.add(unnamed, function)
    }

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
}
