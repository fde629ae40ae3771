//! Profiles from what `perf record` has written.
//!
//! The file's records go the way that those of a ring go: mappings and forks into a process table, samples through the
//! unwinder (where registers and stack bytes were recorded, `--call-graph dwarf`) or as the kernel found them (`-g`,
//! `--call-graph fp`), then through the resolver into a profile. Nothing of the running system is taken for what it was
//! then: an ELF file is used only if it is the one that was mapped (by device and inode, or by build id where perf has noted
//! one), the kernel's symbols only if it is where it was.
//!
//! The file is untrusted: [`header`] and [`records`] allocate nothing on its word, and where the parser of single records
//! panics, that record makes no sense. (Who calls this decides whether the panic is printed.)

mod choice;
mod compressed;
mod error;
mod header;
mod images;
mod lost;
mod pipe;
mod reads;
mod records;
mod table;

use std::fs::File;
use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{SystemTime, UNIX_EPOCH};

use ccsd_profile::{Limits, Profile, Session, TruncationReason, Unit, Update};
use linux_perf_event_reader::{AttrFlags, EventRecord, SampleRecord, SamplingPolicy};

use crate::aggregator::Aggregator;
use crate::batch::{Batch, Item, MAX_METRICS};
use crate::budget::Budget;
use crate::layers::Common;
use crate::perf::attr::{Event, EventSpec};
use crate::perf::layout::Layout;
use crate::perf::record::{OTHERS, Sample, UserRegs};
use crate::perf::ring_buffer::Bytes;
use crate::process::images::ImageIndex;
use crate::unwind::{Frame, Root, StackUnwinder, Target};
use choice::Choice;
pub use error::ImportError;
use header::{Attribute, Header};
use lost::Lost;
use reads::Counters;
use records::{Record, Records, RecordsError};
use table::Table;

/// An update of the profile for each second of the recording, nanoseconds, as ccsd itself makes them.
const INTERVAL_NS: u64 = 1_000_000_000;
/// A batch of stacks, bytes.
const BATCH_BYTES: usize = 64 << 10;
/// Frames in reserve for deep stacks of all threads.
const MAX_REMEMBERED: usize = 1 << 20;

/// Numbers of registers in `perf_event_attr.sample_regs_user` (`asm/perf_regs.h`), in the order of [`OTHERS`].
const OTHER_REGISTERS: [u64; OTHERS.len()] = [0, 1, 2, 3, 4, 5, 16, 17, 18, 19, 20, 21, 22, 23];
const BP: u64 = 6;
const SP: u64 = 7;
const IP: u64 = 8;

/// Entries of a call chain from here on are no addresses but say whose the following are (`PERF_CONTEXT_MAX`).
const CONTEXT_MARKERS: u64 = -4095i64 as u64;
/// What follows is the kernel's, the user's (`PERF_CONTEXT_KERNEL`, `PERF_CONTEXT_USER`).
const KERNEL_CONTEXT: u64 = -128i64 as u64;
const USER_CONTEXT: u64 = -512i64 as u64;

/// Where a recording is.
pub enum Recording<'a> {
    /// In a file, as `perf record` writes it, or `perf record -o -`.
    File(File),
    /// At the other end of `perf record -o -`.
    Pipe(&'a mut dyn Read),
}

/// Reads a file of `perf record`, or what it has written to a pipe, and of it the samples of `event`; without one of its
/// first event that has some, and of those in its group, each as a metric. `update` is given the profile as it grows, with
/// what it is of.
///
/// # Errors
/// [`ImportError`]; what `update` was given before is right.
pub fn perf_data(
    recording: Recording<'_>,
    event: Option<&str>,
    update: &mut dyn FnMut(&Session, &Update),
) -> Result<Profile, ImportError> {
    // What the reader of the format takes for granted is not all checked here.
    let done = catch_unwind(AssertUnwindSafe(|| read(recording, event, update)));
    done.unwrap_or_else(|_| Err(ImportError::Damaged("it is damaged".to_owned())))
}

fn read(
    recording: Recording<'_>,
    event: Option<&str>,
    update: &mut dyn FnMut(&Session, &Update),
) -> Result<Profile, ImportError> {
    let (modified, plain) = match recording {
        Recording::File(file) => (file.metadata().ok().and_then(|meta| meta.modified().ok()), pipe::plain(file)?),
        Recording::Pipe(stream) => (Some(SystemTime::now()), pipe::of_stream(stream)?),
    };
    let pipe::Plain { file, is_cut } = plain;
    let header = header::read(&file).map_err(|why| ImportError::Damaged(why.to_owned()))?;
    if let Some(other) = header.arch.as_deref().filter(|&arch| arch != "x86_64") {
        return Err(ImportError::Unsupported(format!("it was recorded on {other:?}; only x86_64 can be read")));
    }
    let choice = Choice::of(&file, &header, event)?;
    let Some(first) = choice.first(&header) else { return Err(ImportError::Empty) };
    let mut records = Records::new(file, &header).map_err(ImportError::Damaged)?;
    let started = modified.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    let session = session(&header, &choice, first, started.map_or(0, |since| since.as_nanos() as u64));
    let mut import = Import::new(&header, session, &choice, first, update);
    if is_cut {
        import.note("the recording is cut short: it ends within a record".to_owned());
    }
    loop {
        let record = match records.next() {
            Ok(Some(next)) => next,
            Ok(None) => break,
            Err(RecordsError::Compressed) => {
                return Err(ImportError::Unsupported("it is compressed in a way that cannot be read".to_owned()));
            }
            Err(error) => {
                import.note(format!("the file is cut short or damaged: {error}"));
                break;
            }
        };
        // Sizes that overflow are not all looked for there.
        let Ok(parsed) = catch_unwind(AssertUnwindSafe(|| record.raw.parse())) else {
            import.malformed += 1;
            continue;
        };
        match parsed {
            Ok(EventRecord::Sample(sample)) => {
                if let Some(weights) = import.weights(&choice, &record, &sample) {
                    import.sample(&sample, &weights);
                }
            }
            Ok(EventRecord::Mmap(mmap)) => import.table.mmap(&mmap),
            Ok(EventRecord::Mmap2(mmap)) => import.table.mmap2(&mmap),
            Ok(EventRecord::Comm(comm)) => import.table.comm(&comm),
            Ok(EventRecord::Fork(fork)) => import.table.fork(&fork),
            Ok(EventRecord::Exit(exit)) => import.table.exit(&exit),
            Ok(EventRecord::Lost(lost)) => import.lost.of_ring(lost.count),
            Ok(EventRecord::Throttle(_)) => import.throttled += 1,
            Ok(EventRecord::Raw(raw)) => {
                let makes_sense = import.lost.other(&raw, choice.metric(record.event).is_some());
                import.malformed += u64::from(!makes_sense);
            }
            Ok(_) => {}
            Err(_) => import.malformed += 1,
        }
    }
    choice.notes(&header, import.others).for_each(|note| import.note(note));
    import.end()
}

fn session(header: &Header, choice: &Choice, first: &Attribute, modified_ns: u64) -> Session {
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
    Session {
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

/// What a sample stands for, by each metric.
type Weights = [u64; ccsd_profile::MAX_METRICS];

/// An import on its way.
struct Import<'a> {
    table: Table,
    unwinder: StackUnwinder,
    aggregator: Option<Aggregator>,
    /// The profile before the first sample.
    profile: Option<Profile>,
    batch: Batch,
    frames: Vec<Frame>,
    announced_images: usize,
    remembered: usize,
    /// Metrics of the profile.
    metrics: usize,
    /// Of each event: what one sample stands for where samples do not say, and whether each thread that inherits the event
    /// has a counter of its own.
    events: Vec<(u64, bool)>,
    counters: Counters,
    /// Samples of events that are no metrics.
    others: u64,
    /// Bytes of stack that were asked for with each sample.
    stack_bytes: usize,
    first_time: Option<u64>,
    last_time: u64,
    /// When the last update was made.
    updated: u64,
    received: u64,
    lost: Lost,
    throttled: u64,
    malformed: u64,
    by_frame_pointers: u64,
    notes: Vec<String>,
    update: &'a mut dyn FnMut(&Session, &Update),
}

impl<'a> Import<'a> {
    fn new(
        header: &Header,
        session: Session,
        choice: &Choice,
        first: &Attribute,
        update: &'a mut dyn FnMut(&Session, &Update),
    ) -> Import<'a> {
        let event = |event: &Attribute| {
            let period = if let SamplingPolicy::Period(period) = event.attr.sampling_policy { period.get() } else { 1 };
            (period, event.attr.flags.contains(AttrFlags::INHERIT))
        };
        Import {
            table: Table::new(header.build_ids.clone()),
            unwinder: StackUnwinder::default(),
            aggregator: None,
            profile: Some(Profile::new(session, Limits::default())),
            batch: Batch::default(),
            frames: Vec::new(),
            announced_images: 0,
            remembered: 0,
            metrics: choice.metrics(header).len(),
            events: header.attributes.iter().map(event).collect(),
            counters: Counters::default(),
            others: 0,
            stack_bytes: first.attr.sample_stack_user as usize,
            first_time: None,
            last_time: 0,
            updated: 0,
            received: 0,
            lost: Lost::default(),
            throttled: 0,
            malformed: 0,
            by_frame_pointers: 0,
            notes: Vec::new(),
            update,
        }
    }

    fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// What a sample stands for, by each metric. `None` if it is of another event, or its counters have gained nothing since
    /// the group's last sample: perf makes no sample of these, either.
    fn weights(&mut self, choice: &Choice, record: &Record<'_>, sample: &SampleRecord<'_>) -> Option<Weights> {
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

    fn sample(&mut self, sample: &SampleRecord<'_>, weights: &Weights) {
        let (Some(pid), Some(tid)) = (sample.pid, sample.tid) else {
            self.malformed += 1;
            return;
        };
        let time = sample.timestamp.unwrap_or(self.last_time).max(self.last_time);
        if self.first_time.is_none() {
            (self.first_time, self.updated) = (Some(time), time);
        }
        self.last_time = time;
        for ended in self.table.take_ended() {
            self.remembered = self.remembered.saturating_sub(ended.remembered);
            self.batch.items.extend(ended.key.map(Item::ThreadEnd));
        }
        let Some((thread, process, images)) = self.table.thread(pid, tid) else {
            self.malformed += 1;
            return;
        };
        self.received += 1;
        let chain = Chain::of(sample);
        let stack = sample.user_stack.as_ref().map(|(bytes, _)| bytes.as_slice());
        let registers = sample.user_regs.as_ref().and_then(|regs| {
            let mut others = [0; OTHERS.len()];
            for (value, number) in others.iter_mut().zip(OTHER_REGISTERS) {
                *value = regs.get(number).unwrap_or(0);
            }
            Some(UserRegs { ip: regs.get(IP)?, sp: regs.get(SP)?, bp: regs.get(BP)?, others })
        });
        let (root, common, gap) = match (registers, &stack) {
            (Some(regs), Some(stack)) => {
                let kernel: Vec<u8> = chain.kernel.iter().flat_map(|address| address.to_le_bytes()).collect();
                let one = Sample {
                    id: 0,
                    // No process has this number: nothing is read of what runs now.
                    pid: 0,
                    tid: tid as u32,
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
                let goroutines = process.goroutines.get_or_insert_default();
                let target = Target { mappings: &mut process.mappings, goroutines, images };
                let before = thread.remembered();
                let shadow = thread.shadow.get_or_insert_default();
                let room = self.remembered < MAX_REMEMBERED;
                let found = self.unwinder.unwind(&one, target, shadow, room, &mut self.frames);
                self.remembered = (self.remembered + thread.remembered()).saturating_sub(before);
                (found.root, found.common, found.gap)
            }
            _ => {
                self.by_frame_pointers += u64::from(!chain.is_alone);
                // The next one has nothing in common with what the aggregator has seen last.
                self.remembered = self.remembered.saturating_sub(thread.remembered());
                thread.shadow = None;
                self.frames.clear();
                self.frames.extend(chain.kernel_frames());
                self.frames.extend(chain.user_addresses().map(|address| match process.mappings.find(address) {
                    Some(mapping) => Frame { image: mapping.image, address: address.wrapping_add(mapping.to_svma) },
                    None => Frame { image: ImageIndex::UNKNOWN, address },
                }));
                let reason = match chain.is_alone {
                    true => TruncationReason::NoUserRegisters,
                    // Names tell whether it is complete: that is the aggregator's to find out.
                    false => TruncationReason::NoEntry,
                };
                (Root::Truncated(reason), Common::default(), None)
            }
        };
        let items = &mut self.batch.items;
        while let Some(image) = images.get(ImageIndex(self.announced_images as u32)) {
            items.push(Item::Image(image.clone()));
            self.announced_images += 1;
        }
        items.extend(Table::announce(thread, process, pid, tid).into_iter().flatten());
        self.batch.frames.extend_from_slice(&self.frames);
        let frames = self.frames.len() as u32;
        let (&first, further) = weights.split_first_chunk::<MAX_METRICS>().unwrap_or((&[0; MAX_METRICS], &[]));
        let further = further.get(..self.metrics.saturating_sub(MAX_METRICS)).unwrap_or_default();
        self.batch.further_weights.extend_from_slice(further);
        items.push(Item::Sample { thread: thread.key, time, frames, common, gap, root, weights: first });
        let due = time.saturating_sub(self.updated) >= INTERVAL_NS;
        if due || self.batch.bytes() >= BATCH_BYTES {
            self.hand_on(due);
        }
    }

    /// Gives the stacks so far to the aggregator, and makes an update if one is due.
    fn hand_on(&mut self, due: bool) {
        let kernel = self.table.has_the_running_kernel();
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
            };
            let profile = profile.take().unwrap_or_else(|| Profile::new(Session::default(), Limits::default()));
            Aggregator::new(profile, spec, Layout::Threads, true, &Budget::default()).with_metrics(metrics)
        });
        aggregator.absorb(&mut self.batch);
        self.batch.clear();
        if due {
            let duration = self.last_time.saturating_sub(self.first_time.unwrap_or(self.last_time));
            let profile = aggregator.profile_mut();
            let accounting = profile.accounting_mut();
            (accounting.received, accounting.lost) = (self.received, self.lost.samples());
            (accounting.throttle_events, accounting.duration_ns) = (self.throttled, duration);
            let update = profile.take_update();
            (self.update)(profile.session(), &update);
            self.updated = self.last_time;
        }
    }

    fn end(mut self) -> Result<Profile, ImportError> {
        if self.received == 0 {
            return Err(ImportError::Empty);
        }
        if self.by_frame_pointers > 0 {
            let what = "stacks are as perf recorded them, by frame pointers: complete are those that begin with a process or \
                        thread, by names";
            self.note(format!("{} {what}", self.by_frame_pointers));
        }
        if self.counters.shed > 0 {
            self.note(format!("{} counters of threads were too many: these weigh nothing", self.counters.shed));
        }
        if self.malformed > 0 {
            self.note(format!("{} records made no sense and were left out", self.malformed));
        }
        let notes: Vec<String> = self.table.notes().chain(self.notes.drain(..)).collect();
        self.hand_on(false);
        if let Some(aggregator) = &mut self.aggregator {
            notes.iter().for_each(|note| aggregator.profile_mut().add_note(note));
            aggregator.finish_names();
        }
        self.hand_on(true);
        self.aggregator.map(Aggregator::into_profile).ok_or(ImportError::Empty)
    }
}

/// A call chain in its two parts, innermost first.
struct Chain {
    kernel: Vec<u64>,
    user: Vec<u64>,
    /// There is no call chain, only the address where the program was.
    is_alone: bool,
}

impl Chain {
    fn of(sample: &SampleRecord<'_>) -> Chain {
        let mut chain = Chain { kernel: Vec::new(), user: Vec::new(), is_alone: false };
        let entries = sample.callchain.as_ref();
        let mut context = USER_CONTEXT;
        for entry in entries.into_iter().flat_map(|entries| (0..entries.len()).filter_map(|at| entries.get(at))) {
            match entry {
                marker if marker >= CONTEXT_MARKERS => context = marker,
                address if context == KERNEL_CONTEXT => chain.kernel.push(address),
                address if context == USER_CONTEXT => chain.user.push(address),
                // Of a guest or a hypervisor.
                _ => {}
            }
        }
        if chain.kernel.is_empty() && chain.user.is_empty() {
            // Recorded without call chains: the function alone.
            chain.is_alone = true;
            let in_kernel = |ip: &u64| *ip > i64::MAX as u64;
            match sample.ip.filter(in_kernel) {
                Some(ip) => chain.kernel.push(ip),
                None => chain.user.extend(sample.ip),
            }
        }
        chain
    }

    /// The first is where the kernel was interrupted, all others are return addresses.
    fn kernel_frames(&self) -> impl Iterator<Item = Frame> + '_ {
        let address = |(at, &address): (usize, &u64)| if at == 0 { address } else { address.wrapping_sub(1) };
        self.kernel.iter().enumerate().map(address).map(|address| Frame { image: ImageIndex::KERNEL, address })
    }

    fn user_addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let address = |(at, &address): (usize, &u64)| if at == 0 { address } else { address.wrapping_sub(1) };
        self.user.iter().enumerate().map(address)
    }
}
