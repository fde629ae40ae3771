//! The time of a file in columns: the same profile with a metric for each.

use std::io::Read;

use serde::Serialize;

use super::decode::{Loaded, read_profile_as};
use super::window::TimeWindow;
use crate::accounting::Accounting;
use crate::error::DecodeError;
use crate::limits::ProfileLimits;
use crate::model::{Metric, SessionInfo, Unit};
use crate::profile::Profile;
use crate::squares::squared_metrics;
use crate::update::Update;

/// Memory that the weights of all columns may take, in bytes. A charge has two numbers for each.
const COLUMN_BYTES: usize = 128 << 20;
/// However large the profile is, so many columns there may be.
const LEAST_COLUMNS: usize = 16;

/// Some intervals that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimeColumn {
    /// Start of the first, nanoseconds since the session began.
    pub from_ns: u64,
    /// End of the last.
    pub to_ns: u64,
}

/// A file whose time is in columns.
#[derive(Debug)]
pub struct Columns {
    /// The profile: its first metric is the one asked for, over all of the window, and then there is one for each column.
    pub loaded: Loaded,
    /// The columns.
    pub columns: Vec<TimeColumn>,
}

/// At most `most` columns of about equal length, each of whole intervals (from, to).
#[must_use]
pub fn columns(intervals: &[(u64, u64)], charges: usize, most: usize) -> Vec<TimeColumn> {
    let fit = COLUMN_BYTES / (2 * size_of::<u64>()) / charges.max(1);
    let most = most.min(fit.max(LEAST_COLUMNS)).max(1);
    let (Some(&(start, _)), Some(&(_, end))) = (intervals.first(), intervals.last()) else { return Vec::new() };
    let span = end.saturating_sub(start).max(1);
    let place = |to: u64| (u128::from(to.saturating_sub(start).saturating_sub(1)) * most as u128) / u128::from(span);
    let mut columns: Vec<(u128, TimeColumn)> = Vec::new();
    for &(from_ns, to_ns) in intervals {
        match columns.last_mut() {
            Some((at, column)) if *at == place(to_ns) => column.to_ns = column.to_ns.max(to_ns),
            _ => columns.push((place(to_ns), TimeColumn { from_ns, to_ns })),
        }
    }
    columns.into_iter().map(|(_, column)| column).collect()
}

/// An empty profile whose metrics are the asked one and one for each column. It cannot be written.
#[must_use]
pub fn profile_in_columns(session: &SessionInfo, metric: usize, columns: usize) -> Profile {
    let mut session = session.clone();
    let none = || Metric { name: "[none]".to_owned(), unit: Unit::Count };
    let chosen = session.metrics.get(metric).cloned().unwrap_or_else(none);
    let column = |number: usize| Metric { name: format!("column {number}"), unit: Unit::Count };
    session.metrics = std::iter::once(chosen).chain((0..columns).map(column)).collect();
    Profile::with_all_metrics(session, ProfileLimits::reading())
}

/// Moves an update's charges by one metric into one column, for [`profile_in_columns`].
pub fn put_in_column(update: &mut Update, (metrics, metric): (usize, usize), (columns, column): (usize, usize)) {
    fn put<T: Copy + Default>(values: &[T], (each, metric): (usize, usize), (more, column): (usize, usize)) -> Vec<T> {
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
    update.weights = put(&update.weights, (metrics, metric), (columns + 1, column));
    update.squares = put(&update.squares, (squared_metrics(metrics), metric), (squared_metrics(columns + 1), column));
}

/// Reads a file with the weights of one metric in columns; charges outside all columns are left out.
///
/// # Errors
/// As [`read_profile`](super::read_profile).
pub fn read_columns<R: Read>(input: R, metric: usize, columns: Vec<TimeColumn>) -> Result<Columns, DecodeError> {
    let window = TimeWindow {
        from_ns: columns.first().map_or(0, |column| column.from_ns),
        until_ns: columns.last().map_or(0, |column| column.to_ns),
    };
    let (mut before, mut within) = (Accounting::default(), None);
    let make = |session: &SessionInfo| profile_in_columns(session, metric, columns.len());
    let mut last_ns = 0;
    let mut loaded = read_profile_as(input, make, |session, update| {
        last_ns = update.to_ns;
        // Columns are of whole intervals; they end where their last one ends.
        let column = columns.partition_point(|column| column.to_ns < update.to_ns);
        if !window.holds(update.from_ns, update.to_ns) || column == columns.len() {
            update.clear_charges();
            if within.is_none() {
                before = update.accounting.clone();
            }
            return;
        }
        within = Some(update.accounting.clone());
        put_in_column(update, (session.metrics.len(), metric), (columns.len(), column));
    })?;
    if window.until_ns < last_ns || within.is_none() {
        *loaded.profile.accounting_mut() = within.unwrap_or_else(|| before.clone());
    }
    let accounting = loaded.profile.accounting().since(&before);
    *loaded.profile.accounting_mut() = accounting;
    loaded.profile.count_own_elision();
    Ok(Columns { loaded, columns })
}
