//! The sessions of a daemon: a table, owned by one thread, and a thread for each session.
//!
//! Clients ask through [`Sessions`]. The table's thread never waits for a session, a session
//! never for a reader, and the collector for nobody.

mod guard;
pub mod readers;
mod table;
pub mod worker;

use std::io;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::authority::Authority;
use crate::protocol::message::{Refusal, RefusalKind, SessionEnd, SessionSummary};
use readers::Reader;
use table::{Ask, SessionTable};
pub use worker::{NewSession, SessionTarget};

/// How many sessions there may be, and how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// That run, in all.
    pub running: usize,
    /// That run, of one user who is neither root nor a member of the group.
    pub running_of_user: usize,
    /// That have ended and are kept, in all.
    pub ended: usize,
    /// That have ended and are kept, of one such user.
    pub ended_of_user: usize,
    /// Bytes that all sessions of one such user may take: rings, profiles, names, what is kept for slow readers.
    pub bytes_of_user: u64,
    /// Whether the arguments of targets are noted in profiles, where clients do not forbid it.
    pub arguments: bool,
    /// Bytes of all profiles that are kept of sessions that have ended.
    pub ended_bytes: u64,
    /// Bytes of the rings of samples of all sessions that run, which are locked. The smallest, half a MiB for each CPU, are
    /// given beyond that: `running` of them is the most that there can be.
    pub ring_bytes: usize,
    /// How long an undetached session goes on when its client has gone without a word.
    pub grace: Duration,
}

impl Default for SessionLimits {
    /// A session takes three threads, its rings, and from a few megabytes up; hundreds are more than a machine has
    /// programs worth watching at once.
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

/// All sessions. The clones are the same; when the last is gone, all end.
#[derive(Clone)]
pub struct Sessions {
    asks: Sender<Ask>,
}

impl Sessions {
    /// No sessions yet.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(limits: SessionLimits) -> io::Result<Sessions> {
        let (asks, receiver) = bounded(ASKS);
        let table = SessionTable::new(limits, receiver);
        std::thread::Builder::new().name("ccsd-table".to_owned()).spawn(move || table.run())?;
        Ok(Sessions { asks })
    }

    /// Makes a session, and waits until it samples. One that is not detached ends with `connection`.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn create(&self, new: NewSession, connection: Option<u64>) -> Result<u32, Refusal> {
        self.ask(|reply| Ask::Create(Box::new(new), connection, reply))?
    }

    /// The sessions that `viewer` may see, in order of their numbers.
    ///
    /// # Errors
    /// If the daemon is ending.
    pub fn list(&self, viewer: Authority) -> Result<Vec<SessionSummary>, Refusal> {
        self.ask(|reply| Ask::List(viewer, reply))
    }

    /// Tells a session to end, and with `forget` to be gone then. `target_cpu_ns` is the CPU time of the recorded program,
    /// user and in all, if it is known.
    ///
    /// # Errors
    /// If there is none that `viewer` may see.
    pub fn stop(
        &self,
        viewer: Authority,
        id: u32,
        target_cpu_ns: Option<(u64, u64)>,
        forget: bool,
    ) -> Result<(), Refusal> {
        self.ask(|reply| Ask::Stop { viewer, id, target_cpu_ns, forget, reply })?
    }

    /// Drops a session that has ended.
    ///
    /// # Errors
    /// If there is none that `viewer` may see, or it runs.
    pub fn forget(&self, viewer: Authority, id: u32) -> Result<(), Refusal> {
        self.ask(|reply| Ask::Forget(viewer, id, reply))?
    }

    /// The profile of a session so far and, with `follow`, its updates.
    ///
    /// # Errors
    /// If there is none that `viewer` may see.
    pub fn subscribe(&self, viewer: Authority, id: u32, follow: bool) -> Result<Reader, Refusal> {
        let reader = self.ask(|reply| Ask::Subscribe(viewer, id, follow, reply))??;
        reader.recv().map_err(|_| worker::gone(id))
    }

    /// Changes how much the sessions of one user may take, and whether new ones note arguments; see
    /// [`SessionLimits::bytes_of_user`] and [`SessionLimits::arguments`].
    pub fn configure(&self, bytes_of_user: u64, arguments: bool) {
        let _ = self.asks.send(Ask::Configure { bytes_of_user, arguments });
    }

    /// Says that a connection has ended, and with it soon the undetached sessions made by it.
    pub fn connection_ended(&self, connection: u64) {
        let _ = self.asks.send(Ask::ConnectionEnded(connection));
    }

    /// Ends all sessions, and refuses new ones. What is returned disconnects when all have.
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
