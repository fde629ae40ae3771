//! Dumps for clients: stacks of processes that the client may see but could not dump itself.
//!
//! A dump stops blocked threads for a moment and costs the daemon CPU time. So a process has one dump at a time, few run at
//! once, and untrusted users are rate-limited.
//!
//! Reading a process's memory may take for ever: while the process maps a file of a file system in user space, it holds the
//! lock that the reader needs. So each dump has a thread, which is left behind if it takes too long.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_collector::dump::{Dump, End, dump};
use ccsd_collector::{Deadline, Denied, usage};
use ccsd_worker::Principal;
use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::authority::Authority;
use crate::ledger::{Ledger, LedgerCharge, LedgerPrincipal, Resource};
use crate::protocol::message::{Refusal, RefusalKind};

const WINDOW: Duration = Duration::from_secs(10);
/// How long a dump is waited for. One that nothing holds up takes 10 s at most.
const PATIENCE: Duration = Duration::from_secs(15);
/// Dumps of one user's processes that may have been left behind and go on.
const MAX_LEFT_BEHIND: usize = 4;
/// Entries of all stacks of a dump that are sent: about 14 MB of text.
const MAX_ENTRIES: usize = 1 << 21;

#[derive(Debug)]
pub struct Dumps {
    ledger: Ledger,
    state: Arc<Mutex<DumpsState>>,
    patience: Duration,
}

#[derive(Debug, Default)]
struct DumpsState {
    running: Vec<u32>,
    /// Those of them that are not waited for any more, and whose processes these are, if they are users'.
    left_behind: HashMap<u32, Option<Principal>>,
    /// Recent dumps. Those that are not recent any more stay charged until the next dump.
    recent: VecDeque<(Instant, LedgerCharge)>,
}

/// The text of a dump while it is sent: a slow reader holds it in memory.
#[derive(Debug)]
pub struct DumpText {
    pub text: String,
    _bytes: LedgerCharge,
}

struct RunningDump {
    state: Arc<Mutex<DumpsState>>,
    pid: u32,
}

impl Drop for RunningDump {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.running.retain(|&pid| pid != self.pid);
        state.left_behind.remove(&self.pid);
    }
}

impl Dumps {
    pub fn new(ledger: Ledger) -> Dumps {
        Dumps { ledger, state: Arc::default(), patience: PATIENCE }
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
        let (_charge, running) = self.begin(user, pid, Instant::now())?;
        let mut dump = self.in_time(running, move || dump(pid, user.owner()))??;
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

    /// What `take` takes, unless it does not come to an end.
    fn in_time<T: Send + 'static>(
        &self,
        running: RunningDump,
        take: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Refusal> {
        let pid = running.pid;
        let user = Deadline::default().other_user(pid);
        let busy = |message: String| Refusal::new(RefusalKind::Busy, message);
        let left_behind = self.state(|state| state.left_behind.values().filter(|&&of| of == user).count());
        if left_behind >= MAX_LEFT_BEHIND {
            let message = "dumps of the same user's processes have been held up, and go on; end these processes first";
            return Err(busy(format!("PID {pid} is not looked at: {left_behind} {message}")));
        }
        let (sender, taken) = bounded(1);
        let work = move || {
            let taken = take();
            // Who has asked may not wait any more.
            let _ = sender.send((taken, usage::thread_work_ns()));
            drop(running);
        };
        let started = std::thread::Builder::new().name("ccsd-dump".to_owned()).spawn(work);
        started.map_err(|error| busy(format!("cannot start a thread for the dump: {error}")))?;
        let taken = taken.recv_timeout(self.patience).map(|(taken, ns)| {
            usage::add_helper(ns);
            taken
        });
        taken.map_err(|error| {
            if error == RecvTimeoutError::Disconnected {
                return busy(format!("the dump of PID {pid} has failed"));
            }
            self.state(|state| {
                if state.running.contains(&pid) {
                    state.left_behind.insert(pid, user);
                }
            });
            busy(format!(
                "the memory of PID {pid} could not be read in {} s: something holds it up, perhaps a file system that does \
                 not answer",
                self.patience.as_secs()
            ))
        })
    }

    fn begin(&self, user: Authority, pid: u32, now: Instant) -> Result<(LedgerCharge, RunningDump), Refusal> {
        let principal = self.ledger.principal(user.uid, user.trusted);
        self.state(|state| {
            if state.running.contains(&pid) {
                let message = format!("the stacks of PID {pid} are being taken already; try again");
                return Err(Refusal::new(RefusalKind::Busy, message));
            }
            state.recent.retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
            self.ledger.check_cpu(principal, now)?;
            let charge = self.ledger.take(principal, Resource::Dumping, 1)?;
            if principal != LedgerPrincipal::Own {
                state.recent.push_back((now, self.ledger.take(principal, Resource::Dumped, 1)?));
            }
            state.running.push(pid);
            Ok((charge, RunningDump { state: self.state.clone(), pid }))
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
    fn what_does_not_end_is_left_behind() {
        let dumps = Dumps { patience: Duration::from_millis(1), ..dumps() };
        let (root, now) = (Authority { trusted: true, ..USER }, Instant::now());
        let (release, held) = bounded::<()>(0);
        // Processes that are none count like root's.
        let pids = (u32::MAX - 100)..;
        for (before, pid) in (0..MAX_LEFT_BEHIND).zip(pids.clone()) {
            let held = held.clone();
            let (charge, running) = dumps.begin(root, pid, now).unwrap();
            let refused = dumps.in_time(running, move || held.recv().is_ok()).unwrap_err();
            assert!(refused.message.contains("could not be read"), "{}", refused.message);
            drop(charge);
            assert_eq!(dumps.state(|state| (state.running.len(), state.left_behind.len())), (before + 1, before + 1));
            // It still has its one dump.
            assert!(dumps.begin(root, pid, now).is_err());
        }
        let (_charge, running) = dumps.begin(root, 7_000_000, now).unwrap();
        let refused = dumps.in_time(running, || ()).unwrap_err();
        assert!(refused.message.contains("4 dumps"), "{}", refused.message);
        // Those of others are not concerned.
        dumps.state(|state| state.left_behind.values_mut().for_each(|user| *user = Some(Principal::User(7))));
        let own = std::process::id();
        let patient =
            Dumps { patience: Duration::from_secs(1_000), ledger: dumps.ledger.clone(), state: dumps.state.clone() };
        let (_charge, running) = patient.begin(root, own, now).unwrap();
        assert_eq!(patient.in_time(running, || 5).unwrap(), 5);
        drop(release);
        while dumps.state(|state| state.left_behind.len()) > 0 {
            std::thread::yield_now();
        }
        assert!(dumps.begin(root, pids.start, now).is_ok());
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
