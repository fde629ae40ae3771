//! The time that reading names may take where other users decide how much there is to read.
//!
//! Reading keeps the session from its other work. So all other users together have a budget of time, of which each gets at
//! most half of what the others leave. What is not read in time is read later or never, and counted.

use std::time::{Duration, Instant};

use ccsd_worker::Principal;
use nix::unistd::geteuid;

use crate::time_budget::{LEAST, Owner, TimeBudget};

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
/// The budget for other users' images. The debug information of a large program takes some seconds, and its reading cannot
/// be interrupted.
const IMAGES: Duration = Duration::from_secs(20).saturating_mul(SLOWER);

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
            own_code: TimeBudget::new(CODE, false),
            code: TimeBudget::new(CODE, true),
            images: TimeBudget::new(IMAGES, true),
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
        let now = Instant::now();
        [&mut self.own_code, &mut self.code, &mut self.images].into_iter().for_each(|budget| budget.begin(now));
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
        let most = if self.ending || !self.code.has_begun() { Duration::MAX } else { most };
        let left = self.left(owner).min(most);
        let began = Instant::now();
        (left >= LEAST).then(|| Slice { owner, began, until: began + left })
    }

    fn left(&self, owner: Owner) -> Duration {
        let budget = if owner == Some(self.own) { &self.own_code } else { &self.code };
        budget.left(owner, self.more())
    }

    fn more(&self) -> Duration {
        if self.ending { LAST } else { Duration::ZERO }
    }

    pub(super) fn spend(&mut self, slice: Slice) {
        self.spend_time(slice.owner, slice.began.elapsed());
    }

    fn spend_time(&mut self, owner: Owner, time: Duration) {
        self.round = self.round.saturating_sub(time);
        let more = self.more();
        let budget = if owner == Some(self.own) { &mut self.own_code } else { &mut self.code };
        budget.spend(owner, time, more);
    }

    /// Whether to ask for names in an image whose file this principal answers for. Those of the machine and of the session's
    /// own user have no limit, nor has anything where no samples are taken.
    pub(super) fn may_ask(&mut self, owner: Principal) -> bool {
        if self.is_unlimited(owner) {
            return true;
        }
        self.images.grow(Instant::now());
        let may = !self.images.left(Some(owner), Duration::ZERO).is_zero();
        self.refused += u64::from(!may);
        may
    }

    /// Counts the time of a question that began then.
    pub(super) fn asked(&mut self, owner: Principal, began: Instant) {
        if !self.is_unlimited(owner) {
            self.images.spend(Some(owner), began.elapsed(), Duration::ZERO);
        }
    }

    /// Whether this principal is root, or the session's own user.
    pub(super) fn is_unlimited(&self, owner: Principal) -> bool {
        owner == Principal::Own || owner == self.own || !self.images.has_begun()
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
                "{} times there were no names, because other users' files take too long to read: `ccsd symbolize` finds \
                 them",
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
        assert!(time.code.total() < CODE);
        assert_eq!(time.left(Some(OWN)), CODE);
        time.begin_end();
        for number in 2..100 {
            let left = time.left(user(number));
            time.spend_time(user(number), left);
        }
        assert!(time.code.total() <= CODE + LAST, "{:?}", time.code.total());
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
        // However long a question takes that cannot be interrupted, others have their part.
        time.asked(one, ago(10 * IMAGES));
        assert!(!time.may_ask(one) && time.may_ask(other));
        time.asked(other, ago(10 * IMAGES));
        assert!(!time.may_ask(other) && time.may_ask(Principal::User(4)));
        assert!(time.notes().any(|note| note.starts_with("2 times")));
        // Without sampling nothing else waits.
        let mut time = new();
        time.asked(one, ago(IMAGES));
        assert!(time.may_ask(one));
    }
}
