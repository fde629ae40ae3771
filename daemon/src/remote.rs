//! A session in a daemon, as its client sees it.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use ccsd_profile::{Profile, ProfileLimits, SessionInfo, Update};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::client::{Client, ClientError, ProfileStream, StreamEvent};
use crate::protocol::message::{Request, SessionEnd};

/// Updates buffered between the reading thread and the consumer. The daemon merges further updates.
const UPDATES: usize = 4;

/// An event of a session in a daemon.
#[derive(Debug)]
pub enum RemoteEvent {
    /// Discard everything received before.
    Restart,
    /// Charges and definitions since the last event.
    Update(Box<Update>),
    /// The end: the whole profile, and why the session ended.
    Finished(Box<Profile>, Result<SessionEnd, ClientError>),
}

/// A session in a daemon that ends with this process.
pub struct RemoteSession {
    control: Client,
    id: u32,
    info: SessionInfo,
    events: Receiver<RemoteEvent>,
    reader: Option<JoinHandle<()>>,
}

impl RemoteSession {
    /// Starts a session and reads it from its beginning. A non-empty `command` is the target's command line as this
    /// process stores it.
    pub fn start(path: &Path, request: &Request, command: &[String]) -> Result<RemoteSession, ClientError> {
        let mut control = Client::connect(path)?;
        let id = control.start(request)?;
        // Requests and the stream use separate connections.
        let stream = Client::connect(path)?.subscribe(id, true)?;
        let info = with_command(stream.session(), command);
        let command = command.to_vec();
        let (sender, events) = bounded(UPDATES);
        let reader = std::thread::Builder::new()
            .name("ccsd-stream".to_owned())
            .spawn(move || read(stream, &sender, &command))
            .map_err(|source| ClientError::Io { path: path.to_owned(), source })?;
        Ok(RemoteSession { control, id, info, events, reader: Some(reader) })
    }

    /// Number of the session.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Path of the daemon's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.control.path()
    }

    /// The session that is being collected.
    #[must_use]
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// Updates, then the end.
    #[must_use]
    pub fn events(&self) -> &Receiver<RemoteEvent> {
        &self.events
    }

    /// Asks for the end, which follows as an event. `target_cpu_ns`: of the recorded program, user and total, if known.
    pub fn stop(&mut self, target_cpu_ns: Option<(u64, u64)>) {
        // If the daemon has gone, the other connection reports it.
        let _ = self.control.order(&Request::Stop { session: self.id, target_cpu_ns, forget: false });
    }

    /// Tells the daemon that the session was fetched and need not be kept.
    pub fn forget(mut self) {
        let _ = self.control.order(&Request::Forget { session: self.id });
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for RemoteSession {
    /// A session dropped before its end is useless: its program could not be started.
    fn drop(&mut self) {
        if self.reader.is_some() {
            let _ = self.control.order(&Request::Stop { session: self.id, target_cpu_ns: None, forget: true });
        }
    }
}

fn with_command(session: &SessionInfo, command: &[String]) -> SessionInfo {
    let mut session = session.clone();
    if !command.is_empty() {
        session.command = command.to_vec();
    }
    session
}

fn read(mut stream: ProfileStream, events: &Sender<RemoteEvent>, command: &[String]) {
    let fresh = |session: &SessionInfo| Profile::new(with_command(session, command), ProfileLimits::reading());
    let mut profile = fresh(stream.session());
    let why = loop {
        let event = match stream.next_event() {
            Ok(StreamEvent::Restart) => {
                profile = fresh(stream.session());
                RemoteEvent::Restart
            }
            Ok(StreamEvent::Update(update)) => match stream.apply(&mut profile, &update) {
                Ok(()) => RemoteEvent::Update(update),
                Err(error) => break Err(error),
            },
            Ok(StreamEvent::End(Some(end))) => break Ok(end),
            Ok(StreamEvent::End(None)) => break Err(ClientError::Gone(PathBuf::new())),
            Err(error) => break Err(error),
        };
        if events.send(event).is_err() {
            return;
        }
    };
    let note = match &why {
        Err(error) => Some(format!("the profile ends early: {error}")),
        Ok(SessionEnd::NotPermitted(why) | SessionEnd::Failed(why)) => Some(format!("the profile ends early: {why}")),
        Ok(SessionEnd::Shutdown) => Some("the profile ends early: the daemon was stopped".to_owned()),
        Ok(_) => None,
    };
    if let Some(note) = note {
        profile.add_note(&note);
        let update = profile.take_update();
        let _ = events.send(RemoteEvent::Update(Box::new(update)));
    }
    let _ = events.send(RemoteEvent::Finished(Box::new(profile), why));
}
