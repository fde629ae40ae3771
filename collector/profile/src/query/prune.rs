//! Merges the small functions of a profile into one.

use crate::ids::{CostCentreId, ImageId};
use crate::profile::Profile;
use crate::view::{FlatView, Selection};

/// The result of [`Profile::pruned`].
#[derive(Debug)]
pub struct Pruned {
    /// The profile.
    pub profile: Profile,
    /// The cost centre that replaces the small functions, if any.
    pub other: Option<CostCentreId>,
    /// Number of functions that it replaces.
    pub functions: usize,
}

impl Profile {
    /// The profile with all functions below `percent` of the weight, inherited, merged into `[other: ...]`.
    ///
    /// All other weights are unchanged (I5), and so are arcs without mutual recursion; others are marked as approximate
    /// (I6). ccsd's own cost centres (`[truncated]` and similar) are kept.
    #[must_use]
    pub fn pruned(&self, metric: usize, percent: f64) -> Pruned {
        let mut small = vec![false; self.cost_centres().len()];
        let mut functions = 0;
        let of_ccsd = |id| self.cost_centre(id).is_none_or(|it| it.image == ImageId::CCSD);
        for row in FlatView::new(self, &Selection::all().metric(metric)).rows {
            if row.inherited_share.fraction < percent / 100.0 && !of_ccsd(row.function) {
                functions += 1;
                if let Some(place) = small.get_mut(row.function.index()) {
                    *place = true;
                }
            }
        }
        let mut new = self.emptied_with_functions();
        let other = (functions > 0).then(|| new.add_special(&format!("[other: {functions} below {percent}%]")));
        let is_small = |id: CostCentreId| small.get(id.index()).copied().unwrap_or(false);
        let function = |id: CostCentreId| other.filter(|_| is_small(id)).unwrap_or(id);
        let profile = self.walk(&Selection::all()).remap(new, function, other);
        Pruned { profile, other, functions }
    }
}
