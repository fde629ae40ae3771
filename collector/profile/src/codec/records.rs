//! The payloads that have no state: session and accounting.

use super::split::RECORD_ITEMS;
use super::wire::{Cursor, Wrong, put, put_len, put_signed, put_str};
use crate::accounting::{Accounting, TruncationReason};
use crate::limits::MAX_METRICS;
use crate::model::{Metric, SessionInfo, Unit};
use crate::pace::SamplingRates;
use crate::text::sanitise;

pub(super) fn put_session(out: &mut Vec<u8>, session: &SessionInfo) {
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

pub(super) fn session(from: &mut Cursor<'_>) -> Result<SessionInfo, Wrong> {
    let session = SessionInfo {
        target: from.string()?,
        command: from.list(Cursor::string)?,
        pids: from.list(Cursor::get_u32)?,
        event: word(from)?,
        rate_hz: from.get_u32()?,
        host: word(from)?,
        started_unix_ns: from.get()?,
        metrics: from.list(metric)?,
        notes: from.list(Cursor::string)?,
        version: word(from)?,
    };
    if session.metrics.len() > MAX_METRICS { Err("too many metrics") } else { Ok(session) }
}

/// A word of the collector's, not of a profiled program's: it has no character that has to be escaped, in whatever format
/// and on whatever screen, unless somebody has put it there.
fn word(from: &mut Cursor<'_>) -> Result<String, Wrong> {
    from.string().map(|text| sanitise(&text).into_owned())
}

fn metric(from: &mut Cursor<'_>) -> Result<Metric, Wrong> {
    let name = word(from)?;
    let unit = match from.byte()? {
        0 => Unit::Nanoseconds,
        1 => Unit::Cycles,
        2 => Unit::Count,
        _ => Unit::Unknown,
    };
    Ok(Metric { name, unit })
}

/// Position of the rates: last, as there may be any number of them. The numbers before are reserved.
const PACE_AT: usize = 48;
/// Where the profiler's own CPU time by phase stands among the numbers: all 0 where that is not known.
const OWN_CPU_AT: usize = 18;
const _: () = assert!(Accounting::NUMBERS == OWN_CPU_AT);
/// Where the CPU time that is in no sample stands among the numbers: 1 if it is known, then nanoseconds by cause.
const NOT_SAMPLED_AT: usize = 36;

/// The numbers of an accounting as they are written: counted lists, so that each can grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AccountingNumbers {
    truncated: Vec<u64>,
    /// Samples expected and CPU time of the target, each 0 if it is not known, else one more.
    known: [u64; 2],
    numbers: Vec<u64>,
    /// Those of the context table (there will always be nine), and how often each table had no room.
    tables: Vec<u64>,
}

impl AccountingNumbers {
    pub(super) fn new(a: &Accounting) -> Self {
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
        if !pace.is_empty() {
            numbers.resize(PACE_AT.max(numbers.len()), 0);
            numbers.extend(pace);
        }
        let option = |value: Option<u64>| value.map_or(0, |value| value.saturating_add(1));
        Self {
            truncated: a.stacks.truncated.numbers().to_vec(),
            known: [option(a.expected), option(a.target_cpu_ns)],
            numbers,
            tables: a.contexts.numbers().iter().chain(a.shed.numbers()).copied().collect(),
        }
    }

    pub(super) fn accounting(&self) -> Accounting {
        let mut a = Accounting::default();
        for (i, &count) in self.truncated.iter().enumerate() {
            // A reason that a later program knows counts as other.
            let reason = TruncationReason::ALL.get(i).copied().unwrap_or(TruncationReason::Other);
            a.stacks.truncated.add(reason, count);
        }
        let [expected, target_cpu_ns] = self.known.map(|value| value.checked_sub(1));
        (a.expected, a.target_cpu_ns) = (expected, target_cpu_ns);
        let numbers = &self.numbers;
        for (field, &number) in a.numbers_mut().into_iter().zip(numbers) {
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
            let causes = numbers.get(NOT_SAMPLED_AT + 1..PACE_AT.min(numbers.len()));
            for (sum, &number) in sums.zip(causes.unwrap_or_default()) {
                *sum = number;
            }
        }
        a.pace = SamplingRates::from_numbers(numbers.get(PACE_AT..).unwrap_or_default());
        for (field, &number) in a.contexts.numbers_mut().into_iter().chain(a.shed.numbers_mut()).zip(&self.tables) {
            *field = number;
        }
        a
    }

    /// Writes them as they are, or as what they differ by from those `before`.
    pub(super) fn put(&self, out: &mut Vec<u8>, before: Option<&Self>) {
        let number = |out: &mut Vec<u8>, value: u64, known: Option<u64>| match before {
            Some(_) => put_signed(out, value.wrapping_sub(known.unwrap_or(0)) as i64),
            None => put(out, value),
        };
        let list = |out: &mut Vec<u8>, values: &[u64], known: Option<&[u64]>| {
            put_len(out, values.len());
            for (i, &value) in values.iter().enumerate() {
                number(out, value, known.and_then(|known| known.get(i).copied()));
            }
        };
        list(out, &self.truncated, before.map(|it| &it.truncated[..]));
        for (i, &value) in self.known.iter().enumerate() {
            number(out, value, before.and_then(|it| it.known.get(i).copied()));
        }
        list(out, &self.numbers, before.map(|it| &it.numbers[..]));
        list(out, &self.tables, before.map(|it| &it.tables[..]));
    }

    /// Reads the next ones, as they are or, if `differ`, as what they differ by from these.
    pub(super) fn read(&mut self, from: &mut Cursor<'_>, differ: bool) -> Result<(), Wrong> {
        let number = |from: &mut Cursor<'_>, value: &mut u64| {
            *value = if differ { value.wrapping_add(from.signed()? as u64) } else { from.get()? };
            Ok(())
        };
        let list = |from: &mut Cursor<'_>, values: &mut Vec<u64>| {
            let mut i = 0;
            from.list(|from| {
                if i == values.len() {
                    values.push(0);
                }
                i += 1;
                values.get_mut(i - 1).map_or(Ok(()), |value| number(from, value))
            })?;
            values.truncate(i);
            Ok(())
        };
        list(from, &mut self.truncated)?;
        self.known.iter_mut().try_for_each(|value| number(from, value))?;
        list(from, &mut self.numbers)?;
        list(from, &mut self.tables)
    }
}
