//! A perf.data file's header: its events, and what they were recorded of.
//!
//! Layout: `tools/perf/Documentation/perf.data-file-format.txt`: magic, size, size of an attribute, three sections
//! (attributes, data, event types; offset and size each), 256 bits of features; a section for each feature after the
//! data. Nothing is allocated for a count or a length that the file does not have the bytes for.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use byteorder::LittleEndian;
use linux_perf_event_reader::PerfEventAttr;

use super::reads::ReadFormat;

const MAGIC: &[u8; 8] = b"PERFILE2";
const HEADER: usize = 104;
const SECTIONS_AT: usize = 24;
const FEATURES_AT: usize = 72;
const FEATURES: usize = 256;
/// Bytes that are read of a section of many entries: build ids, events, arguments.
const MAX_LIST_BYTES: u64 = 16 << 20;
const MAX_STRING_BYTES: u64 = 4096;
/// Bytes of an attribute: the kernel's `perf_event_attr` has 144 so far, and an offset and a size follow.
const MAX_ATTRIBUTE_BYTES: u64 = 4096;
/// The first version of `perf_event_attr` had 64 bytes (`PERF_ATTR_SIZE_VER0`).
const MIN_ATTRIBUTE_BYTES: u64 = 64;
const PLACE_BYTES: u64 = 16;
const MAX_EVENTS: u64 = 4096;
/// Ids of all events: one for each CPU or thread.
const MAX_IDS: u64 = 1 << 20;
const MAX_WORDS: usize = 1 << 16;

// `HEADER_...` of `tools/perf/util/header.h`, `FEAT_META_INFO` of simpleperf.
const BUILD_ID: usize = 2;
const HOSTNAME: usize = 3;
const VERSION: usize = 5;
const ARCH: usize = 6;
const CMDLINE: usize = 11;
const EVENT_DESC: usize = 12;
const GROUP_DESC: usize = 17;
const SIMPLEPERF_META_INFO: usize = 129;

const DAMAGED: &str = "it is damaged: what it says of itself goes beyond its end";

pub struct RecordedEvent {
    pub attr: PerfEventAttr,
    pub reads: ReadFormat,
    pub name: Option<String>,
    /// The ids by which records name it.
    pub ids: Vec<u64>,
}

pub struct RecordingHeader {
    pub attributes: Vec<RecordedEvent>,
    /// Groups of events: the number of the leader, and of the event behind the last member. The numbers may be wrong.
    pub groups: Vec<(usize, usize)>,
    /// Where the records are: offset and size.
    pub data: (u64, u64),
    pub hostname: String,
    pub version: String,
    pub arch: Option<String>,
    pub command_line: Vec<String>,
    pub build_ids: HashMap<String, Vec<u8>>,
}

pub fn read(file: &File) -> Result<RecordingHeader, &'static str> {
    let length = file.metadata().map_err(|_| "it cannot be read")?.len();
    let sections = Sections { file, length };
    let header = sections.read(0, HEADER as u64).map_err(|_| "it is no perf.data file: too short")?;
    let word = |at: usize| Fields(header.get(at..).unwrap_or_default()).u64().unwrap_or(0);
    if header.starts_with(b"2ELIFREP") {
        return Err("it was recorded on a machine of the other byte order");
    }
    if !header.starts_with(MAGIC) {
        return Err("it is no perf.data file");
    }
    let place = |number: usize| (word(SECTIONS_AT + 16 * number), word(SECTIONS_AT + 16 * number + 8));
    let (attributes_at, data) = (place(0), place(1));
    if !sections.has(attributes_at) || !sections.has(data) {
        return Err("it is damaged or was not finished: a section goes beyond its end");
    }
    let present =
        |feature: usize| header.get(FEATURES_AT + feature / 8).is_some_and(|bits| bits >> (feature % 8) & 1 == 1);
    let mut features = HashMap::new();
    let table = data.0.saturating_add(data.1);
    for (number, feature) in (0..FEATURES).filter(|&feature| present(feature)).enumerate() {
        let entry = sections.read(table.saturating_add(number as u64 * PLACE_BYTES), PLACE_BYTES)?;
        let place = Fields(&entry).place().filter(|&place| sections.has(place)).ok_or(DAMAGED)?;
        features.insert(feature, place);
    }
    let section = |feature: usize, limit: u64| -> Result<Vec<u8>, &'static str> {
        let (offset, size) = features.get(&feature).copied().unwrap_or_default();
        sections.read(offset, size.min(limit))
    };
    let string = |feature: usize| section(feature, MAX_STRING_BYTES).map(|bytes| Fields(&bytes).string());
    let attributes = if present(EVENT_DESC) {
        described(&section(EVENT_DESC, MAX_LIST_BYTES)?)
            .ok_or("it is damaged: the description of its events is wrong")?
    } else {
        let names = simpleperf_names(&section(SIMPLEPERF_META_INFO, MAX_LIST_BYTES)?);
        listed(&sections, attributes_at, word(16), names)?
    };
    let words = section(CMDLINE, MAX_LIST_BYTES)?;
    let mut words = Fields(&words);
    let count = words.u32().map_or(0, |count| MAX_WORDS.min(count as usize));
    Ok(RecordingHeader {
        attributes,
        groups: groups(&section(GROUP_DESC, MAX_LIST_BYTES)?),
        data,
        hostname: string(HOSTNAME)?.unwrap_or_default(),
        version: string(VERSION)?.unwrap_or_default(),
        arch: string(ARCH)?,
        command_line: (0..count).map_while(|_| words.string()).collect(),
        build_ids: build_ids(&section(BUILD_ID, MAX_LIST_BYTES)?),
    })
}

struct Sections<'a> {
    file: &'a File,
    length: u64,
}

impl Sections<'_> {
    fn has(&self, (offset, size): (u64, u64)) -> bool {
        offset.checked_add(size).is_some_and(|end| end <= self.length)
    }

    fn read(&self, offset: u64, size: u64) -> Result<Vec<u8>, &'static str> {
        if !self.has((offset, size)) {
            return Err(DAMAGED);
        }
        let mut bytes = vec![0; usize::try_from(size).map_err(|_| DAMAGED)?];
        self.file.read_exact_at(&mut bytes, offset).map_err(|_| "it cannot be read to its end")?;
        Ok(bytes)
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn place(&mut self) -> Option<(u64, u64)> {
        Some((self.u64()?, self.u64()?))
    }

    /// A `perf_header_string`: a length, and as many bytes, padded with zeros.
    fn string(&mut self) -> Option<String> {
        let length = self.u32()?;
        Some(until_zero(self.take(usize::try_from(length).ok()?)?))
    }

    fn attribute(&mut self, size: u64) -> Option<(PerfEventAttr, ReadFormat)> {
        let bytes = self.take(usize::try_from(size).ok()?)?;
        let (attr, _) = PerfEventAttr::parse::<_, LittleEndian>(bytes).ok()?;
        Some((attr, ReadFormat::of(bytes)))
    }
}

fn until_zero(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// The events of `EVENT_DESC`: number, size of an attribute, then for each attribute, number of ids, name, ids.
fn described(section: &[u8]) -> Option<Vec<RecordedEvent>> {
    let mut fields = Fields(section);
    let (count, each) = (u64::from(fields.u32()?), u64::from(fields.u32()?));
    if count > MAX_EVENTS || !(MIN_ATTRIBUTE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&each) {
        return None;
    }
    let mut attributes = Vec::new();
    for _ in 0..count {
        let (attr, reads) = fields.attribute(each)?;
        let ids = usize::try_from(fields.u32()?).ok()?;
        let name = fields.string();
        let mut ids = Fields(fields.take(ids.checked_mul(8)?)?);
        attributes.push(RecordedEvent { attr, reads, name, ids: std::iter::from_fn(|| ids.u64()).collect() });
    }
    Some(attributes)
}

/// The events of the section of attributes, where no others are described. Each is followed by the place of its ids.
fn listed(
    sections: &Sections<'_>,
    (offset, size): (u64, u64),
    each: u64,
    names: Vec<String>,
) -> Result<Vec<RecordedEvent>, &'static str> {
    if !(MIN_ATTRIBUTE_BYTES + PLACE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&each) {
        return Err("it is damaged: its attributes have an impossible size");
    }
    if size / each > MAX_EVENTS {
        return Err("it is damaged, or has too many events");
    }
    let all = sections.read(offset, size)?;
    let mut fields = Fields(&all);
    let mut names = names.into_iter();
    let mut room = MAX_IDS;
    let mut attributes = Vec::new();
    for _ in 0..size / each {
        let (attr, reads) = fields.attribute(each - PLACE_BYTES).ok_or("it is damaged: its events make no sense")?;
        let (offset, size) = fields.place().filter(|&place| sections.has(place)).ok_or(DAMAGED)?;
        room = room.checked_sub(size / 8).ok_or("it is damaged, or has too many ids of events")?;
        let ids = sections.read(offset, size)?;
        let mut ids = Fields(&ids);
        attributes.push(RecordedEvent {
            attr,
            reads,
            name: names.next(),
            ids: std::iter::from_fn(|| ids.u64()).collect(),
        });
    }
    Ok(attributes)
}

/// The names of events in the notes of simpleperf, which are keys and values, each with a zero behind it.
fn simpleperf_names(section: &[u8]) -> Vec<String> {
    let mut notes = section.split(|&byte| byte == 0);
    while let (Some(key), Some(value)) = (notes.next(), notes.next()) {
        if key == b"event_type_info" {
            let lines = value.split(|&byte| byte == b'\n').take(MAX_EVENTS as usize);
            return lines
                .map(|line| line.split(|&byte| byte == b',').next().unwrap_or_default())
                .map(until_zero)
                .collect();
        }
    }
    Vec::new()
}

/// The groups of `GROUP_DESC`: how many, then for each a name, the number of the leader, and how many events there are.
fn groups(section: &[u8]) -> Vec<(usize, usize)> {
    let mut fields = Fields(section);
    let count = fields.u32().unwrap_or(0);
    let mut group = || {
        fields.string()?;
        let (leader, events) = (fields.u32()? as usize, fields.u32()? as usize);
        Some((leader, leader.saturating_add(events)))
    };
    (0..count).map_while(|_| group()).collect()
}

/// perf's build ids of program files: record header, process, 24 bytes with the build id, path.
fn build_ids(section: &[u8]) -> HashMap<String, Vec<u8>> {
    /// `PERF_RECORD_MISC_CPUMODE_MASK`, `PERF_RECORD_MISC_USER`.
    const MODE: u32 = 7;
    const USER: u32 = 2;
    /// `PERF_RECORD_MISC_BUILD_ID_SIZE`: the byte behind the build id is its length.
    const HAS_LENGTH: u32 = 1 << 15;
    let mut fields = Fields(section);
    let mut found = HashMap::new();
    let mut next = || {
        let _type = fields.u32()?;
        let misc_and_size = fields.u32()?;
        let body = fields.take((misc_and_size >> 16).checked_sub(8)? as usize)?;
        let (id, path) = body.get(4..)?.split_at_checked(24)?;
        Some((misc_and_size & 0xffff, id, path))
    };
    while let Some((misc, id, path)) = next() {
        let length = match (misc & HAS_LENGTH, id.get(20)) {
            (0, _) | (_, None) => id.iter().take(20).rposition(|&byte| byte != 0).map_or(0, |last| (last / 4 + 1) * 4),
            (_, Some(&length)) => usize::from(length).min(20),
        };
        if misc & MODE == USER && path.starts_with(b"/") {
            found.insert(until_zero(path), id.get(..length).unwrap_or_default().to_vec());
        }
    }
    found
}
