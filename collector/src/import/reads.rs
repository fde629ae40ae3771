//! Counters that samples carry (`PERF_SAMPLE_READ`): what `perf record -e '{leader,member}:S'` writes.
//!
//! The leader samples, and each sample has the counters of all members. A member's weight is its counter's gain since
//! the group's last sample, as for perf (`deliver_sample_group` of `tools/perf/util/session.c`).
//!
//! The record parser mistakes a group's format and does not know `PERF_FORMAT_LOST`, so counters are cut out before.

use std::collections::HashMap;

/// Bits of `perf_event_attr.sample_type`: those whose fields come before the counters, 8 bytes each, and the counters'.
const BEFORE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 9 | 1 << 16;
const READ: u64 = 1 << 4;

// Bits of `perf_event_attr.read_format`.
const TOTAL_TIME_ENABLED: u64 = 1;
const TOTAL_TIME_RUNNING: u64 = 1 << 1;
const ID: u64 = 1 << 2;
const GROUP: u64 = 1 << 3;
const LOST: u64 = 1 << 4;
const KNOWN: u64 = TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING | ID | GROUP | LOST;

/// Counters remembered at a time: one for each event and CPU, or event and thread.
const MAX_COUNTERS: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter {
    pub id: Option<u64>,
    /// Its value since the event was opened.
    pub value: u64,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ReadFormat {
    sample_type: u64,
    read_format: u64,
}

impl ReadFormat {
    pub fn of(attribute: &[u8]) -> ReadFormat {
        let word =
            |at: usize| attribute.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |it| u64::from_le_bytes(*it));
        ReadFormat { sample_type: word(24), read_format: word(32) }
    }

    pub fn has_counters(self) -> bool {
        self.sample_type & READ != 0
    }

    /// Takes the counters out of the body of a sample. `None` if they make no sense; then the rest makes none either.
    pub fn cut(self, body: &mut Vec<u8>, counters: &mut Vec<Counter>) -> Option<()> {
        counters.clear();
        if !self.has_counters() {
            return Some(());
        }
        if self.read_format & !KNOWN != 0 {
            return None;
        }
        let start = 8 * (self.sample_type & BEFORE).count_ones() as usize;
        let has = |bit: u64| self.read_format & bit != 0;
        let words = body.get(start..)?.as_chunks::<8>().0;
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        let times = usize::from(has(TOTAL_TIME_ENABLED)) + usize::from(has(TOTAL_TIME_RUNNING));
        let each = 1 + usize::from(has(ID)) + usize::from(has(LOST));
        let all = if has(GROUP) {
            let count = usize::try_from(words.next()?).ok()?;
            // Each takes a word or more.
            if count > words.len() {
                return None;
            }
            (0..times).try_for_each(|_| words.next().map(drop))?;
            for _ in 0..count {
                let value = words.next()?;
                let id = if has(ID) { Some(words.next()?) } else { None };
                if has(LOST) {
                    words.next()?;
                }
                counters.push(Counter { id, value });
            }
            1 + times + count * each
        } else {
            let value = words.next()?;
            (0..times).try_for_each(|_| words.next().map(drop))?;
            let id = if has(ID) { Some(words.next()?) } else { None };
            if has(LOST) {
                words.next()?;
            }
            counters.push(Counter { id, value });
            times + each
        };
        body.drain(start..start + 8 * all);
        Some(())
    }
}

#[derive(Debug, Default)]
pub struct Counters {
    values: HashMap<(u64, i32), u64>,
    pub shed: u64,
}

impl Counters {
    /// A counter's gain. Threads that inherit the event have counters of their own by the same id; else `thread` is 0.
    pub fn gain(&mut self, id: u64, thread: i32, value: u64) -> u64 {
        let key = (id, thread);
        if self.values.len() >= MAX_COUNTERS && !self.values.contains_key(&key) {
            self.shed += 1;
            return 0;
        }
        let before = self.values.insert(key, value).unwrap_or(0);
        value.saturating_sub(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// IP, TID, TIME, and counters behind them, then a call chain.
    const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | READ | 1 << 5;

    fn cut(read_format: u64, read: &[u64]) -> Option<Vec<(Option<u64>, u64)>> {
        let (before, behind) = ([0x1000, 7 | 7 << 32, 1_000], [1, 0x1000]);
        let format = ReadFormat { sample_type: SAMPLE_TYPE, read_format };
        let mut body = bytes(&[&before[..], read, &behind].concat());
        let mut counters = vec![Counter { id: None, value: 99 }];
        format.cut(&mut body, &mut counters)?;
        assert_eq!(body, bytes(&[&before[..], &behind].concat()), "{read_format} {read:?}");
        Some(counters.iter().map(|counter| (counter.id, counter.value)).collect())
    }

    #[test]
    fn every_format_leaves_the_rest_of_the_sample() {
        for format in 0..=KNOWN {
            let has = |bit: u64| format & bit != 0;
            let id = |id: u64| has(ID).then_some(id);
            let counter = |value: u64, id: u64| {
                [Some(value), has(ID).then_some(id), has(LOST).then_some(5)].into_iter().flatten().collect::<Vec<_>>()
            };
            let times = [has(TOTAL_TIME_ENABLED), has(TOTAL_TIME_RUNNING)].into_iter().filter(|&has| has).map(|_| 777);
            let times: Vec<u64> = times.collect();
            if has(GROUP) {
                let read = [vec![2], times, counter(10, 100), counter(20, 200)].concat();
                assert_eq!(cut(format, &read), Some(vec![(id(100), 10), (id(200), 20)]), "{format}");
            } else {
                let [value, rest @ ..] = &counter(10, 100)[..] else { panic!() };
                let read = [&[*value][..], &times, rest].concat();
                assert_eq!(cut(format, &read), Some(vec![(id(100), 10)]), "{format}");
            }
        }
    }

    #[test]
    fn counters_that_are_not_there_make_no_sense() {
        assert_eq!(cut(GROUP, &[u64::MAX]), None);
        assert_eq!(cut(GROUP | ID, &[5, 1, 2, 3]), None);
        assert_eq!(cut(1 << 5, &[1]), None);
        assert_eq!(ReadFormat::of(&[0; 8]).cut(&mut Vec::new(), &mut Vec::new()), Some(()));
        let format = ReadFormat { sample_type: READ, read_format: ID };
        assert_eq!(format.cut(&mut vec![0; 15], &mut Vec::new()), None);
    }

    #[test]
    fn a_counter_gains_since_its_last_sample() {
        let mut counters = Counters::default();
        assert_eq!([10, 10, 25].map(|value| counters.gain(1, 0, value)), [10, 0, 15]);
        assert_eq!([counters.gain(2, 0, 7), counters.gain(1, 5, 30), counters.gain(1, 0, 20)], [7, 30, 0]);
    }
}
