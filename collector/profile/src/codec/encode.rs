//! Writing profiles.

use std::io::Write;
use std::sync::Arc;

use hashbrown::HashMap;

use super::body::{self, Effort};
use super::charges::{PlaceNumbers, put_charges};
use super::crash::{put_crash, put_earlier};
use super::format::{
    HEADER_BYTES, MAGIC, TYPE_CONTAINER_NAMES, TYPE_CRASH, TYPE_EARLIER_STACK, TYPE_END, TYPE_MEMBERSHIP, TYPE_SESSION,
    TYPE_UPDATE, VERSION, checksum, flag,
};
use super::membership::{put_container_names, put_memberships};
use super::records::{AccountingNumbers, put_session};
use super::split::{self, Pieces};
use super::wire::{put, put_bytes, put_delta, put_len, put_option, put_signed, put_str};
use crate::accounting::Accounting;
use crate::error::EncodeError;
use crate::limits::{MAX_FILES, MAX_METRICS, MAX_RECORD_BYTES};
use crate::model::{CostCentre, SessionInfo};
use crate::routes::NewRoute;
use crate::update::{DefinitionCounts, Update};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ChargesWritten {
    pub(super) charges: u64,
    /// Different places of them, in all generations of contexts.
    pub(super) places: u64,
}

/// Writes one session. Each record is one write and a flush, so a reader or a crash always sees whole records.
#[derive(Debug)]
pub struct Encoder<W> {
    out: W,
    files: HashMap<Arc<str>, u32>,
    places: PlaceNumbers,
    charges: ChargesWritten,
    metrics: usize,
    records: u64,
    bytes: u64,
    payload: Vec<u8>,
    frame: Vec<u8>,
    accounting: Accounting,
    effort: Effort,
}

impl<W: Write> Encoder<W> {
    /// Begins a session: header and session record. Lists are cut at 65,536 entries.
    ///
    /// # Errors
    /// When writing fails.
    pub fn new(out: W, session: &SessionInfo) -> Result<Self, EncodeError> {
        let mut encoder = Self {
            out,
            files: HashMap::new(),
            places: PlaceNumbers::default(),
            charges: ChargesWritten::default(),
            metrics: session.metrics.len().min(MAX_METRICS),
            records: 0,
            bytes: 0,
            payload: Vec::new(),
            frame: Vec::new(),
            accounting: Accounting::default(),
            effort: Effort::Live,
        };
        put_session(&mut encoder.payload, session);
        encoder.write_record(TYPE_SESSION)?;
        Ok(encoder)
    }

    /// Writes an update as one record, or as several beyond 65,536 definitions, 4 MiB of names or some 200,000 charges.
    /// A
    /// stream cut between those has charges that its accounting does not count yet.
    ///
    /// # Errors
    /// When writing fails. The stream may then end within a record, and nothing more can be written to it.
    pub fn write(&mut self, update: &Update) -> Result<(), EncodeError> {
        if split::fits(update, self.metrics) {
            return self.write_record_of(std::slice::from_ref(update), update);
        }
        for piece in Pieces::new(update, self.metrics, self.accounting.clone()) {
            self.write_record_of(std::slice::from_ref(&piece), &piece)?;
        }
        Ok(())
    }

    pub(super) const fn try_harder(&mut self) {
        self.effort = Effort::Last;
    }

    /// Writes updates as one record with an interval for each. Needs one generation of contexts; definitions come from
    /// `all`.
    pub(super) fn write_record_of(&mut self, updates: &[Update], all: &Update) -> Result<(), EncodeError> {
        for crash in &all.crashes {
            put_crash(&mut self.payload, crash);
            self.write_record(TYPE_CRASH)?;
            if let Some(earlier) = &crash.earlier {
                put_earlier(&mut self.payload, earlier);
                self.write_record(TYPE_EARLIER_STACK)?;
            }
        }
        if put_memberships(&mut self.payload, &all.processes) {
            self.write_record(TYPE_MEMBERSHIP)?;
            if put_container_names(&mut self.payload, &all.processes) {
                self.write_record(TYPE_CONTAINER_NAMES)?;
            }
        }
        self.put_updates(updates, all);
        body::pack(&mut self.payload, self.effort);
        if self.files.len() > MAX_FILES {
            return Err(EncodeError::TooManyFiles);
        }
        self.write_record(TYPE_UPDATE)?;
        self.accounting = all.accounting.clone();
        Ok(())
    }

    /// Writes the end record with the last update's accounting. Returns the writer.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(self) -> Result<W, EncodeError> {
        let accounting = self.accounting.clone();
        self.finish_with(&accounting)
    }

    /// Writes the end record with the final accounting. Returns the writer.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish_with(mut self, accounting: &Accounting) -> Result<W, EncodeError> {
        AccountingNumbers::new(accounting).put(&mut self.payload, None);
        self.write_record(TYPE_END)?;
        Ok(self.out)
    }

    /// The writer, without an end record: the stream stays one that was cut.
    #[must_use]
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Bytes written so far.
    #[must_use]
    pub const fn bytes_written(&self) -> u64 {
        self.bytes
    }

    pub(super) const fn charges_written(&self) -> ChargesWritten {
        self.charges
    }

    /// The writer.
    #[must_use]
    pub const fn get_ref(&self) -> &W {
        &self.out
    }

    /// Writes `payload` as a record, before it the header if it is the first.
    fn write_record(&mut self, kind: u8) -> Result<(), EncodeError> {
        if self.payload.len() > MAX_RECORD_BYTES {
            return Err(EncodeError::TooLarge(self.payload.len()));
        }
        self.frame.clear();
        if self.records == 0 {
            self.frame.extend_from_slice(&MAGIC);
            self.frame.extend_from_slice(&VERSION.to_le_bytes());
        }
        let header = self.frame.len();
        debug_assert!(header == 0 || header == HEADER_BYTES);
        self.frame.push(kind);
        put_len(&mut self.frame, self.payload.len());
        let (before, length) = self.frame.split_at(header);
        let crc = checksum(self.records, before, kind, length.get(1..).unwrap_or(&[]), &self.payload);
        self.frame.extend_from_slice(&self.payload);
        self.frame.extend_from_slice(&crc.to_le_bytes());
        // Before it is written: to a reader that has stopped that may take for ever.
        self.payload.clear();
        give_back(&mut self.payload);
        self.out.write_all(&self.frame)?;
        self.out.flush()?;
        self.bytes += self.frame.len() as u64;
        self.records += 1;
        give_back(&mut self.frame);
        Ok(())
    }

    fn put_updates(&mut self, updates: &[Update], update: &Update) {
        let Self { files, places, charges, payload, metrics, accounting, .. } = self;
        if update.base.contexts == DefinitionCounts::FRESH.contexts {
            places.clear();
        }
        let out = payload;
        put_len(out, updates.len());
        let mut end_ns = 0;
        for Update { from_ns, to_ns, .. } in updates {
            put_signed(out, from_ns.wrapping_sub(end_ns) as i64);
            put_signed(out, to_ns.wrapping_sub(*from_ns) as i64);
            end_ns = *to_ns;
        }
        let base = update.base;
        for count in
            [base.images, base.cost_centres, base.lines, base.processes, base.threads, base.contexts, base.routes]
        {
            put(out, u64::from(count));
        }
        put_files(out, files, update);
        put_len(out, update.images.len());
        for image in &update.images {
            put_str(out, &image.name);
            put_bytes(out, &image.build_id);
        }
        put_cost_centres(out, files, &update.cost_centres);
        put_len(out, update.lines.len());
        for line in &update.lines {
            put(out, file_number(files, &line.file));
            put(out, u64::from(line.line));
        }
        put_processes(out, update);
        put_len(out, update.contexts.len());
        for (new, id) in update.contexts.iter().zip(base.contexts..) {
            put_delta(out, id, new.parent.0);
        }
        for new in &update.contexts {
            put(out, u64::from(new.function.0));
        }
        put_routes(out, update);
        put_len(out, update.namings.len());
        let mut before = 0;
        for (unnamed, function) in &update.namings {
            put_delta(out, unnamed.0, before);
            put(out, u64::from(function.0));
            before = unnamed.0;
        }
        let known = places.len();
        put_charges(out, places, updates, *metrics);
        let count = updates.iter().map(|update| update.charges.len() as u64).sum();
        charges.charges = charges.charges.saturating_add(count);
        charges.places = charges.places.saturating_add((places.len() - known) as u64);
        put_len(out, update.notes.len());
        for note in &update.notes {
            put_str(out, note);
        }
        let mut before = AccountingNumbers::new(accounting);
        for update in updates {
            let now = AccountingNumbers::new(&update.accounting);
            now.put(out, Some(&before));
            before = now;
        }
    }
}

/// Larger buffers are freed after a record: usual updates take kilobytes, a snapshot can take megabytes.
const KEEP_BUFFER_BYTES: usize = 1 << 20;

fn give_back(buffer: &mut Vec<u8>) {
    if buffer.capacity() > KEEP_BUFFER_BYTES {
        *buffer = Vec::new();
    }
}

fn file_number(files: &HashMap<Arc<str>, u32>, file: &str) -> u64 {
    files.get(file).copied().map_or(0, u64::from)
}

/// The file names that are new with this update; their numbers go on from those before.
fn put_files(out: &mut Vec<u8>, files: &mut HashMap<Arc<str>, u32>, update: &Update) {
    let mut new: Vec<Arc<str>> = Vec::new();
    let mut add = |file: &str, shared: Option<&Arc<str>>| {
        if !files.contains_key(file) {
            let file = shared.map_or_else(|| file.into(), Arc::clone);
            files.insert(Arc::clone(&file), files.len() as u32);
            new.push(file);
        }
    };
    for file in update.cost_centres.iter().filter_map(|cost_centre| cost_centre.file.as_deref()) {
        add(file, None);
    }
    for line in &update.lines {
        add(&line.file, Some(&line.file));
    }
    put_len(out, new.len());
    for file in new {
        put_str(out, &file);
    }
}

fn put_cost_centres(out: &mut Vec<u8>, files: &HashMap<Arc<str>, u32>, cost_centres: &[CostCentre]) {
    put_len(out, cost_centres.len());
    let mut start_before = 0u64;
    for cost_centre in cost_centres {
        let CostCentre { image, linkage_name, display_name, start, file, line, local } = cost_centre;
        put(out, u64::from(image.0));
        let flags = [
            (linkage_name.is_some(), flag::LINKAGE_NAME),
            (display_name.is_some(), flag::DISPLAY_NAME),
            (start.is_some(), flag::START),
            (file.is_some(), flag::FILE),
            (*local, flag::LOCAL),
        ];
        out.push(flags.iter().map(|&(set, flag)| if set { flag } else { 0 }).sum());
        for name in [linkage_name, display_name].into_iter().flatten() {
            put_str(out, name);
        }
        if let Some(start) = *start {
            put_signed(out, start.wrapping_sub(start_before) as i64);
            start_before = start;
        }
        if let Some(file) = file {
            put(out, file_number(files, file));
        }
        put(out, u64::from(*line));
    }
}

/// Column by column: distances to the parents, functions, lines.
fn put_routes(out: &mut Vec<u8>, update: &Update) {
    put_len(out, update.routes.len());
    for (new, id) in update.routes.iter().zip(update.base.routes..) {
        put_delta(out, id, new.parent.number());
    }
    let columns: [fn(&NewRoute) -> u32; 2] = [|new| new.function.0, |new| new.line.0];
    for column in columns {
        let mut before = 0;
        for value in update.routes.iter().map(column) {
            put_delta(out, value, before);
            before = value;
        }
    }
}

fn put_processes(out: &mut Vec<u8>, update: &Update) {
    put_len(out, update.processes.len());
    for process in &update.processes {
        put(out, u64::from(process.pid));
        put(out, process.start_time);
        put(out, u64::from(process.exec_generation));
        put_option(out, process.parent.map(|parent| u64::from(parent.0)));
        put_str(out, &process.name);
    }
    put_len(out, update.threads.len());
    for thread in &update.threads {
        put(out, u64::from(thread.process.0));
        put(out, u64::from(thread.tid));
        put_str(out, &thread.name);
    }
    put_len(out, update.renamed_processes.len());
    for (id, name) in &update.renamed_processes {
        put(out, u64::from(id.0));
        put_str(out, name);
    }
    put_len(out, update.renamed_threads.len());
    for (id, name) in &update.renamed_threads {
        put(out, u64::from(id.0));
        put_str(out, name);
    }
}
