//! Numbers of users by their names, for rules.
//!
//! Names in this machine's own file are known at once. Others are asked of the name service, which may never answer,
//! each by a thread of its own: a user is unknown until then, and [`UserNumbers::answers`] counts new answers.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::User;

const PASSWD: &str = "/etc/passwd";
const MAX_BYTES: u64 = 4 << 20;
const HOLDS: Duration = Duration::from_secs(60);
/// Maximum names that are being asked for; others have their turn afterwards.
const MAX_ASKED: usize = 16;
/// Maximum names remembered. A watch has at most 100.
const MAX_NAMES: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserNumber {
    Known(u32),
    Missing,
    Unknown,
}

impl UserNumber {
    #[must_use]
    pub fn number(self) -> Option<u32> {
        match self {
            UserNumber::Known(number) => Some(number),
            UserNumber::Missing | UserNumber::Unknown => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct UserNumbers(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    names: HashMap<String, UserAnswer>,
    /// Answers that differ from the one before.
    count: u64,
}

#[derive(Debug)]
struct UserAnswer {
    number: UserNumber,
    since: Option<Instant>,
    is_asked: bool,
}

impl UserNumbers {
    /// The number of a user, as far as it is known. Asks for it if it is not, or not for long any more.
    #[must_use]
    pub fn find(&self, name: &str) -> UserNumber {
        self.find_by(name, |name| {
            // An error is no answer.
            User::from_name(name).ok().map(|user| user.map(|user| user.uid.as_raw()))
        })
    }

    /// Number of answers that were new. While it is the same, nothing has changed.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.lock().count
    }

    fn find_by(&self, name: &str, ask: impl FnOnce(&str) -> Option<Option<u32>> + Send + 'static) -> UserNumber {
        if let Some(number) = local(name) {
            return UserNumber::Known(number);
        }
        let mut answers = self.lock();
        let asked = answers.names.values().filter(|answer| answer.is_asked).count();
        if !answers.names.contains_key(name) {
            if answers.names.len() >= MAX_NAMES {
                answers.names.retain(|_, answer| answer.is_asked);
            }
            let unknown = UserAnswer { number: UserNumber::Unknown, since: None, is_asked: false };
            answers.names.insert(name.to_owned(), unknown);
        }
        let Some(answer) = answers.names.get_mut(name) else { return UserNumber::Unknown };
        let is_fresh = answer.since.is_some_and(|since| since.elapsed() < HOLDS);
        if !is_fresh && !answer.is_asked && asked < MAX_ASKED {
            let (this, wanted) = (self.clone(), name.to_owned());
            let asking = move || this.answer(&wanted, ask(&wanted));
            answer.is_asked = std::thread::Builder::new().name("ccsd-users".to_owned()).spawn(asking).is_ok();
        }
        answer.number
    }

    fn answer(&self, name: &str, found: Option<Option<u32>>) {
        let mut answers = self.lock();
        let Some(answer) = answers.names.get_mut(name) else { return };
        (answer.is_asked, answer.since) = (false, Some(Instant::now()));
        let Some(found) = found else { return };
        let number = found.map_or(UserNumber::Missing, UserNumber::Known);
        let is_new = std::mem::replace(&mut answer.number, number) != number;
        answers.count += u64::from(is_new);
    }

    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn local(name: &str) -> Option<u32> {
    let mut bytes = Vec::new();
    File::open(PASSWD).ok()?.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    number_in(&String::from_utf8_lossy(&bytes), name)
}

fn number_in(text: &str, name: &str) -> Option<u32> {
    let mut lines = text.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| if fields.next()? == name { fields.nth(1)?.parse().ok() } else { None })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn local_users_are_known_at_once() {
        assert_eq!(UserNumbers::default().find("root"), UserNumber::Known(0));
        assert_eq!(number_in("a:x:1:1\nb:x:2:2::/:\nc:x\n", "b"), Some(2));
        assert_eq!(number_in("a:x:1:1\n", ""), None);
    }

    #[test]
    fn a_name_service_that_does_not_answer_holds_nobody_up() {
        let users = UserNumbers::default();
        let (answer, answers) = channel::<Option<Option<u32>>>();
        let slow = move |_: &str| answers.recv().ok().flatten();
        assert_eq!(users.find_by("no-such-user", slow), UserNumber::Unknown);
        // One thread asks; other names have answers of their own.
        assert_eq!(users.find_by("no-such-user", |_| unreachable!()), UserNumber::Unknown);
        assert_eq!(users.find_by("another-user", |_| Some(None)), UserNumber::Unknown);
        while users.answers() < 1 {
            std::thread::yield_now();
        }
        assert_eq!(users.find_by("another-user", |_| unreachable!()), UserNumber::Missing);
        answer.send(Some(Some(7))).unwrap();
        while users.answers() < 2 {
            std::thread::yield_now();
        }
        assert_eq!(users.find_by("no-such-user", |_| unreachable!()), UserNumber::Known(7));
    }
}
