//! The thread of one watch: a session that follows its processes, and the segment that it writes.
//!
//! A segment is a session: both are replaced every hour, and when something must change (rate, clock, a full disk). So
//! symbols, contexts and descriptors never accumulate for longer.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ccsd_collector::system::lockable_bytes;
use ccsd_collector::{Budget, EventChoice, LeftOutPids, Options, ProcessFilter, Scope, Session, SessionEvent};
use ccsd_profile::Update;
use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use super::budget::BackoffStep;
use super::proc_stat::ScannedProcess;
use super::rules::WatchRule;
use super::short_lives::{ENOUGH_EXPECTED, Turnover, shortage};
use super::status::WatchStatus;
use crate::config::{WatchConfig, WatchEvent, WatchLayout};
use crate::store::{self, SEGMENT, SegmentWriter, WriteError};

/// Time without processes after which the session ends: its rings take memory, and its threads wake ten times a second.
const IDLE: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(30);
/// Maximum difference between wall clock and monotonic clock before a new segment starts.
const DRIFT_NS: u64 = 2_000_000_000;
/// The desired state of a follower, sent after every scan.
#[derive(Debug)]
pub struct Orders {
    pub found: Vec<ScannedProcess>,
    /// The watch; its rate and interval may have changed.
    pub watch: Arc<WatchConfig>,
    pub step: BackoffStep,
    pub reason: Arc<str>,
    /// Bytes after which another segment starts: with more watches, each has a smaller share.
    pub segment_bytes: u64,
    /// Bytes that the watch may have written in all since its thread began.
    pub writable: u64,
}

#[derive(Debug)]
pub struct Handle {
    /// Channel for orders. Dropping it ends the follower.
    pub orders: Sender<Orders>,
    pub status: Arc<Mutex<WatchStatus>>,
    /// Disconnected when the thread has ended.
    pub ended: Receiver<()>,
}

impl Handle {
    #[must_use]
    pub fn status(&self) -> WatchStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Clone, Debug)]
pub struct SegmentTarget {
    pub dir: PathBuf,
    /// Bytes after which another segment starts.
    pub segment_bytes: u64,
    /// Bytes that may be written to it in all.
    pub writable: u64,
}

impl SegmentTarget {
    /// Whether a segment can be created, `written` bytes having been written.
    fn room(&self, written: u64) -> Result<(), WriteError> {
        store::room(&self.dir)?;
        if self.writable.saturating_sub(written) < store::LEAST_SEGMENT {
            Err(WriteError::NoShare { dir: self.dir.clone() })
        } else {
            Ok(())
        }
    }

    /// Whether the present one may grow.
    fn room_for_more(&self, written: u64) -> Result<(), WriteError> {
        if written < self.writable { Ok(()) } else { self.room(written) }
    }
}

pub fn start(watch: Arc<WatchConfig>, rule: WatchRule, place: SegmentTarget) -> std::io::Result<Handle> {
    // A busy follower gets the orders of the next scan.
    let (orders, receiver) = bounded(1);
    let (alive, ended) = bounded(0);
    let status = WatchStatus { name: watch.name.0.clone(), ..WatchStatus::default() };
    let status = Arc::new(Mutex::new(status));
    let follower = Follower::new(watch, rule, place, Arc::clone(&status));
    std::thread::Builder::new().name("ccsd-follow".to_owned()).spawn(move || {
        // Held until the thread ends, however it ends.
        let _alive: Sender<()> = alive;
        follower.run(&receiver);
    })?;
    Ok(Handle { orders, status, ended })
}

struct RunningSession {
    session: Session,
    /// `None` while nothing can be written.
    segment: Option<SegmentWriter>,
    /// Whether an update is in it.
    is_written: bool,
    began: Instant,
    began_wall: u64,
    /// Whether it samples CPUs, and so finds processes by itself.
    by_cpu: bool,
    /// Counts of the session so far, for the totals of the watch.
    counted: SessionCounts,
}

#[derive(Clone, Copy, Default)]
struct SessionCounts {
    samples: u64,
    missing: u64,
    lost: u64,
    target_cpu_ns: u64,
    bytes: u64,
}

/// Samples that could not be written, since the last segment that was.
#[derive(Default)]
struct Unstored {
    samples: u64,
    since_unix_ns: u64,
}

impl Unstored {
    fn add(&mut self, samples: u64, from_unix_ns: u64) {
        if self.samples == 0 {
            self.since_unix_ns = from_unix_ns;
        }
        self.samples += samples;
    }

    /// For the next segment.
    fn note(&self, now_unix_ns: u64) -> Option<String> {
        let seconds = now_unix_ns.saturating_sub(self.since_unix_ns) / 1_000_000_000;
        let samples = self.samples;
        (samples > 0).then(|| {
            format!("{samples} samples of the {seconds} s before were not stored, as nothing could be written")
        })
    }
}

struct Follower {
    watch: Arc<WatchConfig>,
    /// Rule for all processes that start or change from now on.
    rule: Arc<WatchRule>,
    place: SegmentTarget,
    step: BackoffStep,
    reason: Arc<str>,
    found: Vec<ScannedProcess>,
    /// Of these, those about which the kernel did not answer: it is asked again at each look.
    silent: Vec<u32>,
    /// Processes whose events the kernel has refused, in the present session.
    refused: u64,
    /// Since when no process has matched and no sample has been received.
    idle_since: Option<Instant>,
    /// Why the processes are too short for events on threads.
    too_short: Option<String>,
    turnover: Turnover,
    refused_cpus: bool,
    /// Since when processes match and nothing is stored, as far as not yet counted.
    uncovered_since: Option<Instant>,
    /// Why the session was ended that the next one follows, if it could not take a process.
    begun_again: Option<String>,
    unstored: Unstored,
    running: Option<RunningSession>,
    retry_at: Instant,
    status: Arc<Mutex<WatchStatus>>,
}

impl Follower {
    fn new(
        watch: Arc<WatchConfig>,
        rule: WatchRule,
        place: SegmentTarget,
        status: Arc<Mutex<WatchStatus>>,
    ) -> Follower {
        Follower {
            watch,
            rule: Arc::new(rule),
            place,
            step: BackoffStep::default(),
            reason: "".into(),
            found: Vec::new(),
            silent: Vec::new(),
            refused: 0,
            idle_since: None,
            too_short: None,
            turnover: Turnover::default(),
            refused_cpus: false,
            uncovered_since: None,
            begun_again: None,
            unstored: Unstored::default(),
            running: None,
            retry_at: Instant::now(),
            status,
        }
    }

    fn run(mut self, orders: &Receiver<Orders>) {
        loop {
            let events = self.running.as_ref().map_or_else(never, |running| running.session.events().clone());
            select! {
                recv(events) -> event => match event {
                    Ok(SessionEvent::Update(update)) => {
                        self.update(&update);
                        self.review();
                    }
                    // A session that follows processes never finishes by itself: its threads have died.
                    Ok(SessionEvent::Finished(_)) | Err(_) => {
                        self.running = None;
                        self.retry_at = Instant::now() + RETRY;
                        self.problem(Some("the session ended by itself; it will be begun again".to_owned()));
                    }
                },
                recv(orders) -> orders => match orders {
                    Ok(orders) => self.apply(orders),
                    Err(_) => return self.end(),
                },
            }
        }
    }

    /// Bytes written since the thread began.
    fn written(&self) -> u64 {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }

    fn set(&self, change: impl FnOnce(&mut WatchStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn problem(&self, problem: Option<String>) {
        self.set(|status| {
            if status.problem != problem {
                match &problem {
                    Some(problem) => tracing::warn!(watch = %status.name, "watch {}: {problem}", status.name),
                    None => tracing::info!(watch = %status.name, "watch {}: it works again", status.name),
                }
                status.problem = problem;
            }
        });
    }

    fn apply(&mut self, orders: Orders) {
        let Orders { found, watch, step, reason, segment_bytes, writable } = orders;
        (self.place.segment_bytes, self.place.writable) = (segment_bytes, writable);
        let how = |watch: &WatchConfig, step| {
            (watch.rate_hz, watch.event, watch.overhead, watch.interval, watch.layout, step)
        };
        let changed = how(&watch, step) != how(&self.watch, self.step);
        if watch.layout != self.watch.layout {
            (self.too_short, self.refused_cpus, self.turnover) = (None, false, Turnover::default());
        }
        (self.watch, self.step, self.reason) = (watch, step, reason);
        if changed {
            self.end();
        }
        self.processes(found);
        self.count_uncovered();
    }

    /// Counts the time up to now in which nothing was stored, and begins or ends such a time.
    fn count_uncovered(&mut self) {
        let is_stored = self.running.as_ref().is_some_and(|running| running.segment.is_some());
        let next = (!self.found.is_empty() && !is_stored).then(Instant::now);
        if let Some(since) = std::mem::replace(&mut self.uncovered_since, next) {
            self.set(|status| status.uncovered_ns += u64::try_from(since.elapsed().as_nanos()).unwrap_or(0));
        }
    }

    fn processes(&mut self, found: Vec<ScannedProcess>) {
        self.set(|status| status.processes = found.len() as u64);
        let (new, gone) = changes(&mut self.found, found);
        self.log_changes(&new, &gone);
        self.turnover.add(self.found.len(), gone.len());
        self.silent.retain(|pid| !gone.contains(pid));
        self.count_left_out();
        if self.found.is_empty() && !self.watch.samples_cpus() {
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            if self.running.is_some() && since.elapsed() >= IDLE {
                self.begun_again = None;
                self.end();
            }
            return;
        }
        self.idle_since = None;
        match &self.running {
            None if Instant::now() >= self.retry_at => self.begin(),
            None => {}
            Some(running) if running.by_cpu || (new.is_empty() && self.silent.is_empty()) => {}
            Some(running) => match running.session.add(&[new, self.silent.clone()].concat()) {
                Ok(left_out) => self.leave_out(left_out),
                // Events of ended processes stay open until the session ends.
                Err(error) => {
                    let name = &self.watch.name.0;
                    tracing::info!(watch = %name, "watch {name}: a new segment, because {error}");
                    self.begun_again = Some(error.to_string());
                    self.restart();
                }
            },
        }
    }

    fn log_changes(&self, new: &[u32], gone: &[u32]) {
        let name = self.watch.name.0.as_str();
        for pid in new {
            tracing::debug!(watch = name, target_pid = pid, "watch {name}: follows PID {pid}");
        }
        for pid in gone {
            tracing::debug!(watch = name, target_pid = pid, "watch {name}: no longer follows PID {pid}");
        }
    }

    /// Notes who is not followed, and logs it once.
    fn leave_out(&mut self, left_out: LeftOutPids) {
        let LeftOutPids { refused, silent } = left_out;
        let name = &self.watch.name.0;
        if let Some(pid) = refused.first() {
            tracing::warn!(
                watch = %name,
                "watch {name}: the kernel refuses {} of its processes, PID {pid} among them (the service needs CAP_PERFMON and \
                 CAP_SYS_PTRACE)",
                refused.len(),
            );
        }
        let new: Vec<u32> = silent.iter().copied().filter(|pid| !self.silent.contains(pid)).collect();
        if let Some(pid) = new.first() {
            tracing::warn!(
                watch = %name,
                "watch {name}: the kernel does not answer about {} of its processes, PID {pid} among them, which may be kept from \
                 executing a program; it is asked again at each look",
                new.len(),
            );
        }
        self.refused += refused.len() as u64;
        self.silent = silent;
        self.count_left_out();
    }

    fn count_left_out(&self) {
        let all = self.refused + self.silent.len() as u64;
        self.set(|status| status.refused = all);
    }

    fn restart(&mut self) {
        self.end();
        if !self.found.is_empty() || self.watch.samples_cpus() || self.too_short.is_some() {
            self.begin();
        }
    }

    fn by_cpu(&self) -> bool {
        let by_choice = self.watch.layout == WatchLayout::Auto && self.too_short.is_some();
        self.watch.samples_cpus() || by_choice
    }

    fn begin(&mut self) {
        self.set(|status| {
            status.rate_hz = self.step.rate(self.watch.rate_hz.0);
            status.configured_rate_hz = self.watch.rate_hz.0;
        });
        self.refused = 0;
        self.count_left_out();
        let by_cpu = self.by_cpu();
        match self.session(by_cpu) {
            Ok((session, left_out)) => {
                self.leave_out(left_out);
                self.set(|status| {
                    status.rate_hz = session.info().rate_hz;
                    status.samples_cpus = by_cpu;
                    status.warning = None;
                });
                let mut info = session.info().clone();
                info.notes.extend(self.shed());
                info.notes.extend(self.unstored.note(unix_ns()));
                info.notes.extend(self.begun_again.take().map(|why| format!("the session was restarted: {why}")));
                if let Some(why) = self.too_short.as_ref().filter(|_| by_cpu && !self.watch.samples_cpus()) {
                    info.notes.push(format!("ccsd samples CPUs and drops samples of other processes: {why}"));
                }
                let place = &self.place;
                let segment = place.room(self.written()).and_then(|()| SegmentWriter::create(&place.dir, &info));
                let (segment, problem) = match segment {
                    Ok(segment) => (Some(segment), None),
                    Err(error) => (None, Some(not_stored(&error))),
                };
                self.problem(problem);
                self.set(|status| {
                    status.profiling = true;
                    status.segments += u64::from(segment.is_some());
                });
                session.set_generations(segment.is_some());
                // Both clocks are read at once; the session started a moment before.
                let (began, began_wall) = (Instant::now(), unix_ns());
                let counted = SessionCounts::default();
                let is_written = false;
                self.running =
                    Some(RunningSession { session, segment, is_written, began, began_wall, by_cpu, counted });
            }
            Err(error @ (ccsd_collector::Error::MachineRefused | ccsd_collector::Error::WholeMachineRefused))
                if by_cpu && !self.watch.samples_cpus() =>
            {
                let name = &self.watch.name.0;
                tracing::warn!(watch = %name, "watch {name}: cannot sample CPUs: {error}");
                self.refused_cpus = true;
                self.too_short = None;
                self.begin();
            }
            Err(error) => {
                self.retry_at = Instant::now() + RETRY;
                self.problem(Some(format!("cannot profile: {error}")));
            }
        }
    }

    fn session(&self, by_cpu: bool) -> ccsd_collector::Result<(Session, LeftOutPids)> {
        let rate_hz = self.step.rate(self.watch.rate_hz.0).min(ccsd_collector::system::perf_max_sample_rate());
        let options = |event| Options {
            event,
            scope: if self.step.user_only() { Scope::User } else { Scope::Auto },
            rate_hz,
            overhead: self.watch.overhead.map(|overhead| self.step.overhead(overhead.0)),
            interval: self.watch.interval.0,
            budget: budget(self.watch.memory.0),
            own_process: false,
            filter: (!self.rule.is_of_everything())
                .then(|| Arc::<WatchRule>::clone(&self.rule) as Arc<dyn ProcessFilter>),
            more_samples: "a higher rate_hz, or layout = \"cpus\" of the watch,",
            ..Options::default()
        };
        let pids: Vec<u32> = self.found.iter().map(|found| found.pid).collect();
        // The metric must be the same for all segments, to add them up; the TSC would need a third event per thread.
        let follow = |event| {
            let (options, name) = (options(event), self.watch.name.0.clone());
            match by_cpu {
                true => Session::on_machine(&options, name).map(|session| (session, LeftOutPids::default())),
                false => Session::follow(&options, name, &pids),
            }
        };
        match self.watch.event {
            WatchEvent::Auto => match follow(EventChoice::Cycles) {
                Err(ccsd_collector::Error::EventUnavailable { .. }) => follow(EventChoice::CpuClock),
                other => other,
            },
            WatchEvent::Cycles => follow(EventChoice::Cycles),
            WatchEvent::Clock => follow(EventChoice::CpuClock),
            WatchEvent::Tick => follow(EventChoice::Tick),
        }
    }

    /// Notes for the profile about what the budget took from this session.
    fn shed(&self) -> Vec<String> {
        let (step, configured) = (self.step, self.watch.rate_hz.0);
        let mut notes = Vec::new();
        if let Some(overhead) = self.watch.overhead.map(|overhead| overhead.0) {
            let (all, part) = (f64::from(overhead.as_ppm()) / 1e4, f64::from(step.overhead(overhead).as_ppm()) / 1e4);
            if part < all {
                notes.push(format!("{part}% of CPU time to spend instead of {all}%: {}", self.reason));
            }
        } else if step.rate(configured) != configured {
            let rate = step.rate(configured);
            notes.push(format!("{rate} instead of {configured} samples per second: {}", self.reason));
        }
        if step.user_only() {
            notes.push("user code only: the service has used up its budget".to_owned());
        }
        notes
    }

    fn update(&mut self, update: &Update) {
        for crash in &update.crashes {
            tracing::warn!(watch = %self.watch.name.0, "watch {}: {}", self.watch.name.0, crash.summary());
        }
        let written = self.written();
        let Some(running) = &mut self.running else { return };
        let mut problem = None;
        if let Some(mut segment) = running.segment.take() {
            match self.place.room_for_more(written).and_then(|()| segment.write(update)) {
                Ok(()) => running.segment = Some(segment),
                Err(error) => {
                    problem = Some(not_stored(&error));
                    match error {
                        WriteError::Removed { .. } => {}
                        // It has nothing but a head.
                        _ if !running.is_written => drop(std::fs::remove_file(segment.path())),
                        WriteError::NoShare { .. } | WriteError::NoRoom { .. } => {
                            problem = segment.finish().err().map(|error| not_stored(&error)).or(problem);
                        }
                        _ => {}
                    }
                    running.session.set_generations(false);
                }
            }
        }
        if running.segment.is_some() && !std::mem::replace(&mut running.is_written, true) {
            // The segment's head has them.
            self.unstored = Unstored::default();
        }
        let accounting = &update.accounting;
        let now = SessionCounts {
            samples: accounting.received,
            missing: accounting.missing(),
            lost: accounting.known_missing(),
            target_cpu_ns: accounting.target_cpu_ns.unwrap_or(0),
            bytes: running.segment.as_ref().map_or(running.counted.bytes, SegmentWriter::bytes),
        };
        let before = std::mem::replace(&mut running.counted, now);
        let stored = running.segment.is_some();
        let unstored = if stored { 0 } else { now.samples.saturating_sub(before.samples) };
        self.unstored.add(unstored, running.began_wall.saturating_add(update.from_ns));
        let by_cpu = running.by_cpu;
        if now.samples > before.samples {
            self.idle_since = None;
        }
        let warning = shortage(accounting).map(|(samples, expected)| {
            let remedy = match (by_cpu, accounting.undelivered() > accounting.known_missing()) {
                (true, _) | (false, false) => "shares are of those",
                (false, true) => "its processes live too short to be followed: set layout = \"cpus\" for this watch",
            };
            format!("only {samples} of {expected} expected samples arrived: {remedy}")
        });
        self.set(|status| {
            if accounting.pace.last_hz > 0 {
                status.rate_hz = accounting.pace.last_hz;
            }
            status.samples += now.samples.saturating_sub(before.samples);
            status.unstored += unstored;
            status.missing += now.missing.saturating_sub(before.missing);
            status.lost += now.lost.saturating_sub(before.lost);
            status.target_cpu_ns += now.target_cpu_ns.saturating_sub(before.target_cpu_ns);
            status.bytes += now.bytes.saturating_sub(before.bytes);
            if stored {
                status.last_written = unix_ns() / 1_000_000_000;
            }
            if status.warning.is_none()
                && let Some(warning) = &warning
            {
                tracing::warn!(watch = %status.name, "watch {}: {warning}", status.name);
            }
            status.warning = warning;
        });
        if problem.is_some() {
            self.problem(problem);
        }
    }

    fn review(&mut self) {
        let Some(running) = &self.running else { return };
        let elapsed = running.began.elapsed();
        let expected = running.began_wall.saturating_add(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        let full = match &running.segment {
            Some(segment) => segment.bytes() >= self.place.segment_bytes,
            None => match self.place.room(self.written()) {
                Ok(()) => true,
                Err(error) => {
                    self.problem(Some(not_stored(&error)));
                    false
                }
            },
        };
        let set = clock_change(expected, unix_ns());
        if let Some(set) = &set {
            let name = &self.watch.name.0;
            tracing::info!(watch = %name, "watch {name}: {set}: a new segment");
        }
        if full || elapsed >= SEGMENT || set.is_some() || self.finds_too_short() {
            self.restart();
        }
    }

    /// Decides that the processes live too short for events on threads, if the watch leaves that open.
    fn finds_too_short(&mut self) -> bool {
        let Some(running) = self.running.as_ref().filter(|running| !running.by_cpu) else { return false };
        if self.watch.layout != WatchLayout::Auto || self.watch.event == WatchEvent::Tick || self.refused_cpus {
            return false;
        }
        let SessionCounts { samples, missing, lost, .. } = running.counted;
        let (expected, undelivered) = (samples.saturating_add(missing), missing.saturating_sub(lost));
        let too_few = expected >= ENOUGH_EXPECTED && undelivered > samples;
        let few = || format!("of short processes only {samples} of {expected} expected samples arrived");
        let Some(why) = too_few.then(few).or_else(|| self.turnover.describe_if_high()) else { return false };
        let name = &self.watch.name.0;
        tracing::info!(watch = %name, "watch {name}: {why}: ccsd samples CPUs from now on");
        self.too_short = Some(why);
        true
    }

    fn end(&mut self) {
        let Some(running) = &self.running else { return };
        running.session.stop(None);
        let events = running.session.events().clone();
        while let Ok(SessionEvent::Update(update)) = events.recv() {
            self.update(&update);
        }
        let segment = self.running.take().and_then(|running| running.segment);
        self.set(|status| status.profiling = false);
        if let Some(Err(error)) = segment.map(SegmentWriter::finish) {
            self.problem(Some(not_stored(&error)));
        }
    }
}

/// A watch's memory. Where little may be locked, its rings leave some to other watches and to sessions.
fn budget(memory: u64) -> Budget {
    /// One part in this many of what may be locked; half of it is the users'.
    const PARTS: u64 = 16;
    let mut budget = Budget::of(memory);
    budget.rings = budget.rings.min(usize::try_from(lockable_bytes() / PARTS).unwrap_or(usize::MAX));
    budget
}

/// Replaces the known processes. Returns new and gone ids; a reused id is both.
fn changes(known: &mut Vec<ScannedProcess>, mut found: Vec<ScannedProcess>) -> (Vec<u32>, Vec<u32>) {
    found.sort_unstable();
    found.dedup();
    let missing = |from: &[ScannedProcess], of: &[ScannedProcess]| -> Vec<u32> {
        of.iter().filter(|process| from.binary_search(process).is_err()).map(|process| process.pid).collect()
    };
    let changes = (missing(known, &found), missing(&found, known));
    *known = found;
    changes
}

/// In words, by how much the clock was set, if it was: a suspended machine looks the same.
fn clock_change(expected_ns: u64, now_ns: u64) -> Option<String> {
    let drift = now_ns.abs_diff(expected_ns);
    let direction = if now_ns < expected_ns { "back" } else { "forward" };
    (drift > DRIFT_NS).then(|| format!("the clock was set {direction} by {} ms", drift / 1_000_000))
}

fn not_stored(error: &WriteError) -> String {
    format!("profiling goes on, but nothing is stored: {error}")
}

fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_as_large_as_the_last_orders_say() {
        let text = b"[[watch]]\nname = \"x\"\ncomm = \"x\"\n";
        let config = crate::config::Config::parse(text, std::path::Path::new("x")).unwrap();
        let watch = Arc::new(config.watches.into_iter().next().unwrap());
        let rule = WatchRule::new(&watch, |_| None);
        let place = SegmentTarget { dir: PathBuf::from("/nonexistent"), segment_bytes: 1 << 20, writable: 1 << 20 };
        let mut follower = Follower::new(Arc::clone(&watch), rule, place, Arc::default());
        let orders = Orders {
            found: Vec::new(),
            watch,
            step: BackoffStep::default(),
            reason: "".into(),
            segment_bytes: 1 << 16,
            writable: 1 << 17,
        };
        follower.apply(orders);
        assert_eq!((follower.place.segment_bytes, follower.place.writable), (1 << 16, 1 << 17));
    }

    #[test]
    fn a_change_of_the_clock_has_a_direction() {
        let second = 1_000_000_000;
        assert_eq!(clock_change(100 * second, 97 * second).unwrap(), "the clock was set back by 3000 ms");
        assert_eq!(clock_change(100 * second, 3700 * second).unwrap(), "the clock was set forward by 3600000 ms");
        assert_eq!(clock_change(100 * second, 101 * second), None);
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let process = |pid, start_time| ScannedProcess { pid, start_time };
        let mut known = Vec::new();
        let mut next = |found: &[ScannedProcess]| changes(&mut known, found.to_vec());
        assert_eq!(next(&[process(9, 1), process(7, 5)]), (vec![7, 9], vec![]));
        assert_eq!(next(&[process(7, 5), process(9, 1)]), (vec![], vec![]));
        assert_eq!(next(&[process(9, 1), process(7, 6), process(7, 6)]), (vec![7], vec![7]));
        assert_eq!(next(&[process(7, 5)]), (vec![7], vec![7, 9]));
        assert_eq!(next(&[]), (vec![], vec![7]));
    }
}
