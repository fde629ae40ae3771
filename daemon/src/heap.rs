//! Returns freed memory to the system: the C library keeps it in per-thread heaps, which after many connections or
//! sessions is most of the daemon's memory.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a session or connection has ended since the last trim.
static ENDED: AtomicBool = AtomicBool::new(false);

pub fn note_end() {
    // Relaxed: the flag publishes no other data.
    ENDED.store(true, Ordering::Relaxed);
}

/// Trims the heaps if something has ended since the last call. Takes milliseconds; call periodically.
pub fn trim() {
    if ENDED.swap(false, Ordering::Relaxed) {
        // SAFETY: malloc_trim(3) takes a number, locks each heap while it works on it, and touches no memory that is in use.
        unsafe { libc::malloc_trim(0) };
    }
}
