//! Not ending while a thread of a target is held.
//!
//! When ccsd ends, the kernel lets held threads go on, but a system call that the stop has ended with EINTR is not
//! made again. So whoever ends ccsd waits until no thread is held ([`end_holds`]), and a signal that kills it takes
//! effect then ([`idle`], [`on_idle`]). Nothing can be done about SIGKILL.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Longer than any thread is held (`MAX_CALL_WAIT` in `take`).
const MAX_WAIT: Duration = Duration::from_secs(6);

/// How many threads are held.
static HELD: Mutex<usize> = Mutex::new(0);
static LET_GO: Condvar = Condvar::new();
static IDLE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));
static ON_IDLE: OnceLock<Box<dyn Fn() + Send + Sync>> = OnceLock::new();

/// A thread is held, or about to be.
pub struct Hold(());

impl Hold {
    /// Never returns after [`end_holds`].
    pub fn begin() -> Hold {
        let mut held = lock();
        if *held == 0 {
            // In this order: a signal that came before finds ccsd idle or is noticed here, or both.
            IDLE.store(false, Ordering::SeqCst);
            notify();
        }
        *held += 1;
        Hold(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = lock();
        *held -= 1;
        if *held == 0 {
            IDLE.store(true, Ordering::SeqCst);
            LET_GO.notify_all();
            notify();
        }
    }
}

fn lock() -> MutexGuard<'static, usize> {
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
    let waited = LET_GO.wait_timeout_while(lock(), MAX_WAIT, |held| *held > 0);
    // Kept locked: dumps that are in progress do not go on.
    std::mem::forget(waited.unwrap_or_else(PoisonError::into_inner));
}
