//! Lost samples of a recording, which several records report.
//!
//! - The kernel writes `PERF_RECORD_LOST` into a ring that was full: how many records, of any event and kind, are
//!   missing.
//! - perf (since 6.2, with kernels since 6.0) asks each event at the end (`PERF_FORMAT_LOST`) and writes
//!   `PERF_RECORD_LOST_SAMPLES`: a header, the number (64 bits), and a trailer that names the event, with time 0. They
//!   are the same samples, for one event, including those lost last.
//! - The kernel writes `PERF_RECORD_LOST_SAMPLES` with a time where hardware dropped samples. There never were records.
//! - Samples dropped by a filter (`perf record --filter`) look like the second, with a mark. They are not lost.

use linux_perf_event_reader::{RawEventRecord, RecordType};

/// Set in `perf_event_header.misc` where a filter has dropped them (`tools/lib/perf/include/perf/event.h`).
const BY_FILTER: u16 = 1 << 15;

#[derive(Debug, Default)]
pub struct Lost {
    by_rings: u64,
    /// Id of the first event, once perf has described one.
    by_events: Option<u64>,
    by_hardware: u64,
}

impl Lost {
    /// Counts the samples of a `PERF_RECORD_LOST`.
    pub fn add_ring(&mut self, count: u64) {
        self.by_rings = self.by_rings.saturating_add(count);
    }

    /// A record that is not read elsewhere, of the first event or another one. False if it makes no sense.
    pub fn other(&mut self, record: &RawEventRecord<'_>, of_first: bool) -> bool {
        if record.record_type != RecordType::LOST_SAMPLES || record.misc & BY_FILTER != 0 {
            return true;
        }
        let trailer = usize::from(record.parse_info.common_data_offset_from_end.unwrap_or(0));
        let body = record.data.as_slice();
        let number = body.len().checked_sub(trailer).and_then(|len| body.get(..len)?.first_chunk().copied());
        let Some(count) = number.map(u64::from_le_bytes) else { return false };
        let count = if of_first { count } else { 0 };
        match record.timestamp() {
            None | Some(0) => self.by_events = Some(self.by_events.unwrap_or(0).saturating_add(count)),
            Some(_) => self.by_hardware = self.by_hardware.saturating_add(count),
        }
        true
    }

    /// Samples of the first event that were lost, as far as is known.
    pub fn samples(&self) -> u64 {
        self.by_events.unwrap_or(self.by_rings).saturating_add(self.by_hardware)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::{RecordingSource, perf_data};

    const LOST: u32 = 2;
    const SAMPLE: u32 = 9;
    const LOST_SAMPLES: u32 = 13;

    fn words(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn record(kind: u32, misc: u16, body: &[u64]) -> Vec<u8> {
        let size = 8 + 8 * body.len() as u64;
        words(&[&[u64::from(kind) | u64::from(misc) << 32 | size << 48], body].concat())
    }

    /// Records other than samples end like this: process and thread, time, event.
    fn with_trailer(kind: u32, misc: u16, body: &[u64], time: u64, event: u64) -> Vec<u8> {
        record(kind, misc, &[body, &[0, time, event]].concat())
    }

    /// Lost samples and malformed records of a recording of two events, 100 and 200, with one sample and these records.
    fn lost(records: &[Vec<u8>]) -> (u64, usize) {
        // IP, TID, TIME, IDENTIFIER.
        const SAMPLE_TYPE: u64 = 1 | 2 | 4 | 1 << 16;
        const SAMPLE_ID_ALL: u64 = 1 << 18;
        let mut attribute = words(&[1 | 136 << 32, 0, 1_000_000, SAMPLE_TYPE, 0, SAMPLE_ID_ALL]);
        attribute.resize(136, 0);
        let mut events = words(&[2 | 136 << 32]);
        for event in [100, 200] {
            events.extend_from_slice(&attribute);
            // One identifier, and a name of 8 bytes.
            events.extend(words(&[1 | 8 << 32, u64::from_le_bytes(*b"clock\0\0\0"), event]));
        }
        let sample = record(SAMPLE, 2, &[100, 0x1000, 7 | 7 << 32, 1000]);
        let data = [&[sample], records].concat().concat();
        // Header, an attribute with the place of its identifiers, data, and the description of the events, feature 12.
        let (attributes, data_at) = (104u64, 104 + 152u64);
        let (data_len, events_len) = (data.len() as u64, events.len() as u64);
        let mut header = words(&[u64::from_le_bytes(*b"PERFILE2"), 104, 152, attributes, 152, data_at, data_len, 0, 0]);
        header.extend(words(&[1 << 12, 0, 0, 0]));
        let place_of_events = words(&[data_at + data_len + 16, events_len]);
        let mut file = tempfile::tempfile().unwrap();
        for part in [&header, &attribute, &words(&[0, 0]), &data, &place_of_events, &events] {
            file.write_all(part).unwrap();
        }
        let profile = perf_data(RecordingSource::File(file), None, &mut |_, _| {}).unwrap();
        assert_eq!(profile.accounting().received, 1);
        let senseless = profile.session().notes.iter().filter(|note| note.contains("made no sense")).count();
        (profile.accounting().lost, senseless)
    }

    #[test]
    fn losses_reported_twice_are_counted_once() {
        let ring = |count| with_trailer(LOST, 0, &[100, count], 1500, 100);
        let at_end = |event, count, misc| with_trailer(LOST_SAMPLES, misc, &[count], 0, event);
        let hardware = |count| with_trailer(LOST_SAMPLES, 0, &[count], 1600, 100);
        assert_eq!(lost(&[]), (0, 0));
        assert_eq!(lost(&[ring(5), ring(6)]), (11, 0));
        // A recording of an event on two CPUs, and another event: 12 of the first are lost, 4 in rings that never had room.
        assert_eq!(lost(&[ring(5), ring(6), at_end(100, 7, 0), at_end(100, 5, 0), at_end(200, 3, 0)]), (12, 0));
        assert_eq!(lost(&[ring(5), at_end(200, 5, 0)]), (0, 0));
        assert_eq!(lost(&[at_end(100, 4, 0)]), (4, 0));
        // What was to be filtered is not lost, and says nothing of what is.
        assert_eq!(lost(&[ring(5), at_end(100, 1000, 1 << 15)]), (5, 0));
        assert_eq!(lost(&[ring(5), hardware(30), at_end(100, 7, 0)]), (37, 0));
        assert_eq!(lost(&[at_end(100, u64::MAX, 0), at_end(100, 2, 0), hardware(3)]), (u64::MAX, 0));
        assert_eq!(lost(&[record(LOST_SAMPLES, 0, &[]), ring(2)]), (2, 1));
        assert_eq!(lost(&[with_trailer(LOST_SAMPLES, 0, &[], 0, 100), ring(2)]), (2, 1));
    }
}
