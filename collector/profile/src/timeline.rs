//! A profile over time: its charges have a weight for each column of time beside the weight in all.

use serde::Serialize;

use crate::limits::ProfileLimits;
use crate::model::{Metric, SessionInfo, Unit};
use crate::profile::Profile;
use crate::squares::squared_metrics;
use crate::update::Update;

/// Memory that the weights of all columns may take, in bytes. A charge has two numbers for each.
const COLUMN_BYTES: usize = 128 << 20;
/// Columns that every profile may have, however large it is.
const LEAST_COLUMNS: usize = 16;

static NONE: Timeline = Timeline { columns: Vec::new() };

/// Consecutive intervals that count as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimeColumn {
    /// Start of the first interval, nanoseconds since the session began.
    pub from_ns: u64,
    /// End of the last interval.
    pub to_ns: u64,
}

/// The columns of time of a profile over time ([`Timeline::new_profile`]).
///
/// A charge of such a profile has the weight by one metric first, then the part of it in each column, so merging,
/// regrouping and selecting functions keep the columns. The profile cannot be written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    columns: Vec<TimeColumn>,
}

impl Timeline {
    /// No columns: the profile does not know when its weights were charged.
    #[must_use]
    pub const fn none() -> &'static Self {
        &NONE
    }

    /// At most `most` columns of about equal length, each of whole intervals (from, to), for a profile of `charges`.
    #[must_use]
    pub fn of_intervals(intervals: &[(u64, u64)], charges: usize, most: usize) -> Self {
        let fit = COLUMN_BYTES / (2 * size_of::<u64>()) / charges.max(1);
        let most = most.min(fit.max(LEAST_COLUMNS)).max(1);
        let (Some(&(start, _)), Some(&(_, end))) = (intervals.first(), intervals.last()) else {
            return Self::default();
        };
        let span = end.saturating_sub(start).max(1);
        let place =
            |to: u64| (u128::from(to.saturating_sub(start).saturating_sub(1)) * most as u128) / u128::from(span);
        let mut columns: Vec<(u128, TimeColumn)> = Vec::new();
        for &(from_ns, to_ns) in intervals {
            match columns.last_mut() {
                Some((at, column)) if *at == place(to_ns) => column.to_ns = column.to_ns.max(to_ns),
                _ => columns.push((place(to_ns), TimeColumn { from_ns, to_ns })),
            }
        }
        columns.into_iter().map(|(_, column)| column).collect()
    }

    /// The columns, in the order of time.
    #[must_use]
    pub fn columns(&self) -> &[TimeColumn] {
        &self.columns
    }

    /// Whether it has no columns.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.columns.is_empty()
    }

    /// Length of the longest column, nanoseconds.
    #[must_use]
    pub fn longest_ns(&self) -> Option<u64> {
        self.columns.iter().map(|column| column.to_ns.saturating_sub(column.from_ns)).max()
    }

    /// Start of the first column and end of the last, nanoseconds.
    #[must_use]
    pub fn span(&self) -> (u64, u64) {
        let (first, last) = (self.columns.first(), self.columns.last());
        (first.map_or(0, |column| column.from_ns), last.map_or(0, |column| column.to_ns))
    }

    /// The same columns with times since the first one began.
    #[must_use]
    pub fn since_start(&self) -> Self {
        let (start, _) = self.span();
        let since = |ns: u64| ns.saturating_sub(start);
        self.columns.iter().map(|it| TimeColumn { from_ns: since(it.from_ns), to_ns: since(it.to_ns) }).collect()
    }

    /// The column that an interval with this end is part of; the number of columns if it comes after all.
    #[must_use]
    pub fn column_at(&self, to_ns: u64) -> usize {
        self.columns.partition_point(|column| column.to_ns < to_ns)
    }

    /// An empty profile over time, for the updates of a session by one of its metrics. See [`Timeline::place`].
    #[must_use]
    pub fn new_profile(&self, session: &SessionInfo, metric: usize) -> Profile {
        let mut session = session.clone();
        let none = || Metric { name: "[none]".to_owned(), unit: Unit::Count };
        let chosen = session.metrics.get(metric).cloned().unwrap_or_else(none);
        let column = |number: usize| Metric { name: format!("column {number}"), unit: Unit::Count };
        session.metrics = std::iter::once(chosen).chain((0..self.columns.len()).map(column)).collect();
        Profile::with_all_metrics(session, ProfileLimits::reading())
    }

    /// The session of a profile over time, without the columns.
    #[must_use]
    pub fn session(&self, profile: &Profile) -> SessionInfo {
        let mut session = profile.session().clone();
        session.metrics.truncate(session.metrics.len().saturating_sub(self.columns.len()));
        session
    }

    /// Moves the charges of an update by one of its `metrics` into a column.
    pub fn place(&self, update: &mut Update, (metrics, metric): (usize, usize), column: usize) {
        let columns = self.columns.len();
        update.weights = placed(&update.weights, (metrics, metric), (columns + 1, column));
        update.squares =
            placed(&update.squares, (squared_metrics(metrics), metric), (squared_metrics(columns + 1), column));
    }

    /// The weights of a charge in each column.
    #[must_use]
    pub fn weights<'a>(&self, charge: &'a [u64]) -> &'a [u64] {
        charge.get(1..charge.len().min(self.columns.len() + 1)).unwrap_or(&[])
    }
}

impl FromIterator<TimeColumn> for Timeline {
    fn from_iter<T: IntoIterator<Item = TimeColumn>>(columns: T) -> Self {
        Self { columns: columns.into_iter().collect() }
    }
}

/// Values of charges with `each` metrics, as values with `more`: in all, and in the column.
fn placed<T: Copy + Default>(values: &[T], (each, metric): (usize, usize), (more, column): (usize, usize)) -> Vec<T> {
    let charges = values.len() / each.max(1);
    let mut placed = vec![T::default(); charges * more];
    for (new, old) in placed.chunks_exact_mut(more.max(1)).zip(values.chunks_exact(each.max(1))) {
        let value = old.get(metric).copied().unwrap_or_default();
        for at in [0, column + 1] {
            if let Some(place) = new.get_mut(at) {
                *place = value;
            }
        }
    }
    placed
}
