//! Reading profiles: every length checked, nothing allocated on the word of a length.

use std::collections::VecDeque;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use super::body;
use super::charges::{ChargeLists, ChargePlace, charges};
use super::crash::{MAX_CRASH_BYTES, crash, earlier};
use super::format::{
    HEADER_BYTES, MAGIC, MAX_INTERVALS, TYPE_CONTAINER_NAMES, TYPE_CRASH, TYPE_EARLIER_STACK, TYPE_END,
    TYPE_MEMBERSHIP, TYPE_OPTIONAL, TYPE_SESSION, TYPE_UPDATE, VERSION, checksum, flag,
};
use super::membership::{container_names, memberships};
use super::records::{self, AccountingNumbers};
use super::split::record_charges;
use super::wire::{Cursor, MAX_VARINT_BYTES, Wrong};
use crate::accounting::Accounting;
use crate::crash::{Crash, MAX_CRASHES, MAX_CRASHES_BYTES};
use crate::error::DecodeError;
use crate::ids::{ContextId, CostCentreId, ImageId, LineId, ProcessId, RouteId, ThreadId};
use crate::limits::{MAX_FILES, MAX_RECORD_BYTES, MAX_STRING_BYTES, ProfileLimits};
use crate::model::{CostCentre, Image, Line, Membership, Metric, Process, SessionInfo, Thread, Unit};
use crate::profile::Profile;
use crate::routes::NewRoute;
use crate::update::{ChargeDelta, DefinitionCounts, NewContext, Update};

/// One record after the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// An update.
    Update(Box<Update>),
    /// The end of a finished session, with its final accounting.
    End(Box<Accounting>),
}

/// What the records so far have brought.
#[derive(Debug, Default)]
struct DecodedTables {
    files: Vec<Arc<str>>,
    /// What was charged in this generation of contexts.
    places: Vec<ChargePlace>,
    accounting: AccountingNumbers,
    /// Functions that have flags or fields that this version does not know.
    strange_functions: u64,
    /// Records of types that it does not know.
    strange_records: u64,
}

impl DecodedTables {
    fn file(&self, from: &mut Cursor<'_>) -> Result<Arc<str>, Wrong> {
        let i = from.get_u32()?;
        self.files.get(i as usize).cloned().ok_or("unknown file name")
    }
}

/// Reads a session record by record, from a file or a socket.
#[derive(Debug)]
pub struct Decoder<R> {
    input: CountingReader<BufReader<R>>,
    session: SessionInfo,
    known: DecodedTables,
    version: u32,
    records: u64,
    bytes: u64,
    ended: bool,
    payload: Vec<u8>,
    /// Of the update that comes next.
    crashes: Vec<Crash>,
    memberships: Vec<(u32, Arc<Membership>)>,
    intervals: VecDeque<Update>,
    /// Records and bytes before them.
    before_intervals: (u64, u64),
}

impl<R: Read> Decoder<R> {
    /// Reads the header and the session record.
    ///
    /// # Errors
    /// If reading fails, or the input is empty, no profile, newer, cut off or damaged.
    pub fn new(input: R) -> Result<Self, DecodeError> {
        let mut decoder = Self {
            input: CountingReader { input: BufReader::new(input), read: 0 },
            session: SessionInfo::default(),
            known: DecodedTables::default(),
            version: VERSION,
            records: 0,
            bytes: 0,
            ended: false,
            payload: Vec::new(),
            crashes: Vec::new(),
            memberships: Vec::new(),
            intervals: VecDeque::new(),
            before_intervals: (0, 0),
        };
        let header = decoder.read_header()?;
        let kind = match decoder.read_record(&header) {
            Ok(Some(kind)) => kind,
            Ok(None) | Err(DecodeError::CutOff { .. }) => return Err(DecodeError::NoSession),
            Err(other) => return Err(other),
        };
        if kind != TYPE_SESSION {
            return Err(DecodeError::Malformed { record: 0, what: "the first record is not the session" });
        }
        decoder.session = decoder.parse_payload(|from, _| records::session(from))?;
        decoder.accept();
        Ok(decoder)
    }

    /// The session.
    #[must_use]
    pub const fn session(&self) -> &SessionInfo {
        &self.session
    }

    /// Whether the end record was read: the session was finished in good order.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.ended
    }

    /// What was skipped so far because this version does not know what it means, a line for each kind.
    #[must_use]
    pub fn skipped(&self) -> Vec<String> {
        let unknown = |metric: &&Metric| metric.unit == Unit::Unknown;
        let mut lines: Vec<String> = self
            .session
            .metrics
            .iter()
            .filter(unknown)
            .map(|metric| format!("{}: unknown unit, shown as plain numbers", metric.name))
            .collect();
        for (count, what) in [
            (self.known.strange_functions, "functions have properties"),
            (self.known.strange_records, "records are of a kind"),
        ] {
            if count > 0 {
                lines.push(format!("{count} {what} that this version does not know: skipped"));
            }
        }
        lines
    }

    /// Number of records of which all was given, the session record among them.
    #[must_use]
    pub fn whole_records(&self) -> u64 {
        if self.intervals.is_empty() { self.records } else { self.before_intervals.0 }
    }

    /// Bytes of the header and of these records.
    #[must_use]
    pub fn bytes_used(&self) -> u64 {
        if self.intervals.is_empty() { self.bytes } else { self.before_intervals.1 }
    }

    /// The next update or the end; `None` where the stream ends between two records.
    ///
    /// # Errors
    /// [`DecodeError::CutOff`], [`DecodeError::Checksum`], [`DecodeError::Malformed`] where the readable part ends.
    pub fn next_record(&mut self) -> Result<Option<Decoded>, DecodeError> {
        if let Some(update) = self.intervals.pop_front() {
            return Ok(Some(Decoded::Update(Box::new(update))));
        }
        self.before_intervals = (self.records, self.bytes);
        loop {
            let Some(kind) = self.read_record(&[])? else {
                // A crash, or what processes belong to, without the update that follows.
                let cut = !self.crashes.is_empty() || !self.memberships.is_empty();
                return if cut { Err(DecodeError::CutOff { record: self.records }) } else { Ok(None) };
            };
            if self.ended {
                return Err(DecodeError::Malformed { record: self.records, what: "it comes after the end" });
            }
            let decoded = match kind {
                TYPE_UPDATE => {
                    let metrics = self.session.metrics.len();
                    let version = self.version;
                    let body = self.unpack()?;
                    let (mut first, others) =
                        self.parse(&body, |from, known| updates(from, known, version, metrics))?;
                    self.intervals = others;
                    for (position, membership) in std::mem::take(&mut self.memberships) {
                        if let Some(process) = first.processes.get_mut(position as usize) {
                            process.membership = Some(membership);
                        }
                    }
                    let update = Update { crashes: std::mem::take(&mut self.crashes), ..first };
                    Some(Decoded::Update(Box::new(update)))
                }
                TYPE_END => {
                    let mut numbers = AccountingNumbers::default();
                    self.parse_payload(|from, _| numbers.read(from, false))?;
                    self.ended = true;
                    Some(Decoded::End(Box::new(numbers.accounting())))
                }
                TYPE_CRASH => {
                    let taken: usize = self.crashes.iter().map(Crash::approximate_bytes).sum();
                    if self.crashes.len() >= MAX_CRASHES
                        || taken > MAX_CRASHES_BYTES
                        || self.payload.len() > MAX_CRASH_BYTES
                    {
                        return Err(DecodeError::Malformed {
                            record: self.records,
                            what: "too many or too long crashes",
                        });
                    }
                    let crash = self.parse_payload(|from, _| crash(from))?;
                    self.crashes.push(crash);
                    None
                }
                TYPE_EARLIER_STACK => {
                    let Some(frames) = self.crashes.last().map(|crash| crash.frames.len()) else {
                        return Err(DecodeError::Malformed {
                            record: self.records,
                            what: "an earlier stack of no crash",
                        });
                    };
                    let earlier = self.parse_payload(|from, _| earlier(from, frames))?;
                    if let Some(crash) = self.crashes.last_mut() {
                        crash.earlier = Some(earlier);
                    }
                    None
                }
                TYPE_MEMBERSHIP => {
                    self.memberships = self.parse_payload(|from, _| memberships(from))?;
                    None
                }
                TYPE_CONTAINER_NAMES => {
                    let mut members = std::mem::take(&mut self.memberships);
                    self.parse_payload(|from, _| container_names(from, &mut members))?;
                    self.memberships = members;
                    None
                }
                kind if kind >= TYPE_OPTIONAL => {
                    self.known.strange_records += 1;
                    None
                }
                _ => return Err(DecodeError::Malformed { record: self.records, what: "unknown type" }),
            };
            self.accept();
            if decoded.is_some() {
                return Ok(decoded);
            }
        }
    }

    fn accept(&mut self) {
        self.records += 1;
        if self.payload.capacity() > KEEP_BUFFER_BYTES {
            self.payload = Vec::new();
        }
    }

    fn unpack(&mut self) -> Result<Vec<u8>, DecodeError> {
        match self.version {
            1 | 2 => Ok(std::mem::take(&mut self.payload)),
            _ => body::unpack(&self.payload).map_err(|what| DecodeError::Malformed { record: self.records, what }),
        }
    }

    fn parse_payload<T>(
        &mut self,
        parse: impl FnOnce(&mut Cursor<'_>, &mut DecodedTables) -> Result<T, Wrong>,
    ) -> Result<T, DecodeError> {
        let payload = std::mem::take(&mut self.payload);
        let parsed = self.parse(&payload, parse);
        self.payload = payload;
        parsed
    }

    /// Parses the whole of some bytes of this record.
    fn parse<T>(
        &mut self,
        bytes: &[u8],
        parse: impl FnOnce(&mut Cursor<'_>, &mut DecodedTables) -> Result<T, Wrong>,
    ) -> Result<T, DecodeError> {
        let mut cursor = Cursor::new(bytes);
        let parsed = match parse(&mut cursor, &mut self.known) {
            Ok(parsed) if cursor.is_at_end() => Ok(parsed),
            Ok(_) => Err("bytes left over"),
            Err(what) => Err(what),
        };
        parsed.map_err(|what| DecodeError::Malformed { record: self.records, what })
    }

    fn read_header(&mut self) -> Result<[u8; HEADER_BYTES], DecodeError> {
        let mut header = [0; HEADER_BYTES];
        let read = read_full(&mut self.input, &mut header)?;
        let (magic, version) = header.split_at(MAGIC.len());
        let here = read.min(MAGIC.len());
        if read == 0 {
            return Err(DecodeError::Empty);
        }
        if magic.get(..here) != MAGIC.get(..here) {
            return Err(DecodeError::NotAProfile);
        }
        if read < HEADER_BYTES {
            return Err(DecodeError::NoSession);
        }
        let found = version.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
        match found {
            0 => Err(DecodeError::NotAProfile),
            1..=VERSION => {
                self.version = found;
                self.bytes += HEADER_BYTES as u64;
                Ok(header)
            }
            _ => Err(DecodeError::NewerVersion { found, supported: VERSION }),
        }
    }

    /// Reads a record into `payload` and checks its sum. `None` at the end of the stream.
    fn read_record(&mut self, header: &[u8]) -> Result<Option<u8>, DecodeError> {
        let record = self.records;
        let mut kind = [0];
        if read_full(&mut self.input, &mut kind)? == 0 {
            return Ok(None);
        }
        let [kind] = kind;
        let mut length_bytes = Vec::new();
        loop {
            let mut byte = [0];
            if read_full(&mut self.input, &mut byte)? == 0 {
                return Err(DecodeError::CutOff { record });
            }
            length_bytes.extend(byte);
            if byte[0] & 0x80 == 0 {
                break;
            }
            if length_bytes.len() >= MAX_VARINT_BYTES {
                return Err(DecodeError::Malformed { record, what: "length too long" });
            }
        }
        let malformed = |what| DecodeError::Malformed { record, what };
        let length = Cursor::new(&length_bytes).get().map_err(malformed)?;
        if length > MAX_RECORD_BYTES as u64 {
            return Err(malformed("longer than a record may be"));
        }
        self.payload.clear();
        // Grows with what arrives, not by `length`.
        let read = self.input.by_ref().take(length).read_to_end(&mut self.payload)?;
        let mut crc = [0; 4];
        if (read as u64) < length || read_full(&mut self.input, &mut crc)? < crc.len() {
            return Err(DecodeError::CutOff { record });
        }
        if checksum(record, header, kind, &length_bytes, &self.payload) != u32::from_le_bytes(crc) {
            return Err(DecodeError::Checksum { record });
        }
        self.bytes += (1 + length_bytes.len() + read + crc.len()) as u64;
        Ok(Some(kind))
    }

    fn drain(&mut self) -> io::Result<u64> {
        io::copy(&mut self.input.by_ref().take(MAX_DISCARDED), &mut io::sink())?;
        Ok(self.input.read)
    }
}

#[derive(Debug)]
struct CountingReader<R> {
    input: R,
    read: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.read += read as u64;
        Ok(read)
    }
}

/// A payload buffer larger than this is given back after its record.
const KEEP_BUFFER_BYTES: usize = 1 << 20;

fn read_full(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn intervals(from: &mut Cursor<'_>, version: u32) -> Result<Vec<(u64, u64)>, Wrong> {
    if version < 3 {
        let from_ns = from.get()?;
        return Ok(vec![(from_ns, from_ns.wrapping_add(from.signed()? as u64))]);
    }
    let mut end_ns = 0u64;
    let intervals = from.list(|from| {
        let from_ns = end_ns.wrapping_add(from.signed()? as u64);
        end_ns = from_ns.wrapping_add(from.signed()? as u64);
        Ok((from_ns, end_ns))
    })?;
    if intervals.len() > MAX_INTERVALS { Err("more intervals than a record may have") } else { Ok(intervals) }
}

/// The updates of one record: one for each interval, the first of which has all that is defined.
fn updates(
    from: &mut Cursor<'_>,
    known: &mut DecodedTables,
    version: u32,
    metrics: usize,
) -> Result<(Update, VecDeque<Update>), Wrong> {
    let intervals = intervals(from, version)?;
    let base = DefinitionCounts {
        images: from.get_u32()?,
        cost_centres: from.get_u32()?,
        lines: from.get_u32()?,
        processes: from.get_u32()?,
        threads: from.get_u32()?,
        contexts: from.get_u32()?,
        routes: if version >= 3 { from.get_u32()? } else { DefinitionCounts::FRESH.routes },
    };
    let files = from.list(|from| Ok(Arc::from(short(from.str()?)?)))?;
    if known.files.len() + files.len() > MAX_FILES {
        return Err("more file names than a stream may have");
    }
    known.files.extend(files);
    let images = from.list(|from| Ok(Image { name: from.string()?, build_id: from.bytes()?.to_vec() }))?;
    let mut start = 0;
    let cost_centres = from.list(|from| cost_centre(from, known, &mut start))?;
    let lines = from.list(|from| Ok(Line { file: known.file(from)?, line: from.get_u32()? }))?;
    let processes = from.list(|from| {
        Ok(Process {
            pid: from.get_u32()?,
            start_time: from.get()?,
            exec_generation: from.get_u32()?,
            parent: from.option()?.map(id).transpose()?.map(ProcessId),
            name: from.string()?,
            membership: None,
        })
    })?;
    let threads = from
        .list(|from| Ok(Thread { process: ProcessId(from.get_u32()?), tid: from.get_u32()?, name: from.string()? }))?;
    let renamed_processes = from.list(|from| Ok((ProcessId(from.get_u32()?), from.string()?)))?;
    let renamed_threads = from.list(|from| Ok((ThreadId(from.get_u32()?), from.string()?)))?;
    if base.contexts == DefinitionCounts::FRESH.contexts {
        known.places = Vec::new();
    }
    let contexts = if version >= 3 { contexts(from, base.contexts)? } else { old_contexts(from, base.contexts)? };
    let routes = if version >= 3 { routes(from, base.routes)? } else { Vec::new() };
    let mut before = 0;
    let naming = |from: &mut Cursor<'_>| {
        before = from.delta(before)?;
        Ok((CostCentreId(before), CostCentreId(from.get_u32()?)))
    };
    let namings = if version >= 2 { from.list(naming)? } else { Vec::new() };
    let charges = match version {
        1 | 2 => vec![old_charges(from, metrics)?],
        _ => charges(from, &mut known.places, metrics, intervals.len())?,
    };
    let mut first = Update {
        base,
        images,
        cost_centres,
        lines,
        processes,
        threads,
        renamed_processes,
        renamed_threads,
        contexts,
        routes,
        namings,
        notes: from.list(Cursor::string)?,
        ..Update::default()
    };
    let end = first.end();
    let mut updates = VecDeque::new();
    for ((from_ns, to_ns), (charges, weights, squares)) in intervals.into_iter().zip(charges) {
        known.accounting.read(from, version >= 3)?;
        let accounting = known.accounting.accounting();
        let definitions =
            if updates.is_empty() { std::mem::take(&mut first) } else { Update { base: end, ..Update::default() } };
        let mut update = Update { from_ns, to_ns, charges, weights, squares, accounting, ..definitions };
        if version >= 3 {
            // Those of one interval may follow where those of another do not.
            update.leave_out_squares(metrics);
        }
        updates.push_back(update);
    }
    Ok((updates.pop_front().ok_or("no interval")?, updates))
}

fn parent(id: u32, distance: i64) -> Result<ContextId, Wrong> {
    let parent = i64::from(id).checked_sub(distance).and_then(|parent| u32::try_from(parent).ok());
    parent.map(ContextId).ok_or("id out of range")
}

/// Contexts from number `next` on: their distances to their parents, then their functions.
fn contexts(from: &mut Cursor<'_>, next: u32) -> Result<Vec<NewContext>, Wrong> {
    let distances = from.list(Cursor::signed)?;
    if u32::try_from(distances.len()).ok().and_then(|count| next.checked_add(count)).is_none() {
        return Err("too many contexts");
    }
    let mut contexts = Vec::new();
    for (distance, id) in distances.into_iter().zip(next..) {
        contexts.push(NewContext { parent: parent(id, distance)?, function: CostCentreId(from.get_u32()?) });
    }
    Ok(contexts)
}

/// Routes from number `next` on: distances to their parents, functions, lines.
fn routes(from: &mut Cursor<'_>, next: u32) -> Result<Vec<NewRoute>, Wrong> {
    let distances = from.list(Cursor::signed)?;
    let end = u32::try_from(distances.len()).ok().and_then(|count| next.checked_add(count));
    if end.is_none_or(|end| end > RouteId::MOST) {
        return Err("too many routes");
    }
    let mut column = || {
        let mut before = 0;
        let values = (0..distances.len()).map(|_| {
            before = from.delta(before)?;
            Ok(before)
        });
        values.collect::<Result<Vec<u32>, Wrong>>()
    };
    let (functions, lines) = (column()?, column()?);
    let places = functions.into_iter().zip(lines);
    let new = distances.iter().zip(next..).zip(places).map(|((&distance, id), (function, line))| {
        let parent = i64::from(id).checked_sub(distance).and_then(|parent| u32::try_from(parent).ok());
        let parent = RouteId::new(parent.filter(|&parent| parent < RouteId::MOST).ok_or("id out of range")?);
        Ok(NewRoute { parent, function: CostCentreId(function), line: LineId(line) })
    });
    new.collect()
}

/// The same in versions 1 and 2: distance and function in turn.
fn old_contexts(from: &mut Cursor<'_>, mut next: u32) -> Result<Vec<NewContext>, Wrong> {
    from.list(|from| {
        let parent = parent(next, from.signed()?)?;
        next = next.checked_add(1).ok_or("too many contexts")?;
        Ok(NewContext { parent, function: CostCentreId(from.get_u32()?) })
    })
}

fn id(value: u64) -> Result<u32, Wrong> {
    u32::try_from(value).map_err(|_| "id out of range")
}

fn short(text: &str) -> Result<&str, Wrong> {
    if text.len() > MAX_STRING_BYTES { Err("text too long") } else { Ok(text) }
}

fn cost_centre(from: &mut Cursor<'_>, known: &mut DecodedTables, start_before: &mut u64) -> Result<CostCentre, Wrong> {
    let image = ImageId(from.get_u32()?);
    let flags = from.byte()?;
    let has = |flag: u8| flags & flag != 0;
    let linkage_name = has(flag::LINKAGE_NAME).then(|| from.string()).transpose()?;
    let display_name = has(flag::DISPLAY_NAME).then(|| from.string()).transpose()?;
    let start =
        has(flag::START).then(|| from.signed()).transpose()?.map(|delta| start_before.wrapping_add(delta as u64));
    *start_before = start.unwrap_or(*start_before);
    let file = has(flag::FILE).then(|| known.file(from)).transpose()?.map(|file| file.to_string());
    let line = from.get_u32()?;
    if has(flag::MORE) {
        from.bytes()?;
    }
    known.strange_functions += u64::from(flags & !flag::KNOWN != 0);
    Ok(CostCentre { image, linkage_name, display_name, start, file, line, local: has(flag::LOCAL) })
}

/// The charges of versions 1 and 2.
fn old_charges(from: &mut Cursor<'_>, metrics: usize) -> Result<ChargeLists, Wrong> {
    let mut usual = Vec::new();
    for _ in 0..metrics {
        usual.push(from.get()?);
    }
    let count = from.count()?;
    if count > record_charges(metrics) {
        return Err("more charges than a record may have");
    }
    let (mut charges, mut weights) = (Vec::new(), Vec::new());
    while charges.len() < count {
        let thread = ThreadId(from.get_u32()?);
        let run = from.count()?;
        if run == 0 || run > count - charges.len() {
            return Err("runs of charges do not add up");
        }
        let (mut context, mut line) = (0, 0);
        for _ in 0..run {
            context = from.delta(context)?;
            line = from.delta(line)?;
            let samples = from.get()?;
            let plain = samples & 1 == 1;
            let samples = samples >> 1;
            let (context, line, route) = (ContextId(context), LineId(line), RouteId::EMPTY);
            charges.push(ChargeDelta { thread, context, line, route, samples });
            for usual in &usual {
                let difference = if plain { 0 } else { from.signed()? as u64 };
                weights.push(samples.wrapping_mul(*usual).wrapping_add(difference));
            }
        }
    }
    Ok((charges, weights, Vec::new()))
}

/// Whether all of a file was read.
#[derive(Debug)]
pub enum Recovery {
    /// To its last byte. (Whether the session was finished is another question: [`Loaded::finished`].)
    Whole,
    /// Readable up to the last whole record, or, in a record of several intervals, the last interval that fits.
    Cut {
        /// Records read, the session record among them.
        whole_records: u64,
        /// Bytes up to there.
        bytes_used: u64,
        /// Bytes after that, which were not used; of a GiB and more, a GiB.
        bytes_discarded: u64,
        /// What is wrong with the next record.
        why: DecodeError,
    },
}

/// A profile read from a file.
#[derive(Debug)]
pub struct Loaded {
    /// The profile.
    pub profile: Profile,
    /// How much of the file that is.
    pub recovery: Recovery,
    /// Whether the end record was seen: the session was finished in good order.
    pub finished: bool,
    /// Whole records, the session record among them.
    pub records: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// Reads a profile, as far as it goes, with [`ProfileLimits::reading`].
///
/// # Errors
/// If not even the session record can be read. Later damage is no error: see [`Loaded::recovery`].
pub fn read_profile<R: Read>(input: R) -> Result<Loaded, DecodeError> {
    read_profile_with(input, ProfileLimits::reading(), |_| {})
}

/// As [`read_profile`] with other limits; `filter` sees every update first and may clear its charges
/// ([`Update::clear_charges`]).
///
/// # Errors
/// As [`read_profile`].
pub fn read_profile_with<R: Read>(
    input: R,
    limits: ProfileLimits,
    mut filter: impl FnMut(&mut Update),
) -> Result<Loaded, DecodeError> {
    let make = |session: &SessionInfo| Profile::new(session.clone(), limits);
    let mut loaded = read_profile_as(input, make, |_, update| filter(update))?;
    loaded.profile.count_own_elision();
    Ok(loaded)
}

/// Bytes after a damaged place that are counted: a file may have holes of any length.
const MAX_DISCARDED: u64 = 1 << 30;

/// Reads into the profile that `make` returns, with updates changed to fit it. The accounting is the file's.
pub(super) fn read_profile_as<R: Read>(
    input: R,
    make: impl FnOnce(&SessionInfo) -> Profile,
    mut filter: impl FnMut(&SessionInfo, &mut Update),
) -> Result<Loaded, DecodeError> {
    let mut decoder = Decoder::new(input)?;
    let mut profile = make(decoder.session());
    let mut finished = false;
    let mut good = (decoder.whole_records(), decoder.bytes_used());
    let why = loop {
        match decoder.next_record() {
            Ok(None) => break None,
            Ok(Some(Decoded::End(accounting))) => {
                *profile.accounting_mut() = *accounting;
                finished = true;
            }
            Ok(Some(Decoded::Update(mut update))) => {
                filter(decoder.session(), &mut update);
                if let Err(source) = profile.apply(&update) {
                    break Some(DecodeError::Update { record: good.0, source });
                }
            }
            Err(DecodeError::Io(error)) => return Err(error.into()),
            Err(why) => break Some(why),
        }
        good = (decoder.whole_records(), decoder.bytes_used());
    };
    let (whole_records, bytes_used) = good;
    let recovery = match why {
        None => Recovery::Whole,
        Some(why) => {
            let bytes_discarded = decoder.drain()?.saturating_sub(bytes_used);
            Recovery::Cut { whole_records, bytes_used, bytes_discarded, why }
        }
    };
    let bytes = match &recovery {
        Recovery::Whole => bytes_used,
        Recovery::Cut { bytes_discarded, .. } => bytes_used + bytes_discarded,
    };
    for line in decoder.skipped() {
        profile.add_note(&line);
    }
    let shortened = profile.shortened_contexts();
    if shortened > 0 {
        profile.add_note(&format!(
            "{shortened} different stacks are too deep to be shown in full: their middle is [elided]"
        ));
    }
    Ok(Loaded { profile, recovery, finished, records: whole_records, bytes })
}
