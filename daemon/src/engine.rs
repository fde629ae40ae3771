//! One collection from its request to its outcome.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ccsd_collector::child::{ChildEnd, RunningChild, WaitingChild};
use ccsd_collector::procfs;
use ccsd_collector::{Error, Options, ProcessSelection, Session, SessionEvent, without_arguments};
use ccsd_profile::{Accounting, DecodeError, Loaded, Profile, SessionInfo, Update, Updates, read_profile};
use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};

use crate::client::ClientError;
use crate::output::{OutputError, OutputFile};
use crate::protocol::message::{self, Collect, RefusalKind, SessionEnd};
use crate::remote::{RemoteEvent, RemoteSession};

/// What to collect from.
#[derive(Clone, Debug)]
pub enum CollectTarget {
    /// A program to be started: its name and arguments.
    Command(Vec<OsString>),
    /// Processes that run already.
    Pids(Vec<u32>),
    /// The selected processes of all that run on the machine; if there is a program, as long as that runs.
    Machine {
        /// Which processes.
        selection: ProcessSelection,
        /// The program, its name and arguments; empty for none.
        command: Vec<OsString>,
    },
}

/// The request.
#[derive(Clone, Debug)]
pub struct CollectRequest {
    /// From what.
    pub target: CollectTarget,
    /// How.
    pub options: Options,
    /// Where the profile goes; `None` for nowhere.
    pub output: Option<PathBuf>,
    /// When collecting ends by itself. A started program goes on running.
    pub duration: Option<Duration>,
    /// By whom.
    pub by: CollectorChoice,
    /// Receives the signal whenever job control stops the program, which then gets a process group of its own: the
    /// receiver acts as its shell.
    pub stops: Option<Sender<i32>>,
}

/// By whom is collected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CollectorChoice {
    /// Sockets of daemons that are asked first, in this order.
    pub daemons: Vec<PathBuf>,
    /// Whether it has to be a daemon; else this process does it where no daemon can.
    pub daemon_only: bool,
}

/// Why a collection cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The collector failed.
    #[error(transparent)]
    Collector(#[from] Error),
    /// The daemon that has to do it does not.
    #[error(transparent)]
    Daemon(#[from] ClientError),
}

/// What a collection brings.
#[derive(Debug)]
pub enum Progress<'a> {
    /// Drop earlier updates: the next one holds the whole profile.
    Restart,
    /// What came since.
    Update(&'a Update),
}

/// A request to end the collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopRequest;

/// Progress of a collection.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Since the collection began.
    pub elapsed: Duration,
    /// Counts so far.
    pub accounting: Accounting,
    /// Contexts in the table.
    pub contexts: u64,
}

/// Outcome of a collection.
pub struct Outcome {
    /// Everything collected.
    pub profile: Profile,
    /// The file, if one was asked for and could be created.
    pub file: Option<OutputFile>,
    /// Why it could not.
    pub file_error: Option<OutputError>,
    /// The program's end, if it has ended before the collection did.
    pub child: Option<ChildEnd>,
    /// Why the daemon that collected ended it before it was asked to, if it did.
    pub early: Option<String>,
    /// Whether the daemon has gone without a word, so that the last of it may be missing.
    pub broke_off: bool,
    running: Option<Receiver<ChildEnd>>,
}

/// A collection: everything ready, or under way.
pub struct Collection {
    source: Collector,
    passed_over: Vec<ClientError>,
    waiting: Option<WaitingProgram>,
    child: Option<RunningChild>,
    child_end: Receiver<ChildEnd>,
    output_path: Option<PathBuf>,
    output: Option<OutputFile>,
    output_error: Option<OutputError>,
    duration: Option<Duration>,
    started: Instant,
}

/// A program that has yet to start, and the thread that will wait for its end.
struct WaitingProgram {
    child: WaitingChild,
    started: Sender<RunningChild>,
}

enum Collector {
    Here(Box<Session>),
    Daemon(Box<RemoteSession>),
}

impl Collector {
    fn info(&self) -> &SessionInfo {
        match self {
            Collector::Here(session) => session.info(),
            Collector::Daemon(session) => session.info(),
        }
    }

    /// Asks for the end. The CPU time of the recorded program, user and in all, in nanoseconds, if known.
    fn stop(&mut self, target_cpu_ns: Option<(u64, u64)>) {
        match self {
            Collector::Here(session) => session.stop_with(target_cpu_ns),
            Collector::Daemon(session) => session.stop(target_cpu_ns),
        }
    }

    /// Where the events come from: of these channels one never has any.
    fn events(&self) -> (Receiver<SessionEvent>, Receiver<RemoteEvent>) {
        match self {
            Collector::Here(session) => (session.events().clone(), never()),
            Collector::Daemon(session) => (never(), session.events().clone()),
        }
    }
}

impl Collection {
    /// Prepares events, rings and threads. Processes are attached to; a program waits for [`Collection::start`].
    ///
    /// # Errors
    /// Those of [`Session::record`] and [`Session::attach`], and that of the daemon if one has to do it; nothing runs
    /// then.
    pub fn prepare(request: CollectRequest) -> Result<Collection, PrepareError> {
        // Before anything else: the child must not inherit what is opened or raised below.
        let child = match &request.target {
            CollectTarget::Machine { command, .. } if command.is_empty() => None,
            CollectTarget::Command(command) | CollectTarget::Machine { command, .. } if request.stops.is_some() => {
                Some(WaitingChild::spawn_in_own_group(command)?)
            }
            CollectTarget::Command(command) | CollectTarget::Machine { command, .. } => {
                Some(WaitingChild::spawn(command)?)
            }
            CollectTarget::Pids(pids) => match pids.iter().find(|&&pid| pid == std::process::id()) {
                Some(&own) => return Err(Error::Itself(own).into()),
                None => None,
            },
        };
        let (source, passed_over) = source(&request, child.as_ref())?;
        let (mut waiting, mut child_end) = (None, never());
        if let Some(child) = child {
            let (started, end) = wait_in_background(request.stops)?;
            waiting = Some(WaitingProgram { child, started });
            child_end = end;
        }
        Ok(Collection {
            source,
            passed_over,
            waiting,
            child: None,
            child_end,
            output_path: request.output,
            output: None,
            output_error: None,
            duration: request.duration,
            started: Instant::now(),
        })
    }

    /// The daemons that were there and did not do it, and why not.
    pub fn passed_over(&self) -> &[ClientError] {
        &self.passed_over
    }

    /// The daemon that does it, by its socket, and the session's number there; `None` if this process does.
    pub fn daemon(&self) -> Option<(&Path, u32)> {
        match &self.source {
            Collector::Here(_) => None,
            Collector::Daemon(session) => Some((session.path(), session.id())),
        }
    }

    /// Starts the program and the profile file. Collecting goes on if the file fails; see [`Collection::output_error`].
    ///
    /// # Errors
    /// [`Error::ProgramNotFound`], [`Error::ProgramNotExecutable`]; nothing has been written then.
    pub fn start(&mut self) -> Result<(), Error> {
        if let Some(waiting) = self.waiting.take() {
            let child = waiting.child.start()?;
            self.child = Some(child);
            let _ = waiting.started.send(child);
        }
        self.started = Instant::now();
        if let Some(path) = &self.output_path {
            match OutputFile::create(path, self.source.info()) {
                Ok(file) => {
                    if let Collector::Here(session) = &self.source {
                        session.set_generations(file.is_named());
                    }
                    self.output = Some(file);
                }
                Err(error) => self.output_error = Some(error),
            }
        }
        Ok(())
    }

    /// The program, started or not.
    pub fn child_pid(&self) -> Option<u32> {
        self.waiting.as_ref().map(|waiting| waiting.child.pid()).or(self.child.map(|child| child.pid))
    }

    /// The session that is being collected.
    pub fn info(&self) -> &SessionInfo {
        self.source.info()
    }

    /// Why there is no profile file, if one was asked for.
    pub fn output_error(&self) -> Option<&OutputError> {
        self.output_error.as_ref()
    }

    /// Collects until the target ends, the duration is over, or `stop` says so; `status` is called after every update.
    pub fn run(self, stop: &Receiver<StopRequest>, mut status: impl FnMut(&Status)) -> Outcome {
        self.run_with(stop, |_, now| status(now))
    }

    /// Like `run`, and passes on the updates.
    pub fn run_with(
        mut self,
        stop: &Receiver<StopRequest>,
        mut progress: impl FnMut(Progress<'_>, &Status),
    ) -> Outcome {
        let timer = self.duration.map_or_else(never, |duration| after(duration.saturating_sub(self.started.elapsed())));
        let (here, daemon) = self.source.events();
        let (mut child, mut early, mut broke_off) = (None, None, false);
        let mut stop = stop.clone();
        let mut asked = false;
        // What could not be written, where the profile in memory may not have all that was.
        let mut unwritten = Unwritten::default();
        let profile = loop {
            let update = select! {
                recv(here) -> event => match event {
                    Ok(SessionEvent::Update(update)) => update,
                    Ok(SessionEvent::Finished(profile)) => break *profile,
                    // The collector's threads are gone without a word: what has been written is all there is.
                    Err(_) => break Profile::new(self.source.info().clone(), Default::default()),
                },
                recv(daemon) -> event => match event {
                    Ok(RemoteEvent::Update(update)) => update,
                    Ok(RemoteEvent::Restart) => {
                        if let Some(output) = &mut self.output {
                            output.restart(self.source.info());
                        }
                        progress(Progress::Restart, &Status::default());
                        continue;
                    }
                    Ok(RemoteEvent::Finished(profile, why)) => {
                        broke_off = why.is_err();
                        early = why_early(why, asked);
                        break *profile;
                    }
                    Err(_) => break Profile::new(self.source.info().clone(), Default::default()),
                },
                recv(self.child_end) -> end => {
                    child = end.ok();
                    self.child_end = never();
                    self.source.stop(child.as_ref().map(ChildEnd::cpu_ns));
                    asked = true;
                    continue;
                }
                recv(timer) -> _ => {
                    self.source.stop(None);
                    asked = true;
                    continue;
                }
                recv(stop) -> message => {
                    if message.is_err() {
                        stop = never();
                    } else {
                        self.source.stop(None);
                        asked = true;
                    }
                    continue;
                }
            };
            if let Some(output) = &mut self.output {
                output.write(&update);
                if let (Collector::Here(session), Some(_)) = (&self.source, output.error()) {
                    // What comes is nowhere but in memory.
                    session.set_generations(false);
                    unwritten.add(&update);
                }
            }
            let status = Status {
                elapsed: self.started.elapsed(),
                contexts: u64::from(update.base.contexts).saturating_add(update.contexts.len() as u64),
                accounting: update.accounting.clone(),
            };
            progress(Progress::Update(&update), &status);
        };
        let mut profile = profile;
        if let Some(output) = &mut self.output {
            output.finish();
            if profile.has_generations() && matches!(self.source, Collector::Here(_)) {
                profile = whole(profile, File::open(output.path()), output.path(), unwritten);
            }
        }
        if let Collector::Daemon(session) = self.source {
            session.forget();
        }
        let running = (child.is_none() && self.child.is_some()).then_some(self.child_end);
        Outcome { profile, file: self.output, file_error: self.output_error, child, early, broke_off, running }
    }
}

/// The first daemon that does it, or this process; and those that were there and do not.
fn source(
    request: &CollectRequest,
    child: Option<&WaitingChild>,
) -> Result<(Collector, Vec<ClientError>), PrepareError> {
    let collect = Collect::of(&request.options);
    let words = |command: &[OsString]| command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (asked, command) = match (&request.target, child) {
        (CollectTarget::Command(command), Some(child)) => {
            let mut command: Vec<String> = words(command);
            if !request.options.arguments {
                command = without_arguments(command);
            }
            // The daemon needs no arguments, and may not be meant to know them.
            let known = without_arguments(command.clone());
            (message::Request::Adopt { pid: child.pid(), command: known, collect }, command)
        }
        (CollectTarget::Pids(pids), _) => {
            let attach = message::Request::attach(pids.clone(), collect, None, false);
            let known = request.options.arguments.then(|| pids.first().map(|&pid| procfs::command_line(pid)));
            (attach, known.flatten().unwrap_or_default())
        }
        (CollectTarget::Machine { selection, .. }, _) => {
            let selection = selection.clone();
            (message::Request::Machine { selection, collect, duration_ms: None, detach: false }, Vec::new())
        }
        (CollectTarget::Command(_), None) => return Err(Error::ProgramNotFound(String::new()).into()),
    };
    let mut passed_over = Vec::new();
    let mut none = None;
    for path in &request.by.daemons {
        match RemoteSession::start(path, &asked, &command) {
            Ok(session) => return Ok((Collector::Daemon(Box::new(session)), passed_over)),
            Err(ClientError::Refused(refusal)) if refusal.kind == RefusalKind::BadRequest => {
                return Err(ClientError::Refused(refusal).into());
            }
            Err(error @ ClientError::None(_)) => none = none.or(Some(error)),
            Err(error) => passed_over.push(error),
        }
    }
    if request.by.daemon_only {
        let error = passed_over.into_iter().next().or(none).unwrap_or_else(|| ClientError::None(PathBuf::new()));
        return Err(error.into());
    }
    let session = match (&request.target, child) {
        (CollectTarget::Pids(pids), _) => Session::attach(&request.options, pids)?,
        (CollectTarget::Machine { selection, .. }, _) => Session::machine(&request.options, selection)?,
        (CollectTarget::Command(_), child) => {
            Session::record_child(&request.options, command, child.map_or(0, WaitingChild::pid))?
        }
    };
    Ok((Collector::Here(Box::new(session)), passed_over))
}

#[derive(Debug, Default)]
struct Unwritten {
    /// No larger than the profile in memory: without generations what comes together stays so.
    updates: Updates,
    is_incomplete: bool,
}

impl Unwritten {
    fn add(&mut self, update: &Update) {
        self.is_incomplete |= self.updates.add(update).is_err();
    }
}

/// All that a file has and all that could not be written to it, where the profile in memory is only the last generation.
fn whole(mut last: Profile, file: io::Result<File>, path: &Path, unwritten: Unwritten) -> Profile {
    let started = last.session().started_unix_ns;
    let only_last = |why: String| {
        last.add_note(&format!("only what was collected last: {} {why}", path.display()));
        last
    };
    let mut profile = match file.map_err(DecodeError::from).and_then(read_profile) {
        Ok(Loaded { profile, .. }) if profile.session().started_unix_ns == started => profile,
        Ok(_) => return only_last("is another profile".to_owned()),
        Err(error) => return only_last(format!("cannot be read: {error}")),
    };
    let Unwritten { updates, mut is_incomplete } = unwritten;
    for update in updates {
        // Where the disk was full within an update of several records, the rest of that is lost.
        is_incomplete |= profile.apply(&update).is_err();
    }
    if is_incomplete {
        profile.add_note("a part of what could not be written to the file is not shown");
    }
    profile
}

fn why_early(why: Result<SessionEnd, ClientError>, asked: bool) -> Option<String> {
    match why {
        Ok(SessionEnd::Target | SessionEnd::Duration) => None,
        Ok(SessionEnd::Stopped | SessionEnd::ClientGone) if asked => None,
        Ok(SessionEnd::Stopped) => Some("another client has stopped the session".to_owned()),
        Ok(other) => Some(other.text()),
        Err(error) => Some(error.to_string()),
    }
}

impl Outcome {
    /// Where the end of a program will be told that was still running when the collection ended.
    pub fn child_end(&self) -> Option<Receiver<ChildEnd>> {
        self.running.clone()
    }
}

/// A thread that waits for a program once it has started, as waiting blocks. Says where it reports the end.
fn wait_in_background(stops: Option<Sender<i32>>) -> Result<(Sender<RunningChild>, Receiver<ChildEnd>), Error> {
    let (started, started_receiver) = bounded::<RunningChild>(1);
    let (ended, ended_receiver) = bounded(1);
    let wait = move || {
        let Ok(child) = started_receiver.recv() else { return };
        let end = child.wait_and_tell(|signal| {
            if let Some(stops) = &stops {
                let _ = stops.send(signal);
            }
        });
        if let Ok(end) = end {
            let _ = ended.send(end);
        }
    };
    std::thread::Builder::new()
        .name("ccsd-wait".to_owned())
        .spawn(wait)
        .map_err(|error| Error::system("start a thread", error))?;
    Ok((started, ended_receiver))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use ccsd_profile::{ContextId, CostCentre, Encoder, ImageId, LineId, Metric, Process, ProfileLimits, Thread, Unit};

    use super::*;

    fn generations(started_unix_ns: u64) -> (Profile, Vec<Update>, Profile) {
        let metrics = vec![Metric { name: "cpu-clock".to_owned(), unit: Unit::Nanoseconds }];
        let session = SessionInfo { metrics, started_unix_ns, ..SessionInfo::default() };
        let mut collector = Profile::new(session.clone(), ProfileLimits::default());
        let mut all = Profile::new(session, ProfileLimits::reading());
        let name = || "demo".to_owned();
        let process = collector.add_process(Process::new(7, 1, name()));
        let thread = collector.add_thread(Thread { process, tid: 7, name: name() });
        let mut updates = Vec::new();
        for number in 0..6u64 {
            let function = collector
                .add_cost_centre(CostCentre { line: 1, ..CostCentre::named(ImageId::CCSD, format!("f{number}")) });
            let context = collector.contexts_mut().push(ContextId::ROOT, function);
            collector.charge(thread, context, LineId::UNKNOWN, &[number + 1]);
            let update = collector.take_update();
            all.apply(&update).unwrap();
            updates.push(update);
            if number % 2 == 1 && number < 5 {
                collector.begin_generation();
            }
        }
        (collector, updates, all)
    }

    #[test]
    fn an_unwritable_profile_is_shown() {
        for written in 0..=6 {
            let (collector, updates, all) = generations(5);
            let mut encoder = Encoder::new(tempfile::tempfile().unwrap(), collector.session()).unwrap();
            let mut unwritten = Unwritten::default();
            for (number, update) in updates.iter().enumerate() {
                if number < written {
                    encoder.write(update).unwrap();
                } else {
                    unwritten.add(update);
                }
            }
            let mut file = encoder.get_ref().try_clone().unwrap();
            io::Seek::rewind(&mut file).unwrap();
            let profile = whole(collector, Ok(file), Path::new("x"), unwritten);
            assert_eq!(profile.canonical(), all.canonical(), "{written}");
            assert_eq!(profile.session().notes, [""; 0]);
        }
    }

    #[test]
    fn missing_parts_are_noted() {
        let file = |started: u64, updates: usize| {
            let (collector, list, _) = generations(started);
            let mut encoder = Encoder::new(tempfile::tempfile().unwrap(), collector.session()).unwrap();
            list.iter().take(updates).for_each(|update| encoder.write(update).unwrap());
            let mut file = encoder.get_ref().try_clone().unwrap();
            io::Seek::rewind(&mut file).unwrap();
            Ok(file)
        };
        let notes = |file, unwritten: usize| {
            let (collector, list, _) = generations(5);
            let mut rest = Unwritten::default();
            list.iter().skip(unwritten).for_each(|update| rest.add(update));
            whole(collector, file, Path::new("x"), rest).session().notes.clone()
        };
        assert!(notes(file(6, 6), 6)[0].contains("x is another profile"));
        assert!(notes(Err(io::ErrorKind::NotFound.into()), 6)[0].contains("cannot be read"));
        assert!(notes(file(5, 2), 3)[0].contains("is not shown"));
    }
}
