//! Places for running worker processes, which bound their number and memory together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::principal::Principal;

/// Memory of the worker that reads this machine's own images: symbols of several large images, and one very large image
/// being read (see [`crate::images`]).
const OWN_BYTES: u64 = 768 << 20;
/// Memory of each other worker, and their maximum number. With the daemon's own budget (512 MiB by default) all stay
/// below the 2 GiB that the service's unit allows, even if several users' files are made to fill them. Usually a worker
/// takes some ten megabytes.
const OTHER_BYTES: u64 = 320 << 20;
pub const OTHERS: usize = 2;

/// All places. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WorkerSlots(Arc<AtomicUsize>);

/// A place, held while its process exists.
#[derive(Debug)]
pub struct WorkerSlot {
    /// For processes of other principals.
    taken: Option<Arc<AtomicUsize>>,
}

impl WorkerSlots {
    /// Takes a place; `None` if none is free. This machine's own worker always has one.
    pub fn take(&self, principal: Principal) -> Option<WorkerSlot> {
        if principal == Principal::Own {
            return Some(WorkerSlot { taken: None });
        }
        // Relaxed: the counter publishes no other data.
        let one_more = |taken: usize| (taken < OTHERS).then_some(taken + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(WorkerSlot { taken: Some(Arc::clone(&self.0)) })
    }

    pub fn is_full(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= OTHERS
    }
}

impl WorkerSlot {
    pub fn memory(&self) -> u64 {
        if self.is_own() { OWN_BYTES } else { OTHER_BYTES }
    }

    /// Whether it is for the process of this machine's own files.
    pub fn is_own(&self) -> bool {
        self.taken.is_none()
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        if let Some(taken) = &self.taken {
            taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_few_places_and_the_machine_s_own_has_one() {
        let slots = WorkerSlots::default();
        let taken: Vec<WorkerSlot> = (0..9).filter_map(|uid| slots.take(Principal::User(uid))).collect();
        assert_eq!((taken.len(), slots.is_full()), (OTHERS, true));
        assert!(slots.take(Principal::Own).is_some());
        drop(taken);
        assert!(slots.take(Principal::Elsewhere { namespace: 1, device: 2 }).is_some());
    }
}
