//! The difference of two profiles, function by function.

use std::collections::BTreeMap;

use serde::Serialize;

use super::interval::Z;
use super::{FlatRow, FlatView, Selection, Share, Total};
use crate::profile::Profile;

/// What one profile says of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DiffSide {
    /// Self weight.
    pub self_weight: u64,
    /// Inherited weight.
    pub inherited_weight: u64,
    /// Samples of the self weight.
    pub samples_self: u64,
    /// Samples of the inherited weight.
    pub samples_inherited: u64,
    /// Share of self weight in the profile.
    pub self_share: Share,
    /// Share of inherited weight in the profile.
    pub inherited_share: Share,
}

/// One function in both profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// Its name. Functions are matched by name and file name of their image: addresses and build ids differ between builds.
    pub name: String,
    /// File name of its image.
    pub image: String,
    /// Before; `None` if it was not seen.
    pub before: Option<DiffSide>,
    /// After; `None` if it was not seen.
    pub after: Option<DiffSide>,
    /// Share of self weight after, less that before: from -1 to 1.
    pub self_change: f64,
    /// Share of inherited weight after, less that before.
    pub inherited_change: f64,
    /// The 95% intervals of the self shares do not overlap: chance alone hardly explains the change. (A strict test: of
    /// functions that did not change, fewer than 1 in 100 pass it.)
    pub self_significant: bool,
    /// The same for the inherited shares.
    pub inherited_significant: bool,
    /// The self weight after differs from that before by more than chance alone hardly explains.
    pub self_absolutely_significant: bool,
    /// The same for the inherited weights.
    pub inherited_absolutely_significant: bool,
}

/// All functions of two profiles, the largest change of self share first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffView {
    /// All of the first.
    pub before: Total,
    /// All of the second.
    pub after: Total,
    /// The functions.
    pub rows: Vec<DiffRow>,
}

impl DiffView {
    /// Compares two profiles, each by a selection of its own (ids differ between profiles).
    #[must_use]
    pub fn new(before: (&Profile, &Selection), after: (&Profile, &Selection)) -> Self {
        let before = FlatView::new(before.0, before.1);
        let after = FlatView::new(after.0, after.1);
        let mut sides: BTreeMap<(String, String), [Option<DiffSide>; 2]> = BTreeMap::new();
        for (which, view) in [&before, &after].into_iter().enumerate() {
            for row in &view.rows {
                let both = sides.entry((row.name.clone(), row.image.clone())).or_default();
                if let Some(side) = both.get_mut(which) {
                    let sum = side.get_or_insert_default();
                    *sum = add(sum, row, view.total);
                }
            }
        }
        let unseen = |total: Total| DiffSide {
            self_share: Share::of(0, total.weight, total.samples),
            inherited_share: Share::of(0, total.weight, total.samples),
            ..DiffSide::default()
        };
        let mut rows: Vec<DiffRow> = sides
            .into_iter()
            .map(|((name, image), [b, a])| {
                let (was, is) = (b.unwrap_or_else(|| unseen(before.total)), a.unwrap_or_else(|| unseen(after.total)));
                DiffRow {
                    name,
                    image,
                    before: b,
                    after: a,
                    self_change: is.self_share.fraction - was.self_share.fraction,
                    inherited_change: is.inherited_share.fraction - was.inherited_share.fraction,
                    self_significant: apart(was.self_share, is.self_share),
                    inherited_significant: apart(was.inherited_share, is.inherited_share),
                    self_absolutely_significant: beyond_chance(
                        (was.self_weight, was.samples_self, before.total),
                        (is.self_weight, is.samples_self, after.total),
                    ),
                    inherited_absolutely_significant: beyond_chance(
                        (was.inherited_weight, was.samples_inherited, before.total),
                        (is.inherited_weight, is.samples_inherited, after.total),
                    ),
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            let size = |row: &DiffRow| (row.self_change.abs(), row.inherited_change.abs());
            size(b).0.total_cmp(&size(a).0).then(size(b).1.total_cmp(&size(a).1)).then_with(|| a.name.cmp(&b.name))
        });
        Self { before: before.total, after: after.total, rows }
    }
}

/// Adds a row: different functions of one name (two builds of one library) are one here.
fn add(sum: &DiffSide, row: &FlatRow, total: Total) -> DiffSide {
    let self_weight = sum.self_weight.saturating_add(row.self_weight);
    let inherited_weight = sum.inherited_weight.saturating_add(row.inherited_weight).min(total.weight);
    DiffSide {
        self_weight,
        inherited_weight,
        samples_self: sum.samples_self.saturating_add(row.samples_self),
        samples_inherited: sum.samples_inherited.saturating_add(row.samples_inherited).min(total.samples),
        self_share: Share::of(self_weight, total.weight, total.samples),
        inherited_share: Share::of(inherited_weight, total.weight, total.samples),
    }
}

pub(super) fn apart(a: Share, b: Share) -> bool {
    a.high < b.low || b.high < a.low
}

/// Whether two weights differ by more than chance alone hardly explains, each known from so many samples of a total.
///
/// Numbers of samples are Poisson's, so the variance of one is its mean; one more is added, because a number of 0 does not
/// mean that it can only be 0. This knows nothing of how much two runs of a program differ by themselves.
pub(super) fn beyond_chance(before: (u64, u64, Total), after: (u64, u64, Total)) -> bool {
    let variance = |(_, samples, total): (u64, u64, Total)| {
        let of_one = total.weight as f64 / total.samples.max(1) as f64;
        (samples as f64 + 1.0) * of_one * of_one
    };
    let difference = before.0.abs_diff(after.0) as f64;
    difference > Z * (variance(before) + variance(after)).sqrt()
}
