//! Reading processes anew after records about them were lost.

use super::round::Round;
use crate::backoff::Backoff;
use crate::clock::now_ns;

#[derive(Debug, Default)]
pub struct Rereading {
    /// Records were lost since the present round began, or the last one.
    lost: bool,
    round: Round<u32>,
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
        self.round.is_going_on()
    }

    /// Begins a round of `pids` if one is due: not at once if the last one took long, as what maps so much goes on. `at_end`
    /// there is no later.
    pub fn begin_if_due(&mut self, now: u64, at_end: bool, pids: impl FnOnce() -> Vec<u32>) {
        if self.lost && (at_end || !self.is_going_on() && self.backoff.is_due(now)) {
            (self.lost, self.round) = (false, Round::of(pids()));
        }
    }

    /// Reads a portion of the processes, `at_end` all.
    pub fn portion(&mut self, now: u64, at_end: bool, read: impl FnMut(u32)) {
        if self.is_going_on() {
            let took = if at_end { self.round.rest(now, read) } else { self.round.portion(now, read) };
            if let Some(took) = took {
                let ended = now_ns();
                self.backoff.done(ended.saturating_sub(took), ended);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of seven processes, of which each is a portion.
    fn read(rereading: &mut Rereading, at_end: bool) -> Vec<u32> {
        rereading.begin_if_due(now_ns(), at_end, || (1..=7).collect());
        let mut read = Vec::new();
        rereading.portion(now_ns().saturating_sub(1_000_000_000), at_end, |pid| read.push(pid));
        read
    }

    #[test]
    fn a_round_ends_before_the_next_begins() {
        let mut rereading = Rereading::default();
        assert!(read(&mut rereading, false).is_empty() && !rereading.may_miss_records());
        rereading.records_were_lost();
        assert_eq!(read(&mut rereading, false), [7]);
        // What is lost meanwhile is read in the next round.
        rereading.records_were_lost();
        assert_eq!([6, 5, 4, 3, 2, 1].map(|_| read(&mut rereading, false)), [6, 5, 4, 3, 2, 1].map(|pid| vec![pid]));
        assert!(rereading.may_miss_records() && !rereading.is_going_on());
        // The round seems to have taken 7 s: four times as long is left.
        assert!(read(&mut rereading, false).is_empty() && rereading.may_miss_records());
        rereading.backoff = Backoff::default();
        assert_eq!(read(&mut rereading, false), [7]);
    }

    #[test]
    fn at_the_end_all_are_read_after_the_last_loss() {
        let mut rereading = Rereading::default();
        rereading.records_were_lost();
        assert_eq!(read(&mut rereading, false), [7]);
        // Nothing was lost since.
        assert_eq!(read(&mut rereading, true), [6, 5, 4, 3, 2, 1]);
        rereading.records_were_lost();
        assert_eq!(read(&mut rereading, true), [7, 6, 5, 4, 3, 2, 1]);
        assert!(!rereading.may_miss_records());
    }
}
