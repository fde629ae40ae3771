//! What a sample costs the target, measured on a thread of our own.
//!
//! The thread does the same work in turns without and with the event; the difference divided by the samples is the
//! cost: the
//! interrupt (most of it in a virtual machine, where setting a timer leaves the machine) and the copy of registers and
//! stack. The stack is [`STACK_BYTES`] deep; each further KiB costs some 0.1 us. By wall clock, as some kernels keep
//! interrupts out of a thread's own. Turns that left the CPU do not count if there are enough others; the median
//! decides.

use std::hint::black_box;
use std::io;

use nix::sys::resource::{UsageWho, getrusage};

use super::attr::EventSpec;
use super::event::{disable, enable, open};
use super::ring_buffer::{PAGE, RingBuffer};
use crate::clock::now_ns;
use crate::error::{Error, Result};
use crate::system;
use crate::usage::thread_cpu_ns;

/// Samples per second while measuring: a few in each turn, and few enough for no kernel to throttle.
const RATE_HZ: u32 = 4_999;
/// Turns that count of each kind, turns tried at most, and nanoseconds of one: 50 ms in all, up to 150 ms on a busy
/// CPU.
const TURNS: usize = 16;
const MAX_TURNS: usize = 48;
const TURN_NS: u64 = 1_500_000;
/// Bytes of stack that the thread has in use.
const STACK_BYTES: usize = 8 << 10;
/// Stack of the thread. The kernel copies up to its end.
const THREAD_STACK_BYTES: usize = 64 << 10;
/// Pages of the ring at best, and at least: it must hold the samples of one turn, with the stack as large as it is asked for.
const PAGES: usize = 256;
const MIN_PAGES: usize = 8;
/// Samples of a turn that must fit.
const SAMPLES: usize = 10;
/// What is left in a record beside the stack, bytes.
const OTHER_BYTES: usize = 1_024;
/// The least that is believed: no interrupt takes less.
const LEAST_NS: u64 = 200;

/// What a sample of `spec` costs the one who is sampled, nanoseconds.
///
/// # Errors
/// [`Error::Unmeasured`].
pub fn target_cost_ns(spec: &EventSpec) -> Result<u64> {
    let spec = *spec;
    let thread = std::thread::Builder::new().name("ccsd-calibrate".to_owned()).stack_size(THREAD_STACK_BYTES);
    let measured = thread.spawn(move || measure(&spec)).map(std::thread::JoinHandle::join);
    let told = match measured {
        Ok(Ok(measured)) => measured.map_err(|error| error.to_string()),
        Ok(Err(_)) => Err("the thread that measures it failed".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    match told {
        Ok(Some(cost)) => Ok(cost),
        Ok(None) => Err(Error::Unmeasured("the event does not fire".to_owned())),
        Err(why) => Err(Error::Unmeasured(why)),
    }
}

fn measure(spec: &EventSpec) -> io::Result<Option<u64>> {
    let mut pages = PAGES;
    let (mut ring, event) = loop {
        let fits = ((pages * PAGE / SAMPLES).saturating_sub(OTHER_BYTES) / 8 * 8) as u32;
        let spec = EventSpec {
            rate_hz: RATE_HZ.min(system::perf_max_sample_rate()),
            inherit: false,
            enable_on_exec: false,
            stack_bytes: spec.stack_bytes.min(fits),
            ..*spec
        };
        let mut attr = spec.sampling_attr();
        attr.set_disabled(1);
        let leader = open(&attr, 0, -1, None)?;
        let member =
            spec.group_member_attr().map(|member| open(&member, 0, -1, Some(std::os::fd::AsFd::as_fd(&leader))));
        let member = member.transpose()?;
        let event = leader.try_clone()?;
        match RingBuffer::map(leader, pages) {
            Ok(ring) => break (ring, (event, member)),
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && pages > MIN_PAGES => pages /= 2,
            Err(error) => return Err(error),
        }
    };
    // In use, for the kernel to copy.
    let below = black_box([1u8; STACK_BYTES]);
    let (mut turns, mut disturbed) = (Vec::with_capacity(TURNS), Vec::new());
    let mut repeats = 10_000u64;
    loop {
        // By the thread's own clock: one wait for the CPU would make the turns too short to be sampled at all.
        let began = thread_cpu_ns();
        timed(repeats);
        let took = thread_cpu_ns().saturating_sub(began);
        if took >= TURN_NS / 2 || repeats > 1 << 40 {
            repeats = (u128::from(repeats) * u128::from(TURN_NS) / u128::from(took.max(1))) as u64;
            break;
        }
        repeats *= 2;
    }
    for _ in 0..MAX_TURNS {
        // Whoever waits for this CPU has it now, rather than in the midst of the turn.
        std::thread::yield_now();
        let before = switches()?;
        let without = timed(repeats);
        enable(&event.0)?;
        let with = timed(repeats);
        disable(&event.0)?;
        let kept = if switches()? == before { &mut turns } else { &mut disturbed };
        kept.push(Turn { without, with, samples: drain(&mut ring) });
        if turns.len() == TURNS {
            break;
        }
    }
    if turns.len() < TURNS / 2 {
        turns.append(&mut disturbed);
        turns = Vec::from_iter(fastest(&turns));
    }
    black_box(&below);
    Ok(cost(&turns))
}

#[derive(Clone, Copy, Debug)]
struct Turn {
    without: u64,
    with: u64,
    samples: u64,
}

/// What one sample costs: the median of what the samples of a turn cost together, by how many there are in one.
fn cost(turns: &[Turn]) -> Option<u64> {
    let samples: u64 = turns.iter().map(|turn| turn.samples).sum();
    let mut more: Vec<i64> = turns
        .iter()
        .map(|turn| i64::try_from(turn.with).unwrap_or(i64::MAX).saturating_sub_unsigned(turn.without))
        .collect();
    more.sort_unstable();
    let median = more.get(more.len() / 2)?.max(&0).unsigned_abs();
    (samples > 0).then(|| {
        let cost = u128::from(median) * turns.len() as u128 / u128::from(samples);
        u64::try_from(cost).unwrap_or(u64::MAX).max(LEAST_NS)
    })
}

/// Of turns most of which were disturbed: what was disturbed least of each kind, as one turn.
fn fastest(turns: &[Turn]) -> Option<Turn> {
    let without = turns.iter().map(|turn| turn.without).min()?;
    let with = turns.iter().map(|turn| turn.with).min()?;
    let samples: u64 = turns.iter().map(|turn| turn.samples).sum();
    Some(Turn { without, with, samples: samples.div_ceil(turns.len() as u64) })
}

/// How often this thread has left its CPU.
fn switches() -> io::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    Ok(usage.involuntary_context_switches() + usage.voluntary_context_switches())
}

/// Nanoseconds that some work takes.
fn timed(repeats: u64) -> u64 {
    let began = now_ns();
    let mut x = began;
    for _ in 0..repeats {
        x = black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
    now_ns().saturating_sub(began)
}

/// Counts the records of the ring and takes them out.
fn drain(ring: &mut RingBuffer) -> u64 {
    let mut count = 0;
    if ring.refresh() {
        while ring.peek().is_some() {
            ring.advance();
            count += 1;
        }
    }
    ring.release();
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::choice::{EventChoice, Scope, choose};

    #[test]
    fn the_median_leaves_out_what_was_disturbed() {
        let turn = |without, with, samples| Turn { without, with, samples };
        let quiet = turn(1_500_000, 1_600_000, 5);
        assert_eq!(cost(&[quiet; 5]), Some(20_000));
        let disturbed = [turn(9_000_000, 1_600_000, 5), turn(1_500_000, 9_000_000, 5)];
        assert_eq!(cost(&[&[quiet; 5][..], &disturbed].concat()), Some(20_000));
        // Faster with than without is chance; it costs something all the same.
        assert_eq!(cost(&[turn(1_600_000, 1_500_000, 5); 3]), Some(LEAST_NS));
        assert_eq!(cost(&[turn(1_500_000, 1_600_000, 0); 3]), None);
        assert_eq!(cost(&[]), None);
        // Where all were, what each kind took at its best is compared.
        assert_eq!(cost(&Vec::from_iter(fastest(&[disturbed[0], disturbed[1]]))), Some(20_000));
        assert!(fastest(&[]).is_none());
    }

    #[test]
    fn a_sample_costs_something() {
        // Where there are no perf events, nothing can be measured either.
        let Ok(choice) = choose(EventChoice::Auto, Scope::Auto, 999, true) else { return };
        let cost = target_cost_ns(&choice.spec).unwrap();
        // How much is the machine's affair; a millisecond would be more than the period.
        assert!((LEAST_NS..1_000_000).contains(&cost), "{cost} ns");
    }
}
