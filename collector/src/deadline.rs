//! Questions about other users' processes, which these can leave unanswered for ever.
//!
//! The kernel reads a process's mappings and memory under a lock that the process holds while it maps a file. With a file
//! system in user space that may last for ever, and only the end of ccsd ends the wait. Opening a file there may, too. So a
//! thread for each user asks, and is waited for up to a deadline.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ccsd_worker::Principal;
use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded};
use hashbrown::HashMap;
use nix::unistd::geteuid;
use rustc_hash::FxBuildHasher;

use crate::sched_priority::{become_urgent, is_urgent};
use crate::time_budget::{LEAST, TimeBudget};
use crate::usage::{add_helper, thread_cpu_ns};
use crate::users::user_of_process;

/// Longest wait for an answer. A ring of samples holds some 64 ms.
pub const LONGEST: Duration = Duration::from_millis(50);
/// The same where no samples wait.
const PATIENT: Duration = Duration::from_secs(5);
/// What all waits that are no usual ones may take between two looks at the rings, however many users are waited for.
const TURN: Duration = Duration::from_millis(30);
/// Users who have a thread at a time. Those whose threads wait keep them.
const MAX_THREADS: usize = 16;
/// Threads of all sessions. One that waits for ever outlives its session, so each user may have half of what the others leave.
const MAX_ASKING: usize = 256;
/// What all waits that are no usual ones may take, and such a usual one where samples wait.
const WAITS: Duration = Duration::from_secs(2);
const USUAL: Duration = Duration::from_millis(2);
/// Where none do, one part in this many of the longest is usual: a busy machine, or the kernel, takes some time.
const USUAL_PART: u32 = 8;

/// Threads of this process that ask or wait for questions, by whose processes they are about.
static ASKING: Mutex<BTreeMap<Principal, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    static IS_ASKING: Cell<bool> = const { Cell::new(false) };
    /// In a thread that looks at rings, what is left of [`TURN`].
    static LEFT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// This thread looks at the rings now.
pub fn begin_turn() {
    LEFT.set(Some(TURN));
}

type Question = Box<dyn FnOnce() + Send>;

/// Asks about other users' processes, for each user in a thread.
#[derive(Debug)]
pub struct Deadline {
    /// The session's own user. Of his processes, and of root's, is asked without a thread.
    own: Principal,
    threads: HashMap<Principal, AskingThread, FxBuildHasher>,
    waits: TimeBudget,
    longest: Duration,
    usual: Duration,
    /// Whether its questions may go without an answer, so that they wait for the next look at the rings.
    in_turns: bool,
    /// CPU time of the threads that is not yet counted as this thread's, nanoseconds. A sum alone, so `Relaxed` does. `None`
    /// before the first question.
    cpu_ns: Option<Arc<AtomicU64>>,
}

#[derive(Debug)]
struct AskingThread {
    questions: Sender<Question>,
    /// Whether a question is open. The session sets it when it asks, the thread clears it before it answers, or panics.
    is_busy: Arc<AtomicBool>,
}

/// Answers that came too late, by what they are about: they are taken when the same is asked again.
#[derive(Debug)]
pub struct LateAnswers<K, T>(HashMap<K, Receiver<T>, FxBuildHasher>);

impl<K, T> Default for LateAnswers<K, T> {
    fn default() -> Self {
        LateAnswers(HashMap::default())
    }
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
        let waits = TimeBudget::new(WAITS, true);
        Deadline {
            own,
            threads: HashMap::default(),
            waits,
            longest: LONGEST,
            usual: USUAL,
            in_turns: false,
            cpu_ns: None,
        }
    }

    /// The same where no samples wait meanwhile.
    #[must_use]
    pub fn patient(self) -> Deadline {
        self.waiting(PATIENT)
    }

    /// The same for questions that may go without an answer: in a thread that looks at rings, all together wait no longer than
    /// these have room.
    #[must_use]
    pub fn in_turns(self) -> Deadline {
        Deadline { in_turns: true, ..self }
    }

    /// The same with another longest wait.
    #[must_use]
    pub fn waiting(self, longest: Duration) -> Deadline {
        Deadline { longest, usual: longest / USUAL_PART, ..self }
    }

    /// Whether this is a thread that asks: it may wait.
    #[must_use]
    pub fn is_asking() -> bool {
        IS_ASKING.get()
    }

    /// The user of a process, if that is neither root nor the session's own user. `None`, too, for a process that has ended: it
    /// holds no lock.
    #[must_use]
    pub fn other_user(&self, pid: u32) -> Option<Principal> {
        let user = user_of_process(pid)?;
        let user = ccsd_worker::principal_of_process(pid, Some(user));
        self.is_other(user).then_some(user)
    }

    /// Whether that is neither root nor the session's own user.
    #[must_use]
    pub fn is_other(&self, user: Principal) -> bool {
        user != Principal::Own && user != self.own
    }

    /// Whether a question about a process of this user is open: no other is asked.
    #[must_use]
    pub fn is_busy(&self, user: Principal) -> bool {
        self.threads.get(&user).is_some_and(|thread| thread.is_busy.load(Ordering::Acquire))
    }

    /// Ends the threads that have nothing to do: each user has so many for all sessions.
    pub fn rest(&mut self) {
        self.threads.retain(|_, thread| thread.is_busy.load(Ordering::Acquire));
    }

    /// Whether a question about a process of this user would be asked: none is open, and the waits have left some time.
    pub fn may_ask(&mut self, user: Principal) -> bool {
        let now = Instant::now();
        if !self.waits.has_begun() {
            self.waits.begin(now);
        }
        self.waits.grow(now);
        !self.is_busy(user) && self.waits.left(Some(user), Duration::ZERO) >= LEAST
    }

    /// The answer to a question about a process of `user`; `None` where it does not come in time, or the one before has not.
    pub fn ask<T: Send + 'static>(
        &mut self,
        user: Principal,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.ask_or_wait(user, question).ok()
    }

    /// The same. An answer that comes late is there when `what` is asked again.
    pub fn ask_again<K: Eq + Hash, T: Send + 'static>(
        &mut self,
        user: Principal,
        late: &mut LateAnswers<K, T>,
        what: K,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        match late.0.get(&what).map(Receiver::try_recv) {
            Some(Err(TryRecvError::Empty)) => return None,
            Some(Ok(answer)) => {
                late.0.remove(&what);
                return Some(answer);
            }
            Some(Err(TryRecvError::Disconnected)) => _ = late.0.remove(&what),
            None => {}
        }
        match self.ask_or_wait(user, question) {
            Ok(answer) => Some(answer),
            Err(Some(open)) => {
                // Each user has one that is open: more are of processes that are not asked about any more.
                if late.0.len() >= 2 * MAX_THREADS {
                    late.0.clear();
                }
                late.0.insert(what, open);
                None
            }
            Err(None) => None,
        }
    }

    /// Errors: the answer is late, and comes there; nothing has been asked.
    fn ask_or_wait<T: Send + 'static>(
        &mut self,
        user: Principal,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Option<Receiver<T>>> {
        // What late answers have taken, too.
        let cpu_ns = Arc::clone(self.cpu_ns.get_or_insert_default());
        let count_cpu = || add_helper(cpu_ns.swap(0, Ordering::Relaxed));
        count_cpu();
        if !self.may_ask(user) {
            return Err(None);
        }
        let left = LEFT.get().filter(|_| self.in_turns);
        if left.is_some_and(|left| left < LEAST) {
            return Err(None);
        }
        let began = Instant::now();
        let longest = self.longest.min(left.unwrap_or(Duration::MAX));
        let of_question = Arc::clone(&cpu_ns);
        let Some(thread) = self.thread_of(user) else { return Err(None) };
        if thread.is_busy.swap(true, Ordering::Acquire) {
            return Err(None);
        }
        let (answer, answered) = bounded(1);
        let busy = Busy(Arc::clone(&thread.is_busy));
        let question = move || {
            let before = thread_cpu_ns();
            let made = question();
            of_question.fetch_add(thread_cpu_ns().saturating_sub(before), Ordering::Relaxed);
            drop(busy);
            // Who has asked may not wait any more.
            let _ = answer.send(made);
        };
        if thread.questions.try_send(Box::new(question)).is_err() {
            // It has panicked.
            self.threads.remove(&user);
            return Err(None);
        }
        let found = answered.recv_timeout(longest);
        let took = began.elapsed();
        if took > self.usual {
            LEFT.set(LEFT.get().map(|left| left.saturating_sub(took)));
            self.waits.spend(Some(user), took, Duration::ZERO);
        }
        count_cpu();
        found.map_err(|_| Some(answered))
    }

    fn thread_of(&mut self, user: Principal) -> Option<&mut AskingThread> {
        if !self.threads.contains_key(&user) {
            if self.threads.len() >= MAX_THREADS {
                let is_idle = |thread: &AskingThread| !thread.is_busy.load(Ordering::Acquire);
                let idle = self.threads.iter().find(|(_, thread)| is_idle(thread)).map(|(&user, _)| user)?;
                self.threads.remove(&idle);
            }
            let place = Place::of(user)?;
            let (questions, asked) = bounded(1);
            // Where the one who waits is urgent, so is the thread, if it may be.
            let is_urgent = is_urgent();
            let asking = std::thread::Builder::new().name("ccsd-ask".to_owned());
            asking.spawn(move || answer(&asked, is_urgent, place)).ok()?;
            self.threads.insert(user, AskingThread { questions, is_busy: Arc::default() });
        }
        self.threads.get_mut(&user)
    }
}

/// A question that is open.
struct Busy(Arc<AtomicBool>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A thread's place in [`ASKING`].
struct Place(Principal);

impl Place {
    fn of(user: Principal) -> Option<Place> {
        let mut asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = asking.values().sum();
        let of_user = asking.entry(user).or_default();
        let may = *of_user < MAX_ASKING.saturating_sub(all - *of_user) / 2;
        *of_user += usize::from(may);
        may.then(|| Place(user))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut asking = ASKING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_user) = asking.get_mut(&self.0) {
            *of_user -= 1;
        }
        asking.retain(|_, &mut threads| threads > 0);
    }
}

/// `place` is the thread's as long as it runs.
fn answer(questions: &Receiver<Question>, is_urgent: bool, place: Place) {
    IS_ASKING.set(true);
    if is_urgent {
        let _ = become_urgent();
    }
    for question in questions {
        question();
    }
    drop(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOR_EVER: Duration = Duration::from_secs(1_000_000);

    fn without_end() -> Deadline {
        Deadline { longest: FOR_EVER, waits: TimeBudget::new(FOR_EVER, true), ..Deadline::default() }
    }

    #[test]
    fn many_users_together_are_waited_for_no_longer_than_rings_have_room() {
        let mut deadline = without_end().in_turns();
        deadline.longest = LONGEST;
        begin_turn();
        let began = Instant::now();
        let (release, held) = bounded::<()>(0);
        let users = |from| (from..from + 10).map(Principal::User);
        for user in users(0) {
            let held = held.clone();
            assert_eq!(deadline.ask(user, move || held.recv().is_err()), None);
        }
        // One wait, or part of one, and then none.
        assert!(deadline.waits.total() >= TURN / 2 && deadline.waits.total() <= began.elapsed());
        assert!(deadline.threads.len() < 10, "{deadline:?}");
        assert!(users(20).all(|user| deadline.ask(user, || ()).is_none()));
        begin_turn();
        deadline.longest = FOR_EVER;
        assert!(!users(20).all(|user| deadline.ask(user, || ()).is_none()));
        // Who has to know waits all the same.
        LEFT.set(Some(Duration::ZERO));
        deadline.in_turns = false;
        assert_eq!(deadline.ask(Principal::User(30), || ()), Some(()));
        drop(release);
    }

    #[test]
    fn who_does_not_answer_is_waited_for_once() {
        let mut deadline = without_end();
        let (first, second) = (Principal::User(7), Principal::User(8));
        assert_eq!(deadline.ask(first, || 5), Some(5));
        let (release, held) = bounded::<()>(0);
        deadline.longest = LONGEST;
        let mut late = LateAnswers::default();
        assert_eq!(deadline.ask_again(first, &mut late, 1, move || held.recv().is_err()), None);
        assert!(deadline.waits.total() >= LONGEST);
        // Not again, as long as the question is open, and others are asked.
        deadline.longest = FOR_EVER;
        for number in 0..100 {
            assert_eq!(deadline.ask(first, move || number), None);
            assert_eq!(deadline.ask(second, move || number), Some(number));
        }
        assert_eq!(deadline.ask_again(first, &mut late, 1, || false), None);
        assert!(deadline.threads[&first].is_busy.load(Ordering::Acquire));
        drop(release);
        while deadline.threads[&first].is_busy.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        // What came late is not asked again.
        let mut again = || deadline.ask_again(first, &mut late, 1, || false);
        let answer = loop {
            if let Some(answer) = again() {
                break answer;
            }
        };
        assert!(answer && late.0.is_empty());
        assert_eq!(deadline.ask(first, || 6), Some(6));
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
        deadline.threads.values_mut().for_each(|thread| thread.is_busy.store(true, Ordering::Release));
        assert_eq!(deadline.ask(Principal::User(100), || 1), None);
    }
    #[test]
    fn threads_that_wait_for_one_user_leave_places_for_others() {
        // No users of other tests: these have small numbers.
        let [holder, other] = [70_001, 70_002].map(Principal::User);
        let held: Vec<Place> = std::iter::from_fn(|| Place::of(holder)).collect();
        // Some may be those of other tests.
        assert!((1..=MAX_ASKING / 2).contains(&held.len()), "{}", held.len());
        assert!(Place::of(other).is_some());
        drop(held);
        assert!(Place::of(holder).is_some());
        // The thread's own end gives it back, too, if a question panics.
        let mut deadline = without_end();
        assert_eq!(deadline.ask(other, || 1), Some(1));
        deadline.longest = Duration::from_secs(60);
        assert_eq!(deadline.ask(other, || -> u32 { panic!("as a question may") }), None);
        while ASKING.lock().unwrap().contains_key(&other) {
            std::thread::yield_now();
        }
        // The thread's place goes before its channel.
        while deadline.ask(other, || 3) != Some(3) {
            std::thread::yield_now();
        }
    }
}
