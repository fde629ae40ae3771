//! Memory that is free again goes back to the system.
//!
//! The C library keeps what is freed in the heaps of the threads that have allocated it: after a flood of connections or
//! sessions that is most of what there was. So a while after some have ended it is asked to give it back.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether something has ended since it was given back last.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Says that a session or a connection has ended.
pub fn something_ended() {
    // Relaxed: what was freed before is found whenever it is looked for.
    ENDED.store(true, Ordering::Relaxed);
}

/// Gives back what is free, if something has ended since the last time. To be called now and then: it takes milliseconds, in
/// which other threads may have to wait for memory.
pub fn give_back() {
    if ENDED.swap(false, Ordering::Relaxed) {
        // SAFETY: malloc_trim(3) takes a number, locks each heap while it works on it, and touches no memory that is in use.
        unsafe { libc::malloc_trim(0) };
    }
}
