//! Dumps for clients: stacks of processes that the client may see but could not dump itself.
//!
//! Permissions are those of sessions. A dump stops the threads of its target for a moment and costs the daemon CPU
//! time. Therefore a process has at most one dump at a time, few dumps run at once, and untrusted users are
//! rate-limited.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_collector::Denied;
use ccsd_collector::dump::{Dump, End, dump};

use crate::authority::Authority;
use crate::protocol::message::{Refusal, RefusalKind};

/// Concurrent dumps. Each holds a process's debug information in memory.
const AT_ONCE: usize = 4;
/// Concurrent dumps of untrusted users together.
const AT_ONCE_OF_USERS: usize = 2;
/// Dumps of all untrusted users together within [`WINDOW`].
const IN_WINDOW: usize = 20;
/// Dumps of one untrusted user within [`WINDOW`].
const IN_WINDOW_OF_USER: usize = 10;
const WINDOW: Duration = Duration::from_secs(10);
/// Entries of all stacks of a dump that are sent: about 14 MB of text.
const MAX_ENTRIES: usize = 1 << 21;

/// Bytes of all dump texts being sent, and of those of untrusted users. A slow reader holds its text in memory.
const MAX_TEXT_BYTES: usize = 96 << 20;
const MAX_TEXT_BYTES_OF_USERS: usize = 32 << 20;

/// Running and recent dumps.
#[derive(Debug, Default)]
pub struct Dumps(Mutex<DumpsState>);

#[derive(Debug, Default)]
struct DumpsState {
    /// Process ids, and whether the user is trusted.
    running: Vec<(u32, bool)>,
    /// Times and user ids of recent dumps of untrusted users.
    recent: VecDeque<(Instant, u32)>,
    /// Bytes of texts being sent: of all users, and of untrusted users.
    text_bytes: usize,
    text_bytes_of_users: usize,
}

/// The text of a dump while it is sent.
#[derive(Debug)]
pub struct DumpText<'a> {
    dumps: &'a Dumps,
    /// The text.
    pub text: String,
    trusted: bool,
}

impl Drop for DumpText<'_> {
    fn drop(&mut self) {
        let bytes = self.text.len();
        self.dumps.state(|state| {
            state.text_bytes = state.text_bytes.saturating_sub(bytes);
            let of_users = if self.trusted { 0 } else { bytes };
            state.text_bytes_of_users = state.text_bytes_of_users.saturating_sub(of_users);
        });
    }
}

/// A running dump.
struct RunningDump<'a> {
    dumps: &'a Dumps,
    pid: u32,
}

impl Drop for RunningDump<'_> {
    fn drop(&mut self) {
        self.dumps.state(|state| state.running.retain(|&(pid, _)| pid != self.pid));
    }
}

impl Dumps {
    fn state<T>(&self, with: impl FnOnce(&mut DumpsState) -> T) -> T {
        with(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Accounts for a text while it is sent.
    ///
    /// # Errors
    /// If too many bytes are being sent.
    pub fn hold(&self, user: Authority, text: String) -> Result<DumpText<'_>, Refusal> {
        let of_user = if user.trusted { 0 } else { text.len() };
        let fits = self.state(|state| {
            let (all, of_users) = (state.text_bytes + text.len(), state.text_bytes_of_users + of_user);
            let fits = all <= MAX_TEXT_BYTES && of_users <= MAX_TEXT_BYTES_OF_USERS;
            if fits {
                (state.text_bytes, state.text_bytes_of_users) = (all, of_users);
            }
            fits
        });
        match fits {
            true => Ok(DumpText { dumps: self, text, trusted: user.trusted }),
            false => {
                let message =
                    "dumps that others have asked for and are slow to read take all the memory that there is for them";
                Err(Refusal::new(RefusalKind::Busy, message))
            }
        }
    }

    /// Takes the stacks of a process for a user.
    ///
    /// # Errors
    /// If the user may not see them, if there are too many dumps, and those of [`dump`].
    pub fn take(&self, user: Authority, pid: u32) -> Result<Dump, Refusal> {
        let began = check(user, pid)?;
        let _running = self.begin(user, pid, Instant::now())?;
        let mut dump = dump(pid, user.owner())?;
        // The process may have changed its user, or its id may have been reused.
        let now = check(user, pid)?;
        if now != began || dump.start_time != began {
            return Err(ccsd_collector::Error::NoSuchProcess(pid).into());
        }
        if !user.trusted {
            // Untrusted users could not see kernel stacks without the daemon.
            dump.threads.iter_mut().for_each(|thread| thread.kernel_stack.clear());
        }
        bound(&mut dump, MAX_ENTRIES);
        Ok(dump)
    }

    fn begin(&self, user: Authority, pid: u32, now: Instant) -> Result<RunningDump<'_>, Refusal> {
        let busy = |message: String| Err(Refusal::new(RefusalKind::Busy, message));
        self.state(|state| {
            if state.running.iter().any(|&(running, _)| running == pid) {
                return busy(format!("the stacks of PID {pid} are being taken for somebody else; try again"));
            }
            if state.running.len() >= AT_ONCE {
                return busy(format!("the daemon is taking {AT_ONCE} dumps already; try again"));
            }
            let of_users = state.running.iter().filter(|(_, trusted)| !trusted).count();
            if !user.trusted && of_users >= AT_ONCE_OF_USERS {
                return busy(format!("the daemon is taking {of_users} dumps for users already; try again"));
            }
            if !user.trusted {
                state.recent.retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
                let own = state.recent.iter().filter(|(_, uid)| *uid == user.uid).count();
                if own >= IN_WINDOW_OF_USER || state.recent.len() >= IN_WINDOW {
                    let seconds = WINDOW.as_secs();
                    return busy(format!(
                        "the daemon has taken {} dumps within {seconds} s, of these {own} for you; try again later",
                        state.recent.len()
                    ));
                }
                state.recent.push_back((now, user.uid));
            }
            state.running.push((pid, user.trusted));
            Ok(RunningDump { dumps: self, pid })
        })
    }
}

/// Returns when the process began, if the user may see all its threads.
fn check(user: Authority, pid: u32) -> Result<u64, Refusal> {
    let began = user.check(pid)?;
    match user.owner().map_or(Ok(()), |owner| owner.check(pid)) {
        Ok(()) => Ok(began),
        Err(Denied::Gone) => Err(ccsd_collector::Error::NoSuchProcess(pid).into()),
        Err(Denied::Forbidden(why)) => {
            let message = format!("user {} may not profile PID {pid}: {why} (a thread of it)", user.uid);
            Err(Refusal::new(RefusalKind::NotPermitted, message))
        }
    }
}

/// Removes the stacks of threads beyond the limit.
fn bound(dump: &mut Dump, most: usize) {
    let mut entries = 0;
    for thread in &mut dump.threads {
        if entries + thread.stack.len() > most {
            thread.stack = Vec::new();
            thread.end = End::Missing("the stacks of all threads are too much to be sent".to_owned());
        }
        entries += thread.stack.len();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use ccsd_collector::dump::{Method, State as ThreadState, ThreadDump};

    const USER: Authority = Authority { uid: 7, gid: 7, trusted: false };
    const OTHER: Authority = Authority { uid: 8, gid: 8, trusted: false };

    #[test]
    fn one_of_a_process_and_few_at_once() {
        let (dumps, now) = (Dumps::default(), Instant::now());
        let root = Authority { trusted: true, ..USER };
        let first = dumps.begin(root, 1, now).unwrap();
        assert!(dumps.begin(root, 1, now).is_err_and(|refusal| refusal.kind == RefusalKind::Busy));
        let others: Vec<_> = (2..=AT_ONCE as u32).map(|pid| dumps.begin(root, pid, now).unwrap()).collect();
        assert!(dumps.begin(root, 99, now).is_err());
        drop((first, others));
        assert!((0..100).all(|_| dumps.begin(root, 1, now).is_ok()));
    }

    #[test]
    fn others_get_some_in_a_while() {
        let (dumps, now) = (Dumps::default(), Instant::now());
        let many = |user, at| (0..100).filter(|_| dumps.begin(user, 1, at).is_ok()).count();
        assert_eq!(many(USER, now), IN_WINDOW_OF_USER);
        assert_eq!(many(OTHER, now), IN_WINDOW - IN_WINDOW_OF_USER);
        assert_eq!(many(USER, now + WINDOW), IN_WINDOW_OF_USER);
    }

    #[test]
    fn who_reads_slowly_does_not_take_all_memory() {
        let dumps = Dumps::default();
        let root = Authority { trusted: true, ..USER };
        let text = || "x".repeat(MAX_TEXT_BYTES_OF_USERS / 2);
        let users = [dumps.hold(USER, text()).unwrap(), dumps.hold(OTHER, text()).unwrap()];
        assert!(dumps.hold(USER, "x".into()).is_err_and(|refusal| refusal.kind == RefusalKind::Busy));
        // Root has a limit of its own.
        let own: Vec<_> = (0..4).map(|_| dumps.hold(root, text()).unwrap()).collect();
        assert!(dumps.hold(root, "x".into()).is_err());
        drop(users);
        assert!(dumps.hold(USER, text()).is_ok() && dumps.hold(root, text()).is_ok());
        drop(own);
        let state = dumps.0.lock().unwrap();
        assert_eq!((state.text_bytes, state.text_bytes_of_users), (0, 0));
    }

    #[test]
    fn what_is_sent_is_bounded() {
        let thread = ThreadDump {
            tid: 1,
            name: String::new(),
            state: ThreadState::Running,
            wait: None,
            kernel_stack: Vec::new(),
            stack: vec![0; 6],
            end: End::Complete,
            method: Method::Stopped { ns: 1 },
        };
        let mut dump = Dump { threads: vec![thread; 3], ..Dump::default() };
        bound(&mut dump, 13);
        let lengths: Vec<usize> = dump.threads.iter().map(|thread| thread.stack.len()).collect();
        assert_eq!(lengths, [6, 6, 0]);
        assert!(matches!(dump.threads[2].end, End::Missing(_)));
    }
}
