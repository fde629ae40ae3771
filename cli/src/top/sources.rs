//! Where a growing profile comes from: a daemon's session, an own collection, or a file. Each has a thread, which waits
//! while the reader is busy.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use ccsd_collector::ProcessSelection;
use ccsd_collector::naming::NAMING_STACK_BYTES;
use ccsd_daemon::client::{ProfileStream, StreamEvent};
use ccsd_daemon::store;
use ccsd_daemon::{CollectRequest, CollectTarget, Collection, Progress, StopRequest};
use ccsd_profile::{Decoded, Decoder, LaterNames, RenamedStream, SessionInfo, Update};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use crate::args::service::TopArgs;
use crate::connection::by;
use crate::exit::Failure;
use crate::locate::{Located, Lookup};
use crate::machine;
use crate::recording::open_profile;
use crate::source::ProfileSource;
use crate::stored::state_dir;
use crate::symbolize;

pub enum SourceEvent {
    Begin(Box<SessionInfo>),
    Update {
        update: Box<Update>,
        latest: bool,
    },
    /// There will be nothing more: why, where there is something to say.
    End(Option<String>),
    Failed(Failure),
}

/// A watch's segment that says nothing for so long may be followed by another.
const PATIENCE: Duration = Duration::from_secs(2);
/// Of a file that has no end yet, more is looked for so often.
const LOOK: Duration = Duration::from_millis(200);

pub struct FollowedProfile {
    pub events: Receiver<SourceEvent>,
    /// Whether it is a collection for this command alone, which ends with it.
    pub is_own: bool,
    /// Why no daemon collects, if one was asked.
    pub note: Option<String>,
}

pub fn follow(args: &TopArgs, stop: Receiver<StopRequest>) -> Result<FollowedProfile, Failure> {
    if let Some(selection) = machine::selection(&args.machine)? {
        return own(CollectTarget::Machine { selection, command: Vec::new() }, args, stop);
    }
    let Some(source) = &args.source else {
        return own(CollectTarget::Machine { selection: ProcessSelection::default(), command: Vec::new() }, args, stop);
    };
    let daemon = (!args.by.no_daemon).then_some(&args.by.socket);
    let lookup = Lookup { daemon, files: true, processes: true };
    let located = match source {
        ProfileSource::Number(pid) | ProfileSource::Process(pid) if args.attach => Located::Process(*pid),
        source => lookup.locate(source)?,
    };
    // What this command collects itself has its names from what is installed already.
    let others = |events| Ok(FollowedProfile { events: named(events)?, is_own: false, note: None });
    match located {
        Located::File(_) | Located::Watch(_) | Located::Session(..) if args.attach => {
            Err(Failure::bad_request(anyhow!("--attach goes with a process, as pid:PID")))
        }
        Located::File(path) => others(file(&path)?),
        Located::Watch(name) => {
            let dir = store::watch_dir(&state_dir(None, &args.by.socket), &name).map_err(Failure::bad_request)?;
            others(watch(&dir)?)
        }
        Located::Session(client, id) => others(session(id, client.subscribe(id, true)?)?),
        Located::Process(pid) => own(CollectTarget::Pids(vec![pid]), args, stop),
    }
}

/// Names functions that have no names from installed debug files, and from those fetched before.
fn named(from: Receiver<SourceEvent>) -> Result<Receiver<SourceEvent>, Failure> {
    thread(move |events| {
        let mut stream = None;
        while let Ok(event) = from.recv() {
            let event = match event {
                SourceEvent::Begin(session) => {
                    stream = Some((RenamedStream::new(&session, &LaterNames::default()), symbolize::finder()));
                    SourceEvent::Begin(session)
                }
                SourceEvent::Update { update, latest } => {
                    let Some((stream, finder)) = &mut stream else { return };
                    match stream.rename_with(&update, |profile| finder.find_new(profile)) {
                        Ok(update) => SourceEvent::Update { update: Box::new(update), latest },
                        Err(error) => SourceEvent::Failed(Failure::at_run_time(
                            anyhow::Error::from(error).context("the profile is broken"),
                        )),
                    }
                }
                other => other,
            };
            if events.send(event).is_err() {
                return;
            }
        }
    })
}

fn own(target: CollectTarget, args: &TopArgs, stop: Receiver<StopRequest>) -> Result<FollowedProfile, Failure> {
    let own = Collection::prepare(CollectRequest {
        target,
        options: Default::default(),
        output: None,
        duration: None,
        by: by(&args.by),
        stops: None,
    })?;
    let notes: Vec<String> = own.passed_over().iter().map(ToString::to_string).collect();
    let note = (!notes.is_empty()).then(|| format!("{}; collecting in this process", notes.join("; ")));
    Ok(FollowedProfile { events: collection(own, stop)?, is_own: true, note })
}

fn thread(body: impl FnOnce(&Sender<SourceEvent>) + Send + 'static) -> Result<Receiver<SourceEvent>, Failure> {
    let (sender, receiver) = bounded(1);
    let thread = std::thread::Builder::new().name("ccsd-source".to_owned()).stack_size(NAMING_STACK_BYTES);
    thread.spawn(move || body(&sender)).context("cannot start a thread").map_err(Failure::at_run_time)?;
    Ok(receiver)
}

fn session(session: u32, mut stream: ProfileStream) -> Result<Receiver<SourceEvent>, Failure> {
    thread(move |events| {
        let mut event = SourceEvent::Begin(Box::new(stream.session().clone()));
        // The receiver may have gone.
        while events.send(event).is_ok() {
            event = match stream.next_event() {
                Ok(StreamEvent::Restart) => SourceEvent::Begin(Box::new(stream.session().clone())),
                Ok(StreamEvent::Update(update)) => SourceEvent::Update { update, latest: true },
                Ok(StreamEvent::End(end)) => {
                    let why = end.map(|end| format!("session {session} has ended: {}", end.text()));
                    let _ = events.send(SourceEvent::End(why));
                    return;
                }
                Err(error) => {
                    let _ = events.send(SourceEvent::Failed(error.into()));
                    return;
                }
            };
        }
    })
}

/// A collection of our own, until `stop`.
fn collection(mut own: Collection, stop: Receiver<StopRequest>) -> Result<Receiver<SourceEvent>, Failure> {
    own.start()?;
    thread(move |events| {
        let info = Box::new(own.info().clone());
        if events.send(SourceEvent::Begin(info.clone())).is_err() {
            return;
        }
        let outcome = own.run_with(&stop, |progress, _| {
            let _ = events.send(match progress {
                Progress::Restart => SourceEvent::Begin(info.clone()),
                Progress::Update(update) => SourceEvent::Update { update: Box::new(update.clone()), latest: true },
            });
        });
        let why = match outcome.early {
            Some(why) => format!("the daemon has ended the session early: {why}"),
            None => "collecting has ended".to_owned(),
        };
        let _ = events.send(SourceEvent::End(Some(why)));
    })
}

/// What a watch writes: its latest segment, then those that follow. It never ends by itself.
fn watch(dir: &Path) -> Result<Receiver<SourceEvent>, Failure> {
    let latest = |dir: &Path| store::contents(dir).ok()?.segments.pop().map(|segment| segment.path);
    let first = latest(dir).ok_or_else(|| Failure::bad_request(anyhow!("{} has no segment yet", dir.display())))?;
    let mut events = file(&first)?;
    let dir = dir.to_owned();
    thread(move |sender| {
        let mut shown = first;
        loop {
            match events.recv_timeout(PATIENCE) {
                // A segment that was cut short by the death of the service has no end, and is followed by another.
                Ok(SourceEvent::End(_)) | Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) if latest(&dir).is_none_or(|path| path == shown) => continue,
                Err(RecvTimeoutError::Timeout) => {}
                Ok(SourceEvent::Failed(failure)) => {
                    let _ = sender.send(SourceEvent::Failed(failure));
                    return;
                }
                Ok(event) => {
                    if sender.send(event).is_err() {
                        return;
                    }
                    continue;
                }
            }
            let next = loop {
                match latest(&dir).filter(|path| *path != shown) {
                    Some(next) => break next,
                    None => std::thread::sleep(LOOK),
                }
            };
            match file(&next) {
                Ok(receiver) => (events, shown) = (receiver, next),
                // Its first record is not written yet, or it has been removed.
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    })
}

fn file(path: &Path) -> Result<Receiver<SourceEvent>, Failure> {
    let name = path.display().to_string();
    // A receiver that goes ends the waiting.
    let (alive, gone) = bounded::<()>(0);
    let file = open_profile(path)?.file;
    let decoder = Decoder::new(Growing { file, gone }).map_err(|error| match error {
        ccsd_profile::DecodeError::Io(error) => Failure::at_run_time(anyhow!("cannot read {name}: {error}")),
        error => Failure::bad_request(anyhow!("{name}: {error}")),
    });
    let mut decoder = decoder?;
    let records = thread(move |events| {
        let mut event = SourceEvent::Begin(Box::new(decoder.session().clone()));
        while events.send(event).is_ok() {
            event = match decoder.next_record() {
                Ok(Some(Decoded::Update(update))) => SourceEvent::Update { update, latest: false },
                Ok(Some(Decoded::End(_)) | None) => {
                    let _ = events.send(SourceEvent::End(Some(format!("{name} is complete"))));
                    return;
                }
                Err(error) => {
                    let _ = events.send(SourceEvent::Failed(Failure::bad_request(anyhow!("{name}: {error}"))));
                    return;
                }
            };
        }
    })?;
    thread(move |events| {
        let _alive = alive;
        find_latest(&records, events);
    })
}

/// Holds each update back until it is known whether it is the latest: another record follows at once, or nothing does for
/// [`LOOK`], as where the last record of a file is cut.
fn find_latest(records: &Receiver<SourceEvent>, events: &Sender<SourceEvent>) {
    let mut held = None;
    loop {
        let next = match &held {
            Some(_) => records.recv_timeout(LOOK),
            None => records.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        let latest = !matches!(next, Ok(SourceEvent::Update { .. }));
        if let Some(update) = held.take()
            && events.send(SourceEvent::Update { update, latest }).is_err()
        {
            return;
        }
        match next {
            Ok(SourceEvent::Update { update, .. }) => held = Some(update),
            Ok(other) => {
                if events.send(other).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Growing {
    file: File,
    gone: Receiver<()>,
}

impl Read for Growing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.file.read(buffer)?;
            let over = || self.gone.recv_timeout(LOOK) == Err(RecvTimeoutError::Disconnected);
            if read > 0 || over() {
                return Ok(read);
            }
        }
    }
}
