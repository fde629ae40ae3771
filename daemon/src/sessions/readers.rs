//! The readers of one session: each gets a snapshot, then updates, as fast as it takes them.
//!
//! There is one log of updates for all of them, and each reader has a position in it. The session appends and goes on;
//! whatever a reader costs beyond that (merging what it has missed, encoding, waiting for its socket) is done by the
//! reader's own thread. An update is dropped when all have taken it. What a reader has missed it gets as one merged
//! update, which is as good (I7): a slow one gets fewer updates, never wrong ones. If the log becomes too long for the
//! slowest readers they lose their place in it, and begin anew with a snapshot when they are ready for one: so what a reader
//! takes does not grow for as long as it is stopped. It is what it was given last, a snapshot or a merged update, which counts
//! for the session's memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use ccsd_profile::{Profile, Session as SessionInfo, Update};
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::protocol::message::SessionEnd;

/// Bytes of updates that are kept for slow readers: as many as the profile has, from which a snapshot is made, but within
/// these bounds.
const LOG_BYTES: std::ops::RangeInclusive<usize> = 256 << 10..=4 << 20;

/// A profile so far: [`Profile::snapshot`] and [`Profile::snapshot_generation`].
#[derive(Debug)]
pub struct Snapshot {
    /// All charges so far.
    pub whole: Update,
    /// The contexts that later updates refer to, where they have other numbers there.
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

/// What readers were given and may have still, to be counted.
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

/// What a reader gets.
#[derive(Clone, Debug)]
pub enum Delivery {
    /// The profile so far, for a new profile of this session. What came before, if anything, is to be forgotten.
    Begin {
        /// The session, as it was at its beginning.
        info: Arc<SessionInfo>,
        /// Everything up to some moment after the reader asked, or shortly before. It may be of two generations.
        snapshot: Arc<Snapshot>,
    },
    /// What came since.
    Update(Arc<Update>),
    /// There will be nothing more: why the session has ended, or `None` for a reader who wanted no updates.
    End(Option<SessionEnd>),
}

/// Where a reader is. Updates are numbered from 0.
enum Position {
    /// The reader needs a snapshot and will ask for it once it has handled what it was given.
    Lost,
    /// The reader has asked for a snapshot.
    Asks,
    /// Here is one, which holds all updates before this one.
    Begins(u64, Arc<Snapshot>),
    /// The reader has all updates before this one.
    At(u64),
}

/// What the session and its readers share.
struct StreamState {
    /// The updates that somebody still needs, with their sizes, and the number of the first.
    updates: VecDeque<(Arc<Update>, usize)>,
    first: u64,
    bytes: usize,
    places: BTreeMap<u64, Position>,
    next_reader: u64,
    /// What readers were given and may not have sent yet, with its bytes: snapshots, and merged updates.
    given: Vec<(Given, usize)>,
    /// The last snapshot, as long as somebody has it, and the number of the first update that is not in it.
    snapshot: (u64, Weak<Snapshot>),
    end: Option<SessionEnd>,
    /// There will be no more snapshots: the session is forgotten.
    closed: bool,
}

impl StreamState {
    /// The number of the next update.
    fn next(&self) -> u64 {
        self.first + self.updates.len() as u64
    }

    /// Drops what all have.
    fn trim(&mut self) {
        let needed = self.places.values().filter_map(|place| match place {
            Position::Lost | Position::Asks => None,
            Position::Begins(at, _) | Position::At(at) => Some(*at),
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

    /// Counts what a reader gets, for as long as it has it.
    fn give(&mut self, given: Given, bytes: usize) {
        self.given.retain(|(given, _)| given.is_held());
        if !self.given.iter().any(|(other, _)| other.is_same(&given)) {
            self.given.push((given, bytes));
        }
    }

    fn wants_snapshot(&self) -> bool {
        self.places.values().any(|place| matches!(place, Position::Asks))
    }

    /// The last snapshot, if it is still there and so is all that came after it.
    fn old_snapshot(&self) -> Option<(u64, Arc<Snapshot>)> {
        let (at, snapshot) = &self.snapshot;
        snapshot.upgrade().filter(|_| *at >= self.first).map(|snapshot| (*at, snapshot))
    }
}

struct SharedStream {
    info: Arc<SessionInfo>,
    state: Mutex<StreamState>,
    changed: Condvar,
    /// Wakes the session: a snapshot is wanted, or a reader has gone.
    wake: Sender<()>,
}

impl SharedStream {
    /// The lock is held for a few moves of pointers, so that the session does not wait for its readers.
    fn state(&self) -> MutexGuard<'_, StreamState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All readers of a session, for the session. When it is dropped they get what is there for them, and no more.
pub struct Readers {
    shared: Arc<SharedStream>,
    woken: Receiver<()>,
}

impl Readers {
    /// None yet, of a session that was like this at its beginning.
    pub fn new(info: Arc<SessionInfo>) -> Readers {
        let (wake, woken) = bounded(1);
        let state = StreamState {
            updates: VecDeque::new(),
            first: 0,
            bytes: 0,
            places: BTreeMap::new(),
            next_reader: 0,
            given: Vec::new(),
            snapshot: (0, Weak::new()),
            end: None,
            closed: false,
        };
        Readers {
            shared: Arc::new(SharedStream { info, state: Mutex::new(state), changed: Condvar::new(), wake }),
            woken,
        }
    }

    /// A new reader; `follow` says whether it wants updates.
    pub fn add(&self, follow: bool) -> Reader {
        let mut state = self.shared.state();
        let key = state.next_reader;
        state.next_reader += 1;
        state.places.insert(key, Position::Lost);
        let until = if follow { u64::MAX } else { state.next() };
        // A reader of the current state is not told of a later end.
        let end = if follow { None } else { Some(state.end.clone()) };
        drop(state);
        Reader { shared: Arc::clone(&self.shared), key, until, end, has_all: false, is_done: false }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.shared.state().places.len()
    }

    /// Bytes that are kept for slow readers: updates, and what they were given and have not sent yet.
    pub fn held_bytes(&self) -> usize {
        let mut state = self.shared.state();
        state.given.retain(|(given, _)| given.is_held());
        state.given.iter().fold(state.bytes, |sum, (_, bytes)| sum.saturating_add(*bytes))
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
            let behind = |place: &Position| matches!(place, Position::Begins(at, _) | Position::At(at) if *at < first);
            for place in state.places.values_mut().filter(|place| behind(place)) {
                // A pending snapshot is requested again.
                *place = if matches!(place, Position::Begins(..)) { Position::Asks } else { Position::Lost };
            }
            state.trim();
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Gives a snapshot to those who ask for one. `profile` holds every update offered so far.
    pub fn serve(&self, profile: &Profile) {
        let _ = self.woken.try_recv();
        if !self.shared.state().wants_snapshot() {
            return;
        }
        // Nothing is offered meanwhile: that is done by the same thread. Those who come at the same moment share it.
        let snapshot = Arc::new(Snapshot::of(profile));
        let mut state = self.shared.state();
        let next = state.next();
        for place in state.places.values_mut().filter(|place| matches!(place, Position::Asks)) {
            *place = Position::Begins(next, Arc::clone(&snapshot));
        }
        state.snapshot = (next, Arc::downgrade(&snapshot));
        state.give(Given::Snapshot(Arc::downgrade(&snapshot)), snapshot.approximate_bytes());
        drop(state);
        self.shared.changed.notify_all();
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

/// A reader's end, used by its own thread.
pub struct Reader {
    shared: Arc<SharedStream>,
    key: u64,
    /// The update before which it stops.
    until: u64,
    /// The end that it is told, once known.
    end: Option<Option<SessionEnd>>,
    /// Whether it has all that it wants; the rest is its end.
    has_all: bool,
    /// Whether it has been told its end.
    is_done: bool,
}

/// What a reader finds.
enum Fetched {
    Snapshot(Arc<Snapshot>),
    Updates(Vec<Arc<Update>>),
    End(Option<SessionEnd>),
    /// There will be something, or the end.
    Nothing,
    /// There will be nothing: the end has been told, or the session was forgotten.
    Gone,
}

impl Reader {
    fn look(&mut self, state: &mut StreamState) -> Fetched {
        let (first, next, closed) = (state.first, state.next(), state.closed);
        let old = state.old_snapshot();
        let end = self.end.clone().or_else(|| state.end.clone().map(Some));
        if self.has_all && !self.is_done {
            // The reader needs no position in the log any more.
            self.is_done = true;
            return end.map_or(Fetched::Gone, Fetched::End);
        }
        let until = self.until;
        let Some(place) = state.places.get_mut(&self.key).filter(|_| !self.is_done) else { return Fetched::Gone };
        match place {
            Position::Lost | Position::Asks => match old {
                Some((at, snapshot)) => {
                    *place = Position::At(at);
                    self.has_all = at >= until;
                    Fetched::Snapshot(snapshot)
                }
                None if closed => Fetched::Gone,
                None => {
                    *place = Position::Asks;
                    let _ = self.shared.wake.try_send(());
                    Fetched::Nothing
                }
            },
            Position::Begins(at, snapshot) => {
                let snapshot = Arc::clone(snapshot);
                self.has_all = *at >= until;
                *place = Position::At(*at);
                Fetched::Snapshot(snapshot)
            }
            Position::At(at) if *at < next.min(self.until) => {
                let missed = usize::try_from(at.saturating_sub(first)).unwrap_or(usize::MAX);
                let updates = take_one_generation(state.updates.iter().skip(missed).map(|(update, _)| update));
                *at = at.saturating_add(updates.len() as u64);
                self.has_all = *at >= until;
                state.trim();
                Fetched::Updates(updates)
            }
            Position::At(_) => match end {
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

impl Iterator for Reader {
    type Item = Delivery;

    /// Waits for what comes next. `None` after the end, and where the session was forgotten before this reader had all.
    fn next(&mut self) -> Option<Delivery> {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        loop {
            match self.look(&mut state) {
                Fetched::Nothing => state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                found => {
                    if self.has_all && state.places.remove(&self.key).is_some() {
                        state.trim();
                    }
                    drop(state);
                    let delivery = self.delivery(found);
                    if let Some(Delivery::Update(update)) = &delivery {
                        shared.state().give(Given::Update(Arc::downgrade(update)), update.approximate_bytes());
                    }
                    return delivery;
                }
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.places.remove(&self.key);
        state.trim();
        drop(state);
        // The session counts its readers.
        let _ = self.shared.wake.try_send(());
    }
}

/// The first of these updates, and those after it that number contexts as it does: they can be merged.
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

/// Updates that follow each other as one: neighbours first, so that the work does not grow with the square of their number.
fn merged(mut updates: Vec<Arc<Update>>) -> Option<Arc<Update>> {
    while updates.len() > 1 {
        let mut halves = Vec::with_capacity(updates.len().div_ceil(2));
        let mut rest = updates.into_iter();
        while let Some(mut update) = rest.next() {
            if let Some(later) = rest.next() {
                // They fit: the session has applied them one after the other.
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
