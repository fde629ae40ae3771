//! Questions about other users' processes, which these can leave unanswered for ever.
//!
//! The kernel reads a process's mappings and memory under a lock that the process holds while it maps a file. With a file
//! system in user space that may last for ever, and only the end of ccsd ends the wait. Opening a file there may, too. So a
//! thread for each user asks, and is waited for up to a deadline.

use std::time::{Duration, Instant};

use ccsd_worker::Principal;
use crossbeam_channel::{Receiver, Sender, bounded};
use hashbrown::HashMap;
use nix::unistd::geteuid;
use rustc_hash::FxBuildHasher;

use crate::procfs;
use crate::sched_priority::become_urgent;
use crate::time_budget::{LEAST, TimeBudget};
use crate::usage::{add_helper, thread_cpu_ns};

/// Longest wait for an answer. A ring of samples holds some 64 ms.
const LONGEST: Duration = Duration::from_millis(50);
/// The same where no samples wait.
const PATIENT: Duration = Duration::from_secs(5);
/// Users who have a thread at a time. Those whose threads wait keep them.
const MAX_THREADS: usize = 16;
/// What all waits that are no usual ones may take, and such a usual one.
const WAITS: Duration = Duration::from_secs(2);
const USUAL: Duration = Duration::from_millis(2);

type Question = Box<dyn FnOnce() + Send>;

/// Asks about other users' processes, for each user in a thread.
#[derive(Debug)]
pub struct Deadline {
    /// The session's own user. Of his processes, and of root's, is asked without a thread.
    own: Principal,
    threads: HashMap<Principal, AskingThread, FxBuildHasher>,
    waits: TimeBudget,
    longest: Duration,
}

#[derive(Debug)]
struct AskingThread {
    /// Without room: a question is taken only by a thread that has answered the last one.
    questions: Sender<Question>,
    is_late: bool,
}

impl Default for Deadline {
    fn default() -> Self {
        Deadline::of(geteuid().as_raw())
    }
}

impl Deadline {
    /// For a session of this user.
    #[must_use]
    pub fn of(user: u32) -> Deadline {
        let own = ccsd_worker::principal_of(user);
        Deadline { own, threads: HashMap::default(), waits: TimeBudget::new(WAITS, true), longest: LONGEST }
    }

    /// The same where no samples wait meanwhile.
    #[must_use]
    pub fn patient(self) -> Deadline {
        Deadline { longest: PATIENT, ..self }
    }

    /// Whose process it is, if another user's than root's and the session's own.
    #[must_use]
    pub fn other_user(&self, pid: u32) -> Option<Principal> {
        let user = ccsd_worker::principal_of_process(pid, procfs::own_pid_and_user(pid).1);
        (user != Principal::Own && user != self.own).then_some(user)
    }

    /// The answer to a question about a process of `user`; `None` where it does not come in time, or the one before has not.
    pub fn ask<T: Send + 'static>(
        &mut self,
        user: Principal,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let began = Instant::now();
        if !self.waits.has_begun() {
            self.waits.begin(began);
        }
        self.waits.grow(began);
        if self.waits.left(Some(user), Duration::ZERO) < LEAST {
            return None;
        }
        let (answer, answered) = bounded(1);
        let question = move || {
            let before = thread_cpu_ns();
            let made = question();
            // Who has asked may not wait any more.
            let _ = answer.send((made, thread_cpu_ns().saturating_sub(before)));
        };
        let longest = self.longest;
        let thread = self.thread_of(user)?;
        let patience = if thread.is_late { Duration::ZERO } else { longest };
        let asked = thread.questions.send_timeout(Box::new(question), patience).is_ok();
        let answered = if asked { answered.recv_timeout(longest).ok() } else { None };
        thread.is_late = answered.is_none();
        let took = began.elapsed();
        if took > USUAL {
            self.waits.spend(Some(user), took, Duration::ZERO);
        }
        answered.map(|(made, ns)| {
            add_helper(ns);
            made
        })
    }

    fn thread_of(&mut self, user: Principal) -> Option<&mut AskingThread> {
        if !self.threads.contains_key(&user) {
            if self.threads.len() >= MAX_THREADS {
                let idle = self.threads.iter().find(|(_, thread)| !thread.is_late).map(|(&user, _)| user)?;
                self.threads.remove(&idle);
            }
            let (questions, asked) = bounded(0);
            std::thread::Builder::new().name("ccsd-ask".to_owned()).spawn(move || answer(&asked)).ok()?;
            self.threads.insert(user, AskingThread { questions, is_late: false });
        }
        self.threads.get_mut(&user)
    }
}

fn answer(questions: &Receiver<Question>) {
    // The sampling thread, which waits for this one, is urgent, if it may be.
    let _ = become_urgent();
    for question in questions {
        question();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(1_000_000);

    fn without_end() -> Deadline {
        Deadline { longest: FOR_EVER, waits: TimeBudget::new(FOR_EVER, true), ..Deadline::default() }
    }

    #[test]
    fn who_does_not_answer_is_waited_for_once() {
        let mut deadline = without_end();
        let (first, second) = (Principal::User(7), Principal::User(8));
        assert_eq!(deadline.ask(first, || 5), Some(5));
        let (release, held) = bounded::<()>(0);
        deadline.longest = LONGEST;
        assert_eq!(deadline.ask(first, move || _ = held.recv()), None);
        assert!(deadline.waits.total() >= LONGEST);
        // Not again, as long as the question is open, and others are asked.
        deadline.longest = FOR_EVER;
        for number in 0..100 {
            assert_eq!(deadline.ask(first, move || number), None);
            assert_eq!(deadline.ask(second, move || number), Some(number));
        }
        assert!(deadline.threads[&first].is_late);
        drop(release);
        let answer = (0..1_000_000).find_map(|number| {
            std::thread::yield_now();
            deadline.ask(first, move || number)
        });
        assert!(answer.is_some() && !deadline.threads[&first].is_late);
    }

    #[test]
    fn waits_have_a_budget() {
        let mut deadline = without_end();
        assert_eq!(deadline.ask(Principal::User(7), || 1), Some(1));
        deadline.waits.spend(Some(Principal::User(7)), FOR_EVER, Duration::ZERO);
        assert_eq!(deadline.ask(Principal::User(7), || 1), None);
        assert_eq!(deadline.ask(Principal::User(8), || 1), Some(1));
    }

    #[test]
    fn threads_of_many_users_are_few() {
        let mut deadline = without_end();
        for user in 1..100 {
            assert_eq!(deadline.ask(Principal::User(user), move || user), Some(user));
            assert!(deadline.threads.len() <= MAX_THREADS);
        }
        deadline.threads.values_mut().for_each(|thread| thread.is_late = true);
        assert_eq!(deadline.ask(Principal::User(100), || 1), None);
    }
}
