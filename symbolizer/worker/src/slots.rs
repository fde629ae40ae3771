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

/// Killed processes that the kernel keeps, and that hold no place any more. What they take is missing to the others.
const MOST_LEFT: usize = 4;

/// How many there are. Relaxed: the counters publish no other data.
#[derive(Debug, Default)]
struct Counts {
    running: AtomicUsize,
    left: AtomicUsize,
}

/// All places. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WorkerSlots(Arc<Counts>);

/// A place, held while its process exists, unless it is [left](WorkerSlot::leave).
#[derive(Debug)]
pub struct WorkerSlot {
    /// For processes of other principals.
    taken: Option<Arc<Counts>>,
    is_left: bool,
}

impl WorkerSlots {
    /// Takes a place; `None` if none is free. This machine's own worker always has one.
    pub fn take(&self, principal: Principal) -> Option<WorkerSlot> {
        if principal == Principal::Own {
            return Some(WorkerSlot { taken: None, is_left: false });
        }
        take_one(&self.0.running, OTHERS).then(|| WorkerSlot { taken: Some(Arc::clone(&self.0)), is_left: false })
    }

    pub fn is_full(&self) -> bool {
        self.0.running.load(Ordering::Relaxed) >= OTHERS
    }
}

fn take_one(of: &AtomicUsize, most: usize) -> bool {
    let one_more = |taken: usize| (taken < most).then_some(taken + 1);
    of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
}

impl WorkerSlot {
    pub fn memory(&self) -> u64 {
        if self.is_own() { OWN_BYTES } else { OTHER_BYTES }
    }

    /// Whether it is for the process of this machine's own files.
    pub fn is_own(&self) -> bool {
        self.taken.is_none()
    }

    /// Leaves the place to others, although the process does not end, if there are not too many of these.
    pub fn leave(&mut self) {
        if let Some(counts) = self.taken.as_ref().filter(|_| !self.is_left)
            && take_one(&counts.left, MOST_LEFT)
        {
            counts.running.fetch_sub(1, Ordering::Relaxed);
            self.is_left = true;
        }
    }
}

impl Drop for WorkerSlot {
    fn drop(&mut self) {
        if let Some(counts) = &self.taken {
            let of = if self.is_left { &counts.left } else { &counts.running };
            of.fetch_sub(1, Ordering::Relaxed);
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

    #[test]
    fn processes_that_do_not_end_leave_their_places() {
        let slots = WorkerSlots::default();
        let stuck = |uid: u32| {
            let mut slot = slots.take(Principal::User(uid))?;
            slot.leave();
            slot.leave();
            Some(slot)
        };
        // The last ones keep theirs.
        let mut all: Vec<WorkerSlot> = (0..20).map_while(stuck).collect();
        assert_eq!((all.len(), slots.is_full()), (MOST_LEFT + OTHERS, true));
        // One that has ended makes room for another to leave.
        all.remove(0);
        assert!(slots.is_full());
        all.last_mut().unwrap().leave();
        assert!(!slots.is_full());
        drop(all);
        assert_eq!((0..20).map_while(stuck).count(), 20);
    }
}
