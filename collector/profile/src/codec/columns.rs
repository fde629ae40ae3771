//! Reads a file as a profile over time.

use std::io::Read;

use super::decode::{Loaded, read_profile_as};
use super::window::TimeWindow;
use crate::accounting::Accounting;
use crate::error::DecodeError;
use crate::model::SessionInfo;
use crate::timeline::Timeline;

/// Reads a file as a profile over time, by one metric. Charges outside of all columns are left out.
///
/// # Errors
/// As [`read_profile`](super::read_profile).
pub fn read_timeline<R: Read>(input: R, metric: usize, timeline: &Timeline) -> Result<Loaded, DecodeError> {
    let (from_ns, until_ns) = timeline.span();
    let window = TimeWindow { from_ns, until_ns };
    let (mut before, mut within) = (Accounting::default(), None);
    let make = |session: &SessionInfo| timeline.new_profile(session, metric);
    let mut last_ns = 0;
    let mut loaded = read_profile_as(input, make, |session, update| {
        last_ns = update.to_ns;
        let column = timeline.column_at(update.to_ns);
        if !window.holds(update.from_ns, update.to_ns) || column == timeline.columns().len() {
            update.clear_charges();
            if within.is_none() {
                before = update.accounting.clone();
            }
            return;
        }
        within = Some(update.accounting.clone());
        timeline.place(update, (session.metrics.len(), metric), column);
    })?;
    if window.until_ns < last_ns || within.is_none() {
        *loaded.profile.accounting_mut() = within.unwrap_or_else(|| before.clone());
    }
    let accounting = loaded.profile.accounting().since(&before);
    *loaded.profile.accounting_mut() = accounting;
    loaded.profile.count_own_elision();
    Ok(loaded)
}
