//! A client's connection: handles requests one after the other.

use std::cell::Cell;
use std::collections::HashSet;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ccsd_collector::{become_unfavoured, other_process, procfs, usage};
use ccsd_profile::codec::VERSION;
use ccsd_profile::{EncodeError, Encoder};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::authority::{Members, Peer, PeerIds};
use crate::dumps::Dumps;
use crate::ledger::{LedgerCharge, LedgerPrincipal, THREAD_END_CPU};
use crate::protocol::frame::{self, FrameError, StreamWriter};
use crate::protocol::message::{
    Answered, Asked, Hello, OLDEST_PROTOCOL, PROTOCOL, Refusal, RefusalKind, Reply, Request, SessionEnd,
};
use crate::protocol::{in_time::InTime, parse, send};
use crate::sessions::readers::{Delivery, StreamReader};
use crate::sessions::{NewSession, SessionTarget, Sessions, gone};
use crate::upkeep::Upkeep;

/// Time for a message from its first byte to its last, and for the greeting to start. Idle time is not limited.
const MESSAGE_TIME: Duration = Duration::from_secs(10);
/// Time for the client to take an answer. Streams have no limit: a stopped reader gets what it missed later.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// Sessions in one message: each takes at most a few kilobytes.
const LISTED_AT_ONCE: usize = 16;
/// Bytes of text in one message: less than half the maximum, because JSON escapes quotation marks with a second byte.
const TEXT_AT_ONCE: usize = 30 << 10;
const MAX_PIDS: usize = 1024;

#[derive(Clone)]
pub struct Served {
    pub sessions: Sessions,
    pub dumps: Arc<Dumps>,
    pub upkeep: Option<Arc<Upkeep>>,
    /// Held by connections that stream.
    pub streaming: Weak<Sender<()>>,
}

pub struct Connection {
    version: u32,
    request: u64,
    /// Disconnected on drop, by which sessions know that their client has gone.
    _alive: Sender<()>,
    /// The other end.
    gone: Receiver<()>,
    stream: UnixStream,
    peer: Peer,
    sessions: Sessions,
    dumps: Arc<Dumps>,
    upkeep: Option<Arc<Upkeep>>,
    /// Who is charged, and for how much CPU time so far, nanoseconds.
    principal: LedgerPrincipal,
    counted_cpu: Cell<u64>,
    /// Held while the connection streams: when the last holder is gone, all clients have received their data.
    streaming: Weak<Sender<()>>,
}

impl Connection {
    /// Serves the client until it disconnects or breaks the protocol.
    pub fn serve(
        stream: UnixStream,
        (credentials, members): (PeerIds, &Members),
        place: &LedgerCharge,
        served: Served,
    ) {
        let Served { sessions, dumps, upkeep, streaming } = served;
        let peer = match credentials.peer(&stream, members) {
            Ok(peer) => peer,
            Err(why) => {
                let refusal = Refusal::new(RefusalKind::Busy, why.to_string());
                let _ = send(&mut InTime::new(&stream, ANSWER_TIME), &Reply::Refused(refusal));
                return tracing::warn!(uid = credentials.uid, "a connection was refused: {why}");
            }
        };
        let principal = sessions.ledger().principal(peer.authority.uid, peer.authority.trusted);
        place.transfer(principal);
        if !peer.authority.trusted {
            become_unfavoured();
            other_process::wait_for_own(peer.authority.uid);
        }
        let version = OLDEST_PROTOCOL;
        let (alive, gone) = bounded(0);
        let counted_cpu = Cell::new(0);
        let mut connection = Connection {
            version,
            request: 0,
            _alive: alive,
            gone,
            stream,
            peer,
            sessions,
            dumps,
            upkeep,
            principal,
            counted_cpu,
            streaming,
        };
        if let Err(error) = connection.talk() {
            tracing::debug!(uid = credentials.uid, "closed the connection of a client: {error}");
        }
        connection.count_cpu();
        let (ledger, counted) = (connection.sessions.ledger().clone(), connection.counted_cpu.get());
        drop(connection);
        crate::heap::note_end();
        let rest = usage::thread_work_ns().saturating_sub(counted);
        ledger.add_request_cpu(principal, rest.saturating_add(THREAD_END_CPU));
    }

    /// Keeps a user to so many requests in a second: what they cost is no reason for others to get less.
    fn keep_pace(&self) {
        let wait = self.sessions.ledger().pace(self.principal, Instant::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
    }

    fn count_cpu(&self) {
        let now = usage::thread_work_ns();
        self.sessions.ledger().add_request_cpu(self.principal, now.saturating_sub(self.counted_cpu.replace(now)));
    }

    fn talk(&mut self) -> Result<(), FrameError> {
        self.keep_pace();
        let mut payload = Vec::new();
        let Some(hello) = self.receive::<Hello>(&mut payload, Some(MESSAGE_TIME))? else { return Ok(()) };
        let hello = match hello {
            Ok(hello) => hello,
            Err(why) => return self.say(&Reply::Refused(Refusal::new(RefusalKind::BadRequest, why))),
        };
        let version = hello.common_version();
        let own = Hello::speaking(version.unwrap_or(PROTOCOL));
        send(&mut InTime::new(&self.stream, ANSWER_TIME), &own)?;
        let Some(version) = version else { return self.say(&Reply::Refused(other_version(&hello))) };
        self.version = version;
        let same_pids = hello.pid == self.peer.pid;
        while let Some(request) = self.receive_request(&mut payload)? {
            self.count_cpu();
            self.keep_pace();
            let request = match request {
                Ok(request) => request,
                // The message was complete, so the next one can be read.
                Err(why) => {
                    self.say(&Reply::Refused(Refusal::new(RefusalKind::BadRequest, why)))?;
                    continue;
                }
            };
            match request {
                Request::Subscribe { .. } if (1..VERSION).contains(&hello.codec) => {
                    let message = format!(
                        "this daemon streams profiles in version {VERSION}, and the client reads {}",
                        hello.codec
                    );
                    self.say(&Reply::Refused(Refusal::new(RefusalKind::Version, message)))?;
                }
                Request::Subscribe { session, follow } => {
                    // A stream begins with all that the session has.
                    let fits = self.sessions.ledger().check_cpu(self.principal, Instant::now());
                    let subscribe = || self.sessions.subscribe(self.peer.authority, session, follow);
                    match fits.map_err(Refusal::from).and_then(|()| subscribe()) {
                        Ok(reader) => self.stream(session, reader)?,
                        Err(refusal) => self.say(&Reply::Refused(refusal))?,
                    }
                }
                Request::List => self.list()?,
                Request::Dump { pid, start } => self.dump((pid, start), same_pids)?,
                Request::Watches | Request::Metrics if !self.peer.authority.trusted => {
                    let message = "only root and members of group ccsd may see what the service does";
                    self.say(&Reply::Refused(Refusal::new(RefusalKind::NotPermitted, message)))?;
                }
                Request::Watches => self.watches()?,
                Request::Metrics => self.metrics()?,
                other => self.say(&self.answer(other, same_pids).unwrap_or_else(Reply::Refused))?,
            }
        }
        Ok(())
    }

    fn answer(&self, request: Request, same_pids: bool) -> Result<Reply, Refusal> {
        let owner = self.peer.authority;
        let mut meant: Vec<(u32, u64)> = Vec::new();
        let (target, collect, duration, detached) = match request {
            Request::Attach { mut pids, starts, collect, duration_ms, detach } => {
                meant.extend(pids.iter().copied().zip(starts));
                self.check_starts(&meant, same_pids)?;
                let mut seen = HashSet::new();
                pids.retain(|&pid| seen.insert(pid));
                (SessionTarget::Pids(pids), collect, duration_ms.map(Duration::from_millis), detach)
            }
            Request::Machine { .. } if !owner.trusted => {
                let message = "only root and members of group ccsd may profile the whole machine";
                return Err(Refusal::new(RefusalKind::NotPermitted, message));
            }
            Request::Machine { selection, collect, duration_ms, detach } => {
                (SessionTarget::Machine(selection), collect, duration_ms.map(Duration::from_millis), detach)
            }
            Request::Adopt { pid, command, collect } => (SessionTarget::Child(pid, command), collect, None, false),
            Request::Stop { session, target_cpu_ns, forget } => {
                self.sessions.stop(owner, session, target_cpu_ns, forget)?;
                return Ok(Reply::Done);
            }
            Request::Forget { session } => {
                self.sessions.forget(owner, session)?;
                return Ok(Reply::Done);
            }
            Request::List | Request::Watches | Request::Metrics | Request::Dump { .. } | Request::Subscribe { .. } => {
                return Ok(Reply::Done);
            }
        };
        if !same_pids {
            return Err(other_namespace());
        }
        self.check(&target)?;
        let new = NewSession { owner, target, collect, duration, detached };
        let session = self.sessions.create(new, Some(self.gone.clone()))?;
        // A process may have ended, and another have got its number, before the events were opened: they stay with theirs.
        if let Err(other) = self.check_starts(&meant, same_pids) {
            self.sessions.stop(owner, session, None, true)?;
            return Err(other);
        }
        Ok(Reply::Started { session })
    }

    fn check(&self, target: &SessionTarget) -> Result<(), Refusal> {
        match target {
            SessionTarget::Pids(pids) if pids.is_empty() || pids.len() > MAX_PIDS => {
                let message = format!("a session is on 1 to {MAX_PIDS} processes, not {}", pids.len());
                Err(Refusal::new(RefusalKind::BadRequest, message))
            }
            // Only the client that owns the child may let it start.
            SessionTarget::Child(pid, _) if procfs::stat(*pid).is_ok_and(|stat| stat.parent != self.peer.pid) => {
                let message = format!("PID {pid} is not a child of the client");
                Err(Refusal::new(RefusalKind::NotPermitted, message))
            }
            _ => Ok(()),
        }
    }

    /// Refuses processes that have other numbers here, or are not those any more that started then (0: whenever that was).
    /// Of a process that the user may not look at, it does not say which.
    fn check_starts(&self, processes: &[(u32, u64)], same_pids: bool) -> Result<(), Refusal> {
        if !same_pids {
            return Err(other_namespace());
        }
        for &(pid, start) in processes.iter().filter(|&&(_, start)| start != 0) {
            match self.peer.authority.check(pid) {
                Ok(now) if now != start => {
                    let message = format!("PID {pid} is another process by now: the one that was meant has ended");
                    return Err(Refusal::new(RefusalKind::BadRequest, message));
                }
                Err(refusal) if refusal.kind == RefusalKind::NotPermitted => return Err(refusal),
                _ => {}
            }
        }
        Ok(())
    }

    fn list(&self) -> Result<(), FrameError> {
        let mut sessions = match self.sessions.list(self.peer.authority) {
            Ok(sessions) => sessions,
            Err(refusal) => return self.say(&Reply::Refused(refusal)),
        };
        loop {
            let rest = sessions.split_off(sessions.len().min(LISTED_AT_ONCE));
            let more = !rest.is_empty();
            self.say(&Reply::Sessions { sessions, more })?;
            if !more {
                return Ok(());
            }
            sessions = rest;
        }
    }

    fn watches(&self) -> Result<(), FrameError> {
        let mut watches = self.upkeep.as_ref().map(|upkeep| upkeep.watches()).unwrap_or_default();
        let state_dir = self.upkeep.as_ref().map(|upkeep| upkeep.state_dir().to_string_lossy().into_owned());
        let problems = self.upkeep.as_ref().map(|upkeep| upkeep.problems()).unwrap_or_default();
        loop {
            let rest = watches.split_off(watches.len().min(LISTED_AT_ONCE));
            let more = !rest.is_empty();
            self.say(&Reply::Watches { watches, more, state_dir: state_dir.clone(), problems: problems.clone() })?;
            if !more {
                return Ok(());
            }
            watches = rest;
        }
    }

    fn metrics(&self) -> Result<(), FrameError> {
        let text = self.upkeep.as_ref().map(|upkeep| upkeep.metrics()).unwrap_or_default();
        let mut lines = text.split_inclusive('\n').peekable();
        loop {
            let mut part = String::new();
            while let Some(line) = lines.next_if(|line| part.len() + line.len() <= TEXT_AT_ONCE) {
                part.push_str(line);
            }
            let more = lines.peek().is_some() && !part.is_empty();
            self.say(&Reply::Metrics { text: part, more })?;
            if !more {
                return Ok(());
            }
        }
    }

    fn dump(&self, process: (u32, u64), same_pids: bool) -> Result<(), FrameError> {
        let is_same = || self.check_starts(&[process], same_pids);
        let taken = is_same().and_then(|()| self.dumps.take(self.peer.authority, process.0));
        let taken = taken.and_then(|dump| is_same().map(|()| dump));
        let text = taken.and_then(|dump| {
            serde_json::to_string(&dump).map_err(|error| Refusal::new(RefusalKind::Failed, error.to_string()))
        });
        let text = match text.and_then(|text| self.dumps.hold(self.peer.authority, text)) {
            Ok(text) => text,
            Err(refusal) => return self.say(&Reply::Refused(refusal)),
        };
        let mut rest = text.text.as_str();
        loop {
            let (part, others) = rest.split_at(rest.floor_char_boundary(TEXT_AT_ONCE));
            let more = !others.is_empty();
            self.say(&Reply::Dump { text: part.to_owned(), more })?;
            if !more {
                return Ok(());
            }
            rest = others;
        }
    }

    /// Forwards deliveries until the session's end.
    fn stream(&self, session: u32, reader: StreamReader) -> Result<(), FrameError> {
        let _streaming = self.streaming.upgrade();
        let mut encoder = None;
        let mut end = None;
        for delivery in reader {
            self.count_cpu();
            match delivery {
                Delivery::Begin { info, snapshot } => {
                    self.send(&mut &self.stream, Reply::Stream)?;
                    let mut fresh = Encoder::new(StreamWriter(&self.stream), &info).map_err(written)?;
                    fresh.write(&snapshot.whole).map_err(written)?;
                    if let Some(generation) = &snapshot.generation {
                        fresh.write(generation).map_err(written)?;
                    }
                    encoder = Some(fresh);
                }
                Delivery::Update(update) => {
                    if let Some(encoder) = &mut encoder {
                        encoder.write(&update).map_err(written)?;
                    }
                }
                Delivery::End(why) => {
                    if let Some(encoder) = encoder.take().filter(|_| why.is_some()) {
                        encoder.finish().map_err(written)?;
                    }
                    end = Some(why);
                    break;
                }
            }
        }
        let ended = match end {
            Some(ended) => ended,
            // The session was forgotten, or its updates do not fit each other.
            None if encoder.is_none() => return self.say(&Reply::Refused(gone(session))),
            None => {
                let why = format!("session {session} was forgotten before all of it was read, or is damaged");
                Some(SessionEnd::Failed(why))
            }
        };
        self.send(&mut &self.stream, Reply::StreamEnd { ended })
    }

    fn say(&self, reply: &Reply) -> Result<(), FrameError> {
        let send = |reply| self.send(&mut InTime::new(&self.stream, ANSWER_TIME), reply);
        match send(reply.clone()) {
            // Nothing of it has been sent.
            Err(error @ FrameError::TooLong(_)) => {
                send(Reply::Refused(Refusal::new(RefusalKind::Failed, format!("the answer is too long: {error}"))))
            }
            sent => sent,
        }
    }

    fn send(&self, out: &mut impl Write, reply: Reply) -> Result<(), FrameError> {
        if self.version < 2 { send(out, &reply) } else { send(out, &Answered { id: self.request, reply }) }
    }

    /// Receives the next request, however long that takes, and notes its number.
    fn receive_request(&mut self, payload: &mut Vec<u8>) -> Result<Option<Result<Request, String>>, FrameError> {
        other_process::rest();
        if self.version < 2 {
            return self.receive::<Request>(payload, None);
        }
        #[derive(serde::Deserialize)]
        struct Numbered {
            id: u64,
        }
        self.request = 0;
        let Some(asked) = self.receive::<Asked>(payload, None)? else { return Ok(None) };
        let number = match &asked {
            Ok(asked) => Some(asked.id),
            // Of a request of a later version its number can be read.
            Err(_) => serde_json::from_slice::<Numbered>(payload).ok().map(|numbered| numbered.id),
        };
        self.request = number.unwrap_or(0);
        Ok(Some(asked.map(|asked| asked.request)))
    }

    /// Receives the next message, possibly invalid; `None` if the client has gone. Waits at most `wait` for its start.
    fn receive<T: serde::de::DeserializeOwned>(
        &self,
        payload: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<Option<Result<T, String>>, FrameError> {
        let mut first = [0];
        let mut input = wait.map(|wait| InTime::new(&self.stream, wait));
        loop {
            let read = match &mut input {
                Some(input) => input.read(&mut first),
                None => (&self.stream).read(&mut first),
            };
            match read {
                Ok(0) => return Ok(None),
                Ok(_) => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut rest = InTime::new(&self.stream, MESSAGE_TIME);
        let [first] = first;
        let kind = match frame::read_rest(first, &mut rest, payload) {
            Ok(kind) => kind,
            Err(error @ (FrameError::Kind(_) | FrameError::TooLong(_))) => {
                // The start of the next message is unknown: close the connection.
                self.say(&Reply::Refused(Refusal::new(RefusalKind::BadRequest, error.to_string())))?;
                return Err(error);
            }
            Err(error) => return Err(error),
        };
        Ok(Some(parse(kind, payload)))
    }
}

fn other_namespace() -> Refusal {
    let message = "the daemon is in another PID namespace, where these PIDs are other processes";
    Refusal::new(RefusalKind::NotPermitted, message)
}

fn written(error: EncodeError) -> FrameError {
    match error {
        EncodeError::Io(error) => FrameError::Io(error),
        other => FrameError::Io(io::Error::other(other)),
    }
}

fn other_version(hello: &Hello) -> Refusal {
    let own = Hello::speaking(PROTOCOL);
    let theirs: String = hello.ccsd.chars().take(40).filter(|c| !c.is_control()).collect();
    Refusal::new(
        RefusalKind::Version,
        format!(
            "the daemon is ccsd {} and speaks protocols {OLDEST_PROTOCOL} to {PROTOCOL}, this is ccsd {theirs} and speaks \
             protocol {}; restart the daemon after an update, or do without it (--no-daemon)",
            own.ccsd, hello.protocol
        ),
    )
}
