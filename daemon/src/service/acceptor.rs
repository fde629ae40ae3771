//! Accepts connections and reports refusals.
//!
//! Nothing here may block: the connection's own thread looks up group membership; until then it counts for an ordinary
//! user. Closing a connection may, too; see [`Closer`].

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ccsd_collector::usage;
use crossbeam_channel::{SendError, Sender, bounded};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::closer::Closer;
use super::connection::{Connection, Served};
use crate::authority::{Members, PeerIds};
use crate::dumps::Dumps;
use crate::ledger::{Ledger, LedgerPrincipal, Resource};
use crate::protocol::message::{Refusal, RefusalKind, Reply};
use crate::protocol::send;
use crate::sessions::Sessions;
use crate::supervisor::{BEAT, Heart};
use crate::upkeep::Upkeep;

/// Stack size of a client's thread. The JSON reader limits recursion to 128 levels.
const STACK_BYTES: usize = 256 << 10;
/// Pause when no connection can be accepted for want of descriptors or memory.
const RESPITE: Duration = Duration::from_millis(100);
/// Interval between messages about refusals: the first is logged at once, later ones are counted.
const SUMMING_UP: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
struct Summary {
    said: Option<Instant>,
    more: u64,
    last: String,
}

impl Summary {
    fn note(&mut self, now: Instant, what: String) -> Option<String> {
        if self.due_in(now).is_zero() && self.more == 0 {
            self.said = Some(now);
            return Some(what);
        }
        self.more += 1;
        self.last = what;
        None
    }

    fn due_in(&self, now: Instant) -> Duration {
        self.said.map_or(Duration::ZERO, |said| SUMMING_UP.saturating_sub(now.saturating_duration_since(said)))
    }

    /// Time until the next message; `None` if there is none.
    fn waits(&self, now: Instant) -> Option<Duration> {
        (self.more > 0).then(|| self.due_in(now))
    }

    fn take(&mut self, now: Instant) -> Option<String> {
        if self.more == 0 || !self.due_in(now).is_zero() {
            return None;
        }
        let more = std::mem::take(&mut self.more);
        self.said = Some(now);
        let last = std::mem::take(&mut self.last);
        Some(if more == 1 { last } else { format!("{more} times in {} s: {last}", SUMMING_UP.as_secs()) })
    }
}

/// Charges what accepting a connection has cost, on drop: users may connect thousands of times a second.
struct AcceptingCpu {
    ledger: Ledger,
    principal: LedgerPrincipal,
    began: u64,
}

impl Drop for AcceptingCpu {
    fn drop(&mut self) {
        self.ledger.add_request_cpu(self.principal, usage::thread_cpu_ns().saturating_sub(self.began));
    }
}

pub struct Acceptor {
    served: Served,
    members: Arc<Members>,
    refusals: Summary,
    closer: Closer,
}

impl Acceptor {
    /// `streaming` is alive while clients may be given streams.
    pub fn new(
        sessions: Sessions,
        upkeep: Option<Arc<Upkeep>>,
        streaming: Weak<Sender<()>>,
        closer: Closer,
    ) -> Acceptor {
        let dumps = Arc::new(Dumps::new(sessions.ledger().clone()));
        let served = Served { sessions, dumps, upkeep, streaming };
        Acceptor { served, members: Arc::default(), refusals: Summary::default(), closer }
    }

    /// Accepts connections until the other end of `woken` is closed.
    pub fn run(mut self, listener: &UnixListener, woken: &OwnedFd, heart: &Heart) {
        loop {
            heart.beat();
            let mut fds =
                [PollFd::new(listener.as_fd(), PollFlags::POLLIN), PollFd::new(woken.as_fd(), PollFlags::POLLIN)];
            let wait = self.refusals.waits(Instant::now()).map_or(BEAT, |wait| wait.min(BEAT));
            let wait = u16::try_from(wait.as_millis() + 1).unwrap_or(u16::MAX);
            let polled = poll(&mut fds, PollTimeout::from(wait));
            if let Some(summary) = self.refusals.take(Instant::now()) {
                tracing::warn!("{summary}");
            }
            if fds[1].any().unwrap_or(false) {
                return;
            }
            if !matches!(polled, Ok(1..)) {
                continue;
            }
            let began = usage::thread_cpu_ns();
            match listener.accept() {
                Ok((stream, _)) => self.accept(stream, began),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => {
                    self.warn(format!("cannot accept a connection: {error}"));
                    std::thread::sleep(RESPITE);
                }
            }
        }
    }

    fn warn(&mut self, what: String) {
        if let Some(what) = self.refusals.note(Instant::now(), what) {
            tracing::warn!("{what}");
        }
    }

    /// `began` is this thread's CPU time before.
    fn accept(&mut self, stream: UnixStream, began: u64) {
        let Ok(credentials) = PeerIds::of(&stream) else { return self.closer.close(stream) };
        let ledger = self.served.sessions.ledger();
        let is_own = credentials.is_trusted() || credentials.is_known_member(&stream, &self.members);
        let principal = if is_own { LedgerPrincipal::Own } else { ledger.user(credentials.uid) };
        let _cpu = AcceptingCpu { ledger: ledger.clone(), principal, began };
        let place = match ledger.take(principal, Resource::Connections, 1) {
            Ok(place) => place,
            Err(why) => {
                refuse(&stream, &why.to_string());
                self.closer.close(stream);
                return self.warn(format!("a connection of user {} was refused: {why}", credentials.uid));
            }
        };
        let (served, members) = (self.served.clone(), Arc::clone(&self.members));
        let (give, stream_given) = bounded(1);
        let serve = move || {
            if let Ok(stream) = stream_given.recv()
                && UnixStream::set_nonblocking(&stream, false).is_ok()
            {
                Connection::serve(stream, (credentials, &members), &place, served);
            }
        };
        let thread = std::thread::Builder::new().name("ccsd-client".to_owned()).stack_size(STACK_BYTES).spawn(serve);
        match thread {
            Ok(_) => {
                // The thread takes it, unless it has failed.
                if let Err(SendError(stream)) = give.send(stream) {
                    self.closer.close(stream);
                }
            }
            Err(error) => {
                self.closer.close(stream);
                self.warn(format!("cannot start a thread for a client: {error}"));
            }
        }
    }
}

/// Sends the reason instead of a greeting, if the client takes it at once.
fn refuse(stream: &UnixStream, why: &str) {
    if stream.set_nonblocking(true).is_ok() {
        let _ = send(&mut &*stream, &Reply::Refused(Refusal::new(RefusalKind::Busy, why)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_of_many_refusals_are_logged() {
        let mut refusals = Summary::default();
        let begin = Instant::now();
        let said: Vec<String> = (0..5000u64)
            .flat_map(|i| {
                let now = begin + Duration::from_millis(i);
                [refusals.take(now), refusals.note(now, format!("no room for {i}"))]
            })
            .flatten()
            .collect();
        assert_eq!(said, ["no room for 0"]);
        let later = begin + SUMMING_UP;
        assert_eq!(refusals.waits(begin + SUMMING_UP / 2), Some(SUMMING_UP / 2));
        assert_eq!(refusals.take(later), Some("4999 times in 10 s: no room for 4999".to_owned()));
        assert_eq!((refusals.waits(later), refusals.take(later)), (None, None));
        // A single later event is logged unchanged: at once, or when it is due.
        assert_eq!(refusals.note(later, "once".to_owned()), None);
        assert_eq!(refusals.take(later + SUMMING_UP), Some("once".to_owned()));
        assert_eq!(refusals.note(later + 3 * SUMMING_UP, "at once".to_owned()), Some("at once".to_owned()));
    }
}
