//! The clocks that records and /proc use.

use nix::time::{ClockId, clock_gettime};

/// Clock ticks per second in /proc (`USER_HZ`) are fixed at 100 on every architecture that Linux runs on today.
pub const TICK_NS: u64 = 10_000_000;

/// Now, by the clock of all records: `CLOCK_MONOTONIC` in nanoseconds.
pub fn now_ns() -> u64 {
    read_ns(ClockId::CLOCK_MONOTONIC)
}

/// Converts a record's time to /proc's clock ticks since boot, which go on during suspend; the records' clock does not.
pub fn boot_ticks(monotonic_ns: u64) -> u64 {
    let suspended = read_ns(ClockId::CLOCK_BOOTTIME).saturating_sub(now_ns());
    monotonic_ns.saturating_add(suspended) / TICK_NS
}

fn read_ns(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec().unsigned_abs() * 1_000_000_000 + t.tv_nsec().unsigned_abs())
}
