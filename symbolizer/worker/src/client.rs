//! The daemon's side of one worker: the process of one principal, and its connections.
//!
//! A connection handles one question at a time, and the worker has a thread for each. A question takes a free
//! connection. If the answer is late or invalid, or the worker dies, the worker is killed, and the next question starts
//! another; see [`NoAnswer`] for the result. Processes start outside of locks: questions that can be answered do not
//! wait for a process that starts.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::{SysconfVar, sysconf};

use crate::blame::{Blame, May, Token};
use crate::message::{FileKey, Nonsense, WorkerReply, WorkerRequest};
use crate::principal::Principal;
use crate::slots::{WorkerSlot, WorkerSlots};
use crate::wire::Channel;

/// Number of connections, and of the worker's threads. Further questions wait; sessions rarely start at the same
/// moment.
const CONNECTIONS: usize = 8;
/// Number of connections (the first ones) reserved for questions about headers. These take well below a millisecond,
/// but the sampling thread waits for them, so their threads get real-time priority if permitted. (Among 200 busy
/// threads on two CPUs a normal thread waits 140 ms for its turn, and a process may have 300 images.)
pub const QUICK: usize = 2;
const START_PATIENCE: Duration = Duration::from_secs(10);
/// How long a start waits for killed processes of the same principal to end, which hold its places. (That of this
/// machine's own files does not wait: it always has a place.)
pub const DYING_PATIENCE: Duration = Duration::from_secs(2);
/// How long a process that was ended for another principal's does not start again.
const REST: Duration = Duration::from_secs(1);
/// How long a question about generated code waits for a connection, and for its answer, which takes some milliseconds: while a
/// session waits for these names, it does nothing else. Without an answer it asks again later.
const CODE_TURN: Duration = Duration::from_millis(100);
const CODE_PATIENCE: Duration = Duration::from_secs(2);
/// How many times as long a question about names in a file of this machine may take that waits for others: as many as may be
/// asked before it. Other users' files have no such time.
const MAX_WAITS: u32 = (CONNECTIONS - QUICK) as u32;
const MAX_GREETING: usize = 1024;
/// Maximum workers started within [`Patience::starts`].
const MAX_STARTS: usize = 5;

/// Time limits.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For an answer about headers, which takes a millisecond and blocks sampling.
    pub headers: Duration,
    /// For other answers. The debug information of the largest programs takes about two seconds on an idle machine, and
    /// limits keep hostile files to about as much.
    pub answer: Duration,
    /// Time within which at most five workers are started.
    pub starts: Duration,
    /// Time after which deaths are forgotten.
    pub blame: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            headers: Duration::from_secs(5),
            answer: Duration::from_secs(20),
            starts: Duration::from_secs(60),
            blame: Duration::from_secs(600),
        }
    }
}

/// Resources used by worker processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// CPU time, nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory of the running worker, bytes.
    pub resident_bytes: u64,
    /// Processes that died or were killed for hanging.
    pub failures: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The file is given up: the worker died of it, or did not finish.
    GivenUp,
    NoWorker,
}

#[derive(Debug, thiserror::Error)]
enum Fault {
    #[error("it died")]
    Died,
    #[error("it has not answered in time")]
    TimedOut,
    #[error(transparent)]
    Nonsense(#[from] Nonsense),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Fault {
        match error.kind() {
            ErrorKind::TimedOut => Fault::TimedOut,
            ErrorKind::InvalidData => Fault::Nonsense(Nonsense("a message that is too long")),
            _ => Fault::Died,
        }
    }
}

#[derive(Debug)]
struct ClientConnection {
    channel: Channel,
    buffer: Vec<u8>,
    /// Number of the worker that it belongs to.
    generation: u64,
    quick: bool,
}

#[derive(Debug)]
struct LentConnection {
    connection: ClientConnection,
    token: Token,
}

#[derive(Debug)]
struct RunningWorker {
    child: Child,
    /// Closing it tells the worker to end.
    _control: Channel,
    slot: WorkerSlot,
    since: Instant,
    free: Vec<ClientConnection>,
}

#[derive(Debug)]
struct ClientState {
    running: Option<RunningWorker>,
    starting: bool,
    used: Instant,
    generation: u64,
    failures: u64,
    starts: VecDeque<Instant>,
    /// Killed workers that have not ended yet, for example because they hang in a read.
    dying: Vec<DyingWorker>,
    blame: Blame,
    /// Until when its place is another principal's.
    rests_until: Option<Instant>,
    /// Whether it was logged that no more workers are started for now.
    said: bool,
}

/// A process that the kernel may keep for ever. As long as it is there, its principal gets no other.
#[derive(Debug)]
struct DyingWorker {
    child: Child,
    /// Its place, which it leaves to others after this time.
    slot: WorkerSlot,
    until: Instant,
}

impl DyingWorker {
    fn new(child: Child, slot: WorkerSlot) -> DyingWorker {
        DyingWorker { child, slot, until: Instant::now() + DYING_PATIENCE }
    }

    /// Whether it has ended. Gives up its place if that takes long.
    fn has_ended(&mut self) -> bool {
        let has_ended = has_ended(&mut self.child);
        if !has_ended && Instant::now() >= self.until {
            self.slot.leave();
        }
        has_ended
    }
}

#[derive(Debug)]
pub struct Worker {
    program: Arc<dyn WorkerProgram>,
    patience: Patience,
    principal: Principal,
    slots: WorkerSlots,
    state: Mutex<ClientState>,
    freed: Condvar,
}

/// How the worker process is started.
pub trait WorkerProgram: std::fmt::Debug + Send + Sync {
    /// The program, with arguments that make it call [`crate::serve`].
    fn command(&self) -> Command;
}

impl Worker {
    /// Starts no process yet.
    pub fn new(
        program: Arc<dyn WorkerProgram>,
        patience: Patience,
        principal: Principal,
        slots: WorkerSlots,
    ) -> Worker {
        let state = ClientState {
            running: None,
            starting: false,
            used: Instant::now(),
            generation: 0,
            failures: 0,
            starts: VecDeque::new(),
            dying: Vec::new(),
            blame: Blame::new(patience.blame, principal != Principal::Own),
            rests_until: None,
            said: false,
        };
        Worker { program, patience, principal, slots, state: Mutex::new(state), freed: Condvar::new() }
    }

    pub fn start(&self) -> io::Result<()> {
        self.lock().generation += 1;
        let running = self.begin(1)?;
        let mut state = self.lock();
        state.starts.push_back(Instant::now());
        state.running = Some(running);
        Ok(())
    }

    pub fn is_running(&self) -> bool {
        let state = self.lock();
        state.running.is_some() || state.starting
    }

    /// Whether killed processes have yet to end. Forgets those that have.
    pub fn is_dying(&self) -> bool {
        let mut state = self.lock();
        state.reap();
        !state.dying.is_empty()
    }

    pub fn used(&self) -> Instant {
        self.lock().used
    }

    /// Ends the process if it is answering nothing and was not used since `since`. Returns whether it ended.
    pub fn end_idle(&self, since: Instant) -> bool {
        let mut state = self.lock();
        state.reap();
        if state.used > since || state.blame.is_asking() {
            return false;
        }
        let Some(mut running) = state.running.take() else { return false };
        // Its start does not count as one after a death.
        state.starts.pop_back();
        let _ = running.child.kill();
        let _ = running.child.wait();
        true
    }

    /// Since when the process has run; `None` if it does not.
    pub fn running_since(&self) -> Option<Instant> {
        self.lock().running.as_ref().map(|running| running.since)
    }

    /// Ends the process for another principal's. No file is blamed: questions under way have no answer, and the process
    /// does not start again for a moment.
    pub fn evict(&self) {
        let mut state = self.lock();
        let Some(mut running) = state.running.take() else { return };
        // Its start does not count as one after a death.
        state.starts.pop_back();
        state.blame.interrupted();
        state.rests_until = Some(Instant::now() + REST);
        let _ = running.child.kill();
        state.dying.push(DyingWorker::new(running.child, running.slot));
        self.freed.notify_all();
    }

    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.lock().running.as_ref().map(|running| running.child.id())
    }

    /// Forgets all deaths: another worker may be started at once, and asked about every file.
    pub fn forgive(&self) {
        let mut state = self.lock();
        state.starts.clear();
        state.said = false;
        state.blame.forget();
    }

    /// Resources used by the running process, as far as known.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let (pid, failures) = {
            let state = self.lock();
            (state.running.as_ref().map(|running| running.child.id()), state.failures)
        };
        let mut usage = Usage { failures, ..Usage::default() };
        let Some(pid) = pid else { return usage };
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let unit = |name| sysconf(name).ok().flatten().map_or(1, i64::unsigned_abs).max(1);
        // pid (comm) state ppid ...; user and system time are the 14th and 15th field.
        let stat = read("stat");
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        let ticks = fields.filter_map(|ticks| ticks.parse::<u64>().ok()).fold(0, u64::saturating_add);
        let tick_ns = 1_000_000_000 / unit(SysconfVar::CLK_TCK);
        usage.cpu_ns = ticks.saturating_mul(tick_ns);
        let pages = read("statm").split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        usage.resident_bytes = pages.saturating_mul(unit(SysconfVar::PAGE_SIZE));
        usage
    }

    /// Asks about a file, and attaches it if `attach`. `want` opens the files that the worker requests, and `check`
    /// validates the answer. A question at which the worker dies is repeated once.
    pub fn ask<T>(
        &self,
        key: &FileKey,
        question: &WorkerRequest,
        attach: Option<&File>,
        mut want: impl FnMut(&WorkerReply) -> Vec<File>,
        mut check: impl FnMut(WorkerReply) -> Result<T, Nonsense>,
    ) -> Result<T, NoAnswer> {
        let quick = matches!(question, WorkerRequest::Headers { .. });
        let (turn_patience, patience) = match question {
            WorkerRequest::Headers { .. } => (self.patience.headers, self.patience.headers),
            WorkerRequest::Code { .. } => (CODE_TURN, self.patience.headers.min(CODE_PATIENCE)),
            _ => (self.patience.answer, self.patience.answer),
        };
        let most = question.max_answer(key);
        let may_wait = self.principal == Principal::Own && matches!(question, WorkerRequest::Names { .. });
        let with_waits = patience * if may_wait { MAX_WAITS } else { 1 };
        loop {
            let mut turn = self.take(key, quick, turn_patience)?;
            let asked = turn.connection.exchange(question, attach, most, (patience, with_waits), &mut want);
            match asked.and_then(|answer| check(answer).map_err(Fault::from)) {
                Ok(answer) => {
                    self.put_back(turn);
                    return Ok(answer);
                }
                Err(fault) => self.end(turn.token, &fault),
            }
        }
    }

    /// Waits for a free connection. Questions about headers do not wait for others, which may take long.
    fn take(&self, key: &FileKey, quick: bool, patience: Duration) -> Result<LentConnection, NoAnswer> {
        let taken = self.wait_for_turn(key, quick, patience);
        if taken.is_err() {
            // In any case, others must not wait for a turn that is not taken.
            self.lock().blame.withdraw(key);
            self.freed.notify_all();
        }
        taken
    }

    fn wait_for_turn(&self, key: &FileKey, quick: bool, patience: Duration) -> Result<LentConnection, NoAnswer> {
        let deadline = Instant::now() + patience;
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            state.notice_death(self.principal, now);
            if state.running.is_none() {
                // A given-up file is refused even without a worker.
                if state.blame.is_given_up(key, !quick, now) {
                    return Err(NoAnswer::GivenUp);
                }
                if state.rests_until.is_some_and(|until| now < until) {
                    return Err(NoAnswer::NoWorker);
                }
                if !state.starting {
                    state = self.begin_again(state)?;
                    continue;
                }
            }
            let ClientState { running, blame, .. } = &mut *state;
            if let Some(running) = running
                && let Some(at) = running.free.iter().position(|connection| connection.quick == quick)
            {
                match blame.begin(key, !quick, now) {
                    May::Ask(token) => return Ok(LentConnection { connection: running.free.swap_remove(at), token }),
                    May::Never => return Err(NoAnswer::GivenUp),
                    May::Wait if quick => return Err(NoAnswer::NoWorker),
                    May::Wait => {}
                }
            }
            let left = deadline.saturating_duration_since(now);
            if left.is_zero() {
                return Err(NoAnswer::NoWorker);
            }
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn put_back(&self, LentConnection { connection, token }: LentConnection) {
        let mut state = self.lock();
        state.blame.answered(token);
        state.used = Instant::now();
        if connection.generation == state.generation
            && let Some(running) = &mut state.running
        {
            running.free.push(connection);
        }
        // Waiting questions differ in the kind of connection they need, and some must be alone.
        self.freed.notify_all();
    }

    /// Handles a question without an answer.
    fn end(&self, token: Token, fault: &Fault) {
        let mut state = self.lock();
        // Otherwise another question ended this worker, and this one is innocent, or already suspected.
        if state.blame.is_asked(token) {
            let now = Instant::now();
            match fault {
                Fault::Died => state.blame.died(now),
                Fault::TimedOut | Fault::Nonsense(_) => state.blame.failed(token, now),
            }
            state.lose(self.principal, fault);
        }
        self.freed.notify_all();
    }

    /// Starts another process without holding the lock, unless too many were started.
    fn begin_again<'a>(
        &'a self,
        mut state: MutexGuard<'a, ClientState>,
    ) -> Result<MutexGuard<'a, ClientState>, NoAnswer> {
        state.reap();
        let now = Instant::now();
        while state.starts.front().is_some_and(|&start| now.saturating_duration_since(start) > self.patience.starts) {
            state.starts.pop_front();
        }
        if state.starts.len() >= MAX_STARTS {
            if !std::mem::replace(&mut state.said, true) {
                tracing::warn!(
                    "the process that reads images {} was started {MAX_STARTS} times in {} s: functions get no names until it \
                     may start again, or the service is reloaded",
                    self.principal,
                    self.patience.starts.as_secs()
                );
            }
            return Err(NoAnswer::NoWorker);
        }
        state.said = false;
        state.starting = true;
        state.starts.push_back(now);
        state.generation += 1;
        let generation = state.generation;
        let mut dying = std::mem::take(&mut state.dying);
        drop(state);
        // One that the kernel keeps holds no place after a time, but is all that its principal gets.
        let until = dying.iter().map(|dying| dying.until).max().unwrap_or(now);
        let until = if self.principal == Principal::Own { now } else { until };
        while !dying.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            dying.retain_mut(|dying| !dying.has_ended());
        }
        let may = self.principal == Principal::Own || dying.is_empty();
        let begun = if may { self.begin(generation) } else { Err(ErrorKind::ResourceBusy.into()) };
        let mut state = self.lock();
        state.dying.append(&mut dying);
        state.starting = false;
        let begun = begun.map(|running| state.running = Some(running));
        self.freed.notify_all();
        match begun {
            Ok(()) => Ok(state),
            Err(error) => {
                if error.kind() == ErrorKind::ResourceBusy {
                    // Other principals have all places, or the last one has not ended: nothing was started.
                    state.starts.pop_back();
                } else {
                    tracing::warn!("the process that reads images {} cannot start: {error}", self.principal);
                }
                Err(NoAnswer::NoWorker)
            }
        }
    }

    fn begin(&self, generation: u64) -> io::Result<RunningWorker> {
        let slot = self.slots.take(self.principal).ok_or(ErrorKind::ResourceBusy)?;
        let (control, theirs) = Channel::pair()?;
        let mut child = self
            .program
            .command()
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        match greet(&control, generation, &slot, self.patience.answer) {
            Ok(free) => Ok(RunningWorker { child, _control: control, slot, since: Instant::now(), free }),
            Err(error) => {
                let _ = child.kill();
                let how = child.wait().map(told).unwrap_or_default();
                Err(io::Error::new(error.kind(), format!("{error}{how}")))
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientState {
    fn reap(&mut self) {
        self.dying.retain_mut(|dying| !dying.has_ended());
    }

    /// Detects the end of the worker before it is asked. Its current questions may have been the cause, the next one
    /// was not.
    fn notice_death(&mut self, principal: Principal, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if matches!(running.child.try_wait(), Ok(Some(_)) | Err(_)) {
            self.blame.died(now);
            self.lose(principal, &Fault::Died);
        }
    }

    fn lose(&mut self, principal: Principal, fault: &Fault) {
        let Some(mut running) = self.running.take() else { return };
        self.failures += 1;
        let how = running.child.try_wait().ok().flatten();
        let _ = running.child.kill();
        let how = how.map(told).unwrap_or_default();
        tracing::warn!("the process that reads images {principal} was replaced: {fault}{how}");
        self.dying.push(DyingWorker::new(running.child, running.slot));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(mut running) = self.lock().running.take() {
            let _ = running.child.kill();
            let _ = running.child.wait();
        }
    }
}

/// Gives a new worker its connections, and waits until it has given up its rights.
fn greet(
    control: &Channel,
    generation: u64,
    slot: &WorkerSlot,
    patience: Duration,
) -> io::Result<Vec<ClientConnection>> {
    let pairs: io::Result<Vec<(Channel, Channel)>> = (0..CONNECTIONS).map(|_| Channel::pair()).collect();
    let (ours, theirs): (Vec<Channel>, Vec<Channel>) = pairs?.into_iter().unzip();
    let files: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
    control.set_patience(START_PATIENCE)?;
    let begin = WorkerRequest::Begin { memory: slot.memory(), is_own: slot.is_own() };
    control.send(&begin, &files)?;
    let mut buffer = Vec::new();
    control.receive(&mut buffer, MAX_GREETING, Instant::now() + START_PATIENCE)?;
    if !matches!(postcard::from_bytes(&buffer), Ok(WorkerReply::Ready)) {
        return Err(ErrorKind::InvalidData.into());
    }
    ours.into_iter()
        .enumerate()
        .map(|(number, channel)| {
            channel.set_patience(patience)?;
            Ok(ClientConnection { channel, buffer: Vec::new(), generation, quick: number < QUICK })
        })
        .collect()
}

impl ClientConnection {
    fn exchange(
        &mut self,
        question: &WorkerRequest,
        attach: Option<&File>,
        most: usize,
        (patience, with_waits): (Duration, Duration),
        want: &mut impl FnMut(&WorkerReply) -> Vec<File>,
    ) -> Result<WorkerReply, Fault> {
        let began = Instant::now();
        let (mut deadline, last) = (began + patience, began + with_waits);
        let attached = attach.map(AsFd::as_fd);
        self.channel.send(question, attached.as_slice())?;
        loop {
            self.channel.receive(&mut self.buffer, most, deadline)?;
            let answer = postcard::from_bytes(&self.buffer).map_err(|_| Nonsense("no answer"))?;
            match answer {
                WorkerReply::WantImage | WorkerReply::WantFiles(_) => {
                    let files = want(&answer);
                    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    self.channel.send(&WorkerRequest::Files, &files)?;
                }
                // The time of others does not count as that of this question.
                WorkerReply::Waits(waits) => {
                    deadline = if waits { last } else { last.min(Instant::now() + patience) };
                }
                answer => return Ok(answer),
            }
        }
    }
}

fn has_ended(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(Some(_)) | Err(_))
}

fn told(status: ExitStatus) -> String {
    format!(" ({status})")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::message::NameList;

    /// What a worker's answer becomes that first waits for others, longer than an answer may take.
    fn asked_beside_others(with_waits: Duration) -> Result<(), Fault> {
        const PATIENCE: Duration = Duration::from_secs(1);
        let (channel, worker) = Channel::pair().unwrap();
        let mut connection = ClientConnection { channel, buffer: Vec::new(), generation: 0, quick: false };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                worker.send(&WorkerReply::Waits(true), &[]).unwrap();
                std::thread::sleep(2 * PATIENCE);
                // The other end may have given up.
                let _ = worker.send(&WorkerReply::Waits(false), &[]);
                let _ = worker.send(&WorkerReply::Names(NameList::default()), &[]);
            });
            let question = WorkerRequest::Headers { debug: false, contents: false };
            connection
                .exchange(&question, None, 4096, (PATIENCE, with_waits), &mut |_| Vec::new())
                .map(|answer| assert!(matches!(answer, WorkerReply::Names(_))))
        })
    }

    #[test]
    fn waiting_for_others_takes_no_time_of_a_question() {
        assert!(asked_beside_others(Duration::from_secs(60)).is_ok());
        assert!(matches!(asked_beside_others(Duration::from_secs(1)), Err(Fault::TimedOut)));
    }
}
