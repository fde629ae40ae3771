//! The sessions of a daemon: a table with its own thread, and a thread for each session.
//!
//! Clients use [`Sessions`]. The table's thread never waits for a session, a session never waits for a reader, and the
//! collector waits for neither.

mod guard;
pub mod readers;
mod table;
pub mod worker;

use std::io;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::authority::Authority;
use crate::protocol::message::{Refusal, RefusalKind, SessionEnd, SessionSummary};
use readers::StreamReader;
use table::{Ask, SessionTable};
pub use worker::{NewSession, SessionTarget};

/// Limits on the number, memory and lifetime of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Running sessions in total.
    pub running: usize,
    /// Running sessions of one user who is neither root nor a member of the group.
    pub running_of_user: usize,
    /// Ended sessions kept, in total.
    pub ended: usize,
    /// Ended sessions kept of one such user.
    pub ended_of_user: usize,
    /// Bytes that all sessions of one such user may use: rings, profiles, symbols, updates for slow readers.
    pub bytes_of_user: u64,
    /// Whether profiles store the arguments of targets, unless the client forbids it.
    pub arguments: bool,
    /// Bytes of the profiles of all ended sessions.
    pub ended_bytes: u64,
    /// Bytes of locked sample rings of all running sessions. The smallest rings, half a MiB per CPU, are granted beyond
    /// that, at most `running` times.
    pub ring_bytes: usize,
    /// How long an undetached session continues after its client has disconnected.
    pub grace: Duration,
}

impl Default for SessionLimits {
    /// A session takes three threads, its rings, and at least a few megabytes; hundreds exceed the programs that are
    /// worth watching at once.
    fn default() -> Self {
        SessionLimits {
            running: 256,
            running_of_user: 16,
            ended: 32,
            ended_of_user: 8,
            bytes_of_user: 256 << 20,
            arguments: false,
            ended_bytes: 256 << 20,
            ring_bytes: 256 << 20,
            grace: Duration::from_secs(5),
        }
    }
}

/// Requests that wait for the table's thread, which answers each at once.
const ASKS: usize = 64;

/// Handle to all sessions. Clones share them; when the last handle is dropped, all sessions end.
#[derive(Clone)]
pub struct Sessions {
    asks: Sender<Ask>,
}

impl Sessions {
    /// Starts an empty table.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(limits: SessionLimits) -> io::Result<Sessions> {
        let (asks, receiver) = bounded(ASKS);
        let table = SessionTable::new(limits, receiver);
        std::thread::Builder::new().name("ccsd-table".to_owned()).spawn(move || table.run())?;
        Ok(Sessions { asks })
    }

    /// Creates a session and waits until it samples. An undetached session ends with `connection`.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn create(&self, new: NewSession, connection: Option<u64>) -> Result<u32, Refusal> {
        self.ask(|reply| Ask::Create(Box::new(new), connection, reply))?
    }

    /// The sessions that `viewer` may see, ordered by number.
    ///
    /// # Errors
    /// If the daemon is shutting down.
    pub fn list(&self, viewer: Authority) -> Result<Vec<SessionSummary>, Refusal> {
        self.ask(|reply| Ask::List(viewer, reply))
    }

    /// Ends a session; with `forget`, also removes it then. `target_cpu_ns` is the CPU time of the recorded program,
    /// user and total, if known.
    ///
    /// # Errors
    /// If `viewer` can see no such session.
    pub fn stop(
        &self,
        viewer: Authority,
        id: u32,
        target_cpu_ns: Option<(u64, u64)>,
        forget: bool,
    ) -> Result<(), Refusal> {
        self.ask(|reply| Ask::Stop { viewer, id, target_cpu_ns, forget, reply })?
    }

    /// Removes an ended session.
    ///
    /// # Errors
    /// If `viewer` can see no such session, or it still runs.
    pub fn forget(&self, viewer: Authority, id: u32) -> Result<(), Refusal> {
        self.ask(|reply| Ask::Forget(viewer, id, reply))?
    }

    /// Subscribes to the profile of a session so far and, with `follow`, its updates.
    ///
    /// # Errors
    /// If `viewer` can see no such session.
    pub fn subscribe(&self, viewer: Authority, id: u32, follow: bool) -> Result<StreamReader, Refusal> {
        let reader = self.ask(|reply| Ask::Subscribe(viewer, id, follow, reply))??;
        reader.recv().map_err(|_| worker::gone(id))
    }

    /// Changes [`SessionLimits::bytes_of_user`], and [`SessionLimits::arguments`] for new sessions.
    pub fn configure(&self, bytes_of_user: u64, arguments: bool) {
        let _ = self.asks.send(Ask::Configure { bytes_of_user, arguments });
    }

    /// Reports that a connection has ended; its undetached sessions end after the grace period.
    pub fn connection_ended(&self, connection: u64) {
        let _ = self.asks.send(Ask::ConnectionEnded(connection));
    }

    /// Ends all sessions and refuses new ones. The receiver is disconnected when all have ended.
    #[must_use]
    pub fn shut_down(&self) -> Receiver<()> {
        let (all_ended, wait) = bounded(0);
        let _ = self.asks.send(Ask::ShutDown(all_ended));
        wait
    }

    fn ask<T>(&self, ask: impl FnOnce(Sender<T>) -> Ask) -> Result<T, Refusal> {
        let ending = || Refusal::new(RefusalKind::Failed, SessionEnd::Shutdown.text());
        let (reply, answer) = bounded(1);
        self.asks.send(ask(reply)).map_err(|_| ending())?;
        answer.recv().map_err(|_| ending())
    }
}
