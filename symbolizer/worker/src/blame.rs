//! Tracks the worker's current questions, and the files at which it died.
//!
//! A death has a certain cause only if one question was being answered. With several, no file is blamed; each is asked
//! about alone once, which identifies the cause. Blame expires, because a worker may also die of other causes, such as
//! lack of memory or a `kill`.
//!
//! A user has any number of files. So a principal other than the daemon's own whose files kill several workers is given
//! up as a whole: its files get no names for the same time. Their headers, which unwinding needs, are still read.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::message::FileKey;

/// Deaths of the worker during a question about one file alone after which the file is given up.
const MAX_DEATHS: u8 = 2;
/// Deaths of the worker with any files of a principal after which the principal is given up: fewer than workers may be
/// started in a row, so that one is left for headers.
const MAX_DEATHS_OF_PRINCIPAL: usize = 4;
/// Maximum files remembered. Older ones are forgotten, and may kill the worker again.
const MAX_REMEMBERED: usize = 4096;

/// Identifies a question that is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// Yes. [`Blame::answered`], [`Blame::failed`] or [`Blame::died`] must follow.
    Ask(Token),
    /// Not beside the current questions.
    Wait,
    /// Not for some time.
    Never,
}

#[derive(Debug)]
struct DeathRecord {
    deaths: u8,
    /// Whether the worker has died while this file was one of several.
    suspect: bool,
    last: Instant,
}

#[derive(Debug)]
pub struct Blame {
    asked: Vec<(Token, FileKey)>,
    /// Whether the current question must stay the only one.
    alone: bool,
    /// The file waiting to be asked about alone; no other question may begin.
    next_alone: Option<FileKey>,
    tokens: u64,
    records: HashMap<FileKey, DeathRecord>,
    age: Duration,
    /// Latest deaths, if the principal may be given up.
    principal_deaths: Option<VecDeque<Instant>>,
}

impl Blame {
    /// No deaths are known. They are forgotten after `age`. `limited` tells whether the principal may be given up.
    pub fn new(age: Duration, limited: bool) -> Blame {
        let principal_deaths = limited.then(VecDeque::new);
        Blame {
            asked: Vec::new(),
            alone: false,
            next_alone: None,
            tokens: 0,
            records: HashMap::new(),
            age,
            principal_deaths,
        }
    }

    pub fn forget(&mut self) {
        self.records.clear();
        self.next_alone = None;
        if let Some(deaths) = &mut self.principal_deaths {
            deaths.clear();
        }
    }

    pub fn is_asking(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Whether a file is given up for some time, or, for `names`, its principal.
    pub fn is_given_up(&self, key: &FileKey, names: bool, now: Instant) -> bool {
        let recent = |deaths: &VecDeque<Instant>| {
            deaths.iter().filter(|death| now.saturating_duration_since(**death) < self.age).count()
        };
        if names && self.principal_deaths.as_ref().is_some_and(|deaths| recent(deaths) >= MAX_DEATHS_OF_PRINCIPAL) {
            return true;
        }
        let record = self.records.get(key).filter(|record| now.saturating_duration_since(record.last) < self.age);
        record.is_some_and(|record| record.deaths >= MAX_DEATHS)
    }

    /// Begins a question about a file if allowed. If not yet, and `waits`, reserves the next turn for it.
    pub fn begin(&mut self, key: &FileKey, waits: bool, now: Instant) -> May {
        let old = self.records.get(key).is_some_and(|record| now.saturating_duration_since(record.last) >= self.age);
        if old {
            self.records.remove(key);
        }
        if self.is_given_up(key, waits, now) {
            self.withdraw(key);
            return May::Never;
        }
        let record = self.records.get(key);
        let doubtful = record.is_some_and(|record| record.suspect || record.deaths > 0);
        let others_first = self.alone || self.next_alone.as_ref().is_some_and(|next| next != key);
        if others_first || (doubtful && !self.asked.is_empty()) {
            if doubtful && waits {
                self.next_alone.get_or_insert_with(|| key.clone());
            }
            return May::Wait;
        }
        self.next_alone.take_if(|next| next == key);
        self.alone = doubtful;
        self.tokens += 1;
        self.asked.push((Token(self.tokens), key.clone()));
        May::Ask(Token(self.tokens))
    }

    /// Releases the reserved turn of a file.
    pub fn withdraw(&mut self, key: &FileKey) {
        self.next_alone.take_if(|next| next == key);
    }

    pub fn is_asked(&self, token: Token) -> bool {
        self.asked.iter().any(|(asked, _)| *asked == token)
    }

    pub fn answered(&mut self, token: Token) {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == token) else { return };
        let (_, key) = self.asked.swap_remove(at);
        if std::mem::take(&mut self.alone)
            && let Some(record) = self.records.get_mut(&key)
        {
            // Another file was the cause. Deaths are remembered: a file may kill only sometimes.
            record.suspect = false;
            if record.deaths == 0 {
                self.records.remove(&key);
            }
        }
    }

    /// Notes that a question had no answer, or an invalid one, and the worker was killed for it. Other current
    /// questions are not blamed.
    pub fn failed(&mut self, token: Token, now: Instant) {
        self.count_death(now);
        let key = self.asked.iter().find(|(asked, _)| *asked == token).map(|(_, key)| key.clone());
        self.asked.clear();
        self.alone = false;
        if let Some(key) = key {
            self.remember(key, true, now);
        }
    }

    /// Notes that the worker was ended for a reason that no question has to do with.
    pub fn interrupted(&mut self) {
        self.alone = false;
        self.asked.clear();
    }

    pub fn died(&mut self, now: Instant) {
        self.alone = false;
        let asked = std::mem::take(&mut self.asked);
        if !asked.is_empty() {
            self.count_death(now);
        }
        let certain = asked.iter().all(|(_, key)| Some(key) == asked.first().map(|(_, first)| first));
        for (_, key) in asked.into_iter().take(if certain { 1 } else { usize::MAX }) {
            self.remember(key, certain, now);
        }
    }

    fn count_death(&mut self, now: Instant) {
        let Some(deaths) = &mut self.principal_deaths else { return };
        deaths.push_back(now);
        if deaths.len() > MAX_DEATHS_OF_PRINCIPAL {
            deaths.pop_front();
        }
    }

    fn remember(&mut self, key: FileKey, certain: bool, now: Instant) {
        if self.records.len() >= MAX_REMEMBERED {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.records.remove(&oldest));
        }
        let record = self.records.entry(key).or_insert(DeathRecord { deaths: 0, suspect: false, last: now });
        record.last = now;
        match certain {
            true => record.deaths = record.deaths.saturating_add(1),
            false => record.suspect = true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    const AGE: Duration = Duration::from_secs(60);

    fn keys(count: usize) -> Vec<FileKey> {
        let file = FileKey::own(&tempfile::tempfile().unwrap().metadata().unwrap());
        (0..count).map(|number| file.numbered_for_test(number as u64)).collect()
    }

    fn ask(blame: &mut Blame, key: &FileKey, now: Instant) -> Token {
        match blame.begin(key, true, now) {
            May::Ask(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_principal_with_ever_new_files_is_given_up() {
        let (mut blame, keys, now) = (Blame::new(AGE, true), keys(6), Instant::now());
        for key in &keys[..MAX_DEATHS_OF_PRINCIPAL] {
            ask(&mut blame, key, now);
            blame.died(now);
        }
        assert_eq!(blame.begin(&keys[5], true, now), May::Never);
        // Headers are still read.
        assert!(matches!(blame.begin(&keys[5], false, now), May::Ask(_)));
        blame.died(now);
        let later = now + AGE;
        assert!(matches!(blame.begin(&keys[4], true, later), May::Ask(_)));
        // The daemon's own files are not given up together.
        let mut own = Blame::new(AGE, false);
        for key in &keys {
            ask(&mut own, key, now);
            own.died(now);
        }
    }

    #[test]
    fn only_the_guilty_of_several_files_is_given_up() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(3), Instant::now());
        let tokens: Vec<Token> = keys.iter().map(|key| ask(&mut blame, key, now)).collect();
        blame.died(now);
        assert!(tokens.iter().all(|token| !blame.is_asked(*token)));
        // Each file alone; the others wait.
        let first = ask(&mut blame, &keys[0], now);
        assert_eq!(blame.begin(&keys[1], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait);
        blame.answered(first);
        // The second has waited longest. It is the cause.
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait);
        for _ in 0..2 {
            let second = ask(&mut blame, &keys[1], now);
            assert_eq!(blame.begin(&keys[0], false, now), May::Wait, "alone");
            blame.died(now);
            assert!(!blame.is_asked(second));
        }
        assert_eq!(blame.begin(&keys[1], true, now), May::Never);
        // The others are cleared one by one, and may again be asked about together.
        let third = ask(&mut blame, &keys[2], now);
        blame.answered(third);
        ask(&mut blame, &keys[0], now);
        ask(&mut blame, &keys[2], now);
    }

    #[test]
    fn blame_ages_and_is_not_forgotten_at_an_answer() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(1), Instant::now());
        ask(&mut blame, &keys[0], now);
        blame.died(now);
        let token = ask(&mut blame, &keys[0], now);
        blame.answered(token);
        let token = ask(&mut blame, &keys[0], now);
        blame.failed(token, now);
        assert_eq!(blame.begin(&keys[0], true, now + AGE / 2), May::Never);
        ask(&mut blame, &keys[0], now + AGE);
    }

    #[test]
    fn a_waiter_that_stops_holds_up_nobody() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(3), Instant::now());
        let both = [ask(&mut blame, &keys[0], now), ask(&mut blame, &keys[1], now)];
        blame.died(now);
        assert!(both.iter().all(|token| !blame.is_asked(*token)));
        let other = ask(&mut blame, &keys[2], now);
        assert_eq!(blame.begin(&keys[0], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait, "it is the first one's turn");
        blame.withdraw(&keys[0]);
        ask(&mut blame, &keys[2], now);
        blame.answered(other);
        // A question that does not wait reserves no turn.
        assert_eq!(blame.begin(&keys[1], false, now), May::Wait);
        ask(&mut blame, &keys[2], now);
    }

    #[test]
    fn a_turn_ends_with_what_it_was_for() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(2), Instant::now());
        for _ in 0..2 {
            let token = ask(&mut blame, &keys[0], now);
            blame.failed(token, now);
        }
        // Meanwhile another question about that file has reserved a turn.
        blame.next_alone = Some(keys[0].clone());
        assert_eq!(blame.begin(&keys[1], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[0], true, now), May::Never);
        // The turn is not taken: other questions are not blocked.
        ask(&mut blame, &keys[1], now);
    }

    #[test]
    fn a_hanging_file_is_blamed_alone() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(2), Instant::now());
        let (first, second) = (ask(&mut blame, &keys[0], now), ask(&mut blame, &keys[1], now));
        blame.failed(first, now);
        assert!(!blame.is_asked(second));
        let second = ask(&mut blame, &keys[1], now);
        assert_eq!(blame.begin(&keys[0], true, now), May::Wait);
        blame.answered(second);
        let first = ask(&mut blame, &keys[0], now);
        blame.failed(first, now);
        assert_eq!(blame.begin(&keys[0], true, now), May::Never);
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let (mut blame, keys, now) = (Blame::new(AGE, false), keys(1), Instant::now());
        for number in 0..MAX_REMEMBERED as u64 + 10 {
            let key = keys[0].numbered_for_test(number);
            ask(&mut blame, &key, now + Duration::from_millis(number));
            blame.died(now + Duration::from_millis(number));
        }
        assert_eq!(blame.records.len(), MAX_REMEMBERED);
        assert!(!blame.records.contains_key(&keys[0].numbered_for_test(0)));
    }
}
