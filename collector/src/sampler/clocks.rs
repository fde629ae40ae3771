//! The CPU time of the target's processes by the kernel's own clocks.
//!
//! Events do not count during thread switches, which for programs that sleep every few microseconds is a large part of
//! their time. A process's CPU clock does, with ended threads. Time between the last look and a process's end is
//! missing here.

use hashbrown::HashMap;
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

#[derive(Default)]
pub struct ProcessClocks {
    live: HashMap<u32, Clock>,
    /// Nanoseconds that processes had spent at the last look, which have ended since.
    ended: u64,
    /// What a recorded program's process had spent before it executed the program.
    before_exec: u64,
}

struct Clock {
    first: u64,
    last: u64,
}

impl ProcessClocks {
    /// Leaves out what a process has spent before now.
    pub fn begin(&mut self, pid: u32) {
        if let Some(now) = cpu_ns(pid) {
            self.live.insert(pid, Clock { first: now, last: now });
        }
    }

    /// The same of the process that is about to execute a recorded program.
    pub fn begin_child(&mut self, pid: u32) {
        self.begin(pid);
        self.before_exec = self.live.get(&pid).map_or(0, |clock| clock.first);
    }

    pub fn before_exec(&self) -> u64 {
        self.before_exec
    }

    /// What all processes have spent, nanoseconds. `pids` are alive; a new one was forked by another, and all of its
    /// time counts.
    pub fn read(&mut self, pids: &[u32]) -> u64 {
        self.read_with(pids, cpu_ns)
    }

    fn read_with(&mut self, pids: &[u32], cpu_ns: impl Fn(u32) -> Option<u64>) -> u64 {
        let mut before = std::mem::take(&mut self.live);
        let mut sum = 0u64;
        for &pid in pids {
            let known = before.remove(&pid);
            let clock = match (known, cpu_ns(pid)) {
                (Some(known), Some(now)) if now >= known.last => Clock { last: now, ..known },
                // Its number is another's now.
                (Some(known), Some(now)) => {
                    self.ended = self.ended.saturating_add(known.last.saturating_sub(known.first));
                    Clock { first: 0, last: now }
                }
                (Some(known), None) => known,
                (None, Some(now)) => Clock { first: 0, last: now },
                (None, None) => continue,
            };
            sum = sum.saturating_add(clock.last.saturating_sub(clock.first));
            self.live.insert(pid, clock);
        }
        for ended in before.into_values() {
            self.ended = self.ended.saturating_add(ended.last.saturating_sub(ended.first));
        }
        self.ended.saturating_add(sum)
    }
}

/// The CPU time of a process with its ended threads, nanoseconds.
pub fn cpu_ns(pid: u32) -> Option<u64> {
    let clock = clock_getcpuclockid(Pid::from_raw(i32::try_from(pid).ok()?)).ok()?;
    let time = clock_gettime(clock).ok()?;
    let seconds = u64::try_from(time.tv_sec()).ok()?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec().unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_come_and_go() {
        let mut clocks = ProcessClocks::default();
        clocks.live.insert(1, Clock { first: 100, last: 100 });
        assert_eq!(clocks.read_with(&[1], |_| Some(130)), 30);
        assert_eq!(clocks.read_with(&[1, 2], |pid| Some(if pid == 1 { 140 } else { 7 })), 47);
        // The first has ended, and the second cannot be read: what is known stays.
        assert_eq!(clocks.read_with(&[2], |_| None), 47);
        // The second has ended, too, and its number is a third one's.
        assert_eq!(clocks.read_with(&[2], |_| Some(5)), 52);
        assert_eq!(clocks.read_with(&[], |_| None), 52);
    }

    #[test]
    fn a_process_has_a_clock() {
        let mut clocks = ProcessClocks::default();
        let own = std::process::id();
        assert!(clocks.read(&[own]) > 0);
        clocks.begin(own);
        let first = clocks.read(&[own]);
        assert!(clocks.read(&[own]) >= first);
        assert_eq!(cpu_ns(u32::MAX), None);
    }
}
