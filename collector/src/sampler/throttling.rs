//! What throttling keeps back: the kernel stops an event that fires too often, and says so.

use hashbrown::HashMap;

#[derive(Debug, Default)]
pub struct Throttling {
    /// Since when, by the number that the kernel knows the event by.
    since: HashMap<u64, u64>,
    milli: u64,
}

impl Throttling {
    /// An event is stopped. Times are nanoseconds.
    pub fn stop(&mut self, stream: u64, time: u64) {
        self.since.insert(stream, time);
    }

    /// It goes on. Its samples come every `period`; 0 where that is not known.
    pub fn go_on(&mut self, stream: u64, time: u64, period: u64) {
        if let Some(since) = self.since.remove(&stream) {
            self.milli = self.milli.saturating_add(kept_back_milli(since, time, period));
        }
    }

    /// None of those that are stopped will say that it goes on: they ended, with a period of `period`.
    pub fn end_all(&mut self, time: u64, period: u64) {
        for (_, since) in self.since.extract_if(|_, since| *since < time) {
            self.milli = self.milli.saturating_add(kept_back_milli(since, time, period));
        }
    }

    pub fn samples(&self) -> u64 {
        self.milli / 1000
    }
}

/// Samples kept back from one time to another, in thousandths; unknown, and so none, where there is no period.
fn kept_back_milli(since: u64, until: u64, period: u64) -> u64 {
    until.saturating_sub(since).saturating_mul(1000).checked_div(period).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttled_time_is_counted_by_period() {
        const MS: u64 = 1_000_000;
        let mut throttling = Throttling::default();
        throttling.stop(1, 10 * MS);
        throttling.go_on(1, 15 * MS, 2 * MS);
        throttling.go_on(1, 99 * MS, 2 * MS);
        // The halves of two make one; who has no period keeps nothing back that is known.
        assert_eq!(throttling.samples(), 2);
        throttling.stop(2, 20 * MS);
        throttling.go_on(2, 21 * MS, 2 * MS);
        throttling.stop(2, 20 * MS);
        throttling.go_on(2, 90 * MS, 0);
        assert_eq!(throttling.samples(), 3);
        // At the end of all events; one that was stopped later is another one's.
        throttling.stop(3, 30 * MS);
        throttling.stop(4, 50 * MS);
        throttling.end_all(40 * MS, MS);
        assert_eq!(throttling.samples(), 13);
        throttling.go_on(4, 51 * MS, MS);
        throttling.go_on(3, 60 * MS, MS);
        assert_eq!(throttling.samples(), 14);
    }
}
