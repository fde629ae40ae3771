//! Sampling by the scheduler's tick.
//!
//! Without hardware counters, a sampling timer costs a thread 15 to 20 us per sample. The scheduler's tick comes
//! anyway, so
//! a perf event on the tracepoint at which its timer expires samples for next to nothing. (The tracepoint at the
//! interrupt's
//! entry, `irq_vectors:local_timer_entry`, also fires for the program's own timers, just where it sets them.) So:
//!
//! - All timers pass by the tracepoint; a filter in the kernel passes only those that call the tick's function.
//! - The kernel chooses the rate (`CONFIG_HZ`, mostly 250), and with other threads on the CPU a tick does not always
//!   find
//!   the same one. So a sample weighs what the thread has run on that CPU since its last one there, within chance (see
//!   `aggregator::unseen`): a clock of the thread rides in the event's group.
//! - The kernel's part of a sample's stack begins with the interrupt's own frames, up to the return address in its
//!   entry.
//!   [`find`] learns that address from samples of ccsd itself in a loop of user code.
//! - The event is one of the kernel, its number is in a directory that is mostly root's, and so is the function's
//!   address:
//!   only who may sample the kernel may use it.

use std::ffi::CString;
use std::fs::{self, File};
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::Path;

use super::attr::{Event, EventSpec};
use super::event::{enable, open, set_filter};
use super::record::{Record, SampleLayout, parse};
use super::ring_buffer::RingBuffer;
use crate::usage::thread_cpu_ns;

const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const TRACEPOINT: &str = "events/timer/hrtimer_expire_entry/id";
/// What the tick's timer calls: since Linux 6.9, and before.
const HANDLERS: [&[u8]; 2] = [b"tick_nohz_handler", b"tick_sched_timer"];
/// Bytes of the kernel's list of symbols at most; one of a distribution has 10 MB.
const MAX_SYMBOLS: u64 = 256 << 20;
/// Ticks to wait for, and CPU time after which fewer must do, nanoseconds: the slowest kernels tick every 10 ms.
const TICKS: usize = 8;
const PATIENCE_NS: u64 = 100_000_000;
/// How often kernels are built to tick, per second.
const RATES: [u64; 4] = [100, 250, 300, 1000];
/// How far a tick may be from its time, as a part of the time between two: something may have kept the CPU from it.
const LATE: f64 = 1.0 / 8.0;
/// Of the intervals between ticks, the part that must be as they should. Those between two CPUs may not be.
const MOST: f64 = 0.75;
/// Multiplications between two looks at the ring: some microseconds.
const TURN: u32 = 10_000;
/// Pages of the ring: eight samples take less than two.
const PAGES: usize = 4;

/// Finds out whether the tick samples here, by sampling the calling thread for eight ticks.
///
/// # Errors
/// Why not, with what helps.
pub fn find() -> Result<Event, String> {
    let id = tracepoint()?;
    let list = fs::read_to_string("/sys/devices/system/cpu/nohz_full").ok();
    if let Some(cpus) = cpus_without(list.as_deref()) {
        return Err(format!("CPUs {cpus} run without a tick (nohz_full)"));
    }
    let symbols = File::open("/proc/kallsyms").map_err(|error| format!("/proc/kallsyms cannot be read: {error}"))?;
    probe(id, handler(BufReader::with_capacity(64 << 10, symbols).take(MAX_SYMBOLS))?)
}

/// Lets through only the ticks.
pub fn filter(handler: u64) -> io::Result<CString> {
    CString::new(format!("function == {handler:#x}")).map_err(io::Error::other)
}

/// The address of the function that the tick's timer calls.
fn handler(mut symbols: impl BufRead) -> Result<u64, String> {
    let mut line = Vec::new();
    loop {
        line.clear();
        match symbols.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => {
                return Err("this kernel has no function tick_nohz_handler or tick_sched_timer".to_owned());
            }
            Ok(_) => {}
        }
        // ffffffff81433060 t tick_nohz_handler
        let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
        let (address, _kind, name) = (words.next(), words.next(), words.next());
        if !name.is_some_and(|name| HANDLERS.contains(&name)) {
            continue;
        }
        let address = address.and_then(|digits| std::str::from_utf8(digits).ok());
        return match address.and_then(|digits| u64::from_str_radix(digits, 16).ok()) {
            Some(address @ 1..) => Ok(address),
            _ => Err(
                "the kernel hides the addresses of its functions from this user: run ccsd as root or with CAP_SYSLOG, \
                      or set kernel.kptr_restrict to 0"
                    .to_owned(),
            ),
        };
    }
}

fn tracepoint() -> Result<u64, String> {
    let mut refused = None;
    for tracefs in TRACEFS {
        match fs::read_to_string(Path::new(tracefs).join(TRACEPOINT)) {
            Ok(id) => return id.trim().parse().map_err(|_| format!("{tracefs}/{TRACEPOINT} holds no number")),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => refused = Some(tracefs),
            Err(_) => {}
        }
    }
    Err(match refused {
        Some(tracefs) => format!(
            "{tracefs} is not readable for this user, and the number of its event stands there: run ccsd as root, or \
             `sudo mount -o remount,mode=755 {tracefs}`"
        ),
        None if Path::new(TRACEFS[0]).join("events").exists() => {
            "this kernel has no tracepoint timer:hrtimer_expire_entry".to_owned()
        }
        None => format!("the kernel's tracepoints are not mounted: `sudo mount -t tracefs tracefs {}`", TRACEFS[0]),
    })
}

/// The CPUs of a kernel's list, if there are any. (It writes `(null)` for none.)
fn cpus_without(list: Option<&str>) -> Option<&str> {
    list.map(str::trim).filter(|list| list.starts_with(|first: char| first.is_ascii_digit()))
}

fn probe(id: u64, handler: u64) -> Result<Event, String> {
    let spec = EventSpec {
        event: Event::Tick { id, handler, rate_hz: 0, entry: u64::MAX },
        rate_hz: 1,
        kernel: true,
        inherit: false,
        enable_on_exec: false,
        stack_bytes: 8,
        tells_lost: false,
        user_chain: false,
    };
    let unavailable = |error: io::Error| match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "it is an event of the kernel: run ccsd as root or with CAP_PERFMON, or set kernel.perf_event_paranoid to 1"
                .to_owned()
        }
        _ => format!("the kernel refuses it: {error}"),
    };
    let leader = open(&spec.sampling_attr(), 0, -1, None).map_err(unavailable)?;
    let member = spec.group_member_attr().map(|member| open(&member, 0, -1, Some(leader.as_fd())));
    let _member = member.transpose().map_err(unavailable)?;
    filter(handler).and_then(|filter| set_filter(&leader, &filter)).map_err(unavailable)?;
    enable(&leader).map_err(unavailable)?;
    let mut ring = RingBuffer::map(leader, PAGES).map_err(unavailable)?;
    let mut found = TickSamples::default();
    let until = thread_cpu_ns().saturating_add(PATIENCE_NS);
    // No system call in between: the interrupt must find user code.
    while found.times.len() < TICKS && thread_cpu_ns() < until {
        let mut x = 1u64;
        for turn in 0..200 * TURN {
            x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            if turn % TURN == 0 && ring.refresh() {
                break;
            }
        }
        found.read(&mut ring);
    }
    found.event(id, handler)
}

#[derive(Default)]
struct TickSamples {
    /// When each was taken, nanoseconds.
    times: Vec<u64>,
    /// The shortest kernel part of a stack: its last address, and how many samples have it. (Others may have found the
    /// kernel at work.)
    shortest: Option<(usize, u64)>,
}

impl TickSamples {
    fn read(&mut self, ring: &mut RingBuffer) {
        while let Some(record) = ring.peek() {
            if let Record::Sample(sample) = parse(record, SampleLayout { group_read: true, ..SampleLayout::default() })
            {
                let chain = sample.kernel_chain;
                let length = chain.len() / 8;
                if let Some(last) = length.checked_sub(1).and_then(|last| chain.u64_at(8 * last))
                    && self.shortest.is_none_or(|(shortest, _)| length < shortest)
                {
                    self.shortest = Some((length, last));
                }
                self.times.push(sample.time);
            }
            ring.advance();
        }
        ring.release();
    }

    fn event(&self, id: u64, handler: u64) -> Result<Event, String> {
        let Some(rate_hz) = rate(&self.times) else {
            return Err("no two ticks have come in 100 ms of CPU time".to_owned());
        };
        let Some((_, entry)) = self.shortest else {
            return Err("its samples have no kernel stacks".to_owned());
        };
        Ok(Event::Tick { id, handler, rate_hz, entry })
    }
}

/// The tick rate: the longest interval of which nearly all intervals are multiples, as a thread that shares its CPU
/// misses some. `None` without two ticks.
fn rate(times: &[u64]) -> Option<u32> {
    let between: Vec<f64> =
        times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]) as f64).filter(|&ns| ns > 0.0).collect();
    let shortest = between.iter().copied().min_by(f64::total_cmp)?;
    let fits = |rate: &u64| {
        let period = 1e9 / *rate as f64;
        let multiples = between.iter().filter(|&&ns| {
            let periods = (ns / period).round();
            periods >= 1.0 && (ns - periods * period).abs() <= period * LATE
        });
        multiples.count() as f64 >= MOST * between.len() as f64
    };
    // Where nothing fits, the machine is so busy that ticks come late: then the shortest is the best there is.
    let nearest = || RATES.into_iter().min_by_key(|rate| (1e9 / *rate as f64 - shortest).abs() as u64);
    RATES.into_iter().find(fits).or_else(nearest).and_then(|rate| u32::try_from(rate).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_have_no_tick() {
        for (list, expected) in
            [(None, None), (Some("\n"), None), (Some(" (null)\n"), None), (Some("1-3\n"), Some("1-3"))]
        {
            assert_eq!(cpus_without(list), expected);
        }
    }

    #[test]
    fn the_function_of_the_tick() {
        let find = |text: &str| handler(text.as_bytes());
        let before = "ffffffff81000000 T _text\n0 A nothing\nodd\n\n";
        assert_eq!(find(&format!("{before}ffffffff81433060 t tick_nohz_handler\n")), Ok(0xffff_ffff_8143_3060));
        assert_eq!(find(&format!("{before}ffffffff81433060 t tick_sched_timer\n")), Ok(0xffff_ffff_8143_3060));
        assert!(find(before).unwrap_err().contains("no function"));
        assert!(find("ffffffff81433060 t tick_nohz_handler_not\n").is_err());
        assert!(find("0000000000000000 t tick_nohz_handler\n").unwrap_err().contains("CAP_SYSLOG"));
        assert_eq!(filter(0x10).unwrap().to_bytes(), b"function == 0x10");
    }

    #[test]
    fn the_rate_is_that_of_the_grid_on_which_ticks_come() {
        let at = |ms: &[f64]| rate(&ms.iter().map(|ms| 5_000_000 + (ms * 1e6) as u64).collect::<Vec<_>>());
        assert_eq!(at(&[0.0, 4.0, 8.0, 12.0]), Some(250));
        assert_eq!(at(&[0.0, 1.0, 2.0, 3.0, 4.0]), Some(1000));
        assert_eq!(at(&[0.0, 10.0, 20.0]), Some(100));
        assert_eq!(at(&[0.0, 3.33, 6.67, 10.0, 13.33]), Some(300));
        // Others have the CPU most of the time, and each tick is a little late.
        assert_eq!(at(&[0.0, 8.1, 12.0, 40.2, 44.1, 56.3, 96.0, 104.2]), Some(250));
        assert_eq!(at(&[0.0, 12.0, 24.1, 28.0, 60.2]), Some(250));
        assert_eq!(at(&[0.0, 30.0, 40.1, 90.0, 200.2]), Some(100));
        assert_eq!(at(&[0.0, 3.0, 4.0, 9.05, 11.0, 12.0]), Some(1000));
        // One came much too late, or on a CPU that ticks at another time.
        assert_eq!(at(&[0.0, 4.0, 8.0, 13.9, 17.9, 21.9, 25.9, 29.9]), Some(250));
        // Nothing fits: as the shortest.
        assert_eq!(at(&[0.0, 4.7, 11.3, 17.0, 22.4]), Some(250));
        assert_eq!((at(&[3.0]), at(&[3.0, 3.0]), at(&[])), (None, None, None));
    }

    #[test]
    fn an_event_takes_two_ticks_and_a_stack() {
        let event = |times: &[u64], shortest| TickSamples { times: times.to_vec(), shortest }.event(459, 9);
        let tick = Ok(Event::Tick { id: 459, handler: 9, rate_hz: 250, entry: 7 });
        assert_eq!(event(&[1_000, 4_001_300], Some((4, 7))), tick);
        assert!(event(&[5], Some((4, 7))).unwrap_err().contains("no two ticks"));
        assert!(event(&[5, 5], Some((4, 7))).is_err());
        assert!(event(&[0, 4_000_000], None).unwrap_err().contains("no kernel stacks"));
    }
}
