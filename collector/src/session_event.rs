//! What a session tells those who have begun it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ccsd_profile::{Profile, Update};

/// What a session says.
#[derive(Debug)]
pub enum SessionEvent {
    /// What came since the last one. The first also describes the session.
    Update(Box<Update>),
    /// There will be nothing more: the whole profile, or its last generation.
    Finished(Box<Profile>),
}

#[derive(Clone)]
pub struct Held(Arc<[AtomicU64; 2]>);

impl Held {
    pub fn new(ring_bytes: usize) -> Held {
        Held(Arc::new([AtomicU64::new(ring_bytes as u64), AtomicU64::new(0)]))
    }

    pub fn tell(&self, bytes: u64) {
        // Relaxed: nothing else depends on it.
        self.0[1].store(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> u64 {
        let [rings, others] = &*self.0;
        rings.load(Ordering::Relaxed).saturating_add(others.load(Ordering::Relaxed))
    }
}
