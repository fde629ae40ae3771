//! The table of sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ccsd_collector::{system, usage};
use crossbeam_channel::{Receiver, Sender, bounded, select, unbounded};

use super::guard;
use super::limits::SessionLimits;
use super::readers::StreamReader;
use super::worker::{self, Accounts, NewSession, SessionChannels, SessionGrant, WorkerCommand, WorkerEvent};
use crate::authority::Authority;
use crate::ledger::{Ledger, LedgerCharge, LedgerPrincipal, Resource, Shares};
use crate::protocol::message::{Refusal, RefusalKind, SessionEnd, SessionSummary};
use crate::supervisor::{BEAT, Heart};

/// Maximum bytes of a session's sample ring on one CPU: more has no use, and eight of the largest samples fit.
const MOST_RING_BYTES: usize = 4 << 20;
const LEAST_RING_BYTES: usize = 512 << 10;
/// The same where little memory may be locked: eight samples of 8 KiB of stack.
const SMALL_RING_BYTES: usize = 64 << 10;
/// What the rings of a CPU lock beside the one for samples: another, and a page for each.
const BESIDE_BYTES: u64 = 72 << 10;
const EVENTS: usize = 256;
/// Time between two messages about sessions that are ended for their memory.
const SHED_LOGGED: Duration = Duration::from_secs(60);

/// Requests to the table. The last field of each is the channel for the answer.
pub enum Ask {
    Create(Box<NewSession>, Option<Receiver<()>>, Sender<Result<u32, Refusal>>),
    List(Authority, Sender<Vec<SessionSummary>>),
    Stop {
        viewer: Authority,
        id: u32,
        target_cpu_ns: Option<(u64, u64)>,
        forget: bool,
        reply: Sender<Result<(), Refusal>>,
    },
    Forget(Authority, u32, Sender<Result<(), Refusal>>),
    Subscribe(Authority, u32, bool, Sender<Result<Receiver<StreamReader>, Refusal>>),
    Configure {
        bytes_of_user: u64,
        arguments: bool,
        paranoid_users: bool,
    },
    ShutDown(Sender<()>),
}

impl Ask {
    /// The user whose request it is; `None` for the daemon itself.
    fn viewer(&self) -> Option<Authority> {
        match self {
            Ask::Create(new, ..) => Some(new.owner),
            Ask::List(viewer, _) | Ask::Forget(viewer, ..) | Ask::Subscribe(viewer, ..) | Ask::Stop { viewer, .. } => {
                Some(*viewer)
            }
            Ask::Configure { .. } | Ask::ShutDown(_) => None,
        }
    }
}

struct SessionEntry {
    owner: Authority,
    principal: LedgerPrincipal,
    /// Never full: few are sent, and subscribers wait for their answers.
    commands: Sender<WorkerCommand>,
    /// Whether the session was told to end, and with the target's CPU time.
    told_to_end: (bool, bool),
    forget: bool,
    /// Bytes that its rings may use while it runs.
    ring_bytes: usize,
    /// Bytes that the session has, without its streams.
    bytes: Arc<LedgerCharge>,
    /// Its place among the finished sessions.
    kept: Option<LedgerCharge>,
    /// Whether the session was told to end to free memory.
    sheds: bool,
    /// `None` until the session samples.
    summary: Option<Box<SessionSummary>>,
}

impl SessionEntry {
    fn has_ended(&self) -> bool {
        self.summary.as_ref().is_some_and(|summary| summary.ended.is_some())
    }

    /// Tells the session to end. Repeated orders say nothing new, except the target's CPU time.
    fn end(&mut self, why: SessionEnd, target_cpu_ns: Option<(u64, u64)>) {
        let (told, told_cpu) = self.told_to_end;
        if told && (told_cpu || target_cpu_ns.is_none()) {
            return;
        }
        self.told_to_end = (true, told_cpu || target_cpu_ns.is_some());
        // Fails only if the session has ended by itself.
        let _ = self.commands.send(WorkerCommand::End(why, target_cpu_ns));
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        // The session's thread frees its memory as soon as it finds that it is forgotten.
        self.bytes.give_back();
    }
}

/// The table, owned by its thread.
pub struct SessionTable {
    limits: SessionLimits,
    ledger: Ledger,
    asks: Receiver<Ask>,
    events: Receiver<WorkerEvent>,
    events_sender: Sender<WorkerEvent>,
    entries: BTreeMap<u32, SessionEntry>,
    next_id: u32,
    /// CPU time of this thread that was charged to somebody, nanoseconds.
    charged_ns: u64,
    shutting_down: bool,
    /// When it was logged last that a session was ended for its memory.
    shed_logged: Option<Instant>,
    /// Dropped when all sessions have ended.
    all_ended: Option<Sender<()>>,
}

impl SessionTable {
    pub fn new(limits: SessionLimits, ledger: Ledger, asks: Receiver<Ask>) -> SessionTable {
        let (events_sender, events) = bounded(EVENTS);
        SessionTable {
            limits,
            ledger,
            asks,
            events,
            events_sender,
            entries: BTreeMap::new(),
            next_id: 1,
            charged_ns: 0,
            shutting_down: false,
            shed_logged: None,
            all_ended: None,
        }
    }

    pub fn run(mut self, heart: &Heart) {
        let (asks, events) = (self.asks.clone(), self.events.clone());
        loop {
            heart.beat();
            select! {
                recv(asks) -> ask => match ask {
                    Ok(ask) => {
                        // Events are handled first, so that an answer includes them.
                        while let Ok(event) = events.try_recv() {
                            self.handle_event(event);
                        }
                        self.answer(ask);
                    }
                    // Dropping the entries ends the sessions.
                    Err(_) => return,
                },
                recv(events) -> event => match event {
                    Ok(event) => self.handle_event(event),
                    // Unreachable: this thread holds a sender.
                    Err(_) => return,
                },
                default(BEAT) => {}
            }
            if self.all_ended.is_some() && self.entries.values().all(SessionEntry::has_ended) {
                self.all_ended = None;
            }
        }
    }

    fn handle_event(&mut self, event: WorkerEvent) {
        let id = match &event {
            WorkerEvent::State(summary) => summary.id,
            WorkerEvent::Gone(id) => *id,
        };
        let principal = self.entries.get(&id).map_or(LedgerPrincipal::Own, |entry| entry.principal);
        match event {
            WorkerEvent::State(summary) => self.note(summary),
            WorkerEvent::Gone(id) => {
                self.entries.remove(&id);
                crate::heap::note_end();
            }
        }
        self.charge(principal);
    }

    /// Charges what this thread has worked since the last call to the principal it was for.
    fn charge(&mut self, principal: LedgerPrincipal) {
        let now = usage::thread_cpu_ns();
        let before = std::mem::replace(&mut self.charged_ns, now);
        self.ledger.add_request_cpu(principal, now.saturating_sub(before));
    }

    fn answer(&mut self, ask: Ask) {
        let viewer = ask.viewer();
        self.answer_it(ask);
        self.charge(viewer.map_or(LedgerPrincipal::Own, |it| self.ledger.principal(it.uid, it.trusted)));
    }

    fn answer_it(&mut self, ask: Ask) {
        match ask {
            Ask::Create(new, client, reply) => self.create(*new, client, reply),
            Ask::List(viewer, reply) => {
                let seen = self.entries.values().filter(|entry| viewer.may_see(&entry.owner));
                let _ = reply.send(seen.filter_map(|entry| entry.summary.as_deref().cloned()).collect());
            }
            Ask::Stop { viewer, id, target_cpu_ns, forget, reply } => {
                // The target's CPU time is known only after its end.
                let why = if target_cpu_ns.is_some() { SessionEnd::Target } else { SessionEnd::Stopped };
                let over = self.entry(viewer, id).map(|entry| {
                    entry.end(why, target_cpu_ns);
                    entry.forget |= forget;
                    forget && entry.has_ended()
                });
                if over == Ok(true) {
                    self.entries.remove(&id);
                }
                let _ = reply.send(over.map(|_| ()));
            }
            Ask::Forget(viewer, id, reply) => {
                let ended = self.entry(viewer, id).map(|entry| entry.has_ended());
                let _ = reply.send(match ended {
                    Ok(true) => {
                        self.entries.remove(&id);
                        Ok(())
                    }
                    Ok(false) => Err(Refusal::new(RefusalKind::BadRequest, format!("session {id} still runs"))),
                    Err(refusal) => Err(refusal),
                });
            }
            Ask::Subscribe(viewer, id, follow, reply) => {
                let (sender, receiver) = bounded(1);
                let subscribed = self.entry(viewer, id).and_then(|entry| {
                    let command = WorkerCommand::Subscribe { follow, trusted: viewer.trusted, reply: sender };
                    entry.commands.send(command).map_err(|_| worker::gone(id))
                });
                let _ = reply.send(subscribed.map(|()| receiver));
            }
            Ask::Configure { bytes_of_user, arguments, paranoid_users } => {
                (self.limits.bytes_of_user, self.limits.arguments) = (bytes_of_user, arguments);
                self.limits.paranoid_users = paranoid_users;
                let shares = Shares::new(bytes_of_user, system::file_limit(), system::lockable_bytes());
                self.ledger.set_shares(shares);
                self.shed();
            }
            Ask::ShutDown(all_ended) => {
                self.entries.values_mut().for_each(|entry| entry.end(SessionEnd::Shutdown, None));
                self.shutting_down = true;
                self.all_ended = Some(all_ended);
            }
        }
    }

    fn create(&mut self, new: NewSession, client: Option<Receiver<()>>, reply: Sender<Result<u32, Refusal>>) {
        let principal = self.ledger.principal(new.owner.uid, new.owner.trusted);
        let ring_bytes = self.ring_bytes(principal);
        let (running, bytes) = match self.admit(&new.owner, principal, ring_bytes) {
            Ok((running, bytes)) => (running, Arc::new(bytes)),
            Err(refusal) => {
                let _ = reply.send(Err(refusal));
                return;
            }
        };
        let id = self.next_id;
        let (commands, receiver) = unbounded();
        let entry = SessionEntry {
            owner: new.owner,
            principal,
            commands,
            told_to_end: (false, false),
            forget: false,
            ring_bytes,
            bytes: Arc::clone(&bytes),
            kept: None,
            sheds: false,
            summary: None,
        };
        let channels = SessionChannels {
            commands: receiver,
            events: self.events_sender.clone(),
            client: client.filter(|_| !new.detached),
            grace: self.limits.grace,
        };
        let failed = reply.clone();
        let profile_bytes = (principal != LedgerPrincipal::Own).then_some(self.limits.bytes_of_user);
        let accounts = Accounts { ledger: self.ledger.clone(), principal, running, bytes };
        let grant = SessionGrant { id, ring_bytes, profile_bytes, arguments: self.limits.arguments };
        let run = move || worker::run(grant, accounts, new, channels, reply);
        match std::thread::Builder::new().name(format!("ccsd-session-{id}")).spawn(run) {
            Ok(_) => {
                self.next_id = self.next_id.saturating_add(1);
                self.entries.insert(id, entry);
            }
            Err(error) => {
                let _ = failed.send(Err(Refusal::new(RefusalKind::Busy, format!("cannot start a thread: {error}"))));
            }
        }
    }

    /// Ring bytes for the next session: an eighth of what is left, so that the first get all that helps and the
    /// hundredth enough.
    fn ring_bytes(&self, principal: LedgerPrincipal) -> usize {
        let mut room = self.ledger.room(principal, Resource::Bytes);
        let mut left = self.limits.ring_bytes;
        for (_, entry) in self.of(principal) {
            match entry.has_ended() {
                // Finished sessions give way.
                true => room = room.saturating_add(entry.bytes.amount()),
                false => left = left.saturating_sub(entry.ring_bytes),
            }
        }
        let left = left.min(usize::try_from(room).unwrap_or(usize::MAX));
        let cpus = system::online_cpus().len().max(1);
        let each = (left / 8 / cpus).clamp(LEAST_RING_BYTES, MOST_RING_BYTES);
        // Where little memory may be locked, each leaves some for more sessions, and for watches.
        let locked = match principal {
            LedgerPrincipal::Own => {
                let taken = self.ledger.taken(principal, Resource::Locked);
                let by_users = self.ledger.taken_by_users(Resource::Locked);
                let all = self.ledger.share(Resource::Locked).users.saturating_mul(2);
                all.saturating_sub(taken).saturating_sub(by_users)
            }
            LedgerPrincipal::User(_) => self.ledger.room(principal, Resource::Locked),
        };
        let locked = usize::try_from(locked / 4).unwrap_or(usize::MAX) / cpus;
        // Rings are a power of two.
        let each = each.min(1 << locked.max(SMALL_RING_BYTES).ilog2());
        each.saturating_mul(cpus)
    }

    fn admit(
        &mut self,
        owner: &Authority,
        principal: LedgerPrincipal,
        ring_bytes: usize,
    ) -> Result<([LedgerCharge; 2], LedgerCharge), Refusal> {
        if self.shutting_down {
            return Err(Refusal::new(RefusalKind::Busy, SessionEnd::Shutdown.text()));
        }
        guard::check_paranoid(owner, self.limits.paranoid_users)?;
        self.ledger.check_cpu(principal, Instant::now())?;
        let running = self.ledger.take(principal, Resource::Running, 1)?;
        let beside = BESIDE_BYTES.saturating_mul(system::online_cpus().len() as u64);
        let locked = self.ledger.take(principal, Resource::Locked, (ring_bytes as u64).saturating_add(beside))?;
        // Finished sessions go only if memory is the only obstacle.
        while self.ledger.fits(principal, Resource::Bytes, ring_bytes as u64).is_err() && self.evict(principal) {}
        let bytes = self.ledger.take(principal, Resource::Bytes, ring_bytes as u64)?;
        Ok(([running, locked], bytes))
    }

    fn entry(&mut self, viewer: Authority, id: u32) -> Result<&mut SessionEntry, Refusal> {
        // A session that the viewer may not see does not exist for the viewer.
        self.entries.get_mut(&id).filter(|entry| viewer.may_see(&entry.owner)).ok_or_else(|| worker::gone(id))
    }

    fn note(&mut self, summary: Box<SessionSummary>) {
        let id = summary.id;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let ends = summary.ended.is_some() && !entry.has_ended();
        entry.summary = Some(summary);
        if ends && entry.forget {
            self.entries.remove(&id);
        } else if ends {
            entry.kept = Some(self.ledger.charge(entry.principal, Resource::Kept, 1));
            self.drop_oldest();
        }
        self.shed();
    }

    fn of(&self, principal: LedgerPrincipal) -> impl Iterator<Item = (&u32, &SessionEntry)> {
        self.entries.iter().filter(move |(_, entry)| entry.principal == principal)
    }

    /// Removes the oldest finished session of a principal. Returns whether there was one.
    fn evict(&mut self, principal: LedgerPrincipal) -> bool {
        let oldest = self.of(principal).find(|(_, entry)| entry.has_ended()).map(|(&id, _)| id);
        oldest.is_some_and(|id| self.entries.remove(&id).is_some())
    }

    /// Enforces the shares of memory: removes finished sessions, then ends the largest running one, whose profile is
    /// kept.
    fn shed(&mut self) {
        for principal in self.ledger.debtors(Resource::Bytes) {
            while self.ledger.debtors(Resource::Bytes).contains(&principal) {
                if !self.evict(principal) {
                    self.end_largest(principal);
                    break;
                }
            }
        }
    }

    fn end_largest(&mut self, principal: LedgerPrincipal) {
        let running = || self.of(principal).filter(|(_, entry)| !entry.has_ended());
        // One session at a time: its end may free enough.
        if running().any(|(_, entry)| entry.sheds) {
            return;
        }
        let largest = running().max_by_key(|(_, entry)| entry.bytes.amount()).map(|(&id, _)| id);
        let taken = self.ledger.taken(principal, Resource::Bytes);
        let others = self.ledger.taken_by_users(Resource::Bytes).saturating_sub(taken);
        let share = self.ledger.share(Resource::Bytes);
        let Some((id, entry)) = largest.and_then(|id| Some((id, self.entries.get_mut(&id)?))) else { return };
        let bound = match taken > share.user {
            true => format!("{} MiB are the most for one user", share.user >> 20),
            false => format!(
                "with the {} MiB of other users that is more than {} of {} MiB; the rest is kept for the next user",
                others >> 20,
                share.lasting() >> 20,
                share.users >> 20
            ),
        };
        let why = format!(
            "user {} had {} MiB of the daemon's memory, and {bound}: ccsd ended the largest session, {} MiB",
            entry.owner.uid,
            taken >> 20,
            entry.bytes.amount() >> 20
        );
        // A user may have that happen again and again.
        if self.shed_logged.is_none_or(|logged| logged.elapsed() >= SHED_LOGGED) {
            self.shed_logged = Some(Instant::now());
            tracing::warn!(session = id, uid = entry.owner.uid, "session {id} ends: {why}");
        }
        entry.end(SessionEnd::Failed(why), None);
        entry.sheds = true;
    }

    /// Removes the oldest finished sessions of users who have more than may be kept.
    fn drop_oldest(&mut self) {
        while let Some(debtor) = self.ledger.debtors(Resource::Kept).first() {
            if !self.evict(*debtor) {
                break;
            }
        }
        // Users' memory is bounded with that of running sessions. The latest session is kept regardless of its size.
        let mut kept: Vec<(u32, u64)> = self
            .of(LedgerPrincipal::Own)
            .filter(|(_, entry)| entry.has_ended())
            .map(|(&id, entry)| (id, entry.bytes.amount()))
            .collect();
        let latest = kept.pop().map_or(0, |(_, bytes)| bytes);
        let mut bytes = kept.iter().fold(latest, |sum, (_, bytes)| sum.saturating_add(*bytes));
        for (id, of_one) in kept {
            if bytes <= self.limits.ended_bytes {
                break;
            }
            bytes = bytes.saturating_sub(of_one);
            self.entries.remove(&id);
        }
    }
}
