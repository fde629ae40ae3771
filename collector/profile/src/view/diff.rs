//! The difference of two profiles, or of several runs before and several after, function by function.

use std::collections::BTreeMap;

use serde::Serialize;

use super::flat::FlatView;
use super::interval::Share;
use super::matching::labels;
use super::matching::{DiffFunction, Matching};
use super::significance::{Basis, SideTotals, Tested, significant, test};
use super::sums::Sums;
use super::sums::sum;
use super::total::Total;
use crate::profile::Profile;
use crate::selection::Selection;

/// What the profiles of one side say of a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DiffSide {
    /// Self weight; of several runs, that of one on average.
    pub self_weight: u64,
    /// Inherited weight; of several runs, that of one on average.
    pub inherited_weight: u64,
    /// Samples of the self weight, of all runs.
    pub samples_self: u64,
    /// Samples of the inherited weight, of all runs.
    pub samples_inherited: u64,
    /// Share of self weight in all of this side.
    pub self_share: Share,
    /// Share of inherited weight in all of this side.
    pub inherited_share: Share,
}

impl DiffSide {
    fn per(self, length: f64) -> DiffSide {
        DiffSide {
            self_weight: per(self.self_weight, length),
            inherited_weight: per(self.inherited_weight, length),
            ..self
        }
    }
}

fn per(weight: u64, length: f64) -> u64 {
    if length == 1.0 { weight } else { (weight as f64 / length).round() as u64 }
}

/// One function on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// The function.
    #[serde(flatten)]
    pub function: DiffFunction,
    /// Its name as text shows it beside its image: with what tells it from others of that name.
    #[serde(skip)]
    pub label: String,
    /// Before; `None` if it was not seen.
    pub before: Option<DiffSide>,
    /// After; `None` if it was not seen.
    pub after: Option<DiffSide>,
    /// Share of self weight after, less that before: from -1 to 1.
    pub self_change: f64,
    /// Share of inherited weight after, less that before.
    pub inherited_change: f64,
    /// Chance hardly explains the change: at most 5% of such rows are false on average; see
    /// [`SIGNIFICANCE`](super::SIGNIFICANCE).
    pub self_significant: bool,
    /// The same of the inherited shares.
    pub inherited_significant: bool,
    /// The same of the self weights.
    pub self_absolutely_significant: bool,
    /// The same of the inherited weights.
    pub inherited_absolutely_significant: bool,
}

/// All functions of both sides, the largest change of self share first.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DiffView {
    /// All before: weights of one run on average, samples of all runs.
    pub before: Total,
    /// All after.
    pub after: Total,
    /// The functions.
    pub rows: Vec<DiffRow>,
}

/// A profile and what is selected of it (ids differ between profiles).
pub type Run<'a> = (&'a Profile, &'a Selection);

impl DiffView {
    /// Compares two profiles.
    #[must_use]
    pub fn new(before: Run<'_>, after: Run<'_>) -> Self {
        Self::from_runs(&[before], &[after])
    }

    /// Compares several runs before with several after, so that differences among runs count as chance.
    ///
    /// Functions equal to [`Matching`] are merged in every stack, so their inherited weight counts once.
    #[must_use]
    pub fn from_runs(before: &[Run<'_>], after: &[Run<'_>]) -> Self {
        Self::from_runs_of_lengths(before, after, [1.0; 2])
    }

    /// As [`DiffView::from_runs`], with weights divided by each side's length in seconds, to compare weights per
    /// second.
    #[must_use]
    pub fn from_runs_of_lengths(before: &[Run<'_>], after: &[Run<'_>], lengths: [f64; 2]) -> Self {
        let matching = matching(before, after);
        let mut sides = [Side::default(), Side::default()];
        let mut functions: BTreeMap<DiffFunction, [OfRuns; 2]> = BTreeMap::new();
        for (which, &(profile, selection)) in runs_of(before, after) {
            let Some(side) = sides.get_mut(which) else { continue };
            let (total, threads) = with_one_of_a_name(profile, selection, &matching, |profile, selection| {
                let view = FlatView::new(profile, selection);
                for row in view.rows {
                    let both = functions.entry(matching.function(profile, row.function)).or_default();
                    if let Some(runs) = both.get_mut(which) {
                        runs.put(side.totals.runs.len(), row.own(), row.inherited());
                    }
                }
                (view.total, profile.threads().len())
            });
            side.add(total, threads);
        }
        let [before, after] = &sides;
        let totals = [&before.totals, &after.totals];
        functions.values_mut().for_each(|both| {
            both.iter_mut().zip(totals).for_each(|(runs, totals)| runs.fill(totals.runs.len()));
        });
        let tested = |part: fn(&OfRuns) -> &[Sums], basis: Basis| {
            let one = |both: &[OfRuns; 2]| test(totals, [part(&both[0]), part(&both[1])], basis);
            significant(&functions.values().map(one).collect::<Vec<Tested>>())
        };
        let both = [Basis::Share, Basis::Weight(lengths)];
        let of_self = both.map(|basis| tested(|it| &it.own, basis));
        let of_inherited = both.map(|basis| tested(|it| &it.inherited, basis));
        let said = |list: &[bool], at: usize| list.get(at).copied().unwrap_or(false);
        let labels = labels(&functions.keys().cloned().collect::<Vec<_>>(), false, matching.full_names);
        let mut rows: Vec<DiffRow> = functions
            .into_iter()
            .zip(labels)
            .enumerate()
            .map(|(at, ((function, [was, is]), label))| {
                let (b, a) = (before.row(&was).per(lengths[0]), after.row(&is).per(lengths[1]));
                DiffRow {
                    function,
                    label,
                    self_change: a.self_share.fraction - b.self_share.fraction,
                    inherited_change: a.inherited_share.fraction - b.inherited_share.fraction,
                    before: was.seen().then_some(b),
                    after: is.seen().then_some(a),
                    self_significant: said(&of_self[0], at),
                    inherited_significant: said(&of_inherited[0], at),
                    self_absolutely_significant: said(&of_self[1], at),
                    inherited_absolutely_significant: said(&of_inherited[1], at),
                }
            })
            .collect();
        rows.sort_by(|a, b| {
            let size = |row: &DiffRow| (row.self_change.abs(), row.inherited_change.abs());
            size(b)
                .0
                .total_cmp(&size(a).0)
                .then(size(b).1.total_cmp(&size(a).1))
                .then_with(|| a.function.cmp(&b.function))
        });
        let per = |side: &Side, length: f64| {
            let total = side.run_total();
            let (weight, whole_weight) = (per(total.weight, length), per(total.whole_weight, length));
            Total { weight, whole_weight, ..total }
        };
        Self { before: per(before, lengths[0]), after: per(after, lengths[1]), rows }
    }
}

/// The runs of both sides, each with the number of its side.
pub(super) fn runs_of<'a, 'b>(
    before: &'a [Run<'b>],
    after: &'a [Run<'b>],
) -> impl Iterator<Item = (usize, &'a Run<'b>)> {
    before.iter().map(|run| (0, run)).chain(after.iter().map(|run| (1, run)))
}

pub(super) fn matching(before: &[Run<'_>], after: &[Run<'_>]) -> Matching {
    Matching::of(runs_of(before, after).map(|(_, &(profile, _))| profile))
}

/// Calls `look` with a profile in which no two cost centres are one to `matching`, and a selection of all that was selected.
pub(crate) fn with_one_of_a_name<T>(
    profile: &Profile,
    selection: &Selection,
    matching: &Matching,
    look: impl FnOnce(&Profile, &Selection) -> T,
) -> T {
    if !profile.has_namesakes(matching) {
        return look(profile, selection);
    }
    // Functions are selected before they are one.
    let named = profile.selected(selection).with_namesakes_as_one(matching);
    look(&named, &Selection::all().metric(selection.metric_index()))
}

#[derive(Clone, Debug, Default)]
pub(super) struct Side {
    pub(super) totals: SideTotals,
    whole: Total,
}

impl Side {
    pub(super) fn add(&mut self, total: Total, threads: usize) {
        self.totals.add(total.sums(), threads);
        self.whole.whole_weight = self.whole.whole_weight.saturating_add(total.whole_weight);
        self.whole.whole_samples = self.whole.whole_samples.saturating_add(total.whole_samples);
    }

    pub(super) fn runs(&self) -> u64 {
        self.totals.runs.len().max(1) as u64
    }

    /// All of it, weights of one run on average.
    pub(super) fn run_total(&self) -> Total {
        let Total { whole_weight, whole_samples, .. } = self.whole;
        let Sums { weight, samples, squares, unsampled } = self.totals.all;
        let runs = self.runs();
        // So that a weight of a run on average is of as many effective samples as all of them.
        let squares = squares / u128::from(runs) / u128::from(runs);
        Total {
            weight: weight / runs,
            samples,
            squares,
            unsampled: unsampled / runs,
            whole_weight: whole_weight / runs,
            whole_samples,
        }
    }

    pub(super) fn share(&self, part: Sums) -> Share {
        let Sums { weight, samples, squares, unsampled } = self.totals.all;
        Share::of(part, &Total { weight, samples, squares, unsampled, ..self.whole })
    }

    fn row(&self, function: &OfRuns) -> DiffSide {
        let (own, inherited) = (sum(&function.own), sum(&function.inherited));
        DiffSide {
            self_weight: own.weight / self.runs(),
            inherited_weight: inherited.weight / self.runs(),
            samples_self: own.samples,
            samples_inherited: inherited.samples,
            self_share: self.share(own),
            inherited_share: self.share(inherited),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct OfRuns {
    own: Vec<Sums>,
    inherited: Vec<Sums>,
}

impl OfRuns {
    fn put(&mut self, run: usize, own: Sums, inherited: Sums) {
        self.fill(run);
        self.own.push(own);
        self.inherited.push(inherited);
    }

    fn fill(&mut self, runs: usize) {
        self.own.resize(runs, Sums::default());
        self.inherited.resize(runs, Sums::default());
    }

    fn seen(&self) -> bool {
        self.inherited.iter().any(|it| it.weight > 0 || it.samples > 0)
    }
}
