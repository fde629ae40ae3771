//! What single threads have used of the CPU, and what of it is in no sample.

/// CPU time of one thread that timers sample, nanoseconds, by `/proc/PID/task/TID/schedstat`, which includes time while
/// events are off. Read now and then.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThreadTime {
    /// What it has used since the session began; and the same as of the update before.
    used: u64,
    used_before: u64,
    /// What it had used beyond its samples at the first look, if it was there before the session.
    lead: Option<u64>,
    weighed: u64,
    charged: u64,
}

impl ThreadTime {
    #[inline]
    pub(super) fn weigh(&mut self, weight: u64) {
        self.weighed = self.weighed.saturating_add(weight);
    }

    /// The thread has used `ns` in all, which is since the session began if `is_whole`.
    pub(super) fn read(&mut self, ns: u64, is_whole: bool) {
        let lead = if is_whole { 0 } else { ns.saturating_sub(self.weighed) };
        self.used = ns.saturating_sub(*self.lead.get_or_insert(lead));
    }

    /// What neither samples nor charges stand for, once all samples are there.
    pub(super) fn missing(&self) -> u64 {
        self.used.saturating_sub(self.weighed.saturating_add(self.charged))
    }

    /// The same as of the last update, whose samples have come by now, without `slack`, which later samples may stand for.
    pub(super) fn surely_missing(&self, slack: u64) -> u64 {
        self.used_before.saturating_sub(self.weighed.saturating_add(self.charged).saturating_add(slack))
    }

    pub(super) fn end_interval(&mut self) {
        self.used_before = self.used;
    }

    pub(super) fn charge(&mut self, ns: u64) {
        self.charged = self.charged.saturating_add(ns);
    }
}
