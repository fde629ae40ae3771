//! The time that reading the names of generated code may take, which processes write themselves.
//!
//! A process chooses how much there is to read, and reading keeps the session from its other work. So there is a budget for
//! the files of the session's own user, and one for those of all other users together, of which each gets at most half of
//! what the others leave. It grows with the time, begins anew each minute, and grows once more at the session's end. Beside it,
//! each look has a limit. What is not
//! read now is read on later, or counted.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use nix::unistd::geteuid;
use rustc_hash::FxBuildHasher;

/// A session's budget at its beginning, and the part of its time by which it grows.
const FIRST: Duration = Duration::from_millis(500);
const PART: u32 = 16;
/// The budget begins anew after this time: what was not used does not add up.
const PERIOD: Duration = Duration::from_secs(60);
/// What there is beside it at the end of the session. Unoptimised builds take twenty times as long.
const LAST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 5 } else { 1 });
/// The longest look at one process's files while samples come, and at all in a row.
const SLICE: Duration = Duration::from_millis(20);
const ROUND: Duration = Duration::from_millis(50);
/// The longest look at the files of a process that has ended, while samples of others come.
const SLICE_OF_ENDED: Duration = Duration::from_millis(if cfg!(debug_assertions) { 500 } else { 100 });
/// Less than this is no time to read in.
const LEAST: Duration = Duration::from_micros(100);

/// Users are unknown where a process has ended before it could be looked at; these share a budget.
type Owner = Option<u32>;

#[derive(Debug)]
pub(super) struct CodeReading {
    own: u32,
    /// When sampling began. Without a beginning nothing waits for the names.
    began: Option<Instant>,
    ending: bool,
    spent_own: Duration,
    /// By user, and together.
    spent: HashMap<Owner, Duration, FxBuildHasher>,
    spent_others: Duration,
    /// What is left of the current round.
    round: Duration,
    /// Processes that have ended before their files were read as a whole.
    pub(super) unread: u64,
}

/// Time to read one process's files in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slice {
    owner: Owner,
    began: Instant,
    pub(super) until: Instant,
}

impl Default for CodeReading {
    fn default() -> CodeReading {
        CodeReading {
            own: geteuid().as_raw(),
            began: None,
            ending: false,
            spent_own: Duration::ZERO,
            spent: HashMap::default(),
            spent_others: Duration::ZERO,
            round: ROUND,
            unread: 0,
        }
    }
}

impl CodeReading {
    /// Sets the session's user, if it is not that of this process.
    pub(super) fn set_user(&mut self, user: u32) {
        self.own = user;
    }

    pub(super) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    /// The session is over: nothing but the names is left to do.
    pub(super) fn begin_end(&mut self) {
        self.ending = true;
    }

    /// A new round of looks begins.
    pub(super) fn begin_round(&mut self) {
        self.begin_round_at(Instant::now());
    }

    fn begin_round_at(&mut self, now: Instant) {
        self.round = ROUND;
        if self.began.is_some_and(|began| now.saturating_duration_since(began) >= PERIOD) {
            self.began = Some(now);
            (self.spent_own, self.spent_others) = (Duration::ZERO, Duration::ZERO);
            self.spent.clear();
        }
    }

    /// Time for a look at the files of a process of this user; `None` if there is none left.
    pub(super) fn slice(&self, owner: Owner) -> Option<Slice> {
        let most = if self.ending || self.began.is_none() { Duration::MAX } else { SLICE.min(self.round) };
        self.slice_of(owner, most)
    }

    /// The same for the last look at those of a process that has ended.
    pub(super) fn last_slice(&self, owner: Owner) -> Option<Slice> {
        let most = if self.ending || self.began.is_none() { Duration::MAX } else { SLICE_OF_ENDED };
        self.slice_of(owner, most)
    }

    fn slice_of(&self, owner: Owner, most: Duration) -> Option<Slice> {
        let began = Instant::now();
        let left = self.left(owner, began).min(most);
        (left >= LEAST).then(|| Slice { owner, began, until: began + left })
    }

    fn left(&self, owner: Owner, now: Instant) -> Duration {
        let elapsed = self.began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        let elapsed = elapsed.min(PERIOD);
        let all = FIRST + elapsed / PART + if self.ending { LAST } else { Duration::ZERO };
        if owner == Some(self.own) {
            return all.saturating_sub(self.spent_own);
        }
        let spent = self.spent.get(&owner).copied().unwrap_or_default();
        let of_others = self.spent_others.saturating_sub(spent);
        (all.saturating_sub(of_others) / 2).saturating_sub(spent)
    }

    pub(super) fn spend(&mut self, slice: Slice) {
        self.spend_time(slice.owner, slice.began.elapsed());
    }

    fn spend_time(&mut self, owner: Owner, time: Duration) {
        self.round = self.round.saturating_sub(time);
        if owner == Some(self.own) {
            self.spent_own += time;
        } else {
            *self.spent.entry(owner).or_default() += time;
            self.spent_others += time;
        }
    }

    pub(super) fn note(&self) -> Option<String> {
        (self.unread > 0).then(|| {
            format!(
                "the names that {} processes wrote for their generated code were not all read: it would have taken too long",
                self.unread
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn however_many_files_users_have_the_time_is_bounded() {
        let mut time = CodeReading { own: 1, ..CodeReading::default() };
        let now = Instant::now();
        let most = time.left(Some(2), now);
        assert_eq!((most, time.left(Some(1), now)), (FIRST / 2, FIRST));
        // One user takes what there is for one, with any number of processes; the next one has something left, and so on.
        for user in 2..12 {
            let left = time.left(Some(user), now);
            assert!(left > LEAST && left <= most, "{user}: {left:?}");
            time.spend_time(Some(user), left);
            assert!(time.slice(Some(user)).is_none());
        }
        assert!(time.spent_others < FIRST);
        assert_eq!(time.left(Some(1), now), FIRST);
        time.begin_end();
        for user in 2..100 {
            let left = time.left(Some(user), now);
            time.spend_time(Some(user), left);
        }
        assert!(time.spent_others <= FIRST + LAST, "{:?}", time.spent_others);
        assert_eq!(time.left(Some(1), now), FIRST + LAST);
    }

    #[test]
    fn while_samples_come_looks_are_short() {
        let mut time = CodeReading { own: 1, ..CodeReading::default() };
        time.begin();
        let slice = time.slice(Some(1)).unwrap();
        assert!(slice.until - slice.began <= SLICE);
        time.spend_time(Some(1), ROUND);
        assert!(time.slice(Some(1)).is_none() && time.slice(Some(2)).is_none());
        time.begin_round();
        assert!(time.slice(Some(2)).is_some());
        // Later there is more, but not ever more.
        let began = Instant::now();
        assert!(time.left(Some(2), began + PERIOD) > 4 * time.left(Some(2), began));
        assert_eq!(time.left(Some(2), began + 100 * PERIOD), time.left(Some(2), began + 10 * PERIOD));
        time.spend_time(Some(2), Duration::from_secs(100));
        time.begin_round_at(began + PERIOD / 2);
        assert_eq!(time.left(Some(2), began + PERIOD / 2), Duration::ZERO);
        time.begin_round_at(began + 2 * PERIOD);
        assert_eq!(time.left(Some(2), began + 2 * PERIOD), FIRST / 2);
    }
}
