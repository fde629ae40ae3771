//! A session in a daemon, as the one that asked for it sees it: updates, and an end.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use ccsd_profile::{Limits, Profile, Session as SessionInfo, Update};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::client::{Client, ClientError, ProfileStream, StreamEvent};
use crate::protocol::message::{Request, SessionEnd};

/// Updates between the thread that reads the connection and whoever takes them. The daemon merges what goes beyond.
const UPDATES: usize = 4;

/// What a session in a daemon says.
#[derive(Debug)]
pub enum RemoteEvent {
    /// Forget what was said before.
    Restart,
    /// What came since.
    Update(Box<Update>),
    /// There will be nothing more: everything collected, and why it has ended.
    Finished(Box<Profile>, Result<SessionEnd, ClientError>),
}

/// A session in a daemon that ends with us.
pub struct RemoteSession {
    control: Client,
    id: u32,
    info: SessionInfo,
    events: Receiver<RemoteEvent>,
    reader: Option<JoinHandle<()>>,
}

impl RemoteSession {
    /// Makes a session and reads it from its beginning. The daemon may keep no arguments: `command` is the target's command
    /// line as this process notes it, where it is not empty.
    ///
    /// # Errors
    /// All of [`ClientError`].
    pub fn start(path: &Path, request: &Request, command: &[String]) -> Result<RemoteSession, ClientError> {
        let mut control = Client::connect(path)?;
        let id = control.start(request)?;
        // Requests and the stream go their own ways.
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

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.id
    }

    /// Where the daemon is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.control.path()
    }

    /// The session that is being collected.
    #[must_use]
    pub fn info(&self) -> &SessionInfo {
        &self.info
    }

    /// Updates, and the end.
    #[must_use]
    pub fn events(&self) -> &Receiver<RemoteEvent> {
        &self.events
    }

    /// Asks for the end, which follows. The CPU time of the recorded program, user and in all, in nanoseconds, if known.
    pub fn stop(&mut self, target_cpu_ns: Option<(u64, u64)>) {
        // A daemon that has gone shows at the other connection.
        let _ = self.control.order(&Request::Stop { session: self.id, target_cpu_ns, forget: false });
    }

    /// Says that the session's end has been taken: nobody else needs it.
    pub fn forget(mut self) {
        let _ = self.control.order(&Request::Forget { session: self.id });
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Drop for RemoteSession {
    /// A session whose end was not waited for is useless: its program could not be started.
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

/// Reads the stream to its end.
fn read(mut stream: ProfileStream, events: &Sender<RemoteEvent>, command: &[String]) {
    let fresh = |session: &SessionInfo| Profile::new(with_command(session, command), Limits::reading());
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
