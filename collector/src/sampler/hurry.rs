//! Whether the rings are looked at more often because stacks change before they are read.
//!
//! The rings wake ccsd when they are a quarter full, which deep stacks of a busy CPU take 16 ms for: what lies beyond the copied
//! part of a stack is then often another stack's. A program whose stacks are deep all the time misses one in this time again
//! and again, and most of them are read in time when ccsd looks every millisecond. A program that misses a few a second
//! (a compiler) gains nothing: each wake-up costs some 30 us, and hardly ever is there such a stack among what it finds.

/// Longest sleep while there is a hurry.
const SLEEP_MS: u16 = 1;
/// How long a hurry lasts after a stack was missed, nanoseconds.
const HURRY_NS: u64 = 20_000_000;
/// Time after a hurry in which no stack was read in time, nanoseconds, until there is another. It doubles, up to the second,
/// with each that was in vain.
const PAUSE_NS: u64 = 20_000_000;
const LONGEST_PAUSE_NS: u64 = 2_560_000_000;

/// The hurry. Times are `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Debug, Default)]
pub struct Hurry {
    /// Until when the rings are looked at as often as can be, and how many stacks had been read in time before.
    current: Option<(u64, u64)>,
    /// Until when there is no hurry whatever is missed, and for how long there was none the last time.
    paused_until: u64,
    pause: u64,
}

/// What has been counted of stacks whose outer part was read from the target's memory.
#[derive(Clone, Copy, Debug)]
pub struct LateReads {
    /// Those that were still there.
    pub in_time: u64,
    /// Whether one was missed in the last round.
    pub missed: bool,
}

impl Hurry {
    /// The longest sleep now, milliseconds, where it is `usual` else.
    pub fn sleep_ms(&self, now: u64, usual: u16) -> u16 {
        if self.current.is_some_and(|(until, _)| now < until) { SLEEP_MS } else { usual }
    }

    /// To be called after each round.
    pub fn review(&mut self, now: u64, reads: LateReads) {
        match self.current {
            Some((_, before)) if reads.in_time > before => {
                self.pause = 0;
                self.begin(now, reads);
            }
            Some((until, _)) if now >= until => {
                self.pause = (2 * self.pause).clamp(PAUSE_NS, LONGEST_PAUSE_NS);
                self.paused_until = now.saturating_add(self.pause);
                self.current = None;
            }
            _ => {}
        }
        if reads.missed && self.current.is_none() && now >= self.paused_until {
            self.begin(now, reads);
        }
    }

    fn begin(&mut self, now: u64, reads: LateReads) {
        self.current = Some((now.saturating_add(HURRY_NS), reads.in_time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// How many of the milliseconds of a minute are hurried, where every `every`th round misses a stack and, if it is hurried,
    /// reads one in time.
    fn hurried(every: u64, reads_in_time: bool) -> u64 {
        let (mut hurry, mut in_time, mut count) = (Hurry::default(), 0, 0);
        for ms in 0..60_000 {
            let is_hurried = hurry.sleep_ms(ms * MS, 100) == SLEEP_MS;
            count += u64::from(is_hurried);
            let missed = ms % every == 0;
            in_time += u64::from(missed && is_hurried && reads_in_time);
            hurry.review(ms * MS, LateReads { in_time, missed });
        }
        count
    }

    #[test]
    fn a_hurry_in_vain_is_rare() {
        // Stacks that are deep all the time, of which those are read that are met in a hurry.
        assert!(hurried(3, true) > 59_000, "{}", hurried(3, true));
        // A few each second.
        assert!(hurried(90, false) < 1_500, "{}", hurried(90, false));
        assert!(hurried(1, false) < 1_500, "{}", hurried(1, false));
        assert_eq!(hurried(u64::MAX, true), HURRY_NS / MS - 1);
    }
}
