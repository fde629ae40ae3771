//! The sessions of a daemon: a table with its own thread, and a thread for each session.
//!
//! The table never waits for a session, a session never for a reader, and the collector for neither.

mod guard;
mod limits;
pub mod readers;
mod table;
pub mod worker;

use std::io;

use ccsd_collector::system;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::authority::Authority;
use crate::ledger::{Ledger, Shares};
use crate::protocol::message::{Refusal, RefusalKind, SessionEnd, SessionSummary};
use crate::supervisor::Supervisor;
pub use limits::SessionLimits;
use readers::StreamReader;
use table::{Ask, SessionTable};
pub use worker::{NewSession, SessionTarget, gone};

const ASKS: usize = 64;

/// Handle to all sessions. Clones share them; when the last handle is dropped, all sessions end.
#[derive(Clone)]
pub struct Sessions {
    asks: Sender<Ask>,
    ledger: Ledger,
}

impl Sessions {
    /// Starts an empty table.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(limits: SessionLimits, supervisor: &Supervisor) -> io::Result<Sessions> {
        let (asks, receiver) = bounded(ASKS);
        let shares = Shares::new(limits.bytes_of_user, system::raise_file_limit(), system::lockable_bytes());
        let ledger = Ledger::new(shares);
        let table = SessionTable::new(limits, ledger.clone(), receiver);
        supervisor.spawn("ccsd-table", move |heart| table.run(heart))?;
        Ok(Sessions { asks, ledger })
    }

    /// The ledger that these sessions are charged in.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Creates a session and waits until it samples. An undetached one ends some time after `client` is disconnected.
    ///
    /// # Errors
    /// The reason of the refusal.
    pub fn create(&self, new: NewSession, client: Option<Receiver<()>>) -> Result<u32, Refusal> {
        self.ask(|reply| Ask::Create(Box::new(new), client, reply))?
    }

    /// The sessions that `viewer` may see, ordered by number.
    ///
    /// # Errors
    /// If the daemon is shutting down.
    pub fn list(&self, viewer: Authority) -> Result<Vec<SessionSummary>, Refusal> {
        self.ask(|reply| Ask::List(viewer, reply))
    }

    /// Ends a session, and with `forget` removes it then. `target_cpu_ns`: of the recorded program, user and total, if
    /// known.
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
    pub fn configure(&self, bytes_of_user: u64, arguments: bool, paranoid_users: bool) {
        let _ = self.asks.send(Ask::Configure { bytes_of_user, arguments, paranoid_users });
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
