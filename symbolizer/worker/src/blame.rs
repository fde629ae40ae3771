//! What the worker is being asked, and which files it has died of.
//!
//! A death tells for certain what it came of only if one question was being answered. Where there were several, none of the
//! files is blamed; each is asked about alone once, and the guilty one is found by that. Blame ages, because a worker may also
//! die of what no file has to do with: a lack of memory, or somebody's `kill`.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::message::FileKey;

/// Deaths of the worker, while it was asked about a file alone, after which that is given up.
const MAX_DEATHS: u8 = 2;
/// Files remembered that the worker may have died of. Beyond that the oldest are forgotten, and may kill it again.
const MAX_REMEMBERED: usize = 4096;

/// A question that is being answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(u64);

/// Whether a file may be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// Yes. One of [`Blame::answered`], [`Blame::failed`] and [`Blame::died`] is to follow.
    Ask(Token),
    /// Not beside the questions that there are.
    Wait,
    /// Not any more, for some time.
    Never,
}

#[derive(Debug)]
struct Record {
    deaths: u8,
    /// Whether the worker has died while this file was one of several.
    suspect: bool,
    last: Instant,
}

/// What is asked and what is known of deaths.
#[derive(Debug)]
pub struct Blame {
    asked: Vec<(Token, FileKey)>,
    /// Whether the only question there is has to be that.
    alone: bool,
    /// Whoever waits to be asked about alone: no others begin.
    next_alone: Option<FileKey>,
    tokens: u64,
    records: HashMap<FileKey, Record>,
    age: Duration,
}

impl Blame {
    /// Nothing is known. What becomes known is forgotten after `age`.
    pub fn new(age: Duration) -> Blame {
        Blame { asked: Vec::new(), alone: false, next_alone: None, tokens: 0, records: HashMap::new(), age }
    }

    /// Forgets what is known of files.
    pub fn forget(&mut self) {
        self.records.clear();
        self.next_alone = None;
    }

    /// Whether a file is not asked about any more, for some time.
    pub fn is_given_up(&self, key: &FileKey, now: Instant) -> bool {
        let record = self.records.get(key).filter(|record| now.saturating_duration_since(record.last) < self.age);
        record.is_some_and(|record| record.deaths >= MAX_DEATHS)
    }

    /// Begins a question about a file, if it may be. If not yet, and `waits`, room is made for it.
    pub fn begin(&mut self, key: &FileKey, waits: bool, now: Instant) -> May {
        let old = self.records.get(key).is_some_and(|record| now.saturating_duration_since(record.last) >= self.age);
        if old {
            self.records.remove(key);
        }
        if self.is_given_up(key, now) {
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

    /// Whoever has waited for a turn does so no more.
    pub fn withdraw(&mut self, key: &FileKey) {
        self.next_alone.take_if(|next| next == key);
    }

    /// Whether a question is still being answered, by all that is known.
    pub fn is_asked(&self, token: Token) -> bool {
        self.asked.iter().any(|(asked, _)| *asked == token)
    }

    /// There is an answer.
    pub fn answered(&mut self, token: Token) {
        let Some(at) = self.asked.iter().position(|(asked, _)| *asked == token) else { return };
        let (_, key) = self.asked.swap_remove(at);
        if std::mem::take(&mut self.alone)
            && let Some(record) = self.records.get_mut(&key)
        {
            // It was another one. Deaths are remembered: a file may kill now and then only.
            record.suspect = false;
            if record.deaths == 0 {
                self.records.remove(&key);
            }
        }
    }

    /// This question has had no answer, or one that makes no sense, and the worker is ended for it. The others are not to
    /// blame.
    pub fn failed(&mut self, token: Token, now: Instant) {
        let key = self.asked.iter().find(|(asked, _)| *asked == token).map(|(_, key)| key.clone());
        self.asked.clear();
        self.alone = false;
        if let Some(key) = key {
            self.remember(key, true, now);
        }
    }

    /// The worker has died.
    pub fn died(&mut self, now: Instant) {
        self.alone = false;
        let asked = std::mem::take(&mut self.asked);
        let certain = asked.iter().all(|(_, key)| Some(key) == asked.first().map(|(_, first)| first));
        for (_, key) in asked.into_iter().take(if certain { 1 } else { usize::MAX }) {
            self.remember(key, certain, now);
        }
    }

    fn remember(&mut self, key: FileKey, certain: bool, now: Instant) {
        if self.records.len() >= MAX_REMEMBERED {
            let oldest = self.records.iter().min_by_key(|(_, record)| record.last).map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.records.remove(&oldest));
        }
        let record = self.records.entry(key).or_insert(Record { deaths: 0, suspect: false, last: now });
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
        let file = FileKey::of(&tempfile::tempfile().unwrap()).unwrap();
        (0..count).map(|number| file.numbered_for_test(number as u64)).collect()
    }

    fn ask(blame: &mut Blame, key: &FileKey, now: Instant) -> Token {
        match blame.begin(key, true, now) {
            May::Ask(token) => token,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn of_several_files_only_the_guilty_is_given_up() {
        let (mut blame, keys, now) = (Blame::new(AGE), keys(3), Instant::now());
        let tokens: Vec<Token> = keys.iter().map(|key| ask(&mut blame, key, now)).collect();
        blame.died(now);
        assert!(tokens.iter().all(|token| !blame.is_asked(*token)));
        // Each alone; the others wait for it.
        let first = ask(&mut blame, &keys[0], now);
        assert_eq!(blame.begin(&keys[1], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait);
        blame.answered(first);
        // The second has waited longest. It is the guilty one.
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait);
        for _ in 0..2 {
            let second = ask(&mut blame, &keys[1], now);
            assert_eq!(blame.begin(&keys[0], false, now), May::Wait, "alone");
            blame.died(now);
            assert!(!blame.is_asked(second));
        }
        assert_eq!(blame.begin(&keys[1], true, now), May::Never);
        // One by one they are cleared, and asked about beside others again.
        let third = ask(&mut blame, &keys[2], now);
        blame.answered(third);
        ask(&mut blame, &keys[0], now);
        ask(&mut blame, &keys[2], now);
    }

    #[test]
    fn blame_ages_and_is_not_forgotten_at_an_answer() {
        let (mut blame, keys, now) = (Blame::new(AGE), keys(1), Instant::now());
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
    fn who_stops_waiting_holds_up_nobody() {
        let (mut blame, keys, now) = (Blame::new(AGE), keys(3), Instant::now());
        let both = [ask(&mut blame, &keys[0], now), ask(&mut blame, &keys[1], now)];
        blame.died(now);
        assert!(both.iter().all(|token| !blame.is_asked(*token)));
        let other = ask(&mut blame, &keys[2], now);
        assert_eq!(blame.begin(&keys[0], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[2], true, now), May::Wait, "it is the first one's turn");
        blame.withdraw(&keys[0]);
        ask(&mut blame, &keys[2], now);
        blame.answered(other);
        // Who does not wait asks for no turn.
        assert_eq!(blame.begin(&keys[1], false, now), May::Wait);
        ask(&mut blame, &keys[2], now);
    }

    #[test]
    fn a_turn_ends_with_what_it_was_for() {
        let (mut blame, keys, now) = (Blame::new(AGE), keys(2), Instant::now());
        for _ in 0..2 {
            let token = ask(&mut blame, &keys[0], now);
            blame.failed(token, now);
        }
        // Another one who asks about that file has got a turn meanwhile.
        blame.next_alone = Some(keys[0].clone());
        assert_eq!(blame.begin(&keys[1], true, now), May::Wait);
        assert_eq!(blame.begin(&keys[0], true, now), May::Never);
        // Nobody takes that turn: others are not held up.
        ask(&mut blame, &keys[1], now);
    }

    #[test]
    fn what_hangs_is_blamed_alone() {
        let (mut blame, keys, now) = (Blame::new(AGE), keys(2), Instant::now());
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
        let (mut blame, keys, now) = (Blame::new(AGE), keys(1), Instant::now());
        for number in 0..MAX_REMEMBERED as u64 + 10 {
            let key = keys[0].numbered_for_test(number);
            ask(&mut blame, &key, now + Duration::from_millis(number));
            blame.died(now + Duration::from_millis(number));
        }
        assert_eq!(blame.records.len(), MAX_REMEMBERED);
        assert!(!blame.records.contains_key(&keys[0].numbered_for_test(0)));
    }
}
