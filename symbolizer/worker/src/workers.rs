//! The workers of a daemon: one for each principal whose files are read.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

use crate::client::{DYING_PATIENCE, NoAnswer, Patience, Usage, Worker, WorkerProgram};
use crate::principal::{Principal, Principals};
use crate::slots::WorkerSlots;

/// Principals remembered, with the deaths of their workers. Beyond it the one that was used longest ago and has no
/// process is forgotten.
const MAX_PRINCIPALS: usize = 1024;
/// Unused processes end after this time, and that of the machine's own files after the second: unwinding waits for its
/// start.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_OWN: Duration = Duration::from_secs(600);

/// How long principals whose processes are answering keep others from a place.
const MAX_WAIT: Duration = Duration::from_secs(1);
/// Time after which a principal that has not asked again does not wait any more.
const FORGOTTEN: Duration = Duration::from_secs(10);

/// The worker processes of a daemon. Can be shared between threads.
#[derive(Debug)]
pub struct Workers {
    program: Arc<dyn WorkerProgram>,
    patience: Patience,
    slots: WorkerSlots,
    own: Arc<Worker>,
    others: Mutex<HashMap<Principal, Arc<Worker>>>,
    /// Who found all places taken: since when, and when last.
    waiting: Mutex<HashMap<Principal, (Instant, Instant)>>,
    principals: Principals,
    /// Process id and CPU time of the worker for the machine's own files when that was looked at last, and CPU time of those
    /// before it, nanoseconds.
    own_cpu: Mutex<(Option<u32>, u64, u64)>,
}

impl Workers {
    /// Starts the process for the machine's own files, which shows that processes can be started.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: impl WorkerProgram + 'static, patience: Patience) -> io::Result<Workers> {
        let (program, slots): (Arc<dyn WorkerProgram>, _) = (Arc::new(program), WorkerSlots::default());
        let own = Arc::new(Worker::new(Arc::clone(&program), patience, Principal::Own, slots.clone()));
        own.start()?;
        let (others, waiting) = (Mutex::default(), Mutex::default());
        let (principals, own_cpu) = (Principals::default(), Mutex::default());
        Ok(Workers { program, patience, slots, own, others, waiting, principals, own_cpu })
    }

    /// Finds principals.
    pub fn principals(&self) -> &Principals {
        &self.principals
    }

    /// Process id of a principal's worker.
    pub fn pid(&self, principal: Principal) -> Option<u32> {
        match principal {
            Principal::Own => self.own.pid(),
            other => self.others().get(&other)?.pid(),
        }
    }

    /// The worker for a principal's files. Makes a place for its process by ending another that is idle.
    ///
    /// # Errors
    /// If all places are taken by processes that are answering, for less than a second.
    pub fn of(&self, principal: Principal) -> Result<Arc<Worker>, NoAnswer> {
        if principal == Principal::Own {
            return Ok(Arc::clone(&self.own));
        }
        let mut others = self.others();
        if !others.contains_key(&principal) && others.len() >= MAX_PRINCIPALS {
            let forgotten = others.iter().filter(|(_, worker)| !worker.is_running());
            let oldest = forgotten.min_by_key(|(_, worker)| worker.used()).map(|(principal, _)| *principal);
            others.remove(&oldest.ok_or(NoAnswer::NoWorker)?);
        }
        let new = || Arc::new(Worker::new(Arc::clone(&self.program), self.patience, principal, self.slots.clone()));
        let worker = Arc::clone(others.entry(principal).or_insert_with(new));
        if !worker.is_running() && self.slots.is_full() {
            let mut all: Vec<_> = others.values().cloned().collect();
            drop(others);
            all.sort_by_key(|other| other.used());
            // Killed processes that have ended leave their places. One that has yet to end is waited for at the next
            // start of its principal's, and costs no other principal its process.
            let is_dying = all.iter().filter(|other| other.is_dying()).any(|other| Arc::ptr_eq(other, &worker));
            let now = Instant::now();
            if !is_dying && self.slots.is_full() && !all.iter().any(|other| other.end_idle(now)) {
                self.wait(principal, now, &all)?;
            }
        }
        self.waiting().remove(&principal);
        Ok(worker)
    }

    /// All places are taken by processes that are answering. A principal that has waited for [`MAX_WAIT`] gets the place of the one
    /// that has run longest.
    fn wait(&self, principal: Principal, now: Instant, all: &[Arc<Worker>]) -> Result<(), NoAnswer> {
        {
            let mut waiting = self.waiting();
            // Who does not ask any more does not wait.
            waiting.retain(|_, (_, asked)| now.saturating_duration_since(*asked) < FORGOTTEN);
            if waiting.len() >= MAX_PRINCIPALS && !waiting.contains_key(&principal) {
                return Err(NoAnswer::NoWorker);
            }
            let (since, asked) = waiting.entry(principal).or_insert((now, now));
            *asked = now;
            if now.saturating_duration_since(*since) < MAX_WAIT {
                return Err(NoAnswer::NoWorker);
            }
        }
        let running = all.iter().filter_map(|other| Some((other.running_since()?, other)));
        let longest = running.min_by_key(|(since, _)| *since);
        let longest = longest.filter(|(since, _)| now.saturating_duration_since(*since) >= MAX_WAIT);
        let (_, longest) = longest.ok_or(NoAnswer::NoWorker)?;
        longest.evict();
        // The kernel takes a moment to free what a large process holds.
        let until = now + DYING_PATIENCE;
        while longest.is_dying() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Principal, (Instant, Instant)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends processes that were not used for some time.
    pub fn end_idle(&self) {
        let since = |idle| Instant::now().checked_sub(idle);
        let others: Vec<_> = self.others().values().cloned().collect();
        if let Some(since) = since(IDLE) {
            for worker in &others {
                worker.end_idle(since);
            }
        }
        if let Some(since) = since(IDLE_OWN) {
            self.own.end_idle(since);
        }
    }

    /// Forgets all deaths.
    pub fn forgive(&self) {
        self.own.forgive();
        self.others().values().for_each(|worker| worker.forgive());
    }

    /// Resources used by all processes, ended ones included.
    pub fn usage(&self) -> Usage {
        let others: Vec<_> = self.others().values().cloned().collect();
        let ended = Usage { cpu_ns: children_cpu_ns(), ..Usage::default() };
        others.iter().chain([&self.own]).map(|worker| worker.usage()).fold(ended, |sum, one| Usage {
            cpu_ns: sum.cpu_ns.saturating_add(one.cpu_ns),
            resident_bytes: sum.resident_bytes.saturating_add(one.resident_bytes),
            failures: sum.failures.saturating_add(one.failures),
        })
    }

    /// Resources used by the worker for the machine's own files. Of those that have ended it counts what they had used when
    /// this was called last.
    pub fn own_usage(&self) -> Usage {
        let (pid, usage) = (self.own.pid(), self.own.usage());
        let mut known = self.own_cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, cpu_ns, ended_ns) = &mut *known;
        if std::mem::replace(last, pid) != pid {
            *ended_ns = ended_ns.saturating_add(std::mem::take(cpu_ns));
        }
        *cpu_ns = usage.cpu_ns.max(*cpu_ns);
        Usage { cpu_ns: cpu_ns.saturating_add(*ended_ns), ..usage }
    }

    fn others(&self) -> MutexGuard<'_, HashMap<Principal, Arc<Worker>>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// CPU time of this process's waited-for children, nanoseconds.
fn children_cpu_ns() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        micros.unsigned_abs().saturating_mul(1000)
    })
}
