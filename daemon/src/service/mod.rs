//! The daemon: a socket, a thread for each client, and the sessions.

mod acceptor;
mod closer;
mod connection;
pub mod socket;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, bounded};
use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use crate::sessions::{SessionLimits, Sessions};
use crate::supervisor::Supervisor;
use crate::upkeep::Upkeep;
use acceptor::Acceptor;
use closer::Closer;
use socket::Socket;

/// Maximum time of a shutdown, in which sessions end and reading clients receive their ends.
const SHUTDOWN_TIME: Duration = Duration::from_secs(4);
/// A daemon that listens.
pub struct Service {
    socket: Socket,
    sessions: Sessions,
    supervisor: Supervisor,
    upkeep: Option<Arc<Upkeep>>,
}

impl Service {
    /// Creates a daemon on a socket.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(socket: Socket, limits: SessionLimits, supervisor: Supervisor) -> io::Result<Service> {
        Ok(Service { socket, sessions: Sessions::new(limits, &supervisor)?, supervisor, upkeep: None })
    }

    /// Adds answers to requests about watches and metrics.
    #[must_use]
    pub fn with_upkeep(self, upkeep: Arc<Upkeep>) -> Service {
        Service { upkeep: Some(upkeep), ..self }
    }

    /// The sessions, for other parts of the daemon that create or read them.
    #[must_use]
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Serves until `stop` receives a message or is disconnected. Then sessions end, within five seconds.
    ///
    /// # Errors
    /// If it cannot begin.
    pub fn run(self, stop: &Receiver<()>) -> io::Result<()> {
        let (wake, woken) = pipe2(OFlag::O_CLOEXEC).map(|(read, write)| (write, read))?;
        let (streaming, streams) = bounded(0);
        let streaming = Arc::new(streaming);
        let listener = self.socket.listener().try_clone()?;
        listener.set_nonblocking(true)?;
        let closer = Closer::start()?;
        let acceptor = Acceptor::new(self.sessions.clone(), self.upkeep.clone(), Arc::downgrade(&streaming), closer);
        let accepting = self.supervisor.spawn("ccsd-accept", move |heart| acceptor.run(&listener, &woken, heart))?;
        tracing::info!("ccsd {} listens at {}", env!("CARGO_PKG_VERSION"), self.socket.name());
        let _ = stop.recv();
        let until = Instant::now() + SHUTDOWN_TIME;
        tracing::info!("shutting down: ending all sessions");
        drop(wake);
        let _ = accepting.join();
        let all_ended = self.sessions.shut_down();
        // Both wait for a disconnection. From now on, only streaming connections hold their channel.
        drop(streaming);
        let _ = all_ended.recv_deadline(until);
        let _ = streams.recv_deadline(until);
        Ok(())
    }
}
