//! Recordings that are no plain files: pipes (`perf record -o -`) and compressed ones (`-z`).
//!
//! Either becomes a nameless temporary file first. In a pipe, a 16-byte header is followed by records that also carry
//! what a file's header has (`tools/perf/Documentation/perf.data-file-format.txt`, "Pipe-mode data").

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write, copy};

use super::compressed::{Expander, HEADER, head, io_error};
use super::error::ImportError;

const MAGIC: &[u8; 8] = b"PERFILE2";
const PIPE_HEADER: u64 = 16;
const FILE_HEADER: usize = 104;
const ATTRIBUTES_AT: usize = 24;
const DATA_AT: usize = 40;
const FEATURES_AT: usize = 72;

const ATTRIBUTE: u32 = 64;
const TRACING_DATA: u32 = 66;
const BUILD_ID: u32 = 67;
const AUXTRACE: u32 = 71;
const FEATURE: u32 = 80;

/// Features of a file: the build ids, that there are compressed records, and how many there can be.
const BUILD_ID_FEATURE: u64 = 2;
const COMPRESSED_FEATURE: usize = 27;
const MAX_FEATURES: u64 = 256;
/// Attributes of one recording, and bytes of build ids.
const MAX_ATTRIBUTES: usize = 4096;
const MAX_BUILD_ID_BYTES: usize = 64 << 20;

/// A recording as a plain file, and whether it ends within a record.
pub struct PlainRecording {
    pub file: File,
    pub is_cut: bool,
}

pub fn plain(mut file: File) -> Result<PlainRecording, ImportError> {
    let mut start = Vec::with_capacity(FILE_HEADER);
    (&file).take(FILE_HEADER as u64).read_to_end(&mut start).map_err(|error| io_error(&error))?;
    if start.first_chunk() == Some(MAGIC) && word(&start, 8) == PIPE_HEADER {
        let stream = start.get(PIPE_HEADER as usize..).unwrap_or_default().chain(file);
        return from_pipe(&mut BufReader::with_capacity(1 << 18, stream));
    }
    if start.len() == FILE_HEADER && start.first_chunk() == Some(MAGIC) && has_feature(&start, COMPRESSED_FEATURE) {
        return from_compressed(&mut file, start);
    }
    file.rewind().map_err(|error| io_error(&error))?;
    Ok(PlainRecording { file, is_cut: false })
}

pub fn from_stream(stream: &mut dyn Read) -> Result<PlainRecording, ImportError> {
    let mut start = [0; PIPE_HEADER as usize];
    stream.read_exact(&mut start).map_err(|error| io_error(&error))?;
    if start.first_chunk() != Some(MAGIC) || word(&start, 8) != PIPE_HEADER {
        let why = "it is no recording that `perf record -o -` writes to a pipe: import the file by its name";
        return Err(ImportError::Unsupported(why.to_owned()));
    }
    from_pipe(&mut BufReader::with_capacity(1 << 18, stream))
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u64::from_le_bytes(*word))
}

fn has_feature(header: &[u8], feature: usize) -> bool {
    header.get(FEATURES_AT + feature / 8).is_some_and(|byte| byte >> (feature % 8) & 1 == 1)
}

fn damaged(what: &str) -> ImportError {
    ImportError::Damaged(format!("it is damaged: {what}"))
}

/// A plain file that is being written: data first, because it is not known before how much comes.
struct Writer {
    out: BufWriter<File>,
    len: u64,
}

impl Writer {
    fn new() -> Result<Writer, ImportError> {
        let file = tempfile::tempfile().map_err(|error| io_error(&error))?;
        Ok(Writer { out: BufWriter::with_capacity(1 << 18, file), len: 0 })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ImportError> {
        self.out.write_all(bytes).map_err(|error| io_error(&error))?;
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn finish(self, header: &[u8]) -> Result<File, ImportError> {
        let mut file = self.out.into_inner().map_err(|error| io_error(error.error()))?;
        let written = file.rewind().and_then(|()| file.write_all(header)).and_then(|()| file.rewind());
        written.map(|()| file).map_err(|error| io_error(&error))
    }
}

fn next(input: &mut impl Read, record: &mut Vec<u8>, is_cut: &mut bool) -> Result<bool, ImportError> {
    record.clear();
    Read::by_ref(input).take(HEADER as u64).read_to_end(record).map_err(|error| io_error(&error))?;
    let Some((_, size)) = head(record) else {
        *is_cut |= !record.is_empty();
        return Ok(false);
    };
    if size < HEADER {
        return Err(damaged("a record has an impossible size"));
    }
    Read::by_ref(input).take((size - HEADER) as u64).read_to_end(record).map_err(|error| io_error(&error))?;
    *is_cut |= record.len() < size;
    Ok(record.len() == size)
}

/// Passes what follows a record and is none itself.
fn pass(input: &mut impl Read, bytes: u64, is_cut: &mut bool) -> Result<(), ImportError> {
    let passed = copy(&mut Read::by_ref(input).take(bytes), &mut std::io::sink()).map_err(|error| io_error(&error))?;
    *is_cut |= passed < bytes;
    Ok(())
}

fn from_pipe(input: &mut impl Read) -> Result<PlainRecording, ImportError> {
    let mut writer = Writer::new()?;
    writer.write(&[0; FILE_HEADER])?;
    let mut expander = Expander::default();
    let mut attributes: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let mut features: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let (mut record, mut is_cut) = (Vec::new(), false);
    while next(input, &mut record, &mut is_cut)? {
        let body = record.get(HEADER..).unwrap_or_default();
        match head(&record).map(|(kind, _)| kind) {
            Some(ATTRIBUTE) => {
                let size = (word(body, 0) >> 32) as usize;
                let (attribute, ids) = body.split_at_checked(size).ok_or_else(|| damaged("an event is cut short"))?;
                if attributes.len() >= MAX_ATTRIBUTES {
                    return Err(damaged("it has too many events"));
                }
                attributes.push((attribute.to_vec(), ids.to_vec()));
            }
            Some(FEATURE) => {
                let number = word(body, 0);
                if number < MAX_FEATURES && number != COMPRESSED_FEATURE as u64 {
                    features.insert(number, body.get(8..).unwrap_or_default().to_vec());
                }
            }
            Some(BUILD_ID) => {
                let ids = features.entry(BUILD_ID_FEATURE).or_default();
                if ids.len() < MAX_BUILD_ID_BYTES {
                    ids.extend_from_slice(&record);
                }
            }
            Some(TRACING_DATA) => {
                pass(input, (word(body, 0) & u64::from(u32::MAX)).next_multiple_of(8), &mut is_cut)?;
            }
            Some(AUXTRACE) => pass(input, word(body, 0), &mut is_cut)?,
            _ => expander.take(&record, &mut |record| writer.write(record))?,
        }
    }
    let data = (FILE_HEADER as u64, writer.len - FILE_HEADER as u64);
    // Behind the data is the table of features, then they themselves, and the ids of the events, and the events.
    let mut at = writer.len + 16 * features.len() as u64;
    for feature in features.values() {
        writer.write(&at.to_le_bytes())?;
        writer.write(&(feature.len() as u64).to_le_bytes())?;
        at += feature.len() as u64;
    }
    features.values().try_for_each(|feature| writer.write(feature))?;
    let mut places = Vec::new();
    for (_, ids) in &attributes {
        places.push((writer.len, ids.len() as u64));
        writer.write(ids)?;
    }
    let each = attributes.iter().map(|(attribute, _)| attribute.len()).max().unwrap_or(0);
    let events = (writer.len, (attributes.len() * (each + 16)) as u64);
    for ((mut attribute, _), (offset, size)) in attributes.into_iter().zip(places) {
        attribute.resize(each, 0);
        writer.write(&attribute)?;
        writer.write(&offset.to_le_bytes())?;
        writer.write(&size.to_le_bytes())?;
    }
    let mut bits = [0u8; 32];
    for &number in features.keys() {
        if let Some(byte) = bits.get_mut(number as usize / 8) {
            *byte |= 1 << (number % 8);
        }
    }
    let numbers = [FILE_HEADER as u64, each as u64 + 16, events.0, events.1, data.0, data.1, 0, 0];
    let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let file = writer.finish(&[MAGIC.as_slice(), &numbers, &bits].concat())?;
    Ok(PlainRecording { file, is_cut })
}

/// The same file with its records as they were before they were compressed. What follows the data is where its new end is.
fn from_compressed(file: &mut File, mut header: Vec<u8>) -> Result<PlainRecording, ImportError> {
    let io = |error: std::io::Error| io_error(&error);
    let len = file.metadata().map_err(io)?.len();
    let (start, size) = (word(&header, DATA_AT), word(&header, DATA_AT + 8));
    let end = start.checked_add(size).filter(|&end| start >= FILE_HEADER as u64 && end <= len);
    let end = end.ok_or_else(|| damaged("a section goes beyond its end"))?;
    if word(&header, ATTRIBUTES_AT) > start {
        return Err(ImportError::Unsupported("it is compressed in a way that is not read".to_owned()));
    }
    let mut writer = Writer::new()?;
    file.rewind().map_err(io)?;
    writer.len += copy(&mut Read::by_ref(file).take(start), &mut writer.out).map_err(io)?;
    let (mut expander, mut record, mut is_cut) = (Expander::default(), Vec::new(), false);
    let mut data = BufReader::with_capacity(1 << 18, Read::by_ref(file).take(size));
    while next(&mut data, &mut record, &mut is_cut)? {
        expander.take(&record, &mut |record| writer.write(record))?;
        if head(&record).is_some_and(|(kind, _)| kind == AUXTRACE) {
            let trace = word(&record, HEADER);
            let copied = copy(&mut Read::by_ref(&mut data).take(trace), &mut writer.out).map_err(io)?;
            writer.len += copied;
        }
    }
    let data_bytes = writer.len - start;
    // The table of features says where each of them is; they have all moved by as much.
    let moved = writer.len.wrapping_sub(end);
    file.seek(SeekFrom::Start(end)).map_err(io)?;
    let features: u32 = header.iter().skip(FEATURES_AT).map(|byte| byte.count_ones()).sum();
    for _ in 0..features {
        let mut place = [0; 16];
        file.read_exact(&mut place).map_err(|_| damaged("too short"))?;
        let offset = word(&place, 0).wrapping_add(moved);
        writer.write(&offset.to_le_bytes())?;
        writer.write(place.get(8..).unwrap_or_default())?;
    }
    copy(file, &mut writer.out).map_err(io)?;
    if let Some(size) = header.get_mut(DATA_AT + 8..DATA_AT + 16) {
        size.copy_from_slice(&data_bytes.to_le_bytes());
    }
    let file = writer.finish(&header)?;
    Ok(PlainRecording { file, is_cut })
}
