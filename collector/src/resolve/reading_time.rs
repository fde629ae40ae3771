//! The time that reading names may take where other users decide how much there is to read.
//!
//! Reading keeps the session from its other work. So all other users together have a budget of time, of which each gets at
//! most half of what the others leave. What is not read in time is read later or never, and counted.

use std::time::{Duration, Instant};

use ccsd_worker::Principal;
use hashbrown::HashMap;
use nix::unistd::geteuid;
use rustc_hash::FxBuildHasher;

/// The part of a session's time by which a budget grows again.
const PART: u32 = 16;
/// Unoptimised builds take so many times as long.
const SLOWER: u32 = if cfg!(debug_assertions) { 5 } else { 1 };

/// The budgets for generated code: the names are in files that a process writes itself.
const CODE: Duration = Duration::from_secs(2);
/// What there is beside it at the end of the session.
const LAST: Duration = Duration::from_secs(1).saturating_mul(SLOWER);
/// The longest look at one process's files while samples come, and at all in a row.
const SLICE: Duration = Duration::from_millis(20);
const ROUND: Duration = Duration::from_millis(50);
/// The longest look at the files of a process that has ended, while samples of others come.
const SLICE_OF_ENDED: Duration = Duration::from_millis(100).saturating_mul(SLOWER);
/// Less than this is no time to read in.
const LEAST: Duration = Duration::from_micros(100);

/// The budget for other users' images. The debug information of a large program takes some seconds, and its reading cannot
/// be interrupted.
const IMAGES: Duration = Duration::from_secs(20).saturating_mul(SLOWER);

/// Users are unknown where a process has ended before it could be looked at; these share a budget.
type Owner = Option<Principal>;

/// A budget of time that grows back.
#[derive(Debug)]
struct TimeBudget {
    most: Duration,
    spent: HashMap<Owner, Duration, FxBuildHasher>,
    total: Duration,
    /// Up to when it has grown. Without a beginning nothing waits, and it does not grow.
    since: Option<Instant>,
}

impl TimeBudget {
    fn new(most: Duration) -> TimeBudget {
        TimeBudget { most, spent: HashMap::default(), total: Duration::ZERO, since: None }
    }

    fn grow(&mut self, now: Instant) {
        let Some(since) = self.since else { return };
        let grown = now.saturating_duration_since(since) / PART;
        if grown < LEAST {
            return;
        }
        self.since = Some(now);
        let left = self.total.saturating_sub(grown);
        let part = if left.is_zero() { 0.0 } else { left.div_duration_f64(self.total) };
        self.spent.retain(|_, spent| {
            *spent = spent.mul_f64(part);
            !spent.is_zero()
        });
        self.total = left;
    }

    /// What is left if there is so much more: for a single owner all, else half of what others leave to this one.
    fn left(&self, owner: Owner, more: Duration, is_shared: bool) -> Duration {
        let spent = self.spent.get(&owner).copied().unwrap_or_default();
        let of_others = self.total.saturating_sub(spent);
        let for_all = (self.most + more).saturating_sub(of_others);
        (if is_shared { for_all / 2 } else { for_all }).saturating_sub(spent)
    }

    fn spend(&mut self, owner: Owner, time: Duration) {
        *self.spent.entry(owner).or_default() += time;
        self.total += time;
    }
}

/// The budgets of a session.
#[derive(Debug)]
pub(super) struct ReadingTime {
    /// The session's own user.
    own: Principal,
    own_code: TimeBudget,
    code: TimeBudget,
    images: TimeBudget,
    ending: bool,
    /// What is left of the current round of looks at generated code.
    round: Duration,
    /// Processes that have ended before their files were read as a whole.
    pub(super) unread: u64,
    /// Questions about images that were not asked, for lack of time.
    refused: u64,
}

/// Time to read one process's files in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    owner: Owner,
    began: Instant,
    pub(super) until: Instant,
}

impl Default for ReadingTime {
    fn default() -> ReadingTime {
        ReadingTime {
            own: ccsd_worker::principal_of(geteuid().as_raw()),
            own_code: TimeBudget::new(CODE),
            code: TimeBudget::new(CODE),
            images: TimeBudget::new(IMAGES),
            ending: false,
            round: ROUND,
            unread: 0,
            refused: 0,
        }
    }
}

impl ReadingTime {
    /// Sets the session's user, if it is not that of this process.
    pub(super) fn set_user(&mut self, user: u32) {
        self.own = ccsd_worker::principal_of(user);
    }

    pub(super) fn begin(&mut self) {
        let now = Some(Instant::now());
        (self.own_code.since, self.code.since, self.images.since) = (now, now, now);
    }

    /// The session is over: nothing but the names is left to do.
    pub(super) fn begin_end(&mut self) {
        self.ending = true;
    }

    /// A new round of looks at generated code begins.
    pub(super) fn begin_round(&mut self) {
        self.begin_round_at(Instant::now());
    }

    fn begin_round_at(&mut self, now: Instant) {
        self.round = ROUND;
        self.own_code.grow(now);
        self.code.grow(now);
    }

    /// Time for a look at the generated code of a process of this user; `None` if there is none left.
    pub(super) fn slice(&self, user: Option<u32>) -> Option<Slice> {
        self.slice_of(user, SLICE.min(self.round))
    }

    /// The same for the last look at that of a process that has ended.
    pub(super) fn last_slice(&self, user: Option<u32>) -> Option<Slice> {
        self.slice_of(user, SLICE_OF_ENDED)
    }

    fn slice_of(&self, user: Option<u32>, most: Duration) -> Option<Slice> {
        let owner = user.map(ccsd_worker::principal_of);
        let most = if self.ending || self.code.since.is_none() { Duration::MAX } else { most };
        let left = self.left(owner).min(most);
        let began = Instant::now();
        (left >= LEAST).then(|| Slice { owner, began, until: began + left })
    }

    fn left(&self, owner: Owner) -> Duration {
        let more = if self.ending { LAST } else { Duration::ZERO };
        match owner == Some(self.own) {
            true => self.own_code.left(owner, more, false),
            false => self.code.left(owner, more, true),
        }
    }

    pub(super) fn spend(&mut self, slice: Slice) {
        self.spend_time(slice.owner, slice.began.elapsed());
    }

    fn spend_time(&mut self, owner: Owner, time: Duration) {
        self.round = self.round.saturating_sub(time);
        let budget = if owner == Some(self.own) { &mut self.own_code } else { &mut self.code };
        budget.spend(owner, time);
    }

    /// Whether to ask for names in an image whose file this principal answers for. Those of the machine and of the session's
    /// own user have no limit, nor has anything where no samples are taken.
    pub(super) fn may_ask(&mut self, owner: Principal) -> bool {
        if self.is_unlimited(owner) {
            return true;
        }
        self.images.grow(Instant::now());
        let may = !self.images.left(Some(owner), Duration::ZERO, true).is_zero();
        self.refused += u64::from(!may);
        may
    }

    /// Counts the time of a question that began then.
    pub(super) fn asked(&mut self, owner: Principal, began: Instant) {
        if !self.is_unlimited(owner) {
            self.images.spend(Some(owner), began.elapsed());
        }
    }

    /// Whether this principal is root, or the session's own user.
    pub(super) fn is_unlimited(&self, owner: Principal) -> bool {
        owner == Principal::Own || owner == self.own || self.images.since.is_none()
    }

    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let unread = (self.unread > 0).then(|| {
            format!(
                "the names that {} processes wrote for their generated code were not all read: it would have taken too long",
                self.unread
            )
        });
        let refused = (self.refused > 0).then(|| {
            format!(
                "{} times there were no names, because other users' files take too long to read: `ccsd symbolize` can name \
                 what has none",
                self.refused
            )
        });
        unread.into_iter().chain(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Principal = Principal::User(1);

    fn user(number: u32) -> Owner {
        Some(Principal::User(number))
    }

    fn new() -> ReadingTime {
        ReadingTime { own: OWN, ..ReadingTime::default() }
    }

    #[test]
    fn however_many_files_users_have_the_time_is_bounded() {
        let mut time = new();
        assert_eq!((time.left(user(2)), time.left(Some(OWN))), (CODE / 2, CODE));
        // One user takes what there is for one, with any number of processes; the next one has something left, and so on.
        for number in 2..12 {
            let left = time.left(user(number));
            assert!(left > LEAST && left <= CODE / 2, "{number}: {left:?}");
            time.spend_time(user(number), left);
            assert!(time.slice(Some(number)).is_none());
        }
        assert!(time.code.total < CODE);
        assert_eq!(time.left(Some(OWN)), CODE);
        time.begin_end();
        for number in 2..100 {
            let left = time.left(user(number));
            time.spend_time(user(number), left);
        }
        assert!(time.code.total <= CODE + LAST, "{:?}", time.code.total);
        assert_eq!(time.left(Some(OWN)), CODE + LAST);
    }

    #[test]
    fn while_samples_come_looks_are_short() {
        let mut time = new();
        time.begin();
        let slice = time.slice(Some(1)).unwrap();
        assert!(slice.until - slice.began <= SLICE);
        time.spend_time(Some(OWN), ROUND);
        assert!(time.slice(Some(1)).is_none() && time.slice(Some(2)).is_none());
        time.begin_round();
        assert!(time.slice(Some(2)).is_some());
    }

    #[test]
    fn budgets_grow_back_in_time() {
        let mut time = new();
        time.begin();
        let began = time.code.since.unwrap();
        time.spend_time(user(2), CODE);
        time.spend_time(user(3), CODE);
        time.begin_round_at(began + CODE * PART);
        // Half of what was spent is left to pay, by each in proportion.
        let about = |time: Duration, expected: Duration| time.abs_diff(expected) < Duration::from_millis(5);
        assert!(about(time.code.total, CODE), "{:?}", time.code.total);
        assert!(about(time.code.spent[&user(2)], CODE / 2) && time.left(user(2)).is_zero());
        // Not ever more.
        time.begin_round_at(began + 1000 * CODE * PART);
        assert_eq!(time.left(user(2)), CODE / 2);
        assert!(time.code.spent.is_empty());
    }

    #[test]
    fn other_users_images_have_a_budget() {
        let mut time = new();
        time.begin();
        let ago = |time| Instant::now().checked_sub(time).unwrap();
        for owner in [Principal::Own, OWN] {
            time.asked(owner, ago(2 * IMAGES));
            assert!(time.may_ask(owner));
        }
        let (one, other) = (Principal::User(2), Principal::User(3));
        assert!(time.may_ask(one));
        time.asked(one, ago(IMAGES * 3 / 4));
        assert!(!time.may_ask(one) && time.may_ask(other));
        time.asked(other, ago(IMAGES));
        assert!(!time.may_ask(other) && !time.may_ask(Principal::Elsewhere { namespace: 1, device: 1 }));
        assert!(time.notes().any(|note| note.starts_with("3 times")));
        // Without sampling nothing else waits.
        let mut time = new();
        time.asked(one, ago(IMAGES));
        assert!(time.may_ask(one));
    }
}
