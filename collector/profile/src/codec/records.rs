//! The payloads that have no state: session and accounting.

use super::split::RECORD_ITEMS;
use super::wire::{Cursor, Wrong, put, put_len, put_option, put_str};
use crate::accounting::{Accounting, TruncationReason};
use crate::limits::MAX_METRICS;
use crate::model::{Metric, Session, Unit};
use crate::pace::Pace;

pub(super) fn put_session(out: &mut Vec<u8>, session: &Session) {
    put_str(out, &session.target);
    put_strings(out, &session.command);
    let pids = session.pids.get(..RECORD_ITEMS).unwrap_or(&session.pids);
    put_len(out, pids.len());
    for &pid in pids {
        put(out, u64::from(pid));
    }
    put_str(out, &session.event);
    put(out, u64::from(session.rate_hz));
    put_str(out, &session.host);
    put(out, session.started_unix_ns);
    let metrics = session.metrics.get(..MAX_METRICS).unwrap_or(&session.metrics);
    put_len(out, metrics.len());
    for metric in metrics {
        put_str(out, &metric.name);
        out.push(match metric.unit {
            Unit::Nanoseconds => 0,
            Unit::Cycles => 1,
            Unit::Count => 2,
            Unit::Unknown => u8::MAX,
        });
    }
    put_strings(out, &session.notes);
    put_str(out, &session.version);
}

fn put_strings(out: &mut Vec<u8>, strings: &[String]) {
    let strings = strings.get(..RECORD_ITEMS).unwrap_or(strings);
    put_len(out, strings.len());
    for text in strings {
        put_str(out, text);
    }
}

pub(super) fn session(from: &mut Cursor<'_>) -> Result<Session, Wrong> {
    let session = Session {
        target: from.string()?,
        command: from.list(Cursor::string)?,
        pids: from.list(Cursor::get_u32)?,
        event: from.string()?,
        rate_hz: from.get_u32()?,
        host: from.string()?,
        started_unix_ns: from.get()?,
        metrics: from.list(metric)?,
        notes: from.list(Cursor::string)?,
        version: from.string()?,
    };
    if session.metrics.len() > MAX_METRICS { Err("too many metrics") } else { Ok(session) }
}

fn metric(from: &mut Cursor<'_>) -> Result<Metric, Wrong> {
    let name = from.string()?;
    let unit = match from.byte()? {
        0 => Unit::Nanoseconds,
        1 => Unit::Cycles,
        2 => Unit::Count,
        _ => Unit::Unknown,
    };
    Ok(Metric { name, unit })
}

/// Where the rates stand among the numbers: the last of them, as there may be any number of rates. What lies between them
/// and the others is for others to come.
const PACE_AT: usize = 48;
/// Where the profiler's own CPU time by phase stands among the numbers: all 0 where that is not known.
const OWN_CPU_AT: usize = 18;
const _: () = assert!(Accounting::NUMBERS == OWN_CPU_AT);
/// Where the CPU time that is in no sample stands among the numbers: 1 if it is known, then nanoseconds by cause.
const NOT_SAMPLED_AT: usize = 36;

/// Counted lists, so that each can grow: the truncated samples by reason, the numbers, those of the context table (there
/// will always be nine) with how often each table had no room.
pub(super) fn put_accounting(out: &mut Vec<u8>, accounting: &Accounting) {
    let a = accounting;
    put_len(out, TruncationReason::COUNT);
    for &count in a.stacks.truncated.numbers() {
        put(out, count);
    }
    let mut numbers = a.numbers().to_vec();
    if let Some(own_cpu) = &a.own.by_phase {
        numbers.resize(OWN_CPU_AT, 0);
        numbers.extend(own_cpu.numbers());
    }
    if let Some(not_sampled) = &a.not_sampled {
        numbers.resize(NOT_SAMPLED_AT, 0);
        numbers.push(1);
        numbers.extend(not_sampled.numbers());
    }
    let pace = a.pace.numbers();
    let reserved = if pace.is_empty() { 0 } else { PACE_AT.saturating_sub(numbers.len()) };
    put_option(out, a.expected);
    put_option(out, a.target_cpu_ns);
    put_len(out, numbers.len() + reserved + pace.len());
    for number in numbers.into_iter().chain(std::iter::repeat_n(0, reserved)).chain(pace) {
        put(out, number);
    }
    let contexts = a.contexts.numbers();
    put_len(out, contexts.len() + a.shed.numbers().len());
    for number in contexts.iter().chain(a.shed.numbers()) {
        put(out, *number);
    }
}

pub(super) fn accounting(from: &mut Cursor<'_>) -> Result<Accounting, Wrong> {
    let mut a = Accounting::default();
    for (i, count) in from.list(Cursor::get)?.into_iter().enumerate() {
        // A reason that a later program knows counts as other.
        let reason = TruncationReason::ALL.get(i).copied().unwrap_or(TruncationReason::Other);
        a.stacks.truncated.add(reason, count);
    }
    a.expected = from.option()?;
    a.target_cpu_ns = from.option()?;
    let numbers = from.list(Cursor::get)?;
    for (field, &number) in a.numbers_mut().into_iter().zip(&numbers) {
        *field = number;
    }
    let own_cpu = numbers.get(OWN_CPU_AT..NOT_SAMPLED_AT.min(numbers.len())).unwrap_or_default();
    if own_cpu.iter().any(|&ns| ns > 0) {
        let sums = a.own.by_phase.get_or_insert_default().numbers_mut().iter_mut();
        for (sum, &number) in sums.zip(own_cpu) {
            *sum = number;
        }
    }
    if numbers.get(NOT_SAMPLED_AT) == Some(&1) {
        let sums = a.not_sampled.get_or_insert_default().numbers_mut().iter_mut();
        for (sum, &number) in sums.zip(numbers.get(NOT_SAMPLED_AT + 1..PACE_AT.min(numbers.len())).unwrap_or_default())
        {
            *sum = number;
        }
    }
    a.pace = Pace::from_numbers(numbers.get(PACE_AT..).unwrap_or_default());
    let tables = from.list(Cursor::get)?;
    for (field, number) in a.contexts.numbers_mut().into_iter().chain(a.shed.numbers_mut()).zip(tables) {
        *field = number;
    }
    Ok(a)
}
