//! The header of a perf.data file, before anything of it is believed.
//!
//! The layout is that of `tools/perf/Documentation/perf.data-file-format.txt`: magic, size, size of an attribute, three
//! sections (attributes, data, event types; offset and size each), 256 bits of features; and after the data a section for
//! each feature that there is.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

const MAGIC: &[u8; 8] = b"PERFILE2";
const HEADER: usize = 104;
const SECTIONS_AT: usize = 24;
const FEATURES_AT: usize = 72;
/// Bytes of a feature section: build ids and topology of the largest machines are some hundred kilobytes.
const MAX_FEATURE_BYTES: u64 = 64 << 20;
/// Bytes of an attribute: the kernel's `perf_event_attr` has 136 so far, and an offset and a size follow.
const MAX_ATTRIBUTE_BYTES: u64 = 4096;
/// The first version of `perf_event_attr` had 64 bytes (`PERF_ATTR_SIZE_VER0`).
const MIN_ATTRIBUTE_BYTES: u64 = 64;
/// Events of one recording.
const MAX_EVENTS: u64 = 4096;
/// Which feature describes the events (`HEADER_EVENT_DESC`).
const EVENT_DESC: usize = 12;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Checks that all sections lie within the file, so that nobody reserves memory for what is not there.
///
/// # Errors
/// What is wrong.
pub fn check(file: &mut File) -> Result<(), &'static str> {
    const SHORT: &str = "it is no perf.data file: too short";
    let len = file.metadata().map_err(|_| "it cannot be read")?.len();
    let mut header = [0; HEADER];
    file.rewind().map_err(|_| "it cannot be read")?;
    file.read_exact(&mut header).map_err(|_| SHORT)?;
    if &header[..8] == b"2ELIFREP" {
        return Err("it was recorded on a machine of the other byte order");
    }
    if &header[..8] != MAGIC {
        return Err("it is no perf.data file (one written to a pipe has to be read by `perf inject -o FILE` first)");
    }
    if !(MIN_ATTRIBUTE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&word(&header, 16)) {
        return Err("it is damaged: its attributes have an impossible size");
    }
    let within = |offset: u64, size: u64| offset.checked_add(size).is_some_and(|end| end <= len);
    for section in 0..3 {
        let at = SECTIONS_AT + 16 * section;
        if !within(word(&header, at), word(&header, at + 8)) {
            return Err("it is damaged or was not finished: a section goes beyond its end");
        }
    }
    // Each attribute is followed by the place of its ids.
    let (attributes, size) = (word(&header, SECTIONS_AT), word(&header, SECTIONS_AT + 8));
    let each = word(&header, 16);
    let count = size / each;
    if count > MAX_EVENTS {
        return Err("it is damaged, or has too many events");
    }
    for number in 0..count {
        let [offset, size] = section(file, attributes + number * each + each - 16)?;
        if !within(offset, size) {
            return Err("it is damaged: the ids of an event go beyond its end");
        }
    }
    let features: u32 = header[FEATURES_AT..].iter().map(|byte| byte.count_ones()).sum();
    let table = word(&header, SECTIONS_AT + 16) + word(&header, SECTIONS_AT + 24);
    let present = |feature: usize| header[FEATURES_AT + feature / 8] >> (feature % 8) & 1 == 1;
    let described = (0..EVENT_DESC).filter(|&feature| present(feature)).count() as u64;
    for number in 0..u64::from(features) {
        let [offset, size] = section(file, table + number * 16)?;
        if !within(offset, size) || size > MAX_FEATURE_BYTES {
            return Err("it is damaged: what it says of itself goes beyond its end");
        }
        if number == described && present(EVENT_DESC) {
            check_events(file, offset, size)?;
        }
    }
    Ok(())
}

/// The descriptions of events: their number and the size of an attribute, then for each the attribute, the number of its ids,
/// its name with a length before, and the ids.
fn check_events(file: &mut File, offset: u64, size: u64) -> Result<(), &'static str> {
    const DAMAGED: &str = "it is damaged: its events are not described as they should be";
    let mut at = offset;
    let mut take = |file: &mut File, bytes: u64| -> Result<[u8; 8], &'static str> {
        let end = at.checked_add(bytes).filter(|end| *end <= offset.saturating_add(size)).ok_or(DAMAGED)?;
        let mut start = [0; 8];
        file.seek(SeekFrom::Start(at)).map_err(|_| DAMAGED)?;
        file.read_exact(&mut start[..bytes.min(8) as usize]).map_err(|_| DAMAGED)?;
        at = end;
        Ok(start)
    };
    let number = |bytes: [u8; 8]| u64::from(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let count = number(take(file, 4)?);
    let each = number(take(file, 4)?);
    if count > MAX_EVENTS || !(MIN_ATTRIBUTE_BYTES..=MAX_ATTRIBUTE_BYTES).contains(&each) {
        return Err(DAMAGED);
    }
    for _ in 0..count {
        take(file, each)?;
        let ids = number(take(file, 4)?);
        let name = number(take(file, 4)?);
        take(file, name)?;
        take(file, ids * 8)?;
    }
    Ok(())
}

fn section(file: &mut File, at: u64) -> Result<[u64; 2], &'static str> {
    let mut bytes = [0; 16];
    file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut bytes)).map_err(|_| "it is damaged: too short")?;
    Ok([word(&bytes, 0), word(&bytes, 8)])
}
