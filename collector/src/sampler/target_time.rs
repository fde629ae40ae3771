//! The target's CPU time, from events, clocks and /proc.

use hashbrown::HashMap;

use super::clocks::ProcessClocks;
use crate::batch::{GroupedStats, TargetStats};
use crate::perf::counters::EventCounts;
use crate::procfs;

#[derive(Default)]
pub struct TargetTime {
    clocks: ProcessClocks,
    /// How much the clocks were ahead of the events at the first look.
    clock_lead: Option<u64>,
    /// What a recorded program has spent with all that it waited for, once it has ended.
    child_ns: u64,
    /// CPU ticks, user and system, of the processes that were there at the beginning.
    ticks_before: HashMap<u32, (u64, u64)>,
    stats: TargetStats,
}

impl TargetTime {
    pub fn begin_child(&mut self, pid: u32) {
        self.clocks.begin_child(pid);
    }

    pub fn begin(&mut self, pid: u32) {
        let ticks = procfs::stat(pid).map(|stat| stat.cpu_ticks).unwrap_or_default();
        self.ticks_before.insert(pid, ticks);
        self.clocks.begin(pid);
    }

    /// The recorded program has ended, and has spent so much, user and in all, nanoseconds, if that is known.
    pub fn end_child(&mut self, cpu_ns: Option<(u64, u64)>) {
        self.stats.user_share = cpu_ns.or(self.stats.user_share);
        self.child_ns = cpu_ns.map_or(0, |(_, all)| all).saturating_sub(self.clocks.before_exec());
    }

    pub fn stats(&self) -> TargetStats {
        self.stats
    }

    pub fn count(&mut self, counted: Option<EventCounts>) {
        self.stats.counted = counted;
    }

    /// What was counted and judged while control groups alone were sampled.
    pub fn count_grouped(&mut self, grouped: GroupedStats) {
        self.stats.grouped = grouped;
    }

    /// Reads how the kernel splits the time of live processes, where nobody waits for them.
    pub fn read_ticks(&mut self, pids: &[u32]) {
        let mut sum = (0u64, 0u64);
        for &pid in pids {
            let Ok(stat) = procfs::stat(pid) else { continue };
            let before = self.ticks_before.get(&pid).copied().unwrap_or_default();
            let user = stat.cpu_ticks.0.saturating_sub(before.0);
            sum.0 += user;
            sum.1 += user + stat.cpu_ticks.1.saturating_sub(before.1);
        }
        if sum.1 > 0 {
            self.stats.user_share = Some(sum);
        }
    }

    /// The whole machine is the target, and has spent so much, user and in all.
    pub fn set_user_share(&mut self, share: Option<(u64, u64)>) {
        self.stats.user_share = share.or(self.stats.user_share);
    }

    /// What the target has spent by the clocks of its processes, or somewhat less.
    pub fn read_clocks(&mut self, pids: &[u32]) -> u64 {
        self.clocks.read(pids).max(self.child_ns)
    }

    /// What the target has spent beyond the events' count; the clocks said `spent` just before the events were read.
    /// The lead at the first look is `execve` itself or earlier. `again` reads the clocks.
    pub fn compare(&mut self, spent: u64, again: impl FnOnce(&mut TargetTime) -> u64) {
        let Some(used) = self.stats.counted.map(|counted| counted.used) else { return };
        match self.clock_lead {
            // After the events: what is left out here must not be less than it is.
            None => self.clock_lead = Some(again(self).saturating_sub(used)),
            Some(lead) => {
                let uncounted = spent.saturating_sub(lead).saturating_sub(used);
                // What processes spent between the last look and their end is missing in `spent` alone.
                self.stats.uncounted_ns = self.stats.uncounted_ns.max(uncounted);
            }
        }
    }
}
