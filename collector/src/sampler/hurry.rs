//! Decides whether ccsd reads the rings more often because stacks change before they are read.
//!
//! A ring wakes ccsd when it is a quarter full. With deep stacks on a busy CPU this takes 16 ms, and memory beyond the
//! copied part of a stack then often belongs to another. Always deep stacks are missed less often if ccsd reads every
//! millisecond. A program that misses a few stacks a second (a compiler) gains nothing: each wake-up costs some 30 us.

const SLEEP_MS: u16 = 1;
/// How long a hurry lasts after a stack was missed, nanoseconds.
const HURRY_NS: u64 = 20_000_000;
/// How long one lasts after two looks disagreed about a stack, nanoseconds: where callers take turns, looks must be closer
/// than those.
const DISAGREED_NS: u64 = 1_000_000_000;
/// Shortest and longest pause after a hurry in vain, nanoseconds. It doubles with each further one.
const PAUSE_NS: u64 = 20_000_000;
const LONGEST_PAUSE_NS: u64 = 2_560_000_000;

/// If at least one sample in this number is missed, a hurry begins even during a pause.
const WORTH: u64 = 20;
/// Samples needed to judge that share; with fewer, it counts as reached. At the second number, both counts are halved.
const FEW_SAMPLES: u64 = 64;
const MANY_SAMPLES: u64 = 512;

#[derive(Debug, Default)]
pub struct Hurry {
    /// End of the current hurry, and the number of stacks that had been read in time when it began.
    current: Option<(u64, u64)>,
    /// End of the pause, and its length. The length is 0 after a hurry that was worth it.
    paused_until: u64,
    pause: u64,
    before: LateReads,
    /// Recent samples, and the number of missed stacks among them.
    samples: u64,
    missed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct LateReads {
    pub samples: u64,
    /// Stacks that were still there.
    pub in_time: u64,
    /// Stacks that were not.
    pub missed: u64,
    /// Stacks that were cut because looks disagreed.
    pub disagreed: u64,
}

impl Hurry {
    /// The longest sleep at `now`, milliseconds; `usual` without a hurry.
    pub fn sleep_ms(&self, now: u64, usual: u16) -> u16 {
        if self.current.is_some_and(|(until, _)| now < until) { SLEEP_MS } else { usual }
    }

    /// To be called after each round.
    pub fn review(&mut self, now: u64, reads: LateReads) {
        let missed = reads.missed > self.before.missed;
        self.samples += reads.samples.saturating_sub(self.before.samples);
        self.missed += reads.missed.saturating_sub(self.before.missed);
        let disagreed = reads.disagreed > self.before.disagreed;
        self.before = reads;
        if disagreed {
            self.pause = 0;
            self.begin(now, reads, DISAGREED_NS);
            return;
        }
        let many = self.samples < FEW_SAMPLES || self.missed * WORTH >= self.samples;
        if self.samples >= MANY_SAMPLES {
            (self.samples, self.missed) = (self.samples / 2, self.missed / 2);
        }
        match self.current {
            Some((_, before)) if reads.in_time > before => {
                self.pause = 0;
                self.begin(now, reads, HURRY_NS);
            }
            _ if missed && many => {
                self.pause = 0;
                self.begin(now, reads, HURRY_NS);
            }
            Some((until, _)) if now >= until => {
                self.pause = (2 * self.pause).clamp(PAUSE_NS, LONGEST_PAUSE_NS);
                self.paused_until = now.saturating_add(self.pause);
                self.current = None;
            }
            _ => {}
        }
        if missed && self.current.is_none() && now >= self.paused_until {
            self.begin(now, reads, HURRY_NS);
        }
    }

    fn begin(&mut self, now: u64, reads: LateReads, ns: u64) {
        let until = self.current.map_or(0, |(until, _)| until);
        self.current = Some((until.max(now.saturating_add(ns)), reads.in_time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Hurried milliseconds of a minute with one sample each, where every `every`th is missed or, if hurried, read in
    /// time.
    fn hurried(every: u64, reads_in_time: bool) -> u64 {
        let (mut hurry, mut reads, mut count) = (Hurry::default(), LateReads::default(), 0);
        for ms in 0..60_000 {
            let is_hurried = hurry.sleep_ms(ms * MS, 100) == SLEEP_MS;
            count += u64::from(is_hurried);
            reads.samples += 1;
            match ms % every == every - 1 {
                true if is_hurried && reads_in_time => reads.in_time += 1,
                true => reads.missed += 1,
                false => {}
            }
            hurry.review(ms * MS, reads);
        }
        count
    }

    #[test]
    fn looks_that_disagree_make_a_hurry_of_a_second() {
        let (mut hurry, mut reads) = (Hurry::default(), LateReads::default());
        reads.disagreed = 1;
        for ms in 0..3_000 {
            reads.samples += 1;
            hurry.review(ms * MS, reads);
            assert_eq!(hurry.sleep_ms(ms * MS, 100) == SLEEP_MS, ms < 1_000, "{ms}");
        }
    }

    #[test]
    fn a_hurry_in_vain_is_rare() {
        // Stacks that are deep all the time, whether those are read that are met in a hurry or not.
        assert!(hurried(3, true) > 59_000, "{}", hurried(3, true));
        assert!(hurried(5, false) > 59_000, "{}", hurried(5, false));
        assert!(hurried(90, false) < 1_500, "{}", hurried(90, false));
        assert_eq!(hurried(u64::MAX, true), 0);
    }
}
