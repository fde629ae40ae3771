//! A part of the time that a file is of.

use std::io::Read;

use serde::Serialize;

use super::decode::{Loaded, read_profile_as};
use crate::accounting::Accounting;
use crate::error::DecodeError;
use crate::limits::ProfileLimits;
use crate::model::SessionInfo;
use crate::profile::Profile;

/// A part of the time of a session, nanoseconds since it began: after `from_ns`, up to and with `until_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    /// The beginning.
    pub from_ns: u64,
    /// The end.
    pub until_ns: u64,
}

impl TimeWindow {
    /// Everything.
    pub const ALL: TimeWindow = TimeWindow { from_ns: 0, until_ns: u64::MAX };

    /// Whether the interval's middle is in the window: adjacent windows share no interval and lack none.
    #[must_use]
    pub const fn holds(self, from_ns: u64, to_ns: u64) -> bool {
        let middle = to_ns - to_ns.saturating_sub(from_ns) / 2;
        // What was charged at the very beginning belongs to a window from the beginning.
        (middle > self.from_ns || self.from_ns == 0) && middle <= self.until_ns
    }
}

/// The intervals of a file, and those of a window among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Intervals {
    /// How many are of the window.
    pub taken: u64,
    /// How many the file has.
    pub all: u64,
    /// Start of the first of the window, nanoseconds since the session began.
    pub from_ns: u64,
    /// End of the last of the window.
    pub to_ns: u64,
    /// End of the last of the file.
    pub end_ns: u64,
    /// Length of the longest of the file: no question about time has an answer finer than that.
    pub longest_ns: u64,
}

/// Reads a part of a file's time: charges and accounting of the intervals that [`TimeWindow::holds`].
///
/// # Errors
/// As `read_profile`.
pub fn read_window<R: Read>(input: R, window: TimeWindow) -> Result<(Loaded, Intervals), DecodeError> {
    read_window_with(input, window, |_, _| {})
}

/// As [`read_window`]; also calls back with each interval (from, to), in order.
///
/// # Errors
/// As `read_profile`.
pub fn read_window_with<R: Read>(
    input: R,
    window: TimeWindow,
    mut interval: impl FnMut(u64, u64),
) -> Result<(Loaded, Intervals), DecodeError> {
    let mut found = Intervals::default();
    let mut last = None;
    let (mut before, mut within) = (Accounting::default(), None);
    let make = |session: &SessionInfo| Profile::new(session.clone(), ProfileLimits::reading());
    let mut loaded = read_profile_as(input, make, |_, update| {
        let (from, to) = (update.from_ns, update.to_ns);
        // A very large update is written as several records of one interval.
        let new = last.replace((from, to)) != Some((from, to)) && to > from;
        found.all += u64::from(new);
        found.end_ns = found.end_ns.max(to);
        found.longest_ns = found.longest_ns.max(to.saturating_sub(from));
        if window.holds(from, to) {
            if found.taken == 0 {
                found.from_ns = from;
            }
            found.taken += u64::from(new);
            if new {
                interval(from, to);
            }
            found.to_ns = to;
            within = Some(update.accounting.clone());
        } else {
            update.clear_charges();
            if within.is_none() {
                before = update.accounting.clone();
            }
        }
    })?;
    // What the end says of all is the last word on a window that reaches up to it.
    if found.to_ns < found.end_ns || within.is_none() {
        *loaded.profile.accounting_mut() = within.unwrap_or_else(|| before.clone());
    }
    let accounting = loaded.profile.accounting().since(&before);
    *loaded.profile.accounting_mut() = accounting;
    loaded.profile.count_own_elision();
    Ok((loaded, found))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_of_the_window_that_has_most_of_it() {
        // The first interval of a session is short, and all others end a little later than at whole seconds.
        let intervals = [(0, 60), (60, 1_060), (1_060, 2_060), (2_060, 2_100)];
        let taken = |from_ns, until_ns| {
            let window = TimeWindow { from_ns, until_ns };
            intervals.iter().filter(|&&(from, to)| window.holds(from, to)).map(|&(from, to)| to - from).sum::<u64>()
        };
        assert_eq!((taken(0, 1_000), taken(1_000, 2_000), taken(2_000, u64::MAX)), (1_060, 1_000, 40));
        assert!(TimeWindow { from_ns: 0, until_ns: 1 }.holds(0, 0) && TimeWindow::ALL.holds(u64::MAX, u64::MAX));
        assert!(!TimeWindow { from_ns: 5, until_ns: 9 }.holds(20, 3));
    }
}
