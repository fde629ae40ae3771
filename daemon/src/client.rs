//! The client side of the protocol.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ccsd_collector::dump::Dump;
use ccsd_profile::codec::VERSION;
use ccsd_profile::{DecodeError, Decoded, Decoder, Profile, SessionInfo, Update, UpdateError};
use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket, sockopt};
use nix::sys::time::TimeVal;
use nix::unistd::{User, geteuid};

use crate::authority::{PeerIds, user_name};
use crate::protocol::frame::{FrameError, FrameKind, read_frame};
use crate::protocol::message::{
    Answered, Asked, Hello, OLDEST_PROTOCOL, PROTOCOL, Refusal, RefusalKind, Reply, Request, SessionEnd, SessionSummary,
};
use crate::protocol::{in_time::InTime, parse, send};
use crate::watch::WatchStatus;

/// Time allowed for the daemon's greeting. A stopped or hanging daemon must not delay what works without it.
const GREETING_TIME: Duration = Duration::from_secs(2);
/// Time allowed for an answer. Attaching to ten thousand threads takes seconds.
const ANSWER_TIME: Duration = Duration::from_secs(60);

/// The user of the service (`systemd/ccsd.service`).
const SERVICE_USER: &str = "ccsd";

#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ClientError {
    #[error("no daemon at {}", .0.display())]
    None(PathBuf),
    #[error("not permitted to use the daemon at {}: that takes root or membership in group ccsd", .0.display())]
    NotPermitted(PathBuf),
    /// Another user serves the socket, who could answer anything and would see the requests.
    #[error(
        "the socket {} belongs to {}, not to you, root, or the service's user {SERVICE_USER}, so ccsd does not use it; \
         name another socket with --socket, or do without a daemon (--no-daemon)",
        path.display(), user_name(*.owner)
    )]
    Stranger { path: PathBuf, owner: u32 },
    #[error("the daemon at {} does not answer", .0.display())]
    NoAnswer(PathBuf),
    #[error("the daemon at {} went away", .0.display())]
    Gone(PathBuf),
    #[error("{0}")]
    Refused(Refusal),
    #[error("the daemon at {} sent a reply that ccsd does not understand: {what}", path.display())]
    Nonsense { path: PathBuf, what: String },
    #[error("cannot talk to the daemon at {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// A connection to a daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    payload: Vec<u8>,
    patience: Duration,
    version: u32,
    codec: u32,
    request: u64,
}

/// State of a service.
#[derive(Clone, Debug, Default)]
pub struct ServiceStatus {
    /// Its watches, in the order of the configuration.
    pub watches: Vec<WatchStatus>,
    /// Directory of their profiles, if the service reports it.
    pub state_dir: Option<PathBuf>,
    /// What is wrong with the service as a whole.
    pub problems: Vec<String>,
}

impl Client {
    /// Connects to the daemon at `path`. The server must run as this user, root or the service's user; others are sent
    /// nothing.
    ///
    /// # Errors
    /// All of [`ClientError`]; returns at once if there is no socket.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let failed = |source: io::Error| match source.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory => {
                ClientError::None(path.to_owned())
            }
            ErrorKind::PermissionDenied => ClientError::NotPermitted(path.to_owned()),
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::NoAnswer(path.to_owned()),
            _ => ClientError::Io { path: path.to_owned(), source },
        };
        let stream = open(path).map_err(failed)?;
        let owner = PeerIds::of(&stream).map_err(failed)?.uid;
        if !may_serve(owner) {
            return Err(ClientError::Stranger { path: path.to_owned(), owner });
        }
        let (path, payload) = (path.to_owned(), Vec::new());
        let mut client =
            Client { stream, path, payload, patience: GREETING_TIME, version: OLDEST_PROTOCOL, codec: 0, request: 0 };
        client.greet()?;
        Ok(client)
    }

    fn greet(&mut self) -> Result<(), ClientError> {
        // A busy daemon refuses before it reads the greeting.
        let _ = send(&mut InTime::new(&self.stream, GREETING_TIME), &Hello::ours());
        let kind = self.frame()?;
        let hello = match parse::<Hello>(kind, &self.payload) {
            Ok(hello) => hello,
            Err(what) => match parse::<Reply>(kind, &self.payload) {
                Ok(Reply::Refused(refusal)) => return Err(ClientError::Refused(refusal)),
                _ => return Err(self.nonsense(what)),
            },
        };
        if !(OLDEST_PROTOCOL..=PROTOCOL).contains(&hello.protocol) {
            // The daemon refuses, too, but perhaps in a form that this version cannot read.
            let theirs: String = hello.ccsd.chars().take(40).filter(|c| !c.is_control()).collect();
            let message = format!(
                "the daemon at {} is ccsd {theirs} and speaks protocol {}, this is ccsd {} and speaks protocols \
                 {OLDEST_PROTOCOL} to {PROTOCOL}; restart the daemon after an update, or do without it (--no-daemon)",
                self.path.display(),
                hello.protocol,
                env!("CARGO_PKG_VERSION")
            );
            return Err(ClientError::Refused(Refusal::new(RefusalKind::Version, message)));
        }
        (self.patience, self.version, self.codec) = (ANSWER_TIME, hello.protocol, hello.codec);
        Ok(())
    }

    /// Path of the daemon's socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Starts a session and returns its number.
    pub fn start(&mut self, request: &Request) -> Result<u32, ClientError> {
        match self.ask(request)? {
            Reply::Started { session } => Ok(session),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Sends a request whose only answer is success or failure.
    pub fn order(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The sessions visible to this user, ordered by number.
    pub fn list(&mut self) -> Result<Vec<SessionSummary>, ClientError> {
        let mut all = Vec::new();
        let mut reply = self.ask(&Request::List)?;
        loop {
            match reply {
                Reply::Sessions { sessions, more } => {
                    all.extend(sessions);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
            reply = self.reply()?;
        }
    }

    /// State of the service's watches.
    pub fn watches(&mut self) -> Result<ServiceStatus, ClientError> {
        let mut all = Vec::new();
        let mut reply = self.ask(&Request::Watches)?;
        loop {
            match reply {
                Reply::Watches { watches, more, state_dir, problems } => {
                    all.extend(watches);
                    if !more {
                        return Ok(ServiceStatus { watches: all, state_dir: state_dir.map(PathBuf::from), problems });
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
            reply = self.reply()?;
        }
    }

    /// The service's metrics as OpenMetrics text.
    pub fn metrics(&mut self) -> Result<String, ClientError> {
        let mut all = String::new();
        let mut reply = self.ask(&Request::Metrics)?;
        loop {
            match reply {
                Reply::Metrics { text, more } => {
                    all.push_str(&text);
                    if !more {
                        return Ok(all);
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
            reply = self.reply()?;
        }
    }

    /// Takes the stacks of all threads of a process.
    pub fn dump(&mut self, pid: u32) -> Result<Dump, ClientError> {
        let mut all = String::new();
        let mut reply = self.ask(&Request::dump(pid))?;
        loop {
            match reply {
                Reply::Dump { text, more } => {
                    all.push_str(&text);
                    if !more {
                        break;
                    }
                }
                other => return Err(self.unexpected(&other)),
            }
            reply = self.reply()?;
        }
        serde_json::from_str(&all).map_err(|error| self.nonsense(format!("a dump is not understood: {error}")))
    }

    /// Streams the profile of a session so far and, with `follow`, its updates.
    pub fn subscribe(mut self, session: u32, follow: bool) -> Result<ProfileStream, ClientError> {
        if self.codec > VERSION {
            let message = format!(
                "the daemon at {} streams profiles of version {}, and this ccsd reads them up to version {VERSION}: use the \
                 daemon's version of ccsd",
                self.path.display(),
                self.codec
            );
            return Err(ClientError::Refused(Refusal::new(RefusalKind::Version, message)));
        }
        match self.ask(&Request::Subscribe { session, follow })? {
            Reply::Stream => ProfileStream::begin(self),
            other => Err(self.unexpected(&other)),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        self.request += 1;
        let mut out = InTime::new(&self.stream, self.patience);
        let sent = match self.version {
            OLDEST_PROTOCOL => send(&mut out, request),
            _ => send(&mut out, &Asked { id: self.request, request: request.clone() }),
        };
        sent.map_err(|error| self.failed(error))?;
        self.reply()
    }

    fn reply(&mut self) -> Result<Reply, ClientError> {
        let kind = self.frame()?;
        match self.numbering().parse(kind, &self.payload) {
            Ok(Reply::Refused(refusal)) => Err(ClientError::Refused(refusal)),
            Ok(reply) => Ok(reply),
            Err(what) => Err(self.nonsense(what)),
        }
    }

    fn stream_bytes(&self, stream: UnixStream, control: Sender<Result<Reply, ClientError>>) -> StreamBytes {
        let (path, numbering) = (self.path.clone(), self.numbering());
        StreamBytes { stream, path, numbering, payload: Vec::new(), used: 0, control: Some(control) }
    }

    fn numbering(&self) -> Numbering {
        Numbering { version: self.version, request: self.request }
    }

    fn frame(&mut self) -> Result<FrameKind, ClientError> {
        match read_frame(&mut InTime::new(&self.stream, self.patience), &mut self.payload) {
            Ok(Some(kind)) => Ok(kind),
            Ok(None) => Err(ClientError::Gone(self.path.clone())),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed(&self, error: FrameError) -> ClientError {
        let path = self.path.clone();
        match error {
            FrameError::Io(source) => match source.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::NoAnswer(path),
                ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ClientError::Gone(path),
                _ => ClientError::Io { path, source },
            },
            FrameError::Half => ClientError::Gone(path),
            other => ClientError::Nonsense { path, what: other.to_string() },
        }
    }

    fn nonsense(&self, what: String) -> ClientError {
        ClientError::Nonsense { path: self.path.clone(), what }
    }

    fn unexpected(&self, reply: &Reply) -> ClientError {
        let text = format!("{reply:?}");
        self.nonsense(format!("it answers {}", text.get(..40).unwrap_or(&text)))
    }
}

#[derive(Clone, Copy, Debug)]
struct Numbering {
    version: u32,
    request: u64,
}

impl Numbering {
    fn parse(self, kind: FrameKind, payload: &[u8]) -> Result<Reply, String> {
        if self.version == OLDEST_PROTOCOL {
            return parse(kind, payload);
        }
        match parse::<Answered>(kind, payload)? {
            Answered { id, reply } if id == self.request => Ok(reply),
            Answered { id, .. } => Err(format!("an answer to request {id} came where one to {} was due", self.request)),
        }
    }
}

/// Whether a server that runs as this user is trusted. For the service, systemd listens as root.
fn may_serve(uid: u32) -> bool {
    let service = || User::from_name(SERVICE_USER).ok().flatten();
    uid == 0 || uid == geteuid().as_raw() || service().is_some_and(|user| user.uid.as_raw() == uid)
}

fn open(path: &Path) -> io::Result<UnixStream> {
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    let seconds = i64::try_from(GREETING_TIME.as_secs()).unwrap_or(1);
    setsockopt(&socket, sockopt::SendTimeout, &TimeVal::new(seconds, 0))?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&socket), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(socket))
}

/// An event of a profile stream.
#[derive(Debug)]
pub enum StreamEvent {
    /// The stream starts again: discard everything received before. The session is the same.
    Restart,
    /// Charges and definitions since the last event.
    Update(Box<Update>),
    /// The end of the stream, with the reason if the session has ended.
    End(Option<SessionEnd>),
}

/// A stream of updates. The first update holds everything up to now.
#[derive(Debug)]
pub struct ProfileStream {
    client: Client,
    decoder: Decoder<StreamBytes>,
    control: Receiver<Result<Reply, ClientError>>,
}

impl ProfileStream {
    fn begin(client: Client) -> Result<ProfileStream, ClientError> {
        let failed = |error| client.failed(FrameError::Io(error));
        let (sender, control) = bounded(1);
        let stream = client.stream.try_clone().map_err(failed)?;
        let bytes = client.stream_bytes(stream, sender);
        match Decoder::new(bytes) {
            Ok(decoder) => Ok(ProfileStream { client, decoder, control }),
            Err(error) => Err(match control.try_recv() {
                Ok(Err(error)) => error,
                _ => client.nonsense(error.to_string()),
            }),
        }
    }

    /// The session of the stream.
    #[must_use]
    pub fn session(&self) -> &SessionInfo {
        self.decoder.session()
    }

    /// Receives the next event. Call until [`StreamEvent::End`] or an error.
    ///
    /// # Errors
    /// [`ClientError::Gone`] if the daemon goes away, [`ClientError::Nonsense`].
    pub fn next_event(&mut self) -> Result<StreamEvent, ClientError> {
        loop {
            match self.decoder.next_record() {
                Ok(Some(Decoded::Update(update))) => return Ok(StreamEvent::Update(update)),
                // Its accounting repeats that of the last update.
                Ok(Some(Decoded::End(_))) => {}
                Ok(None) => break,
                Err(DecodeError::CutOff { .. } | DecodeError::Io(_)) => break,
                Err(error) => return Err(self.client.nonsense(error.to_string())),
            }
        }
        match self.control.try_recv() {
            Ok(Ok(Reply::Stream)) => {
                let (sender, control) = bounded(1);
                let failed = |error| self.client.failed(FrameError::Io(error));
                let stream = self.client.stream.try_clone().map_err(failed)?;
                let bytes = self.client.stream_bytes(stream, sender);
                self.decoder = Decoder::new(bytes).map_err(|error| self.client.nonsense(error.to_string()))?;
                self.control = control;
                Ok(StreamEvent::Restart)
            }
            Ok(Ok(Reply::StreamEnd { ended })) => Ok(StreamEvent::End(ended)),
            Ok(Ok(other)) => Err(self.client.unexpected(&other)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ClientError::Gone(self.client.path.clone())),
        }
    }

    /// Reads a stream without `follow` to its end. Returns the profile, and why the session ended, if it has.
    ///
    /// # Errors
    /// As [`ProfileStream::next_event`].
    pub fn read_all(mut self) -> Result<(Profile, Option<SessionEnd>), ClientError> {
        let fresh = |session: &SessionInfo| Profile::new(session.clone(), ccsd_profile::ProfileLimits::reading());
        let mut profile = fresh(self.session());
        loop {
            match self.next_event()? {
                StreamEvent::Restart => profile = fresh(self.session()),
                StreamEvent::Update(update) => self.apply(&mut profile, &update)?,
                StreamEvent::End(ended) => return Ok((profile, ended)),
            }
        }
    }

    /// Applies an update of this stream to `profile`.
    ///
    /// # Errors
    /// [`ClientError::Nonsense`] if the update does not fit.
    pub fn apply(&self, profile: &mut Profile, update: &Update) -> Result<(), ClientError> {
        profile.apply(update).map_err(|error: UpdateError| self.client.nonsense(error.to_string()))
    }
}

/// The bytes of stream frames, up to the next control message.
#[derive(Debug)]
struct StreamBytes {
    /// Between two updates there may be any time.
    stream: UnixStream,
    path: PathBuf,
    numbering: Numbering,
    payload: Vec<u8>,
    used: usize,
    /// Where the control message goes. `None` once there was one: there are no more bytes.
    control: Option<Sender<Result<Reply, ClientError>>>,
}

impl StreamBytes {
    fn next_frame(&mut self) -> Option<Result<Reply, ClientError>> {
        self.used = 0;
        match read_frame(&mut self.stream, &mut self.payload) {
            Ok(Some(FrameKind::Stream)) => None,
            Ok(Some(FrameKind::Control)) => {
                let path = self.path.clone();
                let reply = self.numbering.parse(FrameKind::Control, &self.payload);
                Some(reply.map_err(|what| ClientError::Nonsense { path, what }))
            }
            Ok(None) | Err(FrameError::Half | FrameError::Io(_)) => Some(Err(ClientError::Gone(self.path.clone()))),
            Err(error) => Some(Err(ClientError::Nonsense { path: self.path.clone(), what: error.to_string() })),
        }
    }
}

impl Read for StreamBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.control.is_none() {
                return Ok(0);
            }
            let left = self.payload.get(self.used..).unwrap_or(&[]);
            if !left.is_empty() {
                let count = left.len().min(buffer.len());
                for (to, from) in buffer.iter_mut().zip(left) {
                    *to = *from;
                }
                self.used += count;
                return Ok(count);
            }
            if let Some(message) = self.next_frame() {
                self.payload.clear();
                if let Some(control) = self.control.take() {
                    let _ = control.send(message);
                }
            }
        }
    }
}
