//! Sampling by the scheduler's tick.
//!
//! A sampling timer of its own costs a thread 15 to 20 us per sample on a machine without hardware counters. The
//! interrupt of the scheduler's tick comes anyway, so a perf event on the tracepoint at its entry samples for next to
//! nothing. What follows from that:
//!
//! - How often it comes is the kernel's choice (`CONFIG_HZ`, mostly 250 times a second), and other timers that are due
//!   on the CPU come with the same interrupt. So a sample weighs not a period but what the thread has run on that CPU
//!   since its last one there: a clock of the thread's rides in the event's group and is read with each sample.
//! - The sample is taken in the interrupt. The kernel's part of its stack begins with the interrupt's own frames, which are
//!   not the target's, up to the return address in the interrupt's entry. That is the last address of the kernel's
//!   part where the interrupt came in user code, and [`find`] learns it from samples of ccsd itself in a loop.
//! - The event is one of the kernel: only who may sample the kernel may have it, and its number stands in a directory that
//!   is root's on most machines.

use std::fs;
use std::hint::black_box;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use super::attr::{Event, EventSpec};
use super::event::open;
use super::record::{Record, SampleLayout, parse};
use super::ring_buffer::RingBuffer;
use crate::usage::thread_cpu_ns;

/// Where the kernel describes its tracepoints.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
/// The tracepoint at the entry of the local timer's interrupt, on x86.
const TRACEPOINT: &str = "events/irq_vectors/local_timer_entry/id";
/// Ticks that are waited for, and CPU time, in nanoseconds, after which there is none: of the slowest kernels one comes
/// every 10 ms.
const TICKS: usize = 3;
const PATIENCE_NS: u64 = 100_000_000;
/// How often kernels are built to tick, per second.
const RATES: [u64; 4] = [100, 250, 300, 1000];
/// Multiplications between two looks at the ring: some microseconds.
const TURN: u32 = 10_000;
/// Pages of the ring: three samples take less than one.
const PAGES: usize = 4;

/// Finds out whether the tick samples here, by sampling the calling thread for two or three ticks.
///
/// # Errors
/// Why not, with what helps.
pub fn find() -> Result<Event, String> {
    let id = tracepoint()?;
    let list = fs::read_to_string("/sys/devices/system/cpu/nohz_full").ok();
    if let Some(cpus) = cpus_without(list.as_deref()) {
        return Err(format!("CPUs {cpus} run without a tick (nohz_full)"));
    }
    probe(id)
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
            "this kernel has no tracepoint irq_vectors:local_timer_entry".to_owned()
        }
        None => format!("the kernel's tracepoints are not mounted: `sudo mount -t tracefs tracefs {}`", TRACEFS[0]),
    })
}

/// The CPUs of a kernel's list, if there are any. (It writes `(null)` for none.)
fn cpus_without(list: Option<&str>) -> Option<&str> {
    list.map(str::trim).filter(|list| list.starts_with(|first: char| first.is_ascii_digit()))
}

/// Samples this thread.
fn probe(id: u64) -> Result<Event, String> {
    let spec = EventSpec {
        event: Event::Tick { id, rate_hz: 0, entry: u64::MAX },
        rate_hz: 1,
        kernel: true,
        inherit: false,
        enable_on_exec: false,
        stack_bytes: 8,
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
    let mut ring = RingBuffer::map(leader, PAGES).map_err(unavailable)?;
    let mut found = Samples::default();
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
    found.event(id)
}

/// What was sampled of this thread.
#[derive(Default)]
struct Samples {
    /// Its CPU time at each, nanoseconds.
    times: Vec<u64>,
    /// The shortest of the kernel's parts of their stacks: its last address, and how many there are. (A sample may have
    /// found the kernel at work.)
    shortest: Option<(usize, u64)>,
}

impl Samples {
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
                self.times.extend(sample.group_value);
            }
            ring.advance();
        }
        ring.release();
    }

    fn event(&self, id: u64) -> Result<Event, String> {
        // Between two there may have been another timer's, so that it is the longest that counts.
        let longest = self.times.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).max();
        let Some(longest) = longest.filter(|&longest| longest > 0) else {
            return Err("no tick has come in 100 ms of CPU time".to_owned());
        };
        let Some((_, entry)) = self.shortest else {
            return Err("its samples have no kernel stacks".to_owned());
        };
        let off = |rate: &u64| (1_000_000_000 / rate).abs_diff(longest);
        let rate_hz = RATES.into_iter().min_by_key(off).unwrap_or(RATES[0]) as u32;
        Ok(Event::Tick { id, rate_hz, entry })
    }
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
    fn the_rate_is_that_of_the_longest_interval() {
        let event = |times: &[u64]| Samples { times: times.to_vec(), shortest: Some((4, 7)) }.event(165);
        let tick = |rate_hz| Ok(Event::Tick { id: 165, rate_hz, entry: 7 });
        assert_eq!(event(&[1_000, 4_001_300]), tick(250));
        assert_eq!(event(&[3_000_000, 4_500_000, 8_450_000]), tick(250));
        assert_eq!(event(&[0, 9_900_000]), tick(100));
        assert_eq!(event(&[0, 990_000, 2_000_000]), tick(1000));
        assert!(event(&[5]).unwrap_err().contains("no tick"));
        assert!(event(&[5, 5]).is_err());
        assert!(Samples { times: vec![0, 4_000_000], shortest: None }.event(1).is_err());
    }
}
