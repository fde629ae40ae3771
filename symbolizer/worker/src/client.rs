//! The daemon's side: the worker process and its connections.
//!
//! A connection handles one question at a time, and the worker has a thread for each. A question takes a free
//! connection. If the answer is late or invalid, or the worker dies, the worker is killed, and the next question starts
//! another; see [`NoAnswer`] for the result.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use nix::unistd::{SysconfVar, sysconf};

use crate::blame::{Blame, May, Token};
use crate::message::{FileKey, Nonsense, WorkerReply, WorkerRequest};
use crate::wire::Channel;

/// Number of connections, and of the worker's threads. Further questions wait; sessions rarely start at the same
/// moment.
const CONNECTIONS: usize = 8;
/// Number of connections (the first ones) reserved for questions about headers. These take well below a millisecond,
/// but the sampling thread waits for them, so their threads get real-time priority if permitted. (Among 200 busy
/// threads on two CPUs a normal thread waits 140 ms for its turn, and a process may have 300 images.)
pub const QUICK: usize = 2;
/// Time limit for the start of a worker.
const START_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of its greeting.
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
}

/// Why a question has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The file is given up: the worker died of it, or did not finish.
    GivenUp,
    /// There is no worker at the moment.
    NoWorker,
}

/// The failure of a question.
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

/// A connection to the worker.
#[derive(Debug)]
struct ClientConnection {
    channel: Channel,
    buffer: Vec<u8>,
    /// Number of the worker that it belongs to.
    generation: u64,
    /// Whether it is one of the [`QUICK`] connections.
    quick: bool,
}

/// A connection in use by one question.
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
    free: Vec<ClientConnection>,
}

#[derive(Debug)]
struct ClientState {
    running: Option<RunningWorker>,
    /// Number of workers started.
    generation: u64,
    starts: VecDeque<Instant>,
    /// Killed workers that have not ended yet, for example because they hang in a read.
    dying: Vec<Child>,
    blame: Blame,
    /// Whether it was logged that no more workers are started for now.
    said: bool,
}

/// The worker process of a daemon. Can be shared between threads.
#[derive(Debug)]
pub struct Worker {
    program: Box<dyn WorkerProgram>,
    patience: Patience,
    state: Mutex<ClientState>,
    freed: Condvar,
}

/// How the worker process is started.
pub trait WorkerProgram: std::fmt::Debug + Send + Sync {
    /// The program, with arguments that make it call [`crate::serve`].
    fn command(&self) -> Command;
}

impl Worker {
    /// Starts the process.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(program: impl WorkerProgram + 'static, patience: Patience) -> io::Result<Worker> {
        let state = ClientState {
            running: None,
            generation: 0,
            starts: VecDeque::new(),
            dying: Vec::new(),
            blame: Blame::new(patience.blame),
            said: false,
        };
        let worker = Worker { program: Box::new(program), patience, state: Mutex::new(state), freed: Condvar::new() };
        worker.begin(&mut worker.lock())?;
        Ok(worker)
    }

    /// Process id of the running worker.
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

    /// Resources used by the running worker and its predecessors, as far as known.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let mut usage = Usage { cpu_ns: children_cpu_ns(), resident_bytes: 0 };
        let Some(pid) = self.pid() else { return usage };
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let unit = |name| sysconf(name).ok().flatten().map_or(1, i64::unsigned_abs).max(1);
        // pid (comm) state ppid ...; user and system time are the 14th and 15th field.
        let stat = read("stat");
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        let ticks = fields.filter_map(|ticks| ticks.parse::<u64>().ok()).fold(0, u64::saturating_add);
        let tick_ns = 1_000_000_000 / unit(SysconfVar::CLK_TCK);
        usage.cpu_ns = usage.cpu_ns.saturating_add(ticks.saturating_mul(tick_ns));
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
        let patience = if quick { self.patience.headers } else { self.patience.answer };
        let most = question.max_answer(key);
        loop {
            let mut turn = self.take(key, quick, patience)?;
            let asked = turn.connection.exchange(question, attach, most, patience, &mut want);
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
            state.notice_death(now);
            if state.running.is_none() {
                // A given-up file is refused even without a worker.
                if state.blame.is_given_up(key, now) {
                    return Err(NoAnswer::GivenUp);
                }
                self.begin_again(&mut state)?;
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
            state.lose(fault);
        }
        self.freed.notify_all();
    }

    /// Starts another worker, unless too many were started.
    fn begin_again(&self, state: &mut ClientState) -> Result<(), NoAnswer> {
        state.dying.retain_mut(|child| !matches!(child.try_wait(), Ok(Some(_)) | Err(_)));
        let now = Instant::now();
        while state.starts.front().is_some_and(|&start| now.saturating_duration_since(start) > self.patience.starts) {
            state.starts.pop_front();
        }
        if state.starts.len() >= MAX_STARTS {
            if !std::mem::replace(&mut state.said, true) {
                tracing::warn!(
                    "the process that reads images was started {MAX_STARTS} times in {} s: there are no names until that is \
                     over, or the service is reloaded",
                    self.patience.starts.as_secs()
                );
            }
            return Err(NoAnswer::NoWorker);
        }
        state.said = false;
        self.begin(state).map_err(|error| {
            tracing::warn!("the process that reads images does not begin: {error}");
            NoAnswer::NoWorker
        })
    }

    fn begin(&self, state: &mut ClientState) -> io::Result<()> {
        state.starts.push_back(Instant::now());
        state.generation += 1;
        let generation = state.generation;
        let (control, theirs) = Channel::pair()?;
        let mut child = self
            .program
            .command()
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let begun = greet(&control, generation, self.patience.answer);
        let free = match begun {
            Ok(free) => free,
            Err(error) => {
                let _ = child.kill();
                let how = child.wait().map(told).unwrap_or_default();
                return Err(io::Error::new(error.kind(), format!("{error}{how}")));
            }
        };
        state.running = Some(RunningWorker { child, _control: control, free });
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientState {
    /// Detects the end of the worker before it is asked. Its current questions may have been the cause, the next one
    /// was not.
    fn notice_death(&mut self, now: Instant) {
        let Some(running) = &mut self.running else { return };
        if matches!(running.child.try_wait(), Ok(Some(_)) | Err(_)) {
            self.blame.died(now);
            self.lose(&Fault::Died);
        }
    }

    /// Kills the worker if it still runs.
    fn lose(&mut self, fault: &Fault) {
        let Some(mut running) = self.running.take() else { return };
        let how = running.child.try_wait().ok().flatten();
        let _ = running.child.kill();
        tracing::warn!("the process that reads images is ended: {fault}{}", how.map(told).unwrap_or_default());
        self.dying.push(running.child);
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
fn greet(control: &Channel, generation: u64, patience: Duration) -> io::Result<Vec<ClientConnection>> {
    let pairs: io::Result<Vec<(Channel, Channel)>> = (0..CONNECTIONS).map(|_| Channel::pair()).collect();
    let (ours, theirs): (Vec<Channel>, Vec<Channel>) = pairs?.into_iter().unzip();
    let files: Vec<_> = theirs.iter().map(AsFd::as_fd).collect();
    control.set_patience(START_PATIENCE)?;
    control.send(&WorkerRequest::Begin, &files)?;
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
        patience: Duration,
        want: &mut impl FnMut(&WorkerReply) -> Vec<File>,
    ) -> Result<WorkerReply, Fault> {
        let deadline = Instant::now() + patience;
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
                answer => return Ok(answer),
            }
        }
    }
}

/// CPU time of this process's waited-for children, nanoseconds.
fn children_cpu_ns() -> u64 {
    getrusage(UsageWho::RUSAGE_CHILDREN).map_or(0, |usage| {
        let micros = usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        micros.unsigned_abs().saturating_mul(1000)
    })
}

fn told(status: ExitStatus) -> String {
    format!(" ({status})")
}
