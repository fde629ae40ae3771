//! Profiles from what `perf record` has written.
//!
//! A recording is a source of records like the rings: mappings, forks and names go to the [`Tracker`], samples with
//! registers and stack bytes (`--call-graph dwarf`) through the unwinder, and all into batches for the [`Aggregator`].
//! Stacks of `-g` and `--call-graph fp` are taken as they are. Of the running system only files that are still the
//! mapped ones are used ([`RecordedFiles`]).
//!
//! The file is untrusted: [`header`] and [`records`] allocate nothing on its word, and a panic of the record parser
//! makes that record malformed. (The caller decides whether the panic is printed.)

mod chain;
mod choice;
mod compressed;
mod error;
mod header;
mod lost;
mod pipe;
mod reads;
mod records;
mod tracking;

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::{Profile, ProfileLimits, SessionInfo, TruncationReason, Unit, Update, notes};
use linux_perf_event_reader::{AttrFlags, EventRecord, SampleRecord, SamplingPolicy};

use crate::aggregator::Aggregator;
use crate::arch::NAME;
use crate::batch::{Batch, BatchCounts, MAX_METRICS};
use crate::batch_builder::BatchBuilder;
use crate::budget::Budget;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::EventLayout;
use crate::perf::record::{Sample, UserRegs};
use crate::perf::ring_buffer::Bytes;
use crate::process::images::ImageIndex;
use crate::process::recorded_files::RecordedFiles;
use crate::tracker::Tracker;
use crate::unwind::{Frame, StackRoot};
use crate::unwinding::Unwinding;
use chain::CallChain;
use choice::MetricEvents;
pub use error::ImportError;
use header::{RecordedEvent, RecordingHeader};
use lost::Lost;
use reads::Counters;
use records::{FileRecord, Records, RecordsError};

/// An update of the profile for each second of the recording, nanoseconds, as ccsd itself makes them.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Where a recording is.
pub enum RecordingSource<'a> {
    /// In a file, as `perf record` writes it, or `perf record -o -`.
    File(File),
    /// At the other end of `perf record -o -`.
    Pipe(&'a mut dyn Read),
}

/// Reads the samples of `event` from a file or pipe of `perf record`; by default the first event with samples and its
/// group, each as a metric. `update` is given the growing profile.
///
/// # Errors
/// [`ImportError`]; what `update` was given before is right.
pub fn perf_data(
    recording: RecordingSource<'_>,
    event: Option<&str>,
    update: &mut dyn FnMut(&SessionInfo, &Update),
) -> Result<Profile, ImportError> {
    // What the reader of the format takes for granted is not all checked here.
    let done = catch_unwind(AssertUnwindSafe(|| read(recording, event, update)));
    done.unwrap_or_else(|_| Err(ImportError::Damaged("it is damaged".to_owned())))
}

fn read(
    recording: RecordingSource<'_>,
    event: Option<&str>,
    update: &mut dyn FnMut(&SessionInfo, &Update),
) -> Result<Profile, ImportError> {
    let (modified, plain) = match recording {
        RecordingSource::File(file) => (file.metadata().ok().and_then(|meta| meta.modified().ok()), pipe::plain(file)?),
        RecordingSource::Pipe(stream) => (Some(SystemTime::now()), pipe::from_stream(stream)?),
    };
    let pipe::PlainRecording { file, is_cut } = plain;
    let header = header::read(&file).map_err(|why| ImportError::Damaged(why.to_owned()))?;
    if let Some(other) = header.arch.as_deref().filter(|&arch| arch != NAME) {
        return Err(ImportError::Unsupported(format!("it was recorded on {other:?}; only {NAME} can be read")));
    }
    let choice = MetricEvents::of(&file, &header, event)?;
    let Some(first) = choice.first(&header) else { return Err(ImportError::Empty) };
    let mut records = Records::new(file, &header).map_err(ImportError::Damaged)?;
    let started = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let session = session(&header, &choice, first, started.map_or(0, |since| since.as_nanos() as u64));
    let mut import = Import::new(&header, session, &choice, first, update);
    if is_cut {
        import.note(format!("{}: it ends within a record", notes::CUT_RECORDING));
    }
    loop {
        let record = match records.next() {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(RecordsError::Compressed) => {
                return Err(ImportError::Unsupported("it is compressed in a way that cannot be read".to_owned()));
            }
            Err(error) => {
                import.note(format!("{}, or damaged: {error}", notes::CUT_RECORDING));
                break;
            }
        };
        // Sizes that overflow are not all looked for there.
        let Ok(parsed) = catch_unwind(AssertUnwindSafe(|| record.raw.parse())) else {
            import.counts.malformed += 1;
            continue;
        };
        match parsed {
            Ok(EventRecord::Sample(sample)) => {
                if let Some(weights) = import.weighing.weigh(&choice, &record, &sample) {
                    import.sample(&sample, &weights);
                }
            }
            Ok(EventRecord::Lost(lost)) => import.lost.add_ring(lost.count),
            Ok(EventRecord::Throttle(_)) => import.counts.throttled += 1,
            Ok(EventRecord::Raw(raw)) => {
                let makes_sense = import.lost.other(&raw, choice.metric(record.event).is_some());
                import.counts.malformed += u64::from(!makes_sense);
            }
            Ok(other) => import.track(&other),
            Err(_) => import.counts.malformed += 1,
        }
    }
    choice.notes(&header, import.weighing.others).for_each(|note| import.note(note));
    import.end()
}

fn session(header: &RecordingHeader, choice: &MetricEvents, first: &RecordedEvent, modified_ns: u64) -> SessionInfo {
    let metrics = choice.metrics(header);
    let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
    let is_time = metrics.first().is_some_and(|metric| metric.unit == Unit::Nanoseconds);
    let words = &header.command_line;
    // The program and its arguments come after perf's own, where perf has run one.
    let program = words.iter().position(|word| *word == "--").map_or(words.len(), |at| at + 1);
    let command: Vec<String> = words.iter().skip(program).cloned().collect();
    let target = command.first().map(|program| program.rsplit('/').next().unwrap_or(program).to_owned());
    let version = &header.version;
    let rate_hz = match first.attr.sampling_policy {
        SamplingPolicy::Frequency(hz) => hz,
        SamplingPolicy::Period(period) if is_time => 1_000_000_000 / period.get(),
        _ => 0,
    };
    SessionInfo {
        target: target.unwrap_or_else(|| words.join(" ")),
        command,
        pids: Vec::new(),
        event: names.join(", "),
        rate_hz: u32::try_from(rate_hz).unwrap_or(u32::MAX),
        host: header.hostname.clone(),
        started_unix_ns: modified_ns,
        metrics,
        notes: vec![format!("imported from a file of perf {version}; it is dated by when it was written")],
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

type MetricWeights = [u64; ccsd_profile::MAX_METRICS];

struct SampleWeigher {
    /// For each event: a sample's default weight, and whether each inheriting thread has a counter of its own.
    events: Vec<(u64, bool)>,
    counters: Counters,
    others: u64,
}

impl SampleWeigher {
    fn of(header: &RecordingHeader) -> SampleWeigher {
        let event = |event: &RecordedEvent| {
            let period = if let SamplingPolicy::Period(period) = event.attr.sampling_policy { period.get() } else { 1 };
            (period, event.attr.flags.contains(AttrFlags::INHERIT))
        };
        let events = header.attributes.iter().map(event).collect();
        SampleWeigher { events, counters: Counters::default(), others: 0 }
    }

    /// A sample's weight by each metric. `None` for other events, or if its counters have gained nothing since the
    /// group's last sample: perf makes no sample of these, either.
    fn weigh(
        &mut self,
        choice: &MetricEvents,
        record: &FileRecord<'_>,
        sample: &SampleRecord<'_>,
    ) -> Option<MetricWeights> {
        let mut weights = [0; ccsd_profile::MAX_METRICS];
        let (period, inherited) = self.events.get(record.event).copied().unwrap_or((1, false));
        let counters =
            record.counters.iter().filter_map(|counter| Some((counter.id?, record.event_of(counter)?, counter.value)));
        let mut counted = false;
        for (id, event, value) in counters {
            counted = true;
            let gain = self.counters.gain(id, if inherited { sample.tid.unwrap_or(0) } else { 0 }, value);
            if let Some(weight) = choice.metric(event).and_then(|metric| weights.get_mut(metric)) {
                *weight = gain;
            }
        }
        if !counted {
            let metric = choice.metric(record.event).and_then(|metric| weights.get_mut(metric));
            self.others += u64::from(metric.is_none());
            *metric? = sample.period.unwrap_or(period);
            return Some(weights);
        }
        let has_weight = weights.iter().any(|&weight| weight > 0);
        self.others += u64::from(!has_weight && choice.metric(record.event).is_none());
        has_weight.then_some(weights)
    }
}

#[derive(Default)]
struct ImportCounts {
    received: u64,
    throttled: u64,
    malformed: u64,
    by_frame_pointers: u64,
}

#[derive(Default)]
struct SampleTimes {
    first: Option<u64>,
    last: u64,
    updated: u64,
}

struct Import<'a> {
    tracker: Tracker,
    unwinding: Unwinding,
    batch: BatchBuilder,
    spare: Batch,
    aggregator: Option<Aggregator>,
    profile: Option<Profile>,
    weighing: SampleWeigher,
    metrics: usize,
    /// Bytes of stack that were asked for with each sample.
    stack_bytes: usize,
    times: SampleTimes,
    counts: ImportCounts,
    lost: Lost,
    notes: Vec<String>,
    update: &'a mut dyn FnMut(&SessionInfo, &Update),
}

impl<'a> Import<'a> {
    fn new(
        header: &RecordingHeader,
        session: SessionInfo,
        choice: &MetricEvents,
        first: &RecordedEvent,
        update: &'a mut dyn FnMut(&SessionInfo, &Update),
    ) -> Import<'a> {
        let budget = Budget::default();
        Import {
            tracker: Tracker::for_recording(RecordedFiles::new(header.build_ids.clone()), &budget),
            unwinding: Unwinding::within(&budget),
            batch: BatchBuilder::within(budget.batch),
            spare: Batch::default(),
            aggregator: None,
            profile: Some(Profile::new(session, ProfileLimits::default())),
            weighing: SampleWeigher::of(header),
            metrics: choice.metrics(header).len(),
            stack_bytes: first.attr.sample_stack_user as usize,
            times: SampleTimes::default(),
            counts: ImportCounts::default(),
            lost: Lost::default(),
            notes: Vec::new(),
            update,
        }
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// A record about processes, threads, names or mappings, or one that is not used.
    fn track(&mut self, record: &EventRecord<'_>) {
        if let Some(address) = tracking::kernel_text(record) {
            if let Some(files) = self.tracker.images.recorded() {
                files.set_kernel_text(address);
            }
        } else if let Some(change) = tracking::change(record)
            && let Some(renamed) = self.tracker.apply(change, self.times.last)
        {
            self.batch.rename(renamed);
            if self.batch.is_large() {
                self.hand_on(false);
            }
        }
    }

    fn sample(&mut self, sample: &SampleRecord<'_>, weights: &MetricWeights) {
        let (Some(pid), Some(tid)) = (sample.pid, sample.tid) else {
            self.counts.malformed += 1;
            return;
        };
        let time = sample.timestamp.unwrap_or(self.times.last).max(self.times.last);
        if self.times.first.is_none() {
            (self.times.first, self.times.updated) = (Some(time), time);
        }
        self.times.last = time;
        let tid = tid.cast_unsigned();
        let Some((thread, process, images)) = self.tracker.thread(pid.cast_unsigned(), tid) else {
            self.counts.malformed += 1;
            return;
        };
        self.counts.received += 1;
        let chain = CallChain::of(sample);
        let stack = sample.user_stack.as_ref().map(|(bytes, _)| bytes.as_slice());
        let registers = sample.user_regs.as_ref().and_then(|regs| UserRegs::from_perf(|number| regs.get(number)));
        let unwound = match (registers, &stack) {
            (Some(regs), Some(stack)) => {
                let kernel: Vec<u8> = chain.kernel.iter().flat_map(|address| address.to_le_bytes()).collect();
                let one = Sample {
                    id: 0,
                    pid: 0,
                    tid,
                    time,
                    period: weights[0],
                    group_value: None,
                    kernel_chain: Bytes::new(&kernel),
                    user_chain: Bytes::new(&[]),
                    regs: Some(regs),
                    has_user_state: true,
                    stack: Bytes::new(stack),
                    stack_full: stack.len() >= self.stack_bytes,
                };
                self.unwinding.unwind(&one, thread, process, images, false)
            }
            _ => {
                self.counts.by_frame_pointers += u64::from(!chain.is_alone);
                let user = chain.user_addresses().map(|address| match process.mappings.find(address) {
                    Some(mapping) => Frame { image: mapping.image, address: address.wrapping_add(mapping.to_svma) },
                    None => Frame { image: ImageIndex::UNKNOWN, address },
                });
                let reason = match chain.is_alone {
                    true => TruncationReason::NoUserRegisters,
                    // Names tell whether it is complete: that is the aggregator's to find out.
                    false => TruncationReason::NoEntry,
                };
                self.unwinding.adopt(thread, chain.kernel_frames().chain(user), StackRoot::Truncated(reason))
            }
        };
        self.batch.announce_images(images);
        self.batch.announce(process, thread, tid);
        let (&first, further) = weights.split_first_chunk::<MAX_METRICS>().unwrap_or((&[0; MAX_METRICS], &[]));
        self.batch.stack((thread.key, None), time, unwound, self.unwinding.frames(), first);
        self.batch.further_weights(further.get(..self.metrics.saturating_sub(MAX_METRICS)).unwrap_or_default());
        let due = time.saturating_sub(self.times.updated) >= INTERVAL_NS;
        if due || self.batch.is_large() {
            self.hand_on(due);
        }
    }

    /// Gives the stacks so far to the aggregator, and makes an update if one is due.
    fn hand_on(&mut self, due: bool) {
        self.batch.end_threads(&mut self.tracker, &mut self.unwinding);
        let kernel = self.tracker.images.recorded().is_some_and(RecordedFiles::has_the_running_kernel);
        let (profile, metrics) = (&mut self.profile, self.metrics);
        let aggregator = self.aggregator.get_or_insert_with(|| {
            let spec = EventSpec {
                event: Event::CpuClock,
                rate_hz: 1,
                kernel,
                inherit: true,
                enable_on_exec: false,
                stack_bytes: 0,
                tells_lost: false,
                user_chain: false,
            };
            let profile =
                profile.take().unwrap_or_else(|| Profile::new(SessionInfo::default(), ProfileLimits::default()));
            Aggregator::new(profile, spec, EventLayout::Threads, true, &Budget::default()).with_metrics(metrics)
        });
        let mut batch = self.batch.take(BatchCounts::default(), std::mem::take(&mut self.spare));
        aggregator.absorb(&mut batch);
        self.spare = batch;
        if due {
            let duration = self.times.last.saturating_sub(self.times.first.unwrap_or(self.times.last));
            let profile = aggregator.profile_mut();
            let accounting = profile.accounting_mut();
            (accounting.received, accounting.lost) = (self.counts.received, self.lost.samples());
            (accounting.throttle_events, accounting.duration_ns) = (self.counts.throttled, duration);
            let update = profile.take_update();
            (self.update)(profile.session(), &update);
            self.times.updated = self.times.last;
        }
    }

    fn end(mut self) -> Result<Profile, ImportError> {
        if self.counts.received == 0 {
            return Err(ImportError::Empty);
        }
        if self.counts.by_frame_pointers > 0 {
            let what = "stacks are as perf recorded them, by frame pointers: complete are those that begin with a process or \
                        thread, by names";
            self.note(format!("{} {what}", self.counts.by_frame_pointers));
        }
        if self.weighing.counters.shed > 0 {
            self.note(format!(
                "{} counters of threads were too many: these weigh nothing",
                self.weighing.counters.shed
            ));
        }
        if self.counts.malformed > 0 {
            self.note(format!("{} records made no sense and were left out", self.counts.malformed));
        }
        let left_out = self.tracker.stats().not_followed;
        let files = self.tracker.images.recorded();
        let mut shed = left_out.threads.saturating_add(left_out.mappings);
        let mut notes = Vec::new();
        if let Some(files) = files {
            shed = shed.saturating_add(files.left_out());
            notes.extend(files.notes());
        }
        notes.extend((shed > 0).then(|| format!("{shed} times there was no room for a mapping, thread or process")));
        notes.append(&mut self.notes);
        self.hand_on(false);
        if let Some(aggregator) = &mut self.aggregator {
            notes.iter().for_each(|note| aggregator.profile_mut().add_note(note));
            aggregator.finish_names();
        }
        self.hand_on(true);
        self.aggregator.map(Aggregator::into_profile).ok_or(ImportError::Empty)
    }
}
