//! CPU time that samples stand for, and what none stands for yet.

use ccsd_profile::ThreadId;

use super::thread_time::ThreadTime;

/// Samples by which a thread may run ahead of its samples by chance, or they of it. With more, a long phase would pay
/// for the noise of a short one.
const CHANCE: u64 = 16;
/// Limit on ended threads whose time without samples is remembered.
const MAX_ENDED: usize = 16 << 10;

/// CPU time of one thread that ticks sample.
///
/// A tick stands for one period, with chance. So each sample weighs what the thread has run without samples, up to a
/// credit of a period for each sample and two standard deviations; the rest is held for later samples. A thread that
/// runs mostly where no tick sees it (bursts in step with timers, or the kernel with interrupts off) holds more and
/// more.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TickTime {
    samples: u64,
    credit: u64,
    /// What no sample stands for yet, nanoseconds.
    pub(super) held: u64,
}

impl TickTime {
    /// The weight of a sample of a thread that has run for `gained` since the last one.
    pub(super) fn weigh(&mut self, gained: u64, period: u64) -> u64 {
        let before = chance(self.samples.min(CHANCE), period);
        self.samples = self.samples.saturating_add(1);
        let slack = chance(self.samples.min(CHANCE), period);
        let credit = self.credit.saturating_add(period).saturating_add(slack - before);
        self.held = self.held.saturating_add(gained);
        let weight = self.held.min(credit);
        self.held -= weight;
        self.credit = (credit - weight).min(slack);
        weight
    }

    /// Takes out what later samples cannot stand for but by more than chance.
    pub(super) fn take_excess(&mut self, period: u64) -> u64 {
        let excess = self.held.saturating_sub(chance(self.samples, period).saturating_add(period));
        self.held -= excess;
        excess
    }
}

/// Two standard deviations of a number of samples.
fn chance(samples: u64, period: u64) -> u64 {
    (2.0 * (samples as f64).sqrt() * period as f64) as u64
}

#[derive(Debug, Default)]
pub(super) struct UnseenTime {
    pub(super) charged: u64,
    pub(super) used_before: u64,
    /// Threads that have ended, and what neither samples nor charges stand for of their time.
    pub(super) ended: Vec<(ThreadId, u64)>,
}

impl UnseenTime {
    /// A thread has ended: no sample will stand for what is missing.
    pub(super) fn end_thread(&mut self, thread: ThreadId, time: ThreadTime) {
        let missing = time.missing();
        if missing > 0 && self.ended.len() < MAX_ENDED {
            self.ended.push((thread, missing));
        }
    }
}
