//! Questions about processes by number, within a [`Deadline`]: another user's process may leave one unanswered for ever.
//!
//! While a process executes a program, the kernel holds a lock that reads of its `stat` and `exe` in /proc need, and
//! `perf_event_open(2)`. Under that lock it closes files, which the server of a file system in user space can delay for ever.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use ccsd_worker::Principal;
use hashbrown::HashMap;
use nix::unistd::geteuid;

use crate::deadline::{Deadline, LONGEST as SAMPLES_WAIT};
use crate::pids::is_free;

/// Longest wait where no samples wait meanwhile: a machine may be busy.
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum open questions about one user's processes. With so many, this thread asks about no other process of that user.
const UNANSWERED: usize = 4;

thread_local! {
    /// Of this thread: no other waits for what it asks.
    static QUESTIONS: RefCell<Questions> = RefCell::new(Questions::waiting(LONGEST, None));
}

struct Questions {
    /// Of whose session this thread is: his processes keep only that waiting.
    user: Option<u32>,
    lanes: [Deadline; UNANSWERED],
    /// Processes that have not answered, whose they are, and in which lane they were asked.
    unanswered: HashMap<u32, (Principal, usize)>,
}

impl Questions {
    fn waiting(longest: Duration, user: Option<u32>) -> Questions {
        let lanes = std::array::from_fn(|_| Deadline::default().waiting(longest));
        Questions { user, lanes, unanswered: HashMap::new() }
    }

    fn ask<T: Send + 'static>(
        &mut self,
        pid: Option<u32>,
        user: Principal,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let lanes = &self.lanes;
        self.unanswered.retain(|_, (user, lane)| lanes.get(*lane).is_some_and(|lane| lane.is_busy(*user)));
        if pid.is_some_and(|pid| self.unanswered.contains_key(&pid)) {
            return None;
        }
        let number = self.lanes.iter_mut().position(|lane| lane.may_ask(user))?;
        let lane = self.lanes.get_mut(number)?;
        let answer = lane.ask(user, question);
        if lane.is_busy(user) {
            self.unanswered.extend(pid.map(|pid| (pid, (user, number))));
        }
        answer
    }
}

/// The answer to a question about a process; `None` where it does not come in time.
pub fn ask<T: Send + 'static>(pid: u32, question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    ask_by(Path::new(&format!("/proc/{pid}")), question)
}

/// The same of the process whose directory in /proc this is.
pub fn ask_by<T: Send + 'static>(dir: &Path, question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    if Deadline::is_asking() {
        return Some(question());
    }
    let Some(user) = user_of(dir) else { return Some(question()) };
    let pid = dir.file_name().and_then(|name| name.to_str()?.parse().ok());
    QUESTIONS.with_borrow_mut(|questions| questions.ask(pid, user, question))
}

/// In this thread samples wait for answers. It is of a session of a user, if not of root's.
pub fn wait_no_longer_than_samples(user: Option<u32>) {
    QUESTIONS.with_borrow_mut(|questions| *questions = Questions::waiting(SAMPLES_WAIT, user));
}

/// Whether a process is another user's while this thread is of a user's session, which does not follow it.
pub fn is_of_no_interest(pid: u32) -> bool {
    QUESTIONS.with_borrow(|questions| questions.user.is_some()) && user(pid).is_some()
}

/// Nothing will be asked by this thread for some time.
pub fn rest() {
    QUESTIONS.with_borrow_mut(|questions| questions.lanes.iter_mut().for_each(Deadline::rest));
}

/// This thread is of a session of a user.
pub fn wait_for_own(user: u32) {
    QUESTIONS.with_borrow_mut(|questions| *questions = Questions::waiting(LONGEST, Some(user)));
}

/// The user of a process, if that is neither root nor this process's own user, nor the session's.
pub fn user(pid: u32) -> Option<Principal> {
    if is_free(pid) {
        return None;
    }
    user_of(Path::new(&format!("/proc/{pid}")))
}

fn user_of(dir: &Path) -> Option<Principal> {
    // The effective user: see `user_of_process`.
    let user = fs::metadata(dir).ok()?.uid();
    let own = [Some(0), Some(geteuid().as_raw()), QUESTIONS.with_borrow(|questions| questions.user)];
    (!own.contains(&Some(user))).then(|| ccsd_worker::principal_of(user))
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    #[test]
    fn those_who_do_not_answer_are_not_asked_again() {
        let mut questions = Questions::waiting(Duration::from_secs(1), None);
        let user = Principal::User(7);
        let held: Vec<_> = (0..UNANSWERED as u32)
            .map(|pid| {
                // The others of the user are.
                assert_eq!(questions.ask(Some(100), user, move || pid), Some(pid));
                let (release, held) = bounded::<()>(0);
                assert_eq!(questions.ask(Some(pid), user, move || held.recv().is_err()), None);
                // Nor when others have been asked meanwhile.
                assert_eq!(questions.ask(Some(200), Principal::User(8), || true), Some(true));
                assert_eq!(questions.ask(Some(pid), user, || true), None);
                release
            })
            .collect();
        assert_eq!(questions.ask(Some(100), user, || ()), None);
        assert_eq!(questions.ask(Some(100), Principal::User(8), || ()), Some(()));
        drop(held);
        while questions.lanes.iter().any(|lane| lane.is_busy(user)) {
            std::thread::yield_now();
        }
        assert_eq!(questions.ask(Some(0), user, || ()), Some(()));
    }
}
