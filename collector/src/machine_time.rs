//! CPU time of the whole machine, as /proc/stat has it.

use crate::procfs;

/// Nanoseconds of a unit of /proc/stat: `USER_HZ` is 100 on every architecture that ccsd runs on.
const TICK_NS: u64 = 10_000_000;

#[derive(Clone, Copy, Debug)]
pub struct MachineTime {
    began: MachineTimes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTimes {
    pub user: u64,
    /// In user code and in the kernel, interrupts included.
    pub busy: u64,
    /// Idle, with or without a disk to wait for.
    pub idle: u64,
}

impl MachineTime {
    pub fn begin() -> Option<MachineTime> {
        Some(MachineTime { began: read()? })
    }

    pub fn since(&self) -> Option<MachineTimes> {
        let now = read()?;
        Some(MachineTimes {
            user: now.user.saturating_sub(self.began.user),
            busy: now.busy.saturating_sub(self.began.busy),
            idle: now.idle.saturating_sub(self.began.idle),
        })
    }
}

fn read() -> Option<MachineTimes> {
    parse(&procfs::read("/proc/stat").ok()?)
}

/// The first line of /proc/stat, see proc_stat(5). Steal time is neither busy nor idle.
fn parse(bytes: &[u8]) -> Option<MachineTimes> {
    let line = bytes.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"cpu "))?;
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let mut next = || fields.next().flatten().map(|ticks| ticks.saturating_mul(TICK_NS));
    let [user, nice, system, idle] = [next()?, next()?, next()?, next()?];
    let [waiting, interrupts, soft_interrupts] = [(); 3].map(|()| next().unwrap_or(0));
    let user = user.saturating_add(nice);
    let busy = [system, interrupts, soft_interrupts].into_iter().fold(user, u64::saturating_add);
    Some(MachineTimes { user, busy, idle: idle.saturating_add(waiting) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_and_idle_time() {
        let of = |text: &str| parse(text.as_bytes());
        let line = "cpu  10 20 30 400 50 6 7 80 9 1\ncpu0 1 2 3 4\nintr 5\n";
        let times = MachineTimes { user: 30 * TICK_NS, busy: 73 * TICK_NS, idle: 450 * TICK_NS };
        assert_eq!(of(line), Some(times));
        assert_eq!(of("cpu  1 0 2 3"), Some(MachineTimes { user: TICK_NS, busy: 3 * TICK_NS, idle: 3 * TICK_NS }));
        for hostile in ["", "cpu0 1 2 3 4", "cpu  1 2 3", "cpu  a b c d", "cpu  -1 2 3 4"] {
            assert_eq!(of(hostile), None, "{hostile:?}");
        }
        assert_eq!(of("cpu  18446744073709551615 1 1 1").unwrap().busy, u64::MAX);
    }

    #[test]
    fn this_machine_spends_time() {
        let time = MachineTime::begin().unwrap();
        let begin = crate::usage::thread_cpu_ns();
        while crate::usage::thread_cpu_ns() - begin < 3 * TICK_NS {}
        assert!(time.since().unwrap().busy > 0);
    }
}
