//! The daemon: a socket, a thread for each client, and the sessions.

mod connection;
pub mod socket;

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;

use crate::authority::{Peer, user_name};
use crate::dumps::Dumps;
use crate::protocol::message::{Refusal, RefusalKind, Reply};
use crate::protocol::send;
use crate::sessions::{SessionLimits, Sessions};
use crate::upkeep::Upkeep;
use connection::Connection;
use socket::Socket;

/// Connections of all, and of one user who is neither root nor a member of the group. An idle one is a thread that sleeps
/// and a descriptor.
const MAX_CONNECTIONS: usize = 2_048;
const MAX_CONNECTIONS_OF_USER: usize = 64;
/// Stack of a client's thread. Reading a message is recursive only as far as the JSON reader allows (128 levels).
const STACK_BYTES: usize = 256 << 10;
/// How long ending may take: sessions end in a fraction of a second, and clients take their ends, if they take anything.
const SHUTDOWN_TIME: Duration = Duration::from_secs(4);
/// How long to wait where no more connections can be accepted for want of descriptors or memory.
const RESPITE: Duration = Duration::from_millis(100);

/// A daemon that listens.
pub struct Service {
    socket: Socket,
    sessions: Sessions,
    upkeep: Option<Arc<Upkeep>>,
}

impl Service {
    /// A daemon on a socket.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(socket: Socket, limits: SessionLimits) -> io::Result<Service> {
        Ok(Service { socket, sessions: Sessions::new(limits)?, upkeep: None })
    }

    /// With answers to those who ask how the service is.
    #[must_use]
    pub fn with_upkeep(self, upkeep: Arc<Upkeep>) -> Service {
        Service { upkeep: Some(upkeep), ..self }
    }

    /// The sessions, for whoever else makes or reads some.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Serves until `stop` says something, or nobody is left who could. Then all sessions end, and their readers get what
    /// is due to them, within five seconds.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(self, stop: &Receiver<()>) -> io::Result<()> {
        let (wake, woken) = pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (write, read))?;
        let (streaming, streams) = bounded(0);
        let streaming = Arc::new(streaming);
        let listener = self.socket.listener().try_clone()?;
        listener.set_nonblocking(true)?;
        let acceptor = Acceptor::new(self.sessions.clone(), self.upkeep.clone(), Arc::downgrade(&streaming));
        let accepting = std::thread::Builder::new()
            .name("ccsd-accept".to_owned())
            .spawn(move || acceptor.run(&listener, &woken))?;
        tracing::info!("ccsd {} listens at {}", env!("CARGO_PKG_VERSION"), self.socket.name());
        let _ = stop.recv();
        let until = Instant::now() + SHUTDOWN_TIME;
        tracing::info!("ending: sessions are brought to their end");
        drop(wake);
        let _ = accepting.join();
        let all_ended = self.sessions.shut_down();
        // Both wait for a disconnection: nothing is ever sent. From now on the streams alone keep their channel.
        drop(streaming);
        let _ = all_ended.recv_deadline(until);
        let _ = streams.recv_deadline(until);
        Ok(())
    }
}

/// Takes connections, and knows how many there are.
struct Acceptor {
    sessions: Sessions,
    upkeep: Option<Arc<Upkeep>>,
    dumps: Arc<Dumps>,
    streaming: Weak<Sender<()>>,
    /// Connections by user.
    open: HashMap<u32, usize>,
    closed: Receiver<u32>,
    closed_sender: Sender<u32>,
    next: u64,
}

/// Says that a connection of a user has been closed.
struct Closed {
    uid: u32,
    closed: Sender<u32>,
}

impl Drop for Closed {
    fn drop(&mut self) {
        let _ = self.closed.send(self.uid);
    }
}

impl Acceptor {
    fn new(sessions: Sessions, upkeep: Option<Arc<Upkeep>>, streaming: Weak<Sender<()>>) -> Acceptor {
        // Holds no more than there are connections.
        let (closed_sender, closed) = unbounded();
        let dumps = Arc::default();
        Acceptor { sessions, upkeep, dumps, streaming, open: HashMap::new(), closed, closed_sender, next: 1 }
    }

    /// Until the other end of `woken` is closed.
    fn run(mut self, listener: &UnixListener, woken: &OwnedFd) {
        loop {
            let mut fds =
                [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
            let polled = poll(&mut fds, PollTimeout::NONE);
            if fds[1].any().unwrap_or(false) {
                return;
            }
            if polled.is_err() {
                continue;
            }
            match listener.accept() {
                Ok((stream, _)) => self.accept(stream),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    tracing::warn!("cannot accept a connection: {error}");
                    std::thread::sleep(RESPITE);
                }
            }
        }
    }

    fn accept(&mut self, stream: UnixStream) {
        while let Ok(uid) = self.closed.try_recv() {
            if let Some(count) = self.open.get_mut(&uid) {
                *count -= 1;
                if *count == 0 {
                    self.open.remove(&uid);
                }
            }
        }
        let Ok(peer) = Peer::of(&stream) else { return };
        // Of all, half may be one user's; root's, or a trusted one's, are limited by the whole alone.
        let uid = peer.authority.uid;
        let (all, own) = (self.open.values().sum::<usize>(), self.open.get(&uid).copied().unwrap_or(0));
        if all >= MAX_CONNECTIONS || !peer.authority.trusted && own >= MAX_CONNECTIONS_OF_USER {
            let (who, count) =
                if all >= MAX_CONNECTIONS { ("the daemon".to_owned(), all) } else { (user_name(uid), own) };
            refuse(&stream, format!("{who} has {count} connections, the most that there may be; try again later"));
            return;
        }
        *self.open.entry(uid).or_insert(0) += 1;
        let closed = Closed { uid, closed: self.closed_sender.clone() };
        let (number, sessions, streaming) = (self.next, self.sessions.clone(), self.streaming.clone());
        let (upkeep, dumps) = (self.upkeep.clone(), Arc::clone(&self.dumps));
        self.next += 1;
        let serve = move || {
            let _closed = closed;
            if stream.set_nonblocking(false).is_ok() {
                Connection { number, stream, peer, sessions, dumps, upkeep, streaming }.serve();
            }
        };
        let thread = std::thread::Builder::new().name("ccsd-client".to_owned()).stack_size(STACK_BYTES).spawn(serve);
        if let Err(error) = thread {
            tracing::warn!("cannot start a thread for a client: {error}");
        }
    }
}

/// Says why, if the client takes it at once, in place of a greeting.
fn refuse(stream: &UnixStream, why: String) {
    tracing::warn!("a connection was refused: {why}");
    if stream.set_nonblocking(true).is_ok() {
        let _ = send(&mut &*stream, &Reply::Refused(Refusal::new(RefusalKind::Busy, why)));
    }
}
