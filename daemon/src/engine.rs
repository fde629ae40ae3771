//! One collection from its request to its outcome.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ccsd_collector::child::{ChildEnd, RunningChild, WaitingChild};
use ccsd_collector::{Error, Options, Session, SessionEvent};
use ccsd_profile::{Accounting, Profile, Session as SessionInfo};
use crossbeam_channel::{Receiver, Sender, after, bounded, never, select};

use crate::output::{OutputError, OutputFile};

/// What to collect from.
#[derive(Clone, Debug)]
pub enum Target {
    /// A program to be started: its name and arguments.
    Command(Vec<OsString>),
    /// Processes that run already.
    Pids(Vec<u32>),
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// From what.
    pub target: Target,
    /// How.
    pub options: Options,
    /// Where the profile goes; `None` for nowhere.
    pub output: Option<PathBuf>,
    /// When collecting ends by itself. A started program goes on running.
    pub duration: Option<Duration>,
}

/// Somebody asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop;

/// How it is going.
#[derive(Clone, Debug)]
pub struct Status {
    /// Since the collection began.
    pub elapsed: Duration,
    /// Counts so far.
    pub accounting: Accounting,
    /// Contexts in the table.
    pub contexts: u64,
}

/// How it ended.
pub struct Outcome {
    /// Everything collected.
    pub profile: Profile,
    /// The file, if one was asked for and could be created.
    pub file: Option<OutputFile>,
    /// Why it could not.
    pub file_error: Option<OutputError>,
    /// The program's end, if it has ended before the collection did.
    pub child: Option<ChildEnd>,
    /// Where the end of a program will be told that still runs.
    running: Option<Receiver<ChildEnd>>,
}

/// A collection: everything ready, or under way.
pub struct Collection {
    session: Session,
    waiting: Option<Waiting>,
    child: Option<RunningChild>,
    child_end: Receiver<ChildEnd>,
    output_path: Option<PathBuf>,
    output: Option<OutputFile>,
    output_error: Option<OutputError>,
    duration: Option<Duration>,
    started: Instant,
}

/// A program that has yet to start, and the thread that will wait for its end.
struct Waiting {
    child: WaitingChild,
    started: Sender<RunningChild>,
}

impl Collection {
    /// Makes everything ready: events, rings, threads. Processes are attached to; a program waits for
    /// [`Collection::start`]. After this, little is left that can fail while it runs.
    ///
    /// # Errors
    /// Those of [`Session::record`] and [`Session::attach`]; nothing runs then.
    pub fn prepare(request: Request) -> Result<Collection, Error> {
        let (mut waiting, mut child_end) = (None, never());
        let session = match &request.target {
            Target::Command(command) => {
                let (session, child) = Session::record(&request.options, command)?;
                let (started, end) = wait_in_background()?;
                waiting = Some(Waiting { child, started });
                child_end = end;
                session
            }
            Target::Pids(pids) => Session::attach(&request.options, pids)?,
        };
        Ok(Collection {
            session,
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

    /// Starts the program, if there is one, and the profile file. A file that cannot be created does not prevent
    /// collecting; see [`Collection::output_error`].
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
            match OutputFile::create(path, self.session.info()) {
                Ok(file) => self.output = Some(file),
                Err(error) => self.output_error = Some(error),
            }
        }
        Ok(())
    }

    /// The program, started or not.
    pub fn child_pid(&self) -> Option<u32> {
        self.waiting.as_ref().map(|waiting| waiting.child.pid()).or(self.child.map(|child| child.pid))
    }

    /// What is being collected.
    pub fn info(&self) -> &SessionInfo {
        self.session.info()
    }

    /// Why there is no profile file, if one was asked for.
    pub fn output_error(&self) -> Option<&OutputError> {
        self.output_error.as_ref()
    }

    /// Collects until the target ends, the duration is over, or `stop` says so; `status` is called after every update.
    pub fn run(mut self, stop: &Receiver<Stop>, mut status: impl FnMut(&Status)) -> Outcome {
        let timer = self.duration.map_or_else(never, |duration| after(duration.saturating_sub(self.started.elapsed())));
        let events = self.session.events().clone();
        let mut child = None;
        let mut stop = stop.clone();
        let profile = loop {
            select! {
                recv(events) -> event => match event {
                    Ok(SessionEvent::Update(update)) => {
                        if let Some(output) = &mut self.output {
                            output.write(&update);
                        }
                        status(&Status {
                            elapsed: self.started.elapsed(),
                            contexts: u64::from(update.base.contexts).saturating_add(update.contexts.len() as u64),
                            accounting: update.accounting.clone(),
                        });
                    }
                    Ok(SessionEvent::Finished(profile)) => break *profile,
                    // The collector's threads are gone without a word: what has been written is all there is.
                    Err(_) => break Profile::new(self.session.info().clone(), Default::default()),
                },
                recv(self.child_end) -> end => {
                    child = end.ok();
                    self.child_end = never();
                    self.session.stop(child.as_ref());
                }
                recv(timer) -> _ => self.session.stop(None),
                recv(stop) -> message => {
                    // A sender that has gone away asks for nothing any more.
                    if message.is_err() {
                        stop = never();
                    } else {
                        self.session.stop(None);
                    }
                }
            }
        };
        if let Some(output) = &mut self.output {
            output.finish();
        }
        let running = (child.is_none() && self.child.is_some()).then_some(self.child_end);
        Outcome { profile, file: self.output, file_error: self.output_error, child, running }
    }
}

impl Outcome {
    /// Where the end of a program will be told that was still running when the collection ended.
    pub fn child_end(&self) -> Option<Receiver<ChildEnd>> {
        self.running.clone()
    }
}

/// A thread that waits for a program once it is told that it has started, because a process can be waited for only by
/// blocking. Where it says what came of it.
fn wait_in_background() -> Result<(Sender<RunningChild>, Receiver<ChildEnd>), Error> {
    let (started, started_receiver) = bounded::<RunningChild>(1);
    let (ended, ended_receiver) = bounded(1);
    let wait = move || {
        if let Ok(end) = started_receiver.recv().map_err(drop).and_then(|child| child.wait().map_err(drop)) {
            let _ = ended.send(end);
        }
    };
    std::thread::Builder::new()
        .name("ccsd-wait".to_owned())
        .spawn(wait)
        .map_err(|error| Error::system("start a thread", error))?;
    Ok((started, ended_receiver))
}
