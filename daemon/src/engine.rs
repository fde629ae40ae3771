//! One collection from its request to its outcome.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ccsd_collector::child::{ChildEnd, RunningChild};
use ccsd_collector::{Error, Options, Session, SessionEvent};
use ccsd_profile::{Accounting, Profile, Session as SessionInfo};
use crossbeam_channel::{Receiver, after, bounded, never, select};

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

/// A collection under way.
pub struct Collection {
    session: Session,
    child: Option<RunningChild>,
    child_end: Receiver<ChildEnd>,
    output: Option<OutputFile>,
    output_error: Option<OutputError>,
    duration: Option<Duration>,
    started: Instant,
}

impl Collection {
    /// Starts collecting. A profile file that cannot be created does not prevent it; see [`Collection::output_error`].
    ///
    /// # Errors
    /// Those of [`Session::record`] and [`Session::attach`]; nothing runs then.
    pub fn start(request: Request) -> Result<Collection, Error> {
        let (session, child) = match &request.target {
            Target::Command(command) => {
                let (session, child) = Session::record(&request.options, command)?;
                (session, Some(child))
            }
            Target::Pids(pids) => (Session::attach(&request.options, pids)?, None),
        };
        let started = Instant::now();
        let (mut output, mut output_error) = (None, None);
        if let Some(path) = &request.output {
            match OutputFile::create(path, session.info()) {
                Ok(file) => output = Some(file),
                Err(error) => output_error = Some(error),
            }
        }
        let child_end = match child {
            Some(child) => wait_in_background(child),
            None => never(),
        };
        Ok(Collection { session, child, child_end, output, output_error, duration: request.duration, started })
    }

    /// What is being collected.
    pub fn info(&self) -> &SessionInfo {
        self.session.info()
    }

    /// Why there is no profile file, if one was asked for.
    pub fn output_error(&self) -> Option<&OutputError> {
        self.output_error.as_ref()
    }

    /// The started program.
    pub fn child(&self) -> Option<RunningChild> {
        self.child
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
    /// Whether the program outlived the collection.
    pub fn child_is_running(&self) -> bool {
        self.running.as_ref().is_some_and(Receiver::is_empty)
    }

    /// Waits for the program, if there is one and it still runs, and tells how it ended.
    pub fn wait_for_child(&mut self) -> Option<ChildEnd> {
        if let Some(running) = self.running.take() {
            self.child = running.recv().ok();
        }
        self.child
    }
}

/// A thread that waits, because a process can be waited for only by blocking.
fn wait_in_background(child: RunningChild) -> Receiver<ChildEnd> {
    let (sender, receiver) = bounded(1);
    std::thread::spawn(move || {
        if let Ok(end) = child.wait() {
            let _ = sender.send(end);
        }
    });
    receiver
}
