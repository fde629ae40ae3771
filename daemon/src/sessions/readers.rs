//! The readers of one session: each gets a snapshot, then updates, at its own speed.
//!
//! Readers share one log of updates, in which each has a position. The session only appends; each reader's thread
//! merges, encodes and waits for the socket. Missed updates are merged into one, which is equivalent (I7). When the log
//! is too long, the slowest readers start again with a snapshot once they are ready, so a stopped reader's backlog is
//! bounded.
//!
//! What readers hold is charged to the session's owner, even after the session was forgotten. Beyond the owner's share,
//! no second snapshot is made beside one that is held. What only readers of root and the group hold is charged to
//! these; except the log, which is short.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use ccsd_profile::{Profile, SessionInfo, Update};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::ledger::LedgerCharge;
use crate::protocol::message::SessionEnd;

/// Bytes of updates kept for slow readers: the size of the profile, which a snapshot would take, within these bounds.
const LOG_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=4 << 20;

/// A profile so far: [`Profile::snapshot`] and [`Profile::snapshot_generation`].
#[derive(Debug)]
pub struct Snapshot {
    /// All charges so far.
    pub whole: Update,
    /// Contexts that later updates refer to, if their numbers differ from those of `whole`.
    pub generation: Option<Update>,
}

impl Snapshot {
    fn of(profile: &Profile) -> Snapshot {
        Snapshot { whole: profile.snapshot(), generation: profile.snapshot_generation() }
    }

    fn approximate_bytes(&self) -> usize {
        self.whole.approximate_bytes() + self.generation.as_ref().map_or(0, Update::approximate_bytes)
    }
}

#[derive(Debug)]
enum Given {
    Snapshot(Weak<Snapshot>),
    Update(Weak<Update>),
}

impl Given {
    fn is_held(&self) -> bool {
        match self {
            Given::Snapshot(snapshot) => snapshot.strong_count() > 0,
            Given::Update(update) => update.strong_count() > 0,
        }
    }

    fn is_same(&self, other: &Given) -> bool {
        match (self, other) {
            (Given::Snapshot(a), Given::Snapshot(b)) => a.ptr_eq(b),
            (Given::Update(a), Given::Update(b)) => a.ptr_eq(b),
            _ => false,
        }
    }
}

#[derive(Debug)]
struct GivenBytes {
    given: Given,
    bytes: usize,
    of_trusted: bool,
}

/// An item of a reader's stream.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The profile so far: start a new profile and discard any earlier one.
    Begin {
        /// The session as of its start.
        info: Arc<SessionInfo>,
        /// Everything up to about the moment of the request. May hold two generations.
        snapshot: Arc<Snapshot>,
    },
    /// Charges and definitions since the last delivery.
    Update(Arc<Update>),
    /// The end of the stream: why the session ended, or `None` for a reader without `follow`.
    End(Option<SessionEnd>),
}

/// A reader's position in the log. Updates are numbered from 0.
enum ReaderPosition {
    /// The reader needs a snapshot and will ask for it once it has handled its last delivery.
    Lost,
    Asks,
    /// A snapshot is ready that holds all updates before this number.
    Begins(u64, Arc<Snapshot>),
    /// The reader has all updates before this number.
    At(u64),
}

struct StreamState {
    /// Updates that some reader still needs, with their sizes, and the number of the first.
    updates: VecDeque<(Arc<Update>, usize)>,
    first: u64,
    bytes: usize,
    places: BTreeMap<u64, ReaderPosition>,
    /// Readers that get a snapshot however much memory that takes.
    trusted: BTreeSet<u64>,
    next_reader: u64,
    /// Snapshots and merged updates that readers may still hold.
    given: Vec<GivenBytes>,
    /// The last snapshot while a reader holds it, and the number of the first update that it lacks.
    snapshot: (u64, Weak<Snapshot>),
    end: Option<SessionEnd>,
    /// No more snapshots: the session is forgotten.
    closed: bool,
}

impl StreamState {
    fn next(&self) -> u64 {
        self.first + self.updates.len() as u64
    }

    fn trim(&mut self) {
        let needed = self.places.values().filter_map(|place| match place {
            ReaderPosition::Lost | ReaderPosition::Asks => None,
            ReaderPosition::Begins(at, _) | ReaderPosition::At(at) => Some(*at),
        });
        let needed = needed.min().unwrap_or(u64::MAX);
        while self.first < needed && self.pop() {}
    }

    fn pop(&mut self) -> bool {
        let Some((_, bytes)) = self.updates.pop_front() else { return false };
        self.first += 1;
        self.bytes = self.bytes.saturating_sub(bytes);
        true
    }

    /// Accounts for data given to a reader while the reader holds it.
    fn give(&mut self, given: Given, bytes: usize, of_trusted: bool) {
        self.given.retain(|given| given.given.is_held());
        match self.given.iter_mut().find(|other| other.given.is_same(&given)) {
            Some(same) => same.of_trusted &= of_trusted,
            None => self.given.push(GivenBytes { given, bytes, of_trusted }),
        }
    }

    /// Bytes of updates, and of data that readers have not sent yet: those of the owner, and those of trusted readers.
    fn held_bytes(&mut self) -> (usize, usize) {
        self.given.retain(|given| given.given.is_held());
        self.given.iter().fold((self.bytes, 0), |(owner, trusted), given| match given.of_trusted {
            true => (owner, trusted.saturating_add(given.bytes)),
            false => (owner.saturating_add(given.bytes), trusted),
        })
    }

    fn only_trusted_ask(&self) -> bool {
        let asks = |place: &ReaderPosition| matches!(place, ReaderPosition::Asks);
        self.places.iter().all(|(key, place)| !asks(place) || self.trusted.contains(key))
    }

    fn wants_snapshot(&self) -> bool {
        self.places.values().any(|place| matches!(place, ReaderPosition::Asks))
    }

    /// The last snapshot, if it still exists and the log has all later updates.
    fn old_snapshot(&self) -> Option<(u64, Arc<Snapshot>)> {
        let (at, snapshot) = &self.snapshot;
        snapshot.upgrade().filter(|_| *at >= self.first).map(|snapshot| (*at, snapshot))
    }
}

struct SharedStream {
    info: Arc<SessionInfo>,
    state: Mutex<StreamState>,
    changed: Condvar,
    /// Wakes the session: a reader wants a snapshot or has gone.
    wake: Sender<()>,
    /// What readers hold: the owner's part, and that of trusted readers.
    charges: (LedgerCharge, LedgerCharge),
}

impl SharedStream {
    /// Held for a few pointer moves only, so that the session does not wait for its readers.
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges what readers hold now, and wakes the session if some of it was freed for which a reader waits.
    fn account(&self, state: &mut StreamState) {
        let (owner, trusted) = state.held_bytes();
        let mut is_freed = false;
        for (charge, now) in [(&self.charges.0, owner as u64), (&self.charges.1, trusted as u64)] {
            let before = charge.amount();
            is_freed |= now < before;
            if now != before {
                charge.set(now);
            }
        }
        if is_freed && state.wants_snapshot() {
            let _ = self.wake.try_send(());
        }
    }
}

/// The session's side of its readers. On drop, readers get the remaining updates.
pub struct Readers {
    shared: Arc<SharedStream>,
    woken: Receiver<()>,
}

impl Readers {
    /// `info` is the session at its start; `charges` (the owner's, and of root and the group) are set to what readers
    /// hold.
    pub fn new(info: Arc<SessionInfo>, charges: (LedgerCharge, LedgerCharge)) -> Readers {
        let (wake, woken) = bounded(1);
        let state = StreamState {
            updates: VecDeque::new(),
            first: 0,
            bytes: 0,
            places: BTreeMap::new(),
            trusted: BTreeSet::new(),
            next_reader: 0,
            given: Vec::new(),
            snapshot: (0, Weak::new()),
            end: None,
            closed: false,
        };
        Readers {
            shared: Arc::new(SharedStream { info, state: Mutex::new(state), changed: Condvar::new(), wake, charges }),
            woken,
        }
    }

    /// Adds a reader, which gets updates if `follow` is set, and a snapshot whatever it takes if `trusted` is.
    pub fn add(&self, follow: bool, trusted: bool) -> StreamReader {
        let mut state = self.shared.state();
        let key = state.next_reader;
        state.next_reader += 1;
        state.places.insert(key, ReaderPosition::Lost);
        if trusted {
            state.trusted.insert(key);
        }
        let until = if follow { u64::MAX } else { state.next() };
        // A reader of the current state does not learn of a later end.
        let end = if follow { None } else { Some(state.end.clone()) };
        drop(state);
        StreamReader { shared: Arc::clone(&self.shared), key, until, end, has_all: false, is_done: false }
    }

    /// Number of readers.
    pub fn count(&self) -> usize {
        self.shared.state().places.len()
    }

    /// Bytes held for slow readers: updates, and data that they have not sent yet.
    pub fn held_bytes(&self) -> usize {
        let mut state = self.shared.state();
        self.shared.account(&mut state);
        let (owner, trusted) = state.held_bytes();
        owner.saturating_add(trusted)
    }

    /// Whether a reader waits for memory for its snapshot. Memory freed elsewhere does not wake it.
    pub fn waits_for_memory(&self) -> bool {
        self.shared.state().wants_snapshot()
    }

    /// Becomes ready when [`Readers::serve`] has something to do, or a reader has gone.
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Gives an update to all. `profile_bytes` is what the profile takes, this update included.
    pub fn offer(&self, update: &Arc<Update>, profile_bytes: usize) {
        let most = profile_bytes.clamp(*LOG_BYTES.start(), *LOG_BYTES.end());
        let bytes = update.approximate_bytes();
        let mut state = self.shared.state();
        state.updates.push_back((Arc::clone(update), bytes));
        state.bytes += bytes;
        state.trim();
        while state.bytes > most {
            state.pop();
            let first = state.first;
            let behind = |place: &ReaderPosition| matches!(place, ReaderPosition::Begins(at, _) | ReaderPosition::At(at) if *at < first);
            for place in state.places.values_mut().filter(|place| behind(place)) {
                // A pending snapshot is requested again.
                *place = if matches!(place, ReaderPosition::Begins(..)) {
                    ReaderPosition::Asks
                } else {
                    ReaderPosition::Lost
                };
            }
            state.trim();
        }
        self.shared.account(&mut state);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Gives a snapshot to those who ask for one. `profile` holds every update offered so far.
    pub fn serve(&self, profile: &Profile) {
        let _ = self.woken.try_recv();
        if !self.may_copy(profile) {
            return;
        }
        // Nothing is offered meanwhile: that is done by the same thread. Those who come at the same moment share it.
        let snapshot = Arc::new(Snapshot::of(profile));
        let mut state = self.shared.state();
        let (next, of_trusted) = (state.next(), state.only_trusted_ask());
        for place in state.places.values_mut().filter(|place| matches!(place, ReaderPosition::Asks)) {
            *place = ReaderPosition::Begins(next, Arc::clone(&snapshot));
        }
        state.snapshot = (next, Arc::downgrade(&snapshot));
        state.give(Given::Snapshot(Arc::downgrade(&snapshot)), snapshot.approximate_bytes(), of_trusted);
        self.shared.account(&mut state);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn may_copy(&self, profile: &Profile) -> bool {
        let mut state = self.shared.state();
        let asks = |place: &ReaderPosition| matches!(place, ReaderPosition::Asks);
        let is_held = state.held_bytes().0 > state.bytes;
        let trusted = || state.trusted.iter().filter_map(|key| state.places.get(key)).any(asks);
        state.wants_snapshot() && (!is_held || self.shared.charges.0.fits(profile.bytes() as u64) || trusted())
    }

    /// Tells all that there will be nothing more.
    pub fn end(&self, end: &SessionEnd) {
        self.shared.state().end = Some(end.clone());
        self.shared.changed.notify_all();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.state().closed = true;
        self.shared.changed.notify_all();
    }
}

/// A reader's side, used by its own thread.
pub struct StreamReader {
    shared: Arc<SharedStream>,
    key: u64,
    /// Number of the update before which the reader stops.
    until: u64,
    end: Option<Option<SessionEnd>>,
    has_all: bool,
    is_done: bool,
}

enum Fetched {
    Snapshot(Arc<Snapshot>),
    Updates(Vec<Arc<Update>>),
    End(Option<SessionEnd>),
    /// Something will follow, or the end.
    Nothing,
    /// Nothing will follow: the end was delivered, or the session was forgotten.
    Gone,
}

impl StreamReader {
    fn look(&mut self, state: &mut StreamState) -> Fetched {
        let (first, next, closed) = (state.first, state.next(), state.closed);
        let old = state.old_snapshot();
        let end = self.end.clone().or_else(|| state.end.clone().map(Some));
        if self.has_all && !self.is_done {
            // The reader no longer needs a position in the log.
            self.is_done = true;
            return end.map_or(Fetched::Gone, Fetched::End);
        }
        let until = self.until;
        let Some(place) = state.places.get_mut(&self.key).filter(|_| !self.is_done) else { return Fetched::Gone };
        match place {
            ReaderPosition::Lost | ReaderPosition::Asks => match old {
                Some((at, snapshot)) => {
                    *place = ReaderPosition::At(at);
                    self.has_all = at >= until;
                    let of_trusted = state.trusted.contains(&self.key);
                    let bytes = snapshot.approximate_bytes();
                    state.give(Given::Snapshot(Arc::downgrade(&snapshot)), bytes, of_trusted);
                    Fetched::Snapshot(snapshot)
                }
                None if closed => Fetched::Gone,
                None => {
                    *place = ReaderPosition::Asks;
                    let _ = self.shared.wake.try_send(());
                    Fetched::Nothing
                }
            },
            ReaderPosition::Begins(at, snapshot) => {
                let snapshot = Arc::clone(snapshot);
                self.has_all = *at >= until;
                *place = ReaderPosition::At(*at);
                Fetched::Snapshot(snapshot)
            }
            ReaderPosition::At(at) if *at < next.min(self.until) => {
                let missed = usize::try_from(at.saturating_sub(first)).unwrap_or(usize::MAX);
                let updates = take_one_generation(state.updates.iter().skip(missed).map(|(update, _)| update));
                *at = at.saturating_add(updates.len() as u64);
                self.has_all = *at >= until;
                state.trim();
                Fetched::Updates(updates)
            }
            ReaderPosition::At(_) => match end {
                Some(end) => {
                    self.is_done = true;
                    Fetched::End(end)
                }
                None if closed => Fetched::Gone,
                None => Fetched::Nothing,
            },
        }
    }

    fn delivery(&self, found: Fetched) -> Option<Delivery> {
        match found {
            Fetched::Snapshot(snapshot) => Some(Delivery::Begin { info: Arc::clone(&self.shared.info), snapshot }),
            Fetched::Updates(updates) => merged(updates).map(Delivery::Update),
            Fetched::End(end) => Some(Delivery::End(end)),
            Fetched::Nothing | Fetched::Gone => None,
        }
    }
}

impl Iterator for StreamReader {
    type Item = Delivery;

    /// Waits for the next delivery. `None` after the end, or if the session was forgotten too early.
    fn next(&mut self) -> Option<Delivery> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        // The last delivery was dropped by now.
        shared.account(&mut state);
        loop {
            match self.look(&mut state) {
                Fetched::Nothing => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                found => {
                    if self.has_all && state.places.remove(&self.key).is_some() {
                        state.trim();
                    }
                    drop(state);
                    let delivery = self.delivery(found);
                    let mut state = shared.state();
                    if let Some(Delivery::Update(update)) = &delivery {
                        let of_trusted = state.trusted.contains(&self.key);
                        state.give(Given::Update(Arc::downgrade(update)), update.approximate_bytes(), of_trusted);
                    }
                    shared.account(&mut state);
                    return delivery;
                }
            }
        }
    }
}

impl Drop for StreamReader {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.places.remove(&self.key);
        state.trusted.remove(&self.key);
        state.trim();
        self.shared.account(&mut state);
        drop(state);
        let _ = self.shared.wake.try_send(());
    }
}

/// Takes the first update and those after it with the same numbering of contexts: they can be merged.
fn take_one_generation<'a>(updates: impl Iterator<Item = &'a Arc<Update>>) -> Vec<Arc<Update>> {
    let mut taken: Vec<Arc<Update>> = Vec::new();
    for update in updates {
        if taken.last().is_some_and(|last| update.begins_generation(last.end().contexts)) {
            break;
        }
        taken.push(Arc::clone(update));
    }
    taken
}

/// Merges consecutive updates pairwise, so that the cost does not grow with the square of their number.
fn merged(mut updates: Vec<Arc<Update>>) -> Option<Arc<Update>> {
    while updates.len() > 1 {
        let mut halves = Vec::with_capacity(updates.len().div_ceil(2));
        let mut rest = updates.into_iter();
        while let Some(mut update) = rest.next() {
            if let Some(later) = rest.next() {
                // The merge succeeds: the session has applied the same updates in sequence.
                Arc::make_mut(&mut update).merge(&later).ok()?;
            }
            halves.push(update);
        }
        updates = halves;
    }
    updates.pop()
}

#[cfg(test)]
mod tests;
