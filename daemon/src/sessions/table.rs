//! The table of sessions.

use std::collections::{BTreeMap, BTreeSet};

use ccsd_collector::system;
use crossbeam_channel::{Receiver, Sender, bounded, select};

use super::guard;
use super::limits::SessionLimits;
use super::readers::StreamReader;
use super::worker::{self, Grant, NewSession, SessionChannels, WorkerCommand, WorkerEvent};
use crate::authority::Authority;
use crate::protocol::message::{Refusal, RefusalKind, SessionEnd, SessionSummary};

/// Commands queued for a session, which handles them many times a second.
const COMMANDS: usize = 256;
/// Maximum bytes of a session's sample ring on one CPU: more has no use, and eight of the largest samples fit.
const MOST_RING_BYTES: usize = 4 << 20;
const LEAST_RING_BYTES: usize = 512 << 10;
/// Events queued for the table.
const EVENTS: usize = 256;

/// Requests to the table. The last field of each is the channel for the answer.
pub enum Ask {
    Create(Box<NewSession>, Option<u64>, Sender<Result<u32, Refusal>>),
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
    ConnectionEnded(u64),
    ShutDown(Sender<()>),
}

struct SessionEntry {
    owner: Authority,
    connection: Option<u64>,
    commands: Sender<WorkerCommand>,
    /// Whether the session is removed when it has ended.
    forget: bool,
    /// Bytes that its rings may use while it runs.
    ring_bytes: usize,
    /// Whether the session was told to end to free memory.
    sheds: bool,
    /// `None` until the session samples.
    summary: Option<Box<SessionSummary>>,
}

impl SessionEntry {
    /// Bytes in use; before the first report, the bytes granted.
    fn bytes(&self) -> u64 {
        self.summary.as_ref().map_or(self.ring_bytes as u64, |summary| summary.bytes)
    }

    fn has_ended(&self) -> bool {
        self.summary.as_ref().is_some_and(|summary| summary.ended.is_some())
    }
}

/// The table, owned by its thread.
pub struct SessionTable {
    limits: SessionLimits,
    asks: Receiver<Ask>,
    events: Receiver<WorkerEvent>,
    events_sender: Sender<WorkerEvent>,
    entries: BTreeMap<u32, SessionEntry>,
    next_id: u32,
    shutting_down: bool,
    /// Dropped when all sessions have ended.
    all_ended: Option<Sender<()>>,
}

impl SessionTable {
    pub fn new(limits: SessionLimits, asks: Receiver<Ask>) -> SessionTable {
        let (events_sender, events) = bounded(EVENTS);
        SessionTable {
            limits,
            asks,
            events,
            events_sender,
            entries: BTreeMap::new(),
            next_id: 1,
            shutting_down: false,
            all_ended: None,
        }
    }

    /// Handles requests until all senders are gone.
    pub fn run(mut self) {
        let (asks, events) = (self.asks.clone(), self.events.clone());
        loop {
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
            }
            if self.all_ended.is_some() && self.entries.values().all(SessionEntry::has_ended) {
                self.all_ended = None;
            }
        }
    }

    fn handle_event(&mut self, event: WorkerEvent) {
        match event {
            WorkerEvent::State(summary) => self.note(summary),
            WorkerEvent::Gone(id) => {
                self.entries.remove(&id);
                crate::heap::note_end();
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Create(new, connection, reply) => self.create(*new, connection, reply),
            Ask::List(viewer, reply) => {
                let seen = self.entries.values().filter(|entry| viewer.may_see(&entry.owner));
                let _ = reply.send(seen.filter_map(|entry| entry.summary.as_deref().cloned()).collect());
            }
            Ask::Stop { viewer, id, target_cpu_ns, forget, reply } => {
                // The target's CPU time is known only after its end.
                let why = if target_cpu_ns.is_some() { SessionEnd::Target } else { SessionEnd::Stopped };
                let told = self.tell(viewer, id, WorkerCommand::End(why, target_cpu_ns));
                match self.entries.get_mut(&id).filter(|_| forget && told.is_ok()) {
                    Some(entry) if entry.has_ended() => drop(self.entries.remove(&id)),
                    Some(entry) => entry.forget = true,
                    None => {}
                }
                let _ = reply.send(told);
            }
            Ask::Forget(viewer, id, reply) => {
                let ended = self.entry(viewer, id).map(SessionEntry::has_ended);
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
                let told = self.tell(viewer, id, WorkerCommand::Subscribe(follow, sender));
                let _ = reply.send(told.map(|()| receiver));
            }
            Ask::Configure { bytes_of_user, arguments, paranoid_users } => {
                (self.limits.bytes_of_user, self.limits.arguments) = (bytes_of_user, arguments);
                self.limits.paranoid_users = paranoid_users;
                let users: BTreeSet<u32> = self.untrusted().map(|(_, entry)| entry.owner.uid).collect();
                users.into_iter().for_each(|uid| self.bound(uid));
            }
            Ask::ConnectionEnded(connection) => {
                for entry in self.entries.values_mut().filter(|entry| entry.connection == Some(connection)) {
                    entry.connection = None;
                    let _ = entry.commands.try_send(WorkerCommand::ClientGone);
                }
            }
            Ask::ShutDown(all_ended) => {
                for entry in self.entries.values() {
                    let _ = entry.commands.try_send(WorkerCommand::End(SessionEnd::Shutdown, None));
                }
                self.shutting_down = true;
                self.all_ended = Some(all_ended);
            }
        }
    }

    fn create(&mut self, new: NewSession, connection: Option<u64>, reply: Sender<Result<u32, Refusal>>) {
        let admitted = guard::check_paranoid(&new.owner, self.limits.paranoid_users);
        let room = admitted.and_then(|()| self.room_for(&new.owner)).and_then(|()| {
            // Frees memory only if memory is the only obstacle.
            if !new.owner.trusted {
                self.free_memory(new.owner.uid, self.ring_bytes() as u64);
            }
            self.memory_for(&new.owner)
        });
        if let Err(refusal) = room {
            let _ = reply.send(Err(refusal));
            return;
        }
        let id = self.next_id;
        let (commands, receiver) = bounded(COMMANDS);
        let ring_bytes = self.ring_bytes();
        let entry = SessionEntry {
            owner: new.owner,
            connection: connection.filter(|_| !new.detached),
            commands,
            forget: false,
            ring_bytes,
            sheds: false,
            summary: None,
        };
        let channels =
            SessionChannels { commands: receiver, events: self.events_sender.clone(), grace: self.limits.grace };
        let failed = reply.clone();
        let profile_bytes = (!new.owner.trusted).then_some(self.limits.bytes_of_user);
        let arguments = self.limits.arguments;
        let run = move || worker::run(Grant { id, ring_bytes, profile_bytes, arguments }, new, channels, reply);
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

    /// Ring bytes for the next session: an eighth of the remaining limit, so that the first sessions get all that
    /// helps, and the hundredth still has enough to copy whole stacks.
    fn ring_bytes(&self) -> usize {
        let running = self.entries.values().filter(|entry| !entry.has_ended());
        let left = running.fold(self.limits.ring_bytes, |left, entry| left.saturating_sub(entry.ring_bytes));
        let cpus = system::online_cpus().len();
        (left / 8).clamp(cpus.saturating_mul(LEAST_RING_BYTES), cpus.saturating_mul(MOST_RING_BYTES))
    }

    fn room_for(&self, owner: &Authority) -> Result<(), Refusal> {
        if self.shutting_down {
            return Err(Refusal::new(RefusalKind::Busy, SessionEnd::Shutdown.text()));
        }
        let running = || self.entries.values().filter(|entry| !entry.has_ended());
        let limit = self.limits.running;
        if running().count() >= limit {
            let message =
                format!("{limit} sessions run already, the most that there may be; `ccsd daemon stop ID` ends one");
            return Err(Refusal::new(RefusalKind::Busy, message));
        }
        let limit = self.limits.running_of_user;
        if !owner.trusted && running().filter(|entry| entry.owner.uid == owner.uid).count() >= limit {
            // The user id, not the name: a name lookup may block.
            let (uid, most) = (owner.uid, "the most that there may be; `ccsd daemon stop ID` ends one");
            let message = format!("user {uid} has {limit} sessions, {most}");
            return Err(Refusal::new(RefusalKind::Busy, message));
        }
        Ok(())
    }

    /// Checks that a user's sessions leave room for the rings of another one.
    fn memory_for(&self, owner: &Authority) -> Result<(), Refusal> {
        let (taken, most) = (self.bytes_of(owner.uid), self.limits.bytes_of_user);
        if !owner.trusted && taken.saturating_add(self.ring_bytes() as u64) > most {
            let message = format!(
                "the sessions of user {} take {} MiB of the daemon's memory, and {} MiB are the most that they may; \
                 `ccsd daemon stop ID` ends one",
                owner.uid,
                taken >> 20,
                most >> 20
            );
            return Err(Refusal::new(RefusalKind::Busy, message));
        }
        Ok(())
    }

    fn entry(&self, viewer: Authority, id: u32) -> Result<&SessionEntry, Refusal> {
        // A session that the viewer may not see does not exist for the viewer.
        self.entries.get(&id).filter(|entry| viewer.may_see(&entry.owner)).ok_or_else(|| worker::gone(id))
    }

    fn tell(&self, viewer: Authority, id: u32, command: WorkerCommand) -> Result<(), Refusal> {
        self.entry(viewer, id)?.commands.try_send(command).map_err(|error| match error.is_full() {
            true => Refusal::new(RefusalKind::Busy, format!("session {id} has too much to do; try again")),
            false => worker::gone(id),
        })
    }

    fn note(&mut self, summary: Box<SessionSummary>) {
        let id = summary.id;
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let ends = summary.ended.is_some() && !entry.has_ended();
        entry.summary = Some(summary);
        let owner = entry.owner;
        if ends && entry.forget {
            self.entries.remove(&id);
        } else if ends {
            self.drop_oldest();
        }
        if !owner.trusted {
            self.bound(owner.uid);
        }
    }

    /// Sessions of users whose memory is limited.
    fn untrusted(&self) -> impl DoubleEndedIterator<Item = (&u32, &SessionEntry)> {
        self.entries.iter().filter(|(_, entry)| !entry.owner.trusted)
    }

    /// Bytes used by the sessions of such a user.
    fn bytes_of(&self, uid: u32) -> u64 {
        self.untrusted()
            .filter(|(_, entry)| entry.owner.uid == uid)
            .fold(0, |sum, (_, entry)| sum.saturating_add(entry.bytes()))
    }

    /// Removes ended sessions of a user, oldest first, until `more` bytes fit.
    fn free_memory(&mut self, uid: u32, more: u64) {
        while self.bytes_of(uid).saturating_add(more) > self.limits.bytes_of_user {
            let mut ended = self.untrusted().filter(|(_, entry)| entry.owner.uid == uid && entry.has_ended());
            let Some((&oldest, _)) = ended.next() else { return };
            drop(ended);
            self.entries.remove(&oldest);
        }
    }

    /// Enforces a user's memory limit: removes ended sessions first, then ends the largest one, whose profile is kept
    /// and counted.
    fn bound(&mut self, uid: u32) {
        self.free_memory(uid, 0);
        let (taken, most) = (self.bytes_of(uid), self.limits.bytes_of_user);
        let of_user = || self.untrusted().filter(|(_, entry)| entry.owner.uid == uid && !entry.has_ended());
        // Ends one session at a time: its end may free enough.
        if taken <= most || of_user().any(|(_, entry)| entry.sheds) {
            return;
        }
        let Some((&id, largest)) = of_user().max_by_key(|(_, entry)| entry.bytes()) else { return };
        let why = format!(
            "the sessions of user {uid} took {} MiB of the daemon's memory, and {} MiB are the most that they may: the one \
             that took most, {} MiB, was ended",
            taken >> 20,
            most >> 20,
            largest.bytes() >> 20
        );
        tracing::warn!(session = id, "session {id} ends: {why}");
        let told = largest.commands.try_send(WorkerCommand::End(SessionEnd::Failed(why), None));
        if let Some(entry) = self.entries.get_mut(&id) {
            // A busy session is told at its next report.
            entry.sheds = told.is_ok();
        }
    }

    /// Removes the oldest ended sessions beyond the limits.
    fn drop_oldest(&mut self) {
        let mut kept: Vec<(u32, Authority)> = Vec::new();
        let mut bytes = 0u64;
        let mut dropped = Vec::new();
        // Numbers follow the start, not the end, of sessions.
        for (&id, entry) in self.entries.iter().rev().filter(|(_, entry)| entry.has_ended()) {
            bytes = bytes.saturating_add(entry.summary.as_ref().map_or(0, |summary| summary.bytes));
            let of_user = kept.iter().filter(|(_, owner)| owner.uid == entry.owner.uid).count();
            let too_many =
                kept.len() >= self.limits.ended || !entry.owner.trusted && of_user >= self.limits.ended_of_user;
            // The latest session is kept regardless of its size.
            if too_many || bytes > self.limits.ended_bytes && !kept.is_empty() {
                dropped.push(id);
            } else {
                kept.push((id, entry.owner));
            }
        }
        for id in dropped {
            self.entries.remove(&id);
        }
    }
}
