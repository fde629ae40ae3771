//! The thread of one session: runs the collection, keeps a copy of its profile, and serves its readers.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccsd_collector::{Budget, Options, ProcessSelection, Scope, Session, SessionEvent, system};
use ccsd_profile::{Limits, Profile, Update};
use crossbeam_channel::{Receiver, Select, Sender};

use super::guard::Guard;
use super::readers::{Readers, StreamReader};
use crate::authority::Authority;
use crate::protocol::message::{Collect, Refusal, RefusalKind, SessionEnd, SessionSummary};

/// Maximum characters of a target's name in lists.
const LISTED_CHARS: usize = 200;
/// Maximum process ids in lists.
const LISTED_PIDS: usize = 64;

/// Updates handled before commands, timers and readers: more than arrive while one is handled, at the shortest
/// interval.
const UPDATES_PER_TURN: usize = 4;

/// The target of a session.
#[derive(Clone, Debug)]
pub enum SessionTarget {
    /// Running processes.
    Pids(Vec<u32>),
    /// All that runs, or a part of it.
    Machine(ProcessSelection),
    /// A child of the client that has yet to call `execve`, and its command.
    Child(u32, Vec<String>),
}

/// Parameters of a new session.
#[derive(Clone, Debug)]
pub struct NewSession {
    /// Owner of the session.
    pub owner: Authority,
    /// Processes or child to sample.
    pub target: SessionTarget,
    /// Options.
    pub collect: Collect,
    /// Maximum duration.
    pub duration: Option<Duration>,
    /// Whether the session continues without its client.
    pub detached: bool,
}

/// What the table grants a session.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Number of the session.
    pub id: u32,
    /// Maximum bytes of its sample rings.
    pub ring_bytes: usize,
    /// Memory limit of all sessions of its owner, in bytes; one session must not use all of it.
    pub profile_bytes: Option<u64>,
    /// Whether the profile may store the target's arguments.
    pub arguments: bool,
}

/// A command to a session.
pub enum WorkerCommand {
    /// End for this reason. The CPU time of the recorded program in nanoseconds, user and total, if known.
    End(SessionEnd, Option<(u64, u64)>),
    /// The client has disconnected.
    ClientGone,
    /// Add a reader, with or without updates, and send it here.
    Subscribe(bool, Sender<StreamReader>),
}

/// An event of a session.
pub enum WorkerEvent {
    /// The current summary.
    State(Box<SessionSummary>),
    /// The session's thread has ended.
    Gone(u32),
}

/// The session's side of its channels.
pub struct SessionChannels {
    /// Commands. The session ends when all senders are dropped.
    pub commands: Receiver<WorkerCommand>,
    /// Events for the table.
    pub events: Sender<WorkerEvent>,
    /// How long the session continues after its client has disconnected.
    pub grace: Duration,
}

/// Reports the end of the session's thread on drop, even after a panic.
struct Farewell {
    id: u32,
    events: Sender<WorkerEvent>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.events.send(WorkerEvent::Gone(self.id));
    }
}

/// Runs a session until it is forgotten. `reply` receives its number once it samples.
pub fn run(grant: Grant, new: NewSession, channels: SessionChannels, reply: Sender<Result<u32, Refusal>>) {
    let id = grant.id;
    let _farewell = Farewell { id, events: channels.events.clone() };
    let (session, guard, memory) = match open(&new, grant) {
        Ok(opened) => opened,
        Err(refusal) => {
            let _ = reply.send(Err(refusal));
            return;
        }
    };
    // Clients that write a file have room for what the copy has not.
    session.set_generations(true);
    let mut worker = SessionWorker::new(id, &new, channels, session, guard, memory);
    worker.tell();
    let _ = reply.send(Ok(id));
    // Dropped early: whether the client still exists is known from its connection.
    drop(reply);
    worker.run();
}

/// Limits of a session's copy of the profile: everything that the collector sends, and for all generations of contexts
/// and charges together about what the collector uses for one when other tables have lent it their budgets.
fn replica_limits(memory: u64) -> Limits {
    let each = usize::try_from(memory / 8).unwrap_or(usize::MAX);
    let limits = Limits::reading();
    let (context_bytes, charge_bytes) = (limits.context_bytes.min(each), limits.charge_bytes.min(each));
    let route_bytes = limits.route_bytes.min(each / 2);
    Limits { context_bytes, charge_bytes, route_bytes, ..limits }
}

/// Opens the events, within the owner's permissions.
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
        SessionTarget::Machine(_) => &[],
        SessionTarget::Child(pid, _) => std::slice::from_ref(pid),
    };
    let guard = Guard::new(new.owner, pids)?;
    let session = match &new.target {
        SessionTarget::Pids(pids) => Session::attach(&options, pids)?,
        SessionTarget::Machine(selection) => Session::machine(&options, selection)?,
        SessionTarget::Child(pid, words) => Session::record_child(&options, words.clone(), *pid)?,
    };
    guard.check_attached()?;
    Ok((session, guard, options.budget.memory))
}

/// Limits a profile that must fit into `bytes` bytes together with its copy: detail is reduced before the session has
/// to end.
fn bound(limits: &mut Limits, bytes: usize) {
    // Contexts, charges and names, each twice, and as much for everything else.
    let each = bytes / 8;
    let budgets =
        [&mut limits.context_bytes, &mut limits.charge_bytes, &mut limits.route_bytes, &mut limits.string_bytes];
    for budget in budgets {
        *budget = each.min(*budget);
    }
}

/// Range of intervals for untrusted users: a session must notice its end soon.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// Denies untrusted users what the daemon may and they may not: other users' processes, whole CPUs and, where the
/// machine forbids it, kernel samples.
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

struct SessionWorker {
    summary: SessionSummary,
    channels: SessionChannels,
    /// `None` once it has ended.
    session: Option<Session>,
    guard: Guard,
    replica: Profile,
    readers: Readers,
    /// The reason, once the session has been told to end.
    ending: Option<SessionEnd>,
    /// An update was refused as broken or not permitted; all later ones are refused as well.
    is_refused: bool,
    /// End of the requested duration.
    until: Option<Instant>,
    /// End of the grace period after the client disconnected.
    grace_until: Option<Instant>,
}

impl SessionWorker {
    fn new(
        id: u32,
        new: &NewSession,
        channels: SessionChannels,
        session: Session,
        guard: Guard,
        memory: u64,
    ) -> SessionWorker {
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
        SessionWorker {
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
            // Bounded, because updates may arrive as fast as they are handled.
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
                    Ok(command) => self.handle_command(command),
                    Err(error) if error.is_empty() => break,
                    // The session is forgotten. Dropping it ends the collection.
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

    /// Sends the current summary to the table.
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

    fn handle_command(&mut self, command: WorkerCommand) {
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

    /// Ends the collection. The profile stays until the session is forgotten.
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
        // The table first: a reader that has the end may ask to forget the session, which must have ended by then.
        self.tell();
        self.readers.end(&end);
    }
}

/// The refusal for a session that does not exist.
pub fn gone(id: u32) -> Refusal {
    Refusal::new(RefusalKind::BadRequest, format!("there is no session {id}; `ccsd daemon status` lists them"))
}
