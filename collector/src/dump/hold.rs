//! Keeps ccsd from ending while it holds a thread of a target.
//!
//! If ccsd ends then, the kernel lets the thread go, but its system call returns EINTR instead of going on. So
//! [`end_holds`] waits until no thread is held, and a signal that ends ccsd waits, too ([`idle`], [`on_idle`]).
//! SIGKILL does not.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Longer than any thread is held (`MAX_CALL_WAIT` in `take`).
const MAX_WAIT: Duration = Duration::from_secs(6);

static HELD: Mutex<Held> = Mutex::new(Held { threads: 0, is_ending: false });
static LET_GO: Condvar = Condvar::new();
/// What dumps in progress wait for when ccsd ends.
static NEVER: Condvar = Condvar::new();
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));
static ON_IDLE: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

struct Held {
    threads: usize,
    /// No more may be.
    is_ending: bool,
}

/// A thread is held, or about to be.
pub struct Hold(());

impl Hold {
    /// Never returns after [`end_holds`].
    pub fn begin() -> Hold {
        let mut held = lock();
        while held.is_ending {
            held = NEVER.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        if held.threads == 0 {
            // In this order: a signal that came before finds ccsd idle or is noticed here, or both.
            IDLE.store(false, Ordering::SeqCst);
            notify();
        }
        held.threads += 1;
        Hold(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = lock();
        held.threads -= 1;
        if held.threads == 0 {
            IDLE.store(true, Ordering::SeqCst);
            LET_GO.notify_all();
            notify();
        }
    }
}

fn lock() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn notify() {
    if let Some(act) = ON_IDLE.get() {
        act();
    }
}

/// Whether no thread is held: a signal may end ccsd at once. If not, its handler leaves that to [`on_idle`].
#[must_use]
pub fn idle() -> Arc<AtomicBool> {
    IDLE.clone()
}

/// Sets what is to be done before the first thread is held and after the last one has been let go: to end ccsd if a
/// signal has come meanwhile. Only the first call has an effect.
pub fn on_idle(act: impl Fn() + Send + Sync + 'static) {
    let _ = ON_IDLE.set(Box::new(act));
}

/// Waits until no thread is held. None is held from then on: to be called before ccsd ends.
pub fn end_holds() {
    let mut held = lock();
    held.is_ending = true;
    drop(LET_GO.wait_timeout_while(held, MAX_WAIT, |held| held.threads > 0));
}
