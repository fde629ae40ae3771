//! Functions that are named later than they are charged.
//!
//! Programs that generate code say late how it is called: V8 keeps up to 2 MiB of names in its buffer, Java writes them
//! when it is asked to or at its end. Until then a sample is charged to a cost centre without a name. When the name is
//! known, the profile gets a *naming*: that cost centre was this function all along. Contexts and charges stay as they
//! are, because readers of the stream have them already; a [`SelectionWalk`](crate::walk::Walk) of the profile sees the names.

use hashbrown::HashMap;

use crate::ids::CostCentreId;

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
