//! Functions that are named later than they are charged.
//!
//! Programs that generate code report names late: V8 buffers up to 2 MiB of them, Java writes them on request or at its
//! end. Until then samples are charged to a cost centre without a name; a *naming* then says which function it was.
//! Contexts and charges stay, because readers of the stream have them; a [`SelectionWalk`](crate::walk::SelectionWalk)
//! sees the names.

use hashbrown::HashMap;

use crate::ids::CostCentreId;

/// Which cost centre is which function. A target is never named itself, so one step leads to the end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Namings {
    list: Vec<(CostCentreId, CostCentreId)>,
    real: HashMap<u32, u32>,
    functions: HashMap<u32, u32>,
}

impl Namings {
    pub(crate) fn list(&self) -> &[(CostCentreId, CostCentreId)] {
        &self.list
    }

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

    pub(crate) fn bytes(&self) -> usize {
        self.list.capacity() * size_of::<(CostCentreId, CostCentreId)>()
            + self.real.allocation_size()
            + self.functions.allocation_size()
    }
}
