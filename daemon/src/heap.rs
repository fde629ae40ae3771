//! Returns freed memory to the system.
//!
//! The C library keeps freed memory in per-thread heaps: after many connections or sessions, that is most of the
//! daemon's memory. The daemon therefore trims the heaps some time after sessions or connections have ended.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a session or connection has ended since the last trim.
static ENDED: AtomicBool = AtomicBool::new(false);

/// Notes that a session or connection has ended.
pub fn note_end() {
    // Relaxed: the flag publishes no other data.
    ENDED.store(true, Ordering::Relaxed);
}

/// Trims the heaps if something has ended since the last call. Takes milliseconds, during which other threads may wait
/// for memory; to be called periodically.
pub fn trim() {
    if ENDED.swap(false, Ordering::Relaxed) {
        // SAFETY: malloc_trim(3) takes a number, locks each heap while it works on it, and touches no memory that is in use.
        unsafe { libc::malloc_trim(0) };
    }
}
