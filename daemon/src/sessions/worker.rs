//! The thread of one session: it runs the collection, keeps a copy of its profile, and serves its readers.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccsd_collector::{Budget, Options, Scope, Session, SessionEvent, system};
use ccsd_profile::{Limits, Profile, Update};
use crossbeam_channel::{Receiver, Select, Sender};

use super::guard::Guard;
use super::readers::{Reader, Readers};
use crate::authority::Authority;
use crate::protocol::message::{Collect, Refusal, RefusalKind, SessionEnd, SessionSummary};

/// Characters of a target's name that are listed.
const LISTED_CHARS: usize = 200;
/// Process ids that are listed.
const LISTED_PIDS: usize = 64;

/// Updates that are taken before commands, clock and readers have their turn: more than come in the time that one takes,
/// at the shortest interval.
const UPDATES_PER_TURN: usize = 4;

/// What a session is on.
#[derive(Clone, Debug)]
pub enum SessionTarget {
    /// Processes that run already.
    Pids(Vec<u32>),
    /// A child of the client that has yet to call `execve`, and what it will run.
    Child(u32, Vec<String>),
}

/// A session to be made.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Whose it is.
    pub owner: Authority,
    /// The target.
    pub target: SessionTarget,
    /// How to collect.
    pub collect: Collect,
    /// When it ends by itself.
    pub duration: Option<Duration>,
    /// Whether it goes on without its client.
    pub detached: bool,
}

/// What the table gives a session.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Its number.
    pub id: u32,
    /// Most memory for its rings of samples, bytes.
    pub ring_bytes: usize,
    /// What all sessions of its owner may take, if that is limited, bytes: one alone must not take all at once.
    pub profile_bytes: Option<u64>,
    /// Whether its target's arguments may be noted.
    pub arguments: bool,
}

/// What a session is told.
pub enum WorkerCommand {
    /// To end, and why. The CPU time of the recorded program, user and in all, in nanoseconds, if known.
    End(SessionEnd, Option<(u64, u64)>),
    /// Its client has gone.
    ClientGone,
    /// There is to be a reader: whether it wants updates, and where it goes.
    Subscribe(bool, Sender<Reader>),
}

/// What a session tells.
pub enum WorkerEvent {
    /// The current summary.
    State(Box<SessionSummary>),
    /// Its thread has ended.
    Gone(u32),
}

/// A session's own side of its channels.
pub struct Channels {
    /// Commands. The session ends when all senders are gone.
    pub commands: Receiver<WorkerCommand>,
    /// Events for the table.
    pub events: Sender<WorkerEvent>,
    /// How long it goes on when its client has gone.
    pub grace: Duration,
}

/// Says that the session's thread has ended, however it did.
struct Farewell {
    id: u32,
    events: Sender<WorkerEvent>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.events.send(WorkerEvent::Gone(self.id));
    }
}

/// Runs a session from its beginning until it is forgotten. `reply` gets its number once it samples.
pub fn run(grant: Grant, new: NewSession, channels: Channels, reply: Sender<Result<u32, Refusal>>) {
    let id = grant.id;
    let _farewell = Farewell { id, events: channels.events.clone() };
    let (session, guard, memory) = match open(&new, grant) {
        Ok(opened) => opened,
        Err(refusal) => {
            let _ = reply.send(Err(refusal));
            return;
        }
    };
    // What the copy has no room for, clients that write a file have.
    session.set_generations(true);
    let mut worker = Worker::new(id, &new, channels, session, guard, memory);
    worker.tell();
    let _ = reply.send(Ok(id));
    // Nothing is kept back while it runs: a client that has gone before it got the answer is found gone by its connection.
    drop(reply);
    worker.run();
}

/// Budgets of the copy of a profile of a session with so many bytes: what the collector lets through, and for all
/// generations of contexts and charges about as much as the collector has for one when other tables have lent it theirs.
fn replica_limits(memory: u64) -> Limits {
    let each = usize::try_from(memory / 8).unwrap_or(usize::MAX);
    let limits = Limits::reading();
    let (context_bytes, charge_bytes) = (limits.context_bytes.min(each), limits.charge_bytes.min(each));
    let route_bytes = limits.route_bytes.min(each / 2);
    Limits { context_bytes, charge_bytes, route_bytes, ..limits }
}

/// Opens the events, within what the owner may do.
fn open(new: &NewSession, grant: Grant) -> Result<(Session, Guard, u64), Refusal> {
    let Grant { ring_bytes, profile_bytes, arguments, .. } = grant;
    let mut options = Options { own_process: false, ..new.collect.options()? };
    if let Some(bytes) = profile_bytes {
        options.budget = Budget::of(options.budget.memory.min(bytes));
        bound(&mut options.budget.profile, usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    options.budget.rings = ring_bytes;
    options.arguments &= arguments;
    restrict(&mut options, &new.owner)?;
    let pids = match &new.target {
        SessionTarget::Pids(pids) => pids.as_slice(),
        SessionTarget::Child(pid, _) => std::slice::from_ref(pid),
    };
    let guard = Guard::new(new.owner, pids)?;
    let session = match &new.target {
        SessionTarget::Pids(pids) => Session::attach(&options, pids)?,
        SessionTarget::Child(pid, words) => Session::record_child(&options, words.clone(), *pid)?,
    };
    guard.check_attached()?;
    Ok((session, guard, options.budget.memory))
}

/// Budgets of a profile that must not take more than so many bytes with its copy: it gets less detailed before it has to
/// end.
fn bound(limits: &mut Limits, bytes: usize) {
    // Contexts, charges and names, each twice, and as much for all the rest.
    let each = bytes / 8;
    let budgets =
        [&mut limits.context_bytes, &mut limits.charge_bytes, &mut limits.route_bytes, &mut limits.string_bytes];
    for budget in budgets {
        *budget = each.min(*budget);
    }
}

/// How long the intervals of others may be: they are told soon when a session has to end.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// The daemon's rights are not lent to others: neither for the processes of others, nor whole CPUs, nor, where the machine
/// forbids it to them, the kernel.
fn restrict(options: &mut Options, owner: &Authority) -> Result<(), Refusal> {
    if owner.trusted {
        return Ok(());
    }
    options.owner = owner.owner();
    options.whole_machine = false;
    options.interval = options.interval.clamp(*INTERVALS.start(), *INTERVALS.end());
    if system::perf_event_paranoid().unwrap_or(2) > 1 {
        if options.scope == Scope::Kernel {
            return Err(ccsd_collector::Error::KernelRefused.into());
        }
        options.scope = Scope::User;
    }
    Ok(())
}

struct Worker {
    summary: SessionSummary,
    channels: Channels,
    /// `None` once it has ended.
    session: Option<Session>,
    guard: Guard,
    replica: Profile,
    readers: Readers,
    /// Why it ends, once somebody has said so.
    ending: Option<SessionEnd>,
    /// An update was not taken, because it was broken or not for this user: neither are those that follow.
    is_refused: bool,
    /// When its duration is over.
    until: Option<Instant>,
    /// When the grace of a client that has gone is over.
    grace_until: Option<Instant>,
}

impl Worker {
    fn new(id: u32, new: &NewSession, channels: Channels, session: Session, guard: Guard, memory: u64) -> Worker {
        let info = session.info().clone();
        let summary = SessionSummary {
            id,
            owner_uid: new.owner.uid,
            target: info.target.chars().take(LISTED_CHARS).collect(),
            pids: info.pids.iter().copied().take(LISTED_PIDS).collect(),
            detached: new.detached,
            ended: None,
            started_unix_ns: info.started_unix_ns,
            duration_ns: 0,
            event: info.event.clone(),
            rate_hz: info.rate_hz,
            received: 0,
            lost: 0,
            contexts: 0,
            readers: 0,
            bytes: 0,
        };
        Worker {
            summary,
            channels,
            session: Some(session),
            guard,
            replica: Profile::new(info.clone(), replica_limits(memory)),
            readers: Readers::new(Arc::new(info)),
            ending: None,
            is_refused: false,
            until: new.duration.map(|duration| Instant::now() + duration),
            grace_until: None,
        }
    }

    fn run(&mut self) {
        loop {
            self.wait();
            // A few of them, then what else there is to do: updates may come as fast as they are taken.
            for _ in 0..UPDATES_PER_TURN {
                let Some(event) = self.session.as_ref().map(|session| session.events().try_recv()) else { break };
                match event {
                    Ok(SessionEvent::Update(update)) => self.update(*update),
                    Ok(SessionEvent::Finished(_)) => self.end(),
                    Err(error) if error.is_disconnected() => {
                        self.ending = Some(SessionEnd::Failed("the collecting threads failed".to_owned()));
                        self.end();
                    }
                    Err(_) => break,
                }
            }
            loop {
                match self.channels.commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(error) if error.is_empty() => break,
                    // Forgotten. Dropping the session ends it.
                    Err(_) => return,
                }
            }
            self.look_at_the_clock();
            self.readers.serve(&self.replica);
            let readers = u32::try_from(self.readers.count()).unwrap_or(u32::MAX);
            if readers != self.summary.readers {
                self.summary.readers = readers;
                self.tell();
            }
        }
    }

    /// Waits until there is something to do.
    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.channels.commands);
        if let Some(session) = &self.session {
            select.recv(session.events());
        }
        select.recv(self.readers.woken());
        match [self.until, self.grace_until].into_iter().flatten().min() {
            Some(deadline) => {
                let _ = select.ready_deadline(deadline);
            }
            None => {
                let _ = select.ready();
            }
        }
    }

    fn update(&mut self, update: Update) {
        if self.is_refused {
            return;
        }
        let refused = match self.guard.check_update(&self.replica, &update) {
            Err(why) => Some(SessionEnd::NotPermitted(why)),
            Ok(()) => self
                .replica
                .apply(&update)
                .err()
                .map(|error| SessionEnd::Failed(format!("the profile is broken: {error}"))),
        };
        if let Some(end) = refused {
            tracing::warn!(session = self.summary.id, "session {} ends: {}", self.summary.id, end.text());
            self.ending = Some(end);
            self.is_refused = true;
            self.stop(None);
            return;
        }
        for crash in &update.crashes {
            tracing::info!(session = self.summary.id, "session {}: {}", self.summary.id, crash.summary());
        }
        self.readers.offer(&Arc::new(update), self.replica.bytes());
        self.tell();
    }

    /// Tells the table how it is.
    fn tell(&mut self) {
        let accounting = self.replica.accounting();
        let summary = &mut self.summary;
        summary.duration_ns = accounting.duration_ns;
        summary.received = accounting.received;
        summary.lost = accounting.lost.saturating_add(accounting.throttled).saturating_add(accounting.dropped_by_us);
        summary.contexts = self.replica.contexts().len() as u64;
        let held = self.session.as_ref().map_or(0, Session::held_bytes);
        let copies = (self.replica.bytes() + self.readers.held_bytes()) as u64;
        summary.bytes = held.saturating_add(copies);
        let _ = self.channels.events.send(WorkerEvent::State(Box::new(summary.clone())));
    }

    fn obey(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::End(why, target_cpu_ns) => {
                self.ending.get_or_insert(why);
                self.stop(target_cpu_ns);
            }
            WorkerCommand::ClientGone => {
                if self.session.is_some() {
                    self.grace_until = Some(Instant::now() + self.channels.grace);
                }
            }
            WorkerCommand::Subscribe(follow, reply) => {
                let _ = reply.send(self.readers.add(follow));
            }
        }
    }

    fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        let is_over = |until: &mut Option<Instant>| until.take_if(|until| *until <= now).is_some();
        if is_over(&mut self.until) {
            self.ending.get_or_insert(SessionEnd::Duration);
            self.stop(None);
        }
        if is_over(&mut self.grace_until) {
            self.ending.get_or_insert(SessionEnd::ClientGone);
            self.stop(None);
        }
    }

    fn stop(&self, target_cpu_ns: Option<(u64, u64)>) {
        if let Some(session) = &self.session {
            session.stop_with(target_cpu_ns);
        }
    }

    /// There will be no more updates. The profile stays, until the session is forgotten.
    fn end(&mut self) {
        self.session = None;
        (self.until, self.grace_until) = (None, None);
        let end = self.ending.clone().unwrap_or(SessionEnd::Target);
        tracing::info!(
            session = self.summary.id,
            "session {} has ended: {}; {} samples",
            self.summary.id,
            end.text(),
            self.replica.accounting().received
        );
        self.summary.ended = Some(end.clone());
        // First the table: a reader who has got the end may have the session forgotten, which then has to have ended.
        self.tell();
        self.readers.end(&end);
    }
}

/// The refusal of whoever asks for a session whose thread has gone.
pub fn gone(id: u32) -> Refusal {
    Refusal::new(RefusalKind::BadRequest, format!("there is no session {id}; `ccsd daemon status` lists them"))
}
