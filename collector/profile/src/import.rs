//! Profiles of what another profiler has sampled: the text of `perf script`.
//!
//! perf has followed the stacks and knows the names; here its samples become contexts. What perf does not tell is not known
//! here either, and the profile says so: how many samples it should have taken, and which stacks do not reach their root.
//! Those whose outermost function begins no process or thread count as truncated ([`begins_at_entry`]).

mod sample;

use std::borrow::Cow;
use std::io::{self, BufRead};

use hashbrown::HashMap;

use crate::accounting::TruncationReason;
use crate::ids::{ContextId, CostCentreId, LineId, ProcessId, ThreadId};
use crate::limits::{MAX_METRICS, ProfileLimits};
use crate::model::{CostCentre, Image, Metric, Process, SessionInfo, Thread, Unit};
use crate::origin::begins_at_entry;
use crate::own_names::of_program;
use crate::profile::Profile;
use crate::update::Update;
use sample::ScriptSample;

/// Options of `perf script` with which it prints what [`perf_script`] reads: all of each stack, and what was lost.
pub const PERF_SCRIPT: [&str; 7] = [
    "--header",
    "--no-inline",
    "--show-lost-events",
    "--max-stack",
    "65535",
    "-F",
    "comm,pid,tid,time,event,period,ip,sym,dso",
];

/// perf's name for what it does not know.
const UNKNOWN: &str = "[unknown]";
/// The image of the kernel.
const KERNEL: &str = "[kernel]";
/// Longest line that is read; what follows in it is left out.
const LINE_BYTES: u64 = 256 << 10;
/// Frames of one sample beyond which its stack is given up, as a line of nothing but frames would else grow for ever.
const MOST_FRAMES: usize = 1 << 20;
/// Length of an interval of the profile, in nanoseconds of the samples' time.
const INTERVAL_NS: u64 = 1_000_000_000;

/// Longest name of an image in brackets, bytes.
const MOST_WORD: usize = 64;
/// A process has entries for so many programs, and so many processes have entries for more than one.
const MOST_PROGRAMS: usize = 16;
const MOST_PROCESSES: usize = 1 << 16;

/// What a process of the text has been.
#[derive(Default)]
struct KnownProcess {
    /// The present program last.
    programs: Vec<ProcessId>,
    /// Whether the last has its name from its main thread.
    by_main: bool,
}

/// What is not a sample in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Lines that are neither sample nor frame nor header.
    pub lines: u64,
    /// Samples of events that the header does not name, or beyond the number of metrics that a profile can have.
    pub samples: u64,
}

/// Reads the text of `perf script`, best with the options [`PERF_SCRIPT`] (the header may be missing, and so may all of a sample
/// but its command, process and stack), and gives `write` the profile's session first and then its intervals. `event` is the
/// only one to be read, if one is given. `session` says what the text does not; its start is taken for the time of the last sample,
/// and put back by how long the samples took where a header says so.
///
/// # Errors
/// Those of `input` and `write`; [`io::ErrorKind::InvalidData`] where there is no sample.
pub fn perf_script(
    mut input: impl BufRead,
    session: SessionInfo,
    event: Option<&str>,
    mut write: impl FnMut(&SessionInfo, Option<&Update>) -> io::Result<()>,
) -> io::Result<(Profile, Passed)> {
    let mut header = ScriptHeader { session, ..ScriptHeader::default() };
    let mut importer: Option<Importer> = None;
    let mut line = Vec::new();
    let mut unknown_before = 0;
    let mut begins = true;
    while read_line(&mut input, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        if let Some(importer) = &mut importer {
            if let Some(update) = importer.line(&text) {
                write(importer.profile.session(), Some(&update))?;
            }
        } else if let Some(comment) = text.strip_prefix('#') {
            header.line(comment);
        } else if let Some((sample, _)) =
            ScriptSample::parse(&text, begins, None).filter(|(sample, _)| sample.is_of(event))
        {
            header.finish(&sample, event);
            write(&header.session, None)?;
            let mut new = Importer::new(std::mem::take(&mut header));
            new.passed.lines = unknown_before;
            let _ = new.line(&text);
            importer = Some(new);
        } else {
            begins = text.trim().is_empty();
            unknown_before += u64::from(!begins && event.is_none());
        }
    }
    let Some(mut importer) = importer else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no sample in it"));
    };
    importer.charge();
    importer.note_what_is_left_out();
    importer.profile.accounting_mut().duration_ns = importer.elapsed_ns;
    let update = importer.profile.take_update();
    write(importer.profile.session(), Some(&update))?;
    Ok((importer.profile, importer.passed))
}

fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    if io::Read::take(&mut *input, LINE_BYTES).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
    } else {
        input.skip_until(b'\n')?;
    }
    Ok(true)
}

#[derive(Default)]
struct ScriptHeader {
    session: SessionInfo,
    events: Vec<String>,
    /// Whether each sample counts as one, whatever it stands for.
    counts_samples: bool,
}

impl ScriptHeader {
    fn line(&mut self, comment: &str) {
        let Some((key, value)) = comment.split_once(':') else { return };
        let value = value.trim();
        match key.trim() {
            "hostname" => value.clone_into(&mut self.session.host),
            "cmdline" => {
                let command: Vec<&str> = value.split_whitespace().collect();
                self.session.add_note(&format!("recorded by {}", command.join(" ")));
            }
            // The session says when it ended, which is all that a file's own time says.
            "sample duration" => {
                let ms: Option<f64> = value.strip_suffix("ms").and_then(|ms| ms.trim().parse().ok());
                let ns = (ms.unwrap_or(0.0) * 1e6) as u64;
                self.session.started_unix_ns = self.session.started_unix_ns.saturating_sub(ns);
            }
            "perf version" => self.session.version = format!("perf {value}"),
            "event" => {
                let name = value.split_once("name = ").map(|(_, rest)| rest.split(',').next().unwrap_or(rest).trim());
                self.events.extend(name.map(str::to_owned));
                // Where a rate was asked for, not a period.
                let rate = value.split_once("{ sample_period, sample_freq } = ").map(|(_, rest)| rest);
                let digits =
                    |text: &str| text.split(|c: char| !c.is_ascii_digit()).next().and_then(|it| it.parse().ok());
                if let Some(rate) = rate.and_then(digits).filter(|_| value.contains("freq = 1")) {
                    self.session.rate_hz = rate;
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, first: &ScriptSample<'_>, event: Option<&str>) {
        if self.events.is_empty() || event.is_some() {
            self.events = vec![first.event.to_owned()];
        }
        self.events.dedup();
        self.events.truncate(MAX_METRICS);
        self.session.event = self.events.join(", ");
        self.session.metrics = self.events.iter().map(|event| metric(event)).collect();
        if first.period.is_none() {
            // What a sample stands for is not in the text, or not of all.
            self.counts_samples = true;
            for metric in &mut self.session.metrics {
                metric.unit = Unit::Count;
            }
            self.session.add_note("imported: the text does not say what a sample stands for: each counts as one");
        }
        if self.session.target.is_empty() {
            first.comm.clone_into(&mut self.session.target);
        }
        self.session.pids = vec![first.pid];
        self.session.add_note(
            "imported: perf followed the stacks: complete are those that begin with a process or thread, by names",
        );
        self.session.add_note(
            "imported: how many samples should have been taken is not known; inlined functions are not expanded",
        );
    }
}

impl SessionInfo {
    fn add_note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }
}

/// The places of a frame where the name of its image may begin: a path, or a word in brackets. Names of functions and of files
/// may have what looks so.
fn image_starts(frame: &str) -> impl Iterator<Item = usize> + '_ {
    let begins = |rest: &str| {
        // Not further, as a line may have many such places.
        let end = rest.bytes().take(MOST_WORD).position(|byte| byte == b']').filter(|_| rest.starts_with('['));
        let after = end.and_then(|end| rest.get(end + 1..));
        rest.starts_with('/') || after.is_some_and(|after| after.is_empty() || after.starts_with([')', '.', '_']))
    };
    let starts = frame.match_indices(" (").filter(move |(at, it)| frame.get(at + it.len()..).is_some_and(begins));
    starts.map(|(at, _)| at)
}

fn metric(event: &str) -> Metric {
    // `cycles:ppp` is cycles; the event of a tracepoint is called `sched:sched_switch`.
    let name = match event.split_once(':') {
        Some((name, modifiers)) if modifiers.chars().all(|c| "ukhIGHpPSDWe".contains(c)) => name,
        _ => event,
    };
    let unit = match name {
        "cpu-clock" | "task-clock" => Unit::Nanoseconds,
        name if name.contains("cycles") => Unit::Cycles,
        _ => Unit::Count,
    };
    Metric { name: name.to_owned(), unit }
}

struct Importer {
    profile: Profile,
    events: Vec<String>,
    counts_samples: bool,
    passed: Passed,
    functions: HashMap<(String, String), CostCentreId>,
    processes: HashMap<u32, KnownProcess>,
    /// Frames that do not say where their function's name ends and the path begins.
    ambiguous: u64,
    started_ns: Option<u64>,
    elapsed_ns: u64,
    taken_ns: u64,
    /// The sample whose frames are being read: thread, metric, period.
    open: Option<(ThreadId, usize, u64)>,
    /// The frames that are being read are of a sample that is left out.
    passing: bool,
    /// Whether samples have times: all or none of a text have.
    timed: Option<bool>,
    /// The next line is the first of a paragraph.
    begins: bool,
    /// The sample being read is one if frames follow.
    doubtful: bool,
    /// Its frames, innermost first.
    frames: Vec<CostCentreId>,
    unsymbolised: bool,
}

impl Importer {
    fn new(header: ScriptHeader) -> Importer {
        Importer {
            profile: Profile::new(header.session, ProfileLimits::default()),
            events: header.events,
            counts_samples: header.counts_samples,
            passed: Passed::default(),
            functions: HashMap::new(),
            processes: HashMap::new(),
            ambiguous: 0,
            started_ns: None,
            elapsed_ns: 0,
            taken_ns: 0,
            open: None,
            passing: false,
            timed: None,
            begins: true,
            doubtful: false,
            frames: Vec::new(),
            unsymbolised: false,
        }
    }

    /// Takes a line; an interval may end with it.
    fn line(&mut self, line: &str) -> Option<Update> {
        if line.starts_with('#') {
            return None;
        }
        let text = line.trim();
        let begins = std::mem::replace(&mut self.begins, text.is_empty());
        if text.is_empty() {
            self.charge();
            self.passing = false;
            return None;
        }
        if self.passing && line.starts_with([' ', '\t']) {
            return None;
        }
        // perf begins frames, and nothing else, with a tab. Of others, a command may look like an address; no frame has a time.
        let is_frame = || {
            line.starts_with('\t')
                || ScriptSample::parse(line, false, self.timed).is_none_or(|(sample, _)| sample.time_ns.is_none())
        };
        if line.starts_with([' ', '\t']) && self.open.is_some() && is_frame() && self.frame(text) {
            return None;
        }
        if let Some((sample, frame)) = ScriptSample::parse(line, begins, self.timed) {
            self.charge();
            let update = sample.time_ns.and_then(|time| self.time(time));
            self.open(&sample);
            if !frame.is_empty() {
                self.frame(frame);
            }
            return update;
        }
        let lost = text.split_once("PERF_RECORD_LOST").map(|(_, rest)| rest.trim_start_matches("_SAMPLES"));
        match lost.and_then(|rest| rest.split_whitespace().rev().find_map(|word| word.parse::<u64>().ok())) {
            Some(lost) => {
                let accounting = self.profile.accounting_mut();
                accounting.lost = accounting.lost.saturating_add(lost);
            }
            None => self.passed.lines += 1,
        }
        None
    }

    /// Takes an interval if one is over at this time.
    fn time(&mut self, time_ns: u64) -> Option<Update> {
        let started = *self.started_ns.get_or_insert(time_ns);
        self.elapsed_ns = self.elapsed_ns.max(time_ns.saturating_sub(started));
        if self.elapsed_ns.saturating_sub(self.taken_ns) < INTERVAL_NS {
            return None;
        }
        self.taken_ns = self.elapsed_ns;
        self.profile.accounting_mut().duration_ns = self.elapsed_ns;
        Some(self.profile.take_update())
    }

    fn open(&mut self, sample: &ScriptSample<'_>) {
        // Where no sample names its event there is only one.
        let position = self.events.iter().position(|event| event == sample.event);
        let Some(metric) = position.or((sample.event == sample::NO_EVENT).then_some(0)) else {
            self.passed.samples += 1;
            self.passing = true;
            return;
        };
        self.passing = false;
        self.timed = self.timed.or(Some(sample.time_ns.is_some()));
        self.doubtful = sample.is_bare();
        let process = self.process(sample);
        let thread =
            self.profile.add_thread(Thread { process, tid: sample.tid, name: of_program(sample.comm).into_owned() });
        let period = sample.period.filter(|_| !self.counts_samples);
        self.open = Some((thread, metric, period.unwrap_or(1)));
        self.frames.clear();
        self.unsymbolised = false;
    }

    /// The process of a sample. Its name is its main thread's, and with another name it is another program.
    fn process(&mut self, sample: &ScriptSample<'_>) -> ProcessId {
        let name = of_program(sample.comm);
        let of = |exec_generation| Process { exec_generation, ..Process::new(sample.pid, 0, &*name) };
        let is_main = sample.pid == sample.tid;
        let profile = &mut self.profile;
        if self.processes.len() >= MOST_PROCESSES && !self.processes.contains_key(&sample.pid) {
            return profile.add_process(of(0));
        }
        let known = self.processes.entry(sample.pid).or_default();
        let of_name = |id: &ProcessId| profile.process(*id).is_some_and(|process| process.name == name);
        match (known.programs.last().copied(), known.programs.iter().rposition(of_name)) {
            // Its program does not change by what its other threads are called.
            (Some(last), _) if !is_main => last,
            (Some(_), Some(at)) => {
                known.by_main = true;
                let id = known.programs.remove(at);
                known.programs.push(id);
                id
            }
            (Some(last), None) if !known.by_main || known.programs.len() >= MOST_PROGRAMS => {
                known.by_main = true;
                profile.rename_process(last, &name)
            }
            (_, None) | (None, _) => {
                known.by_main = is_main;
                let id = profile.add_process(of(u32::try_from(known.programs.len()).unwrap_or(u32::MAX)));
                known.programs.push(id);
                id
            }
        }
    }

    /// `ADDRESS NAME (IMAGE)`, or without the image; false if it is something else.
    fn frame(&mut self, text: &str) -> bool {
        let Some((address, rest)) = text.split_once(' ') else { return false };
        if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let rest = rest.trim();
        if rest.is_empty() {
            return false;
        }
        let in_image = rest.strip_suffix(')').and_then(|rest| {
            // Of a file that has no name any more.
            let rest = rest.strip_suffix(" (deleted)").unwrap_or(rest);
            let mut starts = image_starts(rest);
            match (starts.next(), starts.next()) {
                (Some(at), None) => Some((rest.get(..at)?, rest.get(at + 2..)?)),
                (Some(_), Some(_)) => None,
                (None, _) => rest.rsplit_once(" (").or_else(|| Some((UNKNOWN, rest.strip_prefix('(')?))),
            }
        });
        self.ambiguous += u64::from(in_image.is_none() && rest.ends_with(')') && image_starts(rest).nth(1).is_some());
        let (name, image) = in_image.unwrap_or((rest, UNKNOWN));
        // As a recording has it, and ccsd: `perf` adds where it has read the names from.
        let image = if image.starts_with("[kernel.kallsyms]") { KERNEL } else { image };
        // Versions are no part of a name, nor is where in a function an address is.
        let name = name.split("@@").next().unwrap_or(name).trim();
        let is_offset = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let name = name.rsplit_once("+0x").filter(|(_, offset)| is_offset(offset)).map_or(name, |(name, _)| name);
        self.unsymbolised |= self.frames.is_empty() && name == UNKNOWN;
        let name = if name == UNKNOWN { Cow::Borrowed(name) } else { of_program(name) };
        let profile = &mut self.profile;
        let function = match self.functions.get(&(image.to_owned(), name.to_string())) {
            Some(&function) => function,
            None => {
                let image_id = profile.add_image(Image { name: image.to_owned(), build_id: Vec::new() });
                let function = profile.add_cost_centre(CostCentre::named(image_id, &*name));
                self.functions.insert((image.to_owned(), name.into_owned()), function);
                function
            }
        };
        if self.frames.len() < MOST_FRAMES {
            self.frames.push(function);
        }
        true
    }

    fn note_what_is_left_out(&mut self) {
        let Passed { lines, samples } = self.passed;
        for (number, what) in [
            (samples, "samples of other events left out"),
            (lines, "lines that are neither samples nor frames"),
            (self.ambiguous, "frames without image, as they do not say where a name ends and a path begins"),
        ] {
            if number > 0 {
                self.profile.add_note(&format!("imported: {what}: {number}"));
            }
        }
    }

    fn charge(&mut self) {
        let Some((thread, metric, period)) = self.open.take() else { return };
        if self.frames.is_empty() && self.doubtful {
            self.passed.lines += 1;
            return;
        }
        if self.frames.is_empty() {
            // A sample without an address has a place all the same.
            self.frames.push(CostCentreId::ROOT);
        }
        let is_complete = begins_at_entry(&self.profile, self.frames.iter().rev().copied());
        let cut = (!is_complete).then(|| self.profile.truncated_cost_centre(TruncationReason::NoEntry));
        let table = self.profile.contexts_mut();
        let root_first = cut.iter().chain(self.frames.iter().rev());
        let context = root_first.fold(ContextId::ROOT, |context, &function| table.push(context, function));
        let mut weights = [0; MAX_METRICS];
        if let Some(weight) = weights.get_mut(metric) {
            *weight = period;
        }
        self.profile.charge(thread, context, LineId::UNKNOWN, &weights);
        let depth = self.frames.len() as u64;
        let accounting = self.profile.accounting_mut();
        accounting.received += 1;
        if !is_complete {
            accounting.count_truncated(TruncationReason::NoEntry);
        }
        accounting.unsymbolised += u64::from(self.unsymbolised);
        accounting.stacks.frames = accounting.stacks.frames.saturating_add(depth);
        accounting.stacks.max_depth = accounting.stacks.max_depth.max(depth);
    }
}
