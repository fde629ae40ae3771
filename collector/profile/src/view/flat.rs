//! The flat view: self and inherited weight of every function (I5).

use std::cmp::Reverse;

use serde::Serialize;

use super::column::ViewColumn;
use super::interval::Share;
use super::sums::Sums;
use super::total::Total;
use crate::ids::CostCentreId;
use crate::labels::Definition;
use crate::profile::Profile;
use crate::selection::Selection;
use crate::squares::Squares;

/// One function.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlatRow {
    /// The function.
    pub function: CostCentreId,
    /// Its name.
    pub name: String,
    /// File name of its image.
    pub image: String,
    /// Where it is defined.
    #[serde(flatten)]
    pub definition: Definition,
    /// Weight of the stacks that it is the leaf of.
    pub self_weight: u64,
    /// Weight of the stacks that it is on, each counted once.
    pub inherited_weight: u64,
    /// Samples of the stacks that it is the leaf of.
    pub samples_self: u64,
    /// Samples of the stacks that it is on.
    pub samples_inherited: u64,
    /// Squared weights of the self weight, see [`Sums`].
    #[serde(skip)]
    pub self_squares: Squares,
    /// Squared weights of the inherited weight.
    #[serde(skip)]
    pub inherited_squares: Squares,
    /// Share of `self_weight` in the view's total.
    pub self_share: Share,
    /// Share of `inherited_weight` in the view's total.
    pub inherited_share: Share,
}

impl FlatRow {
    pub(super) const fn own(&self) -> Sums {
        Sums {
            weight: self.self_weight,
            samples: self.samples_self,
            squares: self.self_squares,
            unsampled: self.unsampled(self.self_weight),
        }
    }

    pub(super) const fn inherited(&self) -> Sums {
        Sums {
            weight: self.inherited_weight,
            samples: self.samples_inherited,
            squares: self.inherited_squares,
            unsampled: self.unsampled(self.inherited_weight),
        }
    }

    /// What of a weight no sample stands for. Where there are samples as well it is not known here, and taken for none.
    const fn unsampled(&self, weight: u64) -> u64 {
        if self.samples_inherited == 0 { weight } else { 0 }
    }

    /// What the functions called by this one spent.
    #[must_use]
    pub const fn child_weight(&self) -> u64 {
        self.inherited_weight - self.self_weight
    }
}

/// Rows left out, so that totals survive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct OtherRows {
    /// How many.
    pub functions: usize,
    /// Their self weight.
    pub self_weight: u64,
    /// Their samples.
    pub samples_self: u64,
    /// Their squared weights.
    #[serde(skip)]
    pub self_squares: Squares,
    /// Share of that in the view's total.
    pub self_share: Share,
}

/// Every function that was seen, by self weight, largest first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlatView {
    /// All of it. The sum of all `self_weight`, other rows included.
    pub total: Total,
    /// The functions.
    pub rows: Vec<FlatRow>,
    /// What [`FlatView::cut`] left out.
    pub other: Option<OtherRows>,
}

impl FlatView {
    /// Computes the view.
    #[must_use]
    pub fn new(profile: &Profile, selection: &Selection) -> Self {
        let mut sums = vec![(Sums::default(), Sums::default()); profile.cost_centres().len()];
        let total = profile.walk(selection).visit(|_, context| {
            for function in context.active() {
                if let Some((_, inherited)) = sums.get_mut(function.index()) {
                    inherited.add(context.sums);
                }
            }
            if let Some((own, _)) = sums.get_mut(context.leaf().index()) {
                own.add(context.sums);
            }
        });
        let labels = profile.labels();
        let mut rows: Vec<FlatRow> = sums
            .iter()
            .enumerate()
            .filter(|(_, (_, inherited))| inherited.weight > 0 || inherited.samples > 0)
            .map(|(i, &(own, inherited))| {
                let function = CostCentreId::new(i as u32);
                FlatRow {
                    function,
                    name: profile.name(function).into_owned(),
                    image: profile.image_name(function).into_owned(),
                    definition: labels.definition(function),
                    self_weight: own.weight,
                    inherited_weight: inherited.weight,
                    samples_self: own.samples,
                    samples_inherited: inherited.samples,
                    self_squares: own.squares,
                    inherited_squares: inherited.squares,
                    self_share: Share::of(own, &total),
                    inherited_share: Share::of(inherited, &total),
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            let order = |row: &FlatRow| (row.self_weight, row.samples_self, row.inherited_weight);
            order(b).cmp(&order(a)).then_with(|| a.name.cmp(&b.name)).then(a.function.cmp(&b.function))
        });
        Self { total, rows, other: None }
    }

    /// The row of a function.
    #[must_use]
    pub fn row(&self, function: CostCentreId) -> Option<&FlatRow> {
        self.rows.iter().find(|row| row.function == function)
    }

    /// What [`FlatView::sort`] can order by.
    pub const COLUMNS: &[ViewColumn] = &[
        ViewColumn::Own,
        ViewColumn::Inherited,
        ViewColumn::Child,
        ViewColumn::Samples,
        ViewColumn::Name,
        ViewColumn::Image,
    ];

    /// Orders by a column instead of self weight.
    pub fn sort(&mut self, by: ViewColumn) {
        match by {
            ViewColumn::Own | ViewColumn::Id => self.rows.sort_by_key(|row| Reverse(row.self_weight)),
            ViewColumn::Inherited => self.rows.sort_by_key(|row| Reverse(row.inherited_weight)),
            ViewColumn::Child => self.rows.sort_by_key(|row| Reverse(row.child_weight())),
            ViewColumn::Samples => self.rows.sort_by_key(|row| Reverse(row.samples_self)),
            ViewColumn::Name => self.rows.sort_by(|a, b| a.name.cmp(&b.name)),
            ViewColumn::Image => self.rows.sort_by(|a, b| a.image.cmp(&b.image)),
        }
    }

    /// Leaves out the functions whose inherited share is below `fraction`, and counts them as other.
    pub fn cut(&mut self, fraction: f64) {
        self.keep(|_, row| row.inherited_share.fraction >= fraction);
    }

    /// Leaves out all but the first `rows` functions, and counts the rest as other.
    pub fn limit(&mut self, rows: usize) {
        self.keep(|i, _| i < rows);
    }

    fn keep(&mut self, mut keep: impl FnMut(usize, &FlatRow) -> bool) {
        let mut other = self.other.unwrap_or_default();
        let mut i = 0;
        self.rows.retain(|row| {
            let kept = keep(i, row);
            i += 1;
            if !kept {
                other.functions += 1;
                other.self_weight = other.self_weight.saturating_add(row.self_weight);
                other.samples_self = other.samples_self.saturating_add(row.samples_self);
                other.self_squares = other.self_squares.saturating_add(row.self_squares);
            }
            kept
        });
        let unsampled = if other.samples_self == 0 { other.self_weight } else { 0 };
        let sums =
            Sums { weight: other.self_weight, samples: other.samples_self, squares: other.self_squares, unsampled };
        other.self_share = Share::of(sums, &self.total);
        self.other = (other.functions > 0).then_some(other);
    }
}
