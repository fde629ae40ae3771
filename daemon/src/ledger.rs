//! The ledger: what each principal takes of the service, and the shares that bound it.
//!
//! Root, the daemon's own user and the members of group `ccsd` are one principal, with shares that no other user can
//! take. Each other user is one; subordinate user ids (subuid(5)) count for their owner. A user gets at most a quarter
//! of what other users leave of their common share, so there is always something left for the next.
//!
//! A [`LedgerCharge`] is given back when it is dropped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ccsd_worker::SubordinateIds;

/// Who is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum LedgerPrincipal {
    /// Root, the daemon's own user, and the members of the group.
    Own,
    /// Another user.
    User(u32),
}

/// What is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Sessions from their request until their collection has ended.
    Running,
    /// Finished sessions that are kept.
    Kept,
    /// Open connections.
    Connections,
    /// Open files of events and images.
    Files,
    /// Bytes of rings, events, profiles, streams and dumps.
    Bytes,
    /// Those of them that are the kernel's: rings and events. Not bounded apart.
    KernelBytes,
    /// Dumps that are being taken.
    Dumping,
    /// Dumps taken within a short time.
    Dumped,
    /// Those of the bytes that rings lock.
    Locked,
    /// Microseconds of CPU time of late, for requests and for starting and ending sessions. As time passes it is forgotten; see
    /// [`CPU_PART`]. What a running session takes is not in it: that depends on its programs.
    Cpu,
}

const RESOURCES: usize = 10;

/// What a thread's end is taken to cost, nanoseconds: no thread can count that itself. An estimate: 75 us were seen for a
/// connection, with the parts that are counted now.
pub const THREAD_END_CPU: u64 = 30_000;

/// The part of a CPU that requests of one user may take for long; all users twice that.
const CPU_PART: u32 = 4;
/// Microseconds from which on a user counts as one who shares it.
const MUCH_CPU: u64 = 100_000;

/// The most that principals may have of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceShare {
    /// [`LedgerPrincipal::Own`].
    pub own: u64,
    /// All users together.
    pub users: u64,
    /// One user.
    pub user: u64,
}

/// A user may have one part in this many of what other users leave.
const PARTS: u64 = 4;

/// One part in this many of all users' memory is left for the next: where they have more, the largest pays.
const LEFT: u64 = 8;

/// The shares of all resources.
#[derive(Clone, Copy, Debug)]
pub struct Shares([ResourceShare; RESOURCES]);

impl Shares {
    /// The shares where one user may have `bytes_of_user` bytes and the process `files` open files and `locked` bytes of
    /// locked memory.
    #[must_use]
    pub fn new(bytes_of_user: u64, files: u64, locked: u64) -> Shares {
        let share = |own, users, user| ResourceShare { own, users, user };
        // In the order of `Resource`.
        Shares([
            // A session takes three threads; hundreds exceed the programs that are worth watching at once.
            share(256, 192, 16),
            share(32, 64, 8),
            // An idle connection is a sleeping thread and a descriptor.
            share(1024, 1024, 64),
            // Half of them is never a user's.
            share(u64::MAX, files / 2, files / 2),
            share(u64::MAX, bytes_of_user.saturating_mul(PARTS), bytes_of_user),
            share(u64::MAX, u64::MAX, u64::MAX),
            share(4, 4, 1),
            share(u64::MAX, 40, 10),
            // As with files: a small allowance must not be gone when root comes.
            share(u64::MAX, locked / 2, locked / 2),
            // To attach to forty processes takes some 0.1 s. However much others have taken, each has this.
            share(u64::MAX, u64::MAX, 3_000_000),
        ])
    }

    fn of(&self, what: Resource) -> ResourceShare {
        // In range: the array has an entry for each.
        self.0.get(what as usize).copied().unwrap_or(ResourceShare { own: 0, users: 0, user: 0 })
    }
}

impl ResourceShare {
    /// The most memory that all users together have for long.
    #[must_use]
    pub fn lasting(&self) -> u64 {
        self.users - self.users / LEFT
    }
}

/// Whose share is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    what: Resource,
    whose: Whose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Own { has: u64, most: u64 },
    User { has: u64, most: u64 },
    Users { has: u64, others: u64, most: u64 },
}

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let scale = match self.what {
            Resource::Bytes | Resource::KernelBytes => 1 << 20,
            Resource::Locked => 1 << 10,
            Resource::Cpu => 1000,
            _ => 1,
        };
        let (unit, what) = match self.what {
            Resource::Running => ("session", ""),
            Resource::Kept => ("finished session", ""),
            Resource::Connections => ("connection", ""),
            Resource::Files => ("open file", " for events and images"),
            Resource::Bytes | Resource::KernelBytes => ("MiB", " of the daemon's memory"),
            Resource::Dumping => ("dump", " under way"),
            Resource::Dumped => ("dump", " within a few seconds"),
            Resource::Locked => ("KiB", " of locked memory for rings"),
            Resource::Cpu => ("ms", " of CPU time for requests and for starting and ending sessions, of late"),
        };
        let number = |amount: u64| amount / scale;
        let amount = |amount| {
            let number = number(amount);
            let plural = if number == 1 || scale > 1 { "" } else { "s" };
            format!("{number} {unit}{plural}{what}")
        };
        let most = |most| {
            let number = number(most);
            if scale > 1 { format!("{number} {unit}") } else { number.to_string() }
        };
        let most_is = |limit| {
            let verb = if number(limit) == 1 { "is" } else { "are" };
            format!("{} {verb} the most", most(limit))
        };
        match self.whose {
            Whose::Own { has, most: limit } => {
                write!(f, "root and the group already have {}, and {}", amount(has), most_is(limit))?;
            }
            Whose::User { has, most: limit } => {
                write!(f, "you already have {}, and {} for one user", amount(has), most_is(limit))?;
            }
            Whose::Users { has, others, most: limit } => write!(
                f,
                "other users of this service have {}, and you {}: all may have {} together, and one a quarter of what \
                 the others leave",
                amount(others),
                most(has),
                most(limit)
            )?,
        }
        match (self.what, self.whose) {
            (_, Whose::Users { .. })
            | (Resource::Connections | Resource::Dumping | Resource::Dumped | Resource::Cpu, _) => {
                f.write_str("; try again later")
            }
            _ => f.write_str("; `ccsd daemon stop ID` ends a session"),
        }
    }
}

/// The books. Clones share them.
#[derive(Clone, Debug)]
pub struct Ledger(Arc<Books>);

#[derive(Debug)]
struct Books {
    entries: Mutex<LedgerEntries>,
    subordinates: SubordinateIds,
    /// CPU time of users' sessions and connections since the beginning, nanoseconds.
    users_cpu_ns: AtomicU64,
    /// When each user will have used up what was asked until now, at [`REQUESTS_PER_SECOND`].
    requests: Mutex<HashMap<LedgerPrincipal, Instant>>,
}

/// Requests and connections of one user: so many in a second, after so many at once.
const REQUESTS_PER_SECOND: u32 = 64;
const REQUESTS_AT_ONCE: u32 = 256;
/// Users whose requests are counted, beyond which those who have waited long enough are forgotten.
const MAX_COUNTED: usize = 1024;

#[derive(Debug)]
struct LedgerEntries {
    shares: Shares,
    /// What each principal has. Those that have nothing are absent.
    taken: HashMap<LedgerPrincipal, [u64; RESOURCES]>,
    users: [u64; RESOURCES],
    /// Until when what is to be forgotten of [`Resource::Cpu`] is.
    drained: Instant,
}

impl LedgerEntries {
    /// Forgets CPU time at the rate that users may take it: each a quarter of the time, or less where all would take more than
    /// half.
    fn drain(&mut self, now: Instant) {
        let debtors: Vec<(LedgerPrincipal, u64)> =
            self.taken.keys().map(|&who| (who, self.of(who, Resource::Cpu))).filter(|&(_, has)| has > 0).collect();
        let many = debtors.iter().filter(|&&(_, has)| has > MUCH_CPU).count();
        let parts = CPU_PART.max(u32::try_from(many).unwrap_or(u32::MAX).saturating_mul(CPU_PART / 2));
        let elapsed = now.saturating_duration_since(self.drained);
        let forgotten = u64::try_from((elapsed / parts).as_micros()).unwrap_or(u64::MAX);
        // What is less than a microsecond counts the next time.
        self.drained += Duration::from_micros(forgotten).saturating_mul(parts);
        for (who, has) in debtors {
            self.change(who, Resource::Cpu, has, has.saturating_sub(forgotten));
        }
    }

    /// Counts CPU time. What is beyond twice a user's share is not remembered: who waits for some seconds has some again.
    fn add_cpu(&mut self, who: LedgerPrincipal, ns: u64, now: Instant) {
        self.drain(now);
        let has = self.of(who, Resource::Cpu);
        let most = 2 * self.shares.of(Resource::Cpu).user;
        self.change(who, Resource::Cpu, has, has.saturating_add(ns / 1000).min(most));
    }

    fn of(&self, who: LedgerPrincipal, what: Resource) -> u64 {
        self.taken.get(&who).and_then(|taken| taken.get(what as usize)).copied().unwrap_or(0)
    }

    fn held_by_users(&self, what: Resource) -> u64 {
        self.users.get(what as usize).copied().unwrap_or(0)
    }

    fn limit(&self, who: LedgerPrincipal, what: Resource) -> (u64, Whose) {
        let (has, share) = (self.of(who, what), self.shares.of(what));
        if who == LedgerPrincipal::Own {
            return (share.own, Whose::Own { has, most: share.own });
        }
        let others = self.held_by_users(what).saturating_sub(has);
        let free = share.users.saturating_sub(others);
        let most = share.user.min((free / PARTS).max(free.min(1)));
        match most < share.user && others > 0 {
            true => (most, Whose::Users { has, others, most: share.users }),
            false => (most, Whose::User { has, most }),
        }
    }

    fn fits(&self, who: LedgerPrincipal, what: Resource, amount: u64) -> Result<(), Full> {
        let (most, whose) = self.limit(who, what);
        let fits = self.of(who, what).saturating_add(amount) <= most;
        if fits { Ok(()) } else { Err(Full { what, whose }) }
    }

    fn change(&mut self, who: LedgerPrincipal, what: Resource, from: u64, to: u64) {
        let moved = |amount: &mut u64| *amount = amount.saturating_sub(from).saturating_add(to);
        let taken = self.taken.entry(who).or_default();
        taken.get_mut(what as usize).into_iter().for_each(moved);
        if taken.iter().all(|&amount| amount == 0) {
            self.taken.remove(&who);
        }
        if who != LedgerPrincipal::Own {
            self.users.get_mut(what as usize).into_iter().for_each(moved);
        }
    }
}

impl Ledger {
    /// Empty books.
    #[must_use]
    pub fn new(shares: Shares) -> Ledger {
        let drained = Instant::now();
        let entries = LedgerEntries { shares, taken: HashMap::new(), users: [0; RESOURCES], drained };
        let (entries, users_cpu_ns) = (Mutex::new(entries), AtomicU64::new(0));
        let (subordinates, requests) = (SubordinateIds::default(), Mutex::default());
        Ledger(Arc::new(Books { entries, subordinates, users_cpu_ns, requests }))
    }

    /// Replaces the shares. What is taken stays taken.
    pub fn set_shares(&self, shares: Shares) {
        self.entries().shares = shares;
    }

    /// Who is charged for what a user does, who may do everything or not.
    #[must_use]
    pub fn principal(&self, uid: u32, trusted: bool) -> LedgerPrincipal {
        if trusted { LedgerPrincipal::Own } else { self.user(uid) }
    }

    /// Who is charged for a user who is not known to be trusted. The ids of root's range are not root.
    #[must_use]
    pub fn user(&self, uid: u32) -> LedgerPrincipal {
        LedgerPrincipal::User(self.0.subordinates.owner(uid))
    }

    /// Charges an amount, if it fits the principal's share.
    ///
    /// # Errors
    /// Whose share it does not fit.
    pub fn take(&self, who: LedgerPrincipal, what: Resource, amount: u64) -> Result<LedgerCharge, Full> {
        let mut entries = self.entries();
        entries.fits(who, what, amount)?;
        entries.change(who, what, 0, amount);
        Ok(LedgerCharge { ledger: self.clone(), what, holds: Mutex::new(Some((who, amount))) })
    }

    /// Charges an amount that is taken already.
    #[must_use]
    pub fn charge(&self, who: LedgerPrincipal, what: Resource, amount: u64) -> LedgerCharge {
        self.entries().change(who, what, 0, amount);
        LedgerCharge { ledger: self.clone(), what, holds: Mutex::new(Some((who, amount))) }
    }

    /// Checks that an amount fits the principal's share.
    ///
    /// # Errors
    /// Whose share it does not fit.
    pub fn fits(&self, who: LedgerPrincipal, what: Resource, amount: u64) -> Result<(), Full> {
        self.entries().fits(who, what, amount)
    }

    /// How much more the principal may take.
    #[must_use]
    pub fn room(&self, who: LedgerPrincipal, what: Resource) -> u64 {
        let entries = self.entries();
        let (most, _) = entries.limit(who, what);
        most.saturating_sub(entries.of(who, what))
    }

    /// Whose share it is that bounds the principal now.
    #[must_use]
    pub fn refusal(&self, who: LedgerPrincipal, what: Resource) -> Full {
        let (_, whose) = self.entries().limit(who, what);
        Full { what, whose }
    }

    /// What a principal has.
    #[must_use]
    pub fn taken(&self, who: LedgerPrincipal, what: Resource) -> u64 {
        self.entries().of(who, what)
    }

    /// What all users have together.
    #[must_use]
    pub fn taken_by_users(&self, what: Resource) -> u64 {
        self.entries().held_by_users(what)
    }

    /// The share of a resource.
    #[must_use]
    pub fn share(&self, what: Resource) -> ResourceShare {
        self.entries().shares.of(what)
    }

    /// The principals beyond their shares, because what they have has grown: each beyond its own, and where all users
    /// are beyond theirs (of memory: [`ResourceShare::lasting`]), the largest.
    #[must_use]
    pub fn debtors(&self, what: Resource) -> Vec<LedgerPrincipal> {
        let entries = self.entries();
        let share = entries.shares.of(what);
        let most = |who: LedgerPrincipal| if who == LedgerPrincipal::Own { share.own } else { share.user };
        let mut debtors: Vec<LedgerPrincipal> =
            entries.taken.keys().copied().filter(|&who| entries.of(who, what) > most(who)).collect();
        let lasting = if what == Resource::Bytes { share.lasting() } else { share.users };
        if entries.held_by_users(what) > lasting {
            let users = entries.taken.keys().copied().filter(|who| *who != LedgerPrincipal::Own);
            let largest = users.max_by_key(|&who| (entries.of(who, what), who));
            debtors.extend(largest.filter(|largest| !debtors.contains(largest)));
        }
        debtors
    }

    /// Counts a request or connection. Returns how long the user has to wait for an answer. Root and the group never wait.
    #[must_use]
    pub fn pace(&self, who: LedgerPrincipal, now: Instant) -> Duration {
        if who == LedgerPrincipal::Own {
            return Duration::ZERO;
        }
        let each = Duration::from_secs(1) / REQUESTS_PER_SECOND;
        let mut requests = self.0.requests.lock().unwrap_or_else(PoisonError::into_inner);
        if requests.len() >= MAX_COUNTED {
            requests.retain(|_, until| *until > now);
        }
        let until = requests.entry(who).or_insert(now);
        *until = (*until).max(now) + each;
        until.saturating_duration_since(now).saturating_sub(each * REQUESTS_AT_ONCE)
    }

    /// Counts CPU time of a running session.
    pub fn add_cpu(&self, who: LedgerPrincipal, ns: u64) {
        if who != LedgerPrincipal::Own {
            // Relaxed: nothing else depends on this sum.
            self.0.users_cpu_ns.fetch_add(ns, Ordering::Relaxed);
        }
    }

    /// The same of a request, or of the start or end of a session, of which each user has a share; see [`Ledger::check_cpu`].
    pub fn add_request_cpu(&self, who: LedgerPrincipal, ns: u64) {
        self.add_cpu(who, ns);
        if who != LedgerPrincipal::Own {
            self.entries().add_cpu(who, ns, Instant::now());
        }
    }

    /// Checks that a user has not used up his share of CPU time for requests.
    ///
    /// # Errors
    /// Whose share of it is used up.
    pub fn check_cpu(&self, who: LedgerPrincipal, now: Instant) -> Result<(), Full> {
        let mut entries = self.entries();
        entries.drain(now);
        entries.fits(who, Resource::Cpu, 1)
    }

    /// CPU time of all users' sessions and connections so far, nanoseconds.
    #[must_use]
    pub fn users_cpu_ns(&self) -> u64 {
        self.0.users_cpu_ns.load(Ordering::Relaxed)
    }

    fn entries(&self) -> MutexGuard<'_, LedgerEntries> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An amount that a principal has. Given back on drop.
#[derive(Debug)]
pub struct LedgerCharge {
    ledger: Ledger,
    what: Resource,
    /// Who has how much; `None` once it was given back.
    holds: Mutex<Option<(LedgerPrincipal, u64)>>,
}

impl LedgerCharge {
    /// The amount.
    #[must_use]
    pub fn amount(&self) -> u64 {
        self.holds().map_or(0, |(_, amount)| amount)
    }

    /// Sets the amount to what is taken now, whether it fits or not. Does nothing once it was given back.
    pub fn set(&self, amount: u64) {
        if let Some((who, before)) = &mut *self.holds() {
            self.ledger.entries().change(*who, self.what, *before, amount);
            *before = amount;
        }
    }

    /// Whether so much more fits the principal's share.
    #[must_use]
    pub fn fits(&self, more: u64) -> bool {
        self.holds().is_none_or(|(who, _)| self.ledger.fits(who, self.what, more).is_ok())
    }

    /// Moves the charge to the principal that it turned out to be.
    pub fn transfer(&self, to: LedgerPrincipal) {
        if let Some((who, amount)) = &mut *self.holds() {
            let mut entries = self.ledger.entries();
            entries.change(*who, self.what, *amount, 0);
            entries.change(to, self.what, 0, *amount);
            *who = to;
        }
    }

    /// Gives the amount back before the drop: what it stands for is about to be freed.
    pub fn give_back(&self) {
        if let Some((who, amount)) = self.holds().take() {
            self.ledger.entries().change(who, self.what, amount, 0);
        }
    }

    fn holds(&self) -> MutexGuard<'_, Option<(LedgerPrincipal, u64)>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LedgerCharge {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use Resource::{Bytes, Connections, Kept, Running};

    const MIB: u64 = 1 << 20;

    fn ledger() -> Ledger {
        Ledger::new(Shares::new(64 * MIB, 20_000, 16 * MIB))
    }

    fn unit(what: Resource) -> u64 {
        if what == Bytes { MIB / 4 } else { 1 }
    }

    fn take_all(ledger: &Ledger, who: LedgerPrincipal, what: Resource) -> Vec<LedgerCharge> {
        std::iter::from_fn(|| ledger.take(who, what, unit(what)).ok()).collect()
    }

    #[test]
    fn however_many_users_take_all_they_can_the_next_and_root_get_something() {
        for what in [Running, Kept, Connections, Bytes] {
            let ledger = ledger();
            let greedy: Vec<Vec<LedgerCharge>> =
                (0..16).map(|uid| take_all(&ledger, LedgerPrincipal::User(uid), what)).collect();
            let ResourceShare { own, user, .. } = ledger.share(what);
            let (own, user) = (own.min(4096), user / unit(what));
            assert_eq!(greedy[0].len() as u64, user, "{what:?}");
            assert!(!greedy[15].is_empty(), "{what:?}");
            assert!(!take_all(&ledger, LedgerPrincipal::User(99), what).is_empty(), "{what:?}");
            let of_root: Vec<LedgerCharge> =
                (0..own + 1).map_while(|_| ledger.take(LedgerPrincipal::Own, what, unit(what)).ok()).collect();
            // Root's memory is not bounded.
            assert_eq!(of_root.len() as u64, own + u64::from(what == Bytes), "{what:?}");
            drop(greedy);
            assert_eq!(take_all(&ledger, LedgerPrincipal::User(1), what).len() as u64, user, "{what:?}");
        }
    }

    #[test]
    fn all_is_given_back() {
        let ledger = ledger();
        let charge = ledger.take(LedgerPrincipal::User(1), Bytes, 5).unwrap();
        charge.set(500 * MIB);
        charge.transfer(LedgerPrincipal::User(2));
        assert_eq!((ledger.taken(LedgerPrincipal::User(1), Bytes), ledger.taken_by_users(Bytes)), (0, 500 * MIB));
        charge.transfer(LedgerPrincipal::Own);
        assert_eq!((ledger.taken(LedgerPrincipal::Own, Bytes), ledger.taken_by_users(Bytes)), (500 * MIB, 0));
        charge.give_back();
        charge.set(7);
        charge.transfer(LedgerPrincipal::User(1));
        drop(charge);
        let entries = ledger.entries();
        assert!(entries.taken.is_empty(), "{entries:?}");
        assert_eq!(entries.users, [0; RESOURCES]);
    }

    #[test]
    fn requests_of_a_user_are_paced() {
        let ledger = ledger();
        let (now, user) = (Instant::now(), LedgerPrincipal::User(1));
        let waits = |who, at| ledger.pace(who, at);
        assert!((0..REQUESTS_AT_ONCE).all(|_| waits(user, now).is_zero()));
        let longest = (0..REQUESTS_PER_SECOND).map(|_| waits(user, now)).max();
        assert_eq!(longest.map(|it| it.as_millis()), Some(1000));
        // Another user, root and the group do not wait, nor does the user later.
        assert!(waits(LedgerPrincipal::User(2), now).is_zero());
        assert!((0..10_000).all(|_| waits(LedgerPrincipal::Own, now).is_zero()));
        assert!(waits(user, now + Duration::from_secs(2)).is_zero());
    }

    #[test]
    fn requests_of_a_user_have_a_share_of_a_cpu() {
        const MS: u64 = 1_000_000;
        let ledger = ledger();
        let now = ledger.entries().drained;
        let [first, second, third] = [1, 2, 3].map(LedgerPrincipal::User);
        let at = |ms: u64| now + Duration::from_millis(ms);
        let fits = |who, ms| ledger.check_cpu(who, at(ms)).is_ok();
        let add = |who, ns, ms| ledger.entries().add_cpu(who, ns, at(ms));
        assert!(fits(first, 0));
        add(first, 3_100 * MS, 0);
        assert!(!fits(first, 0) && fits(second, 0));
        let message = ledger.check_cpu(first, now).unwrap_err().to_string();
        assert!(message.contains("3100 ms of CPU time") && message.ends_with("try again later"), "{message}");
        // A quarter of the time is forgotten, whatever running sessions take and however often it is looked.
        ledger.add_cpu(first, 9_000 * MS);
        add(first, 100 * MS, 100);
        (100..500).for_each(|ms| _ = fits(second, ms));
        assert!(!fits(first, 500) && fits(first, 900) && ledger.entries().of(first, Resource::Cpu) == 2_975_000);
        // All together have half a CPU. What one has taken is no other's lack.
        [first, second, third].into_iter().for_each(|user| add(user, 9_000 * MS, 900));
        assert!(fits(LedgerPrincipal::User(4), 900));
        assert!(!fits(third, 18_800) && fits(third, 19_000));
        ledger.add_request_cpu(LedgerPrincipal::Own, 60_000 * MS);
        assert!(fits(LedgerPrincipal::Own, 19_000) && ledger.entries().of(LedgerPrincipal::Own, Resource::Cpu) == 0);
    }

    #[test]
    fn ids_of_root_s_range_are_not_root() {
        // Even where its owner is root, a user is no more than a user.
        let ledger = ledger();
        assert_eq!(ledger.principal(0, true), LedgerPrincipal::Own);
        for uid in [0, 7, 100_000] {
            assert!(matches!(ledger.principal(uid, false), LedgerPrincipal::User(_)), "{uid}");
        }
    }

    #[test]
    fn messages_say_whose_use_it_is() {
        let ledger = ledger();
        let mine = take_all(&ledger, LedgerPrincipal::User(1), Running);
        let why = ledger.take(LedgerPrincipal::User(1), Running, 1).unwrap_err().to_string();
        assert_eq!(
            why,
            "you already have 16 sessions, and 16 are the most for one user; `ccsd daemon stop ID` ends a session"
        );
        let others: Vec<Vec<LedgerCharge>> =
            (2..40).map(|uid| take_all(&ledger, LedgerPrincipal::User(uid), Running)).collect();
        let why = ledger.take(LedgerPrincipal::User(99), Running, 1).unwrap_err().to_string();
        assert!(why.starts_with("other users of this service have 192 sessions, and you 0: all may have 192"), "{why}");
        drop((mine, others));
        let rings = ledger.take(LedgerPrincipal::User(1), Bytes, 60 * MIB).unwrap();
        let why = ledger.take(LedgerPrincipal::User(1), Bytes, 8 * MIB).unwrap_err().to_string();
        assert!(
            why.starts_with("you already have 60 MiB of the daemon's memory, and 64 MiB are the most for"),
            "{why}"
        );
        drop(rings);
        let own = take_all(&ledger, LedgerPrincipal::Own, Running);
        let why = ledger.take(LedgerPrincipal::Own, Running, 1).unwrap_err().to_string();
        assert!(why.starts_with("root and the group already have 256 sessions"), "{why}");
        drop(own);
    }

    #[test]
    fn the_largest_holder_pays() {
        let ledger = ledger();
        let grown = |uid, mib| ledger.charge(LedgerPrincipal::User(uid), Bytes, mib * MIB);
        let own = ledger.charge(LedgerPrincipal::Own, Bytes, 4096 * MIB);
        let small: Vec<LedgerCharge> = (0..3).map(|uid| grown(uid, 63)).collect();
        assert_eq!(ledger.debtors(Bytes), []);
        let too_much = grown(9, 65);
        assert_eq!(ledger.debtors(Bytes), [LedgerPrincipal::User(9)]);
        too_much.set(64 * MIB);
        assert_eq!(ledger.debtors(Bytes), [LedgerPrincipal::User(9)], "together they have 253 of 256");
        too_much.set(35 * MIB);
        assert_eq!(ledger.debtors(Bytes), []);
        drop((own, small));
    }

    #[test]
    fn growth_leaves_something_for_the_next() {
        let ledger = ledger();
        let grown: Vec<LedgerCharge> =
            (0..4).map(|uid| ledger.charge(LedgerPrincipal::User(uid), Bytes, 64 * MIB)).collect();
        assert_eq!(ledger.room(LedgerPrincipal::User(9), Bytes), 0);
        while let Some(LedgerPrincipal::User(uid)) = ledger.debtors(Bytes).pop() {
            let charge = &grown[uid as usize];
            charge.set(charge.amount() - MIB);
        }
        assert_eq!(ledger.room(LedgerPrincipal::User(9), Bytes), 8 * MIB);
    }
}
