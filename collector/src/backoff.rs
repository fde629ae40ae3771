//! Spacing of costly repetitions: what took long is repeated so late that it takes a fifth of the time at most.

/// How many times as long as it took it is left alone.
const PATIENCE: u64 = 4;

/// When something costly may be repeated. The times are `CLOCK_MONOTONIC`, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    from: u64,
}

impl Backoff {
    pub fn is_due(&self, now: u64) -> bool {
        now >= self.from
    }

    pub fn done(&mut self, began: u64, ended: u64) {
        self.from = ended.saturating_add(ended.saturating_sub(began).saturating_mul(PATIENCE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_work_takes_a_fifth_of_the_time() {
        // As often as may be, it takes 10 of each 50.
        let (mut backoff, mut times) = (Backoff::default(), 0);
        let mut now = 1_000;
        while now < 2_000 {
            if backoff.is_due(now) {
                backoff.done(now, now + 10);
                (now, times) = (now + 10, times + 1);
            }
            now += 1;
        }
        assert_eq!(times, 20);
        backoff.done(3_000, 3_000);
        assert!(backoff.is_due(3_000));
        backoff.done(4_000, 3_000);
        assert!(backoff.is_due(3_000) && !Backoff { from: u64::MAX }.is_due(3_000));
    }
}
