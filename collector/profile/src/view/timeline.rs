//! The timeline view: what each function spent in each column of time.

use serde::Serialize;

use super::column::ViewColumn;
use super::flat::{FlatRow, FlatView};
use super::interval::Share;
use super::total::Total;
use crate::ids::CostCentreId;
use crate::labels::Definition;
use crate::profile::Profile;
use crate::selection::Selection;
use crate::timeline::{TimeColumn, Timeline};

/// One function over time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Band {
    /// The function.
    pub function: CostCentreId,
    /// Its name.
    pub name: String,
    /// File name of its image.
    pub image: String,
    /// Where it is defined.
    #[serde(flatten)]
    pub definition: Definition,
    /// Self weight, or inherited weight, in all.
    pub weight: u64,
    /// Share of that in the view's total.
    pub share: Share,
    /// The same in each column.
    pub weights: Vec<u64>,
}

/// Functions over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TimelineView {
    /// All of it.
    pub total: Total,
    /// Whether weights are inherited ones.
    pub inherited: bool,
    /// The columns.
    pub columns: Vec<TimeColumn>,
    /// Everything in each column.
    pub weights: Vec<u64>,
    /// The heaviest functions, the heaviest first.
    pub bands: Vec<Band>,
    /// How many functions are left out.
    pub left_out: usize,
    /// What these spent in each column. (Nothing can be said of that where weights are inherited.)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub other: Option<Vec<u64>>,
}

impl TimelineView {
    /// What a timeline can be ordered by: which weight it shows.
    pub const COLUMNS: &[ViewColumn] = &[ViewColumn::Own, ViewColumn::Inherited];

    /// The `most` heaviest wanted functions of a profile over time.
    #[must_use]
    pub fn new(
        profile: &Profile,
        selection: &Selection,
        timeline: &Timeline,
        inherited: bool,
        most: usize,
        wanted: impl Fn(&FlatRow) -> bool,
    ) -> Self {
        let columns = timeline.columns();
        let mut flat = FlatView::new(profile, selection);
        if inherited {
            flat.sort(ViewColumn::Inherited);
        }
        let all = flat.rows.iter().filter(|row| inherited || row.self_weight > 0).count();
        let weight = |row: &FlatRow| if inherited { row.inherited_weight } else { row.self_weight };
        let mut bands: Vec<Band> = flat
            .rows
            .iter()
            .filter(|row| weight(row) > 0 && wanted(row))
            .take(most)
            .map(|row| Band {
                function: row.function,
                name: row.name.clone(),
                image: row.image.clone(),
                definition: row.definition.clone(),
                weight: weight(row),
                share: if inherited { row.inherited_share } else { row.self_share },
                weights: vec![0; columns.len()],
            })
            .collect();
        let mut number = vec![None; profile.cost_centres().len()];
        for (i, band) in bands.iter().enumerate() {
            if let Some(place) = number.get_mut(band.function.index()) {
                *place = Some(i);
            }
        }
        let number = |function: CostCentreId| number.get(function.index()).copied().flatten();
        // The bands that each context counts for, and whether it counts at all.
        let walk = profile.walk(selection);
        let mut places: Vec<Option<(usize, usize)>> = vec![None; walk.table().len()];
        let mut lists: Vec<usize> = Vec::new();
        walk.visit(|id, visible| {
            let from = lists.len();
            if inherited {
                lists.extend(visible.active().filter_map(number));
            } else {
                lists.extend(number(visible.leaf()));
            }
            if let Some(place) = places.get_mut(id.index()) {
                *place = Some((from, lists.len()));
            }
        });
        let mut weights = vec![0u64; columns.len()];
        let add = |sums: &mut [u64], column: usize, weight: u64| {
            if let Some(sum) = sums.get_mut(column) {
                *sum = sum.saturating_add(weight);
            }
        };
        walk.charges(|context, charge| {
            let Some((from, to)) = places.get(context.index()).copied().flatten() else { return };
            let list = lists.get(from..to).unwrap_or(&[]);
            for (column, &weight) in
                timeline.weights(charge.weights).iter().enumerate().filter(|(_, weight)| **weight > 0)
            {
                add(&mut weights, column, weight);
                for band in list.iter().copied() {
                    if let Some(band) = bands.get_mut(band) {
                        add(&mut band.weights, column, weight);
                    }
                }
            }
        });
        let other = (!inherited).then(|| {
            let of_band = |column: usize| bands.iter().filter_map(move |band| band.weights.get(column));
            let of_bands = |column: usize| of_band(column).fold(0u64, |sum, weight| sum.saturating_add(*weight));
            weights.iter().enumerate().map(|(column, all)| all.saturating_sub(of_bands(column))).collect()
        });
        let left_out = all.saturating_sub(bands.len());
        Self { total: flat.total, inherited, columns: columns.to_vec(), weights, bands, left_out, other }
    }
}
