//! Reading processes anew after records about them were lost: a portion at a time, because meanwhile rings fill.

use crate::backoff::Backoff;

/// Time after which a portion ends, nanoseconds. A ring of samples holds some ten times as much.
pub const PORTION_NS: u64 = 5_000_000;

#[derive(Debug, Default)]
pub struct Rereading {
    /// Records were lost since the present round began, or the last one.
    lost: bool,
    /// What the present round has yet to read.
    left: Vec<u32>,
    /// What the present round has taken so far, nanoseconds.
    took: u64,
    backoff: Backoff,
}

impl Rereading {
    pub fn records_were_lost(&mut self) {
        self.lost = true;
    }

    /// Whether there may be processes of which records were lost and that were not read since.
    pub fn may_miss_records(&self) -> bool {
        self.lost || self.is_going_on()
    }

    pub fn is_going_on(&self) -> bool {
        !self.left.is_empty()
    }

    /// Begins a round of `pids` if one is due: not at once if the last one took long, as what maps so much goes on. `at_end`
    /// there is no later.
    pub fn begin_if_due(&mut self, now: u64, at_end: bool, pids: impl FnOnce() -> Vec<u32>) {
        if self.lost && (at_end || !self.is_going_on() && self.backoff.is_due(now)) {
            *self = Rereading { left: pids(), backoff: self.backoff, ..Rereading::default() };
        }
    }

    /// The process to be read next.
    pub fn next(&mut self) -> Option<u32> {
        self.left.pop()
    }

    /// Ends a portion that took from `began` to `now`.
    pub fn end_portion(&mut self, began: u64, now: u64) {
        self.took = self.took.saturating_add(now.saturating_sub(began));
        if !self.is_going_on() && self.took > 0 {
            self.backoff.done(now.saturating_sub(self.took), now);
            self.took = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read in a portion of three processes, of 10 ns each.
    fn portion(rereading: &mut Rereading, now: u64, at_end: bool) -> Vec<u32> {
        rereading.begin_if_due(now, at_end, || (1..=7).collect());
        let most = if at_end { usize::MAX } else { 3 };
        let read: Vec<u32> = std::iter::from_fn(|| rereading.next()).take(most).collect();
        rereading.end_portion(now, now + 10 * read.len() as u64);
        read
    }

    #[test]
    fn a_round_ends_before_the_next_begins_and_leaves_time_between() {
        let mut rereading = Rereading::default();
        assert!(portion(&mut rereading, 0, false).is_empty() && !rereading.may_miss_records());
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 1_000, false), [7, 6, 5]);
        // What is lost meanwhile is read in the next round.
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 2_000, false), [4, 3, 2]);
        assert_eq!(portion(&mut rereading, 3_000, false), [1]);
        assert!(rereading.may_miss_records() && !rereading.is_going_on());
        // The round took 70 ns: four times as long is left.
        assert!(portion(&mut rereading, 3_010 + 279, false).is_empty());
        assert_eq!(portion(&mut rereading, 3_010 + 280, false), [7, 6, 5]);
        assert!(rereading.may_miss_records());
    }

    #[test]
    fn at_the_end_all_are_read_after_the_last_loss() {
        let mut rereading = Rereading::default();
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 1_000, false), [7, 6, 5]);
        // Nothing was lost since.
        assert_eq!(portion(&mut rereading, 2_000, true), [4, 3, 2, 1]);
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 2_050, true), [7, 6, 5, 4, 3, 2, 1]);
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 9_000, false), [7, 6, 5]);
        rereading.records_were_lost();
        assert_eq!(portion(&mut rereading, 9_100, true), [7, 6, 5, 4, 3, 2, 1]);
        assert!(!rereading.may_miss_records());
    }
}
