//! Dumps for clients: stacks of processes that the client may see but could not dump itself.
//!
//! A dump stops threads for a moment and costs the daemon CPU time. So a process has one dump at a time, few run at
//! once, and untrusted users are rate-limited.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_collector::Denied;
use ccsd_collector::dump::{Dump, End, dump};

use crate::authority::Authority;
use crate::ledger::{Ledger, LedgerCharge, LedgerPrincipal, Resource};
use crate::protocol::message::{Refusal, RefusalKind};

const WINDOW: Duration = Duration::from_secs(10);
/// Entries of all stacks of a dump that are sent: about 14 MB of text.
const MAX_ENTRIES: usize = 1 << 21;

#[derive(Debug)]
pub struct Dumps {
    ledger: Ledger,
    state: Mutex<DumpsState>,
}

#[derive(Debug, Default)]
struct DumpsState {
    running: Vec<u32>,
    /// Recent dumps. Those that are not recent any more stay charged until the next dump.
    recent: VecDeque<(Instant, LedgerCharge)>,
}

/// The text of a dump while it is sent: a slow reader holds it in memory.
#[derive(Debug)]
pub struct DumpText {
    pub text: String,
    _bytes: LedgerCharge,
}

struct RunningDump<'a> {
    dumps: &'a Dumps,
    pid: u32,
    _charge: LedgerCharge,
}

impl Drop for RunningDump<'_> {
    fn drop(&mut self) {
        self.dumps.state(|state| state.running.retain(|&pid| pid != self.pid));
    }
}

impl Dumps {
    pub fn new(ledger: Ledger) -> Dumps {
        Dumps { ledger, state: Mutex::default() }
    }

    fn state<T>(&self, with: impl FnOnce(&mut DumpsState) -> T) -> T {
        with(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Charges a text while it is sent. Fails if it is more than the user may have.
    pub fn hold(&self, user: Authority, text: String) -> Result<DumpText, Refusal> {
        let bytes =
            self.ledger.take(self.ledger.principal(user.uid, user.trusted), Resource::Bytes, text.len() as u64)?;
        Ok(DumpText { text, _bytes: bytes })
    }

    /// Takes the stacks of a process for a user. Fails if the user may not see them, if there are too many dumps, and
    /// those of [`dump`].
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
        let principal = self.ledger.principal(user.uid, user.trusted);
        self.state(|state| {
            if state.running.contains(&pid) {
                let message = format!("the stacks of PID {pid} are being taken already; try again");
                return Err(Refusal::new(RefusalKind::Busy, message));
            }
            state.recent.retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
            let charge = self.ledger.take(principal, Resource::Dumping, 1)?;
            if principal != LedgerPrincipal::Own {
                state.recent.push_back((now, self.ledger.take(principal, Resource::Dumped, 1)?));
            }
            state.running.push(pid);
            Ok(RunningDump { dumps: self, pid, _charge: charge })
        })
    }
}

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
    use crate::ledger::Shares;
    use ccsd_collector::dump::{Method, TaskState, ThreadDump};

    const USER: Authority = Authority { uid: 7, gid: 7, trusted: false };
    const OTHER: Authority = Authority { uid: 8, gid: 8, trusted: false };

    fn dumps() -> Dumps {
        Dumps::new(Ledger::new(Shares::new(32 << 20, 1024, 1 << 20)))
    }

    #[test]
    fn one_of_a_process_and_few_at_once() {
        let (dumps, now) = (dumps(), Instant::now());
        let root = Authority { trusted: true, ..USER };
        let users: Vec<_> = [USER, OTHER].map(|user| dumps.begin(user, user.uid, now).unwrap()).into();
        assert!(dumps.begin(root, USER.uid, now).is_err_and(|refusal| refusal.kind == RefusalKind::Busy));
        assert!(dumps.begin(USER, 99, now).is_err_and(|refusal| {
            refusal.message.contains("you already have 1 dump under way, and 1 is the most for one user")
        }));
        let of_root: Vec<_> = (100..).map_while(|pid| dumps.begin(root, pid, now).ok()).collect();
        assert_eq!(of_root.len(), 4);
        drop((users, of_root));
        assert!((0..100).all(|_| dumps.begin(root, 1, now).is_ok()));
    }

    #[test]
    fn each_user_gets_some_in_a_while() {
        let (dumps, now) = (dumps(), Instant::now());
        let many = |user, at| (0..100).filter(|_| dumps.begin(user, 1, at).is_ok()).count();
        assert_eq!(many(USER, now), 10);
        assert!((4..10).contains(&many(OTHER, now)));
        assert_eq!(many(USER, now + WINDOW), 10);
    }

    #[test]
    fn slow_readers_do_not_take_others_memory() {
        let dumps = dumps();
        let root = Authority { trusted: true, ..USER };
        let text = || "x".repeat(16 << 20);
        let held = [dumps.hold(USER, text()).unwrap(), dumps.hold(USER, text()).unwrap()];
        assert!(dumps.hold(USER, "x".into()).is_err_and(|refusal| refusal.kind == RefusalKind::Busy));
        assert!(dumps.hold(OTHER, text()).is_ok() && dumps.hold(root, text()).is_ok());
        drop(held);
        assert_eq!(dumps.ledger.taken_by_users(Resource::Bytes), 0);
    }

    #[test]
    fn sent_dumps_are_bounded() {
        let thread = ThreadDump {
            tid: 1,
            name: String::new(),
            state: TaskState::Running,
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
