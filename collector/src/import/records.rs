//! The records of a perf.data file, in order of time.
//!
//! Each ring is in order, rings are interleaved. perf marks each round of reading (`PERF_RECORD_FINISHED_ROUND`): what
//! was written before the last mark but one comes before everything behind the last. Without marks, records are ordered
//! within [`MAX_PENDING_BYTES`].

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};

use linux_perf_event_reader::{
    Endianness, PerfEventAttr, RawData, RawEventRecord, RecordParseInfo, RecordType, SampleFormat,
};

use super::header::RecordingHeader;
use super::reads::{Counter, ReadFormat};

const MAX_PENDING_BYTES: usize = 256 << 20;
/// What a record costs beside its bytes: a vector that grows has room for twice its entries.
const RECORD_BYTES: usize = 2 * size_of::<Reverse<Pending>>();
/// Bytes of the header of a record: type, `misc`, size.
const HEADER_BYTES: usize = 8;

// Types of records that perf itself writes (`tools/lib/perf/include/perf/event.h`).
const USER_TYPES: u32 = 64;
const FINISHED_ROUND: u32 = 68;
const AUXTRACE: u32 = 71;
const COMPRESSED: u32 = 81;
const COMPRESSED2: u32 = 83;

#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    #[error("a record has an impossible size")]
    Size,
    #[error("a part is compressed")]
    Compressed,
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// In order of time, and of place where that is the same. What has no time comes first.
type RecordOrder = (Option<u64>, u64);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pending {
    key: RecordOrder,
    event: u32,
    kind: u32,
    misc: u16,
    body: Box<[u8]>,
}

pub struct Records {
    reader: BufReader<File>,
    left: u64,
    number: u64,
    /// How records of each event are parsed, without the counters of samples, and what these are.
    infos: Vec<(RecordParseInfo, ReadFormat)>,
    events: HashMap<u64, usize>,
    pending: BinaryHeap<Reverse<Pending>>,
    pending_bytes: usize,
    /// Nothing comes any more that belongs before this.
    settled: RecordOrder,
    last_before: RecordOrder,
    last: RecordOrder,
    failure: Option<RecordsError>,
    current: Vec<u8>,
    counters: Vec<Counter>,
}

pub struct FileRecord<'a> {
    pub event: usize,
    pub counters: &'a [Counter],
    pub raw: RawEventRecord<'a>,
    events: &'a HashMap<u64, usize>,
}

impl FileRecord<'_> {
    pub fn event_of(&self, counter: &Counter) -> Option<usize> {
        self.events.get(&counter.id?).copied()
    }
}

impl Records {
    /// The records of a file with this header, which has events. Fails if it cannot be told which event a record is of,
    /// or the file cannot be read.
    pub fn new(mut file: File, header: &RecordingHeader) -> Result<Records, String> {
        let info = |mut attr: PerfEventAttr| {
            attr.sample_format.remove(SampleFormat::READ);
            RecordParseInfo::new(&attr, Endianness::LittleEndian)
        };
        let infos: Vec<_> = header.attributes.iter().map(|event| (info(event.attr), event.reads)).collect();
        let place = |event: Option<&(RecordParseInfo, ReadFormat)>| event.map(|(info, _)| info.id_parse_info);
        if infos.windows(2).any(|two| place(two.first()) != place(two.last())) {
            return Err("it has several events whose records name them in different places".to_owned());
        }
        let named = header.attributes.iter().enumerate();
        let events = named.flat_map(|(event, attribute)| attribute.ids.iter().map(move |&id| (id, event))).collect();
        let (offset, left) = header.data;
        file.seek(SeekFrom::Start(offset)).map_err(|error| error.to_string())?;
        Ok(Records {
            reader: BufReader::with_capacity(1 << 18, file),
            left,
            number: 0,
            infos,
            events,
            pending: BinaryHeap::new(),
            pending_bytes: 0,
            settled: RecordOrder::default(),
            last_before: RecordOrder::default(),
            last: RecordOrder::default(),
            failure: None,
            current: Vec::new(),
            counters: Vec::new(),
        })
    }

    /// The next record. Fails when all records are out that there are before what cannot be read.
    pub fn next(&mut self) -> Result<Option<FileRecord<'_>>, RecordsError> {
        loop {
            let settled = self.pending.peek().is_some_and(|Reverse(first)| first.key <= self.settled);
            if settled || self.left == 0 || self.pending_bytes > MAX_PENDING_BYTES {
                break;
            }
            if let Err(error) = self.read() {
                (self.left, self.failure) = (0, Some(error));
            }
        }
        let Some(Reverse(record)) = self.pending.pop() else { return self.failure.take().map_or(Ok(None), Err) };
        self.pending_bytes = self.pending_bytes.saturating_sub(record.body.len() + RECORD_BYTES);
        self.current = record.body.into_vec();
        let event = record.event as usize;
        let Some(&(info, reads)) = self.infos.get(event) else { return Ok(None) };
        self.counters.clear();
        if RecordType(record.kind) == RecordType::SAMPLE && reads.cut(&mut self.current, &mut self.counters).is_none() {
            // The parser finds no sense in it.
            self.current.clear();
            self.counters.clear();
        }
        let raw =
            RawEventRecord::new(RecordType(record.kind), record.misc, RawData::from(self.current.as_slice()), info);
        Ok(Some(FileRecord { event, counters: &self.counters, raw, events: &self.events }))
    }

    fn read(&mut self) -> Result<(), RecordsError> {
        let mut header = [0; HEADER_BYTES];
        self.reader.read_exact(&mut header)?;
        let [kind @ .., m0, m1, s0, s1] = header;
        let (kind, misc) = (u32::from_le_bytes(kind), u16::from_le_bytes([m0, m1]));
        let size = u16::from_le_bytes([s0, s1]);
        self.left = self.left.checked_sub(u64::from(size)).ok_or(RecordsError::Size)?;
        let mut body = vec![0; usize::from(size).checked_sub(HEADER_BYTES).ok_or(RecordsError::Size)?];
        self.reader.read_exact(&mut body)?;
        match kind {
            FINISHED_ROUND => (self.settled, self.last_before) = (self.last_before, self.last),
            COMPRESSED | COMPRESSED2 => return Err(RecordsError::Compressed),
            // So many bytes follow that are no part of the record.
            AUXTRACE => {
                let size = body.first_chunk().copied().map(u64::from_le_bytes).ok_or(RecordsError::Size)?;
                self.left = self.left.checked_sub(size).ok_or(RecordsError::Size)?;
                self.reader.seek_relative(i64::try_from(size).map_err(|_| RecordsError::Size)?)?;
            }
            kind if kind < USER_TYPES => self.insert(kind, misc, body),
            _ => {}
        }
        Ok(())
    }

    fn insert(&mut self, kind: u32, misc: u16, body: Vec<u8>) {
        let record = |info| RawEventRecord::new(RecordType(kind), misc, RawData::from(body.as_slice()), info);
        // Of all events ids are in the same place.
        let id = self.infos.first().and_then(|&(info, _)| record(info).id());
        let event = id.and_then(|id| self.events.get(&id).copied()).unwrap_or(0);
        let time = self.infos.get(event).and_then(|&(info, _)| record(info).timestamp());
        let key = (time, self.number);
        self.number += 1;
        self.last = self.last.max(key);
        self.pending_bytes += body.len() + RECORD_BYTES;
        self.pending.push(Reverse(Pending { key, event: event as u32, kind, misc, body: body.into() }));
    }
}
