//! Profiles of what another profiler has sampled: the text of `perf script`.
//!
//! perf has followed the stacks and knows the names; here its samples become contexts. What perf does not tell (how many
//! samples it should have taken, which stacks do not reach their root) is not known here either, and the profile says so.

use std::io::{self, BufRead};

use hashbrown::HashMap;

use crate::ids::{ContextId, CostCentreId, LineId, ThreadId};
use crate::limits::{Limits, MAX_METRICS};
use crate::model::{CostCentre, Image, Metric, Process, Session, Thread, Unit};
use crate::profile::Profile;
use crate::update::Update;

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

/// Longest line that is read; what follows in it is left out.
const LINE_BYTES: u64 = 256 << 10;
/// Frames of one sample beyond which its stack is given up, as a line of nothing but frames would else grow for ever.
const MOST_FRAMES: usize = 1 << 20;
/// Length of an interval of the profile, in nanoseconds of the samples' time.
const INTERVAL_NS: u64 = 1_000_000_000;

/// What is not a sample in the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Lines that are neither sample nor frame nor header.
    pub lines: u64,
    /// Samples of events that the header does not name, or beyond the number of metrics that a profile can have.
    pub samples: u64,
}

/// Reads the text of `perf script` with the options [`PERF_SCRIPT`] (the header may be missing) and gives `write` the profile's
/// session first and then its intervals. `session` says what the text does not; its start is taken for the time of the last sample,
/// and put back by how long the samples took where a header says so.
///
/// # Errors
/// Those of `input` and `write`; [`io::ErrorKind::InvalidData`] where there is no sample.
pub fn perf_script(
    mut input: impl BufRead,
    session: Session,
    mut write: impl FnMut(&Session, Option<&Update>) -> io::Result<()>,
) -> io::Result<(Profile, Passed)> {
    let mut header = Header { session, events: Vec::new() };
    let mut importer: Option<Importer> = None;
    let mut line = Vec::new();
    let mut unknown_before = 0;
    while read_line(&mut input, &mut line)? {
        let text = String::from_utf8_lossy(&line);
        if let Some(importer) = &mut importer {
            if let Some(update) = importer.line(&text) {
                write(importer.profile.session(), Some(&update))?;
            }
        } else if let Some(comment) = text.strip_prefix('#') {
            header.line(comment);
        } else if let Some((sample, _)) = Sample::parse(&text) {
            header.finish(&sample);
            write(&header.session, None)?;
            let mut new = Importer::new(std::mem::take(&mut header));
            new.passed.lines = unknown_before;
            let _ = new.line(&text);
            importer = Some(new);
        } else {
            unknown_before += u64::from(!text.trim().is_empty());
        }
    }
    let Some(mut importer) = importer else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "there is no sample in it"));
    };
    importer.charge();
    importer.profile.accounting_mut().duration_ns = importer.elapsed_ns;
    let update = importer.profile.take_update();
    write(importer.profile.session(), Some(&update))?;
    Ok((importer.profile, importer.passed))
}

/// The next line without its end; false where there is none.
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

/// What comes before the first sample.
#[derive(Default)]
struct Header {
    session: Session,
    events: Vec<String>,
}

impl Header {
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

    fn finish(&mut self, first: &Sample<'_>) {
        if self.events.is_empty() {
            self.events.push(first.event.to_owned());
        }
        self.events.dedup();
        self.events.truncate(MAX_METRICS);
        self.session.event = self.events.join(", ");
        self.session.metrics = self.events.iter().map(|event| metric(event)).collect();
        if self.session.target.is_empty() {
            first.comm.clone_into(&mut self.session.target);
        }
        self.session.pids = vec![first.pid];
        self.session
            .add_note("imported: perf followed the stacks, and does not say which of them end before their root");
        self.session.add_note(
            "imported: how many samples should have been taken is not known; inlined functions are not expanded",
        );
    }
}

impl Session {
    fn add_note(&mut self, note: &str) {
        if !self.notes.iter().any(|known| known == note) {
            self.notes.push(note.to_owned());
        }
    }
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

/// The first line of a sample.
struct Sample<'a> {
    comm: &'a str,
    pid: u32,
    tid: u32,
    time_ns: u64,
    period: u64,
    event: &'a str,
}

impl<'a> Sample<'a> {
    /// `comm pid/tid seconds: period event:`, and what follows.
    fn parse(line: &'a str) -> Option<(Sample<'a>, &'a str)> {
        let (before, time, after) = timed(line)?;
        let (comm, ids) = before.trim_end().rsplit_once(' ')?;
        // By itself perf prints the thread alone.
        let (pid, tid) = ids.split_once('/').unwrap_or((ids, ids));
        let (period, after) = after.trim_start().split_once(' ')?;
        let after = after.trim_start();
        let end =
            after.match_indices(':').find(|(at, _)| after[at + 1..].chars().next().is_none_or(char::is_whitespace))?.0;
        let sample = Sample {
            comm: comm.trim(),
            pid: pid.parse().ok()?,
            tid: tid.parse().ok()?,
            time_ns: time,
            period: period.parse().ok()?,
            event: after.get(..end)?,
        };
        Some((sample, after.get(end + 1..).unwrap_or_default().trim()))
    }
}

/// Splits a line at its time: a word such as `38348.268699:`.
fn timed(line: &str) -> Option<(&str, u64, &str)> {
    for (at, _) in line.match_indices(": ").chain(line.ends_with(':').then(|| (line.len() - 1, ":"))) {
        let start = line.get(..at)?.rfind(' ').map_or(0, |space| space + 1);
        let Some((seconds, fraction)) = line.get(start..at)?.split_once('.') else { continue };
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(seconds) || !digits(fraction) || fraction.len() > 9 {
            continue;
        }
        let scale = 10u64.pow(9 - fraction.len() as u32);
        let fraction = fraction.parse::<u64>().ok()?.checked_mul(scale)?;
        let time = seconds.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)?;
        return Some((line.get(..start)?, time, line.get(at + 1..)?));
    }
    None
}

struct Importer {
    profile: Profile,
    events: Vec<String>,
    passed: Passed,
    functions: HashMap<(String, String), CostCentreId>,
    started_ns: Option<u64>,
    elapsed_ns: u64,
    taken_ns: u64,
    /// The sample whose frames are being read: thread, metric, period.
    open: Option<(ThreadId, usize, u64)>,
    /// The frames that are being read are of a sample that is left out.
    passing: bool,
    /// Its frames, innermost first.
    frames: Vec<CostCentreId>,
    unsymbolised: bool,
}

impl Importer {
    fn new(header: Header) -> Importer {
        Importer {
            profile: Profile::new(header.session, Limits::default()),
            events: header.events,
            passed: Passed::default(),
            functions: HashMap::new(),
            started_ns: None,
            elapsed_ns: 0,
            taken_ns: 0,
            open: None,
            passing: false,
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
        if text.is_empty() {
            self.charge();
            self.passing = false;
            return None;
        }
        if self.passing && line.starts_with([' ', '\t']) {
            return None;
        }
        if line.starts_with([' ', '\t']) && self.open.is_some() && self.frame(text) {
            return None;
        }
        if let Some((sample, frame)) = Sample::parse(line) {
            self.charge();
            let update = self.time(sample.time_ns);
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

    fn open(&mut self, sample: &Sample<'_>) {
        let Some(metric) = self.events.iter().position(|event| event == sample.event) else {
            self.passed.samples += 1;
            self.passing = true;
            return;
        };
        self.passing = false;
        let name = || sample.comm.to_owned();
        let process = Process { pid: sample.pid, start_time: 0, exec_generation: 0, parent: None, name: name() };
        let process = self.profile.add_process(process);
        let thread = self.profile.add_thread(Thread { process, tid: sample.tid, name: name() });
        self.open = Some((thread, metric, sample.period));
        self.frames.clear();
        self.unsymbolised = false;
    }

    /// `ADDRESS NAME (IMAGE)`; false if it is something else.
    fn frame(&mut self, text: &str) -> bool {
        let Some((address, rest)) = text.split_once(' ') else { return false };
        if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return false;
        }
        let Some(rest) = rest.trim_end().strip_suffix(')') else { return false };
        // Of a file that has no name any more.
        let rest = rest.strip_suffix(" (deleted)").unwrap_or(rest);
        let Some((name, image)) = rest.rsplit_once(" (") else { return false };
        // Versions are no part of a name; an address is not one.
        let name = name.split("@@").next().unwrap_or(name).trim();
        self.unsymbolised |= self.frames.is_empty() && name == "[unknown]";
        let profile = &mut self.profile;
        let function = match self.functions.get(&(image.to_owned(), name.to_owned())) {
            Some(&function) => function,
            None => {
                let image_id = profile.add_image(Image { name: image.to_owned(), build_id: Vec::new() });
                let function = profile.add_cost_centre(CostCentre {
                    image: image_id,
                    linkage_name: Some(name.to_owned()),
                    display_name: None,
                    start: None,
                    file: None,
                    line: 0,
                });
                self.functions.insert((image.to_owned(), name.to_owned()), function);
                function
            }
        };
        if self.frames.len() < MOST_FRAMES {
            self.frames.push(function);
        }
        true
    }

    /// Charges the sample that is complete.
    fn charge(&mut self) {
        let Some((thread, metric, period)) = self.open.take() else { return };
        if self.frames.is_empty() {
            // A sample without an address has a place all the same.
            self.frames.push(CostCentreId::ROOT);
        }
        let table = self.profile.contexts_mut();
        let context =
            self.frames.iter().rev().fold(ContextId::ROOT, |context, &function| table.push(context, function));
        let mut weights = [0; MAX_METRICS];
        if let Some(weight) = weights.get_mut(metric) {
            *weight = period;
        }
        self.profile.charge(thread, context, LineId::UNKNOWN, &weights);
        let depth = self.frames.len() as u64;
        let accounting = self.profile.accounting_mut();
        accounting.received += 1;
        accounting.unsymbolised += u64::from(self.unsymbolised);
        accounting.frames = accounting.frames.saturating_add(depth);
        accounting.max_stack_depth = accounting.max_stack_depth.max(depth);
    }
}
