//! CPU time of the whole machine, as /proc/stat has it.

use std::cell::Cell;

use crate::clock::now_ns;
use crate::procfs;

/// Nanoseconds of a unit of /proc/stat: `USER_HZ` is 100 on every architecture that ccsd runs on.
const TICK_NS: u64 = 10_000_000;
/// Interrupts of idle CPUs are no idle time, and no program's: they may take one part in this many of it.
const IDLE_PARTS: u64 = 50;

/// Time after which what was spent is certain. The kernel's numbers are too coarse for less.
const STRETCH_NS: u64 = 10_000_000_000;

/// Adds up what the machine spends. It never falls.
#[derive(Debug)]
pub struct MachineTime(Cell<Sum>);

#[derive(Clone, Copy, Debug)]
struct Sum {
    /// What was spent until the last stretch began.
    spent: MachineTimes,
    stretch: Reading,
    told: MachineTimes,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineTimes {
    pub user: u64,
    /// In user code and in the kernel, interrupts included.
    pub busy: u64,
    /// Idle, with or without a disk to wait for.
    pub idle: u64,
}

/// What /proc/stat says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reading {
    times: MachineTimes,
    stolen: u64,
    /// How many CPUs are online.
    cpus: u64,
    /// When it was read, monotonic nanoseconds.
    at: u64,
}

impl MachineTime {
    pub fn begin() -> Option<MachineTime> {
        Some(MachineTime::begin_at(read()?))
    }

    fn begin_at(stretch: Reading) -> MachineTime {
        let nothing = MachineTimes::default();
        MachineTime(Cell::new(Sum { spent: nothing, stretch, told: nothing }))
    }

    pub fn since(&self) -> Option<MachineTimes> {
        Some(self.until(read()?))
    }

    fn until(&self, now: Reading) -> MachineTimes {
        let Sum { mut spent, mut stretch, mut told } = self.0.get();
        let both = |a: MachineTimes, b: MachineTimes, of: fn(u64, u64) -> u64| MachineTimes {
            user: of(a.user, b.user),
            busy: of(a.busy, b.busy),
            idle: of(a.idle, b.idle),
        };
        let sum = both(spent, between(&stretch, &now), u64::saturating_add);
        if now.cpus != stretch.cpus || now.at.saturating_sub(stretch.at) >= STRETCH_NS {
            (spent, stretch) = (sum, now);
        }
        told = both(told, sum, u64::max);
        self.0.set(Sum { spent, stretch, told });
        told
    }
}

/// What was spent from one reading to another one.
///
/// Most kernels take a CPU for busy by who runs when it ticks, and know when it was idle. A program that sleeps at each tick
/// is in neither: what is left of all CPUs' time is busy, too, where that is more. (So is what a host takes without telling.)
fn between(began: &Reading, now: &Reading) -> MachineTimes {
    let passed = |of: fn(&Reading) -> u64| of(now).saturating_sub(of(began));
    let (user, ticked, idle) = (passed(|it| it.times.user), passed(|it| it.times.busy), passed(|it| it.times.idle));
    let all = if began.cpus == now.cpus { passed(|it| it.at).saturating_mul(now.cpus) } else { 0 };
    let left = [idle, idle / IDLE_PARTS, passed(|it| it.stolen)].into_iter().fold(all, u64::saturating_sub);
    let busy = ticked.max(left);
    let user = u128::from(user) * u128::from(busy) / u128::from(ticked.max(1));
    MachineTimes { user: u64::try_from(user).unwrap_or(u64::MAX).min(busy), busy, idle }
}

fn read() -> Option<Reading> {
    let stat = procfs::read("/proc/stat").ok()?;
    Some(Reading { at: now_ns(), ..parse(&stat)? })
}

/// The first line of /proc/stat, see proc_stat(5), and how many CPUs it has. Steal time is neither busy nor idle.
fn parse(bytes: &[u8]) -> Option<Reading> {
    let lines = || bytes.split(|&byte| byte == b'\n');
    let line = lines().find_map(|line| line.strip_prefix(b"cpu "))?;
    let mut fields = std::str::from_utf8(line).ok()?.split_ascii_whitespace().map(|field| field.parse::<u64>().ok());
    let mut next = || fields.next().flatten().map(|ticks| ticks.saturating_mul(TICK_NS));
    let [user, nice, system, idle] = [next()?, next()?, next()?, next()?];
    let [waiting, interrupts, soft_interrupts, stolen] = [(); 4].map(|()| next().unwrap_or(0));
    let user = user.saturating_add(nice);
    let busy = [system, interrupts, soft_interrupts].into_iter().fold(user, u64::saturating_add);
    let times = MachineTimes { user, busy, idle: idle.saturating_add(waiting) };
    let cpus = lines().filter(|line| line.starts_with(b"cpu") && !line.starts_with(b"cpu ")).count();
    Some(Reading { times, stolen, cpus: cpus as u64, at: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_and_idle_time() {
        let of = |text: &str| parse(text.as_bytes());
        let line = "cpu  10 20 30 400 50 6 7 80 9 1\ncpu0 1 2 3 4\nintr 5\n";
        let times = MachineTimes { user: 30 * TICK_NS, busy: 73 * TICK_NS, idle: 450 * TICK_NS };
        assert_eq!(of(line), Some(Reading { times, stolen: 80 * TICK_NS, cpus: 1, at: 0 }));
        let times = MachineTimes { user: TICK_NS, busy: 3 * TICK_NS, idle: 3 * TICK_NS };
        assert_eq!(of("cpu  1 0 2 3"), Some(Reading { times, ..Reading::default() }));
        for hostile in ["", "cpu0 1 2 3 4", "cpu  1 2 3", "cpu  a b c d", "cpu  -1 2 3 4"] {
            assert_eq!(of(hostile), None, "{hostile:?}");
        }
        assert_eq!(of("cpu  18446744073709551615 1 1 1").unwrap().times.busy, u64::MAX);
    }

    #[test]
    fn who_sleeps_at_each_tick_makes_cpus_busy() {
        const S: u64 = 1_000_000_000;
        let reading = |user, busy, idle, stolen, at| {
            let times = MachineTimes { user: user * S, busy: busy * S, idle: idle * S };
            Reading { times, stolen: stolen * S, cpus: 2, at: at * S }
        };
        let began = reading(5, 10, 20, 3, 100);
        let busy = |user, busy, idle, stolen, at| between(&began, &reading(user, busy, idle, stolen, at));
        // All is accounted for, but for what interrupts of idle CPUs took.
        assert_eq!(busy(9, 16, 33, 3, 110).busy, 7 * S - 13 * S / 50);
        assert_eq!(busy(9, 16, 34, 3, 110), MachineTimes { user: 4 * S, busy: 6 * S, idle: 14 * S });
        // A program that sleeps at each tick has two thirds of the busy time. The time that the host takes is not busy.
        assert_eq!(busy(9, 16, 20, 5, 110), MachineTimes { user: 12 * S, busy: 18 * S, idle: 0 });
        // A CPU has come.
        let now = Reading { cpus: 3, ..reading(9, 16, 20, 5, 110) };
        assert_eq!(between(&began, &now), MachineTimes { user: 4 * S, busy: 6 * S, idle: 0 });
        assert_eq!(between(&began, &Reading::default()), MachineTimes::default());
    }

    #[test]
    fn what_was_spent_stays() {
        const S: u64 = 1_000_000_000;
        let reading = |busy, idle, cpus, at| {
            let times = MachineTimes { user: 0, busy: busy * S, idle: idle * S };
            Reading { times, stolen: 0, cpus, at: at * S }
        };
        let time = MachineTime::begin_at(reading(0, 0, 2, 0));
        // Who sleeps when CPUs tick has both for ten seconds, and then all sleep for long.
        assert_eq!(time.until(reading(0, 0, 2, 10)).busy, 20 * S);
        for at in 11..1_000 {
            assert_eq!(time.until(reading(0, 2 * (at - 10), 2, at)).busy, 20 * S, "{at}");
        }
        // One CPU less, and then one is busy.
        assert_eq!(time.until(reading(0, 1_981, 1, 1_001)).busy, 20 * S);
        assert_eq!(time.until(reading(4, 1_981, 1, 1_005)).busy, 24 * S);
        assert_eq!(time.until(reading(4, 1_981, 2, 1_005)).busy, 24 * S);
    }

    #[test]
    fn this_machine_spends_time() {
        let time = MachineTime::begin().unwrap();
        let begin = crate::usage::thread_cpu_ns();
        while crate::usage::thread_cpu_ns() - begin < 3 * TICK_NS {}
        assert!(time.since().unwrap().busy > 0);
    }
}
