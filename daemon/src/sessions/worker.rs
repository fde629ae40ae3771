//! The thread of one session: runs the collection, keeps a copy of its profile, and serves its readers.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ccsd_collector::{
    Budget, FileShare, Options, ProcessSelection, Scope, Session, SessionEvent, become_unfavoured, other_process,
    procfs, system, usage,
};
use ccsd_profile::{Profile, ProfileLimits, Update};
use crossbeam_channel::{Receiver, Select, Sender, TryRecvError};

use super::guard::Guard;
use super::readers::{Readers, StreamReader};
use crate::authority::Authority;
use crate::ledger::{Ledger, LedgerCharge, LedgerPrincipal, Resource, THREAD_END_CPU};
use crate::protocol::message::{Collect, NEVER, Refusal, RefusalKind, SessionEnd, SessionSummary};

const LISTED_CHARS: usize = 200;
const LISTED_PIDS: usize = 64;

/// Updates handled before commands, timers and readers: more than arrive meanwhile at the shortest interval.
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
pub struct SessionGrant {
    /// Number of the session.
    pub id: u32,
    /// Maximum bytes of its sample rings.
    pub ring_bytes: usize,
    /// Memory limit of all sessions of its owner, in bytes; one session must not use all of it.
    pub profile_bytes: Option<u64>,
    /// Whether the profile may store the target's arguments.
    pub arguments: bool,
}

/// What a session is charged for.
pub struct Accounts {
    /// The books.
    pub ledger: Ledger,
    /// Who is charged.
    pub principal: LedgerPrincipal,
    /// The running session, and the memory that its rings lock. Dropped when its collection has ended, and its threads have:
    /// what they wait for may keep them.
    pub running: [LedgerCharge; 2],
    /// What the session has in memory, without its streams.
    pub bytes: Arc<LedgerCharge>,
}

/// The kernel's memory for an event: 51 MB were measured for 15,000 events.
const EVENT_BYTES: u64 = 3400;

/// What is charged as long as a thread of the session is there.
#[derive(Debug)]
struct SessionFiles {
    _running: [LedgerCharge; 2],
    ledger: Ledger,
    principal: LedgerPrincipal,
    charge: LedgerCharge,
    events: AtomicU64,
    inherited: AtomicU64,
    images: AtomicU64,
}

impl SessionFiles {
    fn new(ledger: &Ledger, principal: LedgerPrincipal, running: [LedgerCharge; 2]) -> SessionFiles {
        let charge = ledger.charge(principal, Resource::Files, 0);
        let [events, inherited, images] = [const { AtomicU64::new(0) }; 3];
        SessionFiles { _running: running, ledger: ledger.clone(), principal, charge, events, inherited, images }
    }

    fn event_bytes(&self) -> u64 {
        let inherited = self.inherited.load(Ordering::Relaxed);
        self.events.load(Ordering::Relaxed).saturating_add(inherited).saturating_mul(EVENT_BYTES)
    }

    fn tell(&self) {
        self.charge.set(self.events.load(Ordering::Relaxed).saturating_add(self.images.load(Ordering::Relaxed)));
    }
}

impl FileShare for SessionFiles {
    fn set_events(&self, files: u64) {
        // Relaxed, here and above: one thread opens a session's files.
        self.events.store(files, Ordering::Relaxed);
        self.tell();
    }

    fn set_inherited(&self, events: u64) {
        self.inherited.store(events, Ordering::Relaxed);
    }

    fn set_images(&self, files: u64) {
        self.images.store(files, Ordering::Relaxed);
        self.tell();
    }

    fn room(&self) -> u64 {
        self.ledger.room(self.principal, Resource::Files)
    }

    fn reason(&self) -> String {
        self.ledger.refusal(self.principal, Resource::Files).to_string()
    }
}

/// The most CPU time of a session's two threads that counts as that of its start, and of its end, nanoseconds. The first and
/// the last update hold it, and what was sampled until then.
const START_CPU: u64 = 500_000_000;

/// Time after which a session that has ended looks again whether there is memory for the readers that wait.
const LOOK_FOR_MEMORY: Duration = Duration::from_secs(1);

/// A command to a session.
pub enum WorkerCommand {
    /// End for this reason. The CPU time of the recorded program in nanoseconds, user and total, if known.
    End(SessionEnd, Option<(u64, u64)>),
    /// Add a reader, with or without updates, and send it here.
    Subscribe {
        /// Whether it gets updates.
        follow: bool,
        /// Whether it gets a profile however much memory that takes.
        trusted: bool,
        /// Where the reader goes.
        reply: Sender<StreamReader>,
    },
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
    /// Disconnected when the client has gone; `None` for a session that goes on without.
    pub client: Option<Receiver<()>>,
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
pub fn run(
    grant: SessionGrant,
    accounts: Accounts,
    new: NewSession,
    channels: SessionChannels,
    reply: Sender<Result<u32, Refusal>>,
) {
    let id = grant.id;
    // Dropped last: when clients learn of the end, everything was given back.
    let _farewell = Farewell { id, events: channels.events.clone() };
    if !new.owner.trusted {
        become_unfavoured();
    }
    let Accounts { ledger, principal, running, bytes } = accounts;
    let files = Arc::new(SessionFiles::new(&ledger, principal, running));
    let sessions = ledger.taken(principal, Resource::Running);
    let (session, guard, memory) = match open(&new, grant, &files, sessions) {
        Ok(opened) => opened,
        Err(refusal) => {
            ledger.add_request_cpu(principal, usage::thread_cpu_ns().saturating_add(THREAD_END_CPU));
            // Before the client learns of it, and may ask again.
            bytes.give_back();
            drop(files);
            let _ = reply.send(Err(refusal));
            return;
        }
    };
    session.set_generations(true);
    let mut worker =
        SessionWorker::new(grant, &new, channels, session, guard, memory, (ledger, principal, bytes, files));
    worker.tell();
    let _ = reply.send(Ok(id));
    // Dropped early: whether the client still exists is known from its connection.
    drop(reply);
    worker.run();
    // It may have been forgotten while it ran.
    let freeing = worker.session.take().map_or(0, Session::end);
    worker.count_cpu(worker.counted_cpu.0.saturating_add(freeing));
    let (ledger, counted) = (worker.ledger.clone(), worker.counted_cpu.1);
    drop(worker);
    // Of this thread and of the two that collect.
    let ends = THREAD_END_CPU.saturating_mul(3);
    ledger.add_request_cpu(principal, usage::thread_cpu_ns().saturating_sub(counted).saturating_add(ends));
}

/// Limits of a session's copy of the profile: all generations together, for about what the collector uses at most for
/// one.
fn replica_limits(memory: u64) -> ProfileLimits {
    let each = usize::try_from(memory / 8).unwrap_or(usize::MAX);
    let limits = ProfileLimits::reading();
    let (context_bytes, charge_bytes) = (limits.context_bytes.min(each), limits.charge_bytes.min(each));
    let route_bytes = limits.route_bytes.min(each / 2);
    ProfileLimits { context_bytes, charge_bytes, route_bytes, ..limits }
}

/// `running` is how many sessions the owner has, with this one.
fn open(
    new: &NewSession,
    grant: SessionGrant,
    files: &Arc<SessionFiles>,
    running: u64,
) -> Result<(Session, Guard, u64), Refusal> {
    let SessionGrant { ring_bytes, profile_bytes, arguments, .. } = grant;
    let mut options = Options { own_process: false, ..new.collect.options()? };
    if let Some(bytes) = profile_bytes {
        options.budget = Budget::of(options.budget.memory.min(bytes));
        bound(&mut options.budget.profile, usize::try_from(bytes).unwrap_or(usize::MAX));
    }
    options.budget.rings = ring_bytes;
    options.arguments &= arguments;
    options.files = Some(Arc::clone(files) as Arc<dyn FileShare>);
    restrict(&mut options, &new.owner, running)?;
    let pids = match &new.target {
        SessionTarget::Pids(pids) => pids.as_slice(),
        SessionTarget::Machine(_) => &[],
        SessionTarget::Child(pid, _) => std::slice::from_ref(pid),
    };
    if let Some(owner) = new.owner.owner() {
        other_process::wait_for_own(owner.uid);
    }
    let guard = Guard::new(new.owner, pids)?;
    let session = match &new.target {
        SessionTarget::Pids(pids) => Session::attach(&options, pids)?,
        SessionTarget::Machine(selection) => Session::machine(&options, selection)?,
        SessionTarget::Child(pid, words) => Session::record_child(&options, words.clone(), *pid)?,
    };
    guard.check_attached()?;
    other_process::rest();
    Ok((session, guard, options.budget.memory))
}

/// Limits a profile that must fit into `bytes` bytes with its copy: detail goes before the session has to end.
fn bound(limits: &mut ProfileLimits, bytes: usize) {
    // Contexts, charges and names, each twice, and as much for everything else.
    let each = bytes / 8;
    let budgets =
        [&mut limits.context_bytes, &mut limits.charge_bytes, &mut limits.route_bytes, &mut limits.string_bytes];
    for budget in budgets {
        *budget = each.min(*budget);
    }
}

/// Range of intervals for untrusted users: a session must notice its end soon. Each interval of a session costs CPU time, so a
/// user's second session has at most half as many as the first, the third a third, and so on.
const INTERVALS: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(5);

/// Denies untrusted users what the daemon may and they may not: others' processes, whole CPUs, forbidden kernel
/// samples.
fn restrict(options: &mut Options, owner: &Authority, running: u64) -> Result<(), Refusal> {
    if owner.trusted {
        return Ok(());
    }
    options.owner = owner.owner();
    options.whole_machine = false;
    let sessions = u32::try_from(running).unwrap_or(u32::MAX).max(1);
    let shortest = INTERVALS.start().saturating_mul(sessions).min(*INTERVALS.end());
    options.interval = options.interval.clamp(shortest, *INTERVALS.end());
    if system::perf_event_paranoid().unwrap_or(2) > 1 {
        if options.scope == Scope::Kernel {
            return Err(ccsd_collector::Error::KernelRefused.into());
        }
        options.scope = Scope::User;
    }
    Ok(())
}

struct RunningCharges {
    files: Arc<SessionFiles>,
    kernel: LedgerCharge,
}

struct SessionWorker {
    summary: SessionSummary,
    channels: SessionChannels,
    /// `None` once it has ended.
    session: Option<Session>,
    /// The charge for a running session, and its files; `None` once it has ended.
    running: Option<RunningCharges>,
    ring_bytes: u64,
    bytes: Arc<LedgerCharge>,
    ledger: Ledger,
    principal: LedgerPrincipal,
    /// CPU time that was counted: of the collection, and of this thread.
    counted_cpu: (u64, u64),
    guard: Guard,
    replica: Profile,
    readers: Readers,
    ending: Option<SessionEnd>,
    /// An update was refused as broken or not permitted; all later ones are refused as well.
    is_refused: bool,
    until: Option<Instant>,
    grace_until: Option<Instant>,
}

impl SessionWorker {
    fn new(
        SessionGrant { id, ring_bytes, .. }: SessionGrant,
        new: &NewSession,
        channels: SessionChannels,
        session: Session,
        guard: Guard,
        memory: u64,
        (ledger, principal, bytes, files): (Ledger, LedgerPrincipal, Arc<LedgerCharge>, Arc<SessionFiles>),
    ) -> SessionWorker {
        let streams = [principal, LedgerPrincipal::Own].map(|who| ledger.charge(who, Resource::Bytes, 0)).into();
        let kernel = ledger.charge(principal, Resource::KernelBytes, 0);
        let info = session.info().clone();
        let pids: Vec<u32> = info.pids.iter().copied().take(LISTED_PIDS).collect();
        let start_of = |&pid: &u32| match procfs::stat(pid) {
            Ok(stat) => stat.start_time,
            Err(error) if procfs::is_gone(&error) => NEVER,
            Err(_) => 0,
        };
        let summary = SessionSummary {
            id,
            owner_uid: new.owner.uid,
            target: info.target.chars().take(LISTED_CHARS).collect(),
            starts: pids.iter().map(start_of).collect(),
            pids,
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
            running: Some(RunningCharges { files, kernel }),
            ring_bytes: ring_bytes as u64,
            bytes,
            ledger,
            principal,
            counted_cpu: (0, 0),
            guard,
            replica: Profile::new(info.clone(), replica_limits(memory)),
            readers: Readers::new(Arc::new(info), streams),
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
            self.look_for_the_client();
            self.look_at_the_clock();
            self.readers.serve(&self.replica);
            let readers = u32::try_from(self.readers.count()).unwrap_or(u32::MAX);
            if readers != self.summary.readers {
                self.summary.readers = readers;
                self.tell();
            }
        }
    }

    fn wait(&self) {
        let mut select = Select::new();
        select.recv(&self.channels.commands);
        if let Some(session) = &self.session {
            select.recv(session.events());
        }
        select.recv(self.readers.woken());
        if let Some(client) = &self.channels.client {
            select.recv(client);
        }
        // Updates wake a session that runs.
        let waits = self.session.is_none() && self.readers.waits_for_memory();
        let look_at = waits.then(|| Instant::now() + LOOK_FOR_MEMORY);
        match [self.until, self.grace_until, look_at].into_iter().flatten().min() {
            Some(deadline) => {
                let _ = select.ready_deadline(deadline);
            }
            None => {
                let _ = select.ready();
            }
        }
    }

    fn update(&mut self, update: Update) {
        self.count_cpu(update.accounting.own.cpu_ns);
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
            match &end {
                SessionEnd::Failed(why) => {
                    tracing::warn!(session = self.summary.id, "session {} ends: {why}", self.summary.id);
                }
                _ => self.log(&format!("ends: {}", end.text())),
            }
            self.ending = Some(end);
            self.is_refused = true;
            self.stop(None);
            return;
        }
        for crash in &update.crashes {
            self.log(&format!("has seen a crash: {}", crash.summary()));
        }
        self.count_cpu(0);
        self.readers.offer(&Arc::new(update), self.replica.bytes());
        self.tell();
    }

    fn tell(&mut self) {
        let accounting = self.replica.accounting();
        let summary = &mut self.summary;
        summary.duration_ns = accounting.duration_ns;
        summary.received = accounting.received;
        summary.lost = accounting.known_missing();
        summary.contexts = self.replica.contexts().len() as u64;
        let held = self.session.as_ref().map_or(0, Session::held_bytes);
        let events = self.running.as_ref().map_or(0, |running| running.files.event_bytes());
        if let Some(running) = &self.running {
            running.kernel.set(events.saturating_add(self.ring_bytes));
        }
        let own = held.saturating_add(events).saturating_add(self.replica.bytes() as u64);
        self.bytes.set(own);
        summary.bytes = own.saturating_add(self.readers.held_bytes() as u64);
        let _ = self.channels.events.send(WorkerEvent::State(Box::new(summary.clone())));
    }

    fn handle_command(&mut self, command: WorkerCommand) {
        match command {
            WorkerCommand::End(why, target_cpu_ns) => {
                self.ending.get_or_insert(why);
                self.stop(target_cpu_ns);
            }
            WorkerCommand::Subscribe { follow, trusted, reply } => {
                let _ = reply.send(self.readers.add(follow, trusted));
            }
        }
    }

    /// Begins the grace period when the client has gone. Its channel is closed then, which no full queue can hide.
    fn look_for_the_client(&mut self) {
        let gone = |client: &mut Receiver<()>| client.try_recv() == Err(TryRecvError::Disconnected);
        if self.channels.client.take_if(gone).is_some() && self.session.is_some() {
            self.grace_until = Some(Instant::now() + self.channels.grace);
        }
    }

    /// Logs what happens to sessions of root and the group. Users start as many sessions as they like.
    fn log(&self, what: &str) {
        let id = self.summary.id;
        match self.principal {
            LedgerPrincipal::Own => tracing::info!(session = id, "session {id} {what}"),
            LedgerPrincipal::User(_) => tracing::debug!(session = id, "session {id} {what}"),
        }
    }

    fn count_cpu(&mut self, collection_ns: u64) {
        let now = (collection_ns.max(self.counted_cpu.0), usage::thread_cpu_ns());
        let before = std::mem::replace(&mut self.counted_cpu, now);
        let (collected, own) = (now.0 - before.0, now.1.saturating_sub(before.1));
        let is_start = before.0 == 0;
        let of_request = if is_start || self.session.is_none() || self.ending.is_some() {
            own.saturating_add(collected.min(START_CPU))
        } else {
            0
        };
        self.ledger.add_request_cpu(self.principal, of_request);
        self.ledger.add_cpu(self.principal, collected.saturating_add(own) - of_request);
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
        let freeing = self.session.take().map_or(0, Session::end);
        self.running = None;
        self.count_cpu(self.counted_cpu.0.saturating_add(freeing));
        (self.until, self.grace_until) = (None, None);
        // One that has become another user's ends for the session, too.
        let of_targets = || self.guard.check_targets().err().map_or(SessionEnd::Target, SessionEnd::NotPermitted);
        let end = self.ending.clone().unwrap_or_else(of_targets);
        self.log(&format!("has ended: {}; {} samples", end.text(), self.replica.accounting().received));
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
