//! When what may take long is done again: so late that it takes no more than a fifth of the time.

/// How many times as long as it took it is left alone.
const PATIENCE: u64 = 4;

/// Something that is done when it is needed, but not all the time. The times are `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seldom {
    from: u64,
}

impl Seldom {
    /// Whether it may be done now.
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.from
    }

    /// It has been done.
    pub fn done(&mut self, began: u64, ended: u64) {
        self.from = ended.saturating_add(ended.saturating_sub(began).saturating_mul(PATIENCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_long_is_done_a_fifth_of_the_time() {
        // As often as may be, it takes 10 of each 50.
        let (mut seldom, mut times) = (Seldom::default(), 0);
        let mut now = 1_000;
        while now < 2_000 {
            if seldom.is_due(now) {
                seldom.done(now, now + 10);
                (now, times) = (now + 10, times + 1);
            }
            now += 1;
        }
        assert_eq!(times, 20);
        // What takes no time is done whenever it is wanted; and a clock that went back does no harm.
        seldom.done(3_000, 3_000);
        assert!(seldom.is_due(3_000));
        seldom.done(4_000, 3_000);
        assert!(seldom.is_due(3_000) && !Seldom { from: u64::MAX }.is_due(3_000));
    }
}
